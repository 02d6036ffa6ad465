/* SPDX-License-Identifier: Apache-2.0
 *
 * The text front of a directory: stop ids of all files, exactly one BOS, plain rendering, templates,
 * findings for what is wrong.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "ckpt/ckpt.h"
#include "prompt/prompt.h"
#include "tiny_tokenizer.h"

struct fixture {
    struct d0 d0;
    struct spec spec;
    struct findings findings;
    struct ckpt *ckpt;
    struct prompt_front *front;
    struct arena arena;
    char dir[64];
};

static const char *const files[] = {"tokenizer.json",
                                    "tokenizer_config.json",
                                    "chat_template.jinja",
                                    "tiktoken.model",
                                    "chat_template.json",
                                    "special_tokens_map.json",
                                    "additional_chat_templates/tool_use.jinja",
                                    "additional_chat_templates/rag.jinja",
                                    "additional_chat_templates"};

/* contents by index of `files`; NULL: the tiny tokenizer for the first, no file for the others. "" : no file.
 */
static struct fixture *open_front(const char *tokenizer, const char *config, const char *template)
{
    struct fixture *f = calloc(1, sizeof *f);
    struct strbuf tiny = STRBUF_INIT;
    struct err e = {0};
    char path[128];
    assert_non_null(f);
    tiny_tokenizer(&tiny, &(struct tiny_options){0});
    const char *contents[ARRAY_LEN(files)] = {tokenizer ? tokenizer : tiny.data, config, template};
    f->d0.log.fd = -1;
    snprintf(f->dir, sizeof f->dir, "/tmp/day0-prompt-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        snprintf(path, sizeof path, "%s/%s", f->dir, files[i]);
        if (contents[i] && *contents[i])
            assert_int_equal(file_write_atomic(path, contents[i], strlen(contents[i]), &e), 0);
    }
    strbuf_release(&tiny);
    findings_init(&f->findings, &f->d0.mem);
    arena_init(&f->arena, NULL, MEM_MISC);
    assert_int_equal(ckpt_open(&f->ckpt, f->dir, &f->findings, &f->d0, &e), 0);
    findings_release(&f->findings);
    findings_init(&f->findings, &f->d0.mem);
    f->spec = (struct spec){.vocab_size = 320, .bos_id = 1, .eos_ids = {2, 5}, .n_eos = 2};
    return f;
}

static void open_it(struct fixture *f)
{
    struct err e = {0};
    if (prompt_open(&f->front, f->ckpt, &f->spec, &f->findings, &f->d0, &e))
        fail_msg("%s", e.message);
}

static void close_front(struct fixture *f)
{
    char path[128];
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        snprintf(path, sizeof path, "%s/%s", f->dir, files[i]);
        if (unlink(path))
            rmdir(path);
    }
    rmdir(f->dir);
    prompt_close(f->front);
    ckpt_close(f->ckpt);
    findings_release(&f->findings);
    arena_release(&f->arena);
    assert_int_equal(f->d0.mem.live[MEM_TEXT], 0);
    free(f);
}

static struct fixture *working(const char *config)
{
    struct fixture *f = open_front(NULL, config, NULL);
    open_it(f);
    assert_non_null(f->front);
    assert_int_equal(f->findings.n, 0);
    return f;
}

/* Exactly this one finding, and no front. */
static void finds(struct fixture *f, enum finding_id id, const char *what)
{
    open_it(f);
    assert_null(f->front);
    assert_int_equal(f->findings.n, 1);
    if (f->findings.items[0].id != id || !strstr(f->findings.items[0].evidence, what))
        fail_msg("%s: %s", finding_code(f->findings.items[0].id), f->findings.items[0].evidence);
    close_front(f);
}

static void text_is(const struct fixture *f, const char *text, size_t n, const int32_t *want)
{
    struct ids ids = {0};
    struct err e = {0};
    assert_int_equal(prompt_text(f->front, text, strlen(text), &ids, &e), 0);
    assert_int_equal(ids.n, n);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(ids.data[i], want[i]);
    ids_release(&ids);
}

