/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: what an architecture file that was not shipped has to show before a check can pass on its word. Names
 * and shapes are compared elsewhere; here is whether they are put to use: a file can name every tensor and
 * compute with none, or hide a layer among the drafting layers, whose absence is no fault.
 */
#include "preflight/preflight_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_LAYERS 100000

struct trust {
    const struct ckpt *c;
    const struct spec *s;
    bool *live; /* values that the result depends on */
    struct strbuf why;
};

static void doubt(struct trust *x, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void doubt(struct trust *x, const char *fmt, ...)
{
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    strbuf_printf(&x->why, "%s%s", x->why.len ? "; " : "", text);
}

/* config.json counts layers and widths itself. */
static void compare_facts(struct trust *x)
{
    static const char *const nested[] = {NULL, "text_config", "llm_config", "language_config"};
    const struct {
        const char *key;
        int64_t described;
    } facts[] = {{"num_hidden_layers", x->s->n_layers}, {"hidden_size", x->s->hidden}};
    for (size_t i = 0; i < ARRAY_LEN(facts); i++) {
        int64_t v;
        bool found = false;
        for (size_t k = 0; k < ARRAY_LEN(nested) && !found; k++) {
            const struct json *in = nested[k] ? json_get(x->c->config, nested[k]) : x->c->config;
            found = json_i64(json_get(in, facts[i].key), &v);
        }
        if (found && v != facts[i].described)
            doubt(x, "config.json says %s %lld, the file describes %lld", facts[i].key, (long long)v,
                  (long long)facts[i].described);
    }
}

/* Backwards from the logits. A store gives no value: it counts if somebody reads the state that it writes. */
static void find_live(struct trust *x)
{
    const struct graph *g = x->s->graph;
    uint32_t result = graph_result(g);
    if (result == D0_NO_VALUE)
        return;
    x->live[result] = true;
    for (uint32_t i = g->n_nodes; i-- > 0;) {
        const struct d0_node *n = &g->nodes[i];
        bool live = false;
        for (uint32_t k = 0; k < n->n_outputs; k++)
            live |= n->outputs[k] != D0_NO_VALUE && x->live[n->outputs[k]];
        for (uint32_t k = 0; n->n_outputs == 0 && k < n->n_inputs; k++)
            live |= n->inputs[k] != D0_NO_VALUE && g->values[n->inputs[k]].kind == D0_VALUE_STATE &&
                    x->live[n->inputs[k]];
        for (uint32_t k = 0; live && k < n->n_inputs; k++)
            if (n->inputs[k] != D0_NO_VALUE)
                x->live[n->inputs[k]] = true;
    }
}

static bool is_used(const struct trust *x, const struct spec_weight *w)
{
    return w->group == GROUP_TEXT && w->value != D0_NO_VALUE && x->live[w->value];
}

static void count_unused(struct trust *x)
{
    struct tally unused = {0};
    char text[400];
    for (size_t i = 0; i < x->s->n_weights; i++)
        if (x->s->weights[i].group == GROUP_TEXT && !is_used(x, &x->s->weights[i]))
            tally_add(&unused, x->s->weights[i].name);
    if (unused.n)
        doubt(x, "the logits depend on none of %s", tally_format(&unused, "weight", text, sizeof text));
}

static int count_idle_layers(struct trust *x)
{
    int64_t n = x->s->n_layers < MAX_LAYERS ? x->s->n_layers : MAX_LAYERS, idle = 0, first = -1;
    bool *busy = calloc((size_t)n + 1, 1);
    if (!busy)
        return ERR_NOMEM;
    for (size_t i = 0; i < x->s->n_weights; i++) {
        const struct spec_weight *w = &x->s->weights[i];
        if (w->layer >= 0 && w->layer < n && is_used(x, w))
            busy[w->layer] = true;
    }
    for (int64_t i = 0; i < n; i++) {
        first = !busy[i] && first < 0 ? i : first;
        idle += !busy[i];
    }
    free(busy);
    if (idle)
        doubt(x, "%lld of %lld layers, the first is %lld, compute with no weight", (long long)idle,
              (long long)n, (long long)first);
    return ERR_OK;
}

/* What the names of the layers begin with: "model.layers.". Length, or 0. */
static size_t layer_prefix(const struct trust *x, const char **of)
{
    for (size_t i = 0; i < x->s->n_weights; i++) {
        const struct spec_weight *w = &x->s->weights[i];
        char number[24];
        if (w->group != GROUP_TEXT || w->layer < 0)
            continue;
        snprintf(number, sizeof number, ".%d.", w->layer);
        const char *at = strstr(w->name, number);
        if (at) {
            *of = w->name;
            return (size_t)(at - w->name) + 1;
        }
    }
    return 0;
}

/* Layers of the model, and most of its bytes, belong to the text graph. */
static void count_outside(struct trust *x)
{
    const char *of = NULL;
    size_t n = layer_prefix(x, &of);
    uint64_t inside = 0, outside = 0;
    struct tally hidden = {0};
    char text[400];
    for (size_t i = 0; i < x->s->n_weights; i++) {
        const struct spec_weight *w = &x->s->weights[i];
        uint64_t bytes = 0;
        (void)shape_bytes(w->dims, w->n_dims, w->dtype, &bytes);
        bytes *= w->count;
        if (w->group == GROUP_TEXT) {
            inside += bytes;
            continue;
        }
        outside += bytes;
        bool layer = n && strncmp(w->name, of, n) == 0 && w->name[n] >= '0' && w->name[n] <= '9';
        if (layer && strtol(w->name + n, NULL, 10) < x->s->n_layers)
            tally_add(&hidden, w->name);
    }
    if (hidden.n)
        doubt(x, "%s of layers of the model stand outside of its graph",
              tally_format(&hidden, "weight", text, sizeof text));
    if (outside > inside)
        doubt(x, "more bytes of weights stand outside of the graph than in it");
}

int check_trust(const struct ckpt *c, const struct spec *s, struct findings *f, struct err *e)
{
    struct trust x = {.c = c, .s = s, .why = STRBUF_INIT};
    char name[160];
    if (s->origin == ARCH_SHIPPED)
        return ERR_OK;
    x.live = calloc(s->graph->n_values + (size_t)1, sizeof *x.live);
    int rc = x.live ? ERR_OK : ERR_NOMEM;
    if (!rc) {
        compare_facts(&x);
        find_live(&x);
        count_unused(&x);
        rc = count_idle_layers(&x);
        count_outside(&x);
    }
    if (strbuf_failed(&x.why))
        rc = ERR_NOMEM;
    if (!rc && x.why.len)
        finding_add(f, FINDING_C009, ckpt_show(s->arch_name, name, sizeof name), "%s", x.why.data);
    strbuf_release(&x.why);
    free(x.live);
    return rc ? err_set(e, rc, "no memory to judge the architecture file") : ERR_OK;
}
