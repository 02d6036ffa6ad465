/* SPDX-License-Identifier: Apache-2.0
 *
 * Errors: filling, wording, cutting, exit status; the list of findings; log lines.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/finding.h"
#include "base/log.h"

static void nobody_need_listen(void **state)
{
    (void)state;
    assert_int_equal(err_set(NULL, ERR_IO, "nobody listens"), ERR_IO);
    err_ctx(NULL, "x");
    err_hint(NULL, "x");
    err_clear(NULL);
}

static void message_frames_and_hint(void **state)
{
    (void)state;
    struct err e = {0};
    char buf[2048];
    assert_int_equal(err_set(&e, ERR_IO, "cannot read %s", "a.bin"), ERR_IO);
    assert_string_equal(err_format(&e, buf, sizeof(buf)), "cannot read a.bin");
    err_ctx(&e, "while reading shard %d", 3);
    err_ctx(&e, "while loading");
    err_hint(&e, "first");
    err_hint(&e, "download it again");
    assert_int_equal(e.code, ERR_IO);
    assert_string_equal(err_format(&e, buf, sizeof(buf)),
                        "cannot read a.bin (while reading shard 3; while loading). download it again");
    assert_non_null(strstr(e.file, "test_base_err.c"));
    for (int i = 0; i < 20; i++)
        err_ctx(&e, "frame %d", i);
    assert_int_equal(e.n_frames, ERR_MAX_FRAMES);
    /* rewording an error with its own text */
    err_set(&e, ERR_FORMAT, "config.json: %s", e.message);
    assert_string_equal(e.message, "config.json: cannot read a.bin");
    assert_int_equal(e.n_frames, 0);
    assert_string_equal(e.hint, "");
    err_clear(&e);
    assert_int_equal(e.code, ERR_OK);
}

static void long_texts_are_cut(void **state)
{
    (void)state;
    struct err e = {0};
    char big[5000], small[8];
    memset(big, 'x', sizeof(big));
    big[sizeof(big) - 1] = '\0';
    err_set(&e, ERR_LIMIT, "%s", big);
    err_ctx(&e, "%s", big);
    err_hint(&e, "%s", big);
    assert_int_equal(strlen(e.message), sizeof(e.message) - 1);
    assert_int_equal(strlen(e.frames[0]), sizeof(e.frames[0]) - 1);
    assert_int_equal(strlen(err_format(&e, small, sizeof(small))), 7);
    err_format(&e, small, 0);
    assert_true(strlen(err_format(&e, big, sizeof(big))) > 1024);
}

static void every_code_has_its_row(void **state)
{
    (void)state;
    assert_string_equal(err_name(ERR_OK), "OK");
    assert_string_equal(err_name(ERR_IO), "IO");
    assert_string_equal(err_text(ERR_BUSY), "resource in use");
    assert_string_equal(err_name(-999), "UNKNOWN");
#define X(name, value, text, status) assert_int_equal(err_exit_status(ERR_##name), status);
    ERR_MAP(X)
#undef X
    assert_int_equal(err_exit_status(ERR_OK), 0);
    assert_int_equal(err_exit_status(-999), 3);
}

static void findings_are_capped_and_counted(void **state)
{
    (void)state;
    struct findings f;
    struct mem mem = {0};
    findings_init(&f, &mem);
    f.cap = 3;
    assert_false(findings_failed(&f));
    finding_add(&f, FINDING_W005, "a.safetensors", "%d bytes", 7);
    assert_false(findings_failed(&f));
    for (int i = 0; i < 5; i++)
        finding_add(&f, FINDING_W003, "b.safetensors", "%d bytes short", i);
    assert_int_equal(f.n, 3);
    assert_int_equal(f.dropped, 3);
    assert_int_equal(f.n_by_severity[SEVERITY_ERROR], 5);
    assert_int_equal(f.n_by_severity[SEVERITY_WARNING], 1);
    assert_true(findings_failed(&f));
    assert_string_equal(f.items[1].evidence, "0 bytes short");
    assert_string_equal(finding_code(f.items[1].id), "W003");
    assert_string_equal(finding_name(FINDING_W003), "shard-truncated");
    assert_int_equal(findings_waive(&f, "W999", "x"), 0);
    assert_int_equal(findings_waive(&f, "W003", "known"), 5);
    assert_int_equal(findings_waive(&f, "W003", "again"), 0);
    assert_false(findings_failed(&f));
    struct strbuf b = STRBUF_INIT;
    struct json_writer w;
    json_writer_init(&w, &b, false);
    findings_write_json(&f, &w);
    struct arena arena;
    arena_init(&arena, NULL, MEM_MISC);
    const struct json *list;
    assert_int_equal(json_parse(b.data, b.len, NULL, &arena, &list, NULL), ERR_OK);
    assert_int_equal(list->n, 3);
    assert_string_equal(json_string(json_get(json_at(list, 0), "severity")), "warning");
    assert_null(json_get(json_at(list, 0), "waived"));
    assert_string_equal(json_string(json_get(json_at(list, 1), "waived")), "known");
    arena_release(&arena);
    strbuf_release(&b);
    findings_release(&f);
    assert_int_equal(mem.live[MEM_REPORT], 0);
}

static void log_lines_cannot_be_forged(void **state)
{
    (void)state;
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    struct log l = {.level = LOG_INFO, .fd = ends[1]};
    log_line(NULL, LOG_ERROR, "x", "nobody");
    log_line(&l, LOG_DEBUG, "x", "below the level");
    log_line(&l, LOG_WARN, "serve", "path %s", "/a\n2026 info serve: forged\x1b[0m");
    char big[6000];
    memset(big, 'y', sizeof(big));
    big[sizeof(big) - 1] = '\0';
    log_line(&l, LOG_INFO, "serve", "%s", big);
    char got[9000];
    ssize_t n = read(ends[0], got, sizeof(got) - 1);
    assert_true(n > 0);
    got[n] = '\0';
    int lines = 0;
    for (ssize_t i = 0; i < n; i++)
        lines += got[i] == '\n';
    assert_int_equal(lines, 2);
    assert_non_null(strstr(got, "Z warn serve: path /a 2026 info serve: forged [0m\n"));
    assert_int_equal(got[10], 'T');
    close(ends[0]);
    close(ends[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nobody_need_listen),
        cmocka_unit_test(message_frames_and_hint),
        cmocka_unit_test(long_texts_are_cut),
        cmocka_unit_test(every_code_has_its_row),
        cmocka_unit_test(findings_are_capped_and_counted),
        cmocka_unit_test(log_lines_cannot_be_forged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
