/* SPDX-License-Identifier: Apache-2.0
 *
 * Whole tokenizers and single stages against the reference implementations: ids of a million generated
 * characters per tokenizer, by hashes that tools/tokenizer_reference.py recorded (tests/tokenizers). A hash
 * per block of ten thousand characters says where a difference is. Real tokenizers are skipped where absent.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <zlib.h>

#include "base/file.h"
#include "base/hash.h"
#include "text/text.h"

#define DIR          TEST_SOURCE_ROOT "/tests/tokenizers"
#define MAX_FILE     (64u << 20)
#define MIN_MATERIAL 6
#define FNV_START    0xCBF29CE484222325u
#define COMPONENT_FMT                                                                                        \
    "{\"version\":\"1.0\",\"added_tokens\":[],\"post_processor\":null,\"decoder\":null,\"model\":{\"type\":" \
    "\"BPE\",\"byte_fallback\":true,\"end_of_word_suffix\":\"|\",\"merges\":[],\"vocab\":{"

struct fixture {
    struct arena a;
    const struct json *recipe, *reference;
    uint64_t seed, block, blocks;
};

static const struct json *parse_file(struct arena *a, const char *path)
{
    char *data;
    size_t n;
    const struct json *root = NULL;
    struct err e = {0};
    if (file_read(path, MAX_FILE, a, &data, &n, &e) || json_parse(data, n, NULL, a, &root, &e))
        fail_msg("%s", e.message);
    return root;
}

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    arena_init(&f->a, NULL, MEM_MISC);
    f->recipe = parse_file(&f->a, DIR "/text.json");
    f->reference = parse_file(&f->a, DIR "/reference.json");
    assert_true(json_u64(json_get(f->recipe, "seed"), &f->seed) &&
                json_u64(json_get(f->recipe, "block"), &f->block) &&
                json_u64(json_get(f->recipe, "blocks"), &f->blocks));
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    arena_release(&f->a);
    free(f);
    return 0;
}

/* Block of the text; the same as generate() of the Python tool. */
static void generate(const struct fixture *f, uint64_t block, struct strbuf *out)
{
    const struct json *classes = json_get(f->recipe, "classes");
    const struct json *entries = json_get(json_at(classes, block % classes->n), "entries");
    uint64_t counter = block << 32;
    for (uint64_t chars = 0; chars < f->block;) {
        uint64_t r = rng_u64(f->seed, counter++);
        const struct json *e = json_at(entries, r % entries->n);
        if (json_string(e)) {
            for (size_t i = 0, len; i < e->n && chars < f->block; i += len, chars++) {
                uint32_t c;
                len = utf8_decode(e->as.string + i, e->n - i, &c);
                strbuf_add(out, e->as.string + i, len);
            }
            continue;
        }
        uint64_t low = 0, high = 0;
        char text[4];
        assert_true(json_u64(json_at(e, 0), &low) && json_u64(json_at(e, 1), &high));
        strbuf_add(out, text, utf8_encode((uint32_t)(low + (r >> 32) % (high - low + 1)), text));
        chars++;
    }
}

static void fnv_ids(const struct ids *ids, char out[17])
{
    uint64_t h = FNV_START;
    for (size_t i = 0; i < ids->n; i++)
        h = (h ^ (uint64_t)ids->data[i]) * 0x100000001B3u;
    snprintf(out, 17, "%016llx", (unsigned long long)h);
}

static void fnv_bytes(const struct strbuf *s, char out[17])
{
    uint64_t h = FNV_START;
    for (size_t i = 0; i < s->len; i++)
        h = (h ^ (unsigned char)s->data[i]) * 0x100000001B3u;
    snprintf(out, 17, "%016llx", (unsigned long long)h);
}

static void encode(const struct tokenizer *t, const struct strbuf *s, unsigned flags, struct ids *ids)
{
    struct err e = {0};
    ids->n = 0;
    if (tokenizer_encode(t, strbuf_cstr(s), s->len, flags, ids, &e))
        fail_msg("%s", e.message);
}

