/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as a template, a NUL, and JSON variables: refused with a message, stopped by the caps, or
 * rendered twice to the same bytes, whose marked ranges are in order and within the text.
 */
#include <stdlib.h>
#include <string.h>

#include "text/text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char variables[] =
    "{\"messages\":[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\",\"content\":\"Gr\u00fc\u00dfe "
    "<s>\"},"
    "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"1\",\"function\":{\"name\":\"f\","
    "\"arguments\":{\"a\":[1,2.5,true,null]}}}]},{\"role\":\"tool\",\"content\":[{\"type\":\"text\",\"text\":"
    "\"t\"}]}],"
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}}],"
    "\"add_generation_prompt\":true,\"bos_token\":\"<s>\"}";

static void check(const struct jinja_output *out)
{
    size_t last = 0;
    if (!utf8_valid(strbuf_cstr(&out->text), out->text.len))
        abort();
    for (size_t i = 0; i < out->n_marked; i++) {
        if (out->marked[i].from >= out->marked[i].to || out->marked[i].to > out->text.len ||
            (i && out->marked[i].from <= last))
            abort();
        last = out->marked[i].to;
    }
}

static void render(const struct jinja_template *t, const struct json *root, bool spelling)
{
    struct jinja_variable v[32];
    struct jinja_output out = {0}, again = {0};
    struct jinja_options o = {.now = 1,
                              .max_steps = 200000,
                              .max_memory = 32 << 20,
                              .max_output = 1 << 20,
                              .json_spelling = spelling};
    struct err e = {0};
    size_t n = 0;
    for (uint32_t i = 0; root->type == JSON_OBJECT && i < root->n && n < ARRAY_LEN(v); i++)
        v[n++] =
            (struct jinja_variable){root->as.members[i].key, &root->as.members[i].value, NULL, i % 2 == 0};
    int rc = jinja_render(t, v, n, &o, &out, &e);
    if (rc ? e.message[0] == '\0' || out.text.data != NULL : jinja_render(t, v, n, &o, &again, NULL) != 0)
        abort();
    check(&out);
    if (rc == 0 && (out.text.len != again.text.len ||
                    memcmp(strbuf_cstr(&out.text), strbuf_cstr(&again.text), out.text.len) != 0))
        abort();
    jinja_output_release(&out);
    jinja_output_release(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct jinja_template *t = NULL;
    struct err e = {0};
    struct arena arena;
    const struct json *root = NULL;
    const uint8_t *end = size ? memchr(data, 0, size) : NULL;
    size_t n = end ? (size_t)(end - data) : size;
    if (jinja_open(&t, (const char *)data, n, NULL, &e) != ERR_OK) {
        if (t || e.message[0] == '\0')
            abort();
        return 0;
    }
    arena_init(&arena, NULL, MEM_MISC);
    if (end == NULL || json_parse((const char *)end + 1, size - n - 1, NULL, &arena, &root, NULL) != ERR_OK)
        if (json_parse(variables, sizeof variables - 1, NULL, &arena, &root, NULL) != ERR_OK)
            abort();
    render(t, root, false);
    render(t, root, true);
    jinja_close(t);
    arena_release(&arena);
    return 0;
}
