/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: tensors that a description wants against those that a checkpoint has: missing, of another shape, of a
 * type that cannot be meant, claimed by nobody. Refuses to ask which types are computed here: a checkpoint is
 * right or wrong whoever computes it (check_kernels.c asks). Tensors are counted in kinds (their name without
 * its numbers), so that 61 layers are one finding; what a lost shard explains is left to the finding of that
 * shard.
 */
#include "preflight/preflight_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_LAYERS 100000

/* One tensor that the description wants. */
struct wanted {
    const char *name; /* in the scratch arena */
    const struct spec_weight *weight;
    const struct ckpt_tensor *tensor;
    int64_t dims[TENSOR_MAX_DIMS];
    uint32_t n_dims, dtype;
    int32_t layer;
    enum spec_role role;
    bool any_shape;
};

/* Tensors of one kind that share a fault. */
struct kind {
    const char *name; /* "model.layers.*.mlp.up_proj.weight", in the scratch arena */
    struct tally tensors;
    const struct wanted *first;
    uint64_t n_described; /* tensors of this kind in the description */
};

struct kinds {
    struct kind *items;
    size_t n, capacity;
    struct strmap map;
};

struct check {
    struct wanted *wanted; /* all of them, experts and scales one by one */
    size_t n_wanted, capacity;
    bool no_mtp; /* the drafting layers are absent as a whole, which is no fault */
    const struct ckpt *c;
    const struct spec *s;
    struct findings *f;
    struct arena scratch;
};

static int no_memory(struct err *e)
{
    return err_set(e, ERR_NOMEM, "no memory to compare the tensors");
}

/* The name with each number between dots replaced by '*'. */
static char *kind_name(struct arena *arena, const char *name)
{
    char *kind = arena_strdup(arena, name);
    if (!kind)
        return NULL;
    char *to = kind;
    for (const char *p = name; *p;) {
        size_t n = strcspn(p, ".");
        bool number = n > 0 && strspn(p, "0123456789") == n;
        if (number) {
            *to++ = '*';
        } else {
            memmove(to, p, n);
            to += n;
        }
        p += n;
        if (*p)
            *to++ = *p++;
    }
    *to = '\0';
    return kind;
}

static struct kind *kind_of(struct check *x, struct kinds *k, const char *name)
{
    char *kind = kind_name(&x->scratch, name);
    uint32_t at = (uint32_t)k->n;
    if (!kind)
        return NULL;
    int rc = strmap_put(&k->map, kind, strlen(kind), at, &at);
    if (rc < 0)
        return NULL;
    if (rc == 0) {
        void *items = k->items;
        if (vec_reserve(&items, &k->capacity, k->n + 1, sizeof(*k->items)))
            return NULL;
        k->items = items;
        k->items[k->n++] = (struct kind){.name = kind};
    }
    return &k->items[at];
}

static int add_to_kind(struct check *x, struct kinds *kinds, const struct wanted *w)
{
    struct kind *k = kind_of(x, kinds, w->name);
    if (!k)
        return ERR_NOMEM;
    k->first = k->first ? k->first : w;
    tally_add(&k->tensors, w->name);
    return ERR_OK;
}

static void kinds_release(struct kinds *k)
{
    strmap_release(&k->map);
    free(k->items);
}

/* Whom a finding is about: one tensor by its name, several by their kind. */
static const char *subject_of(const struct kind *k, char *buf, size_t bytes)
{
    return ckpt_show(k->tensors.n == 1 ? k->tensors.names[0] : k->name, buf, bytes);
}

/* How many weights of each faulty kind there should be: "3 of 61" tells more than "3". */
static int count_described(struct check *x, struct kinds *k)
{
    if (k->n == 0)
        return ERR_OK;
    for (size_t i = 0; i < x->n_wanted; i++) {
        uint32_t at;
        char *kind = kind_name(&x->scratch, x->wanted[i].name);
        if (!kind)
            return ERR_NOMEM;
        if (strmap_get(&k->map, kind, strlen(kind), &at))
            k->items[at].n_described++;
    }
    return ERR_OK;
}

