/* SPDX-License-Identifier: Apache-2.0
 *
 * day0 serve: opens the model and serves it until SIGINT or SIGTERM.
 */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "api/api.h"
#include "base/file.h"
#include "cli/cli.h"
#include "serve/serve.h"

struct serve_arguments {
    struct common common;
    struct session_options session;
    struct serve_options serve;
    const char *port_file, *log_file;
};

enum {
    KEY_HOST = 0x2000,
    KEY_PORT,
    KEY_PORT_FILE,
    KEY_LOG_FILE,
    KEY_CONTEXT,
    KEY_SEQS,
    KEY_TOKENS,
    KEY_KV_TOKENS,
    KEY_CHUNK,
    KEY_NAME,
    KEY_NO_PREFIX,
    KEY_SNAPSHOTS,
    KEY_WAITING,
    KEY_KV,
    KEY_FUSE,
    KEY_NO_IMAGES,
    KEY_IMAGES,
    KEY_PATCHES,
    KEY_ROWS,
    KEY_PIXELS,
    KEY_IMAGE_MEMORY,
    KEY_IMAGE_THREADS
};

static const struct argp_option options[] = {
    {"host", KEY_HOST, "ADDRESS", 0, "address to listen on (default 127.0.0.1)", 1},
    {"port", KEY_PORT, "N", 0, "port (default 8000; 0: any free one)", 1},
    {"port-file", KEY_PORT_FILE, "FILE", 0, "write the port there once it is bound", 1},
    {"log-file", KEY_LOG_FILE, "FILE", 0, "append the log there instead of stderr", 1},
    {"model-name", KEY_NAME, "NAME", 0, "name in /v1/models (default: the directory's)", 1},
    {"context", KEY_CONTEXT, "N", 0, "tokens of one request (default: the model's limit, at most 4096)", 2},
    {"max-seqs", KEY_SEQS, "N", 0, "requests computed together (default 32)", 2},
    {"max-tokens", KEY_TOKENS, "N", 0, "tokens of one step (default 256)", 2},
    {"kv-tokens", KEY_KV_TOKENS, "N", 0,
     "KV capacity over all requests (default: max-seqs x context as memory allows)", 2},
    {"kv", KEY_KV, "TYPE", 0, "type of the KV pages: f32, bf16 or f16 (default: by the weights)", 2},
    {"prefill-chunk", KEY_CHUNK, "N", 0, "most prompt tokens of one request in one step (default: what fits)",
     2},
    {"max-waiting", KEY_WAITING, "N", 0, "queued requests beyond which new ones get 429 (default 1024)", 2},
    {"snapshots", KEY_SNAPSHOTS, "N", 0,
     "recurrent states kept for the prefix cache (default: as many as max-seqs, none where memory is short)",
     2},
    {"no-prefix-cache", KEY_NO_PREFIX, NULL, 0, "compute every prompt anew", 2},
    {"no-images", KEY_NO_IMAGES, NULL, 0, "take no pictures: the tower is not loaded", 3},
    {"max-images", KEY_IMAGES, "N", 0, "pictures of one request (default 32)", 3},
    {"max-patches", KEY_PATCHES, "N", 0, "patches of one picture (default 16384, or what memory allows)", 3},
    {"image-tokens", KEY_ROWS, "N", 0,
     "tokens of pictures held for all running requests (default: four of the largest pictures)", 3},
    {"max-pixels", KEY_PIXELS, "N", 0, "pixels of one picture (default 67108864)", 3},
    {"image-memory", KEY_IMAGE_MEMORY, "BYTES", 0,
     "host memory for pictures of all requests, half held, half to decode in (default 2 GiB, or a sixteenth "
     "of the memory)",
     3},
    {"image-threads", KEY_IMAGE_THREADS, "N", 0,
     "host threads that decode and process pictures (default: a quarter of the cores, at most 8)", 3},
    {"fuse", KEY_FUSE, "NAMES", 0,
     "fusions to apply: names with commas, all or none (default: all that change no bit)", 2},
    {0},
};

