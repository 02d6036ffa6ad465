/* SPDX-License-Identifier: Apache-2.0
 *
 * What any client in a test asks of a service: numbers of its /metrics, and many requests at once to their
 * end. A service is known by its base, "http://HOST:PORT". Fails the test where nothing comes back.
 */
#ifndef TESTS_SERVICE_CLIENT_H
#define TESTS_SERVICE_CLIENT_H

#include "net/net.h"

bool has_metric(const char *base, const char *name);
double metric(const char *base, const char *name);
/* Within five seconds. */
bool metric_becomes(const char *base, const char *name, double want);

struct http_client *client_open(void);
/* Until none of its requests is under way. */
void client_run(struct http_client *c);

#endif
