/* SPDX-License-Identifier: Apache-2.0
 *
 * The loader: every byte of every weight arrives once, at any staging size, and what does not fit is refused
 * before the first byte is moved.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/log.h"
#include "tiny_llama.h"
#include "tensor/tensor.h"

#define MAX_WEIGHTS 64

struct rig {
    char dir[64];
    struct graph *graph;
    struct ckpt *ckpt;
    struct findings findings;
    struct d0 d0;
    struct mem mem;
    struct dev dev;
    uint32_t ids[MAX_WEIGHTS];
    void *data[MAX_WEIGHTS];
    uint64_t bytes[MAX_WEIGHTS], total;
    size_t n;
};

static void rig_open(struct rig *r, const char *device, uint64_t limit)
{
    struct tiny_llama m = TINY_LLAMA_DEFAULT;
    struct err e = {0};
    m.no_constants = true;
    memset(r, 0, sizeof *r);
    r->d0.log.fd = -1;
    strcpy(r->dir, "/tmp/day0-load-XXXXXX");
    assert_non_null(mkdtemp(r->dir));
    if (tiny_llama_graph(&r->graph, &m, &e) != ERR_OK ||
        dev_open(&r->dev,
                 &(struct dev_options){.name = device, .n_threads = 1, .memory_limit = limit, .mem = &r->mem},
                 &e) != ERR_OK)
        fail_msg("%s", e.message);
    for (uint32_t i = 0; i < r->graph->n_values; i++) {
        const int64_t no_dims[D0_N_DIMS] = {0};
        uint64_t bytes;
        if (r->graph->values[i].kind != D0_VALUE_WEIGHT ||
            !tensor_value_bytes(&r->graph->values[i], no_dims, &bytes))
            continue;
        r->total += bytes;
        if (r->graph->info[i].constant)
            continue;
        r->ids[r->n] = i;
        r->bytes[r->n] = bytes;
        r->data[r->n++] = tiny_random(D0_BF16, bytes / 2, 0, 1, i);
    }
}

/* Writes the checkpoint with one tensor left out, renamed in type or shape, as the test wants. */
static void write_model(struct rig *r, size_t skip, size_t reshape, size_t retype)
{
    struct st_entry entries[MAX_WEIGHTS];
    size_t n = 0;
    struct err e = {0};
    char path[128];
    for (size_t i = 0; i < r->n; i++) {
        const struct d0_value *v = &r->graph->values[r->ids[i]];
        if (i == skip)
            continue;
        struct st_entry t = {.name = r->graph->info[r->ids[i]].name,
                             .dtype = v->dtype,
                             .n_dims = v->n_dims,
                             .data = r->data[i]};
        memcpy(t.dims, v->dims, v->n_dims * sizeof *v->dims);
        if (i == reshape) {
            t.n_dims = 1;
            t.dims[0] = (int64_t)r->bytes[i] / 2;
        }
        if (i == retype)
            t.dtype = D0_F16;
        entries[n++] = t;
    }
    snprintf(path, sizeof path, "%s/model.safetensors", r->dir);
    if (st_write(path, entries, n, NULL, NULL, 0, &e) != ERR_OK)
        fail_msg("%s", e.message);
    if (r->ckpt)
        ckpt_close(r->ckpt);
    else
        findings_init(&r->findings, NULL);
    r->ckpt = NULL;
    if (ckpt_open(&r->ckpt, r->dir, &r->findings, &r->d0, &e) != ERR_OK)
        fail_msg("%s", e.message);
}

static void rig_close(struct rig *r)
{
    char path[128];
    for (size_t i = 0; i < r->n; i++)
        free(r->data[i]);
    ckpt_close(r->ckpt);
    if (r->ckpt)
        findings_release(&r->findings);
    graph_free(r->graph);
    dev_close(&r->dev);
    snprintf(path, sizeof path, "%s/model.safetensors", r->dir);
    unlink(path);
    rmdir(r->dir);
}

#define NONE SIZE_MAX

