/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of parameters of both endpoints and their readers. A parameter is read, or accepted because its
 * value changes nothing, or refused. null counts as absent, as in OpenAI's API.
 */
#include "serve/request_params.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int api_error(struct api_error *err, int status, const char *code, const char *param, const char *fmt, ...)
{
    va_list ap;
    err->status = status;
    err->type = status == 429 ? "rate_limit_error" : status >= 500 ? "server_error" : "invalid_request_error";
    err->code = code;
    snprintf(err->param, sizeof err->param, "%s", param ? param : "");
    /* a name may be cut within a character */
    err->param[utf8_complete_prefix(err->param, strlen(err->param))] = '\0';
    va_start(ap, fmt);
    vsnprintf(err->message, sizeof err->message, fmt, ap);
    va_end(ap);
    return status;
}

static int wrong(struct api_error *err, const char *param, const char *what)
{
    return api_error(err, 400, "invalid_value", param, "%s %s", param, what);
}

/* ---- readers: v is neither absent nor null ---- */

typedef int (*param_reader)(struct request_params *p, const char *name, const struct json *v,
                            struct api_error *err);

static int read_bool(bool *out, const char *name, const struct json *v, struct api_error *err)
{
    return json_bool(v, out) ? 0 : wrong(err, name, "must be true or false");
}

static int read_number(double lo, double hi, float *out, const char *name, const struct json *v,
                       struct api_error *err)
{
    double d;
    if (!json_f64(v, &d))
        return wrong(err, name, "must be a number");
    if (!(d >= lo && d <= hi))
        return api_error(err, 400, "invalid_value", name, "%s must be from %g to %g, not %g", name, lo, hi,
                         d);
    *out = (float)d;
    return 0;
}

static int read_model(struct request_params *p, const char *name, const struct json *v, struct api_error *err)
{
    p->model = json_string(v);
    return p->model && strlen(p->model) == v->n ? 0 : wrong(err, name, "must be a string");
}

static bool is_ids(const struct json *v)
{
    for (uint32_t i = 0; i < v->n; i++) {
        int64_t id;
        if (!json_i64(json_at(v, i), &id) || id < 0 || id > INT32_MAX)
            return false;
    }
    return v->n > 0;
}

static int read_prompt(struct request_params *p, const char *name, const struct json *v,
                       struct api_error *err)
{
    static const char want[] = "must be a string, an array of token ids, or an array with one of them";
    if (v->type == JSON_ARRAY && v->n > 0 &&
        (json_at(v, 0)->type == JSON_STRING || json_at(v, 0)->type == JSON_ARRAY)) {
        if (v->n > 1)
            return api_error(err, 400, "unsupported", name,
                             "prompt: %u prompts in one request are not supported, send one", v->n);
        v = json_at(v, 0);
    }
    if (v->type == JSON_STRING)
        p->prompt = v;
    else if (v->type == JSON_ARRAY && is_ids(v))
        p->ids = v;
    else
        return wrong(err, name, want);
    return 0;
}

static int read_messages(struct request_params *p, const char *name, const struct json *v,
                         struct api_error *err)
{
    if (v->type != JSON_ARRAY || v->n == 0)
        return wrong(err, name, "must be an array with at least one message");
    p->messages = v;
    return 0;
}

static int read_template_variables(struct request_params *p, const char *name, const struct json *v,
                                   struct api_error *err)
{
    if (v->type != JSON_OBJECT)
        return wrong(err, name, "must be an object");
    if (json_get(v, "messages") || json_get(v, "tools")) /* others than those that are answered */
        return wrong(err, name, "must not hold messages or tools: they are parameters of the request");
    p->template_kwargs = v->n ? v : NULL;
    return 0;
}

static int read_generation_prompt(struct request_params *p, const char *name, const struct json *v,
                                  struct api_error *err)
{
    bool wanted = true;
    int rc = read_bool(&wanted, name, v, err);
    p->no_generation_prompt = !wanted;
    return rc;
}

static int read_max_tokens(struct request_params *p, const char *name, const struct json *v,
                           struct api_error *err)
{
    int64_t n;
    if (!json_i64(v, &n) || n < 1 || n > INT32_MAX)
        return wrong(err, name, "must be a whole number of at least 1");
    if (p->max_tokens >= 0 && p->max_tokens != n)
        return wrong(err, name, "contradicts the other name of this parameter");
    p->max_tokens = n;
    return 0;
}

