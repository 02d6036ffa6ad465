/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: a conversation as a model is given it: text, ids, placeholders, places, pixels; and each of these
 * done otherwise on purpose. Refuses: changing what is not there: a change that has nothing to change is
 * ERR_MISSING, so that nobody takes the intact case for a changed one.
 */
#include <string.h>

#include "verify/channel_impl.h"

static const struct channel_change_info changes[CHANNEL_CHANGES] = {
#define CHANGE(ID, name, image, step, finding, as_if)                                                        \
    {name, image, CHANNEL_AT_##step, FINDING_##finding, as_if},
#include "verify/channel_changes.def"
#undef CHANGE
};

static const char *const steps[CHANNEL_STEPS] = {
#define STEP(ID, name) name,
#include "verify/channel_steps.def"
#undef STEP
};

const struct channel_change_info *channel_change_info(enum channel_change c)
{
    return (unsigned)c < CHANNEL_CHANGES ? &changes[c] : NULL;
}

const char *channel_step_name(enum channel_step s)
{
    return (unsigned)s < CHANNEL_STEPS ? steps[s] : "unknown";
}

struct making {
    const struct channel_model *m;
    struct arena *arena;
    struct channel_case *out;
    uint32_t changes;
    struct err *e;
};

static bool has(const struct making *k, enum channel_change c)
{
    return (k->changes & CHANNEL_BIT(c)) != 0;
}

static int nothing(const struct making *k, enum channel_change c)
{
    return err_set(k->e, ERR_MISSING, "%s: there is nothing to change", changes[c].name);
}

/* ---- messages */

static bool is_picture(const struct json *part)
{
    const char *type = json_string(json_get(part, "type"));
    return type && (strcmp(type, "image_url") == 0 || strcmp(type, "image") == 0);
}

static const struct json *part_of(const struct json *messages, size_t message, size_t part)
{
    const struct json *content = json_get(json_at(messages, message), "content");
    return content && content->type == JSON_ARRAY ? json_at(content, part) : NULL;
}

static size_t parts_of(const struct json *messages, size_t message)
{
    const struct json *content = json_get(json_at(messages, message), "content");
    return content && content->type == JSON_ARRAY ? content->n : 0;
}

static const struct json *picture_number(const struct json *messages, size_t want)
{
    for (size_t i = 0; messages->type == JSON_ARRAY && i < messages->n; i++)
        for (size_t p = 0; p < parts_of(messages, i); p++)
            if (is_picture(part_of(messages, i, p)) && want-- == 0)
                return part_of(messages, i, p);
    return NULL;
}

static size_t count_pictures(const struct json *messages)
{
    size_t n = 0;
    while (messages && picture_number(messages, n))
        n++;
    return n;
}

/* The messages again, with the last picture first where they are to be swapped, and without system turns. */
static void write_messages(const struct making *k, const struct json *messages, size_t n_pictures,
                           struct json_writer *w)
{
    size_t picture = 0;
    json_begin_array(w);
    for (size_t i = 0; i < messages->n; i++) {
        const struct json *m = json_at(messages, i);
        const char *role = json_string(json_get(m, "role"));
        if (m->type != JSON_OBJECT || (has(k, CHANNEL_NO_SYSTEM) && role && strcmp(role, "system") == 0))
            continue;
        json_begin_object(w);
        for (uint32_t f = 0; f < m->n; f++) {
            const struct json_member *field = &m->as.members[f];
            json_key(w, field->key);
            if (strcmp(field->key, "content") != 0 || field->value.type != JSON_ARRAY) {
                json_write_tree(w, &field->value);
                continue;
            }
            json_begin_array(w);
            for (size_t p = 0; p < field->value.n; p++) {
                const struct json *part = json_at(&field->value, p);
                if (is_picture(part) && has(k, CHANNEL_SWAPPED))
                    part = picture_number(messages, n_pictures - 1 - picture++);
                json_write_tree(w, part);
            }
            json_end_array(w);
        }
        json_end_object(w);
    }
    json_end_array(w);
}

static int changed_messages(const struct making *k, const struct json *messages, const struct json **out)
{
    const size_t n_pictures = count_pictures(messages);
    struct strbuf text = STRBUF_INIT;
    struct json_writer w;
    json_writer_init(&w, &text, false);
    write_messages(k, messages, n_pictures, &w);
    int rc = strbuf_failed(&text) ? err_set(k->e, ERR_NOMEM, "out of memory for messages")
                                  : json_parse(strbuf_cstr(&text), text.len, NULL, k->arena, out, k->e);
    strbuf_release(&text);
    if (rc == 0 && has(k, CHANNEL_NO_SYSTEM) && (*out)->n == messages->n)
        return nothing(k, CHANNEL_NO_SYSTEM);
    if (rc == 0 && has(k, CHANNEL_SWAPPED) && n_pictures < 2)
        return nothing(k, CHANNEL_SWAPPED);
    return rc;
}

/* ---- ids */

static int render(const struct making *k, const struct json *messages)
{
    struct channel_case *c = k->out;
    struct strbuf rendered = STRBUF_INIT;
    struct ids ids = {0};
    const struct prompt_picture_options po = {.fetch = k->m->fetch, .ctx = k->m->fetch_ctx};
    struct prompt_chat chat = {.messages = messages, .now = -1};
    int rc = ERR_OK;
    if (count_pictures(messages)) {
        c->at = CHANNEL_AT_PLACEHOLDERS; /* sizes, and what stands for them */
        rc = prompt_pictures_read(k->m->front, messages, &po, k->arena, &c->pictures, k->e);
        chat.pictures = &c->pictures;
        chat.messages = c->pictures.messages;
    }
    if (rc == 0) {
        c->at = CHANNEL_AT_RENDER;
        rc = prompt_chat(k->m->front, &chat, &rendered, &ids, k->e);
    }
    if (rc == 0) {
        c->n = ids.n;
        c->ids = arena_alloc_n(k->arena, ids.n + 1, sizeof *c->ids);
        c->rendered = arena_strndup(k->arena, strbuf_cstr(&rendered), rendered.len);
        if (!c->ids || !c->rendered)
            rc = err_set(k->e, ERR_NOMEM, "out of memory for ids");
        else if (ids.n)
            memcpy(c->ids, ids.data, ids.n * sizeof *c->ids);
    }
    ids_release(&ids);
    strbuf_release(&rendered);
    return rc;
}

static int double_bos(const struct making *k)
{
    struct channel_case *c = k->out;
    if (c->n == 0 || k->m->front->bos_id < 0 || c->ids[0] != k->m->front->bos_id)
        return nothing(k, CHANNEL_BOS_TWICE);
    memmove(c->ids + 1, c->ids, c->n++ * sizeof *c->ids);
    return ERR_OK;
}

/* ---- pixels */

static int other_filter(const struct making *k, struct image_processor *p)
{
    static const struct {
        enum channel_change change;
        enum image_filter filter;
    } filters[] = {{CHANNEL_NEAREST, IMAGE_NEAREST},
                   {CHANNEL_BILINEAR, IMAGE_BILINEAR},
                   {CHANNEL_BICUBIC, IMAGE_BICUBIC},
                   {CHANNEL_LANCZOS, IMAGE_LANCZOS}};
    for (size_t i = 0; i < ARRAY_LEN(filters); i++) {
        if (!has(k, filters[i].change))
            continue;
        if (!p->do_resize || p->filter == filters[i].filter)
            return nothing(k, filters[i].change);
        p->filter = filters[i].filter;
    }
    return ERR_OK;
}

static int other_processor(const struct making *k, struct image_processor *p)
{
    if (has(k, CHANNEL_MEAN_STD)) {
        if (!p->do_normalise || memcmp(p->mean, p->std, sizeof p->mean) == 0)
            return nothing(k, CHANNEL_MEAN_STD);
        for (size_t i = 0; i < 3; i++) {
            const double x = p->mean[i];
            p->mean[i] = p->std[i];
            p->std[i] = x;
            if (x == 0)
                return nothing(k, CHANNEL_MEAN_STD);
        }
    }
    if (has(k, CHANNEL_NOT_NORMALISED)) {
        if (!p->do_normalise)
            return nothing(k, CHANNEL_NOT_NORMALISED);
        p->do_normalise = false;
    }
    return other_filter(k, p);
}

int channel_pixel_values(const struct channel_model *m, const struct channel_case *c,
                         const enum image_backend *backend, uint32_t mask, struct arena *arena,
                         struct channel_pixel_values *out, struct err *e)
{
    const struct making k = {.m = m, .changes = mask, .e = e};
    struct image_processor p = *prompt_processor(m->front);
    int rc = other_processor(&k, &p);
    if (backend)
        p.backend = *backend;
    *out = (struct channel_pixel_values){0};
    for (uint32_t i = 0; i < c->pictures.n; i++)
        out->n_values += (size_t)(c->pictures.list[i].plan.n_rows * c->pictures.list[i].plan.row_floats);
    out->values = arena_alloc_n(arena, out->n_values + 1, sizeof *out->values);
    if (rc == 0 && !out->values)
        rc = err_set(e, ERR_NOMEM, "out of memory for pixels");
    size_t at = 0;
    for (uint32_t i = 0; rc == 0 && i < c->pictures.n; i++) {
        const struct prompt_picture *picture = &c->pictures.list[i];
        const size_t n = (size_t)(picture->plan.n_rows * picture->plan.row_floats);
        struct image image;
        float *values = NULL;
        rc = image_decode(picture->bytes, picture->n, NULL, p.alpha, arena, &image, e);
        for (size_t x = 0;
             rc == 0 && has(&k, CHANNEL_BGR) && x < (size_t)image.info.width * image.info.height; x++) {
            const uint8_t red = image.rgb[3 * x];
            image.rgb[3 * x] = image.rgb[3 * x + 2];
            image.rgb[3 * x + 2] = red;
        }
        if (rc == 0)
            rc = image_process(&p, &picture->plan, &image, arena, &values, e);
        if (rc == 0)
            memcpy(out->values + at, values, n * sizeof *values);
        at += n;
    }
    return rc;
}

static int make_pixels(const struct making *k)
{
    struct channel_case *c = k->out;
    if (c->pictures.n == 0)
        return ERR_OK;
    const struct image_processor *intact = prompt_processor(k->m->front);
    if (!intact)
        return err_set(k->e, ERR_UNSUPPORTED, "the image processor of this directory is not known");
    struct image_processor p = *intact;
    int rc = other_processor(k, &p);
    if (k->m->backend)
        p.backend = *k->m->backend;
    c->pixels = arena_alloc_n(k->arena, c->pictures.n, sizeof *c->pixels);
    if (rc == 0 && !c->pixels)
        rc = err_set(k->e, ERR_NOMEM, "out of memory for pictures");
    for (uint32_t i = 0; rc == 0 && i < c->pictures.n; i++) {
        rc = prompt_picture_make_by(k->m->front, &c->pictures.list[i], &p, has(k, CHANNEL_BGR), NULL,
                                    k->arena, &c->pixels[i], k->e);
        c->n_rows += c->pictures.list[i].n_rows;
    }
    return rc;
}

/* ---- where tokens stand */

static void drop_token(struct channel_case *c, size_t at)
{
    struct prompt_layout *l = &c->layout;
    const size_t behind = --c->n - at;
    memmove(c->ids + at, c->ids + at + 1, behind * sizeof *c->ids);
    memmove(l->feature_of + at, l->feature_of + at + 1, behind * sizeof *l->feature_of);
    memmove(l->places + 3 * at, l->places + 3 * (at + 1), behind * 3 * sizeof *l->places);
    l->n = c->n;
}

/* Does this token take the last row of a picture, or the first? */
static bool takes_row(const struct channel_case *c, size_t at, bool last)
{
    int64_t before = 0; /* rows of the pictures so far */
    for (uint32_t i = 0; i < c->pictures.n; i++) {
        const int64_t behind = before + c->pictures.list[i].n_rows;
        if (before < behind && c->layout.feature_of[at] == (last ? behind - 1 : before))
            return true;
        before = behind;
    }
    return false;
}

/* The token of each picture's last row goes, or of its first: the row is not taken up. */
static int fewer(const struct making *k, enum channel_change which)
{
    struct channel_case *c = k->out;
    if (c->pictures.n == 0 || c->layout.spans)
        return nothing(k, which);
    for (size_t at = c->n; at-- > 0;)
        if (takes_row(c, at, which == CHANNEL_FEWER))
            drop_token(c, at);
    return ERR_OK;
}

/* The token of each picture's last row stands twice: the second takes no row. */
static int more(const struct making *k)
{
    struct channel_case *c = k->out;
    struct prompt_layout *l = &c->layout;
    const size_t n = c->n + c->pictures.n;
    if (c->pictures.n == 0 || l->spans)
        return nothing(k, CHANNEL_MORE);
    int32_t *ids = arena_alloc_n(k->arena, n, sizeof *ids), *of = arena_alloc_n(k->arena, n, sizeof *of),
            *places = arena_alloc_n(k->arena, n, 3 * sizeof *places);
    if (!ids || !of || !places)
        return err_set(k->e, ERR_NOMEM, "out of memory for ids");
    size_t to = 0;
    for (size_t at = 0; at < c->n; at++)
        for (int twice = takes_row(c, at, true); twice >= 0 && to < n; twice--) {
            ids[to] = c->ids[at];
            of[to] = to && at && of[to - 1] >= 0 && of[to - 1] == l->feature_of[at] ? -1 : l->feature_of[at];
            memcpy(places + 3 * to++, l->places + 3 * at, 3 * sizeof *places);
        }
    c->ids = ids;
    l->feature_of = of;
    l->places = places;
    c->n = l->n = to;
    return ERR_OK;
}

static int other_places(const struct making *k)
{
    struct prompt_layout *l = &k->out->layout;
    bool moved = false;
    for (size_t i = 0; i < l->n; i++) {
        int32_t *p = l->places + 3 * i;
        const int32_t high = p[1];
        if (has(k, CHANNEL_FLAT)) {
            moved |= p[0] != (int32_t)i || p[1] != (int32_t)i || p[2] != (int32_t)i;
            p[0] = p[1] = p[2] = (int32_t)i;
        } else if (has(k, CHANNEL_TURNED)) {
            moved |= p[1] != p[2];
            p[1] = p[2];
            p[2] = high;
        }
    }
    if (has(k, CHANNEL_FLAT))
        l->place_delta = 0;
    return moved ? ERR_OK : nothing(k, has(k, CHANNEL_FLAT) ? CHANNEL_FLAT : CHANNEL_TURNED);
}

static int lay(const struct making *k)
{
    struct channel_case *c = k->out;
    int rc = ERR_OK;
    if (c->pictures.n)
        rc = prompt_lay_pictures(k->m->front, &c->pictures, c->ids, c->n, k->arena, &c->layout, k->e);
    else {
        c->layout = (struct prompt_layout){.n = c->n};
        c->layout.places = arena_alloc_n(k->arena, c->n + 1, 3 * sizeof(int32_t));
        c->layout.feature_of = arena_alloc_n(k->arena, c->n + 1, sizeof(int32_t));
        if (!c->layout.places || !c->layout.feature_of)
            return err_set(k->e, ERR_NOMEM, "out of memory for places");
        for (size_t i = 0; i < c->n; i++) {
            c->layout.feature_of[i] = -1;
            for (size_t d = 0; d < 3; d++)
                c->layout.places[3 * i + d] = (int32_t)i;
        }
    }
    if (rc == 0 && has(k, CHANNEL_FEWER))
        rc = fewer(k, CHANNEL_FEWER);
    if (rc == 0 && has(k, CHANNEL_FIRST_ROW))
        rc = fewer(k, CHANNEL_FIRST_ROW);
    if (rc == 0 && has(k, CHANNEL_MORE))
        rc = more(k);
    if (rc == 0 && (has(k, CHANNEL_FLAT) || has(k, CHANNEL_TURNED)))
        rc = other_places(k);
    if (rc == 0 && has(k, CHANNEL_UNSEEN)) {
        if (c->pictures.n == 0)
            return nothing(k, CHANNEL_UNSEEN);
        for (size_t i = 0; i < c->n; i++)
            c->layout.feature_of[i] = -1;
    }
    return rc;
}

bool channel_refused(int rc)
{
    return rc == ERR_MISMATCH || rc == ERR_INVALID || rc == ERR_UNSUPPORTED || rc == ERR_FORMAT ||
           rc == ERR_LIMIT;
}

int channel_make(const struct channel_model *m, const struct json *messages, uint32_t mask,
                 struct arena *arena, struct channel_case *out, struct err *e)
{
    struct making k = {.m = m, .arena = arena, .out = out, .changes = mask, .e = e};
    *out = (struct channel_case){.changes = mask};
    if (!messages || messages->type != JSON_ARRAY)
        return err_set(e, ERR_INVALID, "messages are no array");
    for (unsigned i = 0; i < CHANNEL_CHANGES; i++)
        if (has(&k, (enum channel_change)i) && changes[i].image && count_pictures(messages) == 0)
            return nothing(&k, (enum channel_change)i);
    int rc = changed_messages(&k, messages, &messages);
    if (rc == 0)
        rc = render(&k, messages);
    if (rc == 0 && has(&k, CHANNEL_BOS_TWICE))
        rc = double_bos(&k);
    if (rc == 0) {
        out->at = CHANNEL_AT_PIXELS;
        rc = make_pixels(&k);
    }
    if (rc == 0) {
        out->at = CHANNEL_AT_PLACEHOLDERS;
        rc = lay(&k);
    }
    /* counts and grids, wherever it is seen that they do not agree */
    if (rc == ERR_MISMATCH || (rc == ERR_INVALID && out->at == CHANNEL_AT_PIXELS))
        out->at = CHANNEL_AT_PLACEHOLDERS;
    return rc;
}
