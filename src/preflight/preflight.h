/* SPDX-License-Identifier: Apache-2.0
 *
 * Pre-flight: what would stop or spoil a model, found from headers alone, and what the model is. Compares the
 * checkpoint with the description; reads no weight and opens no device. One cause is one finding: kinds of
 * tensors are counted together, and what a lost shard explains is not reported again.
 */
#ifndef PREFLIGHT_PREFLIGHT_H
#define PREFLIGHT_PREFLIGHT_H

#include "base/finding.h"
#include "base/log.h"
#include "ckpt/ckpt.h"
#include "dev/dev.h"
#include "host/host.h"
#include "plan/plan.h"
#include "spec/spec.h"

struct preflight_options {
    uint64_t memory_bytes;     /* what the model may use on this machine; 0: memory is not judged */
    const char *memory_source; /* "--memory", "MemAvailable", ...; for the evidence */
    uint64_t context_tokens;   /* KV wanted, tokens over all sequences; 0: the context limit, at most 2,048 */
    uint32_t max_step_tokens, max_seqs;   /* as in plan_options */
    bool skip_tokenizer;                  /* somebody else judges it (prompt_open) */
    bool partial;                         /* preflight_open: see ckpt_options */
    const struct host_card_profile *card; /* judge for this card, which is not here; NULL: none */
    uint32_t n_cards;                     /* of that kind; 0: 1 */
    struct dev *dev; /* that the memory is judged for: counts what its kernels set aside. NULL: it does not */
    bool runs_here;  /* the model is to be run by this build's own kernels: what they lack is an error */
    bool runs_elsewhere; /* another device was named, and is asked itself: what they lack is not told */
};

/* Adds findings to those of ckpt_open() and spec_open(): C005, C009, W009, W010, W011, W013, T001..T003,
 * W017, M001, P001, P004 (these two about options->card), P005 and P006 (not with a card). s: NULL where
 * there is no description; then only what needs none is checked. Errors: ERR_NOMEM, ERR_IO. */
int preflight_check(struct ckpt *c, const struct spec *s, const struct preflight_options *o,
                    struct findings *f, struct d0 *d0, struct err *e);

/* P005: what of the text graph this build does not compute: storage of weights, operators. Severity error if
 * the model is to be run here, else information. P006 as information, unless there is one: activations as the
 * release asks for them that nothing computes. Also a part of preflight_check. Errors: ERR_NOMEM.
 */
int preflight_kernels(const struct spec *s, bool runs_here, struct findings *f, struct err *e);

/* Does this build read the tower's weights, and the device run its nodes (NULL: it is not asked)?
 * ERR_UNSUPPORTED: no, or the description has no graph of a tower. */
int preflight_tower(const struct spec *s, struct dev *dev, struct err *e);

/* All of it in order: ckpt_open, spec_open, preflight_check. *c and *s are set as far as they could be
 * opened, and the caller closes them, also after an error; *s may be NULL after success. */
int preflight_open(const char *dir, const struct spec_options *so, const struct preflight_options *o,
                   struct ckpt **c, struct spec **s, struct findings *f, struct d0 *d0, struct err *e);

enum preflight_verdict { PREFLIGHT_PASS, PREFLIGHT_FAIL, PREFLIGHT_INCOMPLETE };
/* Fail: an unwaived error. Incomplete: no such, but nothing could be compared (no description), the
 * description is a draft, files are not yet here (W022), a card's profile leaves questions open (P004), or an
 * architecture file that is not shipped leaves tensors out (W011) or unused (C009); each unless waived. */
enum preflight_verdict preflight_verdict(const struct findings *f, const struct spec *s);
/* The architecture file caps every verdict: a draft, or not shipped with W011 or C009 open. */
bool preflight_unproven(const struct findings *f, const struct spec *s);
const char *preflight_verdict_name(enum preflight_verdict v); /* "pass" "fail" "incomplete" */

/* ---- every byte of the weights: hashes, values that are not finite, tensors of zeros, files twice ---- */
struct preflight_payload_options {
    bool hash;              /* hash every file, also where nothing says what its hash should be */
    unsigned threads;       /* 0: as many as there are processors */
    const char *cache_path; /* results of unchanged files are taken from here and kept here; NULL: no cache */
    /* Called now and then, by one thread, with bytes of files done and wanted in all. NULL: no news. */
    void (*progress)(void *context, uint64_t done, uint64_t total);
    void *context;
};

struct preflight_payload_shard {
    const char *name;     /* of the checkpoint */
    uint64_t bytes;       /* of the file */
    char sha256[65];      /* "" if it was not hashed */
    const char *expected; /* what its hash should be, or NULL */
    const char *expected_from;
    uint64_t tensors; /* looked at: those that lie wholly in the file */
    uint64_t n_not_finite, n_all_zero;
    bool read, from_cache, mismatch;
    int64_t same_as; /* earlier shard with the same bytes, or -1 */
};

struct preflight_payload {
    struct arena arena;
    struct preflight_payload_shard *shards; /* parallel to those of the checkpoint */
    size_t n_shards;
    uint64_t bytes_read, bytes_cached; /* of files */
    uint64_t n_hashed, n_compared, n_mismatch, n_same;
    uint64_t tensors, n_not_finite, n_all_zero;
    double seconds;
    unsigned threads;
    char cache_trouble[200]; /* why results could not be kept, or "" */
};

/* Reads every file that is here once, adds W016, W018, W019 and W020. Memory: at most 64 MiB of buffers and
 * 32 bytes for each tensor of the files being read. Errors: ERR_IO, ERR_NOMEM, ERR_BUSY (a file changed
 * meanwhile). *out is to be released also after an error. */
