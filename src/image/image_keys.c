/* SPDX-License-Identifier: Apache-2.0
 *
 * From the keys of an image processor, in old and new spellings, to `struct options`. Owns nothing. Refuses
 * what it does not know by name: a key that nobody reads is a picture that differs in silence.
 *
 * Source of names and spellings: transformers 5.24, image_processing_*.py; of the Kimi keys: the releases'
 * own media_proc_cfg.
 */
#include <math.h>
#include <string.h>

#include "image/image_options.h"

enum key_type {
    BOOL,
    F64,
    TRIPLE,
    FILTER,
    SIZE,
    SIDE,
    U32,
    U64,
    AREA,
    PINPOINTS,
    BACKGROUND,
    STAGE,
    SAME,
    DEAD
};

static const struct key {
    const char *name;
    enum key_type type;
    size_t at;        /* in struct options */
    const char *same; /* SAME: the value that is understood */
    unsigned rules;   /* that read it, as bits */
} keys[] = {
#define OF(rule)                         (1U << IMAGE_##rule)
#define KEY(name, type, field)           {name, type, offsetof(struct options, field), NULL, ~0U},
#define KEY_OF(rules, name, type, field) {name, type, offsetof(struct options, field), NULL, rules},
#define SAME(name, value)                {name, SAME, 0, value, ~0U},
#define DEAD(name)                       {name, DEAD, 0, NULL, 0},
#include "image/image_keys.def"
#undef OF
#undef KEY
#undef KEY_OF
#undef SAME
#undef DEAD
};

int image_key_wrong(struct err *e, const char *key, const char *what)
{
    return err_set(e, ERR_FORMAT, "image processor: \"%s\" is not %s", key, what);
}

static bool whole(const struct json *v, uint64_t most, uint64_t *out)
{
    double d;
    if (json_u64(v, out))
        return *out <= most;
    if (!v || v->type != JSON_DOUBLE || !json_f64(v, &d) || d < 0 || d > (double)most || d != floor(d))
        return false;
    *out = (uint64_t)d;
    return true;
}

bool image_side_of(const struct json *v, uint32_t *out)
{
    uint64_t a, b;
    if (v && v->type == JSON_OBJECT && json_get(v, "longest_edge"))
        v = json_get(v, "longest_edge");
    if (v && v->type == JSON_OBJECT) {
        if (!whole(json_get(v, "height"), UINT32_MAX, &a) || !whole(json_get(v, "width"), UINT32_MAX, &b) ||
            a != b)
            return false;
    } else if (v && v->type == JSON_ARRAY && v->n == 2) {
        if (!whole(json_at(v, 0), UINT32_MAX, &a) || !whole(json_at(v, 1), UINT32_MAX, &b) || a != b)
            return false;
    } else if (!whole(v, UINT32_MAX, &a)) {
        return false;
    }
    *out = (uint32_t)a;
    return true;
}

