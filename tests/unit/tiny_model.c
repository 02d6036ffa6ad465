/* SPDX-License-Identifier: Apache-2.0 */
#include "tiny_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"

struct maker {
    struct arena arena;
    struct st_entry *t;
    size_t n, capacity;
    uint64_t seed;
    tiny_model_edit edit;
    void *context;
};

static void ok(int rc, const struct err *e)
{
    char text[1400];
    if (rc)
        fail_msg("%s", err_format(e, text, sizeof text));
}

static int add_tensor(void *context, const struct spec_tensor *t)
{
    struct maker *m = context;
    uint64_t n;
    assert_int_equal(vec_reserve((void **)&m->t, &m->capacity, m->n + 1, sizeof *m->t), 0);
    assert_true(shape_elements(t->dims, t->n_dims, &n));
    struct st_entry *x = &m->t[m->n++];
    *x = (struct st_entry){.name = arena_strdup(&m->arena, t->name), .dtype = t->dtype, .n_dims = t->n_dims};
    memcpy(x->dims, t->dims, sizeof x->dims);
    float *v = arena_alloc_n(&m->arena, n, sizeof *v);
    unsigned char *stored = arena_alloc_n(&m->arena, n, (dtype_bits(t->dtype) + 7) / 8);
    assert_true(v && stored);
    double half = t->n_dims > 1 ? 1.7 / sqrt((double)t->dims[t->n_dims - 1]) : 0.2;
    for (uint64_t i = 0; i < n; i++)
        v[i] = (float)((2 * rng_f64(m->seed + m->n, i) - 1) * half + (t->n_dims > 1 ? 0 : 1));
    if (m->edit)
        m->edit(m->context, x->name, v, (size_t)n);
    bool written = dtype_is_float(t->dtype) && tensor_from_f32(v, (size_t)n, t->dtype, stored);
    for (uint64_t i = 0; !written && dtype_bits(t->dtype) == 8 && i < n; i++) /* scales near one; no NaN */
        stored[i] = (unsigned char)(t->role == ROLE_SCALE ? 124 + (unsigned)(4 * rng_f64(m->seed + m->n, i))
                                                          : (unsigned)(120 * rng_f64(m->seed + m->n, i)) |
                                                                (v[i] < 0 ? 128u : 0u));
    x->data = stored;
    return 0;
}

void tiny_model_write(const char *dir, const char *config, const char *arch, uint64_t seed,
                      tiny_model_edit edit, void *context)
{
    struct maker m = {.seed = seed * 1000003, .edit = edit, .context = context};
    struct tiny_model x;
    struct err e = {0};
    char path[256];
    ok(dir_make(dir, &e), &e);
    snprintf(path, sizeof path, "%s/config.json", dir);
    ok(file_write_atomic(path, config, strlen(config), &e), &e);
    tiny_model_open(&x, dir, arch, "ref");
    arena_init(&m.arena, NULL, MEM_MISC);
    assert_int_equal(spec_physical(x.s, x.c, add_tensor, &m), 0);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    ok(st_write(path, m.t, m.n, NULL, NULL, 0, &e), &e);
    free(m.t);
    arena_release(&m.arena);
    tiny_model_close(&x);
}

void tiny_model_open(struct tiny_model *m, const char *dir, const char *arch, const char *isa)
{
    struct err e = {0};
    struct arch_file file = {"test.lua", arch, arch ? strlen(arch) : 0};
    memset(m, 0, sizeof *m);
    m->d0.log.fd = -1;
    findings_init(&m->f, NULL);
    ok(ckpt_open(&m->c, dir, &m->f, &m->d0, &e), &e);
    ok(spec_open(&m->s, m->c, &(struct spec_options){.arch = arch ? &file : NULL}, &m->f, &m->d0, &e), &e);
    for (size_t i = 0; !m->s && i < m->f.n; i++)
        print_message("%s: %s\n", m->f.items[i].subject, m->f.items[i].evidence);
    assert_non_null(m->s);
    ok(dev_open(&m->d, &(struct dev_options){.name = "cpu", .isa = isa, .n_threads = 2}, &e), &e);
}

void tiny_model_close(struct tiny_model *m)
{
    dev_close(&m->d);
    spec_close(m->s);
    ckpt_close(m->c);
    findings_release(&m->f);
}
