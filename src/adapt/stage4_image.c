/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the image channel of stage 4: the directory against a recorded conversation with pictures, what can
 * be said without one (self-consistent), the service against the directory, known answers, and the row.
 * Refuses: "passed" where nothing from elsewhere was held against it.
 */
#include "adapt/stage4.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

bool model_takes_pictures(const struct ckpt *c)
{
    static const char *const keys[] = {"vision_config",  "vision_tower",      "vision_tower_config",
                                       "image_token_id", "image_token_index", "visual",
                                       "mm_vision_tower"};
    for (size_t i = 0; c && i < ARRAY_LEN(keys); i++) {
        const struct json *v = json_get(c->config, keys[i]);
        if (v && v->type != JSON_NULL)
            return true;
    }
    return false;
}

/* What the channel came to, beside findings. */
struct image_channel {
    struct channels *c;
    const char *not_checked; /* why nothing was */
    bool referenced, reference_equal;
    size_t steps_held, steps_equal;
    size_t self_n, self_passed;
    size_t cases, answered;
    struct judged served;
    struct known_answers known;
    const char *first_refused; /* why a conversation was not sent */
    char first_unanswered[300];
};

/* ---- the reference */

static void write_steps(struct json_writer *w, const struct reference *r, const struct channel_held *steps)
{
    json_key(w, "reference");
    json_begin_object(w);
    json_put_string(w, "producer", r->producer);
    json_put_string(w, "path", r->path);
    json_put_string(w, "sha256", r->sha256);
    json_key(w, "steps");
    json_begin_array(w);
    for (unsigned i = 0; i < CHANNEL_STEPS; i++) {
        json_begin_object(w);
        json_put_string(w, "step", channel_step_name((enum channel_step)i));
        json_put_string(w, "state", !steps[i].held ? "not held" : steps[i].equal ? "equal" : "differs");
        json_put_f64(w, "figure", steps[i].figure);
        json_put_f64(w, "limit", steps[i].limit);
        json_put_string(w, "words", steps[i].words);
        json_end_object(w);
    }
    json_end_array(w);
    json_end_object(w);
}

/* What this device has no kernels for is not checked, whatever else it runs: stage 1 judges the text alone.
 */
static int not_computed(struct image_channel *x, int rc, const struct err *why, struct err *e)
{
    if (rc == ERR_UNSUPPORTED) {
        const char *copy = arena_strdup(x->c->j->arena, why->message);
        x->not_checked = copy ? copy : "the device does not run the tower";
        return ERR_OK;
    }
    if (rc && e)
        *e = *why;
    return rc;
}

static int run_reference(struct image_channel *x, struct err *e)
{
    struct channels *c = x->c;
    struct channel_held steps[CHANNEL_STEPS];
    struct reference *r = NULL;
    struct err why = {0};
    if (!c->j->o->picture_reference)
        return ERR_OK;
    if (c->blind) {
        x->not_checked = c->blind;
        return ERR_OK;
    }
    job_progress(c->j, STAGE_CHANNELS, "a recorded conversation with pictures, step by step");
    int rc = reference_open(&r, c->j->o->picture_reference, e);
    if (!rc)
        rc = not_computed(x, channel_reference(&c->model, r, c->j->arena, steps, c->j->f, &why), &why, e);
    if (!rc && !why.message[0]) {
        for (unsigned i = 0; i < CHANNEL_STEPS; i++) {
            x->steps_held += steps[i].held;
            x->steps_equal += steps[i].held && steps[i].equal;
        }
        x->referenced = true;
        x->reference_equal = x->steps_held > 0 && x->steps_equal == x->steps_held &&
                             steps[CHANNEL_AT_LOGITS].held && steps[CHANNEL_AT_FEATURES].held;
        write_steps(c->w, r, steps);
    }
    reference_close(r);
    return rc;
}

/* ---- without anything from elsewhere */

static void self_check(struct image_channel *x, const char *name, bool passed, enum finding_id id,
                       const char *words)
{
    x->self_n++;
    x->self_passed += passed;
    json_begin_object(x->c->w);
    json_put_string(x->c->w, "name", name);
    json_put_bool(x->c->w, "passed", passed);
    json_put_string(x->c->w, "why", words);
    json_end_object(x->c->w);
    if (!passed && !job_finding(x->c->j, id)) /* the reference has told it already */
        finding_add(x->c->j->f, id, name, "%s", words);
}