static int read_temperature(struct request_params *p, const char *name, const struct json *v,
                            struct api_error *err)
{
    return read_number(0, 2, &p->temperature, name, v, err);
}

static int read_top_p(struct request_params *p, const char *name, const struct json *v, struct api_error *err)
{
    int rc = read_number(0, 1, &p->top_p, name, v, err);
    return rc == 0 && !(p->top_p > 0) ? wrong(err, name, "must be more than 0") : rc;
}

static int read_top_k(struct request_params *p, const char *name, const struct json *v, struct api_error *err)
{
    int64_t k;
    if (!json_i64(v, &k) || k < -1 || k > INT32_MAX)
        return wrong(err, name, "must be a whole number, 0 or -1 for all");
    p->top_k = k > 0 ? (uint32_t)k : 0;
    return 0;
}

static int read_seed(struct request_params *p, const char *name, const struct json *v, struct api_error *err)
{
    int64_t i = 0;
    if (!json_u64(v, &p->seed)) {
        if (!json_i64(v, &i))
            return wrong(err, name, "must be a whole number of 64 bits");
        p->seed = (uint64_t)i;
    }
    p->has_seed = true;
    return 0;
}

static int add_stop(struct request_params *p, const char *name, const struct json *v, struct api_error *err)
{
    if (json_string(v) == NULL || v->n == 0)
        return wrong(err, name, "must be a string or up to 4 strings, none of them empty");
    if (v->n > PARAMS_MAX_STOP_BYTES)
        return api_error(err, 400, "invalid_value", name,
                         "stop: a string of %u bytes, at most %d are supported", v->n, PARAMS_MAX_STOP_BYTES);
    struct stop_string *s = &p->stop[p->n_stop++];
    memcpy(s->text, v->as.string, v->n);
    s->text[v->n] = '\0';
    s->n = v->n;
    return 0;
}

static int read_stop(struct request_params *p, const char *name, const struct json *v, struct api_error *err)
{
    if (v->type != JSON_ARRAY)
        return add_stop(p, name, v, err);
    if (v->n > PARAMS_MAX_STOP)
        return wrong(err, name, "must be a string or up to 4 strings, none of them empty");
    for (uint32_t i = 0; i < v->n; i++) {
        int rc = add_stop(p, name, json_at(v, i), err);
        if (rc)
            return rc;
    }
    return 0;
}

static int read_stream(struct request_params *p, const char *name, const struct json *v,
                       struct api_error *err)
{
    return read_bool(&p->stream, name, v, err);
}

static int read_stream_options(struct request_params *p, const char *name, const struct json *v,
                               struct api_error *err)
{
    if (v->type != JSON_OBJECT)
        return wrong(err, name, "must be an object");
    for (uint32_t i = 0; i < v->n; i++) {
        const struct json_member *m = &v->as.members[i];
        bool *out, ignored;
        if (strcmp(m->key, "include_usage") == 0)
            out = &p->include_usage;
        else if (strcmp(m->key, "include_obfuscation") == 0)
            out = &ignored;
        else
            return api_error(err, 400, "unsupported", name, "stream_options.%.60s is not supported", m->key);
        if (m->value.type != JSON_NULL && !json_bool(&m->value, out))
            return wrong(err, name, "must hold true or false");
    }
    return 0;
}

static int read_top_count(struct request_params *p, const char *name, const struct json *v,
                          struct api_error *err)
{
    int64_t n;
    if (!json_i64(v, &n) || n < 0 || n > PARAMS_MAX_LOGPROBS)
        return api_error(err, 400, "invalid_value", name, "%s must be a whole number from 0 to %d", name,
                         PARAMS_MAX_LOGPROBS);
    p->n_top = (uint32_t)n;
    return 0;
}

/* Completions: how many alternatives. Chat: whether, and top_logprobs says how many. */
static int read_logprobs(struct request_params *p, const char *name, const struct json *v,
                         struct api_error *err)
{
    if (p->endpoint == ENDPOINT_CHAT)
        return read_bool(&p->logprobs, name, v, err);
    p->logprobs = true;
    return read_top_count(p, name, v, err);
}