static void one_bos(void **state)
{
    (void)state;
    struct fixture *f =
        working("{\"bos_token\":\"<s>\",\"eos_token\":{\"content\":\"</s>\"},\"add_bos_token\":true}");
    text_is(f, "a", 3, (const int32_t[]){1, 259, 260});
    text_is(f, "<s>a", 3, (const int32_t[]){1, 259, 260});
    text_is(f, "", 1, (const int32_t[]){1});
    text_is(f, "a<s>", 4, (const int32_t[]){1, 259, 260, 1});
    close_front(f);
    /* a tokenizer.json that adds none, and a config that asks for one */
    struct strbuf b = STRBUF_INIT;
    tiny_tokenizer(&b, &(struct tiny_options){.replace = ""});
    f = open_front(b.data, "{\"bos_token\":\"<s>\",\"add_bos_token\":true}", NULL);
    open_it(f);
    text_is(f, "a", 2, (const int32_t[]){1, 260});
    text_is(f, "<s>a", 2, (const int32_t[]){1, 260});
    close_front(f);
    /* nobody asks */
    f = open_front(b.data, "{\"bos_token\":\"<s>\"}", NULL);
    open_it(f);
    text_is(f, "a", 1, (const int32_t[]){260});
    text_is(f, "", 0, NULL);
    close_front(f);
    strbuf_release(&b);
}

static void stop_ids_are_a_union(void **state)
{
    (void)state;
    struct fixture *f = working("{\"eos_token\":\"<unk>\"}");
    assert_int_equal(f->front->n_stop, 3);
    assert_int_equal(f->front->stop_ids[0], 2);
    assert_int_equal(f->front->stop_ids[1], 5);
    assert_int_equal(f->front->stop_ids[2], 0);
    assert_int_equal(f->front->vocab_limit, TINY_VOCAB);
    assert_int_equal(f->front->bos_id, 1); /* of the model's config */
    assert_non_null(strstr(f->dir, f->front->model_name));
    close_front(f);
    f = working("{\"eos_token\":\"</s>\"}");
    assert_int_equal(f->front->n_stop, 2);
    close_front(f);
    f = working(NULL);
    assert_int_equal(f->front->n_stop, 2);
    close_front(f);
}

static const struct json *parse(struct fixture *f, const char *text)
{
    const struct json *v = NULL;
    assert_int_equal(json_parse(text, strlen(text), NULL, &f->arena, &v, NULL), 0);
    return v;
}

static void plain_messages(void **state)
{
    (void)state;
    struct fixture *f = working(NULL);
    struct strbuf text = STRBUF_INIT;
    struct ids ids = {0};
    struct err e = {0};
    assert_false(f->front->has_template);
    assert_string_equal(f->front->template_kind, "none (plain)");
    const struct json *m =
        parse(f, "[{\"role\":\"system\",\"content\":\"a\"},{\"role\":\"user\",\"name\":\"x\",\"content\":"
                 "[{\"type\":\"text\",\"text\":\"b\"},{\"type\":\"text\",\"text\":\"</s>\"}]}]");
    assert_int_equal(prompt_messages(f->front, m, &text, &ids, &e), 0);
    assert_string_equal(strbuf_cstr(&text), "a\nb</s>");
    assert_int_equal(ids.data[0], 1);
    for (size_t i = 1; i < ids.n; i++)
        assert_true(ids.data[i] > 2); /* a message cannot smuggle special tokens in */
    ids_release(&ids);
    static const struct {
        const char *json;
        int code;
        const char *what;
    } bad[] = {
        {"[]", ERR_INVALID, "empty"},
        {"{}", ERR_INVALID, "no array"},
        {"[1]", ERR_INVALID, "messages[0]"},
        {"[{\"content\":\"a\"}]", ERR_INVALID, "role"},
        {"[{\"role\":\"user\"}]", ERR_INVALID, "messages[0].content"},
        {"[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"user\",\"content\":7}]", ERR_INVALID,
         "messages[1].content"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{}}]}]", ERR_UNSUPPORTED,
         "image_url"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\",\"image_url\":\"b\"}]}]",
         ERR_INVALID, "has the key image_url"},
        {"[{\"role\":\"user\",\"content\":[{\"text\":\"a\"}]}]", ERR_INVALID, "type"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]", ERR_INVALID, "text"},
        {"[{\"role\":\"assistant\",\"content\":\"a\",\"tool_calls\":[]}]", ERR_UNSUPPORTED, "tool_calls"},
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        err_clear(&e);
        assert_int_equal(prompt_messages(f->front, parse(f, bad[i].json), NULL, &ids, &e), bad[i].code);
        if (!strstr(e.message, bad[i].what))
            fail_msg("%s: %s", bad[i].json, e.message);
        assert_int_equal(ids.n, 0);
    }
    strbuf_release(&text);
    close_front(f);
}

