/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: requests and conversations as stage 4 sends them, what a service gives for one (text, counts,
 * log-probabilities by our ids), and the times of segments that it tells. Refuses: believing that a service
 * knows our ids: its tokens are looked up by their bytes.
 */
#include "adapt/stage4.h"

#include <stdio.h>
#include <string.h>

#include "stress/stress.h"

void channels_ask(struct channels *c, const struct ask *ask, struct answer *out)
{
    char why[120];
    if (c->hung) {
        snprintf(why, sizeof(why), "not asked: an answer before this one did not come in %u s",
                 probe_seconds(c->j));
        probe_nothing(out, why);
        return;
    }
    probe_ask(c->j, ask, out);
    c->hung = out->timed_out;
}

/* ---- conversations */

static void write_parts(struct json_writer *w, struct conversation *c, const char *const *parts)
{
    const bool plain = parts[0] && !parts[1] && !str_starts(parts[0], "data:");
    json_key(w, "content");
    if (plain) {
        json_write_string(w, parts[0]);
        c->text = parts[0];
        return;
    }
    json_begin_array(w);
    for (size_t i = 0; parts[i]; i++) {
        const bool picture = str_starts(parts[i], "data:");
        json_begin_object(w);
        json_put_string(w, "type", picture ? "image_url" : "text");
        if (picture) {
            json_key(w, "image_url");
            json_begin_object(w);
            json_put_string(w, "url", parts[i]);
            json_end_object(w);
            if (c->n_urls < ARRAY_LEN(c->urls))
                c->urls[c->n_urls++] = parts[i];
        } else {
            json_put_string(w, "text", parts[i]);
            c->text = parts[i];
        }
        json_end_object(w);
    }
    json_end_array(w);
}

int conversation_make(struct conversation *c, const char *system, const char *const *parts,
                      struct arena *arena, struct err *e)
{
    struct strbuf text = STRBUF_INIT;
    struct json_writer w;
    c->system = system != NULL;
    c->n_urls = 0;
    c->text = "";
    json_writer_init(&w, &text, false);
    json_begin_array(&w);
    if (system) {
        json_begin_object(&w);
        json_put_string(&w, "role", "system");
        json_put_string(&w, "content", system);
        json_end_object(&w);
    }
    json_begin_object(&w);
    json_put_string(&w, "role", "user");
    write_parts(&w, c, parts);
    json_end_object(&w);
    json_end_array(&w);
    c->body = strbuf_failed(&text) ? NULL : arena_strndup(arena, strbuf_cstr(&text), text.len);
    strbuf_release(&text);
    if (!c->body)
        return err_set(e, ERR_NOMEM, "out of memory for a conversation");
    return json_parse(c->body, strlen(c->body), NULL, arena, &c->messages, e);
}

/* ---- the service's tokens as ours */

/* Bytes of a token as a service tells it: `bytes`, else the text. */
static size_t token_bytes(const struct json *v, char *out, size_t cap)
{
    const struct json *bytes = json_get(v, "bytes");
    size_t n = 0;
    if (bytes && bytes->type == JSON_ARRAY) {
        for (size_t i = 0; i < bytes->n && n < cap; i++) {
            int64_t b = 0;
            if (json_i64(json_at(bytes, i), &b))
                out[n++] = (char)b;
        }
        return n;
    }
    const char *text = json_string(json_get(v, "token"));
    n = text ? strlen(text) : 0;
    if (n > cap)
        return 0;
    if (n)
        memcpy(out, text, n);
    return n;
}

/* The last id that reads so: ids of single bytes come first where a vocabulary has both. */
static int32_t id_of(const struct tokenizer *t, const char *bytes, size_t n)
{
    for (uint32_t id = tokenizer_vocab(t); n && id-- > 0;) {
        size_t m = 0;
        const char *piece = tokenizer_piece(t, (int32_t)id, &m);
        if (piece && m == n && memcmp(piece, bytes, n) == 0 && !tokenizer_is_special(t, (int32_t)id))
            return (int32_t)id;
    }
    return -1;
}

static bool read_scored(const struct tokenizer *t, const struct json *v, struct scored *out)
{
    char bytes[256];
    if (!v || !json_f64(json_get(v, "logprob"), &out->logprob))
        return false;
    out->id = id_of(t, bytes, token_bytes(v, bytes, sizeof(bytes)));
    return true;
}

