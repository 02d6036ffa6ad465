/* SPDX-License-Identifier: Apache-2.0
 *
 * usage: make_picture_model DIR : writes the small model of picture_model.h there, and a.png, b.png beside
 * its files, for tests that use the program itself. A cmocka program, since its parts fail as tests do.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/file.h"
#include "picture_model.h"

static void write_all(void **state)
{
    const char *dir = *state;
    static const char *const names[] = {"a.png", "b.png"};
    struct err e = {0};
    if (dir_make(dir, &e))
        fail_msg("%s", e.message);
    picture_model_write(dir, PICTURE_QWEN);
    for (unsigned i = 0; i < 2; i++) {
        struct strbuf png = STRBUF_INIT;
        char path[4096];
        picture_png(&png, 16, 24, i + 1);
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        if (file_write_atomic(path, png.data, png.len, &e))
            fail_msg("%s", e.message);
        strbuf_release(&png);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_prestate(write_all, argv[1])};
    return argc == 2 ? cmocka_run_group_tests(tests, NULL, NULL) : 2;
}
