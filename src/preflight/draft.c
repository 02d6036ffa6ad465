/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the drafting of an architecture file for a model that nobody described: every known family is tried,
 * the nearest few are fitted, the best becomes the draft, and what is left is listed. Refuses to hand out a
 * file that does not load, and calls nothing in it known that was only guessed.
 */
#include "preflight/draft_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/thread.h"

#define FITTED       5 /* families that are fitted */
#define NEAR         0.5
#define MAX_SECONDS  20
#define NAME_BONUS   0.02 /* of a score, for a name that is alike */
#define MAX_REPORTED 24   /* patterns in notes */

static const char *first_architecture(const struct ckpt *c)
{
    const char *s = json_string(json_at(json_get(c->config, "architectures"), 0));
    return s ? s : "";
}

static bool left_out(const struct preflight_draft_options *o, const char *file)
{
    for (size_t i = 0; o && i < o->n_without; i++)
        if (strcmp(o->without[i], file) == 0)
            return true;
    return false;
}

static void most_usual_dtype(struct drafting *x)
{
    uint64_t counts[64] = {0}, most = 0;
    for (size_t i = 0; i < x->c->n_tensors; i++) {
        uint32_t d = x->c->tensors[i].dtype;
        if (d > 0 && d < ARRAY_LEN(counts) && ++counts[d] > most) {
            most = counts[d];
            x->usual_dtype = d;
        }
    }
}

static double rank_of(const struct drafting *x, const struct draft_trial *t)
{
    char name[64];
    snprintf(name, sizeof name, "%.60s", t->file);
    name[strcspn(name, ".")] = 0;
    unsigned d = str_distance(name, x->model_type);
    return t->score + t->promise + NAME_BONUS * (1.0 - (double)(d < 64 ? d : 64) / 64.0);
}

/* Keeps the nearest few in order; t is taken. */
static void keep(const struct drafting *x, struct draft_trial *best, struct draft_trial *t)
{
    if (!t->loaded) {
        draft_trial_release(t);
        return;
    }
    for (size_t i = 0; i < FITTED; i++) {
        if (best[i].loaded && rank_of(x, &best[i]) >= rank_of(x, t))
            continue;
        struct draft_trial moved = best[i];
        best[i] = *t;
        *t = moved;
    }
    draft_trial_release(t);
}

static int try_families(struct drafting *x, struct preflight_draft *out, struct draft_trial *best,
                        struct err *e)
{
    const struct arch_file *files;
    size_t n = spec_arch_files(&files);
    int rc = ERR_OK;
    out->tried = arena_alloc_n(&out->arena, n + 1, sizeof *out->tried);
    if (!out->tried)
        return err_set(e, ERR_NOMEM, "no memory for a draft");
    for (size_t i = 0; i < n && !rc; i++) {
        struct draft_trial t = {0};
        if (left_out(x->o, files[i].name))
            continue;
        rc = draft_try(x, &files[i], &t, e);
        struct preflight_draft_family *f = &out->tried[out->n_tried++];
        *f = (struct preflight_draft_family){
            .file = files[i].name, .loaded = t.loaded, .claimed = t.n_claimed, .alike = t.alike};
        f->why = t.loaded ? NULL : arena_strdup(&out->arena, t.why);
        if (rc) {
            draft_trial_release(&t);
        } else {
            draft_promise(x, &t);
            keep(x, best, &t);
        }
    }
    for (size_t i = 0; i < FITTED && !rc; i++)
        if (best[i].loaded)
            rc = draft_search(x, &best[i], e);
    for (size_t i = 1; i < FITTED && !rc; i++) {
        if (best[i].loaded && best[i].score > best[0].score) {
            struct draft_trial moved = best[0];
            best[0] = best[i];
            best[i] = moved;
        }
    }
    return rc;
}

/* ---- the file */

/* What differs and no edit could mend, as notes. */
static void note_rest(struct drafting *x, struct draft_trial *t, struct preflight_draft *out)
{
    unsigned n = 0;
    out->missing = arena_alloc_n(&out->arena, t->n_absent + 1, sizeof *out->missing);
    for (size_t i = 0; i < t->n_absent; i++) {
        if (n++ < MAX_REPORTED && draft_plain(t->absent[i].name))
            draft_note(t, DRAFT_MARK "the family has %s, this model has not (%llu)", t->absent[i].name,
                       (unsigned long long)t->absent[i].n);
        if (out->missing)
            out->missing[out->n_missing++] = t->absent[i].name;
    }
    out->misshapen = arena_alloc_n(&out->arena, x->names.n + 1, sizeof *out->misshapen);
    for (size_t i = 0; i < x->names.n; i++) {
        const struct draft_pattern *p = &x->names.items[i];
        char shape[120];
        if (p->n_misshapen == 0)
            continue;
        if (n++ < MAX_REPORTED && draft_plain(p->name))
            draft_note(t, DRAFT_MARK "%s is %s here, of another shape in the family", p->name,
                       shape_format(p->first->dims, p->first->n_dims, shape, sizeof shape));
        if (out->misshapen)
            out->misshapen[out->n_misshapen++] = p->name;
    }
}

static int from_family(struct drafting *x, struct draft_trial *t, struct preflight_draft *out,
                       struct strbuf *text, struct err *e)
{
    struct strbuf extra = STRBUF_INIT;
    int rc = draft_measure(x, t, e);
    out->by_family = t->n_claimed;
    if (!rc) {
        note_rest(x, t, out);
        rc = draft_extra(x, t->claims, t->file, &extra, &out->listed, e);
    }
    if (!rc && !draft_assemble(x, t, strbuf_cstr(&extra), text))
        rc = err_set(e, ERR_FORMAT, "%s cannot be taken as the start of a draft", t->file);
    strbuf_release(&extra);
    return rc;
}

