/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: stage 3, layout and start: the plan against the memory there is, the communicator's self test, the
 * start of the service, and its measured memory against the plan. Refuses: starting a service that the plan
 * says cannot fit.
 */
#include "adapt/probe.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "comm/comm.h"

#define COMM_BYTES 65536u

static const char *rule(const struct job *j)
{
    return j->plan.pictures ? "peak at most 1.15 x predicted, without room for pictures that wait, + 64 MiB"
                            : "peak at most 1.15 x predicted + 64 MiB";
}

static uint64_t allowed(uint64_t predicted)
{
    return predicted + predicted / 20 * 3 + (UINT64_C(64) << 20);
}

static void write_plan(struct job *j, struct json_writer *w)
{
    const struct plan_memory *m = &j->plan;
    const uint64_t room = job_picture_room(j);
    const struct {
        const char *key;
        uint64_t v;
    } parts[] = {{"weights", m->weights + m->tower_weights},
                 {"kv", m->kv},
                 {"scratch", m->scratch + m->tower_scratch},
                 {"device", m->device + m->tower_device},
                 {"pictures", m->pictures - room - m->tower_weights - m->tower_scratch - m->tower_device},
                 {"pictures_waiting", room},
                 {"staging", m->staging},
                 {"fixed", m->fixed},
                 {"total", m->total},
                 {"kv_pages", m->kv_pages}};
    json_key(w, "plan");
    json_begin_object(w);
    json_key(w, "layout");
    json_begin_object(w);
    json_put_u64(w, "pp", 1);
    json_put_u64(w, "dp", 1);
    json_put_u64(w, "tp", 1);
    json_put_u64(w, "ep", 1);
    json_end_object(w);
    json_put_u64(w, "context", j->context);
    json_put_u64(w, "sequences", j->plan_options.max_seqs);
    json_put_u64(w, "kv_tokens", j->plan_options.context_tokens);
    json_key(w, "predicted");
    json_begin_object(w);
    for (size_t i = 0; i < ARRAY_LEN(parts); i++)
        json_put_u64(w, parts[i].key, parts[i].v);
    json_end_object(w);
    json_put_string(w, "predicted_source",
                    j->dev_open && dev_says_scratch(&j->dev)
                        ? "tensor headers and the memory plan of the graph; kernels: what the device says; "
                          "program and libraries: assumed"
                        : "tensor headers and the memory plan of the graph; program and libraries: assumed; "
                          "the device does not say what its kernels need");
    json_put_u64(w, "available", j->memory);
    json_put_string(w, "available_source", j->memory_source);
    json_put_bool(w, "fits", m->fits);
    json_put_string(w, "smallest_layout", m->fits ? NULL : job_too_large(j));
    json_end_object(w);
}

static void run_comm(struct job *j, struct json_writer *w)
{
    struct comm c = {0};
    struct d0_comm_info info = {.size = sizeof(info)};
    struct err e = {0};
    char what[300] = "";
    const char *name = j->o->comm ? j->o->comm : "self";
    job_progress(j, STAGE_LAYOUT, "communicator self test");
    int rc = comm_open(&c, name, 0, 1, NULL, &e);
    bool open = rc == ERR_OK;
    if (!rc)
        rc = comm_info(&c, &info, &e);
    if (!rc)
        rc = comm_self_test(&c, COMM_BYTES, what, sizeof(what), &e);
    char evidence[420];
    snprintf(evidence, sizeof(evidence), "%.400s", rc ? e.message : what);
    if (rc)
        finding_add(j->f, FINDING_M003, name, "%s", e.message);
    job_row(j, ROW_COMM, rc ? ROW_FAILED : ROW_PASSED, "%s", evidence);
    json_key(w, "communicator");
    json_begin_object(w);
    json_put_string(w, "name", name);
    json_put_string(w, "description", info.description);
    json_put_u64(w, "ranks", info.n_ranks);
    json_put_string(w, "order", info.order == D0_COMM_FIXED_TREE ? "fixed tree" : "not exact");
    json_put_bool(w, "passed", rc == ERR_OK);
    json_put_string(w, "evidence", evidence);
    json_end_object(w);
    if (open)
        comm_close(&c);
}

static void find_model_name(struct job *j)
{
    struct answer a;
    probe_call(j, "/v1/models", NULL, &a);
    const char *id = json_string(json_get(json_at(json_get(a.body, "data"), 0), "id"));
    snprintf(j->model_name, sizeof(j->model_name), "%s", id ? id : j->title);
    answer_release(&a);
}

/* What the service says that it holds, part by part: null where it does not say. */
static void write_held(struct job *j, struct json_writer *w)
{
    static const char *const parts[][2] = {{"weights", "held_weights_bytes"},
                                           {"kv", "held_kv_bytes"},
                                           {"scratch", "held_scratch_bytes"},
                                           {"device", "held_device_bytes"}};
    struct answer a;
    probe_call(j, "/health", NULL, &a);
    const struct json *memory = json_get(a.body, "memory");
    json_key(w, "held");
    json_begin_object(w);
    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        int64_t bytes = -1;
        json_key(w, parts[i][0]);
        if (json_i64(json_get(memory, parts[i][1]), &bytes) && bytes >= 0)
            json_write_u64(w, (uint64_t)bytes);
        else
            json_write_null(w);
    }
    json_end_object(w);
    answer_release(&a);
}

