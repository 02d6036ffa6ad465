/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: what config.json may say in more than one place or spelling. Which of two flags ties the embedding,
 * per family and as transformers 5.24 decides it; the text nested under any name; one rotation in every
 * spelling; null for absent; no list of architectures. Configurations of released models, edited.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "ckpt/ckpt.h"
#include "spec/spec_internal.h"

#define CONFIGS "tests/parity/configs/"

/* path: "text_config.num_hidden_layers"; value: JSON text, or NULL to leave the member out */
struct edit {
    const char *path, *value;
};

struct opened {
    char dir[64];
    struct arena arena;
    struct d0 d0;
    struct findings f;
    struct ckpt *c;
    struct spec *s;
};

/* ---- editing ---- */

static const struct edit *edit_of(const struct edit *edits, const char *path)
{
    const struct edit *last = NULL; /* the last one counts */
    for (; edits && edits->path; edits++)
        if (strcmp(edits->path, path) == 0)
            last = edits;
    return last;
}

static void write_edited(struct json_writer *w, const struct json *v, const char *at,
                         const struct edit *edits)
{
    json_begin_object(w);
    for (uint32_t i = 0; i < v->n; i++) {
        const struct json_member *m = &v->as.members[i];
        char path[200];
        snprintf(path, sizeof path, "%s%s", at, m->key);
        if (edit_of(edits, path))
            continue;
        json_key(w, m->key);
        if (m->value.type == JSON_OBJECT) {
            snprintf(path, sizeof path, "%s%s.", at, m->key);
            write_edited(w, &m->value, path, edits);
        } else {
            json_write_tree(w, &m->value);
        }
    }
    size_t n = strlen(at);
    for (const struct edit *x = edits; x && x->path; x++) /* those of this level, new ones too */
        if (strncmp(x->path, at, n) == 0 && !strchr(x->path + n, '.') && x->value &&
            edit_of(edits, x->path) == x) {
            json_key(w, x->path + n);
            json_write_raw(w, x->value);
        }
    json_end_object(w);
}

static const struct json *read_config(struct arena *a, const char *name)
{
    const char *root = getenv("DAY0_MATERIAL");
    const struct json *tree = NULL;
    struct err e = {0};
    char path[600], *text;
    size_t n;
    if (str_starts(name, "material/"))
        snprintf(path, sizeof path, "%s/%s", root ? root : TEST_SOURCE_ROOT "/../shared/material",
                 name + strlen("material/"));
    else
        snprintf(path, sizeof path, "%s/%s", TEST_SOURCE_ROOT, name);
    if (file_read(path, 8 << 20, a, &text, &n, &e) == ERR_MISSING && str_starts(name, "material/"))
        return NULL;
    if (e.code || json_parse(text, n, NULL, a, &tree, &e))
        fail_msg("%s", e.message);
    return tree;
}

/* ---- opening ---- */

/* Plain: hundreds of files that nobody keeps need no care for power cuts. */
static void put(const struct opened *x, const char *name, const char *text)
{
    char path[120];
    snprintf(path, sizeof path, "%s/%s", x->dir, name);
    FILE *f = fopen(path, "w");
    if (!f || fputs(text, f) < 0 || fclose(f))
        fail_msg("%s cannot be written", path);
}

/* A shard of one small tensor. */
static void put_tensor(const struct opened *x, const char *name)
{
    static const char zeros[32];
    char path[120], header[300] = "";
    snprintf(path, sizeof path, "%s/model.safetensors", x->dir);
    snprintf(header + 8, sizeof header - 8,
             "{\"%s\":{\"dtype\":\"BF16\",\"shape\":[4,4],\"data_offsets\":[0,32]}}", name);
    size_t n = strlen(header + 8);
    header[0] = (char)n; /* little-endian, below 128 */
    assert_true(n < 128);
    FILE *f = fopen(path, "w");
    if (!f || fwrite(header, 1, 8 + n, f) != 8 + n || fwrite(zeros, 1, 32, f) != 32 || fclose(f))
        fail_msg("%s cannot be written", path);
}

