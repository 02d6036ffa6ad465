/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: what a request says of its pictures, checked and kept; the rows of the engine's store that they have;
 * the digests that keep pages of other pictures apart. Refuses: images, rows, places and spans that do not
 * agree; knows no queue and no batch.
 */
#include "sched/sched_images.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

/* ---- what a request says ------------------------------------------------------------------------------- */

static int check_image(const struct sched_image *i, uint32_t number, const struct engine_limits *l,
                       struct err *e)
{
    static const uint8_t none[32] = {0};
    const struct picture_plan *p = i->message;
    if (!p || (uintptr_t)p % 8 || i->bytes < sizeof(*p) || p->magic != PICTURE_PLAN_MAGIC ||
        p->bytes != i->bytes)
        return err_set(e, ERR_INVALID, "picture %u comes without its message", number);
    if (i->n_rows < 1 || i->n_rows != p->n_rows)
        return err_set(e, ERR_INVALID, "picture %u has %u rows, its message %u", number, i->n_rows,
                       p->n_rows);
    if (p->n_patches > l->max_patches)
        return err_set(e, ERR_LIMIT, "picture %u has %u patches, the tower takes %u", number, p->n_patches,
                       l->max_patches);
    if (p->n_rows > l->max_picture_rows)
        return err_set(e, ERR_LIMIT, "picture %u gives %u rows, the tower gives at most %u", number,
                       p->n_rows, l->max_picture_rows);
    if (memcmp(i->key, none, sizeof none) == 0)
        return err_set(e, ERR_INVALID, "picture %u has no key", number);
    return ERR_OK;
}

static int check_images(const struct sched_request *q, const struct engine_limits *l, struct err *e)
{
    uint64_t rows = 0, next = 0;
    if (q->n_images && (!q->images || !q->feature_of))
        return err_set(e, ERR_INVALID, "%u pictures, and no token takes them", q->n_images);
    for (uint32_t i = 0; i < q->n_images; i++) {
        int rc = check_image(&q->images[i], i, l, e);
        if (rc != ERR_OK)
            return rc;
        rows += q->images[i].n_rows;
    }
    if (rows > l->n_feature_rows)
        return err_set(e, ERR_LIMIT, "%u pictures give %llu rows, there is room for %u", q->n_images,
                       (unsigned long long)rows, l->n_feature_rows);
    for (uint32_t p = 0; q->feature_of && p < q->n_prompt; p++) {
        if (q->feature_of[p] == -1)
            continue;
        if (next == rows || q->feature_of[p] != (int64_t)next)
            return err_set(e, ERR_INVALID,
                           "prompt token %u takes row %d of the pictures, row %llu of %llu is next", p,
                           q->feature_of[p], (unsigned long long)next, (unsigned long long)rows);
        next++;
    }
    if (next != rows)
        return err_set(e, ERR_INVALID, "the prompt takes %llu rows, its pictures give %llu",
                       (unsigned long long)next, (unsigned long long)rows);
    return ERR_OK;
}

static int check_places(const struct sched_request *q, struct err *e)
{
    for (uint64_t i = 0; q->places && i < 3 * (uint64_t)q->n_prompt; i++)
        if (q->places[i] < 0)
            return err_set(e, ERR_INVALID, "prompt token %llu stands at place %d", (unsigned long long)i / 3,
                           q->places[i]);
    int64_t first = (int64_t)q->n_prompt + q->place_delta, last = first + q->max_new;
    if (first < 0 || last > INT32_MAX)
        return err_set(e, ERR_INVALID, "the first new token, at %u, stands at place %lld", q->n_prompt,
                       (long long)first);
    return ERR_OK;
}

static int check_spans(const struct sched_request *q, uint32_t max_span, struct err *e)
{
    int64_t first = 0, end = 0;
    for (uint32_t p = 0; q->spans && p < q->n_prompt; p++) {
        const int32_t *span = q->spans + 2 * (size_t)p;
        if (p == end) { /* the one before is over */
            first = p;
            end = span[1];
        }
        if (span[0] != first || span[1] != end || end <= p || end > q->n_prompt)
            return err_set(e, ERR_INVALID, "prompt token %u is in the span %d to %d", p, span[0], span[1]);
        if (end - first > max_span)
            return err_set(e, ERR_LIMIT, "a span of %lld tokens goes through a step whole, a step takes %u",
                           (long long)(end - first), max_span);
    }
    return ERR_OK;
}

