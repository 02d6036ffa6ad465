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
#include "plan/plan.h"
#include "spec/spec.h"

struct preflight_options {
    uint64_t memory_bytes;     /* what the model may use on this machine; 0: memory is not judged */
    const char *memory_source; /* "--memory", "MemAvailable", ...; for the evidence */
    uint64_t context_tokens;   /* KV wanted, tokens over all sequences; 0: the context limit, at most 2,048 */
    uint32_t max_step_tokens, max_seqs; /* as in plan_options */
    bool skip_tokenizer;                /* somebody else judges it (prompt_open) */
};

/* Adds findings to those of ckpt_open() and spec_open(): C005, W009, W010, W011, W013, T001..T003, W017,
 * M001. s: NULL where there is no description; then only what needs none is checked. Errors: ERR_NOMEM,
 * ERR_IO. */
int preflight_check(struct ckpt *c, const struct spec *s, const struct preflight_options *o,
                    struct findings *f, struct d0 *d0, struct err *e);

/* All of it in order: ckpt_open, spec_open, preflight_check. *c and *s are set as far as they could be
 * opened, and the caller closes them, also after an error; *s may be NULL after success. */
int preflight_open(const char *dir, const struct spec_options *so, const struct preflight_options *o,
                   struct ckpt **c, struct spec **s, struct findings *f, struct d0 *d0, struct err *e);

enum preflight_verdict { PREFLIGHT_PASS, PREFLIGHT_FAIL, PREFLIGHT_INCOMPLETE };
/* Fail: an unwaived error. Incomplete: no such, but nothing could be compared (no description), or the
 * description is a draft. */
enum preflight_verdict preflight_verdict(const struct findings *f, const struct spec *s);
const char *preflight_verdict_name(enum preflight_verdict v); /* "pass" "fail" "incomplete" */

/* {"verdict", "findings": [...], "seconds"} */
void preflight_write_check(enum preflight_verdict v, const struct findings *f, double seconds,
                           struct json_writer *w);

/* ---- what a model is */
struct preflight_dtype {
    uint32_t dtype; /* 0: types that we do not know */
    uint64_t n_tensors, bytes;
};
struct preflight_operator {
    const char *name;
    uint64_t count; /* nodes of the graph */
};
#define PREFLIGHT_MAX_DTYPES    32
#define PREFLIGHT_MAX_OPERATORS 128
#define PREFLIGHT_MAX_DEGREES   16

struct preflight_inspection { /* strings belong to the checkpoint and the description */
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
    struct plan_degree degrees[PREFLIGHT_MAX_DEGREES];
    size_t n_degrees;
};

/* s must not be NULL. Errors: ERR_NOMEM, ERR_IO. */
int preflight_inspect(struct ckpt *c, const struct spec *s, struct preflight_inspection *out, struct err *e);
void preflight_write_inspection(const struct preflight_inspection *x, struct json_writer *w);

#endif
