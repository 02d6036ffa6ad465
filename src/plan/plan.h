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
    uint64_t context_tokens; /* KV capacity wanted, tokens over all sequences; 0: max_positions */
};

struct plan_memory { /* bytes on one rank */
    uint64_t weights, kv, scratch, staging, fixed, total;
    uint64_t kv_pages; /* pages that `kv` holds */
    bool fits;
};

/* One rank holding the whole model. Fills kv_pages for the wanted context. */
int plan_single(const struct spec *s, const struct plan_options *o, struct plan_memory *out, struct err *e);

/* Why a degree is illegal, or not exact; "" when neither. */
struct plan_degree {
    uint32_t tp; /* the degree, also of EP */
    bool legal, exact;
    char reason[120];
};
/* Tensor parallelism 1, 2, 4, ... 64, experts cut inside; returns count <= cap. Judged: heads, widths, blocks
 * of scales (a cut within one would need two scales), and the fixed segments of sums for exactness. */
size_t plan_tp_degrees(const struct spec *s, struct plan_degree *out, size_t cap);
/* Expert parallelism: the powers of two and the divisors of the number of experts, up to it; 0 without
 * experts. */
size_t plan_ep_degrees(const struct spec *s, struct plan_degree *out, size_t cap);

/* Smallest layout (PP x TP on ranks of memory_bytes) that fits; false if none up to 4096 ranks. */
bool plan_smallest(const struct spec *s, const struct plan_options *o, struct plan_layout *out,
                   struct plan_memory *per_rank);
/* Largest layer kind: bytes of weights of the biggest layer, of the embedding and of the head: what streaming
 * needs at once. */
void plan_streaming(const struct spec *s, uint64_t *largest_layer, uint64_t *embedding, uint64_t *head);

#endif
