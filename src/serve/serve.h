/* SPDX-License-Identifier: Apache-2.0
 *
 * The service: OpenAI-compatible HTTP over one engine. The loop thread owns HTTP, tokenizing and text; the
 * engine thread owns scheduler, device and pages; they meet in one queue each way.
 */
#ifndef SERVE_SERVE_H
#define SERVE_SERVE_H

#include "base/log.h"
#include "engine/engine.h"
#include "prompt/prompt.h"
#include "sched/sched.h"

struct serve_options {
    const char *host;         /* NULL: 127.0.0.1 */
    uint16_t port;            /* 0: any free one */
    const char *model_name;   /* name in /v1/models; NULL: last component of the directory */
    uint32_t max_connections; /* 0: 4096 */
    uint32_t max_waiting;     /* 0: 1024 */
    size_t max_body;          /* 0: 8 MiB, of a model that takes pictures 64 MiB */
    uint32_t max_pictures;    /* of one request; 0: 32 */
    uint64_t max_pixels;      /* of one picture; 0: IMAGE_MAX_PIXELS */
    uint64_t picture_bytes;   /* for pictures of all requests: half to hold, half to work in; 0: 2 GiB */
    unsigned picture_threads; /* that decode and process them; 0: a quarter of the cores, at most 8 */
    bool prefix_cache;
    uint32_t prefill_chunk;   /* 0: whole budget */
    const char *activations;  /* what goes into products, shown in /health; NULL: "exact" */
    uint64_t predicted_bytes; /* memory the plan predicts, shown in /health and /metrics */
    uint32_t max_context;     /* tokens of one request; 0: what model and pages allow */
    uint64_t ping_ns;         /* a silent stream gets a comment this often; 0: 5 s */
    uint64_t drain_ns;        /* how long serve_stop lets running requests go on; 0: 5 s */
    uint64_t stall_ns;        /* /health fails when the engine thread was silent longer; 0: 30 s */
};

struct serve;
/* Takes an opened engine and front, both the caller's and kept alive. Binds the port: ERR_BUSY names
 * host:port when it is taken. */
int serve_open(struct serve **out, struct engine *x, struct prompt_front *p, const struct serve_options *o,
               struct d0 *d0, struct err *e);
uint16_t serve_port(const struct serve *s);
/* Until serve_stop; then refuses new requests, lets running ones finish within drain_ns, ends the rest,
 * returns. */
int serve_run(struct serve *s, struct err *e);
void serve_stop(struct serve *s); /* async-signal-safe */
void serve_close(struct serve *s);

#endif