static error_t parse_pictures(int key, char *arg, struct argp_state *state)
{
    struct serve_arguments *a = state->input;
    switch (key) {
    case KEY_NO_IMAGES:
        a->session.images = SESSION_IMAGES_OFF;
        break;
    case KEY_IMAGES:
        a->serve.max_pictures = (uint32_t)cli_int(state, "--max-images", arg, 1, PROMPT_MAX_PICTURES);
        break;
    case KEY_PATCHES:
        a->session.max_patches = (uint32_t)cli_int(state, "--max-patches", arg, 1, 1 << 22);
        break;
    case KEY_ROWS:
        a->session.n_feature_rows = (uint32_t)cli_int(state, "--image-tokens", arg, 1, 1 << 24);
        break;
    case KEY_PIXELS:
        a->serve.max_pixels = (uint64_t)cli_int(state, "--max-pixels", arg, 1, (int64_t)IMAGE_MAX_PIXELS);
        break;
    case KEY_IMAGE_MEMORY:
        a->session.picture_bytes = cli_bytes(state, "--image-memory", arg);
        break;
    case KEY_IMAGE_THREADS:
        a->serve.picture_threads = (unsigned)cli_int(state, "--image-threads", arg, 1, 64);
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct serve_arguments *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &a->common;
        break;
    case KEY_HOST:
        a->serve.host = arg;
        break;
    case KEY_PORT:
        a->serve.port = (uint16_t)cli_int(state, "--port", arg, 0, 65535);
        break;
    case KEY_PORT_FILE:
        a->port_file = arg;
        break;
    case KEY_LOG_FILE:
        a->log_file = arg;
        break;
    case KEY_NAME:
        a->serve.model_name = arg;
        break;
    case KEY_CONTEXT:
        a->session.context = (uint32_t)cli_int(state, "--context", arg, 1, 1 << 24);
        break;
    case KEY_SEQS:
        a->session.max_seqs = (uint32_t)cli_int(state, "--max-seqs", arg, 1, 4096);
        break;
    case KEY_TOKENS:
        a->session.max_tokens = (uint32_t)cli_int(state, "--max-tokens", arg, 1, 65536);
        break;
    case KEY_KV_TOKENS:
        a->session.kv_tokens = (uint64_t)cli_int(state, "--kv-tokens", arg, 1, INT64_C(1) << 40);
        break;
    case KEY_KV:
        a->session.kv_dtype = cli_kv_dtype(state, arg);
        break;
    case KEY_CHUNK:
        a->serve.prefill_chunk = (uint32_t)cli_int(state, "--prefill-chunk", arg, 1, 65536);
        break;
    case KEY_WAITING:
        a->serve.max_waiting = (uint32_t)cli_int(state, "--max-waiting", arg, 1, 1 << 20);
        break;
    case KEY_SNAPSHOTS:
        a->session.n_snapshots = (uint32_t)cli_int(state, "--snapshots", arg, 0, 1 << 16);
        break;
    case KEY_NO_PREFIX:
        a->serve.prefix_cache = false;
        break;
    case KEY_FUSE:
        a->session.fuse = cli_fusions(state, arg);
        break;
    default:
        return parse_pictures(key, arg, state);
    }
    return 0;
}

/* Waits for a signal on a thread of its own: no handler, hence nothing process-wide. */
struct waiter {
    pthread_t thread;
    sigset_t signals;
    struct serve *serve;
};

static void *wait_for_signal(void *context)
{
    struct waiter *w = context;
    int number = 0;
    sigwait(&w->signals, &number);
    serve_stop(w->serve);
    return NULL;
}

/* Threads started later inherit the mask, so that only the waiter sees the signals. */
static void block_signals(sigset_t *signals)
{
    sigemptyset(signals);
    sigaddset(signals, SIGINT);
    sigaddset(signals, SIGTERM);
    pthread_sigmask(SIG_BLOCK, signals, NULL);
}

