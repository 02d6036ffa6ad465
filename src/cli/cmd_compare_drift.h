/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to cli: day0 compare --drift MODEL.
 */
#ifndef CLI_COMPARE_DRIFT_H
#define CLI_COMPARE_DRIFT_H

#include "cli/cli.h"

/* Runs, prints, and returns the exit status. tokens: a number, a file, or NULL. */
int cli_compare_drift(struct common *c, const char *tokens, uint32_t kv_dtype);

#endif