/* head: a tensor of that name is there, or NULL: no tensors. arch: a file of one's own, or NULL. */
static void open_text(struct opened *x, const char *config, const char *head, const char *arch)
{
    char path[120];
    struct err e = {0};
    *x = (struct opened){.d0.log.fd = -1, .dir = "/tmp/day0-traps-XXXXXX"};
    findings_init(&x->f, NULL);
    assert_non_null(mkdtemp(x->dir));
    put(x, "config.json", config);
    if (arch)
        put(x, "arch.lua", arch);
    if (head)
        put_tensor(x, head);
    snprintf(path, sizeof path, "%s/arch.lua", x->dir);
    struct spec_options o = {.arch_path = arch ? path : NULL};
    if (ckpt_open(&x->c, x->dir, &x->f, &x->d0, &e) || spec_open(&x->s, x->c, &o, &x->f, &x->d0, &e))
        fail_msg("%s", e.message);
}

static void open_edited(struct opened *x, const struct json *config, const struct edit *edits,
                        const char *head)
{
    struct strbuf text = STRBUF_INIT;
    struct json_writer w;
    json_writer_init(&w, &text, false);
    write_edited(&w, config, "", edits);
    open_text(x, strbuf_cstr(&text), head, NULL);
    strbuf_release(&text);
}

static void close_opened(struct opened *x)
{
    static const char *const names[] = {"config.json", "arch.lua", "model.safetensors"};
    char path[120];
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        snprintf(path, sizeof path, "%s/%s", x->dir, names[i]);
        unlink(path);
    }
    rmdir(x->dir);
    spec_close(x->s);
    ckpt_close(x->c);
    findings_release(&x->f);
}

static const char *why_not(const struct opened *x)
{
    for (size_t i = 0; i < x->f.n; i++)
        if (finding_code(x->f.items[i].id)[0] == 'C' && x->f.items[i].severity == SEVERITY_ERROR)
            return x->f.items[i].evidence;
    return "no finding says why";
}

static const struct finding *finding_of(const struct opened *x, enum finding_id id)
{
    for (size_t i = 0; i < x->f.n; i++)
        if (x->f.items[i].id == id)
            return &x->f.items[i];
    return NULL;
}

/* ---- ties ---- */

/* Three rows for the outer flag (absent, false, true), in each the three of the inner one: T tied, F not;
 * lower case where C008 must say which one counts. `files`: the same with a head among the tensors. */
struct tie {
    const char *config, *inner, *head, *alone, *files;
};

#define EITHER    "FFT FFt TtT", "FFT FFf TfT"
#define OUTER_NO  "FFf FFf TtT", "FFf FFf TfT"
#define OUTER_YES "TtT FFf TtT", "FFT FFf TfT"

static const struct tie ties[] = {
    {CONFIGS "olmocr-qwen2-vl-7b.json", "text_config", "lm_head.weight", EITHER},
    {CONFIGS "qwen2.5-vl-7b-instruct.json", "text_config", "lm_head.weight", EITHER},
    {CONFIGS "llava-1.5-7b-hf.json", "text_config", "language_model.lm_head.weight", EITHER},
    {CONFIGS "pixtral-12b.json", "text_config", "language_model.lm_head.weight", EITHER},
    {CONFIGS "llava-v1.6-mistral-7b-hf.json", "text_config", "language_model.lm_head.weight", OUTER_NO},
    {CONFIGS "qwen3-vl-2b-instruct.json", "text_config", "lm_head.weight", OUTER_NO},
    {CONFIGS "qwen3-vl-30b-a3b-instruct.json", "text_config", "lm_head.weight", OUTER_NO},
    {CONFIGS "qwen3.5-27b.json", "text_config", "lm_head.weight", OUTER_NO},
    {CONFIGS "qwen3.5-35b-a3b.json", "text_config", "lm_head.weight", OUTER_NO},
    {CONFIGS "smolvlm2-2.2b-instruct.json", "text_config", "lm_head.weight", OUTER_NO},
    {CONFIGS "mistral-small-3.1-24b-instruct-2503.json", "text_config", "language_model.lm_head.weight",
     OUTER_YES},
    {CONFIGS "gemma-3-4b-it.json", "text_config", "language_model.lm_head.weight", OUTER_YES},
    {CONFIGS "internvl3-8b-hf.json", "text_config", "language_model.lm_head.weight", OUTER_YES},
    {"material/configs/moonshotai--Kimi-K2.5/config.json", "text_config", "language_model.lm_head.weight",
     OUTER_YES},
    /* its own code: the flag of the language model */
    {CONFIGS "internvl3-8b.json", "llm_config", "language_model.lm_head.weight", "FFT FFt ffT",
     "FFT FFf ffT"},
};

