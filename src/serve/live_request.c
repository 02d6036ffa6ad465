/* SPDX-License-Identifier: Apache-2.0
 *
 * One generation on the loop thread: from token ids to the last byte of the answer. Owns its exchange, its
 * text that is held back, and what waits to be sent. A client that leaves cancels its request at once; a
 * request that fails says why, in the stream if one has begun.
 *
 * Identity: the id given to the scheduler is (generation of the slot, slot), so an event that was on its way
 * when its request ended finds nobody.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/hash.h"
#include "base/thread.h"
#include "serve/serve_impl.h"

/* ---- slots ---- */

static struct live_request *find_request(const struct serve *s, uint64_t id)
{
    uint32_t slot = (uint32_t)id;
    if (slot >= s->n_slots || s->slots[slot].generation != (uint32_t)(id >> 32))
        return NULL;
    return s->slots[slot].request;
}

static void free_request(struct live_request *r)
{
    struct serve *s = r->serve;
    struct request_slot *slot = &s->slots[(uint32_t)r->id];
    slot->request = NULL;
    slot->generation++;
    slot->next_free = s->first_free;
    s->first_free = (uint32_t)r->id;
    s->n_live--;
    strbuf_release(&r->out.held);
    strbuf_release(&r->text);
    output_release(&r->output);
    ids_release(&r->prompt);
    free(r->scored);
    free(r->tops);
    free(r->ids);
    free(r);
}

static struct live_request *new_request(struct serve *s)
{
    if (s->first_free == UINT32_MAX)
        return NULL;
    struct live_request *r = calloc(1, sizeof *r);
    if (r == NULL)
        return NULL;
    struct request_slot *slot = &s->slots[s->first_free];
    r->serve = s;
    r->id = (uint64_t)slot->generation << 32 | s->first_free;
    s->first_free = slot->next_free;
    slot->request = r;
    s->n_live++;
    return r;
}

/* ---- ends ---- */

void request_cancel(struct live_request *r)
{
    if (r->in_pool)
        picture_pool_cancel(r->serve->pool, r->id);
    else
        engine_thread_cancel(r->serve->thread, r->id);
    r->in_pool = false;
}

static void on_client_gone(struct http_exchange *x, void *user)
{
    struct live_request *r = user;
    struct serve *s = r->serve;
    (void)x;
    s->metrics.outcomes[OUTCOME_CLIENT_GONE]++;
    request_cancel(r);
    free_request(r);
}

static struct strbuf *begin_event(struct serve *s)
{
    strbuf_clear(&s->scratch);
    strbuf_puts(&s->scratch, "data: ");
    return &s->scratch;
}

/* One write for one event. An event that memory did not suffice for goes out as an error; half an event never
 * does. */
static void send_event(struct live_request *r)
{
    struct strbuf *event = &r->serve->scratch;
    strbuf_puts(event, "\n\n");
    if (strbuf_failed(event)) {
        strbuf_release(event);
        strbuf_puts(
            event, "data: {\"error\":{\"message\":\"out of memory\",\"type\":\"server_error\",\"param\":null,"
                   "\"code\":\"internal\"}}\n\n");
    }
    http_stream_write(r->exchange, strbuf_cstr(event), event->len);
    r->last_write_ns = clock_ns();
}

static void end_stream(struct live_request *r)
{
    static const char done[] = "data: [DONE]\n\n";
    http_stream_write(r->exchange, done, sizeof done - 1);
    http_stream_end(r->exchange);
}

void request_fail(struct live_request *r, const struct api_error *err)
{
    struct serve *s = r->serve;
    enum outcome o = err->status == 429   ? OUTCOME_QUEUE_FULL
                     : err->status == 503 ? OUTCOME_NOT_READY
                     : err->status >= 500 ? OUTCOME_FAILED
                                          : OUTCOME_BAD_REQUEST;
    s->metrics.outcomes[o]++;
    if (r->streaming) {
        write_error(begin_event(s), err);
        send_event(r);
        end_stream(r);
    } else {
        reply_error(r->exchange, err);
    }
    free_request(r);
}