/* The service is ready: what it holds now, against the plan. Stage 5 looks again after the load. */
static void measure(struct job *j, struct json_writer *w)
{
    uint64_t rss = 0, peak = 0;
    char a[40], b[40], c[40];
    process_memory(j->service.pid, &rss, &peak);
    j->allowed_peak = allowed(job_to_hold(j));
    json_key(w, "measured");
    json_begin_object(w);
    json_put_u64(w, "ready_rss", rss);
    json_put_u64(w, "ready_peak", peak);
    json_put_u64(w, "allowed", j->allowed_peak);
    json_put_string(w, "rule", rule(j));
    json_put_string(w, "source", "VmRSS and VmHWM of the service process");
    write_held(j, w);
    json_end_object(w);
    if (peak == 0) {
        job_row(j, ROW_MEMORY, ROW_NOT_CHECKED,
                "not checked: this system does not say what memory a process holds");
        return;
    }
    format_bytes(peak, a, sizeof(a));
    format_bytes(job_to_hold(j), b, sizeof(b));
    if (peak > j->allowed_peak) {
        finding_add(j->f, FINDING_M002, "service", "%s held when ready, %s predicted (%s)", a, b, rule(j));
        job_row(j, ROW_MEMORY, ROW_FAILED, "%s held when ready, %s predicted", a, b);
    } else {
        job_row(j, ROW_MEMORY, ROW_PASSED, "%s held when ready, %s predicted, %s available (%s)", a, b,
                format_bytes(j->memory, c, sizeof(c)), j->memory_source);
    }
}

static void write_service(struct job *j, struct json_writer *w, double seconds)
{
    json_key(w, "service");
    json_begin_object(w);
    json_put_string(w, "url", j->url);
    json_put_bool(w, "external", j->external);
    json_put_bool(w, "ready", j->service_ready);
    json_put_f64(w, "seconds_to_ready", seconds);
    json_put_string(w, "model", j->model_name);
    json_end_object(w);
}

/* The room for pictures stands by itself: it follows from the memory that there is, not from the model, and
 * would make most of the figure of a small one. */
static void say_ready(struct job *j)
{
    char predicted[40], have[40], bytes[40], room[80] = "";
    bool bad = job_errors(j, ROW_MEMORY) || job_errors(j, ROW_COMM);
    if (job_picture_room(j))
        snprintf(room, sizeof(room), " and %s set apart for pictures that wait",
                 format_bytes(job_picture_room(j), bytes, sizeof(bytes)));
    stage_say(j, STAGE_LAYOUT, bad ? STAGE_FAILED : STAGE_PASSED, "%s predicted%s, %s available; %s",
              format_bytes(job_to_hold(j), predicted, sizeof(predicted)), room,
              format_bytes(j->memory, have, sizeof(have)),
              j->external ? "the server answers" : "service ready");
}

static int start(struct job *j, struct json_writer *w, struct err *e)
{
    double seconds = 0;
    if (j->external) {
        service_find(j, &seconds);
        job_row(j, ROW_MEMORY, ROW_NOT_CHECKED,
                "not checked: the server at %s is another process, maybe on another machine", j->url);
    } else {
        job_progress(j, STAGE_LAYOUT, "starting the service");
        int rc = service_start(j, &seconds, e);
        if (rc)
            return rc;
    }
    if (j->service_ready)
        find_model_name(j);
    write_service(j, w, seconds);
    if (j->service_ready && !j->external)
        measure(j, w);
    if (!j->service_ready) {
        stage_say(j, STAGE_LAYOUT, STAGE_FAILED, "the service did not get ready: %s",
                  j->f->n ? j->f->items[j->f->n - 1].evidence : "");
        return ERR_OK;
    }
    say_ready(j);
    return ERR_OK;
}

static void refuse_too_large(struct job *j)
{
    const char *why = job_too_large(j);
    finding_add(j->f, FINDING_M001, j->title, "%s", why);
    job_row(j, ROW_MEMORY, ROW_FAILED, "%s (%s)", why, j->memory_source);
    stage_say(j, STAGE_LAYOUT, STAGE_FAILED, "service not run: %s", why);
}

int stage3_run(struct job *j, struct json_writer *w, struct err *e)
{
    const struct finding *obstacle = job_obstacle(j);
    obstacle = obstacle ? obstacle : job_not_computed(j);
    if (j->planned)
        write_plan(j, w);
    run_comm(j, w);
    if (j->external)
        return start(j, w, e);
    if (!j->spec || !j->planned) {
        stage_say(j, STAGE_LAYOUT, STAGE_NOT_RUN, "not run: there is no model description to plan with");
        job_row(j, ROW_MEMORY, ROW_NOT_CHECKED, "not checked: there is no model description to plan with");
        return ERR_OK;
    }
    if (!j->plan.fits) {
        refuse_too_large(j);
        return ERR_OK;
    }
    if (obstacle || !j->front || !j->dev_open) {
        const char *code = obstacle ? finding_code(obstacle->id) : !j->front ? "the tokenizer" : "the device";
        stage_say(j, STAGE_LAYOUT, STAGE_NOT_RUN, "service not run: %s comes first", code);
        job_row(j, ROW_MEMORY, ROW_NOT_CHECKED, "not checked: the service was not started, %s comes first",
                code);
        return ERR_OK;
    }
    if (!j->o->program)
        return err_set(e, ERR_USAGE, "no program to start as the service; give --service URL");
    return start(j, w, e);
}
