/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: checkpoint directories, sound and damaged. Every damage is one finding; its consequences are none.
 */
#include <fcntl.h>
#include <fcntl.h>
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "scaling.h"
#include "ckpt/ckpt.h"

#define CONFIG "{\"model_type\":\"llama\",\"hidden_size\":4}"
#define S1     "model-00001-of-00003.safetensors"
#define S2     "model-00002-of-00003.safetensors"
#define S3     "model-00003-of-00003.safetensors"
#define INDEX  "model.safetensors.index.json"

struct fixture {
    char dir[64];
    struct arena arena;
    struct findings f;
    struct ckpt *c;
    struct d0 d0;
};

static const float numbers[64] = {0.5f, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};

static char *at(struct fixture *x, const char *name)
{
    return path_join(&x->arena, x->dir, name);
}

static void put(struct fixture *x, const char *name, const char *text)
{
    assert_int_equal(file_write_atomic(at(x, name), text, strlen(text), NULL), 0);
}

/* One shard with tensors NAME.0 [4] and NAME.1 [2, 3], F32: 40 bytes of data. */
static void put_shard(struct fixture *x, const char *file, const char *a, const char *b)
{
    const struct st_entry entries[] = {{a, D0_F32, 1, {4}, numbers}, {b, D0_F32, 2, {2, 3}, numbers + 4}};
    assert_int_equal(st_write(at(x, file), entries, b ? 2 : 1, NULL, NULL, 0, NULL), 0);
}

static const char index_text[] = "{\"metadata\":{\"total_size\":120},\"weight_map\":{"
                                 "\"a.0\":\"" S1 "\",\"a.1\":\"" S1 "\",\"b.0\":\"" S2 "\",\"b.1\":\"" S2
                                 "\",\"c.0\":\"" S3 "\",\"c.1\":\"" S3 "\"}}";

static int setup(void **state)
{
    struct fixture *x = calloc(1, sizeof(*x));
    arena_init(&x->arena, NULL, MEM_CKPT);
    x->d0.log.fd = -1;
    strcpy(x->dir, "/tmp/day0-ckpt-XXXXXX");
    if (!mkdtemp(x->dir))
        return -1;
    findings_init(&x->f, &x->d0.mem);
    put(x, "config.json", CONFIG);
    put_shard(x, S1, "a.0", "a.1");
    put_shard(x, S2, "b.0", "b.1");
    put_shard(x, S3, "c.0", "c.1");
    put(x, INDEX, index_text);
    *state = x;
    return 0;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *where)
{
    (void)st, (void)type, (void)where;
    return remove(path);
}

