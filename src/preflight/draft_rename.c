/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the search for edits that make a family's text name more of a checkpoint: another word for a part of
 * a name, another key of config.json for a width. Keeps no edit that the checkpoint does not confirm: each is
 * run, and stays only if more is named with its true shape.
 */
#include "preflight/draft_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/thread.h"

#define MAX_TRIALS  240
#define MAX_PAIRS   24
#define MAX_PLACES  6
#define MAX_WORD    160
#define MAX_ABSENT  256 /* patterns that are compared */
#define MAX_THERE   1024
#define MAX_PARTS   6
#define FAR         6 /* distance of names that have nothing to do with one another */
#define ALIKE       3 /* distance of names that are surely other words for the same */
#define MIN_BETTER  1e-9
#define MAX_ROUNDS  16
#define MAX_WIDTHS  12
#define OTHER_WIDTH 6 /* added to the distance of two names for each */

/* Words for one role; the first is the name of the role. */
static const char *const roles[][10] = {
    {"gate", "router"},
    {"gate_proj", "w1", "wi_0"},
    {"up_proj", "w3", "up", "wi_1"},
    {"down_proj", "w2", "down", "wo_mlp", "fc2"},
    {"q_proj", "wq", "query", "q"},
    {"k_proj", "wk", "key", "k"},
    {"v_proj", "wv", "value", "v"},
    {"o_proj", "wo", "out_proj", "dense", "o"},
    {"mlp", "block_sparse_moe", "feed_forward", "ffn", "moe", "mixer", "sparse_moe"},
    {"self_attn", "attention", "attn", "self_attention"},
    {"input_layernorm", "attention_norm", "attn_norm", "ln_1", "pre_attention_layernorm"},
    {"post_attention_layernorm", "ffn_norm", "ln_2", "pre_mlp_layernorm"},
    {"embed_tokens", "tok_embeddings", "wte", "word_embeddings"},
    {"lm_head", "output", "embed_out"},
    {"num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts", "num_moe_experts"},
    {"num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk", "moe_top_k",
     "num_selected_experts"},
    {"moe_intermediate_size", "expert_intermediate_size", "moe_ffn_hidden_size", "expert_hidden_dim"},
    {"rms_norm_eps", "layer_norm_epsilon", "norm_eps", "layernorm_epsilon", "norm_epsilon", "layer_norm_eps"},
    {"num_key_value_heads", "n_kv_heads", "num_kv_heads"},
    {"num_attention_heads", "n_heads", "num_heads", "n_head"},
    {"num_hidden_layers", "n_layers", "num_layers", "n_layer"},
    {"hidden_size", "dim", "d_model", "n_embd"},
    {"max_position_embeddings", "max_seq_len", "n_positions", "max_sequence_length", "seq_length"},
    {"n_shared_experts", "num_shared_experts", "moe_num_shared_experts"},
};

static const char *role_of(const char *s, size_t n)
{
    for (size_t i = 0; i < ARRAY_LEN(roles); i++)
        for (size_t k = 0; k < ARRAY_LEN(roles[i]) && roles[i][k]; k++)
            if (strlen(roles[i][k]) == n && memcmp(roles[i][k], s, n) == 0)
                return roles[i][0];
    return NULL;
}

/* Parts that only wrap the text model within a larger one. */
static bool is_wrapper(const char *s, size_t n)
{
    static const char *const words[] = {"model", "language_model", "text_model",
                                        "llm",   "thinker",        "transformer"};
    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        if (strlen(words[i]) == n && memcmp(words[i], s, n) == 0)
            return true;
    return false;
}

/* The name with each part in the words of its role, without wrappers. */
static void canonical(const char *name, char *buf, size_t bytes)
{
    struct strbuf b = STRBUF_INIT;
    for (const char *p = name; *p;) {
        size_t n = strcspn(p, ".");
        const char *role = role_of(p, n);
        if (!is_wrapper(p, n))
            strbuf_printf(&b, "%s%.*s", b.len ? "." : "", role ? (int)strlen(role) : (int)n, role ? role : p);
        p += n + (p[n] == '.');
    }
    snprintf(buf, bytes, "%s", strbuf_cstr(&b));
    strbuf_release(&b);
}