static int write_port(const struct serve_arguments *a, const struct serve *s, struct err *e)
{
    if (!a->port_file)
        return ERR_OK;
    char text[16];
    int n = snprintf(text, sizeof text, "%u\n", serve_port(s));
    return file_write_atomic(a->port_file, text, (size_t)n, e);
}

static int serve_session(struct serve_arguments *a, struct session *session, const sigset_t *signals,
                         struct err *e)
{
    struct d0 *d0 = a->common.d0;
    a->serve.predicted_bytes = session->memory.total;
    a->serve.max_context = session->context;
    a->serve.picture_bytes = session->picture_bytes;
    a->serve.activations = spec_activations_name(session->spec->activations);
    struct serve *s = NULL;
    int rc = serve_open(&s, session->engine, session->front, &a->serve, d0, e);
    if (rc != ERR_OK)
        return rc;
    struct waiter waiter = {.serve = s, .signals = *signals};
    if (pthread_create(&waiter.thread, NULL, wait_for_signal, &waiter) != 0) {
        serve_close(s);
        return err_set(e, ERR_NOMEM, "cannot start a thread");
    }
    rc = write_port(a, s, e);
    if (rc == ERR_OK) {
        const char *host = a->serve.host ? a->serve.host : "127.0.0.1";
        log_line(&d0->log, LOG_INFO, "serve", "listening on http://%s:%u, context %u tokens", host,
                 serve_port(s), session->context);
        char fusions[FUSIONS_TEXT];
        log_line(&d0->log, LOG_INFO, "serve", "%s; fusions: %s; activations: %s",
                 engine_exact(session->engine) ? "exact" : "not exact",
                 fusions_format(engine_fusions(session->engine), fusions, sizeof fusions),
                 a->serve.activations);
        rc = serve_run(s, e);
    }
    pthread_kill(waiter.thread, SIGTERM); /* if no signal came, this ends the waiter */
    pthread_join(waiter.thread, NULL);
    serve_close(s);
    return rc;
}

int cmd_serve(struct d0 *d0, int argc, char **argv)
{
    static const struct argp_child children[] = {{&common_argp, 0, NULL, 0}, {0}};
    static const struct argp argp = {options,  parse, "MODEL", "OpenAI-compatible HTTP service.",
                                     children, NULL,  NULL};
    struct serve_arguments a = {.common = {.d0 = d0, .needs_model = true},
                                .session = {.n_snapshots = UINT32_MAX},
                                .serve = {.port = 8000, .prefix_cache = true}};
    cli_parse(&argp, argc, argv, &a);
    struct err e = {0};
    sigset_t signals;
    block_signals(&signals);
    d0->log.level = LOG_INFO;
    if (a.log_file) {
        d0->log.fd = open(a.log_file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
        if (d0->log.fd < 0) {
            err_set(&e, ERR_IO, "cannot write the log file %s: %m", a.log_file);
            return cli_error(&a.common, &e);
        }
    }
    if (!a.serve.prefix_cache)
        a.session.n_snapshots = 0;
    a.session.model_dir = a.common.model;
    a.session.arch_path = a.common.arch;
    a.session.device = a.common.device;
    a.session.isa = a.common.cpu;
    a.session.activations = a.common.activations;
    a.session.n_threads = a.common.threads;
    a.session.memory_bytes = a.common.memory;
    struct findings f;
    findings_init(&f, &d0->mem);
    struct session s;
    int rc = session_open(&s, &a.session, &f, d0, &e);
    if (rc == ERR_OK)
        rc = serve_session(&a, &s, &signals, &e);
    session_close(&s);
    if (rc < 0 && f.n && !a.common.json)
        cli_print_findings(&f);
    findings_release(&f);
    return rc < 0 ? cli_error(&a.common, &e) : EXIT_PASSED;
}
