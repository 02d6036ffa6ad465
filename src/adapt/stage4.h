/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of stage 4 share: the channels under examination, conversations, what the service gave for
 * them, and where time went.
 */
#ifndef ADAPT_STAGE4_H
#define ADAPT_STAGE4_H

#include "adapt/probe.h"
#include "verify/verify.h"

#define SEGMENT_SAMPLES 512
enum segment {
    SEGMENT_IMAGES, /* host threads: decoding and preprocessing, as long as the request waited for them */
    SEGMENT_DECODE_IMAGES,
    SEGMENT_PREPROCESS,
    SEGMENT_QUEUE,
    SEGMENT_VISION,
    SEGMENT_PREFILL,
    SEGMENT_DECODE,
    SEGMENTS
};

struct segments {
    size_t n[SEGMENTS];
    double ms[SEGMENTS][SEGMENT_SAMPLES]; /* the first so many samples of each */
};

/* Text as before pictures: one line a case, in the report's `cases`. */
struct channels {
    struct job *j;
    struct json_writer *w;
    size_t n, n_passed, n_unanswered, n_texts, bos_twice;
    const char *chat_why; /* why the chat case did not run, or NULL */
    double tokenize_ms, first_ms, decode_ms;
    struct text_shape shape; /* of all answers */
    char first_unanswered[300];
    bool day0; /* the service tells its timings */
    bool hung; /* one answer did not come in time: no other is waited for */
    struct segments segments;
    /* the examiner's own computing; model.spec NULL: it does not compute, and why not */
    struct channel_model model;
    struct spec *eyes; /* the description with pictures; owned */
    const char *blind;
    bool takes_pictures; /* config.json says so */
};

/* ---- conversations */

/* probe_ask(), but nothing is sent to a service that hangs. */
void channels_ask(struct channels *c, const struct ask *ask, struct answer *out);

#define MADE_PICTURES 2
/* A picture of our own as a data: URL (PNG), number 0 or 1: shapes, edges and ramps whose halves, colours and
 * order can be told apart. In the arena; NULL: no memory. */
const char *made_picture(struct arena *arena, unsigned number);
/* base64 of bytes with "data:TYPE;base64," before it. */
const char *data_url(struct arena *arena, const char *type, const void *bytes, size_t n);

struct conversation {
    const char *name;
    const char *text; /* the last question */
    bool system;
    const char *body;            /* messages as JSON, as they are sent */
    const struct json *messages; /* the same, parsed */
    const char *urls[4];         /* pictures as data: URLs, n_urls of them: for the report */
    unsigned n_urls;
    const char *expected;  /* a known answer, or NULL */
    int64_t prompt_tokens; /* that the publisher states; -1: none */
    uint32_t max_tokens;
};
/* messages: an optional system turn, and a user turn of parts: NULL-ended, "data:..." is a picture. */
int conversation_make(struct conversation *c, const char *system, const char *const *parts,
                      struct arena *arena, struct err *e);

#define ANSWER_MOST  24
#define ALTERNATIVES 5
struct scored {
    int32_t id;     /* -1: no token of ours reads so */
    double logprob; /* as the service says */
};
struct served {
    bool answered, has_usage;
    char why[256];
    uint64_t prompt_tokens, output_tokens;
    const char *text; /* in the arena */
    size_t n;         /* tokens with log-probabilities */
    struct {
        struct scored chosen, others[ALTERNATIVES];
        size_t n_others;
    } tokens[ANSWER_MOST];
    double total_ms;
};
/* One request, greedy. ask_logprobs: log-probabilities of the first ANSWER_MOST tokens. */
void served_ask(struct channels *c, const struct conversation *v, bool ask_logprobs, struct arena *arena,
                struct served *out);

/* One conversation as a fact, in the array that is open; state: in words of the report. */
void conversation_write(struct channels *c, const struct conversation *v, const struct served *s,
                        const char *state);

/* ---- what others state */

struct known_answers {
    size_t known, answered, right, counted, counted_right; /* answered, right: of the known */
    double at_least;                                       /* share of the known that must be right */
    char first_unanswered[300];
};
/* The questions of --questions, as fact "questions"; nothing without one. I005, I010. */
int questions_run(struct channels *c, struct known_answers *out, struct err *e);

/* Reads all that are asked: what is wrong with the file is said before any stage runs. */
int questions_check(const char *path, struct err *e);
/* Every picture that the file names, whatever is wrong with the rest of it. */
int questions_pictures(const char *path, struct arena *arena,
                       int (*see)(void *ctx, const char *path, struct err *e), void *ctx, struct err *e);

/* ---- what the service did, against what the directory gives */

struct judged {
    bool ran;          /* compared at all */
    bool counts_alone; /* as_if has the counts of tokens; its log-probabilities do not fit, or there are none
                        */
    bool by_logprobs;  /* else by counts alone */
    size_t n_counts;   /* of the service's that were compared */
    size_t n_held;     /* conversations of which log-probabilities were */
    enum channel_change as_if; /* CHANNEL_CHANGES: none */
    bool wrong;
    double intact, best; /* mean |difference| of log-probabilities; NAN: not computed */
    char words[500];
};
/* Cases of one channel. base: changes that are known already. quiet: distance of the other channel, below
 * which nothing is read into a difference. Adds the finding. */
int served_judge(struct channels *c, const struct conversation *list, const struct served *seen, size_t n,
                 bool image, uint32_t base, struct judged *out, struct err *e);

/* ---- the parts of the stage */
int text_channel_run(struct channels *c, struct err *e);
/* base: changes that the text channel was found to have, and that pictures are then judged under. */
int image_channel_run(struct channels *c, uint32_t base, struct err *e);
/* config.json speaks of pictures. */
bool model_takes_pictures(const struct ckpt *c);

void segments_add(struct segments *s, const struct json *timings);
void segments_write(const struct segments *s, struct json_writer *w);

#endif
