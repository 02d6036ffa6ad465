/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: a family tried on a checkpoint that it was not written for: which tensors it names, which it wants in
 * vain. Mends a missing key of config.json only in ways that leave a mark in the text.
 */
#include "preflight/draft_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_MENDS    24
#define MAX_PATTERNS 20000u

bool draft_collapse(const char *name, char *buf, size_t bytes)
{
    size_t at = 0;
    for (const char *p = name; *p;) {
        size_t n = strcspn(p, "."), digits = strspn(p, "0123456789");
        bool number = n > 0 && digits == n;
        if (at + n + 4 > bytes || (number && (n > 9 || (n > 1 && *p == '0'))))
            return false;
        memcpy(buf + at, number ? "%d" : p, number ? 2 : n);
        at += number ? 2 : n;
        p += n;
        if (*p)
            buf[at++] = *p++;
    }
    buf[at] = 0;
    return at > 0;
}

int draft_names_read(struct drafting *x, struct err *e)
{
    struct draft_names *d = &x->names;
    char name[DRAFT_NAME];
    d->of = arena_alloc_n(x->arena, x->c->n_tensors + 1, sizeof *d->of);
    if (!d->of)
        return err_set(e, ERR_NOMEM, "no memory for the patterns of names");
    for (size_t i = 0; i < x->c->n_tensors; i++) {
        uint32_t at = (uint32_t)d->n;
        d->of[i] = UINT32_MAX;
        if (!draft_collapse(x->c->tensors[i].name, name, sizeof name))
            continue;
        size_t n = strlen(name);
        if (!strmap_get(&d->map, name, n, &at)) {
            char *copy = arena_strdup(x->arena, name);
            if (d->n >= MAX_PATTERNS)
                continue;
            void *items = d->items;
            if (!copy || vec_reserve(&items, &d->capacity, d->n + 1, sizeof *d->items))
                return err_set(e, ERR_NOMEM, "no memory for the patterns of names");
            d->items = items;
            if (strmap_put(&d->map, copy, n, at, NULL) < 0)
                return err_set(e, ERR_NOMEM, "no memory for the patterns of names");
            d->items[d->n++] = (struct draft_pattern){.name = copy, .first = &x->c->tensors[i]};
        }
        d->items[at].n++;
        d->of[i] = at;
    }
    return ERR_OK;
}

void draft_names_release(struct draft_names *n)
{
    free(n->items);
    strmap_release(&n->map);
}

bool draft_config_int(const struct drafting *x, const char *key, int64_t *out)
{
    static const char *const parts[] = {"text_config", "llm_config", "language_config"};
    if (json_i64(json_get(x->c->config, key), out))
        return true;
    for (size_t i = 0; i < ARRAY_LEN(parts); i++)
        if (json_i64(json_get(json_get(x->c->config, parts[i]), key), out))
            return true;
    return false;
}

void draft_note(struct draft_trial *t, const char *fmt, ...)
{
    char text[300];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (t->n_notes < DRAFT_MAX_NOTES && (t->notes[t->n_notes] = strdup(text)) != NULL)
        t->n_notes++;
}

void draft_trial_release(struct draft_trial *t)
{
    strbuf_release(&t->text);
    strbuf_release(&t->unread);
    strmap_release(&t->absent_map);
    free(t->claims);
    free(t->absent);
    for (size_t i = 0; i < t->n_notes; i++)
        free(t->notes[i]);
    *t = (struct draft_trial){0};
}

/* ---- measuring */

struct measuring {
    struct drafting *x;
    struct draft_trial *t;
    bool failed;
};

static void add_absent(struct measuring *m, const struct spec_tensor *s)
{
    char name[DRAFT_NAME];
    struct draft_trial *t = m->t;
    uint32_t at = (uint32_t)t->n_absent;
    if (!draft_collapse(s->name, name, sizeof name))
        return;
    if (!strmap_get(&t->absent_map, name, strlen(name), &at)) {
        char *copy = arena_strdup(m->x->arena, name);
        void *items = t->absent;
        if (!copy || vec_reserve(&items, &t->absent_capacity, t->n_absent + 1, sizeof *t->absent)) {
            m->failed = true;
            return;
        }
        t->absent = items;
        if (strmap_put(&t->absent_map, copy, strlen(copy), at, NULL) < 0) {
            m->failed = true;
            return;
        }
        struct draft_absent *a = &t->absent[t->n_absent++];
        *a = (struct draft_absent){.name = copy, .n_dims = s->n_dims};
        memcpy(a->dims, s->dims, sizeof a->dims);
    }
    t->absent[at].n++;
}

