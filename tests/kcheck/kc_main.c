/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks every kernel variant of the table that this processor runs. One TAP line per variant, one per pair
 * of instruction sets that should agree. usage:
 *
 *   kcheck [--seed N] [--only PATTERN] [--case I] [--list] [--bench] [--planted]
 *
 * --only: part of a variant's name. --case: one case only, to make a failure again. --bench: times what
 * passed. --planted: checks variants with known bugs instead; each must be caught.
 */
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "base/thread.h"
#include "kc.h"

struct options {
    uint64_t seed;
    const char *only;
    int64_t single; /* -1: all cases */
    bool list, bench, planted;
};

struct tally {
    unsigned lines, failed;
};

static void say(struct tally *t, bool ok, const char *name, const char *detail)
{
    t->lines++;
    t->failed += !ok;
    printf("%sok %u - %s%s%s\n", ok ? "" : "not ", t->lines, name, detail[0] ? ": " : "", detail);
    fflush(stdout);
}

static bool wanted(const struct options *o, const char *name)
{
    return !o->only || strstr(name, o->only);
}

static bool parse(int argc, char **argv, struct options *o)
{
    int64_t n;
    for (int i = 1; i < argc; i++) {
        bool more = i + 1 < argc;
        if (!strcmp(argv[i], "--list"))
            o->list = true;
        else if (!strcmp(argv[i], "--bench"))
            o->bench = true;
        else if (!strcmp(argv[i], "--planted"))
            o->planted = true;
        else if (!strcmp(argv[i], "--only") && more)
            o->only = argv[++i];
        else if (!strcmp(argv[i], "--seed") && more && str_to_i64(argv[++i], &n))
            o->seed = (uint64_t)n;
        else if (!strcmp(argv[i], "--case") && more && str_to_i64(argv[++i], &n) && n >= 0)
            o->single = n;
        else
            return false;
    }
    return true;
}

typedef void check_fn(struct kc_checker *k, const struct kern_variant *v, const struct kern_variant *w,
                      unsigned index, struct kc_verdict *r);

static void check_one(struct kc_checker *k, const struct kern_variant *v, const struct kern_variant *w,
                      unsigned index, struct kc_verdict *r)
{
    (void)w;
    kc_check(k, v, index, r);
}

/* All cases of a variant, or until the first failure. detail: what to print. */
static bool run_cases(struct kc_checker *k, const struct options *o, const struct kern_variant *v,
                      const struct kern_variant *w, check_fn *fn, char *detail, size_t bytes)
{
    unsigned n = *kc_op_of(v->op)->n_cases;
    double worst = 0;
    /* codes only come in by another door: every third case of what is checked whole for plain weights */
    const unsigned step = v->dtype && kc_is_code(v->dtype) && o->single < 0 ? 3 : 1;
    for (unsigned i = v->dtype % step; i < n; i += step) {
        struct kc_verdict r;
        if (o->single >= 0 && i != o->single)
            continue;
        fn(k, v, w, i, &r);
        if (!r.ok) {
            snprintf(detail, bytes, "%s (--seed %lld --only %s --case %u)", r.why, (long long)o->seed,
                     v->name, i);
            return false;
        }
        worst = r.worst > worst ? r.worst : worst;
    }
    double tolerance = kc_op_of(v->op)->tolerance;
    if (w || tolerance == 0)
        snprintf(detail, bytes, "%u cases, equal bits", n / step);
    else
        snprintf(detail, bytes, "%u cases, worst %.2f of %g ULP", n / step, worst * tolerance, tolerance);
    return true;
}

static void check_variants(struct kc_checker *k, const struct options *o, struct tally *t)
{
    char detail[512];
    for (size_t i = 0; i < kern_n_variants(); i++) {
        const struct kern_variant *v = kern_variant_at(i);
        if (!wanted(o, v->name))
            continue;
        if (o->list) {
            printf("%-24s %s%s\n", v->name, kern_isa_name(v->isa),
                   kern_isa_available(v->isa) ? "" : " (not on this processor)");
        } else if (!kern_isa_available(v->isa)) {
            snprintf(detail, sizeof detail, "%s # SKIP this processor lacks it", v->name);
            say(t, true, detail, "");
        } else {
            bool ok = run_cases(k, o, v, NULL, check_one, detail, sizeof detail);
            say(t, ok, v->name, detail);
            if (ok && o->bench)
                kc_bench(v, stdout);
        }
    }
}

