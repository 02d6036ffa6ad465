/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: Lua calls that list tensors as they are, as loops over the numbers in their names, so that the
 * inventory of a draft is whole. Says of each what its shape alone tells, and claims to know no more.
 */
#include "preflight/draft_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_NUMBERS 6
#define MAX_CLASSES 64
#define MAX_VALUES  2048
#define MAX_COUNT   65536

/* A tensor by its pattern, shape and numbers. */
struct item {
    const struct ckpt_tensor *t;
    uint32_t pattern, n_numbers;
    uint32_t numbers[MAX_NUMBERS];
};

struct emitter {
    const struct drafting *x;
    struct strbuf *out;
    const struct item *first;       /* of the group being written */
    const char *loops[MAX_NUMBERS]; /* Lua variable of each number, or NULL: its value is fixed */
    uint32_t fixed[MAX_NUMBERS];
    unsigned depth;
    uint64_t listed;
    bool full;
};

static int by_kind(const struct item *a, const struct item *b)
{
    if (a->pattern != b->pattern)
        return a->pattern < b->pattern ? -1 : 1;
    if (a->t->dtype != b->t->dtype)
        return a->t->dtype < b->t->dtype ? -1 : 1;
    if (a->t->n_dims != b->t->n_dims)
        return a->t->n_dims < b->t->n_dims ? -1 : 1;
    for (uint32_t i = 0; i < a->t->n_dims; i++)
        if (a->t->dims[i] != b->t->dims[i])
            return a->t->dims[i] < b->t->dims[i] ? -1 : 1;
    return 0;
}

static int by_numbers(const struct item *a, const struct item *b, uint32_t from)
{
    for (uint32_t i = from; i < a->n_numbers; i++)
        if (a->numbers[i] != b->numbers[i])
            return a->numbers[i] < b->numbers[i] ? -1 : 1;
    return 0;
}

static int in_order(const void *a, const void *b)
{
    int c = by_kind(a, b);
    return c ? c : by_numbers(a, b, 0);
}

static bool read_numbers(struct item *it)
{
    for (const char *p = it->t->name; *p;) {
        size_t n = strcspn(p, ".");
        if (n > 0 && strspn(p, "0123456789") == n) {
            if (it->n_numbers == MAX_NUMBERS)
                return false;
            it->numbers[it->n_numbers++] = (uint32_t)strtoul(p, NULL, 10);
        }
        p += n + (p[n] == '.');
    }
    return true;
}

/* ---- text */

static void indent(struct emitter *m)
{
    for (unsigned i = 0; i <= m->depth; i++)
        strbuf_puts(m->out, "  ");
}

/* The name as Lua source; count: the last number stays %d for the program to count. */
static void put_name(struct emitter *m, bool count)
{
    const struct item *it = m->first;
    uint32_t k = 0, args = 0;
    bool format = false;
    for (uint32_t i = 0; i < it->n_numbers; i++)
        format |= m->loops[i] != NULL;
    strbuf_puts(m->out, format ? "string.format(\"" : "\"");
    for (const char *p = m->x->names.items[it->pattern].name; *p; p++) {
        if (p[0] != '%') {
            strbuf_putc(m->out, *p);
            continue;
        }
        bool last = k + 1 == it->n_numbers && count;
        if (last)
            strbuf_puts(m->out, format ? "%%d" : "%d");
        else if (m->loops[k])
            strbuf_puts(m->out, "%d");
        else
            strbuf_printf(m->out, "%u", m->fixed[k]);
        k++;
        p++;
    }
    strbuf_puts(m->out, "\"");
    for (uint32_t i = 0; format && i < it->n_numbers; i++)
        if (m->loops[i] && args < MAX_NUMBERS)
            strbuf_printf(m->out, ", %s", m->loops[i]);
    strbuf_puts(m->out, format ? ")" : "");
}

