/* SPDX-License-Identifier: Apache-2.0
 *
 * Files: bounds, exact reads, atomic replacement, directories, plain names.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"

static struct arena arena;
static char root[] = "/tmp/day0-file-XXXXXX";

static char *in_root(const char *name)
{
    char *path = path_join(&arena, root, name);
    assert_non_null(path);
    return path;
}

static int open_root(void **state)
{
    (void)state;
    arena_init(&arena, NULL, MEM_MISC);
    return mkdtemp(root) ? 0 : -1;
}

static int close_root(void **state)
{
    (void)state;
    char command[100];
    snprintf(command, sizeof(command), "rm -rf '%s'", root);
    arena_release(&arena);
    return system(command);
}

static void writes_and_reads(void **state)
{
    (void)state;
    struct err e = {0};
    const char *path = in_root("a");
    char *data;
    size_t n;
    assert_int_equal(file_read(path, 100, &arena, &data, &n, &e), ERR_MISSING);
    assert_non_null(strstr(e.message, path));
    assert_int_equal(file_write_atomic(path, "hello\0x", 7, &e), ERR_OK);
    assert_int_equal(file_read(path, 7, &arena, &data, &n, &e), ERR_OK);
    assert_int_equal(n, 7);
    assert_memory_equal(data, "hello\0x", 8);
    assert_int_equal(file_read(path, 6, &arena, &data, &n, &e), ERR_LIMIT);
    assert_int_equal(file_write_atomic(path, "", 0, &e), ERR_OK);
    assert_int_equal(file_read(path, 100, &arena, &data, &n, &e), ERR_OK);
    assert_int_equal(n, 0);
    assert_string_equal(data, "");
    /* kernel files claim to be empty */
    assert_int_equal(file_read("/proc/self/status", 1 << 20, &arena, &data, &n, &e), ERR_OK);
    assert_true(n > 100 && strlen(data) == n);
    assert_int_equal(file_read("/proc/self/status", 100, &arena, &data, &n, &e), ERR_LIMIT);
    assert_int_equal(file_read(root, 100, &arena, &data, &n, &e), ERR_INVALID);
    assert_non_null(strstr(e.message, "a directory"));
    struct arena tight;
    arena_init(&tight, NULL, MEM_MISC);
    tight.limit = 40;
    assert_int_equal(file_write_atomic(path, "hello", 5, &e), ERR_OK);
    assert_int_equal(file_read(path, 100, &tight, &data, &n, &e), ERR_NOMEM);
    arena_release(&tight);
}

static void failed_writes_leave_the_old_content(void **state)
{
    (void)state;
    struct err e = {0};
    assert_int_equal(dir_make(in_root("dir"), &e), ERR_OK);
    /* a directory in the way: the rename fails, and no temporary file stays */
    assert_int_not_equal(file_write_atomic(in_root("dir"), "x", 1, &e), ERR_OK);
    assert_int_not_equal(file_write_atomic(in_root("absent/x"), "x", 1, &e), ERR_OK);
    char **names;
    size_t n;
    assert_int_equal(dir_list(root, &arena, &names, &n, &e), ERR_OK);
    for (size_t i = 0; i < n; i++)
        assert_null(strstr(names[i], ".tmp"));
}

static void reads_are_exact(void **state)
{
    (void)state;
    struct err e = {0};
    const char *path = in_root("exact");
    char buf[8] = {0};
    int fd;
    assert_int_equal(file_write_atomic(path, "0123456789", 10, &e), ERR_OK);
    assert_int_equal(file_open_read(path, &fd, &e), ERR_OK);
    assert_int_equal(file_pread(fd, path, buf, 4, 6, &e), ERR_OK);
    assert_string_equal(buf, "6789");
    assert_int_equal(file_pread(fd, path, buf, 0, 100, &e), ERR_OK);
    assert_int_equal(file_pread(fd, path, buf, 5, 8, &e), ERR_IO);
    assert_non_null(strstr(e.message, "3 bytes short at offset 10"));
    assert_int_equal(file_pread(fd, path, buf, 5, UINT64_MAX - 2, &e), ERR_INVALID);
    assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    close(fd);
    const char *fifo = in_root("fifo");
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_int_equal(file_open_read(fifo, &fd, &e), ERR_INVALID); /* and does not wait */
    assert_int_equal(file_open_read("/dev/zero", &fd, &e), ERR_INVALID);
    assert_int_equal(file_open_read(in_root("none"), &fd, &e), ERR_MISSING);
}