unsigned draft_distance(const char *a, const char *b)
{
    char x[DRAFT_NAME * 2], y[DRAFT_NAME * 2];
    canonical(a, x, sizeof x);
    canonical(b, y, sizeof y);
    /* beyond 64 bytes the distance is cut: leave out what both begin with */
    size_t n = 0;
    while (x[n] && x[n] == y[n])
        n++;
    return str_distance(x + n, y + n);
}

/* ---- one edit */

struct edit {
    char old[MAX_WORD], new[MAX_WORD];
};

static size_t split(const char *name, char parts[][MAX_WORD], size_t max)
{
    size_t n = 0;
    for (const char *p = name; *p && n < max; n++) {
        size_t k = strcspn(p, ".");
        snprintf(parts[n], MAX_WORD, "%.*s", (int)(k < MAX_WORD ? k : MAX_WORD - 1), p);
        p += k + (p[k] == '.');
    }
    return n;
}

static void join(char *buf, char parts[][MAX_WORD], size_t from, size_t to)
{
    size_t at = 0;
    buf[0] = 0;
    for (size_t i = from; i < to && at < MAX_WORD; i++)
        at += (size_t)snprintf(buf + at, MAX_WORD - at, "%s%s", i > from ? "." : "", parts[i]);
}

/* What two names differ in, as whole components: "mlp" and "block_sparse_moe". */
static bool difference(const char *a, const char *b, struct edit *out)
{
    char x[16][MAX_WORD], y[16][MAX_WORD];
    size_t n = split(a, x, 16), m = split(b, y, 16), head = 0, tail = 0;
    while (head < n && head < m && strcmp(x[head], y[head]) == 0)
        head++;
    while (tail < n - head && tail < m - head && strcmp(x[n - 1 - tail], y[m - 1 - tail]) == 0)
        tail++;
    if (head + tail == n || head + tail == m) { /* something is put in or left out: with its neighbour */
        if (tail > 0)
            tail--;
        else if (head > 0)
            head--;
    }
    join(out->old, x, head, n - tail);
    join(out->new, y, head, m - tail);
    return draft_plain(out->old) && draft_plain(out->new) && strlen(out->old) < MAX_WORD - 1 &&
           strlen(out->new) < MAX_WORD - 1 && strcmp(out->old, out->new) != 0;
}

static bool time_left(const struct drafting *x)
{
    return x->n_trials < MAX_TRIALS && clock_ns() < x->deadline_ns;
}

/* Runs the text with one edit; if that is better than anything so far, it is kept in *best. */
static int try_edit(struct drafting *x, const struct draft_trial *t, const struct edit *d, int which,
                    struct draft_trial *best, size_t *places, struct err *e)
{
    struct draft_trial n = {.file = t->file, .silenced = t->silenced, .nested = t->nested};
    *places = draft_replace(&t->text, &n.text, d->old, d->new, which);
    if (*places == 0 || !time_left(x)) {
        draft_trial_release(&n);
        return ERR_OK;
    }
    int rc = draft_measure(x, &n, e);
    if (!rc && n.loaded && n.score > t->score + MIN_BETTER && (!best->loaded || n.score > best->score)) {
        draft_trial_release(best);
        *best = n;
        return ERR_OK;
    }
    draft_trial_release(&n);
    return rc;
}

/* t becomes the better one; its notes stay. */
static void accept(struct draft_trial *t, struct draft_trial *better)
{
    for (size_t i = 0; i < t->n_notes; i++) {
        better->notes[better->n_notes++] = t->notes[i];
        t->notes[i] = NULL;
    }
    draft_trial_release(t);
    *t = *better;
}

