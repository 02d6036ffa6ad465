/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to the translation of traces: what its files share.
 */
#ifndef SPEC_TRACE_H
#define SPEC_TRACE_H

#include "base/hash.h"
#include "spec/quant.h"
#include "spec/spec_internal.h"

#define TRACE_MAX_NAME    200
#define TRACE_MAX_EXPERTS 65536

struct trace {
    struct spec *s;
    const struct ckpt *c;
    const struct json *items;
    uint32_t *ids;   /* graph value of each item; D0_NO_VALUE: a node without output */
    uint8_t *vision; /* by item: 1 where that value is one of the tower's graph */
    struct strmap names;
    uint32_t fallback_dtype; /* of weights that the checkpoint lacks */
    struct quant_config quant;
    struct quant_tally tally;
    size_t weights_capacity, kv_capacity;
    bool v_expected; /* k pages without v pages so far */
};

/* A name of its own of printable ASCII: it goes into files, reports and terminals. */
int trace_name(struct trace *t, const struct json *item, const char **out, struct err *e);
/* The graph that an item goes into: the text's, or the tower's. */
struct graph *trace_graph(const struct trace *t, const struct json *item);
/* What the trace says of the tower: its outputs, and what the host needs to know of its inputs. Without
 * outputs there is no tower's graph. */
int trace_tower(struct trace *t, const struct json *root, struct err *e);
/* A weight: into the list, and where it is part of the text into the graph. */
int trace_weight(struct trace *t, const struct json *item, uint32_t *out, struct err *e);

#endif
