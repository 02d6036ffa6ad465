/* SPDX-License-Identifier: Apache-2.0
 *
 * What an architecture file says of chats: whether it renders messages, its rules for the output, and the
 * call of its chat function. Every call has a sandbox of its own, so one request leaves nothing for the next.
 */
#include "script/script.h"
#include "spec/spec_internal.h"

/* A chat of some hundred messages needs a few of each. */
#define CHAT_MAX_BYTES        (256u << 20)
#define CHAT_MAX_INSTRUCTIONS 100000000u
#define CHAT_MAX_NS           5000000000u

int spec_read_chat(struct spec *s, struct script *script, struct err *e)
{
    const struct json *d = NULL;
    int rc = script_call(script, "day0_describe_chat", NULL, 0, &s->arena, &d, e);
    if (rc)
        return rc;
    json_bool(json_get(d, "chat"), &s->has_chat);
    s->output = json_get(d, "output");
    s->placeholders = json_get(d, "placeholders");
    if (s->has_chat) { /* it runs again for every chat */
        s->arch_file.name = s->arch_name;
        s->arch_file.text = arena_strndup(&s->arena, s->arch_file.text, s->arch_file.n);
        if (s->arch_file.text == NULL)
            return err_set(e, ERR_NOMEM, "no memory for the architecture file");
    }
    return ERR_OK;
}

int spec_chat(const struct spec *s, const struct json *messages, const struct json *options,
              struct arena *arena, const struct json **result, struct err *e)
{
    static const struct script_limits limits = {
        .max_bytes = CHAT_MAX_BYTES, .max_instructions = CHAT_MAX_INSTRUCTIONS, .max_wall_ns = CHAT_MAX_NS};
    const struct json *args[] = {messages, options};
    struct script *script = NULL;
    if (!s->has_chat)
        return err_set(e, ERR_UNSUPPORTED, "%s has no chat function", s->arch_name);
    int rc = spec_script(&s->arch_file, &limits, &script, e);
    if (rc == 0)
        rc = script_call_ordered(script, "day0_chat", args, 2, arena, result, e);
    script_close(script);
    return rc;
}