static int measure_one(void *ctx, const struct spec_tensor *s)
{
    struct measuring *m = ctx;
    if (!s->tensor) {
        if (s->weight->group != GROUP_MTP)
            add_absent(m, s);
        return m->failed;
    }
    size_t at = (size_t)(s->tensor - m->x->c->tensors);
    bool same = s->any_shape || s->n_dims == s->tensor->n_dims;
    for (uint32_t i = 0; same && !s->any_shape && i < s->n_dims; i++)
        same = s->dims[i] == s->tensor->dims[i];
    m->t->n_claimed += m->t->claims[at] == CLAIM_NONE;
    m->t->claims[at] = same ? CLAIM_WHOLE : CLAIM_SHAPE;
    return 0;
}

static void add_scores(struct drafting *x, struct draft_trial *t)
{
    double tensors = 0, patterns = 0, wanted = 0;
    struct draft_names *d = &x->names;
    for (size_t i = 0; i < d->n; i++)
        d->items[i].n_claimed = d->items[i].n_misshapen = 0;
    for (size_t i = 0; i < x->c->n_tensors; i++) {
        if (d->of[i] == UINT32_MAX)
            continue;
        d->items[d->of[i]].n_claimed += t->claims[i] != CLAIM_NONE;
        d->items[d->of[i]].n_misshapen += t->claims[i] == CLAIM_SHAPE;
    }
    for (size_t i = 0; i < d->n; i++) {
        double n = (double)d->items[i].n_claimed - 0.5 * (double)d->items[i].n_misshapen;
        patterns += n / (double)d->items[i].n;
        tensors += n;
        wanted += d->items[i].n_claimed > 0;
    }
    if (x->c->n_tensors && d->n)
        t->alike = 0.5 * tensors / (double)x->c->n_tensors + 0.5 * patterns / (double)d->n;
    wanted += (double)t->n_absent;
    t->score = t->alike - (wanted > 0 ? 0.25 * (double)t->n_absent / wanted : 0);
}

/* The key or value that a finding is about, or why nothing came of the file. */
static void tell_why(struct draft_trial *t, const struct findings *f)
{
    for (size_t i = 0; i < f->n; i++) {
        const struct finding *g = &f->items[i];
        if (g->severity != SEVERITY_ERROR)
            continue;
        if (g->id == FINDING_C004)
            snprintf(t->why, sizeof t->why, "config.json has no %s", g->subject);
        else
            snprintf(t->why, sizeof t->why, "%s", g->evidence);
        return;
    }
}

static int run_text(struct drafting *x, struct draft_trial *t, struct findings *f, struct spec **s,
                    struct err *e)
{
    const struct arch_file file = {t->file, strbuf_cstr(&t->text), t->text.len};
    const struct spec_options so = {.arch = &file};
    x->n_trials++;
    if (strbuf_failed(&t->text))
        return err_set(e, ERR_NOMEM, "no memory for the text of a draft");
    return spec_open(s, x->c, &so, f, NULL, e);
}

int draft_measure(struct drafting *x, struct draft_trial *t, struct err *e)
{
    struct measuring m = {.x = x, .t = t};
    struct findings f;
    struct spec *s = NULL;
    findings_init(&f, NULL);
    strmap_release(&t->absent_map);
    t->absent_map = (struct strmap){0};
    t->n_absent = 0;
    t->n_claimed = 0;
    t->loaded = false;
    if (!t->claims)
        t->claims = malloc(x->c->n_tensors + 1);
    int rc =
        t->claims ? run_text(x, t, &f, &s, e) : err_set(e, ERR_NOMEM, "no memory for the claims of a draft");
    if (!rc && s) {
        memset(t->claims, CLAIM_NONE, x->c->n_tensors + 1);
        (void)spec_physical(s, x->c, measure_one, &m);
        t->loaded = true;
        strbuf_clear(&t->unread);
        for (size_t i = 0; i < s->n_unread && t->unread.len < 1000; i++)
            if (draft_plain(s->unread_keys[i]))
                strbuf_printf(&t->unread, " %s", s->unread_keys[i]);
        add_scores(x, t);
        if (m.failed)
            rc = err_set(e, ERR_NOMEM, "no memory for the names of a draft");
    } else if (!rc) {
        tell_why(t, &f);
    }
    spec_close(s);
    findings_release(&f);
    return rc;
}

