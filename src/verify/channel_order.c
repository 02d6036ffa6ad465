/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: which picture of a conversation stands where in a recording of it, told by pixels alone: picture by
 * picture, rounded either way. Refuses: telling the order of pictures that look alike, or of pixels that are
 * none of ours.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "verify/channel_impl.h"

double channel_largest_difference(const float *a, const float *b, size_t n)
{
    double worst = 0;
    for (size_t i = 0; i < n; i++) {
        const double d = fabs((double)a[i] - (double)b[i]);
        worst = isnan(d) ? INFINITY : fmax(worst, d); /* fmax would pass over what is no number */
    }
    return worst;
}

struct ordering {
    const struct channel_case *c;
    const struct reference *r;
    const float *ours;
    size_t *from, *n; /* [pictures]: where the values of each begin, and how many they are */
    uint32_t *at;     /* [pictures]: which of ours stands at each place of the recording */
};

static size_t values_of(const struct prompt_picture *p)
{
    return (size_t)(p->plan.n_rows * p->plan.row_floats);
}

static bool stands_at(const struct ordering *o, uint32_t picture, size_t at)
{
    return o->n[picture] <= o->r->n_patches * o->r->patch_width - at &&
           channel_largest_difference(o->ours + o->from[picture], o->r->pixels + at, o->n[picture]) <=
               CHANNEL_LIMIT_PIXELS;
}

static bool taken(const struct ordering *o, uint32_t places, uint32_t picture)
{
    for (uint32_t i = 0; i < places; i++)
        if (o->at[i] == picture)
            return true;
    return false;
}

/* One of ours at every place, its own where that fits. */
static bool find_all(const struct ordering *o)
{
    const uint32_t n = o->c->pictures.n;
    size_t at = 0;
    for (uint32_t i = 0; i < n; at += o->n[o->at[i++]]) {
        uint32_t found = taken(o, i, i) || !stands_at(o, i, at) ? n : i;
        for (uint32_t k = 0; found == n && k < n; k++)
            found = !taken(o, i, k) && stands_at(o, k, at) ? k : n;
        if (found == n)
            return false;
        o->at[i] = found;
    }
    return at == o->r->n_patches * o->r->patch_width;
}

static bool alike(const struct ordering *o, uint32_t a, uint32_t b)
{
    return o->n[a] == o->n[b] && channel_largest_difference(o->ours + o->from[a], o->ours + o->from[b],
                                                            o->n[a]) <= CHANNEL_LIMIT_PIXELS;
}

static void judge(const struct ordering *o, struct channel_order *out)
{
    const uint32_t n = o->c->pictures.n;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < i; k++)
            if (alike(o, i, k)) {
                snprintf(out->words, sizeof out->words, "not told: pictures %u and %u look alike", k, i);
                return;
            }
    out->told = out->same = true;
    snprintf(out->words, sizeof out->words, "each of %u pictures stands in its place, by its pixels", n);
    for (uint32_t i = 0; i < n && out->same; i++) {
        if (o->at[i] == i)
            continue;
        out->same = false;
        snprintf(out->words, sizeof out->words,
                 "it is as if %s: picture %u stands where the reference has picture %u",
                 channel_change_info(CHANNEL_SWAPPED)->as_if, o->at[i], i);
    }
}

int channel_order(const struct channel_model *m, const struct channel_case *c, const struct reference *r,
                  struct channel_order *out, struct err *e)
{
    const uint32_t n = c->pictures.n;
    struct ordering o = {.c = c, .r = r};
    int rc = ERR_OK;
    bool found = false;
    *out = (struct channel_order){.told = false};
    if (!r->pixels)
        snprintf(out->words, sizeof out->words, "not in the reference");
    else if (n < 2)
        snprintf(out->words, sizeof out->words, "not told: no two pictures");
    if (out->words[0])
        return ERR_OK;
    for (int b = IMAGE_TORCHVISION; rc == 0 && !found && b <= IMAGE_PILLOW; b++) {
        const enum image_backend backend = (enum image_backend)b;
        struct channel_pixel_values v;
        struct arena scratch;
        arena_init(&scratch, NULL, MEM_REPORT);
        o.from = arena_alloc_n(&scratch, n, sizeof *o.from);
        o.n = arena_alloc_n(&scratch, n, sizeof *o.n);
        o.at = arena_alloc_n(&scratch, n, sizeof *o.at);
        rc = o.from && o.n && o.at ? channel_pixel_values(m, c, &backend, 0, &scratch, &v, e)
                                   : err_set(e, ERR_NOMEM, "out of memory for %u pictures", n);
        for (uint32_t i = 0; rc == 0 && i < n; i++) {
            o.n[i] = values_of(&c->pictures.list[i]);
            o.from[i] = i ? o.from[i - 1] + o.n[i - 1] : 0;
        }
        if (rc == 0) {
            o.ours = v.values;
            found = find_all(&o);
        }
        if (found)
            judge(&o, out);
        arena_release(&scratch);
    }
    if (rc == 0 && !found)
        snprintf(out->words, sizeof out->words, "not told: pixels of the reference are none of ours");
    return rc;
}
