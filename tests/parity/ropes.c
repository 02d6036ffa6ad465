/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: parity of the rotation's tables with transformers. For each case of tests/parity/ropes.json a Llama
 * with that head and scaling is described, and its inverse frequencies must be those of
 * tests/parity/golden/ropes.json (tools/reference_rope.py) bit by bit: transformers' own functions, each
 * power correctly rounded. torch's power is not; what it made of them may be FREQUENCY_ULP away, and how many
 * are is printed. Then the table runs alone on the reference kernels and on the fastest ones: cosine and sine
 * at each recorded position may be off by TABLE_UNITS of 2^-24 times the attention factor. The angle is one
 * float32 product of equal numbers, so a large position tells a frequency that is off by one bit.
 *
 *   ropes [--break frequency|angle]
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "tap.h"
#include "tiny.h"
#include "verify/runner.h"

#define TREE          TEST_SOURCE_ROOT "/tests/parity"
#define TABLE_UNITS   2.0
#define FREQUENCY_ULP 1
#define THREADS       2

enum { MAX_ANGLES = 256, MAX_POSITIONS = 64 };

static const char base[] =
    "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"dtype\": \"float32\", "
    "\"hidden_size\": 64, \"intermediate_size\": 96, \"num_hidden_layers\": 1, \"num_attention_heads\": 4, "
    "\"num_key_value_heads\": 2, \"hidden_act\": \"silu\", \"rms_norm_eps\": 0.01, \"vocab_size\": 128, "
    "\"max_position_embeddings\": 131072, \"tie_word_embeddings\": false}";

struct ropes {
    struct tap tap;
    struct arena arena;
    struct d0 d0;
    const struct json *recorded; /* cases, in the order of ropes.json */
    char dir[64];
    bool off_frequency, off_angle; /* breaks */
};

/* A row of float32 numbers, eight digits each. */
static int read_row(const struct json *text, float *out, size_t n, struct err *e)
{
    const char *s = json_string(text);
    if (!s || strlen(s) != 8 * n)
        return err_set(e, ERR_FORMAT, "a row has no %zu numbers", n);
    for (size_t i = 0; i < n; i++) {
        char digits[9] = "", *end;
        memcpy(digits, s + 8 * i, 8);
        uint32_t bits = (uint32_t)strtoul(digits, &end, 16);
        if (*end)
            return err_set(e, ERR_FORMAT, "%s is no number", digits);
        memcpy(&out[i], &bits, sizeof bits);
    }
    return ERR_OK;
}

static int32_t bits_of(float x)
{
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* *n frequencies, *unlike of which are not as the library computes them. */
static int check_frequencies(const struct ropes *x, const struct json *want, const struct graph *g, size_t *n,
                             size_t *unlike, struct err *e)
{
    float row[MAX_ANGLES], library[MAX_ANGLES], got[MAX_ANGLES];
    uint32_t id = graph_find(g, "rope.inv_freq");
    if (id == D0_NO_VALUE || !g->info[id].constant || g->values[id].dims[0] > MAX_ANGLES)
        return err_set(e, ERR_MISSING, "the description has no frequencies");
    *n = (size_t)g->values[id].dims[0];
    memcpy(got, g->info[id].constant, *n * sizeof *got);
    if (x->off_frequency)
        got[*n / 4] = nextafterf(got[*n / 4], 2);
    int rc = read_row(json_get(want, "inv_freq"), row, *n, e);
    if (rc == 0)
        rc = read_row(json_get(want, "library"), library, *n, e);
    for (size_t i = 0; rc == 0 && i < *n; i++) {
        int32_t off = bits_of(got[i]) - bits_of(library[i]);
        *unlike += off != 0;
        if (bits_of(got[i]) != bits_of(row[i]) || abs(off) > FREQUENCY_ULP)
            return err_set(e, ERR_MISMATCH, "frequency %zu of %zu is %a, recorded %a, by the library %a", i,
                           *n, (double)got[i], (double)row[i], (double)library[i]);
    }
    return rc;
}

/* A graph that ends in the table alone. */
static int slice_table(const struct graph *g, struct graph **out, struct err *e)
{
    uint8_t *wanted = calloc(g->n_nodes ? g->n_nodes : 1, 1);
    if (!wanted)
        return err_set(e, ERR_NOMEM, "no memory for a slice");
    for (uint32_t i = 0; i < g->n_nodes; i++)
        wanted[i] = g->nodes[i].op == D0_OP_ROPE_TABLE;
    int rc = graph_slice_nodes(g, wanted, out, e);
    free(wanted);
    return rc;
}

static double factor_of(const struct graph *g)
{
    for (uint32_t i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].op == D0_OP_ROPE_TABLE)
            return node_attr_f(&g->nodes[i], D0_ATTR_FACTOR, 1);
    return 1;
}

static int compare_rows(const struct json *want, size_t at, const float *got, size_t n, double unit,
                        double *worst, struct err *e)
{
    float row[MAX_ANGLES];
    int rc = ERR_OK;
    for (unsigned half = 0; rc == 0 && half < 2; half++) {
        rc = read_row(json_at(json_get(want, half ? "sin" : "cos"), at), row, n, e);
        for (size_t i = 0; rc == 0 && i < n; i++) {
            double diff = fabs((double)got[half * n + i] - row[i]) / unit;
            *worst = fmax(*worst, isfinite(diff) ? diff : INFINITY);
        }
    }
    return rc;
}

