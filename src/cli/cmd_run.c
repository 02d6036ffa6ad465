/* SPDX-License-Identifier: Apache-2.0
 *
 * day0 run: one prompt through the model, text to stdout as it comes.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/api.h"
#include "cli/cli.h"
#include "cli/run_pictures.h"

struct run_arguments {
    struct common common;
    const char *prompt;
    struct session_options session;
    struct generate_options generate;
    const char *files[RUN_MAX_PICTURES]; /* pictures */
    uint32_t n_files;
};

enum {
    KEY_TEMPERATURE = 0x2000,
    KEY_TOP_P,
    KEY_TOP_K,
    KEY_SEED,
    KEY_CONTEXT,
    KEY_IGNORE_EOS,
    KEY_KV,
    KEY_FUSE,
    KEY_IMAGE
};

static const struct argp_option options[] = {
    {"prompt", 'p', "TEXT", 0, "the prompt (required); - reads it from stdin", 1},
    {"image", KEY_IMAGE, "FILE", 0,
     "a picture; may be repeated. The prompt is then a message: pictures stand where it says " RUN_MARKER
     ", the others before it",
     1},
    {"max-tokens", 'n', "N", 0, "tokens to generate (default 128)", 1},
    {"temperature", KEY_TEMPERATURE, "T", 0, "0 is greedy (default)", 1},
    {"top-p", KEY_TOP_P, "P", 0, "nucleus, in (0, 1] (default 1: off)", 1},
    {"top-k", KEY_TOP_K, "K", 0, "most likely K only (default 0: off)", 1},
    {"seed", KEY_SEED, "N", 0, "seed of the sampler (default 0)", 1},
    {"context", KEY_CONTEXT, "N", 0, "context in tokens (default: the model's limit, at most 4096)", 1},
    {"ignore-eos", KEY_IGNORE_EOS, NULL, 0, "go on after an end token", 1},
    {"kv", KEY_KV, "TYPE", 0, "type of the KV pages: f32, bf16 or f16 (default: by the weights)", 1},
    {"fuse", KEY_FUSE, "NAMES", 0,
     "fusions to apply: names with commas, all or none (default: all that change no bit)", 1},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct run_arguments *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &a->common;
        break;
    case 'p':
        a->prompt = arg;
        break;
    case 'n':
        a->generate.max_new = (uint32_t)cli_int(state, "--max-tokens", arg, 1, 1 << 24);
        break;
    case KEY_TEMPERATURE:
        a->generate.sampling.temperature = (float)cli_number(state, "--temperature", arg, 0, 100);
        break;
    case KEY_TOP_P:
        a->generate.sampling.top_p = (float)cli_number(state, "--top-p", arg, 1e-6, 1);
        break;
    case KEY_TOP_K:
        a->generate.sampling.top_k = (uint32_t)cli_int(state, "--top-k", arg, 0, 1 << 24);
        break;
    case KEY_SEED:
        a->generate.sampling.seed = (uint64_t)cli_int(state, "--seed", arg, 0, INT64_MAX);
        break;
    case KEY_CONTEXT:
        a->session.context = (uint32_t)cli_int(state, "--context", arg, 1, 1 << 24);
        break;
    case KEY_IGNORE_EOS:
        a->generate.ignore_stop = true;
        break;
    case KEY_IMAGE:
        if (a->n_files == RUN_MAX_PICTURES)
            argp_error(state, "more than %d pictures", RUN_MAX_PICTURES);
        a->files[a->n_files++] = arg;
        break;
    case KEY_KV:
        a->session.kv_dtype = cli_kv_dtype(state, arg);
        break;
    case KEY_FUSE:
        a->session.fuse = cli_fusions(state, arg);
        break;
    case ARGP_KEY_END:
        if (!a->common.model || !a->prompt)
            argp_error(state, "a MODEL directory and -p TEXT are needed");
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static void print_piece(void *context, const char *text, size_t n)
{
    if (context)
        strbuf_add(context, text, n);
    else {
        fwrite(text, 1, n, stdout);
        fflush(stdout);
    }
}

static int read_stdin(struct strbuf *text, struct err *e)
{
    char buf[65536];
    size_t n;
    while ((n = fread(buf, 1, sizeof buf, stdin)) > 0 && text->len < (16u << 20))
        strbuf_add(text, buf, n);
    if (text->len >= (16u << 20))
        return err_set(e, ERR_LIMIT, "the prompt on stdin is over 16 MiB");
    return strbuf_failed(text) ? err_set(e, ERR_NOMEM, "no memory for the prompt") : ERR_OK;
}

static void put_fusions(struct json_writer *w, uint32_t mask, bool exact)
{
    json_key(w, "fusions");
    json_begin_array(w);
    for (unsigned i = 0; i < FUSION_N; i++)
        if (mask & FUSION_BIT(i))
            json_write_string(w, fusion_info((enum fusion)i)->name);
    json_end_array(w);
    json_put_bool(w, "exact", exact);
}

/* Sizes and tokens of each picture; seconds of all. */
static void put_pictures(struct json_writer *w, const struct run_arguments *a, const struct run_pictures *p)
{
    json_key(w, "images");
    json_begin_array(w);
    for (uint32_t i = 0; i < p->pictures.n; i++) {
        const struct prompt_picture *q = &p->pictures.list[i];
        json_begin_object(w);
        json_put_string(w, "file", a->files[i]);
        json_put_u64(w, "width", q->info.width);
        json_put_u64(w, "height", q->info.height);
        json_put_u64(w, "tokens", q->n_rows);
        json_put_u64(w, "first_token", q->first);
        json_end_object(w);
    }
    json_end_array(w);
    json_put_f64(w, "image_decode_seconds", (double)p->decode_ns / 1e9);
    json_put_f64(w, "image_preprocess_seconds", (double)p->process_ns / 1e9);
}

static int print_json(const struct run_arguments *a, const struct session *s, const struct generate_result *r,
                      const struct run_pictures *p, const struct strbuf *text, const struct ids *ids,
                      size_t n_prompt)
{
    struct strbuf out = STRBUF_INIT;
    struct json_writer w;
    json_writer_init(&w, &out, true);
    json_begin_object(&w);
    json_key(&w, "text");
    json_write_string_n(&w, strbuf_cstr(text), text->len);
    cli_put_ids(&w, "token_ids", ids);
    json_put_string(&w, "finish_reason", r->finish);
    json_put_string(&w, "activations", spec_activations_name(s->spec->activations));
    json_put_u64(&w, "prompt_tokens", n_prompt);
    json_put_u64(&w, "completion_tokens", r->n_generated);
    json_put_f64(&w, "prefill_seconds", r->prefill_seconds);
    json_put_f64(&w, "decode_seconds", r->decode_seconds);
    if (p->pictures.n)
        put_pictures(&w, a, p);
    put_fusions(&w, engine_fusions(s->engine), engine_exact(s->engine));
    json_end_object(&w);
    return cli_print(&out, EXIT_PASSED);
}

static int generate(struct run_arguments *a, struct session *s, struct err *e)
{
    struct strbuf prompt = STRBUF_INIT, text = STRBUF_INIT;
    struct ids ids = {0}, answer = {0};
    struct generate_result r = {0};
    struct run_pictures pictures = {0};
    int rc = ERR_OK, status = EXIT_PASSED;
    if (!strcmp(a->prompt, "-"))
        rc = read_stdin(&prompt, e);
    else
        strbuf_puts(&prompt, a->prompt);
    if (rc == ERR_OK && a->n_files)
        rc = run_pictures_make(&pictures, s, strbuf_cstr(&prompt), prompt.len, a->files, a->n_files, &ids, e);
    else if (rc == ERR_OK)
        rc = prompt_text(s->front, strbuf_cstr(&prompt), prompt.len, &ids, e);
    a->generate.pictures = a->n_files ? &pictures.generate : NULL;
    if (rc == ERR_OK && ids.n + 1 > s->context) {
        rc = err_set(e, ERR_LIMIT, "the prompt has %zu tokens, the context holds %u", ids.n, s->context);
        err_hint(e, "shorten the prompt or raise --context (the model's limit is %lld)",
                 (long long)s->spec->max_positions);
    }
    uint32_t room = ids.n < s->context ? s->context - (uint32_t)ids.n : 0;
    if (!a->generate.max_new)
        a->generate.max_new = room < 128 ? room : 128;
    if (rc == ERR_OK)
        rc = session_generate(s, ids.data, ids.n, &a->generate, print_piece, a->common.json ? &text : NULL,
                              &answer, &r, e);
    if (rc == ERR_OK && a->common.json)
        status = print_json(a, s, &r, &pictures, &text, &answer, ids.n);
    else if (rc == ERR_OK) {
        printf("\n");
        if (isatty(STDERR_FILENO))
            fprintf(
                stderr,
                "[%u prompt tokens in %.3f s, %u tokens at %.1f per second, finish: %s, activations: %s]\n",
                r.n_prompt, r.prefill_seconds, r.n_generated,
                r.n_generated > 1 ? (r.n_generated - 1) / r.decode_seconds : 0.0, r.finish,
                spec_activations_name(s->spec->activations));
    }
    run_pictures_release(&pictures);
    strbuf_release(&prompt);
    strbuf_release(&text);
    ids_release(&ids);
    ids_release(&answer);
    return rc == ERR_OK ? status : rc;
}

int cmd_run(struct d0 *d0, int argc, char **argv)
{
    static const struct argp_child children[] = {{&common_argp, 0, NULL, 0}, {0}};
    static const struct argp argp = {
        options, parse, "MODEL -p TEXT [--image FILE]...", "Generate once.", children, NULL, NULL};
    struct run_arguments a = {.common = {.d0 = d0}, .generate = {.sampling = {.top_p = 1.0f}}};
    cli_parse(&argp, argc, argv, &a);
    a.session.model_dir = a.common.model;
    a.session.arch_path = a.common.arch;
    a.session.device = a.common.device;
    a.session.isa = a.common.cpu;
    a.session.activations = a.common.activations;
    a.session.n_threads = a.common.threads;
    a.session.memory_bytes = a.common.memory;
    a.session.max_seqs = 1;
    a.session.images = a.n_files ? SESSION_IMAGES_ON : SESSION_IMAGES_OFF;
    struct findings f;
    findings_init(&f, &d0->mem);
    struct session s;
    struct err e = {0};
    int rc = session_open(&s, &a.session, &f, d0, &e);
    if (rc == ERR_OK)
        rc = generate(&a, &s, &e);
    session_close(&s);
    if (rc < 0 && f.n && !a.common.json)
        cli_print_findings(&f);
    findings_release(&f);
    return rc < 0 ? cli_error(&a.common, &e) : rc;
}
