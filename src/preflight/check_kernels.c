/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: what this build's own kernels lack for a model: storage schemes and types of its weights, operators
 * of its text graph, roundings of activations that the release asks for. One finding for all of the former:
 * it is a statement about the program, not about the checkpoint. Refuses to keep a list of its own: spec
 * (formats of weights) and day0/ops.def say what is computed.
 */
#include "preflight/preflight_internal.h"

#include <stdio.h>
#include <string.h>

static void list_one(struct strbuf *b, const char *name, uint64_t n)
{
    char count[32];
    strbuf_printf(b, "%s%s (%s)", b->len ? ", " : "", name, format_count(n, count, sizeof count));
}

/* By scheme, or by type where they are stored plainly; in the order of the tables. Weights are counted as the
 * checkpoint has them: experts that lie in one tensor are one. Parts outside of the text are never run here,
 * whatever they are stored in, and a type that is no number has a finding against the checkpoint. */
static void list_weights(const struct spec *s, struct strbuf *out)
{
    uint64_t schemes[UINT8_MAX + 1] = {0}, dtypes[64] = {0};
    for (size_t i = 0; i < s->n_weights; i++) {
        const struct spec_weight *w = &s->weights[i];
        if (w->value == D0_NO_VALUE)
            continue;
        if (w->form.scheme)
            schemes[w->form.scheme] += spec_value_computed(s->graph, w->value) ? 0 : w->count;
        else if (w->dtype < ARRAY_LEN(dtypes) && is_plain_number(w->dtype))
            dtypes[w->dtype] += w->count;
    }
    for (uint32_t i = 0; i < ARRAY_LEN(schemes); i++)
        if (schemes[i])
            list_one(out, spec_scheme_name(i), schemes[i]);
    for (uint32_t i = 0; i < ARRAY_LEN(dtypes); i++)
        if (dtypes[i] && !spec_dtype_computed(i))
            list_one(out, dtype_name(i), dtypes[i]);
}

static void list_operators(const struct graph *g, struct strbuf *out)
{
    const struct op_info *all;
    size_t n_all = op_all(&all);
    for (size_t i = 0; i < n_all; i++) {
        uint64_t n = 0;
        for (uint32_t k = 0; k < g->n_nodes; k++)
            n += g->nodes[k].op == all[i].id;
        if (n && op_no_kernel(all[i].id))
            list_one(out, all[i].name, n);
    }
}

/* Unless spec_open() was asked for them and has said so. */
static int check_activations(const struct spec *s, struct findings *f, struct err *e)
{
    uint64_t schemes[UINT8_MAX + 1] = {0};
    struct strbuf weights = STRBUF_INIT;
    for (size_t i = 0; i < f->n; i++)
        if (f->items[i].id == FINDING_P006)
            return ERR_OK;
    for (size_t i = 0; i < s->n_weights; i++)
        if (s->weights[i].value != D0_NO_VALUE && spec_asks_in_vain(&s->weights[i]))
            schemes[s->weights[i].form.scheme] += s->weights[i].count;
    for (uint32_t i = 0; i < ARRAY_LEN(schemes); i++)
        if (schemes[i])
            list_one(&weights, spec_scheme_name(i), schemes[i]);
    bool failed = strbuf_failed(&weights);
    if (!failed && weights.len)
        finding_add_severity(f, FINDING_P006, SEVERITY_INFO, s->architecture,
                             "the default, --activations exact, rounds nothing",
                             "the release asks for activations in a way that nothing here computes, of "
                             "weights stored as %s",
                             strbuf_cstr(&weights));
    strbuf_release(&weights);
    return failed ? err_set(e, ERR_NOMEM, "no memory to list what is not computed here") : ERR_OK;
}

int preflight_kernels(const struct spec *s, bool runs_here, struct findings *f, struct err *e)
{
    struct strbuf weights = STRBUF_INIT, operators = STRBUF_INIT;
    list_weights(s, &weights);
    list_operators(s->graph, &operators);
    bool failed = strbuf_failed(&weights) || strbuf_failed(&operators);
    if (!failed && weights.len + operators.len > 0)
        finding_add_severity(f, FINDING_P005, runs_here ? SEVERITY_ERROR : SEVERITY_INFO, s->architecture,
                             NULL, "no kernel of this build %s%s%s%s%s",
                             weights.len ? "reads weights stored as " : "", strbuf_cstr(&weights),
                             weights.len && operators.len ? "; none " : "",
                             operators.len ? "computes the operators " : "", strbuf_cstr(&operators));
    strbuf_release(&weights);
    strbuf_release(&operators);
    if (failed)
        return err_set(e, ERR_NOMEM, "no memory to list what is not computed here");
    return check_activations(s, f, e);
}