static char tie_letter(const struct opened *x)
{
    bool said = finding_of(x, FINDING_C008) != NULL;
    return x->s->tied_embeddings ? said ? 't' : 'T' : said ? 'f' : 'F';
}

/* Flat configurations are nested first: transformers reads both. */
static const struct json *nested_config(struct arena *a, const struct json *c, const char *name)
{
    static const char *const outer[] = {"architectures",        "model_type",     "vision_config",
                                        "torch_dtype",          "image_token_id", "video_token_id",
                                        "vision_start_token_id"};
    if (json_get(c, name))
        return c;
    struct strbuf text = STRBUF_INIT;
    struct json_writer w;
    const struct json *out = NULL;
    json_writer_init(&w, &text, false);
    json_begin_object(&w);
    for (int inside = 0; inside < 2; inside++) {
        if (inside) {
            json_key(&w, name);
            json_begin_object(&w);
        }
        for (uint32_t i = 0; i < c->n; i++) {
            bool stays = false;
            for (size_t k = 0; k < ARRAY_LEN(outer); k++)
                stays |= strcmp(c->as.members[i].key, outer[k]) == 0;
            if (stays == !inside) {
                json_key(&w, c->as.members[i].key);
                json_write_tree(&w, &c->as.members[i].value);
            }
        }
    }
    json_end_object(&w);
    json_end_object(&w);
    assert_int_equal(json_parse(text.data, text.len, NULL, a, &out, NULL), 0);
    strbuf_release(&text);
    return out;
}

static void check_tie(const struct tie *t, const struct json *config, bool with_head)
{
    static const char *const flags[] = {NULL, "false", "true"};
    char inner[80], layers[80], types[80];
    const char *want = with_head ? t->files : t->alone;
    snprintf(inner, sizeof inner, "%s.tie_word_embeddings", t->inner);
    snprintf(layers, sizeof layers, "%s.num_hidden_layers", t->inner); /* fewer: the same, sooner */
    snprintf(types, sizeof types, "%s.layer_types", t->inner);
    for (int o = 0; o < 3; o++)
        for (int i = 0; i < 3; i++) {
            struct opened x;
            const struct edit edits[] = {{"tie_word_embeddings", flags[o]},
                                         {inner, flags[i]},
                                         {layers, "4"},
                                         {types, NULL},
                                         {NULL, NULL}};
            open_edited(&x, config, edits, with_head ? t->head : NULL);
            if (!x.s)
                fail_msg("%s: %s", t->config, why_not(&x));
            const struct finding *f = finding_of(&x, FINDING_C008);
            if (tie_letter(&x) != want[o * 4 + i])
                fail_msg("%s, outer %s, inner %s%s: %c, not %c; %s", t->config,
                         flags[o] ? flags[o] : "absent", flags[i] ? flags[i] : "absent",
                         with_head ? ", a head" : "", tie_letter(&x), want[o * 4 + i], f ? f->evidence : "");
            if (f && (!strstr(f->evidence, "count") || !strstr(f->subject, "tie_word_embeddings")))
                fail_msg("%s: C008 %s: %s", t->config, f->subject, f->evidence);
            if (f && with_head && x.s->tied_embeddings)
                fail_msg("%s: tied with doubt, though a head is there", t->config);
            close_opened(&x);
        }
}

