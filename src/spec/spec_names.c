/* SPDX-License-Identifier: Apache-2.0
 *
 * Names: the tensors that a description wants, one by one (experts and storage schemes expanded), and the
 * patterns of those that a checkpoint has. Owns no list of half a million names: everything is walked.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "spec/quant.h"
#include "spec/spec_internal.h"

#define NAME_BYTES   320
#define MAX_PATTERNS 20000u

const char *spec_group_name(enum spec_group g)
{
    return g == GROUP_TEXT ? "text" : g == GROUP_VISION ? "vision" : "mtp";
}

const char *spec_role_name(enum spec_role r)
{
    static const char *const names[] = {"weight",     "scale", "global_scale", "input_scale",
                                        "zero_point", "shape", "order",        "table"};
    return (size_t)r < ARRAY_LEN(names) ? names[r] : "?";
}

/* ---- one weight after the other ---- */

/* Name of expert i, built around the %d. */
static bool expert_name(const struct spec_weight *w, uint32_t i, char *buf, size_t bytes)
{
    const char *at = w->count > 1 ? strstr(w->name, "%d") : NULL;
    size_t n = strlen(w->name), head = at ? (size_t)(at - w->name) : n;
    char digits[12];
    size_t d = 0;
    if (n + sizeof digits > bytes)
        return false;
    memcpy(buf, w->name, head);
    if (at) {
        do
            digits[d++] = (char)('0' + i % 10);
        while ((i /= 10) != 0);
        while (d)
            buf[head++] = digits[--d];
        memcpy(buf + head, at + 2, n - (size_t)(at - w->name) - 2 + 1);
    } else {
        buf[head] = 0;
    }
    return true;
}

int spec_each_logical(const struct spec *s, spec_logical_fn f, void *ctx)
{
    char name[NAME_BYTES];
    for (size_t i = 0; i < s->n_weights; i++)
        for (uint32_t k = 0; k < s->weights[i].count; k++) {
            int rc = expert_name(&s->weights[i], k, name, sizeof name) ? f(ctx, name, &s->weights[i]) : 0;
            if (rc)
                return rc;
        }
    return 0;
}

static bool wanted(const struct spec_weight *w, const struct quant_part *p, const struct ckpt_tensor *t,
                   bool known)
{
    switch (p->need) {
    case NEED_REQUIRED:
        return true;
    case NEED_IF_ASYM:
        return w->form.asymmetric;
    case NEED_IF_ORDER:
        return w->form.ordered;
    case NEED_IF_INPUT:
        return known ? t != NULL || w->form.input_scale : w->form.input_scale;
    case NEED_IF_SEEN:
        return t != NULL;
    }
    return false;
}

static void part_shape(struct spec_tensor *x, const struct quant_part *p)
{
    const struct ckpt_tensor *t = x->tensor;
    if (!quant_part_dims(x->weight, p->shape, &x->n_dims, x->dims)) {
        x->any_shape = true;
        x->n_dims = t ? t->n_dims : 0;
        if (t)
            memcpy(x->dims, t->dims, sizeof x->dims);
        return;
    }
    /* a scalar, and a vector of one; a column, and a vector: the same */
    uint64_t n = 0;
    bool loose = p->shape == SHAPE_ONE || p->shape == SHAPE_N1 || p->shape == SHAPE_K1;
    if (loose && t && shape_elements(t->dims, t->n_dims, &n)) {
        uint64_t want = 1;
        (void)shape_elements(x->dims, x->n_dims, &want);
        bool whole = p->shape == SHAPE_N1 && x->weight->form.scheme == QUANT_INT8 && n == 1;
        if (n == want || whole) {
            x->n_dims = t->n_dims;
            memcpy(x->dims, t->dims, sizeof x->dims);
        }
    }
}

/* What is there if it is one of the types of this part, else the usual one. */
static uint32_t part_dtype(const struct spec_tensor *x, const struct quant_part *p)
{
    for (size_t i = 0; i < ARRAY_LEN(p->dtypes) && p->dtypes[i]; i++)
        if (x->tensor && x->tensor->dtype == p->dtypes[i])
            return p->dtypes[i];
    return p->dtypes[0];
}

