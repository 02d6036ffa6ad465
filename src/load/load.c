/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the way of weight bytes from shards into device buffers, through one bounded staging buffer. Refuses:
 * to leave a byte of a buffer unwritten or to write one twice: written bytes are counted against what the
 * graph declares.
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
    const struct load_options *o;
    struct d0_queue *queue;
    struct load_reader reader;
};

static bool is_weight(const struct graph *g, uint32_t i)
{
    return g->values[i].kind == D0_VALUE_WEIGHT;
}

/* All that headers can show is found before the first buffer is made. */
static int measure(const struct loader *l, uint64_t *total, struct err *e)
{
    *total = 0;
    for (uint32_t i = 0; i < l->g->n_values; i++) {
        uint64_t bytes;
        if (!is_weight(l->g, i))
            continue;
        int rc = load_value_check(&l->reader, i, &bytes, e);
        if (rc != ERR_OK)
            return rc;
        if (!add_u64(*total, bytes, total))
            return err_set(e, ERR_LIMIT, "the weights are too large to address");
    }
    return ERR_OK;
}

/* ---- moving -------------------------------------------------------------------------------------------- */

struct target {
    struct loader *l;
    struct d0_buffer *buffer;
};

static int into_device(void *context, uint64_t at, const void *bytes, uint64_t n, struct err *e)
{
    struct target *t = context;
    struct dev *d = t->l->w->dev;
    int rc = dev_copy_in(d, t->l->queue, t->buffer, at, bytes, n, e);
    /* the staging buffer is reused at once */
    if (rc == ERR_OK)
        rc = dev_wait(d, t->l->queue, WAIT_NS, e);
    if (rc == ERR_OK && t->l->o->progress)
        t->l->o->progress->bytes_done += n;
    return rc;
}

static void scan_result(struct weights *w, const struct tensor_scan *s, const char *not_finite)
{
    if (s->n && s->n_zero == s->n)
        w->n_zero_tensors++;
    if (s->n_nan + s->n_inf == 0)
        return;
    if (!w->n_nonfinite_tensors++)
        w->first_nonfinite = strdup(not_finite ? not_finite : "?");
}

static int load_one(struct loader *l, uint32_t i, struct err *e)
{
    struct tensor_scan scan = {0};
    struct target to = {.l = l};
    const bool constant = l->g->info[i].constant != NULL,
               scanning = l->o->scan && l->w->dev->computes && !constant;
    uint64_t bytes;
    l->reader.scan = scanning ? &scan : NULL;
    l->reader.not_finite = NULL;
    l->reader.context = &to;
    int rc = load_value_check(&l->reader, i, &bytes, e);
    if (rc == ERR_OK)
        rc = dev_buffer(l->w->dev, bytes, &l->w->buffers[i], e);
    to.buffer = l->w->buffers[i];
    if (rc == ERR_OK)
        rc = load_value_read(&l->reader, i, e);
    if (rc != ERR_OK) {
        err_ctx(e, "while loading %s", l->g->info[i].name);
        return rc;
    }
    if (scanning)
        scan_result(l->w, &scan, l->reader.not_finite);
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
    l->reader.staging_bytes = l->o->staging_bytes ? l->o->staging_bytes : STAGING_BYTES;
    l->reader.staging_bytes = l->reader.staging_bytes < STAGING_UNIT
                                  ? STAGING_UNIT
                                  : l->reader.staging_bytes / STAGING_UNIT * STAGING_UNIT;
    /* no tensor needs more, and a small model no more than it has */
    uint64_t most = ALIGN_UP(total ? total : 1, STAGING_UNIT);
    l->reader.staging_bytes = l->reader.staging_bytes < most ? l->reader.staging_bytes : most;
    l->reader.staging = calloc(1, l->reader.staging_bytes);
    if (!l->reader.staging)
        return err_set(e, ERR_NOMEM, "no memory for %llu bytes of staging",
                       (unsigned long long)l->reader.staging_bytes);
    mem_account(l->w->dev->mem, MEM_LOAD, (int64_t)l->reader.staging_bytes);
    rc = dev_queue(l->w->dev, &l->queue, e);
    for (uint32_t i = 0; rc == ERR_OK && i < l->g->n_values; i++)
        if (is_weight(l->g, i))
            rc = load_one(l, i, e);
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
    struct loader l = {.w = w, .g = g, .o = o ? o : &defaults};
    /* a device that only tracks looks at no byte: a model that is not even there can be "loaded" */
    l.reader =
        (struct load_reader){.g = g, .spec = l.o->spec, .c = c, .blind = !d->computes, .sink = into_device};
    int rc = w->buffers ? load_all(&l, e) : err_set(e, ERR_NOMEM, "loader: out of memory");
    dev_queue_free(d, l.queue);
    if (l.reader.staging)
        mem_account(d->mem, MEM_LOAD, -(int64_t)l.reader.staging_bytes);
    free(l.reader.staging);
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
