/* SPDX-License-Identifier: Apache-2.0
 *
 * Facts about a machine, this one or one that was captured: processor, caches, memory, topology (hwloc),
 * cards, links, kernel, libraries and their versions, limits of this process. Every fact may be unknown, and
 * then says so: strings are then NULL, numbers 0. Also rules on versions, and profiles of cards
 * (docs/captures.md).
 */
#ifndef HOST_HOST_H
#define HOST_HOST_H

#include "base/err.h"
#include "base/finding.h"
#include "base/json.h"

/* version: as the library gives it at run time, or NULL where only its presence is known. package: version of
 * the distribution's package that it came from, or NULL. */
struct host_library {
    const char *name, *version;
    const char *role;
    bool found;
    const char *package;
};

struct host_card {
    const char *address, *vendor, *model; /* of the PCI bus; model NULL: no driver tells it */
    const char *device;                   /* "vendor:device" ids */
};

struct host_link { /* network adapters that move data without the processor */
    const char *name, *rate, *state;
};

struct host {
    struct arena arena;
    const char *hostname, *kernel, *os, *cpu_model, *arch;
    unsigned n_cores, n_threads_usable, n_sockets,
        n_numa;                  /* n_threads_usable honours affinity and the cgroup's CPU quota */
    uint64_t l2_bytes, l3_bytes; /* of one cache of that level */
    const char *cpu_flags;       /* the relevant ones: avx2 fma f16c avx512f ... amx */
    uint64_t memory_total, memory_available; /* bytes; available honours cgroup and RLIMIT_AS */
    const char *memory_limit_source;         /* "MemAvailable", "cgroup", "RLIMIT_AS" */
    uint64_t disk_free;                      /* of the directory asked about; 0 unknown */
    struct host_library *libraries;
    size_t n_libraries;
    const char *topology; /* multi-line text of sockets, caches, cores, NUMA, PCI devices */
    const char *compiler; /* that built this binary */
    struct host_card *cards;
    size_t n_cards;
    struct host_link *links;
    size_t n_links;
    unsigned n_threads_allowed;     /* by affinity alone */
    uint64_t address_space_left;    /* under RLIMIT_AS; UINT64_MAX: no limit */
    const char *capture, *taken_at; /* NULL: this machine */
};

/* dir_for_disk: NULL, or a directory that may not exist yet (its nearest parent is asked). Only ERR_NOMEM is
 * possible. */
int host_open(struct host **out, const char *dir_for_disk, struct err *e);
/* A machine that is not here, from a file that host_capture() wrote there. Untrusted: ERR_FORMAT says what is
 * wrong with it, ERR_LIMIT that it is too large; ERR_MISSING, ERR_IO. */
int host_open_capture(struct host **out, const char *path, struct err *e);
int host_parse_capture(struct host **out, const char *text, size_t n, const char *name, struct err *e);
/* Facts of this machine with their sources into one JSON file, replaced atomically. */
int host_capture(const char *path, struct err *e);
void host_close(struct host *h);
void host_write_json(const struct host *h, struct json_writer *w);
void host_write_members(const struct host *h, struct json_writer *w); /* without the braces, to add more */

/* The memory this process may still take, alone: cheap enough to ask before every large allocation. Returns
 * the name of the limit that binds ("MemAvailable", "cgroup", "RLIMIT_AS"), NULL when nothing is known. */
const char *host_memory_available(uint64_t *bytes);

/* ---- rules on versions (hardware/compat.json is built in) */
enum host_rule_state { HOST_RULE_HOLDS, HOST_RULE_VIOLATED, HOST_RULE_NOT_APPLICABLE, HOST_RULE_UNKNOWN };

struct host_rule {
    const char *id, *component;        /* a library of struct host, or "kernel" */
    const char *needs;                 /* ">= 580" or ">= 2.18, < 3" */
    const char *package_needs;         /* holds as well if the package's version is like this; or NULL */
    const char *when_component, *when; /* applies only if that is so; NULL: whenever the component is there */
    const char *reason, *source;
    enum severity severity;
};
struct host_rules {
    struct arena arena;
    struct host_rule *items;
    size_t n;
};

/* path NULL: the built-in ones. Errors as of host_open_capture(). */
int host_rules_open(struct host_rules *out, const char *path, struct err *e);
int host_rules_parse(struct host_rules *out, const char *text, size_t n, const char *name, struct err *e);
void host_rules_release(struct host_rules *r);
/* `seen` (may be NULL): what was found, for people. */
enum host_rule_state host_rule_judge(const struct host_rule *r, const struct host *h, char *seen,
                                     size_t seen_bytes);
const char *host_rule_state_name(enum host_rule_state s); /* "holds" "violated" "not applicable" "unknown" */
/* Each rule that is violated: P002 with the rule's severity. */
void host_rules_check(const struct host_rules *r, const struct host *h, struct findings *f);
void host_rules_write_json(const struct host_rules *r, const struct host *h, struct json_writer *w);

/* Order of versions as of Debian packages ([epoch:]upstream[-revision], "~" before everything); text before
 * the first digit is passed over. < 0, 0, > 0. */
int host_version_compare(const char *a, const char *b);
/* ">= 1.2, < 2": 1 holds, 0 does not, -1 malformed. */
int host_version_matches(const char *version, const char *condition);

/* ---- profiles of cards (hardware/cards/NAME.json): what a card that is not here can do */
enum host_answer { HOST_NO, HOST_YES, HOST_NOT_KNOWN };

struct host_card_limit { /* an attribute of an operator takes only these values */
    const char *attribute;
    const int64_t *values;
    size_t n_values;
};
struct host_card_operator {
    const char *name; /* as in include/day0/ops.def */
    enum host_answer supported;
    const char **dtypes; /* NULL: not known */
    size_t n_dtypes;
    const struct host_card_limit *limits;
    size_t n_limits;
    const char *source; /* or NULL */
};
struct host_card_profile {
    struct arena arena;
    const char *name, *vendor;
    uint64_t memory_bytes, memory_bytes_per_second; /* 0: not known */
    const char **dtypes;                            /* that the card computes with; NULL: not known */
    size_t n_dtypes;
    struct host_card_operator *operators; /* what is not listed is not known */
    size_t n_operators;
    const char **sources;
    size_t n_sources;
};

int host_card_open(struct host_card_profile **out, const char *path, struct err *e);
int host_card_parse(struct host_card_profile **out, const char *text, size_t n, const char *name,
                    struct err *e);
void host_card_close(struct host_card_profile *p);
/* Does the card run this operator on this type (NULL: any)? */
enum host_answer host_card_runs(const struct host_card_profile *p, const char *op, const char *dtype);
/* With this value of an attribute? Yes if no limit is listed and the operator is supported. */
enum host_answer host_card_takes(const struct host_card_profile *p, const char *op, const char *attribute,
                                 int64_t value);

#endif
