/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside of the service, shared by the files of this room only. Everything here belongs to the loop thread,
 * except `stop_asked`.
 */
#ifndef SERVE_SERVE_IMPL_H
#define SERVE_SERVE_IMPL_H

#include <stdatomic.h>

#include "net/net.h"
#include "serve/engine_thread.h"
#include "serve/metrics.h"
#include "serve/request_params.h"
#include "serve/serve.h"
#include "serve/stop_text.h"

#define OUTPUT_ID_BYTES   80
#define OUTPUT_MAX_NOTES  4
#define OUTPUT_NOTE_BYTES 128

/* One generated token that has log-probabilities to report. */
struct scored_token {
    int32_t token;
    float logprob;
    uint64_t text_at;  /* bytes of text before it */
    uint64_t chars_at; /* characters of text before it */
    size_t first_top;  /* in tops */
    uint32_t n_top;
};

/* A tool call of an answer. */
struct live_call {
    char id[OUTPUT_ID_BYTES];
    struct strbuf name, arguments;
};

/* What a chat's output was read into (live_output.c). */
struct live_output {
    struct output_parser *parser; /* NULL: all of the output is text */
    struct arena arena;           /* the request's tools */
    const struct json *tools;
    struct strbuf piece;                    /* decoded, on its way into the parser */
    struct strbuf reasoning;                /* not yet sent */
    struct strbuf new_text;                 /* of the answer, on its way to the stop strings */
    struct live_call *calls;                /* all of the answer */
    size_t n_calls, n_sent, calls_capacity; /* n_sent: whose text before them was given out */
    char notes[OUTPUT_MAX_NOTES][OUTPUT_NOTE_BYTES];
    uint32_t n_notes;
    bool failed; /* memory */
};

/* Where the time of a request went; all from clock_ns(). Segments follow each other from arrival to the end.
 */
struct request_times {
    uint64_t arrived, prompted, submitted, started, first_token, last_token;
    uint64_t vision;                          /* ns of the tower, within started..first_token */
    uint64_t picture_decode, picture_process; /* ns of threads, within prompted..submitted */
};

/* A generation from its acceptance by the handler to its last byte. */
struct live_request {
    struct serve *serve;
    struct http_exchange *exchange;
    uint64_t id;
    char name[40];                /* "cmpl-..." */
    int64_t created;              /* Unix seconds */
    struct request_params params; /* pointers into the JSON tree are NULL */
    struct detokenizer detokenizer;
    struct stop_text out;
    uint64_t decoded_bytes, decoded_chars; /* all text so far, held back or not */
    struct strbuf text;                    /* not streaming: the answer so far */
    struct live_output output;
    struct scored_token *scored; /* not yet sent */
    size_t n_scored, scored_capacity;
    struct step_top *tops;
    size_t n_tops, tops_capacity;
    int32_t *ids; /* not yet sent */
    size_t n_ids, ids_capacity;
    struct ids prompt; /* while its pictures are made */
    bool in_pool;      /* they are */
    uint32_t n_prompt, n_cached, n_generated;
    uint32_t n_pictures, n_picture_rows; /* rows: tokens of the prompt that stand for pictures */
    struct request_times times;
    uint64_t last_write_ns;
    bool streaming; /* the head of the stream was sent */
};

struct request_slot {
    struct live_request *request; /* NULL: free */
    uint32_t generation;
    uint32_t next_free;
};

struct serve {
    struct serve_options o;
    char *model_name;
    struct engine *engine;
    struct prompt_front *front;
    struct d0 *d0;
    struct http_server *http;
    struct engine_thread *thread;
    struct picture_pool *pool; /* NULL: no pictures are taken */
    uint32_t max_context;
    uint32_t max_live; /* requests beyond which the answer is 429 at once */
    struct request_slot *slots;
    uint32_t n_slots, first_free, n_live;
    uint32_t n_reading; /* large bodies on threads of the pool */
    uint64_t name_seed;
    int64_t started_unix;
    uint64_t started_ns, stop_ns, failed_since_ns;
    _Atomic bool stop_asked;
    bool stopping;
    struct service_metrics metrics;
    struct engine_event *events;
    size_t events_capacity;
    struct strbuf scratch; /* the JSON of one chunk or answer */
};

/* ---- serve_routes.c ---- */
void reading_returned(struct serve *s, struct pool_call *call);
void serve_handle(struct http_exchange *x, void *user); /* of http_server_options */
void reply_error(struct http_exchange *x, const struct api_error *err);
void reply_json(struct http_exchange *x, int status, const struct strbuf *body);

/* ---- request_input.c ---- */
/* What a body was read into. */
struct request_input {
    struct arena arena; /* the JSON tree */
    uint64_t arrived_ns;
    struct request_params params;
    struct ids ids;
    struct strbuf rendered;       /* the prompt of a chat */
    struct picture_set *pictures; /* NULL: none */
};
void input_init(struct request_input *in, struct serve *s, uint64_t arrived_ns);
void input_release(struct request_input *in);
/* JSON, parameters, headers of pictures. Any thread. Returns 0 or the status, with *err filled. */
int input_read(struct serve *s, enum endpoint endpoint, const char *body, size_t n, struct request_input *in,
               struct api_error *err);
/* Then on the loop: ids, length, room for pictures. */
int input_place(struct serve *s, struct request_input *in, struct api_error *err);

/* ---- live_request.c ---- */
/* Takes over the exchange: answers it now or later. ids and pictures are taken over too. */
void request_start(struct serve *s, struct http_exchange *x, struct request_input *in);
void request_event(struct serve *s, const struct engine_event *ev);
void request_pictures(struct serve *s, struct picture_set *set); /* made, or why not; taken over */
void request_cancel(struct live_request *r); /* whoever works for it is told to stop; r stays */
void request_fail(struct live_request *r, const struct api_error *err); /* frees r */
void request_tick(struct live_request *r, uint64_t now_ns);             /* pings */

/* ---- live_output.c ---- */
/* p and rendered are read during the call only. ERR_NOMEM. */
int output_begin(struct live_request *r, const struct request_params *p, const struct strbuf *rendered,
                 struct err *e);
void output_release(struct live_output *o);
/* A token's text goes through the rules: of the answer's text into r->out.held, the rest into r->output. */
int output_feed(struct live_request *r, const struct engine_event *ev, struct err *e);

/* ---- openai_json.c ---- */
void write_error(struct strbuf *out, const struct api_error *err);
/* One chunk of a stream: text (may be empty), the scored tokens [0, n_scored) and all ids that wait. */
struct chunk {
    const char *text;
    size_t text_bytes;
    bool reasoning;               /* the text is that */
    const struct live_call *call; /* NULL, or a call whose name (text_bytes 0) or arguments this chunk has */
    uint32_t call_index;
    size_t n_scored;
    const char *finish; /* NULL: more to come */
    bool first;         /* chat: carries the role */
};
void write_chunk(struct strbuf *out, const struct live_request *r, const struct chunk *c);
void write_usage_chunk(struct strbuf *out, const struct live_request *r);
void write_answer(struct strbuf *out, const struct live_request *r, const char *finish);
void write_models(struct strbuf *out, const struct serve *s, bool list);

/* ---- health.c ---- */
int write_health(struct strbuf *out, struct serve *s); /* returns the HTTP status */
void write_metrics(struct strbuf *out, struct serve *s);
void write_page(struct strbuf *out, const struct serve *s);
/* NULL if requests are taken, else why not. buf holds the text. */
const char *not_ready(struct serve *s, char *buf, size_t bytes);

#endif
