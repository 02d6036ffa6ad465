/* SPDX-License-Identifier: Apache-2.0
 *
 * Tokenizer: ids against the reference implementation (golden file; skipped where the model is absent), every
 * stage on a tokenizer made here, the refusals by name, broken files, and streams that never give half a
 * character.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/hash.h"
#include "text/text.h"
#include "tiny_tokenizer.h"

static struct tokenizer *open_text(const char *json, size_t n)
{
    struct tokenizer *t = NULL;
    struct err e = {0};
    if (tokenizer_open(&t, json, n, NULL, &e) != ERR_OK)
        fail_msg("%s", e.message);
    return t;
}

static struct tokenizer *open_tiny(const struct tiny_options *o)
{
    struct strbuf b = STRBUF_INIT;
    tiny_tokenizer(&b, o);
    struct tokenizer *t = open_text(b.data, b.len);
    strbuf_release(&b);
    return t;
}

/* Opening must fail with this code and name this thing. */
static void refuses(const struct tiny_options *o, int code, const char *what)
{
    struct strbuf b = STRBUF_INIT;
    struct tokenizer *t = NULL;
    struct err e = {0};
    tiny_tokenizer(&b, o);
    int rc = tokenizer_open(&t, b.data, b.len, NULL, &e);
    strbuf_release(&b);
    assert_null(t);
    if (rc != code || strstr(e.message, what) == NULL)
        fail_msg("expected %s about %s, got %s: %s", err_name(code), what, err_name(rc), e.message);
}

/* ids as text: "1 259 260", names for those of the tiny tokenizer are not needed */
static void encodes(const struct tokenizer *t, const char *text, unsigned flags, const char *expected)
{
    struct ids ids = {0};
    struct err e = {0};
    struct strbuf got = STRBUF_INIT;
    if (tokenizer_encode(t, text, strlen(text), flags, &ids, &e))
        fail_msg("%s: %s", text, e.message);
    for (size_t i = 0; i < ids.n; i++) {
        size_t n;
        const char *token = tokenizer_token(t, ids.data[i], &n);
        assert_non_null(token);
        strbuf_printf(&got, "%s%.*s", i ? "|" : "", (int)n, token);
    }
    assert_string_equal(strbuf_cstr(&got), expected);
    strbuf_release(&got);
    ids_release(&ids);
}

/* Decodes one by one; every chunk must be whole characters. */
static char *decode(const struct tokenizer *t, const int32_t *ids, size_t n, bool keep)
{
    struct detokenizer d;
    struct strbuf all = STRBUF_INIT, chunk = STRBUF_INIT;
    struct err e = {0};
    detokenizer_init(&d, t, keep);
    for (size_t i = 0; i <= n; i++) {
        strbuf_clear(&chunk);
        int rc = i < n ? detokenizer_feed(&d, ids[i], &chunk, &e) : detokenizer_finish(&d, &chunk, &e);
        if (rc)
            fail_msg("%s", e.message);
        assert_true(utf8_valid(strbuf_cstr(&chunk), chunk.len));
        strbuf_add(&all, strbuf_cstr(&chunk), chunk.len);
    }
    strbuf_release(&chunk);
    strbuf_putc(&all, '\0');
    return strbuf_detach(&all);
}

static void decodes(const struct tokenizer *t, const int32_t *ids, size_t n, const char *expected)
{
    char *s = decode(t, ids, n, false);
    assert_string_equal(s, expected);
    free(s);
}

/* ---- the reference implementation ---- */

static void compare_ids(const struct tokenizer *t, const struct json *c, unsigned flags)
{
    char key[8];
    snprintf(key, sizeof key, "ids%u", flags);
    const struct json *text = json_get(c, "text"), *want = json_get(c, key);
    struct ids ids = {0};
    struct err e = {0};
    assert_int_equal(tokenizer_encode(t, text->as.string, text->n, flags, &ids, &e), ERR_OK);
    if (ids.n != want->n)
        fail_msg("%s of \"%s\": %zu ids, expected %u", key, text->as.string, ids.n, want->n);
    for (uint32_t i = 0; i < want->n; i++)
        if (ids.data[i] != want->as.items[i].as.i)
            fail_msg("%s of \"%s\": id %u is %d, expected %lld", key, text->as.string, i, ids.data[i],
                     (long long)want->as.items[i].as.i);
    if (flags == 3) {
        for (int keep = 0; keep < 2; keep++) {
            const struct json *text_out = json_get(c, keep ? "decoded_special" : "decoded");
            char *s = decode(t, ids.data, ids.n, keep);
            assert_memory_equal(s, text_out->as.string, text_out->n + 1);
            free(s);
        }
    }
    ids_release(&ids);
}

static void equals_reference(void **state)
{
    (void)state;
    struct arena a;
    char *json, *golden;
    size_t n, golden_n;
    const struct json *root;
    struct err e = {0};
    arena_init(&a, NULL, MEM_MISC);
    const char *material = getenv("DAY0_MATERIAL");
    const char *path = arena_printf(&a, "%s/models/stories260K-hf/tokenizer.json",
                                    material ? material : TEST_SOURCE_ROOT "/../shared/material");
    int rc = file_read(path, 1 << 20, &a, &json, &n, &e);
    if (rc == ERR_MISSING) {
        arena_release(&a);
        print_message("SKIP: no stories260K-hf/tokenizer.json (set DAY0_MATERIAL)\n");
        skip();
    }
    assert_int_equal(rc, ERR_OK);
    assert_int_equal(file_read(TEST_SOURCE_ROOT "/tests/golden/tokenizer_stories.json", 1 << 20, &a, &golden,
                               &golden_n, &e),
                     ERR_OK);
    assert_int_equal(json_parse(golden, golden_n, NULL, &a, &root, &e), ERR_OK);
    struct tokenizer *t = open_text(json, n);
    assert_int_equal(tokenizer_vocab(t), 512);
    const struct json *cases = json_get(root, "cases");
    assert_true(cases->n >= 30);
    for (uint32_t i = 0; i < cases->n; i++)
        for (unsigned flags = 0; flags < 4; flags++)
            compare_ids(t, json_at(cases, i), flags);
    tokenizer_close(t);
    arena_release(&a);
}