/* ---- keys that config.json lacks */

static const char *last_part(const char *key)
{
    const char *dot = strrchr(key, '.');
    return dot ? dot + 1 : key;
}

/* The key of an object that is most like this one: another word for it, or a small change of letters. */
static void look_for_key(const struct json *in, const char *key, const char **best, unsigned *distance)
{
    for (uint32_t i = 0; in && in->type == JSON_OBJECT && i < in->n; i++) {
        const struct json_member *m = &in->as.members[i];
        bool number = m->value.type == JSON_INT || m->value.type == JSON_DOUBLE;
        unsigned d = number && draft_plain(m->key) ? draft_distance(m->key, key) : 99;
        if (d < *distance && d <= strlen(key) / 4) {
            *best = m->key;
            *distance = d;
        }
    }
}

/* The text's part of config.json is taken for the whole, where that part has the key. */
static bool mend_level(struct drafting *x, struct draft_trial *t, const char *key)
{
    static const char *const parts[] = {"text_config", "llm_config", "language_config"};
    for (size_t i = 0; i < ARRAY_LEN(parts) && !t->nested; i++) {
        if (!json_get(json_get(x->c->config, parts[i]), key) || !draft_descend(&t->text, parts[i]))
            continue;
        t->nested = true;
        draft_note(t, "the keys of the text stand in %s", parts[i]);
        return true;
    }
    return false;
}

static bool mend_key(struct drafting *x, struct draft_trial *t, const char *subject)
{
    const char *key = last_part(subject), *other = NULL;
    unsigned distance = 99;
    if (!draft_plain(key))
        return false;
    if (mend_level(x, t, key))
        return true;
    look_for_key(x->c->config, key, &other, &distance);
    look_for_key(json_get(x->c->config, "text_config"), key, &other, &distance);
    if (other && strcmp(other, key) != 0 && draft_replace_key(&t->text, key, other)) {
        draft_note(t, "config.json has no %s; its %s is read in its place", key, other);
        return true;
    }
    if (!draft_default_key(&t->text, key))
        return false;
    draft_note(t, "config.json has no %s; a default stands in for it", key);
    return true;
}

/* The file's own refusals of values are switched off, once and visibly. */
static bool silence(struct draft_trial *t, const char *subject)
{
    struct strbuf b = STRBUF_INIT;
    if (t->silenced)
        return false;
    t->silenced = true;
    strbuf_printf(&b,
                  "local function unsupported() end -- " DRAFT_MARK
                  "the family refuses this model's %s and perhaps more\n",
                  draft_plain(subject) ? subject : "values");
    strbuf_add(&b, t->text.data, t->text.len);
    strbuf_release(&t->text);
    t->text = b;
    draft_note(t, "the family refuses this model's %s: its refusals are switched off",
               draft_plain(subject) ? subject : "values");
    return true;
}

/* One finding of why it does not run, mended. */
static bool mend(struct drafting *x, struct draft_trial *t, const struct findings *f)
{
    for (size_t i = 0; i < f->n; i++) {
        if (f->items[i].id == FINDING_C004)
            return mend_key(x, t, f->items[i].subject);
        if (f->items[i].id == FINDING_C006)
            return silence(t, f->items[i].subject);
    }
    return false;
}

int draft_try(struct drafting *x, const struct arch_file *file, struct draft_trial *t, struct err *e)
{
    *t = (struct draft_trial){.file = file->name};
    strbuf_add(&t->text, file->text, file->n);
    int rc = ERR_OK;
    for (unsigned i = 0; i < MAX_MENDS && !rc; i++) {
        struct findings f;
        struct spec *s = NULL;
        findings_init(&f, NULL);
        rc = run_text(x, t, &f, &s, e);
        bool again = !rc && !s && mend(x, t, &f);
        if (!rc && !s && !again)
            tell_why(t, &f);
        spec_close(s);
        findings_release(&f);
        if (s)
            return draft_measure(x, t, e);
        if (!again)
            break;
    }
    return rc;
}
