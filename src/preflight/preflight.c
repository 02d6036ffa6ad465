/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the order of a check, its verdict and its JSON document. Refuses to call a check passed that compared
 * nothing.
 */
#include "preflight/preflight.h"

#include <string.h>

#include "preflight/preflight_internal.h"

/* Keys that nobody read: the first sign of something new, each one of its own. */
static void check_keys(const struct ckpt *c, const struct spec *s, struct findings *f)
{
    for (size_t i = 0; i < s->n_unread; i++) {
        struct strbuf value = STRBUF_INIT;
        struct json_writer w;
        char key[120], shown[160];
        json_writer_init(&w, &value, false);
        /* A nested key is named with its path, which is no member of the top level: no value then. */
        const struct json *v = json_get(c->config, s->unread_keys[i]);
        if (v)
            json_write_tree(&w, v);
        finding_add(f, FINDING_C005, ckpt_show(s->unread_keys[i], key, sizeof(key)),
                    "config.json says %s%s%s, and %s does not read it", key, v ? ": " : "",
                    v ? ckpt_show(strbuf_cstr(&value), shown, sizeof(shown)) : "", s->arch_name);
        strbuf_release(&value);
    }
}

/* What was found from here on with this id is no error, for the reason that the remedy tells. */
static void soften(struct findings *f, size_t from, enum finding_id id, enum severity severity,
                   const char *remedy)
{
    for (size_t i = from; i < f->n; i++) {
        struct finding *x = &f->items[i];
        if (x->id != id || x->severity != SEVERITY_ERROR)
            continue;
        x->severity = severity;
        x->remedy = remedy;
        f->n_by_severity[SEVERITY_ERROR]--;
        f->n_by_severity[severity]++;
    }
}

/* A draft that disagrees with the weights says nothing against the weights; it never passes, whatever it
 * finds. */
static void judge_less(const struct spec *s, struct findings *f, size_t from)
{
    static const enum finding_id of_draft[] = {FINDING_W009, FINDING_W010, FINDING_Q002};
    for (size_t i = 0; s->origin == ARCH_DRAFTED && i < ARRAY_LEN(of_draft); i++)
        soften(f, from, of_draft[i], SEVERITY_WARNING, "correct the drafted architecture file");
}

int preflight_check(struct ckpt *c, const struct spec *s, const struct preflight_options *o,
                    struct findings *f, struct d0 *d0, struct err *e)
{
    static const struct preflight_options defaults;
    o = o ? o : &defaults;
    int rc = ERR_OK;
    if (s) {
        check_keys(c, s, f);
        const size_t before = f->n;
        rc = check_weights(c, s, f, e);
        judge_less(s, f, before);
        if (!rc)
            rc = check_trust(c, s, f, e);
    }
    /* A directory without config.json or weights lacks a tokenizer for the same reason: it is no model yet.
     */
    if (!rc && s && !o->skip_tokenizer)
        rc = check_tokenizer(c, s, f, d0, e);
    if (!rc && s && o->card)
        rc = check_card(s, o, f, e);
    else if (!rc && s && !o->runs_elsewhere)
        rc = preflight_kernels(s, o->runs_here, f, e);
    if (!rc && s && o->memory_bytes)
        rc = check_memory(s, o, f, e);
    return rc;
}

int preflight_open(const char *dir, const struct spec_options *so, const struct preflight_options *o,
                   struct ckpt **c, struct spec **s, struct findings *f, struct d0 *d0, struct err *e)
{
    *c = NULL;
    *s = NULL;
    const struct ckpt_options co = {.partial = o && o->partial};
    int rc = ckpt_open_with(c, dir, &co, f, d0, e);
    if (!rc)
        rc = spec_open(s, *c, so, f, d0, e);
    if (!rc)
        rc = preflight_check(*c, *s, o, f, d0, e);
    return rc;
}

/* Not waived, be it stored or not. */
static bool open_finding(const struct findings *f, enum finding_id id)
{
    for (size_t i = 0; i < f->n; i++)
        if (f->items[i].id == id && !f->items[i].waived)
            return true;
    return f->dropped_by_id[id] > 0;
}

bool preflight_unproven(const struct findings *f, const struct spec *s)
{
    return s->origin == ARCH_DRAFTED ||
           (s->origin != ARCH_SHIPPED && (open_finding(f, FINDING_W011) || open_finding(f, FINDING_C009)));
}

enum preflight_verdict preflight_verdict(const struct findings *f, const struct spec *s)
{
    if (findings_failed(f))
        return PREFLIGHT_FAIL;
    if (s == NULL || preflight_unproven(f, s) || open_finding(f, FINDING_W022) ||
        open_finding(f, FINDING_P004))
        return PREFLIGHT_INCOMPLETE;
    return PREFLIGHT_PASS;
}

const char *preflight_verdict_name(enum preflight_verdict v)
{
    return v == PREFLIGHT_PASS ? "pass" : v == PREFLIGHT_FAIL ? "fail" : "incomplete";
}

void preflight_write_check_members(enum preflight_verdict v, const struct findings *f, double seconds,
                                   struct json_writer *w)
{
    json_put_string(w, "verdict", preflight_verdict_name(v));
    json_key(w, "findings");
    findings_write_json(f, w);
    json_put_f64(w, "seconds", seconds);
}

void preflight_write_check(enum preflight_verdict v, const struct findings *f, double seconds,
                           struct json_writer *w)
{
    json_begin_object(w);
    preflight_write_check_members(v, f, seconds, w);
    json_end_object(w);
}
