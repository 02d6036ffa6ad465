/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to src/plan.
 */
#ifndef PLAN_PLAN_INTERNAL_H
#define PLAN_PLAN_INTERNAL_H

#include "plan/plan.h"

#define PLAN_MAX_TP 64u

void plan_judge_tp(const struct spec *s, uint32_t tp, struct plan_degree *d);

#endif
