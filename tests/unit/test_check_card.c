/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: a small Llama against profiles of cards that are not here: what is refused, what is not known, and
 * that not known is never green.
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

static const char config[] =
    "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"hidden_size\":32,\"intermediate_"
    "size\":64,"
    "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":8,\"vocab_"
    "size\":96,"
    "\"max_position_embeddings\":128,\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,\"hidden_act\":\"silu\","
    "\"torch_dtype\":\"bfloat16\"}";

struct model {
    char dir[64];
    struct ckpt *c;
    struct spec *s;
    struct d0 d0;
    struct findings opened;
};

static const uint16_t zeros[96 * 64];

static size_t add(struct st_entry *e, char (*names)[80], size_t n, const char *name, int64_t rows,
                  int64_t columns)
{
    snprintf(names[n], sizeof names[n], "%s.weight", name);
    e[n] = (struct st_entry){.name = names[n],
                             .dtype = D0_BF16,
                             .n_dims = columns ? 2 : 1,
                             .dims = {rows, columns ? columns : 1},
                             .data = zeros};
    return n + 1;
}

static int set_up(void **state)
{
    struct model *m = calloc(1, sizeof *m);
    struct st_entry entries[32];
    char names[32][80], name[64], path[100];
    static const struct {
        const char *name;
        int64_t rows, columns;
    } parts[] = {{"input_layernorm", 32, 0},   {"post_attention_layernorm", 32, 0},
                 {"self_attn.q_proj", 32, 32}, {"self_attn.k_proj", 16, 32},
                 {"self_attn.v_proj", 16, 32}, {"self_attn.o_proj", 32, 32},
                 {"mlp.gate_proj", 64, 32},    {"mlp.up_proj", 64, 32},
                 {"mlp.down_proj", 32, 64}};
    size_t n = 0;
    assert_non_null(m);
    snprintf(m->dir, sizeof m->dir, "/tmp/day0-card-XXXXXX");
    assert_non_null(mkdtemp(m->dir));
    n = add(entries, names, n, "model.embed_tokens", 96, 32);
    n = add(entries, names, n, "model.norm", 32, 0);
    n = add(entries, names, n, "lm_head", 96, 32);
    for (int i = 0; i < 2; i++)
        for (size_t k = 0; k < ARRAY_LEN(parts); k++) {
            snprintf(name, sizeof name, "model.layers.%d.%s", i, parts[k].name);
            n = add(entries, names, n, name, parts[k].rows, parts[k].columns);
        }
    snprintf(path, sizeof path, "%s/model.safetensors", m->dir);
    assert_int_equal(st_write(path, entries, n, NULL, NULL, 0, NULL), 0);
    snprintf(path, sizeof path, "%s/config.json", m->dir);
    assert_int_equal(file_write_atomic(path, config, strlen(config), NULL), 0);
    findings_init(&m->opened, NULL);
    assert_int_equal(ckpt_open(&m->c, m->dir, &m->opened, &m->d0, NULL), 0);
    assert_int_equal(spec_open(&m->s, m->c, NULL, &m->opened, &m->d0, NULL), 0);
    assert_non_null(m->s);
    *state = m;
    return 0;
}

static int tear_down(void **state)
{
    struct model *m = *state;
    char path[100];
    spec_close(m->s);
    ckpt_close(m->c);
    findings_release(&m->opened);
    snprintf(path, sizeof path, "%s/model.safetensors", m->dir);
    unlink(path);
    snprintf(path, sizeof path, "%s/config.json", m->dir);
    unlink(path);
    rmdir(m->dir);
    free(m);
    return 0;
}

static enum preflight_verdict judge(struct model *m, const char *profile, uint32_t cards, struct findings *f)
{
    struct host_card_profile *p = NULL;
    struct err e = {0};
    if (host_card_parse(&p, profile, strlen(profile), "test", &e))
        fail_msg("%s", e.message);
    const struct preflight_options o = {.skip_tokenizer = true, .card = p, .n_cards = cards};
    findings_init(f, NULL);
    assert_int_equal(preflight_check(m->c, m->s, &o, f, &m->d0, NULL), 0);
    host_card_close(p);
    return preflight_verdict(f, m->s);
}

static const struct finding *find(const struct findings *f, enum finding_id id)
{
    for (size_t i = 0; i < f->n; i++)
        if (f->items[i].id == id)
            return &f->items[i];
    return NULL;
}

/* HEAD, types, operators */
#define PROFILE(memory, dtypes, operators)                                                                   \
    "{\"format\":\"day0-card\",\"version\":1,\"name\":\"test card\",\"memory_bytes\":" memory                \
    ",\"dtypes\":" dtypes ",\"operators\":{" operators "}}"
#define OP(name) "\"" name "\":{\"supported\":true,\"dtypes\":[\"BF16\",\"F32\"]},"
#define SIMPLE                                                                                               \
    OP("embed")                                                                                              \
    OP("linear") OP("rms_norm") OP("add") OP("rope_table") OP("rope") OP("kv_store") OP("gather_rows")
#define ATTENTION "\"attention\":{\"supported\":true,\"dtypes\":[\"BF16\"]}"
#define GLU       "\"glu\":{\"supported\":true,\"dtypes\":[\"F32\"]}"
#define BF16      "[\"BF16\",\"F32\"]"

static void a_card_that_runs_it(void **state)
{
    struct findings f;
    assert_int_equal(judge(*state, PROFILE("24000000000", BF16, SIMPLE ATTENTION "," GLU), 1, &f),
                     PREFLIGHT_PASS);
    assert_int_equal(f.n, 0);
    findings_release(&f);
}