/* Everywhere, then each place alone. better: t is the edited one now. */
static int try_everywhere(struct drafting *x, struct draft_trial *t, const struct edit *d, const char *what,
                          bool *better, struct err *e)
{
    struct draft_trial best = {0};
    size_t places = 0, ignored;
    int rc = try_edit(x, t, d, -1, &best, &places, e);
    for (int i = 0; !rc && places > 1 && i < MAX_PLACES && i < (int)places; i++)
        rc = try_edit(x, t, d, i, &best, &ignored, e);
    *better = !rc && best.loaded;
    if (*better) {
        accept(t, &best);
        draft_note(t, "%s %s is %s here", what, d->old, d->new);
    } else {
        draft_trial_release(&best);
    }
    return rc;
}

/* Several parts of a name at once, where one alone helps nothing: "self_attn.q_proj" and "attention.wq". */
static int try_parts(struct drafting *x, struct draft_trial *t, const struct edit *d, bool *better,
                     struct err *e)
{
    char old[MAX_PARTS][MAX_WORD], new[MAX_PARTS][MAX_WORD];
    size_t n = split(d->old, old, MAX_PARTS), edits = 0;
    struct draft_trial best = {.file = t->file, .silenced = t->silenced, .nested = t->nested};
    if (n < 2 || n == MAX_PARTS || n != split(d->new, new, MAX_PARTS) || !time_left(x))
        return ERR_OK;
    strbuf_add(&best.text, strbuf_cstr(&t->text), t->text.len);
    for (size_t i = 0; i < n; i++) {
        struct strbuf next = STRBUF_INIT;
        if (strcmp(old[i], new[i]) == 0)
            continue;
        edits += draft_replace(&best.text, &next, old[i], new[i], -1) > 0;
        strbuf_release(&best.text);
        best.text = next;
    }
    int rc = edits ? draft_measure(x, &best, e) : ERR_OK;
    if (rc || !best.loaded || best.score <= t->score + MIN_BETTER) {
        draft_trial_release(&best);
        return rc;
    }
    accept(t, &best);
    for (size_t i = 0; i < n; i++)
        if (strcmp(old[i], new[i]) != 0)
            draft_note(t, "the name %s is %s here", old[i], new[i]);
    *better = true;
    return ERR_OK;
}

/* ---- names */

struct pair {
    const char *absent, *there;
    unsigned distance;
};

static int nearest_first(const void *a, const void *b)
{
    const struct pair *x = a, *y = b;
    if (x->distance != y->distance)
        return x->distance < y->distance ? -1 : 1;
    int c = strcmp(x->absent, y->absent);
    return c ? c : strcmp(x->there, y->there);
}

/* As many of them, of as many dimensions. Another shape makes it less likely: a width may be wrong, too. */
static bool may_be_same(const struct draft_absent *a, const struct draft_pattern *p, unsigned *distance)
{
    if (p->n_claimed > 0 || a->n != p->n || a->n_dims != p->first->n_dims)
        return false;
    *distance = draft_distance(a->name, p->name);
    if (*distance > FAR)
        return false;
    for (uint32_t i = 0; i < a->n_dims; i++)
        *distance += a->dims[i] == p->first->dims[i] ? 0 : OTHER_WIDTH;
    return true;
}

/* Names that one side wants and the other has, of one shape and number; nearest first. */
static size_t find_pairs(const struct drafting *x, const struct draft_trial *t, struct pair *out)
{
    size_t n = 0;
    for (size_t i = 0; i < t->n_absent && i < MAX_ABSENT; i++) {
        const char *name = t->absent[i].name; /* of which there is nothing at all */
        if (strmap_get(&x->names.map, name, strlen(name), NULL))
            continue;
        for (size_t k = 0; k < x->names.n && k < MAX_THERE; k++) {
            const struct draft_pattern *p = &x->names.items[k];
            struct pair q = {name, p->name, 0};
            if (!may_be_same(&t->absent[i], p, &q.distance))
                continue;
            if (n == MAX_PAIRS && nearest_first(&q, &out[n - 1]) >= 0)
                continue;
            n -= n == MAX_PAIRS;
            out[n++] = q;
            qsort(out, n, sizeof *out, nearest_first);
        }
    }
    return n;
}

