/* SPDX-License-Identifier: Apache-2.0
 *
 * Owns: starting, watching and stopping child processes, and what /proc says about a process.
 * Refuses: shells, and inheriting anything but three standard streams.
 *
 * The kernel ties "dies with its parent" to the thread that started the child: start from a thread that lives
 * on.
 */
#include "base/process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/thread.h"

#define FIRST_FREE_FD 4 /* 0, 1, 2 and the pipe that reports a failed exec */
#define REPORT_FD     3
#define KILL_WAIT_NS  10000000000u /* a process in an uninterruptible read may outlive SIGKILL for a while */

/* Opens above the descriptors that the child will overwrite. */
static int open_high(const char *path, int flags)
{
    int low = open(path, flags | O_CLOEXEC | O_NOCTTY, 0666);
    if (low < 0 || low >= FIRST_FREE_FD)
        return low;
    int high = fcntl(low, F_DUPFD_CLOEXEC, FIRST_FREE_FD);
    int why = errno;
    close(low);
    errno = why;
    return high;
}

static void close_all_from(unsigned first)
{
#ifdef SYS_close_range
    if (syscall(SYS_close_range, first, ~0u, 0u) == 0)
        return;
#endif
    long last = sysconf(_SC_OPEN_MAX);
    if (last < 0 || last > 1 << 20)
        last = 1 << 20;
    for (long fd = first; fd < last; fd++)
        close((int)fd);
}

/* In the child, between fork and exec: only what is safe there although other threads held locks. */
static _Noreturn void become(const char *const *argv, int in, int out, int report, pid_t parent)
{
    sigset_t none;
    sigemptyset(&none);
    for (int s = 1; s < NSIG; s++)
        signal(s, SIG_DFL);
    sigprocmask(SIG_SETMASK, &none, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) /* it died before the line above */
        _exit(127);
    int why = 0;
    if (dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(out, 2) < 0 || dup3(report, REPORT_FD, O_CLOEXEC) < 0)
        why = errno;
    if (!why) {
        close_all_from(FIRST_FREE_FD);
        execvp(argv[0], (char *const *)argv);
        why = errno;
        report = REPORT_FD;
    }
    (void)!write(report, &why, sizeof(why));
    _exit(127);
}

/* Reads errno of a failed exec; 0 if the pipe closed without a word, which is success. */
static int exec_failure(int fd)
{
    int why = 0;
    ssize_t n;
    do
        n = read(fd, &why, sizeof(why));
    while (n < 0 && errno == EINTR);
    return n == (ssize_t)sizeof(why) ? why : 0;
}

static int fork_child(const char *const *argv, int in, int out, pid_t *pid, struct err *e)
{
    int low[2], report[2];
    if (pipe2(low, O_CLOEXEC) != 0)
        return err_set(e, ERR_IO, "%s: cannot make a pipe: %m", argv[0]);
    for (int i = 0; i < 2; i++)
        report[i] = fcntl(low[i], F_DUPFD_CLOEXEC, FIRST_FREE_FD);
    close(low[0]);
    close(low[1]);
    int rc = ERR_OK;
    pid_t parent = getpid(), child = -1;
    if (report[0] < 0 || report[1] < 0)
        rc = err_set(e, ERR_IO, "%s: no file descriptor left", argv[0]);
    else if ((child = fork()) < 0)
        rc = err_set(e, ERR_NOMEM, "%s: cannot fork: %m", argv[0]);
    if (child == 0)
        become(argv, in, out, report[1], parent);
    if (report[1] >= 0)
        close(report[1]);
    int why = rc ? 0 : exec_failure(report[0]);
    if (report[0] >= 0)
        close(report[0]);
    if (why) {
        while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
            ;
        rc = err_set(e, why == ENOENT ? ERR_MISSING : ERR_IO, "%s: cannot start: %s", argv[0],
                     strerrordesc_np(why));
    }
    if (!rc)
        *pid = child;
    return rc;
}