int preflight_payload(struct ckpt *c, const struct preflight_payload_options *o, struct findings *f,
                      struct preflight_payload *out, struct err *e);
void preflight_payload_release(struct preflight_payload *p);
void preflight_write_payload(const struct preflight_payload *p, struct json_writer *w);
/* $XDG_CACHE_HOME/day0/payload.json or ~/.cache/day0/payload.json, in the arena; NULL: no home. */
char *preflight_payload_cache_path(struct arena *arena);

/* ---- a first architecture file for a model that nobody described */
struct preflight_draft_options {
    const char *const *without; /* names of shipped files that are not to be used */
    size_t n_without;
    uint32_t max_seconds; /* of fitting; what is not tried by then is left as it is; 0: 20 */
};

struct preflight_draft_family {
    const char *file, *why; /* why: it could not be run on this config.json; NULL: it could */
    bool loaded;
    uint64_t claimed;
    double alike; /* 0..1: share of the names and tensors here that it describes as it is */
};

struct preflight_draft {
    struct arena arena;
    const char *text; /* of the file, n bytes; it loads */
    size_t n;
    const char *nearest;     /* shipped file that it began as; NULL: none is near */
    uint64_t claimed, total; /* tensors that the file names, and that there are */
    uint64_t by_family;      /* of them: by the family's own calls, edited or not */
    uint64_t listed;         /* of them: only listed */
    const char **unclaimed, **missing,
        **misshapen; /* patterns of names: not named; wanted in vain; of another shape */
    size_t n_unclaimed, n_missing, n_misshapen;
    struct preflight_draft_family *tried;
    size_t n_tried;
};

/* Runs every shipped architecture file on the checkpoint; seconds for a large one. *out is to be released
 * also after an error: ERR_UNSUPPORTED (no config.json, no tensors, nothing that looks like an embedding),
 * ERR_FORMAT, ERR_NOMEM.
 */
int preflight_draft(struct ckpt *c, const struct preflight_draft_options *o, struct preflight_draft *out,
                    struct err *e);
void preflight_draft_release(struct preflight_draft *d);
/* {"nearest", "claimed", "total", "by_family", "listed", "unclaimed", "missing", "other_shape", "tried",
 * "file"} */
void preflight_write_draft(const struct preflight_draft *d, const char *file, struct json_writer *w);

/* {"verdict", "findings": [...], "seconds"} */
void preflight_write_check(enum preflight_verdict v, const struct findings *f, double seconds,
                           struct json_writer *w);
/* The same without the braces, to add more. */
void preflight_write_check_members(enum preflight_verdict v, const struct findings *f, double seconds,
                                   struct json_writer *w);

/* ---- what a model is */
struct preflight_dtype {
    uint32_t dtype; /* 0: types that we do not know */
    uint64_t n_tensors, bytes;
};
struct preflight_operator {
    const char *name;
    const char *group; /* NULL: the text graph; else the part outside of it */
    uint64_t count;    /* nodes of the graph */
};
#define PREFLIGHT_MAX_DTYPES    32
#define PREFLIGHT_MAX_OPERATORS 128

struct preflight_inspection { /* strings belong to the checkpoint and the description, layouts to the arena */
    const char *architecture, *model_type, *arch_file, *arch_origin, *arch_sha256;
    char manifest_sha256[65];
    uint64_t parameters, n_tensors, n_shards, weight_bytes;
    int64_t n_layers, hidden, intermediate, n_heads, n_kv_heads, head_dim, vocab, context_limit;
    bool tied_embeddings;
    uint32_t kv_dtype;
    uint64_t kv_bytes_per_token;
    struct preflight_dtype dtypes[PREFLIGHT_MAX_DTYPES]; /* most bytes first */
    size_t n_dtypes;
    struct preflight_operator operators[PREFLIGHT_MAX_OPERATORS]; /* in order of first use */
    size_t n_operators;
    uint64_t active_parameters;                  /* of the text: used by one token */
    uint64_t described_tensors, described_bytes; /* of the inventory, whether the tensors are there or not */
    uint64_t state_bytes;                        /* one request, besides KV */
    uint64_t n_experts;
    struct preflight_operator schemes[24]; /* weights by how they are stored */
    size_t n_schemes;
    struct spec_asked activations[SPEC_MAX_ASKED]; /* roundings that the release asks for */
    size_t n_activations;
    struct plan_degrees layouts;
};

/* s must not be NULL. Errors: ERR_NOMEM, ERR_IO. */
int preflight_inspect(struct ckpt *c, const struct spec *s, struct arena *arena,
                      struct preflight_inspection *out, struct err *e);
void preflight_write_inspection(const struct preflight_inspection *x, struct json_writer *w);
/* "released_activations" as a member of an object that is open. */
void preflight_write_activations(const struct spec_asked *asked, size_t n, struct json_writer *w);
/* "tp_degrees" and "ep_degrees" as members of an object that is open. */
void preflight_write_layouts(const struct plan_degrees *d, struct json_writer *w);

/* Every tensor of the inventory as a line "name dtype dims role partition group bytes", separated by tabs;
 * logical: "name dims" of every weight but drafting layers, as it is without quantisation. A sink that
 * returns other than 0 ends it, and its value is returned. */
typedef int (*preflight_sink)(void *ctx, const char *text, size_t n);
int preflight_tensors(const struct ckpt *c, const struct spec *s, bool logical, preflight_sink sink,
                      void *ctx);

#endif
