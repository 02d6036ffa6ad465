/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the text channel by itself: text through the service, counted against the tokenizer, repeated, and
 * judged for noise. Refuses: reading the service from the inside. Every case is an HTTP request that any
 * OpenAI-compatible server answers.
 */
#include "adapt/stage4.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/thread.h"

#define ANSWER_TOKENS 48
#define LONG_TOKENS   600
/* Share of odd neighbours: trained models 0 to 1 %; the same with a permuted vocabulary 5 to 17 %. */
#define ODD_WHERE_UNLIKELY 0.03
#define ODD_ALONE          0.25 /* code and tables are full of them */
#define SHAPE_MIN_PAIRS    60

struct text_case {
    const char *name, *text;
    bool chat;
    struct ids ids;
    double tokenize_ms;
};

static void write_case(struct channels *c, const struct text_case *t, const struct answer *a, bool passed,
                       const char *why)
{
    json_begin_object(c->w);
    json_put_string(c->w, "name", t->name);
    json_put_bool(c->w, "passed", passed);
    json_put_string(c->w, "why", why);
    json_put_string(c->w, "prompt", t->text ? t->text : "");
    json_put_string(c->w, "output", a ? strbuf_cstr(&a->text) : "");
    if (a) {
        json_put_u64(c->w, "prompt_tokens", a->prompt_tokens);
        json_put_u64(c->w, "expected_prompt_tokens", t->ids.n);
        json_put_u64(c->w, "output_tokens", a->output_tokens);
        json_put_string(c->w, "finish", a->finish);
        json_key(c->w, "ms");
        json_begin_object(c->w);
        json_put_f64(c->w, "tokenize", t->tokenize_ms);
        json_put_f64(c->w, "first_token", a->first_ms);
        json_put_f64(c->w, "decode", a->last_ms - a->first_ms);
        json_put_f64(c->w, "total", a->total_ms);
        json_end_object(c->w);
    }
    json_end_object(c->w);
    c->n++;
    c->n_passed += passed;
}

/* One cause, one finding: the first refusal is told, the others are counted. */
static void unanswered(struct channels *c, const char *name, const char *why)
{
    if (c->n_unanswered++ == 0)
        snprintf(c->first_unanswered, sizeof(c->first_unanswered), "%s: %.250s", name, why);
}

static uint32_t room_for(const struct job *j, size_t n_prompt)
{
    size_t room = j->context > n_prompt ? j->context - n_prompt : 1;
    return room < ANSWER_TOKENS ? (uint32_t)room : ANSWER_TOKENS;
}

/* The service's own count of the prompt against ours: one more is almost always a second BOS. */
static const char *judge_count(struct channels *c, const struct text_case *t, const struct answer *a)
{
    if (!a->has_usage) {
        finding_add(c->j->f, FINDING_S002, t->name, "the answer has no usage");
        return "no usage";
    }
    if (a->prompt_tokens == t->ids.n)
        return NULL;
    const char *why = arena_printf(c->j->arena, "usage says %llu prompt tokens, the tokenizer makes %zu",
                                   (unsigned long long)a->prompt_tokens, t->ids.n);
    why = why ? why : "usage differs";
    if (a->prompt_tokens == t->ids.n + 1)
        finding_add(c->j->f, FINDING_T006, t->name, "%s", why);
    else
        finding_add_remedy(
            c->j->f, FINDING_T003, t->name,
            "the server uses another tokenizer or prompt rule than this directory: compare both", "%s", why);
    return why;
}

/* What the tokenizer's own post-processor makes: the front corrects a second BOS, other programs will not. */
static const char *judge_bos(struct channels *c, const struct text_case *t)
{
    struct ids ids = {0};
    struct err e = {0};
    int32_t bos = c->j->spec ? c->j->spec->bos_id : -1;
    int rc = tokenizer_encode(c->j->front->tokenizer, t->text, strlen(t->text), TOKENIZE_SPECIAL, &ids, &e);
    bool twice = rc == ERR_OK && bos >= 0 && ids.n >= 2 && ids.data[0] == bos && ids.data[1] == bos;
    ids_release(&ids);
    if (!twice || t->chat) /* one finding for one cause: the plain cases tell it */
        return NULL;
    if (c->bos_twice++ == 0)
        finding_add(c->j->f, FINDING_T006, "tokenizer.json",
                    "its post-processor puts id %d (BOS) twice before \"%.40s\"", bos, t->text);
    return "BOS twice";
}

