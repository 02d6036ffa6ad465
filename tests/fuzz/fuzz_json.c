/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as JSON: what parses must be found by its keys, and survive writing and reading again unchanged.
 */
#include <stdint.h>
#include <string.h>

#include "base/json.h"

static void equal(const struct json *a, const struct json *b)
{
    if (a->type != b->type || a->n != b->n)
        BUG("type or size changed");
    switch (a->type) {
    case JSON_NULL:
        break;
    case JSON_BOOL:
        if (a->as.boolean != b->as.boolean)
            BUG("a boolean changed");
        break;
    case JSON_INT:
    case JSON_UINT:
    case JSON_DOUBLE:
        if (memcmp(&a->as, &b->as, sizeof(a->as)) != 0)
            BUG("a number changed");
        break;
    case JSON_STRING:
        if (memcmp(a->as.string, b->as.string, a->n) != 0 || a->as.string[a->n])
            BUG("a string changed");
        break;
    case JSON_ARRAY:
        for (uint32_t i = 0; i < a->n; i++)
            equal(json_at(a, i), json_at(b, i));
        break;
    case JSON_OBJECT:
        for (uint32_t i = 0; i < a->n; i++) {
            const struct json_member *m = &a->as.members[i], *k = &b->as.members[i];
            if (m->key_bytes != k->key_bytes || memcmp(m->key, k->key, m->key_bytes) != 0)
                BUG("a key changed");
            if (strlen(m->key) == m->key_bytes && json_get(a, m->key) != &m->value)
                BUG("a member is not found");
            equal(&m->value, &k->value);
        }
        break;
    }
}

static void round_trip(const struct json *v, bool pretty)
{
    struct strbuf text = STRBUF_INIT;
    struct json_writer w;
    struct arena arena;
    const struct json *again;
    arena_init(&arena, NULL, MEM_MISC);
    json_writer_init(&w, &text, pretty);
    json_write_tree(&w, v);
    if (strbuf_failed(&text) || json_parse(text.data, text.len, NULL, &arena, &again, NULL))
        BUG("what was written cannot be read: %s", strbuf_cstr(&text));
    equal(v, again);
    arena_release(&arena);
    strbuf_release(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct arena arena;
    struct err e = {0};
    const struct json *v = NULL;
    arena_init(&arena, NULL, MEM_MISC);
    int rc = json_parse((const char *)data, size, NULL, &arena, &v, &e);
    if ((rc == ERR_OK) != (v != NULL) || rc != e.code || (rc && !e.message[0]))
        BUG("result, tree and error do not agree");
    if (v) {
        round_trip(v, false);
        round_trip(v, true);
    }
    arena_release(&arena);
    return 0;
}
