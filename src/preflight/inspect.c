/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: what a model is, in numbers from headers and description. Refuses to guess: every number is counted
 * or read.
 */
#include "preflight/preflight.h"

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
        if (!add_u64(out->dtypes[k].bytes, t->bytes, &out->dtypes[k].bytes))
            out->dtypes[k].bytes = UINT64_MAX;
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

int preflight_inspect(struct ckpt *c, const struct spec *s, struct preflight_inspection *out, struct err *e)
{
    *out = (struct preflight_inspection){
        .architecture = s->architecture,
        .model_type = s->model_type,
        .arch_file = s->arch_name,
        .arch_origin = arch_origin_name(s->origin),
        .arch_sha256 = s->arch_sha256,
        .parameters = s->parameters,
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
    out->n_degrees = plan_tp_degrees(s, out->degrees, PREFLIGHT_MAX_DEGREES);
    return ckpt_manifest_sha256(c, out->manifest_sha256, e);
}

static void write_arch_file(const struct preflight_inspection *x, struct json_writer *w)
{
    json_key(w, "arch_file");
    json_begin_object(w);
    json_put_string(w, "name", x->arch_file);
    json_put_string(w, "origin", x->arch_origin);
    json_put_string(w, "sha256", x->arch_sha256);
    json_end_object(w);
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
        json_put_u64(w, "count", x->operators[i].count);
        json_end_object(w);
    }
    json_end_array(w);
    json_key(w, "tp_degrees");
    json_begin_array(w);
    for (size_t i = 0; i < x->n_degrees; i++) {
        json_begin_object(w);
        json_put_u64(w, "tp", x->degrees[i].tp);
        json_put_bool(w, "legal", x->degrees[i].legal);
        json_put_bool(w, "exact", x->degrees[i].exact);
        json_put_string(w, "reason", x->degrees[i].reason);
        json_end_object(w);
    }
    json_end_array(w);
}

void preflight_write_inspection(const struct preflight_inspection *x, struct json_writer *w)
{
    json_begin_object(w);
    json_put_string(w, "architecture", x->architecture);
    json_put_string(w, "model_type", x->model_type);
    write_arch_file(x, w);
    json_put_string(w, "manifest_sha256", x->manifest_sha256);
    json_put_u64(w, "parameters", x->parameters);
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
    write_lists(x, w);
    json_end_object(w);
}
