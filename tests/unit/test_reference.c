/* SPDX-License-Identifier: Apache-2.0
 *
 * Reference files: what is read from a good one, and that every wrong one is refused with its path and
 * reason.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "verify/verify.h"

static char dir[] = "/tmp/day0_reference_XXXXXX";
static char path[64];

static const float logits[3 * 4] = {0, 1, 2, 9, 5, 1, 0, 0, 0, 7, 0, 0};
static const float probe[3 * 2] = {1, 2, 3, 4, 5, 6};
static const int32_t ids32[3] = {2, 3, 0};
static const int64_t ids64[3] = {2, 3, 0};

static struct st_entry ids_entry(void)
{
    return (struct st_entry){.name = "token_ids", .dtype = D0_I32, .n_dims = 1, .dims = {3}, .data = ids32};
}

static struct st_entry logits_entry(void)
{
    return (struct st_entry){.name = "logits", .dtype = D0_F32, .n_dims = 2, .dims = {3, 4}, .data = logits};
}

struct meta {
    const char *keys[4], *values[4];
    size_t n;
};

static const struct meta good_meta = {
    {"producer", "greedy", "prompt_tokens", "dtype"}, {"tool 1.0", "true", "1", "bfloat16"}, 4};

static void write_file(const struct st_entry *entries, size_t n, const struct meta *m)
{
    struct err e;
    assert_int_equal(st_write(path, entries, n, m ? m->keys : NULL, m ? m->values : NULL, m ? m->n : 0, &e),
                     0);
}

static void refuse(int code, const char *why)
{
    struct reference *r = NULL;
    struct err e;
    err_clear(&e);
    assert_int_equal(reference_open(&r, path, &e), code);
    assert_null(r);
    assert_non_null(strstr(e.message, path));
    if (!strstr(e.message, why))
        fail_msg("\"%s\" does not say \"%s\"", e.message, why);
}

static void test_good(void **state)
{
    (void)state;
    struct st_entry t[] = {
        ids_entry(),
        logits_entry(),
        {.name = "model.layers.0", .dtype = D0_F32, .n_dims = 2, .dims = {3, 2}, .data = probe}};
    struct reference *r;
    struct err e;
    write_file(t, 3, &good_meta);
    assert_int_equal(reference_open(&r, path, &e), 0);
    assert_string_equal(r->producer, "tool 1.0");
    assert_string_equal(r->precision, "bfloat16");
    assert_string_equal(r->path, path);
    assert_int_equal(strlen(r->sha256), 64);
    assert_int_equal(r->n_ids, 3);
    assert_memory_equal(r->ids, ids32, sizeof ids32);
    assert_int_equal(r->vocab, 4);
    assert_memory_equal(r->logits, logits, sizeof logits);
    assert_true(r->greedy);
    assert_int_equal(r->n_prompt, 1);
    assert_int_equal(r->n_probes, 1);
    assert_string_equal(r->probes[0].name, "model.layers.0");
    assert_int_equal(r->probes[0].rows, 3);
    assert_int_equal(r->probes[0].width, 2);
    assert_memory_equal(r->probes[0].data, probe, sizeof probe);
    reference_close(r);
    reference_close(NULL);
}

static void test_minimal_and_widened(void **state)
{
    (void)state;
    struct st_entry t[] = {{.name = "token_ids", .dtype = D0_I64, .n_dims = 1, .dims = {3}, .data = ids64},
                           logits_entry()};
    struct reference *r;
    struct err e;
    write_file(t, 1, NULL);
    assert_int_equal(reference_open(&r, path, &e), 0);
    assert_string_equal(r->producer, "unknown");
    assert_string_equal(r->precision, "float32");
    assert_null(r->logits);
    assert_false(r->greedy);
    assert_int_equal(r->n_prompt, 3);
    assert_memory_equal(r->ids, ids32, sizeof ids32);
    reference_close(r);
    uint16_t half[12];
    assert_true(tensor_from_f32(logits, 12, D0_BF16, half));
    t[1].dtype = D0_BF16;
    t[1].data = half;
    write_file(t, 2, NULL);
    assert_int_equal(reference_open(&r, path, &e), 0);
    assert_memory_equal(r->logits, logits, sizeof logits);
    reference_close(r);
}

static void test_wrong_tensors(void **state)
{
    (void)state;
    struct st_entry t[3] = {logits_entry(), ids_entry()};
    write_file(t, 1, NULL);
    refuse(ERR_FORMAT, "token_ids");
    t[0].dims[0] = 2;
    write_file(t, 2, NULL);
    refuse(ERR_FORMAT, "[2, 4]");
    t[0] = logits_entry();
    t[0].n_dims = 1;
    t[0].dims[0] = 12;
    write_file(t, 2, NULL);
    refuse(ERR_FORMAT, "logits");
    t[0] = logits_entry();
    t[0].dtype = D0_I32;
    write_file(t, 2, NULL);
    refuse(ERR_FORMAT, "float");
    int32_t bad_ids[3] = {0, -5, 1};
    t[0] = logits_entry();
    t[1].data = bad_ids;
    write_file(t, 2, NULL);
    refuse(ERR_FORMAT, "-5");
    t[1] = (struct st_entry){.name = "token_ids", .dtype = D0_F32, .n_dims = 1, .dims = {3}, .data = probe};
    write_file(t, 2, NULL);
    refuse(ERR_FORMAT, "I32");
    t[1] = ids_entry();
    t[2] = (struct st_entry){.name = "p", .dtype = D0_F32, .n_dims = 2, .dims = {2, 3}, .data = probe};
    write_file(t, 3, NULL);
    refuse(ERR_FORMAT, "probe p");
    float nan_logits[12] = {0};
    nan_logits[5] = NAN;
    t[0].data = nan_logits;
    write_file(t, 2, NULL);
    refuse(ERR_FORMAT, "not finite");
}

static void test_wrong_metadata(void **state)
{
    (void)state;
    static const char *const bad[] = {"0", "4", "-1", "x", ""};
    struct st_entry t[] = {ids_entry(), logits_entry()};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct meta m = {{"prompt_tokens"}, {bad[i]}, 1};
        write_file(t, 2, &m);
        refuse(ERR_FORMAT, "prompt_tokens");
    }
    struct meta greedy = {{"greedy"}, {"true"}, 1};
    write_file(t, 2, &greedy);
    refuse(ERR_FORMAT, "prompt_tokens");
}

/* As many pictures as a conversation may have, and one more. */
static void test_many_pictures(void **state)
{
    (void)state;
    static struct st_entry t[2 + PROMPT_MAX_PICTURES];
    static char names[PROMPT_MAX_PICTURES + 1][16];
    struct reference *r;
    struct err e;
    t[0] = ids_entry();
    for (size_t i = 0; i <= PROMPT_MAX_PICTURES; i++) {
        snprintf(names[i], sizeof names[i], "picture.%zu", i);
        t[1 + i] = (struct st_entry){.name = names[i], .dtype = D0_U8, .n_dims = 1, .dims = {1}, .data = "x"};
    }
    write_file(t, 1 + PROMPT_MAX_PICTURES, &good_meta);
    assert_int_equal(reference_open(&r, path, &e), 0);
    assert_int_equal(r->n_pictures, PROMPT_MAX_PICTURES);
    reference_close(r);
    write_file(t, 2 + PROMPT_MAX_PICTURES, &good_meta);
    refuse(ERR_LIMIT, "more than 256 pictures");
}

