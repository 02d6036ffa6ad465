/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernel checker: what its parts share. A case is one call of one operator, made from a seed; a check
 * runs a variant on it in guarded memory, in several ways, and compares. Operators are described by `struct
 * kc_op`, one per line of ops.def: a missing one is a link error.
 */
#ifndef KCHECK_KC_H
#define KCHECK_KC_H

#include <stdio.h>

#include "base/hash.h"
#include "base/mem.h"
#include "kern/kern.h"
#include "tensor/tensor.h"

enum kc_values {
    KC_NORMAL,
    KC_TINY,
    KC_HUGE,
    KC_SPARSE,   /* nine of ten are zero, of either sign */
    KC_OUTLIER,  /* one of 64 is 2^10 times larger */
    KC_POSITIVE, /* sums that only grow */
    KC_POISON,   /* a NaN or an infinity in one row: others must not notice */
    KC_N_VALUES
};

#define KC_OUTS D0_MAX_NODE_OUTPUTS

struct kc_array {
    void *data;       /* master copy; the kernel sees another one */
    size_t bytes;     /* 0 with data == NULL: absent */
    size_t row_bytes; /* of one batch row; 0: shared by all rows */
};

struct kc_case {
    struct arena *arena;
    struct rng rng;
    enum kc_values values;
    uint32_t op;
    uint32_t dtype;     /* of the variant's weights or pages */
    int64_t x_format;   /* the only rounding of activations that the variant computes; 0: any */
    bool large;         /* one shape of useful size, to be timed, not judged */
    bool bounded;       /* a form whose bits depend on the batch: smaller ones are judged, not compared */
    bool same_forms;    /* attribute `form` 0 and 1 must give the same bits */
    struct kern_args a; /* sizes, attributes and types; addresses come with the run */
    struct kc_array in[D0_MAX_NODE_INPUTS];
    struct kc_array out[KC_OUTS];    /* only bytes and row_bytes; bytes 0 where there is none */
    bool out_ints[KC_OUTS];          /* int32, compared for equality; else float32 */
    struct kc_array state[2];        /* contents before; see kern_state_input() */
    float *wide[D0_MAX_NODE_INPUTS]; /* inputs of float types, widened: from kc_judge_begin on */
    double *want[KC_OUTS],
        *scale[KC_OUTS]; /* [elements of out]: the definition in float64, its natural scale */
    void *want_state[2]; /* the bytes that a state must have after the run, or: */
    /* its values in float64 and their natural scale, for floats that are computed; scale 0: not touched,
     * equal */
    double *want_state_f64[2], *state_scale[2];
    double flops, moved; /* of the large shape */
    char shape[192];
};

struct kc_op {
    const char *name;
    double tolerance;                                /* ULP, of ops.def */
    const unsigned *n_cases;                         /* make() takes indices 0 .. *n_cases - 1 */
    void (*make)(struct kc_case *c, unsigned index); /* inputs, sizes, shape text */
    void (*judge)(struct kc_case *c);                /* want, scale, want_state */
};

/* One per operator: kc_make_<NAME>, kc_judge_<NAME>, kc_cases_<NAME>; the table comes from ops.def. */
#define OP(id, NAME, ...)                                                                                    \
    void kc_make_##NAME(struct kc_case *c, unsigned index);                                                  \
    void kc_judge_##NAME(struct kc_case *c);                                                                 \
    extern const unsigned kc_cases_##NAME;
#define ATTR(...)
#include "day0/ops.def"
#undef OP
#undef ATTR

/* ---- kc_values.c: making inputs ---- */
double kc_normal(struct rng *r);
double kc_value(struct kc_case *c, uint32_t dtype); /* one value of the case's class that dtype holds well */
int64_t kc_between(struct kc_case *c, int64_t low, int64_t high); /* both ends possible */
bool kc_chance(struct kc_case *c, unsigned one_in);
uint32_t kc_any_type(struct kc_case *c); /* F32, BF16 or F16 */
size_t kc_width(uint32_t dtype);
/* Fill input i with n values of the class, row_elements (0: shared) to a batch row. */
void kc_fill(struct kc_case *c, unsigned i, uint32_t dtype, int64_t n, int64_t row_elements);
/* A weight [matrices, n, k] into input i: plain, or codes in a format that the case draws, where dtype is one
 * of codes. small: powers of two by which scales are smaller than usual. */
void kc_weight(struct kc_case *c, unsigned i, uint32_t dtype, int64_t matrices, int64_t n, int64_t k,
               int small);
