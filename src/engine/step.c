/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the layout of step_plan and step_result and the checks that make an untrusted message safe to use.
 * Refuses: any message that is not exactly as the builder would have laid it out; knows no device and no
 * model.
 */
#include "engine/engine.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define STEP_FLAGS       (STEP_SAMPLE | STEP_ALL_LOGITS | STEP_LAST_LOGITS)
#define ERROR_TEXT_BYTES 512u

struct layout {
    uint64_t at[4], end;
};

/* Sections follow the header in order, each on the next multiple of 8. All counts are 32 bits or checked
 * before: no sum overflows 64 bits. */
static void lay_out(struct layout *l, uint64_t header, const uint64_t *bytes, unsigned n)
{
    uint64_t at = ALIGN_UP(header, 8);
    for (unsigned i = 0; i < n; i++) {
        l->at[i] = at;
        at += ALIGN_UP(bytes[i], 8);
    }
    l->end = at;
}

static void plan_layout(struct layout *l, uint64_t n_seqs, uint64_t n_tokens, uint64_t n_pages,
                        uint64_t n_places)
{
    const uint64_t bytes[] = {n_seqs * sizeof(struct step_seq), n_tokens * sizeof(int32_t),
                              n_pages * sizeof(int32_t), n_places * sizeof(struct step_place)};
    lay_out(l, sizeof(struct step_plan), bytes, 4);
}

/* Alternatives come last, since their number is known only when all is sampled. */
static void result_layout(struct layout *l, uint64_t n_seqs, uint64_t n_logits, uint64_t n_tops,
                          uint64_t text)
{
    const uint64_t bytes[] = {n_seqs * sizeof(struct step_seq_result), n_logits * sizeof(float),
                              n_tops * sizeof(struct step_top), text};
    lay_out(l, sizeof(struct step_result), bytes, 4);
}

static int check_buffer(const void *buf, uint64_t cap, uint64_t need, struct err *e)
{
    if ((uintptr_t)buf % 8)
        return err_set(e, ERR_INVALID, "step message: the buffer is not aligned to 8 bytes");
    if (need > STEP_MAX_BYTES)
        return err_set(e, ERR_LIMIT, "step message of %llu bytes: the limit is %u", (unsigned long long)need,
                       STEP_MAX_BYTES);
    if (need > cap)
        return err_set(e, ERR_LIMIT, "step message of %llu bytes: the buffer holds %llu",
                       (unsigned long long)need, (unsigned long long)cap);
    return ERR_OK;
}

/* ---- plan ---------------------------------------------------------------------------------------------- */

static int init_plan(void *buf, size_t cap, uint32_t n_seqs, uint32_t n_tokens, uint32_t n_pages,
                     uint32_t n_places, struct step_plan **out, struct err *e)
{
    struct layout l;
    plan_layout(&l, n_seqs, n_tokens, n_pages, n_places);
    int rc = check_buffer(buf, cap, l.end, e);
    if (rc != ERR_OK)
        return rc;
    memset(buf, 0, l.end);
    struct step_plan *p = buf;
    p->magic = STEP_PLAN_MAGIC;
    p->bytes = (uint32_t)l.end;
    p->n_seqs = n_seqs;
    p->n_tokens = n_tokens;
    p->n_pages = n_pages;
    p->n_places = n_places;
    p->seqs_at = (uint32_t)l.at[0];
    p->tokens_at = (uint32_t)l.at[1];
    p->pages_at = (uint32_t)l.at[2];
    p->places_at = (uint32_t)l.at[3];
    *out = p;
    return ERR_OK;
}

int step_plan_init(void *buf, size_t cap, uint32_t n_seqs, uint32_t n_tokens, uint32_t n_pages,
                   struct step_plan **out, struct err *e)
{
    return init_plan(buf, cap, n_seqs, n_tokens, n_pages, 0, out, e);
}

int step_plan_init_places(void *buf, size_t cap, uint32_t n_seqs, uint32_t n_tokens, uint32_t n_pages,
                          struct step_plan **out, struct err *e)
{
    return init_plan(buf, cap, n_seqs, n_tokens, n_pages, n_tokens, out, e);
}

