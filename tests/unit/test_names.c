/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: that the shipped architecture files give, from config.json alone, the names and shapes of real
 * models: those that transformers writes, and those of published indexes. tests/golden/names.tsv holds a line
 * for each. Configurations that are not here are skipped, and counted.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "spec/spec.h"

#define GOLDEN TEST_SOURCE_ROOT "/tests/golden/names.tsv"

struct lines {
    struct arena arena;
    char **items;
    size_t n, capacity;
};

static int add_line(struct lines *x, const char *text)
{
    void *items = x->items;
    if (vec_reserve(&items, &x->capacity, x->n + 1, sizeof *x->items))
        return ERR_NOMEM;
    x->items = items;
    x->items[x->n] = arena_strdup(&x->arena, text);
    return x->items[x->n++] ? 0 : ERR_NOMEM;
}

static int add_logical(void *ctx, const char *name, const struct spec_weight *w)
{
    char text[600];
    if (w->group == GROUP_MTP)
        return 0;
    int at = snprintf(text, sizeof text, "%s\t", name);
    for (uint32_t i = 0; i < w->n_dims; i++)
        at += snprintf(text + at, sizeof text - (size_t)at, "%s%lld", i ? "," : "", (long long)w->dims[i]);
    return add_line(ctx, text);
}

static int add_stored(void *ctx, const struct spec_tensor *t)
{
    return t->weight->group == GROUP_MTP ? 0 : add_line(ctx, t->name);
}

/* As Python sorts names: by bytes, and a name before what continues it. */
static int by_name(const void *a, const void *b)
{
    const char *x = *(char *const *)a, *y = *(char *const *)b;
    size_t n = strcspn(x, "\t"), m = strcspn(y, "\t");
    int c = memcmp(x, y, n < m ? n : m);
    return c ? c : (n > m) - (n < m);
}

static void hash_lines(struct lines *x, char hex[SHA256_HEX_BYTES])
{
    struct sha256 *h = NULL;
    struct err e = {0};
    qsort(x->items, x->n, sizeof *x->items, by_name);
    assert_int_equal(sha256_begin(&h, &e), 0);
    for (size_t i = 0; i < x->n; i++)
        assert_int_equal(sha256_update(h, x->items[i], strlen(x->items[i])) | sha256_update(h, "\n", 1), 0);
    assert_int_equal(sha256_end(h, hex), 0);
}

/* A directory that holds the configuration of a row, made here; or false. */
static bool find_config(const char *name, char dir[64])
{
    const char *root = getenv("DAY0_MATERIAL");
    struct file_info info;
    struct arena a;
    char path[600], to[100], *text;
    size_t n;
    struct err e = {0};
    if (str_starts(name, "material/"))
        snprintf(path, sizeof path, "%s/%s", root ? root : TEST_SOURCE_ROOT "/../shared/material",
                 name + strlen("material/"));
    else
        snprintf(path, sizeof path, "%s/%s", TEST_SOURCE_ROOT, name);
    if (file_stat(path, &info, NULL) || !info.is_file)
        return false;
    snprintf(dir, 64, "/tmp/day0-names-XXXXXX");
    assert_non_null(mkdtemp(dir));
    snprintf(to, sizeof to, "%s/config.json", dir);
    arena_init(&a, NULL, MEM_SPEC);
    if (file_read(path, 8 << 20, &a, &text, &n, &e) || file_write_atomic(to, text, n, &e))
        fail_msg("%s", e.message);
    arena_release(&a);
    return true;
}

static void remove_config(const char *dir)
{
    char path[100];
    snprintf(path, sizeof path, "%.64s/config.json", dir);
    unlink(path);
    rmdir(dir);
}

struct row {
    char name[200], kind[20], hex[70];
    unsigned long long tensors, bytes; /* of stored ones */
};

static bool check_row(const struct row *r, const char *dir)
{
    struct d0 d0 = {.log.fd = -1};
    struct findings f;
    struct ckpt *c = NULL;
    struct spec *s = NULL;
    struct err e = {0};
    struct lines x = {0};
    char hex[SHA256_HEX_BYTES];
    bool logical = strcmp(r->kind, "stored") != 0;
    findings_init(&f, NULL);
    arena_init(&x.arena, NULL, MEM_SPEC);
    if (ckpt_open(&c, dir, &f, &d0, &e) || spec_open(&s, c, NULL, &f, &d0, &e) || !s)
        fail_msg("%s: %s %s", r->name, e.message, f.n ? f.items[f.n - 1].evidence : "");
    if (logical)
        assert_int_equal(spec_each_logical(s, add_logical, &x), 0);
    else
        assert_int_equal(spec_physical(s, NULL, add_stored, &x), 0);
    hash_lines(&x, hex);
    bool ok = strcmp(hex, r->hex) == 0;
    if (!logical)
        ok = ok && x.n == r->tensors && s->tensor_bytes == r->bytes && s->n_physical == r->tensors;
    if (!ok)
        print_error("%s: %zu tensors, %llu bytes; %s\n", r->name, x.n, (unsigned long long)s->tensor_bytes,
                    hex);
    free(x.items);
    arena_release(&x.arena);
    spec_close(s);
    ckpt_close(c);
    findings_release(&f);
    return ok;
}

static void test_names(void **state)
{
    (void)state;
    struct arena a;
    char *text, dir[64];
    size_t n, rows = 0, skipped = 0, bad = 0;
    struct err e = {0};
    arena_init(&a, NULL, MEM_SPEC);
    if (file_read(GOLDEN, 1 << 20, &a, &text, &n, &e))
        fail_msg("%s", e.message);
    for (char *next, *line = text; line && *line; line = next) {
        struct row r = {.tensors = 0};
        next = strchr(line, '\n');
        if (next)
            *next++ = 0;
        if (*line == '#' || *line == 0)
            continue;
        int fields =
            sscanf(line, "%199[^\t]\t%64s\t%19s\t%llu\t%llu", r.name, r.hex, r.kind, &r.tensors, &r.bytes);
        if (fields != 2 && fields != 5)
            fail_msg("names.tsv: %s", line);
        rows++;
        if (!find_config(r.name, dir)) {
            skipped++;
            continue;
        }
        bad += !check_row(&r, dir);
        remove_config(dir);
    }
    arena_release(&a);
    print_message("%zu models, %zu not here\n", rows, skipped);
    assert_int_equal(bad, 0);
    assert_true(rows > 0);
    if (skipped == rows)
        skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
