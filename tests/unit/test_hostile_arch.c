/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: architecture files that lie, over a small sound Llama: files that leave tensors out, name them
 * without using them, hide layers, forge a trace, or redefine what the API is made of. None may pass; an
 * honest copy of the shipped file does, so the tests can fail.
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

#define LAYERS 3

static const char config[] =
    "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"hidden_size\":32,\"intermediate_"
    "size\":64,"
    "\"num_hidden_layers\":3,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":8,\"vocab_"
    "size\":96,"
    "\"max_position_embeddings\":128,\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,\"hidden_act\":\"silu\","
    "\"torch_dtype\":\"bfloat16\",\"novel_feature\":true}";

struct model {
    char dir[64], path[96];
    struct st_entry entries[64];
    char names[64][80];
    size_t n;
};

static const uint16_t zeros[96 * 64];

static void add(struct model *m, const char *name, int layer, int64_t rows, int64_t columns)
{
    snprintf(m->names[m->n], sizeof m->names[m->n], layer < 0 ? "%s" : "model.layers.%2$d.%1$s", name, layer);
    m->entries[m->n] = (struct st_entry){.name = m->names[m->n],
                                         .dtype = D0_BF16,
                                         .n_dims = columns ? 2 : 1,
                                         .dims = {rows, columns ? columns : 1},
                                         .data = zeros};
    m->n++;
}

static int set_up(void **state)
{
    struct model *m = calloc(1, sizeof *m);
    assert_non_null(m);
    snprintf(m->dir, sizeof m->dir, "/tmp/day0-hostile-XXXXXX");
    assert_non_null(mkdtemp(m->dir));
    add(m, "model.embed_tokens.weight", -1, 96, 32);
    add(m, "model.norm.weight", -1, 32, 0);
    add(m, "lm_head.weight", -1, 96, 32);
    for (int i = 0; i < LAYERS; i++) {
        add(m, "input_layernorm.weight", i, 32, 0);
        add(m, "post_attention_layernorm.weight", i, 32, 0);
        add(m, "self_attn.q_proj.weight", i, 32, 32);
        add(m, "self_attn.k_proj.weight", i, 16, 32);
        add(m, "self_attn.v_proj.weight", i, 16, 32);
        add(m, "self_attn.o_proj.weight", i, 32, 32);
        add(m, "mlp.gate_proj.weight", i, 64, 32);
        add(m, "mlp.up_proj.weight", i, 64, 32);
        add(m, "mlp.down_proj.weight", i, 32, 64);
    }
    snprintf(m->path, sizeof m->path, "%s/model.safetensors", m->dir);
    assert_int_equal(st_write(m->path, m->entries, m->n, NULL, NULL, 0, NULL), 0);
    snprintf(m->path, sizeof m->path, "%s/config.json", m->dir);
    assert_int_equal(file_write_atomic(m->path, config, strlen(config), NULL), 0);
    *state = m;
    return 0;
}

static int tear_down(void **state)
{
    struct model *m = *state;
    unlink(m->path);
    snprintf(m->path, sizeof m->path, "%s/model.safetensors", m->dir);
    unlink(m->path);
    rmdir(m->dir);
    free(m);
    return 0;
}

struct outcome {
    enum preflight_verdict verdict;
    struct findings f;
};

static bool found(const struct outcome *o, enum finding_id id, const char *says)
{
    for (size_t i = 0; i < o->f.n; i++)
        if (o->f.items[i].id == id &&
            (strstr(o->f.items[i].evidence, says) || strstr(o->f.items[i].subject, says)))
            return true;
    return false;
}