size_t step_plan_bytes(const struct engine_limits *l)
{
    struct layout lay;
    plan_layout(&lay, l->max_seqs, l->max_tokens, 0, l->n_feature_rows ? l->max_tokens : 0);
    uint64_t pages = (uint64_t)l->max_seqs * l->max_pages_per_seq;
    uint64_t bytes;
    if (!mul_u64(pages, sizeof(int32_t), &bytes) || !add_u64(bytes, lay.end + 8, &bytes) ||
        bytes > STEP_MAX_BYTES)
        return STEP_MAX_BYTES;
    return bytes;
}

int step_sampling_validate(const struct step_sampling *s, uint32_t vocab, struct err *e)
{
    if (!isfinite(s->temperature) || s->temperature < 0)
        return err_set(e, ERR_FORMAT, "sampling.temperature is %g, must be finite and not negative",
                       (double)s->temperature);
    /* greedy choice does not look at top_p, so a cleared struct is a valid "greedy" */
    if (!(s->top_p > 0 || (s->top_p == 0 && s->temperature == 0)) || s->top_p > 1)
        return err_set(e, ERR_FORMAT, "sampling.top_p is %g, must be in (0, 1]", (double)s->top_p);
    if (s->n_top > STEP_MAX_TOP)
        return err_set(e, ERR_LIMIT, "sampling.n_top is %u, the limit is %d", s->n_top, STEP_MAX_TOP);
    if (s->want_logprob > 1)
        return err_set(e, ERR_FORMAT, "sampling.want_logprob is %u, must be 0 or 1", s->want_logprob);
    if (vocab && s->vocab_limit > vocab)
        return err_set(e, ERR_LIMIT, "sampling.vocab_limit is %u, the vocabulary has %u", s->vocab_limit,
                       vocab);
    return ERR_OK;
}

static int plan_header(const struct step_plan *p, size_t n, const struct engine_limits *l, struct err *e)
{
    if (p->magic != STEP_PLAN_MAGIC)
        return err_set(e, ERR_FORMAT, "step plan: magic is %08x", p->magic);
    if (p->bytes != n || n > STEP_MAX_BYTES)
        return err_set(e, ERR_FORMAT, "step plan: bytes is %u, the message has %zu (limit %u)", p->bytes, n,
                       STEP_MAX_BYTES);
    if (p->n_seqs < 1 || p->n_seqs > l->max_seqs)
        return err_set(e, ERR_LIMIT, "step plan: n_seqs is %u, must be 1..%u", p->n_seqs, l->max_seqs);
    if (p->n_tokens < 1 || p->n_tokens > l->max_tokens)
        return err_set(e, ERR_LIMIT, "step plan: n_tokens is %u, must be 1..%u", p->n_tokens, l->max_tokens);
    if (p->n_pages > (uint64_t)l->max_seqs * l->max_pages_per_seq)
        return err_set(e, ERR_LIMIT, "step plan: n_pages is %u, must be at most %u * %u", p->n_pages,
                       l->max_seqs, l->max_pages_per_seq);
    uint32_t n_places = l->n_feature_rows ? p->n_tokens : 0;
    if (p->n_places != n_places)
        return err_set(e, ERR_FORMAT, "step plan: n_places is %u, must be %u", p->n_places, n_places);
    struct layout lay;
    plan_layout(&lay, p->n_seqs, p->n_tokens, p->n_pages, n_places);
    const struct {
        const char *name;
        uint64_t is, must;
    } f[] = {{"seqs_at", p->seqs_at, lay.at[0]},
             {"tokens_at", p->tokens_at, lay.at[1]},
             {"pages_at", p->pages_at, lay.at[2]},
             {"places_at", p->places_at, lay.at[3]},
             {"bytes", p->bytes, lay.end}};
    for (size_t i = 0; i < ARRAY_LEN(f); i++)
        if (f[i].is != f[i].must)
            return err_set(e, ERR_FORMAT, "step plan: %s is %llu, must be %llu", f[i].name,
                           (unsigned long long)f[i].is, (unsigned long long)f[i].must);
    return ERR_OK;
}