static const char *judge_answer(struct channels *c, const struct text_case *t, const struct answer *a,
                                uint32_t max_tokens)
{
    const char *why = judge_bos(c, t);
    const char *count = judge_count(c, t, a);
    if (why || count)
        return why ? why : count;
    if (!utf8_valid(strbuf_cstr(&a->text), a->text.len)) {
        finding_add(c->j->f, FINDING_S002, t->name, "the answer is not UTF-8");
        return "not UTF-8";
    }
    if (a->output_tokens > max_tokens) {
        finding_add(c->j->f, FINDING_S002, t->name, "%llu tokens came, %u were asked for",
                    (unsigned long long)a->output_tokens, max_tokens);
        return "more tokens than asked for";
    }
    return NULL;
}

static void run_case(struct channels *c, struct text_case *t)
{
    struct answer a;
    uint32_t max_tokens = room_for(c->j, t->ids.n);
    struct ask ask = {
        .chat = t->chat, .stream = true, .text = t->text, .max_tokens = max_tokens, .timings = c->day0};
    channels_ask(c, &ask, &a);
    segments_add(&c->segments, a.timings);
    const char *why = a.why[0] ? a.why : NULL;
    if (why) {
        unanswered(c, t->name, why);
    } else {
        why = judge_answer(c, t, &a, max_tokens);
        c->tokenize_ms += t->tokenize_ms;
        c->first_ms += a.first_ms;
        c->n_texts += a.text.len > 0;
        text_shape_add(&c->shape, strbuf_cstr(&a.text), a.text.len);
        c->decode_ms += a.last_ms - a.first_ms;
    }
    write_case(c, t, &a, why == NULL, why ? why : "");
    answer_release(&a);
}

/* ---- making the cases */

static int make_ids(struct channels *c, struct text_case *t, struct err *e)
{
    uint64_t begin = clock_ns();
    int rc;
    if (t->chat) {
        struct arena arena;
        struct strbuf rendered = STRBUF_INIT;
        struct conversation asked;
        arena_init(&arena, NULL, MEM_REQUEST);
        rc = conversation_make(&asked, NULL, (const char *const[]){t->text, NULL}, &arena, e);
        if (!rc)
            rc = prompt_messages(c->j->front, asked.messages, &rendered, &t->ids, e);
        strbuf_release(&rendered);
        arena_release(&arena);
    } else {
        rc = prompt_text(c->j->front, t->text, strlen(t->text), &t->ids, e);
    }
    t->tokenize_ms = (double)(clock_ns() - begin) / 1e6;
    return rc;
}

/* Sentences until the prompt has about LONG_TOKENS tokens or half the context. */
static char *long_text(struct channels *c)
{
    static const char sentence[] =
        "The sun went down behind the hills and the children walked home through the quiet fields. ";
    struct ids ids = {0};
    struct strbuf b = STRBUF_INIT;
    struct err e = {0};
    size_t want = c->j->context / 2 < LONG_TOKENS ? c->j->context / 2 : LONG_TOKENS;
    size_t per =
        prompt_text(c->j->front, sentence, strlen(sentence), &ids, &e) == ERR_OK && ids.n ? ids.n : 20;
    size_t times = want / per;
    ids_release(&ids);
    for (size_t i = 0; i < (times ? times : 1); i++)
        strbuf_puts(&b, sentence);
    char *copy = arena_strdup(c->j->arena, strbuf_cstr(&b));
    strbuf_release(&b);
    return copy;
}