/* One by one: every chunk whole characters. */
static void decode(const struct tokenizer *t, const struct ids *ids, struct strbuf *out)
{
    struct detokenizer d;
    struct strbuf chunk = STRBUF_INIT;
    detokenizer_init(&d, t, true);
    for (size_t i = 0; i <= ids->n; i++) {
        strbuf_clear(&chunk);
        assert_int_equal(i < ids->n ? detokenizer_feed(&d, ids->data[i], &chunk, NULL)
                                    : detokenizer_finish(&d, &chunk, NULL),
                         ERR_OK);
        assert_true(utf8_valid(strbuf_cstr(&chunk), chunk.len));
        strbuf_add(out, strbuf_cstr(&chunk), chunk.len);
    }
    strbuf_release(&chunk);
}

/* Prints every difference of one entry of the reference; returns how many there are. */
static unsigned differences(const struct fixture *f, const struct tokenizer *t, const struct json *entry,
                            const char *name)
{
    const struct json *blocks = json_get(entry, "blocks"), *classes = json_get(f->recipe, "classes");
    struct strbuf all = STRBUF_INIT, text = STRBUF_INIT, back = STRBUF_INIT;
    struct ids ids = {0};
    unsigned n = 0;
    char hash[17];
    assert_true(blocks && blocks->n >= classes->n);
    for (uint32_t i = 0; i < blocks->n; i++) {
        strbuf_clear(&text);
        generate(f, i, &text);
        strbuf_add(&all, text.data, text.len);
        encode(t, &text, TOKENIZE_PARSE_SPECIAL, &ids);
        fnv_ids(&ids, hash);
        if (strcmp(hash, json_string(json_at(blocks, i))) == 0)
            continue;
        print_message("%s: block %u (%s) has other ids\n", name, i,
                      json_string(json_get(json_at(classes, i % classes->n), "name")));
        n++;
    }
    const struct json *whole = json_get(entry, "whole"), *decoded = json_get(entry, "decoded");
    if (whole) {
        encode(t, &all, TOKENIZE_PARSE_SPECIAL, &ids);
        fnv_ids(&ids, hash);
        n += strcmp(hash, json_string(whole)) != 0;
        decode(t, &ids, &back);
        fnv_bytes(&back, hash);
        if (strcmp(hash, json_string(decoded)) != 0 && ++n)
            print_message("%s: decodes to another text\n", name);
    }
    strbuf_release(&all);
    strbuf_release(&text);
    strbuf_release(&back);
    ids_release(&ids);
    return n;
}

/* A difference of the generators would make every other test fail in a way that says nothing. */
static void the_text_is_the_same(void **state)
{
    struct fixture *f = *state;
    const struct json *texts = json_get(f->reference, "text");
    struct strbuf s = STRBUF_INIT;
    char hash[17];
    assert_int_equal(texts->n, json_get(f->recipe, "classes")->n);
    for (uint32_t i = 0; i < texts->n; i++) {
        strbuf_clear(&s);
        generate(f, i, &s);
        fnv_bytes(&s, hash);
        assert_string_equal(hash, json_string(json_at(texts, i)));
    }
    strbuf_release(&s);
}

/* ---- real tokenizers ---- */

static bool read_gz(struct arena *a, const char *path, char **out, size_t *n)
{
    gzFile z = gzopen(path, "rb");
    size_t room = 48u << 20;
    if (z == NULL)
        return false;
    *out = arena_alloc(a, room);
    int got = gzread(z, *out, (unsigned)room);
    gzclose(z);
    assert_true(got > 0 && (size_t)got < room);
    (*out)[got] = '\0';
    *n = (size_t)got;
    return true;
}

static const char *material(void)
{
    const char *d = getenv("DAY0_MATERIAL");
    return d ? d : TEST_SOURCE_ROOT "/../shared/material";
}

static void real_tokenizers(void **state)
{
    struct fixture *f = *state;
    const struct json *list = json_get(f->reference, "material");
    unsigned bad = 0, seen = 0;
    for (uint32_t i = 0; i < list->n; i++) {
        const struct json *entry = json_at(list, i);
        const char *file = json_string(json_get(entry, "file"));
        struct arena a;
        struct tokenizer *t = NULL;
        struct err e = {0};
        char *json;
        size_t n;
        arena_init(&a, NULL, MEM_MISC);
        if (!read_gz(&a, arena_printf(&a, "%s/%s", material(), file), &json, &n)) {
            print_message("no %s (set DAY0_MATERIAL)\n", file);
            arena_release(&a);
            continue;
        }
        int rc = tokenizer_open(&t, json, n, NULL, &e);
        if (json_get(entry, "refused")) { /* by the reference too */
            assert_int_equal(rc, ERR_FORMAT);
        } else if (rc) {
            fail_msg("%s: %s", file, e.message);
        } else {
            bad += differences(f, t, entry, file);
            seen++;
        }
        tokenizer_close(t);
        arena_release(&a);
    }
    assert_int_equal(bad, 0);
    if (seen < MIN_MATERIAL) {
        print_message("SKIP: %u of %d real tokenizers\n", seen, MIN_MATERIAL);
        skip();
    }
}