struct plan_sums {
    uint64_t tokens, pages, rows;
};

static int plan_seq(const struct step_plan *p, const struct step_seq *q, uint32_t i,
                    const struct engine_limits *l, struct plan_sums *sums, struct err *e)
{
    if (q->first_token != sums->tokens)
        return err_set(e, ERR_FORMAT, "step plan: seqs[%u].first_token is %u, must be %llu", i,
                       q->first_token, (unsigned long long)sums->tokens);
    if (q->n_tokens < 1 || q->n_tokens > p->n_tokens - sums->tokens)
        return err_set(e, ERR_FORMAT, "step plan: seqs[%u].n_tokens is %u, must be 1..%llu", i, q->n_tokens,
                       (unsigned long long)(p->n_tokens - sums->tokens));
    if (q->first_page != sums->pages)
        return err_set(e, ERR_FORMAT, "step plan: seqs[%u].first_page is %u, must be %llu", i, q->first_page,
                       (unsigned long long)sums->pages);
    if (q->n_pages > l->max_pages_per_seq)
        return err_set(e, ERR_LIMIT, "step plan: seqs[%u].n_pages is %u, the limit is %u", i, q->n_pages,
                       l->max_pages_per_seq);
    if (q->n_pages > p->n_pages - sums->pages)
        return err_set(e, ERR_FORMAT, "step plan: seqs[%u].n_pages is %u, only %llu are left", i, q->n_pages,
                       (unsigned long long)(p->n_pages - sums->pages));
    /* positions are int32 on the device; a graph without state has no pages and page_tokens of 0 */
    uint64_t end = (uint64_t)q->position + q->n_tokens;
    if (end > INT32_MAX || (l->page_tokens && end > (uint64_t)q->n_pages * l->page_tokens))
        return err_set(e, ERR_FORMAT, "step plan: seqs[%u].position %u + %u tokens is past %u pages of %u", i,
                       q->position, q->n_tokens, q->n_pages, l->page_tokens);
    if (q->flags & ~(uint32_t)STEP_FLAGS)
        return err_set(e, ERR_FORMAT, "step plan: seqs[%u].flags is %x", i, q->flags);
    if (q->reserved)
        return err_set(e, ERR_FORMAT, "step plan: seqs[%u].reserved is not zero", i);
    if (q->slot && q->slot >= l->n_slots)
        return err_set(e, ERR_FORMAT, "step plan: seqs[%u].slot is %u, there are %u", i, q->slot, l->n_slots);
    if (q->restore > l->n_snapshots || q->save > l->n_snapshots)
        return err_set(e, ERR_FORMAT, "step plan: seqs[%u] restores %u and saves %u, there are %u snapshots",
                       i, q->restore, q->save, l->n_snapshots);
    if (q->restore && q->position == 0)
        return err_set(e, ERR_FORMAT, "step plan: seqs[%u] restores a state and begins at position 0", i);
    if (q->flags & STEP_SAMPLE) {
        int rc = step_sampling_validate(&q->sampling, l->vocab, e);
        if (rc != ERR_OK) {
            err_ctx(e, "step plan: seqs[%u]", i);
            return rc;
        }
    }
    sums->tokens += q->n_tokens;
    sums->pages += q->n_pages;
    sums->rows += q->flags & STEP_ALL_LOGITS ? q->n_tokens : q->flags != 0;
    return ERR_OK;
}

