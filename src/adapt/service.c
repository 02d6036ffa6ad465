/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the child service: command line, readiness within a deadline, end; and the readiness of a server that
 * somebody else started. The child's output goes to service.log in the report's directory. Refuses: waiting
 * for ever, and knowing the service from the inside: readiness is what GET /health says.
 */
#include "adapt/probe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/thread.h"

#define READY_NS   UINT64_C(120000000000)
#define LOAD_RATE  UINT64_C(50000000) /* bytes per second that the slowest disk worth using reads */
#define LOOK_EVERY UINT64_C(20000000)
#define LOOK_AGAIN UINT64_C(200000000) /* at a server of somebody else */
#define STOP_GRACE UINT64_C(5000000000)
#define MAX_ARGS   36

struct arguments {
    const char *argv[MAX_ARGS];
    size_t n;
    struct arena *arena;
    bool failed;
};

static void add(struct arguments *a, const char *option, const char *value)
{
    if (!value || a->n + 3 > MAX_ARGS) {
        a->failed |= option != NULL && value == NULL;
        return;
    }
    if (option)
        a->argv[a->n++] = option;
    a->argv[a->n++] = value;
}

static void add_number(struct arguments *a, const char *option, uint64_t v)
{
    add(a, option, arena_printf(a->arena, "%llu", (unsigned long long)v));
}

static void command_line(struct job *j, const char *port_file, struct arguments *a)
{
    const struct adapt_options *o = j->o;
    add(a, NULL, o->program);
    add(a, NULL, "serve");
    add(a, NULL, o->model_dir);
    add(a, "--host", "127.0.0.1");
    add(a, "--port", "0");
    add(a, "--port-file", port_file);
    add_number(a, "--context", j->context);
    add_number(a, "--max-seqs", j->plan_options.max_seqs);
    add_number(a, "--max-tokens", j->plan_options.max_step_tokens);
    add_number(a, "--kv-tokens", j->plan_options.context_tokens);
    if (j->threads)
        add_number(a, "--threads", j->threads);
    if (o->isa)
        add(a, "--cpu", o->isa);
    if (o->device)
        add(a, "--device", o->device);
    if (o->arch_path)
        add(a, "--arch", o->arch_path);
    if (o->memory_bytes)
        add_number(a, "--memory", o->memory_bytes);
    char fusions[FUSIONS_TEXT];
    add(a, "--fuse", arena_strdup(a->arena, fusions_format(job_fusions(j), fusions, sizeof(fusions))));
    a->argv[a->n] = NULL;
}

/* From the facts, which may come from an earlier run. */
uint32_t job_fusions(const struct job *j)
{
    const struct json *list = json_get(j->facts[STAGE_MINIMAL], "fusions");
    uint32_t mask = 0;
    for (size_t i = 0; list && list->type == JSON_ARRAY && i < list->n; i++) {
        const char *name = json_string(json_get(json_at(list, i), "name"));
        bool on = false;
        uint32_t one = 0;
        if (name && json_bool(json_get(json_at(list, i), "on"), &on) && on &&
            fusions_parse(name, &one, NULL) == ERR_OK)
            mask |= one;
    }
    return mask;
}

/* The last lines of the log, for the evidence of a service that did not start. */
static const char *log_tail(struct job *j, const char *path)
{
    struct arena arena;
    char *text = NULL;
    size_t n = 0;
    struct err e = {0};
    arena_init(&arena, NULL, MEM_REPORT);
    const char *out = "its log is empty";
    if (file_read(path, 4u << 20, &arena, &text, &n, &e) == ERR_OK && n) {
        while (n && (text[n - 1] == '\n' || text[n - 1] == '\r'))
            text[--n] = '\0';
        const char *from = n > 400 ? text + n - 400 : text, *newline = n > 400 ? strchr(from, '\n') : NULL;
        const char *copy = arena_strdup(j->arena, newline ? newline + 1 : from);
        out = copy ? copy : out;
    }
    arena_release(&arena);
    return out;
}

static bool read_port(const char *path, uint16_t *port)
{
    struct arena arena;
    char *text = NULL;
    size_t n = 0;
    int64_t v = 0;
    struct err e = {0};
    arena_init(&arena, NULL, MEM_REPORT);
    bool ok = file_read(path, 64, &arena, &text, &n, &e) == ERR_OK;
    if (ok) {
        text[strcspn(text, "\r\n ")] = '\0';
        ok = str_to_i64(text, &v) && v > 0 && v < 65536;
    }
    if (ok)
        *port = (uint16_t)v;
    arena_release(&arena);
    return ok;
}