static void put_call(struct emitter *m, uint32_t count)
{
    const struct ckpt_tensor *t = m->first->t;
    indent(m);
    strbuf_puts(m->out, "param { ");
    put_name(m, count > 0);
    strbuf_puts(m->out, ", shape = { ");
    for (uint32_t i = 0; i < t->n_dims; i++)
        strbuf_printf(m->out, "%s%lld", i ? ", " : "", (long long)t->dims[i]);
    strbuf_puts(m->out, " }");
    if (t->dtype && t->dtype != m->x->usual_dtype)
        strbuf_printf(m->out, ", dtype = \"%s\"", dtype_name(t->dtype));
    if (count > 0)
        strbuf_printf(m->out, ", part = expert, count = %u", count);
    strbuf_puts(m->out, " }\n");
}

/* for NAME = a, b, step do   or   for _, NAME in ipairs { ... } do */
static void put_loop(struct emitter *m, const char *name, const uint32_t *v, size_t n)
{
    bool even = n > 1;
    for (size_t i = 2; i < n && even; i++)
        even = v[i] - v[i - 1] == v[1] - v[0];
    indent(m);
    if (even && v[1] - v[0] == 1) {
        strbuf_printf(m->out, "for %s = %u, %u do\n", name, v[0], v[n - 1]);
    } else if (even) {
        strbuf_printf(m->out, "for %s = %u, %u, %u do\n", name, v[0], v[n - 1], v[1] - v[0]);
    } else {
        strbuf_printf(m->out, "for _, %s in ipairs { ", name);
        for (size_t i = 0; i < n; i++)
            strbuf_printf(m->out, "%s%u", i ? ", " : "", v[i]);
        strbuf_puts(m->out, " } do\n");
    }
}

static void emit(struct emitter *m, const struct item *it, size_t n, uint32_t axis);

/* One class of equal blocks: a loop over the numbers that lead to them, or the one number. */
static void emit_class(struct emitter *m, const struct item *block, size_t n, uint32_t axis,
                       const uint32_t *v, size_t n_values)
{
    static const char *const names[MAX_NUMBERS] = {"i", "j", "k", "l", "m", "n"};
    bool loop = n_values > 1;
    m->loops[axis] = loop ? names[axis] : NULL;
    m->fixed[axis] = v[0];
    if (loop) {
        put_loop(m, names[axis], v, n_values);
        m->depth++;
    }
    emit(m, block, n, axis + 1);
    if (loop) {
        m->depth--;
        indent(m);
        strbuf_puts(m->out, "end\n");
    }
    m->loops[axis] = NULL;
}

static bool same_block(const struct item *a, const struct item *b, size_t n, uint32_t axis)
{
    for (size_t i = 0; i < n; i++)
        if (by_numbers(&a[i], &b[i], axis) != 0)
            return false;
    return true;
}

/* 0, 1, ... as the last of the numbers: experts, which the program counts itself. */
static bool counted(const struct item *it, size_t n, uint32_t axis)
{
    bool all = n > 1 && n <= MAX_COUNT && axis > 0 && axis + 1 == it->n_numbers;
    for (size_t i = 0; all && i < n; i++)
        all = it[i].numbers[axis] == i;
    return all;
}

/* Tensors of one kind, in order, that agree in the numbers before `axis`. */
static void emit(struct emitter *m, const struct item *it, size_t n, uint32_t axis)
{
    struct block {
        size_t at, n;
        bool done;
    } * blocks;
    size_t n_blocks = 0, classes = 0;
    if (axis == it->n_numbers) {
        put_call(m, 0);
        return;
    }
    if (counted(it, n, axis)) {
        put_call(m, (uint32_t)n);
        return;
    }
    blocks = calloc(n, sizeof *blocks);
    uint32_t *values = calloc(n, sizeof *values);
    for (size_t i = 0; blocks && values && i < n; i++) {
        if (i == 0 || it[i].numbers[axis] != it[i - 1].numbers[axis])
            blocks[n_blocks++].at = i;
        blocks[n_blocks - 1].n++;
    }
    m->full |= !blocks || !values || n_blocks > MAX_VALUES;
    for (size_t i = 0; i < n_blocks && !m->full; i++) {
        size_t n_values = 0;
        if (blocks[i].done)
            continue;
        for (size_t k = i; k < n_blocks; k++) {
            if (blocks[k].done || blocks[k].n != blocks[i].n ||
                !same_block(it + blocks[i].at, it + blocks[k].at, blocks[i].n, axis + 1))
                continue;
            blocks[k].done = true;
            values[n_values++] = it[blocks[k].at].numbers[axis];
        }
        m->full |= ++classes > MAX_CLASSES || m->out->len > DRAFT_MAX_BYTES;
        emit_class(m, it + blocks[i].at, blocks[i].n, axis, values, n_values);
    }
    free(blocks);
    free(values);
}

