/* SPDX-License-Identifier: Apache-2.0
 *
 * From the JSON of a model directory to a `struct image_processor`: which processor it names, its keys in old
 * and new spellings, what the processor class and config.json add. Owns nothing. Refuses what it does not
 * know by name: a key that nobody reads is a picture that differs in silence.
 *
 * Source of names, defaults and precedence: transformers 5.24, image_processing_*.py and processing_*.py; of
 * the Kimi keys: the releases' own media_proc_cfg.
 */
#include <math.h>
#include <string.h>

#include "image/image.h"

enum key_type { BOOL, F64, TRIPLE, FILTER, SIZE, SIDE, U32, U64, PINPOINTS, BACKGROUND, STAGE, SAME, DEAD };

enum background { BACKGROUND_NONE, BACKGROUND_WHITE, BACKGROUND_OTHER };

/* What keys are read into before it is put together. */
struct options {
    bool do_resize, do_crop, do_rescale, do_normalise, do_pad, do_tiles, after_resize;
    double factor, mean[3], std[3], pan_min_ratio;
    enum image_filter filter;
    struct image_size size, crop, max_tile, area; /* area: pixels, wins over size (Qwen) */
    uint32_t patch, frames, merge, max_side_patches, pan_min_crop, pan_max_crops, tile_tokens;
    uint64_t max_patches, min_tiles;
    uint32_t n_pinpoints, pinpoints[IMAGE_MAX_PINPOINTS][2]; /* the count lies before its list */
    enum background background;
};

static const struct key {
    const char *name;
    enum key_type type;
    size_t at;        /* in struct options */
    const char *same; /* SAME: the value that is understood */
} keys[] = {
#define KEY(name, type, field) {name, type, offsetof(struct options, field), NULL},
#define SAME(name, value)      {name, SAME, 0, value},
#define DEAD(name)             {name, DEAD, 0, NULL},
#include "image/image_keys.def"
#undef KEY
#undef SAME
#undef DEAD
};

#define CLIP_MEAN_STD                                                                                        \
    {0.48145466, 0.4578275, 0.40821073},                                                                     \
    {                                                                                                        \
        0.26862954, 0.26130258, 0.27577711                                                                   \
    }
#define HALF_MEAN_STD                                                                                        \
    {0.5, 0.5, 0.5},                                                                                         \
    {                                                                                                        \
        0.5, 0.5, 0.5                                                                                        \
    }

static const struct kind {
    const char *name;
    enum image_rule rule;
    enum image_filter filter;
    double mean[3], std[3];
    struct image_size size;
    uint64_t crop;
    bool do_crop, squares; /* do_pad: laid on a square first */
} kinds[] = {
#define SIZE(h, w, s, l)                                                                                     \
    {                                                                                                        \
        h, w, s, l                                                                                           \
    }
#define KIND(name, rule, filter, mean_std, size, crop, crops, squares)                                       \
    {name, rule, filter, mean_std##_MEAN_STD, size, crop, crops, squares},
#include "image/image_kinds.def"
#undef KIND
#undef SIZE
};

static int wrong(struct err *e, const char *key, const char *what)
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

/* A number, {"height", "width"} or [height, width] of equal sides, or {"longest_edge"}. */
static bool side_of(const struct json *v, uint32_t *out)
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

static int read_size(const char *key, const struct json *v, struct image_size *out, struct err *e)
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
                {"max_height", offsetof(struct image_size, height)}, /* of Kimi: patches */
                {"max_width", offsetof(struct image_size, width)},
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
            if (p == ARRAY_LEN(parts))
                return err_set(e, ERR_UNSUPPORTED,
                               "image processor: \"%s\" has a part \"%s\" that is not known", key, m->key);
            if (!whole(&m->value, UINT64_C(1) << 40, (uint64_t *)((char *)&s + parts[p].at)))
                return wrong(e, key, "made of numbers of pixels");
        }
    } else if (v->type == JSON_ARRAY && v->n == 2) {
        if (!whole(json_at(v, 0), UINT32_MAX, &s.height) || !whole(json_at(v, 1), UINT32_MAX, &s.width))
            return wrong(e, key, "made of numbers of pixels");
    } else if (whole(v, UINT32_MAX, &n)) { /* old spelling; what a bare number means is up to the processor */
        s = (struct image_size){n, n, n, 0};
    } else {
        return wrong(e, key, "a size");
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
            return wrong(e, key, "a number or three");
    }
    return ERR_OK;
}

