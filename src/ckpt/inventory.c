/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: all tensors of a checkpoint sorted by name, the index checked against them, and the findings of both:
 * one for each cause, with its consequences counted. Refuses to let two tensors of one name pass. Nothing
 * here is quadratic: names are sorted once by merging runs (headers come sorted, so there are few) and looked
 * up by hash.
 */
#include "ckpt/ckpt_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void tally_add(struct tally *t, const char *name)
{
    if (t->n < TALLY_NAMES)
        t->names[t->n] = name;
    t->n++;
}

const char *tally_format(const struct tally *t, const char *noun, char *buf, size_t bytes)
{
    char count[32], name[100];
    int at =
        snprintf(buf, bytes, "%s %s%s", format_count(t->n, count, sizeof(count)), noun, t->n == 1 ? "" : "s");
    for (uint64_t i = 0; i < t->n && i < TALLY_NAMES && at >= 0 && (size_t)at < bytes; i++)
        at += snprintf(buf + at, bytes - (size_t)at, "%s %s", i ? "," : ":",
                       ckpt_show(t->names[i], name, sizeof(name)));
    if (t->n > TALLY_NAMES && at >= 0 && (size_t)at < bytes)
        snprintf(buf + at, bytes - (size_t)at, " and %s more",
                 format_count(t->n - TALLY_NAMES, count, sizeof(count)));
    return buf;
}

/* ---- sorting by name: natural merge sort, stable, n log(runs) */

struct named {
    const char *name;
    uint32_t shard, at; /* files[shard].tensors[at] */
};

static size_t run_end(const struct named *a, size_t from, size_t n)
{
    size_t i = from + 1;
    while (i < n && strcmp(a[i - 1].name, a[i].name) <= 0)
        i++;
    return i < n ? i : n;
}

static void merge(const struct named *a, size_t n_a, const struct named *b, size_t n_b, struct named *to)
{
    while (n_a && n_b) {
        if (strcmp(a->name, b->name) <= 0) {
            *to++ = *a++;
            n_a--;
        } else {
            *to++ = *b++;
            n_b--;
        }
    }
    memcpy(to, n_a ? a : b, (n_a + n_b) * sizeof(*to));
}

/* Result in a or in spare; returns where. Each pass halves the number of runs. */
static struct named *sort_by_name(struct named *a, struct named *spare, size_t n)
{
    for (;;) {
        size_t from = 0, runs = 0;
        while (from < n) {
            size_t middle = run_end(a, from, n);
            size_t end = middle < n ? run_end(a, middle, n) : n;
            merge(a + from, middle - from, a + middle, end - middle, spare + from);
            from = end;
            runs++;
        }
        struct named *other = a;
        a = spare;
        spare = other;
        if (runs <= 1)
            return a;
    }
}

/* ---- the inventory */

static uint32_t index_file_of_shard(const struct opening *o, uint32_t shard)
{
    uint32_t file = CKPT_INDEX_BAD_FILE;
    const char *name = o->c->shards[shard].name;
    (void)strmap_get(&o->index.by_file, name, strlen(name), &file);
    return file;
}

/* Among equal names the one in the shard that the index names counts, else the first. Notes the others at
 * their shards. */
static size_t choose(struct opening *o, const struct named *group, size_t n)
{
    size_t chosen = 0;
    uint32_t entry;
    const char *name = group[0].name;
    if (n == 1)
        return 0;
    if (o->c->has_index && strmap_get(&o->index.by_name, name, strlen(name), &entry)) {
        for (size_t i = n; i-- > 0;) {
            if (index_file_of_shard(o, group[i].shard) == o->index.entries[entry].file)
                chosen = i;
        }
    }
    for (size_t i = 0; i < n; i++) {
        struct shard_fault *fault = &o->faults[group[i].shard];
        /* Within one header it is that header's fault, which has been noted. */
        if (i == chosen || group[i].shard == group[chosen].shard)
            continue;
        if (o->c->shards[group[i].shard].unindexed) {
            fault->n_not_used++;
        } else {
            if (fault->twice.n == 0)
                fault->twice_with = group[chosen].shard;
            tally_add(&fault->twice, name);
            o->contradicted = true;
        }
    }
    return chosen;
}

