/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: one weight value from the tensors that it is made of: a plain tensor, experts behind each other, or
 * the codes, scales and zero points of a scheme in the order of d0_format. Bytes are moved, nibbles and words
 * reordered; no value is changed. Of experts a choice can be read, each to a place of its own. Refuses
 * tensors whose type or size is not what the scheme says, and a group order that it was not told of.
 */
#include "load/load.h"

#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "load/load_together.h"

struct filling {
    struct load_reader *r;
    const struct d0_value *v;
    const char *name;
    struct tensor_form form;
    bool formed;                 /* stored as codes */
    const struct spec_weight *w; /* NULL: one plain tensor */
    uint64_t bytes, written;     /* of the value */
    uint64_t stored, places;     /* matrices of all tensors, and those that the value has room for */
    uint64_t each;               /* bytes of one where plain */
    bool check_only;
    struct err *e;
};

/* Matrices of one tensor that lie behind each other in it, and in the value. */
struct run {
    uint64_t held;        /* by the tensor */
    uint64_t from, n, to; /* wanted of them; the place of the first */
};

static int mismatch(struct filling *f, const struct spec_tensor *x, const char *why)
{
    return err_set(f->e, ERR_MISMATCH, "tensor %s: %s", x->tensor ? x->tensor->name : x->name, why);
}

static int put(struct filling *f, uint64_t at, const void *bytes, uint64_t n)
{
    if (at > f->bytes || n > f->bytes - at)
        return err_set(f->e, ERR_MISMATCH, "%s: a part does not fit the value", f->name);
    f->written += n;
    if (f->r->direct) {
        if (f->r->direct + at != bytes)
            memcpy(f->r->direct + at, bytes, n);
        return ERR_OK;
    }
    return f->r->sink(f->r->context, at, bytes, n, f->e);
}

static int read_piece(struct filling *f, const struct ckpt_tensor *t, uint64_t at, void *to, uint64_t n)
{
    struct load_reader *r = f->r;
    if (r->blind)
        return ERR_OK;
    int rc = ckpt_read(r->c, t, at, to, n, f->e);
    if (rc == ERR_OK && r->scan && dtype_is_float(t->dtype)) {
        uint64_t before = r->scan->n_nan + r->scan->n_inf;
        tensor_scan_add(r->scan, to, t->dtype, (size_t)(n * 8 / dtype_bits(t->dtype)));
        if (r->scan->n_nan + r->scan->n_inf > before && !r->not_finite)
            r->not_finite = t->name;
    }
    return rc;
}

static bool shared(const struct filling *f, uint64_t bytes)
{
    const struct load_reader *r = f->r;
    return r->readers && r->direct && !r->scan && !r->blind && bytes >= LOAD_SHARED_LEAST;
}

/* ---- ways to move one tensor ---- */

/* As it lies in the file: of each matrix of the run `each` bytes, to those that begin at `base`. */
static int straight(struct filling *f, const struct spec_tensor *x, const struct run *r, uint64_t base,
                    uint64_t each)
{
    const struct ckpt_tensor *t = x->tensor;
    const uint64_t bytes = r->n * each, at = base + r->to * each;
    int rc = ERR_OK;
    if (t->bytes != r->held * each)
        return mismatch(f, x, "its size is not that of its part of the weight");
    if (!f->check_only && shared(f, bytes)) {
        if (at > f->bytes || bytes > f->bytes - at)
            return mismatch(f, x, "it does not fit its weight");
        f->written += bytes;
        return load_together(f->r->readers, f->r->c, t, r->from * each, f->r->direct + at, bytes, f->e);
    }
    for (uint64_t done = 0; rc == ERR_OK && !f->check_only && done < bytes;) {
        uint64_t n = bytes - done < f->r->staging_bytes ? bytes - done : f->r->staging_bytes;
        if (at > f->bytes || bytes > f->bytes - at)
            return mismatch(f, x, "it does not fit its weight");
        unsigned char *to = f->r->direct ? f->r->direct + at + done : f->r->staging;
        rc = read_piece(f, t, r->from * each + done, to, n);
        if (rc == ERR_OK)
            rc = put(f, at + done, to, n);
        done += n;
    }
    return rc;
}