static int plan_arrays(const struct step_plan *p, const struct engine_limits *l, struct err *e)
{
    const int32_t *tokens = (const int32_t *)((const char *)p + p->tokens_at);
    const int32_t *pages = (const int32_t *)((const char *)p + p->pages_at);
    for (uint32_t i = 0; i < p->n_tokens; i++)
        if (tokens[i] < 0 || (l->vocab && (uint32_t)tokens[i] >= l->vocab))
            return err_set(e, ERR_FORMAT, "step plan: tokens[%u] is %d, the vocabulary has %u", i, tokens[i],
                           l->vocab);
    for (uint32_t i = 0; i < p->n_pages; i++)
        if (pages[i] < 0 || (uint32_t)pages[i] >= l->n_pages)
            return err_set(e, ERR_FORMAT, "step plan: pages[%u] is %d, there are %u", i, pages[i],
                           l->n_pages);
    if ((p->n_tokens % 2 && tokens[p->n_tokens]) || (p->n_pages % 2 && pages[p->n_pages]))
        return err_set(e, ERR_FORMAT, "step plan: the bytes between the arrays are not zero");
    return ERR_OK;
}

/* Of token t at position `at` of q. A span that begins earlier in the run is that of the token before. */
static int plan_place(const struct step_place *all, uint32_t t, const struct step_seq *q, int32_t at,
                      const struct engine_limits *l, struct err *e)
{
    const struct step_place *k = &all[t];
    int32_t first = (int32_t)q->position, end = first + (int32_t)q->n_tokens;
    for (unsigned i = 0; i < 3; i++)
        if (k->place[i] < 0)
            return err_set(e, ERR_FORMAT, "step plan: places[%u].place is %d", t, k->place[i]);
    if (k->feature < -1 || (k->feature >= 0 && (uint32_t)k->feature >= l->n_feature_rows))
        return err_set(e, ERR_FORMAT, "step plan: places[%u].feature is %d, there are %u", t, k->feature,
                       l->n_feature_rows);
    bool inside = k->span[0] >= first && k->span[0] <= at && k->span[1] > at && k->span[1] <= end;
    bool follows = at == first          ? inside && k->span[0] == at
                   : k[-1].span[1] > at ? k->span[0] == k[-1].span[0] && k->span[1] == k[-1].span[1]
                                        : k->span[0] == at;
    if (!inside || !follows)
        return err_set(e, ERR_FORMAT,
                       "step plan: places[%u].span is %d to %d, at position %d of a run of %d to %d", t,
                       k->span[0], k->span[1], at, first, end);
    return ERR_OK;
}

static int plan_places(const struct step_plan *p, const struct engine_limits *l, struct err *e)
{
    const struct step_seq *q = (const struct step_seq *)((const char *)p + p->seqs_at);
    const struct step_place *all = (const struct step_place *)((const char *)p + p->places_at);
    int rc = ERR_OK;
    for (uint32_t s = 0; p->n_places && s < p->n_seqs; s++)
        for (uint32_t i = 0; rc == ERR_OK && i < q[s].n_tokens; i++)
            rc = plan_place(all, q[s].first_token + i, &q[s], (int32_t)(q[s].position + i), l, e);
    return rc;
}

int step_plan_validate(const void *buf, size_t n, const struct engine_limits *l, struct err *e)
{
    const struct step_plan *p = buf;
    if ((uintptr_t)buf % 8)
        return err_set(e, ERR_INVALID, "step plan: the buffer is not aligned to 8 bytes");
    if (n < sizeof(*p))
        return err_set(e, ERR_FORMAT, "step plan: %zu bytes are less than a header", n);
    int rc = plan_header(p, n, l, e);
    struct plan_sums sums = {0};
    const struct step_seq *seqs = (const struct step_seq *)((const char *)p + sizeof(*p));
    for (uint32_t i = 0; rc == ERR_OK && i < p->n_seqs; i++)
        rc = plan_seq(p, &seqs[i], i, l, &sums, e);
    if (rc != ERR_OK)
        return rc;
    if (sums.tokens != p->n_tokens || sums.pages != p->n_pages)
        return err_set(
            e, ERR_FORMAT, "step plan: the sequences own %llu of %u tokens and %llu of %u page entries",
            (unsigned long long)sums.tokens, p->n_tokens, (unsigned long long)sums.pages, p->n_pages);
    if (sums.rows > l->max_rows)
        return err_set(e, ERR_LIMIT, "step plan: %llu rows with logits, the limit is %u",
                       (unsigned long long)sums.rows, l->max_rows);
    rc = plan_arrays(p, l, e);
    return rc == ERR_OK ? plan_places(p, l, e) : rc;
}

