/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: that docs/findings.md has one whole section for each finding of findings.def, in its order, and no
 * other.
 */
#include <ctype.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/finding.h"

static struct arena arena;

static char *read_doc(void)
{
    char *text = NULL;
    size_t n;
    assert_int_equal(file_read(TEST_SOURCE_ROOT "/docs/findings.md", 1 << 20, &arena, &text, &n, NULL), 0);
    return text;
}

/* From a heading to the next one. */
static char *section(const char *from)
{
    const char *end = strstr(from + 2, "\n#");
    return arena_strndup(&arena, from, end ? (size_t)(end - from) : strlen(from));
}

static void every_finding_is_documented(void **state)
{
    (void)state;
    const char *doc = read_doc(), *at = doc;
    for (unsigned i = 0; i < FINDING_N; i++) {
        enum finding_id id = (enum finding_id)i;
        char *heading = arena_printf(&arena, "\n## %s %s\n", finding_code(id), finding_name(id));
        const char *from = strstr(at, heading);
        if (!from)
            fail_msg("docs/findings.md: no section \"## %s %s\" (or not in the order of findings.def)",
                     finding_code(id), finding_name(id));
        char *text = section(from + 1),
             *severity = arena_printf(&arena, "\nSeverity: %s\n", severity_name(finding_severity(id)));
        char *remedy = arena_printf(&arena, "\n- **Remedy.** %c%s.",
                                    toupper((unsigned char)finding_remedy(id)[0]), finding_remedy(id) + 1);
        const char *parts[] = {severity, "\n- **Cause.** ", "\n- **Evidence.** ", remedy};
        for (size_t k = 0; k < ARRAY_LEN(parts); k++) {
            if (!strstr(text, parts[k]))
                fail_msg("docs/findings.md, %s: it lacks \"%s\"", finding_code(id), parts[k] + 1);
        }
        at = from + 1;
    }
}

static void every_section_is_a_finding(void **state)
{
    (void)state;
    unsigned n = 0;
    for (const char *p = read_doc(); (p = strstr(p, "\n## ")); p += 4) {
        bool known = false;
        for (unsigned i = 0; i < FINDING_N; i++) {
            const char *code = finding_code((enum finding_id)i);
            known = known || (!strncmp(p + 4, code, strlen(code)) && p[4 + strlen(code)] == ' ');
        }
        if (!known)
            fail_msg("docs/findings.md: section \"%.30s\" is of no finding", p + 1);
        n++;
    }
    assert_int_equal(n, FINDING_N);
}

static int setup(void **state)
{
    (void)state;
    arena_init(&arena, NULL, MEM_MISC);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    arena_release(&arena);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_finding_is_documented),
        cmocka_unit_test(every_section_is_a_finding),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