static int read_ignore_eos(struct request_params *p, const char *name, const struct json *v,
                           struct api_error *err)
{
    return read_bool(&p->ignore_eos, name, v, err);
}

static int read_token_ids(struct request_params *p, const char *name, const struct json *v,
                          struct api_error *err)
{
    return read_bool(&p->return_token_ids, name, v, err);
}

static int read_timings(struct request_params *p, const char *name, const struct json *v,
                        struct api_error *err)
{
    return read_bool(&p->timings, name, v, err);
}

/* ---- parameters that may be sent as long as they change nothing ---- */

static int accept_any(struct request_params *p, const char *name, const struct json *v, struct api_error *err)
{
    (void)p, (void)name, (void)v, (void)err;
    return 0;
}

static int unsupported(const char *name, const char *unless, struct api_error *err)
{
    return api_error(err, 400, "unsupported", name, "%s is not supported%s%s", name,
                     *unless ? " unless it is " : "", unless);
}

static int only_one(struct request_params *p, const char *name, const struct json *v, struct api_error *err)
{
    double d;
    (void)p;
    return json_f64(v, &d) && d == 1 ? 0 : unsupported(name, "1", err);
}

static int only_zero(struct request_params *p, const char *name, const struct json *v, struct api_error *err)
{
    double d;
    (void)p;
    return json_f64(v, &d) && d == 0 ? 0 : unsupported(name, "0", err);
}

static int only_false(struct request_params *p, const char *name, const struct json *v, struct api_error *err)
{
    bool b;
    (void)p;
    return json_bool(v, &b) && !b ? 0 : unsupported(name, "false", err);
}

static int only_true(struct request_params *p, const char *name, const struct json *v, struct api_error *err)
{
    bool b;
    (void)p;
    return json_bool(v, &b) && b ? 0 : unsupported(name, "true", err);
}

static int only_empty(struct request_params *p, const char *name, const struct json *v, struct api_error *err)
{
    bool container = v->type == JSON_ARRAY || v->type == JSON_OBJECT || v->type == JSON_STRING;
    (void)p;
    return container && v->n == 0 ? 0 : unsupported(name, "empty", err);
}

static int only_text(struct request_params *p, const char *name, const struct json *v, struct api_error *err)
{
    const char *type = json_string(json_get(v, "type")); /* response_format */
    (void)p;
    if (v->type == JSON_ARRAY && v->n == 1) /* modalities */
        type = json_string(json_at(v, 0));
    return type && strcmp(type, "text") == 0 ? 0 : unsupported(name, "text", err);
}

/* Nothing here forces the model: a choice that would be broken is refused. */
static int read_tool_choice(struct request_params *p, const char *name, const struct json *v,
                            struct api_error *err)
{
    const char *s = json_string(v);
    p->no_calls = s && strcmp(s, "none") == 0;
    return p->no_calls || (s && strcmp(s, "auto") == 0) ? 0 : unsupported(name, "none or auto", err);
}

static int read_tools(struct request_params *p, const char *name, const struct json *v, struct api_error *err)
{
    if (v->type != JSON_ARRAY)
        return wrong(err, name, "must be an array");
    for (uint32_t i = 0; i < v->n; i++) {
        const struct json *t = json_at(v, i), *f = json_get(t, "function");
        const char *type = json_string(json_get(t, "type"));
        if (type && strcmp(type, "function") != 0)
            return api_error(err, 400, "unsupported", name, "tools[%u] is of type \"%.60s\", not function", i,
                             type);
        if (json_string(json_get(f, "name")) == NULL)
            return api_error(err, 400, "invalid_value", name, "tools[%u].function has no name", i);
    }
    p->tools = v->n > 0 ? v : NULL;
    return 0;
}

static int read_effort(struct request_params *p, const char *name, const struct json *v,
                       struct api_error *err)
{
    p->reasoning_effort = json_string(v);
    return p->reasoning_effort ? 0 : wrong(err, name, "must be a string");
}

