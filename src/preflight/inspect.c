/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: what a model is, in numbers from headers and description. Refuses to guess: every number is counted
 * or read.
 */
#include "preflight/preflight.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int most_bytes_first(const void *x, const void *y)
{
    const struct preflight_dtype *a = x, *b = y;
    if (a->bytes != b->bytes)
        return a->bytes > b->bytes ? -1 : 1;
    return a->dtype < b->dtype ? -1 : a->dtype > b->dtype;
}

static void count_dtypes(const struct ckpt *c, struct preflight_inspection *out)
{
    for (size_t i = 0; i < c->n_tensors; i++) {
        const struct ckpt_tensor *t = &c->tensors[i];
        size_t k = 0;
        while (k < out->n_dtypes && out->dtypes[k].dtype != t->dtype)
            k++;
        if (k == PREFLIGHT_MAX_DTYPES)
            k--;
        if (k == out->n_dtypes)
            out->dtypes[out->n_dtypes++].dtype = t->dtype;
        out->dtypes[k].n_tensors++;
        out->dtypes[k].bytes = sat_add(out->dtypes[k].bytes, t->bytes);
    }
    if (out->n_dtypes > 1)
        qsort(out->dtypes, out->n_dtypes, sizeof(out->dtypes[0]), most_bytes_first);
}

static void count_operators(const struct graph *g, struct preflight_inspection *out)
{
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        const struct op_info *op = op_find(g->nodes[i].op);
        const char *name = op ? op->name : "?";
        size_t k = 0;
        while (k < out->n_operators && strcmp(out->operators[k].name, name) != 0)
            k++;
        if (k == PREFLIGHT_MAX_OPERATORS)
            k--;
        if (k == out->n_operators)
            out->operators[out->n_operators++].name = name;
        out->operators[k].count++;
    }
}

/* Weights by storage scheme, experts one by one. */
static void count_schemes(const struct spec *s, struct preflight_inspection *out)
{
    for (size_t i = 0; i < s->n_weights; i++) {
        const char *name = spec_scheme_name(s->weights[i].form.scheme);
        size_t k = 0;
        while (k < out->n_schemes && strcmp(out->schemes[k].name, name) != 0)
            k++;
        if (k == ARRAY_LEN(out->schemes))
            k--;
        if (k == out->n_schemes)
            out->schemes[out->n_schemes++] = (struct preflight_operator){.name = name};
        out->schemes[k].count += s->weights[i].count;
    }
}

int preflight_inspect(struct ckpt *c, const struct spec *s, struct arena *arena,
                      struct preflight_inspection *out, struct err *e)
{
    *out = (struct preflight_inspection){
        .architecture = s->architecture,
        .model_type = s->model_type,
        .arch_file = s->arch_name,
        .arch_origin = arch_origin_name(s->origin),
        .arch_sha256 = s->arch_sha256,
        .parameters = s->parameters,
        .active_parameters = s->active_parameters,
        .described_tensors = s->n_physical,
        .described_bytes = s->tensor_bytes,
        .state_bytes = s->state_bytes,
        .n_experts = s->n_experts,
        .n_tensors = c->n_tensors,
        .n_shards = c->n_shards,
        .weight_bytes = c->total_bytes,
        .n_layers = s->n_layers,
        .hidden = s->hidden,
        .intermediate = s->intermediate,
        .n_heads = s->n_heads,
        .n_kv_heads = s->n_kv_heads,
        .head_dim = s->head_dim,
        .vocab = s->vocab_size,
        .context_limit = s->max_positions,
        .tied_embeddings = s->tied_embeddings,
        .kv_dtype = s->kv_dtype,
        .kv_bytes_per_token = s->kv_bytes_per_token,
    };
    count_dtypes(c, out);
    count_operators(s->graph, out);
    for (size_t i = 0; i < s->n_outside; i++)
        if (out->n_operators < PREFLIGHT_MAX_OPERATORS)
            out->operators[out->n_operators++] = (struct preflight_operator){
                .name = s->outside[i].op, .group = s->outside[i].group, .count = s->outside[i].count};
    count_schemes(s, out);
    out->n_activations = spec_activations_asked(s, out->activations);
    int rc = plan_degrees(s, arena, &out->layouts, e);
    return rc ? rc : ckpt_manifest_sha256(c, out->manifest_sha256, e);
}

/* ---- tensors ---- */

struct tensor_lines {
    preflight_sink sink;
    void *ctx;
};

static void print_dims(char *buf, size_t bytes, const int64_t *dims, uint32_t n)
{
    size_t at = 0;
    buf[0] = 0;
    for (uint32_t i = 0; i < n && at < bytes; i++)
        at += (size_t)snprintf(buf + at, bytes - at, "%s%lld", i ? "," : "", (long long)dims[i]);
}

static int stored_line(void *ctx, const struct spec_tensor *t)
{
    const struct tensor_lines *x = ctx;
    char dims[200], line[800];
    print_dims(dims, sizeof dims, t->dims, t->n_dims);
    const struct spec_weight *w = t->weight;
    int n = snprintf(line, sizeof line, "%s\t%s\t%s\t%s\t%s\t%s\t%llu\n", t->name, dtype_name(t->dtype), dims,
                     spec_role_name(t->role), partition_name(w->part), spec_group_name(w->group),
                     (unsigned long long)t->bytes);
    return n > 0 && (size_t)n < sizeof line ? x->sink(x->ctx, line, (size_t)n) : 0;
}

