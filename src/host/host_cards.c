/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: profiles of cards, read from data: memory, types, operators and the values their attributes may take.
 * Refuses to fill gaps: what a profile does not say is not known, and every question has that answer.
 */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "host/host_internal.h"

#define MAX_PROFILE_BYTES ((size_t)1 << 20)
#define MAX_LIST          256

struct reader {
    struct host_card_profile *p;
    const char *name;
    struct err *e;
};

static bool refuse(const struct reader *r, const char *what)
{
    err_set(r->e, ERR_FORMAT, "%s: %s", r->name, what);
    return false;
}

static bool no_memory(const struct reader *r)
{
    err_set(r->e, ERR_NOMEM, "%s: no memory to read it", r->name);
    return false;
}

/* A list of texts; null or absent: NULL. */
static bool read_names(const struct reader *r, const struct json *list, const char ***out, size_t *n)
{
    *out = NULL;
    *n = 0;
    if (!list || list->type == JSON_NULL)
        return true;
    if (list->type != JSON_ARRAY || list->n > MAX_LIST)
        return refuse(r, "a list of names is expected");
    const char **names = arena_alloc_n(&r->p->arena, list->n + (size_t)1, sizeof *names);
    if (!names)
        return no_memory(r);
    for (uint32_t i = 0; i < list->n; i++) {
        const char *s = json_string(json_at(list, i));
        if (!s)
            return refuse(r, "a list of names holds something else");
        if (!(names[i] = arena_strdup(&r->p->arena, s)))
            return no_memory(r);
    }
    *out = names;
    *n = list->n;
    return true;
}

static bool read_limits(const struct reader *r, const struct json *limits, struct host_card_operator *op)
{
    if (!limits || limits->type == JSON_NULL)
        return true;
    if (limits->type != JSON_OBJECT || limits->n > MAX_LIST)
        return refuse(r, "\"limits\" is an object of lists of numbers");
    struct host_card_limit *out = arena_alloc_n(&r->p->arena, limits->n, sizeof *out);
    if (!out)
        return no_memory(r);
    for (uint32_t i = 0; i < limits->n; i++) {
        const struct json_member *m = &limits->as.members[i];
        if (m->value.type != JSON_ARRAY || m->value.n > MAX_LIST)
            return refuse(r, "\"limits\" is an object of lists of numbers");
        int64_t *values = arena_alloc_n(&r->p->arena, m->value.n, sizeof *values);
        out[i] = (struct host_card_limit){arena_strdup(&r->p->arena, m->key), values, m->value.n};
        if (!values || !out[i].attribute)
            return no_memory(r);
        for (uint32_t k = 0; k < m->value.n; k++)
            if (!json_i64(json_at(&m->value, k), &values[k]))
                return refuse(r, "\"limits\" is an object of lists of numbers");
    }
    op->limits = out;
    op->n_limits = limits->n;
    return true;
}

static bool read_operators(const struct reader *r, const struct json *list)
{
    struct host_card_profile *p = r->p;
    if (!list || list->type == JSON_NULL)
        return true;
    if (list->type != JSON_OBJECT || list->n > MAX_LIST)
        return refuse(r, "\"operators\" is an object of operators");
    if (!(p->operators = arena_alloc_n(&p->arena, list->n, sizeof *p->operators)))
        return no_memory(r);
    for (uint32_t i = 0; i < list->n; i++) {
        const struct json_member *m = &list->as.members[i];
        struct host_card_operator *op = &p->operators[i];
        const struct json *yes = json_get(&m->value, "supported");
        bool supported = false;
        if (m->value.type != JSON_OBJECT || (yes && yes->type != JSON_NULL && !json_bool(yes, &supported)))
            return refuse(r, "an operator is an object; \"supported\" is true, false or null");
        op->supported = !yes || yes->type == JSON_NULL ? HOST_NOT_KNOWN : supported ? HOST_YES : HOST_NO;
        if (!(op->name = arena_strdup(&p->arena, m->key)))
            return no_memory(r);
        if (!read_names(r, json_get(&m->value, "dtypes"), &op->dtypes, &op->n_dtypes) ||
            !read_limits(r, json_get(&m->value, "limits"), op) ||
            !host_take_string(&p->arena, &m->value, "source", &op->source, r->name, r->e))
            return false;
        p->n_operators++;
    }
    return true;
}