static int text_cases(struct channels *c, struct err *e)
{
    struct text_case cases[] = {{.name = "plain", .text = "Once upon a time"},
                                {.name = "one letter", .text = "A"},
                                {.name = "Unicode",
                                 .text = "Gr\xc3\xbc\xc3\x9f"
                                         "e, \xe4\xbd\xa0\xe5\xa5\xbd \xf0\x9f\x8c\x8d, caf\xc3\xa9"},
                                {.name = "long", .text = long_text(c)},
                                {.name = "chat", .text = "Tell me a short story.", .chat = true}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct err why = {0};
        if (!cases[i].text)
            return err_set(e, ERR_NOMEM, "out of memory for a text case");
        int rc = make_ids(c, &cases[i], &why);
        if ((rc == ERR_UNSUPPORTED || rc == ERR_INVALID || rc == ERR_LIMIT) && cases[i].chat) {
            c->chat_why = arena_strdup(c->j->arena, why.message);
        } else if (rc) {
            finding_add(c->j->f, FINDING_T004, cases[i].name, "the tokenizer refuses this text: %s",
                        why.message);
        } else if (cases[i].ids.n < c->j->context) {
            run_case(c, &cases[i]);
        }
        ids_release(&cases[i].ids);
    }
    return ERR_OK;
}

/* ---- cases about more than one request */

static void round_trip(struct channels *c, const char *text)
{
    struct text_case t = {.name = "ids round trip", .text = text};
    const struct tokenizer *tok = c->j->front->tokenizer;
    struct detokenizer d;
    struct strbuf back = STRBUF_INIT;
    struct err e = {0};
    int rc = tokenizer_encode(tok, text, strlen(text), 0, &t.ids, &e);
    detokenizer_init(&d, tok, false);
    for (size_t i = 0; rc == ERR_OK && i < t.ids.n; i++)
        rc = detokenizer_feed(&d, t.ids.data[i], &back, &e);
    if (!rc)
        rc = detokenizer_finish(&d, &back, &e);
    const char *got = strbuf_cstr(&back);
    bool same = rc == ERR_OK && (strcmp(got, text) == 0 || (got[0] == ' ' && strcmp(got + 1, text) == 0));
    if (!same)
        finding_add(c->j->f, FINDING_T004, text, "comes back as \"%s\"%s", got, rc ? e.message : "");
    write_case(c, &t, NULL, same,
               same ? "text to ids to text gives the text back" : "another text came back");
    ids_release(&t.ids);
    strbuf_release(&back);
}

static void same_answer(struct channels *c, const char *name, const struct ask *first,
                        const struct ask *second, const char *what)
{
    struct answer a, b;
    struct text_case t = {.name = name, .text = first->text};
    channels_ask(c, first, &a);
    channels_ask(c, second, &b);
    bool answered = !a.why[0] && !b.why[0];
    bool same = answered && strcmp(strbuf_cstr(&a.text), strbuf_cstr(&b.text)) == 0;
    if (!answered) {
        unanswered(c, name, a.why[0] ? a.why : b.why);
    } else if (!same) {
        finding_add(c->j->f, FINDING_S004, name, "%s: \"%.80s\" and \"%.80s\"", what, strbuf_cstr(&a.text),
                    strbuf_cstr(&b.text));
    }
    write_case(c, &t, NULL, same, same ? what : answered ? "two answers" : "no answer");
    answer_release(&a);
    answer_release(&b);
}

static void repeats(struct channels *c)
{
    static const char text[] = "The little dog";
    struct ids ids = {0};
    struct err e = {0};
    struct ask seeded = {.text = text, .max_tokens = room_for(c->j, 16), .temperature = 0.8, .seed = 42};
    same_answer(c, "seeded request twice", &seeded, &seeded, "the same seed gave the same text");
    struct ask plain = {.text = text, .max_tokens = room_for(c->j, 16)}, by_ids = plain;
    if (prompt_text(c->j->front, text, strlen(text), &ids, &e) == ERR_OK) {
        by_ids.ids = ids.data;
        by_ids.n_ids = ids.n;
        same_answer(c, "prompt as ids", &plain, &by_ids, "ids and text gave the same answer");
    }
    ids_release(&ids);
}

