/* SPDX-License-Identifier: Apache-2.0
 *
 * Layouts, memory and time: pure arithmetic over the model description; opens no device and reads no weight.
 * Predicted numbers carry their source (measured, calibrated, assumed).
 */
#ifndef PLAN_PLAN_H
#define PLAN_PLAN_H

#include "spec/spec.h"

struct plan_layout {
    uint32_t pp, dp, tp, ep;
};

struct plan_options {
    uint64_t memory_bytes;                        /* per rank, what may be used */
    uint32_t max_step_tokens, max_seqs, max_rows; /* 0: 512, 1, max_seqs */
    uint32_t snapshots;      /* recurrent states kept beside those of max_seqs; 0: none */
    uint64_t context_tokens; /* KV capacity wanted, tokens over all sequences; 0: max_positions */
    uint32_t fusions; /* mask of enum fusion that may be on: room for the graph with them and without */
    uint64_t request_tokens; /* the longest request; 0: what the capacity and the model allow */
    /* Pictures, where the description has the graph of a tower; 0: none are taken. The largest picture, and
     * the rows of features that are kept. */
    uint32_t max_patches, max_picture_rows, n_feature_rows;
    uint64_t waiting_bytes; /* host memory for pictures that wait: files, messages, and what they are decoded
                             * in; counted where they are taken */
    /* What the device sets aside for the part of the largest step beyond its scratch, in bytes
     * (dev_scratch_plan, with the device as context). NULL: not known, and not counted. */
    int (*device_need)(void *context, const struct d0_part *part, uint64_t *bytes, struct err *e);
    void *device;
};

struct plan_memory {               /* bytes on one rank */
    uint64_t weights, kv, scratch; /* scratch: activations of the largest step */
    uint64_t device;               /* scratch of the device's kernels; 0 where it was not asked */
    uint64_t pictures; /* tower: weights, inputs, scratch of graph and device; store of features; files and
                        * messages that wait. 0: none */
    uint64_t tower_weights, tower_scratch, tower_device; /* within pictures: what is held beside the text's */
    uint64_t staging, fixed, total;
    uint64_t kv_pages; /* pages that `kv` holds */
    bool fits;
};

/* One rank holding the whole model. Fills kv_pages for the wanted context. Pictures count here only: layouts
 * of several ranks leave them out. */
int plan_single(const struct spec *s, const struct plan_options *o, struct plan_memory *out, struct err *e);

/* How much of the memory pictures may take: the one place of this rule. 0: by it. */
struct plan_wishes {
    uint32_t max_patches;    /* of one picture; 0: 16,384, halved until all that pictures take, but for
                              * those that wait, is at most an eighth of the memory, down to 1,024 */
    uint32_t n_feature_rows; /* of the pictures of all running requests; 0: four of the largest */
    uint64_t waiting_bytes;  /* host memory for pictures of all requests, half for files and messages, half
                              * to decode in; 0: a sixteenth of the memory, at most 2 GiB, but at least what
                              * the largest picture takes */
};
/* Sets max_patches, max_picture_rows, n_feature_rows and waiting_bytes of p, and its context_tokens to
 * `context`, those of one request; *out is the plan with them. Errors: ERR_UNSUPPORTED, there is no graph of
 * a tower; ERR_NOMEM, they do not fit beside the model; others of planning. Those fields of p then hold what
 * was tried last. */
int plan_pictures(const struct spec *s, uint32_t context, const struct plan_wishes *o, struct plan_options *p,
                  struct plan_memory *out, struct err *e);

#define PLAN_MAX_TP 64u
#define PLAN_MAX_EP 4096u /* as many ranks as a layout may have */

struct plan_degree {
    uint32_t degree;
    bool legal, exact;
    uint8_t stem_bytes; /* of the reason: what other degrees that fail alike share; the rest is of this one */
    char reason[140];   /* why it is illegal, or not exact; "" when neither */
};
struct plan_degrees { /* degree i + 1 at [i] */
    struct plan_degree *tp, *ep;
    size_t n_tp, n_ep;
};
/* Judges every degree of tensor parallelism from 1 to PLAN_MAX_TP, experts cut inside, and every one of
 * expert parallelism from 1 to the most experts of a layer (at most PLAN_MAX_EP; none without experts), each
 * by itself. Judged: heads, widths, experts, blocks of scales (a cut within one would need two scales), and
 * the fixed segments of sums for exactness. The lists are in the arena. Errors: ERR_NOMEM. */
int plan_degrees(const struct spec *s, struct arena *a, struct plan_degrees *out, struct err *e);

/* Smallest layout (PP x TP on ranks of memory_bytes, TP a power of two) that fits; false if none up to 4096
 * ranks. */
bool plan_smallest(const struct spec *s, const struct plan_options *o, struct plan_layout *out,
                   struct plan_memory *per_rank);
/* Largest layer kind: bytes of weights of the biggest layer, of the embedding and of the head: what streaming
 * needs at once. */
void plan_streaming(const struct spec *s, uint64_t *largest_layer, uint64_t *embedding, uint64_t *head);

#endif
