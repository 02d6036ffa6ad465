/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of storage schemes, expanded from quant_schemes.def: names and shapes of the tensors that one
 * weight becomes. All arithmetic on sizes from outside is checked by the caller's bounds: dimensions are at
 * most 2^40.
 */
#include <stdio.h>
#include <string.h>

#include "spec/quant.h"

static const struct {
    uint32_t id, dtype;
    const char *name;
} schemes[] = {
#define SCHEME(id, NAME, text, dtype, meaning) {(id), (dtype), (text)},
#define PART(...)
#include "spec/quant_schemes.def"
#undef SCHEME
#undef PART
};

static const struct quant_part parts[] = {
#define SCHEME(...)
#define PART(NAME, suffix_, role_, shape_, need_, ...)                                                       \
    {.scheme = QUANT_##NAME,                                                                                 \
     .suffix = (suffix_),                                                                                    \
     .role = ROLE_##role_,                                                                                   \
     .shape = SHAPE_##shape_,                                                                                \
     .need = NEED_##need_,                                                                                   \
     .dtypes = {__VA_ARGS__}},
#include "spec/quant_schemes.def"
#undef SCHEME
#undef PART
};

const char *spec_scheme_name(uint32_t scheme)
{
    for (size_t i = 0; i < ARRAY_LEN(schemes); i++)
        if (schemes[i].id == scheme)
            return schemes[i].name;
    return "none";
}

bool spec_value_computed(const struct graph *g, uint32_t value)
{
    return g->info[value].scheme == QUANT_NONE || g->values[value].format.scale_dtype != 0;
}

uint32_t quant_scheme_find(const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(schemes); i++)
        if (strcmp(schemes[i].name, name) == 0)
            return schemes[i].id;
    return QUANT_NONE;
}

uint32_t quant_code_dtype(uint32_t scheme)
{
    for (size_t i = 0; i < ARRAY_LEN(schemes); i++)
        if (schemes[i].id == scheme)
            return schemes[i].dtype;
    return 0;
}

const struct quant_part *quant_parts(uint32_t scheme, size_t *n)
{
    size_t first = 0;
    while (first < ARRAY_LEN(parts) && parts[first].scheme != scheme)
        first++;
    *n = 0;
    while (first + *n < ARRAY_LEN(parts) && parts[first + *n].scheme == scheme)
        (*n)++;
    return *n ? &parts[first] : NULL;
}

bool quant_part_name(const char *name, const char *suffix, char *buf, size_t bytes)
{
    size_t n = strlen(name), m = strlen(suffix);
    const char *join = "";
    if (suffix[0] == '_') {
        /* as it is */
    } else if (str_ends(name, ".weight")) {
        n -= strlen("weight");
    } else if (strncmp(suffix, "weight", 6) == 0) {
        suffix += 6;
        m -= 6;
    } else {
        join = "_";
    }
    size_t j = strlen(join);
    if (n + j + m + 1 > bytes)
        return false;
    memcpy(buf, name, n);
    memcpy(buf + n, join, j);
    memcpy(buf + n + j, suffix, m + 1);
    return true;
}

bool quant_logical_name(const char *tensor, char *buf, size_t bytes)
{
    size_t n = strlen(tensor);
    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        const struct quant_part *p = &parts[i];
        size_t m = strlen(p->suffix);
        if (p->role != ROLE_WEIGHT || n <= m + 1 || strcmp(tensor + n - m, p->suffix) != 0)
            continue;
        if (p->suffix[0] == '_') {
            if (n - m + 1 > bytes)
                return false;
            memcpy(buf, tensor, n - m);
            buf[n - m] = 0;
            return true;
        }
        if (tensor[n - m - 1] != '.' || strcmp(p->suffix, "weight") == 0 || n - m + 7 > bytes)
            continue;
        memcpy(buf, tensor, n - m);
        memcpy(buf + n - m, "weight", 7);
        return true;
    }
    return false;
}

static int64_t ceil_div(int64_t a, int64_t b)
{
    return b > 0 ? a / b + (a % b != 0) : 0;
}

/* Bits of codes in 32-bit words. */
static int64_t words(int64_t n, unsigned bits)
{
    return ceil_div(n * (bits ? bits : 4), 32);
}

bool quant_part_dims(const struct spec_weight *w, enum quant_shape shape, uint32_t *n_dims, int64_t *dims)
{
    const struct quant_form *q = &w->form;
    uint32_t lead = w->n_dims >= 2 ? w->n_dims - 2 : 0;
    bool turned = w->transposed && (shape == SHAPE_EB || shape == SHAPE_ES);
    if (w->n_dims < 2 || w->n_dims > 4)
        return false;
    int64_t n = w->dims[lead + turned], k = w->dims[lead + !turned];
    int64_t group = q->group_k ? (int64_t)q->group_k : k;
    int64_t two[2] = {0, 0};
    uint32_t m = 2;
    for (uint32_t i = 0; i < lead; i++)
        dims[i] = w->dims[i];
    switch (shape) {
    case SHAPE_NK:
        two[0] = n, two[1] = k;
        break;
    case SHAPE_NK2:
        two[0] = n, two[1] = ceil_div(k, 2);
        break;
    case SHAPE_NKP:
        two[0] = n, two[1] = words(k, q->bits);
        break;
    case SHAPE_KPN:
        two[0] = words(k, q->bits), two[1] = n;
        break;
    case SHAPE_KNP:
        two[0] = k, two[1] = words(n, q->bits);
        break;
    case SHAPE_NG:
        two[0] = n, two[1] = ceil_div(k, group);
        break;
    case SHAPE_GN:
        two[0] = ceil_div(k, group), two[1] = n;
        break;
    case SHAPE_GNP:
        two[0] = ceil_div(k, group), two[1] = words(n, q->bits);
        break;
    case SHAPE_NPG:
        two[0] = words(n, q->bits), two[1] = ceil_div(k, group);
        break;
    case SHAPE_BLOCK:
        two[0] = ceil_div(n, q->group_n ? q->group_n : 128);
        two[1] = ceil_div(k, q->group_k ? q->group_k : 128);
        break;
    case SHAPE_N1:
        two[0] = n, two[1] = 1;
        break;
    case SHAPE_ES:
        two[0] = n, two[1] = ceil_div(k, 32);
        break;
    case SHAPE_EB:
        dims[lead] = n;
        dims[lead + 1] = ceil_div(k, 32);
        dims[lead + 2] = 16;
        *n_dims = lead + 3;
        return true;
    case SHAPE_ONE:
        *n_dims = lead; /* one for each expert of a packed weight */
        return true;
    case SHAPE_K1:
        two[0] = k, m = 1;
        break;
    case SHAPE_TWO:
        two[0] = 2, m = 1;
        break;
    case SHAPE_ANY:
        return false;
    }
    memcpy(dims + lead, two, m * sizeof two[0]);
    *n_dims = lead + m;
    return true;
}