/* ---- stages that meet ---- */

/* One text of a pipeline: [text, ids, what they decode to]. Prints a difference; returns whether there is
 * none. */
static bool same_as_recorded(const struct tokenizer *t, const struct json *row, const char *file)
{
    const struct json *text = json_at(row, 0), *told = json_at(row, 1), *back = json_at(row, 2);
    struct strbuf s = STRBUF_INIT, decoded = STRBUF_INIT;
    struct ids ids = {0};
    strbuf_add(&s, text->as.string, text->n);
    encode(t, &s, TOKENIZE_PARSE_SPECIAL | TOKENIZE_SPECIAL, &ids);
    bool same = ids.n == told->n;
    for (uint32_t i = 0; same && i < told->n; i++) {
        int64_t id = -1;
        same = json_i64(json_at(told, i), &id) && id == ids.data[i];
    }
    decode(t, &ids, &decoded);
    same = same && decoded.len == back->n && memcmp(strbuf_cstr(&decoded), back->as.string, back->n) == 0;
    if (!same)
        print_message("\"%s\" differs, decoded to \"%s\", under\n%s\n", strbuf_cstr(&s),
                      strbuf_cstr(&decoded), file);
    strbuf_release(&s);
    strbuf_release(&decoded);
    ids_release(&ids);
    return same;
}

static void pipelines(void **state)
{
    struct fixture *f = *state;
    const struct json *list = parse_file(&f->a, DIR "/pipelines.json");
    unsigned bad = 0;
    assert_true(list->n >= 40);
    for (uint32_t i = 0; i < list->n; i++) {
        const struct json *file = json_get(json_at(list, i), "file"),
                          *texts = json_get(json_at(list, i), "texts");
        struct tokenizer *t = NULL;
        struct err e = {0};
        if (tokenizer_open(&t, file->as.string, file->n, NULL, &e))
            fail_msg("%s: %s", file->as.string, e.message);
        for (uint32_t k = 0; k < texts->n; k++)
            bad += !same_as_recorded(t, json_at(texts, k), file->as.string);
        tokenizer_close(t);
    }
    assert_int_equal(bad, 0);
}

/* ---- published vectors ---- */

/* llama.cpp's texts and ids for a vocabulary; NULL where the material has no tokenizer of it. */
static const struct vectors {
    const char *name, *tokenizer;
    bool without_added;
} vectors[] = {
    {"gpt-2", "gpt2", true}, /* this file has tokens for runs of spaces and tabs, which GPT-2 had not */
    {"phi-3", "phi3-v", false},
    {"qwen2", "qwen3", false}, /* the same ranks; what Qwen3 added stands in none of the texts */
    {"deepseek-llm", NULL, false},
};
#define VECTORS_PER_FILE 46

/* One line "id id ..." against the ids of a text; prints a difference. */
static bool same_ids(const char *name, size_t number, const char **line, const struct ids *ids)
{
    const char *at = *line, *end = strchr(at, '\n');
    assert_non_null(end);
    size_t n = 0, wrong = 0;
    while (at < end) {
        char *after;
        long id = strtol(at, &after, 10);
        if (after > end || after == at)
            break;
        wrong += n >= ids->n || ids->data[n] != id;
        n++;
        at = after;
    }
    *line = end + 1;
    if (wrong == 0 && n == ids->n)
        return true;
    print_message("%s: text %zu has other ids (%zu, expected %zu)\n", name, number, ids->n, n);
    return false;
}