static int keep_tensors(struct opening *o, const struct named *sorted, size_t n, struct err *e)
{
    struct ckpt *c = o->c;
    c->tensors = arena_alloc_n(&c->arena, n, sizeof(*c->tensors));
    c->by_name = arena_alloc(&c->arena, sizeof(*c->by_name));
    c->lost_names = arena_alloc(&c->arena, sizeof(*c->lost_names));
    if (!c->tensors || !c->by_name || !c->lost_names || strmap_reserve(c->by_name, n))
        return err_set(e, ERR_NOMEM, "no memory for the list of tensors");
    for (size_t i = 0; i < n;) {
        size_t end = i + 1;
        while (end < n && strcmp(sorted[i].name, sorted[end].name) == 0)
            end++;
        const struct named *m = &sorted[i + choose(o, &sorted[i], end - i)];
        struct ckpt_tensor *t = &c->tensors[c->n_tensors];
        *t = o->files[m->shard].tensors[m->at];
        t->shard = m->shard;
        if (strmap_put(c->by_name, t->name, strlen(t->name), (uint32_t)c->n_tensors, NULL) < 0)
            return err_set(e, ERR_NOMEM, "no memory for the list of tensors");
        c->total_bytes = sat_add(c->total_bytes, t->bytes);
        c->n_tensors++;
        i = end;
    }
    return ERR_OK;
}

int inventory_build(struct opening *o, struct err *e)
{
    size_t n = 0, k = 0;
    for (size_t i = 0; i < o->c->n_shards; i++)
        n += o->files[i].n_tensors;
    if (n >= UINT32_MAX)
        return err_set(e, ERR_LIMIT, "%zu tensors, more than 32 bits can count", n);
    struct named *list = calloc(n + 1, sizeof(*list)), *spare = calloc(n + 1, sizeof(*spare));
    int rc = list && spare ? ERR_OK : err_set(e, ERR_NOMEM, "no memory to sort %zu tensors", n);
    for (size_t i = 0; !rc && i < o->c->n_shards; i++) {
        for (size_t j = 0; j < o->files[i].n_tensors; j++)
            list[k++] = (struct named){o->files[i].tensors[j].name, (uint32_t)i, (uint32_t)j};
    }
    if (!rc)
        rc = keep_tensors(o, sort_by_name(list, spare, n), n, e);
    if (!rc)
        copies_find(o);
    free(list);
    free(spare);
    return rc;
}

/* ---- index against shards */

struct crossing {
    struct opening *o;
    uint32_t *shard_of_file;    /* index file -> shard */
    bool *seen;                 /* per tensor: the index names it */
    struct tally absent, moved; /* W007, W015 */
    const char *absent_from;    /* shard of the first absent one */
};

static int check_entry(struct crossing *x, const struct ckpt_index_entry *entry, struct err *e)
{
    struct opening *o = x->o;
    uint32_t at, shard = entry->file == CKPT_INDEX_BAD_FILE ? UINT32_MAX : x->shard_of_file[entry->file];
    bool lost = shard == UINT32_MAX || o->c->shards[shard].lost || o->c->shards[shard].copy;
    if (strmap_get(o->c->by_name, entry->tensor, strlen(entry->tensor), &at)) {
        x->seen[at] = true;
        if (shard == UINT32_MAX || o->c->tensors[at].shard == shard)
            return ERR_OK;
        if (lost)
            o->faults[shard].n_elsewhere++;
        else
            tally_add(&x->moved, entry->tensor);
        return ERR_OK;
    }
    if (!lost) {
        if (x->absent.n == 0)
            x->absent_from = o->c->shards[shard].name;
        tally_add(&x->absent, entry->tensor);
    } else if (shard != UINT32_MAX) {
        tally_add(&o->faults[shard].lost, entry->tensor);
    }
    /* An absent tensor is remembered, too: that it is missing has its finding here and needs no second one.
     */
    if (strmap_put(o->c->lost_names, entry->tensor, strlen(entry->tensor), shard, NULL) < 0)
        return err_set(e, ERR_NOMEM, "no memory for the names of lost tensors");
    return ERR_OK;
}

/* A file that is gone while all it should hold lies elsewhere is no loss: the index speaks of an older split.
 */
static void forgive_renamed(struct crossing *x, struct tally *files)
{
    struct opening *o = x->o;
    for (size_t i = 0; i < o->c->n_shards; i++) {
        struct shard_fault *fault = &o->faults[i];
        if (!fault->set || fault->id != FINDING_W002 || fault->lost.n || fault->n_elsewhere == 0)
            continue;
        tally_add(files, o->c->shards[i].name);
        fault->set = false;
        o->c->n_lost_shards--;
    }
}

/* Files that the index does not name but whose tensors it does, under names of files that are gone: they are
 * used. */
