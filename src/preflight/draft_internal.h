/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to the drafting of architecture files: draft.c (the order of the work), draft_trial.c (a family
 * tried on a checkpoint), draft_rename.c (search for names that mean the same), draft_lua.c (edits of Lua
 * text), draft_extra.c (what nobody describes), draft_scratch.c (without a family).
 */
#ifndef PREFLIGHT_DRAFT_INTERNAL_H
#define PREFLIGHT_DRAFT_INTERNAL_H

#include "base/hash.h"
#include "base/str.h"
#include "preflight/preflight.h"

#define DRAFT_MARK      "TODO day0 draft: "
#define DRAFT_MAX_BYTES (240u << 10) /* an architecture file may have 256 KiB */
#define DRAFT_MAX_NOTES 64
#define DRAFT_NAME      320

/* Tensors whose names are alike but for their numbers, and have one shape. */
struct draft_pattern {
    const char *name; /* "model.layers.%d.mlp.up_proj.weight" */
    const struct ckpt_tensor *first;
    uint64_t n, n_claimed, n_misshapen; /* claimed: also those of another shape */
};

struct draft_names {
    struct draft_pattern *items;
    size_t n, capacity;
    struct strmap map;
    uint32_t *of; /* pattern of each tensor of the checkpoint; UINT32_MAX: its name is too long */
};

/* What a family wants and the checkpoint lacks. */
struct draft_absent {
    const char *name;
    uint64_t n;
    uint32_t n_dims;
    int64_t dims[TENSOR_MAX_DIMS];
};

enum draft_claim { CLAIM_NONE, CLAIM_SHAPE, CLAIM_WHOLE };

/* A family's text, perhaps edited, run on the checkpoint. */
struct draft_trial {
    const char *file; /* name of the shipped file */
    struct strbuf text;
    bool loaded, silenced, nested;
    char why[240];       /* not loaded: what it lacks */
    uint8_t *claims;     /* enum draft_claim of each tensor */
    uint64_t n_claimed;  /* tensors by name */
    double alike, score; /* 0..1: share of what is there that it names; the same less what it wants in vain */
    double promise;      /* 0..1: share of the patterns here that may be wanted ones under other names */
    struct draft_absent *absent;
    size_t n_absent, absent_capacity;
    struct strmap absent_map;
    struct strbuf unread;         /* keys of config.json that it does not read */
    char *notes[DRAFT_MAX_NOTES]; /* malloc'ed: differences from the family, for the head of the file */
    size_t n_notes;
};

struct drafting {
    struct ckpt *c;
    const struct preflight_draft_options *o;
    struct arena *arena;
    struct draft_names names;
    const char *architecture, *model_type;
    int64_t hidden;
    uint32_t usual_dtype;
    unsigned n_trials;
    uint64_t deadline_ns;
};

/* ---- draft_trial.c */
/* Numbers between dots become %d. false: too long, or a number that no %d gives back. */
bool draft_collapse(const char *name, char *buf, size_t bytes);
int draft_names_read(struct drafting *x, struct err *e);
void draft_names_release(struct draft_names *n);
/* Runs t->text as it is; t->loaded says whether it can be. Errors: ERR_NOMEM. */
int draft_measure(struct drafting *x, struct draft_trial *t, struct err *e);
/* Runs a shipped file and mends what keeps it from running: keys that config.json lacks. */
int draft_try(struct drafting *x, const struct arch_file *file, struct draft_trial *t, struct err *e);
void draft_trial_release(struct draft_trial *t);
void draft_note(struct draft_trial *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Integer of config.json or its part for the text, by key. */
bool draft_config_int(const struct drafting *x, const char *key, int64_t *out);

/* ---- draft_rename.c: edits t while its score grows */
void draft_promise(const struct drafting *x, struct draft_trial *t); /* right after t was run */
int draft_search(struct drafting *x, struct draft_trial *t, struct err *e);
/* Distance of two names whose parts may be other words for one role. */
unsigned draft_distance(const char *a, const char *b);

/* ---- draft_lua.c */
/* Replaces old, whole components of it, in string literals: the one number `which` (0, 1, ...), or all (-1);
 * the lines get a mark. Returns how many places there were to replace. */
size_t draft_replace(const struct strbuf *from, struct strbuf *to, const char *old, const char *new,
                     int which);
/* The key of config.json another name, or a default by its reader. false: nothing to edit. */
bool draft_replace_key(struct strbuf *text, const char *key, const char *other);
bool draft_default_key(struct strbuf *text, const char *key);
/* build() goes on with this part of its config. */
bool draft_descend(struct strbuf *text, const char *part);
/* A word as the content of a Lua string; false: it has characters that do not belong into one. */
bool draft_plain(const char *s);
/* The family's text with the head of a draft, for this model; then `extra`, a Lua function of that name. */
bool draft_assemble(const struct drafting *x, const struct draft_trial *t, const char *extra,
                    struct strbuf *out);
/* The first lines of a drafted file. */
void draft_head(const struct drafting *x, const char *from, struct strbuf *out);

/* ---- draft_extra.c: calls that list the tensors whose claim is CLAIM_NONE (claims NULL: all). base: the
 * file that does not describe them, or NULL. listed: how many. Errors: ERR_NOMEM. */
int draft_extra(const struct drafting *x, const uint8_t *claims, const char *base, struct strbuf *out,
                uint64_t *listed, struct err *e);

/* ---- draft_scratch.c: a file without a family. ERR_UNSUPPORTED: no embedding can be told. */
int draft_scratch(struct drafting *x, struct strbuf *out, uint64_t *listed, struct err *e);

#endif
