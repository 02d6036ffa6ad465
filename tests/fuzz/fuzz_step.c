/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages of steps and pictures from bytes: whatever validates must be safe to walk, and both checks must
 * stay within the buffer.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint64_t walk_plan(const struct step_plan *p, const struct engine_limits *l)
{
    const struct step_seq *q = (const struct step_seq *)((const char *)p + p->seqs_at);
    const int32_t *tokens = (const int32_t *)((const char *)p + p->tokens_at);
    const int32_t *pages = (const int32_t *)((const char *)p + p->pages_at);
    uint64_t sum = 0;
    static const char slots[9] = {0};
    for (uint32_t s = 0; s < p->n_seqs; s++) {
        sum += (uint64_t)slots[q[s].slot];
        for (uint32_t i = 0; i < q[s].n_tokens; i++) {
            uint32_t page = (q[s].position + i) / l->page_tokens;
            sum += (uint64_t)tokens[q[s].first_token + i] + (uint64_t)pages[q[s].first_page + page];
        }
    }
    return sum;
}

/* Every number of every array, used as an index where it is one. */
static uint64_t walk_picture(const struct picture_plan *p, const struct picture_shape *shape)
{
    static const char places[128] = {0};
    uint64_t sum = 0;
    for (uint32_t i = 0; i < p->n_arrays; i++) {
        const struct picture_input *in = &shape->inputs[i];
        const int32_t *x = (const int32_t *)((const char *)p + p->arrays[i].at);
        uint64_t n = (uint64_t)(in->rows == D0_DIM_ROWS ? p->n_rows : p->n_patches) * p->arrays[i].width;
        for (uint64_t k = 0; k < n; k++)
            sum += in->dtype == D0_I32 && in->below < 100 ? (uint64_t)places[x[k] + 1] : (uint64_t)x[k];
    }
    return sum;
}

static uint64_t walk_result(const struct step_result *r)
{
    const struct step_seq_result *q = (const struct step_seq_result *)((const char *)r + r->seqs_at);
    const struct step_top *tops = (const struct step_top *)((const char *)r + r->tops_at);
    const unsigned char *logits = (const unsigned char *)r + r->logits_at;
    uint64_t sum = r->error_at ? strlen((const char *)r + r->error_at) : 0;
    for (uint32_t s = 0; s < r->n_seqs; s++)
        for (uint32_t i = 0; i < q[s].n_top; i++)
            sum += (uint64_t)tops[q[s].first_top + i].token;
    for (uint64_t i = 0; i < r->n_logits * 4; i++)
        sum += logits[i];
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct engine_limits limits = {.max_tokens = 64,
                                                .max_seqs = 8,
                                                .max_rows = 16,
                                                .max_pages_per_seq = 8,
                                                .n_pages = 32,
                                                .page_tokens = 8,
                                                .vocab = 100,
                                                .n_slots = 9};
    static const struct engine_limits seeing = {.max_tokens = 64,
                                                .max_seqs = 8,
                                                .max_rows = 16,
                                                .max_pages_per_seq = 8,
                                                .n_pages = 32,
                                                .page_tokens = 8,
                                                .vocab = 100,
                                                .n_feature_rows = 50,
                                                .max_patches = 64,
                                                .max_picture_rows = 16};
    static const struct picture_shape shape = {
        .n = 4,
        .inputs = {{.role = D0_INPUT_PATCHES, .dtype = D0_F32, .width = 3, .rows = D0_DIM_TOKENS},
                   {.role = D0_INPUT_SPANS,
                    .dtype = D0_I32,
                    .width = 2,
                    .rows = D0_DIM_TOKENS,
                    .below = D0_DIM_TOKENS,
                    .pairs = true},
                   {.role = D0_INPUT_MERGE,
                    .dtype = D0_I32,
                    .width = 4,
                    .rows = D0_DIM_ROWS,
                    .below = D0_DIM_TOKENS},
                   {.role = D0_INPUT_TABLE_ROWS,
                    .dtype = D0_I32,
                    .width = 1,
                    .rows = D0_DIM_TOKENS,
                    .below = 9,
                    .none = true}}};
    struct err e = {0};
    void *copy = aligned_alloc(8, size + 8 - size % 8);
    if (!copy)
        return 0;
    memcpy(copy, data, size);
    uint64_t sum = 0;
    if (step_plan_validate(copy, size, &limits, &e) == ERR_OK)
        sum += walk_plan(copy, &limits);
    if (step_plan_validate(copy, size, &seeing, &e) == ERR_OK) {
        const struct step_plan *p = copy;
        const struct step_place *k = (const struct step_place *)((const char *)copy + p->places_at);
        static const char rows[51] = {0};
        sum += walk_plan(p, &seeing);
        for (uint32_t i = 0; i < p->n_tokens; i++)
            sum += (uint64_t)rows[k[i].feature + 1];
    }
    if (picture_plan_validate(copy, size, &shape, &seeing, &e) == ERR_OK)
        sum += walk_picture(copy, &shape);
    if (step_result_validate(copy, size, &e) == ERR_OK)
        sum += walk_result(copy);
    free(copy);
    return sum == UINT64_MAX; /* keeps the walks from being optimised away */
}