static void facts_about_files(void **state)
{
    (void)state;
    struct err e = {0};
    struct file_info info;
    assert_int_equal(file_stat(in_root("none"), &info, &e), ERR_OK);
    assert_false(info.exists);
    assert_int_equal(file_stat(root, &info, &e), ERR_OK);
    assert_true(info.exists && info.is_dir && !info.is_file);
    const char *path = in_root("sparse");
    int fd = open(path, O_CREAT | O_WRONLY, 0600);
    assert_int_equal(ftruncate(fd, 1 << 20), 0);
    close(fd);
    assert_int_equal(file_stat(path, &info, &e), ERR_OK);
    assert_true(info.is_file && info.bytes == 1 << 20 && info.disk_bytes < 1 << 20 && info.mtime_ns > 0);
}

static void directories(void **state)
{
    (void)state;
    struct err e = {0};
    char **names;
    size_t n;
    assert_int_equal(dir_make(in_root("p/q/r/"), &e), ERR_OK);
    assert_int_equal(dir_make(in_root("p/q"), &e), ERR_OK);
    assert_int_equal(dir_make("/", &e), ERR_OK);
    assert_int_equal(dir_make("", &e), ERR_INVALID);
    assert_int_equal(file_write_atomic(in_root("p/b"), "", 0, &e), ERR_OK);
    assert_int_equal(file_write_atomic(in_root("p/a"), "", 0, &e), ERR_OK);
    assert_int_equal(file_write_atomic(in_root("p/B"), "", 0, &e), ERR_OK);
    assert_int_equal(dir_make(in_root("p/b/c"), &e), ERR_IO);
    assert_int_equal(symlink("a", in_root("p/link")), 0);
    assert_int_equal(symlink("nowhere", in_root("p/dangling")), 0);
    assert_int_equal(mkfifo(in_root("p/fifo"), 0600), 0);
    assert_int_equal(dir_list(in_root("p"), &arena, &names, &n, &e), ERR_OK);
    assert_int_equal(n, 5);
    static const char *const expected[] = {"B", "a", "b", "link", "q"};
    for (size_t i = 0; i < n; i++)
        assert_string_equal(names[i], expected[i]);
    assert_int_equal(dir_list(in_root("p/q/r"), &arena, &names, &n, &e), ERR_OK);
    assert_int_equal(n, 0);
    assert_int_equal(dir_list(in_root("none"), &arena, &names, &n, &e), ERR_MISSING);
}

static void names_and_paths(void **state)
{
    (void)state;
    assert_string_equal(path_join(&arena, "a", "b"), "a/b");
    assert_string_equal(path_join(&arena, "a/", "b"), "a/b");
    assert_string_equal(path_join(&arena, "", "b"), "b");
    assert_true(path_is_plain_name("model-00001.safetensors"));
    assert_true(path_is_plain_name("..."));
    static const char *const bad[] = {"", ".", "..", "a/b", "/a", "a\n", "\x7f"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        assert_false(path_is_plain_name(bad[i]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(writes_and_reads), cmocka_unit_test(failed_writes_leave_the_old_content),
        cmocka_unit_test(reads_are_exact),  cmocka_unit_test(facts_about_files),
        cmocka_unit_test(directories),      cmocka_unit_test(names_and_paths),
    };
    return cmocka_run_group_tests(tests, open_root, close_root);
}
