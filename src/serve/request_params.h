/* SPDX-License-Identifier: Apache-2.0
 *
 * A request body in, checked parameters out. Pure: knows no socket, no model, no tokenizer. Refuses every
 * parameter that it does not implement, by name, rather than ignoring it: an ignored logit_bias is a wrong
 * answer that looks right.
 */
#ifndef SERVE_REQUEST_PARAMS_H
#define SERVE_REQUEST_PARAMS_H

#include "base/json.h"

#define PARAMS_MAX_STOP       4
#define PARAMS_MAX_STOP_BYTES 256
#define PARAMS_MAX_LOGPROBS   20

/* An error as OpenAI's API shows it. status 0: none. */
struct api_error {
    int status;
    const char *type; /* static */
    const char *code; /* static, or NULL */
    char param[64];   /* "" : null */
    char message[640];
};
/* Fills *err and returns status. param may be NULL. */
int api_error(struct api_error *err, int status, const char *code, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

enum endpoint { ENDPOINT_COMPLETIONS = 1, ENDPOINT_CHAT = 2 };

struct stop_string {
    char text[PARAMS_MAX_STOP_BYTES + 1];
    uint32_t n;
};

struct request_params {
    enum endpoint endpoint;
    const char *model;                  /* into the JSON tree */
    const struct json *prompt;          /* a string; NULL if ids or messages are given */
    const struct json *ids;             /* array of integers, each within int32 and not negative */
    const struct json *messages;        /* an array */
    const struct json *tools;           /* an array that is not empty, or NULL */
    const struct json *template_kwargs; /* an object, or NULL */
    const char *reasoning_effort;       /* into the JSON tree, or NULL */
    bool no_generation_prompt;
    bool no_calls;      /* tool_choice is none */
    int64_t max_tokens; /* -1: not given */
    float temperature, top_p;
    uint32_t top_k;
    bool has_seed;
    uint64_t seed;
    struct stop_string stop[PARAMS_MAX_STOP];
    uint32_t n_stop;
    bool stream, include_usage;
    bool logprobs;
    uint32_t n_top; /* alternatives per token */
    bool ignore_eos, return_token_ids;
    bool timings; /* the answer tells where its time went */
};

/* Returns 0, or the HTTP status with *err filled. */
int request_params_read(const struct json *body, enum endpoint endpoint, struct request_params *p,
                        struct api_error *err);

#endif