static int logical_line(void *ctx, const char *name, const struct spec_weight *w)
{
    const struct tensor_lines *x = ctx;
    char dims[200], line[800];
    if (w->group == GROUP_MTP)
        return 0;
    print_dims(dims, sizeof dims, w->dims, w->n_dims);
    int n = snprintf(line, sizeof line, "%s\t%s\n", name, dims);
    return n > 0 && (size_t)n < sizeof line ? x->sink(x->ctx, line, (size_t)n) : 0;
}

int preflight_tensors(const struct ckpt *c, const struct spec *s, bool logical, preflight_sink sink,
                      void *ctx)
{
    struct tensor_lines x = {.sink = sink, .ctx = ctx};
    return logical ? spec_each_logical(s, logical_line, &x) : spec_physical(s, c, stored_line, &x);
}

/* ---- JSON ---- */

static void write_arch_file(const struct preflight_inspection *x, struct json_writer *w)
{
    json_key(w, "arch_file");
    json_begin_object(w);
    json_put_string(w, "name", x->arch_file);
    json_put_string(w, "origin", x->arch_origin);
    json_put_string(w, "sha256", x->arch_sha256);
    json_end_object(w);
}

/* A line for each degree, also in a document of a value a line: there may be thousands. */
static void write_degrees(const char *key, const char *name, const struct plan_degree *d, size_t n,
                          struct json_writer *w)
{
    json_key(w, key);
    json_begin_array(w);
    bool pretty = w->pretty;
    for (size_t i = 0; i < n; i++) {
        json_begin_object(w);
        w->pretty = false;
        json_put_u64(w, name, d[i].degree);
        json_put_bool(w, "legal", d[i].legal);
        json_put_bool(w, "exact", d[i].exact);
        json_put_string(w, "reason", d[i].reason);
        json_end_object(w);
        w->pretty = pretty;
    }
    json_end_array(w);
}

void preflight_write_layouts(const struct plan_degrees *d, struct json_writer *w)
{
    write_degrees("tp_degrees", "tp", d->tp, d->n_tp, w);
    write_degrees("ep_degrees", "ep", d->ep, d->n_ep, w);
}

void preflight_write_activations(const struct spec_asked *asked, size_t n, struct json_writer *w)
{
    json_key(w, "released_activations");
    json_begin_array(w);
    for (size_t i = 0; i < n; i++) {
        json_begin_object(w);
        json_put_string(w, "rounding", asked[i].name);
        json_put_u64(w, "weights", asked[i].weights);
        json_end_object(w);
    }
    json_end_array(w);
}

static void write_lists(const struct preflight_inspection *x, struct json_writer *w)
{
    json_key(w, "dtypes");
    json_begin_array(w);
    for (size_t i = 0; i < x->n_dtypes; i++) {
        json_begin_object(w);
        json_put_string(w, "dtype", x->dtypes[i].dtype ? dtype_name(x->dtypes[i].dtype) : "unknown");
        json_put_u64(w, "tensors", x->dtypes[i].n_tensors);
        json_put_u64(w, "bytes", x->dtypes[i].bytes);
        json_end_object(w);
    }
    json_end_array(w);
    json_key(w, "operators");
    json_begin_array(w);
    for (size_t i = 0; i < x->n_operators; i++) {
        json_begin_object(w);
        json_put_string(w, "op", x->operators[i].name);
        if (x->operators[i].group)
            json_put_string(w, "group", x->operators[i].group);
        json_put_u64(w, "count", x->operators[i].count);
        json_end_object(w);
    }
    json_end_array(w);
    json_key(w, "schemes");
    json_begin_array(w);
    for (size_t i = 0; i < x->n_schemes; i++) {
        json_begin_object(w);
        json_put_string(w, "scheme", x->schemes[i].name);
        json_put_u64(w, "weights", x->schemes[i].count);
        json_end_object(w);
    }
    json_end_array(w);
    preflight_write_activations(x->activations, x->n_activations, w);
    preflight_write_layouts(&x->layouts, w);
}

void preflight_write_inspection(const struct preflight_inspection *x, struct json_writer *w)
{
    json_begin_object(w);
    json_put_string(w, "architecture", x->architecture);
    json_put_string(w, "model_type", x->model_type);
    write_arch_file(x, w);
    json_put_string(w, "manifest_sha256", x->manifest_sha256);
    json_put_u64(w, "parameters", x->parameters);
    json_put_u64(w, "active_parameters", x->active_parameters);
    json_put_u64(w, "described_tensors", x->described_tensors);
    json_put_u64(w, "described_bytes", x->described_bytes);
    json_put_u64(w, "tensors", x->n_tensors);
    json_put_u64(w, "shards", x->n_shards);
    json_put_u64(w, "weight_bytes", x->weight_bytes);
    json_put_i64(w, "layers", x->n_layers);
    json_put_i64(w, "hidden", x->hidden);
    json_put_i64(w, "intermediate", x->intermediate);
    json_put_i64(w, "heads", x->n_heads);
    json_put_i64(w, "kv_heads", x->n_kv_heads);
    json_put_i64(w, "head_dim", x->head_dim);
    json_put_i64(w, "vocab", x->vocab);
    json_put_bool(w, "tied_embeddings", x->tied_embeddings);
    json_put_i64(w, "context_limit", x->context_limit);
    json_put_string(w, "kv_dtype", dtype_name(x->kv_dtype));
    json_put_u64(w, "kv_bytes_per_token", x->kv_bytes_per_token);
    json_put_u64(w, "state_bytes_per_request", x->state_bytes);
    json_put_u64(w, "experts", x->n_experts);
    write_lists(x, w);
    json_end_object(w);
}
