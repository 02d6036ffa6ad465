/* SPDX-License-Identifier: Apache-2.0
 *
 * day0 check: everything that headers show to be wrong with a model, or with running it here; with --payload
 * every byte of its weights, too.
 */
#include <unistd.h>

#include "base/thread.h"
#include "cli/cli.h"
#include "host/host.h"
#include "preflight/preflight.h"
#include "prompt/prompt.h"

enum {
    KEY_PAYLOAD = 0x2000,
    KEY_HASH,
    KEY_PARTIAL,
    KEY_CACHE,
    KEY_NO_CACHE,
    KEY_ROOT,
    KEY_RULES,
    KEY_PROFILE,
    KEY_CARDS
};

struct check_options {
    struct common common;
    bool payload, hash, partial, no_cache;
    const char *cache, *root, *rules, *profile;
    uint32_t n_cards;
};

struct check_result {
    enum preflight_verdict verdict;
    struct findings f;
    struct preflight_payload payload;
    struct host *host;
    struct host_rules rules;
    struct host_card_profile *card;
    struct arena arena;                      /* of the layouts */
    struct plan_degrees layouts;             /* none without a description */
    struct spec_asked asked[SPEC_MAX_ASKED]; /* roundings of activations */
    size_t n_asked;
    bool described;
    double seconds;
};