static void test_ties(void **state)
{
    (void)state;
    struct arena a;
    arena_init(&a, NULL, MEM_MISC);
    for (size_t i = 0; i < ARRAY_LEN(ties); i++) {
        const struct json *config = read_config(&a, ties[i].config);
        if (!config) {
            print_message("skipped: %s is not here\n", ties[i].config);
            continue;
        }
        config = nested_config(&a, config, ties[i].inner);
        check_tie(&ties[i], config, false);
        check_tie(&ties[i], config, true);
    }
    arena_release(&a);
}

/* C008 names the flag that counts, says what became of the other, and of the head. */
static void test_tie_words(void **state)
{
    (void)state;
    struct arena a;
    struct opened x;
    arena_init(&a, NULL, MEM_MISC);
    const struct json *vl = read_config(&a, CONFIGS "qwen3-vl-2b-instruct.json");
    const struct json *mistral = read_config(&a, CONFIGS "mistral-small-3.1-24b-instruct-2503.json");
    const struct edit only_inner[] = {{"tie_word_embeddings", NULL}, {NULL, NULL}};
    open_edited(&x, vl, only_inner, NULL);
    assert_string_equal(finding_of(&x, FINDING_C008)->subject, "text_config.tie_word_embeddings");
    assert_string_equal(
        finding_of(&x, FINDING_C008)->evidence,
        "is true and does not count: tie_word_embeddings does, and is absent, which means false");
    close_opened(&x);
    /* the wrapper's flag is wrong and a head is there: it must not be lost */
    const struct edit denied[] = {
        {"tie_word_embeddings", "true"}, {"text_config.tie_word_embeddings", "false"}, {NULL, NULL}};
    open_edited(&x, mistral, denied, "language_model.lm_head.weight");
    assert_false(x.s->tied_embeddings);
    assert_string_equal(finding_of(&x, FINDING_C008)->subject, "tie_word_embeddings");
    assert_string_equal(finding_of(&x, FINDING_C008)->evidence,
                        "is true, which counts, but text_config.tie_word_embeddings is false; "
                        "language_model.lm_head.weight is there and is used");
    close_opened(&x);
    const struct edit odd[] = {{"text_config.tie_word_embeddings", "\"yes\""}, {NULL, NULL}};
    open_edited(&x, vl, odd, NULL);
    assert_null(x.s);
    assert_string_equal(finding_of(&x, FINDING_C006)->subject, "text_config.tie_word_embeddings");
    close_opened(&x);
    arena_release(&a);
}

/* The default of every text family that has no wrapper: not tied, but for Gemma-3. */
static void test_tie_defaults(void **state)
{
    (void)state;
    static const struct {
        const char *config;
        bool tied;
    } cases[] = {
        {CONFIGS "qwen2.5-0.5b.json", false},
        {CONFIGS "qwen3-0.6b.json", false},
        {CONFIGS "qwen3-next-80b-a3b-instruct.json", false},
        {CONFIGS "gemma-3-1b-it.json", true},
        {CONFIGS "olmocr-qwen2-vl-7b.json", false},
        {"material/configs/meta-llama--Meta-Llama-3.1-8B/config.json", false},
        {"material/configs/mistralai--Mixtral-8x7B-v0.1/config.json", false},
        {"material/configs/deepseek-ai--DeepSeek-V3/config.json", false},
        {"material/configs/deepseek-ai--DeepSeek-V3.2/config.json", false},
        {"material/configs/deepseek-ai--DeepSeek-V4-Flash/config.json", false},
        {"material/configs/zai-org--GLM-5/config.json", false},
        {"material/configs/openai--gpt-oss-20b/config.json", false},
        {"material/configs/MiniMaxAI--MiniMax-M2.5/config.json", false},
        {"material/configs/Qwen--Qwen3-30B-A3B/config.json", false},
    };
    struct arena a;
    arena_init(&a, NULL, MEM_MISC);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct opened x;
        const struct json *config = read_config(&a, cases[i].config);
        const struct edit silent[] = {{"tie_word_embeddings", NULL}, {NULL, NULL}};
        if (!config)
            continue;
        open_edited(&x, config, silent, NULL);
        if (!x.s || x.s->tied_embeddings != cases[i].tied)
            fail_msg("%s: %s", cases[i].config, x.s ? "another default" : why_not(&x));
        close_opened(&x);
    }
    arena_release(&a);
}