/* As far as every chosen token is one of ours: what follows an unknown one cannot be computed. */
static void read_tokens(const struct tokenizer *t, const struct json *body, struct served *out)
{
    const struct json *list =
        json_get(json_get(json_at(json_get(body, "choices"), 0), "logprobs"), "content");
    if (!list || list->type != JSON_ARRAY)
        return;
    for (size_t i = 0; i < list->n && out->n < ANSWER_MOST; i++) {
        const struct json *v = json_at(list, i), *top = json_get(v, "top_logprobs");
        if (!read_scored(t, v, &out->tokens[out->n].chosen) || out->tokens[out->n].chosen.id < 0)
            return;
        out->tokens[out->n].n_others = 0;
        for (size_t k = 0; top && top->type == JSON_ARRAY && k < top->n && k < ALTERNATIVES; k++) {
            struct scored s;
            if (read_scored(t, json_at(top, k), &s) && s.id >= 0 && s.id != out->tokens[out->n].chosen.id)
                out->tokens[out->n].others[out->tokens[out->n].n_others++] = s;
        }
        out->n++;
    }
}

void served_ask(struct channels *c, const struct conversation *v, bool ask_logprobs, struct arena *arena,
                struct served *out)
{
    struct answer a;
    struct ask ask = {.chat = true,
                      .messages = v->body,
                      .n_top = ask_logprobs ? ALTERNATIVES : 0,
                      .timings = c->day0,
                      .max_tokens = v->max_tokens ? v->max_tokens : ANSWER_MOST};
    memset(out, 0, sizeof(*out));
    channels_ask(c, &ask, &a);
    out->answered = !a.why[0];
    snprintf(out->why, sizeof(out->why), "%s", a.why);
    out->has_usage = a.has_usage;
    out->prompt_tokens = a.prompt_tokens;
    out->output_tokens = a.output_tokens;
    out->total_ms = a.total_ms;
    out->text = arena_strndup(arena, strbuf_cstr(&a.text), a.text.len);
    if (out->answered && ask_logprobs)
        read_tokens(c->j->front->tokenizer, a.body, out);
    segments_add(&c->segments, a.timings);
    answer_release(&a);
}

void conversation_write(struct channels *c, const struct conversation *v, const struct served *s,
                        const char *state)
{
    struct json_writer *w = c->w;
    json_begin_object(w);
    json_put_string(w, "name", v->name);
    json_put_string(w, "state", state);
    json_key(w, "pictures");
    json_begin_array(w);
    for (unsigned i = 0; i < v->n_urls; i++)
        json_write_string(w, strlen(v->urls[i]) < 65536 ? v->urls[i] : "");
    json_end_array(w);
    json_put_string(w, "question", v->text);
    json_put_string(w, "expected", v->expected);
    json_put_string(w, "answer", s->answered ? s->text : NULL);
    json_put_string(w, "why", s->answered ? "" : s->why);
    if (s->has_usage) {
        json_put_u64(w, "prompt_tokens", s->prompt_tokens);
        json_put_u64(w, "output_tokens", s->output_tokens);
    }
    if (v->prompt_tokens >= 0)
        json_put_i64(w, "stated_prompt_tokens", v->prompt_tokens);
    json_put_f64(w, "total_ms", s->total_ms);
    json_end_object(w);
}

/* ---- times */

static const struct {
    const char *key, *name;
} segment_names[SEGMENTS] = {
    [SEGMENT_IMAGES] = {"images_s", "pictures_made"},
    [SEGMENT_DECODE_IMAGES] = {"image_decode_s", "picture_decode"},
    [SEGMENT_PREPROCESS] = {"image_preprocess_s", "picture_preprocess"},
    [SEGMENT_QUEUE] = {"queue_s", "queue"},
    [SEGMENT_VISION] = {"vision_s", "vision"},
    [SEGMENT_PREFILL] = {"prefill_s", "prefill"},
    [SEGMENT_DECODE] = {"decode_s", "decode"},
};

void segments_add(struct segments *s, const struct json *timings)
{
    for (unsigned i = 0; i < SEGMENTS; i++) {
        double seconds;
        if (json_f64(json_get(timings, segment_names[i].key), &seconds) && s->n[i] < SEGMENT_SAMPLES)
            s->ms[i][s->n[i]++] = seconds * 1e3;
    }
}

void segments_write(const struct segments *s, struct json_writer *w)
{
    json_key(w, "segments");
    json_begin_array(w);
    for (unsigned i = 0; i < SEGMENTS; i++) {
        double sum = 0, sorted[SEGMENT_SAMPLES];
        for (size_t k = 0; k < s->n[i]; k++)
            sum += s->ms[i][k];
        if (s->n[i] == 0)
            continue;
        memcpy(sorted, s->ms[i], s->n[i] * sizeof(*sorted));
        json_begin_object(w);
        json_put_string(w, "name", segment_names[i].name);
        json_put_u64(w, "n", s->n[i]);
        json_put_f64(w, "mean", sum / (double)s->n[i]);
        json_put_f64(w, "p50", stress_quantile(sorted, s->n[i], 0.5));
        json_put_f64(w, "p95", stress_quantile(sorted, s->n[i], 0.95));
        json_put_f64(w, "max", stress_quantile(sorted, s->n[i], 1));
        json_end_object(w);
    }
    json_end_array(w);
}
