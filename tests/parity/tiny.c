/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: how a tiny checkpoint is made. For each tensor of the inventory the first rule whose pattern matches
 * its name (those of the family, then those of fill.json) says offset, spread and, with "fan", over which
 * dimension from the end the spread is divided by the root of the extent. Element i of the tensor is
 *
 *     bits = rng_u64(seed ^ fnv1a64(name), i), cut into four numbers of 16 bits
 *     z    = (their sum - 131070) / 37837                    mean 0, deviation 1, within 3.47
 *     x    = bfloat16(float32(offset + spread * z))           stored as the type that the inventory expects
 *
 * so that stored as F32 or BF16 a weight is the same number. A rule with "below" fills an integer table
 * instead: element j of row r is (rng_u64(.., r) + j) % below: different within a row. A rule with "type"
 * is for tensors of that type only. Quantised weights are not rounded from numbers: "codes" writes the bytes
 * of rng_u64(.., 0), rng_u64(.., 1), .. as they are, or with "below" base + byte % below (of F8_E4M3 without
 * its sign bit, which stays unless the rule is "positive"), and "shape" writes rows and columns. Refuses: a
 * tensor that no rule matches.
 */
#include "tiny.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"

/* ---- the data files ---- */

static int read_json(struct tiny *t, const char *path, const struct json **out, struct err *e)
{
    char *text;
    size_t n;
    int rc = file_read(path, 1 << 20, &t->arena, &text, &n, e);
    if (rc == 0)
        rc = json_parse(text, n, NULL, &t->arena, out, e);
    if (rc)
        err_ctx(e, "reading %s", path);
    return rc;
}

int tiny_open(struct tiny *t, const char *tree, const char *family, struct err *e)
{
    char path[512];
    *t = (struct tiny){.family = family};
    arena_init(&t->arena, NULL, MEM_MISC);
    snprintf(path, sizeof path, "%s/fill.json", tree);
    int rc = read_json(t, path, &t->common, e);
    snprintf(path, sizeof path, "%s/tiny/%s.json", tree, family);
    if (rc == 0)
        rc = read_json(t, path, &t->root, e);
    if (rc == 0 && (!json_u64(json_get(t->root, "seed"), &t->seed) || !json_get(t->root, "config")))
        rc = err_set(e, ERR_FORMAT, "%s: seed or config is missing", path);
    if (rc)
        tiny_close(t);
    return rc;
}

void tiny_close(struct tiny *t)
{
    arena_release(&t->arena);
}

/* ---- config.json ---- */

static void write_merged(struct json_writer *w, const struct json *base, const struct json *patch)
{
    if (!patch || !base || patch->type != JSON_OBJECT || base->type != JSON_OBJECT) {
        json_write_tree(w, patch ? patch : base);
        return;
    }
    json_begin_object(w);
    for (uint32_t i = 0; i < base->n; i++) {
        const struct json_member *m = &base->as.members[i];
        const struct json *p = json_get(patch, m->key);
        if (p && p->type == JSON_NULL)
            continue;
        json_key(w, m->key);
        write_merged(w, &m->value, p);
    }
    for (uint32_t i = 0; i < patch->n; i++) {
        const struct json_member *m = &patch->as.members[i];
        if (json_get(base, m->key) || m->value.type == JSON_NULL)
            continue;
        json_key(w, m->key);
        json_write_tree(w, &m->value);
    }
    json_end_object(w);
}

int tiny_write_config(const struct tiny *t, const char *dir, const struct json *patch, struct err *e)
{
    struct strbuf text = STRBUF_INIT;
    struct json_writer w;
    char path[512];
    snprintf(path, sizeof path, "%s/config.json", dir);
    json_writer_init(&w, &text, true);
    write_merged(&w, json_get(t->root, "config"), patch);
    strbuf_putc(&text, '\n');
    int rc = strbuf_failed(&text) ? err_set(e, ERR_NOMEM, "no memory for %s", path)
                                  : file_write_atomic(path, text.data, text.len, e);
    strbuf_release(&text);
    return rc;
}

/* ---- the model that the files describe ---- */

int tiny_model_open(struct tiny_model *m, const char *dir, struct d0 *d0, struct err *e)
{
    return tiny_model_open_pages(m, dir, D0_F32, d0, e);
}

