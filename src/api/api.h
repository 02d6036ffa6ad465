/* SPDX-License-Identifier: Apache-2.0
 *
 * One model, opened whole on one device: what run and serve stand on.
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

/* Does a model that has a tower take pictures? AUTO: where its tower has a graph, the device runs it and the
 * memory holds it. ON: it is an error where not. */
enum session_images { SESSION_IMAGES_AUTO, SESSION_IMAGES_OFF, SESSION_IMAGES_ON };

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
    enum session_images images;
    uint32_t max_patches, n_feature_rows; /* as in struct plan_wishes, picture_bytes as its waiting_bytes */
    uint64_t picture_bytes;
    struct load_progress *progress;
};

struct session {
    struct ckpt *ckpt;
    struct spec *spec;
    struct dev dev;
    bool dev_open;
    struct weights *weights, *tower_weights; /* tower: NULL where no pictures are taken */
    struct engine *engine;                   /* takes pictures where engine_limits.n_feature_rows is not 0 */
    struct prompt_front *front;
    struct plan_memory memory; /* predicted */
    uint32_t context;
    uint64_t picture_bytes; /* as asked, or chosen; part of memory.pictures; 0 where no pictures are taken */
    char no_pictures[256];  /* why none are taken, where that was not asked for; else "" */
};

/* Opens everything. What is wrong with the model becomes findings: the return is then ERR_MISMATCH with the
 * first of them as message. session_close is to be called in every case. */
int session_open(struct session *s, const struct session_options *o, struct findings *f, struct d0 *d0,
                 struct err *e);
void session_close(struct session *s);

/* The pictures of a prompt; fields as in struct sched_request. */
struct generate_pictures {
    const struct sched_image *images;
    uint32_t n_images;
    const int32_t *feature_of, *places, *spans;
    int32_t place_delta;
};

/* One request, alone, until it ends: on_text gets pieces of whole characters (NULL: none); ids of the answer
 * are appended to *out (may be NULL). */
struct generate_options {
    uint32_t max_new;
    struct step_sampling sampling;
    bool ignore_stop;
    const struct generate_pictures *pictures; /* NULL: none */
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
