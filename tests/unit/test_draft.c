/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: drafts of architecture files for small models of families that are left out: how much of the
 * inventory they name, that they load, never pass and mark what was guessed; and models that are like nothing
 * known.
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
#include "base/str.h"
#include "preflight/preflight.h"

#define MAX_ENTRIES 600

struct model {
    char dir[64];
    struct st_entry entries[MAX_ENTRIES];
    char names[MAX_ENTRIES][100];
    size_t n;
    struct ckpt *c;
    struct findings f;
    struct preflight_draft d;
    struct d0 d0;
};

static const uint16_t zeros[1 << 16];

static void put(struct model *m, int64_t rows, int64_t columns, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

static void put(struct model *m, int64_t rows, int64_t columns, const char *fmt, ...)
{
    va_list ap;
    assert_true(m->n < MAX_ENTRIES);
    va_start(ap, fmt);
    vsnprintf(m->names[m->n], sizeof m->names[m->n], fmt, ap);
    va_end(ap);
    m->entries[m->n] = (struct st_entry){.name = m->names[m->n],
                                         .dtype = D0_BF16,
                                         .n_dims = columns ? 2 : 1,
                                         .dims = {rows, columns ? columns : 1},
                                         .data = zeros};
    m->n++;
}

static void write_model(struct model *m, const char *config)
{
    char path[100];
    struct err e = {0};
    snprintf(path, sizeof path, "%s/model.safetensors", m->dir);
    assert_int_equal(st_write(path, m->entries, m->n, NULL, NULL, 0, NULL), 0);
    snprintf(path, sizeof path, "%s/config.json", m->dir);
    assert_int_equal(file_write_atomic(path, config, strlen(config), NULL), 0);
    if (ckpt_open(&m->c, m->dir, &m->f, &m->d0, &e))
        fail_msg("%s", e.message);
}

static int set_up(void **state)
{
    struct model *m = calloc(1, sizeof *m);
    assert_non_null(m);
    snprintf(m->dir, sizeof m->dir, "/tmp/day0-draft-XXXXXX");
    assert_non_null(mkdtemp(m->dir));
    findings_init(&m->f, NULL);
    *state = m;
    return 0;
}

static int tear_down(void **state)
{
    struct model *m = *state;
    char path[100];
    static const char *const files[] = {"model.safetensors", "config.json"};
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        snprintf(path, sizeof path, "%s/%s", m->dir, files[i]);
        unlink(path);
    }
    rmdir(m->dir);
    preflight_draft_release(&m->d);
    ckpt_close(m->c);
    findings_release(&m->f);
    free(m);
    return 0;
}

static void draft(struct model *m, const char *const *without, size_t n)
{
    const struct preflight_draft_options o = {without, n, 600}; /* slow under a sanitizer */
    struct err e = {0};
    if (preflight_draft(m->c, &o, &m->d, &e))
        fail_msg("%s", e.message);
    if (getenv("SHOW"))
        print_message("%s\n", m->d.text);
}

/* The draft on its model: what is found, and what the verdict would be. */
static enum preflight_verdict judge(struct model *m, struct findings *f)
{
    const struct arch_file file = {"draft.lua", m->d.text, m->d.n};
    const struct spec_options so = {.arch = &file};
    const struct preflight_options po = {.skip_tokenizer = true};
    struct spec *s = NULL;
    struct err e = {0};
    findings_init(f, NULL);
    if (spec_open(&s, m->c, &so, f, &m->d0, &e) || !s)
        fail_msg("the draft does not load: %s", f->n ? f->items[0].evidence : e.message);
    assert_int_equal(s->origin, ARCH_DRAFTED);
    if (preflight_check(m->c, s, &po, f, &m->d0, &e))
        fail_msg("%s", e.message);
    enum preflight_verdict v = preflight_verdict(f, s);
    spec_close(s);
    return v;
}

static bool has_finding(const struct findings *f, enum finding_id id)
{
    for (size_t i = 0; i < f->n; i++)
        if (f->items[i].id == id)
            return true;
    return false;
}