static bool healthy(struct job *j)
{
    struct answer a;
    probe_call(j, "/health", NULL, &a);
    bool ok = a.status == 200;
    answer_release(&a);
    return ok;
}

/* Why it did not get ready, or NULL when it did. */
static const char *wait_ready(struct job *j, const char *port_file, const char *log, uint64_t deadline)
{
    struct err e = {0};
    uint16_t port = 0;
    bool bound = false;
    while (clock_ns() < deadline) {
        if (process_poll(&j->service, &e) == ERR_OK && !j->service.running)
            return arena_printf(j->arena, "ended with status %d: %s", j->service.exit_status,
                                log_tail(j, log));
        if (!bound && read_port(port_file, &port)) {
            snprintf(j->url, sizeof(j->url), "http://127.0.0.1:%u", port);
            bound = true;
        }
        if (bound && healthy(j))
            return NULL;
        clock_sleep_ns(LOOK_EVERY);
    }
    return arena_printf(j->arena, "%s before the deadline; its log ends: %s",
                        bound ? "GET /health did not answer 200" : "bound no port", log_tail(j, log));
}

uint64_t service_patience_ns(uint64_t model_bytes)
{
    return READY_NS + model_bytes / LOAD_RATE * UINT64_C(1000000000);
}

int service_start(struct job *j, double *seconds, struct err *e)
{
    struct arguments a = {.arena = j->arena};
    char *port_file = path_join(j->arena, j->out_dir, "service.port"),
         *log = path_join(j->arena, j->out_dir, "service.log");
    uint64_t begin = clock_ns();
    *seconds = 0;
    if (!port_file || !log)
        return err_set(e, ERR_NOMEM, "out of memory for the service's command line");
    command_line(j, port_file, &a);
    if (a.failed)
        return err_set(e, ERR_NOMEM, "out of memory for the service's command line");
    (void)unlink(port_file);
    (void)unlink(log);
    struct err why = {0};
    if (process_start(&j->service, a.argv, log, &why) != ERR_OK) {
        finding_add(j->f, FINDING_S001, "service", "%s", why.message);
        return ERR_OK;
    }
    const uint64_t patience = service_patience_ns(j->ckpt ? j->ckpt->total_bytes : 0);
    const char *failure = wait_ready(j, port_file, log, begin + patience);
    *seconds = (double)(clock_ns() - begin) / 1e9;
    j->service_ready = failure == NULL;
    if (failure)
        finding_add(j->f, FINDING_S001, "service", "%s", failure);
    (void)unlink(port_file);
    return ERR_OK;
}

void service_stop(struct job *j)
{
    struct err e = {0};
    if (j->service.running && process_stop(&j->service, STOP_GRACE, &e) != ERR_OK)
        log_line(&j->d0->log, LOG_WARN, "adapt", "the service does not end: %s", e.message);
    j->service_ready = false;
}

/* Asks a server of somebody else whether it is ready; returns what it asked for last. Not every one has
 * /health, so only 503 counts there: whoever says so is loading. */
static const char *look_at(const struct job *j, struct answer *a)
{
    probe_call(j, "/health", NULL, a);
    if (a->status == 503)
        return "/health";
    answer_release(a);
    probe_call(j, "/v1/models", NULL, a);
    return "/v1/models";
}

void service_find(struct job *j, double *seconds)
{
    const uint64_t begin = clock_ns(), patience = probe_seconds(j) * UINT64_C(1000000000);
    struct answer a;
    size_t n = strlen(j->o->service_url);
    while (n && j->o->service_url[n - 1] == '/')
        n--;
    snprintf(j->url, sizeof(j->url), "%.*s", (int)n, j->o->service_url);
    const char *path = look_at(j, &a);
    if (a.status == 503)
        job_progress(j, STAGE_LAYOUT, "waiting for the server, which answers 503");
    while (a.status == 503 && clock_ns() - begin < patience) {
        answer_release(&a);
        clock_sleep_ns(LOOK_AGAIN);
        path = look_at(j, &a);
    }
    *seconds = (double)(clock_ns() - begin) / 1e9;
    j->service_ready = a.status == 200;
    if (a.status == 503)
        finding_add(j->f, FINDING_S001, j->url, "GET %s: still status 503 after %.0f s", path, *seconds);
    else if (!j->service_ready && a.status)
        finding_add(j->f, FINDING_S001, j->url, "GET %s: status %d, not 200", path, a.status);
    else if (!j->service_ready)
        finding_add(j->f, FINDING_S001, j->url, "GET %s: %s", path, a.why);
    answer_release(&a);
}
