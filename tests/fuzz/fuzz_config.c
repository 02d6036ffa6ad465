/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzz target: config.json, through the shipped architecture files to graph, memory plan and layouts.
 */
#include <stdint.h>
#include <stdlib.h>

#include "base/hash.h"
#include "plan/plan.h"

static void use(const struct spec *s)
{
    static const int64_t dims[D0_N_DIMS] = {16, 2, 2, 8};
    struct plan_options o = {.memory_bytes = (uint64_t)16 << 30, .context_tokens = 4096, .max_seqs = 2};
    struct plan_degree degrees[8];
    struct plan_memory m;
    struct plan_layout l;
    struct graph_cost cost;
    struct graph *g = NULL;
    uint64_t a, b, c;
    if (graph_verify(s->graph, NULL))
        abort();
    (void)plan_tp_degrees(s, degrees, 8);
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
