/* SPDX-License-Identifier: Apache-2.0
 *
 * The fused operators, compiled once for the reference and once per instruction set: each calls the kernels
 * of the operators it is made of on its own rows or columns, so that it gives their bits and has no
 * arithmetic of its own. Wanted before: FUSED(name) for names here and FUSED_TEXT(name) for the table,
 * FUSED_OP(name) and FUSED_STORE for those kernels, FUSED_SCRATCH(args) and FUSED_GRAIN of linear.
 */
#define FUSED_BLOCK 96 /* columns of gate and up that are made, multiplied and left before the next ones */

/* ---- qkv ---- */

static inline size_t fused_pieces(const struct kern_args *a)
{
    return a->n_rows > 0 ? (size_t)(a->out_dims[0][1] + a->out_dims[1][1] + a->out_dims[2][1]) : 0;
}

/* The LINEAR of weight input w with bias input `bias`, n columns into out. */
static inline struct kern_args fused_linear(const struct kern_args *a, unsigned w, unsigned bias, void *out,
                                            int64_t n)
{
    struct kern_args p = *a;
    p.phase = 1; /* of its products: nothing is rounded before (fuse_passes.c) */
    p.in[1] = a->in[w];
    p.in_dtype[1] = a->in_dtype[w];
    p.in_form[1] = a->in_form[w];
    p.in[2] = a->in[bias];
    p.in_dtype[2] = a->in_dtype[bias];
    p.out[0] = out;
    p.n = n;
    return p;
}

