/* SPDX-License-Identifier: Apache-2.0
 *
 * The payload check: every code of every type against its meaning, elements that lie across chunks, hashes
 * from every source, files twice, the cache, and errors.
 */
#include <fcntl.h>
#include <ftw.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "preflight/payload_internal.h"

#define S1 "model-00001-of-00002.safetensors"
#define S2 "model-00002-of-00002.safetensors"
#define N  70000 /* elements of a tensor: more than one chunk */

struct fixture {
    char dir[64];
    struct arena arena;
    struct d0 d0;
    struct ckpt *c;
    struct findings f;
    struct preflight_payload p;
    struct preflight_payload_options o;
    float *data;
};

static char *at(struct fixture *x, const char *name)
{
    return path_join(&x->arena, x->dir, name);
}

static void put(struct fixture *x, const char *name, const char *text)
{
    assert_int_equal(file_write_atomic(at(x, name), text, strlen(text), NULL), 0);
}

/* Two tensors a file, written by hand: three bytes come first, so that nothing after them is aligned. */
static void put_shard(struct fixture *x, const char *file, const char *name, const float *data, size_t n)
{
    char header[400], *bytes = calloc(1, 500 + n * sizeof *data);
    int h = snprintf(header, sizeof header,
                     "{\"%s.odd\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},"
                     "\"%s.weight\":{\"dtype\":\"F32\",\"shape\":[%zu],\"data_offsets\":[3,%zu]}}",
                     name, name, n, 3 + 4 * n);
    uint64_t length = (uint64_t)h;
    memcpy(bytes, &length, 8);
    memcpy(bytes + 8, header, length);
    memcpy(bytes + 8 + length, "abc", 3);
    memcpy(bytes + 11 + length, data, n * sizeof *data);
    assert_int_equal(file_write_atomic(at(x, file), bytes, 11 + length + n * sizeof *data, NULL), 0);
    free(bytes);
}

static int setup(void **state)
{
    struct fixture *x = calloc(1, sizeof *x);
    arena_init(&x->arena, NULL, MEM_CKPT);
    x->d0.log.fd = -1;
    strcpy(x->dir, "/tmp/day0-payload-XXXXXX");
    if (!mkdtemp(x->dir))
        return -1;
    x->data = calloc(N, sizeof *x->data);
    for (size_t i = 0; i < N; i++)
        x->data[i] = (float)i * 0.25f;
    put(x, "config.json", "{}");
    put_shard(x, S1, "a", x->data, N);
    put_shard(x, S2, "b", x->data, N - 7);
    findings_init(&x->f, NULL);
    *state = x;
    return 0;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *where)
{
    (void)st, (void)type, (void)where;
    return remove(path);
}

static void forget(struct fixture *x)
{
    preflight_payload_release(&x->p);
    ckpt_close(x->c);
    x->c = NULL;
    findings_release(&x->f);
    findings_init(&x->f, NULL);
}