static bool says_nothing(const struct sched_request *q)
{
    return !q->n_images && !q->feature_of && !q->places && !q->spans && !q->place_delta;
}

int images_validate(const struct sched_request *q, const struct engine_limits *l, uint32_t max_span,
                    struct err *e)
{
    if (says_nothing(q))
        return ERR_OK;
    if (!l->n_feature_rows)
        return err_set(e, ERR_UNSUPPORTED, "the engine has no tower: it takes no pictures");
    int rc = check_images(q, l, e);
    if (rc == ERR_OK)
        rc = check_places(q, e);
    return rc == ERR_OK ? check_spans(q, max_span, e) : rc;
}

/* ---- digests ------------------------------------------------------------------------------------------- */

/* One token as a page is known by it; no byte between the fields. */
struct trait {
    int32_t place[3], span[2], row, id; /* row: within its picture, or -1 */
    uint8_t key[32];
};

static const struct image *image_of(const struct images *m, uint32_t feature)
{
    uint32_t low = 0, high = m->n;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (m->image[middle].base <= feature)
            low = middle;
        else
            high = middle;
    }
    return &m->image[low];
}

static bool is_plain(const struct step_place *k, uint32_t p)
{
    const int32_t at = (int32_t)p;
    return k->place[0] == at && k->place[1] == at && k->place[2] == at && k->feature < 0 &&
           k->span[0] == at && k->span[1] == at + 1;
}

struct step_place images_place(const struct images *m, uint32_t p)
{
    if (m && p < m->n_prompt) {
        struct step_place k = m->place[p];
        if (k.feature >= 0) {
            const struct image *i = image_of(m, (uint32_t)k.feature);
            k.feature = (int32_t)(i->row + ((uint32_t)k.feature - i->base));
        }
        return k;
    }
    const int32_t at = (int32_t)p, place = at + (m ? m->place_delta : 0);
    return (struct step_place){.place = {place, place, place}, .feature = -1, .span = {at, at + 1}};
}

static struct trait trait_of(const struct images *m, uint32_t p, int32_t id)
{
    const struct step_place k = p < m->n_prompt ? m->place[p] : images_place(m, p);
    struct trait t = {.row = -1, .id = id};
    memcpy(t.place, k.place, sizeof t.place);
    memcpy(t.span, k.span, sizeof t.span);
    if (k.feature >= 0) {
        const struct image *i = image_of(m, (uint32_t)k.feature);
        t.row = k.feature - (int32_t)i->base;
        memcpy(t.key, i->key, sizeof t.key);
    }
    return t;
}

static int end_digest(struct sha256 *h, uint8_t out[PAGE_DIGEST_BYTES])
{
    char hex[SHA256_HEX_BYTES];
    int rc = sha256_end(h, hex);
    for (size_t i = 0; rc == ERR_OK && i < 2 * (size_t)PAGE_DIGEST_BYTES; i++) {
        uint8_t nibble = (uint8_t)(hex[i] <= '9' ? hex[i] - '0' : hex[i] - 'a' + 10);
        out[i / 2] = (uint8_t)(out[i / 2] << 4 | nibble);
    }
    return rc;
}

/* A token of a span depends on all of them, also on those in later pages: their ids too. */
static int feed_span(struct sha256 *h, const struct images *m, const struct sched_request *q,
                     const struct step_place *k)
{
    int rc = ERR_OK;
    for (int32_t p = k->span[0]; rc == ERR_OK && p < k->span[1]; p++) {
        const struct trait t = trait_of(m, (uint32_t)p, q->prompt[p]);
        rc = sha256_update(h, &t, sizeof t);
    }
    return rc;
}

