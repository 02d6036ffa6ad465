/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: how much of the memory pictures may take: the largest picture, rows of features, what waits; one rule
 * for who opens a model and for who only plans it. Refuses: models without a tower, and pictures that the
 * model leaves no memory for.
 */
#include "plan/plan_internal.h"
#include "tensor/tensor.h"

#define DEFAULT_PATCHES 16384
#define FEWEST_PATCHES  1024
#define PICTURE_SHARE   8  /* of the memory, at most one part in so many */
#define WAITING_SHARE   16 /* the same of pictures that wait */
#define MOST_WAITING    (UINT64_C(2) << 30)
#define LEAST_WAITING   (UINT64_C(16) << 20)
#define MOST_MESSAGE    (UINT64_C(512) << 20) /* an engine takes no larger one: PICTURE_MAX_BYTES */

uint64_t plan_tower_inputs(const struct spec *s, const struct plan_options *o)
{
    const int64_t dims[D0_N_DIMS] = {o->max_patches, 1, o->max_picture_rows, 1};
    uint64_t sum = 0, bytes;
    for (uint32_t i = 0; i < s->vision->n_values; i++)
        if (s->vision->values[i].kind == D0_VALUE_INPUT &&
            (!tensor_value_bytes(&s->vision->values[i], dims, &bytes) || !add_u64(sum, bytes, &sum)))
            return UINT64_MAX;
    return sum;
}

/* Rows of the largest picture, and of all that are kept. No picture has more rows than a context has tokens.
 */
static void size_rows(const struct spec *s, uint32_t context, const struct plan_wishes *o,
                      struct plan_options *p)
{
    uint32_t merge = s->tower.merge ? s->tower.merge : 1;
    uint64_t rows = p->max_patches / ((uint64_t)merge * merge);
    if (merge == 1)
        rows += rows / 4; /* rows that the tower adds at the ends of lines */
    rows = rows < context ? rows : context;
    uint64_t all = o->n_feature_rows ? o->n_feature_rows : 4 * rows;
    all = all < INT32_MAX ? all : INT32_MAX;
    rows = rows < all ? rows : all;
    p->max_picture_rows = rows ? (uint32_t)rows : 1;
    p->n_feature_rows = all ? (uint32_t)all : 1;
}

/* What pictures hold before their requests have ended is part of the plan, or it would come on top. */
static void size_waiting(const struct spec *s, const struct plan_wishes *o, struct plan_options *p)
{
    uint64_t message = plan_tower_inputs(s, p); /* but for a head that LEAST_WAITING has room for */
    if (message > MOST_MESSAGE)
        message = MOST_MESSAGE / 4; /* the largest pictures will be refused one by one */
    uint64_t share = p->memory_bytes / WAITING_SHARE;
    share = share < MOST_WAITING ? share : MOST_WAITING;
    /* one half holds, one is worked in: pixels, and the patches up to three times before they are a message
     */
    const uint64_t least = 8 * message + LEAST_WAITING;
    p->waiting_bytes = o->waiting_bytes ? o->waiting_bytes : share > least ? share : least;
}

int plan_pictures(const struct spec *s, uint32_t context, const struct plan_wishes *o, struct plan_options *p,
                  struct plan_memory *out, struct err *e)
{
    if (!s->vision)
        return err_set(e, ERR_UNSUPPORTED, "%s takes no pictures here", s->architecture);
    p->max_patches = o->max_patches ? o->max_patches : DEFAULT_PATCHES;
    p->context_tokens = context;
    for (;; p->max_patches /= 2) {
        size_rows(s, context, o, p);
        size_waiting(s, o, p);
        int rc = plan_single(s, p, out, e);
        if (rc != ERR_OK)
            return rc;
        bool share = o->max_patches || out->pictures - p->waiting_bytes <= p->memory_bytes / PICTURE_SHARE;
        if (out->fits && (share || p->max_patches <= FEWEST_PATCHES))
            return ERR_OK;
        if (o->max_patches || p->max_patches <= FEWEST_PATCHES)
            break;
    }
    char need[32];
    return err_set(e, ERR_NOMEM, "pictures of %u patches take %s, more than the model leaves", p->max_patches,
                   format_bytes(out->pictures, need, sizeof need));
}
