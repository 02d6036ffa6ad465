/* SPDX-License-Identifier: Apache-2.0
 *
 * The text front: reads tokenizer.json (or tiktoken.model) and tokenizer_config.json of a directory, joins
 * the stop ids of all files that name some, and turns text into ids. Owns the tokenizer and the templates.
 * Refuses to guess: where a chat template exists and cannot be rendered, messages are an error, not a plain
 * rendering that the model was never trained on.
 */
#include "prompt/prompt_impl.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"

#define MAX_FILE (128u << 20)

static bool has_file(struct ckpt *c, const char *name)
{
    struct file_info info = {0};
    const char *path = ckpt_path(c, name);
    return path && file_stat(path, &info, NULL) == ERR_OK && info.exists && info.is_file;
}

/* What a reader of the tokenizer said, as a finding; negative: could not work. */
static int judge(int rc, const char *name, const char *path, const struct err *why, struct findings *f,
                 struct err *e)
{
    char text[1536];
    if (rc == ERR_NOMEM || rc == ERR_IO) {
        if (e)
            *e = *why;
        return rc;
    }
    if (rc == ERR_MISSING)
        finding_add(f, FINDING_T001, name, "%s does not exist", path);
    else if (rc == ERR_UNSUPPORTED)
        finding_add_remedy(f, FINDING_T002, name, "use a build that implements this part of the file", "%s",
                           err_format(why, text, sizeof text));
    else if (rc)
        finding_add(f, FINDING_T002, name, "%s", err_format(why, text, sizeof text));
    return ERR_OK;
}

/* ERR_OK with p->tokenizer set, or with a finding; negative: could not work. tokenizer.json is preferred. */
static int read_tokenizer(struct prompt_front *p, struct ckpt *c, const struct json *config,
                          struct findings *f, struct mem *mem, struct err *e)
{
    static const char whole[] = "tokenizer.json", ranks[] = "tiktoken.model";
    const char *name = !has_file(c, whole) && has_file(c, ranks) ? ranks : whole;
    struct arena file;
    struct err why = {0};
    char *data;
    size_t n;
    const char *path = ckpt_path(c, name);
    if (path == NULL)
        return err_set(e, ERR_NOMEM, "out of memory for a path");
    arena_init(&file, mem, MEM_TEXT);
    int rc = file_read(path, MAX_FILE, &file, &data, &n, &why);
    const struct spec *s = p->spec;
    const struct tiktoken_rule rule = {s->tokenizer_pattern, (uint32_t)s->tokenizer_piece,
                                       (uint32_t)s->tokenizer_run, (uint32_t)s->tokenizer_reserved};
    if (rc == 0)
        rc = name == ranks ? tokenizer_open_ranks(&p->tokenizer, data, n, config, &rule, mem, &why)
                           : tokenizer_open(&p->tokenizer, data, n, mem, &why);
    arena_release(&file);
    return judge(rc, name, path, &why, f, e);
}

/* "eos_token": "</s>" or {"content": "</s>", ...} */
static int32_t named_token(const struct tokenizer *t, const struct json *config, const char *key)
{
    const struct json *v = json_get(config, key);
    const char *s = json_string(v);
    if (s == NULL)
        s = json_string(json_get(v, "content"));
    return s ? tokenizer_id(t, s) : -1;
}

static void add_stop(struct prompt_front *p, int32_t id)
{
    for (uint32_t i = 0; i < p->n_stop; i++)
        if (p->stop_ids[i] == id)
            return;
    if (id >= 0 && p->n_stop < ARRAY_LEN(p->stop_ids))
        p->stop_ids[p->n_stop++] = id;
}

/* The first id of an empty text, if the post-processor adds one. */
static int32_t first_of_empty(const struct tokenizer *t)
{
    struct ids ids = {0};
    int32_t first =
        tokenizer_encode(t, "", 0, TOKENIZE_SPECIAL, &ids, NULL) == ERR_OK && ids.n > 0 ? ids.data[0] : -1;
    ids_release(&ids);
    return first;
}

/* Rules that an architecture file has wrong are its fault, and no reason to guess. */
static int read_output_rules(struct prompt_front *p, const char *template, struct findings *f, bool *bad,
                             struct err *e)
{
    struct err why = {0};
    int rc = output_rules_compile(&p->output, p->spec->output, p->tokenizer, template, &p->arena, &why);
    if (rc == ERR_FORMAT) {
        finding_add(f, FINDING_C007, p->spec->arch_name, "%s", why.message);
        *bad = true;
        return ERR_OK;
    }
    if (rc && e)
        *e = why;
    return rc;
}

/* tokenizer_config.json; *out NULL where it is absent. *bad: it cannot be read, and a finding says so. */
static int read_config(struct prompt_front *p, struct ckpt *c, const struct json **out, struct findings *f,
                       bool *bad, struct err *e)
{
    static const char name[] = "tokenizer_config.json";
    struct err why = {0};
    char *data;
    size_t n;
    *out = NULL;
    const char *path = ckpt_path(c, name);
    if (path == NULL)
        return err_set(e, ERR_NOMEM, "out of memory for a path");
    int rc = file_read(path, MAX_FILE, &p->arena, &data, &n, &why);
    if (rc == 0)
        rc = json_parse(data, n, NULL, &p->arena, out, &why);
    if (rc == ERR_NOMEM || rc == ERR_IO) {
        if (e)
            *e = why;
        return rc;
    }
    if (rc && rc != ERR_MISSING) {
        finding_add_remedy(f, FINDING_T002, name, "download tokenizer_config.json again", "%s", why.message);
        *bad = true;
    }
    return ERR_OK;
}

