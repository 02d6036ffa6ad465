/* SPDX-License-Identifier: Apache-2.0 */
#include "service_client.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/thread.h"

#define S 1000000000ull

static bool find_metric(const char *base, const char *name, double *out)
{
    char url[128], line[128];
    struct http_response r = {0};
    struct strbuf text = STRBUF_INIT;
    struct err e = {0};
    snprintf(url, sizeof url, "%s/metrics", base);
    if (http_fetch(&(struct http_request){.url = url, .timeout_ns = 30 * S}, NULL, NULL, &r, &e))
        fail_msg("%s", e.message);
    assert_int_equal(r.status, 200);
    snprintf(line, sizeof line, "\n%s ", name);
    strbuf_putc(&text, '\n'); /* a name begins its line, the first one too */
    strbuf_add(&text, r.body.data, r.body.len);
    const char *hit = strstr(strbuf_cstr(&text), line);
    *out = hit ? strtod(hit + strlen(line), NULL) : -1;
    strbuf_release(&text);
    http_response_release(&r);
    return hit != NULL;
}

bool has_metric(const char *base, const char *name)
{
    double value;
    return find_metric(base, name, &value);
}

double metric(const char *base, const char *name)
{
    double value;
    if (!find_metric(base, name, &value))
        fail_msg("no metric %s", name);
    return value;
}

bool metric_becomes(const char *base, const char *name, double want)
{
    for (int i = 0; i < 500; i++) {
        if (metric(base, name) == want)
            return true;
        clock_sleep_ns(S / 100);
    }
    return false;
}

struct http_client *client_open(void)
{
    struct http_client *c = NULL;
    struct err e = {0};
    if (http_client_open(&c, &e))
        fail_msg("%s", e.message);
    return c;
}

void client_run(struct http_client *c)
{
    struct err e = {0};
    for (uint64_t end = clock_ns() + 100 * S; http_client_active(c) > 0 && clock_ns() < end;)
        if (http_client_poll(c, S / 10, &e))
            fail_msg("%s", e.message);
    assert_int_equal(http_client_active(c), 0);
}