/* ---- stages ---- */

static void merges_in_rank_order(void **state)
{
    (void)state;
    for (int pairs = 0; pairs < 2; pairs++) {
        struct tokenizer *t = open_tiny(&(struct tiny_options){.pairs = pairs});
        assert_int_equal(tokenizer_vocab(t), TINY_VOCAB);
        encodes(t, "the and hello", 0, TINY_MARK "the|" TINY_MARK "and|" TINY_MARK "|hello");
        encodes(t, "thell", 0, TINY_MARK "the|ll"); /* (th,e) ranks before (e,ll) */
        encodes(t, "ell", 0, TINY_MARK "|ell");
        encodes(t, "alllll", 0, TINY_MARK "|a|ll|ll|l"); /* equal ranks: from the left */
        encodes(t, "", TOKENIZE_SPECIAL, "<s>");
        encodes(t, "the", TOKENIZE_SPECIAL, "<s>|" TINY_MARK "the");
        encodes(t, "\xC3\xA9", 0, TINY_MARK "|<0xC3>|<0xA9>");
        tokenizer_close(t);
    }
}

static void options_of_the_model(void **state)
{
    (void)state;
    struct tokenizer *t = open_tiny(&(struct tiny_options){.model = ",\"fuse_unk\":true"});
    encodes(t, "a\xC3\xA9\xC3\xA9z", 0, TINY_MARK "|a|<unk>|z");
    tokenizer_close(t);
    t = open_tiny(&(struct tiny_options){.model = ",\"fuse_unk\":false"});
    encodes(t, "a\xC3\xA9\xC3\xA9z\xC3\xA9", 0, TINY_MARK "|a|<unk>|<unk>|z|<unk>");
    assert_int_equal(tokenizer_bytes_per_id(t), 6); /* one id a character: but unknown ones are not fused */
    tokenizer_close(t);
    t = open_tiny(&(struct tiny_options){.model = ",\"ignore_merges\":true", .replace = ""});
    encodes(t, "xy", 0, "xy"); /* a token without a merge that gives it */
    encodes(t, "xyx", 0, "x|y|x");
    tokenizer_close(t);
}

static void added_tokens_and_special_ones(void **state)
{
    (void)state;
    struct tokenizer *t = open_tiny(&(struct tiny_options){
        .added = ",{\"id\":300,\"content\":\"[AB]\",\"special\":false,\"normalized\":false,\"rstrip\":true}"
                 ",{\"id\":301,\"content\":\"[ABC]\",\"special\":true,\"lstrip\":true,\"normalized\":false}"
                 ",{\"id\":302,\"content\":\"q q\",\"special\":false,\"normalized\":true}"
                 ",{\"id\":303,\"content\":\"[AB]]\",\"special\":false,\"normalized\":false}"});
    encodes(t, "a</s>b", TOKENIZE_PARSE_SPECIAL, TINY_MARK "|a|</s>|" TINY_MARK "|b");
    encodes(t, "</s>", 0, TINY_MARK "|<0x3C>|<0x2F>|s|<0x3E>");
    encodes(t, "a[AB] \t b", 0, TINY_MARK "|a|[AB]|" TINY_MARK "|b");
    encodes(t, "[AB]  [ABC]c", TOKENIZE_PARSE_SPECIAL, "[AB]|[ABC]|" TINY_MARK "|c"); /* spaces taken once */
    encodes(t, "[AB]]]", 0, "[AB]]|" TINY_MARK "|<0x5D>"); /* the longest that begins here */
    encodes(t, "a  [ABC]c", TOKENIZE_PARSE_SPECIAL, TINY_MARK "|a|[ABC]|" TINY_MARK "|c");
    encodes(t, " q q", 0,
            TINY_MARK "|q q"); /* matched as it looks after the normalizers: with the marker before it */
    assert_true(tokenizer_is_special(t, 301));
    assert_false(tokenizer_is_special(t, 300));
    assert_false(tokenizer_is_special(t, 9999));
    assert_int_equal(tokenizer_id(t, "[AB]"), 300);
    assert_int_equal(tokenizer_id(t, "nope"), -1);
    assert_null(tokenizer_token(t, 304, NULL));
    assert_int_equal(tokenizer_bytes_per_id(t), 0);
    tokenizer_close(t);
}

static const char byte_level[] = ",\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_"
                                 "prefix_space\":false,\"use_regex\":false},"
                                 "\"post_processor\":{\"type\":\"Sequence\",\"processors\":[{\"type\":"
                                 "\"ByteLevel\",\"trim_offsets\":true}]},"
                                 "\"decoder\":{\"type\":\"ByteLevel\"}";