static int teardown(void **state)
{
    struct fixture *x = *state;
    forget(x);
    findings_release(&x->f);
    arena_release(&x->arena);
    nftw(x->dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    free(x->data);
    free(x);
    return 0;
}

static int check(struct fixture *x, struct err *e)
{
    forget(x);
    assert_int_equal(ckpt_open(&x->c, x->dir, &x->f, &x->d0, e), 0);
    return preflight_payload(x->c, &x->o, &x->f, &x->p, e);
}

static void checked(struct fixture *x)
{
    struct err e = {0};
    if (check(x, &e))
        fail_msg("%s", e.message);
}

/* Exactly one finding, with these texts in it. */
static void only(struct fixture *x, enum finding_id id, const char *subject, const char *in_evidence)
{
    checked(x);
    if (x->f.n == 1 && x->f.items[0].id == id && !strcmp(x->f.items[0].subject, subject) &&
        strstr(x->f.items[0].evidence, in_evidence))
        return;
    for (size_t i = 0; i < x->f.n; i++)
        print_error("%s %s: %s\n", finding_code(x->f.items[i].id), x->f.items[i].subject,
                    x->f.items[i].evidence);
    fail_msg("expected only %s about %s with \"%s\"", finding_code(id), subject, in_evidence);
}

/* ---- meaning of codes */

static double value_of(uint32_t dtype, uint32_t code)
{
    int exponent_bits = dtype == D0_F16 ? 5 : dtype == D0_BF16 ? 8 : dtype == D0_F8_E4M3 ? 4 : 5;
    int mantissa_bits = dtype == D0_F16 ? 10 : dtype == D0_BF16 ? 7 : dtype == D0_F8_E4M3 ? 3 : 2;
    uint32_t m = code & ((1u << mantissa_bits) - 1), e = code >> mantissa_bits & ((1u << exponent_bits) - 1);
    uint32_t top = (1u << exponent_bits) - 1;
    if (dtype == D0_F8_E4M3)
        return e == top && m == 7 ? NAN : (double)(e ? 8 + m : m);
    return e == top ? (m ? NAN : INFINITY) : (double)(e ? (1u << mantissa_bits) + m : m);
}

static void every_code(void **state)
{
    static const uint32_t types[] = {D0_BF16, D0_F16, D0_F8_E4M3, D0_F8_E5M2};
    (void)state;
    for (size_t t = 0; t < ARRAY_LEN(types); t++) {
        struct value_kind k = value_kind_of(types[t]);
        for (uint32_t code = 0; code < 1u << (8 * k.width); code++) {
            unsigned char bytes[1024] = {0}; /* in the vector part and in the tail */
            for (int place = 0; place < 2; place++) {
                size_t n = sizeof bytes / k.width - 1, i = place ? n - 1 : 5;
                struct value_tally v = {0};
                memset(bytes, 0, sizeof bytes);
                memcpy(bytes + i * k.width, &code, k.width);
                value_tally_add(&v, &k, bytes, n, 1000);
                double d = value_of(types[t], code);
                if (v.n_nan != (uint64_t) !!isnan(d) || v.n_inf != (uint64_t) !!isinf(d) ||
                    v.nonzero != (d != 0) || ((v.n_nan || v.n_inf) && v.first_bad != 1000 + i))
                    fail_msg("%s code %x at %zu: %d NaN, %d inf, nonzero %d", dtype_name(types[t]), code, i,
                             (int)v.n_nan, (int)v.n_inf, v.nonzero);
            }
        }
    }
}

static void wide_types(void **state)
{
    (void)state;
    double f64[37];
    float f32[37];
    for (size_t bad = 0; bad < 37; bad++) {
        for (int i = 0; i < 37; i++) {
            f64[i] = -1e300;
            f32[i] = 0;
        }
        struct value_kind k64 = value_kind_of(D0_F64), k32 = value_kind_of(D0_F32);
        struct value_tally a = {0}, b = {0}, c = {0}, d = {0};
        f64[bad] = NAN;
        f32[bad] = -INFINITY;
        value_tally_add(&a, &k64, f64, 37, 0);
        value_tally_add(&b, &k32, f32, 37, 0);
        assert_true(a.n_nan == 1 && a.n_inf == 0 && a.first_bad == bad && a.nonzero);
        assert_true(b.n_nan == 0 && b.n_inf == 1 && b.first_bad == bad && b.nonzero);
        /* low halves that look like the exponent of an infinity are none */
        uint64_t code = 0x3FF000007FF00000;
        memcpy(&f64[bad], &code, 8);
        f32[bad] = -0.0f;
        value_tally_add(&c, &k64, f64, 37, 0);
        value_tally_add(&d, &k32, f32, 37, 0);
        assert_true(c.n_nan + c.n_inf == 0 && !d.nonzero);
    }
    const unsigned char fnuz[] = {0x80, 0x7F}, e8m0[] = {0xFF, 0x7F};
    struct value_kind k = value_kind_of(D0_F8_E4M3FNUZ);
    struct value_tally v = {0};
    value_tally_add(&v, &k, fnuz, 2, 0);
    assert_int_equal(v.n_nan, 1);
    k = value_kind_of(D0_F8_E8M0);
    value_tally_add(&v, &k, e8m0, 2, 0);
    assert_int_equal(v.n_nan, 2);
    k = value_kind_of(D0_I32);
    value_tally_add(&v, &k, e8m0, 2, 0);
    assert_int_equal(v.n_nan, 2);
}

/* ---- whole files */

static void sound(void **state)
{
    struct fixture *x = *state;
    checked(x);
    assert_int_equal(x->f.n, 0);
    assert_int_equal(x->p.tensors, 4);
    assert_true(x->p.bytes_read == x->c->shards[0].file_bytes + x->c->shards[1].file_bytes);
    assert_int_equal(x->p.n_hashed, 0);
    x->o.hash = true;
    char hex[2][65];
    assert_int_equal(sha256_file(at(x, S1), hex[0], NULL), 0);
    assert_int_equal(sha256_file(at(x, S2), hex[1], NULL), 0);
    for (unsigned round = 0; round < 40; round++) { /* chunks in their order, however many threads */
        x->o.threads = 1 + round % 8;
        checked(x);
        assert_string_equal(x->p.shards[0].sha256, hex[0]);
        assert_string_equal(x->p.shards[1].sha256, hex[1]);
    }
}

/* At every place around the borders of chunks, with any number of threads, hashed or not. */
static void not_finite(void **state)
{
    struct fixture *x = *state;
    for (unsigned threads = 1; threads <= 5; threads += 2) {
        x->o.threads = threads;
        x->o.hash = threads == 3;
        for (size_t i = 32600; i < 32840; i += threads == 1 ? 1 : 17) {
            float kept = x->data[i];
            x->data[i] = i % 2 ? NAN : INFINITY;
            put_shard(x, S1, "a", x->data, N);
            only(x, FINDING_W016, "a.weight", i % 2 ? "1 NaN and 0 infinite" : "0 NaN and 1 infinite");
            assert_non_null(
                strstr(x->f.items[0].evidence, arena_printf(&x->arena, "at index %zu, in " S1, i)));
            x->data[i] = kept;
        }
    }
    x->data[5] = x->data[6] = x->data[N - 1] = NAN;
    put_shard(x, S1, "a", x->data, N);
    only(x, FINDING_W016, "a.weight", "3 NaN and 0 infinite of 70,000 values, the first at index 5");
}

static void all_zero(void **state)
{
    struct fixture *x = *state;
    float *zero = calloc(N, sizeof *zero);
    put_shard(x, S1, "a", zero, N);
    only(x, FINDING_W019, "a.weight", "every value is zero, in " S1);
    zero[N - 1] = 1e-40f;
    put_shard(x, S1, "a", zero, N);
    checked(x);
    assert_int_equal(x->f.n, 0);
    zero[N - 1] = 0;
    put_shard(x, S1, "q_proj.bias", zero, N);
    checked(x);
    free(zero);
}

/* ---- hashes */

static void mismatch(struct fixture *x, const char *source, const char *format, const char *from)
{
    char hex[65], *wrong;
    assert_int_equal(sha256_file(at(x, S2), hex, NULL), 0);
    wrong = arena_strdup(&x->arena, hex);
    wrong[63] = wrong[63] == '0' ? '1' : '0';
    put(x, source, arena_printf(&x->arena, format, hex, S2));
    checked(x);
    assert_int_equal(x->f.n, 0);
    assert_int_equal(x->p.n_compared, 1);
    assert_string_equal(x->p.shards[1].expected, hex);
    put(x, source, arena_printf(&x->arena, format, wrong, S2));
    only(x, FINDING_W018, S2, from);
    assert_non_null(strstr(x->f.items[0].evidence, wrong));
    assert_int_equal(unlink(at(x, source)), 0);
}

static void manifests(void **state)
{
    struct fixture *x = *state;
    mismatch(x, "SHA256SUMS", "%s  %s\n", "SHA256SUMS says");
    mismatch(x, "sha256sums.txt", "# comment\n%s *./%s\r\n", "sha256sums.txt says");
    mismatch(x, "all.sha256", "junk\n%s\t%s", "all.sha256 says");
    mismatch(x, S2 ".sha256", "%s\n", S2 ".sha256 says");
    mismatch(x, "lfs_pointers", "%s - %s\n", "lfs_pointers says");
    mismatch(x, "list.lfs", "%s * %s\n", "list.lfs says");
    mismatch(x, S2 ".lfs", "version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize 5\n",
             S2 ".lfs says");
    assert_int_equal(dir_make(at(x, ".cache/huggingface/download"), NULL), 0);
    mismatch(x, ".cache/huggingface/download/" S2 ".metadata", "0123\n%s\n1.5\n", ".metadata says");
    assert_int_equal(dir_make(at(x, "lfs_pointers"), NULL), 0);
    mismatch(x, "lfs_pointers/" S2, "version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize 5\n",
             "lfs_pointers/" S2 " says");
    /* BSD style has its name first */
    char hex[65];
    assert_int_equal(sha256_file(at(x, S2), hex, NULL), 0);
    put(x, "SHA256SUMS", arena_printf(&x->arena, "SHA256 (%s) = %s\n", S2, hex));
    checked(x);
    assert_int_equal(x->p.n_compared, 1);
    assert_int_equal(x->p.n_mismatch, 0);
}

static void cached_blob(void **state)
{
    struct fixture *x = *state;
    char hex[65];
    assert_int_equal(sha256_file(at(x, S1), hex, NULL), 0);
    assert_int_equal(dir_make(at(x, "blobs"), NULL), 0);
    char *blob = arena_printf(&x->arena, "%s/blobs/%s", x->dir, hex), *link = at(x, S1);
    assert_int_equal(rename(link, blob), 0);
    assert_int_equal(symlink(arena_printf(&x->arena, "blobs/%s", hex), link), 0);
    checked(x);
    assert_int_equal(x->f.n, 0);
    assert_int_equal(x->p.n_compared, 1);
    /* one bit of the blob: size and header are as before */
    FILE *f = fopen(blob, "r+b");
    assert_int_equal(fseek(f, -20, SEEK_END), 0);
    fputc(0x55, f);
    fclose(f);
    only(x, FINDING_W018, S1, "the name of the cached blob says");
}

/* What a wrong hash explains is its evidence. */
static void one_cause(void **state)
{
    struct fixture *x = *state;
    x->data[9] = NAN;
    put_shard(x, S1, "a", x->data, N);
    put(x, "SHA256SUMS", arena_printf(&x->arena, "%064d  %s\n", 0, S1));
    only(x, FINDING_W018, S1, "not finite: 1 tensor: a.weight");
    /* a file that is short has had its finding; its whole tensors are looked at all the same */
    assert_int_equal(truncate(at(x, S1), 4 * N), 0);
    only(x, FINDING_W003, S1, "short");
    /* one file under two names: the finding of the headers says it, and the hash completes it */
    put_shard(x, S1, "b", x->data, N - 7);
    put_shard(x, S2, "b", x->data, N - 7);
    x->data[9] = 0;
    put_shard(x, S1, "b", x->data, N - 7);
    put_shard(x, S2, "b", x->data, N - 7);
    assert_int_equal(unlink(at(x, "SHA256SUMS")), 0);
    x->o.hash = true;
    only(x, FINDING_W020, S2, "all its bytes are those of " S1);
    assert_int_equal(x->p.shards[1].same_as, 0);
    x->data[10] = 77;
    put_shard(x, S2, "b", x->data, N - 7);
    only(x, FINDING_W020, S2, "the same tensors at the same places");
    assert_int_equal(x->p.n_same, 0);
}

/* ---- the cache */

static void age(struct fixture *x, const char *name)
{
    struct timespec times[2] = {{1000000000, 5}, {1000000000, 5}};
    assert_int_equal(utimensat(AT_FDCWD, at(x, name), times, 0), 0);
}

static void cache(void **state)
{
    struct fixture *x = *state;
    x->o.cache_path = at(x, "cache/deep/payload.json");
    x->data[12] = NAN;
    put_shard(x, S1, "a", x->data, N);
    only(x, FINDING_W016, "a.weight", "index 12"); /* too young to be kept */
    only(x, FINDING_W016, "a.weight", "index 12");
    assert_true(x->p.bytes_cached == 0);
    age(x, S1);
    age(x, S2);
    only(x, FINDING_W016, "a.weight", "index 12");
    assert_true(x->p.bytes_read > 0 && x->p.bytes_cached == 0);
    only(x, FINDING_W016, "a.weight", "index 12");
    assert_true(x->p.bytes_read == 0 && x->p.bytes_cached > 0);
    /* a hash that is not there must be computed, and is then kept */
    x->o.hash = true;
    checked(x);
    assert_true(x->p.bytes_read > 0);
    checked(x);
    assert_true(x->p.bytes_read == 0 && strlen(x->p.shards[0].sha256) == 64);
    /* another time stamp, another size: read again */
    x->data[12] = 3;
    put_shard(x, S1, "a", x->data, N);
    checked(x);
    assert_int_equal(x->f.n, 0);
    assert_true(x->p.bytes_read == x->c->shards[0].file_bytes);
    /* nonsense is as if it were not there */
    const char *bad[] = {
        "", "{", "[]", "{\"format\":1}", "{\"format\":2,\"files\":[]}", "{\"format\":1,\"files\":[1,{}]}"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        put(x, "cache/deep/payload.json", bad[i]);
        checked(x);
        assert_true(x->p.bytes_cached == 0 && x->f.n == 0);
    }
    /* where it cannot be written there is a note, no error */
    x->o.cache_path = "/proc/no/such/place.json";
    checked(x);
    assert_true(x->p.cache_trouble[0] != 0);
}

/* ---- resources */

static void news(void *context, uint64_t done, uint64_t total)
{
    uint64_t *last = context;
    assert_true(done <= total && done >= *last);
    *last = done;
}

static void progress(void **state)
{
    struct fixture *x = *state;
    uint64_t last = 0;
    x->o.progress = news;
    x->o.context = &last;
    checked(x);
    assert_true(last == x->p.bytes_read);
}

/* Far more files than descriptors: each is closed when it is done. */
static void many_files(void **state)
{
    struct fixture *x = *state;
    assert_int_equal(unlink(at(x, S1)), 0);
    assert_int_equal(unlink(at(x, S2)), 0);
    for (int i = 0; i < 200; i++)
        put_shard(x, arena_printf(&x->arena, "f%d.safetensors", i), arena_printf(&x->arena, "t%d", i),
                  x->data, 10);
    struct rlimit before, few = {40, 40};
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few.rlim_max = before.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    x->o.hash = true;
    x->o.threads = 3;
    checked(x);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(x->f.n, 0);
    assert_int_equal(x->p.n_hashed, 200);
}

static void write_failure(void **state)
{
    struct fixture *x = *state;
    struct err e = {0};
    forget(x);
    assert_int_equal(ckpt_open(&x->c, x->dir, &x->f, &x->d0, &e), 0);
    assert_int_equal(unlink(at(x, S2)), 0);
    assert_int_equal(mkdir(at(x, S2), 0700), 0); /* a file that turned into a folder is not read */
    assert_int_equal(preflight_payload(x->c, &x->o, &x->f, &x->p, &e), 0);
    assert_false(x->p.shards[1].read);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code),
        cmocka_unit_test(wide_types),
        T(sound),
        T(not_finite),
        T(all_zero),
        T(manifests),
        T(cached_blob),
        T(one_cause),
        T(cache),
        T(progress),
        T(many_files),
        T(write_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