/* ---- missing */

static bool is_missing(const struct check *x, const struct wanted *w)
{
    return !w->tensor && !(x->no_mtp && w->weight->group == GROUP_MTP) && !ckpt_lost(x->c, w->name);
}

/* The codes of a weight are there, and a scale or the like is not: the weight cannot be read. */
static bool is_partial(const struct check *x, const struct wanted *w)
{
    return w->role != ROLE_WEIGHT && x->s->n_weights && w->weight->tensor != NULL;
}

struct layers {
    uint32_t *described, *missing; /* weights by layer */
    int32_t n;
};

static int count_layers(struct check *x, struct layers *l)
{
    for (size_t i = 0; i < x->n_wanted; i++) {
        if (x->wanted[i].weight->group != GROUP_MTP && x->wanted[i].layer >= l->n &&
            x->wanted[i].layer < MAX_LAYERS)
            l->n = x->wanted[i].layer + 1;
    }
    l->described = arena_alloc_n(&x->scratch, (size_t)l->n, sizeof(uint32_t));
    l->missing = arena_alloc_n(&x->scratch, (size_t)l->n, sizeof(uint32_t));
    if (!l->described || !l->missing)
        return ERR_NOMEM;
    for (size_t i = 0; i < x->n_wanted; i++) {
        const struct wanted *w = &x->wanted[i];
        if (w->layer < 0 || w->layer >= l->n)
            continue;
        l->described[w->layer]++;
        l->missing[w->layer] += is_missing(x, w);
    }
    return ERR_OK;
}

static bool layer_is_gone(const struct layers *l, int32_t layer)
{
    return layer >= 0 && layer < l->n && l->described[layer] > 1 && l->missing[layer] == l->described[layer];
}

/* Layers that are missing as a whole: one finding for all of them. */
static void report_gone_layers(struct check *x, const struct layers *l)
{
    struct tally tensors = {0};
    int32_t first = -1, last = -1, n = 0;
    char subject[64], text[700];
    for (int32_t i = 0; i < l->n; i++) {
        if (!layer_is_gone(l, i))
            continue;
        first = first < 0 ? i : first;
        last = i;
        n++;
    }
    if (n == 0)
        return;
    for (size_t i = 0; i < x->n_wanted; i++) {
        if (layer_is_gone(l, x->wanted[i].layer))
            tally_add(&tensors, x->wanted[i].name);
    }
    if (n == 1)
        snprintf(subject, sizeof(subject), "layer %d", first);
    else
        snprintf(subject, sizeof(subject), "%d layers from %d to %d", n, first, last);
    finding_add(x->f, FINDING_W009, subject, "the description has %lld layers; of %s there is nothing: %s",
                (long long)x->s->n_layers, n == 1 ? "this one" : "these",
                tally_format(&tensors, "tensor", text, sizeof(text)));
}

static void report_missing_kind(struct check *x, const struct kind *k)
{
    char subject[160], text[700], all[40];
    const char *remedy = NULL;
    if (is_partial(x, k->first)) {
        finding_add(x->f, FINDING_Q002, subject_of(k, subject, sizeof(subject)),
                    "%s of %s; the weights are there",
                    tally_format(&k->tensors, "missing tensor", text, sizeof(text)),
                    spec_scheme_name(k->first->weight->form.scheme));
        return;
    }
    if (!strcmp(k->name, "lm_head.weight") && !x->s->tied_embeddings)
        remedy = "if the embedding is meant to serve as output head, config.json must say "
                 "\"tie_word_embeddings\": true; else "
                 "download the missing file";
    finding_add_remedy(x->f, FINDING_W009, subject_of(k, subject, sizeof(subject)), remedy,
                       "%s, which %s wants%s%s%s",
                       tally_format(&k->tensors, "missing tensor", text, sizeof(text)), x->s->arch_name,
                       k->n_described > 1 ? "; there should be " : "",
                       k->n_described > 1 ? format_count(k->n_described, all, sizeof(all)) : "",
                       k->n_described > 1 ? " of this kind" : "");
}