static bool holds(const char *const *list, size_t n, const char *what)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(list[i], what) == 0)
            return true;
    return false;
}

#define CONFIG(architecture, type, more)                                                                     \
    "{\"architectures\":[\"" architecture "\"],\"model_type\":\"" type "\",\"hidden_size\":32,"              \
    "\"intermediate_size\":64,\"num_hidden_layers\":3,\"num_attention_heads\":4,\"num_key_value_heads\":2,"  \
    "\"head_dim\":8,\"vocab_size\":96,\"max_position_embeddings\":128,\"rms_norm_eps\":1e-5,"                \
    "\"rope_theta\":10000.0,\"hidden_act\":\"silu\",\"torch_dtype\":\"bfloat16\"" more "}"

static void put_attention(struct model *m, int i)
{
    put(m, 32, 0, "model.layers.%d.input_layernorm.weight", i);
    put(m, 32, 0, "model.layers.%d.post_attention_layernorm.weight", i);
    put(m, 32, 32, "model.layers.%d.self_attn.q_proj.weight", i);
    put(m, 16, 32, "model.layers.%d.self_attn.k_proj.weight", i);
    put(m, 16, 32, "model.layers.%d.self_attn.v_proj.weight", i);
    put(m, 32, 32, "model.layers.%d.self_attn.o_proj.weight", i);
}

static void put_ends(struct model *m)
{
    put(m, 96, 32, "model.embed_tokens.weight");
    put(m, 32, 0, "model.norm.weight");
    put(m, 96, 32, "lm_head.weight");
}

/* Qwen3-MoE, the names and the proportions. */
static void make_qwen3_moe(struct model *m)
{
    put_ends(m);
    for (int i = 0; i < 3; i++) {
        put_attention(m, i);
        put(m, 8, 0, "model.layers.%d.self_attn.q_norm.weight", i);
        put(m, 8, 0, "model.layers.%d.self_attn.k_norm.weight", i);
        put(m, 6, 32, "model.layers.%d.mlp.gate.weight", i);
        for (int k = 0; k < 6; k++) {
            put(m, 24, 32, "model.layers.%d.mlp.experts.%d.gate_proj.weight", i, k);
            put(m, 24, 32, "model.layers.%d.mlp.experts.%d.up_proj.weight", i, k);
            put(m, 32, 24, "model.layers.%d.mlp.experts.%d.down_proj.weight", i, k);
        }
    }
    write_model(m, CONFIG("Qwen3MoeForCausalLM", "qwen3_moe",
                          ",\"num_experts\":6,\"num_experts_per_tok\":2,\"moe_intermediate_size\":24,\"norm_"
                          "topk_prob\":true"));
}

static void a_known_family_taken_away(void **state)
{
    struct model *m = *state;
    const char *without[] = {"qwen3_moe.lua"};
    struct findings f;
    make_qwen3_moe(m);
    draft(m, without, 1);
    assert_int_equal(m->d.total, m->n);
    assert_true(m->d.claimed * 100 >= m->d.total * 95);
    assert_int_equal(m->d.by_family + m->d.listed, m->d.claimed);
    assert_non_null(m->d.nearest);
    assert_string_not_equal(m->d.nearest, "qwen3_moe.lua");
    assert_non_null(strstr(m->d.text, "drafted = true"));
    assert_non_null(strstr(m->d.text, "arch = { \"Qwen3MoeForCausalLM\" }"));
    assert_non_null(strstr(m->d.text, "TODO day0 draft: "));
    assert_int_equal(judge(m, &f), PREFLIGHT_INCOMPLETE);
    assert_false(has_finding(&f, FINDING_W011));
    findings_release(&f);
}

