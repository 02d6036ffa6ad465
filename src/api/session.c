/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening and closing a model on a device, and generating for one request. The sizes of the engine are
 * decided here: context, sequences, step tokens and pages, cut down to what the memory holds and refused when
 * not even one request fits.
 */
#include "api/api.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/thread.h"
#include "host/host.h"
#include "preflight/preflight.h"

#define DEFAULT_CONTEXT     4096
#define DEFAULT_SEQS        32
#define DEFAULT_STEP_TOKENS 256

static int first_finding(const struct findings *f, struct err *e)
{
    for (size_t i = 0; i < f->n; i++)
        if (f->items[i].severity == SEVERITY_ERROR && !f->items[i].waived) {
            err_set(e, ERR_MISMATCH, "%s %s: %s: %s", finding_code(f->items[i].id),
                    finding_name(f->items[i].id), f->items[i].subject, f->items[i].evidence);
            err_hint(e, "%s", f->items[i].remedy);
            return ERR_MISMATCH;
        }
    return err_set(e, ERR_MISMATCH, "the model cannot be used");
}

static int memory_budget(const struct session_options *o, uint64_t *out, struct err *e)
{
    *out = o->memory_bytes;
    if (*out)
        return ERR_OK;
    struct host *h = NULL;
    int rc = host_open(&h, o->model_dir, e);
    if (rc != ERR_OK)
        return rc;
    *out = h->memory_available;
    host_close(h);
    return ERR_OK;
}

static uint32_t choose_context(const struct spec *s, uint32_t asked)
{
    int64_t limit = s->max_positions > 0 ? s->max_positions : DEFAULT_CONTEXT;
    if (asked)
        return asked < limit ? asked : (uint32_t)limit;
    return limit < DEFAULT_CONTEXT ? (uint32_t)limit : DEFAULT_CONTEXT;
}

/* Largest KV capacity, halving from what was wanted down to one request's context, that the budget holds;
 * s->memory.fits says whether there is one. */
static int fit_pages(struct session *s, struct plan_options *p, uint64_t wanted, struct err *e)
{
    for (p->context_tokens = wanted;; p->context_tokens /= 2) {
        if (p->context_tokens < s->context)
            p->context_tokens = s->context;
        int rc = plan_single(s->spec, p, &s->memory, e);
        if (rc != ERR_OK || s->memory.fits || p->context_tokens == s->context)
            return rc;
    }
}

static int fit_memory(struct session *s, const struct session_options *o, struct plan_options *p,
                      struct err *e)
{
    uint64_t wanted = o->kv_tokens ? o->kv_tokens : (uint64_t)p->max_seqs * s->context;
    if (wanted < s->context)
        wanted = s->context;
    int rc = fit_pages(s, p, wanted, e);
    if (rc == ERR_OK && !s->memory.fits && p->snapshots) {
        p->snapshots = 0; /* rather than to refuse the model */
        rc = fit_pages(s, p, wanted, e);
    }
    if (rc != ERR_OK || s->memory.fits)
        return rc;
    char need[32], have[32];
    err_set(e, ERR_NOMEM, "the model needs %s for one request of %u tokens, this machine has %s",
            format_bytes(s->memory.total, need, sizeof need), s->context,
            format_bytes(p->memory_bytes, have, sizeof have));
    err_hint(e, "use a machine with more memory or a shorter --context");
    return ERR_NOMEM;
}

/* Describes the model, with the inputs that pictures come through where `images` says so. */
static int describe(struct session *s, const struct session_options *o, bool images, struct findings *f,
                    struct d0 *d0, struct err *e)
{
    struct spec_options so = {
        .arch_path = o->arch_path, .kv_dtype = o->kv_dtype, .activations = o->activations, .images = images};
    spec_close(s->spec);
    s->spec = NULL;
    return spec_open(&s->spec, s->ckpt, &so, f, d0, e);
}

static int open_model(struct session *s, const struct session_options *o, struct findings *f, struct d0 *d0,
                      struct err *e)
{
    int rc = ckpt_open(&s->ckpt, o->model_dir, f, d0, e);
    if (rc != ERR_OK)
        return rc;
    rc = describe(s, o, o->images != SESSION_IMAGES_OFF, f, d0, e);
    if (rc == ERR_OK && s->spec && dev_name_is_cpu(o->device))
        rc = preflight_kernels(s->spec, true, f, e);
    if (rc != ERR_OK)
        return rc;
    return s->spec && !findings_failed(f) ? ERR_OK : first_finding(f, e);
}

