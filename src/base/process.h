/* SPDX-License-Identifier: Apache-2.0
 *
 * Child processes: start with given standard streams, watch, stop. No shell is involved.
 */
#ifndef BASE_PROCESS_H
#define BASE_PROCESS_H

#include <sys/types.h>

#include "base/err.h"
#include "base/mem.h"

struct process {
    pid_t pid;
    bool running;
    int exit_status; /* exit code, or 128 + signal; valid once !running */
};

/* argv is NULL-terminated; out_path gets stdout and stderr appended (NULL: /dev/null). stdin is /dev/null.
 * The child dies with its parent (PR_SET_PDEATHSIG) and gets no other descriptor. */
int process_start(struct process *p, const char *const *argv, const char *out_path, struct err *e);
int process_poll(struct process *p, struct err *e); /* updates running */
/* SIGTERM, then SIGKILL after grace_ns; reaps. */
int process_stop(struct process *p, uint64_t grace_ns, struct err *e);
/* Resident set now and its peak in bytes, from /proc/PID/status; 0 where unknown. pid 0: ourselves. */
void process_memory(pid_t pid, uint64_t *rss, uint64_t *peak);
/* Absolute path of this program; in the arena. */
int process_self_path(struct arena *arena, char **path, struct err *e);

#endif