/* What a shape alone tells. */
static const char *guess(const struct ckpt_tensor *t, int64_t h)
{
    if (t->dtype && !dtype_is_float(t->dtype))
        return "integers: part of a quantised weight, or a table";
    if (strstr(t->name, "scale"))
        return "a scale, of a quantised weight perhaps";
    if (t->n_dims == 1)
        return t->dims[0] == h ? "a norm or a bias over the hidden size" : "a norm, bias or scale";
    if (t->n_dims == 2 && t->dims[0] == h && t->dims[1] == h)
        return "a linear from the hidden size to itself";
    if (t->n_dims == 2 && t->dims[1] == h)
        return "a linear that reads the hidden size";
    if (t->n_dims == 2 && t->dims[0] == h)
        return "a linear that gives the hidden size";
    if (t->n_dims == 3 && (t->dims[1] == h || t->dims[2] == h))
        return "experts packed into one tensor?";
    return t->n_dims == 2 ? "a linear between other widths" : "of a role that its shape does not tell";
}

/* Tensors of one kind: a comment and the calls. What does not fit is taken back. */
static void emit_kind(struct emitter *m, const char *base, const struct item *it, size_t n)
{
    size_t before = m->out->len;
    m->first = it;
    m->depth = 0;
    m->full = false;
    indent(m);
    strbuf_printf(m->out, "-- " DRAFT_MARK "%zu tensor%s %s%s%s%s: %s\n", n, n == 1 ? "" : "s",
                  it->t->dtype ? dtype_name(it->t->dtype) : "of an unknown type", base ? " that " : "",
                  base ? base : "", base ? " does not describe" : "", guess(it->t, m->x->hidden));
    emit(m, it, n, 0);
    if (m->full || m->out->len > DRAFT_MAX_BYTES) {
        m->out->len = before;
        m->out->data[before] = 0;
    } else {
        m->listed += n;
    }
}

/* May a Lua file of ours hold it? */
static bool listable(const struct drafting *x, size_t i)
{
    const struct ckpt_tensor *t = &x->c->tensors[i];
    if (x->names.of[i] == UINT32_MAX || strlen(t->name) > 190 || !draft_plain(t->name) ||
        strchr(t->name, '%'))
        return false;
    for (uint32_t k = 0; k < t->n_dims; k++)
        if (t->dims[k] <= 0)
            return false;
    return t->n_dims >= 1 && t->n_dims <= D0_MAX_CONV_DIMS;
}

int draft_extra(const struct drafting *x, const uint8_t *claims, const char *base, struct strbuf *out,
                uint64_t *listed, struct err *e)
{
    struct emitter m = {.x = x, .out = out};
    size_t n = 0;
    struct item *items = calloc(x->c->n_tensors + 1, sizeof *items);
    if (!items)
        return err_set(e, ERR_NOMEM, "no memory for the list of tensors");
    for (size_t i = 0; i < x->c->n_tensors; i++) {
        items[n] = (struct item){.t = &x->c->tensors[i], .pattern = x->names.of[i]};
        if ((!claims || claims[i] == CLAIM_NONE) && listable(x, i) && read_numbers(&items[n]))
            n++;
    }
    if (n > 1)
        qsort(items, n, sizeof *items, in_order);
    if (n)
        strbuf_puts(out, "-- Listed so that the inventory is whole; no operator reads them yet. Move each to "
                         "where it is used.\n"
                         "local function list_extra()\n");
    for (size_t i = 0, k; i < n && !strbuf_failed(out); i = k) {
        for (k = i + 1; k < n && by_kind(&items[i], &items[k]) == 0;)
            k++;
        emit_kind(&m, base, items + i, k - i);
    }
    if (n)
        strbuf_puts(out, "end\nlocal function extra() tower(\"draft\", list_extra) end\n");
    free(items);
    *listed = m.listed;
    return strbuf_failed(out) ? err_set(e, ERR_NOMEM, "no memory for the text of a draft") : ERR_OK;
}