static int make_digest(const struct images *m, const struct sched_request *q, uint32_t page,
                       uint32_t page_tokens, uint8_t out[PAGE_DIGEST_BYTES], struct err *e)
{
    const uint32_t first = page * page_tokens;
    struct sha256 *h;
    int rc = sha256_begin(&h, e);
    if (rc != ERR_OK)
        return rc;
    int32_t span = -1; /* the last one that was fed */
    for (uint32_t p = first; rc == ERR_OK && p < first + page_tokens; p++) {
        const struct trait t = trait_of(m, p, 0);
        const struct step_place *k = p < m->n_prompt ? &m->place[p] : NULL;
        rc = sha256_update(h, &t, sizeof t);
        if (rc == ERR_OK && k && k->span[1] - k->span[0] > 1 && k->span[0] != span) {
            span = k->span[0];
            rc = feed_span(h, m, q, k);
        }
    }
    if (rc != ERR_OK) {
        sha256_abort(h);
        return err_set(e, rc, "cannot digest the pictures of a prompt");
    }
    rc = end_digest(h, out);
    return rc == ERR_OK ? rc : err_set(e, rc, "cannot digest the pictures of a prompt");
}

/* Pages of text in plain order keep zeros, so that they are found by a request without pictures as well. */
static int make_digests(struct images *m, const struct sched_request *q, uint32_t page_tokens,
                        uint32_t n_pages, struct err *e)
{
    int rc = ERR_OK;
    for (uint32_t page = 0; rc == ERR_OK && page < n_pages; page++) {
        bool plain = true;
        for (uint32_t i = 0, p = page * page_tokens; plain && i < page_tokens; i++, p++) {
            const struct step_place k = p < m->n_prompt ? m->place[p] : images_place(m, p);
            plain = is_plain(&k, p);
        }
        if (!plain)
            rc = make_digest(m, q, page, page_tokens, m->digests + (size_t)page * PAGE_DIGEST_BYTES, e);
    }
    return rc;
}

const uint8_t *images_digest(const struct images *m, uint32_t page)
{
    static const uint8_t plain[PAGE_DIGEST_BYTES] = {0};
    return m ? m->digests + (size_t)page * PAGE_DIGEST_BYTES : plain;
}

/* ---- keeping it ---------------------------------------------------------------------------------------- */

static void keep_images(struct images *m, const struct sched_request *q)
{
    uint32_t base = 0;
    for (uint32_t i = 0; i < m->n; i++) {
        const struct sched_image *from = &q->images[i];
        m->image[i] = (struct image){.n_rows = from->n_rows,
                                     .base = base,
                                     .row = ROW_NONE,
                                     .message = from->message,
                                     .bytes = from->bytes};
        memcpy(m->image[i].key, from->key, sizeof from->key);
        base += from->n_rows;
    }
    for (uint32_t p = 0; m->n && p < q->n_prompt; p++) {
        int32_t f = q->feature_of[p];
        if (f < 0)
            continue;
        struct image *i = (struct image *)image_of(m, (uint32_t)f);
        if ((uint32_t)f == i->base)
            i->first = p;
        i->last = p;
    }
}

static void keep_places(struct images *m, const struct sched_request *q)
{
    for (uint32_t p = 0; p < q->n_prompt; p++) {
        const int32_t at = (int32_t)p;
        struct step_place *k = &m->place[p];
        *k = (struct step_place){.place = {at, at, at}, .feature = -1, .span = {at, at + 1}};
        if (q->places)
            memcpy(k->place, q->places + 3 * (size_t)p, sizeof k->place);
        if (q->spans)
            memcpy(k->span, q->spans + 2 * (size_t)p, sizeof k->span);
        if (q->feature_of)
            k->feature = q->feature_of[p];
    }
}

int images_make(const struct sched_request *q, uint32_t page_tokens, uint32_t n_pages, struct images **out,
                struct err *e)
{
    *out = NULL;
    if (says_nothing(q))
        return ERR_OK;
    /* counts of 32 bits times sizes below 128: no sum overflows */
    const uint64_t bytes = sizeof(struct images) + (uint64_t)q->n_images * sizeof(struct image) +
                           (uint64_t)q->n_prompt * sizeof(struct step_place) +
                           (uint64_t)n_pages * PAGE_DIGEST_BYTES;
    struct images *m = calloc(1, bytes);
    if (!m)
        return err_set(e, ERR_NOMEM, "no memory for the pictures of a request");
    *m = (struct images){
        .bytes = bytes, .n = q->n_images, .n_prompt = q->n_prompt, .place_delta = q->place_delta};
    m->image = (struct image *)(m + 1);
    m->place = (struct step_place *)(m->image + m->n);
    m->digests = (uint8_t *)(m->place + q->n_prompt);
    keep_images(m, q);
    keep_places(m, q);
    int rc = make_digests(m, q, page_tokens, n_pages, e);
    if (rc != ERR_OK)
        free(m);
    else
        *out = m;
    return rc;
}

