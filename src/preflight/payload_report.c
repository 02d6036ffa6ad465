/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the findings of a payload check and its JSON. Refuses to report the consequences of a cause that has
 * a finding: what a wrong hash explains is its evidence, and a file that is short or malformed has had its
 * own.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "preflight/payload_internal.h"

typedef unsigned long long ull;

static bool reported(const struct findings *f, enum finding_id id, const char *subject)
{
    for (size_t i = 0; i < f->n; i++) {
        if (f->items[i].id == id && !strcmp(f->items[i].subject, subject))
            return true;
    }
    return false;
}

static const char *list_bad(const struct payload_found *x, char *buf, size_t bytes)
{
    struct tally t = {0};
    for (size_t i = 0; i < PAYLOAD_KEPT && x->bad[i].name; i++)
        tally_add(&t, x->bad[i].name);
    t.n = x->n_not_finite;
    return tally_format(&t, "tensor", buf, bytes);
}

static const char *list_zero(const struct payload_found *x, char *buf, size_t bytes)
{
    struct tally t = {0};
    for (size_t i = 0; i < PAYLOAD_KEPT && x->zero[i]; i++)
        tally_add(&t, x->zero[i]);
    t.n = x->n_all_zero;
    return tally_format(&t, "tensor", buf, bytes);
}

static void report_values(const struct payload_found *x, const char *shard, struct findings *f)
{
    char text[700], subject[160], a[32], b[32], c[32];
    ckpt_show(shard, subject, sizeof(subject));
    if (x->n_not_finite == 1)
        finding_add(f, FINDING_W016, ckpt_show(x->bad[0].name, text, 160),
                    "%s NaN and %s infinite of %s values, the first at index %llu, in %s",
                    format_count(x->bad[0].n_nan, a, sizeof(a)), format_count(x->bad[0].n_inf, b, sizeof(b)),
                    format_count(x->bad[0].n, c, sizeof(c)), (ull)x->bad[0].first_bad, subject);
    else if (x->n_not_finite)
        finding_add(f, FINDING_W016, subject,
                    "%s NaN and %s infinite values in %s; in the first one from index %llu",
                    format_count(x->values_nan, a, sizeof(a)), format_count(x->values_inf, b, sizeof(b)),
                    list_bad(x, text, sizeof(text)), (ull)x->bad[0].first_bad);
    if (x->n_all_zero == 1)
        finding_add(f, FINDING_W019, ckpt_show(x->zero[0], text, 160), "every value is zero, in %s", subject);
    else if (x->n_all_zero)
        finding_add(f, FINDING_W019, subject, "every value is zero in %s of %llu",
                    list_zero(x, text, sizeof(text)), (ull)x->tensors);
}

/* All that the directory says about one file: the first that is wrong. */
static const struct payload_expected *disagreeing(const struct payload_manifest *m, size_t shard,
                                                  const char *sha256)
{
    for (size_t i = 0; i < m->n; i++) {
        if (m->items[i].shard == shard && strcmp(m->items[i].sha256, sha256) != 0)
            return &m->items[i];
    }
    return NULL;
}

static void report_mismatch(const struct payload_found *x, const struct preflight_payload_shard *s,
                            const struct payload_expected *wrong, struct findings *f)
{
    char subject[160], from[160], bad[400], zero[400];
    finding_add(f, FINDING_W018, ckpt_show(s->name, subject, sizeof(subject)),
                "its SHA-256 is %s, %s says %s%s%s%s%s", s->sha256,
                ckpt_show(wrong->from, from, sizeof(from)), wrong->sha256,
                x->n_not_finite ? "; not finite: " : "", x->n_not_finite ? list_bad(x, bad, sizeof(bad)) : "",
                x->n_all_zero ? "; all zero: " : "", x->n_all_zero ? list_zero(x, zero, sizeof(zero)) : "");
}

/* Equal headers of two files have W020 already; with equal hashes its evidence is complete. */
static void add_to_evidence(struct findings *f, const char *subject, const char *more)
{
    for (size_t i = 0; i < f->n; i++) {
        struct finding *x = &f->items[i];
        if (x->id != FINDING_W020 || strcmp(x->subject, subject) != 0)
            continue;
        char *text = arena_printf(&f->arena, "%s; %s", x->evidence, more);
        x->evidence = text ? text : x->evidence;
    }
}