static int rename_one(struct drafting *x, struct draft_trial *t, bool *better, struct err *e)
{
    struct pair pairs[MAX_PAIRS];
    size_t n = find_pairs(x, t, pairs);
    int rc = ERR_OK;
    *better = false;
    for (size_t i = 0; i < n && !rc && !*better && time_left(x); i++) {
        struct edit d;
        if (difference(pairs[i].absent, pairs[i].there, &d))
            rc = try_everywhere(x, t, &d, "the name", better, e);
        if (!rc && !*better && difference(pairs[i].absent, pairs[i].there, &d))
            rc = try_parts(x, t, &d, better, e);
    }
    return rc;
}

void draft_promise(const struct drafting *x, struct draft_trial *t)
{
    double n = 0;
    t->promise = 0;
    for (size_t i = 0; t->loaded && i < t->n_absent && i < MAX_ABSENT && clock_ns() < x->deadline_ns; i++) {
        const char *name = t->absent[i].name;
        double like = 0;
        if (strmap_get(&x->names.map, name, strlen(name), NULL))
            continue;
        for (size_t k = 0; k < x->names.n && k < MAX_THERE && like < 1; k++) {
            unsigned distance;
            if (!may_be_same(&t->absent[i], &x->names.items[k], &distance))
                continue;
            if (distance <= ALIKE)
                like = 1;
            else if (distance % OTHER_WIDTH <= ALIKE) /* by name, of other widths */
                like = 0.5;
        }
        n += like;
    }
    if (x->names.n)
        t->promise = n < (double)x->names.n ? n / (double)x->names.n : 1;
}

/* ---- widths: a tensor has another shape, and the number it has stands in config.json too */

/* A key of config.json (or its part for the text) that tells a width, of value v. */
static const char *key_of(const struct drafting *x, int64_t v)
{
    const struct json *in[] = {x->c->config, json_get(x->c->config, "text_config")};
    for (size_t k = 0; k < ARRAY_LEN(in); k++) {
        for (uint32_t m = 0; in[k] && in[k]->type == JSON_OBJECT && m < in[k]->n; m++) {
            int64_t n;
            const struct json_member *member = &in[k]->as.members[m];
            bool width =
                strstr(member->key, "size") || strstr(member->key, "dim") || strstr(member->key, "rank");
            if (width && json_i64(&member->value, &n) && n == v && draft_plain(member->key))
                return member->key;
        }
    }
    return NULL;
}

/* The shape that the text gives to a tensor is only known by running it: the widths of the family are tried.
 */
static int width_one(struct drafting *x, struct draft_trial *t, bool *better, struct err *e)
{
    int rc = ERR_OK;
    unsigned tried = 0;
    *better = false;
    for (size_t i = 0; i < x->names.n && !rc && !*better; i++) {
        const struct draft_pattern *p = &x->names.items[i];
        if (p->n_misshapen == 0)
            continue;
        for (uint32_t d = 0; d < p->first->n_dims && !*better && !rc; d++) {
            const char *there = key_of(x, p->first->dims[d]);
            if (!there || (int64_t)p->first->dims[d] == x->hidden)
                continue;
            static const char *const widths[] = {"intermediate_size", "moe_intermediate_size", "head_dim"};
            for (size_t k = 0; k < ARRAY_LEN(widths) && !*better && !rc && tried < MAX_WIDTHS; k++) {
                struct edit one;
                if (strcmp(widths[k], there) == 0)
                    continue;
                tried++;
                snprintf(one.old, sizeof one.old, "%s", widths[k]);
                snprintf(one.new, sizeof one.new, "%.150s", there);
                rc = try_everywhere(x, t, &one, "the width", better, e);
            }
        }
    }
    return rc;
}

int draft_search(struct drafting *x, struct draft_trial *t, struct err *e)
{
    int rc = ERR_OK;
    bool better = true;
    for (unsigned i = 0; i < MAX_ROUNDS && better && !rc && time_left(x); i++) {
        rc = draft_measure(x, t, e); /* the patterns' counts are those of the last one run */
        if (!rc)
            rc = rename_one(x, t, &better, e);
        if (!rc && !better)
            rc = draft_measure(x, t, e);
        if (!rc && !better)
            rc = width_one(x, t, &better, e);
    }
    return rc ? rc : draft_measure(x, t, e);
}