static bool finite_rows(const struct channel_case *k, uint32_t n_features, size_t hidden)
{
    for (uint32_t f = 0; f < n_features; f++)
        for (size_t i = 0; i < k->n_rows * hidden; i++)
            if (!isfinite(k->features[f][i]))
                return false;
    return true;
}

/* Largest difference of the logits behind the prompt under a change; -1: it has nothing to change. */
static int moved_by(struct channels *c, const struct conversation *v, uint32_t change, const float *intact,
                    double *out, struct err *e)
{
    struct arena scratch;
    struct channel_case k;
    struct err why = {0};
    float *logits = NULL;
    *out = -1;
    arena_init(&scratch, NULL, MEM_REPORT);
    int rc = channel_make(&c->model, v->messages, change, &scratch, &k, &why);
    if (rc == 0)
        rc = channel_features(&c->model, &k, &scratch, &why);
    if (rc == 0)
        rc = channel_logits(&c->model, &k, NULL, 0, k.n - 1, 1, &scratch, &logits, &why);
    if (rc == 0) {
        *out = 0;
        for (int64_t i = 0; i < c->model.spec->vocab_size; i++)
            *out = fmax(*out, fabs((double)logits[i] - (double)intact[i]));
    }
    arena_release(&scratch);
    if (rc && rc != ERR_MISSING && e)
        *e = why;
    return rc == ERR_MISSING ? ERR_OK : rc;
}

static int check_moves(struct image_channel *x, const struct conversation *two, const float *logits,
                       struct err *e)
{
    static const struct {
        enum channel_change change;
        const char *name;
    } moves[] = {{CHANNEL_UNSEEN, "pictures change the answer"},
                 {CHANNEL_SWAPPED, "their order changes the answer"},
                 {CHANNEL_BGR, "their colours change the answer"}};
    for (size_t i = 0; i < ARRAY_LEN(moves); i++) {
        double d;
        char words[160];
        int rc = moved_by(x->c, two, CHANNEL_BIT(moves[i].change), logits, &d, e);
        if (rc)
            return rc;
        snprintf(words, sizeof(words), "logits move by %.3g if %s", d,
                 channel_change_info(moves[i].change)->as_if);
        if (d >= 0)
            self_check(x, moves[i].name, d > 0 && isfinite(d), FINDING_I009, words);
    }
    return ERR_OK;
}

/* Features of two pictures, and logits behind them: finite, different, of the shape that the grids ask for.
 */
static int check_two(struct image_channel *x, const struct conversation *two, struct err *e)
{
    struct channels *c = x->c;
    const size_t hidden = (size_t)c->model.spec->hidden, vocab = (size_t)c->model.spec->vocab_size;
    const uint32_t n_features = c->model.spec->tower.n_features;
    struct arena scratch;
    struct channel_case k;
    struct err why = {0};
    float *logits = NULL;
    char words[200];
    arena_init(&scratch, NULL, MEM_REPORT);
    int rc = channel_make(&c->model, two->messages, 0, &scratch, &k, &why);
    if (channel_refused(rc)) {
        self_check(x, "placeholders = grid", false, FINDING_I005, why.message);
        arena_release(&scratch);
        return ERR_OK;
    }
    if (rc == 0)
        rc = channel_features(&c->model, &k, &scratch, &why);
    if (rc == 0)
        rc = channel_logits(&c->model, &k, NULL, 0, k.n - 1, 1, &scratch, &logits, &why);
    if (rc == 0) {
        size_t placeholders = 0;
        for (size_t i = 0; i < k.n; i++)
            placeholders += k.layout.feature_of[i] >= 0;
        const struct image_plan *p = &k.pictures.list[0].plan;
        snprintf(words, sizeof(words),
                 "%zu tokens take rows, %zu rows; a picture of %u x %u pixels has %u x %u patches",
                 placeholders, k.n_rows, p->width, p->height, p->grid_w, p->grid_h);
        self_check(x, "placeholders = grid", placeholders == k.n_rows, FINDING_I005, words);
        snprintf(words, sizeof(words), "%u x [%zu, %zu] on %s", n_features, k.n_rows, hidden,
                 c->j->o->device ? c->j->o->device : "cpu");
        self_check(x, "features are finite", finite_rows(&k, n_features, hidden), FINDING_I008, words);
        const size_t first = k.pixels[0].n_rows, least = first < k.n_rows - first ? first : k.n_rows - first;
        const bool same =
            memcmp(k.features[0], k.features[0] + first * hidden, least * hidden * sizeof(float)) == 0;
        self_check(x, "features of two pictures differ", !same, FINDING_I008,
                   same ? "two different pictures give the same rows" : "they do");
        bool finite = true;
        for (size_t i = 0; i < vocab; i++)
            finite &= isfinite(logits[i]);
        self_check(x, "logits are finite", finite, FINDING_I009, "behind two pictures");
        rc = check_moves(x, two, logits, &why);
    }
    arena_release(&scratch);
    if (rc && e)
        *e = why;
    return rc;
}

