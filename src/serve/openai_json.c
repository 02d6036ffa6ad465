/* SPDX-License-Identifier: Apache-2.0
 *
 * The JSON of answers, chunks and errors in OpenAI's shapes, with these extensions: "seed" (the seed that was
 * used, also when none was given) and "token_ids" where asked for. Writes only; decides nothing.
 */
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "serve/serve_impl.h"

void write_error(struct strbuf *out, const struct api_error *err)
{
    struct json_writer w;
    json_writer_init(&w, out, false);
    json_begin_object(&w);
    json_key(&w, "error");
    json_begin_object(&w);
    json_key(&w, "message");
    json_write_string_n(&w, err->message, strlen(err->message));
    json_put_string(&w, "type", err->type);
    json_key(&w, "param");
    json_write_string(&w, err->param[0] ? err->param : NULL);
    json_put_string(&w, "code", err->code);
    json_end_object(&w);
    json_end_object(&w);
}

/* ---- log-probabilities ---- */

/* OpenAI writes -9999 where the probability is zero; JSON has no infinity. */
static double json_logprob(float logprob)
{
    return logprob > -9999.0f ? (double)logprob : -9999.0;
}

static const char *piece(const struct live_request *r, int32_t id, size_t *n)
{
    const char *s = tokenizer_piece(r->detokenizer.t, id, n);
    if (s == NULL)
        *n = 0;
    return s ? s : "";
}

/* Names part of a character as "bytes:\xe2\x80", so that no two tokens look alike. */
static void token_name(const struct live_request *r, int32_t id, struct strbuf *out)
{
    size_t n;
    const char *s = piece(r, id, &n);
    strbuf_clear(out);
    if (utf8_valid(s, n)) {
        strbuf_add(out, s, n);
        return;
    }
    strbuf_puts(out, "bytes:");
    for (size_t i = 0; i < n; i++)
        strbuf_printf(out, "\\x%02x", (unsigned char)s[i]);
}

static void write_name(struct json_writer *w, const struct live_request *r, int32_t id)
{
    struct strbuf name = STRBUF_INIT;
    token_name(r, id, &name);
    json_write_string_n(w, strbuf_cstr(&name), name.len);
    strbuf_release(&name);
}

/* {"token": logprob}. Two ids may have the same text (a byte token and a letter): the more probable one is
 * shown. */
static void write_top_object(struct json_writer *w, const struct live_request *r,
                             const struct scored_token *t)
{
    uint64_t seen[STEP_MAX_TOP];
    uint32_t n_seen = 0;
    struct strbuf name = STRBUF_INIT;
    json_begin_object(w);
    for (uint32_t i = 0; i < t->n_top && i < STEP_MAX_TOP; i++) {
        const struct step_top *top = &r->tops[t->first_top + i];
        token_name(r, top->token, &name);
        uint64_t h = hash64(strbuf_cstr(&name), name.len, 0);
        bool again = memchr(strbuf_cstr(&name), 0, name.len) != NULL; /* a key cannot hold it */
        for (uint32_t k = 0; k < n_seen; k++)
            again = again || seen[k] == h;
        if (again)
            continue;
        seen[n_seen++] = h;
        json_put_f64(w, strbuf_cstr(&name), json_logprob(top->logprob));
    }
    json_end_object(w);
    strbuf_release(&name);
}

static void write_completion_logprobs(struct json_writer *w, const struct live_request *r, size_t n)
{
    json_begin_object(w);
    json_key(w, "tokens");
    json_begin_array(w);
    for (size_t i = 0; i < n; i++)
        write_name(w, r, r->scored[i].token);
    json_end_array(w);
    json_key(w, "token_logprobs");
    json_begin_array(w);
    for (size_t i = 0; i < n; i++)
        json_write_f64(w, json_logprob(r->scored[i].logprob));
    json_end_array(w);
    json_key(w, "top_logprobs");
    json_begin_array(w);
    for (size_t i = 0; i < n; i++)
        write_top_object(w, r, &r->scored[i]);
    json_end_array(w);
    json_key(w, "text_offset");
    json_begin_array(w);
    for (size_t i = 0; i < n; i++)
        json_write_u64(w, r->scored[i].chars_at);
    json_end_array(w);
    json_end_object(w);
}

static void write_chat_token(struct json_writer *w, const struct live_request *r, int32_t id, float logprob)
{
    size_t n;
    const char *s = piece(r, id, &n);
    json_key(w, "token");
    write_name(w, r, id);
    json_put_f64(w, "logprob", json_logprob(logprob));
    json_key(w, "bytes");
    json_begin_array(w);
    for (size_t i = 0; i < n; i++)
        json_write_u64(w, (unsigned char)s[i]);
    json_end_array(w);
}