/* The ids of an answer: as the server gives them, else by tokenizing the text. */
static int answer_ids(struct channels *c, const struct answer *a, struct ids *out, struct err *e)
{
    const struct json *list = json_get(json_at(json_get(a->body, "choices"), 0), "token_ids");
    if (!list || list->type != JSON_ARRAY || list->n == 0)
        return tokenizer_encode(c->j->front->tokenizer, strbuf_cstr(&a->text), a->text.len, 0, out, e);
    for (size_t i = 0; i < list->n; i++) {
        int64_t id = -1;
        if (!json_i64(json_at(list, i), &id) || id < 0 || id > INT32_MAX)
            continue;
        int rc = vec_reserve((void **)&out->data, &out->capacity, out->n + 1, sizeof(int32_t));
        if (rc)
            return err_set(e, rc, "out of memory for the ids of an answer");
        out->data[out->n++] = (int32_t)id;
    }
    return ERR_OK;
}

static const char *judge_output(struct channels *c, const struct answer *a)
{
    struct verify_text_result v;
    struct ids ids = {0};
    struct err e = {0};
    const char *why = NULL;
    int rc = answer_ids(c, a, &ids, &e);
    if (!rc && ids.n) {
        verify_text(ids.data, NULL, ids.n, strbuf_cstr(&a->text), &v);
        if (!v.reasonable)
            why = arena_strdup(c->j->arena, v.why);
    }
    ids_release(&ids);
    return rc ? "the answer cannot be tokenized" : why;
}

static void reasonable(struct channels *c)
{
    struct text_case t = {.name = "reasonable output", .text = "Once upon a time"};
    struct ask ask = {.text = t.text, .max_tokens = room_for(c->j, 16), .want_ids = !c->j->external};
    struct answer a;
    channels_ask(c, &ask, &a);
    if (a.why[0]) {
        unanswered(c, t.name, a.why);
        write_case(c, &t, NULL, false, a.why);
    } else if (a.text.len == 0) { /* an end at once is legal, but nothing to judge */
        write_case(c, &t, NULL, true, "the answer is empty: the model ended at once");
    } else {
        const char *why = judge_output(c, &a);
        if (why)
            finding_add(c->j->f, FINDING_T005, t.name, "%s: \"%.120s\"", why, strbuf_cstr(&a.text));
        write_case(c, &t, NULL, why == NULL, why ? why : "no repetition, no broken characters");
    }
    answer_release(&a);
}

/* Odd neighbours in the answers of all cases. A little is enough where the model also finds plain text less
 * likely than a guess. */
static void looks_like_writing(struct channels *c)
{
    struct text_case t = {.name = "looks like writing"};
    const struct json *plain = json_get(c->j->facts[STAGE_MINIMAL], "plain_text");
    if (c->n_unanswered && c->n_texts == 0) /* said already */
        return;
    double mean = 0, uniform = 0, share = c->shape.pairs ? (double)c->shape.odd / (double)c->shape.pairs : 0;
    bool unlikely = json_f64(json_get(plain, "mean_logprob"), &mean) &&
                    json_f64(json_get(plain, "uniform_logprob"), &uniform) && mean < uniform;
    double limit = unlikely ? ODD_WHERE_UNLIKELY : ODD_ALONE;
    bool passed = c->n_texts > 0 && (c->shape.pairs < SHAPE_MIN_PAIRS || share <= limit);
    const char *why =
        arena_printf(c->j->arena, "%.1f %% odd neighbours among %zu pairs of characters (limit %.0f %%)%s",
                     100 * share, c->shape.pairs, 100 * limit,
                     unlikely ? "; plain English is less likely to the model than a guess" : "");
    why = c->n_texts == 0 ? "every answer is empty" : why ? why : "out of memory";
    if (!passed)
        finding_add(c->j->f, FINDING_T005, "answers of all cases",
                    "%s: the vocabulary is not the model's, or the weights are damaged", why);
    write_case(c, &t, NULL, passed, why);
}

int text_channel_run(struct channels *c, struct err *e)
{
    int rc = text_cases(c, e);
    if (rc)
        return rc;
    round_trip(c, "Once upon a time, in 2024, there was a caf\xc3\xa9.");
    repeats(c);
    reasonable(c);
    looks_like_writing(c);
    return ERR_OK;
}