/* ---- result -------------------------------------------------------------------------------------------- */

int step_result_init(void *buf, size_t cap, uint32_t n_seqs, uint64_t n_logits, uint32_t n_tops,
                     struct step_result **out, struct err *e)
{
    if (n_logits > STEP_MAX_BYTES)
        return err_set(e, ERR_LIMIT, "step result: %llu logits do not fit a message of %u bytes",
                       (unsigned long long)n_logits, STEP_MAX_BYTES);
    struct layout l;
    result_layout(&l, n_seqs, n_logits, n_tops, 0);
    int rc = check_buffer(buf, cap, l.end, e);
    if (rc != ERR_OK)
        return rc;
    struct step_result *r = buf;
    memset(r, 0, l.at[1]);
    memset((char *)buf + l.at[2] - (n_logits ? 8 : 0), 0, l.end - l.at[2] + (n_logits ? 8 : 0));
    r->magic = STEP_RESULT_MAGIC;
    r->bytes = (uint32_t)l.end;
    r->n_seqs = n_seqs;
    r->n_tops = n_tops;
    r->n_logits = n_logits;
    r->seqs_at = (uint32_t)l.at[0];
    r->logits_at = (uint32_t)l.at[1];
    r->tops_at = (uint32_t)l.at[2];
    *out = r;
    return ERR_OK;
}

void step_result_finish(struct step_result *r, uint32_t n_tops)
{
    struct layout l;
    result_layout(&l, r->n_seqs, r->n_logits, n_tops, 0);
    r->n_tops = n_tops;
    r->bytes = (uint32_t)l.end;
}

int step_result_error(void *buf, size_t cap, uint64_t step, int code, const char *text,
                      struct step_result **out, struct err *e)
{
    size_t n = strnlen(text, ERROR_TEXT_BYTES - 1);
    struct layout l;
    result_layout(&l, 0, 0, 0, n + 1);
    int rc = check_buffer(buf, cap, l.end, e);
    if (rc != ERR_OK)
        return rc;
    struct step_result *r = buf;
    memset(r, 0, l.end);
    r->magic = STEP_RESULT_MAGIC;
    r->bytes = (uint32_t)l.end;
    r->step = step;
    r->error = code < 0 ? code : ERR_DEVICE;
    r->seqs_at = (uint32_t)l.at[0];
    r->logits_at = (uint32_t)l.at[1];
    r->tops_at = (uint32_t)l.at[2];
    r->error_at = (uint32_t)l.at[3];
    memcpy((char *)buf + l.at[3], text, n);
    *out = r;
    return ERR_OK;
}

size_t engine_result_bytes(const struct engine_limits *l, bool with_logits)
{
    struct layout lay;
    uint64_t logits = 0;
    /* a step that would need more than the largest message fails as a whole, with a small result */
    if (with_logits)
        logits = (uint64_t)l->max_rows * l->vocab;
    if (logits > STEP_MAX_BYTES || l->max_seqs > STEP_MAX_BYTES)
        return STEP_MAX_BYTES;
    result_layout(&lay, l->max_seqs, logits, (uint64_t)l->max_seqs * STEP_MAX_TOP, ERROR_TEXT_BYTES);
    return lay.end < STEP_MAX_BYTES ? lay.end : STEP_MAX_BYTES;
}

static int result_text(const struct step_result *r, struct err *e)
{
    if ((r->error == 0) != (r->error_at == 0))
        return err_set(e, ERR_FORMAT, "step result: error is %d, error_at is %u", r->error, r->error_at);
    if (r->error == 0)
        return ERR_OK;
    if (r->error > 0 || r->n_seqs || r->n_tops || r->n_logits)
        return err_set(e, ERR_FORMAT, "step result: error %d with %u sequences", r->error, r->n_seqs);
    const char *text = (const char *)r + r->error_at;
    size_t room = r->bytes - r->error_at;
    if (room > ERROR_TEXT_BYTES || room == 0 || text[room - 1] != '\0')
        return err_set(e, ERR_FORMAT, "step result: the error text is not terminated");
    return ERR_OK;
}