static int teardown(void **state)
{
    struct fixture *x = *state;
    ckpt_close(x->c);
    findings_release(&x->f);
    arena_release(&x->arena);
    bool leaked = x->d0.mem.live[MEM_CKPT] != 0;
    nftw(x->dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    free(x);
    return leaked;
}

static void open_it(struct fixture *x)
{
    struct err e = {0};
    ckpt_close(x->c);
    x->c = NULL;
    findings_release(&x->f);
    findings_init(&x->f, &x->d0.mem);
    if (ckpt_open(&x->c, x->dir, &x->f, &x->d0, &e))
        fail_msg("%s", e.message);
}

static void show(const struct fixture *x)
{
    for (size_t i = 0; i < x->f.n; i++)
        print_error("%s %s: %s\n", finding_code(x->f.items[i].id), x->f.items[i].subject,
                    x->f.items[i].evidence);
}

/* Opens; exactly one finding, with these texts in it. Returns its evidence. */
static const char *only(struct fixture *x, enum finding_id id, const char *subject, const char *in_evidence)
{
    open_it(x);
    if (x->f.n != 1 || x->f.items[0].id != id || strcmp(x->f.items[0].subject, subject) != 0 ||
        !strstr(x->f.items[0].evidence, in_evidence)) {
        show(x);
        fail_msg("expected only %s about %s with \"%s\"", finding_code(id), subject, in_evidence);
    }
    return x->f.items[0].evidence;
}

static uint64_t size_of(struct fixture *x, const char *name)
{
    struct file_info info;
    assert_int_equal(file_stat(at(x, name), &info, NULL), 0);
    return info.bytes;
}

static void resize(struct fixture *x, const char *name, int64_t by)
{
    assert_int_equal(truncate(at(x, name), (off_t)size_of(x, name) + by), 0);
}

static void drop(struct fixture *x, const char *name)
{
    assert_int_equal(unlink(at(x, name)), 0);
}

/* ---- sound directories */

static void sound(void **state)
{
    struct fixture *x = *state;
    open_it(x);
    show(x);
    assert_int_equal(x->f.n, 0);
    assert_int_equal(x->c->n_shards, 3);
    assert_int_equal(x->c->n_tensors, 6);
    assert_int_equal(x->c->total_bytes, 120);
    assert_true(x->c->has_index);
    assert_int_equal(strlen(x->c->config_sha256), 64);
    assert_string_equal(json_string(json_get(x->c->config, "model_type")), "llama");
    const char *expected[] = {"a.0", "a.1", "b.0", "b.1", "c.0", "c.1"};
    for (size_t i = 0; i < 6; i++)
        assert_string_equal(x->c->tensors[i].name, expected[i]);
    assert_null(ckpt_find(x->c, "d.0"));
    assert_false(ckpt_lost(x->c, "d.0"));
    const struct ckpt_tensor *t = ckpt_find(x->c, "b.1");
    assert_non_null(t);
    assert_int_equal(t->shard, 1);
    assert_int_equal(t->n_dims, 2);
    float got[6];
    struct err e = {0};
    assert_int_equal(ckpt_read(x->c, t, 0, got, 24, &e), 0);
    assert_memory_equal(got, numbers + 4, 24);
    assert_int_equal(ckpt_read(x->c, t, 20, got, 4, &e), 0);
    assert_true(got[0] == numbers[9]);
    assert_int_equal(ckpt_read(x->c, t, 20, got, 5, &e), ERR_INVALID);
    assert_int_equal(ckpt_read(x->c, t, UINT64_MAX, got, 2, &e), ERR_INVALID);
}

/* Pages of the file that the cache holds. */
static size_t pages_cached(const char *path)
{
    struct stat st;
    unsigned char in[4096];
    size_t n = 0;
    int fd = open(path, O_RDONLY);
    assert_true(fd >= 0 && fstat(fd, &st) == 0);
    size_t pages = ((size_t)st.st_size + 4095) / 4096;
    assert_true(pages <= sizeof in);
    void *map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
    assert_true(map != MAP_FAILED && mincore(map, (size_t)st.st_size, in) == 0);
    for (size_t i = 0; i < pages; i++)
        n += in[i] & 1;
    munmap(map, (size_t)st.st_size);
    close(fd);
    return n;
}

static void drop_pages(const char *path)
{
    int fd = open(path, O_RDONLY);
    assert_true(fd >= 0 && fsync(fd) == 0);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
}

/* Past the cache come the same bytes, wherever they begin and end, and the cache stays as it was. */
static void read_past(void **state)
{
    struct fixture *x = *state;
    enum { N = (3 << 20) + 1235 };
    static const uint64_t places[][2] = {
        {0, N},    {0, 1},      {N - 1, 1},      {N - 5000, 5000}, {1, 4095},
        {4096, 1}, {12345, 77}, {4000, 1 << 20}, {100, N - 200},   {777, 0},
    };
    unsigned char *data = malloc(N), *got = malloc(N + 1),
                  *bounce = aligned_alloc(CKPT_PAST_ALIGN, ALIGN_UP(N, 4096) + 2 * CKPT_PAST_ALIGN);
    assert_true(data && got && bounce);
    for (size_t i = 0; i < N; i++)
        data[i] = (unsigned char)(i * 2654435761u >> 13);
    drop(x, S1), drop(x, S2), drop(x, S3), drop(x, INDEX);
    const struct st_entry entry = {"a", D0_U8, 1, {N}, data};
    const char *path = at(x, "model.safetensors");
    assert_int_equal(st_write(path, &entry, 1, NULL, NULL, 0, NULL), 0);
    open_it(x);
    const struct ckpt_tensor *t = ckpt_find(x->c, "a");
    assert_non_null(t);
    assert_true(t->offset % CKPT_PAST_ALIGN != 0);
    size_t direct = 0;
    for (int cold = 0; cold < 2; cold++)
        for (size_t i = 0; i < ARRAY_LEN(places); i++) {
            struct err e = {0};
            if (cold)
                drop_pages(path);
            size_t before = pages_cached(path);
            memset(got, 0, N + 1);
            if (ckpt_read_past(x->c, t, places[i][0], got, places[i][1], bounce, &e))
                fail_msg("%s", e.message);
            assert_memory_equal(got, data + places[i][0], places[i][1]);
            assert_int_equal(got[places[i][1]], 0);
            if (before == 0 && x->c->shards[0].past_fd >= 0) {
                assert_int_equal(pages_cached(path), 0);
                direct++;
            }
        }
    assert_int_equal(ckpt_read_past(x->c, t, N - 4, got, 5, bounce, NULL), ERR_INVALID);
    if (truncate(path, (off_t)t->offset + N - 9) == 0) /* shorter than when it was opened */
        assert_int_equal(ckpt_read_past(x->c, t, 0, got, N, bounce, NULL), ERR_IO);
    assert_true(direct > 0 || x->c->shards[0].past_fd < 0);
    if (!direct)
        print_message("this file system does not read past its cache: only the ordinary way was looked at\n");
    free(data);
    free(got);
    free(bounce);
}

static void single_file(void **state)
{
    struct fixture *x = *state;
    drop(x, S2), drop(x, S3), drop(x, INDEX);
    assert_int_equal(rename(at(x, S1), at(x, "model.safetensors")), 0);
    open_it(x);
    show(x);
    assert_int_equal(x->f.n, 0);
    assert_int_equal(x->c->n_tensors, 2);
    assert_false(x->c->has_index);
    assert_false(ckpt_lost(x->c, "d.0"));
}

/* A model cache is a directory of links into a store of blobs. */
static void linked(void **state)
{
    struct fixture *x = *state;
    assert_int_equal(mkdir(at(x, "blobs"), 0777), 0);
    assert_int_equal(rename(at(x, S1), at(x, "blobs/1234")), 0);
    assert_int_equal(symlink("blobs/1234", at(x, S1)), 0);
    open_it(x);
    assert_int_equal(x->f.n, 0);
    assert_int_equal(x->c->n_tensors, 6);
    drop(x, "blobs/1234");
    only(x, FINDING_W002, S1, "symbolic link");
}

static void manifest(void **state)
{
    struct fixture *x = *state;
    char a[65], b[65], c[65];
    struct err e = {0};
    open_it(x);
    assert_int_equal(ckpt_manifest_sha256(x->c, a, &e), 0);
    assert_int_equal(ckpt_manifest_sha256(x->c, b, &e), 0);
    assert_int_equal(strlen(a), 64);
    assert_string_equal(a, b);
    put(x, "tokenizer.json", "{}");
    assert_int_equal(ckpt_manifest_sha256(x->c, b, &e), 0);
    assert_string_not_equal(a, b);
    put_shard(x, S2, "b.0", "b.x");
    open_it(x);
    assert_int_equal(ckpt_manifest_sha256(x->c, c, &e), 0);
    assert_string_not_equal(b, c);
    drop(x, S2);
    open_it(x);
    assert_int_equal(ckpt_manifest_sha256(x->c, c, &e), 0);
}

/* ---- damaged files: one finding each */

static void shard_deleted(void **state)
{
    struct fixture *x = *state;
    drop(x, S2);
    only(x, FINDING_W002, S2, "2 tensors: b.0, b.1");
    assert_int_equal(x->c->n_tensors, 4);
    assert_int_equal(x->c->n_shards, 3);
    assert_false(x->c->shards[1].present);
    assert_true(ckpt_lost(x->c, "b.0"));
    assert_false(ckpt_lost(x->c, "d.0"));
    assert_null(ckpt_find(x->c, "b.0"));
}

static void all_shards_deleted(void **state)
{
    struct fixture *x = *state;
    drop(x, S1), drop(x, S2), drop(x, S3);
    only(x, FINDING_W001, x->dir, "3 files");
    assert_true(ckpt_lost(x->c, "b.0"));
}

/* Without an index the numbers in the names tell. */
static void numbered_shard_deleted(void **state)
{
    struct fixture *x = *state;
    drop(x, INDEX), drop(x, S2);
    only(x, FINDING_W002, S2, "of 3 files");
    assert_true(ckpt_lost(x->c, "b.0"));
    drop(x, S3);
    only(x, FINDING_W002, S2, "2 are");
    put_shard(x, S3, "c.0", "c.1");
    drop(x, S1);
    only(x, FINDING_W002, S1, "2 are");
}

/* Other widths, two sets at once, and names that only look like numbers. */
static void numbering(void **state)
{
    struct fixture *x = *state;
    static const char *const names[] = {"x-00001-of-000003.safetensors",
                                        "x-00003-of-000003.safetensors",
                                        "y-000001-of-000002.safetensors",
                                        "y-000002-of-000002.safetensors",
                                        "-of-2.safetensors",
                                        "z-00000-of-00002.safetensors",
                                        "z-00003-of-00002.safetensors",
                                        "00001-of-00002.safetensors",
                                        "-00001-of-9999999999.safetensors",
                                        "u-1-of-11.safetensors",
                                        "u-10-of-11.safetensors"};
    drop(x, INDEX), drop(x, S1), drop(x, S2), drop(x, S3);
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        put_shard(x, names[i], arena_printf(&x->arena, "t.%zu", i), NULL);
    only(x, FINDING_W002, "x-00002-of-000003.safetensors", "only one missing of 3");
}

static void shard_truncated(void **state)
{
    struct fixture *x = *state;
    resize(x, S2, -1);
    only(x, FINDING_W003, S2, "1 byte short");
    assert_non_null(strstr(x->f.items[0].evidence, "1 tensor: b.1"));
    assert_int_equal(x->c->n_tensors, 6);
    assert_false(x->c->shards[1].usable);
    assert_true(x->c->shards[1].present);
    assert_non_null(ckpt_find(x->c, "b.1"));
    char byte;
    struct err e = {0};
    assert_int_equal(ckpt_read(x->c, ckpt_find(x->c, "b.1"), 23, &byte, 1, &e), ERR_IO);
    resize(x, S2, -39);
    only(x, FINDING_W003, S2, "40 bytes short");
    resize(x, S2, -10);
    only(x, FINDING_W003, S2, "the header alone");
    assert_true(ckpt_lost(x->c, "b.1"));
    assert_int_equal(truncate(at(x, S2), 7), 0);
    only(x, FINDING_W003, S2, "2 tensors");
    assert_int_equal(truncate(at(x, S2), 0), 0);
    only(x, FINDING_W003, S2, "2 tensors");
}

static void trailing(void **state)
{
    struct fixture *x = *state;
    resize(x, S3, 5);
    only(x, FINDING_W005, S3, "5 bytes more");
    assert_true(x->c->shards[2].usable);
}

static void malformed(void **state)
{
    struct fixture *x = *state;
    int fd = open(at(x, S1), O_WRONLY);
    assert_int_equal(pwrite(fd, "\0\0\0\0\0\0\0\0", 8, 0), 8);
    close(fd);
    only(x, FINDING_W004, S1, "InvalidHeaderDeserialization");
    assert_true(ckpt_lost(x->c, "a.0"));
    put(x, S1, "<html><body>Bad gateway</body></html>");
    only(x, FINDING_W004, S1, "HeaderTooLarge");
    put(x, S1, "\x20\x20\x20\x20\x20\x20\x20\x20xxxxxxx");
    only(x, FINDING_W004, S1, "2 tensors: a.0, a.1");
    drop(x, S1);
    assert_int_equal(mkdir(at(x, S1), 0777), 0);
    only(x, FINDING_W002, S1, "not a file");
}

static void layout_broken(void **state)
{
    struct fixture *x = *state;
    static const char head[] = "{\"a.0\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]},"
                               "\"a.1\":{\"dtype\":\"F32\",\"shape\":[2,4],\"data_offsets\":[16,40]}}";
    char file[8 + sizeof(head) - 1 + 40] = {(char)(sizeof(head) - 1)};
    memcpy(file + 8, head, sizeof(head) - 1);
    assert_int_equal(file_write_atomic(at(x, S1), file, sizeof(file), NULL), 0);
    only(x, FINDING_W004, S1, "TensorInvalidInfo: tensor a.1");
    assert_false(x->c->shards[0].usable);
    assert_int_equal(x->c->n_tensors, 6);
}

static void lfs_pointer(void **state)
{
    struct fixture *x = *state;
    const char *pointer =
        "version https://git-lfs.github.com/spec/v1\noid sha256:"
        "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\nsize 4999802720\n";
    put(x, S3, pointer);
    only(x, FINDING_W017, S3, "4999802720");
    assert_true(ckpt_lost(x->c, "c.0"));
    put_shard(x, S3, "c.0", "c.1");
    put(x, INDEX, pointer);
    only(x, FINDING_W017, INDEX, "4999802720");
    put(x, INDEX, index_text);
    put(x, "config.json", pointer);
    only(x, FINDING_W017, "config.json", "4999802720");
}

static void unknown_type(void **state)
{
    struct fixture *x = *state;
    static const char head[] = "{\"a.0\":{\"dtype\":\"F2_E1M0\",\"shape\":[64],\"data_offsets\":[0,16]},"
                               "\"a.1\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[16,40]}}";
    char file[8 + sizeof(head) - 1 + 40] = {(char)(sizeof(head) - 1)};
    memcpy(file + 8, head, sizeof(head) - 1);
    assert_int_equal(file_write_atomic(at(x, S1), file, sizeof(file), NULL), 0);
    only(x, FINDING_W013, "F2_E1M0", "first: a.0");
    assert_true(x->c->shards[0].usable);
    assert_int_equal(ckpt_find(x->c, "a.0")->dtype, 0);
}

/* ---- the index */

static void absent_tensor(void **state)
{
    struct fixture *x = *state;
    put(x, INDEX,
        "{\"metadata\":{\"total_size\":136},\"weight_map\":{\"a.0\":\"" S1 "\",\"a.1\":\"" S1
        "\",\"b.0\":\"" S2 "\",\"b.1\":\"" S2 "\",\"b.2\":\"" S2 "\",\"c.0\":\"" S3 "\",\"c.1\":\"" S3
        "\"}}");
    only(x, FINDING_W007, "b.2", S2);
    assert_true(ckpt_lost(x->c, "b.2"));
}

static void unlisted_tensor(void **state)
{
    struct fixture *x = *state;
    put(x, INDEX,
        "{\"metadata\":{\"total_size\":1},\"weight_map\":{\"a.0\":\"" S1 "\",\"b.0\":\"" S2 "\",\"c.0\":\"" S3
        "\",\"c.1\":\"" S3 "\"}}");
    only(x, FINDING_W008, INDEX, "2 tensors: a.1, b.1");
    assert_non_null(ckpt_find(x->c, "a.1"));
}

static void stale_index(void **state)
{
    struct fixture *x = *state;
    put(x, INDEX,
        "{\"weight_map\":{\"a.0\":\"" S1 "\",\"a.1\":\"" S2 "\",\"b.0\":\"" S2 "\",\"b.1\":\"" S2
        "\",\"c.0\":\"" S3 "\",\"c.1\":\"" S3 "\"}}");
    only(x, FINDING_W015, "a.1", "another file");
    assert_int_equal(ckpt_find(x->c, "a.1")->shard, 0);
    /* all of an absent file's tensors lie elsewhere: the split has changed, nothing is lost */
    assert_int_equal(rename(at(x, S1), at(x, "new.safetensors")), 0);
    put(x, INDEX, index_text);
    open_it(x);
    assert_int_equal(x->f.n, 1);
    assert_int_equal(x->f.items[0].id, FINDING_W015);
    assert_false(findings_failed(&x->f));
    assert_int_equal(x->c->n_tensors, 6);
    for (size_t i = 0; i < x->c->n_shards; i++)
        assert_false(x->c->shards[i].unindexed);
}

static void total_size(void **state)
{
    struct fixture *x = *state;
    char *text = arena_strdup(&x->arena, index_text);
    memcpy(strstr(text, "120"), "121", 3);
    put(x, INDEX, text);
    only(x, FINDING_W014, INDEX, "121");
    memcpy(strstr(text, "121"), "1e3", 3);
    put(x, INDEX, text);
    open_it(x);
    assert_int_equal(x->f.n, 0);
}

static void duplicates(void **state)
{
    struct fixture *x = *state;
    put_shard(x, S3, "c.0", "b.1");
    put(x, INDEX,
        "{\"weight_map\":{\"a.0\":\"" S1 "\",\"a.1\":\"" S1 "\",\"b.0\":\"" S2 "\",\"b.1\":\"" S3
        "\",\"c.0\":\"" S3 "\"}}");
    only(x, FINDING_W012, S2, "1 tensor: b.1");
    assert_int_equal(ckpt_find(x->c, "b.1")->shard, 2);
    drop(x, INDEX);
    only(x, FINDING_W012, S3, S2);
    assert_int_equal(ckpt_find(x->c, "b.1")->shard, 1);
}

/* A second copy that the index does not name is not used, and said to be so. */
static void second_copy(void **state)
{
    struct fixture *x = *state;
    put_shard(x, "consolidated.safetensors", "a.0", "layers.0.wq");
    only(x, FINDING_W008, "consolidated.safetensors", "2 tensors indexed files hold 1");
    assert_int_equal(ckpt_find(x->c, "a.0")->shard, 0);
    assert_true(x->c->shards[ckpt_find(x->c, "layers.0.wq")->shard].unindexed);
    resize(x, "consolidated.safetensors", -1);
    only(x, FINDING_W008, "consolidated.safetensors", "damaged: 1 byte short");
}

/* What is absent or short while a download runs is one finding; what is here is judged as ever. */
static void partial(void **state)
{
    struct fixture *x = *state;
    const struct ckpt_options o = {.partial = true};
    struct err e = {0};
    drop(x, S1);
    resize(x, S2, -1);
    findings_release(&x->f);
    findings_init(&x->f, &x->d0.mem);
    assert_int_equal(ckpt_open_with(&x->c, x->dir, &o, &x->f, &x->d0, &e), 0);
    show(x);
    assert_int_equal(x->f.n, 1);
    assert_int_equal(x->f.items[0].id, FINDING_W022);
    assert_int_equal(x->f.items[0].severity, SEVERITY_INFO);
    assert_non_null(strstr(x->f.items[0].evidence, "absent: 1 file: " S1));
    assert_non_null(strstr(x->f.items[0].evidence, "a part: 1 file: " S2));
    assert_true(x->c->shards[0].arriving && x->c->shards[1].arriving && !x->c->shards[2].arriving);
    assert_true(ckpt_lost(x->c, "a.0"));
    assert_non_null(ckpt_find(x->c, "b.1"));
}

/* Under the name of one file lies another: what should be there is lost, and that is one finding. */
static void copied(void **state)
{
    struct fixture *x = *state;
    put_shard(x, S2, "a.0", "a.1");
    only(x, FINDING_W020, S2, "its header is that of " S1);
    assert_true(x->c->shards[1].copy && !x->c->shards[0].copy);
    assert_true(ckpt_lost(x->c, "b.0"));
    drop(x, INDEX);
    only(x, FINDING_W020, S2, S1);
    assert_true(ckpt_lost(x->c, "b.0"));
}

static void path_traversal(void **state)
{
    struct fixture *x = *state;
    const char *bad[] = {"../model.safetensors", "/etc/passwd", "sub/x.safetensors", "..", "",
                         "x\\u0000.safetensors", "config.json"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        char *text = arena_printf(&x->arena,
                                  "{\"metadata\":{\"total_size\":9},\"weight_map\":{\"a.0\":\"" S1
                                  "\",\"a.1\":\"" S1 "\",\"b.0\":\"" S2 "\",\"b.1\":\"" S2 "\",\"c.0\":\"" S3
                                  "\",\"c.1\":\"" S3 "\",\"evil\":\"%s\"}}",
                                  bad[i]);
        put(x, INDEX, text);
        only(x, FINDING_W006, INDEX, "1 of 7 tensors");
        assert_int_equal(x->c->n_shards, 3);
        assert_true(ckpt_lost(x->c, "evil"));
    }
}

static void index_malformed(void **state)
{
    struct fixture *x = *state;
    const char *bad[] = {"",
                         "[]",
                         "{}",
                         "{\"weight_map\":[]}",
                         "{\"weight_map\":{\"a\":1}}",
                         "{\"weight_map\":{}",
                         "{\"weight_map\":{\"a\":\"" S1 "\",\"a\":\"" S1 "\"}}",
                         "{\"weight_map\":{},\"weight_map\":{}}",
                         "{\"weight_map\":{}}{}",
                         "\xff"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        put(x, INDEX, bad[i]);
        only(x, FINDING_W006, INDEX, "");
        assert_false(x->c->has_index);
        assert_int_equal(x->c->n_tensors, 6);
    }
}

/* ---- what is around the weights */

static void configs(void **state)
{
    struct fixture *x = *state;
    const char *bad[] = {"", "{", "[1]", "3", "{\"a\":1,\"a\":2}", "{\"a\":NaN}"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        put(x, "config.json", bad[i]);
        only(x, FINDING_C002, "config.json", "");
        assert_null(x->c->config);
    }
    drop(x, "config.json");
    only(x, FINDING_C001, "config.json", x->dir);
    put(x, "config.json", CONFIG);
    put(x, "generation_config.json", "nonsense");
    only(x, FINDING_C002, "generation_config.json", "");
    put(x, "generation_config.json", "{\"eos_token_id\":[1,2]}");
    open_it(x);
    assert_int_equal(x->f.n, 0);
    assert_non_null(x->c->generation_config);
}

static void no_weights(void **state)
{
    struct fixture *x = *state;
    drop(x, S1), drop(x, S2), drop(x, S3), drop(x, INDEX);
    only(x, FINDING_W001, x->dir, "no *.safetensors");
    put(x, "pytorch_model.bin", "x");
    only(x, FINDING_W001, x->dir, "pytorch_model.bin");
    assert_true(ckpt_lost(x->c, "a.0"));
    assert_int_equal(symlink("nowhere", at(x, "model.safetensors")), 0);
    only(x, FINDING_W002, "model.safetensors", "symbolic link");
}

static void no_directory(void **state)
{
    struct fixture *x = *state;
    struct err e = {0};
    assert_int_equal(ckpt_open(&x->c, "/nonexistent/model", &x->f, &x->d0, &e), ERR_MISSING);
    assert_int_equal(ckpt_open(&x->c, at(x, "config.json"), &x->f, NULL, NULL), ERR_MISSING);
    assert_int_equal(x->f.n, 0);
    ckpt_close(NULL);
}

struct index_text {
    struct fixture *x;
    struct strbuf text;
};

static void write_index(struct strbuf *b, unsigned n)
{
    strbuf_clear(b);
    strbuf_puts(b, "{\"metadata\":{\"total_size\":1560860324864},\"weight_map\":{");
    for (unsigned i = 0; i < n; i++)
        strbuf_printf(
            b,
            "%s\"language_model.model.layers.%u.mlp.experts.%u.down_proj.weight_packed\":\"model-%05u-of-"
            "00096.safetensors\"",
            i ? "," : "", i / 6000, i % 6000, i / 5180 + 1);
    strbuf_puts(b, "}}");
}

static void parse_index(void *context, unsigned n)
{
    struct index_text *t = context;
    struct ckpt_index index;
    struct err e = {0};
    assert_int_equal(ckpt_index_parse(t->text.data, t->text.len, &t->x->arena, &index, &e), 0);
    assert_int_equal(index.n_entries, n);
    assert_true(index.has_total_size && index.total_size == 1560860324864u);
    if (n > 400000)
        assert_int_equal(index.n_files, 96);
    ckpt_index_release(&index);
}

/* The index of the largest published models: half a million names. Eight times the names may not cost much
 * more than eight times the work (quadratic work would be 64 times). */
static void large_index(void **state)
{
    struct index_text t = {.x = *state, .text = STRBUF_INIT};
    const unsigned n = 497220;
    write_index(&t.text, n / 8);
    double small = least_ns(parse_index, &t, n / 8);
    write_index(&t.text, n);
    double large = least_ns(parse_index, &t, n);
    print_message("%u names in %.0f ms, %.1f times as long as an eighth of them\n", n, large / 1e6,
                  large / small);
    assert_true(large < 24 * small);
    strbuf_release(&t.text);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(sound),
        T(single_file),
        T(linked),
        T(manifest),
        T(shard_deleted),
        T(all_shards_deleted),
        T(numbered_shard_deleted),
        T(numbering),
        T(shard_truncated),
        T(trailing),
        T(malformed),
        T(layout_broken),
        T(lfs_pointer),
        T(unknown_type),
        T(absent_tensor),
        T(unlisted_tensor),
        T(stale_index),
        T(total_size),
        T(duplicates),
        T(second_copy),
        T(partial),
        T(copied),
        T(path_traversal),
        T(index_malformed),
        T(configs),
        T(no_weights),
        T(no_directory),
        T(read_past),
        T(large_index),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
