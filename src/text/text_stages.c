/* SPDX-License-Identifier: Apache-2.0
 *
 * Readers of the stages of tokenizer.json: normalizer, pre_tokenizer, post_processor, decoder. Each turns one
 * JSON object into one small struct of text_impl.h. Refuses, by its name, every type and every option that
 * the runners do not implement: a tokenizer that is only nearly right gives wrong text without any error.
 */
#include <string.h>

#include "text/text_impl.h"

#define MAX_DEPTH 8

static const char *type_of(const struct json *v)
{
    const char *s = json_string(json_get(v, "type"));
    return s ? s : "(no type)";
}

static bool type_is(const struct json *v, const char *name)
{
    return strcmp(type_of(v), name) == 0;
}

static bool absent(const struct json *v)
{
    return v == NULL || v->type == JSON_NULL;
}

/* An optional boolean; false if it is there and no boolean. */
static bool read_flag(const struct json *v, const char *key, bool fallback, bool *out)
{
    const struct json *f = json_get(v, key);
    *out = fallback;
    return absent(f) || json_bool(f, out);
}

bool text_copy_string(struct tokenizer *t, const struct json *v, struct span *out)
{
    if (json_string(v) == NULL || v->n > TEXT_MAX_TOKEN)
        return false;
    char *copy = arena_strndup(&t->arena, v->as.string, v->n);
    if (copy == NULL)
        return false;
    memcpy(copy, v->as.string, v->n); /* NUL is a character like another */
    *out = (struct span){copy, v->n};
    return true;
}

static int malformed(const char *part, const struct json *v, const char *key, struct err *e)
{
    return err_set(e, ERR_FORMAT, "tokenizer.json: %s %s: \"%s\" is missing or of the wrong type", part,
                   type_of(v), key);
}

/* Calls `read` for every element of v[key]. */
typedef int (*stage_reader)(struct tokenizer *t, const struct json *v, unsigned depth, struct err *e);

static int read_sequence(struct tokenizer *t, const char *part, const struct json *v, const char *key,
                         stage_reader read, unsigned depth, struct err *e)
{
    const struct json *list = json_get(v, key);
    if (list == NULL || list->type != JSON_ARRAY)
        return malformed(part, v, key, e);
    if (depth >= MAX_DEPTH)
        return err_set(e, ERR_LIMIT, "tokenizer.json: %s: sequences nested deeper than %d", part, MAX_DEPTH);
    for (uint32_t i = 0; i < list->n; i++) {
        int rc = read(t, json_at(list, i), depth + 1, e);
        if (rc)
            return rc;
    }
    return ERR_OK;
}

/* "pattern": {"String": s}. A regular expression is refused with its text. */
static int read_pattern(struct tokenizer *t, const char *part, const struct json *v, struct span *out,
                        struct err *e)
{
    const struct json *pattern = json_get(v, "pattern");
    const char *regex = json_string(json_get(pattern, "Regex"));
    if (regex != NULL)
        return err_set(e, ERR_UNSUPPORTED,
                       "tokenizer.json: %s %s with a regular expression (%.60s) is not implemented", part,
                       type_of(v), regex);
    if (!text_copy_string(t, json_get(pattern, "String"), out) || out->n == 0)
        return malformed(part, v, "pattern", e);
    return ERR_OK;
}

static int too_many(const char *part, struct err *e)
{
    return err_set(e, ERR_LIMIT, "tokenizer.json: %s: more than %d stages", part, TEXT_MAX_STAGES);
}

int text_read_normalizer(struct tokenizer *t, const struct json *v, unsigned depth, struct err *e)
{
    static const char part[] = "normalizer";
    if (absent(v))
        return ERR_OK;
    if (type_is(v, "Sequence"))
        return read_sequence(t, part, v, "normalizers", text_read_normalizer, depth, e);
    if (t->n_norm == TEXT_MAX_STAGES)
        return too_many(part, e);
    struct norm_stage *s = &t->norm[t->n_norm];
    if (type_is(v, "Prepend")) {
        s->kind = NORM_PREPEND;
        if (!text_copy_string(t, json_get(v, "prepend"), &s->content))
            return malformed(part, v, "prepend", e);
    } else if (type_is(v, "Replace")) {
        s->kind = NORM_REPLACE;
        int rc = read_pattern(t, part, v, &s->pattern, e);
        if (rc)
            return rc;
        if (!text_copy_string(t, json_get(v, "content"), &s->content))
            return malformed(part, v, "content", e);
    } else {
        return err_set(e, ERR_UNSUPPORTED, "tokenizer.json: normalizer %.60s is not implemented", type_of(v));
    }
    t->n_norm++;
    return ERR_OK;
}