static void report_same(const struct ckpt *c, size_t i, struct findings *f, struct preflight_payload *out)
{
    const struct preflight_payload_shard *s = &out->shards[i];
    const struct ckpt_shard *other = &c->shards[s->same_as];
    char subject[200], with[120], text[300];
    ckpt_show(s->name, subject, sizeof(subject));
    ckpt_show(other->name, with, sizeof(with));
    snprintf(text, sizeof(text), "all its bytes are those of %s", with);
    if (reported(f, FINDING_W020, subject))
        add_to_evidence(f, subject, text);
    else if (!c->shards[i].unindexed && !other->unindexed && !c->shards[i].lost && !other->lost)
        finding_add(f, FINDING_W020, subject, "%s", text);
}

/* Hash -> first shard that has it. */
static void find_same(struct preflight_payload *out)
{
    struct strmap map = {0};
    for (size_t i = 0; i < out->n_shards; i++) {
        struct preflight_payload_shard *s = &out->shards[i];
        uint32_t first;
        if (!s->sha256[0])
            continue;
        if (strmap_put(&map, s->sha256, 64, (uint32_t)i, &first) != 1)
            continue;
        s->same_as = first;
        out->n_same++;
    }
    strmap_release(&map);
}

void payload_report(const struct ckpt *c, const struct payload_file *files, const struct payload_manifest *m,
                    struct findings *f, struct preflight_payload *out)
{
    find_same(out);
    for (size_t i = 0; i < out->n_shards; i++) {
        struct preflight_payload_shard *s = &out->shards[i];
        const struct ckpt_shard *shard = &c->shards[i];
        const struct payload_found *x = &files[i].found;
        if (!files[i].here)
            continue;
        const struct payload_expected *wrong = s->sha256[0] ? disagreeing(m, i, s->sha256) : NULL;
        s->tensors = x->tensors;
        s->n_not_finite = x->n_not_finite;
        s->n_all_zero = x->n_all_zero;
        s->mismatch = wrong != NULL;
        out->tensors += x->tensors;
        out->n_not_finite += x->n_not_finite;
        out->n_all_zero += x->n_all_zero;
        out->n_hashed += s->sha256[0] != '\0';
        out->n_compared += s->sha256[0] && s->expected;
        out->n_mismatch += s->mismatch;
        if (s->same_as >= 0)
            report_same(c, i, f, out);
        /* The whole file is another one, or has a finding that explains its hash. */
        if (wrong && shard->usable && !shard->copy)
            report_mismatch(x, s, wrong, f);
        else
            report_values(x, s->name, f);
    }
}

static void write_shard(struct json_writer *w, const struct preflight_payload *p,
                        const struct preflight_payload_shard *s)
{
    json_begin_object(w);
    json_put_string(w, "file", s->name);
    json_put_u64(w, "bytes", s->bytes);
    json_put_string(w, "sha256", s->sha256[0] ? s->sha256 : NULL);
    json_put_string(w, "expected", s->expected);
    json_put_string(w, "expected_from", s->expected_from);
    json_put_u64(w, "tensors", s->tensors);
    json_put_u64(w, "not_finite", s->n_not_finite);
    json_put_u64(w, "all_zero", s->n_all_zero);
    json_put_string(w, "from", s->read ? "read" : s->from_cache ? "cache" : NULL);
    if (s->same_as >= 0)
        json_put_string(w, "same_as", p->shards[s->same_as].name);
    json_end_object(w);
}

void preflight_write_payload(const struct preflight_payload *p, struct json_writer *w)
{
    json_begin_object(w);
    json_put_u64(w, "bytes_read", p->bytes_read);
    json_put_u64(w, "bytes_cached", p->bytes_cached);
    json_put_u64(w, "hashed", p->n_hashed);
    json_put_u64(w, "compared", p->n_compared);
    json_put_u64(w, "mismatched", p->n_mismatch);
    json_put_u64(w, "same", p->n_same);
    json_put_u64(w, "tensors", p->tensors);
    json_put_u64(w, "not_finite", p->n_not_finite);
    json_put_u64(w, "all_zero", p->n_all_zero);
    json_put_u64(w, "threads", p->threads);
    json_put_f64(w, "seconds", p->seconds);
    json_key(w, "files");
    json_begin_array(w);
    for (size_t i = 0; i < p->n_shards; i++)
        write_shard(w, p, &p->shards[i]);
    json_end_array(w);
    json_end_object(w);
}
