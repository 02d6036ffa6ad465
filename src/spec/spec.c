/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening a model description: which architecture file, running it in the sandbox, and telling what went
 * wrong apart: a key that config.json lacks (C004), a value that the file does not implement (C006), an
 * unknown architecture (C003), a file that fails (C007).
 */
#include "spec/spec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "script/script.h"
#include "spec/spec_internal.h"

#define SPEC_MAX_ARCH_BYTES (256u << 10)

#define SPEC_MAX_PAGE_TOKENS 4096u

#define MISSING_PREFIX     "config key missing: " /* as in arch/prelude.lua */
#define UNSUPPORTED_PREFIX "config value unsupported: "

const char *arch_origin_name(enum arch_origin o)
{
    switch (o) {
    case ARCH_SHIPPED:
        return "shipped";
    case ARCH_USER:
        return "user";
    case ARCH_DRAFTED:
        return "drafted";
    }
    return "?";
}

size_t spec_arch_files(const struct arch_file **out)
{
    *out = arch_embedded + ARCH_N_SHARED;
    return arch_embedded_n - ARCH_N_SHARED;
}

/* What spec_open() works on. `done`: a finding says why there is no description. */
struct opening {
    const struct ckpt *c;
    const struct spec_options *o;
    struct findings *f;
    struct spec *s;
    struct arena scratch;
    struct arch_file file;
    bool done;
};

/* ---- scripts ---- */

static int load_shared(struct script *s, struct err *e)
{
    int rc = ERR_OK;
    for (size_t i = 0; !rc && i < ARCH_N_SHARED; i++)
        rc = script_load(s, arch_embedded[i].name, arch_embedded[i].text, arch_embedded[i].n, NULL, e);
    return rc;
}

int spec_script(const struct arch_file *file, const struct script_limits *limits, struct script **out,
                struct err *e)
{
    struct script *s = NULL;
    int rc = script_open(&s, limits, e);
    if (!rc)
        rc = load_shared(s, e);
    if (!rc)
        rc = script_load_guest(s, file->name, file->text, file->n, "arch_file", e);
    if (rc) {
        script_close(s);
        return rc;
    }
    *out = s;
    return ERR_OK;
}

static int load_arch(const struct opening *x, const struct arch_file *file, struct script **out,
                     struct err *e)
{
    struct script_limits l = {.max_bytes = x->o->limits.max_bytes,
                              .max_instructions = x->o->limits.max_instructions,
                              .max_wall_ns = x->o->limits.max_wall_ns};
    return spec_script(file, &l, out, e);
}

/* {arch = {...}, model_type = {...}, drafted = bool} of a file. */
static int describe_arch(const struct opening *x, const struct arch_file *file, struct arena *arena,
                         const struct json **out, struct err *e)
{
    struct script *s = NULL;
    int rc = load_arch(x, file, &s, e);
    if (!rc)
        rc = script_call(s, "day0_describe", NULL, 0, arena, out, e);
    script_close(s);
    return rc;
}

/* ---- the choice ---- */

static const char *string_at(const struct json *list, uint32_t i)
{
    const struct json *v = list && list->type == JSON_ARRAY ? json_at(list, i) : NULL;
    const char *s = json_string(v);
    return s ? s : "";
}

static uint32_t count_of(const struct json *list)
{
    return list && list->type == JSON_ARRAY ? list->n : 0;
}

/* Index of name in the list, or -1. */
static int64_t position(const struct json *list, const char *name)
{
    for (uint32_t i = 0; i < count_of(list); i++)
        if (strcmp(string_at(list, i), name) == 0)
            return i;
    return -1;
}

/* What the shipped files know that is like the unknown name. */
struct nearest {
    const char *architecture, *file, *by_type;
    unsigned distance;
};

static void look_near(struct nearest *n, const struct json *d, const char *file, const char *wanted,
                      const char *type)
{
    const struct json *archs = json_get(d, "arch");
    for (uint32_t i = 0; i < count_of(archs); i++) {
        unsigned distance = str_distance(wanted, string_at(archs, i));
        if (n->architecture == NULL || distance < n->distance) {
            n->architecture = string_at(archs, i);
            n->file = file;
            n->distance = distance;
        }
    }
    if (*type && position(json_get(d, "model_type"), type) >= 0)
        n->by_type = file;
}

