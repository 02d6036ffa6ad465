/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to src/plan.
 */
#ifndef PLAN_PLAN_INTERNAL_H
#define PLAN_PLAN_INTERNAL_H

#include "plan/plan.h"

struct plan_judge {
    const struct spec *s;
    const struct spec_weight **weight_of; /* [n_values] of the graph, or NULL */
};
/* Makes the table above in the arena. Errors: ERR_NOMEM. */
int plan_judge_open(struct plan_judge *x, const struct spec *s, struct arena *a, struct err *e);
void plan_judge_tp(const struct plan_judge *x, uint32_t tp, struct plan_degree *d);

/* Bytes of all inputs of the tower for the largest picture; UINT64_MAX: more than 64 bits hold. */
uint64_t plan_tower_inputs(const struct spec *s, const struct plan_options *o);

#endif
