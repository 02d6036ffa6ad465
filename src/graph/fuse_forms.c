/* SPDX-License-Identifier: Apache-2.0
 *
 * The passes of fusions.def that ask for another form of an operator: they set its attribute `form` and leave
 * the graph as it is. Owns no numbers: what a form computes is the kernels' affair, and which rows are worth
 * it as well. A form is asked for only where it could ever be used.
 */
#include "graph/graph_fuse.h"

/* Nodes of operator `op`, without those that have input `without` (D0_NO_VALUE: any). */
static void use_form(struct fuse *f, uint32_t op, uint32_t without)
{
    for (uint32_t i = 0; i < f->g->n_nodes; i++) {
        struct d0_node n = f->g->nodes[i];
        bool barred = without < n.n_inputs && n.inputs[without] != D0_NO_VALUE;
        if (n.op == op && !f->gone[i] && !barred && node_attr_i(&n, D0_ATTR_FORM, 0) == 0 &&
            node_set_attr_i(&n, D0_ATTR_FORM, 1))
            fuse_replace(f, i, &n);
    }
}

void fuse_EXPERT_GROUPING(struct fuse *f)
{
    use_form(f, D0_OP_EXPERTS, D0_NO_VALUE);
}

/* Rows that choose their keys share none: they are always absorbed. */
void fuse_MLA_EXPANDED(struct fuse *f)
{
    use_form(f, D0_OP_MLA, 6);
}

void fuse_DELTA_CHUNKED(struct fuse *f)
{
    use_form(f, D0_OP_DELTA_RULE, D0_NO_VALUE);
}