/* The whole tensor in memory; the caller frees it. Blind: zeroes. */
static int whole(struct filling *f, const struct spec_tensor *x, uint64_t bytes, unsigned char **out)
{
    *out = NULL;
    if (x->tensor->bytes != bytes)
        return mismatch(f, x, "its size is not that of its part of the weight");
    if (f->check_only)
        return ERR_OK;
    if (bytes > SIZE_MAX - 8 || (*out = calloc(1, (size_t)bytes + 8)) == NULL)
        return err_set(f->e, ERR_NOMEM, "no memory for %llu bytes of %s", (unsigned long long)bytes,
                       x->tensor->name);
    return read_piece(f, x->tensor, 0, *out, bytes);
}

static unsigned word_code(const unsigned char *words, uint64_t word, unsigned shift, unsigned bits)
{
    uint32_t v;
    memcpy(&v, words + 4 * word, sizeof v);
    return v >> shift & ((1u << bits) - 1);
}

/* Where columns of a run of eight stand in a word of AWQ. */
static unsigned awq_place(uint64_t column)
{
    static const unsigned char place[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    return place[column % 8];
}

/* One code of a matrix of words, at row n and column k of the weight [N, K]. */
static unsigned code_of(const struct filling *f, const unsigned char *words, uint64_t n, uint64_t k)
{
    const unsigned bits = f->w->form.bits, per = 32 / bits;
    const uint64_t rows = (uint64_t)f->form.n;
    switch (f->w->form.scheme) {
    case QUANT_AWQ: /* [K, N / 8] */
        return word_code(words, k * ((rows + per - 1) / per) + n / per,
                         bits * (bits == 4 ? awq_place(n) : (unsigned)(n % per)), bits);
    default: /* GPTQ [K / 8, N] */
        return word_code(words, k / per * rows + n, bits * (unsigned)(k % per), bits);
    }
}

/* Words of codes turned into rows of codes along K. */
static int turned_codes(struct filling *f, const struct spec_tensor *x, uint64_t at)
{
    const unsigned bits = f->w->form.bits, per = 32 / bits;
    const uint64_t n_rows = (uint64_t)f->form.n, k = (uint64_t)f->form.k,
                   words = f->w->form.scheme == QUANT_AWQ ? k * ((n_rows + per - 1) / per)
                                                          : (k + per - 1) / per * n_rows;
    unsigned char *from, *row = NULL;
    int rc = whole(f, x, 4 * words, &from);
    if (rc == ERR_OK && !f->check_only && (row = calloc(1, (size_t)f->form.row_bytes)) == NULL)
        rc = err_set(f->e, ERR_NOMEM, "no memory for a row of %s", f->name);
    for (uint64_t n = 0; rc == ERR_OK && !f->check_only && n < n_rows; n++) {
        memset(row, 0, (size_t)f->form.row_bytes);
        for (uint64_t j = 0; j < k; j++) {
            unsigned code = code_of(f, from, n, j);
            if (bits == 4)
                row[j / 2] |= (unsigned char)(code << (j % 2 ? 4 : 0));
            else
                row[j] = (unsigned char)code;
        }
        rc = put(f, at + n * f->form.row_bytes, row, f->form.row_bytes);
    }
    free(row);
    free(from);
    return rc;
}

/* Rows of words along K: their padding stays behind. */
static int rows_of_words(struct filling *f, const struct spec_tensor *x, const struct run *r)
{
    const uint64_t bits = (uint64_t)f->form.k * f->w->form.bits, row = (bits + 31) / 32 * 4,
                   keep = f->form.row_bytes, each = (uint64_t)f->form.n, n_rows = r->n * each;
    int rc = ERR_OK;
    if (row == keep)
        return straight(f, x, r, 0, each * row);
    if (x->tensor->bytes != r->held * each * row)
        return mismatch(f, x, "its size is not that of its part of the weight");
    if (row > f->r->staging_bytes)
        return err_set(f->e, ERR_LIMIT, "%s: a row does not fit the staging buffer", f->name);
    for (uint64_t n = 0; rc == ERR_OK && !f->check_only && n < n_rows; n++) {
        rc = read_piece(f, x->tensor, (r->from * each + n) * row, f->r->staging, row);
        if (rc == ERR_OK)
            rc = put(f, (r->to * each + n) * keep, f->r->staging, keep);
    }
    return rc;
}

/* [G, N] of elements of `width` bytes -> [N, G] */
static int turned_scales(struct filling *f, const struct spec_tensor *x, uint64_t at)
{
    const uint64_t n = (uint64_t)f->form.groups_n, g = (uint64_t)f->form.groups_k,
                   width = dtype_bits(f->form.format.scale_dtype) / 8;
    unsigned char *from, *to = NULL;
    int rc = whole(f, x, n * g * width, &from);
    if (rc == ERR_OK && !f->check_only && (to = malloc((size_t)(n * g * width))) == NULL)
        rc = err_set(f->e, ERR_NOMEM, "no memory for the scales of %s", f->name);
    if (rc == ERR_OK && !f->check_only) {
        for (uint64_t i = 0; i < n; i++)
            for (uint64_t j = 0; j < g; j++)
                memcpy(to + (i * g + j) * width, from + (j * n + i) * width, (size_t)width);
        rc = put(f, at, to, n * g * width);
    }
    free(to);
    free(from);
    return rc;
}

/* A plain matrix that is stored [K, N], as [N, K]. */
static int turned_matrix(struct filling *f, const struct ckpt_tensor *t)
{
    const struct spec_tensor x = {.name = f->name, .tensor = t, .dtype = t->dtype};
    const uint64_t n = (uint64_t)f->v->dims[0], k = (uint64_t)f->v->dims[1], width = dtype_bits(t->dtype) / 8;
    unsigned char *from, *row = NULL;
    int rc = whole(f, &x, n * k * width, &from);
    if (rc == ERR_OK && !f->check_only && (row = malloc((size_t)(k * width))) == NULL)
        rc = err_set(f->e, ERR_NOMEM, "no memory for a row of %s", f->name);
    for (uint64_t i = 0; rc == ERR_OK && !f->check_only && i < n; i++) {
        for (uint64_t j = 0; j < k; j++)
            memcpy(row + j * width, from + (j * n + i) * width, (size_t)width);
        rc = put(f, i * k * width, row, k * width);
    }
    free(row);
    free(from);
    return rc;
}

/* Zero points, packed along N, one byte each. */
static int zero_points(struct filling *f, const struct spec_tensor *x, uint64_t at)
{
    const struct quant_form *q = &f->w->form;
    const uint64_t n = (uint64_t)f->form.groups_n, g = (uint64_t)f->form.groups_k;
    const unsigned bits = q->bits, per = 32 / bits;
    const uint64_t packed = (n + per - 1) / per;
    unsigned char *from, *to = NULL;
    int rc = whole(f, x, 4 * packed * g, &from);
    if (rc == ERR_OK && !f->check_only && (to = malloc((size_t)(n * g))) == NULL)
        rc = err_set(f->e, ERR_NOMEM, "no memory for the zero points of %s", f->name);
    for (uint64_t i = 0; rc == ERR_OK && !f->check_only && i < n; i++)
        for (uint64_t j = 0; j < g; j++) {
            bool awq = q->scheme == QUANT_AWQ && bits == 4;
            unsigned shift = bits * (awq ? awq_place(i) : (unsigned)(i % per));
            uint64_t word = q->scheme == QUANT_CT_INT ? i / per * g + j : j * packed + i / per;
            unsigned z = word_code(from, word, shift, bits);
            z += q->scheme == QUANT_GPTQ && !q->plain_zeros;
            if (z > 255)
                rc = mismatch(f, x, "a zero point of 256 has no place in a byte");
            to[i * g + j] = (unsigned char)z;
        }
    if (rc == ERR_OK && !f->check_only)
        rc = put(f, at, to, n * g);
    free(to);
    free(from);
    return rc;
}

/* A group order that is the natural one needs no table; another one must have been announced. */
static int group_order(struct filling *f, const struct spec_tensor *x, const struct run *r)
{
    const uint64_t k = (uint64_t)f->form.k;
    unsigned char *from;
    if (f->form.format.flags & D0_FORMAT_ORDER)
        return straight(f, x, r, f->form.order, 4 * k);
    int rc = whole(f, x, 4 * k, &from);
    for (uint64_t i = 0; rc == ERR_OK && !f->check_only && !f->r->blind && i < k; i++) {
        int32_t group;
        memcpy(&group, from + 4 * i, sizeof group);
        if (group < 0 || (uint64_t)group != i / f->form.format.group_k)
            rc = mismatch(f, x, "its groups are not in order, and config.json does not say so (desc_act)");
    }
    free(from);
    return rc;
}

/* ---- one tensor of the weight ---- */

static int fill_codes(struct filling *f, const struct spec_tensor *x, const struct run *r)
{
    const uint64_t matrix = (uint64_t)f->form.n * f->form.row_bytes;
    switch (f->w->form.scheme) {
    case QUANT_CT_INT:
        return rows_of_words(f, x, r);
    case QUANT_AWQ:
    case QUANT_GPTQ:
        return r->held == 1 ? turned_codes(f, x, r->to * matrix)
                            : mismatch(f, x, "more than one matrix in words");
    default:
        return straight(f, x, r, 0, matrix);
    }
}

/* Schemes that turn their scales hold one matrix in a tensor: fill_codes saw to it. */
static int fill_run(struct filling *f, const struct spec_tensor *x, const struct run *r)
{
    if (!f->formed)
        return x->role == ROLE_WEIGHT ? straight(f, x, r, 0, f->each) : ERR_OK;
    const uint64_t scales = (uint64_t)f->form.groups_n * (uint64_t)f->form.groups_k,
                   width = dtype_bits(f->form.format.scale_dtype) / 8;
    const bool turned = f->w->form.scheme == QUANT_AWQ || f->w->form.scheme == QUANT_GPTQ;
    switch (x->role) {
    case ROLE_WEIGHT:
        return fill_codes(f, x, r);
    case ROLE_SCALE:
        return turned ? turned_scales(f, x, f->form.scales + r->to * scales * width)
                      : straight(f, x, r, f->form.scales, scales * width);
    case ROLE_GLOBAL_SCALE:
        return straight(f, x, r, f->form.global, 4);
    case ROLE_ZERO_POINT:
        return zero_points(f, x, f->form.zeros + r->to * scales);
    case ROLE_ORDER:
        return group_order(f, x, r);
    default:
        return ERR_OK;
    }
}

/* What is wanted of a tensor that holds the matrices from `first` on: all, or runs of the choice. */
static int fill_runs(struct filling *f, const struct spec_tensor *x, uint64_t first, uint64_t held)
{
    const struct load_choice *c = f->r->choice;
    int rc = ERR_OK;
    if (!c)
        return fill_run(f, x, &(struct run){.held = held, .n = held, .to = first});
    for (uint32_t i = 0; rc == ERR_OK && i < c->n;) {
        struct run r = {.held = held, .from = c->matrix[i] - first, .n = 1, .to = c->place[i]};
        if (c->matrix[i] < first || r.from >= held) {
            i++;
            continue;
        }
        while (i + r.n < c->n && r.from + r.n < held && c->matrix[i + r.n] == c->matrix[i] + r.n &&
               c->place[i + r.n] == c->place[i] + r.n)
            r.n++;
        rc = fill_run(f, x, &r);
        i += (uint32_t)r.n;
    }
    return rc;
}

static int fill_part(void *context, const struct spec_tensor *x)
{
    struct filling *f = context;
    bool needed = x->role != ROLE_INPUT_SCALE && x->role != ROLE_SHAPE && x->role != ROLE_TABLE;
    if (!needed)
        return ERR_OK;
    if (!x->tensor) {
        err_set(f->e, ERR_MISSING, "tensor %s is not in the checkpoint", x->name);
        err_hint(f->e, "run day0 check on the model");
        return ERR_MISSING;
    }
    if (x->tensor->dtype != x->dtype)
        return mismatch(f, x, "it is of another type than its scheme takes");
    bool same = f->formed || x->tensor->dtype == f->v->dtype;
    for (uint32_t i = 0; same && !f->formed && i < x->n_dims; i++)
        same = x->n_dims == x->tensor->n_dims && x->dims[i] == x->tensor->dims[i];
    if (!same)
        return mismatch(f, x, "its shape or type is not what the graph wants");
    const uint64_t held = f->stored / f->w->count;
    return fill_runs(f, x, x->index * held, held);
}

/* The few bytes between the parts. */
static int fill_gaps(struct filling *f)
{
    static const unsigned char zeros[64];
    const struct tensor_form *t = &f->form;
    const uint64_t rows = (uint64_t)t->matrices * (uint64_t)t->n,
                   scales = (uint64_t)t->matrices * (uint64_t)t->groups_n * (uint64_t)t->groups_k;
    const uint64_t ends[] = {rows * t->row_bytes, t->scales + scales * dtype_bits(t->format.scale_dtype) / 8,
                             t->zeros ? t->zeros + scales : 0,
                             t->global ? t->global + 4 * (uint64_t)t->matrices : 0};
    int rc = ERR_OK;
    for (size_t i = 0; rc == ERR_OK && i < ARRAY_LEN(ends); i++)
        if (ends[i] % 64 && ends[i] < f->bytes)
            rc = put(f, ends[i], zeros, 64 - ends[i] % 64);
    return rc;
}

/* ---- a value ---- */

static int plain_tensor(struct filling *f)
{
    const struct ckpt_tensor *t = f->r->c ? ckpt_find(f->r->c, f->name) : NULL;
    if (!t) {
        err_set(f->e, ERR_MISSING, "tensor %s is not in the checkpoint", f->name);
        err_hint(f->e, "run day0 check on the model");
        return ERR_MISSING;
    }
    char have[96], want[96];
    /* the weight of a convolution has more dimensions than the matrix that it is, a learned row has fewer */
    const bool folded = f->w && ((f->w->count == 1 && f->w->n_dims != f->v->n_dims) || f->w->turned);
    const uint32_t n_dims = folded ? f->w->n_dims : f->v->n_dims;
    const int64_t *dims = folded ? f->w->dims : f->v->dims;
    bool same = t->n_dims == n_dims && t->dtype == f->v->dtype;
    for (uint32_t k = 0; same && k < n_dims; k++)
        same = t->dims[k] == (k == 0 && f->r->choice ? (int64_t)f->stored : dims[k]);
    if (!same)
        return err_set(f->e, ERR_MISMATCH, "tensor %s is %s %s in the checkpoint, the graph wants %s %s",
                       f->name, dtype_name(t->dtype), shape_format(t->dims, t->n_dims, have, sizeof(have)),
                       dtype_name(f->v->dtype), shape_format(dims, n_dims, want, sizeof(want)));
    if (f->w && f->w->turned)
        return turned_matrix(f, t);
    const struct spec_tensor x = {.name = f->name, .tensor = t, .dtype = t->dtype};
    return fill_runs(f, &x, 0, f->stored);
}

/* Matrices that are stored, those of the value, and whether a choice is one of them. */
static int count_matrices(struct filling *f)
{
    const struct load_choice *c = f->r->choice;
    f->stored = f->formed ? (uint64_t)f->form.matrices : f->w ? f->w->count : 1;
    f->places = f->stored;
    if (c) {
        f->stored = c->of;
        f->places = (uint64_t)f->v->dims[0];
        if (f->r->g->info[f->v - f->r->g->values].constant ||
            (f->formed && (uint64_t)f->form.matrices != f->places))
            return err_set(f->e, ERR_UNSUPPORTED, "%s is not made of experts", f->name);
        for (uint32_t i = 0; i < c->n; i++)
            if (c->matrix[i] >= c->of || c->place[i] >= f->places || (i && c->matrix[i] <= c->matrix[i - 1]))
                return err_set(f->e, ERR_INVALID, "%s: expert %u to place %u of %llu", f->name, c->matrix[i],
                               c->place[i], (unsigned long long)f->places);
    }
    if (f->w && (f->w->count == 0 || f->stored % f->w->count))
        return err_set(f->e, ERR_MISMATCH, "weight %s: %u experts", f->name, f->w->count);
    f->each = f->bytes / f->places;
    return ERR_OK;
}

/* Bytes to be written: all, or those of the chosen and of what lies between the parts. */
static uint64_t wanted_bytes(const struct filling *f, uint64_t gaps)
{
    const struct tensor_form *t = &f->form;
    const uint64_t scales = (uint64_t)t->groups_n * (uint64_t)t->groups_k;
    if (!f->r->choice)
        return f->bytes;
    return f->r->choice->n *
               (!f->formed ? f->each
                           : (uint64_t)t->n * t->row_bytes +
                                 scales * (dtype_bits(t->format.scale_dtype) / 8) + (t->zeros ? scales : 0) +
                                 (t->global ? 4 : 0) + (t->order ? 4 * (uint64_t)t->k : 0)) +
           gaps;
}

static int begin(struct filling *f, struct load_reader *r, uint32_t value, bool check_only, struct err *e)
{
    static const int64_t no_dims[D0_N_DIMS];
    const struct graph_value_info *info = &r->g->info[value];
    *f = (struct filling){
        .r = r, .v = &r->g->values[value], .name = info->name, .check_only = check_only, .e = e};
    for (uint32_t k = 0; k < f->v->n_dims; k++)
        if (f->v->dims[k] <= 0)
            return err_set(e, ERR_MISMATCH, "weight %s has a size that changes from step to step", f->name);
    if (!tensor_value_bytes(f->v, no_dims, &f->bytes))
        return err_set(e, ERR_LIMIT, "weight %s is too large to address", f->name);
    f->formed = f->v->format.scale_dtype != 0 && tensor_form_of(f->v, &f->form);
    if (r->spec && info->weight && info->weight <= r->spec->n_weights)
        f->w = &r->spec->weights[info->weight - 1];
    if (f->formed && !f->w)
        return err_set(e, ERR_MISMATCH, "weight %s is stored as codes, and nothing tells of which tensors",
                       f->name);
    if (f->w && f->w->form.scheme && !f->formed)
        return err_set(e, ERR_UNSUPPORTED, "weight %s is stored as %s, which nothing here computes", f->name,
                       spec_scheme_name(f->w->form.scheme));
    return count_matrices(f);
}

static int fill(struct load_reader *r, uint32_t value, bool check_only, uint64_t *bytes, struct err *e)
{
    struct filling f;
    uint64_t gaps = 0;
    int rc = begin(&f, r, value, check_only, e);
    if (rc == ERR_OK && r->g->info[value].constant)
        rc = check_only ? ERR_OK : put(&f, 0, r->g->info[value].constant, f.bytes);
    else if (rc == ERR_OK && f.w && (f.formed || f.w->count > 1))
        rc = spec_weight_tensors(r->spec, r->g->info[value].weight - 1, r->c, fill_part, &f);
    else if (rc == ERR_OK)
        rc = plain_tensor(&f);
    if (rc == ERR_OK && f.formed && !check_only) {
        gaps = f.written;
        rc = fill_gaps(&f);
        gaps = f.written - gaps;
    }
    if (rc == ERR_OK && !check_only && f.written != wanted_bytes(&f, gaps))
        BUG("%llu of %llu bytes of %s were written", (unsigned long long)f.written,
            (unsigned long long)wanted_bytes(&f, gaps), f.name);
    if (bytes)
        *bytes = f.bytes;
    return rc;
}

int load_value_check(const struct load_reader *r, uint32_t value, uint64_t *bytes, struct err *e)
{
    struct load_reader copy = *r;
    return fill(&copy, value, true, bytes, e);
}

int load_value_read(struct load_reader *r, uint32_t value, struct err *e)
{
    return fill(r, value, false, NULL, e);
}
