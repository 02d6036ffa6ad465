/* SPDX-License-Identifier: Apache-2.0
 *
 * Which inputs of an operator are weights and which are states, and who writes a state: one table, bit i for
 * input i. Anything else must be an input of the step or an activation, or where `either` says so a weight.
 */
#include "graph/graph_internal.h"

#define BIT(i)        (1u << (i))
#define FROM_TO(a, b) ((BIT((b) + 1) - 1) & ~(BIT(a) - 1))

static const struct op_inputs {
    uint32_t op, weights, states;
    bool writes;
    uint32_t either;
} table[] = {
    {D0_OP_EMBED, BIT(1), 0, false},
    {D0_OP_LINEAR, BIT(1) | BIT(2), 0, false},
    {D0_OP_RMS_NORM, BIT(1), 0, false},
    {D0_OP_ROPE_TABLE, BIT(1), 0, false},
    {D0_OP_KV_STORE, 0, BIT(2) | BIT(3), true},
    {D0_OP_ATTENTION, BIT(6), BIT(1) | BIT(2), false},
    {D0_OP_SCALE, BIT(1), 0, false},
    {D0_OP_LAYER_NORM, BIT(1) | BIT(2), 0, false},
    {D0_OP_GATED_NORM, BIT(2), 0, false},
    {D0_OP_LATENT_STORE, 0, BIT(1), true},
    {D0_OP_MLA, BIT(2), BIT(1), false},
    {D0_OP_INDEX_TOPK, 0, BIT(1), false},
    {D0_OP_ROUTE, BIT(1) | BIT(2) | BIT(4), 0, false},
    {D0_OP_EXPERTS, FROM_TO(3, 8), 0, false},
    {D0_OP_SHORT_CONV, BIT(1) | BIT(6), BIT(2), true},
    {D0_OP_DELTA_RULE, BIT(5) | BIT(6), BIT(7), true},
    {D0_OP_MIX_RESIDUAL, BIT(1) | BIT(2), 0, false},
    {D0_OP_HYPER_IN, FROM_TO(1, 3), 0, false},
    {D0_OP_HYPER_HEAD, FROM_TO(1, 3), 0, false},
    {D0_OP_GROUP_LINEAR, BIT(1), 0, false},
    {D0_OP_POOL_KV, FROM_TO(2, 4), BIT(5) | BIT(6), true},
    {D0_OP_POOL_ATTENTION, BIT(3), BIT(1) | BIT(2), false},
    {D0_OP_QKV, FROM_TO(1, 6), 0, false},
    {D0_OP_GATE_UP, FROM_TO(1, 4), 0, false},
    {D0_OP_NORM_RESIDUAL, BIT(2), 0, false},
    {D0_OP_POSITION_EMBED, BIT(1), 0, false},
    {D0_OP_SCATTER_ROWS, 0, 0, false, BIT(1)},
    {D0_OP_NORM_ROPE_STORE, BIT(9) | BIT(10), BIT(3) | BIT(4), true},
};

static const struct op_inputs *find(uint32_t op)
{
    for (size_t i = 0; i < ARRAY_LEN(table); i++)
        if (table[i].op == op)
            return &table[i];
    return NULL;
}

bool op_state_input(uint32_t op, uint32_t i, bool *writes)
{
    const struct op_inputs *t = find(op);
    *writes = t && t->writes;
    return t && i < 32 && (t->states & BIT(i)) != 0;
}

bool op_weight_input(uint32_t op, uint32_t i)
{
    const struct op_inputs *t = find(op);
    return t && i < 32 && (t->weights & BIT(i)) != 0;
}

bool op_either_input(uint32_t op, uint32_t i)
{
    const struct op_inputs *t = find(op);
    return t && i < 32 && (t->either & BIT(i)) != 0;
}