bool kc_is_code(uint32_t dtype);
int32_t *kc_ints(struct kc_case *c, unsigned i, int64_t n, int64_t row_elements); /* zeroes */
void kc_output(struct kc_case *c, int64_t rows, int64_t row_elements);            /* the first, float32 */
/* Output o of this type; also out_dims of the arguments. Leaves n_rows and n alone but for o == 0. */
void kc_output_of(struct kc_case *c, unsigned o, bool ints, int64_t rows, int64_t row_elements);
/* The first n_dims (<= 4) sizes of input i in the arguments; 1 past them. */
void kc_dims(struct kc_case *c, unsigned i, unsigned n_dims, const int64_t *dims);
/* Memory of a state before the run: zeroes. The operator's input of that state is set to it. */
void *kc_state(struct kc_case *c, unsigned s, size_t bytes);
double kc_at(const struct kc_case *c, unsigned i, size_t element); /* of input i, once judging began */
void kc_judge_begin(struct kc_case *c);                 /* room for want and scale; inputs widened */
size_t kc_outputs(const struct kc_case *c, unsigned o); /* elements of output o */
/* want_state_f64 of state s, filled with what it holds before the run, and its state_scale, all 0. Elements.
 */
size_t kc_judge_state(struct kc_case *c, unsigned s);

/* ---- kc_rounding.c: activations that are rounded ---- */
extern const int64_t kc_x_formats; /* formats are 1 .. this */
bool kc_x_given(int64_t format);   /* does it take a scale? */
/* Row x[n] rounded to out. off[n], reach[n]: x[i] is known up to off[i]; how far out[i] may lie off by that
 * (NULL, NULL: x is exact). */
void kc_round(int64_t format, double given, const double *x, size_t n, const double *off, double *out,
              double *reach);

/* ---- kc_positions.c: sequences in pages ---- */
struct kc_paged {
    int64_t lengths[4], chunks[4]; /* positions a sequence has; how many of the last are in this step */
    int64_t tokens;
    int32_t *positions, *seq_of, *table;
};
/* Sizes, then positions (input `first`), seq_of (first + 1) and the page table (first + 2). Up to 5 rows of a
 * sequence, or `longest`. */
void kc_paged_make(struct kc_case *c, unsigned first, struct kc_paged *p);
void kc_paged_make_runs(struct kc_case *c, unsigned first, int64_t longest, struct kc_paged *p);
/* Now and then a page that does not exist, a sequence or a position that is not there. */
void kc_paged_break(struct kc_case *c, struct kc_paged *p);
/* Index of (position of sequence, kv head) in pages as [slot], or -1. */
int64_t kc_slot(const struct kc_case *c, const int32_t *table, int64_t seq, int64_t position, int64_t head);

/* ---- kc_attention.c: keys that are chosen ---- */
/* Input i, [T, groups * C] i32, of some positions in blocks of `block`: some of those before, rarely
 * nonsense. */
void kc_chosen_make(struct kc_case *c, unsigned i, const struct kc_paged *p, int64_t groups, int64_t block);
/* Is the block of position j among list[0..n)? */
bool kc_chosen_has(const int32_t *list, int64_t n, int64_t block, int64_t j);

/* ---- kc_memory.c: guarded memory and guarded calls ---- */
struct kc_memory;
struct kc_placed {
    struct kern_args a;
    size_t out_bytes[KC_OUTS], state_bytes[2], shared_bytes;
};
struct kc_memory *kc_memory_open(void);
void kc_memory_close(struct kc_memory *m);
/* Copies the case's inputs flush against inaccessible pages: their end (at_end) or their start. What lies
 * around inputs is NaN, around outputs canaries. false: does not fit. */
bool kc_place(struct kc_memory *m, const struct kc_case *c, const struct kern_variant *v, bool at_end,
              struct kc_placed *p);
void kc_scratch_clear(const struct kc_placed *p); /* as before the first run */
/* Runs items [first, last) of a->phase. 0, or the signal that ended it. */
int kc_call(const struct kern_variant *v, const struct kern_args *a, size_t first, size_t last,
            unsigned thread);
/* What was touched that must not be, or NULL. `thread` is the only one whose scratch may have changed. */
const char *kc_touched(struct kc_memory *m, const struct kc_case *c, const struct kc_placed *p,
                       unsigned thread);
#define KC_THREADS 3
#define KC_FILL    0xA5 /* outputs and scratch before the run */

