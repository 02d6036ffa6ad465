/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: how much of the memory pictures may take: the largest picture, rows of features, what waits; one rule
 * for who opens a model and for who only plans it. Refuses: towers that this build or the device does not
 * run.
 */
#include "engine/engine.h"

#define DEFAULT_PATCHES 16384
#define FEWEST_PATCHES  1024
#define PICTURE_SHARE   8  /* of the memory, at most one part in so many */
#define WAITING_SHARE   16 /* the same of pictures that wait */
#define MOST_WAITING    (UINT64_C(2) << 30)
#define LEAST_WAITING   (UINT64_C(16) << 20)

/* Does this build read the tower's weights, and the device run its nodes? */
int picture_tower_runs(const struct spec *s, struct dev *dev, struct err *e)
{
    static const int64_t dims[D0_N_DIMS] = {FEWEST_PATCHES, 1, FEWEST_PATCHES, 1};
    struct graph *g = NULL;
    struct d0_part part;
    char reason[256];
    if (!s->vision) {
        err_set(e, ERR_UNSUPPORTED, "%s takes no pictures here", s->architecture);
        return err_hint(e, "it has no tower, or one that its architecture file only describes");
    }
    int rc = graph_copy(s->vision, &g, e);
    if (rc == ERR_OK)
        rc = graph_plan_memory(g, dims, false, e);
    for (uint32_t i = 0; rc == ERR_OK && i < g->n_values; i++)
        if (g->values[i].kind == D0_VALUE_WEIGHT && !spec_value_computed(g, i))
            rc = err_set(e, ERR_UNSUPPORTED, "no kernel of this build reads the tower's %s as it is stored",
                         g->info[i].name);
    if (rc == ERR_OK)
        graph_part(g, &part);
    for (uint32_t i = 0; rc == ERR_OK && i < g->n_nodes; i++)
        if (!dev_supports(dev, &part, i, reason, sizeof reason))
            rc = err_set(e, ERR_UNSUPPORTED, "the device does not run node %u of the tower: %s", i, reason);
    graph_free(g);
    return rc;
}

/* Rows of the largest picture, and of all that are kept. No picture has more rows than a context has tokens.
 */
static void size_rows(const struct spec *s, uint32_t context, const struct picture_wishes *o,
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
static int size_waiting(const struct spec *s, const struct picture_wishes *o, struct plan_options *p,
                        struct err *e)
{
    struct picture_shape shape;
    int rc = picture_shape(s->vision, &shape, e);
    uint64_t message = rc ? 0 : picture_plan_bytes(&shape, p->max_patches, p->max_picture_rows), share;
    if (rc == ERR_OK && !message)
        message = PICTURE_MAX_BYTES / 4; /* the largest pictures will be refused one by one */
    share = p->memory_bytes / WAITING_SHARE;
    share = share < MOST_WAITING ? share : MOST_WAITING;
    /* one half holds, one is worked in: pixels, and the patches up to three times before they are a message
     */
    const uint64_t least = 8 * message + LEAST_WAITING;
    p->waiting_bytes = o->waiting_bytes ? o->waiting_bytes : share > least ? share : least;
    return rc;
}

int picture_room(const struct spec *s, uint32_t context, const struct picture_wishes *o,
                 struct plan_options *p, struct plan_memory *out, struct err *e)
{
    p->max_patches = o->max_patches ? o->max_patches : DEFAULT_PATCHES;
    p->context_tokens = context;
    for (;; p->max_patches /= 2) {
        size_rows(s, context, o, p);
        int rc = size_waiting(s, o, p, e);
        if (rc == ERR_OK)
            rc = plan_single(s, p, out, e);
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