static int check_missing(struct check *x)
{
    struct layers layers = {0};
    struct kinds kinds = {0};
    int rc = count_layers(x, &layers);
    if (!rc)
        report_gone_layers(x, &layers);
    for (size_t i = 0; !rc && i < x->n_wanted; i++) {
        const struct wanted *w = &x->wanted[i];
        if (!is_missing(x, w) || layer_is_gone(&layers, w->layer))
            continue;
        rc = add_to_kind(x, &kinds, w);
    }
    if (!rc)
        rc = count_described(x, &kinds);
    for (size_t i = 0; !rc && i < kinds.n; i++)
        report_missing_kind(x, &kinds.items[i]);
    kinds_release(&kinds);
    return rc;
}

/* ---- shapes */

static bool same_shape(const struct wanted *w)
{
    if (w->any_shape)
        return true;
    if (w->n_dims != w->tensor->n_dims)
        return false;
    for (uint32_t i = 0; i < w->n_dims; i++) {
        if (w->dims[i] != w->tensor->dims[i])
            return false;
    }
    return true;
}

static void add_shapes(struct strbuf *b, const struct kind *k)
{
    char has[120], wants[120], name[160];
    const struct wanted *w = k->first;
    strbuf_printf(b, "%s is %s, described as %s", subject_of(k, name, sizeof(name)),
                  shape_format(w->tensor->dims, w->tensor->n_dims, has, sizeof(has)),
                  shape_format(w->dims, w->n_dims, wants, sizeof(wants)));
    if (k->tensors.n > 1)
        strbuf_printf(b, " (first of %llu)", (unsigned long long)k->tensors.n);
}

/* One kind: that tensor is wrong. Several kinds: a number in config.json is, and all of them are its
 * consequences. */
static int report_shapes(struct check *x, const struct kinds *kinds)
{
    struct strbuf b = STRBUF_INIT;
    char subject[160];
    uint64_t n = 0;
    for (size_t i = 0; i < kinds->n; i++) {
        n += kinds->items[i].tensors.n;
        if (i < 4) {
            strbuf_puts(&b, i ? "; " : "");
            add_shapes(&b, &kinds->items[i]);
        }
    }
    bool failed = strbuf_failed(&b);
    if (kinds->n == 1)
        finding_add(x->f, FINDING_W010, subject_of(&kinds->items[0], subject, sizeof(subject)), "%s",
                    strbuf_cstr(&b));
    else if (kinds->n > 1)
        finding_add(x->f, FINDING_W010, "config.json",
                    "%llu tensors of %zu kinds have other shapes than it gives: %s", (unsigned long long)n,
                    kinds->n, strbuf_cstr(&b));
    strbuf_release(&b);
    return failed ? ERR_NOMEM : ERR_OK;
}

static int check_shapes(struct check *x)
{
    struct kinds kinds = {0};
    int rc = ERR_OK;
    for (size_t i = 0; !rc && i < x->n_wanted; i++) {
        const struct wanted *w = &x->wanted[i];
        if (!w->tensor || x->c->shards[w->tensor->shard].malformed || same_shape(w))
            continue;
        rc = add_to_kind(x, &kinds, w);
    }
    if (!rc)
        rc = report_shapes(x, &kinds);
    kinds_release(&kinds);
    return rc;
}

/* ---- types */

bool is_plain_number(uint32_t dtype)
{
    return dtype == D0_F64 || dtype == D0_F32 || dtype == D0_BF16 || dtype == D0_F16;
}

/* Wrong whoever computes it. With a storage scheme: a part of a type that the scheme does not have, except
 * that scales which are numbers may be wider or narrower ones. Without: what is no number by itself, except
 * integer tables, which are no weights to compute with. A type whose name is unknown (0) has been reported
 * with the checkpoint. */
static bool is_of_wrong_type(const struct wanted *w)
{
    uint32_t dtype = w->tensor ? w->tensor->dtype : 0;
    if (dtype == 0)
        return false;
    if (w->weight->form.scheme)
        return w->dtype != dtype && !(is_plain_number(w->dtype) && is_plain_number(dtype));
    return !is_plain_number(dtype) && (w->weight->quantisable || (dtype != D0_I64 && dtype != D0_I32));
}