/* With its own file it is that file. */
static void the_family_itself_is_nearest(void **state)
{
    struct model *m = *state;
    struct findings f;
    make_qwen3_moe(m);
    draft(m, NULL, 0);
    assert_string_equal(m->d.nearest, "qwen3_moe.lua");
    assert_int_equal(m->d.by_family, m->d.total);
    assert_int_equal(m->d.n_missing + m->d.n_misshapen + m->d.n_unclaimed, 0);
    assert_int_equal(judge(m, &f), PREFLIGHT_INCOMPLETE);
    assert_false(findings_failed(&f));
    findings_release(&f);
}

/* Llama under other words: what was renamed is found out, and nothing else is. */
static void other_words_for_the_same(void **state)
{
    struct model *m = *state;
    struct findings f;
    put_ends(m);
    for (int i = 0; i < 3; i++) {
        put(m, 32, 0, "model.layers.%d.attention_norm.weight", i);
        put(m, 32, 0, "model.layers.%d.ffn_norm.weight", i);
        put(m, 32, 32, "model.layers.%d.attention.wq.weight", i);
        put(m, 16, 32, "model.layers.%d.attention.wk.weight", i);
        put(m, 16, 32, "model.layers.%d.attention.wv.weight", i);
        put(m, 32, 32, "model.layers.%d.attention.wo.weight", i);
        put(m, 64, 32, "model.layers.%d.feed_forward.w1.weight", i);
        put(m, 64, 32, "model.layers.%d.feed_forward.w3.weight", i);
        put(m, 32, 64, "model.layers.%d.feed_forward.w2.weight", i);
        put(m, 8, 0, "model.layers.%d.attention.novel_gain", i);
    }
    write_model(m, CONFIG("OtherWordsForCausalLM", "other_words", ""));
    draft(m, NULL, 0);
    assert_int_equal(m->d.claimed, m->d.total);
    assert_int_equal(m->d.listed, 3);
    assert_int_equal(m->d.n_missing + m->d.n_misshapen, 0);
    assert_non_null(strstr(m->d.text, "was self_attn"));
    assert_non_null(strstr(m->d.text,
                           "for i = 0, 2 do\n    param { "
                           "string.format(\"model.layers.%d.attention.novel_gain\", i), shape = { 8 } }"));
    assert_int_equal(judge(m, &f), PREFLIGHT_INCOMPLETE);
    assert_false(has_finding(&f, FINDING_W009) || has_finding(&f, FINDING_W010) ||
                 has_finding(&f, FINDING_W011));
    findings_release(&f);
}

static void keys_under_other_names(void **state)
{
    struct model *m = *state;
    struct findings f;
    put_ends(m);
    for (int i = 0; i < 3; i++) {
        put_attention(m, i);
        put(m, 64, 32, "model.layers.%d.mlp.gate_proj.weight", i);
        put(m, 64, 32, "model.layers.%d.mlp.up_proj.weight", i);
        put(m, 32, 64, "model.layers.%d.mlp.down_proj.weight", i);
    }
    write_model(
        m, "{\"architectures\":[\"KeysForCausalLM\"],\"model_type\":\"keys\",\"hidden_size\":32,"
           "\"intermediate_size\":64,\"num_layers\":3,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
           "\"vocab_size\":96,\"max_position_embeddings\":128,\"layer_norm_epsilon\":1e-5,"
           "\"rope_theta\":10000.0,\"hidden_act\":\"new_act\",\"torch_dtype\":\"bfloat16\"}");
    draft(m, NULL, 0);
    assert_int_equal(m->d.claimed, m->d.total);
    assert_non_null(strstr(m->d.text, "c:count \"num_layers\""));
    assert_non_null(strstr(m->d.text, "its layer_norm_epsilon is read in its place"));
    judge(m, &f);
    findings_release(&f);
}

