/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the load with pictures: every request has a picture that no other has, so that no cache answers, and
 * what the service says of its busy seconds tells where the time goes: host threads that decode and
 * preprocess, the tower, or the text. Refuses: naming a bottleneck that the service's metrics do not show.
 */
#include "adapt/stage5.h"

#include <stdio.h>
#include <string.h>

#include "adapt/stage4.h"
#include "base/thread.h"

#define CONCURRENCY 4
#define REQUESTS    16
#define TOKENS      8

enum place { HOST_THREADS, TOWER, TEXT, PLACES };
static const char *const place_names[PLACES] = {"preprocessing on host threads", "the tower",
                                                "prefill and decode"};

struct busy {
    double seconds[PLACES]; /* -1: not told */
    double threads;
};

/* Steps of the text are the engine's, beside the tower's calls. */
static struct busy read_busy(const struct job *j)
{
    return (struct busy){.seconds = {[HOST_THREADS] = probe_metric(j, "image_busy_seconds_total"),
                                     [TOWER] = probe_metric(j, "vision_busy_seconds_total"),
                                     [TEXT] = probe_metric(j, "step_seconds_sum")},
                         .threads = probe_metric(j, "image_threads")};
}

static void write_busy(struct json_writer *w, struct load_total *load, const struct busy *before,
                       const struct busy *after, double wall)
{
    static const char *const keys[PLACES] = {"preprocess", "vision", "text"};
    double most = 0;
    int where = -1;
    json_key(w, "busy");
    json_begin_array(w);
    for (int i = 0; i < PLACES; i++) {
        if (before->seconds[i] < 0 || after->seconds[i] < 0)
            continue;
        const double threads = i == HOST_THREADS && after->threads > 0 ? after->threads : 1;
        const double seconds = after->seconds[i] - before->seconds[i],
                     share = wall > 0 ? seconds / (wall * threads) : 0;
        json_begin_object(w);
        json_put_string(w, "name", keys[i]);
        json_put_f64(w, "seconds", seconds);
        json_put_f64(w, "threads", threads);
        json_put_f64(w, "share", share);
        json_end_object(w);
        if (share > most) {
            most = share;
            where = i;
        }
    }
    json_end_array(w);
    json_put_string(w, "bottleneck", where < 0 ? NULL : place_names[where]);
    if (where >= 0)
        snprintf(load->pictures, sizeof(load->pictures),
                 "; with pictures %s is busiest (%.0f %% of the time)", place_names[where], 100 * most);
}

static int make_prompts(struct job *j, const char *prompts[REQUESTS], struct err *e)
{
    for (unsigned i = 0; i < REQUESTS; i++) {
        struct conversation v = {0};
        const char *const parts[] = {made_picture(j->arena, i), "What do you see?", NULL};
        if (!parts[0])
            return err_set(e, ERR_NOMEM, "out of memory for pictures");
        int rc = conversation_make(&v, NULL, parts, j->arena, e);
        if (rc)
            return rc;
        prompts[i] = v.body;
    }
    return ERR_OK;
}

int picture_load_run(struct job *j, struct json_writer *w, struct load_total *load, struct err *e)
{
    const enum row_state image = j->out->rows[ROW_IMAGE].state;
    const char *prompts[REQUESTS];
    struct stress_result r;
    if (image == ROW_NOT_APPLICABLE || image == ROW_NOT_CHECKED || image == ROW_FAILED)
        return ERR_OK; /* what is wrong with pictures is stage 4's to tell */
    job_progress(j, STAGE_STRESS, "load with pictures");
    int rc = make_prompts(j, prompts, e);
    if (rc)
        return rc;
    uint32_t n = j->o->stress_requests && j->o->stress_requests < REQUESTS ? j->o->stress_requests : REQUESTS;
    struct stress_options so = {.url = j->url,
                                .model = j->model_name,
                                .concurrency = CONCURRENCY,
                                .n_requests = n,
                                .prompts = prompts,
                                .n_prompts = REQUESTS,
                                .max_tokens = TOKENS,
                                .seed = 1,
                                .chat = true,
                                .messages = true,
                                .pid = j->external ? 0 : j->service.pid,
                                .ignore_eos = !j->external,
                                .log = &j->d0->log};
    const struct busy before = read_busy(j);
    const uint64_t begin = clock_ns();
    rc = stress_run(&so, &r, e);
    if (rc)
        return rc;
    const double wall = (double)(clock_ns() - begin) / 1e9;
    const struct busy after = read_busy(j);
    json_key(w, "pictures");
    json_begin_object(w);
    json_key(w, "run");
    load_add(j, w, CONCURRENCY, &r, load);
    write_busy(w, load, &before, &after, wall);
    json_end_object(w);
    stress_result_release(&r);
    return ERR_OK;
}
