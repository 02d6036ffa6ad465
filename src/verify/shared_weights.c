/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns the reading of a slice's weights for two devices. Every byte goes through a scan for zeros and values
 * that are not finite: weights that are all zero prove nothing about a device.
 */
#include "verify/shared_weights.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define SHARED_CHUNK ((uint64_t)8 << 20) /* a multiple of every element size */

static bool is_weight(const struct graph *g, uint32_t i)
{
    return g->values[i].kind == D0_VALUE_WEIGHT;
}

static struct load_reader reader_of(const struct graph *g, struct ckpt *c, const struct spec *spec)
{
    return (struct load_reader){.g = g, .c = c, .spec = spec};
}

int shared_weights_bytes(const struct graph *g, struct ckpt *c, const struct spec *spec, uint64_t *bytes,
                         struct err *e)
{
    const struct load_reader r = reader_of(g, c, spec);
    *bytes = 0;
    for (uint32_t i = 0; i < g->n_values; i++) {
        uint64_t n;
        if (!is_weight(g, i))
            continue;
        int rc = load_value_check(&r, i, &n, e);
        if (rc)
            return rc;
        if (n > UINT64_MAX - 64 || !add_u64(*bytes, ALIGN_UP(n, 64), bytes))
            return err_set(e, ERR_LIMIT, "the weights of a slice are too large to address");
    }
    return ERR_OK;
}

static int into_memory(void *context, uint64_t at, const void *bytes, uint64_t n, struct err *e)
{
    (void)e;
    memcpy((char *)context + at, bytes, n);
    return ERR_OK;
}

static int read_value(struct shared_weights *s, struct load_reader *r, uint32_t i, char *to, struct err *e)
{
    struct tensor_scan scan = {0};
    r->sink = into_memory;
    r->context = to;
    r->scan = &scan;
    r->not_finite = NULL;
    int rc = load_value_read(r, i, e);
    s->all_zero &= scan.n > 0 && scan.n_zero == scan.n;
    if (r->not_finite && !s->not_finite)
        s->not_finite = r->not_finite;
    return rc;
}

static int wrap(struct dev *d, struct weights *w, uint32_t i, void *at, uint64_t bytes, struct err *e)
{
    struct d0_status status = {.size = sizeof status};
    if (d->api->buffer_wrap(d->handle, at, bytes, &w->buffers[i], &status) == D0_OK)
        return ERR_OK;
    return err_set(e, ERR_DEVICE, "device %s does not take host memory: %.200s", d->api->name,
                   status.message);
}

static int open_view(struct weights *w, struct dev *d, uint32_t n, struct err *e)
{
    *w = (struct weights){
        .dev = d, .n_values = n, .buffers = calloc((size_t)n + 1, sizeof(struct d0_buffer *))};
    return w->buffers ? ERR_OK : err_set(e, ERR_NOMEM, "no memory for the buffers of a slice");
}

static int fill_shared(struct shared_weights *s, struct dev *a, struct dev *b, struct err *e)
{
    const struct graph *g = s->g;
    struct load_reader r = reader_of(g, s->c, s->spec);
    uint64_t at = 0;
    unsigned tensors = 0;
    r.staging_bytes = SHARED_CHUNK;
    r.staging = malloc(SHARED_CHUNK);
    if (!r.staging)
        return err_set(e, ERR_NOMEM, "no memory to read weights");
    int rc = open_view(&s->view[0], a, g->n_values, e);
    if (rc == 0)
        rc = open_view(&s->view[1], b, g->n_values, e);
    for (uint32_t i = 0; rc == 0 && i < g->n_values; i++) {
        uint64_t bytes;
        if (!is_weight(g, i))
            continue;
        char *to = (char *)s->memory + at;
        rc = load_value_check(&r, i, &bytes, e);
        if (rc == 0 && g->info[i].constant) {
            memcpy(to, g->info[i].constant, bytes);
        } else if (rc == 0) {
            tensors++;
            rc = read_value(s, &r, i, to, e);
        }
        if (rc == 0)
            rc = wrap(a, &s->view[0], i, to, bytes, e);
        if (rc == 0)
            rc = wrap(b, &s->view[1], i, to, bytes, e);
        at += ALIGN_UP(bytes, 64);
    }
    s->all_zero &= tensors > 0;
    free(r.staging);
    return rc;
}

int shared_weights_open(struct shared_weights *s, const struct graph *g, struct ckpt *c,
                        const struct spec *spec, struct dev *a, struct dev *b, struct err *e)
{
    *s = (struct shared_weights){.g = g, .c = c, .spec = spec, .all_zero = true};
    uint64_t bytes;
    int rc = shared_weights_bytes(g, c, spec, &bytes, e);
    if (rc || !a->host_memory || !b->host_memory || !a->api->buffer_wrap || !b->api->buffer_wrap ||
        bytes == 0)
        return rc;
    void *memory = bytes > SIZE_MAX ? MAP_FAILED
                                    : mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE,
                                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return err_set(e, ERR_NOMEM, "no memory for %llu bytes of weights", (unsigned long long)bytes);
    s->memory = memory;
    s->bytes = (size_t)bytes;
    rc = fill_shared(s, a, b, e);
    if (rc)
        shared_weights_close(s);
    return rc;
}

static void count_loaded(struct shared_weights *s)
{
    uint64_t tensors = 0;
    for (uint32_t i = 0; i < s->g->n_values; i++)
        tensors += is_weight(s->g, i) && !s->g->info[i].constant;
    s->all_zero = tensors > 0 && s->loaded->n_zero_tensors == tensors;
    const struct ckpt_tensor *t =
        s->loaded->first_nonfinite ? ckpt_find(s->c, s->loaded->first_nonfinite) : NULL;
    s->not_finite = t ? t->name : NULL;
}

int shared_weights_on(struct shared_weights *s, unsigned which, struct dev *d, const struct weights **out,
                      struct err *e)
{
    if (s->memory) {
        *out = &s->view[which];
        return ERR_OK;
    }
    weights_free(s->loaded);
    s->loaded = NULL;
    int rc = weights_load(&s->loaded, s->g, s->c, d,
                          &(struct load_options){.spec = s->spec, .scan = which == 0}, e);
    if (rc)
        return rc;
    if (which == 0)
        count_loaded(s);
    *out = s->loaded;
    return ERR_OK;
}

void shared_weights_close(struct shared_weights *s)
{
    for (int k = 0; k < 2; k++) {
        struct weights *w = &s->view[k];
        for (uint32_t i = 0; w->buffers && i < w->n_values; i++)
            dev_buffer_free(w->dev, w->buffers[i]);
        free(w->buffers);
        w->buffers = NULL;
    }
    if (s->memory)
        munmap(s->memory, s->bytes);
    weights_free(s->loaded);
    s->loaded = NULL;
    s->memory = NULL;
}
