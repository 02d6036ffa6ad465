/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to cli: day0 ops MODEL --from TRACE.
 */
#ifndef CLI_OPS_FROM_H
#define CLI_OPS_FROM_H

#include "cli/cli.h"

/* Runs, prints, and returns the exit status. tokens: the first of the trace, 0: all. */
int cli_ops_from(struct common *c, const char *trace, const char *only, size_t tokens);

#endif