/* The two instruction sets share one order of operations: more than is promised, and a sharp test of it. */
static void check_twins(struct kc_checker *k, const struct options *o, struct tally *t)
{
    char detail[512], name[128];
    for (size_t i = 0; i < kern_n_variants() && !o->list && kern_isa_available(KERN_AVX512); i++) {
        const struct kern_variant *v = kern_variant_at(i), *w;
        if (v->isa != KERN_AVX512 || !wanted(o, v->name))
            continue;
        w = kern_pick(v->op, v->dtype ? v->dtype : D0_F32, KERN_AVX2);
        if (!w || w->isa != KERN_AVX2)
            continue;
        snprintf(name, sizeof name, "%s as %s", v->name, w->name);
        bool ok = run_cases(k, o, v, w, kc_compare, detail, sizeof detail);
        say(t, ok, name, detail);
    }
}

/* Every operator with kernels has cases, and one with cases has a definition among its kernels. */
static void check_operators(const struct options *o, struct tally *t)
{
    static const struct {
        uint32_t op;
        const char *text;
    } all[] = {
#define OP(id, NAME, text, ...) {id, text},
#define ATTR(...)
#include "day0/ops.def"
#undef OP
#undef ATTR
    };
    for (size_t i = 0; i < ARRAY_LEN(all) && !o->only && !o->list; i++) {
        bool defined = kern_pick(all[i].op, D0_F32, KERN_REF) != NULL;
        if (defined != (*kc_op_of(all[i].op)->n_cases > 0))
            say(t, false, all[i].text, defined ? "has kernels but no cases" : "no reference variant");
    }
}

/* Tables of variants with planted bugs. */
typedef size_t planted_table(const struct kc_planted **out);
static planted_table *const planted_tables[] = {
    kc_planted,        kc_planted_experts, kc_planted_recurrent, kc_planted_rows,
    kc_planted_sparse, kc_planted_fused,   kc_planted_rounding,  kc_planted_tower,
};

static void check_planted(struct kc_checker *k, const struct options *o, planted_table *table,
                          struct tally *t)
{
    const struct kc_planted *all;
    size_t n = table(&all);
    char detail[512];
    for (size_t i = 0; i < n; i++) {
        const struct kern_variant *v = &all[i].variant;
        if (!wanted(o, v->name))
            continue;
        if (o->list) {
            printf("%-28s %s\n", v->name, all[i].bug);
            continue;
        }
        bool caught = !run_cases(k, o, v, NULL, check_one, detail, sizeof detail);
        char line[700];
        snprintf(line, sizeof line, "%s, %s: %s", all[i].bug, caught ? "caught" : "NOT CAUGHT", detail);
        say(t, caught, v->name, line);
    }
}

int main(int argc, char **argv)
{
    struct options o = {.seed = 1, .single = -1};
    struct kc_checker k;
    struct tally t = {0};
    if (!parse(argc, argv, &o)) {
        fprintf(stderr,
                "usage: kcheck [--seed N] [--only PATTERN] [--case I] [--list] [--bench] [--planted]\n");
        return 2;
    }
    if (kc_checker_open(&k, o.seed) != 0) {
        fprintf(stderr, "kcheck: no guarded memory or no signal handlers\n");
        return 3;
    }
    uint64_t start = clock_ns();
    if (o.planted) {
        for (size_t i = 0; i < ARRAY_LEN(planted_tables); i++)
            check_planted(&k, &o, planted_tables[i], &t);
    } else {
        check_operators(&o, &t);
        check_variants(&k, &o, &t);
        check_twins(&k, &o, &t);
    }
    if (!o.list)
        printf("1..%u\n# seed %lld, %u failed, %.1f s\n", t.lines, (long long)o.seed, t.failed,
               (double)(clock_ns() - start) * 1e-9);
    kc_checker_close(&k);
    if (!o.list && t.lines == 0) {
        fprintf(stderr, "kcheck: no variant has '%s' in its name\n", o.only ? o.only : "");
        return 2;
    }
    return t.failed ? 1 : 0;
}