/* The tensors of one (expert of a) weight. */
static int each_part(struct spec_tensor *x, const char *name, const struct ckpt *c, spec_tensor_fn f,
                     void *ctx)
{
    static const struct quant_part plain = {.suffix = "", .role = ROLE_WEIGHT};
    char buf[NAME_BYTES];
    size_t n = 1;
    const struct spec_weight *w = x->weight;
    const struct quant_part *parts = w->form.scheme ? quant_parts(w->form.scheme, &n) : &plain;
    bool known = c && c->n_tensors;
    for (size_t i = 0; parts && i < n; i++) {
        const struct quant_part *p = &parts[i];
        x->name = name;
        if (p != &plain) {
            if (!quant_part_name(name, p->suffix, buf, sizeof buf))
                continue;
            x->name = buf;
        }
        x->role = p->role;
        x->any_shape = false;
        x->tensor = known ? ckpt_find(c, x->name) : NULL;
        if (!wanted(w, p, x->tensor, known))
            continue;
        if (p == &plain) {
            x->dtype = w->count == 1 ? w->dtype : x->tensor && x->tensor->dtype ? x->tensor->dtype : w->dtype;
            x->n_dims = w->n_dims;
            memcpy(x->dims, w->dims, w->n_dims * sizeof w->dims[0]);
        } else {
            part_shape(x, p);
            x->dtype = part_dtype(x, p);
        }
        if (!shape_bytes(x->dims, x->n_dims, x->dtype, &x->bytes))
            x->bytes = x->tensor ? x->tensor->bytes : 0;
        int rc = f(ctx, x);
        if (rc)
            return rc;
    }
    return 0;
}

int spec_physical_one(const struct spec_weight *w, const struct ckpt *c, spec_tensor_fn f, void *ctx)
{
    char name[NAME_BYTES];
    struct spec_tensor x = {.weight = w};
    for (uint32_t k = 0; k < w->count; k++) {
        x.index = k;
        int rc = expert_name(w, k, name, sizeof name) ? each_part(&x, name, c, f, ctx) : 0;
        if (rc)
            return rc;
    }
    return 0;
}

int spec_weight_tensors(const struct spec *s, size_t weight, const struct ckpt *c, spec_tensor_fn f,
                        void *ctx)
{
    return weight < s->n_weights ? spec_physical_one(&s->weights[weight], c, f, ctx) : 0;
}

int spec_physical(const struct spec *s, const struct ckpt *c, spec_tensor_fn f, void *ctx)
{
    for (size_t i = 0; i < s->n_weights; i++) {
        int rc = spec_physical_one(&s->weights[i], c, f, ctx);
        if (rc)
            return rc;
    }
    return 0;
}

/* ---- patterns ---- */

/* Components of digits become %d. false: too long. */
static bool collapse(const char *name, char *buf, size_t bytes)
{
    size_t at = 0;
    for (const char *p = name; *p;) {
        size_t n = strcspn(p, "."), digits = strspn(p, "0123456789");
        if (at + n + 4 > bytes)
            return false;
        if (n > 0 && digits == n) {
            memcpy(buf + at, "%d", 2);
            at += 2;
        } else {
            memcpy(buf + at, p, n);
            at += n;
        }
        p += n;
        if (*p)
            buf[at++] = *p++;
    }
    buf[at] = 0;
    return at > 0;
}

struct patterns {
    struct json *items;
    size_t n, capacity;
    struct strmap map;
    struct arena *arena;
};

static int add_pattern(struct patterns *x, const char *pattern)
{
    size_t n = strlen(pattern);
    if (x->n >= MAX_PATTERNS || strmap_get(&x->map, pattern, n, NULL))
        return ERR_OK;
    char *copy = arena_strdup(x->arena, pattern);
    if (copy == NULL || vec_reserve((void **)&x->items, &x->capacity, x->n + 1, sizeof *x->items) ||
        strmap_put(&x->map, copy, n, 0, NULL) < 0)
        return ERR_NOMEM;
    x->items[x->n++] = (struct json){.type = JSON_STRING, .n = (uint32_t)n, .as.string = copy};
    return ERR_OK;
}

int spec_patterns(const struct ckpt *c, struct arena *arena, const struct json **out, struct err *e)
{
    struct patterns x = {.arena = arena};
    char pattern[NAME_BYTES], last[NAME_BYTES] = "", logical[NAME_BYTES];
    int rc = ERR_OK;
    for (size_t i = 0; i < c->n_tensors && !rc; i++) {
        if (!collapse(c->tensors[i].name, pattern, sizeof pattern) || strcmp(pattern, last) == 0)
            continue;
        memcpy(last, pattern, sizeof last);
        if (strmap_get(&x.map, pattern, strlen(pattern), NULL))
            continue;
        rc = add_pattern(&x, pattern);
        if (!rc && quant_logical_name(pattern, logical, sizeof logical))
            rc = add_pattern(&x, logical);
    }
    struct json *list = rc ? NULL : arena_alloc(arena, sizeof *list);
    struct json *items = list ? arena_alloc_n(arena, x.n + 1, sizeof *items) : NULL;
    if (items) {
        if (x.n)
            memcpy(items, x.items, x.n * sizeof *items);
        *list = (struct json){.type = JSON_ARRAY, .n = (uint32_t)x.n, .as.items = items};
        *out = list;
    }
    free(x.items);
    strmap_release(&x.map);
    return items ? ERR_OK : err_set(e, ERR_NOMEM, "no memory for the patterns of tensor names");
}