/* ---- kc_check.c: the checks of one variant on one case ---- */
struct kc_verdict {
    bool ok;
    char why[256];
    double worst; /* error over tolerance of the worst element */
};
struct kc_checker {
    struct kc_memory *memory;
    struct arena arena;
    uint64_t seed;
};
const struct kc_op *kc_op_of(uint32_t op);
int kc_checker_open(struct kc_checker *k, uint64_t seed);
void kc_checker_close(struct kc_checker *k);
/* The case (operator and type of v, index) of the checker's seed, in its arena, which is reset. */
void kc_case_make(struct kc_checker *k, const struct kern_variant *v, unsigned index, struct kc_case *c);
void kc_check(struct kc_checker *k, const struct kern_variant *v, unsigned index, struct kc_verdict *out);
/* Do two variants give the same bits on this case? */
void kc_compare(struct kc_checker *k, const struct kern_variant *v, const struct kern_variant *w,
                unsigned index, struct kc_verdict *out);
const char *kc_values_name(enum kc_values v);

/* ---- kc_planted*.c: one table each; kc_main.c knows them ---- */
struct kc_planted {
    struct kern_variant variant;
    const char *bug;
};
size_t kc_planted(const struct kc_planted **out);
size_t kc_planted_experts(const struct kc_planted **out); /* kc_planted_experts.c */
size_t kc_planted_rows(const struct kc_planted **out);
size_t kc_planted_sparse(const struct kc_planted **out);
size_t kc_planted_fused(const struct kc_planted **out); /* kc_fused.c */
size_t kc_planted_tower(const struct kc_planted **out); /* kc_tower.c */
size_t kc_planted_rounding(const struct kc_planted **out);

/* ---- kc_planted_attention.c: X(operator, name of kc_bug_*, what is wrong) ---- */
#define KC_ATTENTION_BUGS(X)                                                                                 \
    X(ATTENTION, no_softcap, "forgets the softcap")                                                          \
    X(ATTENTION, no_sink, "forgets the sinks")                                                               \
    X(ATTENTION, first_sink, "one sink for all heads")                                                       \
    X(ATTENTION, early_chunk, "a chunk that starts one position early")                                      \
    X(ATTENTION, sliding_chunk, "a chunk taken for a window")                                                \
    X(ATTENTION, wide_blocks, "chosen blocks one key too long")                                              \
    X(ATTENTION, no_span, "sees nothing behind a token of a picture")                                        \
    X(ATTENTION, late_window, "the window of a span counts from its end")                                    \
    X(ATTENTION, one_choice, "one choice of blocks for all kv heads")                                        \
    X(ATTENTION, no_scale, "forgets the scale")                                                              \
    X(LATENT_STORE, rope_first, "the rotated part before the latent")                                        \
    X(LATENT_STORE, any_latent_page, "trusts page ids")                                                      \
    X(MLA, mla_one_more, "reads one key too many")                                                           \
    X(MLA, mla_head_order, "kv_b as all keys, then all values")                                              \
    X(MLA, mla_no_rope, "forgets the rotated part")                                                          \
    X(MLA, mla_no_scale, "forgets the scale")                                                                \
    X(MLA, mla_all_keys, "ignores the choice of keys")                                                       \
    X(MLA, mla_short_choice, "loses the last of the chosen keys")                                            \
    X(MLA, mla_any_page, "trusts page ids")                                                                  \
    X(MLA, expanded_future, "expanded: a row sees the keys of its whole block")                              \
    X(MLA, expanded_half, "expanded: keys and values rounded to BF16")                                       \
    X(MLA, expanded_head, "expanded: the values of the next head")                                           \
    X(MLA, expanded_step, "expanded: only keys of this step")
#define KC_BUG(OP, name, bug)                                                                                \
    void kc_bug_##name(const struct kern_args *a, size_t first, size_t last, unsigned thread);
KC_ATTENTION_BUGS(KC_BUG)
#undef KC_BUG
/* Items and scratch of an operator's reference. */
size_t kc_ref_items(uint32_t op, const struct kern_args *a);
size_t kc_ref_scratch(uint32_t op, const struct kern_args *a);
size_t kc_ref_shared(uint32_t op, const struct kern_args *a);
/* ---- kc_planted_recurrent.c ---- */
size_t kc_planted_recurrent(const struct kc_planted **out);

/* ---- kc_bench.c ---- */
void kc_bench(const struct kern_variant *v, FILE *out); /* one line: ns, GB/s, GFLOP/s, ratio to ref */

#endif
