/* SPDX-License-Identifier: Apache-2.0
 *
 * Activations as a named variant: the one place where products get the rounding of what goes into them
 * (attribute x_format). Owns the three names, and which format a weight asks for. Reads the few numbers that
 * are calibrated scales. Refuses what a release asks for and nothing computes, by the weight's name.
 */
#include <float.h>
#include <math.h>
#include <string.h>

#include "spec/quant.h"
#include "spec/spec_internal.h"

static const char *const names[] = {"exact", "bf16", "released"};

const char *spec_activations_name(enum spec_activations a)
{
    return (size_t)a < ARRAY_LEN(names) ? names[a] : "?";
}

bool spec_activations_parse(const char *name, enum spec_activations *out)
{
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (strcmp(name, names[i]) == 0) {
            *out = (enum spec_activations)i;
            return true;
        }
    return false;
}

/* The largest of the calibrated scales of a weight's tensors. */
struct scales {
    struct ckpt *c;
    struct err *e;
    float largest;
    uint32_t n;
    bool inverse; /* the tensor holds what divides */
};

static int take_scale(void *context, const struct spec_tensor *x)
{
    struct scales *s = context;
    unsigned char bytes[4] = {0};
    if (x->role != ROLE_INPUT_SCALE || x->tensor == NULL)
        return ERR_OK;
    uint32_t dtype = x->tensor->dtype;
    uint64_t n = dtype == D0_F32 ? 4 : 2;
    if (x->tensor->bytes != n || (dtype != D0_F32 && dtype != D0_BF16 && dtype != D0_F16))
        return err_set(s->e, ERR_MISMATCH, "tensor %s is no single scale", x->name);
    int rc = ckpt_read(s->c, x->tensor, 0, bytes, n, s->e);
    if (rc)
        return rc;
    float v = tensor_scale(bytes, dtype, 0);
    v = s->inverse ? 1 / v : v;
    if (!(v >= FLT_MIN && v <= FLT_MAX))
        return err_set(s->e, ERR_MISMATCH, "tensor %s holds no usable scale of activations", x->name);
    s->largest = v > s->largest ? v : s->largest;
    s->n++;
    return ERR_OK;
}

/* The scale of the inputs that go into some weights: of all their matrices and experts the largest, as
 * TensorRT-LLM and vLLM take it where one kernel serves all of them. */
static int scale_of(const struct spec *s, struct ckpt *c, const uint32_t *weights, size_t n, float *out,
                    struct err *e)
{
    struct scales x = {.c = c, .e = e};
    for (size_t i = 0; i < n; i++) {
        x.inverse = s->weights[weights[i]].form.scheme == QUANT_NVFP4_CT;
        int rc = spec_weight_tensors(s, weights[i], c, take_scale, &x);
        if (rc)
            return rc;
    }
    if (x.n == 0)
        return err_set(e, ERR_MISSING,
                       "%s: its activations are to be rounded by a calibrated scale, and the "
                       "checkpoint has none",
                       s->weights[weights[0]].name);
    *out = x.largest;
    return ERR_OK;
}

/* Descriptions of the weights at inputs first..last of a node; how many. */
static size_t weights_at(const struct graph *g, const struct d0_node *n, uint32_t first, uint32_t last,
                         uint32_t *out)
{
    size_t count = 0;
    for (uint32_t i = first; i <= last && i < n->n_inputs; i++)
        if (n->inputs[i] != D0_NO_VALUE && g->info[n->inputs[i]].weight)
            out[count++] = g->info[n->inputs[i]].weight - 1;
    return count;
}

/* The format that all these weights ask for. */
static int asked(const struct spec *s, const uint32_t *weights, size_t n, uint32_t *format, struct err *e)
{
    *format = D0_X_EXACT;
    for (size_t i = 0; i < n; i++) {
        const struct spec_weight *w = &s->weights[weights[i]];
        if (w->form.x_format == QUANT_X_UNKNOWN) {
            err_set(e, ERR_UNSUPPORTED,
                    "%s (%s): the release asks for activations in a way that nothing here computes", w->name,
                    spec_scheme_name(w->form.scheme));
            err_hint(e, "use --activations exact");
            return ERR_UNSUPPORTED;
        }
        if (i && w->form.x_format != *format)
            return err_set(e, ERR_UNSUPPORTED,
                           "%s and %s share their input and ask for different roundings of it",
                           s->weights[weights[0]].name, w->name);
        *format = w->form.x_format;
    }
    return ERR_OK;
}

