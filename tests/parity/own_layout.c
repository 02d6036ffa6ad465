/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: InternVL's two layouts, key by key and name by name, in the direction library to own. Refuses: a
 * tensor or a key that it does not know: what was not carried over would not be compared.
 */
#include "own_layout.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"

struct rename {
    const char *library, *own; /* own NULL: has no counterpart and says nothing there */
};

/* ---- config.json ----------------------------------------------------------------------------------------
 */

static const struct rename top_keys[] = {
    {"dtype", "torch_dtype"},
    {"tie_word_embeddings", "tie_word_embeddings"},
    {"downsample_ratio", "downsample_ratio"},
    {"vision_feature_layer", "select_layer"},
    /* the own layout's code and tokenizer say these */
    {"image_token_id", NULL},
    {"image_seq_length", NULL},
    {"projector_hidden_act", NULL},
    {"vision_feature_select_strategy", NULL},
};

static const struct rename vision_keys[] = {
    {"hidden_size", "hidden_size"},
    {"intermediate_size", "intermediate_size"},
    {"num_attention_heads", "num_attention_heads"},
    {"num_hidden_layers", "num_hidden_layers"},
    {"patch_size", "patch_size"},
    {"num_channels", "num_channels"},
    {"image_size", "image_size"},
    {"hidden_act", "hidden_act"},
    {"attention_bias", "qkv_bias"},
    {"layer_norm_eps", "layer_norm_eps"},
    {"layer_scale_init_value", "initializer_factor"},
    {"norm_type", "norm_type"},
    {"use_qk_norm", "qk_normalization"},
    {"model_type", NULL},
    /* always so, in order: a table of places, no token for what is masked, no norm behind the last layer */
    {"use_absolute_position_embeddings", NULL},
    {"use_mask_token", NULL},
    {"use_mean_pooling", NULL},
};

static int put_keys(struct json_writer *w, const struct json *from, const struct rename *keys, size_t n,
                    struct err *e)
{
    for (uint32_t i = 0; i < from->n; i++) {
        const struct json_member *m = &from->as.members[i];
        const struct json *v = &m->value;
        size_t k = 0;
        while (k < n && strcmp(keys[k].library, m->key) != 0)
            k++;
        if (v->type == JSON_OBJECT || strcmp(m->key, "architectures") == 0 ||
            (strcmp(m->key, "model_type") == 0 && keys == top_keys))
            continue; /* written by hand */
        if (k == n)
            return err_set(e, ERR_FORMAT, "the own layout has no key for %s", m->key);
        if (keys[k].own == NULL)
            continue;
        json_key(w, keys[k].own);
        json_write_tree(w, v->type == JSON_ARRAY ? json_at(v, 0) : v); /* sides of squares are one number */
    }
    return ERR_OK;
}

static int write_config(const struct json *config, const char *path, struct err *e)
{
    bool no_norm = false;
    json_bool(json_get(json_get(config, "vision_config"), "use_mean_pooling"), &no_norm);
    if (!no_norm)
        return err_set(e, ERR_FORMAT, "the own layout cannot say that its tower ends in a norm");
    static const char *const texts[][2] = {{"qwen2", "Qwen2ForCausalLM"}, {"qwen3", "Qwen3ForCausalLM"}};
    const struct json *text = json_get(config, "text_config");
    const char *kind = json_string(json_get(text, "model_type"));
    struct strbuf out = STRBUF_INIT;
    struct json_writer w;
    json_writer_init(&w, &out, true);
    json_begin_object(&w);
    json_key(&w, "architectures");
    json_begin_array(&w);
    json_write_string(&w, "InternVLChatModel");
    json_end_array(&w);
    json_put_string(&w, "model_type", "internvl_chat");
    json_put_string(&w, "ps_version", "v2");
    int rc = put_keys(&w, config, top_keys, ARRAY_LEN(top_keys), e);
    json_key(&w, "vision_config");
    json_begin_object(&w);
    json_put_string(&w, "model_type", "intern_vit_6b");
    if (rc == 0)
        rc = put_keys(&w, json_get(config, "vision_config"), vision_keys, ARRAY_LEN(vision_keys), e);
    json_end_object(&w);
    json_key(&w, "llm_config");
    json_begin_object(&w);
    json_key(&w, "architectures");
    json_begin_array(&w);
    for (size_t i = 0; i < ARRAY_LEN(texts); i++)
        if (kind && strcmp(kind, texts[i][0]) == 0)
            json_write_string(&w, texts[i][1]);
    json_end_array(&w);
    for (uint32_t i = 0; text && i < text->n; i++) {
        json_key(&w, text->as.members[i].key);
        json_write_tree(&w, &text->as.members[i].value);
    }
    json_end_object(&w);
    json_end_object(&w);
    if (rc == 0)
        rc = strbuf_failed(&out) ? err_set(e, ERR_NOMEM, "no memory for %s", path)
                                 : file_write_atomic(path, out.data, out.len, e);
    strbuf_release(&out);
    return rc;
}

/* ---- tensors --------------------------------------------------------------------------------------------
 */