/* Bounds of the area have names of their own in old files of IMAGE_SMART, and mean nothing to others. */
static int read_size(const char *key, const struct json *v, enum image_rule rule, struct image_size *out,
                     struct err *e)
{
    struct image_size s = {0};
    uint64_t n;
    if (v->type == JSON_OBJECT) {
        for (uint32_t i = 0; i < v->n; i++) {
            const struct json_member *m = &v->as.members[i];
            static const struct {
                const char *name;
                size_t at;
            } parts[] = {
                {"height", offsetof(struct image_size, height)},
                {"width", offsetof(struct image_size, width)},
                {"max_height", offsetof(struct image_size, max_height)},
                {"max_width", offsetof(struct image_size, max_width)},
                {"shortest_edge", offsetof(struct image_size, shortest)},
                {"longest_edge", offsetof(struct image_size, longest)},
                {"min_pixels", offsetof(struct image_size, shortest)}, /* of Qwen before 5.0 */
                {"max_pixels", offsetof(struct image_size, longest)},
            };
            size_t p = 0;
            while (p < ARRAY_LEN(parts) && strcmp(parts[p].name, m->key) != 0)
                p++;
            if (m->value.type == JSON_NULL)
                continue;
            if (p == ARRAY_LEN(parts) || (rule != IMAGE_SMART && strstr(m->key, "_pixels")))
                return err_set(e, ERR_UNSUPPORTED,
                               "image processor: \"%s\" has a part \"%s\" that is not known", key, m->key);
            if (!whole(&m->value, UINT64_C(1) << 40, (uint64_t *)((char *)&s + parts[p].at)))
                return image_key_wrong(e, key, "made of numbers of pixels");
        }
        if ((s.height || s.width) + (s.shortest || s.longest) + (s.max_height || s.max_width) > 1)
            return err_set(e, ERR_UNSUPPORTED, "image processor: \"%s\" says sides in more than one way",
                           key);
    } else if (v->type == JSON_ARRAY && v->n == 2) {
        if (!whole(json_at(v, 0), UINT32_MAX, &s.height) || !whole(json_at(v, 1), UINT32_MAX, &s.width))
            return image_key_wrong(e, key, "made of numbers of pixels");
    } else if (whole(v, UINT32_MAX, &n)) { /* old spelling; what a bare number means is up to the processor */
        s = (struct image_size){.height = n, .width = n, .shortest = n};
    } else {
        return image_key_wrong(e, key, "a size");
    }
    *out = s;
    return ERR_OK;
}

static int read_triple(const char *key, const struct json *v, double *out, struct err *e)
{
    for (size_t c = 0; c < 3; c++) {
        const struct json *one = v->type == JSON_ARRAY ? json_at(v, c) : v;
        if ((v->type == JSON_ARRAY && v->n != 3) || !json_f64(one, &out[c]) || !isfinite(out[c]) ||
            fabs(out[c]) > 1e6)
            return image_key_wrong(e, key, "a number or three");
    }
    return ERR_OK;
}

static int read_pinpoints(const char *key, const struct json *v, struct options *o, struct err *e)
{
    if (v->type != JSON_ARRAY || !v->n)
        return image_key_wrong(e, key, "a list of sizes");
    if (v->n > IMAGE_MAX_PINPOINTS)
        return err_set(e, ERR_LIMIT, "image processor: more than %d \"%s\"", IMAGE_MAX_PINPOINTS, key);
    for (uint32_t i = 0; i < v->n; i++)
        for (uint32_t j = 0; j < 2; j++) {
            const struct json *pair = json_at(v, i);
            uint64_t n;
            if (pair->type != JSON_ARRAY || pair->n != 2 || !whole(json_at(pair, j), IMAGE_MAX_SIDE, &n) ||
                !n)
                return image_key_wrong(e, key, "a list of sizes");
            o->pinpoints[i][j] = (uint32_t)n;
        }
    o->n_pinpoints = v->n;
    return ERR_OK;
}

static int read_filter(const char *key, const struct json *v, enum image_filter *out, struct err *e)
{
    /* Pillow's numbers */
    static const enum image_filter by_code[] = {IMAGE_NEAREST, IMAGE_LANCZOS, IMAGE_BILINEAR,
                                                IMAGE_BICUBIC, IMAGE_BOX,     IMAGE_HAMMING};
    const char *word = json_string(v);
    uint64_t code;
    for (int f = 0; word && f < IMAGE_N_FILTERS; f++)
        if (strcmp(word, image_filter_name((enum image_filter)f)) == 0) {
            *out = (enum image_filter)f;
            return ERR_OK;
        }
    if (!whole(v, ARRAY_LEN(by_code) - 1, &code))
        return err_set(e, ERR_UNSUPPORTED, "image processor: \"%s\" is no filter that is known (0 to 5)",
                       key);
    *out = by_code[code];
    return ERR_OK;
}

