/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as a capture, as version rules and as a card's profile: refused with a message, or every fact can
 * be printed and every rule judged.
 */
#include <stdlib.h>
#include <string.h>

#include "host/host.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void refused(int rc, const struct err *e)
{
    if (rc && (rc != e->code || e->message[0] == '\0'))
        abort();
}

static void judge(const struct host *h, const struct host_rules *r)
{
    struct strbuf text = STRBUF_INIT;
    struct json_writer w;
    struct findings f;
    findings_init(&f, NULL);
    json_writer_init(&w, &text, false);
    json_begin_array(&w);
    if (h)
        host_write_json(h, &w);
    if (h && r)
        host_rules_write_json(r, h, &w);
    if (h && r)
        host_rules_check(r, h, &f);
    json_end_array(&w);
    strbuf_release(&text);
    findings_release(&f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data;
    struct host *h = NULL;
    struct host_rules r, built_in;
    struct host_card_profile *p = NULL;
    struct err e = {0}, e2 = {0}, e3 = {0};
    const struct host nothing = {.kernel = "1~-:2"};
    int rc = host_parse_capture(&h, text, size, "input", &e);
    refused(rc, &e);
    if (host_rules_open(&built_in, NULL, NULL))
        abort();
    judge(h, &built_in);
    host_rules_release(&built_in);
    host_close(h);
    rc = host_rules_parse(&r, text, size, "input", &e2);
    refused(rc, &e2);
    if (!rc) {
        judge(&nothing, &r);
        host_rules_release(&r);
    }
    rc = host_card_parse(&p, text, size, "input", &e3);
    refused(rc, &e3);
    if (!rc)
        (void)host_card_takes(p, p->n_operators ? p->operators[0].name : "linear", "dim", 128);
    host_card_close(p);
    return 0;
}
