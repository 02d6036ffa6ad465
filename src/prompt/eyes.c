/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: what a directory says of pictures, read once: the image processor, the rule of what stands for a
 * picture, the token that takes a row of features; and the findings about them. A processor that is not
 * understood keeps nobody from the model's text: its reason is kept, and told when a picture comes.
 */
#include <string.h>

#include "prompt/prompt_impl.h"

static bool has_tower(const struct spec *s)
{
    for (size_t i = 0; i < s->n_weights; i++)
        if (s->weights[i].group == GROUP_VISION)
            return true;
    return false;
}

int eyes_open(struct prompt_front *p, struct ckpt *c, struct findings *f, bool *bad, struct err *e)
{
    struct placeholder_rules rules;
    struct image_configs configs = {0};
    struct err why = {0}, damaged = {0};
    bool found = false;
    int rc = placeholders_compile(p, &found, &rules, &why);
    if (rc == ERR_FORMAT) {
        finding_add(f, FINDING_C007, p->spec->arch_name, "%s", why.message);
        *bad = true;
        return ERR_OK;
    }
    if (rc || !found || !has_tower(p->spec)) {
        if (rc && e)
            *e = why;
        return rc;
    }
    rc = front_json(p, c, "preprocessor_config.json", &configs.preprocessor, &damaged, e);
    if (rc == 0)
        rc = front_json(p, c, "processor_config.json", &configs.processor, &damaged, e);
    if (rc == 0)
        rc = front_json(p, c, "config.json", &configs.model, &damaged, e);
    if (rc)
        return rc;
    struct prompt_eyes *eyes = arena_alloc(&p->arena, sizeof *eyes);
    if (eyes == NULL)
        return err_set(e, ERR_NOMEM, "out of memory for the image processor");
    *eyes = (struct prompt_eyes){.rules = rules, .token_id = tokenizer_id(p->tokenizer, rules.token)};
    if (damaged.code || image_processor_open(&configs, NULL, &eyes->processor, &why))
        eyes->refused = damaged.code ? damaged : why;
    p->eyes = eyes;
    front_add_media(p, eyes->token_id);
    return ERR_OK;
}

/* How often the template writes the marker for a message of one picture and a text; -1: it refuses. */
static int64_t markers_written(const struct prompt_front *p, struct err *why)
{
    static const char text[] = "[{\"role\": \"user\", \"content\": [{\"type\": \"image\"}, {\"type\": "
                               "\"text\", \"text\": \"?\"}]}]";
    struct arena arena;
    const struct json *messages = NULL, *list = NULL;
    int64_t n = -1;
    arena_init(&arena, NULL, MEM_TEXT);
    const struct prompt_chat chat = {.media = true};
    struct prompt_chat q = chat;
    int rc = json_parse(text, sizeof text - 1, NULL, &arena, &messages, why);
    q.messages = messages;
    if (rc == 0 && p->spec->has_chat && !p->template_works) {
        rc = prompt_segments(p->spec, &q, &arena, &list, why);
        for (uint32_t i = 0; rc == 0 && i < list->n; i++) {
            bool special = false;
            const struct json *item = json_at(list, i);
            n = n < 0 ? 0 : n;
            json_bool(json_get(item, "special"), &special);
            n += special && strcmp(json_string(json_get(item, "text")), p->eyes->rules.marker) == 0;
        }
    } else if (rc == 0) {
        struct jinja_output out = {0};
        rc = chat_render(p, &q, &out, why);
        if (rc == 0)
            n = placeholders_count(p, &out);
        jinja_output_release(&out);
    }
    arena_release(&arena);
    return n;
}

int prompt_check_pictures(const struct prompt_front *p, struct findings *f, struct err *e)
{
    const struct prompt_eyes *eyes = p->eyes;
    struct err why = {0};
    if (eyes == NULL)
        return ERR_OK;
    if (eyes->refused.code)
        finding_add(f, FINDING_I001, "image processor", "%s", eyes->refused.message);
    const char *names[] = {eyes->rules.marker, eyes->rules.token};
    for (size_t i = 0; i < (strcmp(names[0], names[1]) == 0 ? 1 : 2); i++)
        if (tokenizer_id(p->tokenizer, names[i]) < 0)
            finding_add_severity(f, FINDING_I002, SEVERITY_WARNING, names[i], NULL,
                                 "%s says that it stands for pictures, and the tokenizer does not have it",
                                 p->spec->arch_name);
    const int32_t stated = p->spec->vision ? p->spec->tower.image_token : -1;
    if (stated >= 0 && eyes->token_id >= 0 && stated != eyes->token_id)
        finding_add(f, FINDING_I002, eyes->rules.token,
                    "config.json says that token %d stands for pictures, and the tokenizer has it as %d",
                    stated, eyes->token_id);
    if (!p->template_works && !p->spec->has_chat)
        return ERR_OK; /* there is nothing that could write one; messages are refused as a whole */
    int64_t n = markers_written(p, &why);
    if (why.code == ERR_NOMEM) {
        if (e)
            *e = why;
        return ERR_NOMEM;
    }
    if (n < 0)
        finding_add(f, FINDING_I003, "chat template", "a message with a picture is refused: %s", why.message);
    else if (n != 1)
        finding_add(f, FINDING_I003, "chat template", "for one picture it writes %s %lld times",
                    eyes->rules.marker, (long long)n);
    return ERR_OK;
}