/* Tensors of one type that share a fault. */
struct wrong_type {
    struct tally tensors;
    const struct wanted *first;
};

static void report_wrong_type(struct check *x, const struct wrong_type *t)
{
    char text[700];
    const struct wanted *w = t->first;
    if (w->weight->form.scheme)
        finding_add(
            x->f, FINDING_W013, dtype_name(w->tensor->dtype), "%s of this element type; %s has its %s in %s",
            tally_format(&t->tensors, "tensor", text, sizeof(text)), spec_scheme_name(w->weight->form.scheme),
            w->role == ROLE_WEIGHT ? "codes" : spec_role_name(w->role), dtype_name(w->dtype));
    else
        finding_add(
            x->f, FINDING_W013, dtype_name(w->tensor->dtype),
            "%s of this element type, which is no number by itself, and no storage scheme explains it",
            tally_format(&t->tensors, "weight", text, sizeof(text)));
}

/* One finding for each type, and for plain weights another than for parts of a scheme. */
static void check_dtypes(struct check *x)
{
    struct wrong_type all[64][2] = {{{{0}, NULL}}};
    for (size_t i = 0; i < x->n_wanted; i++) {
        const struct wanted *w = &x->wanted[i];
        if (!is_of_wrong_type(w) || w->tensor->dtype >= ARRAY_LEN(all))
            continue;
        struct wrong_type *t = &all[w->tensor->dtype][w->weight->form.scheme != 0];
        t->first = t->first ? t->first : w;
        tally_add(&t->tensors, w->name);
    }
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        for (size_t k = 0; k < 2; k++)
            if (all[i][k].first)
                report_wrong_type(x, &all[i][k]);
}

/* Values that a family keeps in a wider type than the rest of its model: a copy in fewer bits is not the same
 * model. */
static int check_narrowed(struct check *x)
{
    struct kinds kinds = {0};
    char subject[160], text[700];
    int rc = ERR_OK;
    for (size_t i = 0; !rc && i < x->n_wanted; i++) {
        const struct wanted *w = &x->wanted[i];
        uint32_t keeps = w->weight->family_dtype;
        if (!w->tensor || w->role != ROLE_WEIGHT || !dtype_is_float(keeps) ||
            !dtype_is_float(w->tensor->dtype) || dtype_bits(w->tensor->dtype) >= dtype_bits(keeps))
            continue;
        rc = add_to_kind(x, &kinds, w);
    }
    for (size_t i = 0; !rc && i < kinds.n; i++)
        finding_add(x->f, FINDING_W023, subject_of(&kinds.items[i], subject, sizeof(subject)),
                    "%s, in %s; %s keeps it in %s",
                    tally_format(&kinds.items[i].tensors, "tensor", text, sizeof(text)),
                    dtype_name(kinds.items[i].first->tensor->dtype), x->s->arch_name,
                    dtype_name(kinds.items[i].first->weight->family_dtype));
    kinds_release(&kinds);
    return rc;
}

/* ---- unclaimed */

/* Buffers that older versions of the publishing tools saved along; every engine computes them itself. */
static bool is_known_buffer(const char *name)
{
    return str_ends(name, ".rotary_emb.inv_freq") || str_ends(name, ".masked_bias");
}

static size_t common_prefix(const char *a, const char *b, size_t n)
{
    size_t i = 0;
    while (i < n && a[i] && a[i] == b[i])
        i++;
    return i;
}

