/* SPDX-License-Identifier: Apache-2.0
 *
 * Planted bugs of route and experts, and of kernels that run in phases (see kc_planted.c).
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kc.h"

static size_t rows(const struct kern_args *a)
{
    return (size_t)a->n_rows;
}

static size_t elements(const struct kern_args *a)
{
    return (size_t)(a->n_rows * a->n);
}

static void ref(uint32_t op, const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    kern_pick(op, D0_F32, KERN_REF)->run(a, first, last, thread);
}

static size_t route_scratch(const struct kern_args *a)
{
    return kern_pick(D0_OP_ROUTE, 0, KERN_REF)->scratch(a);
}

static size_t experts_scratch(const struct kern_args *a)
{
    return kern_pick(D0_OP_EXPERTS, D0_F32, KERN_REF)->scratch(a);
}

/* ---- route ---- */

/* Runs on the experts in reverse order, where nothing else belongs to them. */
static void last_tie(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    float logits[300];
    ref(D0_OP_ROUTE, a, first, last, thread);
    if (a->in[1] || a->in[2] || a->in[4] || a->attr[D0_ATTR_GROUPS].i)
        return;
    for (size_t t = first; t < last; t++) {
        struct kern_args b = *a;
        int32_t *chosen = (int32_t *)a->out[0] + t * (size_t)a->n;
        for (size_t i = 0; i < (size_t)a->k; i++)
            logits[i] = ((const float *)a->in[0])[t * (size_t)a->k + (size_t)a->k - 1 - i];
        b.in[0] = logits;
        b.out[0] = chosen;
        b.out[1] = (float *)a->out[1] + t * (size_t)a->n;
        ref(D0_OP_ROUTE, &b, 0, 1, thread);
        for (size_t k = 0; k < (size_t)a->n; k++)
            chosen[k] = (int32_t)a->k - 1 - chosen[k];
    }
}

static void biased_weights(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    ref(D0_OP_ROUTE, a, first, last, thread);
    if (a->in_dtype[1] != D0_F32 || !a->in[1] || a->in[4] || a->attr[D0_ATTR_RENORMALIZE].i)
        return;
    for (size_t i = first * (size_t)a->n; i < last * (size_t)a->n; i++) {
        int32_t e = ((const int32_t *)a->out[0])[i];
        if (e >= 0)
            ((float *)a->out[1])[i] += ((const float *)a->in[1])[e];
    }
}

static void all_groups(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    b.attr[D0_ATTR_GROUPS_KEPT].i = 0;
    ref(D0_OP_ROUTE, &b, first, last, thread);
}

static void largest_of_group(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    b.attr[D0_ATTR_GROUP_SCORE].i = 1;
    ref(D0_OP_ROUTE, &b, first, last, thread);
}

static void no_renorm_eps(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    b.attr[D0_ATTR_RENORM_EPS].f = 0;
    ref(D0_OP_ROUTE, &b, first, last, thread);
}

static void trusting_table(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    b.in_dims[2][0] = INT64_MAX;
    ref(D0_OP_ROUTE, &b, first, last, thread);
}

/* ---- experts ---- */

static void apart_for_interleaved(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    b.attr[D0_ATTR_LAYOUT].i = a->attr[D0_ATTR_LAYOUT].i == 2 ? 1 : a->attr[D0_ATTR_LAYOUT].i;
    ref(D0_OP_EXPERTS, &b, first, last, thread);
}

static void never_turned(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    b.attr[D0_ATTR_TRANSPOSED].i = 0;
    ref(D0_OP_EXPERTS, &b, first, last, thread);
}

static void output_weighted(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    b.attr[D0_ATTR_INPUT_WEIGHTED].i = 0;
    ref(D0_OP_EXPERTS, &b, first, last, thread);
}

static void any_identity(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    b.attr[D0_ATTR_ZERO].i = INT32_MAX;
    ref(D0_OP_EXPERTS, &b, first, last, thread);
}

static void one_more_expert(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    b.in_dims[3][0]++;
    ref(D0_OP_EXPERTS, &b, first, last, thread);
}

static void no_down_bias(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args b = *a;
    b.in[8] = NULL;
    ref(D0_OP_EXPERTS, &b, first, last, thread);
}

/* The last token of a large batch is rounded once more; well within the tolerance. */
static void batch_rows(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    ref(D0_OP_EXPERTS, a, first, last, thread);
    float *out = (float *)a->out[0] + (last - 1) * (size_t)a->n;
    for (size_t i = 0; i < (size_t)a->n && a->n_rows > 4; i++)
        out[i] *= 1 + 0x1p-23f;
}

