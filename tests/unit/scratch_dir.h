/* SPDX-License-Identifier: Apache-2.0
 *
 * What tests that write files share: failing with the whole error, and paths in the test's own directory.
 */
#ifndef TEST_SCRATCH_DIR_H
#define TEST_SCRATCH_DIR_H

#include <stdio.h>

#include "base/err.h"

static inline void ok(int rc, const struct err *e)
{
    char text[1400];
    if (rc)
        fail_msg("%s", err_format(e, text, sizeof text));
}

/* dir/name, in one of eight buffers in turn. */
static inline const char *path_in(const char *dir, const char *name)
{
    static _Thread_local char paths[8][96];
    static _Thread_local unsigned next;
    char *p = paths[next++ % 8];
    snprintf(p, sizeof paths[0], "%s/%s", dir, name);
    return p;
}

#endif