static void fail(struct live_request *r, int status, const char *code, const char *why)
{
    struct api_error err;
    api_error(&err, status, code, NULL, "%s", why);
    request_fail(r, &err);
}

static void fail_and_cancel(struct live_request *r, const char *why)
{
    request_cancel(r);
    fail(r, 500, "internal", why);
}

/* A model that stopped behind a call waits for its result. */
static const char *finish_name(const struct live_request *r, enum sched_finish how)
{
    return how == SCHED_STOP && r->output.n_calls > 0 ? "tool_calls" : sched_finish_name(how);
}

static double seconds(uint64_t from, uint64_t to)
{
    return to > from ? (double)(to - from) / 1e9 : 0;
}

static void count_times(struct live_request *r, uint64_t now)
{
    struct service_metrics *m = &r->serve->metrics;
    const struct request_times *t = &r->times;
    histogram_add(&m->e2e, seconds(t->arrived, now));
    histogram_add(&m->prompt, seconds(t->arrived, t->prompted));
    if (r->n_pictures) {
        histogram_add(&m->images, seconds(t->prompted, t->submitted));
        histogram_add(&m->vision, seconds(0, t->vision));
    }
    histogram_add(&m->queue, seconds(t->submitted, t->started));
    histogram_add(&m->prefill, seconds(t->started + t->vision, t->first_token));
    histogram_add(&m->decode, seconds(t->first_token, t->last_token));
}

static void finish(struct live_request *r, enum sched_finish how, uint64_t now)
{
    struct serve *s = r->serve;
    if (strbuf_failed(&r->text)) {
        fail(r, 500, "internal", "out of memory");
        return;
    }
    s->metrics.outcomes[how == SCHED_LENGTH ? OUTCOME_LENGTH : OUTCOME_STOP]++;
    count_times(r, now);
    if (!r->streaming) {
        strbuf_clear(&s->scratch);
        write_answer(&s->scratch, r, finish_name(r, how));
        reply_json(r->exchange, 200, &s->scratch);
    } else {
        if (r->params.include_usage) {
            write_usage_chunk(begin_event(s), r);
            send_event(r);
        }
        end_stream(r);
    }
    free_request(r);
}

/* ---- text out ---- */

/* Scored tokens whose text has begun to leave; at the end all that begin before a stop string. */
static size_t scored_ready(const struct live_request *r, bool last)
{
    size_t n = 0;
    if (r->output.parser) /* markers have no text: tokens are told as they come */
        return r->n_scored;
    while (n < r->n_scored && (r->scored[n].text_at < r->out.released || (last && !r->out.hit)))
        n++;
    return n;
}

static void forget_scored(struct live_request *r, size_t n)
{
    if (n == r->n_scored)
        r->n_scored = r->n_tops = 0;
    if (n == 0 || r->n_scored == 0)
        return;
    memmove(r->scored, r->scored + n, (r->n_scored - n) * sizeof *r->scored);
    r->n_scored -= n;
}

static void send_chunk(struct live_request *r, const struct chunk *c)
{
    write_chunk(begin_event(r->serve), r, c);
    send_event(r);
    r->n_ids = 0; /* the ids that waited went with it */
}

static void send_reasoning(struct live_request *r)
{
    struct strbuf *b = &r->output.reasoning;
    if (!r->streaming || b->len == 0)
        return;
    send_chunk(r, &(struct chunk){.text = strbuf_cstr(b), .text_bytes = b->len, .reasoning = true});
    strbuf_clear(b);
}

/* A call is whole when it comes: one event has its name and id, one its arguments. */
static void send_calls(struct live_request *r)
{
    struct live_output *o = &r->output;
    if (!r->streaming)
        o->n_sent = o->n_calls; /* the answer has them all */
    for (; o->n_sent < o->n_calls; o->n_sent++) {
        const struct live_call *c = &o->calls[o->n_sent];
        struct chunk chunk = {.text = "", .call = c, .call_index = (uint32_t)o->n_sent};
        send_chunk(r, &chunk);
        chunk.text = strbuf_cstr(&c->arguments);
        chunk.text_bytes = c->arguments.len;
        send_chunk(r, &chunk);
    }
}

