/* SPDX-License-Identifier: Apache-2.0
 *
 * CPU kernels and the table of their variants. A kernel computes a range of independent items of one node;
 * how items are spread over threads or rows over a batch changes no bit.
 *
 * ref/  the definition of each operator in plain C (float64 sums), short and obviously right; also a variant.
 * x86/  AVX2 and AVX-512 variants, one source template compiled per instruction set.
 */
#ifndef KERN_KERN_H
#define KERN_KERN_H

#include "base/err.h"
#include "base/mem.h"
#include "day0/device.h"
#include "tensor/tensor.h"

/* AVX512BF16: AVX-512 and, where rows are rounded to BF16, its products of pairs. */
enum kern_isa { KERN_REF, KERN_AVX2, KERN_AVX512, KERN_AVX512BF16, KERN_N_ISA };

const char *kern_isa_name(enum kern_isa isa);             /* "ref" "avx2" "avx512" "avx512bf16" */
int kern_isa_parse(const char *name, enum kern_isa *out); /* also "fast" = best detected; 0 or ERR_INVALID */
bool kern_isa_available(enum kern_isa isa);               /* this processor and build can run it */
enum kern_isa kern_isa_best(void); /* AVX512BF16 only where its products are faster than those of AVX512 */

/* One node with this step's sizes and resolved addresses. Layouts as stated in day0/ops.def. */
struct kern_args {
    const void *in[D0_MAX_NODE_INPUTS]; /* NULL where an optional input is absent */
    void *out[D0_MAX_NODE_OUTPUTS];
    void *state[2]; /* writable; the inputs that kern_state_input() names */
    uint32_t in_dtype[D0_MAX_NODE_INPUTS];
    int64_t in_dims[D0_MAX_NODE_INPUTS][D0_MAX_DIMS]; /* of this step; 1 past the last one, 0 where absent */
    const struct tensor_form *in_form[D0_MAX_NODE_INPUTS]; /* of a weight stored as codes; NULL: plain */
    int64_t out_dims[D0_MAX_NODE_OUTPUTS][D0_MAX_DIMS];
    union kern_attr {
        int64_t i;
        double f;
    } attr[D0_N_ATTRS]; /* by enum d0_attr_key; 0 where the node has none. The fields below are older */
    int64_t tokens, seqs, rows, table; /* T, B, R, P of this step */
    int64_t n_rows;                    /* rows of out[0] (of in[0] where there is no output) */
    int64_t k;                         /* last dimension of in[0] */
    int64_t n;                         /* last dimension of out[0] */
    int64_t vocab;                     /* EMBED: rows of the table */
    int64_t table_width;               /* ROPE: last dimension of the table in[1] */
    int64_t source_rows;               /* GATHER_ROWS: rows of in[0] */
    int64_t pages, page_tokens;        /* KV pages */
    int64_t dim, v_dim, heads, kv_heads, segments, window, style, offset, plus_one, function;
    double eps, scale, factor;
    void *scratch; /* per-thread scratch, `scratch_bytes` for each thread, 64-aligned; lost between phases */
    size_t scratch_bytes;
    void *shared; /* scratch of the node, 64-aligned: what one phase leaves for the next ones */
    unsigned phase;
};

/* Runs items first..last-1 of the phase, at least one. */
typedef void (*kern_fn)(const struct kern_args *a, size_t first, size_t last, unsigned thread);

struct kern_variant {
    uint32_t op;    /* enum d0_op */
    uint32_t dtype; /* type of the weight or of the pages it is for; 0: not type-dependent */
    enum kern_isa isa;
    const char *name; /* "linear_bf16_avx512" */
    kern_fn run;
    size_t (*items)(
        const struct kern_args *a); /* independent work items; of a->phase, where there are several */
    size_t grain;                   /* items handed out together */
    size_t (*scratch)(const struct kern_args *a); /* bytes per thread; NULL: none */
    /* A kernel whose items need what others computed runs in phases 0 .. phases-1: all items of one are done
     * before the next begins, and `shared` holds what is between them. Items of one phase write disjoint
     * bytes of it. */
    size_t (*shared)(const struct kern_args *a); /* bytes for the node; NULL: none */
    unsigned phases;                             /* 0: one */
    int64_t x_format; /* the only rounding of activations that it computes (enum d0_x_format); 0: any */
};

/* Phases of a variant, at least one. */
static inline unsigned kern_phases(const struct kern_variant *v)
{
    return v->phases ? v->phases : 1;
}

/* The variant for (op, dtype) with the highest instruction set not above `isa`; NULL if there is none at all.
 * An `isa` of KERN_REF gives the definition. */
const struct kern_variant *kern_pick(uint32_t op, uint32_t dtype, enum kern_isa isa);
/* The same for a node that rounds its activations so (enum d0_x_format). */
const struct kern_variant *kern_pick_rounded(uint32_t op, uint32_t dtype, int64_t x_format,
                                             enum kern_isa isa);
/* Which input's dtype selects the variant of an operator: index into in[], or -1. */
int kern_dtype_input(uint32_t op);
/* Index into in[] of the operator's state `s` (0, 1), or -1. */
int kern_state_input(uint32_t op, unsigned s);
/* All variants, for listings and the checker. */
size_t kern_n_variants(void);
const struct kern_variant *kern_variant_at(size_t i); /* NULL past the end */

#define KERN_MAX_PAGE_TOKENS 256 /* largest page that ATTENTION and MLA take */

#endif
