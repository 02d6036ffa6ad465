/* SPDX-License-Identifier: Apache-2.0
 *
 * Keeps SIGPIPE from the calling thread while it writes to sockets, without touching the process's handlers:
 * a peer that closes must be an error code, and a library may not decide on signals for the whole program.
 */
#ifndef NET_SIGPIPE_H
#define NET_SIGPIPE_H

#include <signal.h>
#include <stddef.h>
#include <time.h>

struct sigpipe_guard {
    sigset_t before;
};

static inline void sigpipe_block(struct sigpipe_guard *g)
{
    sigset_t pipe_only;
    sigemptyset(&pipe_only);
    sigaddset(&pipe_only, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_only, &g->before);
}

static inline void sigpipe_restore(const struct sigpipe_guard *g)
{
    if (!sigismember(&g->before, SIGPIPE)) { /* a pending one is ours: take it before it is let through */
        sigset_t pipe_only;
        struct timespec now = {0, 0};
        sigemptyset(&pipe_only);
        sigaddset(&pipe_only, SIGPIPE);
        sigtimedwait(&pipe_only, NULL, &now);
    }
    pthread_sigmask(SIG_SETMASK, &g->before, NULL);
}

#endif