/* Like nothing known: all numbers of all depths, in runs, steps and holes. */
static void from_nothing(void **state)
{
    struct model *m = *state;
    struct findings f;
    put(m, 50, 16, "tok.embed.weight");
    put(m, 16, 0, "final_norm.weight");
    for (int i = 0; i < 6; i++) {
        put(m, 16, 48, "net.%d.alpha.weight", i);
        put(m, 48, 16, "net.%d.beta", i);
        if (i % 2 == 0)
            put(m, 7, 5, "net.%d.gamma.odd", i);
        if (i == 0 || i == 1 || i == 5)
            put(m, 9, 0, "net.%d.delta", i);
        for (int k = 0; k < 4; k++) {
            put(m, 16, 8, "net.%d.experts.%d.w", i, k);
            if (k != 1 || i == 3)
                put(m, 3, 0, "net.%d.heads.%d.s.%d", i, k, k + 7);
        }
    }
    put(m, 4, 4, "a\"quote\\.weight");
    put(m, 4, 4, "leading.007.zero");
    put(m, 4, 4, "per%%cent.%%d");
    write_model(m, "{\"architectures\":[\"Nothing\\\"]]--ForCausalLM\"],\"model_type\":\"no\\\"thing\"}");
    draft(m, NULL, 0);
    assert_null(m->d.nearest);
    assert_int_equal(m->d.claimed, m->d.total - 3); /* those whose names do not belong into a file of ours */
    assert_int_equal(m->d.listed, m->d.total - 5);
    assert_non_null(strstr(m->d.text, "for i = 0, 4, 2 do"));
    assert_non_null(strstr(m->d.text, "in ipairs { 0, 1, 5 } do"));
    assert_non_null(strstr(m->d.text, "count = 4"));
    assert_null(strstr(m->d.text, "quote"));
    assert_int_equal(judge(m, &f), PREFLIGHT_INCOMPLETE);
    findings_release(&f);
}

static void the_rest_is_listed(void **state)
{
    struct model *m = *state;
    make_qwen3_moe(m);
    draft(m, NULL, 0);
    struct strbuf text = STRBUF_INIT;
    struct json_writer w;
    json_writer_init(&w, &text, false);
    preflight_write_draft(&m->d, "x.lua", &w);
    static const char *const keys[] = {"\"nearest\":\"qwen3_moe.lua\"",
                                       "\"claimed\":84",
                                       "\"total\":84",
                                       "\"unclaimed\":[]",
                                       "\"file\":\"x.lua\"",
                                       "\"tried\":["};
    for (size_t i = 0; i < ARRAY_LEN(keys); i++)
        if (!strstr(strbuf_cstr(&text), keys[i]))
            fail_msg("no %s in %.300s", keys[i], text.data);
    strbuf_release(&text);
}

/* What the family wants in vain is told. */
static void what_is_missing(void **state)
{
    struct model *m = *state;
    struct findings f;
    put_ends(m);
    for (int i = 0; i < 3; i++) {
        put_attention(m, i);
        put(m, 64, 32, "model.layers.%d.mlp.gate_proj.weight", i);
        put(m, 32, 64, "model.layers.%d.mlp.down_proj.weight", i);
    }
    write_model(m, CONFIG("UngatedForCausalLM", "ungated", ""));
    draft(m, NULL, 0);
    assert_true(holds(m->d.missing, m->d.n_missing, "model.layers.%d.mlp.up_proj.weight"));
    assert_int_equal(judge(m, &f), PREFLIGHT_INCOMPLETE);
    assert_true(has_finding(&f, FINDING_W009));
    findings_release(&f);
}

static void nothing_to_draft_from(void **state)
{
    struct model *m = *state;
    struct err e = {0};
    put(m, 4, 0, "a");
    write_model(m, "{}");
    assert_int_equal(preflight_draft(m->c, NULL, &m->d, &e), ERR_UNSUPPORTED);
    assert_non_null(strstr(e.message, "embedding"));
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(a_known_family_taken_away),
        TEST(the_family_itself_is_nearest),
        TEST(other_words_for_the_same),
        TEST(keys_under_other_names),
        TEST(from_nothing),
        TEST(the_rest_is_listed),
        TEST(what_is_missing),
        TEST(nothing_to_draft_from),
    };
    return cmocka_run_group_tests_name("draft", tests, NULL, NULL);
}