static void write_chat_logprobs(struct json_writer *w, const struct live_request *r, size_t n)
{
    json_begin_object(w);
    json_key(w, "content");
    json_begin_array(w);
    for (size_t i = 0; i < n; i++) {
        const struct scored_token *t = &r->scored[i];
        json_begin_object(w);
        write_chat_token(w, r, t->token, t->logprob);
        json_key(w, "top_logprobs");
        json_begin_array(w);
        for (uint32_t k = 0; k < t->n_top; k++) {
            json_begin_object(w);
            write_chat_token(w, r, r->tops[t->first_top + k].token, r->tops[t->first_top + k].logprob);
            json_end_object(w);
        }
        json_end_array(w);
        json_end_object(w);
    }
    json_end_array(w);
    json_put_string(w, "refusal", NULL);
    json_end_object(w);
}

static void write_logprobs(struct json_writer *w, const struct live_request *r, size_t n)
{
    json_key(w, "logprobs");
    if (!r->params.logprobs || n == 0)
        json_write_null(w);
    else if (r->params.endpoint == ENDPOINT_CHAT)
        write_chat_logprobs(w, r, n);
    else
        write_completion_logprobs(w, r, n);
}

/* ---- answers ---- */

static bool is_chat(const struct live_request *r)
{
    return r->params.endpoint == ENDPOINT_CHAT;
}

static void begin_document(struct json_writer *w, struct strbuf *out, const struct live_request *r,
                           const char *object)
{
    json_writer_init(w, out, false);
    json_begin_object(w);
    json_put_string(w, "id", r->name);
    json_put_string(w, "object", object);
    json_put_i64(w, "created", r->created);
    json_put_string(w, "model", r->serve->model_name);
    json_put_string(w, "system_fingerprint", "day0-" D0_VERSION);
    json_put_u64(w, "seed", r->params.seed);
    json_key(w, "choices");
    json_begin_array(w);
}

static void write_usage(struct json_writer *w, const struct live_request *r)
{
    json_key(w, "usage");
    json_begin_object(w);
    json_put_u64(w, "prompt_tokens", r->n_prompt);
    json_put_u64(w, "completion_tokens", r->n_generated);
    json_put_u64(w, "total_tokens", (uint64_t)r->n_prompt + r->n_generated);
    json_key(w, "prompt_tokens_details");
    json_begin_object(w);
    json_put_u64(w, "cached_tokens", r->n_cached);
    if (r->n_pictures)
        json_put_u64(w, "image_tokens", r->n_picture_rows);
    json_end_object(w);
    json_end_object(w);
}

static void put_seconds(struct json_writer *w, const char *key, uint64_t from, uint64_t to)
{
    json_put_f64(w, key, to > from ? (double)(to - from) / 1e9 : 0);
}

/* Segments that follow each other: prompt, images, queue, vision, prefill and decode are together the total.
 * image_decode and image_preprocess are seconds of threads, within images. */
static void write_timings(struct json_writer *w, const struct live_request *r)
{
    const struct request_times *t = &r->times;
    if (!r->params.timings)
        return;
    json_key(w, "day0_timings");
    json_begin_object(w);
    put_seconds(w, "prompt_s", t->arrived, t->prompted);
    if (r->n_pictures) {
        put_seconds(w, "images_s", t->prompted, t->submitted);
        put_seconds(w, "image_decode_s", 0, t->picture_decode);
        put_seconds(w, "image_preprocess_s", 0, t->picture_process);
    }
    put_seconds(w, "queue_s", r->n_pictures ? t->submitted : t->prompted, t->started);
    if (r->n_pictures)
        put_seconds(w, "vision_s", 0, t->vision);
    put_seconds(w, "prefill_s", t->started + t->vision, t->first_token);
    put_seconds(w, "decode_s", t->first_token, t->last_token);
    put_seconds(w, "total_s", t->arrived, t->last_token);
    json_end_object(w);
}

/* What of the output was passed on as text, and why. */
static void write_notes(struct json_writer *w, const struct live_request *r)
{
    if (r->output.n_notes == 0)
        return;
    json_key(w, "output_notes");
    json_begin_array(w);
    for (uint32_t i = 0; i < r->output.n_notes; i++)
        json_write_string(w, r->output.notes[i]);
    json_end_array(w);
}

static void end_choice(struct json_writer *w, const struct live_request *r, size_t n_scored,
                       const char *finish)
{
    write_logprobs(w, r, n_scored);
    json_put_string(w, "finish_reason", finish);
    if (finish)
        write_notes(w, r);
    if (r->params.return_token_ids) {
        json_key(w, "token_ids");
        json_begin_array(w);
        for (size_t i = 0; i < r->n_ids; i++)
            json_write_i64(w, r->ids[i]);
        json_end_array(w);
    }
    json_end_object(w);
    json_end_array(w);
}