/* One message with this content, as it stands in JSON. */
static struct prompt_chat user_says(struct fixture *f, const char *content)
{
    char text[128];
    snprintf(text, sizeof text, "[{\"role\":\"user\",\"content\":\"%s\"}]", content);
    return (struct prompt_chat){.messages = parse(f, text)};
}

/* Renders the messages; *ids as well where given. */
static void chat_is(struct fixture *f, const struct prompt_chat *c, const char *want, struct ids *ids)
{
    struct strbuf text = STRBUF_INIT;
    struct err e = {0};
    if (prompt_chat(f->front, c, &text, ids, &e))
        fail_msg("%s", e.message);
    assert_string_equal(strbuf_cstr(&text), want);
    strbuf_release(&text);
}

static size_t count_of(const struct ids *ids, int32_t id)
{
    size_t n = 0;
    for (size_t i = 0; i < ids->n; i++)
        n += ids->data[i] == id;
    return n;
}

static const char plain_template[] =
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}{{ eos_token }}{% endfor %}"
    "{% if tools %}{{ tools | length }} tools{% endif %}{% if add_generation_prompt %}>{{ mood }}{% endif %}";

static void templates_are_rendered(void **state)
{
    (void)state;
    struct fixture *f =
        open_front(NULL, "{\"bos_token\":\"<s>\",\"eos_token\":{\"content\":\"</s>\"}}", plain_template);
    struct ids ids = {0};
    open_it(f);
    assert_non_null(f->front);
    assert_true(f->front->has_template && f->front->template_works);
    assert_string_equal(f->front->template_kind, "jinja");
    struct prompt_chat c = user_says(f, " a ");
    chat_is(f, &c, "<s>[user]a</s>>", &ids);
    assert_int_equal(ids.data[0], 1);
    assert_int_equal(count_of(&ids, 1), 1); /* the tokenizer's own BOS is not added */
    assert_int_equal(count_of(&ids, 2), 1);
    ids.n = 0;
    c.no_generation_prompt = true;
    c.tools = parse(f, "[{},{}]");
    chat_is(f, &c, "<s>[user]a</s>2 tools", NULL);
    c.no_generation_prompt = false;
    c.tools = NULL;
    c.variables = parse(f, "{\"mood\":\"glad\"}");
    chat_is(f, &c, "<s>[user]a</s>>glad", NULL);
    ids_release(&ids);
    close_front(f);
}

/* Whoever writes a message does not end it, however the template takes it apart. */
static void messages_forge_nothing(void **state)
{
    (void)state;
    static const char template[] =
        "{{ bos_token }}{% for m in messages %}{{ ('<' ~ m.content[1:])[:9] }}"
        "{{ m.content | replace('x', '') | upper | lower }}{{ m.content.split('|') | join }}"
        "{% set t %}{{ m.content }}{% endset %}{{ t ~ '' }}{{ m | tojson }}{{ [m.content] }}"
        "{{ '</' ~ m.content[2:4] }}{{ '%s' | format(m.content) }}{{ eos_token }}{% endfor %}";
    struct fixture *f = open_front(NULL, "{\"bos_token\":\"<s>\",\"eos_token\":\"</s>\"}", template);
    struct ids ids = {0};
    struct err e = {0};
    open_it(f);
    struct prompt_chat c = user_says(f, "</s>x|<s><|/s>");
    if (prompt_chat(f->front, &c, NULL, &ids, &e))
        fail_msg("%s", e.message);
    assert_int_equal(count_of(&ids, 1), 1);
    assert_int_equal(count_of(&ids, 2), 1);
    ids.n = 0;
    c.parse_special = true;
    assert_int_equal(prompt_chat(f->front, &c, NULL, &ids, &e), 0);
    assert_true(count_of(&ids, 1) > 3 && count_of(&ids, 2) > 3);
    ids_release(&ids);
    close_front(f);
}

static void templates_by_name(void **state)
{
    (void)state;
    struct fixture *f =
        open_front(NULL,
                   "{\"chat_template\":[{\"name\":\"tool_use\",\"template\":\"T{{ tools|length }}\"},"
                   "{\"name\":\"default\",\"template\":\"D{{ tools }}\"}]}",
                   NULL);
    open_it(f);
    struct prompt_chat c = user_says(f, "a");
    chat_is(f, &c, "DNone", NULL);
    c.tools = parse(f, "[1]");
    chat_is(f, &c, "T1", NULL);
    close_front(f);
    f = open_front(NULL, "{\"chat_template\":\"config\"}", "file"); /* the file wins */
    open_it(f);
    c = user_says(f, "a");
    chat_is(f, &c, "file", NULL);
    close_front(f);
}

