/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: whether the model fits this machine as a whole. Asks for a small context only: one that is shorter
 * than the model allows is a choice, not a fault. What does not fit is told with the smallest layout that
 * would.
 */
#include "preflight/preflight_internal.h"

#include <stdio.h>

#define USEFUL_CONTEXT 2048

int check_memory(const struct spec *s, const struct preflight_options *o, struct findings *f, struct err *e)
{
    uint64_t limit = s->max_positions > 0 ? (uint64_t)s->max_positions : USEFUL_CONTEXT;
    struct plan_options po = {
        .memory_bytes = o->memory_bytes,
        .max_step_tokens = o->max_step_tokens,
        .max_seqs = o->max_seqs,
        .context_tokens = o->context_tokens        ? o->context_tokens
                          : limit < USEFUL_CONTEXT ? limit
                                                   : USEFUL_CONTEXT,
        .device_need = o->dev ? dev_scratch_plan : NULL,
        .device = o->dev,
    };
    struct plan_memory plan, per_rank;
    struct plan_layout layout;
    struct err why = {0};
    char need[32], weights[32], kv[32], kernels[32], has[32],
        smallest[120] = "no layout of up to 4,096 such machines fits";
    int rc = plan_single(s, &po, &plan, &why);
    if (rc == ERR_NOMEM)
        return err_set(e, rc, "%s", why.message);
    if (rc) {
        finding_add(f, FINDING_M001, "plan", "no memory plan can be made: %s", why.message);
        return ERR_OK;
    }
    if (plan.fits)
        return ERR_OK;
    if (plan_smallest(s, &po, &layout, &per_rank))
        snprintf(smallest, sizeof(smallest), "smallest layout that fits: TP %u x PP %u, %s a rank", layout.tp,
                 layout.pp, format_bytes(per_rank.total, need, sizeof(need)));
    finding_add(f, FINDING_M001, "memory",
                "needs %s (weights %s, KV for %llu tokens %s, kernels %s), has %s (%s); %s",
                format_bytes(plan.total, need, sizeof(need)),
                format_bytes(plan.weights, weights, sizeof(weights)), (unsigned long long)po.context_tokens,
                format_bytes(plan.kv, kv, sizeof(kv)),
                o->dev ? format_bytes(plan.device, kernels, sizeof(kernels)) : "not counted",
                format_bytes(o->memory_bytes, has, sizeof(has)),
                o->memory_source ? o->memory_source : "as given", smallest);
    return ERR_OK;
}
