/* SPDX-License-Identifier: Apache-2.0
 *
 * docs/arch-files.md names every function that an architecture file may call: the public ones of
 * arch/prelude.lua, arch/blocks.lua and arch/chat.lua.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/str.h"

static const char *text_of(struct arena *a, const char *name)
{
    char *text = NULL;
    size_t n = 0;
    struct err e = {0};
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", TEST_SOURCE_ROOT, name);
    if (file_read(path, 1 << 20, a, &text, &n, &e))
        fail_msg("%s", e.message);
    return text;
}

/* `name`, `name(...)`, `name {...}` or `name "..."` between backquotes or after a comma and blank there */
static bool documented(const char *doc, const char *name)
{
    size_t n = strlen(name);
    for (const char *p = doc; (p = strstr(p, name)) != NULL; p += n) {
        char before = p > doc ? p[-1] : ' ', after = p[n];
        if (before == '`' && (after == '`' || after == '(' || after == ' '))
            return true;
    }
    return false;
}

static void every_call_is_documented(void **state)
{
    (void)state;
    static const char *const files[] = {"arch/prelude.lua", "arch/blocks.lua", "arch/chat.lua"};
    struct arena a;
    arena_init(&a, NULL, MEM_MISC);
    const char *doc = text_of(&a, "docs/arch-files.md");
    unsigned n = 0;
    for (size_t i = 0; i < ARRAY_LEN(files); i++)
        for (const char *p = text_of(&a, files[i]); p && *p; p = strchr(p, '\n'), p = p ? p + 1 : NULL) {
            char name[64] = "";
            if (sscanf(p, "function %63[a-z0-9_.](", name) != 1 ||
                p[strlen("function ") + strlen(name)] != '(')
                continue; /* not public, or a method of a local table */
            if (str_starts(name, "day0_") || strcmp(name, "view") == 0)
                continue; /* for the program; and a local declared before */
            if (strchr(name, '.') && !str_starts(name, "talk."))
                continue; /* of a local table */
            n++;
            if (!documented(doc, name))
                fail_msg("%s: %s() is not in docs/arch-files.md", files[i], name);
        }
    assert_true(n > 50);
    arena_release(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_call_is_documented)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
