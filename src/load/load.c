/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the way of weight bytes from shards into device buffers, through one bounded staging buffer.
 * Refuses: conversion of any kind (a tensor whose type or shape is not the graph's is an error), and to leave
 * a byte of a buffer unwritten or to write one twice: written bytes are counted against what the graph
 * declares.
 */
#include "load/load.h"

#include <stdlib.h>
#include <string.h>

#include "base/str.h"

#define STAGING_BYTES (UINT64_C(8) << 20)
#define STAGING_UNIT  64u /* whole elements of every type */
#define WAIT_NS       UINT64_C(60000000000)

struct loader {
    struct weights *w;
    const struct graph *g;
    struct ckpt *c;
    const struct load_options *o;
    struct d0_queue *queue;
    unsigned char *staging;
    uint64_t staging_bytes;
};

static bool is_weight(const struct graph *g, uint32_t i)
{
    return g->values[i].kind == D0_VALUE_WEIGHT;
}

/* ---- what is needed ------------------------------------------------------------------------------------ */

static int match_tensor(const struct graph *g, uint32_t i, const struct ckpt_tensor *t, struct err *e)
{
    const struct d0_value *v = &g->values[i];
    const char *name = g->info[i].name;
    if (!t) {
        err_set(e, ERR_MISSING, "tensor %s is not in the checkpoint", name);
        return err_hint(e, "run day0 check on the model");
    }
    char have[96], want[96];
    bool same = t->n_dims == v->n_dims && t->dtype == v->dtype;
    for (uint32_t k = 0; same && k < v->n_dims; k++)
        same = t->dims[k] == v->dims[k];
    if (!same)
        return err_set(e, ERR_MISMATCH, "tensor %s is %s %s in the checkpoint, the graph wants %s %s", name,
                       dtype_name(t->dtype), shape_format(t->dims, t->n_dims, have, sizeof(have)),
                       dtype_name(v->dtype), shape_format(v->dims, v->n_dims, want, sizeof(want)));
    return ERR_OK;
}

static int weight_bytes(const struct graph *g, uint32_t i, uint64_t *out, struct err *e)
{
    static const int64_t no_dims[D0_N_DIMS];
    const struct d0_value *v = &g->values[i];
    for (uint32_t k = 0; k < v->n_dims; k++)
        if (v->dims[k] <= 0)
            return err_set(e, ERR_MISMATCH, "weight %s has a size that changes from step to step",
                           g->info[i].name);
    if (!value_bytes(v, no_dims, out))
        return err_set(e, ERR_LIMIT, "weight %s is too large to address", g->info[i].name);
    return ERR_OK;
}

/* All that headers can show is found before the first buffer is made. */
static int measure(const struct loader *l, uint64_t *total, struct err *e)
{
    *total = 0;
    for (uint32_t i = 0; i < l->g->n_values; i++) {
        if (!is_weight(l->g, i))
            continue;
        uint64_t bytes;
        int rc = weight_bytes(l->g, i, &bytes, e);
        if (rc == ERR_OK && !l->g->info[i].constant) {
            const struct ckpt_tensor *t = l->c ? ckpt_find(l->c, l->g->info[i].name) : NULL;
            rc = match_tensor(l->g, i, t, e);
            if (rc == ERR_OK && t->bytes != bytes)
                rc = err_set(e, ERR_MISMATCH, "tensor %s has %llu bytes, its shape needs %llu", t->name,
                             (unsigned long long)t->bytes, (unsigned long long)bytes);
        }
        if (rc != ERR_OK)
            return rc;
        if (!add_u64(*total, bytes, total))
            return err_set(e, ERR_LIMIT, "the weights are too large to address");
    }
    return ERR_OK;
}

/* ---- moving -------------------------------------------------------------------------------------------- */

static void scan_result(struct weights *w, const struct tensor_scan *s, const char *name)
{
    if (s->n && s->n_zero == s->n)
        w->n_zero_tensors++;
    if (s->n_nan + s->n_inf == 0)
        return;
    if (!w->n_nonfinite_tensors++)
        w->first_nonfinite = strdup(name);
}

static int move_chunk(struct loader *l, struct d0_buffer *b, const struct ckpt_tensor *t, uint64_t at,
                      uint64_t n, struct tensor_scan *scan, struct err *e)
{
    struct dev *d = l->w->dev;
    int rc = ERR_OK;
    /* a device that only tracks looks at no byte: a model that is not even there can be "loaded" */
    if (d->computes)
        rc = ckpt_read(l->c, t, at, l->staging, n, e);
    if (rc == ERR_OK && scan)
        tensor_scan_add(scan, l->staging, t->dtype, (size_t)(n * 8 / dtype_bits(t->dtype)));
    if (rc == ERR_OK)
        rc = dev_copy_in(d, l->queue, b, at, l->staging, n, e);
    /* the staging buffer is reused at once */
    if (rc == ERR_OK)
        rc = dev_wait(d, l->queue, WAIT_NS, e);
    return rc;
}

static int load_tensor(struct loader *l, struct d0_buffer *b, const struct ckpt_tensor *t, uint64_t *written,
                       struct err *e)
{
    struct tensor_scan scan = {0};
    bool scanning = l->o->scan && l->w->dev->computes && dtype_is_float(t->dtype);
    int rc = ERR_OK;
    while (rc == ERR_OK && *written < t->bytes) {
        uint64_t left = t->bytes - *written;
        uint64_t n = left < l->staging_bytes ? left : l->staging_bytes;
        rc = move_chunk(l, b, t, *written, n, scanning ? &scan : NULL, e);
        if (rc != ERR_OK)
            break;
        *written += n;
        if (l->o->progress)
            l->o->progress->bytes_done += n;
    }
    if (rc == ERR_OK && scanning)
        scan_result(l->w, &scan, t->name);
    return rc;
}

static int load_constant(struct loader *l, struct d0_buffer *b, const void *data, uint64_t bytes,
                         uint64_t *written, struct err *e)
{
    int rc = dev_copy_in(l->w->dev, l->queue, b, 0, data, bytes, e);
    if (rc == ERR_OK)
        rc = dev_wait(l->w->dev, l->queue, WAIT_NS, e);
    if (rc != ERR_OK)
        return rc;
    *written = bytes;
    if (l->o->progress)
        l->o->progress->bytes_done += bytes;
    return ERR_OK;
}

static int load_value(struct loader *l, uint32_t i, struct err *e)
{
    const struct graph_value_info *info = &l->g->info[i];
    uint64_t bytes, written = 0;
    int rc = weight_bytes(l->g, i, &bytes, e);
    if (rc == ERR_OK)
        rc = dev_buffer(l->w->dev, bytes, &l->w->buffers[i], e);
    if (rc == ERR_OK && info->constant)
        rc = load_constant(l, l->w->buffers[i], info->constant, bytes, &written, e);
    else if (rc == ERR_OK)
        rc = load_tensor(l, l->w->buffers[i], ckpt_find(l->c, info->name), &written, e);
    if (rc != ERR_OK) {
        err_ctx(e, "while loading %s", info->name);
        return rc;
    }
    if (written != bytes)
        BUG("%llu of %llu bytes of %s were written", (unsigned long long)written, (unsigned long long)bytes,
            info->name);
    l->w->bytes += bytes;
    if (l->w->dev->host_memory)
        mem_account(l->w->dev->mem, MEM_WEIGHTS, (int64_t)bytes);
    return ERR_OK;
}

static int load_all(struct loader *l, struct err *e)
{
    uint64_t total;
    int rc = measure(l, &total, e);
    if (rc != ERR_OK)
        return rc;
    if (l->o->progress)
        l->o->progress->bytes_total = total;
    l->staging_bytes = l->o->staging_bytes ? l->o->staging_bytes : STAGING_BYTES;
    l->staging_bytes =
        l->staging_bytes < STAGING_UNIT ? STAGING_UNIT : l->staging_bytes / STAGING_UNIT * STAGING_UNIT;
    /* no tensor needs more, and a small model no more than it has */
    uint64_t most = ALIGN_UP(total ? total : 1, STAGING_UNIT);
    l->staging_bytes = l->staging_bytes < most ? l->staging_bytes : most;
    l->staging = calloc(1, l->staging_bytes);
    if (!l->staging)
        return err_set(e, ERR_NOMEM, "no memory for %llu bytes of staging",
                       (unsigned long long)l->staging_bytes);
    mem_account(l->w->dev->mem, MEM_LOAD, (int64_t)l->staging_bytes);
    rc = dev_queue(l->w->dev, &l->queue, e);
    for (uint32_t i = 0; rc == ERR_OK && i < l->g->n_values; i++)
        if (is_weight(l->g, i))
            rc = load_value(l, i, e);
    if (rc == ERR_NOMEM) {
        char all[32], have[32];
        err_ctx(e, "%s of weights wanted, %s loaded before that", format_bytes(total, all, sizeof(all)),
                format_bytes(l->w->bytes, have, sizeof(have)));
    }
    if (rc == ERR_OK && l->w->bytes != total)
        BUG("%llu of %llu weight bytes were loaded", (unsigned long long)l->w->bytes,
            (unsigned long long)total);
    return rc;
}

int weights_load(struct weights **out, const struct graph *g, struct ckpt *c, struct dev *d,
                 const struct load_options *o, struct err *e)
{
    static const struct load_options defaults;
    struct weights *w = calloc(1, sizeof(*w));
    if (!w)
        return err_set(e, ERR_NOMEM, "loader: out of memory");
    w->dev = d;
    w->n_values = g->n_values;
    w->buffers = calloc(g->n_values + 1u, sizeof(struct d0_buffer *));
    struct loader l = {.w = w, .g = g, .c = c, .o = o ? o : &defaults};
    int rc = w->buffers ? load_all(&l, e) : err_set(e, ERR_NOMEM, "loader: out of memory");
    dev_queue_free(d, l.queue);
    if (l.staging)
        mem_account(d->mem, MEM_LOAD, -(int64_t)l.staging_bytes);
    free(l.staging);
    if (rc != ERR_OK) {
        weights_free(w);
        return rc;
    }
    *out = w;
    return ERR_OK;
}

void weights_free(struct weights *w)
{
    if (!w)
        return;
    for (uint32_t i = 0; w->buffers && i < w->n_values; i++)
        dev_buffer_free(w->dev, w->buffers[i]);
    if (w->dev->host_memory)
        mem_account(w->dev->mem, MEM_WEIGHTS, -(int64_t)w->bytes);
    free((void *)w->first_nonfinite);
    free(w->buffers);
    free(w);
}