static void test_every_byte(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, "cpu", 0);
    write_model(&r, NONE, NONE, NONE);
    const uint64_t staging[] = {0, 1, 64, 1000, 4096, 1 << 30};
    for (size_t s = 0; s < ARRAY_LEN(staging); s++) {
        struct weights *w;
        struct err e = {0};
        struct load_progress progress = {0};
        struct load_options o = {.staging_bytes = staging[s], .progress = &progress};
        if (weights_load(&w, r.graph, r.ckpt, &r.dev, &o, &e) != ERR_OK)
            fail_msg("%s", e.message);
        assert_int_equal(w->bytes, r.total);
        assert_int_equal(progress.bytes_total, r.total);
        assert_int_equal(progress.bytes_done, r.total);
        assert_int_equal(r.mem.live[MEM_WEIGHTS], r.total);
        assert_int_equal(r.mem.live[MEM_LOAD], 0);
        /* host memory stays within the staging buffer */
        if (staging[s] == 64 || staging[s] == 4096)
            assert_true(r.mem.peak[MEM_LOAD] <= (8u << 20));
        struct d0_queue *q;
        assert_int_equal(dev_queue(&r.dev, &q, &e), ERR_OK);
        for (size_t i = 0; i < r.n; i++) {
            void *back = malloc(r.bytes[i]);
            assert_int_equal(dev_copy_out(&r.dev, q, w->buffers[r.ids[i]], 0, back, r.bytes[i], &e), ERR_OK);
            assert_memory_equal(back, r.data[i], r.bytes[i]);
            free(back);
        }
        uint32_t constant = graph_find(r.graph, "inv_freq");
        float freq[16];
        assert_int_equal(dev_copy_out(&r.dev, q, w->buffers[constant], 0, freq, sizeof freq, &e), ERR_OK);
        assert_true(freq[0] == 1 && freq[15] > 0 && freq[15] < freq[14]);
        dev_queue_free(&r.dev, q);
        weights_free(w);
        assert_int_equal(r.mem.live[MEM_WEIGHTS], 0);
    }
    struct d0_device_info info;
    dev_info(&r.dev, &info, NULL);
    assert_int_equal(info.memory_used, 0);
    rig_close(&r);
}

static int no_sink(void *context, uint64_t at, const void *bytes, uint64_t n, struct err *e)
{
    (void)context, (void)at, (void)bytes, (void)n;
    return err_set(e, ERR_INVALID, "nothing should come here");
}

/* A tensor of several shares and a rest, read by any number of threads: the same bytes and none beside them.
 * A file that got shorter is an error, whoever meets its end. */
static void test_readers(void **state)
{
    (void)state;
    enum { ROWS = 1300, COLUMNS = 1237, BYTES = ROWS * COLUMNS * 2 };
    struct graph *g;
    struct err e = {0};
    struct findings f;
    struct d0 d0 = {.log = {.fd = -1}};
    struct ckpt *c;
    uint32_t id;
    char dir[] = "/tmp/day0-read-XXXXXX", path[64];
    void *data = tiny_random(D0_BF16, ROWS * COLUMNS, 0, 1, 5);
    unsigned char *got = malloc(BYTES + 64), staging[4096];
    const struct d0_value v = {
        .kind = D0_VALUE_WEIGHT, .dtype = D0_BF16, .n_dims = 2, .dims = {ROWS, COLUMNS}};
    const struct graph_value_info info = {.name = "w"};
    const struct st_entry entry = {"w", D0_BF16, 2, {ROWS, COLUMNS}, data};
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_int_equal(st_write(path, &entry, 1, NULL, NULL, 0, &e), ERR_OK);
    assert_int_equal(graph_open(&g, NULL, &e), ERR_OK);
    assert_int_equal(graph_add_value(g, &v, &info, &id, &e), ERR_OK);
    findings_init(&f, NULL);
    assert_int_equal(ckpt_open(&c, dir, &f, &d0, &e), ERR_OK);
    struct load_reader r = {
        .g = g, .c = c, .staging = staging, .staging_bytes = sizeof staging, .sink = no_sink, .direct = got};
    for (unsigned threads = 0; threads < 5; threads++) {
        memset(got, 0xee, BYTES + 64);
        r.readers = NULL;
        if (threads)
            assert_int_equal(load_readers_open(&r.readers, threads, &e), ERR_OK);
        assert_int_equal(load_value_read(&r, id, &e), ERR_OK);
        assert_memory_equal(got, data, BYTES);
        for (int i = 0; i < 64; i++)
            assert_int_equal(got[BYTES + i], 0xee);
        load_readers_close(r.readers);
    }
    assert_int_equal(truncate(path, BYTES - 100000), 0);
    assert_int_equal(load_readers_open(&r.readers, 3, &e), ERR_OK);
    err_clear(&e);
    assert_int_equal(load_value_read(&r, id, &e), ERR_IO);
    assert_non_null(strstr(e.message, "short"));
    load_readers_close(r.readers);
    ckpt_close(c);
    findings_release(&f);
    graph_free(g);
    free(data);
    free(got);
    unlink(path);
    rmdir(dir);
}

