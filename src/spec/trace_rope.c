/* SPDX-License-Identifier: Apache-2.0
 *
 * The rope items of a trace: numbers of one scaling, checked, and the frequencies that they give.
 */
#include <math.h>
#include <string.h>

#include "spec/spec_internal.h"

#define TRACE_MAX_ROPE 65536

static bool positive(const struct json *s, const char *key, double *out)
{
    return json_f64(json_get(s, key), out) && *out > 0 && *out < 1e30;
}

static int read_factors(struct arena *a, const struct json *s, int64_t dim, struct rope_scaling *out,
                        struct err *e)
{
    const struct json *list = json_get(s, "factors");
    float *f = arena_alloc_n(a, (size_t)dim / 2, sizeof *f);
    if (f == NULL)
        return err_set(e, ERR_NOMEM, "no memory for rope factors");
    for (int64_t j = 0; j < dim / 2; j++) {
        double v = 0;
        if (!json_f64(list && list->type == JSON_ARRAY ? json_at(list, (size_t)j) : NULL, &v) || !(v > 0) ||
            !(v < 1e30))
            return err_set(e, ERR_FORMAT, "rope: factor %lld must be a positive number", (long long)j);
        f[j] = (float)v;
    }
    out->factors = f;
    return ERR_OK;
}

static int read_scaling(struct arena *a, const struct json *s, int64_t dim, struct rope_scaling *out,
                        struct err *e)
{
    static const struct {
        const char *name;
        int type;
    } kinds[] = {{"default", ROPE_DEFAULT}, {"linear", ROPE_LINEAR},   {"llama3", ROPE_LLAMA3},
                 {"yarn", ROPE_YARN},       {"factors", ROPE_FACTORS}, {"proportional", ROPE_PROPORTIONAL}};
    const char *type = trace_text(s, "type");
    size_t i = 0;
    while (i < ARRAY_LEN(kinds) && strcmp(kinds[i].name, type) != 0)
        i++;
    if (i == ARRAY_LEN(kinds))
        return err_set(e, ERR_FORMAT, "rope: the scaling %.40s is unknown", type);
    *out = (struct rope_scaling){.type = (unsigned)kinds[i].type};
    bool factor = out->type == ROPE_LINEAR || out->type == ROPE_LLAMA3 || out->type == ROPE_YARN;
    if (factor && !positive(s, "factor", &out->factor))
        return err_set(e, ERR_FORMAT, "rope: the factor of %s must be a positive number", type);
    if (out->type == ROPE_LLAMA3 && (!positive(s, "low", &out->low) || !positive(s, "high", &out->high) ||
                                     !positive(s, "original", &out->original) || !(out->high >= out->low)))
        return err_set(e, ERR_FORMAT,
                       "rope: llama3 needs 0 < low_freq_factor <= high_freq_factor and a positive "
                       "original_max_position_embeddings");
    if (out->type == ROPE_YARN) {
        if (!positive(s, "slow", &out->low) || !positive(s, "fast", &out->high) ||
            !positive(s, "original", &out->original))
            return err_set(
                e, ERR_FORMAT,
                "rope: yarn needs positive beta_fast, beta_slow and original_max_position_embeddings");
        out->truncate = trace_flag(s, "truncate");
    }
    if (out->type == ROPE_PROPORTIONAL && !trace_int(s, "live", 0, dim / 2, &out->live))
        return err_set(e, ERR_FORMAT, "rope: partial_rotary_factor is out of range");
    return out->type == ROPE_FACTORS ? read_factors(a, s, dim, out, e) : ERR_OK;
}

/* The frequencies of angles that follow two axes: all of them twice (f0 f1 f0 f1), each twice (f0 f0 f1 f1),
 * or every second one for the first axis and the others for the second (f0 f2 f1 f3). */
static int in_order(struct arena *a, const char *order, int64_t *n, const float **freq, struct err *e)
{
    const bool twice = strcmp(order, "twice") == 0, pairs = strcmp(order, "pairs") == 0,
               split = strcmp(order, "split") == 0;
    if ((!twice && !pairs && !split) || (split && *n % 2))
        return err_set(e, ERR_FORMAT, "rope: %lld frequencies in the order %.20s", (long long)*n, order);
    const int64_t all = split ? *n : 2 * *n;
    float *to = arena_alloc_n(a, (size_t)all, sizeof *to);
    if (to == NULL)
        return err_set(e, ERR_NOMEM, "no memory for rope frequencies");
    for (int64_t j = 0; j < all; j++)
        to[j] = (*freq)[twice ? j % *n : pairs ? j / 2 : j < all / 2 ? 2 * j : 2 * j - all + 1];
    *n = all;
    *freq = to;
    return ERR_OK;
}

int trace_rope(struct arena *a, const struct json *item, int64_t *n, const float **out, struct err *e)
{
    struct rope_scaling s;
    double theta;
    int64_t dim;
    if (!trace_int(item, "dim", 2, TRACE_MAX_ROPE, &dim) || dim % 2)
        return err_set(e, ERR_FORMAT, "rope: dim must be an even number from 2 to %d", TRACE_MAX_ROPE);
    if (!json_f64(json_get(item, "theta"), &theta) || !(theta > 0) || !(theta < 1e30))
        return err_set(e, ERR_FORMAT, "rope: theta must be a positive number");
    int rc = read_scaling(a, json_get(item, "scaling"), dim, &s, e);
    if (rc)
        return rc;
    const int64_t half = dim / 2;
    float *freq = arena_alloc_n(a, (size_t)half, sizeof *freq);
    if (freq == NULL)
        return err_set(e, ERR_NOMEM, "no memory for rope frequencies");
    rope_inv_freq(dim, theta, &s, freq);
    for (int64_t j = 0; j < half; j++)
        if (!isfinite(freq[j]))
            return err_set(e, ERR_FORMAT, "rope: frequency %lld is not finite", (long long)j);
    *n = half;
    *out = freq;
    return json_get(item, "order") ? in_order(a, trace_text(item, "order"), n, out, e) : ERR_OK;
}
