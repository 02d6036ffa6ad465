/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: what a conversation's pictures and tokens give: rows of features, logits. Each tower and each text
 * runs once, whole, by itself. Refuses: knowing how a service cuts it: the bits do not hang on that.
 */
#include <string.h>

#include "oracle/oracle.h"
#include "verify/verify.h"

static int alloc_features(const struct channel_model *m, struct channel_case *c, struct arena *arena,
                          struct err *e)
{
    for (uint32_t k = 0; k < m->spec->tower.n_features; k++) {
        c->features[k] = arena_alloc_n(arena, c->n_rows, (size_t)m->spec->hidden * sizeof(float));
        if (!c->features[k])
            return err_set(e, ERR_NOMEM, "out of memory for %zu rows of features", c->n_rows);
    }
    return ERR_OK;
}

/* One picture, alone: its patches [T, width] become R rows [R, hidden] from row `first` on. */
static int run_tower(const struct channel_model *m, const struct prompt_pixels *p, struct channel_case *c,
                     size_t first, struct err *e)
{
    const struct oracle_model model = {.dev = m->dev, .spec = m->spec, .ckpt = m->ckpt, .d0 = m->d0};
    const int64_t dims[D0_N_DIMS] = {(int64_t)p->n_patches, 1, (int64_t)p->n_rows, 1};
    const uint64_t hidden = (uint64_t)m->spec->hidden;
    struct oracle_input in[PROMPT_MAX_INPUTS];
    struct oracle_output out[SPEC_MAX_FEATURES];
    for (uint32_t i = 0; i < p->n_inputs; i++)
        in[i] = (struct oracle_input){p->inputs[i].role, p->inputs[i].data,
                                      (uint64_t)p->inputs[i].rows * p->inputs[i].width * 4};
    for (uint32_t k = 0; k < m->spec->tower.n_features; k++)
        out[k] = (struct oracle_output){m->spec->tower.features[k], c->features[k] + first * hidden,
                                        (uint64_t)p->n_rows * hidden * sizeof(float)};
    return oracle_once(&model, m->spec->vision, dims, in, p->n_inputs, out, m->spec->tower.n_features, e);
}

int channel_features(const struct channel_model *m, struct channel_case *c, struct arena *arena,
                     struct err *e)
{
    if (c->pictures.n == 0)
        return ERR_OK;
    if (!m->spec->vision)
        return err_set(e, ERR_UNSUPPORTED, "the tower is described only: there is no graph of it");
    size_t first = 0;
    int rc = alloc_features(m, c, arena, e);
    for (uint32_t i = 0; rc == 0 && i < c->pictures.n; i++) {
        rc = run_tower(m, &c->pixels[i], c, first, e);
        first += c->pixels[i].n_rows;
    }
    return rc;
}

/* ---- rotation by places, with other sections */

static int64_t *attribute(struct d0_node *n, uint32_t key)
{
    for (uint32_t i = 0; i < n->n_attrs; i++)
        if (n->attrs[i].key == key)
            return &n->attrs[i].v.i;
    return NULL;
}

static bool exchange(int64_t *a, int64_t *b)
{
    if (!a || !b || *a == *b)
        return false;
    const int64_t x = *a;
    *a = *b;
    *b = x;
    return true;
}

static bool other_sections(struct d0_node *n, uint32_t changes)
{
    int64_t *t = attribute(n, D0_ATTR_SECTION_T), *h = attribute(n, D0_ATTR_SECTION_H),
            *w = attribute(n, D0_ATTR_SECTION_W), *alternate = attribute(n, D0_ATTR_INTERLEAVE);
    bool moved = false;
    if (changes & CHANNEL_BIT(CHANNEL_SECTIONS_TWH))
        moved |= exchange(h, w);
    if (changes & CHANNEL_BIT(CHANNEL_SECTIONS_HTW))
        moved |= exchange(t, h);
    if (changes & CHANNEL_BIT(CHANNEL_SECTIONS_WHT))
        moved |= exchange(t, w);
    if ((changes & CHANNEL_BIT(CHANNEL_SECTIONS_OTHER)) && t) {
        if (!alternate && n->n_attrs < D0_MAX_NODE_ATTRS) {
            n->attrs[n->n_attrs] = (struct d0_attr){.key = D0_ATTR_INTERLEAVE};
            alternate = &n->attrs[n->n_attrs++].v.i;
        }
        if (alternate)
            *alternate = !*alternate;
        moved |= alternate != NULL;
    }
    return moved;
}

#define OF_SECTIONS                                                                                          \
    (CHANNEL_BIT(CHANNEL_SECTIONS_TWH) | CHANNEL_BIT(CHANNEL_SECTIONS_HTW) |                                 \
     CHANNEL_BIT(CHANNEL_SECTIONS_WHT) | CHANNEL_BIT(CHANNEL_SECTIONS_OTHER))

/* The text's graph; *own: a copy to free, where the case asks for other sections. */
static int text_graph(const struct channel_model *m, const struct channel_case *c, struct graph **own,
                      struct err *e)
{
    bool moved = false;
    *own = NULL;
    if (!(c->changes & OF_SECTIONS))
        return ERR_OK;
    int rc = graph_copy(m->spec->graph, own, e);
    for (uint32_t i = 0; rc == 0 && i < (*own)->n_nodes; i++)
        if ((*own)->nodes[i].op == D0_OP_ROPE_TABLE)
            moved |= other_sections(&(*own)->nodes[i], c->changes);
    if (rc == 0 && !moved)
        rc = err_set(e, ERR_MISSING, "sections: there is nothing to change");
    return rc;
}