static int read_pinpoints(const char *key, const struct json *v, struct options *o, struct err *e)
{
    if (v->type != JSON_ARRAY || !v->n)
        return wrong(e, key, "a list of sizes");
    if (v->n > IMAGE_MAX_PINPOINTS)
        return err_set(e, ERR_LIMIT, "image processor: more than %d \"%s\"", IMAGE_MAX_PINPOINTS, key);
    for (uint32_t i = 0; i < v->n; i++)
        for (uint32_t j = 0; j < 2; j++) {
            const struct json *pair = json_at(v, i);
            uint64_t n;
            if (pair->type != JSON_ARRAY || pair->n != 2 || !whole(json_at(pair, j), IMAGE_MAX_SIDE, &n) ||
                !n)
                return wrong(e, key, "a list of sizes");
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

static int read_key(const struct key *k, const struct json *v, struct options *o, struct err *e)
{
    void *at = (char *)o + k->at;
    uint64_t n;
    switch (k->type) {
    case BOOL:
        return json_bool(v, at) ? ERR_OK : wrong(e, k->name, "true or false");
    case F64:
        return json_f64(v, at) && isfinite(*(double *)at) ? ERR_OK : wrong(e, k->name, "a number");
    case U32:
        if (!whole(v, UINT32_MAX, &n))
            return wrong(e, k->name, "a whole number");
        *(uint32_t *)at = (uint32_t)n;
        return ERR_OK;
    case U64:
        return whole(v, UINT64_C(1) << 40, at) ? ERR_OK : wrong(e, k->name, "a whole number");
    case TRIPLE:
        return read_triple(k->name, v, at, e);
    case FILTER:
        return read_filter(k->name, v, at, e);
    case SIZE:
        return read_size(k->name, v, at, e);
    case SIDE:
        return side_of(v, at) ? ERR_OK : wrong(e, k->name, "one side, or two that are equal");
    case PINPOINTS:
        return read_pinpoints(k->name, v, o, e);
    case BACKGROUND:
        return read_background(v, at);
    case STAGE:
        *(bool *)at = json_string(v) && strcmp(json_string(v), "after_resize") == 0;
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
static int read_keys(const struct json *dict, struct options *o, struct err *e)
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
        int rc = v && v->type != JSON_NULL ? read_key(&keys[k], v, o, e) : ERR_OK;
        if (rc)
            return rc;
    }
    return ERR_OK;
}

/* The table's line for a name, and the backend that a suffix asks for. */
static const struct kind *kind_of(const char *name, enum image_backend *backend)
{
    size_t n = strlen(name);
    if (n > 4 && strcmp(name + n - 4, "Fast") == 0)
        n -= 4, *backend = IMAGE_TORCHVISION;
    else if (n > 3 && strcmp(name + n - 3, "Pil") == 0)
        n -= 3, *backend = IMAGE_PILLOW;
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
        if (strlen(kinds[i].name) == n && memcmp(kinds[i].name, name, n) == 0)
            return &kinds[i];
    return NULL;
}

static const char *name_of(const struct image_configs *c, const struct json *dict)
{
    const char *name = json_string(json_get(dict, "image_processor_type"));
    const char *model = json_string(json_get(c->model, "model_type"));
    if (!name)
        name = json_string(json_get(dict, "feature_extractor_type"));
    if (!name && json_get(dict, "media_proc_cfg"))
        name = model && strcmp(model, "kimi_k3") == 0 ? "KimiK3VisionProcessor" : "KimiK25VisionProcessor";
    return name;
}

/* A number of processor_config.json, or of config.json, or a fallback. */
static uint32_t number(const struct json *from, const char *key, uint32_t otherwise)
{
    uint32_t n;
    return side_of(json_get(from, key), &n) ? n : otherwise;
}

/* (side / patch_size)^2 / shrink^2 of config.json; `otherwise` where that says nothing. */
static uint32_t tokens_of_tile(const struct json *model, uint64_t side, double shrink, uint32_t otherwise)
{
    uint32_t patch = number(json_get(model, "vision_config"), "patch_size", 0);
    if (!side || !patch || side > IMAGE_MAX_SIDE || !(shrink > 0) || shrink > 1e3)
        return otherwise;
    double n = (double)(side / patch) / shrink;
    return n >= 1 && n <= 1e4 ? (uint32_t)(n * n) : otherwise;
}

/* InternVL's releases, whose own code says what is done, not the processor that their file names: tiles are
 * of force_image_size, whatever the table of places was made for. */
static const char own_name[] = "internvl_chat";

static bool own_layout(const struct image_processor *p)
{
    return strcmp(p->name, own_name) == 0;
}

/* How many placeholders stand for a picture (docs/images.md). */
static void count_tokens(const struct image_configs *c, struct image_processor *p)
{
    const struct json *vision = json_get(c->model, "vision_config");
    const char *tower = json_string(json_get(vision, "model_type"));
    const char *strategy = json_string(json_get(c->processor, "vision_feature_select_strategy"));
    const uint32_t side = number(vision, "image_size", 0);
    double shrink = 1;
    if (!strategy)
        strategy = json_string(json_get(c->model, "vision_feature_select_strategy"));
    switch (p->rule) {
    case IMAGE_FIXED:
    case IMAGE_ANYRES:
        if (!strategy)
            return;
        p->tower_patch = number(c->processor, "patch_size", number(vision, "patch_size", 0));
        p->tower_extra = tower && strncmp(tower, "clip", 4) == 0; /* the class token */
        p->tower_extra =
            (int)(number(c->processor, "num_additional_image_tokens", (uint32_t)p->tower_extra) & 0xFF);
        p->tower_extra -= strcmp(strategy, "default") == 0;
        break;
    case IMAGE_PAN:
        p->tile_tokens = p->tile_tokens ? p->tile_tokens : number(c->model, "mm_tokens_per_image", 256);
        p->tile_tokens = number(c->processor, "image_seq_length", p->tile_tokens);
        break;
    case IMAGE_TILES:
        if (json_f64(json_get(c->model, "downsample_ratio"), &shrink) && shrink > 0)
            shrink = 1 / shrink;
        p->tile_tokens = p->tile_tokens
                             ? p->tile_tokens
                             : tokens_of_tile(c->model, own_layout(p) ? p->size.height : side, shrink, 256);
        p->tile_tokens = number(c->processor, "image_seq_length", p->tile_tokens);
        break;
    case IMAGE_SPLIT:
        json_f64(json_get(c->model, "scale_factor"), &shrink);
        p->tile_tokens = number(c->processor, "image_seq_len", tokens_of_tile(c->model, side, shrink, 169));
        break;
    case IMAGE_PIXTRAL:
    case IMAGE_SMART:
    case IMAGE_NAVIT:
        break; /* counted from the grid */
    }
}

/* The values of a directory that says nothing. */
static void defaults(const struct kind *k, struct options *o)
{
    *o = (struct options){
        .do_resize = true,
        .do_crop = k->do_crop,
        .do_rescale = true,
        .do_normalise = true,
        .do_tiles = k->rule == IMAGE_SPLIT,
        .factor = 1.0 / 255,
        .filter = k->filter,
        .size = k->size,
        .crop = {k->crop, k->crop, 0, 0},
        .max_tile = {.longest = 364},
        .patch = k->rule == IMAGE_PIXTRAL ? 16 : 14,
        .frames = 2,
        .merge = 2,
        .max_patches = k->rule == IMAGE_TILES ? 12 : 16384,
        .min_tiles = 1,
        .max_side_patches = 512,
        .pan_min_crop = 256,
        .pan_max_crops = 4,
        .pan_min_ratio = 1.2,
        .n_pinpoints = 5,
        .pinpoints = {{336, 672}, {672, 336}, {672, 672}, {1008, 336}, {336, 1008}},
    };
    memcpy(o->mean, k->mean, sizeof o->mean);
    memcpy(o->std, k->std, sizeof o->std);
}

/* A bare number for a size means the shorter side or a square, as the rule has it. */
static struct image_size settle(struct image_size s, enum image_rule rule, bool crop)
{
    if (s.height && s.shortest && (rule == IMAGE_FIXED || rule == IMAGE_ANYRES) && !crop)
        s.height = s.width = 0;
    else if (s.height && s.shortest)
        s.shortest = 0;
    return s;
}

/* What the processor class, config.json and releases of their own add to the keys. */
static void adapt(const struct image_configs *c, const struct json *dict, const struct options *o,
                  struct image_processor *p)
{
    const char *class = json_string(json_get(c->processor, "processor_class"));
    const char *model = json_string(json_get(c->model, "model_type"));
    const struct json *vision = json_get(c->model, "vision_config");
    if (!class)
        class = json_string(json_get(dict, "processor_class"));
    if (class && strcmp(class, "Gemma3Processor") == 0)
        p->do_tiles = false; /* it passes do_pan_and_scan = False, whatever the file says */
    if (class && strcmp(class, "InternVLProcessor") == 0)
        p->do_tiles = true; /* likewise crop_to_patches */
    if (model && strcmp(model, own_name) == 0 && p->rule == IMAGE_FIXED) {
        /* What config.json does not say is as its configuration class has it. */
        bool tiles = false, thumbnail = false;
        uint32_t side = number(c->model, "force_image_size", number(vision, "image_size", 448));
        json_bool(json_get(c->model, "dynamic_image_size"), &tiles);
        json_bool(json_get(c->model, "use_thumbnail"), &thumbnail);
        p->name = own_name;
        p->rule = IMAGE_TILES;
        p->filter = IMAGE_BICUBIC;
        p->size = (struct image_size){side, side, 0, 0};
        p->do_crop = false;
        p->do_tiles = tiles;
        p->whole = thumbnail;
        p->pad_square = false;
        json_bool(json_get(c->model, "pad2square"), &p->pad_square); /* refused below */
        p->min_tiles = number(c->model, "min_dynamic_patch", 1);
        p->max_patches = number(c->model, "max_dynamic_patch", 6);
    }
    if (p->rule == IMAGE_PIXTRAL && number(c->processor, "patch_size", 0))
        p->patch = number(c->processor, "patch_size", 0);
    if (p->rule == IMAGE_PIXTRAL)
        p->merge = number(c->processor, "spatial_merge_size", number(c->model, "spatial_merge_size", 1));
    if (p->rule == IMAGE_NAVIT) {
        p->frames = 1;
        if (p->size.height)
            p->max_side_patches = p->size.height > UINT32_MAX ? UINT32_MAX : (uint32_t)p->size.height;
        p->alpha =
            o->background == BACKGROUND_WHITE && !o->after_resize ? IMAGE_ALPHA_WHITE : IMAGE_ALPHA_DROP;
        p->refuses_alpha = o->background == BACKGROUND_OTHER || (o->background && o->after_resize);
    }
    if (p->rule == IMAGE_SPLIT)
        p->alpha = IMAGE_ALPHA_WHITE;
}

/* What would not be a picture, whatever its size. */
static int check(const struct image_processor *p, struct err *e)
{
    bool patches = p->rule == IMAGE_SMART || p->rule == IMAGE_NAVIT || p->rule == IMAGE_PIXTRAL;
    if (patches &&
        (!p->patch || !p->merge || !p->frames || p->patch > 4096 || p->merge > 64 || p->frames > 16))
        return err_set(e, ERR_LIMIT, "image processor: patches of %u pixels, %u merged, %u frames", p->patch,
                       p->merge, p->frames);
    if (!p->do_resize && p->rule != IMAGE_FIXED)
        return err_set(e, ERR_UNSUPPORTED, "image processor: \"do_resize\" false with %s", p->name);
    if (p->backend == IMAGE_TORCHVISION && p->filter != IMAGE_BILINEAR && p->filter != IMAGE_BICUBIC &&
        p->filter != IMAGE_LANCZOS)
        return err_set(e, ERR_UNSUPPORTED, "image processor: the filter %s as torchvision does it",
                       image_filter_name(p->filter));
    if (p->pad_square && p->rule == IMAGE_TILES)
        return err_set(e, ERR_UNSUPPORTED, "image processor: \"pad2square\" of config.json is true");
    if (p->rule == IMAGE_TILES &&
        (!p->min_tiles || p->max_patches < p->min_tiles || p->max_patches > IMAGE_MAX_TILES))
        return err_set(e, ERR_LIMIT, "image processor: %llu to %llu tiles", (unsigned long long)p->min_tiles,
                       (unsigned long long)p->max_patches);
    if (p->rule == IMAGE_PAN && (!p->pan_min_crop || !p->pan_max_crops || p->pan_max_crops > IMAGE_MAX_TILES))
        return err_set(e, ERR_LIMIT, "image processor: %u crops of %u pixels or more", p->pan_max_crops,
                       p->pan_min_crop);
    if (p->do_rescale && !(p->factor > 1e-12 && p->factor < 1e12))
        return err_set(e, ERR_UNSUPPORTED, "image processor: a \"rescale_factor\" of %g", p->factor);
    for (int c = 0; c < 3 && p->do_normalise; c++)
        if (!(p->std[c] > 1e-12))
            return err_set(e, ERR_UNSUPPORTED, "image processor: an \"image_std\" of %g", p->std[c]);
    return ERR_OK;
}

static void assemble(const struct kind *k, const struct options *o, struct image_processor *p)
{
    *p = (struct image_processor){
        .name = k->name,
        .rule = k->rule,
        .filter = o->filter,
        .do_resize = o->do_resize,
        .do_crop = o->do_crop,
        .do_rescale = o->do_rescale,
        .do_normalise = o->do_normalise,
        .pad_square = o->do_pad && k->squares,
        .do_tiles = o->do_tiles,
        .whole = true,
        .factor = o->factor,
        .size = settle(o->size, k->rule, false),
        .crop = settle(o->crop, k->rule, true),
        .max_tile = o->max_tile,
        .patch = o->patch,
        .merge = o->merge,
        .frames = o->frames,
        .min_tiles = o->min_tiles,
        .max_patches = o->max_patches,
        .max_side_patches = o->max_side_patches,
        .pan_min_crop = o->pan_min_crop,
        .pan_max_crops = o->pan_max_crops,
        .pan_min_ratio = o->pan_min_ratio,
        .n_pinpoints = o->n_pinpoints,
        .tile_tokens = o->tile_tokens,
    };
    if (k->rule == IMAGE_SMART) {
        p->size.shortest = o->area.shortest ? o->area.shortest : p->size.shortest;
        p->size.longest = o->area.longest ? o->area.longest : p->size.longest;
    }
    memcpy(p->mean, o->mean, sizeof p->mean);
    memcpy(p->std, o->std, sizeof p->std);
    memcpy(p->pinpoints, o->pinpoints, sizeof p->pinpoints);
}

int image_processor_open(const struct image_configs *c, const enum image_backend *backend,
                         struct image_processor *out, struct err *e)
{
    const struct json *nested = json_get(c->processor, "image_processor"); /* how transformers 5 saves it */
    const struct json *dict = nested ? nested : c->preprocessor;
    if (!dict || dict->type != JSON_OBJECT)
        return err_set(e, ERR_MISSING,
                       "no preprocessor_config.json, and no image processor in processor_config.json");
    const char *name = name_of(c, dict);
    if (!name)
        return err_set(e, ERR_MISSING, "preprocessor_config.json names no image processor");
    enum image_backend chosen = IMAGE_TORCHVISION;
    const struct kind *k = kind_of(name, &chosen);
    if (!k)
        return err_set(e, ERR_UNSUPPORTED, "the image processor %.100s", name);
    const struct json *media = json_get(dict, "media_proc_cfg");
    struct options o;
    defaults(k, &o);
    int rc = read_keys(dict, &o, e);
    if (rc == ERR_OK && media && media->type == JSON_OBJECT) {
        const struct json *fixed = json_get(media, "fixed_output_tokens");
        if (fixed && fixed->type != JSON_NULL)
            return err_set(e, ERR_UNSUPPORTED, "image processor: \"fixed_output_tokens\"");
        rc = read_keys(media, &o, e);
    }
    if (rc)
        return rc;
    struct image_processor p;
    assemble(k, &o, &p);
    adapt(c, dict, &o, &p);
    p.backend = backend ? *backend : media || own_layout(&p) ? IMAGE_PILLOW : chosen;
    count_tokens(c, &p);
    if ((rc = check(&p, e)))
        return rc;
    *out = p;
    return ERR_OK;
}