static int use_config(struct prompt_front *p, struct ckpt *c, const struct json *config, struct findings *f,
                      bool *bad, struct err *e)
{
    int rc = templates_read(p, c, config, e);
    if (rc)
        return rc;
    if (p->spec->has_chat && !p->template_works)
        p->template_kind = arena_printf(&p->arena, "chat function of %s", p->spec->arch_name);
    if (p->template_kind == NULL)
        return err_set(e, ERR_NOMEM, "out of memory for the text front");
    add_stop(p, named_token(p->tokenizer, config, "eos_token"));
    int32_t bos = named_token(p->tokenizer, config, "bos_token"), added = first_of_empty(p->tokenizer);
    p->bos_id = bos >= 0 ? bos : p->spec->bos_id;
    bool wanted = false;
    json_bool(json_get(config, "add_bos_token"), &wanted);
    p->force_bos = wanted && p->bos_id >= 0 && added != p->bos_id;
    rc = read_output_rules(p, p->template_text ? p->template_text : "", f, bad, e);
    return rc ? rc : eyes_open(p, c, f, bad, e);
}

/* Tokenizer and model must agree on the ids. */
static bool check_vocabulary(struct prompt_front *p, struct findings *f)
{
    const struct spec *s = p->spec;
    uint32_t n = tokenizer_vocab(p->tokenizer);
    bool ok = true;
    if ((int64_t)n > s->vocab_size) {
        finding_add(f, FINDING_T003, "tokenizer.json",
                    "the tokenizer has ids up to %u, the model a vocabulary of %lld", n - 1,
                    (long long)s->vocab_size);
        ok = false;
    }
    for (uint32_t i = 0; i < p->n_stop; i++)
        if (p->stop_ids[i] >= s->vocab_size) {
            finding_add(f, FINDING_T003, "eos_token_id",
                        "the end token has the id %d, the model a vocabulary of %lld", p->stop_ids[i],
                        (long long)s->vocab_size);
            ok = false;
        }
    if (p->bos_id >= s->vocab_size) {
        finding_add(f, FINDING_T003, "bos_token_id",
                    "the first token has the id %d, the model a vocabulary of %lld", p->bos_id,
                    (long long)s->vocab_size);
        ok = false;
    }
    p->vocab_limit = (int64_t)n < s->vocab_size ? n : 0;
    return ok;
}

/* Last component of the directory; what a person would call the model. */
static char *name_of(struct arena *arena, const char *dir)
{
    size_t n = strlen(dir);
    while (n > 1 && dir[n - 1] == '/')
        n--;
    size_t start = n;
    while (start > 0 && dir[start - 1] != '/')
        start--;
    return n == start ? arena_strdup(arena, "model") : arena_strndup(arena, dir + start, n - start);
}

int prompt_open(struct prompt_front **out, struct ckpt *c, const struct spec *s, struct findings *f,
                struct d0 *d0, struct err *e)
{
    struct prompt_front *p = calloc(1, sizeof *p);
    bool bad = false;
    *out = NULL;
    if (p == NULL)
        return err_set(e, ERR_NOMEM, "out of memory for the text front");
    arena_init(&p->arena, d0 ? &d0->mem : NULL, MEM_TEXT);
    p->spec = s;
    p->bos_id = -1;
    p->model_name = name_of(&p->arena, c->dir);
    if (p->model_name == NULL) {
        prompt_close(p);
        return err_set(e, ERR_NOMEM, "out of memory for the text front");
    }
    const struct json *config = NULL;
    int rc = read_config(p, c, &config, f, &bad, e);
    if (rc == 0)
        rc = read_tokenizer(p, c, config, f, d0 ? &d0->mem : NULL, e);
    if (rc == 0 && p->tokenizer) {
        for (uint32_t i = 0; i < s->n_eos; i++)
            add_stop(p, s->eos_ids[i]);
        rc = use_config(p, c, config, f, &bad, e);
    }
    if (rc == 0 && p->tokenizer && !bad && check_vocabulary(p, f))
        *out = p;
    else
        prompt_close(p);
    return rc;
}

void prompt_close(struct prompt_front *p)
{
    if (p == NULL)
        return;
    for (uint32_t i = 0; i < p->n_templates; i++)
        jinja_close(p->templates[i].jinja);
    tokenizer_close(p->tokenizer);
    arena_release(&p->arena);
    free(p);
}

int encode_once(const struct prompt_front *p, const char *text, size_t n, unsigned flags, struct ids *out,
                struct err *e)
{
    size_t mark = out->n;
    if (p->force_bos) {
        if (vec_reserve((void **)&out->data, &out->capacity, out->n + 1, sizeof *out->data))
            return err_set(e, ERR_NOMEM, "out of memory for token ids");
        out->data[out->n++] = p->bos_id;
    }
    int rc = tokenizer_encode(p->tokenizer, text, n, flags, out, e);
    if (rc) {
        out->n = mark;
        return rc;
    }
    size_t count = out->n - mark;
    int32_t *ids = count ? out->data + mark : NULL;
    if (p->bos_id >= 0 && count >= 2 && ids[0] == p->bos_id && ids[1] == p->bos_id) {
        memmove(ids, ids + 1, (count - 1) * sizeof *ids);
        out->n--;
    }
    return ERR_OK;
}

int prompt_text(const struct prompt_front *p, const char *text, size_t n, struct ids *out, struct err *e)
{
    return encode_once(p, text, n, TOKENIZE_SPECIAL | TOKENIZE_PARSE_SPECIAL, out, e);
}
