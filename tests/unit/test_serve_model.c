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
#include <pthread.h>
#include <unistd.h>

#include <cmocka.h>

#include "api/api.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/thread.h"
#include "net/net.h"
#include "serve/serve.h"
#include "tiny_tokenizer.h"

#define S      1000000000u
#define HIDDEN 32
#define LAYERS 2
#define HEADS  4
#define KV     2
#define DIM    8
#define INTER  64
#define MANY   200
#define KINDS  10 /* different requests among them */

static const char config[] =
    "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"hidden_size\":32,\"intermediate_"
    "size\":64,"
    "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":8,\"vocab_"
    "size\":300,"
    "\"max_position_embeddings\":256,\"rms_norm_eps\":1e-05,\"rope_theta\":10000.0,\"hidden_act\":\"silu\","
    "\"attention_bias\":false,\"mlp_bias\":false,\"tie_word_embeddings\":false,\"bos_token_id\":1,\"eos_"
    "token_id\":2,"
    "\"torch_dtype\":\"float32\"}";

/* ---- the model ---- */

struct weights_to_write {
    struct st_entry entries[64];
    char names[64][80];
    size_t n;
};

static void add_weight(struct weights_to_write *w, const char *name, int64_t rows, int64_t cols)
{
    size_t count = (size_t)(cols ? rows * cols : rows), i = w->n++;
    float *x = malloc(count * sizeof *x);
    assert_true(x && i < ARRAY_LEN(w->entries));
    for (size_t k = 0; k < count; k++)
        x[k] = cols ? (float)(0.6 * (2 * rng_f64(i + 1, k) - 1)) : 1.0f;
    snprintf(w->names[i], sizeof w->names[i], "%s", name);
    w->entries[i] = (struct st_entry){
        .name = w->names[i], .dtype = D0_F32, .n_dims = cols ? 2 : 1, .dims = {rows, cols}, .data = x};
}

static void write_model(const char *dir)
{
    static const struct {
        const char *name;
        int64_t rows, cols;
    } layer[] = {{"input_layernorm", HIDDEN, 0},
                 {"post_attention_layernorm", HIDDEN, 0},
                 {"self_attn.q_proj", HEADS * DIM, HIDDEN},
                 {"self_attn.k_proj", KV * DIM, HIDDEN},
                 {"self_attn.v_proj", KV * DIM, HIDDEN},
                 {"self_attn.o_proj", HIDDEN, HEADS * DIM},
                 {"mlp.gate_proj", INTER, HIDDEN},
                 {"mlp.up_proj", INTER, HIDDEN},
                 {"mlp.down_proj", HIDDEN, INTER}};
    struct weights_to_write *w = calloc(1, sizeof *w);
    struct strbuf tokenizer = STRBUF_INIT;
    struct err e = {0};
    char path[128], name[80];
    assert_non_null(w);
    add_weight(w, "model.embed_tokens.weight", TINY_VOCAB, HIDDEN);
    add_weight(w, "model.norm.weight", HIDDEN, 0);
    add_weight(w, "lm_head.weight", TINY_VOCAB, HIDDEN);
    for (int l = 0; l < LAYERS; l++)
        for (size_t i = 0; i < ARRAY_LEN(layer); i++) {
            snprintf(name, sizeof name, "model.layers.%d.%s.weight", l, layer[i].name);
            add_weight(w, name, layer[i].rows, layer[i].cols);
        }
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    if (st_write(path, w->entries, w->n, NULL, NULL, 0, &e))
        fail_msg("%s", e.message);
    for (size_t i = 0; i < w->n; i++)
        free((void *)(uintptr_t)w->entries[i].data);
    free(w);
    snprintf(path, sizeof path, "%s/config.json", dir);
    assert_int_equal(file_write_atomic(path, config, sizeof config - 1, &e), 0);
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    tiny_tokenizer(&tokenizer, &(struct tiny_options){0});
    assert_int_equal(file_write_atomic(path, tokenizer.data, tokenizer.len, &e), 0);
    strbuf_release(&tokenizer);
}

/* ---- the server ---- */

struct server {
    struct d0 d0;
    struct session session;
    struct serve *serve;
    pthread_t thread;
    char dir[64], base[64];
};

static void *run_server(void *arg)
{
    struct server *s = arg;
    serve_run(s->serve, NULL);
    return NULL;
}

static double metric(const struct server *s, const char *name)
{
    char url[128], line[128];
    struct http_response r = {0};
    struct err e = {0};
    snprintf(url, sizeof url, "%s/metrics", s->base);
    if (http_fetch(&(struct http_request){.url = url, .timeout_ns = 10ull * S}, NULL, NULL, &r, &e))
        fail_msg("%s", e.message);
    snprintf(line, sizeof line, "\n%s ", name);
    strbuf_putc(&r.body, '\0');
    const char *hit = strstr(r.body.data, line);
    if (!hit)
        hit = strncmp(r.body.data, line + 1, strlen(line) - 1) == 0 ? r.body.data - 1 : NULL;
    if (!hit)
        fail_msg("no metric %s", name);
    double v = strtod(hit + strlen(line), NULL);
    http_response_release(&r);
    return v;
}

static bool becomes(const struct server *s, const char *name, double want)
{
    for (int i = 0; i < 500; i++) {
        if (metric(s, name) == want)
            return true;
        clock_sleep_ns(10000000);
    }
    return false;
}

