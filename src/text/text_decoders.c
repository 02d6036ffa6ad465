/* SPDX-License-Identifier: Apache-2.0
 *
 * Readers of tokenizer.json's decoders. They are of three sorts, in this order: what changes one token, at
 * most one that joins bytes, and what may still be done to the whole text. Refuses any other order, and CTC.
 */
#include <string.h>

#include "text/text_impl.h"

static int after_join(const struct json *v, struct err *e)
{
    return err_set(e, ERR_UNSUPPORTED,
                   "tokenizer.json: decoder %.60s behind one that joins tokens is not implemented",
                   text_type_of(v));
}

/* A Strip behind Fuse cuts the beginning of the whole text; before, it cuts every token. */
static int read_strip(struct tokenizer *t, const struct json *v, struct err *e)
{
    struct span c;
    uint32_t code;
    uint64_t start, stop;
    if (!text_copy_string(t, json_get(v, "content"), &c) || c.n == 0 || utf8_decode(c.s, c.n, &code) != c.n)
        return text_malformed("decoder", v, "content", e);
    if (!json_u64(json_get(v, "start"), &start) || !json_u64(json_get(v, "stop"), &stop) || start > 1024 ||
        stop > 1024)
        return text_malformed("decoder", v, "start and stop", e);
    if (t->fused) {
        if (stop > 0 || t->strip_start > 0)
            return err_set(e, ERR_UNSUPPORTED,
                           "tokenizer.json: decoder Strip of the end of a whole text is not implemented");
        t->strip_start = (uint32_t)start;
        t->strip_char = c;
        return ERR_OK;
    }
    if (t->join != JOIN_PLAIN)
        return after_join(v, e);
    t->dec[t->n_dec++] =
        (struct dec_stage){.kind = DEC_STRIP, .content = c, .start = (uint32_t)start, .stop = (uint32_t)stop};
    return ERR_OK;
}

static int read_per_token(struct tokenizer *t, const struct json *v, struct err *e)
{
    struct dec_stage s = {.kind = DEC_REPLACE};
    if (t->join != JOIN_PLAIN || t->fused)
        return after_join(v, e);
    if (text_type_is(v, "Replace")) {
        int rc = text_read_pattern(t, "decoder", v, &s.pattern, &s.regex, e);
        if (rc)
            return rc;
        t->dec[t->n_dec++] = s; /* from here on closing the tokenizer frees it */
        return text_copy_string(t, json_get(v, "content"), &t->dec[t->n_dec - 1].content)
                   ? ERR_OK
                   : text_malformed("decoder", v, "content", e);
    } else if (text_type_is(v, "WordPiece")) {
        s.kind = DEC_WORDPIECE;
        if (!text_copy_string(t, json_get(v, "prefix"), &s.pattern))
            return text_malformed("decoder", v, "prefix", e);
        if (!text_read_flag(v, "cleanup", true, &s.cleanup))
            return text_malformed("decoder", v, "cleanup", e);
        t->first_differs = true;
    } else if (text_type_is(v, "BPEDecoder")) {
        s.kind = DEC_BPE;
        if (!text_copy_string(t, json_get(v, "suffix"), &s.pattern) || s.pattern.n == 0)
            return text_malformed("decoder", v, "suffix", e);
        t->last_differs = true;
    } else {
        bool split;
        s.kind = DEC_METASPACE;
        int rc = text_read_metaspace(t, "decoder", v, &s.pattern, &s.scheme, &split, e);
        if (rc)
            return rc;
        t->first_differs = t->first_differs || s.scheme != META_NEVER;
    }
    t->dec[t->n_dec++] = s;
    return ERR_OK;
}

int text_read_decoder(struct tokenizer *t, const struct json *v, unsigned depth, struct err *e)
{
    static const char part[] = "decoder";
    if (text_absent(v))
        return ERR_OK;
    if (t->join == JOIN_SPACE)
        t->join = JOIN_PLAIN;
    if (text_type_is(v, "Sequence"))
        return text_read_sequence(t, part, v, "decoders", text_read_decoder, depth, e);
    if (t->n_dec == TEXT_MAX_STAGES)
        return text_too_many(part, e);
    if (text_type_is(v, "Fuse")) {
        t->fused = true;
        return ERR_OK;
    }
    if (text_type_is(v, "Strip"))
        return read_strip(t, v, e);
    if (text_type_is(v, "ByteFallback") || text_type_is(v, "ByteLevel")) {
        if (t->join != JOIN_PLAIN || t->fused)
            return after_join(v, e);
        t->join = text_type_is(v, "ByteLevel") ? JOIN_BYTE_LEVEL : JOIN_BYTE_FALLBACK;
        t->fused = t->join == JOIN_BYTE_LEVEL;
        return ERR_OK;
    }
    if (text_type_is(v, "Replace") || text_type_is(v, "Metaspace") || text_type_is(v, "WordPiece") ||
        text_type_is(v, "BPEDecoder"))
        return read_per_token(t, v, e);
    return text_not_implemented(part, v, e);
}
