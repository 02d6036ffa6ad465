/* SPDX-License-Identifier: Apache-2.0
 *
 * SHA-256 against published vectors, the fast hash's stability, the string map against a plain list, random
 * numbers.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/hash.h"

#define ABC "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"

static void sha256_vectors(void **state)
{
    (void)state;
    char hex[SHA256_HEX_BYTES];
    assert_int_equal(sha256_hex("abc", 3, hex, NULL), ERR_OK);
    assert_string_equal(hex, ABC);
    assert_int_equal(sha256_hex("", 0, hex, NULL), ERR_OK);
    assert_string_equal(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    struct sha256 *s;
    assert_int_equal(sha256_begin(&s, NULL), ERR_OK);
    for (int i = 0; i < 3; i++)
        assert_int_equal(sha256_update(s, &"abc"[i], 1), ERR_OK);
    assert_int_equal(sha256_end(s, hex), ERR_OK);
    assert_string_equal(hex, ABC);
    sha256_abort(NULL);
}

static void sha256_of_files(void **state)
{
    (void)state;
    char path[] = "/tmp/day0-hash-XXXXXX", hex[SHA256_HEX_BYTES];
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    char *million = malloc(3000000);
    memset(million, 'a', 3000000);
    assert_int_equal(file_write_atomic(path, million, 1000000, NULL), ERR_OK);
    assert_int_equal(sha256_file(path, hex, NULL), ERR_OK);
    assert_string_equal(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    char direct[SHA256_HEX_BYTES];
    assert_int_equal(file_write_atomic(path, million, 3000000, NULL), ERR_OK); /* several buffers */
    assert_int_equal(sha256_file(path, hex, NULL), ERR_OK);
    assert_int_equal(sha256_hex(million, 3000000, direct, NULL), ERR_OK);
    assert_string_equal(hex, direct);
    free(million);
    unlink(path);
    assert_int_equal(sha256_file(path, hex, NULL), ERR_MISSING);
}

static void fast_hash_never_changes(void **state)
{
    (void)state;
    /* written down once: files may hold these */
    assert_true(hash64("", 0, 0) == 0xD3A3155401B9748Au);
    assert_true(hash64("model.layers.0", 14, 0) == 0x49AD0E6950AED70Fu);
    assert_true(hash64("model.layers.0", 14, 1) != hash64("model.layers.0", 14, 0));
    /* every length, no two alike, no read behind the end */
    uint64_t seen[200];
    for (size_t n = 0; n < 200; n++) {
        char *zeros = calloc(n ? n : 1, 1);
        seen[n] = hash64(zeros, n, 0);
        free(zeros);
        for (size_t i = 0; i < n; i++)
            assert_true(seen[i] != seen[n]);
    }
}

static void map_agrees_with_a_list(void **state)
{
    (void)state;
    enum { N = 20000 };
    static char keys[N][24];
    struct strmap m = {0};
    uint32_t v = 7;
    assert_false(strmap_get(&m, "a", 1, &v));
    for (uint32_t i = 0; i < N; i++) {
        snprintf(keys[i], sizeof(keys[i]), "key.%u", i);
        assert_int_equal(strmap_put(&m, keys[i], strlen(keys[i]), i, NULL), 0);
    }
    assert_int_equal(m.n, N);
    for (uint32_t i = 0; i < N; i++) {
        assert_true(strmap_get(&m, keys[i], strlen(keys[i]), &v) && v == i);
        assert_int_equal(strmap_put(&m, keys[i], strlen(keys[i]), 5, &v), 1);
        assert_int_equal(v, i);
    }
    assert_false(strmap_get(&m, "key.1x", 6, &v));
    assert_true(strmap_get(&m, "key.1x", 5, &v) && v == 1); /* length counts, not a NUL */
    assert_int_equal(strmap_put(&m, "", 0, 9, NULL), 0);
    assert_true(strmap_get(&m, "", 0, &v) && v == 9);
    assert_int_equal(strmap_put(&m, "a\0b", 3, 1, NULL), 0);
    assert_false(strmap_get(&m, "a\0c", 3, &v));
    assert_int_equal(strmap_reserve(&m, SIZE_MAX), ERR_NOMEM);
    strmap_release(&m);
    assert_false(strmap_get(&m, "", 0, &v));
}

static void random_numbers(void **state)
{
    (void)state;
    /* frozen: sampled texts depend on them */
    assert_true(rng_u64(0, 0) == 0xA706DD2F4D197E6Fu);
    assert_true(rng_u64(1, 2) == 0x0B95F66D327E8D78u);
    double sum = 0;
    for (uint64_t i = 0; i < 100000; i++) {
        double x = rng_f64(42, i);
        assert_true(x >= 0 && x < 1);
        sum += x;
    }
    assert_true(sum > 49500 && sum < 50500);
    for (uint64_t i = 0; i < 1000; i++) /* neighbouring seeds are no shifted copies */
        assert_true(rng_u64(7, i + 1) != rng_u64(8, i));
    struct rng a, b;
    rng_init(&a, 3);
    rng_init(&b, 3);
    int counts[7] = {0};
    for (int i = 0; i < 70000; i++) {
        uint64_t x = rng_below(&a, 7);
        assert_true(x == rng_below(&b, 7) && x < 7);
        counts[x]++;
    }
    for (int i = 0; i < 7; i++)
        assert_true(counts[i] > 9500 && counts[i] < 10500);
    assert_int_equal(rng_below(&a, 1), 0);
    double x = rng_next_f64(&a);
    assert_true(x >= 0 && x < 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sha256_vectors),          cmocka_unit_test(sha256_of_files),
        cmocka_unit_test(fast_hash_never_changes), cmocka_unit_test(map_agrees_with_a_list),
        cmocka_unit_test(random_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