static size_t FUSED(qkv_scratch)(const struct kern_args *a)
{
    size_t most = 0;
    for (unsigned i = 0; i < 3; i++) {
        struct kern_args p = fused_linear(a, 1 + i, 4 + i, NULL, a->out_dims[i][1]);
        size_t bytes = FUSED_SCRATCH(&p);
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* Items: the columns of the three results, one after the other. */
static void FUSED(qkv)(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    size_t begin = 0, end;
    for (unsigned i = 0; i < 3; i++, begin = end) {
        end = begin + (size_t)a->out_dims[i][1];
        size_t from = first > begin ? first : begin, to = last < end ? last : end;
        if (from >= to)
            continue;
        struct kern_args p = fused_linear(a, 1 + i, 4 + i, a->out[i], a->out_dims[i][1]);
        FUSED_OP(linear)(&p, from - begin, to - begin, thread);
    }
}

/* ---- gate_up ---- */

static size_t FUSED(gate_up_scratch)(const struct kern_args *a)
{
    struct kern_args gate = fused_linear(a, 1, 3, NULL, a->n), up = fused_linear(a, 2, 4, NULL, a->n);
    size_t one = FUSED_SCRATCH(&gate), other = FUSED_SCRATCH(&up);
    return one > other ? one : other;
}

/* up[n_rows, n] */
static inline size_t fused_up_bytes(const struct kern_args *a)
{
    return (size_t)a->n_rows * (size_t)a->n * sizeof(float);
}

/* Items: columns. The gate is made where the result goes. */
static void FUSED(gate_up)(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args gate = fused_linear(a, 1, 3, a->out[0], a->n),
                     up = fused_linear(a, 2, 4, a->shared, a->n), glu = *a;
    glu.in[0] = a->out[0];
    glu.in[1] = a->shared;
    for (size_t j = first, end; j < last; j = end) {
        end = last - j < FUSED_BLOCK ? last : j + FUSED_BLOCK;
        FUSED_OP(linear)(&gate, j, end, thread);
        FUSED_OP(linear)(&up, j, end, thread);
        for (size_t t = 0; t < (size_t)a->n_rows; t++)
            FUSED_OP(glu)(&glu, t * (size_t)a->n + j, t * (size_t)a->n + end, thread);
    }
}

/* ---- norm_residual ---- */

/* Items: rows. */
static void FUSED(norm_residual)(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct kern_args norm = *a;
    norm.in[0] = a->out[0];
    norm.in[1] = a->in[2];
    norm.in_dtype[1] = a->in_dtype[2];
    norm.out[0] = a->out[1];
    for (size_t t = first; t < last; t++) { /* the sum is still in the first-level cache */
        FUSED_OP(add)(a, t * (size_t)a->n, (t + 1) * (size_t)a->n, thread);
        FUSED_OP(rms_norm)(&norm, t, t + 1, thread);
    }
}

/* ---- norm_rope_store ---- */

static inline size_t fused_heads_bytes(const struct kern_args *a)
{
    int64_t wide = a->in_dims[0][1] > a->in_dims[1][1] ? a->in_dims[0][1] : a->in_dims[1][1];
    return 2 * (size_t)wide * sizeof(float);
}

/* One row of q or k (input i, its norm at input w), rotated by row t of the table, to out. scratch[width] */
static void FUSED(norm_rope)(const struct kern_args *a, unsigned i, unsigned w, size_t t, float *scratch,
                             float *out)
{
    int64_t width = a->in_dims[i][1];
    struct kern_args p = *a;
    p.k = p.n = width;
    p.in[0] = (const float *)a->in[i] + t * (size_t)width;
    if (a->in[w]) {
        p.in[1] = a->in[w];
        p.in_dtype[1] = a->in_dtype[w];
        p.out[0] = scratch;
        FUSED_OP(rms_norm)(&p, 0, 1, 0);
        p.in[0] = scratch;
    }
    p.table_width = a->in_dims[8][1];
    p.in[1] = (const float *)a->in[8] + t * (size_t)p.table_width;
    p.out[0] = out;
    FUSED_OP(rope)(&p, 0, 1, 0);
}

/* Items: rows. */
static void FUSED(norm_rope_store)(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    float *normed = (float *)((unsigned char *)a->scratch + thread * a->scratch_bytes),
          *k = normed + fused_heads_bytes(a) / (2 * sizeof(float));
    struct kern_args store = *a;
    store.in[0] = k;
    store.pages = a->in_dims[3][0];
    store.page_tokens = a->in_dims[3][2];
    for (unsigned side = 0; side < 2; side++) {
        store.in[2 + side] = a->in[3 + side];
        store.in_dtype[2 + side] = a->in_dtype[3 + side];
    }
    store.in[6] = a->in[7];
    for (size_t t = first; t < last; t++) {
        FUSED(norm_rope)(a, 0, 9, t, normed, (float *)a->out[0] + t * (size_t)a->in_dims[0][1]);
        FUSED(norm_rope)(a, 1, 10, t, normed, k);
        store.in[1] = (const float *)a->in[2] + t * (size_t)a->in_dims[2][1];
        store.in[4] = (const int32_t *)a->in[5] + t;
        store.in[5] = (const int32_t *)a->in[6] + t;
        FUSED_STORE(&store, 0, 1, thread);
    }
}

#define FUSED_VARIANTS(isa)                                                                                  \
    {D0_OP_QKV, 0, isa, FUSED_TEXT(qkv), FUSED(qkv), fused_pieces, FUSED_GRAIN, FUSED(qkv_scratch)},         \
        {D0_OP_GATE_UP,                                                                                      \
         0,                                                                                                  \
         isa,                                                                                                \
         FUSED_TEXT(gate_up),                                                                                \
         FUSED(gate_up),                                                                                     \
         kern_items_columns,                                                                                 \
         FUSED_GRAIN,                                                                                        \
         FUSED(gate_up_scratch),                                                                             \
         fused_up_bytes},                                                                                    \
        {D0_OP_NORM_RESIDUAL, 0, isa, FUSED_TEXT(norm_residual), FUSED(norm_residual),                       \
         kern_items_rows,     1, NULL},                                                                      \
    {                                                                                                        \
        D0_OP_NORM_ROPE_STORE, 0, isa, FUSED_TEXT(norm_rope_store), FUSED(norm_rope_store), kern_items_rows, \
            4, fused_heads_bytes                                                                             \
    }
