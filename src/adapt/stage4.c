/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: stage 4, channels: the order of text and pictures, what the examiner computes with, the text row, and
 * the summary. A fault of text and a fault of pictures are told apart: text is asked alone first. Refuses:
 * judging pictures by what text does wrong already.
 */
#include "adapt/stage4.h"

#include <stdio.h>
#include <string.h>

#define MOST_PARAMETERS                                                                                      \
    UINT64_C(250000000) /* of a token: the examiner computes each conversation many times */

/* ---- what the examiner computes with */

static const char *why_blind(const struct job *j)
{
    if (!j->spec || !j->front || !j->ckpt)
        return "there is no description to compute with";
    if (!j->dev_open || !j->dev.computes)
        return "the device does not compute";
    if (job_obstacle(j) || job_not_computed(j))
        return "the weights cannot be used";
    if (job_finding(j, FINDING_P001))
        return "the device does not run every operator of the model";
    if (!j->planned || !j->plan.fits || j->ckpt->total_bytes * (j->external ? 1 : 2) > j->memory)
        return "the weights do not fit into memory beside the service";
    if (j->spec->active_parameters > MOST_PARAMETERS)
        return "the model is too large for the examiner to compute each conversation again";
    return NULL;
}

static int open_eyes(struct channels *c, struct err *e)
{
    struct job *j = c->j;
    c->blind = why_blind(j);
    c->model = (struct channel_model){
        .dev = &j->dev, .ckpt = j->ckpt, .spec = j->spec, .front = j->front, .d0 = j->d0};
    if (!j->spec || !j->spec->vision)
        return ERR_OK;
    struct spec_options so = {.arch_path = j->o->arch_path, .activations = j->o->activations, .images = true};
    struct findings again; /* told when the model was opened */
    findings_init(&again, &j->d0->mem);
    int rc = spec_open(&c->eyes, j->ckpt, &so, &again, j->d0, e);
    findings_release(&again);
    if (rc == 0 && c->eyes)
        c->model.spec = c->eyes;
    else if (rc == 0)
        c->blind = "the description with pictures does not open";
    return rc;
}

static bool is_day0(const struct job *j)
{
    struct answer a;
    bool exact;
    probe_call(j, "/health", NULL, &a);
    const bool yes = a.status == 200 && json_bool(json_get(a.body, "exact"), &exact) &&
                     json_get(a.body, "fusions") != NULL;
    answer_release(&a);
    return yes;
}

/* ---- conversations of text */

#define TALKS 2
static int run_talks(struct channels *c, struct judged *out, struct err *e)
{
    static const char *const parts[] = {"Tell me a short story.", NULL};
    struct conversation list[TALKS] = {{.name = "text", .prompt_tokens = -1},
                                       {.name = "text with a system turn", .prompt_tokens = -1}};
    struct served *seen = arena_alloc_n(c->j->arena, TALKS, sizeof(*seen));
    *out = (struct judged){.as_if = CHANNEL_CHANGES};
    if (!seen)
        return err_set(e, ERR_NOMEM, "out of memory for answers");
    memset(seen, 0, TALKS * sizeof(*seen));
    for (size_t i = 0; i < TALKS; i++) {
        struct arena scratch;
        struct channel_case made;
        struct err why = {0};
        int rc = conversation_make(&list[i], i ? "Answer in one word." : NULL, parts, c->j->arena, e);
        if (rc)
            return rc;
        arena_init(&scratch, NULL, MEM_REPORT);
        rc = channel_make(&c->model, list[i].messages, 0, &scratch, &made, &why);
        const bool fits = rc == ERR_OK && made.n + ANSWER_MOST <= c->j->context;
        arena_release(&scratch);
        if (fits) /* what the template refuses is told by the case "chat" */
            served_ask(c, &list[i], true, c->j->arena, &seen[i]);
    }
    return served_judge(c, list, seen, TALKS, false, 0, out, e);
}

/* ---- rows */

