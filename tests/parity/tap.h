/* SPDX-License-Identifier: Apache-2.0
 *
 * What a test program of parity counts and says: one line a case, in the Test Anything Protocol.
 */
#ifndef PARITY_TAP_H
#define PARITY_TAP_H

#include <stdbool.h>
#include <stdio.h>

struct tap {
    unsigned n, failed;
};

static inline void result(struct tap *tap, bool ok, const char *name, const char *detail)
{
    tap->failed += !ok;
    printf("%sok %u - %s: %s\n", ok ? "" : "not ", ++tap->n, name, detail);
    fflush(stdout);
}

/* The exit status: 0 if there were cases and all of them passed. */
static inline int tap_end(const struct tap *tap)
{
    printf("1..%u\n", tap->n);
    return tap->failed || tap->n == 0;
}

#endif
