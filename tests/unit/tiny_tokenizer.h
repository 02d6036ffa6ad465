/* SPDX-License-Identifier: Apache-2.0
 *
 * A tokenizer.json made in the test itself: <unk> <s> </s>, 256 byte tokens, the marker, a-z, a few merges.
 * Llama's stages. Owns nothing; the text goes into the caller's strbuf. 300 ids, so that any small model of
 * at least that vocabulary can use it.
 */
#ifndef TESTS_TINY_TOKENIZER_H
#define TESTS_TINY_TOKENIZER_H

#include <stdio.h>
#include <string.h>

#include "base/str.h"

#define TINY_VOCAB 300
#define TINY_MARK  "\xE2\x96\x81"

struct tiny_options {
    bool pairs;          /* merges as ["a", "b"] */
    const char *model;   /* more members of "model", each with a leading comma */
    const char *added;   /* more elements of "added_tokens", each with a leading comma */
    const char *replace; /* JSON of the four stages, with a leading comma; NULL: Llama's */
};

static inline void tiny_tokenizer(struct strbuf *b, const struct tiny_options *o)
{
    static const char *const merges[][2] = {
        {"t", "h"}, {"th", "e"}, {TINY_MARK, "the"}, {"a", "n"},    {"an", "d"}, {TINY_MARK, "and"},
        {"l", "l"}, {"e", "ll"}, {"h", "ell"},       {"hell", "o"}, {"i", "n"},  {"in", "g"}};
    strbuf_puts(b, "{\"version\":\"1.0\",\"added_tokens\":[");
    static const char *const special[] = {"<unk>", "<s>", "</s>"};
    for (int i = 0; i < 3; i++)
        strbuf_printf(b, "%s{\"id\":%d,\"content\":\"%s\",\"special\":true,\"normalized\":false}",
                      i ? "," : "", i, special[i]);
    strbuf_puts(b, o->added ? o->added : "");
    strbuf_puts(b, "]");
    strbuf_puts(
        b, o->replace
               ? o->replace
               : ",\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":"
                 "\"" TINY_MARK
                 "\"},{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"" TINY_MARK "\"}]},"
                 "\"pre_tokenizer\":null,\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":["
                 "{\"SpecialToken\":{\"id\":\"<s>\",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":"
                 "0}}],"
                 "\"special_tokens\":{\"<s>\":{\"id\":\"<s>\",\"ids\":[1],\"tokens\":[\"<s>\"]}}},"
                 "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{"
                 "\"String\":\"" TINY_MARK
                 "\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},"
                 "{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]}");
    strbuf_printf(b, ",\"model\":{\"type\":\"BPE\",\"unk_token\":\"<unk>\"%s,\"vocab\":{",
                  o->model ? o->model : ",\"byte_fallback\":true,\"fuse_unk\":true");
    int id = 0;
    for (; id < 3; id++)
        strbuf_printf(b, "\"%s\":%d,", special[id], id);
    for (int i = 0; i < 256; i++)
        strbuf_printf(b, "\"<0x%02X>\":%d,", i, id++);
    strbuf_printf(b, "\"" TINY_MARK "\":%d", id++);
    for (char c = 'a'; c <= 'z'; c++)
        strbuf_printf(b, ",\"%c\":%d", c, id++);
    for (size_t i = 0; i < sizeof merges / sizeof *merges; i++)
        strbuf_printf(b, ",\"%s%s\":%d", merges[i][0], merges[i][1], id++);
    strbuf_printf(b, ",\"x y\":%d,\"xy\":%d", id, id + 1);
    strbuf_puts(b, "},\"merges\":[");
    for (size_t i = 0; i < sizeof merges / sizeof *merges; i++)
        strbuf_printf(b, o->pairs ? "%s[\"%s\",\"%s\"]" : "%s\"%s %s\"", i ? "," : "", merges[i][0],
                      merges[i][1]);
    strbuf_puts(b, "]}}");
}

#endif
