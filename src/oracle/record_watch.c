/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the watch for overflow: the largest magnitude of what every operator gives, in float32, beside what
 * narrower types hold. Says which operator would overflow first; what a kernel sums up on the way it does not
 * see.
 */
#include <math.h>
#include <stdio.h>

#include "oracle/record_impl.h"

void watch_rows(struct recording *r, uint32_t value, uint64_t first, uint64_t n, uint64_t width,
                const float *x)
{
    struct watched *w = &r->watched[value];
    w->seen = true;
    for (uint64_t i = 0; i < n * width; i++) {
        double v = fabs((double)x[i]);
        if (!isfinite(v)) {
            w->not_finite++;
        } else if (v > w->max_abs) {
            w->max_abs = v;
            w->token = first + i / width;
        }
    }
}

static double bits(uint32_t dtype, double max_abs)
{
    return log2(dtype_max_finite(dtype) / max_abs); /* all zero: infinite headroom */
}

/* Keys and values: what a store reads besides its states. */
static bool is_stored(const struct graph *g, uint32_t value)
{
    for (uint32_t i = 0; i < g->n_nodes; i++)
        for (uint32_t k = 0; g->nodes[i].n_outputs == 0 && k < g->nodes[i].n_inputs; k++)
            if (g->nodes[i].inputs[k] == value)
                return true;
    return false;
}

static void tell_f16(const struct recording *r)
{
    const struct record_watch *w = r->out->first_beyond_f16;
    size_t more = 0;
    for (size_t i = 0; i < r->out->n_watch; i++)
        more += r->out->watch[i].f16_bits < 0;
    if (w)
        finding_add(
            r->f, FINDING_N008, w->name,
            "%s of layer %d gives %.6g (token %llu): more than the 65,504 of F16 by %.2f bits; it is the "
            "first of %zu such operators",
            w->op, w->layer, w->max_abs, (unsigned long long)w->token, -w->f16_bits, more);
}

static void tell_pages(const struct recording *r)
{
    const struct record_watch *first = NULL;
    size_t n = 0;
    for (size_t i = 0; i < r->out->n_watch; i++) {
        const struct record_watch *w = &r->out->watch[i];
        if (!w->stored || w->f8_e4m3_bits >= 0)
            continue;
        first = first ? first : w;
        n++;
    }
    if (first)
        finding_add_severity(
            r->f, FINDING_N008, SEVERITY_INFO, first->name, NULL,
            "layer %d keeps %.6g: KV pages of F8_E4M3 (448) need scales here; the first of %zu "
            "such keys and values",
            first->layer, first->max_abs, n);
}

int watch_report(struct recording *r, struct err *e)
{
    char name[256];
    r->out->watch = arena_alloc_n(r->arena, r->g->n_values + (size_t)1, sizeof *r->out->watch);
    if (!r->out->watch)
        return err_set(e, ERR_NOMEM, "no memory for the watched values");
    for (uint32_t i = 0; i < r->g->n_nodes; i++)
        for (uint32_t k = 0; k < r->g->nodes[i].n_outputs; k++) {
            const uint32_t v = r->g->nodes[i].outputs[k];
            const struct watched *x = &r->watched[v];
            if (!x->seen)
                continue;
            struct record_watch *w = &r->out->watch[r->out->n_watch++];
            *w = (struct record_watch){
                .name = arena_strdup(r->arena, stream_name(&r->stream, v, name, sizeof name)),
                .op = op_find(r->g->nodes[i].op)->name,
                .layer = r->g->nodes[i].layer,
                .stored = is_stored(r->g, v),
                .max_abs = x->max_abs,
                .token = x->token,
                .not_finite = x->not_finite,
                .f16_bits = bits(D0_F16, x->max_abs),
                .bf16_bits = bits(D0_BF16, x->max_abs),
                .f8_e4m3_bits = bits(D0_F8_E4M3, x->max_abs)};
            if (!w->name)
                return err_set(e, ERR_NOMEM, "no memory for the watched values");
            if (w->f16_bits < 0 && !r->out->first_beyond_f16)
                r->out->first_beyond_f16 = w;
        }
    tell_f16(r);
    tell_pages(r);
    return ERR_OK;
}

/* ---- over an interruption ---- */

void watch_save(const struct recording *r, struct json_writer *w)
{
    json_key(w, "watch");
    json_begin_array(w);
    for (uint32_t v = 0; v < r->g->n_values; v++) {
        const struct watched *x = &r->watched[v];
        if (!x->seen)
            continue;
        json_begin_array(w);
        json_write_u64(w, v);
        json_write_f64(w, x->max_abs);
        json_write_u64(w, x->token);
        json_write_u64(w, x->not_finite);
        json_end_array(w);
    }
    json_end_array(w);
}

bool watch_load(struct recording *r, const struct json *list)
{
    if (!list || list->type != JSON_ARRAY)
        return false;
    for (uint32_t i = 0; i < list->n; i++) {
        const struct json *x = json_at(list, i);
        struct watched w = {.seen = true};
        uint64_t v;
        if (!json_u64(json_at(x, 0), &v) || v >= r->g->n_values || !json_f64(json_at(x, 1), &w.max_abs) ||
            !json_u64(json_at(x, 2), &w.token) || !json_u64(json_at(x, 3), &w.not_finite))
            return false;
        r->watched[v] = w;
    }
    return true;
}