static bool read_all(const struct reader *r, const struct json *tree)
{
    struct host_card_profile *p = r->p;
    if (!host_take_string(&p->arena, tree, "name", &p->name, r->name, r->e) ||
        !host_take_string(&p->arena, tree, "vendor", &p->vendor, r->name, r->e) ||
        !host_take_count(tree, "memory_bytes", (uint64_t)1 << 50, &p->memory_bytes, r->name, r->e) ||
        !host_take_count(tree, "memory_bytes_per_second", (uint64_t)1 << 60, &p->memory_bytes_per_second,
                         r->name, r->e))
        return false;
    if (!p->name || !p->name[0])
        return refuse(r, "a profile needs a \"name\"");
    return read_names(r, json_get(tree, "dtypes"), &p->dtypes, &p->n_dtypes) &&
           read_names(r, json_get(tree, "sources"), &p->sources, &p->n_sources) &&
           read_operators(r, json_get(tree, "operators"));
}

int host_card_parse(struct host_card_profile **out, const char *text, size_t n, const char *name,
                    struct err *e)
{
    struct host_card_profile *p = calloc(1, sizeof *p);
    struct arena scratch;
    const struct json *tree;
    struct err why = {0};
    if (!p)
        return err_set(e, ERR_NOMEM, "%s: no memory to read it", name);
    arena_init(&p->arena, NULL, MEM_MISC);
    arena_init(&scratch, NULL, MEM_MISC);
    const struct reader r = {p, name, &why};
    int rc = host_parse_document(text, n, "day0-card", &scratch, &tree, name, &why);
    if (!rc && !read_all(&r, tree))
        rc = why.code;
    arena_release(&scratch);
    if (rc) {
        host_card_close(p);
        return err_set(e, rc, "%s", why.message);
    }
    *out = p;
    return ERR_OK;
}

int host_card_open(struct host_card_profile **out, const char *path, struct err *e)
{
    struct arena scratch;
    char *text;
    size_t n;
    arena_init(&scratch, NULL, MEM_MISC);
    int rc = file_read(path, MAX_PROFILE_BYTES, &scratch, &text, &n, e);
    if (!rc)
        rc = host_card_parse(out, text, n, path, e);
    arena_release(&scratch);
    return rc;
}

void host_card_close(struct host_card_profile *p)
{
    if (!p)
        return;
    arena_release(&p->arena);
    free(p);
}

/* ---- questions */

static const struct host_card_operator *find(const struct host_card_profile *p, const char *op)
{
    for (size_t i = 0; i < p->n_operators; i++)
        if (strcmp(p->operators[i].name, op) == 0)
            return &p->operators[i];
    return NULL;
}

static bool has(const char *const *list, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(list[i], name) == 0)
            return true;
    return false;
}

enum host_answer host_card_runs(const struct host_card_profile *p, const char *op, const char *dtype)
{
    const struct host_card_operator *x = find(p, op);
    if (x && x->supported == HOST_NO)
        return HOST_NO;
    /* A type that the card does not compute with at all no operator computes with. */
    if (dtype && p->dtypes && !has(p->dtypes, p->n_dtypes, dtype))
        return HOST_NO;
    if (!x || x->supported == HOST_NOT_KNOWN)
        return HOST_NOT_KNOWN;
    if (!dtype)
        return HOST_YES;
    return !x->dtypes ? HOST_NOT_KNOWN : has(x->dtypes, x->n_dtypes, dtype) ? HOST_YES : HOST_NO;
}

enum host_answer host_card_takes(const struct host_card_profile *p, const char *op, const char *attribute,
                                 int64_t value)
{
    const struct host_card_operator *x = find(p, op);
    if (!x)
        return HOST_NOT_KNOWN;
    for (size_t i = 0; i < x->n_limits; i++) {
        const struct host_card_limit *l = &x->limits[i];
        if (strcmp(l->attribute, attribute) != 0)
            continue;
        for (size_t k = 0; k < l->n_values; k++)
            if (l->values[k] == value)
                return x->supported;
        return HOST_NO;
    }
    return x->supported;
}