static void byte_level_round_trip(void **state)
{
    (void)state;
    struct strbuf b = STRBUF_INIT;
    strbuf_puts(&b, "{\"added_tokens\":[]");
    strbuf_puts(&b, byte_level);
    strbuf_puts(&b, ",\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{");
    for (int i = 0; i < 256; i++) { /* GPT-2's alphabet, written down here a second time */
        uint32_t c = i <= 32    ? 256u + i
                     : i < 127  ? (uint32_t)i
                     : i <= 160 ? 289u + i - 127
                     : i == 173 ? 323u
                                : (uint32_t)i;
        char utf8[4];
        size_t n = utf8_encode(c, utf8);
        strbuf_printf(&b, c == '"' || c == '\\' ? "%s\"\\%.*s\":%d" : "%s\"%.*s\":%d", i ? "," : "", (int)n,
                      utf8, i);
    }
    strbuf_puts(&b, "}}}");
    struct tokenizer *t = open_text(b.data, b.len);
    struct ids ids = {0};
    struct err e = {0};
    static const char text[] = " a\n\x7F \xC2\x80 \xC2\xAD \xF0\x9F\x98\x80 \xE4\xBD\xA0";
    assert_int_equal(tokenizer_encode(t, text, strlen(text), 3, &ids, &e), ERR_OK);
    assert_int_equal(ids.n, strlen(text));
    for (size_t i = 0; i < ids.n; i++)
        assert_int_equal(ids.data[i], (unsigned char)text[i]); /* id = byte */
    decodes(t, ids.data, ids.n, text);
    assert_int_equal(tokenizer_bytes_per_id(t), 4); /* never below one unknown character */
    /* one U+FFFD for each broken prefix, as String::from_utf8_lossy gives */
    decodes(
        t, (const int32_t[]){'x', 0xF0, 0x9F, 'y', 0xE4, 0xE4, 0xBD, 0xA0, 0xFF, 0x80, 0xED, 0xA0, 0xC3}, 13,
        "x\xEF\xBF\xBDy\xEF\xBF\xBD\xE4\xBD\xA0\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
    decodes(t, (const int32_t[]){0xE0, 0x80, 0x80, 'a', 0xF4, 0x90, 'b'}, 7, /* overlong, beyond U+10FFFF */
            "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"
            "a\xEF\xBF\xBD\xEF\xBF\xBD"
            "b");
    ids_release(&ids);
    tokenizer_close(t);
    strbuf_release(&b);
}

static void byte_fallback_decoding(void **state)
{
    (void)state;
    struct tokenizer *t = open_tiny(&(struct tiny_options){0});
#define B(x) (3 + (x))
    decodes(t, (const int32_t[]){B(0xF0), B(0x9F), B(0x98), B(0x80)}, 4, "\xF0\x9F\x98\x80");
    decodes(t, (const int32_t[]){1, 259, 260, 2, 259, 261}, 6,
            "a b"); /* first space cut, special tokens silent */
    decodes(t, (const int32_t[]){B(0xF0), B(0x9F), 260}, 3,
            "\xEF\xBF\xBD\xEF\xBF\xBD"
            "a");
    decodes(t, (const int32_t[]){B(0xE4), B(0xBD)}, 2, "\xEF\xBF\xBD\xEF\xBF\xBD");
    decodes(t, (const int32_t[]){B(0xC0), B('a'), B(0xED), B(0xA0)}, 4,
            "\xEF\xBF\xBD"
            "a\xEF\xBF\xBD\xEF\xBF\xBD");
    decodes(t, (const int32_t[]){B(' '), B(' '), B('x')}, 3, " x");
    /* a stream that continues a text keeps the space between */
    struct detokenizer more;
    struct strbuf rest = STRBUF_INIT;
    detokenizer_init(&more, t, false);
    assert_int_equal(detokenizer_skip(&more, (const int32_t[]){1, 259, 260}, 3, NULL), 0);
    assert_int_equal(detokenizer_feed(&more, 259, &rest, NULL), 0);
    assert_string_equal(strbuf_cstr(&rest), " ");
    strbuf_release(&rest);
    char *kept = decode(t, (const int32_t[]){1, 259, 260}, 3, true);
    assert_string_equal(kept, "<s> a");
    free(kept);
    struct detokenizer d;
    struct strbuf out = STRBUF_INIT;
    struct err e = {0};
    detokenizer_init(&d, t, false);
    assert_int_equal(detokenizer_feed(&d, TINY_VOCAB, &out, &e), ERR_INVALID);
    assert_int_equal(detokenizer_feed(&d, -1, &out, &e), ERR_INVALID);
    strbuf_release(&out);
    tokenizer_close(t);
}

static void metaspace_and_no_decoder(void **state)
{
    (void)state;
    struct tokenizer *t = open_tiny(&(struct tiny_options){
        .replace = ",\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"" TINY_MARK
                   "\",\"prepend_scheme\":\"first\",\"split\":true}"
                   ",\"decoder\":{\"type\":\"Metaspace\",\"replacement\":\"" TINY_MARK
                   "\",\"prepend_scheme\":\"first\"}"});
    encodes(t, "the and", 0, TINY_MARK "the|" TINY_MARK "and");
    encodes(t, "a</s>the</s>the", TOKENIZE_PARSE_SPECIAL, TINY_MARK "|a|</s>|the|</s>|the");
    decodes(t, (const int32_t[]){259, 260, 259, 261}, 4, "a b");
    tokenizer_close(t);
    t = open_tiny(&(struct tiny_options){.replace = ""});
    decodes(t, (const int32_t[]){260, 261, 262}, 3, "a b c");
    tokenizer_close(t);
    t = open_tiny(&(struct tiny_options){
        .replace = ",\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},"
                   "{\"type\":\"Strip\",\"content\":\"a\",\"start\":2,\"stop\":0}]}"});
    decodes(t, (const int32_t[]){260, 260, 260, 261}, 4, "ab");
    decodes(t, (const int32_t[]){260, 261, 260, 260}, 4, "baa");
    tokenizer_close(t);
}

/* The bytes that a text becomes, "|" behind each word, of a tokenizer that has nothing but stages. */
static void cuts_into(const char *stages, const char *text, const char *expected)
{
    struct strbuf b = STRBUF_INIT, got = STRBUF_INIT;
    struct ids ids = {0};
    struct err e = {0};
    strbuf_printf(
        &b,
        "{\"version\":\"1.0\",\"added_tokens\":[],%s,\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,"
        "\"end_of_word_suffix\":\"|\",\"merges\":[],\"vocab\":{",
        stages);
    for (int i = 0; i < 256; i++)
        strbuf_printf(&b, "%s\"<0x%02X>\":%d", i ? "," : "", i, i);
    strbuf_puts(&b, "}}}");
    struct tokenizer *t = open_text(b.data, b.len);
    if (tokenizer_encode(t, text, strlen(text), 0, &ids, &e))
        fail_msg("%s: %s", text, e.message);
    for (size_t i = 0; i < ids.n; i++)
        strbuf_putc(&got, (char)ids.data[i]);
    assert_string_equal(strbuf_cstr(&got), expected);
    ids_release(&ids);
    strbuf_release(&got);
    strbuf_release(&b);
    tokenizer_close(t);
}

#define SPLIT(behavior, invert)                                                                              \
    "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\s\"},\"behavior\":\"" behavior       \
    "\",\"invert\":" invert "}"
#define CHINESE                                                                                              \
    "\"normalizer\":{\"type\":\"BertNormalizer\",\"clean_text\":false,\"handle_chinese_chars\":true,"        \
    "\"strip_accents\":false,\"lowercase\":false}"

/* What long texts are not dense enough for: characters at the edges of lists, matches side by side. As
 * tokenizers 0.23 has them. */
static void rare_pieces(void **state)
{
    (void)state;
    cuts_into("\"normalizer\":{\"type\":\"Nmt\"}", "x\xC2\x9Fy\xC2\x8Fz", "xyz|");
    cuts_into(CHINESE, "x\xF0\xAB\xA0\xA0y", "x\xF0\xAB\xA0\xA0y|");   /* U+2B820 */
    cuts_into(CHINESE, "x\xF0\xAB\xA4\xA0y", "x \xF0\xAB\xA4\xA0 y|"); /* U+2B920 */
    cuts_into(
        "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Strip\",\"strip_left\":true,"
        "\"strip_right\":true},{\"type\":\"Prepend\",\"prepend\":\"x\"}]}",
        " ", "");
    cuts_into(SPLIT("Contiguous", "false"), "a  b", "a|  |b|");
    cuts_into(SPLIT("Contiguous", "true"), "a  b", "a|  |b|");
    cuts_into(SPLIT("MergedWithPrevious", "false"), "a  b", "a | |b|");
    cuts_into(SPLIT("MergedWithPrevious", "true"), "a  b c", "a| | b| c|");
    cuts_into(SPLIT("MergedWithNext", "false"), "a  b", "a| | b|");
    cuts_into(SPLIT("MergedWithNext", "true"), "a  b c", "a | |b |c|");
}

/* Before and behind the text; ends of decoders; a word that is just as long as it may be. */
static void stages_at_their_edges(void **state)
{
    (void)state;
    static const char words[] =
        "{\"version\":\"1.0\",\"added_tokens\":[],\"model\":{\"type\":\"WordPiece\",\"unk_token\":\"[UNK]\","
        "\"continuing_subword_prefix\":\"##\",\"max_input_chars_per_word\":3,\"vocab\":{\"[UNK]\":0,"
        "\"a\":1,\"##a\":2,\"b\":3}},\"decoder\":{\"type\":\"WordPiece\",\"prefix\":\"##\",\"cleanup\":true}"
        "}";
    struct tokenizer *t = open_text(words, sizeof words - 1);
    encodes(t, "aaa", 0, "a|##a|##a");
    encodes(t, "aaaa", 0, "[UNK]");
    encodes(t, "ab", 0, "[UNK]");                            /* nothing is left of the part that is known */
    decodes(t, (const int32_t[]){2, 2, 1, 2}, 4, "##aa aa"); /* only the first keeps its prefix */
    tokenizer_close(t);
    t = open_tiny(&(struct tiny_options){
        .replace =
            ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{"
            "\"id\":\"<s>\",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}},{\"SpecialToken\":"
            "{\"id\":\"</s>\",\"type_id\":0}}],\"special_tokens\":{\"<s>\":{\"id\":\"<s>\",\"ids\":[1],"
            "\"tokens\":[\"<s>\"]},\"</s>\":{\"id\":\"</s>\",\"ids\":[2],\"tokens\":[\"</s>\"]}}}"});
    encodes(t, "an", TOKENIZE_SPECIAL, "<s>|an|</s>");
    encodes(t, "", TOKENIZE_SPECIAL, "<s>|</s>");
    encodes(t, "an", 0, "an");
    tokenizer_close(t);
    t = open_tiny(&(struct tiny_options){
        /* bytes join tokens, so what follows strips the text */
        .replace = ",\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"ByteLevel\"},"
                   "{\"type\":\"Strip\",\"content\":\"a\",\"start\":1,\"stop\":0}]}"});
    decodes(t, (const int32_t[]){260, 260, 261}, 3, "ab");
    tokenizer_close(t);
    t = open_tiny(&(struct tiny_options){
        .replace =
            ",\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":"
            "\"b\"},\"content\":\"xxyxx\"},{\"type\":\"Strip\",\"content\":\"x\",\"start\":1,\"stop\":2},"
            "{\"type\":\"Fuse\"}]}"});
    decodes(t, (const int32_t[]){260, 261, 261}, 3, "axyxy");
    tokenizer_close(t);
}

static void plain_in(const struct tokenizer *t, const char *text, size_t from, size_t to,
                     const char *expected)
{
    const struct text_range plain = {from, to};
    struct ids ids = {0};
    struct err e = {0};
    struct strbuf got = STRBUF_INIT;
    assert_int_equal(
        tokenizer_encode_parts(t, text, strlen(text), TOKENIZE_PARSE_SPECIAL, &plain, 1, &ids, &e), 0);
    for (size_t i = 0; i < ids.n; i++) {
        size_t n;
        const char *token = tokenizer_token(t, ids.data[i], &n);
        strbuf_printf(&got, "%s%.*s", i ? "|" : "", (int)n, token);
    }
    assert_string_equal(strbuf_cstr(&got), expected);
    strbuf_release(&got);
    ids_release(&ids);
}

/* Special tokens that touch what somebody else wrote are text, and only those. */
static void ranges_without_special_tokens(void **state)
{
    (void)state;
    static const char added[] = ",{\"id\":300,\"content\":\"a<s>b\",\"special\":true,\"normalized\":false}"
                                ",{\"id\":301,\"content\":\"xyz\",\"special\":true,\"normalized\":true}";
    struct tokenizer *t = open_tiny(&(struct tiny_options){.added = added, .replace = ""});
    plain_in(t, "<s>x<s>", 3, 4, "<s>|x|<s>");
    plain_in(t, "<s>x<s>", 2, 4, "<0x3C>|s|<0x3E>|x|<s>");
    plain_in(t, "<s>x<s>", 3, 5, "<s>|x|<0x3C>|s|<0x3E>");
    plain_in(t, "a<s>b", 5, 5, "a<s>b");
    plain_in(t, "a<s>b", 0, 1, "a|<0x3C>|s|<0x3E>|b"); /* none within it either */
    plain_in(t, "xyzxyz", 3, 6, "xyz|x|y|z");
    plain_in(t, "axyz", 0, 1, "a|xyz");
    tokenizer_close(t);
    t = open_tiny(
        &(struct tiny_options){.added = added, .replace = ",\"normalizer\":{\"type\":\"Lowercase\"}"});
    plain_in(t, "aXyZ", 0, 0, "a|xyz");
    plain_in(t, "aXyZ", 3, 4, "a|x|y|z"); /* where it stood is not known */
    tokenizer_close(t);
}

/* ---- refusals ---- */

static void refuses_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *replace, *model, *added;
        int code;
        const char *what;
    } cases[] = {
        {",\"normalizer\":{\"type\":\"NFX\"}", NULL, NULL, ERR_UNSUPPORTED, "normalizer NFX"},
        {",\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"AAAA\"}", NULL, NULL,
         ERR_FORMAT, "precompiled_charsmap"},
        {",\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"(a)\\\\1\"},\"content\":\"\"}", NULL,
         NULL, ERR_UNSUPPORTED, "(a)\\1"},
        {",\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"\"},\"content\":\"x\"}", NULL, NULL,
         ERR_FORMAT, "pattern"},
        {",\"normalizer\":{\"type\":\"Prepend\"}", NULL, NULL, ERR_FORMAT, "prepend"},
        {",\"pre_tokenizer\":{\"type\":\"Split\"}", NULL, NULL, ERR_FORMAT, "behavior"},
        {",\"pre_tokenizer\":{\"type\":\"UnicodeScripts\"}", NULL, NULL, ERR_UNSUPPORTED, "UnicodeScripts"},
        {",\"pre_tokenizer\":7", NULL, NULL, ERR_UNSUPPORTED, "no type"},
        {",\"post_processor\":{\"type\":\"RobertaProcessing\"}", NULL, NULL, ERR_FORMAT, "cls"},
        {",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[]}", NULL, NULL, ERR_FORMAT,
         "sequence A"},
        {",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\"}"
         "}],"
         "\"special_tokens\":{\"<s>\":{\"ids\":[300]}}}",
         NULL, NULL, ERR_FORMAT, "outside the vocabulary"},
        {",\"decoder\":{\"type\":\"WordPiece\"}", NULL, NULL, ERR_FORMAT, "prefix"},
        {",\"decoder\":{\"type\":\"CTC\"}", NULL, NULL, ERR_UNSUPPORTED, "decoder CTC"},
        {",\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},{\"type\":\"Replace\","
         "\"pattern\":{\"String\":\"a\"},\"content\":\"\"}]}",
         NULL, NULL, ERR_UNSUPPORTED, "behind"},
        {NULL, ",\"dropout\":0.1", NULL, ERR_UNSUPPORTED, "dropout"},
        {NULL, ",\"end_of_word_suffix\":3", NULL, ERR_FORMAT, "end_of_word_suffix"},
        {NULL, ",\"byte_fallback\":3", NULL, ERR_FORMAT, "byte_fallback"},
        {NULL, NULL, ",{\"id\":260,\"content\":\"zzz\"}", ERR_FORMAT, "260"},
        {NULL, NULL, ",{\"id\":300,\"content\":\"a\"}", ERR_FORMAT, "300"},
        {NULL, NULL, ",{\"id\":99999999,\"content\":\"zzz\"}", ERR_LIMIT, "99999999"},
        {NULL, NULL, ",{\"id\":18446744073709551615,\"content\":\"zzz\"}", ERR_LIMIT, "id"},
        {NULL, NULL, ",{\"id\":-1,\"content\":\"zzz\"}", ERR_FORMAT, "id"},
        {NULL, NULL, ",7", ERR_FORMAT, "added token"},
        {NULL, NULL, ",{\"id\":300,\"content\":\"zz\",\"lstrip\":\"yes\"}", ERR_FORMAT, "no boolean"},
        {NULL, NULL, ",{\"id\":301,\"content\":\"zz\"}", ERR_UNSUPPORTED, "the next one is 300"},
        {NULL, NULL, /* the same once more is taken */
         ",{\"id\":300,\"content\":\"zz\"},{\"id\":301,\"content\":\"yy\"},{\"id\":300,\"content\":\"zz\"},"
         "{\"id\":303,\"content\":\"xx\"}",
         ERR_UNSUPPORTED, "has the id 303, the next one is 302"},
        {",\"normalizer\":{\"type\":\"Lowercase\"}", NULL,
         ",{\"id\":300,\"content\":\"ZZ\"},{\"id\":301,\"content\":\"Zz\"}", ERR_UNSUPPORTED, "are the same"},
        {",\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"!\"},\"content\":\"\"}", NULL,
         ",{\"id\":300,\"content\":\"!!\"}", ERR_UNSUPPORTED, "nothing is left"},
        {",\"normalizer\":{\"type\":\"Prepend\",\"prepend\":\"\"}", NULL, NULL, ERR_FORMAT, "prepend"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        refuses(&(struct tiny_options){.replace = cases[i].replace,
                                       .model = cases[i].model,
                                       .added = cases[i].added},
                cases[i].code, cases[i].what);
}

/* Patterns that PCRE2 would take and read otherwise: each is refused with what is in it. */
static void refuses_patterns(void **state)
{
    (void)state;
    static const struct {
        const char *pattern, *what; /* the pattern as it stands in JSON */
    } cases[] = {
        {"[a&&b]", "&&"},
        {"[\\\\p{L}&&[a]]", "&&"},
        {"[^\\\\p{L}&&[^a]]", "&&"},
        {"[a[bc]]", "class inside"},
        {"[[:alpha:]]", "[:name:]"},
        {"[a--b]", "--"},
        {"\\\\Ga", "\\G"},
        {"a\\\\Kb", "\\K"},
        {"(?x)a b", "flag"},
        {"a(?i)b", "group"},
        {"(*UTF)a", "(*"},
        {"(?<n>a)", "group"},
        {"a{1,2}+", "{n,m}+"},
        {"\\\\xff", "raw byte"},
        {"\\\\p{Script=Han}", "key=value"},
        {"\\\\p{Nonesuch}", "unknown property"},
        {"(a", "cannot be used"},
        {"\\\\Qa", "\\Q"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char stages[256];
        snprintf(stages, sizeof stages,
                 ",\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":{\"Regex\":"
                 "\"%s\"}}",
                 cases[i].pattern);
        refuses(&(struct tiny_options){.replace = stages}, ERR_UNSUPPORTED, cases[i].what);
    }
}

/* A pattern with more ways through a text than there is time ends with an error. */
static void hostile_patterns_end(void **state)
{
    (void)state;
    static const char *const patterns[] = {"(a|a)*(a|aa)+$x", "(?:a+)+(?:a+)+(?:a+)+b", "(((a*)*)*)*c"};
    struct strbuf text = STRBUF_INIT;
    for (int i = 0; i < 20000; i++)
        strbuf_puts(&text, i % 30 ? "a" : "ad");
    strbuf_puts(&text, "dxbc"); /* without these a search for them would end it at once */
    for (size_t i = 0; i < ARRAY_LEN(patterns); i++) {
        char stages[256];
        struct ids ids = {0};
        struct err e = {0};
        snprintf(stages, sizeof stages,
                 ",\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":{\"Regex\":"
                 "\"%s\"}}",
                 patterns[i]);
        struct tokenizer *t = open_tiny(&(struct tiny_options){.replace = stages});
        assert_int_equal(tokenizer_encode(t, text.data, text.len, 0, &ids, &e), ERR_LIMIT);
        assert_non_null(strstr(e.message, patterns[i]));
        assert_int_equal(ids.n, 0);
        tokenizer_close(t);
        ids_release(&ids);
    }
    strbuf_release(&text);
}

/* The vocabulary goes through the decoders when it is opened: all of it, not each token, has so much time. */
static void patterns_of_decoders_end(void **state)
{
    (void)state;
    struct strbuf added = STRBUF_INIT;
    for (int i = 0; i < 60; i++) {
        strbuf_printf(&added, ",{\"id\":%d,\"content\":\"%d", TINY_VOCAB + i, i);
        for (int k = 0; k < 480; k++)
            strbuf_putc(&added, 'a');
        strbuf_puts(&added, "\",\"normalized\":false}");
    }
    refuses(&(struct tiny_options){.added = strbuf_cstr(&added),
                                   .replace = ",\"decoder\":{\"type\":\"Replace\",\"content\":\"\","
                                              "\"pattern\":{\"Regex\":\"(?:a|a){17}[bd]\"}}"},
            ERR_LIMIT, "takes too long");
    strbuf_release(&added);
}

/* A long run of one class, through a pattern whose compiled code needs a stack for it. */
static void long_runs_are_cut(void **state)
{
    (void)state;
    struct tokenizer *t = open_tiny(&(struct tiny_options){
        .replace = ",\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":{\"Regex\":"
                   "\"(?:(?!d)[a-c])*d\"}}"});
    struct strbuf text = STRBUF_INIT;
    struct ids ids = {0};
    struct err e = {0};
    for (int i = 0; i < 400000; i++)
        strbuf_putc(&text, 'a');
    strbuf_puts(&text, "db");
    if (tokenizer_encode(t, text.data, text.len, 0, &ids, &e))
        fail_msg("%s", e.message);
    assert_int_equal(ids.n, text.len);
    ids_release(&ids);
    strbuf_release(&text);
    tokenizer_close(t);
}

/* The last token of a text loses its suffix, the others turn it into a space: known only when the next comes.
 */
static void suffix_decoding(void **state)
{
    (void)state;
    struct tokenizer *t = open_tiny(&(struct tiny_options){
        .added = ",{\"id\":300,\"content\":\"x</w>\",\"special\":false,\"normalized\":false}",
        .replace = ",\"decoder\":{\"type\":\"BPEDecoder\",\"suffix\":\"</w>\"}"});
    decodes(t, (const int32_t[]){260, 300, 300, 261}, 4, "ax x b");
    decodes(t, (const int32_t[]){260, 300}, 2, "ax");
    decodes(t, NULL, 0, "");
    struct detokenizer d;
    struct strbuf out = STRBUF_INIT;
    detokenizer_init(&d, t, false);
    assert_int_equal(detokenizer_skip(&d, (const int32_t[]){300}, 1, NULL), 0);
    assert_int_equal(detokenizer_feed(&d, 300, &out, NULL), 0);
    assert_int_equal(detokenizer_finish(&d, &out, NULL), 0);
    assert_string_equal(strbuf_cstr(&out), "x");
    strbuf_release(&out);
    tokenizer_close(t);
}

static void tiktoken_files_are_checked(void **state)
{
    (void)state;
    static const struct {
        const char *text, *what;
    } cases[] = {
        {"", "no token is the byte"}, {"QQ==", "line 1"},
        {"QQ== x", "line 1"},         {"Q 1", "line 1"},
        {"QQ== 1\nQQ== 2", "line 2"}, {"QQ== 1\nQg== 1", "line 2"},
        {"QQ== 99999999", "rank"},    {"!!!! 1", "base64"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct tokenizer *t = NULL;
        struct err e = {0};
        const struct tiktoken_rule rule = {.pattern = "a"};
        int rc = tokenizer_open_tiktoken(&t, cases[i].text, strlen(cases[i].text), &rule, NULL, 0, NULL, &e);
        assert_null(t);
        if (rc != ERR_FORMAT || !strstr(e.message, cases[i].what))
            fail_msg("%s: %s: %s", cases[i].text, err_name(rc), e.message);
    }
    struct tokenizer *t = NULL;
    struct err e = {0};
    assert_int_equal(tokenizer_open_ranks(&t, "", 0, NULL, &(struct tiktoken_rule){0}, NULL, &e),
                     ERR_UNSUPPORTED);
    assert_non_null(strstr(e.message, "pat_str"));
}

static void refuses_bad_text(void **state)
{
    (void)state;
    struct tokenizer *t = open_tiny(&(struct tiny_options){0});
    struct ids ids = {0};
    struct err e = {0};
    assert_int_equal(tokenizer_encode(t, "ab\xFF", 3, 3, &ids, &e), ERR_FORMAT);
    assert_non_null(strstr(e.message, "byte 2"));
    assert_int_equal(ids.n, 0);
    assert_int_equal(tokenizer_encode(t, "", (size_t)65 << 20, 3, &ids, &e), ERR_LIMIT);
    ids_release(&ids);
    tokenizer_close(t);
}

/* No prefix of a file, and no file with one byte changed, may do anything but open or fail with a message. */
static void broken_files(void **state)
{
    (void)state;
    struct strbuf b = STRBUF_INIT;
    struct rng r;
    rng_init(&r, 7);
    tiny_tokenizer(&b, &(struct tiny_options){0});
    for (int i = 0; i < 3000; i++) {
        struct tokenizer *t = NULL;
        struct err e = {0};
        char *copy = malloc(b.len);
        assert_non_null(copy);
        memcpy(copy, b.data, b.len);
        size_t n = i % 2 ? b.len : rng_below(&r, b.len);
        for (int k = i % 3; k >= 0; k--)
            copy[rng_below(&r, b.len)] = (char)rng_below(&r, 128);
        if (tokenizer_open(&t, copy, n, NULL, &e) != ERR_OK)
            assert_true(e.message[0] != '\0' && t == NULL);
        tokenizer_close(t);
        free(copy);
    }
    strbuf_release(&b);
}

/* ---- words that are cut where nothing joins ---- */

#define LETTERS 6
#define MERGES  14

/* A vocabulary of letters and what random merges make of them. With a prefix ("#") what continues a word has
 * it, so a letter is two tokens. */
struct made_up {
    const char *prefix;
    char token[2 * LETTERS + MERGES][64];
    size_t n, n_merges;
    size_t left[MERGES], right[MERGES];
};

static const char *inner(const struct made_up *m, size_t id)
{
    return m->token[id] + (m->token[id][0] == '#' ? strlen(m->prefix) : 0);
}

static size_t find_token(const struct made_up *m, const char *text)
{
    size_t i = 0;
    while (i < m->n && strcmp(m->token[i], text) != 0)
        i++;
    return i;
}

/* Now and then the merge makes a token that there is already, of other parts. */
static void make_up(struct made_up *m, struct rng *r, const char *prefix)
{
    *m = (struct made_up){.prefix = prefix};
    for (int i = 0; i < LETTERS; i++) {
        snprintf(m->token[m->n++], sizeof m->token[0], "%c", 'a' + i);
        if (*prefix)
            snprintf(m->token[m->n++], sizeof m->token[0], "%s%c", prefix, 'a' + i);
    }
    while (m->n_merges < MERGES) {
        size_t left = rng_below(r, m->n), right = rng_below(r, m->n), k = 0;
        bool continues = m->token[right][0] == '#';
        while (k < m->n_merges && (m->left[k] != left || m->right[k] != right))
            k++;
        if (k < m->n_merges || continues != (*prefix != '\0') ||
            strlen(m->token[left]) + strlen(inner(m, right)) > 30)
            continue;
        char text[64];
        snprintf(text, sizeof text, "%.30s%.30s", m->token[left], inner(m, right));
        if (find_token(m, text) == m->n)
            memcpy(m->token[m->n++], text, sizeof text);
        m->left[m->n_merges] = left;
        m->right[m->n_merges++] = right;
    }
}

static struct tokenizer *open_made_up(const struct made_up *m)
{
    struct strbuf b = STRBUF_INIT;
    strbuf_printf(&b, "{\"model\":{\"type\":\"BPE\",\"continuing_subword_prefix\":\"%s\",\"vocab\":{",
                  m->prefix);
    for (size_t i = 0; i < m->n; i++)
        strbuf_printf(&b, "%s\"%s\":%zu", i ? "," : "", m->token[i], i);
    strbuf_puts(&b, "},\"merges\":[");
    for (size_t i = 0; i < m->n_merges; i++)
        strbuf_printf(&b, "%s\"%s %s\"", i ? "," : "", m->token[m->left[i]], m->token[m->right[i]]);
    strbuf_puts(&b, "]}}");
    struct tokenizer *t = open_text(b.data, b.len);
    strbuf_release(&b);
    return t;
}

/* The definition: of all pairs the one of the lowest rank, and of equals the leftmost, merges; again and
 * again.
 */
static size_t merge_by_definition(const struct made_up *m, size_t *word, size_t n)
{
    for (;;) {
        size_t best = m->n_merges, at = 0;
        for (size_t i = 0; i + 1 < n; i++)
            for (size_t k = 0; k < best; k++)
                if (m->left[k] == word[i] && m->right[k] == word[i + 1])
                    best = k, at = i;
        if (best == m->n_merges)
            return n;
        char text[64];
        snprintf(text, sizeof text, "%.30s%.30s", m->token[m->left[best]], inner(m, m->right[best]));
        word[at] = find_token(m, text);
        memmove(word + at + 1, word + at + 2, (n - at - 2) * sizeof *word);
        n--;
    }
}

static void long_words_are_merged_by_definition(void **state)
{
    (void)state;
    struct rng r;
    rng_init(&r, 7);
    for (int round = 0; round < 200; round++) {
        struct made_up m;
        struct ids ids = {0};
        struct err e = {0};
        char text[400];
        size_t word[400], n = 49 + rng_below(&r, 350);
        make_up(&m, &r, round % 2 ? "#" : "");
        struct tokenizer *t = open_made_up(&m);
        for (size_t i = 0; i < n; i++) {
            char letter[4] = {0};
            text[i] = (char)('a' + rng_below(&r, LETTERS));
            snprintf(letter, sizeof letter, "%s%c", i ? m.prefix : "", text[i]);
            word[i] = find_token(&m, letter);
        }
        assert_int_equal(tokenizer_encode(t, text, n, 0, &ids, &e), ERR_OK);
        n = merge_by_definition(&m, word, n);
        assert_int_equal(ids.n, n);
        for (size_t i = 0; i < n; i++)
            assert_int_equal(ids.data[i], word[i]);
        ids_release(&ids);
        tokenizer_close(t);
    }
}

/* A text of one million equal characters is one word here: merging it must not cost a square. */
static void long_word(void **state)
{
    (void)state;
    struct tokenizer *t = open_tiny(&(struct tiny_options){0});
    struct ids ids = {0};
    struct err e = {0};
    size_t n = 1000000;
    char *text = malloc(n);
    assert_non_null(text);
    memset(text, 'l', n);
    assert_int_equal(tokenizer_encode(t, text, n, 0, &ids, &e), ERR_OK);
    assert_int_equal(ids.n, 1 + n / 2);
    ids_release(&ids);
    free(text);
    tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_reference),
        cmocka_unit_test(merges_in_rank_order),
        cmocka_unit_test(options_of_the_model),
        cmocka_unit_test(added_tokens_and_special_ones),
        cmocka_unit_test(byte_level_round_trip),
        cmocka_unit_test(byte_fallback_decoding),
        cmocka_unit_test(metaspace_and_no_decoder),
        cmocka_unit_test(rare_pieces),
        cmocka_unit_test(stages_at_their_edges),
        cmocka_unit_test(ranges_without_special_tokens),
        cmocka_unit_test(refuses_by_name),
        cmocka_unit_test(refuses_patterns),
        cmocka_unit_test(hostile_patterns_end),
        cmocka_unit_test(patterns_of_decoders_end),
        cmocka_unit_test(long_runs_are_cut),
        cmocka_unit_test(suffix_decoding),
        cmocka_unit_test(tiktoken_files_are_checked),
        cmocka_unit_test(refuses_bad_text),
        cmocka_unit_test(broken_files),
        cmocka_unit_test(long_words_are_merged_by_definition),
        cmocka_unit_test(long_word),
    };
    return cmocka_run_group_tests_name("text", tests, NULL, NULL);
}