/* One token, each slot alone; added in float32, in the order of slots, or grouped in that of experts. */
static void slots_apart(const struct kern_args *a, size_t t, float *one, unsigned thread)
{
    size_t slots = (size_t)a->in_dims[1][1], d = (size_t)a->n;
    const int32_t *ids = (const int32_t *)a->in[1] + t * slots;
    float *out = (float *)a->out[0] + t * d;
    bool done[16] = {false};
    memset(out, 0, d * sizeof *out);
    for (size_t k = 0; k < slots; k++) {
        size_t next = slots;
        for (size_t i = 0; i < slots; i++)
            if (!done[i] && (next == slots || (a->attr[D0_ATTR_FORM].i && ids[i] < ids[next])))
                next = i;
        done[next] = true;
        struct kern_args b = *a;
        b.in[0] = (const float *)a->in[0] + t * (size_t)a->k;
        b.in[1] = ids + next;
        b.in[2] = (const float *)a->in[2] + t * slots + next;
        b.in_dims[1][1] = 1;
        b.out[0] = one;
        ref(D0_OP_EXPERTS, &b, 0, 1, thread);
        for (size_t i = 0; i < d; i++)
            out[i] += one[i];
    }
}

static void order_of_experts(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    float *one = malloc(((size_t)a->n + 1) * sizeof *one);
    for (size_t t = first; t < last && one; t++)
        slots_apart(a, t, one, thread);
    free(one);
}

/* ---- phases: the first copies a into what the node shares, the second adds b ---- */

static size_t shared_elements(const struct kern_args *a)
{
    return elements(a) * sizeof(float);
}

static void add_in_phases(const struct kern_args *a, size_t first, size_t last, float *kept)
{
    if (a->phase == 0)
        memcpy(kept + first, (const float *)a->in[0] + first, (last - first) * sizeof *kept);
    for (size_t i = first; i < last && a->phase == 1; i++)
        ((float *)a->out[0])[i] = kept[i] + ((const float *)a->in[1])[i];
}

static void kept_by_thread(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    add_in_phases(a, first, last, (float *)((unsigned char *)a->scratch + thread * a->scratch_bytes));
}

static void whole_phase(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    (void)thread;
    add_in_phases(a, a->phase ? first : 0, a->phase ? last : elements(a), a->shared);
}

static void past_shared(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    (void)thread;
    add_in_phases(a, first, last, a->shared);
    if (a->phase == 0 && last == elements(a))
        ((float *)a->shared)[last] = 0;
}

#define PLANTED(OP, type, items, scratch, fn, bug)                                                           \
    {                                                                                                        \
        {D0_OP_##OP, type, KERN_REF, "planted_" #fn, fn, items, 1, scratch}, bug                             \
    }
#define PHASED(fn, scratch, bug)                                                                             \
    {                                                                                                        \
        {D0_OP_ADD, 0, KERN_REF, "planted_" #fn, fn, elements, 1, scratch, shared_elements, 2}, bug          \
    }

static const struct kc_planted planted[] = {
    PLANTED(ROUTE, 0, rows, route_scratch, last_tie, "ties go to the higher id"),
    PLANTED(ROUTE, 0, rows, route_scratch, biased_weights, "the bias is in the weights too"),
    PLANTED(ROUTE, 0, rows, route_scratch, all_groups, "keeps all groups"),
    PLANTED(ROUTE, 0, rows, route_scratch, largest_of_group, "groups by their largest only"),
    PLANTED(ROUTE, 0, rows, route_scratch, no_renorm_eps, "forgets renorm_eps"),
    PLANTED(ROUTE, 0, rows, route_scratch, trusting_table, "trusts token ids"),
    PLANTED(EXPERTS, D0_F32, rows, experts_scratch, apart_for_interleaved,
            "takes interleaved rows for apart"),
    PLANTED(EXPERTS, D0_F32, rows, experts_scratch, never_turned, "ignores transposed"),
    PLANTED(EXPERTS, D0_F32, rows, experts_scratch, output_weighted, "ignores input_weighted"),
    PLANTED(EXPERTS, D0_F32, rows, experts_scratch, any_identity, "takes any large id for the identity"),
    PLANTED(EXPERTS, D0_F32, rows, experts_scratch, one_more_expert, "reads one expert too many"),
    PLANTED(EXPERTS, D0_F32, rows, experts_scratch, no_down_bias, "forgets the bias of down"),
    PLANTED(EXPERTS, D0_F32, rows, experts_scratch, batch_rows, "other bits in large batches"),
    PLANTED(EXPERTS, D0_F32, rows, experts_scratch, order_of_experts,
            "grouped: sums in the order of experts"),
    PHASED(kept_by_thread, shared_elements, "keeps in the scratch of a thread what the next phase needs"),
    PHASED(whole_phase, NULL, "ignores its range of items in the first phase"),
    PHASED(past_shared, NULL, "writes past what phases share"),
};

size_t kc_planted_experts(const struct kc_planted **out)
{
    *out = planted;
    return ARRAY_LEN(planted);
}