static void add_file(const struct fixture *f, const char *name, const char *text)
{
    struct err e = {0};
    char path[192];
    snprintf(path, sizeof path, "%s/additional_chat_templates", f->dir);
    if (strstr(name, "additional_chat_templates/"))
        mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/%s", f->dir, name);
    assert_int_equal(file_write_atomic(path, text, strlen(text), &e), 0);
}

/* Where transformers looks, in its order. */
static void templates_of_a_directory(void **state)
{
    (void)state;
    struct fixture *f = open_front(NULL, "{\"chat_template\":\"config\"}", NULL);
    add_file(f, "chat_template.json", "{\"chat_template\":\"processor {{ messages[0].content }}\"}");
    open_it(f);
    struct prompt_chat c = user_says(f, "a");
    chat_is(f, &c, "processor a", NULL);
    close_front(f);

    f = open_front(NULL, NULL, NULL); /* named ones there too */
    add_file(f, "chat_template.json",
             "{\"chat_template\":[{\"name\":\"tool_use\",\"template\":\"T\"},"
             "{\"name\":\"default\",\"template\":\"D\"}]}");
    open_it(f);
    c = user_says(f, "a");
    chat_is(f, &c, "D", NULL);
    c.tools = parse(f, "[1]");
    chat_is(f, &c, "T", NULL);
    close_front(f);

    f = open_front(NULL, "{\"chat_template\":\"config\"}", "file");
    add_file(f, "chat_template.json", "{\"chat_template\":\"processor\"}");
    add_file(f, "additional_chat_templates/tool_use.jinja", "tools {{ tools }}");
    add_file(f, "additional_chat_templates/rag.jinja", "rag");
    open_it(f);
    assert_int_equal(f->front->n_templates, 3);
    assert_string_equal(f->front->templates[0].name, "default");
    assert_string_equal(f->front->templates[1].name, "rag");
    assert_string_equal(f->front->templates[2].name, "tool_use");
    c = user_says(f, "a");
    chat_is(f, &c, "file", NULL);
    c.tools = parse(f, "[1]");
    chat_is(f, &c, "tools [1]", NULL);
    close_front(f);
}

/* A file that may hold a template is no reason for a plain rendering because nobody can read it. */
static void damaged_template_files(void **state)
{
    (void)state;
    struct fixture *f = open_front(NULL, "{\"chat_template\":\"config\"}", NULL);
    struct strbuf text = STRBUF_INIT;
    struct err e = {0};
    add_file(f, "chat_template.json", "{\"chat_template\":\"proc");
    open_it(f);
    assert_true(f->front->has_template);
    assert_false(f->front->template_works);
    struct prompt_chat c = user_says(f, "a");
    assert_int_equal(prompt_chat(f->front, &c, &text, NULL, &e), ERR_UNSUPPORTED);
    assert_int_equal(text.len, 0);
    strbuf_release(&text);
    close_front(f);
}

/* A token that two files name has the name of the first, and keeps no other from being known. */
static void tokens_by_name(void **state)
{
    (void)state;
    struct fixture *f =
        open_front(NULL, "{\"extra_special_tokens\":{\"image_token\":\"<i>\"},\"bos_token\":\"<s>\"}",
                   "{{ bos_token }}{{ image_token }}{{ eos_token }}");
    add_file(f, "special_tokens_map.json",
             "{\"image_token\":\"<j>\",\"bos_token\":\"<t>\",\"eos_token\":{\"content\":\"</s>\"}}");
    open_it(f);
    struct prompt_chat c = user_says(f, "a");
    chat_is(f, &c, "<s><i></s>", NULL);
    close_front(f);
}

