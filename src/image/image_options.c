/* SPDX-License-Identifier: Apache-2.0
 *
 * From the JSON of a model directory to a `struct image_processor`: which processor it names, its keys
 * (image_keys.c), what the processor class and config.json add. Owns nothing. Refuses processors that it does
 * not know, and values that would make no picture.
 *
 * Source of names, defaults and precedence: transformers 5.24, image_processing_*.py and processing_*.py; of
 * the Kimi keys: the releases' own media_proc_cfg.
 */
#include <math.h>
#include <string.h>

#include "image/image_options.h"

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

/* What processor_config.json and config.json are asked for; the first value that is none is kept. */
struct lookup {
    int rc;
    struct err *e;
};

/* A number of processor_config.json, or of config.json, or a fallback where it is not said. */
static uint32_t number(struct lookup *l, const struct json *from, const char *key, uint32_t otherwise)
{
    const struct json *v = json_get(from, key);
    uint32_t n = otherwise;
    if (v && v->type != JSON_NULL && !image_side_of(v, &n) && !l->rc)
        l->rc = image_key_wrong(l->e, key, "a number, or two that are equal");
    return n;
}

/* (side / patch_size)^2 / shrink^2 of config.json; `otherwise` where that says nothing. */
static uint32_t tokens_of_tile(struct lookup *l, const struct json *model, uint64_t side, double shrink,
                               uint32_t otherwise)
{
    uint32_t patch = number(l, json_get(model, "vision_config"), "patch_size", 0);
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

enum { MAX_EXTRA = 256 }; /* tokens that a tower adds: a class, a few registers */

/* How many placeholders stand for a picture (docs/images.md). */
static int count_tokens(const struct image_configs *c, struct image_processor *p, struct err *e)
{
    const struct json *vision = json_get(c->model, "vision_config");
    const char *tower = json_string(json_get(vision, "model_type"));
    const char *strategy = json_string(json_get(c->processor, "vision_feature_select_strategy"));
    struct lookup l = {.e = e};
    double shrink = 1;
    uint32_t side, extra;
    if (!strategy)
        strategy = json_string(json_get(c->model, "vision_feature_select_strategy"));
    switch (p->rule) {
    case IMAGE_FIXED:
    case IMAGE_ANYRES:
        if (!strategy)
            return ERR_OK;
        p->tower_patch = number(&l, c->processor, "patch_size", number(&l, vision, "patch_size", 0));
        extra = tower && strncmp(tower, "clip", 4) == 0; /* the class token */
        extra = number(&l, c->processor, "num_additional_image_tokens", extra);
        if (extra > MAX_EXTRA)
            return err_set(e, ERR_LIMIT, "image processor: %u additional tokens", extra);
        p->tower_extra = (int)extra - (strcmp(strategy, "default") == 0);
        break;
    case IMAGE_PAN:
        p->tile_tokens = p->tile_tokens ? p->tile_tokens : number(&l, c->model, "mm_tokens_per_image", 256);
        p->tile_tokens = number(&l, c->processor, "image_seq_length", p->tile_tokens);
        break;
    case IMAGE_TILES:
        if (json_f64(json_get(c->model, "downsample_ratio"), &shrink) && shrink > 0)
            shrink = 1 / shrink;
        side = own_layout(p) ? (uint32_t)p->size.height : number(&l, vision, "image_size", 0);
        p->tile_tokens = p->tile_tokens ? p->tile_tokens : tokens_of_tile(&l, c->model, side, shrink, 256);
        p->tile_tokens = number(&l, c->processor, "image_seq_length", p->tile_tokens);
        break;
    case IMAGE_SPLIT:
        json_f64(json_get(c->model, "scale_factor"), &shrink);
        side = number(&l, vision, "image_size", 0);
        p->tile_tokens =
            number(&l, c->processor, "image_seq_len", tokens_of_tile(&l, c->model, side, shrink, 169));
        break;
    case IMAGE_PIXTRAL:
    case IMAGE_SMART:
    case IMAGE_NAVIT:
        break; /* counted from the grid */
    }
    return l.rc;
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
        .square = k->rule != IMAGE_FIXED && k->rule != IMAGE_ANYRES && k->rule != IMAGE_SMART,
        .size = k->size,
        .crop = {.height = k->crop, .width = k->crop},
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

/* A bare number for a size has been read as both sides and as the shorter one. */
static struct image_size settle(struct image_size s, bool square)
{
    if (s.height && s.shortest && !square)
        s.height = s.width = 0;
    else if (s.height && s.shortest)
        s.shortest = 0;
    return s;
}

/* What the processor class, config.json and releases of their own add to the keys. */
static int adapt(const struct image_configs *c, const struct json *dict, const struct options *o,
                 struct image_processor *p, struct err *e)
{
    struct lookup l = {.e = e};
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
        uint32_t side = number(&l, c->model, "force_image_size", number(&l, vision, "image_size", 448));
        json_bool(json_get(c->model, "dynamic_image_size"), &tiles);
        json_bool(json_get(c->model, "use_thumbnail"), &thumbnail);
        p->name = own_name;
        p->rule = IMAGE_TILES;
        p->filter = IMAGE_BICUBIC;
        p->size = (struct image_size){.height = side, .width = side};
        p->do_crop = false;
        p->do_tiles = tiles;
        p->whole = thumbnail;
        p->pad_square = false;
        json_bool(json_get(c->model, "pad2square"), &p->pad_square); /* refused below */
        p->min_tiles = number(&l, c->model, "min_dynamic_patch", 1);
        p->max_patches = number(&l, c->model, "max_dynamic_patch", 6);
    }
    if (p->rule == IMAGE_PIXTRAL) {
        uint32_t patch = number(&l, c->processor, "patch_size", 0);
        p->patch = patch ? patch : p->patch;
        p->merge =
            number(&l, c->processor, "spatial_merge_size", number(&l, c->model, "spatial_merge_size", 1));
    }
    if (p->rule == IMAGE_NAVIT) {
        p->frames = 1;
        if (p->size.max_height)
            p->max_side_patches = p->size.max_height > UINT32_MAX ? UINT32_MAX : (uint32_t)p->size.max_height;
        p->alpha =
            o->background == BACKGROUND_WHITE && !o->after_resize ? IMAGE_ALPHA_WHITE : IMAGE_ALPHA_DROP;
        p->refuses_alpha = o->background == BACKGROUND_OTHER || (o->background && o->after_resize);
    }
    if (p->rule == IMAGE_SPLIT)
        p->alpha = IMAGE_ALPHA_WHITE;
    return l.rc;
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
    if (p->do_crop && p->rule == IMAGE_PIXTRAL)
        return err_set(e, ERR_UNSUPPORTED, "image processor: \"do_center_crop\" with %s", p->name);
    if (p->rule == IMAGE_NAVIT &&
        (p->size.height || p->size.shortest || p->size.longest || p->size.max_height != p->size.max_width))
        return err_set(e, ERR_UNSUPPORTED,
                       "image processor: a \"size\" other than max_height and max_width that are equal");
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
        .size = settle(o->size, o->square),
        .crop = settle(o->crop, true),
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
    int rc = image_read_keys(dict, k->rule, &o, e);
    if (rc == ERR_OK && media && media->type == JSON_OBJECT) {
        const struct json *fixed = json_get(media, "fixed_output_tokens");
        if (fixed && fixed->type != JSON_NULL)
            return err_set(e, ERR_UNSUPPORTED, "image processor: \"fixed_output_tokens\"");
        rc = image_read_keys(media, k->rule, &o, e);
    }
    if (rc)
        return rc;
    struct image_processor p;
    assemble(k, &o, &p);
    if ((rc = adapt(c, dict, &o, &p, e)))
        return rc;
    p.backend = backend ? *backend : media || own_layout(&p) ? IMAGE_PILLOW : chosen;
    if ((rc = count_tokens(c, &p, e)) || (rc = check(&p, e)))
        return rc;
    *out = p;
    return ERR_OK;
}
