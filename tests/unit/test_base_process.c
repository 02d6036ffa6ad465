/* SPDX-License-Identifier: Apache-2.0
 *
 * Child processes: streams, descriptors, failures to start, ends, stopping.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/process.h"
#include "base/thread.h"

static struct arena arena;
static char out_path[] = "/tmp/day0-process-XXXXXX";

static int setup(void **state)
{
    (void)state;
    arena_init(&arena, NULL, MEM_MISC);
    close(mkstemp(out_path));
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    arena_release(&arena);
    return unlink(out_path);
}

static int run_to_end(const char *const *argv, const char *out)
{
    struct process p;
    struct err e = {0};
    if (process_start(&p, argv, out, &e))
        fail_msg("%s", e.message);
    for (int i = 0; i < 2000 && p.running; i++) {
        assert_int_equal(process_poll(&p, &e), ERR_OK);
        clock_sleep_ns(5000000);
    }
    assert_false(p.running);
    return p.exit_status;
}

static const char *output(void)
{
    char *text;
    size_t n;
    assert_int_equal(file_read(out_path, 1 << 20, &arena, &text, &n, NULL), ERR_OK);
    assert_int_equal(truncate(out_path, 0), 0);
    return text;
}

static void streams_and_status(void **state)
{
    (void)state;
    const char *const talk[] = {"/bin/sh", "-c", "echo out; echo err >&2; cat; exit 7", NULL};
    assert_int_equal(run_to_end(talk, out_path), 7);
    assert_string_equal(output(), "out\nerr\n");
    const char *const silent[] = {"sh", "-c", "echo nobody hears", NULL};
    assert_int_equal(run_to_end(silent, NULL), 0);
    const char *const killed[] = {"sh", "-c", "kill -9 $$", NULL};
    assert_int_equal(run_to_end(killed, NULL), 128 + SIGKILL);
    for (int i = 0; i < 2; i++) {
        const char *const hello[] = {"echo", "hello", NULL};
        assert_int_equal(run_to_end(hello, out_path), 0);
    }
    assert_string_equal(output(), "hello\nhello\n");
}

static void no_other_descriptor_is_inherited(void **state)
{
    (void)state;
    int fd = open("/dev/null", O_RDONLY); /* on purpose without close-on-exec */
    assert_true(dup2(fd, 77) == 77);
    char script[160]; /* asked one by one: a listing would show the shell's own descriptors too */
    snprintf(script, sizeof script,
             "for n in 77 %d; do test -e /proc/$$/fd/$n && echo open $n; done; echo asked", fd);
    const char *const ask[] = {"sh", "-c", script, NULL};
    assert_int_equal(run_to_end(ask, out_path), 0);
    assert_string_equal(output(), "asked\n");
    close(fd);
    close(77);
}

/* A program started without standard streams must still give its child the right ones. */
static void closed_streams_of_ours_do_not_matter(void **state)
{
    (void)state;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        struct process p;
        const char *const talk[] = {"sh", "-c", "echo fine; echo too >&2", NULL};
        close(0);
        close(1);
        close(2);
        if (process_start(&p, talk, out_path, NULL))
            _exit(1);
        while (p.running && !process_poll(&p, NULL))
            clock_sleep_ns(1000000);
        _exit(p.exit_status);
    }
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_string_equal(output(), "fine\ntoo\n");
}

static void failures_to_start_are_told(void **state)
{
    (void)state;
    struct process p;
    struct err e = {0};
    const char *const none[] = {"/no/such/program", NULL};
    assert_int_equal(process_start(&p, none, NULL, &e), ERR_MISSING);
    assert_non_null(strstr(e.message, "/no/such/program"));
    assert_false(p.running);
    const char *const directory[] = {"/tmp", NULL};
    assert_int_equal(process_start(&p, directory, NULL, &e), ERR_IO);
    const char *const empty[] = {NULL};
    assert_int_equal(process_start(&p, empty, NULL, &e), ERR_INVALID);
    const char *const fine[] = {"true", NULL};
    assert_int_equal(process_start(&p, fine, "/no/such/dir/log", &e), ERR_IO);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* no child is left behind */
}

static void stopping(void **state)
{
    (void)state;
    struct process p;
    struct err e = {0};
    const char *const sleeper[] = {"sleep", "100", NULL};
    assert_int_equal(process_start(&p, sleeper, NULL, &e), ERR_OK);
    assert_int_equal(process_poll(&p, &e), ERR_OK);
    assert_true(p.running);
    assert_int_equal(process_stop(&p, 5000000000u, &e), ERR_OK);
    assert_int_equal(p.exit_status, 128 + SIGTERM);
    assert_int_equal(process_stop(&p, 0, &e), ERR_OK);
    const char *const stubborn[] = {"sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done",
                                    NULL};
    assert_int_equal(process_start(&p, stubborn, out_path, &e), ERR_OK);
    for (int i = 0; i < 1000 && !strstr(output(), "ready"); i++)
        clock_sleep_ns(5000000);
    assert_int_equal(process_stop(&p, 50000000, &e), ERR_OK);
    assert_int_equal(p.exit_status, 128 + SIGKILL);
}

static void child_dies_with_its_parent(void **state)
{
    (void)state;
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    pid_t parent = fork();
    if (parent == 0) {
        struct process p;
        const char *const sleeper[] = {"sleep", "100", NULL};
        if (process_start(&p, sleeper, NULL, NULL) == 0)
            (void)!write(ends[1], &p.pid, sizeof(p.pid));
        _exit(0);
    }
    pid_t child = 0;
    assert_int_equal(read(ends[0], &child, sizeof(child)), sizeof(child));
    waitpid(parent, NULL, 0);
    bool gone = false;
    for (int i = 0; i < 1000 && !gone; i++) {
        char *text;
        char path[64];
        size_t n;
        snprintf(path, sizeof(path), "/proc/%d/stat", (int)child);
        gone = file_read(path, 4096, &arena, &text, &n, NULL) != 0 || strstr(text, ") Z ");
        clock_sleep_ns(5000000);
    }
    assert_true(gone);
    close(ends[0]);
    close(ends[1]);
}

static void facts(void **state)
{
    (void)state;
    uint64_t rss, peak;
    process_memory(0, &rss, &peak);
    assert_true(rss > 100000 && peak >= rss);
    process_memory(999999999, &rss, &peak);
    assert_true(rss == 0 && peak == 0);
    char *path;
    assert_int_equal(process_self_path(&arena, &path, NULL), ERR_OK);
    assert_non_null(strstr(path, "test_base_process"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streams_and_status),
        cmocka_unit_test(no_other_descriptor_is_inherited),
        cmocka_unit_test(closed_streams_of_ours_do_not_matter),
        cmocka_unit_test(failures_to_start_are_told),
        cmocka_unit_test(stopping),
        cmocka_unit_test(child_dies_with_its_parent),
        cmocka_unit_test(facts),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