/* A name begins with `library` (behind "layer.N." where it stands in a block) and goes on behind it. */
static const struct rename outer_names[] = {
    {"vision_tower.embeddings.cls_token", "vision_model.embeddings.class_embedding"},
    {"vision_tower.embeddings.position_embeddings", "vision_model.embeddings.position_embedding"},
    {"vision_tower.embeddings.patch_embeddings.projection", "vision_model.embeddings.patch_embedding"},
    {"multi_modal_projector.layer_norm", "mlp1.0"},
    {"multi_modal_projector.linear_1", "mlp1.1"},
    {"multi_modal_projector.linear_2", "mlp1.3"},
    {"language_model.", "language_model."},
};

static const struct rename block_names[] = {
    {"layernorm_before", "norm1"},
    {"layernorm_after", "norm2"},
    {"lambda_1", "ls1"},
    {"lambda_2", "ls2"},
    {"attention.projection_layer", "attn.proj"},
    {"attention.q_norm", "attn.q_norm"},
    {"attention.k_norm", "attn.k_norm"},
    {"attention.q_proj", "attn.qkv"},
    {"mlp.", "mlp."},
};

struct rewriting {
    struct arena arena;
    struct ckpt *c;
    const char *order;
    struct st_entry *entries;
    size_t n;
};

static const char *renamed(struct arena *arena, const struct rename *list, size_t n, const char *before,
                           const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (str_starts(name, list[i].library))
            return arena_printf(arena, "%s%s%s", before, list[i].own, name + strlen(list[i].library));
    return NULL;
}

static const char *own_name(struct rewriting *r, const char *name)
{
    static const char blocks[] = "vision_tower.encoder.layer.";
    char before[64];
    unsigned layer = 0;
    int at = 0;
    if (!str_starts(name, blocks))
        return renamed(&r->arena, outer_names, ARRAY_LEN(outer_names), "", name);
    if (sscanf(name + strlen(blocks), "%u.%n", &layer, &at) != 1 || at == 0)
        return NULL;
    snprintf(before, sizeof before, "vision_model.encoder.layers.%u.", layer);
    return renamed(&r->arena, block_names, ARRAY_LEN(block_names), before, name + strlen(blocks) + at);
}

/* Of one of the three: its name with q, k or v in the place of what it has. */
static const struct ckpt_tensor *third(struct rewriting *r, const char *name, size_t at, char which)
{
    char other[256];
    snprintf(other, sizeof other, "%s", name);
    other[at] = which;
    return ckpt_find(r->c, other);
}

/* One tensor, or q, k and v behind each other. */
static int carry(struct rewriting *r, const struct ckpt_tensor *t, struct err *e)
{
    const char *three = strstr(t->name, ".attention.q_proj."), *name = own_name(r, t->name);
    const size_t parts = three ? 3 : 1;
    char *data = arena_alloc(&r->arena, parts * t->bytes + 1);
    if (!name || !data)
        return err_set(e, ERR_FORMAT, "the own layout has no name for %s", t->name);
    for (size_t i = 0; i < parts; i++) {
        const size_t at = three ? (size_t)(three - t->name) + strlen(".attention.") : 0;
        const struct ckpt_tensor *from = three ? third(r, t->name, at, r->order[i]) : t;
        if (!from || from->bytes != t->bytes)
            return err_set(e, ERR_FORMAT, "%s: no %c beside it", t->name, r->order[i]);
        int rc = ckpt_read(r->c, from, 0, data + i * t->bytes, t->bytes, e);
        if (rc)
            return rc;
    }
    struct st_entry *out = &r->entries[r->n++];
    *out = (struct st_entry){.name = name, .dtype = t->dtype, .n_dims = t->n_dims, .data = data};
    memcpy(out->dims, t->dims, sizeof out->dims);
    out->dims[0] *= (int64_t)parts;
    return ERR_OK;
}

static int rewrite_weights(struct rewriting *r, const char *path, struct err *e)
{
    static const char *const keys[] = {"format"}, *const values[] = {"pt"};
    r->entries = arena_alloc_n(&r->arena, r->c->n_tensors + 1, sizeof *r->entries);
    if (!r->entries)
        return err_set(e, ERR_NOMEM, "no memory for %zu tensors", r->c->n_tensors);
    for (size_t i = 0; i < r->c->n_tensors; i++) {
        const char *name = r->c->tensors[i].name;
        if (strstr(name, ".attention.k_proj.") || strstr(name, ".attention.v_proj."))
            continue; /* they go with q_proj */
        int rc = carry(r, &r->c->tensors[i], e);
        if (rc)
            return rc;
    }
    return st_write(path, r->entries, r->n, keys, values, 1, e);
}

int own_layout_rewrite(const char *dir, const char *order, struct d0 *d0, struct err *e)
{
    struct rewriting r = {.order = order};
    struct findings f;
    char weights[512], config[512];
    snprintf(weights, sizeof weights, "%s/model.safetensors", dir);
    snprintf(config, sizeof config, "%s/config.json", dir);
    arena_init(&r.arena, NULL, MEM_MISC);
    findings_init(&f, NULL);
    int rc = ckpt_open(&r.c, dir, &f, d0, e);
    if (rc == 0)
        rc = rewrite_weights(&r, weights, e);
    if (rc == 0)
        rc = write_config(r.c->config, config, e);
    ckpt_close(r.c);
    findings_release(&f);
    arena_release(&r.arena);
    return rc;
}
