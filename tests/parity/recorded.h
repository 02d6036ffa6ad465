/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tests of parity share about a recording (docs/references.md): errors of rows against it, and a
 * model cut wherever it holds all that crosses, so that each piece runs on what was recorded before it.
 */
#ifndef PARITY_RECORDED_H
#define PARITY_RECORDED_H

#include "verify/runner.h"

/* Relative L2 of got[n] against want[n]; infinite where a value is not finite. */
double row_error(const float *got, const float *want, size_t n);
/* The same of one row of a probe. A row of one value has no norm: a product that happens to cancel would be
 * measured by what is left of it. It is measured by the root mean square of all rows. */
double probe_error(const struct reference_probe *p, size_t row, const float *got);
/* Experts that a router chose, "...chosen": a set, in whatever order its ids come; as a probe, ascending. */
bool recorded_is_choice(const char *name);
void recorded_sort_choice(float *ids, size_t n);
/* Makes the choices of routers probes of g, "NAME.chosen" where the value is called "NAME.route". */
int recorded_show_choices(struct graph *g, struct err *e);
/* NULL: not recorded. */
const struct reference_probe *recorded_probe(const struct reference *r, const char *name);

/* Called for one piece after the other with what the caller must feed (recorded_feed) and run. */
typedef int recorded_piece_fn(void *ctx, const struct graph *piece, struct err *e);
/* Cuts g at layers, wherever r holds everything that crosses; *n: pieces. Stops at the first error of f. */
int recorded_pieces(const struct graph *g, const struct reference *r, recorded_piece_fn *f, void *ctx,
                    unsigned *n, struct err *e);
/* Sets the hidden inputs of a piece to all recorded rows; change(x), unless NULL, is fed instead of x. */
int recorded_feed(const struct reference *r, struct runner *run, const struct graph *piece,
                  float (*change)(float), struct err *e);
/* Whether the piece ends in rows of logits. */
bool recorded_ends_in_logits(const struct graph *piece);

#endif