/* Checks the model with this text as the file of --arch; NULL: with the shipped one. */
static void check(struct model *m, const char *text, const char *waive, struct outcome *out)
{
    const struct arch_file file = {"user.lua", text, text ? strlen(text) : 0};
    const struct spec_options so = {.arch = text ? &file : NULL};
    const struct preflight_options po = {.skip_tokenizer = true};
    struct ckpt *c = NULL;
    struct spec *s = NULL;
    struct d0 d0 = {0};
    struct err e = {0};
    findings_init(&out->f, NULL);
    if (preflight_open(m->dir, &so, &po, &c, &s, &out->f, &d0, &e))
        fail_msg("%s", e.message);
    if (waive)
        findings_waive(&out->f, waive, "known");
    out->verdict = preflight_verdict(&out->f, s);
    for (size_t i = 0; i < out->f.n && getenv("SHOW"); i++)
        print_message("%s %s: %s\n", finding_code(out->f.items[i].id), out->f.items[i].subject,
                      out->f.items[i].evidence);
    spec_close(s);
    ckpt_close(c);
}

static void never_passes(struct model *m, const char *text, enum finding_id id, const char *says)
{
    struct outcome o;
    check(m, text, NULL, &o);
    if (o.verdict == PREFLIGHT_PASS)
        fail_msg("it passed: %.200s", text);
    if (!found(&o, id, says))
        fail_msg("no finding %s that says \"%s\": %.200s", finding_code(id), says, text);
    findings_release(&o.f);
}

/* The shipped file with one change. */
static char *llama_with(const char *from, const char *to)
{
    const struct arch_file *files;
    struct strbuf b = STRBUF_INIT;
    size_t n = spec_arch_files(&files), i = 0;
    while (i < n && strcmp(files[i].name, "llama.lua") != 0)
        i++;
    assert_true(i < n);
    const char *at = strstr(files[i].text, from);
    if (!at)
        fail_msg("llama.lua does not hold: %s", from);
    strbuf_add(&b, files[i].text, (size_t)(at - files[i].text));
    strbuf_puts(&b, to);
    strbuf_puts(&b, at + strlen(from));
    return strbuf_detach(&b);
}

static void changed_never_passes(struct model *m, const char *from, const char *to, enum finding_id id,
                                 const char *says)
{
    char *text = llama_with(from, to);
    never_passes(m, text, id, says);
    free(text);
}

/* A graph that ends in logits and computes with two weights; `more` is what else the file says. */
#define HOLLOW(more, n)                                                                                      \
    "return { arch = 'LlamaForCausalLM', build = function(c)\n"                                              \
    "  context(128)\n"                                                                                       \
    "  local x = embed { 'model.embed_tokens', vocab = 96, dim = 32 }\n" more "  x = layers { x, n = " n     \
    ", at = 'model.layers.%d', each = function(x)\n"                                                         \
    "    local y = attention { q = x, k = x, v = x, heads = 4, kv_heads = 4, dim = 8, scale = 1.0 }\n"       \
    "    return x + glu { y, y, fn = 'silu' }\n"                                                             \
    "  end }\n"                                                                                              \
    "  return logits { rms_norm { wanted_rows(x), 'model.norm', eps = 1e-5 }, 'lm_head', vocab = 96 }\n"     \
    "end }\n"
#define LISTED                                                                                               \
    "  local function list()\n    for i = 0, 2 do\n      local function p(name, a, b)\n"                     \
    "        param { string.format('model.layers.%d.%s.weight', i, name), shape = { a, b } }\n      end\n"   \
    "      p('input_layernorm', 32) p('post_attention_layernorm', 32) p('self_attn.q_proj', 32, 32)\n"       \
    "      p('self_attn.k_proj', 16, 32) p('self_attn.v_proj', 16, 32) p('self_attn.o_proj', 32, 32)\n"      \
    "      p('mlp.gate_proj', 64, 32) p('mlp.up_proj', 64, 32) p('mlp.down_proj', 32, 64)\n    end\n  end\n"

static void an_honest_copy_passes(void **state)
{
    struct outcome o;
    char *text = llama_with("Llama 1 to 3", "A copy of Llama 1 to 3");
    check(*state, text, NULL, &o);
    assert_int_equal(o.verdict, PREFLIGHT_PASS);
    assert_true(found(&o, FINDING_C005, "novel_feature"));
    findings_release(&o.f);
    free(text);
}