static void vectors_of(struct tokenizer *t, const char *name, char *texts, const char *expected)
{
    static const char mark[] = "\n__ggml_vocab_test__\n";
    struct ids ids = {0};
    size_t number = 0, bad = 0;
    for (char *at = texts, *next; at; at = next, number++) {
        char *hit = strstr(at, mark);
        struct strbuf s = STRBUF_INIT;
        next = hit ? hit + strlen(mark) : NULL;
        strbuf_add(&s, at, hit ? (size_t)(hit - at) : strlen(at));
        if (hit) { /* what follows the last mark is no text */
            encode(t, &s, 0, &ids);
            bad += !same_ids(name, number, &expected, &ids);
        } else {
            number--;
        }
        strbuf_release(&s);
    }
    assert_int_equal(number, VECTORS_PER_FILE);
    assert_int_equal(*expected, '\0');
    assert_int_equal(bad, 0);
    ids_release(&ids);
}

static void published_vectors(void **state)
{
    (void)state;
    unsigned absent = 0;
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
        const struct vectors *v = &vectors[i];
        struct arena a;
        struct tokenizer *t = NULL;
        struct err e = {0};
        char *json, *texts, *expected;
        size_t n, bytes;
        if (v->tokenizer == NULL)
            continue;
        arena_init(&a, NULL, MEM_MISC);
        const char *dir = arena_printf(&a, "%s/tokenizers", material());
        if (!read_gz(&a, arena_printf(&a, "%s/%s/tokenizer.json.gz", dir, v->tokenizer), &json, &n) ||
            file_read(arena_printf(&a, "%s/vectors/%s.inp", dir, v->name), MAX_FILE, &a, &texts, &bytes,
                      &e) ||
            file_read(arena_printf(&a, "%s/vectors/%s.out", dir, v->name), MAX_FILE, &a, &expected, &bytes,
                      &e)) {
            print_message("no vectors of %s (set DAY0_MATERIAL)\n", v->name);
            absent++;
        } else {
            char *added = v->without_added ? strstr(json, "\"added_tokens\"") : NULL;
            assert_true(!v->without_added || added);
            if (added)
                memcpy(added, "\"other_tokens\"", strlen("\"added_tokens\""));
            assert_int_equal(tokenizer_open(&t, json, n, NULL, &e), ERR_OK);
            vectors_of(t, v->name, texts, expected);
        }
        tokenizer_close(t);
        arena_release(&a);
    }
    if (absent) {
        print_message("SKIP: %u sets of vectors\n", absent);
        skip();
    }
}

/* ---- small ones, of each model ---- */

static void small_tokenizers(void **state)
{
    struct fixture *f = *state;
    const struct json *list = json_get(f->reference, "made");
    unsigned bad = 0;
    assert_true(list->n >= 8);
    for (uint32_t i = 0; i < list->n; i++) {
        const struct json *entry = json_at(list, i);
        const struct json *special = json_get(entry, "special_tokens"), *ids = json_get(entry, "special");
        const char *file = json_string(json_get(entry, "file"));
        struct tiktoken_special names[8];
        struct arena a;
        struct tokenizer *t = NULL;
        struct err e = {0};
        char *data;
        size_t n;
        arena_init(&a, NULL, MEM_MISC);
        assert_int_equal(file_read(arena_printf(&a, "%s/%s", DIR, file), MAX_FILE, &a, &data, &n, &e),
                         ERR_OK);
        for (uint32_t k = 0; special && k < special->n; k++) {
            int64_t id = 0;
            json_i64(&special->as.members[k].value, &id);
            names[k] = (struct tiktoken_special){(int32_t)id, special->as.members[k].key, true};
        }
        const struct tiktoken_rule rule = {.pattern = json_string(json_get(entry, "pattern"))};
        if (special ? tokenizer_open_tiktoken(&t, data, n, &rule, names, special->n, NULL, &e)
                    : tokenizer_open(&t, data, n, NULL, &e))
            fail_msg("%s: %s", file, e.message);
        bad += differences(f, t, entry, file);
        if (ids) {
            struct ids got = {0};
            static const char text[] = "the user@ host theatre the";
            assert_int_equal(tokenizer_encode(t, text, strlen(text), 3, &got, &e), ERR_OK);
            assert_int_equal(got.n, ids->n);
            for (uint32_t k = 0; k < ids->n; k++)
                assert_int_equal(got.data[k], json_at(ids, k)->as.i);
            ids_release(&got);
        }
        tokenizer_close(t);
        arena_release(&a);
    }
    assert_int_equal(bad, 0);
}

