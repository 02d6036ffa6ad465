/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as a request body: refused with status, code and message, or parameters within their ranges. Then
 * the stop strings meet a text.
 */
#include <stdlib.h>
#include <string.h>

#include "serve/request_params.h"
#include "serve/stop_text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const struct request_params *p)
{
    if (!(p->temperature >= 0 && p->temperature <= 2) || !(p->top_p > 0 && p->top_p <= 1) ||
        p->n_top > PARAMS_MAX_LOGPROBS)
        abort();
    if (p->max_tokens == 0 || p->max_tokens < -1 || p->n_stop > PARAMS_MAX_STOP || !p->model ||
        !!p->prompt + !!p->ids + !!p->messages != 1)
        abort();
    for (uint32_t i = 0; i < p->n_stop; i++)
        if (p->stop[i].n == 0 || p->stop[i].n > PARAMS_MAX_STOP_BYTES ||
            !utf8_valid(p->stop[i].text, p->stop[i].n))
            abort();
}

/* Byte by byte and all at once must give out the same text. */
static void meet(const struct request_params *p, const char *text, size_t n)
{
    struct strbuf out = STRBUF_INIT;
    struct stop_text slow = {.stops = p->stop, .n_stops = p->n_stop}, fast = slow;
    strbuf_add(&fast.held, text, n);
    size_t all = stop_text_certain(&fast);
    for (size_t i = 0; i < n && !slow.hit; i++) {
        strbuf_putc(&slow.held, text[i]);
        size_t certain = stop_text_certain(&slow);
        strbuf_add(&out, strbuf_cstr(&slow.held), certain);
        stop_text_release(&slow, certain);
    }
    if (slow.hit != fast.hit || out.len != slow.released)
        abort();
    if (!slow.hit && (out.len != all || memcmp(strbuf_cstr(&out), text, all) != 0))
        abort();
    strbuf_release(&out);
    strbuf_release(&slow.held);
    strbuf_release(&fast.held);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    for (int i = 0; i < 2; i++) {
        enum endpoint endpoint = i ? ENDPOINT_CHAT : ENDPOINT_COMPLETIONS;
        struct arena arena;
        struct request_params p;
        struct api_error err = {0};
        const struct json *root;
        arena_init(&arena, NULL, MEM_REQUEST);
        if (json_parse((const char *)data, size, NULL, &arena, &root, NULL) == ERR_OK) {
            int rc = request_params_read(root, endpoint, &p, &err);
            if (rc ? rc != err.status || rc < 400 || !err.message[0] || !err.code ||
                         !utf8_valid(err.param, strlen(err.param))
                   : err.status)
                abort();
            if (rc == 0) {
                check(&p);
                if (p.prompt)
                    meet(&p, p.prompt->as.string, p.prompt->n);
            }
        }
        arena_release(&arena);
    }
    return 0;
}
