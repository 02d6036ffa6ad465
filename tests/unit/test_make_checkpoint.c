/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: that tools/make_checkpoint.py writes what it says: sound directories, and values that C computes
 * alike.
 */
#include <ftw.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/process.h"
#include "base/thread.h"
#include "preflight/preflight.h"

#define PERIOD 1048573u

struct fixture {
    char dir[64];
    struct findings f;
    struct ckpt *c;
    struct spec *s;
    struct d0 d0;
};

static int setup(void **state)
{
    struct fixture *x = calloc(1, sizeof(*x));
    x->d0.log.fd = -1;
    findings_init(&x->f, &x->d0.mem);
    strcpy(x->dir, "/tmp/day0-make-XXXXXX");
    *state = x;
    return mkdtemp(x->dir) ? 0 : -1;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *where)
{
    (void)st, (void)type, (void)where;
    return remove(path);
}

static int teardown(void **state)
{
    struct fixture *x = *state;
    spec_close(x->s);
    ckpt_close(x->c);
    findings_release(&x->f);
    nftw(x->dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    free(x);
    return 0;
}

/* Makes a Llama checkpoint with the given further arguments and opens it: no finding. */
static void make(struct fixture *x, const char *const *more)
{
    const char *argv[40] = {"/usr/bin/env", "python3", TEST_SOURCE_ROOT "/tools/make_checkpoint.py", "llama",
                            x->dir};
    size_t n = 5;
    struct process p = {0};
    struct err e = {0};
    if (access("/usr/bin/python3", X_OK) != 0) {
        print_message("SKIP: python3 is not installed\n");
        skip();
    }
    while (*more)
        argv[n++] = *more++;
    assert_int_equal(process_start(&p, argv, NULL, &e), 0);
    for (int i = 0; i < 6000 && p.running; i++) {
        clock_sleep_ns(10 * 1000 * 1000);
        assert_int_equal(process_poll(&p, &e), 0);
    }
    assert_false(p.running);
    assert_int_equal(p.exit_status, 0);
    if (preflight_open(x->dir, NULL, NULL, &x->c, &x->s, &x->f, &x->d0, &e))
        fail_msg("%s", e.message);
    for (size_t i = 0; i < x->f.n; i++)
        print_error("%s %s: %s\n", finding_code(x->f.items[i].id), x->f.items[i].subject,
                    x->f.items[i].evidence);
    assert_int_equal(x->f.n, 0);
    assert_non_null(x->s);
}

/* The formula as the tool's comment gives it. */
static float value(uint64_t seed, const char *name, uint64_t i, double half, double offset)
{
    uint64_t h = 0xCBF29CE484222325u;
    for (const char *p = name; *p; p++)
        h = (h ^ (unsigned char)*p) * 0x100000001B3u;
    uint64_t j = (i + rng_u64(seed, h) % PERIOD) % PERIOD;
    unsigned v = (unsigned)(rng_u64(seed, j / 4) >> (16 * (j % 4))) & 0xFFFF;
    return (float)(offset + (v - 32767.5) / 32768.0 * half);
}

static void compare(struct fixture *x, const char *name, double half, double offset)
{
    const struct ckpt_tensor *t = ckpt_find(x->c, name);
    float got[64];
    unsigned char raw[256];
    unsigned size = dtype_bits(t->dtype) / 8;
    uint64_t elements = t->bytes / size, step = elements / 64;
    for (uint64_t i = 0; i < 64; i++) {
        assert_int_equal(ckpt_read(x->c, t, i * step * size, raw + i * size, size, NULL), 0);
        assert_true(tensor_to_f32(raw + i * size, t->dtype, 1, &got[i]));
        float expected = value(7, name, i * step, half, offset);
        if (t->dtype == D0_BF16)
            expected = bf16_to_f32(f32_to_bf16(expected));
        assert_true(got[i] == expected);
    }
}

static void real_values(void **state)
{
    struct fixture *x = *state;
    static const char *const dtypes[] = {"F32", "BF16"};
    for (size_t i = 0; i < ARRAY_LEN(dtypes); i++) {
        const char *const arguments[] = {"--hidden", "64",  "--intermediate", "160",     "--layers",   "2",
                                         "--heads",  "4",   "--kv-heads",     "2",       "--head-dim", "16",
                                         "--vocab",  "400", "--shards",       "3",       "--fill",     "hash",
                                         "--seed",   "7",   "--dtype",        dtypes[i], NULL};
        make(x, arguments);
        assert_int_equal(x->c->n_shards, 3);
        assert_int_equal(x->s->n_layers, 2);
        compare(x, "model.embed_tokens.weight", sqrt(3), 0);
        compare(x, "model.layers.1.mlp.down_proj.weight", sqrt(3 / 160.0), 0);
        compare(x, "model.norm.weight", 1 / 16.0, 1);
        spec_close(x->s);
        ckpt_close(x->c);
        x->s = NULL;
        x->c = NULL;
    }
}

static void large_and_sparse(void **state)
{
    struct fixture *x = *state;
    const char *const arguments[] = {"--target-bytes", "200G", "--shards", "50", "--tied", NULL};
    make(x, arguments);
    assert_true(x->c->total_bytes > 195000000000u && x->c->total_bytes < 205000000000u);
    uint64_t disk = 0;
    for (size_t i = 0; i < x->c->n_shards; i++) {
        struct file_info info;
        assert_int_equal(file_stat(ckpt_path(x->c, x->c->shards[i].name), &info, NULL), 0);
        disk += info.disk_bytes;
    }
    assert_true(disk < 50u * 1000 * 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(real_values, setup, teardown),
        cmocka_unit_test_setup_teardown(large_and_sparse, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
