/* SPDX-License-Identifier: Apache-2.0
 *
 * The checks of one variant on one case: right (against the definition in float64, element by element), tidy
 * (touches nothing else, ends by no signal), and exact (same bits in other memory, row by row, in
 * small batches, in pieces, on other threads). A form that does not promise the bits of other batches is
 * judged in them instead; one that promises the bits of the definition's form is compared with it.
 */
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "kc.h"

static const struct kc_op ops[] = {
#define OP(id, NAME, text, in_min, in_max, outs, attrs, tolerance, since, meaning)                           \
    [id] = {text, tolerance, &kc_cases_##NAME, kc_make_##NAME, kc_judge_##NAME},
#define ATTR(...)
#include "day0/ops.def"
#undef OP
#undef ATTR
};

/* An operator that no kernel computes yet has no case; one whose case exists must leave that list, or its
 * symbols are here twice. */
#define OP(...)
#define ATTR(...)
#define NO_KERNEL(NAME)                                                                                      \
    const unsigned kc_cases_##NAME = 0;                                                                      \
    void kc_make_##NAME(struct kc_case *c, unsigned index)                                                   \
    {                                                                                                        \
        (void)c;                                                                                             \
        (void)index;                                                                                         \
    }                                                                                                        \
    void kc_judge_##NAME(struct kc_case *c)                                                                  \
    {                                                                                                        \
        (void)c;                                                                                             \
    }
#include "day0/ops.def"
#undef OP
#undef ATTR
#undef NO_KERNEL

const struct kc_op *kc_op_of(uint32_t op)
{
    return op < ARRAY_LEN(ops) && ops[op].make ? &ops[op] : NULL;
}

int kc_checker_open(struct kc_checker *k, uint64_t seed)
{
    *k = (struct kc_checker){.memory = kc_memory_open(), .seed = seed};
    arena_init(&k->arena, NULL, MEM_MISC);
    return k->memory ? 0 : ERR_NOMEM;
}

void kc_checker_close(struct kc_checker *k)
{
    kc_memory_close(k->memory);
    arena_release(&k->arena);
}

void kc_case_make(struct kc_checker *k, const struct kern_variant *v, unsigned index, struct kc_case *c)
{
    const uint32_t op = v->op, dtype = v->dtype;
    arena_reset(&k->arena);
    *c = (struct kc_case){.arena = &k->arena, .op = op, .dtype = dtype, .x_format = v->x_format};
    rng_init(&c->rng, rng_u64(k->seed, (uint64_t)op << 48 | (uint64_t)dtype << 32 | index));
    c->values = (enum kc_values)kc_between(c, 0, KC_N_VALUES - 1);
    c->a.segments = 1;
    c->a.factor = 1;
    kc_op_of(op)->make(c, index);
    kc_op_of(op)->judge(c);
}

/* What one run left behind. */
struct image {
    unsigned char *bytes; /* the outputs, then the two states, then what phases share */
    size_t n;
};

static size_t image_bytes(const struct kc_placed *p)
{
    size_t n = p->state_bytes[0] + p->state_bytes[1] + p->shared_bytes;
    for (unsigned o = 0; o < KC_OUTS; o++)
        n += p->out_bytes[o];
    return n;
}

static struct image image_take(struct kc_checker *k, const struct kc_placed *p)
{
    struct image i = {arena_alloc(&k->arena, image_bytes(p)), image_bytes(p)};
    if (!i.bytes)
        abort();
    size_t at = 0;
    for (unsigned o = 0; o < KC_OUTS; at += p->out_bytes[o++])
        memcpy(i.bytes + at, p->a.out[o], p->out_bytes[o]);
    for (unsigned s = 0; s < 2; at += p->state_bytes[s++])
        if (p->state_bytes[s])
            memcpy(i.bytes + at, p->a.state[s], p->state_bytes[s]);
    if (p->shared_bytes)
        memcpy(i.bytes + i.n - p->shared_bytes, p->a.shared, p->shared_bytes);
    return i;
}

static void fail(struct kc_verdict *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void fail(struct kc_verdict *r, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    r->ok = false;
    vsnprintf(r->why, sizeof r->why, fmt, args);
    va_end(args);
}

/* Is byte i of an image part of float32 values that are judged by a tolerance? */
static bool judged_as_float(const struct kc_case *c, size_t i)
{
    size_t at = 0;
    for (unsigned o = 0; o < KC_OUTS; o++) {
        at += c->out[o].bytes;
        if (i < at)
            return !c->out_ints[o];
    }
    for (unsigned s = 0; s < 2; s++) {
        at += c->state[s].bytes;
        if (i < at)
            return c->want_state_f64[s] && c->a.in_dtype[kern_state_input(c->op, s)] == D0_F32;
    }
    return false;
}

static size_t judged_bytes(const struct kc_case *c)
{
    size_t n = c->state[0].bytes + c->state[1].bytes;
    for (unsigned o = 0; o < KC_OUTS; o++)
        n += c->out[o].bytes;
    return n;
}

/* Equal bits, where any NaN of a float32 output equals any other. What phases share is compared by those who
 * run the same phases of the same batch. */
static bool same_bytes(const struct kc_case *c, const struct image *a, const struct image *b, size_t n,
                       size_t *at)
{
    size_t states = judged_bytes(c);
    for (size_t i = 0; i < n; i++)
        if (a->bytes[i] != b->bytes[i]) {
            *at = i / 4;
            if (i < states && !judged_as_float(c, i))
                return false;
            float x, y;
            memcpy(&x, a->bytes + i / 4 * 4, 4);
            memcpy(&y, b->bytes + i / 4 * 4, 4);
            if (!isnan(x) || !isnan(y))
                return false;
        }
    return true;
}

/* Outputs and states alike. */
static bool same_image(const struct kc_case *c, const struct image *a, const struct image *b, size_t *at)
{
    return same_bytes(c, a, b, judged_bytes(c), at);
}

/* Phases [from, to) whole, on one thread. Its scratch does not live from one to the next. 0 or the signal. */
static int run_phases(const struct kern_variant *v, const struct kc_placed *p, struct kern_args a,
                      unsigned from, unsigned to, unsigned thread)
{
    int number = 0;
    for (a.phase = from; a.phase < to && !number; a.phase++) {
        size_t items = v->items(&a);
        if (a.phase > from)
            kc_scratch_clear(p);
        if (items)
            number = kc_call(v, &a, 0, items, thread);
    }
    return number;
}

/* Did a run end by itself and leave alone what is not its own? */
static bool tidy(struct kc_checker *k, const struct kc_case *c, const struct kc_placed *p, int number,
                 unsigned thread, const char *how, struct kc_verdict *r)
{
    const char *touched = number ? NULL : kc_touched(k->memory, c, p, thread);
    if (number)
        fail(r, "%s: ended by %s", how, strsignal(number));
    else if (touched)
        fail(r, "%s: %s", how, touched);
    return r->ok;
}

static void judge_ints(const struct kc_case *c, unsigned o, const int32_t *got, const char *how,
                       struct kc_verdict *r)
{
    for (size_t i = 0; i < kc_outputs(c, o) && r->ok; i++)
        if ((double)got[i] != c->want[o][i])
            fail(r, "%s: element %zu of output %u is %d, must be %g", how, i, o, got[i], c->want[o][i]);
}

/* One float32 value; false, with the reason, where it is wrong. */
static bool judge_value(double tolerance, float got, double w, double scale, const char *how,
                        const char *what, size_t i, struct kc_verdict *r)
{
    double y = (double)got;
    if (isnan(w) ? !isnan(y) : isinf(w) ? y != w : !isfinite(y)) {
        fail(r, "%s: element %zu%s is %g, must be %g", how, i, what, y, w);
        return false;
    }
    if (!isfinite(w))
        return true;
    double ulp = scale > 0 ? fabs(y - w) / (0x1p-23 * scale) : y == w ? 0 : INFINITY;
    if (tolerance == 0 ? (float)w != got : ulp > tolerance)
        fail(r, "%s: element %zu%s is %.9g, must be %.9g: %.1f ULP, allowed %g", how, i, what, y, w, ulp,
             tolerance);
    if (tolerance > 0)
        r->worst = fmax(r->worst, ulp / tolerance);
    return r->ok;
}

static void judge_values(const struct kc_case *c, double tolerance, unsigned o, const void *output,
                         const char *how, struct kc_verdict *r)
{
    const float *got = output;
    if (c->out_ints[o]) {
        judge_ints(c, o, output, how, r);
        return;
    }
    for (size_t i = 0; i < kc_outputs(c, o) && r->ok; i++)
        judge_value(tolerance, got[i], c->want[o][i], c->scale[o][i], how, "", i, r);
}

/* Half a unit of the type of a state: what rounding to it may add to an error. */
static double half_unit(uint32_t dtype, double w)
{
    if (dtype == D0_BF16)
        return 0x1p-8 * fabs(w);
    return dtype == D0_F16 ? fmax(0x1p-11 * fabs(w), 0x1p-25) : 0;
}

/* Values of a state against the definition, within the tolerance and one rounding to the state's type. */
static void judge_state_values(const struct kc_case *c, double tolerance, unsigned s, const void *state,
                               size_t bytes, const char *how, struct kc_verdict *r)
{
    uint32_t dtype = c->a.in_dtype[kern_state_input(c->op, s)];
    size_t width = kc_width(dtype);
    for (size_t i = 0; i < bytes / width && r->ok; i++) {
        float got;
        tensor_to_f32((const unsigned char *)state + i * width, dtype, 1, &got);
        double y = (double)got, w = c->want_state_f64[s][i], scale = c->state_scale[s][i];
        if (isnan(w) ? isnan(y) : y == w)
            continue;
        double beyond = fmax(0, fabs(y - w) - (scale > 0 ? half_unit(dtype, w) : 0));
        double ulp = scale > 0 ? beyond / (0x1p-23 * scale) : INFINITY;
        if (!isfinite(y) || !isfinite(w) || !(ulp <= tolerance))
            fail(r, "%s: element %zu of state %u is %.9g, must be %.9g: %.1f ULP, allowed %g", how, i, s, y,
                 w, ulp, tolerance);
        else if (tolerance > 0)
            r->worst = fmax(r->worst, ulp / tolerance);
    }
}

static void judge_state(const struct kc_case *c, const struct kc_placed *p, const char *how,
                        struct kc_verdict *r)
{
    for (unsigned s = 0; s < 2 && r->ok; s++) {
        if (c->want_state[s] && memcmp(c->want_state[s], p->a.state[s], p->state_bytes[s]) != 0)
            fail(r, "%s: state %u differs from the definition", how, s);
        else if (c->want_state_f64[s])
            judge_state_values(c, kc_op_of(c->op)->tolerance, s, p->a.state[s], p->state_bytes[s], how, r);
    }
}

/* The whole in one call, at one end of guarded memory. */
static bool run_whole(struct kc_checker *k, const struct kern_variant *v, const struct kc_case *c,
                      bool at_end, struct image *out, struct kc_verdict *r)
{
    const char *how = at_end ? "end at a guard" : "start at a guard";
    struct kc_placed p;
    if (!kc_place(k->memory, c, v, at_end, &p)) {
        fail(r, "the case is too large for the guarded memory");
        return false;
    }
    if (!tidy(k, c, &p, run_phases(v, &p, p.a, 0, kern_phases(v), 0), 0, how, r))
        return false;
    for (unsigned o = 0; o < KC_OUTS; o++)
        judge_values(c, kc_op_of(v->op)->tolerance, o, p.a.out[o], how, r);
    judge_state(c, &p, how, r);
    *out = image_take(k, &p);
    return r->ok;
}

/* In batches of up to `most` rows, one after the other, on the same states: the same bits, or where the form
 * does not promise them the same values. */
static void run_rows(struct kc_checker *k, const struct kern_variant *v, const struct kc_case *c,
                     int64_t most, const struct image *whole, struct kc_verdict *r)
{
    struct kc_placed p;
    size_t at;
    int number = 0;
    kc_place(k->memory, c, v, true, &p);
    for (int64_t row = 0; row < c->a.n_rows && !number; row += most) {
        struct kern_args a = p.a;
        int64_t n = c->a.n_rows - row < most ? c->a.n_rows - row : most;
        for (unsigned i = 0; i < D0_MAX_NODE_INPUTS; i++)
            if (a.in[i])
                a.in[i] = (const unsigned char *)a.in[i] + (size_t)row * c->in[i].row_bytes;
        for (unsigned o = 0; o < KC_OUTS; o++) {
            a.out[o] = (unsigned char *)a.out[o] + (size_t)row * c->out[o].row_bytes;
            a.out_dims[o][0] = n;
        }
        for (unsigned i = 0; i < D0_MAX_NODE_INPUTS; i++)
            if (c->in[i].row_bytes)
                a.in_dims[i][0] = n;
        a.n_rows = n;
        *(v->op == D0_OP_GATHER_ROWS ? &a.rows : &a.tokens) = n;
        number = run_phases(v, &p, a, 0, kern_phases(v), 0);
    }
    if (!tidy(k, c, &p, number, 0, most == 1 ? "one row alone" : "in small batches", r))
        return;
    if (c->bounded) {
        const char *how = most == 1 ? "row by row" : "in small batches";
        for (unsigned o = 0; o < 2; o++)
            judge_values(c, kc_op_of(v->op)->tolerance, o, p.a.out[o], how, r);
        judge_state(c, &p, how, r);
        return;
    }
    struct image alone = image_take(k, &p);
    if (!same_image(c, whole, &alone, &at))
        fail(r,
             most == 1 ? "row alone and row in a batch differ, first in element %zu"
                       : "small batches and the whole differ, first in element %zu",
             at);
}

/* What phases before `phase` leave, in fresh memory. */
static bool place_at(struct kc_checker *k, const struct kern_variant *v, const struct kc_case *c,
                     unsigned phase, struct kc_placed *p, struct kc_verdict *r)
{
    kc_place(k->memory, c, v, true, p);
    bool ok = tidy(k, c, p, run_phases(v, p, p->a, 0, phase, 0), 0, "an earlier phase", r);
    kc_scratch_clear(p);
    p->a.phase = phase;
    return ok;
}

/* Two pieces of one phase on two threads: together the whole, each byte written by at most one. */
static void run_pieces(struct kc_checker *k, const struct kern_variant *v, struct kc_case *c, unsigned phase,
                       struct kc_verdict *r)
{
    struct kc_placed p;
    if (!place_at(k, v, c, phase, &p, r))
        return;
    struct image before = image_take(k, &p), piece[2], whole;
    size_t items = v->items(&p.a), at;
    if (items < 2)
        return;
    size_t cut = (size_t)kc_between(c, 1, (int64_t)items - 1);
    for (unsigned i = 0; i < 3; i++) { /* the third is the whole */
        unsigned thread = i < 2 ? 2 - i : 0;
        if ((i && !place_at(k, v, c, phase, &p, r)) ||
            !tidy(k, c, &p, kc_call(v, &p.a, i == 1 ? cut : 0, i == 0 ? cut : items, thread), thread,
                  "a piece", r))
            return;
        *(i < 2 ? &piece[i] : &whole) = image_take(k, &p);
    }
    for (size_t i = 0; i < before.n; i++) {
        bool by[2] = {piece[0].bytes[i] != before.bytes[i], piece[1].bytes[i] != before.bytes[i]};
        if (by[0] && by[1]) {
            fail(r, "items [0, %zu) and [%zu, %zu) both wrote element %zu", cut, cut, items, i / 4);
            return;
        }
        before.bytes[i] = by[0] ? piece[0].bytes[i] : piece[1].bytes[i];
    }
    if (!same_bytes(c, &whole, &before, whole.n, &at))
        fail(r, "items [0, %zu) and [%zu, %zu) of phase %u do not make the whole, first in element %zu", cut,
             cut, items, phase, at);
}

/* The other form of the same node. */
static void run_other_form(struct kc_checker *k, const struct kern_variant *v, const struct kc_case *c,
                           const struct image *whole, struct kc_verdict *r)
{
    struct kc_case other = *c;
    struct image image;
    size_t at;
    other.a.attr[D0_ATTR_FORM].i = !c->a.attr[D0_ATTR_FORM].i;
    if (run_whole(k, v, &other, true, &image, r) && !same_image(c, whole, &image, &at))
        fail(r, "forms 0 and 1 differ, first in element %zu", at);
}

void kc_check(struct kc_checker *k, const struct kern_variant *v, unsigned index, struct kc_verdict *out)
{
    struct kc_case c;
    struct image at_start, at_end;
    size_t at;
    *out = (struct kc_verdict){.ok = true};
    kc_case_make(k, v, index, &c);
    if (run_whole(k, v, &c, false, &at_start, out) && run_whole(k, v, &c, true, &at_end, out)) {
        if (!same_image(&c, &at_start, &at_end, &at))
            fail(out, "other bits at another address, first in element %zu", at);
        if (out->ok)
            run_rows(k, v, &c, 1, &at_end, out);
        if (out->ok && c.a.n_rows > 2)
            run_rows(k, v, &c, kc_between(&c, 2, c.a.n_rows - 1), &at_end, out);
        if (out->ok && c.same_forms)
            run_other_form(k, v, &c, &at_end, out);
        for (unsigned phase = 0; phase < kern_phases(v) && out->ok; phase++)
            run_pieces(k, v, &c, phase, out);
    }
    if (!out->ok) {
        size_t n = strlen(out->why);
        snprintf(out->why + n, sizeof out->why - n, "; %s, %s values", c.shape, kc_values_name(c.values));
    }
}

void kc_compare(struct kc_checker *k, const struct kern_variant *v, const struct kern_variant *w,
                unsigned index, struct kc_verdict *out)
{
    struct kc_case c;
    struct image a, b;
    size_t at;
    *out = (struct kc_verdict){.ok = true};
    kc_case_make(k, v, index, &c);
    if (run_whole(k, v, &c, true, &a, out) && run_whole(k, w, &c, true, &b, out) &&
        !same_image(&c, &a, &b, &at))
        fail(out, "other bits, first in element %zu; %s, %s values", at, c.shape, kc_values_name(c.values));
}