/* The rule by which Kimi's code cuts long text, run in Python, between tiktoken's calls. */
static void long_texts_are_cut(void **state)
{
    struct fixture *f = *state;
    const struct json *list = json_get(f->reference, "cuts"), *made = json_get(f->reference, "made");
    const struct json *entry = json_at(made, made->n - 1);
    struct tokenizer *t = NULL, *uncut = NULL;
    struct err e = {0};
    struct ids ids = {0};
    unsigned matter = 0;
    char *data, hash[17];
    size_t n;
    assert_string_equal(json_string(json_get(entry, "file")), "small.tiktoken");
    struct tiktoken_rule rule = {json_string(json_get(entry, "pattern")), 400000, 25000, 0};
    assert_int_equal(file_read(DIR "/small.tiktoken", MAX_FILE, &f->a, &data, &n, &e), ERR_OK);
    assert_int_equal(tokenizer_open_tiktoken(&t, data, n, &rule, NULL, 0, NULL, &e), ERR_OK);
    rule.piece_chars = rule.run_chars = 0;
    assert_int_equal(tokenizer_open_tiktoken(&uncut, data, n, &rule, NULL, 0, NULL, &e), ERR_OK);
    assert_true(list->n >= 10);
    for (uint32_t i = 0; i < list->n; i++) {
        const struct json *parts = json_get(json_at(list, i), "parts");
        struct strbuf s = STRBUF_INIT;
        bool matters = false;
        for (uint32_t k = 0; k < parts->n; k++)
            for (int64_t r = 0; r < json_at(json_at(parts, k), 1)->as.i; r++)
                strbuf_puts(&s, json_string(json_at(json_at(parts, k), 0)));
        encode(t, &s, 0, &ids);
        fnv_ids(&ids, hash);
        assert_string_equal(hash, json_string(json_get(json_at(list, i), "ids")));
        encode(uncut, &s, 0, &ids);
        fnv_ids(&ids, hash);
        json_bool(json_get(json_at(list, i), "matters"), &matters);
        assert_true(matters == (strcmp(hash, json_string(json_get(json_at(list, i), "ids"))) != 0));
        matter += matters;
        strbuf_release(&s);
    }
    assert_true(matter >= 6);
    tokenizer_close(t);
    tokenizer_close(uncut);
    ids_release(&ids);
}

/* ---- single stages ---- */

/* No token but bytes: the suffix, in bytes too, shows where words end. */
static void stages(void **state)
{
    struct fixture *f = *state;
    const struct json *list = json_get(f->reference, "components");
    unsigned bad = 0;
    assert_true(list->n >= 60);
    for (uint32_t i = 0; i < list->n; i++) {
        const struct json *entry = json_at(list, i);
        struct strbuf json = STRBUF_INIT, name = STRBUF_INIT;
        struct tokenizer *t = NULL;
        struct err e = {0};
        struct json_writer w;
        strbuf_puts(&json, COMPONENT_FMT);
        for (int b = 0; b < 256; b++)
            strbuf_printf(&json, "%s\"<0x%02X>\":%d", b ? "," : "", b, b);
        strbuf_puts(&json, "}}");
        static const char *const keys[] = {"normalizer", "pre_tokenizer"};
        for (int k = 0; k < 2; k++) {
            const struct json *v = json_get(entry, keys[k]);
            strbuf_printf(&json, ",\"%s\":", keys[k]);
            json_writer_init(&w, &json, false);
            json_write_tree(&w, v);
            json_writer_init(&w, &name, false);
            if (v->type != JSON_NULL)
                json_write_tree(&w, v);
        }
        strbuf_puts(&json, "}");
        if (tokenizer_open(&t, json.data, json.len, NULL, &e))
            fail_msg("%s: %s", strbuf_cstr(&name), e.message);
        bad += differences(f, t, entry, strbuf_cstr(&name));
        tokenizer_close(t);
        strbuf_release(&json);
        strbuf_release(&name);
    }
    assert_int_equal(bad, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_text_is_the_same),
        cmocka_unit_test(stages),
        cmocka_unit_test(small_tokenizers),
        cmocka_unit_test(long_texts_are_cut),
        cmocka_unit_test(real_tokenizers),
        cmocka_unit_test(published_vectors),
        cmocka_unit_test(pipelines),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