int tiny_model_open_pages(struct tiny_model *m, const char *dir, uint32_t kv_dtype, struct d0 *d0,
                          struct err *e)
{
    const struct spec_options o = {.kv_dtype = kv_dtype};
    *m = (struct tiny_model){.c = NULL};
    findings_init(&m->f, NULL);
    int rc = ckpt_open(&m->c, dir, &m->f, d0, e);
    if (rc == 0)
        rc = spec_open(&m->s, m->c, &o, &m->f, d0, e);
    if (rc == 0 && !m->s) {
        const struct finding *f = m->f.n ? &m->f.items[m->f.n - 1] : NULL;
        rc = err_set(e, ERR_FORMAT, "not described: %s: %s", f ? f->subject : "?", f ? f->evidence : "?");
    }
    return rc;
}

void tiny_model_close(struct tiny_model *m)
{
    spec_close(m->s);
    ckpt_close(m->c);
    findings_release(&m->f);
}

/* ---- weights ---- */

static bool matches(const char *pattern, const char *name)
{
    for (; *pattern; pattern++, name++) {
        if (*pattern == '*') {
            for (;; name++) {
                if (matches(pattern + 1, name))
                    return true;
                if (!*name)
                    return false;
            }
        }
        if (*pattern != *name)
            return false;
    }
    return !*name;
}

/* A tensor to be written, and the extent of the weight that it belongs to. */
struct piece {
    struct st_entry *entry;
    int64_t rows, columns;
};

static const struct json *rule_in(const struct json *list, const struct st_entry *w)
{
    for (size_t i = 0; list && i < list->n; i++) {
        const char *pattern = json_string(json_get(json_at(list, i), "match"));
        const char *type = json_string(json_get(json_at(list, i), "type"));
        if (pattern && matches(pattern, w->name) && (!type || strcmp(type, dtype_name(w->dtype)) == 0))
            return json_at(list, i);
    }
    return NULL;
}

static uint64_t fnv1a64(const char *s)
{
    uint64_t h = 0xCBF29CE484222325u;
    for (; *s; s++)
        h = (h ^ (uint8_t)*s) * 0x100000001B3u;
    return h;
}

