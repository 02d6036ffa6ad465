/* SPDX-License-Identifier: Apache-2.0
 *
 * Definitions of the operators on latent pages: latent_store and mla in the absorbed form, prefill included.
 * One latent row serves all heads as key and as value. Only live rows are read.
 */
#include <math.h>

#include "kern/ref/ref.h"
#include "kern/ref/ref_keys.h"

void ref_latent_store(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    (void)thread;
    const float *c = a->in[0], *k_pe = a->in[5]; /* [T, latent], [T, rope] or NULL */
    const int32_t *positions = a->in[2], *seq_of = a->in[3];
    size_t latent = (size_t)a->in_dims[0][1], rope = k_pe ? (size_t)a->in_dims[5][1] : 0,
           width = a->in_dtype[1] == D0_F32 ? 4 : 2, tokens = (size_t)a->in_dims[1][2];
    for (size_t t = first; t < last; t++) {
        int64_t page = ref_page_of(a, 1, 4, seq_of[t], positions[t]);
        if (page < 0)
            continue; /* mla makes the row NaN */
        size_t slot = (size_t)page * tokens + (size_t)positions[t] % tokens;
        unsigned char *to = (unsigned char *)a->state[0] + slot * (latent + rope) * width;
        tensor_from_f32(c + t * latent, latent, a->in_dtype[1], to);
        if (rope)
            tensor_from_f32(k_pe + t * rope, rope, a->in_dtype[1], to + latent * width);
    }
}

struct mla {
    size_t heads, nope, rope, v_dim, latent;
    double *query, *acc; /* [latent]: Wk^T q_nope; sum of weighted latents */
    float *row;          /* [latent]: of kv_b */
    int32_t *chosen;
};

static struct mla sizes_of(const struct kern_args *a, unsigned thread)
{
    struct mla m = {.heads = (size_t)a->heads,
                    .nope = (size_t)a->attr[D0_ATTR_NOPE].i,
                    .rope = (size_t)a->attr[D0_ATTR_ROPE].i,
                    .v_dim = (size_t)a->v_dim,
                    .latent = (size_t)a->attr[D0_ATTR_LATENT].i};
    m.query = (double *)((unsigned char *)a->scratch + (size_t)thread * a->scratch_bytes);
    m.acc = m.query + m.latent;
    m.row = (float *)(m.acc + m.latent);
    m.chosen = (int32_t *)(m.row + m.latent);
    return m;
}

/* Visible rows of one page: scores, then the running maximum, sum and weighted latents. */
static void attend_page(const struct kern_args *a, const struct mla *m, const float *q_pe, size_t page,
                        const struct ref_run *runs, size_t n, struct ref_online *o)
{
    size_t width = m->latent + m->rope, tokens = (size_t)a->in_dims[1][2];
    float scores[KERN_MAX_PAGE_TOKENS];
    double weights[KERN_MAX_PAGE_TOKENS];
    for (size_t r = 0; r < n; r++)
        for (size_t i = runs[r].from; i < runs[r].to; i++) {
            size_t at = (page * tokens + i) * width;
            double dot = 0;
            for (size_t l = 0; l < m->latent; l++)
                dot += m->query[l] * (double)ref_load(a->in[1], a->in_dtype[1], at + l);
            for (size_t d = 0; d < m->rope; d++)
                dot += (double)q_pe[d] * (double)ref_load(a->in[1], a->in_dtype[1], at + m->latent + d);
            scores[i] = (float)(dot * a->scale);
        }
    double shrink = ref_online(o, runs, n, scores, weights);
    for (size_t l = 0; l < m->latent; l++)
        m->acc[l] *= shrink;
    for (size_t r = 0; r < n; r++)
        for (size_t i = runs[r].from; i < runs[r].to; i++)
            for (size_t l = 0; l < m->latent; l++)
                m->acc[l] +=
                    weights[i] * (double)ref_load(a->in[1], a->in_dtype[1], (page * tokens + i) * width + l);
}

/* query = Wk^T q_nope, Wk the first rows of head h in kv_b */
static void absorb(const struct kern_args *a, const struct mla *m, size_t h, const float *q)
{
    memset(m->query, 0, m->latent * sizeof *m->query);
    for (size_t d = 0; d < m->nope; d++) {
        ref_row(a, 2, h * (m->nope + m->v_dim) + d, m->latent, m->row);
        for (size_t l = 0; l < m->latent; l++)
            m->query[l] += (double)q[d] * (double)m->row[l];
    }
}

void ref_mla(const struct kern_args *a, size_t first, size_t last, unsigned thread)
{
    struct mla m = sizes_of(a, thread);
    const int32_t *positions = a->in[3], *seq_of = a->in[4], *chosen = a->in[6];
    size_t topk = (size_t)a->in_dims[6][1];
    for (size_t item = first; item < last; item++) {
        size_t t = item / m.heads, h = item % m.heads, n;
        const float *q = (const float *)a->in[0] + item * (m.nope + m.rope); /* [T, heads * (nope + rope)] */
        float *out = (float *)a->out[0] + item * m.v_dim;                    /* [T, heads * v_dim] */
        struct ref_keys keys = ref_keys_all(positions[t], 0, 0);
        struct ref_run runs[REF_MAX_RUNS];
        struct ref_online o = {.top = -INFINITY};
        bool live = ref_page_of(a, 1, 5, seq_of[t], positions[t]) >= 0;
        if (chosen)
            ref_keys_choose(&keys, chosen + t * topk, topk, 1, m.chosen);
        absorb(a, &m, h, q);
        memset(m.acc, 0, m.latent * sizeof *m.acc);
        for (int64_t block; live && (n = ref_keys_page(&keys, a->in_dims[1][2], &block, runs)) > 0;) {
            int64_t page = ref_page_of(a, 1, 5, seq_of[t], block * a->in_dims[1][2]);
            live = page >= 0;
            if (live)
                attend_page(a, &m, q + m.nope, (size_t)page, runs, n, &o);
        }
        for (size_t d = 0; d < m.v_dim; d++) {
            double sum = 0;
            ref_row(a, 2, h * (m.nope + m.v_dim) + m.nope + d, m.latent, m.row);
            for (size_t l = 0; l < m.latent; l++)
                sum += (double)m.row[l] * m.acc[l];
            out[d] = live ? (float)(sum / o.sum) : NAN;
        }
    }
}
