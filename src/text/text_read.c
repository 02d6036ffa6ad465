/* SPDX-License-Identifier: Apache-2.0
 *
 * What the readers of tokenizer.json's parts share: types, flags, strings, sequences, patterns. Refuses, by
 * its name, whatever is not implemented: a tokenizer that is only nearly right gives wrong text without any
 * error.
 */
#include <stdio.h>
#include <string.h>

#include "text/text_impl.h"

const char *text_type_of(const struct json *v)
{
    const char *s = json_string(json_get(v, "type"));
    return s ? s : "(no type)";
}

bool text_type_is(const struct json *v, const char *name)
{
    return strcmp(text_type_of(v), name) == 0;
}

bool text_absent(const struct json *v)
{
    return v == NULL || v->type == JSON_NULL;
}

/* An optional boolean; false if it is there and no boolean. */
bool text_read_flag(const struct json *v, const char *key, bool fallback, bool *out)
{
    const struct json *f = json_get(v, key);
    *out = fallback;
    return text_absent(f) || json_bool(f, out);
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

int text_malformed(const char *part, const struct json *v, const char *key, struct err *e)
{
    return err_set(e, ERR_FORMAT, "tokenizer.json: %s %s: \"%s\" is missing or of the wrong type", part,
                   text_type_of(v), key);
}

int text_read_sequence(struct tokenizer *t, const char *part, const struct json *v, const char *key,
                       stage_reader read, unsigned depth, struct err *e)
{
    const struct json *list = json_get(v, key);
    if (list == NULL || list->type != JSON_ARRAY)
        return text_malformed(part, v, key, e);
    if (depth >= TEXT_MAX_DEPTH)
        return err_set(e, ERR_LIMIT, "tokenizer.json: %s: sequences nested deeper than %d", part,
                       TEXT_MAX_DEPTH);
    for (uint32_t i = 0; i < list->n; i++) {
        int rc = read(t, json_at(list, i), depth + 1, e);
        if (rc)
            return rc;
    }
    return ERR_OK;
}

int text_read_pattern(struct tokenizer *t, const char *part, const struct json *v, struct span *out,
                      struct regex **regex, struct err *e)
{
    const struct json *pattern = json_get(v, "pattern"), *r = json_get(pattern, "Regex");
    char where[128];
    if (json_string(r)) {
        snprintf(where, sizeof where, "tokenizer.json: %s %.40s", part, text_type_of(v));
        return regex_compile(regex, r->as.string, r->n, REGEX_ONIG, where, e);
    }
    if (!text_copy_string(t, json_get(pattern, "String"), out) || out->n == 0)
        return text_malformed(part, v, "pattern", e);
    return ERR_OK;
}

int text_too_many(const char *part, struct err *e)
{
    return err_set(e, ERR_LIMIT, "tokenizer.json: %s: more than %d stages", part, TEXT_MAX_STAGES);
}

int text_not_implemented(const char *part, const struct json *v, struct err *e)
{
    return err_set(e, ERR_UNSUPPORTED, "tokenizer.json: %s %.60s is not implemented", part, text_type_of(v));
}

/* replacement, prepend_scheme (or the older add_prefix_space) and split of a Metaspace */
int text_read_metaspace(struct tokenizer *t, const char *part, const struct json *v, struct span *replacement,
                        enum meta_scheme *scheme, bool *split, struct err *e)
{
    uint32_t c;
    if (!text_copy_string(t, json_get(v, "replacement"), replacement) || replacement->n == 0 ||
        utf8_decode(replacement->s, replacement->n, &c) != replacement->n)
        return text_malformed(part, v, "replacement", e);
    bool prefix;
    if (!text_read_flag(v, "add_prefix_space", true, &prefix))
        return text_malformed(part, v, "add_prefix_space", e);
    if (!text_read_flag(v, "split", true, split))
        return text_malformed(part, v, "split", e);
    *scheme = prefix ? META_ALWAYS : META_NEVER;
    const struct json *given = json_get(v, "prepend_scheme");
    if (text_absent(given))
        return ERR_OK;
    const char *name = json_string(given);
    if (name && strcmp(name, "always") == 0)
        *scheme = META_ALWAYS;
    else if (name && strcmp(name, "first") == 0)
        *scheme = META_FIRST;
    else if (name && strcmp(name, "never") == 0)
        *scheme = META_NEVER;
    else
        return text_malformed(part, v, "prepend_scheme", e);
    return ERR_OK;
}