/* ---- through the service */

static void note_unanswered(struct image_channel *x, const struct conversation *v, const struct served *s)
{
    if (!x->first_unanswered[0])
        snprintf(x->first_unanswered, sizeof(x->first_unanswered), "%s: %.250s", v->name, s->why);
}

/* Signs of noise that need no reference (docs/numerics.md), in what was answered to pictures. */
static bool reasonable(const struct served *s, struct verify_text_result *r)
{
    int32_t ids[ANSWER_MOST];
    float logprobs[ANSWER_MOST];
    for (size_t i = 0; i < s->n; i++) {
        ids[i] = s->tokens[i].chosen.id;
        logprobs[i] = (float)s->tokens[i].chosen.logprob;
    }
    if (s->n == 0)
        return true;
    verify_text(ids, logprobs, s->n, s->text ? s->text : "", r);
    return r->reasonable;
}

/* Why a conversation is not sent: what the service would refuse is no fault of it. NULL: it is. */
static const char *not_askable(struct channels *c, const struct conversation *v)
{
    struct arena scratch;
    struct channel_case made;
    struct err why = {0};
    const char *out = NULL;
    arena_init(&scratch, NULL, MEM_REPORT);
    int rc = channel_make(&c->model, v->messages, 0, &scratch, &made, &why);
    if (rc)
        out = arena_strdup(c->j->arena, why.message);
    else if (made.n + v->max_tokens > c->j->context)
        out = arena_printf(c->j->arena, "%zu tokens and an answer of %u do not fit the context of %u", made.n,
                           v->max_tokens, c->j->context);
    arena_release(&scratch);
    return out;
}

/* The service may not give log-probabilities: then the answer and its counts alone. */
static void ask_case(struct channels *c, const struct conversation *v, struct served *out)
{
    served_ask(c, v, true, c->j->arena, out);
    if (!out->answered && str_starts(out->why, "HTTP 400"))
        served_ask(c, v, false, c->j->arena, out);
}

#define CASES 4
static int make_cases(struct channels *c, struct conversation list[CASES], struct err *e)
{
    struct arena *arena = c->j->arena;
    const char *a = made_picture(arena, 0), *b = made_picture(arena, 1);
    if (!a || !b)
        return err_set(e, ERR_NOMEM, "out of memory for pictures");
    const char *const parts[CASES][5] = {{a, NULL},
                                         {a, "What do you see?", NULL},
                                         {a, "and", b, "What do you see?", NULL},
                                         {"Look: ", b, a, NULL}};
    static const char *const names[CASES] = {"a picture alone", "a picture and text", "two pictures",
                                             "two pictures behind text"};
    for (size_t i = 0; i < CASES; i++) {
        list[i] = (struct conversation){.name = names[i], .prompt_tokens = -1, .max_tokens = ANSWER_MOST};
        int rc = conversation_make(&list[i], NULL, parts[i], arena, e);
        if (rc)
            return rc;
    }
    return ERR_OK;
}