static int read_background(const struct json *v, enum background *out)
{
    const char *type = json_string(json_get(v, "type"));
    *out = type && strcmp(type, "white") == 0 ? BACKGROUND_WHITE : BACKGROUND_OTHER;
    return ERR_OK;
}

/* A switch that is null is off, whatever its default: so both generations of the library take it. */
static int read_null(const struct key *k, struct options *o, struct err *e)
{
    if (k->type == BOOL)
        *(bool *)((char *)o + k->at) = false;
    if (k->type == FILTER) /* refused by transformers 5, bilinear before it */
        return err_set(e, ERR_UNSUPPORTED, "image processor: \"%s\" is null", k->name);
    return ERR_OK;
}

static int read_key(const struct key *k, const struct json *v, enum image_rule rule, struct options *o,
                    struct err *e)
{
    void *at = (char *)o + k->at;
    uint64_t n;
    switch (k->type) {
    case BOOL:
        return json_bool(v, at) ? ERR_OK : image_key_wrong(e, k->name, "true or false");
    case F64:
        return json_f64(v, at) && isfinite(*(double *)at) ? ERR_OK : image_key_wrong(e, k->name, "a number");
    case U32:
        if (!whole(v, UINT32_MAX, &n))
            return image_key_wrong(e, k->name, "a whole number");
        *(uint32_t *)at = (uint32_t)n;
        return ERR_OK;
    case U64:
        return whole(v, UINT64_C(1) << 40, at) ? ERR_OK : image_key_wrong(e, k->name, "a whole number");
    case AREA:
        return whole(v, UINT64_C(1) << 40, at) && *(uint64_t *)at
                   ? ERR_OK
                   : image_key_wrong(e, k->name, "a number of pixels");
    case TRIPLE:
        return read_triple(k->name, v, at, e);
    case FILTER:
        return read_filter(k->name, v, at, e);
    case SIZE:
        return read_size(k->name, v, rule, at, e);
    case SIDE:
        return image_side_of(v, at) ? ERR_OK : image_key_wrong(e, k->name, "one side, or two that are equal");
    case PINPOINTS:
        return read_pinpoints(k->name, v, o, e);
    case BACKGROUND:
        return read_background(v, at);
    case STAGE:
        *(bool *)at = !json_string(v) || strcmp(json_string(v), "before_resize") != 0;
        return ERR_OK;
    case SAME:
        return json_string(v) && strcmp(json_string(v), k->same) == 0
                   ? ERR_OK
                   : err_set(e, ERR_UNSUPPORTED, "image processor: \"%s\" other than \"%s\"", k->name,
                             k->same);
    case DEAD:
        return ERR_OK;
    }
    BUG("key type %d", (int)k->type);
}

/* Keys in the order of the table, so that min_pixels wins over size wherever it stands in the file. */
int image_read_keys(const struct json *dict, enum image_rule rule, struct options *o, struct err *e)
{
    for (uint32_t i = 0; i < dict->n; i++) {
        const struct json_member *m = &dict->as.members[i];
        size_t k = 0;
        while (k < ARRAY_LEN(keys) && strcmp(keys[k].name, m->key) != 0)
            k++;
        if (k == ARRAY_LEN(keys) && m->value.type != JSON_NULL && strcmp(m->key, "media_proc_cfg") != 0)
            return err_set(e, ERR_UNSUPPORTED,
                           "image processor: key \"%s\" is not known, and may change what a model sees",
                           m->key);
    }
    for (size_t k = 0; k < ARRAY_LEN(keys); k++) {
        const struct json *v = json_get(dict, keys[k].name);
        if (!v || !(keys[k].rules & 1U << rule))
            continue;
        int rc = v->type == JSON_NULL ? read_null(&keys[k], o, e) : read_key(&keys[k], v, rule, o, e);
        if (rc)
            return rc;
    }
    return ERR_OK;
}
