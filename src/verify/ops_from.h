/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to verify: the values that operators are given when they run on what a trace recorded.
 */
#ifndef VERIFY_OPS_FROM_H
#define VERIFY_OPS_FROM_H

#include "load/load.h"
#include "oracle/oracle.h"
#include "verify/ops.h"

struct from {
    const struct verify_from_options *o;
    const struct graph *g;
    struct trace *t;
    uint32_t tokens;                   /* of the trace, from its first */
    int64_t columns;                   /* of the page table of the one sequence */
    uint64_t budget;                   /* bytes */
    uint64_t holding;                  /* of them by `kept` and `state` */
    const struct trace_tensor **known; /* by value: recorded */
    uint8_t *from_model;   /* by value: what comes without an operator (inputs, weights, states) */
    uint32_t *last;        /* by value: last node that reads it */
    unsigned char **kept;  /* by value: [tokens, width] of 4 bytes that the reference computed */
    unsigned char **state; /* by value: as the reference left it */
    uint64_t *state_bytes;
};

/* One node with its weights; its rows come chunk by chunk. */
struct from_case {
    struct opcase c;
    bool open;
    uint32_t node;
    bool chosen; /* of an EXPERTS: room for some, by the ids of a chunk */
    uint32_t places, experts;
    uint32_t *place_of;          /* [experts] */
    uint32_t recorded, computed; /* inputs of float32 or int32 rows */
    double largest;              /* magnitude of any finite input */
};

/* Is every input there? `why` says which is not. */
bool from_has_inputs(const struct from *f, uint32_t node, char *why, size_t bytes);
/* ERR_NOMEM where the weights do not fit into what is left of the budget, with the bytes. */
int from_case_open(struct from *f, uint32_t node, struct from_case *x, struct err *e);
void from_case_close(struct from_case *x);
/* Rows from `first` on, at most as many as *n; *n: how many they are. */
int from_case_fill(struct from *f, struct from_case *x, uint32_t first, uint32_t *n, struct err *e);
/* What the reference gave: rows that later nodes need and that the trace lacks, and states. */
int from_case_keep(struct from *f, const struct from_case *x, uint32_t first, uint32_t n,
                   const struct opresult *want, struct err *e);
/* Frees what no node after this one reads. */
void from_drop(struct from *f, uint32_t node);
void from_release(struct from *f);

#endif