static int open_front(struct session *s, struct findings *f, struct d0 *d0, struct err *e)
{
    int rc = prompt_open(&s->front, s->ckpt, s->spec, f, d0, e);
    if (rc != ERR_OK)
        return rc;
    return s->front ? ERR_OK : first_finding(f, e);
}

/* ---- pictures ------------------------------------------------------------------------------------------ */

static bool has_places(const struct graph *g)
{
    for (uint32_t i = 0; i < g->n_values; i++)
        if (g->values[i].kind == D0_VALUE_INPUT && g->values[i].role == D0_INPUT_PLACES)
            return true;
    return false;
}

/* Takes pictures, with p->max_patches, or describes the text without them. */
static int settle_pictures(struct session *s, const struct session_options *o, struct plan_options *p,
                           struct d0 *d0, struct err *e)
{
    struct err why = {0};
    struct findings again; /* the same as before */
    if (o->images == SESSION_IMAGES_OFF)
        return ERR_OK;
    const struct plan_wishes wishes = {o->max_patches, o->n_feature_rows, o->picture_bytes};
    struct picture_shape shape;
    int rc = preflight_tower(s->spec, &s->dev, &why);
    if (rc == ERR_OK)
        rc = picture_shape(s->spec->vision, &shape, &why);
    if (rc == ERR_OK)
        rc = plan_pictures(s->spec, s->context, &wishes, p, &s->memory, &why);
    if (rc == ERR_OK) {
        s->picture_bytes = p->waiting_bytes;
        return ERR_OK;
    }
    if (o->images == SESSION_IMAGES_ON || (rc != ERR_UNSUPPORTED && rc != ERR_NOMEM)) {
        if (e)
            *e = why;
        return rc;
    }
    snprintf(s->no_pictures, sizeof s->no_pictures, "%.255s", why.message);
    p->max_patches = p->max_picture_rows = p->n_feature_rows = 0;
    p->waiting_bytes = 0;
    if (!s->spec->vision && !has_places(s->spec->graph))
        return ERR_OK; /* it is so already */
    findings_init(&again, &d0->mem);
    rc = describe(s, o, false, &again, d0, e);
    if (rc == ERR_OK && !s->spec)
        rc = first_finding(&again, e);
    findings_release(&again);
    return rc;
}

/* ---- engine -------------------------------------------------------------------------------------------- */

static int open_device(struct session *s, const struct session_options *o, struct plan_options *p,
                       struct d0 *d0, struct err *e)
{
    struct dev_options dev = {
        .name = o->device ? o->device : "cpu", .isa = o->isa, .n_threads = o->n_threads, .mem = &d0->mem};
    *p = (struct plan_options){.max_seqs = o->max_seqs ? o->max_seqs : DEFAULT_SEQS,
                               .max_step_tokens = o->max_tokens ? o->max_tokens : DEFAULT_STEP_TOKENS};
    if (p->max_step_tokens < p->max_seqs)
        p->max_step_tokens = p->max_seqs;
    p->max_rows = p->max_seqs;
    s->context = choose_context(s->spec, o->context);
    p->request_tokens = s->context;
    if (s->spec->state_bytes && graph_pages_shareable(s->spec->graph))
        p->snapshots = o->n_snapshots == UINT32_MAX ? p->max_seqs : o->n_snapshots;
    int rc = fusions_parse(o->fuse, &p->fusions, e);
    if (rc == ERR_OK)
        rc = dev_open(&s->dev, &dev, e);
    if (rc != ERR_OK)
        return rc;
    s->dev_open = true;
    p->device_need = dev_scratch_plan;
    p->device = &s->dev;
    return memory_budget(o, &p->memory_bytes, e);
}

