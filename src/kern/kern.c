/* SPDX-License-Identifier: Apache-2.0
 *
 * The variant table: which kernels exist, which this processor runs, which one is picked. Nothing is cached:
 * a pick is a scan of a constant table.
 */
#include "kern/kern.h"

#include <string.h>

#include "kern/kern_table.h"

#if defined(__x86_64__) && defined(__clang__)
#include <cpuid.h>
#endif

static const char *const isa_names[KERN_N_ISA] = {"ref", "avx2", "avx512", "avx512bf16"};

const char *kern_isa_name(enum kern_isa isa)
{
    return isa < KERN_N_ISA ? isa_names[isa] : "?";
}

#if defined(__x86_64__)
/* clang 14 does not know this feature's name in __builtin_cpu_supports. The instruction itself is slow in a
 * virtual machine, and every compiled node asks. */
static bool has_f16c(void)
{
#if defined(__clang__)
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c >> 29 & 1);
#else
    return __builtin_cpu_supports("f16c");
#endif
}

static bool has_avx512_bf16(void)
{
#if defined(__clang__)
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1);
#else
    return __builtin_cpu_supports("avx512bf16");
#endif
}
#endif

bool kern_isa_available(enum kern_isa isa)
{
#if defined(__x86_64__)
    if (isa == KERN_AVX2)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
    if (isa == KERN_AVX512)
        return kern_isa_available(KERN_AVX2) && __builtin_cpu_supports("avx512f") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512dq");
    if (isa == KERN_AVX512BF16)
        return kern_isa_available(KERN_AVX512) && has_avx512_bf16();
#endif
    return isa == KERN_REF;
}

/* Products of pairs do twice the work of a fused multiply-add. Intel's processors of today run one where they
 * run four multiply-adds (bench/NOTES.md), so there only who asks for them by name gets them. */
static bool pairs_are_fast(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_is("amd");
#else
    return false;
#endif
}

enum kern_isa kern_isa_best(void)
{
    enum kern_isa best = KERN_REF;
    for (int i = KERN_REF; i < KERN_N_ISA; i++)
        if (kern_isa_available((enum kern_isa)i) && (i != KERN_AVX512BF16 || pairs_are_fast()))
            best = (enum kern_isa)i;
    return best;
}

int kern_isa_parse(const char *name, enum kern_isa *out)
{
    if (!strcmp(name, "fast")) {
        *out = kern_isa_best();
        return ERR_OK;
    }
    for (int i = 0; i < KERN_N_ISA; i++)
        if (!strcmp(name, isa_names[i])) {
            *out = (enum kern_isa)i;
            return ERR_OK;
        }
    return ERR_INVALID;
}

static const struct kern_table *const tables[] = {
    &kern_ref_table,
#if defined(__x86_64__)
    &kern_table_of_avx2,
    &kern_table_of_avx512,
    &kern_table_of_avx512bf16,
#endif
};

const struct kern_variant *kern_pick(uint32_t op, uint32_t dtype, enum kern_isa isa)
{
    return kern_pick_rounded(op, dtype, D0_X_EXACT, isa);
}

const struct kern_variant *kern_pick_rounded(uint32_t op, uint32_t dtype, int64_t x_format, enum kern_isa isa)
{
    const struct kern_variant *best = NULL;
    for (size_t t = 0; t < ARRAY_LEN(tables); t++)
        for (size_t i = 0; i < tables[t]->n; i++) {
            const struct kern_variant *v = &tables[t]->variants[i];
            if (v->op == op && (v->dtype == 0 || v->dtype == dtype) && v->isa <= isa &&
                (v->x_format == 0 || v->x_format == x_format) && kern_isa_available(v->isa) &&
                (!best || v->isa > best->isa))
                best = v;
        }
    return best;
}

size_t kern_n_variants(void)
{
    size_t n = 0;
    for (size_t t = 0; t < ARRAY_LEN(tables); t++)
        n += tables[t]->n;
    return n;
}

const struct kern_variant *kern_variant_at(size_t i)
{
    for (size_t t = 0; t < ARRAY_LEN(tables); t++) {
        if (i < tables[t]->n)
            return &tables[t]->variants[i];
        i -= tables[t]->n;
    }
    return NULL;
}

int kern_dtype_input(uint32_t op)
{
    switch (op) {
    case D0_OP_EMBED:
    case D0_OP_LINEAR:
    case D0_OP_RMS_NORM:
    case D0_OP_ATTENTION:
    case D0_OP_GROUP_LINEAR:
    case D0_OP_INDEX_TOPK:
    case D0_OP_POOL_ATTENTION:
    case D0_OP_LATENT_STORE:
    case D0_OP_MLA:
        return 1;
    case D0_OP_POOL_KV:
        return 5;
    case D0_OP_KV_STORE:
        return 2;
    case D0_OP_EXPERTS:
        return 3;
    default:
        return -1;
    }
}

int kern_state_input(uint32_t op, unsigned s)
{
    static const struct {
        uint32_t op;
        int inputs[2];
    } table[] = {
        {D0_OP_KV_STORE, {2, 3}},    {D0_OP_LATENT_STORE, {1, -1}}, {D0_OP_SHORT_CONV, {2, -1}},
        {D0_OP_DELTA_RULE, {7, -1}}, {D0_OP_POOL_KV, {5, 6}},       {D0_OP_NORM_ROPE_STORE, {3, 4}},
    };
    for (size_t i = 0; i < ARRAY_LEN(table); i++)
        if (table[i].op == op && s < 2)
            return table[i].inputs[s];
    return -1;
}

size_t kern_items_rows(const struct kern_args *a)
{
    return (size_t)a->n_rows;
}

size_t kern_items_columns(const struct kern_args *a)
{
    return a->n_rows > 0 ? (size_t)a->n : 0;
}

size_t kern_items_products(const struct kern_args *a)
{
    if (a->phase == 0)
        return a->attr[D0_ATTR_X_FORMAT].i ? (size_t)a->n_rows : 0;
    return kern_items_columns(a);
}

size_t kern_shared_rows(const struct kern_args *a)
{
    if (a->attr[D0_ATTR_X_FORMAT].i == 0)
        return 0;
    return (size_t)a->n_rows * (size_t)a->k * sizeof(float);
}

void kern_round_rows(const struct kern_args *a, size_t first, size_t last)
{
    const struct tensor_rounding *r = tensor_rounding(a->attr[D0_ATTR_X_FORMAT].i);
    size_t groups = a->attr[D0_ATTR_GROUPS].i > 1 ? (size_t)a->attr[D0_ATTR_GROUPS].i : 1,
           k = (size_t)a->k / groups;
    for (size_t i = first * groups; i < last * groups; i++)
        tensor_round_row(r, (float)a->attr[D0_ATTR_X_SCALE].f, (const float *)a->in[0] + i * k, k,
                         (float *)a->shared + i * k);
}

size_t kern_items_heads(const struct kern_args *a)
{
    return (size_t)(a->n_rows * a->heads);
}

size_t kern_items_elements(const struct kern_args *a)
{
    return (size_t)(a->n_rows * a->n);
}