/* replacement, prepend_scheme (or the older add_prefix_space) and split of a Metaspace */
static int read_metaspace(struct tokenizer *t, const char *part, const struct json *v,
                          struct span *replacement, enum meta_scheme *scheme, bool *split, struct err *e)
{
    uint32_t c;
    if (!text_copy_string(t, json_get(v, "replacement"), replacement) || replacement->n == 0 ||
        utf8_decode(replacement->s, replacement->n, &c) != replacement->n)
        return malformed(part, v, "replacement", e);
    bool prefix;
    if (!read_flag(v, "add_prefix_space", true, &prefix))
        return malformed(part, v, "add_prefix_space", e);
    if (!read_flag(v, "split", true, split))
        return malformed(part, v, "split", e);
    *scheme = prefix ? META_ALWAYS : META_NEVER;
    const struct json *given = json_get(v, "prepend_scheme");
    if (absent(given))
        return ERR_OK;
    const char *name = json_string(given);
    if (name && strcmp(name, "always") == 0)
        *scheme = META_ALWAYS;
    else if (name && strcmp(name, "first") == 0)
        *scheme = META_FIRST;
    else if (name && strcmp(name, "never") == 0)
        *scheme = META_NEVER;
    else
        return malformed(part, v, "prepend_scheme", e);
    return ERR_OK;
}

int text_read_pre_tokenizer(struct tokenizer *t, const struct json *v, unsigned depth, struct err *e)
{
    static const char part[] = "pre_tokenizer";
    if (absent(v))
        return ERR_OK;
    if (type_is(v, "Sequence"))
        return read_sequence(t, part, v, "pretokenizers", text_read_pre_tokenizer, depth, e);
    if (t->n_pre == TEXT_MAX_STAGES)
        return too_many(part, e);
    struct pre_stage *s = &t->pre[t->n_pre];
    if (type_is(v, "ByteLevel")) {
        bool regex;
        s->kind = PRE_BYTE_LEVEL;
        if (!read_flag(v, "use_regex", true, &regex))
            return malformed(part, v, "use_regex", e);
        if (!read_flag(v, "add_prefix_space", true, &s->add_prefix_space))
            return malformed(part, v, "add_prefix_space", e);
        if (regex)
            return err_set(e, ERR_UNSUPPORTED,
                           "tokenizer.json: pre_tokenizer ByteLevel with use_regex is not implemented");
    } else if (type_is(v, "Metaspace")) {
        s->kind = PRE_METASPACE;
        int rc = read_metaspace(t, part, v, &s->replacement, &s->scheme, &s->split, e);
        if (rc)
            return rc;
    } else {
        return err_set(e, ERR_UNSUPPORTED, "tokenizer.json: pre_tokenizer %.60s is not implemented",
                       type_of(v));
    }
    t->n_pre++;
    return ERR_OK;
}

/* Appends the ids of one special token of the template. */
static int template_ids(struct tokenizer *t, const struct json *specials, const char *name, int32_t **list,
                        size_t *n, struct err *e)
{
    const struct json *ids = json_get(json_get(specials, name), "ids");
    if (ids == NULL || ids->type != JSON_ARRAY || ids->n > 64)
        return err_set(e, ERR_FORMAT,
                       "tokenizer.json: post_processor TemplateProcessing: special token %.60s has no ids",
                       name);
    int32_t *grown = arena_alloc_n(&t->arena, *n + ids->n, sizeof *grown);
    if (grown == NULL)
        return err_set(e, ERR_NOMEM, "out of memory for the post-processor");
    if (*n)
        memcpy(grown, *list, *n * sizeof *grown);
    for (uint32_t i = 0; i < ids->n; i++) {
        int64_t id;
        if (!json_i64(json_at(ids, i), &id) || id < 0 || id >= (int64_t)t->n_ids)
            return err_set(
                e, ERR_FORMAT,
                "tokenizer.json: post_processor: special token %.60s has an id outside the vocabulary", name);
        grown[*n + i] = (int32_t)id;
    }
    *list = grown;
    *n += ids->n;
    return ERR_OK;
}

