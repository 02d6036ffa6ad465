/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzz target: config.json, through the shipped architecture files to graph, memory plan and layouts.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "plan/plan.h"

/* A degree that is not exact says why; one rank is always possible. */
static void judge(const struct spec *s)
{
    struct plan_degrees d;
    struct arena arena;
    arena_init(&arena, NULL, MEM_MISC);
    if (plan_degrees(s, &arena, &d, NULL) == ERR_OK)
        for (size_t i = 0; i < d.n_tp + d.n_ep; i++) {
            const struct plan_degree *x = i < d.n_tp ? &d.tp[i] : &d.ep[i - d.n_tp];
            if ((x->degree == 1 && !x->legal) || (x->exact && !x->legal) || x->exact != !x->reason[0] ||
                x->stem_bytes > strlen(x->reason))
                abort();
        }
    arena_release(&arena);
}

static void use(const struct spec *s)
{
    static const int64_t dims[D0_N_DIMS] = {16, 2, 2, 8};
    struct plan_options o = {.memory_bytes = (uint64_t)16 << 30, .context_tokens = 4096, .max_seqs = 2};
    struct plan_memory m;
    struct plan_layout l;
    struct graph_cost cost;
    struct graph *g = NULL;
    uint64_t a, b, c;
    if (graph_verify(s->graph, NULL))
        abort();
    judge(s);
    (void)plan_single(s, &o, &m, NULL);
    (void)plan_smallest(s, &o, &l, &m);
    plan_streaming(s, &a, &b, &c);
    graph_cost(s->graph, dims, 100, &cost);
    if (graph_slice(s->graph, 0, 0, GRAPH_PROLOGUE | GRAPH_EPILOGUE, &g, NULL) == ERR_OK)
        (void)graph_plan_memory(g, dims, true, NULL);
    graph_free(g);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct d0 d0 = {.log = {.fd = -1}};
    struct strmap names = {0};
    struct ckpt c = {.dir = "fuzz", .by_name = &names};
    struct findings f;
    struct spec *s = NULL;
    struct spec_options o = {
        .limits = {.max_bytes = 64 << 20, .max_instructions = 5000000, .max_wall_ns = 2000000000}};
    arena_init(&c.arena, &d0.mem, MEM_CKPT);
    findings_init(&f, &d0.mem);
    if (json_parse((const char *)data, size, NULL, &c.arena, &c.config, NULL) == ERR_OK) {
        int rc = spec_open(&s, &c, &o, &f, &d0, NULL);
        if (s && !rc)
            use(s);
        else if (!rc && f.n == 0)
            abort();
    }
    spec_close(s);
    findings_release(&f);
    arena_release(&c.arena);
    return 0;
}