/* ---- nesting ---- */

/* A text model as a file of one's own describes it, wherever its configuration nests. */
static const char nesting_arch[] =
    "return { build = function(top)\n"
    "  local c = top:sub { 'thinker_config.text_config', 'llm_config', 'text_config', 'thinker_config' }\n"
    "  context(c.max_position_embeddings)\n"
    "  local r = rope_config(c)\n"
    "  local pos, H = rope { r, dim = 16 }, c:count 'hidden_size'\n"
    "  local x = embed { 'embed', vocab = c.vocab_size, dim = H }\n"
    "  x = layers { x, n = c.num_hidden_layers, at = 'layers.%d', each = function(x)\n"
    "    return x + gated_mlp { x + gqa { x, heads = 4, dim = 16, pos = pos }, inter = 128 } end }\n"
    "  return logits { x, 'head', vocab = c.vocab_size, tied = tied_head { top, c, 'head', counts = 'inner' "
    "} } end }\n";

#define TEXT                                                                                                 \
    "\"hidden_size\": 64, \"vocab_size\": 96, \"num_hidden_layers\": 3, \"max_position_embeddings\": 512, "  \
    "\"rope_parameters\": {\"rope_type\": \"linear\", \"factor\": 2.0, \"rope_theta\": 5000.0}, "            \
    "\"tie_word_embeddings\": true"

static void test_nesting(void **state)
{
    (void)state;
    static const char *const configs[] = {
        "{" TEXT "}",
        "{\"text_config\": {" TEXT "}}",
        "{\"llm_config\": {" TEXT "}}",
        "{\"thinker_config\": {" TEXT "}}",
        "{\"thinker_config\": {\"text_config\": {" TEXT "}}}",
        "{\"text_config\": null, \"llm_config\": null, \"thinker_config\": null, " TEXT "}",
        "{\"thinker_config\": null, \"text_config\": {" TEXT "}}",
        "{\"thinker_config\": {\"text_config\": null, " TEXT "}}",
        /* read through to what stands around it */
        "{\"vocab_size\": 96, \"thinker_config\": {\"num_hidden_layers\": 3, \"text_config\": {"
        "\"hidden_size\": 64, \"vocab_size\": null, \"max_position_embeddings\": 512, \"rope_parameters\": "
        "{\"rope_type\": \"linear\", \"factor\": 2.0, \"rope_theta\": 5000.0}, \"tie_word_embeddings\": "
        "true}}}",
    };
    for (size_t i = 0; i < ARRAY_LEN(configs); i++) {
        struct opened x;
        open_text(&x, configs[i], NULL, nesting_arch);
        if (!x.s)
            fail_msg("%s: %s", configs[i], why_not(&x));
        if (x.s->n_layers != 3 || x.s->hidden != 64 || x.s->vocab_size != 96 || x.s->max_positions != 512 ||
            !x.s->tied_embeddings || x.s->n_unread)
            fail_msg("%s: %d layers, %d wide, %d words, %zu unread", configs[i], (int)x.s->n_layers,
                     (int)x.s->hidden, (int)x.s->vocab_size, x.s->n_unread);
        close_opened(&x);
    }
    struct opened x;
    open_text(&x, "{\"talker_config\": {" TEXT "}}", NULL, nesting_arch);
    assert_null(x.s);
    assert_string_equal(finding_of(&x, FINDING_C004)->subject, "max_position_embeddings");
    close_opened(&x);
}