static void adopt_renamed(struct crossing *x)
{
    struct ckpt *c = x->o->c;
    bool *adopt = arena_alloc_n(&x->o->scratch, c->n_shards, sizeof(*adopt));
    for (size_t i = 0; adopt && i < c->n_shards; i++)
        adopt[i] = c->shards[i].unindexed && !x->o->faults[i].set && x->o->faults[i].n_not_used == 0;
    for (size_t i = 0; adopt && i < c->n_tensors; i++)
        adopt[c->tensors[i].shard] &= x->seen[i];
    for (size_t i = 0; adopt && i < c->n_shards; i++)
        c->shards[i].unindexed &= !(adopt[i] && c->shards[i].n_tensors);
}

static void report_crossing(struct crossing *x)
{
    struct opening *o = x->o;
    const char *index = o->c->index_name;
    struct tally unlisted = {0}, files = {0};
    char text[700], name[120];
    for (size_t i = 0; i < o->c->n_tensors; i++) {
        if (!x->seen[i] && !o->c->shards[o->c->tensors[i].shard].unindexed)
            tally_add(&unlisted, o->c->tensors[i].name);
    }
    forgive_renamed(x, &files);
    if (files.n)
        adopt_renamed(x);
    if (x->absent.n)
        finding_add(o->f, FINDING_W007,
                    x->absent.n == 1 ? ckpt_show(x->absent.names[0], name, sizeof(name)) : index,
                    "%s names %s; %s should hold %s, and no file does", index,
                    tally_format(&x->absent, "tensor", text, sizeof(text)), x->absent_from,
                    x->absent.n == 1 ? "it" : "the first one");
    if (unlisted.n)
        finding_add(o->f, FINDING_W008,
                    unlisted.n == 1 ? ckpt_show(unlisted.names[0], name, sizeof(name)) : index,
                    "%s does not name %s", index, tally_format(&unlisted, "tensor", text, sizeof(text)));
    if (x->moved.n)
        finding_add(o->f, FINDING_W015,
                    x->moved.n == 1 ? ckpt_show(x->moved.names[0], name, sizeof(name)) : index,
                    "%s places them in another file than the one that holds them: %s", index,
                    tally_format(&x->moved, "tensor", text, sizeof(text)));
    if (files.n)
        finding_add(o->f, FINDING_W015, index,
                    "it names %s not in the directory; other files hold all their tensors",
                    tally_format(&files, "file", text, sizeof(text)));
    o->contradicted = o->contradicted || x->absent.n || unlisted.n || x->moved.n || files.n;
}

/* Only meaningful where everything else agrees. */
static void check_total(struct opening *o)
{
    uint64_t sum = 0;
    char a[32], b[32];
    if (!o->index.has_total_size || o->contradicted || o->c->n_lost_shards)
        return;
    for (size_t i = 0; i < o->c->n_tensors; i++) {
        if (!o->c->shards[o->c->tensors[i].shard].unindexed && !add_u64(sum, o->c->tensors[i].bytes, &sum))
            return;
    }
    for (size_t i = 0; i < o->c->n_shards; i++) { /* a header whose sizes are wrong has its finding */
        if (o->faults[i].set && o->faults[i].id == FINDING_W004)
            return;
    }
    if (sum != o->index.total_size)
        finding_add(o->f, FINDING_W014, o->c->index_name, "total_size is %s, the tensors have %s bytes",
                    format_count(o->index.total_size, a, sizeof(a)), format_count(sum, b, sizeof(b)));
}

int inventory_check_index(struct opening *o, struct err *e)
{
    struct crossing x = {.o = o};
    if (!o->c->has_index)
        return ERR_OK;
    x.shard_of_file = arena_alloc_n(&o->scratch, o->index.n_files, sizeof(*x.shard_of_file));
    x.seen = arena_alloc_n(&o->scratch, o->c->n_tensors, sizeof(*x.seen));
    if (!x.shard_of_file || !x.seen)
        return err_set(e, ERR_NOMEM, "no memory to check the index");
    for (uint32_t i = 0; i < o->c->n_shards; i++) {
        uint32_t file = index_file_of_shard(o, i);
        if (file < o->index.n_files)
            x.shard_of_file[file] = i;
    }
    int rc = ERR_OK;
    for (size_t i = 0; !rc && i < o->index.n_entries; i++)
        rc = check_entry(&x, &o->index.entries[i], e);
    if (rc)
        return rc;
    report_crossing(&x);
    check_total(o);
    return ERR_OK;
}

/* ---- the faults of shards, with their consequences */