/* Gives out the first n bytes of what is held: into a chunk or into the answer. */
static void give_out(struct live_request *r, size_t n, const char *finish_reason)
{
    struct serve *s = r->serve;
    struct chunk c = {.text = strbuf_cstr(&r->out.held), .text_bytes = n, .finish = finish_reason};
    if (!r->streaming) {
        strbuf_add(&r->text, c.text, n);
        stop_text_release(&r->out, n);
        if (finish_reason)
            r->n_scored = scored_ready(r, true);
        return;
    }
    r->out.released += n; /* what is ready depends on it; the bytes go after they were written */
    c.n_scored = scored_ready(r, finish_reason != NULL);
    bool empty =
        n == 0 && c.n_scored == 0 && finish_reason == NULL && !(r->params.return_token_ids && r->n_ids > 0);
    if (!empty) {
        write_chunk(begin_event(s), r, &c);
        send_event(r);
        r->n_ids = 0;
        forget_scored(r, c.n_scored);
    }
    r->out.released -= n;
    stop_text_release(&r->out, n);
}

static uint64_t count_chars(const char *s, size_t n)
{
    uint64_t chars = 0;
    for (size_t i = 0; i < n; i++)
        chars += ((unsigned char)s[i] & 0xC0) != 0x80;
    return chars;
}

/* Notes id and log-probability of a token; its text begins where the text so far ends. */
static int note_token(struct live_request *r, const struct engine_event *ev)
{
    if (r->params.return_token_ids) {
        if (vec_reserve((void **)&r->ids, &r->ids_capacity, r->n_ids + 1, sizeof *r->ids))
            return ERR_NOMEM;
        r->ids[r->n_ids++] = ev->token;
    }
    if (!r->params.logprobs || ev->finish == SCHED_STOP)
        return ERR_OK;
    uint32_t n_top = ev->n_top < r->params.n_top ? ev->n_top : r->params.n_top;
    if (vec_reserve((void **)&r->scored, &r->scored_capacity, r->n_scored + 1, sizeof *r->scored) ||
        vec_reserve((void **)&r->tops, &r->tops_capacity, r->n_tops + n_top, sizeof *r->tops))
        return ERR_NOMEM;
    r->scored[r->n_scored++] = (struct scored_token){.token = ev->token,
                                                     .logprob = ev->logprob,
                                                     .text_at = r->decoded_bytes,
                                                     .chars_at = r->decoded_chars,
                                                     .first_top = r->n_tops,
                                                     .n_top = n_top};
    if (n_top)
        memcpy(r->tops + r->n_tops, ev->top, n_top * sizeof *r->tops);
    r->n_tops += n_top;
    return ERR_OK;
}

static void note_times(struct live_request *r, const struct engine_event *ev)
{
    struct service_metrics *m = &r->serve->metrics;
    if (r->n_generated == 1) {
        histogram_add(&m->ttft, seconds(r->times.arrived, ev->at_ns));
        r->times.started = ev->started_ns;
        r->times.vision = ev->vision_ns;
        r->times.first_token = ev->at_ns;
    } else {
        histogram_add(&m->itl, seconds(r->times.last_token, ev->at_ns));
    }
    r->times.last_token = ev->at_ns;
    m->generated_tokens++;
}

/* Token to text. The stop id that ended the request gives none. */
static int decode(struct live_request *r, const struct engine_event *ev, struct err *e)
{
    size_t before = r->out.held.len;
    int rc = ERR_OK;
    if (r->output.parser)
        return output_feed(r, ev, e);
    if (ev->token >= 0 && ev->finish != SCHED_STOP)
        rc = detokenizer_feed(&r->detokenizer, ev->token, &r->out.held, e);
    if (rc == 0 && ev->finish != SCHED_RUNNING)
        rc = detokenizer_finish(&r->detokenizer, &r->out.held, e);
    r->decoded_bytes += r->out.held.len - before;
    r->decoded_chars += count_chars(strbuf_cstr(&r->out.held) + before, r->out.held.len - before);
    return rc;
}