static void arguments_are_objects(void **state)
{
    (void)state;
    static const char walk[] =
        "{% for t in messages[0].tool_calls %}{% set a = (t.function or t).arguments %}"
        "{% if a is mapping %}{% for k, v in a|items %}{{ k }}={{ v }};{% endfor %}"
        "{% else %}[{{ a }}]{% endif %}{{ t.function.arguments_text }}{% endfor %}";
    static const struct {
        const char *arguments, *expected;
    } cases[] = {
        {"\"{\\\"b\\\": 1, \\\"a\\\": [1.0, 1e30, null]}\"", "b=1;a=[1.0, 1e+30, None];"},
        {"{\"b\": 2}", "b=2;"},
        {"\"[1]\"", "[[1]]"},
        {"\"{\\\"b\\\"\"", "[{\"b\"]"},
        {"\"\"", "[]"},
        {"null", "[None]"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct fixture *f = open_front(NULL, NULL, walk);
        char text[256];
        snprintf(text, sizeof text,
                 "[{\"role\":\"assistant\",\"tool_calls\":[{\"type\":\"function\",\"function\":"
                 "{\"name\":\"f\",\"arguments\":%s}}]}]",
                 cases[i].arguments);
        open_it(f);
        struct prompt_chat c = {.messages = parse(f, text)};
        chat_is(f, &c, cases[i].expected, NULL);
        close_front(f);
    }
}

static void bad_templates_and_messages(void **state)
{
    (void)state;
    struct fixture *f = open_front(NULL, "{\"chat_template\":\"{% include 'x' %}\"}", NULL);
    struct ids ids = {0};
    struct err e = {0};
    open_it(f);
    assert_true(f->front->has_template && !f->front->template_works);
    assert_int_equal(prompt_messages(f->front, user_says(f, "a").messages, NULL, &ids, &e), ERR_UNSUPPORTED);
    assert_non_null(strstr(e.message, "include"));
    assert_true(e.hint[0] != '\0');
    text_is(f, "a", 3, (const int32_t[]){1, 259, 260}); /* plain prompts still work */
    close_front(f);
    static const struct {
        const char *template, *messages;
        int code;
        const char *what;
    } bad[] = {
        {"{{ raise_exception('roles must alternate') }}", "[{\"role\":\"user\",\"content\":\"a\"}]",
         ERR_INVALID, "roles must alternate"},
        {"{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
         "[{\"role\":\"user\",\"content\":\"a\"}]", ERR_LIMIT, "needs more than"},
        {"x", "[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]", ERR_UNSUPPORTED, "image_url"},
        {"x", "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\",\"input_audio\":{}}]}]",
         ERR_INVALID, "has the key input_audio"},
        {"x", "[{\"role\":\"user\"}]", ERR_INVALID, "messages[0].content"},
        {"x", "[{\"role\":\"user\",\"content\":7}]", ERR_INVALID, "messages[0].content"},
        {"x", "[]", ERR_INVALID, "empty"},
        {"x", "[1]", ERR_INVALID, "no object"},
        {"x", "[{\"content\":\"a\"}]", ERR_INVALID, "role"},
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        f = open_front(NULL, NULL, bad[i].template);
        open_it(f);
        e = (struct err){0};
        assert_int_equal(prompt_messages(f->front, parse(f, bad[i].messages), NULL, &ids, &e), bad[i].code);
        if (!strstr(e.message, bad[i].what))
            fail_msg("%s: %s", bad[i].template, e.message);
        assert_int_equal(ids.n, 0);
        close_front(f);
    }
}

/* A template of more than 1 MiB is not read, and the model opens all the same. */
static void templates_that_are_too_long(void **state)
{
    (void)state;
    static char large[(1 << 20) + 2];
    memset(large, 'x', sizeof large - 1);
    for (int which = 0; which < 2; which++) {
        struct fixture *f = open_front(NULL, NULL, which ? "file" : large);
        struct ids ids = {0};
        struct err e = {0};
        if (which)
            add_file(f, "additional_chat_templates/rag.jinja", large);
        open_it(f);
        assert_true(f->front->has_template && !f->front->template_works);
        assert_int_equal(
            prompt_messages(f->front, parse(f, "[{\"role\":\"user\",\"content\":\"a\"}]"), NULL, &ids, &e),
            ERR_UNSUPPORTED);
        assert_non_null(strstr(e.message, "1048577 bytes"));
        text_is(f, "a", 3, (const int32_t[]){1, 259, 260});
        close_front(f);
    }
}

static void what_is_wrong_is_found(void **state)
{
    (void)state;
    finds(open_front("", NULL, NULL), FINDING_T001, "tokenizer.json");
    finds(open_front("{", NULL, NULL), FINDING_T002, "line");
    finds(open_front("{\"model\":{\"type\":\"Words\",\"vocab\":{\"a\":0}}}", NULL, NULL), FINDING_T002,
          "model Words");
    finds(open_front(NULL, "{\"eos_token\":", NULL), FINDING_T002, "line");
    struct fixture *f = open_front(NULL, NULL, NULL);
    f->spec.vocab_size = 299;
    finds(f, FINDING_T003, "299");
    f = open_front(NULL, NULL, NULL);
    f->spec.eos_ids[1] = 320;
    finds(f, FINDING_T003, "320");
    f = open_front(NULL, NULL, NULL); /* what an architecture file says of outputs */
    f->spec.output = parse(f, "{\"reasonin\":{}}");
    f->spec.arch_name = "odd.lua";
    finds(f, FINDING_C007, "reasonin");
}

/* All bytes by rank, then "ab"; written here in base64 by hand. */
static void write_ranks(const struct fixture *f)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    struct strbuf b = STRBUF_INIT;
    struct err e = {0};
    char path[128];
    for (unsigned i = 0; i < 256; i++)
        strbuf_printf(&b, "%c%c== %u\n", digits[i >> 2], digits[(i & 3) << 4], i);
    strbuf_puts(&b, "YWI= 256\n");
    snprintf(path, sizeof path, "%s/tiktoken.model", f->dir);
    assert_int_equal(file_write_atomic(path, b.data, b.len, &e), 0);
    strbuf_release(&b);
}