/* Not one indexed file is there: that is one cause, not as many as there are files. */
static bool report_all_missing(struct opening *o)
{
    struct tally files = {0};
    uint64_t tensors = 0;
    char text[400], count[32];
    if (!o->c->has_index || o->c->partial)
        return false;
    for (size_t i = 0; i < o->c->n_shards; i++) {
        if (o->c->shards[i].unindexed)
            continue;
        if (!o->faults[i].set || o->faults[i].id != FINDING_W002)
            return false;
        tally_add(&files, o->c->shards[i].name);
        tensors += o->faults[i].lost.n;
    }
    if (files.n < 2)
        return false;
    finding_add(o->f, FINDING_W001, o->c->dir, "%s names %s, none is in the directory; they hold %s tensors",
                o->c->index_name, tally_format(&files, "file", text, sizeof(text)),
                format_count(tensors, count, sizeof(count)));
    return true;
}

static void report_unindexed(struct opening *o, size_t i)
{
    const struct ckpt_shard *s = &o->c->shards[i];
    const struct shard_fault *fault = &o->faults[i];
    char subject[200], a[32], b[32];
    ckpt_show(s->name, subject, sizeof(subject));
    if (fault->set)
        finding_add(o->f, FINDING_W008, subject, "the index does not name this file, and it is damaged: %s",
                    fault->evidence);
    else
        finding_add(
            o->f, FINDING_W008, subject,
            "the index does not name this file; of its %s tensors indexed files hold %s, too, and those are "
            "used",
            format_count(s->n_tensors, a, sizeof(a)), format_count(fault->n_not_used, b, sizeof(b)));
}

static const char *cut_tensors(const struct opening *o, size_t i, char *buf, size_t bytes)
{
    struct tally cut = {0};
    uint64_t end, size = o->c->shards[i].file_bytes;
    for (size_t k = 0; k < o->files[i].n_tensors; k++) {
        const struct ckpt_tensor *t = &o->files[i].tensors[k];
        if (!add_u64(t->offset, t->bytes, &end) || end > size)
            tally_add(&cut, t->name);
    }
    return tally_format(&cut, "tensor", buf, bytes);
}

static void report_shard(struct opening *o, size_t i)
{
    const struct ckpt_shard *s = &o->c->shards[i];
    const struct shard_fault *fault = &o->faults[i];
    char subject[200], text[700], with[120];
    ckpt_show(s->name, subject, sizeof(subject));
    if (s->arriving) {
        if (fault->set)
            arrivals_add(o, i);
    } else if (fault->set && fault->lost.n)
        finding_add(o->f, fault->id, subject, "%s; the index places here %s", fault->evidence,
                    tally_format(&fault->lost, "tensor", text, sizeof(text)));
    else if (fault->set && fault->id == FINDING_W003 && !s->lost)
        finding_add(o->f, fault->id, subject, "%s; cut off: %s", fault->evidence,
                    cut_tensors(o, i, text, sizeof(text)));
    else if (fault->set)
        finding_add(o->f, fault->id, subject, "%s", fault->evidence);
    if (fault->twice.n && !s->copy)
        finding_add(o->f, FINDING_W012, subject, "%s also holds %s",
                    ckpt_show(o->c->shards[fault->twice_with].name, with, sizeof(with)),
                    tally_format(&fault->twice, "tensor", text, sizeof(text)));
}

/* One finding for each type name that we do not know, over all shards. */
static void report_unknown_dtypes(struct opening *o)
{
    struct st_unknown_dtype all[8] = {{0}};
    size_t n = 0;
    for (size_t i = 0; i < o->c->n_shards; i++) {
        for (uint32_t u = 0; u < o->files[i].n_unknown; u++) {
            const struct st_unknown_dtype *one = &o->files[i].unknown[u];
            size_t k = 0;
            while (k < n && strcmp(all[k].dtype, one->dtype) != 0)
                k++;
            if (k == ARRAY_LEN(all))
                k--;
            if (k == n)
                all[n++] = (struct st_unknown_dtype){one->dtype, one->tensor, 0};
            all[k].n += one->n;
        }
    }
    for (size_t k = 0; k < n; k++) {
        char dtype[60], name[120], count[32];
        finding_add(o->f, FINDING_W013, ckpt_show(all[k].dtype, dtype, sizeof(dtype)),
                    "%s tensors have this element type, which nothing here knows; first: %s",
                    format_count(all[k].n, count, sizeof(count)),
                    ckpt_show(all[k].tensor, name, sizeof(name)));
    }
}

void inventory_report(struct opening *o)
{
    bool all_missing = report_all_missing(o);
    for (size_t i = 0; i < o->c->n_shards; i++) {
        if (!o->c->shards[i].unindexed) {
            if (!all_missing)
                report_shard(o, i);
        } else if (!second_copy_beside(o, i)) {
            report_unindexed(o, i);
        }
    }
    report_unknown_dtypes(o);
    arrivals_report(o);
}
