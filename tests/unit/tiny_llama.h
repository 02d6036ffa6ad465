/* SPDX-License-Identifier: Apache-2.0
 *
 * Small llama-like graphs for tests, built by hand through graph.h, with random weights as constants: no
 * model and no architecture file is needed to test what runs a graph.
 */
#ifndef TEST_TINY_LLAMA_H
#define TEST_TINY_LLAMA_H

#include "engine/engine.h"

struct tiny_llama {
    int64_t vocab, hidden, layers, heads, kv_heads, dim, inter, page_tokens;
    uint32_t dtype, kv_dtype; /* of weights and pages */
    int64_t window;           /* 0: all positions */
    uint64_t seed;
    bool no_constants; /* weights come from a checkpoint */
};

#define TINY_LLAMA_DEFAULT                                                                                   \
    {                                                                                                        \
        .vocab = 320, .hidden = 128, .layers = 2, .heads = 4, .kv_heads = 2, .dim = 32, .inter = 192,        \
        .page_tokens = 8, .dtype = D0_BF16, .kv_dtype = D0_BF16, .seed = 1                                   \
    }

int tiny_llama_graph(struct graph **out, const struct tiny_llama *m, struct err *e);

/* Logits of every position in float64, [n, vocab]: written from the model's formulas, shares nothing with
 * kernels or devices. Weights are read from the graph's constants; pages are taken to round nothing (kv_dtype
 * F32). */
void tiny_llama_reference(const struct graph *g, const struct tiny_llama *m, const int32_t *tokens, size_t n,
                          double *logits);

/* Bytes of one weight: n values of about +-scale, reproducible. malloc'ed. */
void *tiny_random(uint32_t dtype, size_t n, double centre, double scale, uint64_t seed);

/* A plan of one step, put together piece by piece. */
struct tiny_run {
    uint64_t request;
    const int32_t *tokens; /* of this run */
    uint32_t n_tokens, position, flags;
    const int32_t *pages; /* page table from position 0 */
    uint32_t n_pages;
    uint32_t slot, restore, save;
    struct step_sampling sampling;
};
struct step_plan *tiny_plan(void *buf, size_t cap, const struct tiny_run *runs, uint32_t n, uint64_t step);

#endif
