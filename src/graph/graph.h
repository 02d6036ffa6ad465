/* SPDX-License-Identifier: Apache-2.0
 *
 * The graph IR: values and nodes in execution order, in the very layout of the device ABI
 * (include/day0/device.h), plus names, partition marks and constants. Owns shape rules, the verifier and the
 * passes (segments, memory plan, slices). Operators come from include/day0/ops.def and nowhere else.
 */
#ifndef GRAPH_GRAPH_H
#define GRAPH_GRAPH_H

#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"
#include "day0/device.h"

/* ---- operator table ---- */
struct op_info {
    uint32_t id;
    const char *name;
    uint32_t min_inputs, max_inputs, n_outputs;
    const char *attributes; /* as in ops.def */
    double tolerance_ulp;
    uint32_t since;
    const char *meaning;
};
const struct op_info *op_find(uint32_t id); /* NULL if unknown */
const struct op_info *op_find_name(const char *name);
size_t op_all(const struct op_info **out);
bool op_no_kernel(uint32_t id);       /* described, but marked NO_KERNEL in ops.def */
uint32_t attr_find(const char *name); /* key or 0 */
const char *attr_name(uint32_t key);
bool attr_is_float(uint32_t key);
/* Attribute of a node, or the default if it has none. */
int64_t node_attr_i(const struct d0_node *n, uint32_t key, int64_t absent);
double node_attr_f(const struct d0_node *n, uint32_t key, double absent);
/* Sets or adds an attribute; false when the node has no room for one more. */
bool node_set_attr_i(struct d0_node *n, uint32_t key, int64_t value);
bool node_set_attr_f(struct d0_node *n, uint32_t key, double value);
enum attr_use { ATTR_NOT_USED, ATTR_OPTIONAL, ATTR_REQUIRED };
enum attr_use op_attr_use(const struct op_info *op, uint32_t key); /* as its attribute string says */
const char *attr_meaning(uint32_t key);
uint32_t attr_all(size_t index); /* keys in table order; 0 past the end */

/* ---- the graph ---- */
enum partition { PART_REPLICATED, PART_COLUMN, PART_ROW, PART_HEADS, PART_VOCAB, PART_EXPERT };
const char *partition_name(enum partition p);

enum graph_state { STATE_PAGES, STATE_SLOTS }; /* grows with the context, in pages; or fixed for a sequence */

struct graph_value_info {
    const char *name;    /* weights: tensor name; states: "kv.3.k"; activations: probe name
                            "model.layers.3.self_attn.q_proj" */
    enum partition part; /* weights only */
    uint32_t part_units; /* PART_HEADS: number of heads; PART_ROW: units (heads) K is made of, 0 none */
    int32_t layer;       /* decoder layer or -1 */
    bool quantisable;
    uint8_t scheme;       /* weights: how the checkpoint stores it (spec/quant_schemes.def); 0: plainly */
    uint32_t weight;      /* weights: number in the description plus one; 0: of no description */
    uint8_t state;        /* states: enum graph_state */
    uint32_t page_tokens; /* states in pages: tokens that a page stands for, where its rows are fewer (pools);
                             0: its rows */
    uint64_t stored_bytes; /* weights: bytes of all its tensors in the checkpoint; 0: as the value says */
    bool probe;            /* keep: becomes an OUTPUT when probes are recorded */
    bool keep;             /* an OUTPUT in every plan (activations that leave a slice) */
    uint32_t origin; /* in a slice: id of the value in the graph that it was cut from, plus one; else 0 */
    const void *constant; /* WEIGHT computed on the host (inverse frequencies): its bytes, copied by
                           * graph_add_value; NULL: comes from the checkpoint */
};

struct graph {
    struct arena arena;
    struct d0_value *values;
    struct graph_value_info *info; /* parallel to values */
    uint32_t n_values, values_capacity;
    struct d0_node *nodes;
    uint32_t n_nodes, nodes_capacity;
    int64_t max_dims[D0_N_DIMS]; /* set by graph_plan_memory */
    uint64_t scratch_bytes;      /* likewise */
};

int graph_open(struct graph **out, struct mem *mem, struct err *e);
void graph_free(struct graph *g);
int graph_copy(const struct graph *g, struct graph **out, struct err *e); /* deep: shares nothing with g */
#define GRAPH_MAX_NODES  65536u
#define GRAPH_MAX_VALUES (1u << 20)

/* Adds a value; name is copied. Returns its id through *out. */
int graph_add_value(struct graph *g, const struct d0_value *v, const struct graph_value_info *info,
                    uint32_t *out, struct err *e);
/* Adds a node whose outputs are created here by the operator's shape rule (kind ACTIVATION, named `name`).
 * node->outputs is filled in. Errors: ERR_FORMAT naming operator, node and the rule that was broken. */
int graph_add_node(struct graph *g, const struct d0_node *node, const char *name, uint32_t *first_output,
                   struct err *e);

/* Every invariant of the IR: ids in range, use after definition, single assignment, arity, attributes known
 * and complete, shapes and dtypes by rule, states only written by operators that may. Run after building and
 * between passes. */
int graph_verify(const struct graph *g, struct err *e);