/* Runs what will be written; the result says what it names. */
static int prove(struct drafting *x, struct strbuf *text, struct preflight_draft *out, bool *loads,
                 struct err *e)
{
    struct draft_trial t = {.file = "draft"};
    strbuf_add(&t.text, strbuf_cstr(text), text->len);
    int rc = draft_measure(x, &t, e);
    *loads = t.loaded;
    if (!rc && !t.loaded)
        err_set(e, ERR_FORMAT, "the draft does not load: %s", t.why);
    out->claimed = t.loaded ? t.n_claimed : 0;
    out->n_unclaimed = 0;
    out->unclaimed = arena_alloc_n(&out->arena, x->names.n + 1, sizeof *out->unclaimed);
    for (size_t i = 0; out->unclaimed && t.loaded && i < x->names.n; i++)
        if (x->names.items[i].n_claimed < x->names.items[i].n)
            out->unclaimed[out->n_unclaimed++] = x->names.items[i].name;
    if (!rc && !out->unclaimed)
        rc = err_set(e, ERR_NOMEM, "no memory for a draft");
    draft_trial_release(&t);
    return rc;
}

static int write_text(struct drafting *x, struct draft_trial *best, struct preflight_draft *out,
                      struct err *e)
{
    struct strbuf text = STRBUF_INIT;
    bool loads = false;
    int rc = ERR_OK;
    if (best->loaded && best->alike >= NEAR) {
        out->nearest = arena_strdup(&out->arena, best->file);
        rc = from_family(x, best, out, &text, e);
        if (!rc)
            rc = prove(x, &text, out, &loads, e);
    }
    if (!loads && rc != ERR_NOMEM) {
        strbuf_release(&text);
        out->nearest = NULL;
        out->by_family = out->listed = 0;
        out->n_missing = out->n_misshapen = 0;
        rc = draft_scratch(x, &text, &out->listed, e);
        if (!rc)
            rc = prove(x, &text, out, &loads, e);
        if (!rc && !loads)
            rc = ERR_FORMAT; /* prove() has said why */
    }
    if (!rc) {
        out->n = text.len;
        out->text = arena_strndup(&out->arena, strbuf_cstr(&text), text.len);
        rc = out->text ? ERR_OK : err_set(e, ERR_NOMEM, "no memory for a draft");
    }
    strbuf_release(&text);
    return rc;
}

int preflight_draft(struct ckpt *c, const struct preflight_draft_options *o, struct preflight_draft *out,
                    struct err *e)
{
    *out = (struct preflight_draft){.total = c->n_tensors};
    arena_init(&out->arena, NULL, MEM_SPEC);
    struct drafting x = {.c = c, .o = o, .arena = &out->arena, .architecture = first_architecture(c)};
    struct draft_trial best[FITTED] = {{0}};
    const char *type = json_string(json_get(c->config, "model_type"));
    if (!c->config || c->config->type != JSON_OBJECT || c->n_tensors == 0)
        return err_set(e, ERR_UNSUPPORTED, "a draft needs config.json and the headers of the weights; %s",
                       c->n_tensors ? "there is no config.json" : "there are no tensors");
    x.model_type = type ? type : "";
    x.deadline_ns = clock_ns() + (uint64_t)(o && o->max_seconds ? o->max_seconds : MAX_SECONDS) * 1000000000u;
    (void)draft_config_int(&x, "hidden_size", &x.hidden);
    most_usual_dtype(&x);
    int rc = draft_names_read(&x, e);
    if (!rc)
        rc = try_families(&x, out, best, e);
    if (!rc)
        rc = write_text(&x, &best[0], out, e);
    for (size_t i = 0; i < FITTED; i++)
        draft_trial_release(&best[i]);
    draft_names_release(&x.names);
    return rc;
}

void preflight_draft_release(struct preflight_draft *d)
{
    arena_release(&d->arena);
    *d = (struct preflight_draft){0};
}

static void put_list(struct json_writer *w, const char *key, const char *const *items, size_t n)
{
    json_key(w, key);
    json_begin_array(w);
    for (size_t i = 0; i < n; i++)
        json_write_string(w, items[i]);
    json_end_array(w);
}

void preflight_write_draft(const struct preflight_draft *d, const char *file, struct json_writer *w)
{
    json_begin_object(w);
    json_put_string(w, "nearest", d->nearest);
    json_put_u64(w, "claimed", d->claimed);
    json_put_u64(w, "total", d->total);
    json_put_u64(w, "by_family", d->by_family);
    json_put_u64(w, "listed", d->listed);
    put_list(w, "unclaimed", d->unclaimed, d->n_unclaimed);
    put_list(w, "missing", d->missing, d->n_missing);
    put_list(w, "other_shape", d->misshapen, d->n_misshapen);
    json_key(w, "tried");
    json_begin_array(w);
    for (size_t i = 0; i < d->n_tried; i++) {
        json_begin_object(w);
        json_put_string(w, "file", d->tried[i].file);
        json_put_f64(w, "alike", d->tried[i].alike);
        json_put_string(w, "why_not", d->tried[i].why);
        json_end_object(w);
    }
    json_end_array(w);
    json_put_string(w, "file", file);
    json_end_object(w);
}
