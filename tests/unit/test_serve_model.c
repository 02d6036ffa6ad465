/* SPDX-License-Identifier: Apache-2.0
 *
 * The service over the real engine: a tiny random Llama in a directory made here, opened as `day0 serve`
 * opens one. 200 streams at once give each the text that the same request gives alone; a cached prefix
 * changes no text; clients that leave give their pages back.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "served_model.h"
#include "service_client.h"
#include "tiny_model.h"
#include "tiny_tokenizer.h"

#define S     1000000000u
#define MANY  200
#define KINDS 10 /* different requests among them */

#define LONG 4096 /* tokens of a context; as many steps as a request takes that nobody ends */

static const char config[] =
    "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"hidden_size\":32,\"intermediate_"
    "size\":64,"
    "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":8,\"vocab_"
    "size\":300,"
    "\"max_position_embeddings\":4096,\"rms_norm_eps\":1e-05,\"rope_theta\":10000.0,\"hidden_act\":\"silu\","
    "\"attention_bias\":false,\"mlp_bias\":false,\"tie_word_embeddings\":false,\"bos_token_id\":1,\"eos_"
    "token_id\":2,"
    "\"torch_dtype\":\"float32\"}";

/* context: of one request. */
static struct server *start(uint32_t context)
{
    static const char *const files[] = {"tokenizer.json", "model.safetensors", "config.json"};
    struct server *s = server_new();
    struct strbuf b = STRBUF_INIT;
    struct err e = {0};
    char path[128];
    tiny_model_write(s->dir, config, NULL, 5, NULL, NULL);
    tiny_tokenizer(&b, &(struct tiny_options){0});
    snprintf(path, sizeof path, "%s/%s", s->dir, files[0]);
    assert_int_equal(file_write_atomic(path, b.data, b.len, &e), 0);
    server_start(s, (struct session_options){.max_seqs = 32, .max_tokens = 128, .context = context},
                 (struct serve_options){.prefix_cache = true});
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        snprintf(path, sizeof path, "%s/%s", s->dir, files[i]);
        unlink(path);
    }
    rmdir(s->dir);
    strbuf_release(&b);
    return s;
}

/* ---- clients ---- */

struct stream {
    struct strbuf text;
    char finish[16];
    int64_t cached;
    int n_events, leave_after;
    bool done;
};

static bool on_event(void *user, const struct sse_event *ev)
{
    struct stream *st = user;
    struct arena a;
    const struct json *v = NULL;
    struct err e = {0};
    if (strcmp(ev->data, "[DONE]") == 0) {
        st->done = true;
        return true;
    }
    arena_init(&a, NULL, MEM_MISC);
    if (json_parse(ev->data, ev->n, NULL, &a, &v, &e))
        fail_msg("%s: %s", e.message, ev->data);
    const struct json *choice = json_at(json_get(v, "choices"), 0), *text = json_get(choice, "text");
    if (text)
        strbuf_add(&st->text, text->as.string, text->n);
    const char *finish = json_string(json_get(choice, "finish_reason"));
    if (finish)
        snprintf(st->finish, sizeof st->finish, "%s", finish);
    json_i64(json_get(json_get(json_get(v, "usage"), "prompt_tokens_details"), "cached_tokens"), &st->cached);
    arena_release(&a);
    st->n_events++;
    return st->leave_after == 0 || st->n_events < st->leave_after;
}

static void on_done(void *user, struct http_response *r, const struct err *failure)
{
    (void)user, (void)r, (void)failure;
}