/* A name from config.json for a message: short, one line of printable characters. */
static const char *shown(const char *s, char *buf, size_t bytes)
{
    snprintf(buf, bytes, "%s", s);
    for (char *p = buf; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            *p = '?';
    buf[utf8_complete_prefix(buf, strlen(buf))] = 0;
    return buf;
}

static void unknown_architecture(struct opening *x, const struct nearest *n, const char *name,
                                 const char *type)
{
    char remedy[256], near[192] = "", wanted[100];
    shown(name, wanted, sizeof wanted);
    if (n->by_type) /* a known name, so printable */
        snprintf(near, sizeof near, "; model_type \"%.40s\" is that of %s", type, n->by_type);
    snprintf(remedy, sizeof remedy,
             "name an architecture file with --arch FILE; the nearest known one is %s (%s)",
             n->architecture ? n->architecture : "none", n->file ? n->file : "no file");
    finding_add_remedy(x->f, FINDING_C003, *wanted ? wanted : "config.json", remedy,
                       *wanted ? "no architecture file describes %.100s%s"
                               : "config.json names no architecture%.0s and no known model_type%s",
                       wanted, near);
    x->done = true;
}

/* Among the shipped files: the first known name in config.architectures; model_type only where there is no
 * such list. */
static int choose_shipped(struct opening *x, struct script *all, struct err *e)
{
    const struct json *names = json_get(x->c->config, "architectures");
    const char *type = json_string(json_get(x->c->config, "model_type"));
    const struct arch_file *files;
    size_t n_files = spec_arch_files(&files);
    struct nearest near = {0};
    const char *wanted = string_at(names, 0);
    type = type ? type : "";
    for (size_t i = 0; i < n_files; i++) {
        const struct json *d = NULL;
        int rc = script_load_guest(all, files[i].name, files[i].text, files[i].n, "arch_file", e);
        if (!rc)
            rc = script_call(all, "day0_describe", NULL, 0, &x->scratch, &d, e);
        if (rc) {
            err_ctx(e, "reading the shipped file %s", files[i].name);
            return rc;
        }
        const struct json *archs = json_get(d, "arch");
        for (uint32_t k = 0; k < count_of(names); k++)
            if (position(archs, string_at(names, k)) >= 0) {
                x->file = files[i];
                x->s->architecture = arena_strdup(&x->s->arena, string_at(names, k));
                return ERR_OK;
            }
        int64_t at = position(json_get(d, "model_type"), type);
        if (count_of(names) == 0 && *type && at >= 0) {
            x->file = files[i];
            x->s->architecture = arena_strdup(&x->s->arena, string_at(archs, (uint32_t)at));
            return ERR_OK;
        }
        look_near(&near, d, files[i].name, *wanted ? wanted : type, type);
    }
    unknown_architecture(x, &near, wanted, type);
    return ERR_OK;
}

/* All shipped files run in one sandbox, one after the other: making one costs more than they do. */
static int choose_among_shipped(struct opening *x, struct err *e)
{
    struct script *all = NULL;
    int rc = script_open(&all, NULL, e);
    if (!rc)
        rc = load_shared(all, e);
    if (!rc)
        rc = choose_shipped(x, all, e);
    script_close(all);
    return rc;
}

/* The file of --arch is taken for whatever the model calls itself. */
static int choose_given(struct opening *x, struct err *e)
{
    char *text;
    const struct json *d;
    bool drafted = false;
    const char *wanted = string_at(json_get(x->c->config, "architectures"), 0);
    int rc = ERR_OK;
    if (x->o->arch) {
        x->file = *x->o->arch;
    } else {
        x->file.name = x->o->arch_path;
        rc = file_read(x->o->arch_path, SPEC_MAX_ARCH_BYTES, &x->s->arena, &text, &x->file.n, e);
        if (rc) {
            err_ctx(e, "reading the architecture file");
            return rc;
        }
        x->file.text = text;
    }
    x->s->origin = ARCH_USER;
    rc = describe_arch(x, &x->file, &x->scratch, &d, e);
    if (rc)
        return rc;
    if (json_bool(json_get(d, "drafted"), &drafted) && drafted)
        x->s->origin = ARCH_DRAFTED;
    x->s->architecture = arena_strdup(&x->s->arena, *wanted ? wanted : string_at(json_get(d, "arch"), 0));
    return ERR_OK;
}

/* ---- what went wrong ---- */

/* Turns the error of a script or a translation into a finding. Only a lack of memory of ours stays an error.
 */
static int explain(struct opening *x, int rc, struct err *e)
{
    const char *m = e->message;
    if (rc == ERR_OK || rc == ERR_NOMEM || x->done)
        return rc;
    if (str_starts(m, MISSING_PREFIX)) {
        const char *key = m + strlen(MISSING_PREFIX);
        finding_add(x->f, FINDING_C004, key, "config.json has no %s, which %s reads", key, x->file.name);
    } else if (str_starts(m, UNSUPPORTED_PREFIX)) {
        const char *key = m + strlen(UNSUPPORTED_PREFIX), *colon = strstr(key, ": ");
        char name[128];
        snprintf(name, sizeof name, "%.*s", colon ? (int)(colon - key) : (int)strlen(key), key);
        finding_add(x->f, FINDING_C006, name, "%s %s", name, colon ? colon + 2 : "");
    } else {
        finding_add(x->f, FINDING_C007, x->file.name ? x->file.name : "architecture file", "%s", m);
    }
    x->done = true;
    err_clear(e);
    return ERR_OK;
}

/* ---- token ids ---- */

/* False: there are more than a description holds, and one left out would let an answer run on. */
static bool add_eos(struct spec *s, const struct json *v)
{
    int64_t id;
    if (!json_i64(v, &id) || id < 0 || id > INT32_MAX)
        return true;
    for (uint32_t i = 0; i < s->n_eos; i++)
        if (s->eos_ids[i] == id)
            return true;
    if (s->n_eos >= ARRAY_LEN(s->eos_ids))
        return false;
    s->eos_ids[s->n_eos++] = (int32_t)id;
    return true;
}

/* End tokens are those of config.json and of generation_config.json, the first token is that of the first to
 * name one; where both are silent the part of config.json about the text speaks. */
static void read_token_ids(struct spec *s, const struct ckpt *c, struct findings *f)
{
    const struct json *const places[] = {c->config, c->generation_config, json_get(c->config, "text_config")};
    int64_t bos = -1;
    bool begun = false, all = true;
    for (size_t k = 0; k < ARRAY_LEN(places); k++) {
        const struct json *eos = k < 2 || s->n_eos == 0 ? json_get(places[k], "eos_token_id") : NULL;
        if (eos && eos->type == JSON_ARRAY)
            for (uint32_t i = 0; i < eos->n; i++)
                all = add_eos(s, json_at(eos, i)) && all;
        else
            all = add_eos(s, eos) && all;
        begun = begun || json_i64(json_get(places[k], "bos_token_id"), &bos);
    }
    s->bos_id = bos >= 0 && bos <= INT32_MAX ? (int32_t)bos : -1;
    if (!all)
        finding_add(f, FINDING_C006, "eos_token_id", "more than %zu different tokens end an answer",
                    ARRAY_LEN(s->eos_ids));
}

/* ---- opening ---- */

static int hash_arch(struct opening *x, struct err *e)
{
    struct sha256 *h = NULL;
    int rc = sha256_begin(&h, e);
    if (rc)
        return rc;
    rc = sha256_update(h, x->file.text, x->file.n);
    for (size_t i = 0; !rc && i < ARCH_N_SHARED; i++)
        rc = sha256_update(h, arch_embedded[i].text, arch_embedded[i].n);
    if (rc) {
        sha256_abort(h);
        return err_set(e, rc, "cannot hash the architecture file");
    }
    rc = sha256_end(h, x->s->arch_sha256);
    return rc ? err_set(e, rc, "cannot hash the architecture file") : ERR_OK;
}

static int trace_arch(struct opening *x, const struct json **trace, struct err *e)
{
    struct json name = {
        .type = JSON_STRING, .n = (uint32_t)strlen(x->s->architecture), .as.string = x->s->architecture};
    const struct json images = {.type = JSON_BOOL, .as.boolean = x->o->images};
    const struct json *args[] = {x->c->config, &name, NULL, &images};
    struct script *script = NULL;
    int rc = load_arch(x, &x->file, &script, e);
    if (!rc)
        rc = spec_patterns(x->c, &x->scratch, &args[2], e);
    if (!rc)
        rc = script_call(script, "day0_trace", args, ARRAY_LEN(args), &x->scratch, trace, e);
    if (!rc)
        rc = spec_read_chat(x->s, script, e);
    script_close(script);
    return rc;
}

static int describe_model(struct opening *x, struct err *e)
{
    struct spec *s = x->s;
    const struct json *trace = NULL;
    const char *type = json_string(json_get(x->c->config, "model_type"));
    int rc = x->o->arch_path || x->o->arch ? choose_given(x, e) : choose_among_shipped(x, e);
    if (rc || x->done)
        return rc;
    s->arch_name = arena_strdup(&s->arena, x->file.name);
    s->model_type = arena_strdup(&s->arena, type ? type : "");
    s->arch_file = x->file; /* embedded, of the caller, or in this arena */
    if (s->architecture == NULL || s->arch_name == NULL || s->model_type == NULL)
        return err_set(e, ERR_NOMEM, "no memory for the model description");
    if ((rc = hash_arch(x, e)) != 0 || (rc = trace_arch(x, &trace, e)) != 0)
        return rc;
    read_token_ids(s, x->c, x->f);
    return spec_translate(s, x->c, trace, x->o, x->f, e);
}

static bool has_finding(const struct findings *f, enum finding_id id)
{
    for (size_t i = 0; i < f->n; i++)
        if (f->items[i].id == id)
            return true;
    return false;
}

/* A wish of the release that cannot be met is a finding: whoever asked for it runs nothing. */
static int ask_activations(struct opening *x, struct ckpt *c, struct err *e)
{
    int rc = spec_set_activations(x->s, c, x->o->activations, e);
    if (rc != ERR_UNSUPPORTED && rc != ERR_MISSING && rc != ERR_MISMATCH)
        return rc;
    finding_add(x->f, FINDING_P006, x->s->architecture, "%s", e->message);
    err_clear(e);
    return ERR_OK;
}

int spec_open(struct spec **out, struct ckpt *c, const struct spec_options *o, struct findings *f,
              struct d0 *d0, struct err *e)
{
    static const struct spec_options defaults;
    struct opening x = {.c = c, .o = o ? o : &defaults, .f = f};
    struct err local = {0};
    *out = NULL;
    if (x.o->kv_dtype && x.o->kv_dtype != D0_F32 && x.o->kv_dtype != D0_BF16 && x.o->kv_dtype != D0_F16)
        return err_set(e, ERR_INVALID, "KV pages must be F32, BF16 or F16, not %s",
                       dtype_name(x.o->kv_dtype));
    if (x.o->page_tokens > SPEC_MAX_PAGE_TOKENS)
        return err_set(e, ERR_INVALID, "%u tokens a page, at most %u", x.o->page_tokens,
                       SPEC_MAX_PAGE_TOKENS);
    if (c->config == NULL)
        return ERR_OK; /* ckpt_open() has said why */
    if (c->config->type != JSON_OBJECT) {
        if (!has_finding(f, FINDING_C002))
            finding_add(f, FINDING_C002, "config.json", "it holds no object but %s",
                        json_type_name(c->config->type));
        return ERR_OK;
    }
    x.s = calloc(1, sizeof *x.s);
    if (x.s == NULL)
        return err_set(e, ERR_NOMEM, "no memory for the model description");
    arena_init(&x.s->arena, d0 ? &d0->mem : NULL, MEM_SPEC);
    arena_init(&x.scratch, d0 ? &d0->mem : NULL, MEM_SPEC);
    int rc = graph_open(&x.s->graph, d0 ? &d0->mem : NULL, &local);
    if (!rc)
        rc = graph_open(&x.s->vision, d0 ? &d0->mem : NULL, &local);
    if (!rc)
        rc = describe_model(&x, &local);
    bool unreadable = rc && x.o->arch_path && x.file.text == NULL;
    if (!unreadable)
        rc = explain(&x, rc, &local);
    if (!rc && !x.done)
        rc = ask_activations(&x, c, &local);
    arena_release(&x.scratch);
    if (rc || x.done) {
        spec_close(x.s);
        if (rc && e)
            *e = local;
        return rc;
    }
    *out = x.s;
    return ERR_OK;
}

void spec_close(struct spec *s)
{
    if (s == NULL)
        return;
    graph_free(s->graph);
    graph_free(s->vision);
    arena_release(&s->arena);
    free(s);
}

void spec_set_pages(struct graph *g, const struct spec *s, int64_t pages)
{
    (void)s;
    for (uint32_t i = 0; i < g->n_values; i++)
        if (g->values[i].kind == D0_VALUE_STATE && g->info[i].state == STATE_PAGES)
            g->values[i].dims[0] = pages;
}