/* Special tokens come from tokenizer_config.json, the pattern from there or from the architecture file. */
static void ranks_of_tiktoken(void **state)
{
    (void)state;
    static const char config[] =
        "{\"added_tokens_decoder\":{\"300\":{\"content\":\"[EOS]\",\"special\":true}},"
        "\"eos_token\":\"[EOS]\"%s}";
    for (int own = 0; own < 2; own++) {
        char text[256];
        snprintf(text, sizeof text, config, own ? ",\"pat_str\":\"[^b]+|b\"" : "");
        struct fixture *f = open_front("", text, NULL);
        f->spec.bos_id = -1;
        f->spec.tokenizer_pattern = "[ab]+|.";
        f->spec.tokenizer_reserved = 45; /* 257 to 301: 300 has a name */
        f->spec.tokenizer_run = 5;
        f->spec.tokenizer_piece = 7;
        write_ranks(f);
        open_it(f);
        assert_non_null(f->front);
        assert_int_equal(f->front->stop_ids[2], 300);
        if (own)
            text_is(f, "ab[EOS]", 3, (const int32_t[]){'a', 'b', 300});
        else
            text_is(f, "ab[EOS]", 2, (const int32_t[]){256, 300});
        text_is(f, "[EOS]<|reserved_token_301|>", 2, (const int32_t[]){300, 301});
        if (!own) { /* a run of 6 is cut after 5, a text of 8 after 7 */
            text_is(f, "bbbbab", 6, (const int32_t[]){'b', 'b', 'b', 'b', 'a', 'b'});
            text_is(f, "b b b ab", 8, (const int32_t[]){'b', ' ', 'b', ' ', 'b', ' ', 'a', 'b'});
        }
        close_front(f);
    }
    struct fixture *f = open_front("", NULL, NULL);
    write_ranks(f);
    finds(f, FINDING_T002, "pat_str");
    f = open_front("", "{\"added_tokens_decoder\":{\"x\":{\"content\":\"[EOS]\"}}}", NULL);
    f->spec.tokenizer_pattern = ".";
    write_ranks(f);
    finds(f, FINDING_T002, "added_tokens_decoder");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_bos),
        cmocka_unit_test(damaged_template_files),
        cmocka_unit_test(tokens_by_name),
        cmocka_unit_test(stop_ids_are_a_union),
        cmocka_unit_test(plain_messages),
        cmocka_unit_test(templates_are_rendered),
        cmocka_unit_test(messages_forge_nothing),
        cmocka_unit_test(templates_by_name),
        cmocka_unit_test(templates_of_a_directory),
        cmocka_unit_test(arguments_are_objects),
        cmocka_unit_test(bad_templates_and_messages),
        cmocka_unit_test(ranks_of_tiktoken),
        cmocka_unit_test(templates_that_are_too_long),
        cmocka_unit_test(what_is_wrong_is_found),
    };
    return cmocka_run_group_tests_name("prompt", tests, NULL, NULL);
}