static int run_cases(struct image_channel *x, const struct conversation list[CASES], uint32_t base,
                     struct err *e)
{
    struct channels *c = x->c;
    struct served *seen = arena_alloc_n(c->j->arena, CASES, sizeof(*seen));
    if (!seen)
        return err_set(e, ERR_NOMEM, "out of memory for answers");
    job_progress(c->j, STAGE_CHANNELS, "conversations with pictures through the service");
    json_key(c->w, "cases");
    json_begin_array(c->w);
    for (size_t i = 0; i < CASES; i++) {
        const char *why = not_askable(c, &list[i]);
        memset(&seen[i], 0, sizeof(seen[i]));
        if (why) {
            x->first_refused = x->first_refused ? x->first_refused : why;
            snprintf(seen[i].why, sizeof(seen[i].why), "%s", why);
            conversation_write(c, &list[i], &seen[i], "not asked");
            continue;
        }
        ask_case(c, &list[i], &seen[i]);
        x->cases++;
        x->answered += seen[i].answered;
        if (!seen[i].answered)
            note_unanswered(x, &list[i], &seen[i]);
        struct verify_text_result r;
        const char *state = !seen[i].answered          ? "not answered"
                            : reasonable(&seen[i], &r) ? "answered"
                                                       : "unreasonable";
        conversation_write(c, &list[i], &seen[i], state);
    }
    json_end_array(c->w);
    int rc = served_judge(c, list, seen, CASES, true, base, &x->served, e);
    const bool text_is_noise = job_finding(c->j, FINDING_T005) != NULL;
    for (size_t i = 0; rc == ERR_OK && !text_is_noise && !job_errors(c->j, ROW_IMAGE) && i < CASES; i++) {
        struct verify_text_result r;
        if (!reasonable(&seen[i], &r)) /* and nothing explains it */
            finding_add(c->j->f, FINDING_I011, list[i].name, "%s: \"%.120s\"", r.why,
                        seen[i].text ? seen[i].text : "");
    }
    return rc;
}

#define TIMED 8
/* Requests with pictures that no cache knows, one at a time, for the times of segments alone. */
static int time_segments(struct image_channel *x, struct err *e)
{
    struct channels *c = x->c;
    if (!c->day0 || x->answered == 0)
        return ERR_OK;
    for (unsigned i = 0; i < TIMED; i++) {
        struct conversation v = {.name = "timed", .prompt_tokens = -1, .max_tokens = 8};
        struct served s;
        const char *const parts[] = {made_picture(c->j->arena, 2 + i), "What do you see?", NULL};
        if (!parts[0])
            return err_set(e, ERR_NOMEM, "out of memory for pictures");
        int rc = conversation_make(&v, NULL, parts, c->j->arena, e);
        if (rc)
            return rc;
        served_ask(c, &v, false, c->j->arena, &s);
    }
    return ERR_OK;
}

/* ---- row */

static void image_row(struct image_channel *x)
{
    struct job *j = x->c->j;
    const bool known = x->known.known && x->known.known == x->known.right,
               equal = x->referenced && x->reference_equal;
    char what[420], of_reference[80] = "", told[96] = "nothing tells";
    int n = snprintf(what, sizeof(what), "%zu of %zu checks of itself", x->self_passed, x->self_n);
    if (x->served.ran)
        n += snprintf(what + n, sizeof(what) - (size_t)n, "; %zu of %zu conversations answered; %.200s",
                      x->answered, x->cases, x->served.words);
    if (x->known.known)
        snprintf(what + n, sizeof(what) - (size_t)n, "; %zu of %zu known answers", x->known.right,
                 x->known.known);
    if (x->served.n_held)
        snprintf(told, sizeof(told), "of %zu of %zu conversations alone log-probabilities tell",
                 x->served.n_held, x->cases);
    if (equal)
        snprintf(of_reference, sizeof(of_reference), "%zu steps equal the reference's; ", x->steps_equal);
    if (job_errors(j, ROW_IMAGE))
        job_row(j, ROW_IMAGE, ROW_FAILED, "see the findings; %s", what);
    else if (x->not_checked)
        job_row(j, ROW_IMAGE, ROW_NOT_CHECKED, "not checked: %s", x->not_checked);
    else if (x->cases == 0)
        job_row(j, ROW_IMAGE, ROW_NOT_CHECKED, "not checked: no conversation with pictures can be sent: %s",
                x->first_refused ? x->first_refused : "unknown");
    else if (x->answered < x->cases)
        job_row(j, ROW_IMAGE, ROW_NOT_CHECKED, "not checked: %zu of %zu conversations were not answered; %s",
                x->cases - x->answered, x->cases, x->first_unanswered);
    else if (known || (equal && x->served.n_held == x->cases))
        job_row(j, ROW_IMAGE, ROW_PASSED, "%s%s", of_reference, what);
    else if (equal) /* of the directory, and of the service it says nothing */
        job_row(j, ROW_IMAGE, ROW_NOT_CHECKED, "not checked: %s what the service makes of pictures; %s%s",
                told, of_reference, what);
    else if (x->self_n == 0)
        job_row(j, ROW_IMAGE, ROW_NOT_CHECKED, "not checked: %s; %s",
                x->c->blind ? x->c->blind : "nothing was computed", what);
    else
        job_row(j, ROW_IMAGE, ROW_SELF_CONSISTENT, "%s; %s (--picture-reference FILE)", what,
                x->referenced ? "the recorded conversation lacks features or logits of pictures"
                              : "no recorded conversation was given");
}