#define BOTH (ENDPOINT_COMPLETIONS | ENDPOINT_CHAT)
static const struct {
    const char *name;
    unsigned endpoints;
    param_reader read;
} table[] = {
    {"model", BOTH, read_model},
    {"prompt", ENDPOINT_COMPLETIONS, read_prompt},
    {"messages", ENDPOINT_CHAT, read_messages},
    {"max_tokens", BOTH, read_max_tokens},
    {"max_completion_tokens", BOTH, read_max_tokens},
    {"temperature", BOTH, read_temperature},
    {"top_p", BOTH, read_top_p},
    {"top_k", BOTH, read_top_k},
    {"seed", BOTH, read_seed},
    {"stop", BOTH, read_stop},
    {"stream", BOTH, read_stream},
    {"stream_options", BOTH, read_stream_options},
    {"logprobs", BOTH, read_logprobs},
    {"top_logprobs", ENDPOINT_CHAT, read_top_count},
    {"ignore_eos", BOTH, read_ignore_eos},
    {"return_token_ids", BOTH, read_token_ids},
    {"day0_timings", BOTH, read_timings},
    {"chat_template_kwargs", ENDPOINT_CHAT, read_template_variables},
    {"add_generation_prompt", ENDPOINT_CHAT, read_generation_prompt},
    /* accepted where they change nothing */
    {"user", BOTH, accept_any},
    {"metadata", BOTH, accept_any},
    {"service_tier", BOTH, accept_any},
    {"safety_identifier", BOTH, accept_any},
    {"prompt_cache_key", BOTH, accept_any},
    {"n", BOTH, only_one},
    {"best_of", ENDPOINT_COMPLETIONS, only_one},
    {"repetition_penalty", BOTH, only_one},
    {"frequency_penalty", BOTH, only_zero},
    {"presence_penalty", BOTH, only_zero},
    {"min_p", BOTH, only_zero},
    {"min_tokens", BOTH, only_zero},
    {"echo", BOTH, only_false},
    {"store", BOTH, only_false},
    {"skip_special_tokens", BOTH, only_true},
    {"suffix", ENDPOINT_COMPLETIONS, only_empty},
    {"logit_bias", BOTH, only_empty},
    {"tools", ENDPOINT_CHAT, read_tools},
    {"tool_choice", ENDPOINT_CHAT, read_tool_choice},
    {"reasoning_effort", ENDPOINT_CHAT, read_effort},
    {"functions", ENDPOINT_CHAT, only_empty},
    {"parallel_tool_calls", ENDPOINT_CHAT, accept_any},
    {"response_format", BOTH, only_text},
    {"modalities", ENDPOINT_CHAT, only_text},
};

static int read_member(struct request_params *p, const struct json_member *m, struct api_error *err)
{
    for (size_t i = 0; i < ARRAY_LEN(table); i++)
        if ((table[i].endpoints & p->endpoint) && strcmp(table[i].name, m->key) == 0)
            return m->value.type == JSON_NULL ? 0 : table[i].read(p, table[i].name, &m->value, err);
    return m->value.type == JSON_NULL ? 0
                                      : api_error(err, 400, "unsupported", m->key,
                                                  "the parameter \"%.200s\" is not supported", m->key);
}

int request_params_read(const struct json *body, enum endpoint endpoint, struct request_params *p,
                        struct api_error *err)
{
    memset(p, 0, sizeof *p);
    p->endpoint = endpoint;
    p->max_tokens = -1;
    p->temperature = 1;
    p->top_p = 1;
    if (body->type != JSON_OBJECT)
        return api_error(err, 400, "invalid_value", NULL, "the body must be a JSON object");
    for (uint32_t i = 0; i < body->n; i++) {
        int rc = read_member(p, &body->as.members[i], err);
        if (rc)
            return rc;
    }
    if (p->model == NULL)
        return api_error(err, 400, "missing", "model", "you must name a model");
    if (endpoint == ENDPOINT_COMPLETIONS && !p->prompt && !p->ids)
        return api_error(err, 400, "missing", "prompt", "you must give a prompt");
    if (endpoint == ENDPOINT_CHAT && !p->messages)
        return api_error(err, 400, "missing", "messages", "you must give messages");
    if (endpoint == ENDPOINT_CHAT && p->n_top > 0 && !p->logprobs)
        return api_error(err, 400, "invalid_value", "top_logprobs", "top_logprobs needs logprobs to be true");
    if (p->include_usage && !p->stream)
        return api_error(err, 400, "invalid_value", "stream_options",
                         "stream_options needs stream to be true");
    return 0;
}