static int open_engine(struct session *s, const struct session_options *o, struct plan_options *p,
                       struct d0 *d0, struct err *e)
{
    struct load_options load = {.spec = s->spec, .progress = o->progress};
    const struct spec_tower *t = &s->spec->tower;
    int rc = fit_memory(s, o, p, e);
    if (rc == ERR_OK)
        rc = weights_load(&s->weights, s->spec->graph, s->ckpt, &s->dev, &load, e);
    load.progress = NULL; /* it counts one graph */
    if (rc == ERR_OK && p->max_patches)
        rc = weights_load(&s->tower_weights, s->spec->vision, s->ckpt, &s->dev, &load, e);
    if (rc != ERR_OK)
        return rc;
    const struct engine_tower tower = {.graph = s->spec->vision,
                                       .weights = s->tower_weights,
                                       .features = t->features,
                                       .n_features = t->n_features};
    uint32_t page = s->spec->page_tokens;
    struct engine_options eo = {
        .fusions = p->fusions, .tower = p->max_patches ? &tower : NULL, .mem = &d0->mem};
    eo.limits = (struct engine_limits){.max_tokens = p->max_step_tokens,
                                       .max_seqs = p->max_seqs,
                                       .max_rows = p->max_rows,
                                       .max_pages_per_seq = (s->context + page - 1) / page,
                                       .n_pages = (uint32_t)s->memory.kv_pages,
                                       .page_tokens = page,
                                       .n_snapshots = p->snapshots,
                                       .vocab = (uint32_t)s->spec->vocab_size,
                                       .n_feature_rows = p->n_feature_rows,
                                       .max_patches = p->max_patches,
                                       .max_picture_rows = p->max_picture_rows};
    return engine_open(&s->engine, &s->dev, s->spec->graph, s->weights, &eo, e);
}

int session_open(struct session *s, const struct session_options *o, struct findings *f, struct d0 *d0,
                 struct err *e)
{
    memset(s, 0, sizeof *s);
    struct plan_options p;
    int rc = open_model(s, o, f, d0, e);
    if (rc == ERR_OK)
        rc = open_device(s, o, &p, d0, e);
    if (rc == ERR_OK)
        rc = settle_pictures(s, o, &p, d0, e);
    if (rc == ERR_OK)
        rc = open_front(s, f, d0, e);
    return rc == ERR_OK ? open_engine(s, o, &p, d0, e) : rc;
}

void session_close(struct session *s)
{
    engine_close(s->engine);
    weights_free(s->weights);
    weights_free(s->tower_weights);
    if (s->dev_open)
        dev_close(&s->dev);
    prompt_close(s->front);
    spec_close(s->spec);
    ckpt_close(s->ckpt);
    memset(s, 0, sizeof *s);
}

/* ---- generation ---------------------------------------------------------------------------------------- */

struct generation {
    struct detokenizer detokenizer;
    struct strbuf text;
    generate_text_fn on_text;
    void *context;
    struct ids *out;
    enum sched_finish finish;
    uint32_t n_generated;
    uint64_t first_token_ns;
    char why[256];
    bool failed_memory;
    const int32_t *stop_ids;
    uint32_t n_stop;
    bool ignore_stop;
};

static bool ends_text(const struct generation *g, int32_t id)
{
    for (uint32_t i = 0; i < g->n_stop && !g->ignore_stop; i++)
        if (g->stop_ids[i] == id)
            return true;
    return false;
}

static void on_event(void *context, const struct sched_event *event)
{
    struct generation *g = context;
    if (event->token >= 0) {
        if (!g->first_token_ns)
            g->first_token_ns = clock_ns();
        if (g->out) {
            if (vec_reserve((void **)&g->out->data, &g->out->capacity, g->out->n + 1, sizeof(int32_t)) ==
                ERR_OK)
                g->out->data[g->out->n++] = event->token;
            else
                g->failed_memory = true;
        }
        if (g->on_text && !ends_text(g, event->token)) {
            strbuf_clear(&g->text);
            if (detokenizer_feed(&g->detokenizer, event->token, &g->text, NULL) != ERR_OK ||
                strbuf_failed(&g->text))
                g->failed_memory = true;
            else if (g->text.len)
                g->on_text(g->context, g->text.data, g->text.len);
        }
    }
    g->n_generated = event->n_generated;
    g->finish = event->finish;
    if (event->finish == SCHED_FAILED)
        snprintf(g->why, sizeof g->why, "%s", event->why ? event->why : "the step failed");
}

static void flush_text(struct generation *g)
{
    strbuf_clear(&g->text);
    if (g->on_text && detokenizer_finish(&g->detokenizer, &g->text, NULL) == ERR_OK && g->text.len)
        g->on_text(g->context, g->text.data, g->text.len);
    strbuf_release(&g->text);
}

/* Pictures that are due, one after the other; a failure ends the request and is told by its event. */
static void encode_pictures(struct session *s, struct sched *sched, struct generation *g)
{
    struct sched_job job;
    while (sched_picture(sched, &job)) {
        struct err e = {0};
        int rc = engine_picture(s->engine, job.message, job.bytes, job.first_row, &e);
        sched_picture_done(sched, rc, e.message, on_event, g);
    }
}