/* Every kind has its own prompt length, temperature and seed. */
static void add_stream(const struct server *s, struct http_client *c, int kind, int max_tokens,
                       struct stream *st)
{
    char url[128], body[1024];
    struct err e = {0};
    snprintf(url, sizeof url, "%s/v1/completions", s->base);
    snprintf(body, sizeof body,
             "{\"model\":\"tiny\",\"prompt\":\"%.*s%c\",\"seed\":%d,\"temperature\":%s,\"max_tokens\":%d,"
             "\"stream\":true,\"ignore_eos\":true,"
             "\"stream_options\":{\"include_usage\":true}}",
             kind * 9,
             "the hello and singing all the bell and the inn that he and the hands sing and all hello the "
             "end of the bells",
             'a' + kind, kind, kind % 2 ? "0.8" : "0", max_tokens);
    struct http_request q = {.url = url, .body = body, .body_bytes = strlen(body), .timeout_ns = 100ull * S};
    struct http_handlers h = {.on_event = on_event, .on_done = on_done};
    if (http_client_add(c, &q, &h, st, NULL, &e))
        fail_msg("%s", e.message);
}

static void alone_and_in_a_crowd(void **state)
{
    (void)state;
    struct server *s = start(256);
    struct http_client *c = client_open();
    struct stream alone[KINDS] = {0}, *many = calloc(MANY, sizeof *many);
    int64_t cached = 0;
    int different = 0;
    assert_non_null(many);
    double pages = metric(s->base, "day0_kv_pages_free");
    /* the plan was made before anything was set aside: part by part it is what came */
    const struct plan_memory *plan = &s->session.memory;
    assert_int_equal(plan->device, atomic_load(&s->d0.mem.live[MEM_KERNELS]));
    assert_int_equal(plan->kv, atomic_load(&s->d0.mem.live[MEM_KV]));
    assert_true(plan->device > 0 && plan->scratch <= atomic_load(&s->d0.mem.live[MEM_SCRATCH]));
    for (int i = 0; i < KINDS; i++) {
        add_stream(s, c, i, 20 + 3 * i, &alone[i]);
        client_run(c);
        assert_true(alone[i].done);
    }
    for (int i = 0; i < MANY; i++)
        add_stream(s, c, i % KINDS, 20 + 3 * (i % KINDS), &many[i]);
    client_run(c);
    for (int i = 0; i < MANY; i++) {
        assert_true(many[i].done);
        assert_string_equal(many[i].finish, "length");
        assert_string_equal(strbuf_cstr(&many[i].text), strbuf_cstr(&alone[i % KINDS].text));
        cached += many[i].cached;
        different += strcmp(strbuf_cstr(&many[i].text), strbuf_cstr(&many[0].text)) != 0;
    }
    assert_true(cached > 0);                          /* the second of a kind finds its prompt computed */
    assert_int_equal(different, MANY - MANY / KINDS); /* the kinds are not all alike */
    assert_true(metric_becomes(s->base, "day0_requests_running", 0));
    assert_true(metric(s->base, "day0_kv_pages_free") == pages);
    for (int i = 0; i < MANY; i++)
        strbuf_release(&many[i].text);
    for (int i = 0; i < KINDS; i++)
        strbuf_release(&alone[i].text);
    free(many);
    http_client_close(c);
    server_stop(s);
}

/* Fewer steps than one answer takes: nobody's request went on to its own end. */
static void leaving_frees_pages(void **state)
{
    (void)state;
    struct server *s = start(LONG);
    struct http_client *c = client_open();
    struct stream st[50] = {0};
    const double steps = metric(s->base, "day0_steps_total");
    for (size_t i = 0; i < ARRAY_LEN(st); i++) {
        st[i].leave_after = 1 + (int)i % 5;
        add_stream(s, c, (int)i % KINDS, LONG - 256, &st[i]);
    }
    client_run(c);
    server_idles(s);
    assert_true(metric(s->base, "day0_requests_total{outcome=\"client_gone\"}") == ARRAY_LEN(st));
    assert_in_range((uint64_t)(metric(s->base, "day0_steps_total") - steps), 1, LONG - 256 - 1);
    for (size_t i = 0; i < ARRAY_LEN(st); i++)
        strbuf_release(&st[i].text);
    http_client_close(c);
    server_stop(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(alone_and_in_a_crowd),
        cmocka_unit_test(leaving_frees_pages),
    };
    return cmocka_run_group_tests_name("serve_model", tests, NULL, NULL);
}