static int result_header(const struct step_result *r, size_t n, struct err *e)
{
    if (r->magic != STEP_RESULT_MAGIC)
        return err_set(e, ERR_FORMAT, "step result: magic is %08x", r->magic);
    if (r->bytes != n || n > STEP_MAX_BYTES)
        return err_set(e, ERR_FORMAT, "step result: bytes is %u, the message has %zu (limit %u)", r->bytes, n,
                       STEP_MAX_BYTES);
    if (r->reserved)
        return err_set(e, ERR_FORMAT, "step result: a reserved field is not zero");
    if (r->n_logits > STEP_MAX_BYTES)
        return err_set(e, ERR_LIMIT, "step result: n_logits is %llu", (unsigned long long)r->n_logits);
    struct layout l;
    result_layout(&l, r->n_seqs, r->n_logits, r->n_tops, 0);
    bool text_fits = r->error_at ? r->error_at == l.end && r->bytes > l.end : r->bytes == l.end;
    if (r->seqs_at != l.at[0] || r->logits_at != l.at[1] || r->tops_at != l.at[2] || !text_fits)
        return err_set(e, ERR_FORMAT, "step result: offsets %u, %u, %u, %u do not match the counts",
                       r->seqs_at, r->logits_at, r->tops_at, r->error_at);
    return result_text(r, e);
}

static int result_seqs(const struct step_result *r, struct err *e)
{
    const struct step_seq_result *q = (const struct step_seq_result *)((const char *)r + r->seqs_at);
    uint64_t rows = 0, tops = 0, row = 0;
    for (uint32_t i = 0; i < r->n_seqs; i++)
        rows += q[i].n_logit_rows;
    if ((rows == 0) != (r->n_logits == 0) || (rows && r->n_logits % rows))
        return err_set(e, ERR_FORMAT, "step result: %llu logits in %llu rows",
                       (unsigned long long)r->n_logits, (unsigned long long)rows);
    uint64_t width = rows ? r->n_logits / rows : 0;
    for (uint32_t i = 0; i < r->n_seqs; i++, q++) {
        if (q->token < -1 || q->status > STEP_NOT_FINITE || (q->status == STEP_NOT_FINITE && q->token != -1))
            return err_set(e, ERR_FORMAT, "step result: seqs[%u] has token %d and status %u", i, q->token,
                           q->status);
        if (isnan(q->logprob))
            return err_set(e, ERR_FORMAT, "step result: seqs[%u].logprob is not a number", i);
        if (q->n_top > STEP_MAX_TOP || q->first_top != tops || q->n_top > r->n_tops - tops)
            return err_set(e, ERR_FORMAT, "step result: seqs[%u] has alternatives %u + %u of %u", i,
                           q->first_top, q->n_top, r->n_tops);
        if (q->first_logit != row * width)
            return err_set(e, ERR_FORMAT, "step result: seqs[%u].first_logit is %llu, must be %llu", i,
                           (unsigned long long)q->first_logit, (unsigned long long)(row * width));
        tops += q->n_top;
        row += q->n_logit_rows;
    }
    if (tops != r->n_tops)
        return err_set(e, ERR_FORMAT, "step result: the sequences own %llu of %u alternatives",
                       (unsigned long long)tops, r->n_tops);
    return ERR_OK;
}

int step_result_validate(const void *buf, size_t n, struct err *e)
{
    const struct step_result *r = buf;
    if ((uintptr_t)buf % 8)
        return err_set(e, ERR_INVALID, "step result: the buffer is not aligned to 8 bytes");
    if (n < sizeof(*r))
        return err_set(e, ERR_FORMAT, "step result: %zu bytes are less than a header", n);
    int rc = result_header(r, n, e);
    return rc == ERR_OK ? result_seqs(r, e) : rc;
}