static int run_steps(struct session *s, struct sched *sched, struct generation *g, struct err *e)
{
    const struct engine_limits *l = engine_limits(s->engine);
    size_t plan_cap = step_plan_bytes(l), result_cap = engine_result_bytes(l, false);
    void *plan_buf = malloc(plan_cap), *result = malloc(result_cap);
    int rc = plan_buf && result ? ERR_OK : err_set(e, ERR_NOMEM, "no memory for step messages");
    while (rc == ERR_OK && g->finish == SCHED_RUNNING) {
        struct step_plan *plan = NULL;
        encode_pictures(s, sched, g);
        if (g->finish != SCHED_RUNNING)
            break;
        rc = sched_plan(sched, plan_buf, plan_cap, &plan, e);
        if (rc == ERR_OK && !plan)
            rc = err_set(e, ERR_DEVICE, "the scheduler has no step for a waiting request");
        if (rc == ERR_OK)
            rc = engine_step(s->engine, plan, plan->bytes, result, result_cap, e);
        if (rc == ERR_OK)
            rc = sched_apply(sched, result, ((struct step_result *)result)->bytes, on_event, g, e);
    }
    free(plan_buf);
    free(result);
    return rc;
}

static struct sched_request request_of(const struct session *s, const int32_t *prompt, size_t n_prompt,
                                       const struct generate_options *o)
{
    struct sched_request request = {.id = 1,
                                    .prompt = prompt,
                                    .n_prompt = (uint32_t)n_prompt,
                                    .max_new = o->max_new,
                                    .stop_ids = s->front->stop_ids,
                                    .n_stop = s->front->n_stop,
                                    .ignore_stop = o->ignore_stop,
                                    .sampling = o->sampling};
    if (o->pictures) {
        request.images = o->pictures->images;
        request.n_images = o->pictures->n_images;
        request.feature_of = o->pictures->feature_of;
        request.places = o->pictures->places;
        request.spans = o->pictures->spans;
        request.place_delta = o->pictures->place_delta;
    }
    if (!request.sampling.vocab_limit)
        request.sampling.vocab_limit = s->front->vocab_limit;
    return request;
}

int session_generate(struct session *s, const int32_t *prompt, size_t n_prompt,
                     const struct generate_options *o, generate_text_fn on_text, void *context,
                     struct ids *out, struct generate_result *result, struct err *e)
{
    struct sched *sched = NULL;
    struct sched_options so = {
        .limits = *engine_limits(s->engine), .max_context = s->context, .max_waiting = 1};
    int rc = sched_open(&sched, &so, e);
    if (rc != ERR_OK)
        return rc;
    struct generation g = {.on_text = on_text,
                           .context = context,
                           .out = out,
                           .finish = SCHED_RUNNING,
                           .stop_ids = s->front->stop_ids,
                           .n_stop = s->front->n_stop,
                           .ignore_stop = o->ignore_stop};
    detokenizer_init(&g.detokenizer, s->front->tokenizer, false);
    rc = detokenizer_skip(&g.detokenizer, prompt, n_prompt, e); /* the answer continues the prompt */
    if (rc != ERR_OK) {
        sched_close(sched);
        return rc;
    }
    const struct sched_request request = request_of(s, prompt, n_prompt, o);
    uint64_t begin = clock_ns();
    rc = sched_submit(sched, &request, e);
    if (rc == ERR_OK)
        rc = run_steps(s, sched, &g, e);
    uint64_t end = clock_ns();
    flush_text(&g);
    if (rc == ERR_OK && g.finish == SCHED_FAILED)
        rc = err_set(e, ERR_DEVICE, "%s", g.why);
    if (rc == ERR_OK && g.failed_memory)
        rc = err_set(e, ERR_NOMEM, "no memory for the answer");
    if (rc == ERR_OK && result) {
        uint64_t first = g.first_token_ns ? g.first_token_ns : end;
        *result = (struct generate_result){.n_prompt = (uint32_t)n_prompt,
                                           .n_generated = g.n_generated,
                                           .finish = sched_finish_name(g.finish),
                                           .prefill_seconds = (double)(first - begin) * 1e-9,
                                           .decode_seconds = (double)(end - first) * 1e-9};
    }
    sched_close(sched);
    return rc;
}
