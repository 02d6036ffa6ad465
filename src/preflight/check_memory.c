/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: whether the model fits this machine as a whole, and then whether its pictures do. Asks for a small
 * context only: one that is shorter than the model allows is a choice, not a fault. What does not fit is told
 * with the smallest layout that would. Refuses to call a model too large whose text fits: it is run without
 * pictures then.
 */
#include "preflight/preflight_internal.h"

#include <stdio.h>

#define USEFUL_CONTEXT 2048

/* The text fits, as text says. */
static int check_pictures(const struct spec *s, const struct preflight_options *o,
                          const struct plan_options *text, struct findings *f, struct err *e)
{
    const struct plan_wishes wishes = {0};
    struct plan_options po = *text;
    struct plan_memory plan = {0};
    struct err why = {0};
    char need[32], tower[32], waiting[32], has[32];
    const uint32_t context = text->context_tokens < INT32_MAX ? (uint32_t)text->context_tokens : INT32_MAX;
    int rc = preflight_tower(s, o->dev, &why);
    if (rc == ERR_UNSUPPORTED) /* it takes none */
        return ERR_OK;
    if (rc == ERR_OK)
        rc = plan_pictures(s, context, &wishes, &po, &plan, &why);
    if (rc == ERR_OK)
        return ERR_OK;
    if (rc != ERR_NOMEM || plan.total == 0) /* nothing was planned */
        return err_set(e, rc, "%s", why.message);
    finding_add_severity(f, FINDING_M001, SEVERITY_WARNING, "pictures",
                         "use a machine with more memory, or go without pictures",
                         "the text fits, with pictures of %u patches it does not: needs %s (weights of the "
                         "tower %s, pictures that wait %s), has %s (%s)",
                         po.max_patches, format_bytes(plan.total, need, sizeof(need)),
                         format_bytes(plan.tower_weights, tower, sizeof(tower)),
                         format_bytes(po.waiting_bytes, waiting, sizeof(waiting)),
                         format_bytes(o->memory_bytes, has, sizeof(has)),
                         o->memory_source ? o->memory_source : "as given");
    return ERR_OK;
}

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
        return check_pictures(s, o, &po, f, e);
    if (plan_smallest(s, &po, &layout, &per_rank))
        snprintf(smallest, sizeof(smallest), "smallest layout that fits: TP %u x PP %u, %s a rank", layout.tp,
                 layout.pp, format_bytes(per_rank.total, need, sizeof(need)));
    finding_add(f, FINDING_M001, "memory",
                "needs %s (weights %s, KV for %llu tokens %s, kernels %s%s), has %s (%s); %s",
                format_bytes(plan.total, need, sizeof(need)),
                format_bytes(plan.weights, weights, sizeof(weights)), (unsigned long long)po.context_tokens,
                format_bytes(plan.kv, kv, sizeof(kv)),
                o->dev ? format_bytes(plan.device, kernels, sizeof(kernels)) : "not counted",
                s->vision ? ", pictures not counted" : "", format_bytes(o->memory_bytes, has, sizeof(has)),
                o->memory_source ? o->memory_source : "as given", smallest);
    return ERR_OK;
}
