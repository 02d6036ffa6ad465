/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to src/graph.
 */
#ifndef GRAPH_GRAPH_INTERNAL_H
#define GRAPH_GRAPH_INTERNAL_H

#include "graph/graph.h"

#define GRAPH_MAX_DIM                                                                                        \
    ((int64_t)1 << 40) /* products of two dimensions and an element size stay within 64 bits or are checked  \
                        */

/* Shape rule of a node: fills outs[op->n_outputs] (kind, dtype, dims). Inputs may be any ids: they are
 * checked here. false: `why` says which rule was broken. */
bool shape_rule(const struct graph *g, const struct d0_node *n, struct d0_value outs[D0_MAX_NODE_OUTPUTS],
                char *why, size_t why_bytes);
/* Arity and attributes against ops.def. */
bool node_form(const struct d0_node *n, char *why, size_t why_bytes);
/* One value on its own: kind, dtype, dimensions. */
bool value_form(const struct d0_value *v, char *why, size_t why_bytes);
/* true if the operator may take a STATE value at this input; *writes says whether it changes it. */
bool op_state_input(uint32_t op, uint32_t input, bool *writes);
/* true if the input must be a WEIGHT. */
bool op_weight_input(uint32_t op, uint32_t input);
bool op_either_input(uint32_t op, uint32_t input); /* a weight, or an input or activation */
/* "[T, 64]" */
const char *dims_format(const struct d0_value *v, char *buf, size_t bytes);
int graph_grow_nodes(struct graph *g, struct err *e);

#endif