static struct server *start(void)
{
    struct server *s = calloc(1, sizeof *s);
    struct findings f;
    struct err e = {0};
    char path[128];
    assert_non_null(s);
    s->d0.log.fd = -1;
    snprintf(s->dir, sizeof s->dir, "/tmp/day0-model-XXXXXX");
    assert_non_null(mkdtemp(s->dir));
    write_model(s->dir);
    findings_init(&f, &s->d0.mem);
    struct session_options so = {
        .model_dir = s->dir, .n_threads = 2, .max_seqs = 32, .max_tokens = 128, .memory_bytes = 1u << 30};
    if (session_open(&s->session, &so, &f, &s->d0, &e))
        fail_msg("%s", e.message);
    findings_release(&f);
    struct serve_options o = {.model_name = "tiny", .prefix_cache = true};
    if (serve_open(&s->serve, s->session.engine, s->session.front, &o, &s->d0, &e))
        fail_msg("%s", e.message);
    snprintf(s->base, sizeof s->base, "http://127.0.0.1:%u", serve_port(s->serve));
    assert_int_equal(pthread_create(&s->thread, NULL, run_server, s), 0);
    static const char *const files[] = {"model.safetensors", "config.json", "tokenizer.json"};
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        snprintf(path, sizeof path, "%s/%s", s->dir, files[i]);
        unlink(path);
    }
    rmdir(s->dir);
    assert_true(becomes(s, "day0_ready", 1));
    return s;
}

static void stop(struct server *s)
{
    serve_stop(s->serve);
    pthread_join(s->thread, NULL);
    serve_close(s->serve);
    session_close(&s->session);
    free(s);
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
static void add_stream(const struct server *s, struct http_client *c, int kind, struct stream *st)
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
             'a' + kind, kind, kind % 2 ? "0.8" : "0", 20 + 3 * kind);
    struct http_request q = {.url = url, .body = body, .body_bytes = strlen(body), .timeout_ns = 100ull * S};
    struct http_handlers h = {.on_event = on_event, .on_done = on_done};
    if (http_client_add(c, &q, &h, st, NULL, &e))
        fail_msg("%s", e.message);
}

static void run_all(struct http_client *c)
{
    struct err e = {0};
    for (uint64_t end = clock_ns() + 100ull * S; http_client_active(c) > 0 && clock_ns() < end;)
        if (http_client_poll(c, 100000000, &e))
            fail_msg("%s", e.message);
    assert_int_equal(http_client_active(c), 0);
}

static void alone_and_in_a_crowd(void **state)
{
    (void)state;
    struct server *s = start();
    struct http_client *c;
    struct err e = {0};
    struct stream alone[KINDS] = {0}, *many = calloc(MANY, sizeof *many);
    int64_t cached = 0;
    int different = 0;
    assert_non_null(many);
    double pages = metric(s, "day0_kv_pages_free");
    /* the plan was made before anything was set aside: part by part it is what came */
    const struct plan_memory *plan = &s->session.memory;
    assert_int_equal(plan->device, atomic_load(&s->d0.mem.live[MEM_KERNELS]));
    assert_int_equal(plan->kv, atomic_load(&s->d0.mem.live[MEM_KV]));
    assert_true(plan->device > 0 && plan->scratch <= atomic_load(&s->d0.mem.live[MEM_SCRATCH]));
    assert_int_equal(http_client_open(&c, &e), 0);
    for (int i = 0; i < KINDS; i++) {
        add_stream(s, c, i, &alone[i]);
        run_all(c);
        assert_true(alone[i].done);
    }
    for (int i = 0; i < MANY; i++)
        add_stream(s, c, i % KINDS, &many[i]);
    run_all(c);
    for (int i = 0; i < MANY; i++) {
        assert_true(many[i].done);
        assert_string_equal(many[i].finish, "length");
        assert_string_equal(strbuf_cstr(&many[i].text), strbuf_cstr(&alone[i % KINDS].text));
        cached += many[i].cached;
        different += strcmp(strbuf_cstr(&many[i].text), strbuf_cstr(&many[0].text)) != 0;
    }
    assert_true(cached > 0);                          /* the second of a kind finds its prompt computed */
    assert_int_equal(different, MANY - MANY / KINDS); /* the kinds are not all alike */
    assert_true(becomes(s, "day0_requests_running", 0));
    assert_true(metric(s, "day0_kv_pages_free") == pages);
    for (int i = 0; i < MANY; i++)
        strbuf_release(&many[i].text);
    for (int i = 0; i < KINDS; i++)
        strbuf_release(&alone[i].text);
    free(many);
    http_client_close(c);
    stop(s);
}

static void leaving_frees_pages(void **state)
{
    (void)state;
    struct server *s = start();
    struct http_client *c;
    struct err e = {0};
    struct stream st[50] = {0};
    double pages = metric(s, "day0_kv_pages_free");
    assert_int_equal(http_client_open(&c, &e), 0);
    for (size_t i = 0; i < ARRAY_LEN(st); i++) {
        st[i].leave_after = 1 + (int)i % 5;
        add_stream(s, c, (int)i % KINDS, &st[i]);
    }
    run_all(c);
    assert_true(becomes(s, "day0_requests_open", 0));
    assert_true(becomes(s, "day0_requests_running", 0));
    assert_true(becomes(s, "day0_requests_waiting", 0));
    assert_true(becomes(s, "day0_kv_pages_free", pages));
    for (size_t i = 0; i < ARRAY_LEN(st); i++)
        strbuf_release(&st[i].text);
    http_client_close(c);
    stop(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(alone_and_in_a_crowd),
        cmocka_unit_test(leaving_frees_pages),
    };
    return cmocka_run_group_tests_name("serve_model", tests, NULL, NULL);
}
