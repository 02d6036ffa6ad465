/* SPDX-License-Identifier: Apache-2.0
 *
 * The program's own room: words the user types, tables people read, JSON documents machines read, exit
 * statuses. Only this room prints or exits; it has no logic of its own.
 */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include <argp.h>
#include <stdio.h>

#include "base/finding.h"
#include "base/json.h"
#include "base/log.h"
#include "oracle/oracle.h"
#include "text/text.h"

enum exit_status {
    EXIT_PASSED = 0,
    EXIT_CHECK_FAILED = 1,
    EXIT_WRONG_USAGE = 2,
    EXIT_MACHINE = 3,
    EXIT_INCOMPLETE = 4
};

struct override {
    const char *key, *reason;
};
#define MAX_OVERRIDES 64

/* Options that most commands share. */
struct common {
    struct d0 *d0;
    bool json;
    bool needs_model; /* set before parsing: no MODEL is wrong usage */
    const char *model, *arch, *device, *cpu;
    unsigned threads;
    uint64_t memory;
    enum spec_activations activations;
    struct override waive[MAX_OVERRIDES], accept[MAX_OVERRIDES];
    size_t n_waive, n_accept;
};

/* argp child: give &common_argp as children[0] and set state->child_inputs[0] = &common in ARGP_KEY_INIT. */
extern const struct argp common_argp;
/* argp_parse with our exit status for wrong usage. */
void cli_parse(const struct argp *argp, int argc, char **argv, void *input);
/* Options that want numbers; on nonsense they report usage and exit with status 2. */
uint64_t cli_bytes(const struct argp_state *state, const char *what, const char *arg);
int64_t cli_int(const struct argp_state *state, const char *what, const char *arg, int64_t min, int64_t max);
uint32_t cli_kv_dtype(const struct argp_state *state, const char *arg); /* "f32" "bf16" "f16" */
/* The text as it is, if fusions_parse() takes it. */
const char *cli_fusions(const struct argp_state *state, const char *arg);
double cli_number(const struct argp_state *state, const char *what, const char *arg, double min, double max);

/* Prints "day0: message" with frames and hint to stderr (or {"error": ...} on stdout under --json); returns
 * the exit status of the error. */
int cli_error(const struct common *c, const struct err *e);
/* Applies --waive to a list of findings; an id that no finding has is named on stderr. */
void cli_waive(const struct common *c, struct findings *f);
void cli_print_findings(const struct findings *f);
/* "key": [ids...] */
void cli_put_ids(struct json_writer *w, const char *key, const struct ids *ids);
/* Prints the builder's text as the one document on stdout and releases it. */
int cli_print(struct strbuf *text, int status);

/* A table for people: columns padded to the widest cell, right-aligned where the header starts with '>'. */
struct table {
    struct arena arena;
    const char **cells;
    size_t n_columns, n_cells, capacity;
};
void table_init(struct table *t, size_t n_columns);
void table_cell(struct table *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void table_print(const struct table *t, FILE *out);
void table_release(struct table *t);
/* Which degrees of TP and EP a model allows: all with their reasons, and in one line. */
struct plan_degrees;
void cli_print_layouts(const struct plan_degrees *d);
/* A line of what the release asks of activations; none where it asks nothing. */
void cli_print_asked(const struct spec_asked *asked, size_t n);
void cli_print_layouts_short(const struct plan_degrees *d);

/* A model that is run piece by piece: description and device, no weights. ERR_MISMATCH where findings keep it
 * from running. To be closed in every case. */
struct oracle_run {
    struct dev dev;
    struct ckpt *ckpt;
    struct spec *spec;
    struct oracle_model model;
};
int cli_open_oracle(struct oracle_run *r, const struct common *c, uint32_t kv_dtype, struct findings *f,
                    struct err *e);
void cli_close_oracle(struct oracle_run *r);

bool cli_colour(FILE *out); /* a terminal, and NO_COLOR is not set */

int cmd_adapt(struct d0 *d0, int argc, char **argv);
int cmd_check(struct d0 *d0, int argc, char **argv);
int cmd_compare(struct d0 *d0, int argc, char **argv);
int cmd_draft(struct d0 *d0, int argc, char **argv);
int cmd_env(struct d0 *d0, int argc, char **argv);
int cmd_inspect(struct d0 *d0, int argc, char **argv);
int cmd_ops(struct d0 *d0, int argc, char **argv);
int cmd_record(struct d0 *d0, int argc, char **argv);
int cmd_prompt(struct d0 *d0, int argc, char **argv);
int cmd_run(struct d0 *d0, int argc, char **argv);
int cmd_serve(struct d0 *d0, int argc, char **argv);
int cmd_stress(struct d0 *d0, int argc, char **argv);

#endif