/* ---- passes ---- */
/* Sets `segments` of every LINEAR whose weight is PART_ROW (quantum: 32-element vectors and whole units), and
 * of whole-vector norms over a cut axis. See design, exactness. */
int graph_set_segments(struct graph *g, struct err *e);
uint32_t graph_segments(uint64_t k, uint32_t units);

/* Copies nodes [first_layer, last_layer] (layer numbers; -1 for the part before layer 0 is chosen with
 * GRAPH_HEAD/TAIL flags) into a graph of its own. Activations that cross the cut, of float32 or int32, become
 * INPUTs of role D0_INPUT_HIDDEN; nodes that depend only on positions (rope tables) are copied along. */
enum { GRAPH_PROLOGUE = 1 /* embedding */, GRAPH_EPILOGUE = 2 /* last norm and logits */ };
int graph_slice(const struct graph *g, int32_t first_layer, int32_t last_layer, unsigned flags,
                struct graph **out, struct err *e);
/* The same for any choice of nodes: wanted[n_nodes] is 1 for those to take. States stay states: whoever cuts
 * between the node that writes one and a node that reads it carries its memory. */
int graph_slice_nodes(const struct graph *g, const uint8_t *wanted, struct graph **out, struct err *e);
/* positional[n_nodes]: 1 for nodes that depend on positions and weights only; every slice makes its own. */
int graph_positional(const struct graph *g, uint8_t *positional, struct err *e);

/* ---- fusions and other forms, as in src/graph/fusions.def ---- */
enum fusion {
#define FUSION(ID, ...) FUSION_##ID,
#include "graph/fusions.def"
#undef FUSION
    FUSION_N
};
enum fusion_exactness { FUSION_BIT_EQUAL, FUSION_BOUNDED };
struct fusion_info {
    const char *name;
    enum fusion_exactness exactness;
    double limit; /* BOUNDED: largest relative L2 distance of a row; else 0 */
    const char *meaning;
};
#define FUSION_BIT(f) (1u << (f))
const struct fusion_info *fusion_info(enum fusion f);
const char *fusion_exactness_name(enum fusion_exactness x); /* "bit-equal" "bounded" */
uint32_t fusions_exact(void);                               /* all that are BIT_EQUAL: the default */
/* "all" (that are BIT_EQUAL), "none", names, or several of them with commas between; NULL: the default.
 * ERR_USAGE naming the word that is none. */
int fusions_parse(const char *text, uint32_t *mask, struct err *e);
/* What fusions_parse() takes: "qkv,gate_up", or "none". Returns buf; FUSIONS_TEXT bytes hold any mask. */
#define FUSIONS_TEXT 160
const char *fusions_format(uint32_t mask, char *buf, size_t bytes);

/* A graph whose nodes were replaced. The arrays live in its arena. */
struct fused {
    struct graph *graph;
    uint32_t *value_of;       /* [graph->n_values]: id of the value in the graph that it was made from */
    uint32_t *by;             /* [graph->n_nodes]: mask of the fusions that made or changed the node */
    uint32_t nodes[FUSION_N]; /* how many nodes each made or changed */
};
/* Applies the fusions of mask wherever their nodes stand as they want them and nobody else wants what falls
 * away: values that another node reads, that leave a slice, that are the result, or (keep_probes) that are
 * probes. Weights, states and inputs stay, partition marks with them. Not planned: graph_plan_memory comes
 * after. Free the graph. Errors: ERR_NOMEM, ERR_LIMIT. */
int graph_fuse(const struct graph *g, uint32_t mask, bool keep_probes, struct fused *out, struct err *e);

/* Liveness: gives every ACTIVATION and OUTPUT an offset in scratch for the largest step and sets
 * scratch_bytes. max_dims: largest T, B, R, P. keep_probes: values marked `probe` become OUTPUTs and share
 * memory with nothing. The graph's result is always an OUTPUT. */
int graph_plan_memory(struct graph *g, const int64_t max_dims[D0_N_DIMS], bool keep_probes, struct err *e);

/* The ABI view; points into the graph, valid while it is unchanged. */
void graph_part(const struct graph *g, struct d0_part *out);

/* Tokens of one page: of all states in pages, which share one page table. 0: there is none. */
uint32_t graph_page_tokens(const struct graph *g);
/* May two sequences with a common beginning share the pages of it? Not where a later token writes into them:
 * the entries of a pool whose row stands for more tokens than its page has lie ahead of their tokens. */
bool graph_pages_shareable(const struct graph *g);
uint32_t graph_find(const struct graph *g, const char *name); /* value id or D0_NO_VALUE */
uint32_t graph_result(const struct graph *g);                 /* output of the last node */
/* Floating-point operations and bytes moved for one step of the given dims with `context` tokens of history
 * per sequence. */
struct graph_cost {
    double flops, weight_bytes, activation_bytes, state_bytes;
};
void graph_cost(const struct graph *g, const int64_t dims[D0_N_DIMS], int64_t context,
                struct graph_cost *out);
/* One line a node, for people and golden tests. */
void graph_print(const struct graph *g, struct strbuf *out);

#endif
