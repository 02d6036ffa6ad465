/* SPDX-License-Identifier: Apache-2.0
 *
 * day0 draft: a first architecture file for a model that nobody described. Refuses to overwrite a file, and
 * to draft what a shipped file describes.
 */
#include <ctype.h>
#include <string.h>

#include "base/file.h"
#include "cli/cli.h"
#include "preflight/preflight.h"

enum { KEY_WITHOUT = 0x3000, KEY_FORCE };
#define MAX_WITHOUT 64

struct draft {
    struct common common;
    const char *output;
    bool force;
    const char *without[MAX_WITHOUT];
    size_t n_without;
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct draft *x = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &x->common;
        break;
    case 'o':
        x->output = arg;
        break;
    case KEY_FORCE:
        x->force = true;
        break;
    case KEY_WITHOUT:
        if (x->n_without == MAX_WITHOUT)
            argp_error(state, "--without more than %d times", MAX_WITHOUT);
        x->without[x->n_without++] = arg;
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

/* A shipped file that describes it makes a draft pointless, unless that file is left out. */
static int refuse_known(const struct draft *x, struct ckpt *c, struct err *e)
{
    struct findings f;
    struct spec *s = NULL;
    bool unknown = false;
    findings_init(&f, NULL);
    int rc = spec_open(&s, c, NULL, &f, x->common.d0, e);
    for (size_t i = 0; i < f.n; i++)
        unknown |= f.items[i].id == FINDING_C003;
    if (!rc && !unknown && x->n_without == 0) {
        rc = err_set(e, ERR_USAGE, "%s describes this model already", s ? s->arch_name : "a shipped file");
        err_hint(e, "--without %s drafts one all the same", s ? s->arch_name : "NAME.lua");
    }
    spec_close(s);
    findings_release(&f);
    return rc;
}

/* "model_type.lua" in this directory. */
static const char *default_output(const struct ckpt *c, char *buf, size_t bytes)
{
    const char *type = json_string(json_get(c->config, "model_type"));
    snprintf(buf, bytes, "%.60s.lua", type && *type ? type : "drafted");
    for (char *p = buf; *p; p++)
        if (!isalnum((unsigned char)*p) && *p != '_' && (*p != '.' || p == buf))
            *p = '_';
    return buf;
}

static void print_people(const struct preflight_draft *d, const char *file)
{
    if (d->nearest)
        printf("nearest family  %s\n", d->nearest);
    else
        printf("nearest family  none is near: written from names and shapes\n");
    printf("inventory       %llu of %llu tensors: %llu by the family's calls, %llu only listed\n",
           (unsigned long long)d->claimed, (unsigned long long)d->total, (unsigned long long)d->by_family,
           (unsigned long long)(d->claimed - (d->by_family < d->claimed ? d->by_family : d->claimed)));
    for (size_t i = 0; i < d->n_missing && i < 12; i++)
        printf("wanted in vain  %s\n", d->missing[i]);
    for (size_t i = 0; i < d->n_misshapen && i < 12; i++)
        printf("other shape     %s\n", d->misshapen[i]);
    for (size_t i = 0; i < d->n_unclaimed && i < 12; i++)
        printf("not described   %s\n", d->unclaimed[i]);
    printf("written         %s; look for \"TODO day0 draft\", then: day0 check MODEL --arch %s\n", file,
           file);
}

static int make_draft(const struct draft *x, struct ckpt *c, struct err *e)
{
    const struct preflight_draft_options o = {.without = x->without, .n_without = x->n_without};
    struct preflight_draft d = {0};
    struct file_info info = {0};
    char name[80];
    const char *file = x->output ? x->output : default_output(c, name, sizeof name);
    int rc = file_stat(file, &info, e);
    if (!rc && info.exists && !x->force) {
        rc = err_set(e, ERR_USAGE, "%s exists", file);
        err_hint(e, "-o FILE writes elsewhere, --force replaces it");
    }
    if (!rc)
        rc = refuse_known(x, c, e);
    if (!rc)
        rc = preflight_draft(c, &o, &d, e);
    if (!rc)
        rc = file_write_atomic(file, d.text, d.n, e);
    if (!rc && x->common.json) {
        struct strbuf text = STRBUF_INIT;
        struct json_writer w;
        json_writer_init(&w, &text, true);
        preflight_write_draft(&d, file, &w);
        rc = cli_print(&text, EXIT_PASSED);
    } else if (!rc) {
        print_people(&d, file);
    }
    preflight_draft_release(&d);
    return rc;
}

int cmd_draft(struct d0 *d0, int argc, char **argv)
{
    static const struct argp_option options[] = {
        {"output", 'o', "FILE", 0, "where to write (default: MODEL_TYPE.lua in this directory)", 0},
        {"force", KEY_FORCE, NULL, 0, "replace FILE if it exists", 0},
        {"without", KEY_WITHOUT, "NAME.lua", 0, "draft as if this shipped file were not there", 0},
        {0},
    };
    static const struct argp_child children[] = {{&common_argp, 0, NULL, 0}, {0}};
    static const struct argp argp = {
        options,  parse, "MODEL", "A first architecture file for a model that nobody described.",
        children, NULL,  NULL};
    struct draft x = {.common = {.d0 = d0, .needs_model = true}};
    cli_parse(&argp, argc, argv, &x);
    struct findings f;
    struct err e = {0};
    struct ckpt *c = NULL;
    findings_init(&f, &d0->mem);
    int rc = ckpt_open(&c, x.common.model, &f, d0, &e);
    if (!rc)
        rc = make_draft(&x, c, &e);
    ckpt_close(c);
    findings_release(&f);
    return rc < 0 ? cli_error(&x.common, &e) : rc;
}
