/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to oracle: a recording while it is made, shared by its planning, its running and what makes it go
 * on after an interruption.
 */
#ifndef ORACLE_RECORD_IMPL_H
#define ORACLE_RECORD_IMPL_H

#include "oracle/stream.h"
#include "oracle/trace_file.h"

struct kept {            /* a value between pieces */
    unsigned char *data; /* [n_tokens, width] of 4 bytes; NULL: not made yet, or no longer wanted */
    uint64_t bytes;
    uint32_t last_piece; /* that reads it */
    bool wanted;
};

struct watched { /* a value's magnitude so far */
    double max_abs;
    uint64_t token, not_finite;
    bool seen;
};

struct recording {
    const struct oracle_model *m;
    const struct record_options *o;
    struct record_result *out;
    struct findings *f;
    struct arena *arena;
    const struct graph *g;
    struct stream stream;
    struct trace *from;
    uint8_t *wanted;         /* by node: 1 what runs */
    uint32_t *piece_of;      /* by node */
    uint32_t *slot_of;       /* by value: slot of the trace, or UINT32_MAX */
    struct kept *kept;       /* by value */
    struct watched *watched; /* by value; NULL: not asked for */
    struct trace_writer writer;
    struct strbuf header;
    char identity[65];
    const char *partial, *state; /* paths */
    size_t first_piece, done;    /* where this run began; pieces done by it */
    uint32_t not_finite_node;
};

/* ---- record_plan.c: which nodes, which values; fills stream, kept, slots ---- */
int record_plan(struct recording *r, struct err *e);

/* ---- record_watch.c ---- */
void watch_rows(struct recording *r, uint32_t value, uint64_t first, uint64_t n, uint64_t width,
                const float *x);
/* The list by operator, and findings. */
int watch_report(struct recording *r, struct err *e);
/* For a run that is taken up again. */
void watch_save(const struct recording *r, struct json_writer *w);
bool watch_load(struct recording *r, const struct json *list);

/* ---- record_state.c ---- */
/* Opens or makes the partial trace; first_piece and kept values are those of the run before. */
int record_begin(struct recording *r, struct err *e);
/* What is done so far is safe on disk. next: first piece still to run. */
int record_save(struct recording *r, size_t next, struct err *e);
/* The partial trace becomes the trace. */
int record_finish(struct recording *r, struct err *e);

#endif