static int read_template(struct tokenizer *t, const struct json *v, struct err *e)
{
    const struct json *single = json_get(v, "single");
    if (single == NULL || single->type != JSON_ARRAY || single->n > 64)
        return malformed("post_processor", v, "single", e);
    int32_t *before = NULL, *after = NULL;
    size_t n_before = 0, n_after = 0;
    bool seen = false;
    for (uint32_t i = 0; i < single->n; i++) {
        const struct json *item = json_at(single, i);
        const char *sequence = json_string(json_get(json_get(item, "Sequence"), "id"));
        const char *special = json_string(json_get(json_get(item, "SpecialToken"), "id"));
        if (sequence && strcmp(sequence, "A") == 0 && !seen) {
            seen = true;
        } else if (special) {
            int rc = template_ids(t, json_get(v, "special_tokens"), special, seen ? &after : &before,
                                  seen ? &n_after : &n_before, e);
            if (rc)
                return rc;
        } else {
            return err_set(
                e, ERR_UNSUPPORTED,
                "tokenizer.json: post_processor TemplateProcessing: item %u of \"single\" is not implemented",
                i);
        }
    }
    if (!seen)
        return err_set(e, ERR_FORMAT,
                       "tokenizer.json: post_processor TemplateProcessing: \"single\" lacks the sequence A");
    if (t->n_before || t->n_after)
        return err_set(e, ERR_UNSUPPORTED,
                       "tokenizer.json: more than one post_processor that adds tokens is not implemented");
    t->post_before = before;
    t->n_before = n_before;
    t->post_after = after;
    t->n_after = n_after;
    return ERR_OK;
}

static int read_post(struct tokenizer *t, const struct json *v, unsigned depth, struct err *e)
{
    if (absent(v))
        return ERR_OK;
    if (type_is(v, "Sequence"))
        return read_sequence(t, "post_processor", v, "processors", read_post, depth, e);
    if (type_is(v, "ByteLevel"))
        return ERR_OK; /* trims offsets, which nobody here asks for */
    if (type_is(v, "TemplateProcessing"))
        return read_template(t, v, e);
    return err_set(e, ERR_UNSUPPORTED, "tokenizer.json: post_processor %.60s is not implemented", type_of(v));
}

int text_read_post_processor(struct tokenizer *t, const struct json *v, struct err *e)
{
    return read_post(t, v, 0, e);
}

static int after_join(const struct json *v, struct err *e)
{
    return err_set(e, ERR_UNSUPPORTED,
                   "tokenizer.json: decoder %.60s behind one that joins tokens is not implemented",
                   type_of(v));
}

/* A Strip behind Fuse cuts the beginning of the whole text; before, it cuts every token. */
static int read_strip(struct tokenizer *t, const struct json *v, struct err *e)
{
    struct span c;
    uint32_t code;
    uint64_t start, stop;
    if (!text_copy_string(t, json_get(v, "content"), &c) || c.n == 0 || utf8_decode(c.s, c.n, &code) != c.n)
        return malformed("decoder", v, "content", e);
    if (!json_u64(json_get(v, "start"), &start) || !json_u64(json_get(v, "stop"), &stop) || start > 1024 ||
        stop > 1024)
        return malformed("decoder", v, "start and stop", e);
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
    if (type_is(v, "Replace")) {
        int rc = read_pattern(t, "decoder", v, &s.pattern, e);
        if (rc)
            return rc;
        if (!text_copy_string(t, json_get(v, "content"), &s.content))
            return malformed("decoder", v, "content", e);
    } else {
        bool split;
        s.kind = DEC_METASPACE;
        int rc = read_metaspace(t, "decoder", v, &s.pattern, &s.scheme, &split, e);
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
    if (absent(v))
        return ERR_OK;
    if (t->join == JOIN_SPACE)
        t->join = JOIN_PLAIN;
    if (type_is(v, "Sequence"))
        return read_sequence(t, part, v, "decoders", text_read_decoder, depth, e);
    if (t->n_dec == TEXT_MAX_STAGES)
        return too_many(part, e);
    if (type_is(v, "Fuse")) {
        t->fused = true;
        return ERR_OK;
    }
    if (type_is(v, "Strip"))
        return read_strip(t, v, e);
    if (type_is(v, "ByteFallback") || type_is(v, "ByteLevel")) {
        if (t->join != JOIN_PLAIN || t->fused)
            return after_join(v, e);
        t->join = type_is(v, "ByteLevel") ? JOIN_BYTE_LEVEL : JOIN_BYTE_FALLBACK;
        t->fused = t->join == JOIN_BYTE_LEVEL;
        return ERR_OK;
    }
    if (type_is(v, "Replace") || type_is(v, "Metaspace"))
        return read_per_token(t, v, e);
    return err_set(e, ERR_UNSUPPORTED, "tokenizer.json: decoder %.60s is not implemented", type_of(v));
}
