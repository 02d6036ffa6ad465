/* SPDX-License-Identifier: Apache-2.0
 *
 * Two inputs, by the first byte. 'p': the rest is a pattern, with ranks that are right, then NUL and a text:
 * refused with a message, or the text encodes to ids that decode to it. Else the rest is a rank file.
 */
#include <stdlib.h>
#include <string.h>

#include "text/text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MAX_TEXT 256 /* bytes: limits of time are tested elsewhere */

static void ranks_of_bytes(struct strbuf *b)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (unsigned i = 0; i < 256; i++)
        strbuf_printf(b, "%c%c== %u\n", digits[i >> 2], digits[(i & 3) << 4], i);
    strbuf_puts(b, "YWI= 256\nYWJj 257\n");
}

static void round_trip(const struct tokenizer *t, const char *text, size_t n)
{
    struct ids ids = {0};
    struct err e = {0};
    struct strbuf back = STRBUF_INIT;
    struct detokenizer d;
    int rc = tokenizer_encode(t, text, n, 0, &ids, &e);
    if (rc && (ids.n != 0 || e.message[0] == '\0'))
        abort();
    detokenizer_init(&d, t, true);
    for (size_t i = 0; i < ids.n; i++)
        if (detokenizer_feed(&d, ids.data[i], &back, NULL) || !utf8_valid(strbuf_cstr(&back), back.len))
            abort();
    if (rc == 0 && (back.len != n || memcmp(strbuf_cstr(&back), text, n) != 0))
        abort(); /* nothing is lost, whatever the pattern is */
    strbuf_release(&back);
    ids_release(&ids);
}

static void try_pattern(const uint8_t *data, size_t size)
{
    struct strbuf ranks = STRBUF_INIT, pattern = STRBUF_INIT;
    struct tokenizer *t = NULL;
    struct err e = {0};
    const uint8_t *end = memchr(data, 0, size);
    size_t n = end ? (size_t)(end - data) : size, length = end ? size - n - 1 : 0;
    strbuf_add(&pattern, (const char *)data, n);
    ranks_of_bytes(&ranks);
    const struct tiktoken_rule rule = {.pattern = strbuf_cstr(&pattern), .piece_chars = 40, .run_chars = 7};
    int rc = tokenizer_open_tiktoken(&t, ranks.data, ranks.len, &rule, NULL, 0, NULL, &e);
    if (rc && (t || e.message[0] == '\0'))
        abort();
    if (rc == 0)
        round_trip(t, end ? (const char *)end + 1 : "", length < MAX_TEXT ? length : MAX_TEXT);
    tokenizer_close(t);
    strbuf_release(&ranks);
    strbuf_release(&pattern);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tokenizer *t = NULL;
    struct err e = {0};
    if (size > 0 && data[0] == 'p') {
        try_pattern(data + 1, size - 1);
        return 0;
    }
    const struct tiktoken_special special = {300, "[EOS]", true};
    const struct tiktoken_rule rule = {.pattern = " ?\\p{L}+", .reserved = 60};
    int rc = tokenizer_open_tiktoken(&t, (const char *)data, size, &rule, &special, 1, NULL, &e);
    if (rc && (t || e.message[0] == '\0'))
        abort();
    if (rc == 0)
        round_trip(t, "abc [EOS] \xC3\xA9", 12);
    tokenizer_close(t);
    return 0;
}