static void write_call(struct json_writer *w, const struct live_call *c, int64_t index, const char *arguments,
                       size_t n, bool named)
{
    json_begin_object(w);
    if (index >= 0)
        json_put_i64(w, "index", index);
    if (named) {
        json_put_string(w, "id", c->id);
        json_put_string(w, "type", "function");
    }
    json_key(w, "function");
    json_begin_object(w);
    if (named)
        json_put_string(w, "name", strbuf_cstr(&c->name));
    json_key(w, "arguments");
    json_write_string_n(w, arguments, n);
    json_end_object(w);
    json_end_object(w);
}

static void write_delta(struct json_writer *w, const struct chunk *c)
{
    json_key(w, "delta");
    json_begin_object(w);
    if (c->first)
        json_put_string(w, "role", "assistant");
    if (c->call) {
        json_key(w, "tool_calls");
        json_begin_array(w);
        write_call(w, c->call, c->call_index, c->text, c->text_bytes, c->text_bytes == 0);
        json_end_array(w);
    } else if (c->first || c->text_bytes > 0) {
        json_key(w, c->reasoning ? "reasoning_content" : "content");
        json_write_string_n(w, c->text, c->text_bytes);
    }
    json_end_object(w);
}

static void write_message(struct json_writer *w, const struct live_request *r)
{
    const struct live_output *o = &r->output;
    json_key(w, "message");
    json_begin_object(w);
    json_put_string(w, "role", "assistant");
    json_key(w, "content");
    if (r->text.len == 0 && o->n_calls > 0)
        json_write_null(w);
    else
        json_write_string_n(w, strbuf_cstr(&r->text), r->text.len);
    json_put_string(w, "refusal", NULL);
    if (o->reasoning.len > 0) {
        json_key(w, "reasoning_content");
        json_write_string_n(w, strbuf_cstr(&o->reasoning), o->reasoning.len);
    }
    if (o->n_calls > 0) {
        json_key(w, "tool_calls");
        json_begin_array(w);
        for (size_t i = 0; i < o->n_calls; i++)
            write_call(w, &o->calls[i], -1, strbuf_cstr(&o->calls[i].arguments), o->calls[i].arguments.len,
                       true);
        json_end_array(w);
    }
    json_end_object(w);
}

void write_chunk(struct strbuf *out, const struct live_request *r, const struct chunk *c)
{
    struct json_writer w;
    begin_document(&w, out, r, is_chat(r) ? "chat.completion.chunk" : "text_completion");
    json_begin_object(&w);
    json_put_i64(&w, "index", 0);
    if (is_chat(r)) {
        write_delta(&w, c);
    } else {
        json_key(&w, "text");
        json_write_string_n(&w, c->text, c->text_bytes);
    }
    end_choice(&w, r, c->n_scored, c->finish);
    if (c->finish)
        write_timings(&w, r);
    if (r->params.include_usage) {
        json_key(&w, "usage");
        json_write_null(&w);
    }
    json_end_object(&w);
}

void write_usage_chunk(struct strbuf *out, const struct live_request *r)
{
    struct json_writer w;
    begin_document(&w, out, r, is_chat(r) ? "chat.completion.chunk" : "text_completion");
    json_end_array(&w);
    write_usage(&w, r);
    json_end_object(&w);
}

void write_answer(struct strbuf *out, const struct live_request *r, const char *finish)
{
    struct json_writer w;
    begin_document(&w, out, r, is_chat(r) ? "chat.completion" : "text_completion");
    json_begin_object(&w);
    json_put_i64(&w, "index", 0);
    if (is_chat(r)) {
        write_message(&w, r);
    } else {
        json_key(&w, "text");
        json_write_string_n(&w, strbuf_cstr(&r->text), r->text.len);
    }
    end_choice(&w, r, r->n_scored, finish);
    write_usage(&w, r);
    write_timings(&w, r);
    json_end_object(&w);
}

static void write_model(struct json_writer *w, const struct serve *s)
{
    json_begin_object(w);
    json_put_string(w, "id", s->model_name);
    json_put_string(w, "object", "model");
    json_put_i64(w, "created", s->started_unix);
    json_put_string(w, "owned_by", "day0");
    json_put_u64(w, "max_model_len", s->max_context);
    json_end_object(w);
}

void write_models(struct strbuf *out, const struct serve *s, bool list)
{
    struct json_writer w;
    json_writer_init(&w, out, false);
    if (!list) {
        write_model(&w, s);
        return;
    }
    json_begin_object(&w);
    json_put_string(&w, "object", "list");
    json_key(&w, "data");
    json_begin_array(&w);
    write_model(&w, s);
    json_end_array(&w);
    json_end_object(&w);
}