static int run_parts(struct image_channel *x, uint32_t base, struct err *e)
{
    struct conversation list[CASES];
    struct err why = {0};
    /* a service that has to do without pictures refuses them, and is right to */
    const bool asked = x->c->j->service_ready && !x->c->j->no_pictures[0];
    int rc = make_cases(x->c, list, e);
    if (!rc)
        rc = run_reference(x, e);
    json_key(x->c->w, "self");
    json_begin_array(x->c->w);
    if (!rc && !x->c->blind)
        rc = not_computed(x, check_two(x, &list[2], &why), &why, e);
    json_end_array(x->c->w);
    if (!rc && asked)
        rc = run_cases(x, list, base, e);
    if (!rc && asked)
        rc = time_segments(x, e);
    if (!rc && asked)
        rc = questions_run(x->c, &x->known, e);
    return rc;
}

int image_channel_run(struct channels *c, uint32_t base, struct err *e)
{
    struct image_channel x = {.c = c};
    struct job *j = c->j;
    if (!j->ckpt || !j->ckpt->config) {
        job_row(j, ROW_IMAGE, ROW_NOT_CHECKED,
                "not checked: config.json does not say whether the model takes images");
        return ERR_OK;
    }
    if (!model_takes_pictures(j->ckpt)) {
        job_row(j, ROW_IMAGE, ROW_NOT_APPLICABLE, "not applicable: text model");
        return ERR_OK;
    }
    if (!j->front || !j->spec)
        x.not_checked = "there is no description or tokenizer to take pictures with";
    else if (!j->spec->vision)
        x.not_checked = "the model takes images, and its tower is described only: this build does not run it";
    else if (!prompt_processor(j->front))
        x.not_checked = "the model takes images, and its image processor is not known here";
    else if (!j->service_ready)
        x.not_checked = "there is no service to ask";
    else if (j->no_pictures[0])
        x.not_checked = j->no_pictures;
    int rc = ERR_OK;
    json_key(c->w, "image");
    json_begin_object(c->w);
    if (!x.not_checked || (j->front && j->spec && j->spec->vision && prompt_processor(j->front)))
        rc = run_parts(&x, base, e);
    json_put_string(c->w, "served", x.served.ran ? x.served.words : NULL);
    json_end_object(c->w);
    if (rc)
        return rc;
    if (x.first_unanswered[0] && !job_errors(j, ROW_IMAGE)) /* else it follows from what was said */
        finding_add(j->f, FINDING_S003, "conversations with pictures",
                    "%zu of %zu got no answer; the first is %s", x.cases - x.answered, x.cases,
                    x.first_unanswered);
    if (x.known.first_unanswered[0] && !x.first_unanswered[0]) /* one cause, one finding */
        finding_add(j->f, FINDING_S003, "known answers", "a question got no answer: %s",
                    x.known.first_unanswered);
    image_row(&x);
    return ERR_OK;
}
