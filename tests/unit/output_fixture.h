/* SPDX-License-Identifier: Apache-2.0
 *
 * What each test of chats and of outputs begins with: an arena and the rules of arch/chat.lua. cmocka.h is
 * included before.
 */
#ifndef TESTS_OUTPUT_FIXTURE_H
#define TESTS_OUTPUT_FIXTURE_H

#include <stdlib.h>

#include "output_run.h"

struct fixture {
    struct arena arena;
    const struct json *formats;
};

static inline int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    arena_init(&f->arena, NULL, MEM_MISC);
    f->formats = all_formats(&f->arena);
    assert_non_null(f->formats);
    *state = f;
    return 0;
}

static inline int tear_down(void **state)
{
    struct fixture *f = *state;
    arena_release(&f->arena);
    free(f);
    return 0;
}

#endif