static void report_unclaimed(struct check *x, const struct tally *tensors, size_t n_kinds, uint64_t bytes,
                             const char *first, size_t prefix)
{
    char subject[160], text[700], size[32], note[120] = "";
    ckpt_show(first, subject, sizeof(subject));
    if (tensors->n > 1) { /* names sorted: what the first and the last have in common, all have */
        while (prefix > 0 && first[prefix - 1] != '.')
            prefix--;
        snprintf(text, sizeof(text), "%.*s*", (int)(prefix < 150 ? prefix : 150), first);
        ckpt_show(text, subject, sizeof(subject));
    }
    if (x->s->tied_embeddings && ckpt_find(x->c, "lm_head.weight"))
        snprintf(note, sizeof(note), "; config.json says tie_word_embeddings, so lm_head.weight is not used");
    finding_add(x->f, FINDING_W011, subject, "%s of %zu kind%s, %s, that %s does not describe%s",
                tally_format(tensors, "tensor", text, sizeof(text)), n_kinds, n_kinds == 1 ? "" : "s",
                format_bytes(bytes, size, sizeof(size)), x->s->arch_name, note);
}

static int check_unclaimed(struct check *x)
{
    const struct ckpt *c = x->c;
    struct kinds kinds = {0};
    struct tally tensors = {0};
    const char *first = NULL;
    size_t prefix = SIZE_MAX;
    uint64_t bytes = 0;
    int rc = ERR_OK;
    bool *claimed = arena_alloc_n(&x->scratch, c->n_tensors, sizeof(*claimed));
    if (!claimed)
        return ERR_NOMEM;
    for (size_t i = 0; i < x->n_wanted; i++) {
        if (x->wanted[i].tensor)
            claimed[x->wanted[i].tensor - c->tensors] = true;
    }
    for (size_t i = 0; !rc && i < c->n_tensors; i++) {
        const struct ckpt_tensor *t = &c->tensors[i];
        /* A file that the index does not name has a finding of its own. */
        if (claimed[i] || c->shards[t->shard].unindexed || is_known_buffer(t->name))
            continue;
        rc = kind_of(x, &kinds, t->name) ? ERR_OK : ERR_NOMEM;
        first = first ? first : t->name;
        prefix = common_prefix(first, t->name, prefix);
        tally_add(&tensors, t->name);
        bytes = sat_add(bytes, t->bytes);
    }
    if (!rc && tensors.n)
        report_unclaimed(x, &tensors, kinds.n, bytes, first, prefix);
    kinds_release(&kinds);
    return rc;
}

/* ---- the list of what is wanted */

static int add_wanted(void *ctx, const struct spec_tensor *t)
{
    struct check *x = ctx;
    void *list = x->wanted;
    if (vec_reserve(&list, &x->capacity, x->n_wanted + 1, sizeof(*x->wanted)))
        return ERR_NOMEM;
    x->wanted = list;
    struct wanted *w = &x->wanted[x->n_wanted];
    *w = (struct wanted){.name = t->tensor ? t->tensor->name : arena_strdup(&x->scratch, t->name),
                         .weight = t->weight,
                         .tensor = t->tensor,
                         .n_dims = t->n_dims,
                         .dtype = t->dtype,
                         .layer = t->weight->layer,
                         .role = t->role,
                         .any_shape = t->any_shape};
    memcpy(w->dims, t->dims, sizeof(w->dims));
    x->n_wanted++;
    return w->name ? 0 : ERR_NOMEM;
}

/* A checkpoint without any drafting layer is complete without them. */
static void look_for_mtp(struct check *x)
{
    x->no_mtp = true;
    for (size_t i = 0; i < x->n_wanted; i++)
        if (x->wanted[i].weight->group == GROUP_MTP && x->wanted[i].tensor)
            x->no_mtp = false;
}

int check_weights(const struct ckpt *c, const struct spec *s, struct findings *f, struct err *e)
{
    struct check x = {.c = c, .s = s, .f = f};
    arena_init(&x.scratch, c->arena.mem, MEM_CKPT);
    int rc = spec_physical(s, c, add_wanted, &x);
    if (!rc) {
        look_for_mtp(&x);
        rc = check_missing(&x);
    }
    if (!rc)
        rc = check_shapes(&x);
    if (!rc) {
        check_dtypes(&x);
        rc = check_narrowed(&x);
        rc = rc ? rc : check_unclaimed(&x);
    }
    free(x.wanted);
    arena_release(&x.scratch);
    return rc ? no_memory(e) : ERR_OK;
}
