/* SPDX-License-Identifier: Apache-2.0
 *
 * Times one variant on its operator's large case: one thread, data where the last run left it, best of
 * several, beside the reference. For orientation; bench/ measures in earnest.
 */
#include <stdlib.h>
#include <string.h>

#include "base/thread.h"
#include "kc.h"

#define BENCH_NS 60000000u

/* Best time in ns; the reference gets at least one run. */
static double best_of(const struct kern_variant *v, struct kern_args a)
{
    a.scratch_bytes = ALIGN_UP(v->scratch ? v->scratch(&a) : 0, 64);
    a.scratch = aligned_alloc(64, a.scratch_bytes + 64);
    a.shared = aligned_alloc(64, ALIGN_UP(v->shared ? v->shared(&a) : 0, 64) + 64);
    if (!a.scratch || !a.shared) {
        free(a.scratch);
        free(a.shared);
        return 0;
    }
    uint64_t best = UINT64_MAX, start = clock_ns();
    do {
        uint64_t t = clock_ns();
        for (a.phase = 0; a.phase < kern_phases(v); a.phase++)
            if (v->items(&a))
                v->run(&a, 0, v->items(&a), 0);
        t = clock_ns() - t;
        best = t < best ? t : best;
    } while (clock_ns() - start < BENCH_NS);
    free(a.scratch);
    free(a.shared);
    return (double)(best ? best : 1);
}

void kc_bench(const struct kern_variant *v, FILE *out)
{
    struct arena arena;
    arena_init(&arena, NULL, MEM_MISC);
    struct kc_case c = {.arena = &arena,
                        .op = v->op,
                        .dtype = v->dtype,
                        .large = true,
                        .values = KC_NORMAL,
                        .x_format = v->x_format};
    rng_init(&c.rng, 1);
    c.a.segments = 1;
    c.a.factor = 1;
    kc_op_of(v->op)->make(&c, 0);
    for (unsigned i = 0; i < D0_MAX_NODE_INPUTS; i++)
        c.a.in[i] = c.in[i].data;
    for (unsigned s = 0; s < 2; s++) {
        c.a.state[s] = c.state[s].data;
        if (c.a.state[s])
            c.a.in[kern_state_input(v->op, s)] = c.a.state[s];
    }
    for (unsigned o = 0; o < KC_OUTS; o++)
        c.a.out[o] = arena_alloc(&arena, c.out[o].bytes);
    const struct kern_variant *ref = kern_pick(v->op, v->dtype ? v->dtype : D0_F32, KERN_REF);
    double ns = best_of(v, c.a), ref_ns = v == ref ? ns : best_of(ref, c.a);
    char flops[32] = "";
    if (c.flops > 0)
        snprintf(flops, sizeof flops, "%.1f GFLOP/s", c.flops / ns);
    fprintf(out, "# %-24s %12.0f ns %8.2f GB/s %16s %7.1f x ref   %s\n", v->name, ns, c.moved / ns, flops,
            ref_ns / ns, c.shape);
    arena_release(&arena);
}