static const struct argp_option options[] = {
    {"payload", KEY_PAYLOAD, NULL, 0, "read every byte: hashes, values that are not finite, zeros", 0},
    {"hash", KEY_HASH, NULL, 0, "with --payload: hash every file, also where nothing says what to expect", 0},
    {"partial", KEY_PARTIAL, NULL, 0, "the download still runs, or only headers are here", 0},
    {"cache", KEY_CACHE, "FILE", 0, "keep payload results here (default: ~/.cache/day0/payload.json)", 0},
    {"no-cache", KEY_NO_CACHE, NULL, 0, "read every file again and keep nothing", 0},
    {"root", KEY_ROOT, "FILE", 0, "judge for the machine captured in FILE (day0 env --capture)", 0},
    {"profile", KEY_PROFILE, "CARD.json", 0, "judge for a card that is not here: operators, types, memory",
     0},
    {"cards", KEY_CARDS, "N", 0, "with --profile: how many of them (default: 1)", 0},
    {"rules", KEY_RULES, "FILE", 0, "version rules to judge by (default: the built-in ones)", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct check_options *o = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &o->common;
        break;
    case KEY_PAYLOAD:
        o->payload = true;
        break;
    case KEY_HASH:
        o->hash = o->payload = true;
        break;
    case KEY_PARTIAL:
        o->partial = true;
        break;
    case KEY_CACHE:
        o->cache = arg;
        break;
    case KEY_NO_CACHE:
        o->no_cache = true;
        break;
    case KEY_ROOT:
        o->root = arg;
        break;
    case KEY_PROFILE:
        o->profile = arg;
        break;
    case KEY_CARDS:
        o->n_cards = (uint32_t)cli_int(state, "--cards", arg, 1, 4096);
        break;
    case KEY_RULES:
        o->rules = arg;
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

/* ---- progress, to a terminal only */

struct progress {
    uint64_t begin;
    bool shown;
};

static void show_progress(void *context, uint64_t done, uint64_t total)
{
    struct progress *p = context;
    char a[32], b[32], bar[31];
    double seconds = (double)(clock_ns() - p->begin) * 1e-9;
    double share = total ? (double)done / (double)total : 1;
    int full = (int)(share * 30);
    for (int i = 0; i < 30; i++)
        bar[i] = i < full ? '#' : '.';
    bar[30] = '\0';
    fprintf(stderr, "\r%s %3.0f %% of %s, %s/s ", bar, share * 100, format_bytes(total, a, sizeof a),
            format_bytes(seconds > 0 ? (uint64_t)((double)done / seconds) : 0, b, sizeof b));
    p->shown = true;
}

static int check_payload(const struct check_options *o, struct ckpt *ckpt, struct check_result *x,
                         struct err *e)
{
    struct progress p = {.begin = clock_ns()};
    struct arena scratch;
    arena_init(&scratch, NULL, MEM_MISC);
    struct preflight_payload_options po = {
        .hash = o->hash,
        .threads = o->common.threads,
        .progress = isatty(STDERR_FILENO) ? show_progress : NULL,
        .context = &p,
    };
    if (!o->no_cache)
        po.cache_path = o->cache ? o->cache : preflight_payload_cache_path(&scratch);
    int rc = preflight_payload(ckpt, &po, &x->f, &x->payload, e);
    if (p.shown)
        fprintf(stderr, "\r\033[K");
    if (x->payload.cache_trouble[0])
        fprintf(stderr, "day0: note: payload results are not kept: %s\n", x->payload.cache_trouble);
    arena_release(&scratch);
    return rc;
}

/* What keeps a model with a tower from taking pictures. The tokenizer itself was judged before. */
static int check_pictures(const struct common *c, struct ckpt *ckpt, const struct spec *spec,
                          struct findings *f, struct err *e)
{
    struct prompt_front *front = NULL;
    struct findings judged;
    if (spec->placeholders == NULL)
        return ERR_OK;
    findings_init(&judged, &c->d0->mem);
    int rc = prompt_open(&front, ckpt, spec, &judged, c->d0, e);
    if (rc == 0 && front)
        rc = prompt_check_pictures(front, f, e);
    prompt_close(front);
    findings_release(&judged);
    return rc;
}

static int run_check(const struct check_options *o, struct check_result *x, struct err *e)
{
    const struct common *c = &o->common;
    struct preflight_options po = {
        .memory_bytes = c->memory, .memory_source = "--memory", .partial = o->partial};
    int rc = o->root ? host_open_capture(&x->host, o->root, e) : host_open(&x->host, ".", e);
    if (!rc)
        rc = host_rules_open(&x->rules, o->rules, e);
    if (!rc && o->profile)
        rc = host_card_open(&x->card, o->profile, e);
    if (rc)
        return rc;
    po.card = x->card;
    po.n_cards = o->n_cards;
    if (!c->memory && !x->card) { /* with a card its memory counts */
        po.memory_bytes = x->host->memory_available;
        po.memory_source = x->host->memory_limit_source;
        /* 0 would mean "do not judge": a machine that has nothing left is one that the model does not fit. */
        if (x->host->memory_limit_source && !po.memory_bytes)
            po.memory_bytes = 1;
    }
    struct dev dev = {0};
    if (!x->card && !o->root) { /* of a machine that is only a capture there is no device to ask */
        const struct dev_options d = {.isa = c->cpu, .n_threads = c->threads};
        if ((rc = dev_open(&dev, &d, e)) != ERR_OK)
            return rc;
        po.dev = &dev;
    }
    struct ckpt *ckpt = NULL;
    struct spec *spec = NULL;
    struct spec_options so = {.arch_path = c->arch};
    rc = preflight_open(c->model, &so, &po, &ckpt, &spec, &x->f, c->d0, e);
    x->described = spec != NULL;
    x->n_asked = spec ? spec_activations_asked(spec, x->asked) : 0;
    if (!rc && spec)
        rc = check_pictures(c, ckpt, spec, &x->f, e);
    if (!rc && spec)
        rc = plan_degrees(spec, &x->arena, &x->layouts, e);
    if (!rc)
        host_rules_check(&x->rules, x->host, &x->f);
    if (!rc && o->payload)
        rc = check_payload(o, ckpt, x, e);
    if (!rc) {
        cli_waive(c, &x->f);
        x->verdict = preflight_verdict(&x->f, spec);
    }
    /* What the payload says names shards of the checkpoint: these names are copied before it goes. */
    for (size_t i = 0; !rc && i < x->payload.n_shards; i++)
        x->payload.shards[i].name = arena_strdup(&x->payload.arena, x->payload.shards[i].name);
    spec_close(spec);
    ckpt_close(ckpt);
    dev_close(&dev);
    return rc;
}

/* ---- output */

static void print_payload(const struct preflight_payload *p)
{
    char a[32], b[32], c[32];
    printf(
        "payload: %s read in %.1f s (%s/s, %u threads), %s from the cache; %llu files hashed, %llu compared; "
        "%llu tensors\n",
        format_bytes(p->bytes_read, a, sizeof a), p->seconds,
        format_bytes(p->seconds > 0 ? (uint64_t)((double)p->bytes_read / p->seconds) : 0, b, sizeof b),
        p->threads, format_bytes(p->bytes_cached, c, sizeof c), (unsigned long long)p->n_hashed,
        (unsigned long long)p->n_compared, (unsigned long long)p->tensors);
    if (p->n_compared == 0)
        printf("payload: nothing in the directory says what the hashes should be\n");
}

static void print_unknown_rules(const struct host_rules *r, const struct host *h)
{
    char seen[300];
    for (size_t i = 0; i < r->n; i++)
        if (host_rule_judge(&r->items[i], h, seen, sizeof seen) == HOST_RULE_UNKNOWN)
            printf("not known: rule %s: %s\n", r->items[i].id, seen);
}

static int print_result(const struct check_options *o, const struct check_result *x, int status)
{
    if (o->common.json) {
        struct strbuf text = STRBUF_INIT;
        struct json_writer w;
        json_writer_init(&w, &text, true);
        json_begin_object(&w);
        preflight_write_check_members(x->verdict, &x->f, x->seconds, &w);
        json_put_bool(&w, "partial", o->partial);
        json_put_string(&w, "machine", o->root);
        json_put_string(&w, "card", x->card ? x->card->name : NULL);
        json_key(&w, "rules");
        host_rules_write_json(&x->rules, x->host, &w);
        preflight_write_activations(x->asked, x->n_asked, &w);
        json_key(&w, "layouts");
        if (x->described) {
            json_begin_object(&w);
            preflight_write_layouts(&x->layouts, &w);
            json_end_object(&w);
        } else {
            json_write_null(&w);
        }
        if (o->payload) {
            json_key(&w, "payload");
            preflight_write_payload(&x->payload, &w);
        }
        json_end_object(&w);
        return cli_print(&text, status);
    }
    cli_print_findings(&x->f);
    if (o->payload)
        print_payload(&x->payload);
    print_unknown_rules(&x->rules, x->host);
    cli_print_asked(x->asked, x->n_asked);
    if (x->described)
        cli_print_layouts_short(&x->layouts);
    printf("%s: %s in %.2f s\n", o->common.model, preflight_verdict_name(x->verdict), x->seconds);
    return status;
}

int cmd_check(struct d0 *d0, int argc, char **argv)
{
    static const struct argp_child children[] = {{&common_argp, 0, NULL, 0}, {0}};
    static const struct argp argp = {
        options,  parse, "MODEL", "Pre-flight from headers: what would stop or spoil this model here.",
        children, NULL,  NULL};
    static const int statuses[] = {EXIT_PASSED, EXIT_CHECK_FAILED, EXIT_INCOMPLETE};
    struct check_options o = {.common = {.d0 = d0, .needs_model = true}};
    cli_parse(&argp, argc, argv, &o);
    struct check_result x = {.verdict = PREFLIGHT_FAIL};
    findings_init(&x.f, &d0->mem);
    arena_init(&x.arena, &d0->mem, MEM_MISC);
    struct err e = {0};
    uint64_t begin = clock_ns();
    int rc = run_check(&o, &x, &e);
    x.seconds = (double)(clock_ns() - begin) * 1e-9;
    int status = rc ? cli_error(&o.common, &e) : print_result(&o, &x, statuses[x.verdict]);
    preflight_payload_release(&x.payload);
    host_rules_release(&x.rules);
    host_card_close(x.card);
    host_close(x.host);
    findings_release(&x.f);
    arena_release(&x.arena);
    return status;
}