static void an_operator_it_does_not_run(void **state)
{
    struct findings f;
    assert_int_equal(
        judge(*state,
              PROFILE("24000000000", BF16,
                      SIMPLE ATTENTION ",\"glu\":{\"supported\":false,\"source\":\"its manual\"}"),
              1, &f),
        PREFLIGHT_FAIL);
    const struct finding *x = find(&f, FINDING_P001);
    assert_non_null(x);
    assert_string_equal(x->subject, "glu");
    assert_non_null(strstr(x->evidence, "its manual"));
    assert_int_equal(f.n, 1);
    findings_release(&f);
}

static void a_head_it_does_not_take(void **state)
{
    struct findings f;
    assert_int_equal(judge(*state,
                           PROFILE("24000000000", BF16,
                                   SIMPLE GLU ",\"attention\":{\"supported\":true,\"dtypes\":[\"BF16\"],"
                                              "\"limits\":{\"dim\":[64,128]},\"source\":\"a thread\"}"),
                           1, &f),
                     PREFLIGHT_FAIL);
    const struct finding *x = find(&f, FINDING_P001);
    assert_non_null(x);
    assert_non_null(strstr(x->evidence, "2 nodes with dim 8; test card takes 64, 128: a thread"));
    findings_release(&f);
}

static void a_type_it_does_not_compute(void **state)
{
    struct findings f;
    assert_int_equal(
        judge(*state, PROFILE("24000000000", "[\"F16\",\"F32\"]", SIMPLE ATTENTION "," GLU), 1, &f),
        PREFLIGHT_FAIL);
    const struct finding *x = find(&f, FINDING_P001);
    assert_non_null(x);
    assert_string_equal(x->subject, "BF16");
    assert_non_null(strstr(x->evidence, "21 weights"));
    assert_non_null(strstr(x->evidence, "test card computes with F16, F32"));
    assert_int_equal(f.n, 1); /* one cause, one finding */
    findings_release(&f);
    /* the card computes with it, one operator does not */
    assert_int_equal(judge(*state,
                           PROFILE("24000000000", BF16,
                                   OP("linear") OP("rms_norm") OP("add") OP("rope_table") OP("rope")
                                       OP("kv_store") OP("gather_rows") ATTENTION
                                   "," GLU ",\"embed\":{\"supported\":true,\"dtypes\":[\"F32\"]}"),
                           1, &f),
                     PREFLIGHT_FAIL);
    x = find(&f, FINDING_P001);
    assert_non_null(x);
    assert_string_equal(x->subject, "embed on BF16");
    findings_release(&f);
}

static void unknown_is_not_green(void **state)
{
    static const char *const profiles[] = {
        PROFILE("null", BF16, SIMPLE ATTENTION "," GLU),
        PROFILE("24000000000", "null", SIMPLE ATTENTION "," GLU),
        PROFILE("24000000000", BF16, SIMPLE ATTENTION),
        PROFILE("24000000000", BF16, SIMPLE GLU ",\"attention\":{\"supported\":null}"),
        PROFILE("24000000000", BF16,
                OP("linear") OP("rms_norm") OP("add") OP("rope_table") OP("rope") OP("kv_store")
                    OP("gather_rows") ATTENTION "," GLU ",\"embed\":{\"supported\":true,\"dtypes\":null}"),
    };
    static const char *const says[] = {"its memory", "the types it computes with", "glu", "attention",
                                       "embed on BF16"};
    for (size_t i = 0; i < ARRAY_LEN(profiles); i++) {
        struct findings f;
        assert_int_equal(judge(*state, profiles[i], 1, &f), PREFLIGHT_INCOMPLETE);
        const struct finding *x = find(&f, FINDING_P004);
        assert_non_null(x);
        assert_int_equal(x->severity, SEVERITY_INFO);
        if (!strstr(x->evidence, says[i]) || !strstr(x->evidence, "1 fact "))
            fail_msg("%s", x->evidence);
        findings_release(&f);
    }
}

static void memory_of_cards(void **state)
{
    struct findings f;
    const char *small = PROFILE("40000", BF16, SIMPLE ATTENTION "," GLU);
    assert_int_equal(judge(*state, small, 1, &f), PREFLIGHT_FAIL);
    const struct finding *x = find(&f, FINDING_M001);
    assert_non_null(x);
    assert_non_null(strstr(x->evidence, "test card"));
    findings_release(&f);
}

/* The card is asked, and not this build. */
static void what_is_not_computed_here(void **state)
{
    struct model *m = *state;
    struct findings f;
    const struct preflight_options no_card = {.skip_tokenizer = true};
    uint32_t *dtype = &m->s->weights[0].dtype, before = *dtype;
    *dtype = D0_F64;
    assert_int_equal(
        judge(m, PROFILE("24000000000", "[\"BF16\",\"F32\",\"F64\"]", SIMPLE ATTENTION "," GLU), 1, &f),
        PREFLIGHT_FAIL); /* no operator takes it: see check_operator_types */
    assert_null(find(&f, FINDING_P005));
    findings_release(&f);
    findings_init(&f, NULL);
    assert_int_equal(preflight_check(m->c, m->s, &no_card, &f, &m->d0, NULL), 0);
    assert_non_null(find(&f, FINDING_P005));
    findings_release(&f);
    *dtype = before;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_card_that_runs_it),       cmocka_unit_test(an_operator_it_does_not_run),
        cmocka_unit_test(a_head_it_does_not_take),   cmocka_unit_test(a_type_it_does_not_compute),
        cmocka_unit_test(unknown_is_not_green),      cmocka_unit_test(memory_of_cards),
        cmocka_unit_test(what_is_not_computed_here),
    };
    return cmocka_run_group_tests_name("check_card", tests, set_up, tear_down);
}
