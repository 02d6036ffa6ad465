/* SPDX-License-Identifier: Apache-2.0
 *
 * Definition of pool_kv: windows of tokens become one key. `rest` is a ring of the last windows' rows as they
 * came, c * ratio tokens of kv, then as many of gate: an entry is made from the ring alone, when its last
 * token comes, so that it does not matter in how many steps the tokens came.
 */
#include "kern/ref/ref_sparse.h"

#include <math.h>

size_t ref_pool_kv_items(const struct kern_args *a)
{
    return (size_t)a->in_dims[10][0];
}

size_t ref_pool_kv_scratch(const struct kern_args *a)
{
    return (size_t)a->dim * (sizeof(double) + sizeof(float));
}

struct window {
    const float *kv, *gate;     /* rings [c * ratio, c * dim] */
    int64_t ratio, parts, dim;  /* parts: c */
    int64_t number, first, end; /* positions of the window or windows, relative to number * ratio */
};

/* Value d of entry w.number: tokens weighted by softmax(gate + ape). Of its own window the last dim channels
 * are taken, of the window before the first. */
static double pool_value(const struct kern_args *a, const struct window *w, int64_t d)
{
    double top = -INFINITY, sum = 0, weighted = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int64_t i = w->first; i < w->end; i++) {
            int64_t channel = i >= 0 ? (w->parts - 1) * w->dim + d : d, width = w->parts * w->dim,
                    row = (w->number * w->ratio + i) % (w->parts * w->ratio),
                    place = (i + w->ratio) % w->ratio;
            double gate = (double)w->gate[row * width + channel] +
                          (double)ref_load(a->in[2], a->in_dtype[2], (size_t)(place * width + channel));
            if (pass == 0) {
                top = gate > top ? gate : top;
                continue;
            }
            sum += exp(gate - top);
            weighted += exp(gate - top) * (double)w->kv[row * width + channel];
        }
    return weighted / sum;
}

/* The last `rope` values of y[dim], in pairs, by the angles of position p. */
static void rotate(const struct kern_args *a, int64_t p, float *y, int64_t dim)
{
    int64_t rope = a->attr[D0_ATTR_ROPE].i;
    for (int64_t j = 0; j < rope / 2; j++) {
        float angle = (float)p * ref_load(a->in[4], a->in_dtype[4], (size_t)j);
        float *pair = y + dim - rope + 2 * j;
        double u = (double)pair[0], v = (double)pair[1], c = cos((double)angle), s = sin((double)angle);
        pair[0] = (float)(u * c - v * s);
        pair[1] = (float)(v * c + u * s);
    }
}

static void make_entry(const struct kern_args *a, const struct window *w, size_t at, void *scratch)
{
    double *x = scratch, squares = 0; /* [dim] */
    float *y = (float *)(x + w->dim); /* [dim] */
    for (int64_t d = 0; d < w->dim; d++) {
        x[d] = pool_value(a, w, d);
        squares += x[d] * x[d];
    }
    double inverse = 1 / sqrt(squares / (double)w->dim + a->eps);
    for (int64_t d = 0; d < w->dim; d++)
        y[d] = (float)(x[d] * inverse * (double)ref_load(a->in[3], a->in_dtype[3], (size_t)d));
    rotate(a, w->number * w->ratio, y, w->dim);
    tensor_from_f32(y, (size_t)w->dim, a->in_dtype[5],
                    (unsigned char *)a->state[0] + at * (a->in_dtype[5] == D0_F32 ? 4 : 2));
}

void ref_pool_kv(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    const int32_t *positions = a->in[7], *seq_of = a->in[8], *slots = a->in[10];
    int64_t parts = a->attr[D0_ATTR_OVERLAP].i ? 2 : 1, ratio = a->attr[D0_ATTR_RATIO].i, dim = a->dim,
            width = parts * dim, ring = parts * ratio;
    for (size_t b = first; b < last; b++) {
        if (slots[b] < 0 || slots[b] >= a->in_dims[6][0])
            continue;
        float *kv = (float *)a->state[1] + slots[b] * 2 * ring * width, *gate = kv + ring * width;
        for (int64_t t = 0; t < a->n_rows; t++) {
            int64_t p = positions[t];
            if (seq_of[t] < 0 || (size_t)seq_of[t] != b || p < 0)
                continue;
            memcpy(kv + p % ring * width, (const float *)a->in[0] + t * width, (size_t)width * sizeof *kv);
            memcpy(gate + p % ring * width, (const float *)a->in[1] + t * width,
                   (size_t)width * sizeof *gate);
            int64_t number = p / ratio,
                    at = (p + 1) % ratio == 0 ? ref_key_at(a, 5, 9, (int64_t)b, number) : -1;
            struct window w = {kv,   gate, ratio, parts, dim, number, parts == 2 && number > 0 ? -ratio : 0,
                               ratio};
            if (at >= 0)
                make_entry(a, &w, (size_t)at, ref_scratch(a, thread));
        }
    }
}
