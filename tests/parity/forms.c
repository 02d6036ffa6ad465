/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: what the fusions that ask for another form of an operator do to graphs of real families
 * (src/graph/fuse_forms.c): the attribute is set on the operator of that name, on all of them and on nothing
 * else, not on MLA whose rows choose their keys, and not unless asked. Forms that do not exist are refused.
 * Only descriptions are made; that forms compute the same is for kcheck, parity.c and bits.c.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph/graph.h"
#include "tiny.h"

#define TREE TEST_SOURCE_ROOT "/tests/parity"

static const struct form {
    enum fusion fusion;
    uint32_t op;
    uint32_t barred_by; /* input that rules it out */
} forms[] = {
    {FUSION_EXPERT_GROUPING, D0_OP_EXPERTS, D0_NO_VALUE},
    {FUSION_MLA_EXPANDED, D0_OP_MLA, 6},
    {FUSION_DELTA_CHUNKED, D0_OP_DELTA_RULE, D0_NO_VALUE},
};

struct tap {
    unsigned n, failed;
    unsigned set[ARRAY_LEN(forms)], barred, refused[ARRAY_LEN(forms)];
};

static void result(struct tap *tap, bool ok, const char *name, const char *detail)
{
    tap->failed += !ok;
    printf("%sok %u - %s: %s\n", ok ? "" : "not ", ++tap->n, name, detail);
}

static bool barred(const struct d0_node *n, const struct form *f)
{
    return f->barred_by < n->n_inputs && n->inputs[f->barred_by] != D0_NO_VALUE;
}

/* How many nodes of g have another form than `f` alone (NULL: none) gives them. */
static size_t wrong_nodes(const struct graph *g, const struct form *f)
{
    size_t wrong = 0;
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        const struct d0_node *n = &g->nodes[i];
        wrong += node_attr_i(n, D0_ATTR_FORM, 0) != (f && n->op == f->op && !barred(n, f));
    }
    return wrong;
}

static int check_fused(struct tap *tap, const char *name, const struct graph *g, const struct form *f,
                       struct err *e)
{
    struct fused to;
    char label[128], detail[128];
    int rc = graph_fuse(g, f ? FUSION_BIT(f->fusion) : 0, false, &to, e);
    if (rc)
        return rc;
    size_t of_op = 0, out = 0;
    for (uint32_t i = 0; f && i < g->n_nodes; i++) {
        of_op += g->nodes[i].op == f->op;
        out += g->nodes[i].op == f->op && barred(&g->nodes[i], f);
    }
    if (f) {
        tap->set[f - forms] += (unsigned)(of_op - out);
        tap->barred += (unsigned)out;
    }
    size_t wrong = wrong_nodes(to.graph, f);
    snprintf(label, sizeof label, "%s %s", name, f ? fusion_info(f->fusion)->name : "nothing asked");
    snprintf(detail, sizeof detail, "%zu nodes, %zu ruled out, %zu wrong", of_op, out, wrong);
    rc = graph_verify(to.graph, e);
    result(tap, rc == 0 && wrong == 0 && to.graph->n_nodes == g->n_nodes, label, detail);
    graph_free(to.graph);
    return rc;
}

/* Forms are 0 and 1. */
static void check_refused(struct tap *tap, const char *name, struct graph *g)
{
    static const int64_t unknown[] = {2, -1};
    for (size_t k = 0; k < ARRAY_LEN(forms); k++)
        for (uint32_t i = 0; i < g->n_nodes; i++) {
            struct d0_node *n = &g->nodes[i], as_described = *n;
            struct err e;
            if (n->op != forms[k].op)
                continue;
            for (size_t u = 0; u < ARRAY_LEN(unknown); u++) {
                char label[128];
                snprintf(label, sizeof label, "%s: form %d of operator %u", name, (int)unknown[u], n->op);
                err_clear(&e);
                node_set_attr_i(n, D0_ATTR_FORM, unknown[u]);
                int rc = graph_verify(g, &e);
                result(tap, rc != 0 && strstr(e.message, "form"), label, rc ? e.message : "is taken");
                tap->refused[k]++;
                *n = as_described;
            }
            break;
        }
}

static void test_family(struct tap *tap, const char *family)
{
    struct d0 d0 = {.log = {.fd = -1}};
    struct tiny t;
    struct tiny_model m = {.c = NULL};
    struct err e;
    char dir[] = "/tmp/day0-forms-XXXXXX";
    err_clear(&e);
    if (!mkdtemp(dir) || tiny_open(&t, TREE, family, &e)) {
        result(tap, false, family, e.message);
        return;
    }
    int rc = tiny_write(&t, dir, &d0, &e);
    if (rc == 0)
        rc = tiny_model_open(&m, dir, &d0, &e);
    if (rc == 0)
        rc = check_fused(tap, family, m.s->graph, NULL, &e);
    for (size_t i = 0; rc == 0 && i < ARRAY_LEN(forms); i++)
        rc = check_fused(tap, family, m.s->graph, &forms[i], &e);
    if (rc == 0)
        check_refused(tap, family, m.s->graph);
    else
        result(tap, false, family, e.message);
    if (m.c)
        tiny_model_close(&m);
    tiny_close(&t);
    tiny_remove(dir);
}

int main(void)
{
    static const char *const families[] = {"kimi_k3", "deepseek_v32", "qwen3_moe", "llama"};
    struct tap tap = {0};
    for (size_t i = 0; i < ARRAY_LEN(families); i++)
        test_family(&tap, families[i]);
    for (size_t i = 0; i < ARRAY_LEN(forms); i++)
        result(&tap, tap.set[i] && tap.refused[i], fusion_info(forms[i].fusion)->name, "was seen");
    result(&tap, tap.barred > 0, "MLA whose rows choose their keys", "was seen");
    printf("1..%u\n", tap.n);
    return tap.failed != 0;
}
