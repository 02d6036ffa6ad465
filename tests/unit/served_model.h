/* SPDX-License-Identifier: Apache-2.0
 *
 * A model in a directory, opened as `day0 serve` opens one, with a service over it on a thread of its own.
 * All of it fails the test on any trouble.
 */
#ifndef TESTS_SERVED_MODEL_H
#define TESTS_SERVED_MODEL_H

#include <pthread.h>

#include "api/api.h"
#include "serve/serve.h"

struct server {
    struct d0 d0;
    struct session session;
    struct serve *serve;
    pthread_t thread;
    char dir[64];  /* new and empty; the test writes the model there, and removes it all */
    char base[64]; /* "http://127.0.0.1:PORT" */
};

struct server *server_new(void);
/* Opens the model that now lies in its directory, as "tiny", and waits until it is ready and nothing runs. */
void server_start(struct server *s, struct session_options session, struct serve_options serve);
/* No request is open or holds pages. */
void server_idles(const struct server *s);
/* Frees s. */
void server_stop(struct server *s);

#endif