/* What the text is fed: the case's tokens, then the answer's. */
struct feed {
    size_t n, pages;
    int32_t *ids, *counted, *zeros, *places, *feature_of, *spans, *rows;
};

static int feed_make(const struct channel_model *m, const struct channel_case *c, const int32_t *answer,
                     size_t n_answer, size_t from, size_t n_rows, struct arena *arena, struct feed *f,
                     struct err *e)
{
    const size_t n = c->n + n_answer;
    f->n = n;
    f->pages = (n + m->spec->page_tokens - 1) / m->spec->page_tokens;
    f->ids = arena_alloc_n(arena, n, sizeof(int32_t));
    f->counted = arena_alloc_n(arena, n, sizeof(int32_t));
    f->zeros = arena_alloc_n(arena, n, sizeof(int32_t));
    f->places = arena_alloc_n(arena, n, 3 * sizeof(int32_t));
    f->feature_of = arena_alloc_n(arena, n, sizeof(int32_t));
    f->spans = arena_alloc_n(arena, n, 2 * sizeof(int32_t));
    f->rows = arena_alloc_n(arena, n_rows, sizeof(int32_t));
    if (!f->ids || !f->counted || !f->zeros || !f->places || !f->feature_of || !f->spans || !f->rows)
        return err_set(e, ERR_NOMEM, "out of memory for a prompt of %zu tokens", n);
    for (size_t i = 0; i < n; i++) {
        const bool prompt = i < c->n;
        f->ids[i] = prompt ? c->ids[i] : answer[i - c->n];
        if (f->ids[i] < 0 || f->ids[i] >= m->spec->vocab_size)
            return err_set(e, ERR_INVALID, "token %zu is %d, of a vocabulary of %lld", i, f->ids[i],
                           (long long)m->spec->vocab_size);
        f->counted[i] = (int32_t)i;
        f->zeros[i] = 0;
        f->feature_of[i] = prompt ? c->layout.feature_of[i] : -1;
        for (size_t d = 0; d < 3; d++)
            f->places[3 * i + d] = prompt ? c->layout.places[3 * i + d] : (int32_t)i + c->layout.place_delta;
        f->spans[2 * i] = prompt && c->layout.spans ? c->layout.spans[2 * i] : (int32_t)i;
        f->spans[2 * i + 1] = prompt && c->layout.spans ? c->layout.spans[2 * i + 1] : (int32_t)i + 1;
    }
    for (size_t i = 0; i < n_rows; i++)
        f->rows[i] = (int32_t)(from + i);
    return ERR_OK;
}

int channel_logits(const struct channel_model *m, const struct channel_case *c, const int32_t *answer,
                   size_t n_answer, size_t from, size_t n_rows, struct arena *arena, float **logits,
                   struct err *e)
{
    const struct oracle_model model = {.dev = m->dev, .spec = m->spec, .ckpt = m->ckpt, .d0 = m->d0};
    const uint64_t vocab = (uint64_t)m->spec->vocab_size;
    struct feed f;
    if (c->n + n_answer == 0 || n_rows == 0 || from + n_rows > c->n + n_answer)
        return err_set(e, ERR_INVALID, "rows %zu to %zu of %zu tokens", from, from + n_rows, c->n + n_answer);
    int rc = feed_make(m, c, answer, n_answer, from, n_rows, arena, &f, e);
    if (rc)
        return rc;
    *logits = arena_alloc_n(arena, n_rows, (size_t)vocab * sizeof **logits);
    if (!*logits)
        return err_set(e, ERR_NOMEM, "out of memory for %zu rows of logits", n_rows);
    const int64_t dims[D0_N_DIMS] = {(int64_t)f.n, 1, (int64_t)n_rows, (int64_t)f.pages};
    struct oracle_input in[10 + SPEC_MAX_FEATURES] = {
        {D0_INPUT_IDS, f.ids, 4 * f.n},        {D0_INPUT_POSITIONS, f.counted, 4 * f.n},
        {D0_INPUT_SEQ_OF, f.zeros, 4 * f.n},   {D0_INPUT_PAGE_TABLE, f.counted, 4 * f.pages},
        {D0_INPUT_ROWS, f.rows, 4 * n_rows},   {D0_INPUT_SLOTS, f.zeros, 4},
        {D0_INPUT_PLACES, f.places, 12 * f.n}, {D0_INPUT_FEATURE_OF, f.feature_of, 4 * f.n},
        {D0_INPUT_SPANS, f.spans, 8 * f.n},
    };
    size_t n_in = 9;
    for (uint32_t k = 0; k < m->spec->tower.n_features; k++)
        in[n_in++] = (struct oracle_input){D0_INPUT_FEATURES, c->features[k],
                                           (uint64_t)c->n_rows * (uint64_t)m->spec->hidden * sizeof(float)};
    const struct oracle_output out = {graph_result(m->spec->graph), *logits,
                                      (uint64_t)n_rows * vocab * sizeof(float)};
    struct graph *own;
    rc = text_graph(m, c, &own, e);
    if (rc == 0)
        rc = oracle_once(&model, own ? own : m->spec->graph, dims, in, n_in, &out, 1, e);
    graph_free(own);
    return rc;
}