int process_start(struct process *p, const char *const *argv, const char *out_path, struct err *e)
{
    *p = (struct process){0};
    if (!argv[0])
        return err_set(e, ERR_INVALID, "no program to start");
    int in = open_high("/dev/null", O_RDONLY);
    if (in < 0)
        return err_set(e, ERR_IO, "/dev/null: cannot open: %m");
    const char *path = out_path ? out_path : "/dev/null";
    int out = open_high(path, O_WRONLY | O_CREAT | O_APPEND);
    int rc;
    if (out < 0) {
        rc = err_set(e, ERR_IO, "%s: cannot open for writing: %m", path);
    } else {
        rc = fork_child(argv, in, out, &p->pid, e);
        close(out);
    }
    close(in);
    p->running = rc == ERR_OK;
    return rc;
}

static void note_end(struct process *p, int status)
{
    p->running = false;
    p->exit_status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

int process_poll(struct process *p, struct err *e)
{
    if (!p->running)
        return ERR_OK;
    int status;
    pid_t got;
    do
        got = waitpid(p->pid, &status, WNOHANG);
    while (got < 0 && errno == EINTR);
    if (got == p->pid) {
        note_end(p, status);
    } else if (got < 0) {
        p->running = false; /* somebody else reaped it: its status is lost */
        p->exit_status = 255;
        return err_set(e, ERR_IO, "process %d: cannot wait for it: %m", (int)p->pid);
    }
    return ERR_OK;
}

/* Polls with growing pauses up to 20 ms until the process ended or the time is over. */
static int wait_end(struct process *p, uint64_t limit_ns, struct err *e)
{
    uint64_t start = clock_ns(), pause = 500000;
    for (;;) {
        int rc = process_poll(p, e);
        if (rc || !p->running || clock_ns() - start >= limit_ns)
            return rc;
        clock_sleep_ns(pause);
        if (pause < 20000000)
            pause *= 2;
    }
}

int process_stop(struct process *p, uint64_t grace_ns, struct err *e)
{
    int rc = process_poll(p, e);
    if (rc || !p->running)
        return rc;
    kill(p->pid, SIGTERM);
    rc = wait_end(p, grace_ns, e);
    if (rc || !p->running)
        return rc;
    kill(p->pid, SIGKILL);
    rc = wait_end(p, KILL_WAIT_NS, e);
    if (!rc && p->running)
        rc = err_set(e, ERR_TIMEOUT, "process %d does not end even when killed", (int)p->pid);
    return rc;
}

/* "VmRSS:     1234 kB" */
static uint64_t status_field(const char *status, const char *name)
{
    const char *at = strstr(status, name);
    return at ? strtoull(at + strlen(name), NULL, 10) * 1024 : 0;
}

void process_memory(pid_t pid, uint64_t *rss, uint64_t *peak)
{
    char path[48], status[4096];
    *rss = *peak = 0;
    snprintf(path, sizeof(path), "/proc/%d/status", (int)(pid ? pid : getpid()));
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    ssize_t n = read(fd, status, sizeof(status) - 1);
    close(fd);
    if (n <= 0)
        return;
    status[n] = '\0';
    *rss = status_field(status, "\nVmRSS:");
    *peak = status_field(status, "\nVmHWM:");
}

int process_self_path(struct arena *arena, char **path, struct err *e)
{
    char buf[4096];
    ssize_t n = readlink("/proc/self/exe", buf, sizeof(buf));
    if (n < 0)
        return err_set(e, ERR_IO, "cannot find this program's own path: %m");
    if ((size_t)n >= sizeof(buf))
        return err_set(e, ERR_LIMIT, "this program's own path is too long");
    char *copy = arena_strndup(arena, buf, (size_t)n);
    if (!copy)
        return err_set(e, ERR_NOMEM, "no memory for this program's own path");
    *path = copy;
    return ERR_OK;
}
