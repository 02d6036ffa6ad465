/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as a request body: refused with status, code and message, or parameters within their ranges. Then
 * the stop strings meet a text, and the pictures of messages are read and made: sizes as their headers say,
 * or an error.
 */
#include <stdlib.h>
#include <string.h>

#include "prompt/prompt_impl.h"
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

/* Nothing is fetched: whoever names a file gets an error. */
static int fetch(void *ctx, const char *where, struct arena *arena, const void **bytes, size_t *n,
                 struct err *e)
{
    (void)ctx, (void)arena, (void)bytes, (void)n;
    return err_set(e, ERR_UNSUPPORTED, "%.20s is not fetched", where);
}

/* A model that takes pictures, as far as reading them needs it. */
static void look(const struct json *messages)
{
    static const char config[] =
        "{\"size\":{\"longest_edge\":4096,\"shortest_edge\":64},\"patch_size\":4,\"temporal_patch_size\":2,"
        "\"merge_size\":2,\"image_mean\":[0.5,0.5,0.5],\"image_std\":[0.5,0.5,0.5],\"processor_class\":"
        "\"Qwen3VLProcessor\",\"image_processor_type\":\"Qwen2VLImageProcessorFast\"}";
    struct prompt_eyes eyes = {.token_id = 1};
    struct spec spec = {0};
    struct prompt_front front = {.spec = &spec, .eyes = &eyes};
    struct prompt_picture_options o = {
        .fetch = fetch, .max_pictures = 4, .max_bytes = 1 << 16, .image.max_pixels = 4096};
    struct image_configs configs = {0};
    struct prompt_pictures pictures;
    struct arena arena, work;
    struct err e = {0};
    arena_init(&arena, NULL, MEM_REQUEST);
    if (json_parse(config, sizeof config - 1, NULL, &arena, &configs.preprocessor, NULL) ||
        image_processor_open(&configs, NULL, &eyes.processor, NULL))
        abort();
    if (prompt_pictures_read(&front, messages, &o, &arena, &pictures, &e) == ERR_OK) {
        if (pictures.n > 4 || pictures.messages->n != messages->n)
            abort();
        for (uint32_t i = 0; i < pictures.n; i++) {
            const struct prompt_picture *q = &pictures.list[i];
            struct prompt_pixels pixels = {0};
            if ((uint64_t)q->info.width * q->info.height > 4096 || q->n > 1 << 16 || q->n_rows == 0)
                abort();
            arena_init(&work, NULL, MEM_REQUEST);
            if (prompt_picture_make(&front, q, &o.image, &work, &pixels, &e) == ERR_OK &&
                pixels.n_rows != q->n_rows)
                abort();
            arena_release(&work);
        }
    } else if (!e.message[0]) {
        abort();
    }
    arena_release(&arena);
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
                if (p.messages)
                    look(p.messages);
            }
        }
        arena_release(&arena);
    }
    return 0;
}