static void text_row(struct channels *c, const struct judged *talks)
{
    struct job *j = c->j;
    if (job_errors(j, ROW_TEXT))
        job_row(j, ROW_TEXT, ROW_FAILED, "%zu of %zu cases; see the findings", c->n_passed, c->n);
    else if (c->n_passed < c->n)
        job_row(j, ROW_TEXT, ROW_NOT_CHECKED,
                "not checked: %zu of %zu cases did not get the answer they need; see the service's findings",
                c->n - c->n_passed, c->n);
    else if (c->chat_why)
        job_row(j, ROW_TEXT, ROW_NOT_CHECKED, "%zu of %zu cases passed; chat was not checked: %s",
                c->n_passed, c->n, c->chat_why);
    else
        job_row(j, ROW_TEXT, ROW_PASSED,
                "%zu of %zu cases through the service: counts equal the tokenizer's, BOS once, seeded "
                "answers repeat%s%s",
                c->n_passed, c->n, talks->ran ? "; " : "", talks->ran ? talks->words : "");
}

static void write_segments(struct channels *c)
{
    json_key(c->w, "segments_ms");
    json_begin_object(c->w);
    json_put_f64(c->w, "tokenize", c->tokenize_ms);
    json_put_f64(c->w, "queue_and_prefill", c->first_ms);
    json_put_f64(c->w, "decode_and_detokenize", c->decode_ms);
    json_end_object(c->w);
    segments_write(&c->segments, c->w);
}

static void summarise(struct channels *c)
{
    struct job *j = c->j;
    const struct row *image = &j->out->rows[ROW_IMAGE];
    const bool failed = c->n_passed < c->n || job_errors(j, ROW_TEXT) || image->state == ROW_FAILED ||
                        job_finding(j, FINDING_S003); /* an answer that did not come may come another time */
    const bool open = c->chat_why || image->state == ROW_NOT_CHECKED || image->state == ROW_SELF_CONSISTENT;
    stage_say(j, STAGE_CHANNELS,
              failed ? STAGE_FAILED
              : open ? STAGE_PARTIAL
                     : STAGE_PASSED,
              "%zu of %zu text cases%s%s%s", c->n_passed, c->n, c->chat_why ? "; chat was not checked" : "",
              image->state == ROW_NOT_APPLICABLE ? "" : "; pictures: ",
              image->state == ROW_NOT_APPLICABLE ? "" : row_state_name(image->state));
}

static int run_channels(struct channels *c, struct err *e)
{
    struct judged talks = {.as_if = CHANNEL_CHANGES};
    int rc = open_eyes(c, e);
    if (rc)
        return rc;
    c->day0 = is_day0(c->j);
    job_progress(c->j, STAGE_CHANNELS, "text cases through the service");
    json_key(c->w, "cases");
    json_begin_array(c->w);
    rc = text_channel_run(c, e);
    json_end_array(c->w);
    if (!rc && !c->chat_why)
        rc = run_talks(c, &talks, e);
    if (rc)
        return rc;
    json_put_string(c->w, "served", talks.ran ? talks.words : NULL);
    json_put_string(c->w, "not_computed", c->blind);
    if (c->n_unanswered)
        finding_add(c->j->f, FINDING_S003, "text cases", "%zu of %zu cases got no answer; the first is %s",
                    c->n_unanswered, c->n, c->first_unanswered);
    text_row(c, &talks);
    rc = image_channel_run(c, talks.as_if == CHANNEL_CHANGES ? 0 : CHANNEL_BIT(talks.as_if), e);
    if (!rc)
        write_segments(c);
    return rc;
}

int stage4_run(struct job *j, struct json_writer *w, struct err *e)
{
    struct channels *c = arena_alloc(j->arena, sizeof(*c));
    if (!c)
        return err_set(e, ERR_NOMEM, "out of memory for stage 4");
    memset(c, 0, sizeof(*c));
    c->j = j;
    c->w = w;
    int rc = ERR_OK;
    if (!j->service_ready || !j->front) {
        const char *why = j->front ? "there is no service to ask" : "there is no tokenizer to count with";
        stage_say(j, STAGE_CHANNELS, STAGE_NOT_RUN, "not run: %s", why);
        if (!job_errors(j, ROW_TEXT))
            job_row(j, ROW_TEXT, ROW_NOT_CHECKED, "not checked: %s", why);
        if (j->front)
            rc = open_eyes(c, e);
        if (!rc)
            rc = image_channel_run(c, 0, e);
    } else {
        rc = run_channels(c, e);
        if (!rc)
            summarise(c);
    }
    spec_close(c->eyes);
    return rc;
}
