/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: the step from the inputs of a tower, as they were made of one picture, to the message that an engine
 * takes. Refuses inputs that are not exactly those that the tower asks for.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "prompt/prompt.h"

static const struct prompt_input *find_input(const struct prompt_pixels *pixels, uint32_t role)
{
    for (uint32_t i = 0; i < pixels->n_inputs; i++)
        if (pixels->inputs[i].role == role)
            return &pixels->inputs[i];
    return NULL;
}

static int copy_input(const struct prompt_pixels *pixels, const struct picture_input *want,
                      struct picture_plan *message, struct err *e)
{
    const struct prompt_input *have = find_input(pixels, want->role);
    size_t rows = want->rows == D0_DIM_TOKENS ? pixels->n_patches : pixels->n_rows;
    if (have == NULL)
        return err_set(e, ERR_MISMATCH, "the tower has an input of role %u that no picture fills",
                       want->role);
    if (have->width != want->width || have->rows != rows)
        return err_set(e, ERR_MISMATCH, "the input of role %u has %zu rows of %u, the tower takes %zu of %u",
                       want->role, have->rows, have->width, rows, want->width);
    void *to = picture_plan_array(message, want->role);
    if (to == NULL)
        BUG("a message without the array of role %u, which its shape has", want->role);
    memcpy(to, have->data, rows * want->width * 4); /* float32 or int32 */
    return ERR_OK;
}

int prompt_picture_message(const struct prompt_pixels *pixels, const struct picture_shape *shape,
                           struct picture_plan **out, size_t *bytes, struct err *e)
{
    size_t n = pixels->n_patches > UINT32_MAX
                   ? 0
                   : picture_plan_bytes(shape, (uint32_t)pixels->n_patches, pixels->n_rows);
    if (n == 0)
        return err_set(e, ERR_LIMIT, "a picture of %zu patches does not fit into one message",
                       pixels->n_patches);
    void *buf = malloc(n);
    struct picture_plan *message = NULL;
    int rc = buf ? picture_plan_init(buf, n, shape, (uint32_t)pixels->n_patches, pixels->n_rows, &message, e)
                 : err_set(e, ERR_NOMEM, "no memory for a picture of %zu bytes", n);
    for (uint32_t i = 0; rc == 0 && i < shape->n; i++)
        rc = copy_input(pixels, &shape->inputs[i], message, e);
    if (rc) {
        free(buf);
        return rc;
    }
    *out = message;
    *bytes = n;
    return ERR_OK;
}