/* A shipped family reads its text flat or nested, and the two layouts of one model are one model. */
static void test_nested_families(void **state)
{
    (void)state;
    struct arena a;
    struct opened x, y;
    static const char *const flat[] = {CONFIGS "olmocr-qwen2-vl-7b.json",
                                       CONFIGS "qwen2.5-vl-7b-instruct.json"};
    arena_init(&a, NULL, MEM_MISC);
    for (size_t i = 0; i < ARRAY_LEN(flat); i++) {
        const struct json *c = read_config(&a, flat[i]);
        open_edited(&x, c, NULL, NULL);
        open_edited(&y, nested_config(&a, c, "text_config"), NULL, NULL);
        assert_true(x.s && y.s && x.s->parameters == y.s->parameters && x.s->n_unread == y.s->n_unread);
        close_opened(&x);
        close_opened(&y);
    }
    open_edited(&x, read_config(&a, CONFIGS "internvl3-8b.json"), NULL, NULL);    /* llm_config */
    open_edited(&y, read_config(&a, CONFIGS "internvl3-8b-hf.json"), NULL, NULL); /* text_config */
    assert_true(x.s && y.s);
    assert_string_equal(x.s->architecture, "InternVLChatModel");
    assert_int_equal(x.s->parameters, y.s->parameters);
    assert_int_equal(x.s->kv_bytes_per_token, y.s->kv_bytes_per_token);
    close_opened(&x);
    close_opened(&y);
    arena_release(&a);
}

/* The configuration class of InternVL's own layout takes an absent ps_version as v1, which lays out the rows
 * of a tile down instead of across; the library's layout has no such key and is v2. */
static void test_shuffle(void **state)
{
    (void)state;
    static const struct edit absent[] = {{"ps_version", "null"}, {NULL, NULL}},
                             first[] = {{"ps_version", "\"v1\""}, {NULL, NULL}};
    struct opened x;
    struct arena a;
    arena_init(&a, NULL, MEM_MISC);
    const struct json *own = read_config(&a, CONFIGS "internvl3-8b.json");
    for (int i = 0; i < 2; i++) {
        open_edited(&x, own, i ? first : absent, NULL);
        assert_null(x.s);
        assert_string_equal(finding_of(&x, FINDING_C006)->subject, "ps_version");
        close_opened(&x);
    }
    arena_release(&a);
}

/* ---- rotation ---- */

static void check_rope(const char *tail, const float *want, const char *unlike)
{
    char config[1200];
    struct opened x;
    snprintf(
        config, sizeof config,
        "{\"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": 64, \"intermediate_size\": 128, "
        "\"num_hidden_layers\": 1, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"vocab_size\": "
        "96, \"rms_norm_eps\": 1e-6, \"max_position_embeddings\": 512%s}",
        tail);
    open_text(&x, config, NULL, NULL);
    if (!x.s)
        fail_msg("%s: %s", tail, why_not(&x));
    const float *f = x.s->graph->info[graph_find(x.s->graph, "rope.inv_freq")].constant;
    if (memcmp(f, want, 8 * sizeof *f) != 0)
        fail_msg("%s: %g, %g, not as %s", tail, (double)f[0], (double)f[1], unlike);
    if (x.s->n_unread)
        fail_msg("%s: nobody reads %s", tail, x.s->unread_keys[0]);
    close_opened(&x);
}