static void on_token(struct live_request *r, const struct engine_event *ev)
{
    struct err e = {0};
    r->n_cached = ev->n_cached;
    if (ev->token >= 0) {
        r->n_generated++;
        note_times(r, ev);
        if (note_token(r, ev)) {
            fail_and_cancel(r, "out of memory");
            return;
        }
    }
    if (ev->finish == SCHED_FAILED || ev->finish == SCHED_CANCELLED) {
        fail(r, 500, "step_failed", ev->why[0] ? ev->why : "the request was cancelled");
        return;
    }
    if (decode(r, ev, &e)) {
        fail_and_cancel(r, e.message);
        return;
    }
    size_t certain = stop_text_certain(&r->out);
    enum sched_finish how = ev->finish;
    if (r->out.hit) {
        if (how == SCHED_RUNNING)
            request_cancel(r);
        how = SCHED_STOP;
    } else if (how != SCHED_RUNNING) {
        certain = r->out.held.len; /* nothing can complete a stop string any more */
    }
    send_reasoning(r);
    bool calls = r->output.n_sent < r->output.n_calls;
    if (calls) { /* the text before them, which no stop string can go on in */
        give_out(r, r->out.hit ? certain : r->out.held.len, NULL);
        certain = 0;
    }
    send_calls(r);
    give_out(r, certain, how == SCHED_RUNNING ? NULL : finish_name(r, how));
    if (how != SCHED_RUNNING)
        finish(r, how, clock_ns());
}

/* ---- beginnings ---- */

static void on_accepted(struct live_request *r)
{
    struct serve *s = r->serve;
    s->metrics.prompt_tokens += r->n_prompt;
    if (!r->params.stream)
        return;
    http_add_header(r->exchange, "Cache-Control", "no-cache");
    http_add_header(r->exchange, "X-Accel-Buffering", "no"); /* proxies must pass events on at once */
    http_stream_begin(r->exchange, 200, "text/event-stream; charset=utf-8");
    r->streaming = true;
    r->last_write_ns = clock_ns();
    if (r->params.endpoint == ENDPOINT_CHAT) {
        write_chunk(begin_event(s), r, &(struct chunk){.text = "", .first = true});
        send_event(r);
    }
}

static void on_refused(struct live_request *r, const struct engine_event *ev)
{
    if (ev->code == ERR_BUSY) {
        http_add_header(r->exchange, "Retry-After", "1");
        fail(r, 429, "queue_full", ev->why);
    } else if (ev->code == ERR_LIMIT || ev->code == ERR_INVALID)
        fail(r, 400, ev->code == ERR_LIMIT ? "context_length_exceeded" : "invalid_value", ev->why);
    else
        fail(r, 500, "internal", ev->why);
}

void request_event(struct serve *s, const struct engine_event *ev)
{
    struct live_request *r = find_request(s, ev->id);
    if (r == NULL)
        return; /* it ended while this event was on its way */
    if (ev->kind == EVENT_ACCEPTED)
        on_accepted(r);
    else if (ev->kind == EVENT_REFUSED)
        on_refused(r, ev);
    else
        on_token(r, ev);
}

void request_tick(struct live_request *r, uint64_t now_ns)
{
    static const char ping[] = ": ping\n\n";
    if (!r->streaming || now_ns - r->last_write_ns < r->serve->o.ping_ns)
        return;
    http_stream_write(r->exchange, ping, sizeof ping - 1);
    r->last_write_ns = now_ns;
}

/* Seeds that nobody chose fit into a double, so that every client can send them back. */
static uint64_t random_seed(const struct serve *s)
{
    uint64_t seed;
    if (getrandom(&seed, sizeof seed, GRND_NONBLOCK) != (ssize_t)sizeof seed)
        seed = rng_u64(s->name_seed, clock_ns());
    return seed >> 11;
}

