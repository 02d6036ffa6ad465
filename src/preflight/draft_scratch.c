/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: a file for a model that is like no known family: embedding, layers and head as far as names and
 * shapes tell, everything else listed. The body of a layer is a stand-in, and says so.
 */
#include "preflight/draft_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_COMPARED 4096

struct outline {
    const struct ckpt_tensor *embedding, *head, *norm;
    char layers[DRAFT_NAME]; /* "model.layers.%d" */
    int64_t hidden, vocab, n_layers;
};

static bool has_word(const char *name, const char *const *words)
{
    for (; *words; words++)
        if (strstr(name, *words))
            return true;
    return false;
}

/* The largest table whose name says so. */
static void find_embedding(const struct drafting *x, struct outline *o)
{
    static const char *const words[] = {"embed", "wte", "tok", NULL};
    for (size_t i = 0; i < x->names.n; i++) {
        const struct draft_pattern *p = &x->names.items[i];
        const struct ckpt_tensor *t = p->first;
        if (p->n != 1 || t->n_dims != 2 || !str_ends(t->name, ".weight") || !has_word(t->name, words) ||
            !draft_plain(t->name) || strchr(p->name, '%') || (x->hidden && t->dims[1] != x->hidden) ||
            t->dims[1] < 2 || t->dims[1] % 2)
            continue;
        if (!o->embedding || t->dims[0] > o->embedding->dims[0])
            o->embedding = t;
    }
    if (o->embedding) {
        o->vocab = o->embedding->dims[0];
        o->hidden = o->embedding->dims[1];
    }
}

static void find_end(const struct drafting *x, struct outline *o)
{
    static const char *const heads[] = {"head", "output", "embed_out", NULL};
    static const char *const norms[] = {"norm", "ln_f", NULL};
    for (size_t i = 0; i < x->names.n; i++) {
        const struct draft_pattern *p = &x->names.items[i];
        const struct ckpt_tensor *t = p->first;
        if (p->n != 1 || t == o->embedding || strchr(p->name, '%') || !draft_plain(t->name) ||
            !str_ends(t->name, ".weight"))
            continue;
        if (t->n_dims == 2 && t->dims[0] == o->vocab && t->dims[1] == o->hidden && has_word(t->name, heads) &&
            !o->head)
            o->head = t;
        if (t->n_dims == 1 && t->dims[0] == o->hidden && has_word(t->name, norms) && !o->norm)
            o->norm = t;
    }
}

/* The first number in most names counts the layers. */
static void find_layers(const struct drafting *x, struct outline *o)
{
    uint64_t most = 0;
    size_t compared = x->names.n < MAX_COMPARED ? x->names.n : MAX_COMPARED;
    o->n_layers = 1;
    for (size_t i = 0; i < compared; i++) {
        const char *name = x->names.items[i].name, *at = strstr(name, "%d");
        uint64_t n = 0;
        if (!at)
            continue;
        size_t len = (size_t)(at - name) + 2;
        for (size_t k = 0; k < compared; k++)
            if (strncmp(x->names.items[k].name, name, len) == 0)
                n += x->names.items[k].n;
        char prefix[DRAFT_NAME];
        snprintf(prefix, sizeof prefix, "%.*s", (int)len, name);
        if (n > most && draft_plain(prefix)) {
            most = n;
            memcpy(o->layers, prefix, sizeof prefix);
        }
    }
    size_t head = most ? strlen(o->layers) - 2 : 0;
    for (size_t i = 0; most && i < x->c->n_tensors; i++) {
        const char *name = x->c->tensors[i].name;
        if (strncmp(name, o->layers, head) != 0)
            continue;
        char *end = NULL;
        long v = strtol(name + head, &end, 10);
        if (end && *end == '.' && v >= o->n_layers && v < 10000)
            o->n_layers = v + 1;
    }
    if (!most)
        snprintf(o->layers, sizeof o->layers, "layers.%%d");
}

static int stem(const char *name)
{
    return (int)(strlen(name) - strlen(".weight"));
}