/* One rotation in every spelling gives the same frequencies, bit for bit. */
static void test_rope_spellings(void **state)
{
    (void)state;
#define THETA ", \"rope_theta\": 500000.0"
#define IN    "\"rope_theta\": 500000.0"
    static const char *const plain[] = {
        THETA,
        THETA ", \"rope_scaling\": null",
        THETA ", \"rope_scaling\": {\"type\": \"default\"}",
        THETA ", \"rope_scaling\": {\"rope_type\": \"default\"}",
        ", \"rope_scaling\": {\"rope_type\": \"default\", " IN "}",
        ", \"rope_parameters\": {\"rope_type\": \"default\", " IN "}",
        THETA ", \"rope_parameters\": {\"rope_type\": \"default\"}",
        ", \"rope_scaling\": null, \"rope_parameters\": {\"full_attention\": {\"rope_type\": \"default\", " IN
        "}}",
        ", \"rope_theta\": null, \"rope_parameters\": {\"rope_type\": null, " IN "}",
    };
#define BY                                                                                                   \
    "\"factor\": 8.0, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "                                 \
    "\"original_max_position_embeddings\": 128"
    static const char *const scaled[] = {
        THETA ", \"rope_scaling\": {\"type\": \"llama3\", " BY "}",
        THETA ", \"rope_scaling\": {\"rope_type\": \"llama3\", " BY "}",
        THETA ", \"rope_scaling\": {\"rope_type\": \"llama3\", \"type\": \"llama3\", " BY
              "}, \"rope_parameters\": null",
        ", \"rope_scaling\": {\"rope_type\": \"llama3\", " IN ", " BY "}",
        ", \"rope_parameters\": {\"rope_type\": \"llama3\", " IN ", " BY "}",
        THETA ", \"rope_parameters\": {\"type\": \"llama3\", " BY "}",
        ", \"rope_parameters\": {\"full_attention\": {\"rope_type\": \"llama3\", " IN ", " BY "}}",
        ", \"rope_scaling\": {\"full_attention\": {\"rope_type\": \"llama3\", " IN ", " BY "}}",
    };
    const struct rope_scaling none = {.type = ROPE_DEFAULT},
                              llama3 = {
                                  .type = ROPE_LLAMA3, .factor = 8, .low = 1, .high = 4, .original = 128};
    float f[8], g[8];
    rope_inv_freq(16, 500000, &none, f);
    rope_inv_freq(16, 500000, &llama3, g);
    assert_memory_not_equal(f, g, sizeof f);
    for (size_t i = 0; i < ARRAY_LEN(plain); i++)
        check_rope(plain[i], f, plain[0]);
    for (size_t i = 0; i < ARRAY_LEN(scaled); i++)
        check_rope(scaled[i], g, scaled[0]);
    struct opened x; /* two bases, in either place */
    open_text(
        &x,
        "{\"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": 64, \"intermediate_size\": 128, "
        "\"num_hidden_layers\": 1, \"num_attention_heads\": 4, \"vocab_size\": 96, \"rms_norm_eps\": 1e-6, "
        "\"max_position_embeddings\": 512, \"rope_theta\": 10000.0, \"rope_scaling\": {\"rope_type\": "
        "\"default\", \"rope_theta\": 500000.0}}",
        NULL, NULL);
    assert_null(x.s);
    assert_string_equal(finding_of(&x, FINDING_C006)->subject, "rope_scaling.rope_theta");
    close_opened(&x);
#undef THETA
#undef IN
#undef BY
}

/* ---- null, and no architectures ---- */

/* Everything that a test could see of a description, or of why there is none. */
static void outcome(struct opened *x, struct strbuf *b)
{
    if (x->s) {
        const struct graph *g = x->s->graph;
        strbuf_printf(b, "%s %llu %lld %llu %d %u", x->s->architecture, (unsigned long long)x->s->parameters,
                      (long long)x->s->max_positions, (unsigned long long)x->s->kv_bytes_per_token,
                      (int)x->s->tied_embeddings, g->n_nodes);
        for (uint32_t i = 0; i < g->n_values; i++)
            if (g->info[i].constant)
                strbuf_printf(b, " %a", (double)((const float *)g->info[i].constant)[1]);
        for (size_t i = 0; i < x->s->n_unread; i++)
            strbuf_printf(b, " %s", x->s->unread_keys[i]);
    }
    for (size_t i = 0; i < x->f.n; i++)
        if (finding_code(x->f.items[i].id)[0] == 'C')
            strbuf_printf(b, " %s %s", finding_code(x->f.items[i].id), x->f.items[i].subject);
    close_opened(x);
}