static void submit(struct live_request *r, struct picture_set *pictures)
{
    const struct request_params *p = &r->params;
    struct engine_submit q = {.id = r->id,
                              .prompt = r->prompt.data,
                              .n_prompt = (uint32_t)r->prompt.n,
                              .pictures = pictures,
                              .max_new = (uint32_t)p->max_tokens,
                              .ignore_stop = p->ignore_eos};
    q.sampling = (struct step_sampling){.temperature = p->temperature,
                                        .top_p = p->top_p,
                                        .top_k = p->top_k,
                                        .n_top = p->logprobs ? p->n_top : 0,
                                        .seed = p->seed,
                                        .want_logprob = p->logprobs,
                                        .vocab_limit = r->serve->front->vocab_limit};
    r->prompt = (struct ids){0};
    r->times.submitted = clock_ns();
    if (engine_thread_submit(r->serve->thread, &q))
        fail(r, 500, "internal", "out of memory");
}

void request_pictures(struct serve *s, struct picture_set *set)
{
    struct live_request *r = find_request(s, set->id);
    char param[64], why[400];
    struct api_error err;
    if (r == NULL || !r->in_pool) { /* it ended while they were on their way */
        picture_set_free(set);
        return;
    }
    r->in_pool = false;
    if (set->code == 0) {
        r->times.picture_decode = set->decode_ns;
        r->times.picture_process = set->process_ns;
        submit(r, set);
        return;
    }
    const struct prompt_picture *q = &set->pictures.list[set->failed];
    snprintf(param, sizeof param, "messages[%u].content[%u]", q->message, q->part);
    snprintf(why, sizeof why, "%s: %s", param, set->why);
    bool ours = set->code == ERR_NOMEM || set->code == ERR_MISMATCH;
    api_error(&err, ours ? 500 : 400, ours ? "internal" : "invalid_value", param, "%s", why);
    picture_set_free(set);
    request_fail(r, &err);
}

static void add_pictures(struct live_request *r, struct picture_set *set)
{
    r->n_pictures = set->pictures.n;
    for (uint32_t i = 0; i < set->pictures.n; i++)
        r->n_picture_rows += set->pictures.list[i].n_rows;
    set->id = r->id;
    r->in_pool = true;
    r->serve->metrics.pictures += set->pictures.n;
    picture_pool_submit(set);
}

void request_start(struct serve *s, struct http_exchange *x, struct request_input *in)
{
    struct api_error err;
    struct err e = {0};
    const struct request_params *p = &in->params;
    struct live_request *r = s->n_live < s->max_live ? new_request(s) : NULL;
    if (r == NULL) {
        s->metrics.outcomes[OUTCOME_QUEUE_FULL]++;
        api_error(&err, 429, "queue_full", NULL, "%u requests are waiting or running, try again later",
                  s->n_live);
        http_add_header(x, "Retry-After", "1");
        reply_error(x, &err);
        return;
    }
    http_take_body(x, NULL); /* what is needed of it was copied */
    r->exchange = x;
    r->params = *p;
    r->params.model = NULL;
    r->params.prompt = r->params.ids = r->params.messages = NULL;
    r->params.tools = r->params.template_kwargs = NULL;
    r->params.reasoning_effort = NULL;
    if (!p->has_seed)
        r->params.seed = random_seed(s);
    snprintf(r->name, sizeof r->name, "%s-%016llx", p->endpoint == ENDPOINT_CHAT ? "chatcmpl" : "cmpl",
             (unsigned long long)rng_u64(s->name_seed, r->id));
    r->created = clock_unix_ns() / 1000000000;
    r->times.arrived = in->arrived_ns;
    r->times.prompted = clock_ns();
    r->prompt = in->ids;
    in->ids = (struct ids){0};
    r->n_prompt = (uint32_t)r->prompt.n;
    detokenizer_init(&r->detokenizer, s->front->tokenizer, false);
    /* ids beyond the tokenizer (a padded vocabulary) have no text; an error here changes no more than a
     * leading space */
    detokenizer_skip(&r->detokenizer, r->prompt.data, r->prompt.n, NULL);
    r->out.stops = r->params.stop;
    r->out.n_stops = r->params.n_stop;
    bool readable = output_begin(r, p, &in->rendered, &e) == ERR_OK;
    http_set_user(x, r);
    http_on_close(x, on_client_gone);
    struct picture_set *pictures = in->pictures;
    if (!readable) {
        fail(r, 500, "internal", e.message);
    } else if (pictures) {
        in->pictures = NULL;
        add_pictures(r, pictures);
    } else {
        submit(r, NULL);
    }
}