static int run_table(const struct ropes *x, const struct json *want, const struct tiny_model *m,
                     struct dev *d, size_t n, double *worst, struct err *e)
{
    const struct json *positions = json_get(want, "positions");
    const struct runner_size size = {.tokens = 1, .seqs = 1, .rows = 1, .context = 1};
    float table[2 * MAX_ANGLES];
    struct runner run = {.x = NULL};
    struct graph *g = NULL;
    int rc = slice_table(m->s->graph, &g, e);
    if (rc == 0)
        rc = weights_load(&run.weights, g, m->c, d, &(struct load_options){.spec = m->s}, e);
    if (rc == 0)
        rc = runner_open_graph(&run, d, g, run.weights, &size, NULL, e);
    for (size_t i = 0; rc == 0 && positions && i < positions->n; i++) {
        struct step_result *res;
        size_t rows, width;
        int64_t p = 0;
        json_i64(json_at(positions, i), &p);
        p += x->off_angle && p > 1000;
        struct runner_run one = {.tokens = &(int32_t){0}, .n = 1, .position = (uint32_t)p};
        rc = runner_step(&run, &one, 1, &res, e);
        if (rc == 0)
            rc = engine_read_result(run.x, table, ARRAY_LEN(table), &rows, &width, e);
        if (rc == 0 && (rows != 1 || width != 2 * n))
            rc = err_set(e, ERR_MISMATCH, "the table is %zu x %zu", rows, width);
        if (rc == 0)
            rc = compare_rows(want, i, table, n, factor_of(g) * 0x1p-24, worst, e);
    }
    runner_close(&run);
    graph_free(g);
    return rc;
}

static int describe(const struct ropes *x, const struct json *config, struct tiny_model *m,
                    struct arena *arena, struct err *e)
{
    struct tiny t = {.family = "ropes"};
    const struct json *root;
    static const char open[] = "{\"config\": ";
    char text[sizeof base + sizeof open + 1];
    snprintf(text, sizeof text, "%s%s}", open, base);
    int rc = json_parse(text, strlen(text), NULL, arena, &root, e);
    t.root = root;
    if (rc == 0)
        rc = tiny_write_config(&t, x->dir, config, e);
    return rc ? rc : tiny_model_open(m, x->dir, (struct d0 *)&x->d0, e);
}

static void test_case(struct ropes *x, const struct json *one, const struct json *want)
{
    static const char *const isa[] = {"ref", "fast"};
    struct tiny_model m = {.c = NULL};
    char label[160], detail[1400];
    struct err e;
    size_t n = 0, unlike = 0;
    err_clear(&e);
    const char *name = json_string(json_get(one, "name")), *recorded = json_string(json_get(want, "name"));
    int rc =
        name && recorded && strcmp(name, recorded) == 0 ? ERR_OK : err_set(&e, ERR_MISMATCH, "not recorded");
    if (rc == 0)
        rc = describe(x, json_get(one, "config"), &m, &x->arena, &e);
    if (rc == 0)
        rc = check_frequencies(x, want, m.s->graph, &n, &unlike, &e);
    snprintf(label, sizeof label, "%s: frequencies", name ? name : "?");
    snprintf(detail, sizeof detail, "%zu, all bits equal; of the library's own %zu are one unit away", n,
             unlike);
    result(&x->tap, rc == 0, label, rc ? e.message : detail);
    for (size_t i = 0; n && m.s && i < ARRAY_LEN(isa); i++) {
        struct dev d;
        const struct dev_options o = {.name = "cpu", .isa = isa[i], .n_threads = THREADS};
        double worst = 0;
        rc = dev_open(&d, &o, &e);
        if (rc == 0) {
            rc = run_table(x, want, &m, &d, n, &worst, &e);
            dev_close(&d);
        }
        snprintf(label, sizeof label, "%s: table, %s", name, isa[i]);
        snprintf(detail, sizeof detail, "worst %.2f units (limit %.0f)", worst, TABLE_UNITS);
        result(&x->tap, rc == 0 && worst <= TABLE_UNITS, label, rc ? e.message : detail);
    }
    if (m.c)
        tiny_model_close(&m);
}

static int read_file(struct ropes *x, const char *path, const struct json **out, struct err *e)
{
    char *text;
    size_t n;
    int rc = file_read(path, 1 << 20, &x->arena, &text, &n, e);
    return rc ? rc : json_parse(text, n, NULL, &x->arena, out, e);
}

int main(int argc, char **argv)
{
    struct ropes x = {.d0 = {.log = {.fd = -1}}, .dir = "/tmp/day0-ropes-XXXXXX"};
    const struct json *cases, *golden;
    struct err e;
    err_clear(&e);
    if (argc == 3 && strcmp(argv[1], "--break") == 0) {
        x.off_frequency = strcmp(argv[2], "frequency") == 0;
        x.off_angle = strcmp(argv[2], "angle") == 0;
    }
    arena_init(&x.arena, NULL, MEM_MISC);
    int rc = mkdtemp(x.dir) ? ERR_OK : err_set(&e, ERR_IO, "no temporary directory");
    if (rc == 0)
        rc = read_file(&x, TREE "/ropes.json", &cases, &e);
    if (rc == 0)
        rc = read_file(&x, TREE "/golden/ropes.json", &golden, &e);
    if (rc == 0 && (!(x.recorded = json_get(golden, "cases")) || x.recorded->n != cases->n))
        rc = err_set(&e, ERR_MISMATCH, "other cases were recorded");
    if (rc)
        result(&x.tap, false, "ropes", e.message);
    for (size_t i = 0; rc == 0 && i < cases->n; i++)
        test_case(&x, json_at(cases, i), json_at(x.recorded, i));
    tiny_remove(x.dir);
    arena_release(&x.arena);
    return tap_end(&x.tap);
}