static void same_without(const struct json *config, const struct json *level, const char *at)
{
    for (uint32_t i = 0; i < level->n; i++) {
        char path[200];
        struct opened x, y;
        struct strbuf a = STRBUF_INIT, b = STRBUF_INIT;
        snprintf(path, sizeof path, "%s%s", at, level->as.members[i].key);
        char layers[80];
        snprintf(layers, sizeof layers, "%snum_hidden_layers", at);
        const struct edit absent[] = {{layers, "2"}, {path, NULL}, {NULL, NULL}};
        const struct edit null[] = {{layers, "2"}, {path, "null"}, {NULL, NULL}};
        open_edited(&x, config, absent, NULL);
        open_edited(&y, config, null, NULL);
        outcome(&x, &a);
        outcome(&y, &b);
        if (strcmp(strbuf_cstr(&a), strbuf_cstr(&b)) != 0)
            fail_msg("%s absent: %s; null: %s", path, strbuf_cstr(&a), strbuf_cstr(&b));
        strbuf_release(&a);
        strbuf_release(&b);
    }
}

/* null means absent, for every key of a text model and of a nested one. */
static void test_null(void **state)
{
    (void)state;
    struct arena a;
    arena_init(&a, NULL, MEM_MISC);
    const struct json *text = read_config(&a, CONFIGS "qwen3-0.6b.json");
    const struct json *nested = read_config(&a, CONFIGS "qwen3-vl-2b-instruct.json");
    same_without(text, text, "");
    same_without(nested, nested, "");
    same_without(nested, json_get(nested, "text_config"), "text_config.");
    arena_release(&a);
}

/* Without a list of architectures model_type chooses, and chooses the same. */
static void test_no_architectures(void **state)
{
    (void)state;
    static const char *const configs[] = {
        "gemma-3-1b-it",
        "gemma-3-4b-it",
        "internvl3-8b-hf",
        "internvl3-8b",
        "llava-1.5-7b-hf",
        "pixtral-12b",
        "llava-v1.6-mistral-7b-hf",
        "qwen2.5-0.5b",
        "olmocr-qwen2-vl-7b",
        "qwen2.5-vl-7b-instruct",
        "qwen3-0.6b",
        "qwen3-vl-2b-instruct",
        "qwen3.5-27b",
        "qwen3.5-35b-a3b",
        "smolvlm2-2.2b-instruct",
        "qwen3-next-80b-a3b-instruct",
        "qwen3-vl-30b-a3b-instruct",
        "mistral-small-3.1-24b-instruct-2503",
    };
    static const char *const values[] = {NULL, "null", "[]"};
    struct arena a;
    arena_init(&a, NULL, MEM_MISC);
    for (size_t i = 0; i < ARRAY_LEN(configs); i++) {
        char path[120];
        struct opened x, y;
        snprintf(path, sizeof path, CONFIGS "%s.json", configs[i]);
        const struct json *config = read_config(&a, path);
        const struct edit edits[] = {{"architectures", values[i % ARRAY_LEN(values)]}, {NULL, NULL}};
        open_edited(&x, config, NULL, NULL);
        open_edited(&y, config, edits, NULL);
        if (!x.s || !y.s)
            fail_msg("%s: %s", configs[i], why_not(x.s ? &y : &x));
        if (strcmp(x.s->architecture, y.s->architecture) != 0 || x.s->parameters != y.s->parameters)
            fail_msg("%s: %s, not %s", configs[i], y.s->architecture, x.s->architecture);
        close_opened(&x);
        close_opened(&y);
    }
    arena_release(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ties),
        cmocka_unit_test(test_tie_words),
        cmocka_unit_test(test_tie_defaults),
        cmocka_unit_test(test_nesting),
        cmocka_unit_test(test_nested_families),
        cmocka_unit_test(test_shuffle),
        cmocka_unit_test(test_rope_spellings),
        cmocka_unit_test(test_null),
        cmocka_unit_test(test_no_architectures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