static void put_build(const struct drafting *x, const struct outline *o, bool extra, struct strbuf *out)
{
    int64_t heads = 1;
    if (!draft_config_int(x, "num_attention_heads", &heads) || heads < 1 || o->hidden % heads != 0)
        heads = 1;
    strbuf_printf(out, "  build = function(c)\n%s", extra ? "    extra()\n" : "");
    strbuf_printf(out,
                  "    -- " DRAFT_MARK "the sizes are those of the tensors: read them from config.json\n"
                  "    local H, V, n, heads = %lld, %lld, %lld, %lld\n",
                  (long long)o->hidden, (long long)o->vocab, (long long)o->n_layers, (long long)heads);
    strbuf_puts(out, "    local t = c:sub { \"text_config\", \"llm_config\", \"language_config\" }\n"
                     "    context(t:count(\"max_position_embeddings\", 2048)) -- " DRAFT_MARK
                     "check the context limit\n");
    strbuf_printf(out, "    local x = embed { \"%.*s\", vocab = V, dim = H }\n", stem(o->embedding->name),
                  o->embedding->name);
    strbuf_printf(out, "    x = layers { x, n = n, at = \"%s\", each = function(x)\n", o->layers);
    strbuf_puts(out, "      -- " DRAFT_MARK
                     "what a layer computes is not known: this stands in for it, so that the file loads\n"
                     "      local y = attention { q = x, k = x, v = x, heads = heads, kv_heads = heads, dim "
                     "= H // heads, scale = 1.0 }\n"
                     "      return x + glu { y, y, fn = \"silu\" }\n    end }\n");
    if (o->norm)
        strbuf_printf(out,
                      "    x = rms_norm { wanted_rows(x), \"%.*s\", eps = 1e-6 } -- " DRAFT_MARK
                      "kind and eps of the last norm\n",
                      stem(o->norm->name), o->norm->name);
    if (o->head)
        strbuf_printf(out, "    return logits { x, \"%.*s\", vocab = V }\n", stem(o->head->name),
                      o->head->name);
    else
        strbuf_puts(out, "    return logits { x, \"lm_head\", vocab = V, tied = true } -- " DRAFT_MARK
                         "no head was found: the embedding serves\n");
    strbuf_puts(out, "  end,\n}\n");
}

int draft_scratch(struct drafting *x, struct strbuf *out, uint64_t *listed, struct err *e)
{
    struct outline o = {0};
    struct strbuf extra = STRBUF_INIT;
    find_embedding(x, &o);
    if (!o.embedding)
        return err_set(e, ERR_UNSUPPORTED,
                       "no family is near, and no tensor looks like an embedding [vocabulary, %lld]",
                       (long long)x->hidden);
    x->hidden = o.hidden;
    find_end(x, &o);
    find_layers(x, &o);
    uint8_t *claims = calloc(x->c->n_tensors + 1, 1);
    if (!claims)
        return err_set(e, ERR_NOMEM, "no memory for a draft");
    const struct ckpt_tensor *used[] = {o.embedding, o.head, o.norm};
    for (size_t i = 0; i < ARRAY_LEN(used); i++)
        if (used[i])
            claims[used[i] - x->c->tensors] = CLAIM_WHOLE;
    int rc = draft_extra(x, claims, NULL, &extra, listed, e);
    free(claims);
    draft_head(x, NULL, out);
    strbuf_puts(out, strbuf_cstr(&extra));
    strbuf_printf(out, "return {\n  drafted = true,\n  arch = { \"%s\" },\n",
                  draft_plain(x->architecture) ? x->architecture : "unnamed");
    if (draft_plain(x->model_type))
        strbuf_printf(out, "  model_type = { \"%s\" },\n", x->model_type);
    put_build(x, &o, extra.len > 0, out);
    strbuf_release(&extra);
    return rc ? rc : strbuf_failed(out) ? err_set(e, ERR_NOMEM, "no memory for the text of a draft") : ERR_OK;
}