static float bfloat16_of(double x)
{
    float f = (float)x;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000u;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static int fill_table(const struct st_entry *t, const struct json *rule, uint64_t seed, int64_t *out,
                      size_t n, struct err *e)
{
    uint64_t below;
    int64_t width = t->n_dims ? t->dims[t->n_dims - 1] : 1;
    if (!json_u64(json_get(rule, "below"), &below) || below == 0 || width <= 0)
        return err_set(e, ERR_FORMAT, "%s: its rule says no \"below\"", t->name);
    for (size_t i = 0; i < n; i++)
        out[i] = (int64_t)((rng_u64(seed, i / (size_t)width) + i % (size_t)width) % below);
    return ERR_OK;
}

static int fill_shape(const struct piece *p, void *out, struct err *e)
{
    const int64_t wide[2] = {p->rows, p->columns};
    const int32_t narrow[2] = {(int32_t)p->rows, (int32_t)p->columns};
    if (p->entry->dtype != D0_I64 && p->entry->dtype != D0_I32)
        return err_set(e, ERR_UNSUPPORTED, "%s: type %s", p->entry->name, dtype_name(p->entry->dtype));
    memcpy(out, p->entry->dtype == D0_I64 ? (const void *)wide : narrow,
           p->entry->dtype == D0_I64 ? sizeof wide : sizeof narrow);
    return ERR_OK;
}

static void fill_codes(const struct st_entry *t, const struct json *rule, uint64_t seed, uint8_t *out,
                       size_t bytes)
{
    uint64_t below = 0, base = 0;
    bool positive = false;
    json_bool(json_get(rule, "positive"), &positive);
    json_u64(json_get(rule, "below"), &below);
    json_u64(json_get(rule, "base"), &base);
    for (size_t i = 0; i < bytes; i++) {
        uint8_t b = (uint8_t)(rng_u64(seed, i / 8) >> 8 * (i % 8));
        uint8_t sign = t->dtype == D0_F8_E4M3 && !positive ? b & 0x80 : 0;
        out[i] = below ? (uint8_t)(sign | (base + (b ^ sign) % below)) : b;
    }
}

static int fill(const struct tiny *t, const struct piece *p, void *out, size_t bytes, struct err *e)
{
    const struct st_entry *w = p->entry;
    const struct json *rule = rule_in(json_get(t->root, "fill"), w);
    size_t n = bytes * 8 / dtype_bits(w->dtype);
    double offset = 0, spread = 0;
    int64_t fan = 0;
    uint64_t seed = t->seed ^ fnv1a64(w->name);
    if (!rule)
        rule = rule_in(t->common, w);
    if (!rule)
        return err_set(e, ERR_MISSING, "%s: no rule fills it", w->name);
    if (json_get(rule, "shape") && n == 2)
        return fill_shape(p, out, e);
    if (json_get(rule, "codes")) {
        fill_codes(w, rule, seed, out, bytes);
        return ERR_OK;
    }
    if (w->dtype == D0_I64)
        return fill_table(w, rule, seed, out, n, e);
    json_f64(json_get(rule, "offset"), &offset);
    json_f64(json_get(rule, "spread"), &spread);
    json_i64(json_get(rule, "fan"), &fan);
    if (fan > 0 && fan <= w->n_dims)
        spread /= sqrt((double)w->dims[w->n_dims - fan]);
    float *x = malloc((n ? n : 1) * sizeof *x);
    if (!x)
        return err_set(e, ERR_NOMEM, "no memory for %zu weights", n);
    for (size_t i = 0; i < n; i++) {
        uint64_t b = rng_u64(seed, i);
        double sum = (double)((b & 0xFFFF) + (b >> 16 & 0xFFFF) + (b >> 32 & 0xFFFF) + (b >> 48));
        x[i] = bfloat16_of(offset + spread * ((sum - 131070) / 37837));
    }
    bool fits = tensor_from_f32(x, n, w->dtype, out);
    free(x);
    return fits ? ERR_OK : err_set(e, ERR_UNSUPPORTED, "%s: type %s", w->name, dtype_name(w->dtype));
}

struct collect {
    struct arena *arena;
    struct st_entry *entries;
    struct piece *pieces;
    size_t n, capacity;
};

static int collect_one(void *ctx, const struct spec_tensor *t)
{
    struct collect *c = ctx;
    if (t->weight->group == GROUP_MTP)
        return 0; /* the library leaves drafting layers out */
    if (c->n == c->capacity)
        return ERR_LIMIT;
    const struct spec_weight *of = t->weight;
    struct st_entry *w = &c->entries[c->n];
    c->pieces[c->n++] = (struct piece){.entry = w,
                                       .rows = of->n_dims > 1 ? of->dims[of->n_dims - 2] : 1,
                                       .columns = of->n_dims ? of->dims[of->n_dims - 1] : 1};
    *w = (struct st_entry){.name = arena_strdup(c->arena, t->name), .dtype = t->dtype, .n_dims = t->n_dims};
    memcpy(w->dims, t->dims, sizeof w->dims);
    return w->name ? 0 : ERR_NOMEM;
}

/* Some files tell layouts apart by a tensor that is there ("names"): shown to them as empty ones first. */
static int write_names(const struct tiny *t, const char *path, struct err *e)
{
    static const float zero;
    const struct json *names = json_get(t->root, "names");
    struct st_entry w[16];
    size_t n = names ? names->n : 0;
    if (n > ARRAY_LEN(w))
        return err_set(e, ERR_LIMIT, "%zu names, at most %zu", n, ARRAY_LEN(w));
    for (size_t i = 0; i < n; i++)
        w[i] = (struct st_entry){
            .name = json_string(json_at(names, i)), .dtype = D0_F32, .n_dims = 1, .dims = {1}, .data = &zero};
    return n ? st_write(path, w, n, NULL, NULL, 0, e) : ERR_OK;
}

static int write_weights(const struct tiny *t, const char *path, const struct spec *s, struct ckpt *ck,
                         struct err *e)
{
    static const char *const keys[] = {"format"}, *const values[] = {"pt"};
    struct arena arena;
    arena_init(&arena, NULL, MEM_MISC);
    struct collect c = {.arena = &arena, .capacity = 8192};
    c.entries = arena_alloc_n(&arena, c.capacity, sizeof *c.entries);
    c.pieces = arena_alloc_n(&arena, c.capacity, sizeof *c.pieces);
    int rc = c.entries && c.pieces ? spec_physical(s, ck, collect_one, &c) : ERR_NOMEM;
    if (rc)
        err_set(e, rc, "cannot list the tensors of %s", t->family);
    for (size_t i = 0; rc == 0 && i < c.n; i++) {
        uint64_t bytes = 0;
        void *data = shape_bytes(c.entries[i].dims, c.entries[i].n_dims, c.entries[i].dtype, &bytes) &&
                             bytes < 1u << 30
                         ? arena_alloc(&arena, (size_t)bytes)
                         : NULL;
        c.entries[i].data = data;
        rc = data ? fill(t, &c.pieces[i], data, (size_t)bytes, e)
                  : err_set(e, ERR_NOMEM, "no memory for %s", c.entries[i].name);
    }
    if (rc == 0)
        rc = st_write(path, c.entries, c.n, keys, values, 1, e);
    arena_release(&arena);
    return rc;
}

int tiny_write_patched(const struct tiny *t, const char *dir, const struct json *patch, struct d0 *d0,
                       struct err *e)
{
    char path[512];
    struct tiny_model m = {.c = NULL};
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    int rc = tiny_write_config(t, dir, patch, e);
    if (rc == 0)
        rc = write_names(t, path, e);
    if (rc)
        return rc;
    rc = tiny_model_open(&m, dir, d0, e);
    if (rc == 0)
        rc = write_weights(t, path, m.s, m.c, e);
    tiny_model_close(&m);
    return rc;
}

int tiny_write(const struct tiny *t, const char *dir, struct d0 *d0, struct err *e)
{
    return tiny_write_patched(t, dir, NULL, d0, e);
}

int tiny_write_halves(struct tiny *t, const char *dir, struct d0 *d0, struct err *e)
{
    static const char flat[] = "{\"dtype\": \"bfloat16\"}",
                      nested[] = "{\"dtype\": \"bfloat16\", \"text_config\": {\"dtype\": \"bfloat16\"}}";
    bool in_text = json_get(json_get(t->root, "config"), "text_config") != NULL;
    const struct json *patch;
    int rc = json_parse(in_text ? nested : flat, in_text ? sizeof nested - 1 : sizeof flat - 1, NULL,
                        &t->arena, &patch, e);
    return rc ? rc : tiny_write_patched(t, dir, patch, d0, e);
}

int32_t tiny_image_token(const struct tiny *t, const struct spec *s)
{
    int64_t id = s->tower.image_token;
    if (id < 0)
        json_i64(json_get(json_get(t->root, "config"), "image_token_id"), &id);
    return (int32_t)id;
}

void tiny_remove(const char *dir)
{
    static const char *const names[] = {"config.json", "model.safetensors"};
    char path[128];
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        unlink(path);
    }
    rmdir(dir);
}

int tiny_families(const char *tree, struct arena *arena, char ***names, size_t *n, struct err *e)
{
    char path[512];
    snprintf(path, sizeof path, "%s/tiny", tree);
    int rc = dir_list(path, arena, names, n, e);
    for (size_t i = 0; rc == 0 && i < *n; i++) {
        char *dot = strstr((*names)[i], ".json");
        if (!dot)
            return err_set(e, ERR_FORMAT, "%s is no tiny model", (*names)[i]);
        *dot = 0;
    }
    return rc;
}

int tiny_make(struct tiny *t, struct tiny_model *m, const char *tree, const char *family, const char *dir,
              struct d0 *d0, struct err *e)
{
    int rc = tiny_open(t, tree, family, e);
    if (rc == 0)
        rc = tiny_write(t, dir, d0, e);
    if (rc == 0)
        rc = tiny_model_open(m, dir, d0, e);
    if (rc == 0 && findings_failed(&m->f))
        rc = err_set(e, ERR_FORMAT, "%s: %s", m->f.items[0].subject, m->f.items[0].evidence);
    return rc;
}