/* ---- rows of the store --------------------------------------------------------------------------------- */

static void give_rows(struct image *i, struct feature_rows *f)
{
    if (i->row == ROW_NONE)
        return;
    for (uint32_t k = 0; k < i->n_rows; k++)
        if (!f->used[i->row + k])
            BUG("row %u of the store is given back twice", i->row + k);
    memset(f->used + i->row, 0, i->n_rows);
    f->n_free += i->n_rows;
    i->row = ROW_NONE;
    i->encoded = false;
}

/* The first place where n rows are free behind each other. */
static uint32_t find_rows(const struct feature_rows *f, uint32_t n)
{
    for (uint32_t at = 0, run = 0; at < f->n; at++) {
        run = f->used[at] ? 0 : run + 1;
        if (run == n)
            return at + 1 - n;
    }
    return ROW_NONE;
}

void images_release(struct images *m, struct feature_rows *f)
{
    for (uint32_t i = 0; m && i < m->n; i++)
        give_rows(&m->image[i], f);
}

void images_passed(struct images *m, struct feature_rows *f, uint32_t computed)
{
    for (uint32_t i = 0; m && i < m->n && m->image[i].last < computed; i++)
        give_rows(&m->image[i], f);
}

bool images_reserve(struct images *m, struct feature_rows *f, uint32_t computed)
{
    uint64_t rows = 0;
    for (uint32_t i = 0; m && i < m->n; i++)
        rows += m->image[i].last >= computed ? m->image[i].n_rows : 0;
    if (rows > f->n_free)
        return false;
    for (uint32_t i = 0; m && i < m->n; i++) {
        struct image *k = &m->image[i];
        if (k->last < computed)
            continue;
        k->row = find_rows(f, k->n_rows);
        if (k->row == ROW_NONE) { /* free rows lie apart: until others have ended */
            images_release(m, f);
            return false;
        }
        memset(f->used + k->row, true, k->n_rows);
        f->n_free -= k->n_rows;
    }
    return true;
}

/* ---- runs of tokens ------------------------------------------------------------------------------------ */

bool images_cuts_span(const struct images *m, uint32_t position)
{
    return m && position < m->n_prompt && m->place[position].span[0] < (int32_t)position;
}

/* Images are taken in order: the first that is not encoded and not behind us. */
static struct image *next_image(const struct images *m, uint32_t computed)
{
    for (uint32_t i = 0; m && i < m->n; i++)
        if (m->image[i].last >= computed && !m->image[i].encoded)
            return &m->image[i];
    return NULL;
}

struct image *images_wanted(const struct images *m, uint32_t computed, uint32_t n)
{
    struct image *i = next_image(m, computed);
    uint32_t end = computed + n;
    if (i && images_cuts_span(m, end))
        end = (uint32_t)m->place[end].span[1];
    return i && i->first < end ? i : NULL;
}

uint32_t images_run(const struct images *m, uint32_t computed, uint32_t n, uint32_t most, bool *tight)
{
    const struct image *i = next_image(m, computed);
    *tight = false;
    /* `first` may be behind us where a prefix was found that ends within the picture */
    const uint32_t ready = !i ? UINT32_MAX : i->first > computed ? i->first - computed : 0;
    n = n < ready ? n : ready;
    if (!n || !images_cuts_span(m, computed + n))
        return n;
    const uint32_t first = (uint32_t)m->place[computed + n].span[0],
                   end = (uint32_t)m->place[computed + n].span[1];
    if (first > computed)
        return first - computed;
    if (end - computed > ready)
        return 0;
    *tight = end - computed > most;
    return *tight ? 0 : end - computed;
}