static void a_draft_never_passes(void **state)
{
    struct outcome o;
    char *text = llama_with("return {", "return { drafted = true,");
    check(*state, text, NULL, &o);
    assert_int_equal(o.verdict, PREFLIGHT_INCOMPLETE);
    findings_release(&o.f);
    free(text);
    /* what it gets wrong speaks against itself, not against the weights */
    text = llama_with("return {", "return { drafted = true,");
    char *at = strstr(text, "\"gate_proj\"");
    memcpy(at, "\"gate_port\"", strlen("\"gate_port\""));
    check(*state, text, NULL, &o);
    assert_int_equal(o.verdict, PREFLIGHT_INCOMPLETE);
    assert_true(found(&o, FINDING_W009, "gate_port"));
    findings_release(&o.f);
    free(text);
}

static void tensors_left_out(void **state)
{
    never_passes(*state, HOLLOW("", "3"), FINDING_W011, "27 tensors");
}

static void shapes_that_are_wrong(void **state)
{
    changed_never_passes(*state, "\"up_proj\", out = I", "\"up_proj\", out = I + 1", FINDING_C007, "");
    changed_never_passes(*state, "\"input_layernorm\"", "\"input_layernorm\", dim = 16", FINDING_W010,
                         "input_layernorm");
}

static void named_but_not_used(void **state)
{
    never_passes(*state, HOLLOW(LISTED "  list()\n", "3"), FINDING_C009, "depend on none of 27 weights");
    never_passes(*state, HOLLOW(LISTED "  tower('all', list)\n", "3"), FINDING_C009,
                 "compute with no weight");
    never_passes(*state, HOLLOW(LISTED "  mtp(list)\n", "3"), FINDING_C009, "compute with no weight");
}

static void layers_hidden_as_optional(void **state)
{
    /* the last layer is called a drafting layer: absent or not, nobody would miss it */
    changed_never_passes(
        *state, "x = rms_norm { wanted_rows(x)",
        "mtp(function() layers { x, n = 1, first = 2, at = \"model.layers.%d\", each = function(y)\n"
        "      local h = rms_norm { y, \"input_layernorm\", eps = eps }\n"
        "      return y + scope(\"mlp\", function() return mlp(h) end) end } end)\n"
        "    x = rms_norm { wanted_rows(x)",
        FINDING_C007, "twice");
    changed_never_passes(*state, "return logits",
                         "tower(\"aside\", function() param { \"aside.table\", shape = { 10000, 100 } } "
                         "end)\n    return logits",
                         FINDING_C009, "more bytes of weights stand outside");
    /* every layer computes with something, but its MLP stands aside */
    changed_never_passes(*state, "return x + scope(\"mlp\", function() return mlp(h) end)",
                         "tower(\"aside\", function() scope(\"mlp\", function() mlp(h) end) end)\n      "
                         "return x + glu { h, h, fn = fn }",
                         FINDING_C009, "of layers of the model stand outside of its graph");
    char *text = llama_with("n = c:count \"num_hidden_layers\"", "n = c:count \"num_hidden_layers\" - 1");
    never_passes(*state, text, FINDING_C009, "num_hidden_layers 3, the file describes 2");
    free(text);
}

#define TOWER(rest)                                                                                          \
    "vision({ patch = 4 }, function() local x = conv { 'e', shape = { 8, 3, 4, 4 } }\n" rest                 \
    " end)\n    return logits"

static void towers_drawn_wrongly(void **state)
{
    changed_never_passes(*state, "return logits",
                         "learned_row { x, 'r', shape = { H }, at = 'class' }\n    return logits",
                         FINDING_C007, "learned_row within the text graph");
    changed_never_passes(*state, "return logits", "undrawn(function() return 1 end)\n    return logits",
                         FINDING_C007, "undrawn within the text graph");
    changed_never_passes(*state, "return logits",
                         TOWER("return learned_row { x, 'r', shape = { 8 }, at = 'line' }"), FINDING_C007,
                         "not merged");
    changed_never_passes(*state, "return logits",
                         TOWER("return learned_row { x, 'r', shape = { 8 }, at = 'row' }"), FINDING_C007,
                         "at class or line");
    /* a row of another width than what it becomes; what is in no graph cannot leave it */
    changed_never_passes(
        *state, "return logits",
        TOWER("return reshape { learned_row { x, 'r', shape = { 9 }, at = 'class' }, dim = 8 }"),
        FINDING_C007, "features");
    changed_never_passes(*state, "return logits",
                         TOWER("return undrawn(function() return reshape { x, dim = 8 } end)"), FINDING_C007,
                         "merged rows of its graph");
}

