/* SPDX-License-Identifier: Apache-2.0
 *
 * Post-processors of tokenizer.json: which special tokens stand before and behind a text. Only single texts;
 * pairs are never encoded here. Refuses two that add tokens.
 */
#include <string.h>

#include "text/text_impl.h"

static int set_post(struct tokenizer *t, int32_t *before, size_t n_before, int32_t *after, size_t n_after,
                    struct err *e)
{
    if (t->n_before || t->n_after)
        return err_set(e, ERR_UNSUPPORTED,
                       "tokenizer.json: more than one post_processor that adds tokens is not implemented");
    t->post_before = before;
    t->n_before = n_before;
    t->post_after = after;
    t->n_after = n_after;
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
        return text_malformed("post_processor", v, "single", e);
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
    return set_post(t, before, n_before, after, n_after, e);
}

/* BertProcessing and RobertaProcessing: "cls": [token, id] before, "sep" behind. */
static int read_cls_sep(struct tokenizer *t, const struct json *v, struct err *e)
{
    int32_t *ids = arena_alloc_n(&t->arena, 2, sizeof *ids);
    if (ids == NULL)
        return err_set(e, ERR_NOMEM, "out of memory for the post-processor");
    for (int i = 0; i < 2; i++) {
        const char *key = i ? "sep" : "cls";
        int64_t id;
        if (!json_i64(json_at(json_get(v, key), 1), &id) || id < 0 || id >= (int64_t)t->n_ids)
            return text_malformed("post_processor", v, key, e);
        ids[i] = (int32_t)id;
    }
    return set_post(t, ids, 1, ids + 1, 1, e);
}

static int read_post(struct tokenizer *t, const struct json *v, unsigned depth, struct err *e)
{
    if (text_absent(v))
        return ERR_OK;
    if (text_type_is(v, "Sequence"))
        return text_read_sequence(t, "post_processor", v, "processors", read_post, depth, e);
    if (text_type_is(v, "ByteLevel"))
        return ERR_OK; /* trims offsets, which nobody here asks for */
    if (text_type_is(v, "TemplateProcessing"))
        return read_template(t, v, e);
    if (text_type_is(v, "BertProcessing") || text_type_is(v, "RobertaProcessing"))
        return read_cls_sep(t, v, e);
    return text_not_implemented("post_processor", v, e);
}

int text_read_post_processor(struct tokenizer *t, const struct json *v, struct err *e)
{
    return read_post(t, v, 0, e);
}
