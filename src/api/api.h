/* SPDX-License-Identifier: Apache-2.0
 *
 * One model, opened whole on one device: what run, serve and the public library (include/day0.h) stand on.
 * Owns the order of opening and closing and the sizes of the engine; everything else is done by the rooms
 * below.
 */
#ifndef API_API_H
#define API_API_H

#include "base/finding.h"
#include "base/log.h"
#include "ckpt/ckpt.h"
#include "dev/dev.h"
#include "engine/engine.h"
#include "plan/plan.h"
#include "prompt/prompt.h"
#include "sched/sched.h"
#include "spec/spec.h"

struct session_options {
    const char *model_dir, *arch_path;
    const char *device, *isa; /* NULL: cpu, fast */
    unsigned n_threads;       /* 0: all usable */
    uint64_t memory_bytes;    /* 0: what the host has available */
    uint32_t context;         /* tokens of one request; 0: the model's limit, at most 4,096 */
    uint32_t max_seqs;        /* sequences of one step; 0: 32 */
    uint32_t max_tokens;      /* tokens of one step; 0: 256, at least max_seqs */
    uint32_t n_snapshots;     /* recurrent states kept for requests with a known beginning, as far as memory
                               * allows; UINT32_MAX: max_seqs; 0: none. Only where the model has such states
                               * and sequences can share its pages */
    uint64_t kv_tokens; /* KV capacity over all requests; 0: max_seqs * context as far as memory allows */
    uint32_t kv_dtype;  /* enum d0_dtype; 0: by the weights */
    const char *fuse;   /* as fusions_parse() takes it; NULL: all that change no bit */
    enum spec_activations activations;
    struct load_progress *progress;
};

struct session {
    struct ckpt *ckpt;
    struct spec *spec;
    struct dev dev;
    bool dev_open;
    struct weights *weights;
    struct engine *engine;
    struct prompt_front *front;
    struct plan_memory memory; /* predicted */
    uint32_t context;
};

/* Opens everything. What is wrong with the model becomes findings: the return is then ERR_MISMATCH with the
 * first of them as message. session_close is to be called in every case. */
int session_open(struct session *s, const struct session_options *o, struct findings *f, struct d0 *d0,
                 struct err *e);
void session_close(struct session *s);

/* One request, alone, until it ends: on_text gets pieces of whole characters (NULL: none); ids of the answer
 * are appended to *out (may be NULL). */
struct generate_options {
    uint32_t max_new;
    struct step_sampling sampling;
    bool ignore_stop;
};
struct generate_result {
    uint32_t n_prompt, n_generated;
    const char *finish;
    double prefill_seconds, decode_seconds;
};
typedef void (*generate_text_fn)(void *context, const char *text, size_t n);
int session_generate(struct session *s, const int32_t *prompt, size_t n_prompt,
                     const struct generate_options *o, generate_text_fn on_text, void *context,
                     struct ids *out, struct generate_result *result, struct err *e);

#endif