static int set_node(const struct spec *s, struct ckpt *c, struct d0_node *n, enum spec_activations a,
                    struct err *e)
{
    const bool experts = n->op == D0_OP_EXPERTS;
    uint32_t weights[3] = {0}, format = D0_X_BF16;
    /* EXPERTS: down stands first, gate and up after it */
    size_t count = weights_at(s->graph, n, experts ? 3 : 1, experts ? 5 : 1, weights);
    if (a == ACTIVATIONS_RELEASED) {
        int rc = asked(s, weights, count, &format, e);
        if (rc || format == D0_X_EXACT)
            return rc;
    }
    bool ok = node_set_attr_i(n, D0_ATTR_X_FORMAT, format);
    if (ok && tensor_rounding_given(tensor_rounding(format))) {
        float x = 0, h = 0;
        int rc = scale_of(s, c, weights + experts, count - experts, &x, e);
        if (!rc && experts)
            rc = scale_of(s, c, weights, 1, &h, e);
        if (rc)
            return rc;
        ok = node_set_attr_f(n, D0_ATTR_X_SCALE, (double)x) &&
             (!experts || node_set_attr_f(n, D0_ATTR_H_SCALE, (double)h));
    }
    return ok ? ERR_OK : err_set(e, ERR_LIMIT, "a node has no room for the rounding of its activations");
}

/* All or nothing: a graph that rounds half of its products is no variant of anything. */
static void round_nothing(struct graph *g)
{
    for (uint32_t i = 0; i < g->n_nodes; i++)
        if (node_attr_i(&g->nodes[i], D0_ATTR_X_FORMAT, 0)) {
            node_set_attr_i(&g->nodes[i], D0_ATTR_X_FORMAT, D0_X_EXACT);
            if (node_attr_f(&g->nodes[i], D0_ATTR_X_SCALE, 0) != 0)
                node_set_attr_f(&g->nodes[i], D0_ATTR_X_SCALE, 0);
            if (node_attr_f(&g->nodes[i], D0_ATTR_H_SCALE, 0) != 0)
                node_set_attr_f(&g->nodes[i], D0_ATTR_H_SCALE, 0);
        }
}

int spec_set_activations(struct spec *s, struct ckpt *c, enum spec_activations a, struct err *e)
{
    int rc = ERR_OK;
    s->activations = a;
    for (uint32_t i = 0; a != ACTIVATIONS_EXACT && rc == ERR_OK && i < s->graph->n_nodes; i++) {
        struct d0_node *n = &s->graph->nodes[i];
        if (n->op == D0_OP_LINEAR || n->op == D0_OP_GROUP_LINEAR || n->op == D0_OP_EXPERTS)
            rc = set_node(s, c, n, a, e);
    }
    if (rc)
        round_nothing(s->graph);
    return rc;
}

bool spec_asks_in_vain(const struct spec_weight *w)
{
    return w->form.x_format == QUANT_X_UNKNOWN;
}

size_t spec_activations_asked(const struct spec *s, struct spec_asked out[SPEC_MAX_ASKED])
{
    uint64_t count[QUANT_X_UNKNOWN + 1] = {0};
    size_t n = 0;
    for (size_t i = 0; i < s->n_weights; i++)
        if (s->weights[i].value != D0_NO_VALUE)
            count[s->weights[i].form.x_format] += s->weights[i].count;
    for (uint32_t i = 1; i < ARRAY_LEN(count) && n < SPEC_MAX_ASKED; i++)
        if (count[i])
            out[n++] = (struct spec_asked){
                i == QUANT_X_UNKNOWN ? SPEC_NOT_COMPUTED : tensor_rounding(i)->name, count[i]};
    return n;
}

uint32_t spec_activation_bits(const struct graph *g)
{
    uint32_t least = 0;
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        const struct tensor_rounding *r = tensor_rounding(node_attr_i(&g->nodes[i], D0_ATTR_X_FORMAT, 0));
        uint32_t bits = r ? dtype_bits(r->dtype) : 0;
        least = bits && (least == 0 || bits < least) ? bits : least;
    }
    return least;
}

double spec_activation_limit(uint32_t bits)
{
    return bits == 0 ? 0 : bits <= 4 ? 0x1p-1 : bits <= 8 ? 0x1p-3 : 0x1p-6;
}