static void test_refusals(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, "cpu", 0);
    struct weights *w = NULL;
    struct err e = {0};
    struct d0_device_info info;
    const char *name = r.graph->info[r.ids[3]].name;
    const struct {
        size_t skip, reshape, retype;
        int code;
    } cases[] = {{3, NONE, NONE, ERR_MISSING}, {NONE, 3, NONE, ERR_MISMATCH}, {NONE, NONE, 3, ERR_MISMATCH}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        write_model(&r, cases[i].skip, cases[i].reshape, cases[i].retype);
        assert_int_equal(weights_load(&w, r.graph, r.ckpt, &r.dev, NULL, &e), cases[i].code);
        assert_non_null(strstr(e.message, name));
        dev_info(&r.dev, &info, NULL);
        assert_int_equal(info.memory_peak, 0); /* headers were enough */
    }
    assert_int_equal(weights_load(&w, r.graph, NULL, &r.dev, NULL, &e), ERR_MISSING);
    /* the file shrinks after its header was read */
    write_model(&r, NONE, NONE, NONE);
    char path[128];
    snprintf(path, sizeof path, "%s/model.safetensors", r.dir);
    assert_int_equal(truncate(path, 20000), 0);
    assert_int_equal(weights_load(&w, r.graph, r.ckpt, &r.dev, NULL, &e), ERR_IO);
    dev_info(&r.dev, &info, NULL);
    assert_int_equal(info.memory_used, 0);
    assert_int_equal(r.mem.live[MEM_WEIGHTS], 0);
    rig_close(&r);
}

static void test_no_memory(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, "cpu", 200000);
    write_model(&r, NONE, NONE, NONE);
    struct weights *w;
    struct err e = {0};
    char text[2048];
    assert_int_equal(weights_load(&w, r.graph, r.ckpt, &r.dev, NULL, &e), ERR_NOMEM);
    err_format(&e, text, sizeof text);
    assert_non_null(strstr(text, "limit"));
    assert_non_null(strstr(text, "of weights wanted"));
    struct d0_device_info info;
    dev_info(&r.dev, &info, NULL);
    assert_int_equal(info.memory_used, 0);
    rig_close(&r);
}

static void test_scan(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, "cpu", 0);
    memset(r.data[2], 0, r.bytes[2]);
    memset(r.data[5], 0, r.bytes[5]);
    ((uint16_t *)r.data[4])[r.bytes[4] / 2 - 1] = 0x7f80; /* infinity in the last element */
    ((uint16_t *)r.data[6])[77] = 0x7fc1;
    write_model(&r, NONE, NONE, NONE);
    struct weights *w;
    struct err e = {0};
    struct load_options o = {.staging_bytes = 192, .scan = true};
    assert_int_equal(weights_load(&w, r.graph, r.ckpt, &r.dev, &o, &e), ERR_OK);
    assert_int_equal(w->n_zero_tensors, 2);
    assert_int_equal(w->n_nonfinite_tensors, 2);
    assert_string_equal(w->first_nonfinite, r.graph->info[r.ids[4]].name);
    weights_free(w);
    rig_close(&r);
}

static void test_null_device(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, "null", 0);
    write_model(&r, NONE, NONE, NONE);
    char path[128];
    snprintf(path, sizeof path, "%s/model.safetensors", r.dir);
    assert_int_equal(truncate(path, 20000), 0); /* no weight byte is read */
    struct weights *w;
    struct err e = {0};
    if (weights_load(&w, r.graph, r.ckpt, &r.dev, &(struct load_options){.scan = true}, &e) != ERR_OK)
        fail_msg("%s", e.message);
    assert_int_equal(w->bytes, r.total);
    assert_int_equal(w->n_zero_tensors, 0);
    assert_int_equal(r.mem.live[MEM_WEIGHTS], 0); /* nothing of it is host memory */
    weights_free(w);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_byte), cmocka_unit_test(test_readers), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_no_memory),  cmocka_unit_test(test_scan),    cmocka_unit_test(test_null_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