static void test_wrong_files(void **state)
{
    (void)state;
    struct reference *r;
    struct err e;
    assert_int_equal(reference_open(&r, "/nonexistent/file", &e), ERR_MISSING);
    assert_int_not_equal(reference_open(&r, "/tmp", &e), 0);
    assert_int_equal(file_write_atomic(path, "abc", 3, &e), 0);
    refuse(ERR_FORMAT, "3 bytes");
    uint8_t huge[64] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
    assert_int_equal(file_write_atomic(path, huge, sizeof huge, &e), 0);
    refuse(ERR_FORMAT, "header");
}

/* Without the fsync of an atomic write: thousands of them would take minutes. */
static void put(const char *data, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* Every cut and many corruptions of a good file: refused or read, never a crash, and never a short read. */
static void test_mutations(void **state)
{
    (void)state;
    struct st_entry t[] = {ids_entry(), logits_entry()};
    struct arena a;
    struct rng g;
    struct reference *r;
    struct err e;
    char *good;
    size_t n;
    write_file(t, 2, &good_meta);
    arena_init(&a, NULL, MEM_MISC);
    assert_int_equal(file_read(path, 1 << 20, &a, &good, &n, &e), 0);
    for (size_t cut = 0; cut < n; cut++) {
        put(good, cut);
        assert_int_not_equal(reference_open(&r, path, &e), 0);
    }
    rng_init(&g, 11);
    char *bad = malloc(n);
    for (int i = 0; i < 3000; i++) {
        memcpy(bad, good, n);
        for (uint64_t k = 1 + rng_below(&g, 3); k > 0; k--)
            bad[rng_below(&g, n)] = (char)rng_next(&g);
        put(bad, n);
        if (reference_open(&r, path, &e) == 0)
            reference_close(r);
    }
    free(bad);
    arena_release(&a);
}

static int setup(void **state)
{
    (void)state;
    if (!mkdtemp(dir))
        return -1;
    snprintf(path, sizeof path, "%s/ref.safetensors", dir);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),          cmocka_unit_test(test_minimal_and_widened),
        cmocka_unit_test(test_wrong_tensors), cmocka_unit_test(test_wrong_metadata),
        cmocka_unit_test(test_many_pictures), cmocka_unit_test(test_wrong_files),
        cmocka_unit_test(test_mutations),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
