/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to oracle: one run of a long sequence of which some rows are kept.
 */
#ifndef ORACLE_DRIFT_IMPL_H
#define ORACLE_DRIFT_IMPL_H

#include "oracle/oracle.h"

struct drift_pass {
    uint32_t n_tokens;
    const uint32_t *at; /* [n_at] positions whose rows are kept, ascending */
    uint32_t n_at;
    const uint8_t *alone; /* [n_tokens] or NULL, as in struct stream */
    uint32_t n_kept;      /* values: what each layer gives, and logits as the last */
    uint32_t *value;      /* [n_kept] */
    uint64_t *width;      /* [n_kept] */
    float **rows;         /* [n_kept] each [n_at, width]; those past n_tokens are not set */
    struct oracle_cost cost;
};
/* Runs the whole graph for ids[n_tokens] on m->dev. Close it after errors, too. */
int drift_pass_run(struct drift_pass *p, const struct oracle_model *m, const int32_t *ids, struct err *e);
void drift_pass_close(struct drift_pass *p);

#endif
