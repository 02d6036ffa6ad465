/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to oracle: choices (of experts, of keys) that hang on less than NEAR_TIE in the reference. Where
 * one does, a correct model may choose otherwise, and its row proves nothing.
 */
#ifndef ORACLE_NEAR_TIE_H
#define ORACLE_NEAR_TIE_H

#include "oracle/stream.h"
#include "oracle/trace_file.h"

#define NEAR_TIE      1e-4 /* between the last that is chosen and the first that is not */
#define NEAR_TIE_META "choices"

/* How one operator chooses, and under which names a trace holds what it chooses by. */
struct choice_rule {
    const char *name;               /* of the ids */
    const char *logits;             /* ROUTE: [T, E] */
    const char *q, *keys, *weights; /* INDEX_TOPK: [T, heads * dim], [T, dim], [T, heads] or NULL */
    int64_t topk, score, groups, groups_kept, group_score, heads, dim;
    double scale;
    const float *bias; /* [n_bias] of ROUTE; NULL: none */
    size_t n_bias;
    uint32_t node; /* of the graph it was taken from; D0_NO_VALUE: read from a trace */
};
struct choice_rules {
    struct choice_rule *list;
    size_t n;
};

/* Of every operator of the graph that chooses by values that a trace can hold; biases are read from the
 * checkpoint. Not of tables of ids (nothing is compared), of pooled keys and of blocks: those are not in a
 * trace. Everything lives in the arena. ERR_MISSING, ERR_MISMATCH, ERR_IO, ERR_NOMEM. */
int choice_rules_of(const struct stream *s, struct arena *arena, struct choice_rules *out, struct err *e);
/* As one JSON value, and back; what cannot be understood is left out. ERR_NOMEM. */
void choice_rules_write(const struct choice_rules *rules, struct json_writer *w);
int choice_rules_read(const struct trace *t, struct arena *arena, struct choice_rules *out, struct err *e);
const struct choice_rule *choice_rule_find(const struct choice_rules *rules, const char *name);

/* near[rows of the trace]: 1 where the choice hangs on less than NEAR_TIE: of scores with their bias (of
 * logits, where only their order counts); of keys times the largest score of the row. *known is false where
 * the trace does not hold what it was chosen by, or scoring keys takes more than what is left of *products.
 * ERR_IO, ERR_NOMEM. */
#define NEAR_TIE_PRODUCTS ((uint64_t)1 << 38) /* of queries and keys: minutes */
int choice_near(const struct trace *t, const struct choice_rule *r, uint64_t *products, uint8_t *near,
                bool *known, struct err *e);
/* Of all rules: near[i] as above, NULL where it is not known. any: rows of any of them. In the arena. */
int choice_near_all(const struct trace *t, const struct choice_rules *rules, struct arena *arena,
                    uint8_t ***near, uint8_t **any, size_t *unknown, struct err *e);

#endif