static void the_api_redefined(void **state)
{
    static const char *const names[] = {"linear", "param", "unsupported", "pairs", "ipairs",
                                        "has",    "mtp",   "col",         "null"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        char to[120];
        snprintf(to, sizeof to, "%s = function() end\nreturn {", names[i]);
        changed_never_passes(*state, "return {", to, FINDING_C007, names[i]);
        snprintf(to, sizeof to, "%s = function() end\n    local H, I", names[i]);
        changed_never_passes(*state, "local H, I", to, FINDING_C007, names[i]);
    }
    changed_never_passes(*state, "return {", "table.sort = function() end\nreturn {", FINDING_C007, "sort");
    changed_never_passes(*state, "return {", "string.format = tostring\nreturn {", FINDING_C007, "format");
    changed_never_passes(*state, "return {", "setmetatable(table, nil)\nreturn {", FINDING_C007, "");
}

static void the_trace_forged(void **state)
{
    changed_never_passes(*state, "return {", "day0_trace = function() return {} end\nreturn {", FINDING_C007,
                         "day0_trace");
    changed_never_passes(*state, "return {", "function day0_describe() return {} end\nreturn {", FINDING_C007,
                         "day0_describe");
    changed_never_passes(*state, "return logits", "x.item.op = \"add\"\n    return logits", FINDING_C007, "");
    changed_never_passes(
        *state, "return logits",
        "do return setmetatable({ id = 1, rows = \"R\" }, getmetatable(x)) end\n    return logits",
        FINDING_C007, "");
    changed_never_passes(*state, "return logits", "do return { rows = \"R\" } end\n    return logits",
                         FINDING_C007, "");
}

/* Ways around the wall change nothing outside of it: the key that nobody reads is still told. */
static void what_cannot_be_reached(void **state)
{
    static const char *const tricks[] = {
        "rawset(_ENV, 'pairs', function() return function() end end)\nreturn {",
        "rawset(table, 'sort', function(l) for i = #l, 1, -1 do l[i] = nil end end)\nreturn {",
        "assert(_G == nil and day0_trace == nil and getmetatable(_ENV) == false)\nreturn {",
        "assert(not pcall(setmetatable, _ENV, {}))\nreturn {",
        "assert(getmetatable('') == nil)\nreturn {",
    };
    for (size_t i = 0; i < ARRAY_LEN(tricks); i++) {
        struct outcome o;
        char *text = llama_with("return {", tricks[i]);
        check(*state, text, NULL, &o);
        if (!found(&o, FINDING_C005, "novel_feature"))
            fail_msg("%s", tricks[i]);
        assert_int_equal(o.verdict, PREFLIGHT_PASS);
        findings_release(&o.f);
        free(text);
    }
}

static void a_waiver_is_a_decision(void **state)
{
    struct outcome o;
    char *text = llama_with("n = c:count \"num_hidden_layers\"", "n = c:count \"num_hidden_layers\" - 1");
    check(*state, text, "C009", &o);
    assert_int_equal(o.verdict, PREFLIGHT_INCOMPLETE); /* W011 is still there */
    findings_release(&o.f);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_honest_copy_passes),  cmocka_unit_test(a_draft_never_passes),
        cmocka_unit_test(tensors_left_out),       cmocka_unit_test(shapes_that_are_wrong),
        cmocka_unit_test(named_but_not_used),     cmocka_unit_test(layers_hidden_as_optional),
        cmocka_unit_test(towers_drawn_wrongly),   cmocka_unit_test(the_api_redefined),
        cmocka_unit_test(the_trace_forged),       cmocka_unit_test(what_cannot_be_reached),
        cmocka_unit_test(a_waiver_is_a_decision),
    };
    return cmocka_run_group_tests_name("hostile_arch", tests, set_up, tear_down);
}
