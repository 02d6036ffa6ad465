/* SPDX-License-Identifier: Apache-2.0
 *
 * From the spelling of a release to the formats that devices compute with (d0_format): few of them, though
 * releases have many names. Owns this one table; load rearranges the bytes where the order differs. Refuses
 * to guess: what has no format stays a type that no kernel takes.
 */
#include "spec/quant.h"
#include "spec/spec_internal.h"

struct found {
    uint32_t scale_dtype;
    uint64_t scales;
    bool zeros_ok; /* zero points, if any, are packed words */
};

static int look(void *ctx, const struct spec_tensor *x)
{
    struct found *f = ctx;
    if (x->index)
        return 1; /* experts are alike */
    if (x->role == ROLE_SCALE && !f->scale_dtype) {
        f->scale_dtype = x->dtype == D0_U8 ? D0_F8_E8M0 : x->dtype;
        if (!shape_elements(x->dims, x->n_dims, &f->scales))
            f->scales = 0;
    }
    if (x->role == ROLE_ZERO_POINT)
        f->zeros_ok &= x->dtype == D0_I32;
    return 0;
}

/* Words of unsigned integers: 4 and 8 bits have a code type. */
static bool integers(const struct quant_form *q, bool zeros, uint32_t *dtype, struct d0_format *out)
{
    if (q->bits != 4 && q->bits != 8)
        return false;
    *dtype = q->bits == 4 ? D0_U4 : D0_U8;
    out->bias = zeros ? 0 : q->bits == 4 ? 8 : 128;
    out->flags = (zeros ? D0_FORMAT_ZEROS : 0) | (q->ordered ? D0_FORMAT_ORDER : 0);
    return true;
}

static bool format_of(const struct spec_weight *w, const struct ckpt *c, uint32_t *dtype,
                      struct d0_format *out)
{
    const struct quant_form *q = &w->form;
    struct found f = {.zeros_ok = true};
    struct spec_weight one = *w;
    (void)spec_physical_one(&one, c, look, &f);
    *out = (struct d0_format){.scale_dtype = f.scale_dtype, .group_n = 1, .group_k = q->group_k};
    *dtype = quant_code_dtype(q->scheme);
    switch ((enum quant_scheme)q->scheme) {
    case QUANT_FP8_TENSOR:
        *dtype = w->dtype == D0_F8_E5M2 ? D0_F8_E5M2 : D0_F8_E4M3;
        out->group_n = out->group_k = 0;
        return f.scale_dtype != 0;
    case QUANT_FP8_CHANNEL:
        out->group_k = 0;
        return true;
    case QUANT_INT8:
        out->group_n = f.scales == 1;
        out->group_n = out->group_n ? 0 : 1;
        out->group_k = 0;
        return true;
    case QUANT_FP8_BLOCK:
    case QUANT_FP8_BLOCK_CT:
    case QUANT_V4_FP8:
        out->group_n = q->group_n ? q->group_n : 128;
        out->group_k = q->group_k ? q->group_k : 128;
        return true;
    case QUANT_CT_INT:
        return f.zeros_ok && integers(q, q->asymmetric, dtype, out);
    case QUANT_AWQ:
    case QUANT_GPTQ:
        return f.zeros_ok && integers(q, true, dtype, out);
    case QUANT_MXFP4_BLOCKS:
    case QUANT_MXFP4_CT:
    case QUANT_V4_FP4:
    case QUANT_MXFP8:
    case QUANT_MXFP8_CT:
        out->group_k = 32;
        return true;
    case QUANT_NVFP4:
        out->flags = D0_FORMAT_GLOBAL;
        return true;
    case QUANT_NVFP4_CT:
        out->flags = D0_FORMAT_GLOBAL | D0_FORMAT_DIVIDE;
        return true;
    case QUANT_BNB_NF4:
    case QUANT_NONE:
        break;
    }
    return false;
}

bool quant_format(const struct spec_weight *w, const struct ckpt *c, uint32_t *dtype, struct d0_format *out)
{
    bool held = format_of(w, c, dtype, out);
    if (!held)
        *out = (struct d0_format){0};
    return held;
}
