/* SPDX-License-Identifier: Apache-2.0
 *
 * Captures replayed, rules on versions judged, profiles of cards read; and each of them malformed.
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

#include "base/file.h"
#include "host/host.h"

#define CAPTURES TEST_SOURCE_ROOT "/tests/captures/"

static void order_of_versions(void **state)
{
    (void)state;
    static const char *const rising[] = {"0~rc1",
                                         "0",
                                         "0.1",
                                         "0.9",
                                         "0.10",
                                         "1",
                                         "1.0~beta1",
                                         "1.0",
                                         "1.0-1",
                                         "1.0-1+deb12u1",
                                         "1.0-2",
                                         "1.0+dfsg",
                                         "1.0+dfsg-1",
                                         "1.0.1",
                                         "2",
                                         "2.1.12-stable-8",
                                         "2.1.12-stable-8+deb12u1",
                                         "2.1.13",
                                         "550.54.14",
                                         "580",
                                         "580.65.06",
                                         "1:0.1"};
    for (size_t i = 0; i < ARRAY_LEN(rising); i++) {
        assert_int_equal(host_version_compare(rising[i], rising[i]), 0);
        for (size_t k = i + 1; k < ARRAY_LEN(rising); k++) {
            if (host_version_compare(rising[i], rising[k]) >= 0 ||
                host_version_compare(rising[k], rising[i]) <= 0)
                fail_msg("%s should come before %s", rising[i], rising[k]);
        }
    }
    assert_int_equal(host_version_compare("1.0", "1.00"), 0);
    assert_int_equal(host_version_compare("Linux 6.1.0", "6.1.0"), 0);
    assert_true(host_version_compare("", "1") < 0);
    assert_true(host_version_compare("99999999999999999999999", "99999999999999999999998") > 0);
}

static void conditions(void **state)
{
    (void)state;
    static const struct {
        const char *version, *condition;
        int want;
    } cases[] = {{"580.65.06", ">= 580", 1},
                 {"579.99", ">=580", 0},
                 {"2.20", ">= 2.18, < 2.30", 1},
                 {"2.30", ">= 2.18, < 2.30", 0},
                 {"2.17", ">= 2.18, < 2.30", 0},
                 {"3", "= 3", 1},
                 {"3", "!= 3", 0},
                 {"3", "> 3", 0},
                 {"3", "<= 3", 1},
                 {"3", "", -1},
                 {"3", ">= ", -1},
                 {"3", "3", -1},
                 {"3", ">= 1,", -1},
                 {"3", ">= x", -1},
                 {"3", "=> 3", -1}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        if (host_version_matches(cases[i].version, cases[i].condition) != cases[i].want)
            fail_msg("%s %s", cases[i].version, cases[i].condition);
}

static struct host *replay(const char *name)
{
    struct host *h = NULL;
    struct err e = {0};
    char path[512];
    snprintf(path, sizeof path, CAPTURES "%s.json", name);
    if (host_open_capture(&h, path, &e))
        fail_msg("%s", e.message);
    return h;
}

static enum host_rule_state state_of(const struct host_rules *r, const struct host *h, const char *id)
{
    for (size_t i = 0; i < r->n; i++)
        if (!strcmp(r->items[i].id, id))
            return host_rule_judge(&r->items[i], h, NULL, 0);
    fail_msg("no rule %s", id);
    return HOST_RULE_UNKNOWN;
}

static void machines(void **state)
{
    (void)state;
    struct host_rules r;
    struct findings f;
    assert_int_equal(host_rules_open(&r, NULL, NULL), 0);
    assert_true(r.n >= 6);
    findings_init(&f, NULL);

    struct host *h = replay("good");
    assert_int_equal(h->n_cards, 8);
    assert_string_equal(h->cards[0].model, "NVIDIA H200");
    assert_string_equal(h->cards[0].vendor, "NVIDIA");
    assert_string_equal(h->links[0].rate, "400 Gb/sec (4X NDR)");
    assert_string_equal(h->os, "Debian GNU/Linux 12 (bookworm)");
    assert_int_equal(h->n_threads_usable, 16);
    assert_int_equal(h->memory_available, (uint64_t)480 << 30);
    assert_string_equal(h->memory_limit_source, "MemAvailable");
    host_rules_check(&r, h, &f);
    assert_int_equal(f.n, 0);
    assert_int_equal(state_of(&r, h, "cuda13-driver"), HOST_RULE_HOLDS);
    host_close(h);

    h = replay("old-driver");
    host_rules_check(&r, h, &f);
    assert_int_equal(f.n, 2);
    assert_int_equal(f.items[0].id, FINDING_P002);
    assert_int_equal(f.items[0].severity, SEVERITY_ERROR);
    assert_string_equal(f.items[0].subject, "nvidia driver");
    assert_non_null(strstr(f.items[0].evidence,
                           "nvidia driver 550.54.14; rule cuda13-driver wants >= 580 with "
                           "cuda runtime >= 13"));
    assert_string_equal(f.items[0].remedy, "install nvidia driver >= 580");
    assert_true(findings_failed(&f));
    assert_int_equal(findings_waive(&f, "P002", "known"), 2);
    assert_false(findings_failed(&f));
    host_close(h);

    h = replay("unknown-versions");
    assert_int_equal(state_of(&r, h, "cuda13-driver"), HOST_RULE_UNKNOWN);
    assert_int_equal(state_of(&r, h, "libevent-security"), HOST_RULE_UNKNOWN);
    assert_int_equal(state_of(&r, h, "open-mpi-plugin"), HOST_RULE_NOT_APPLICABLE);
    host_close(h);

    h = replay("cgroup-limited");
    assert_string_equal(h->memory_limit_source, "cgroup");
    assert_int_equal(h->memory_available, 1048576 - (524288 - 1000));
    assert_int_equal(h->n_threads_usable, 3);
    host_close(h);

    h = replay("no-memory");
    assert_int_equal(h->memory_available, 262144);
    assert_int_equal(h->n_cards, 0);
    host_close(h);
    findings_release(&f);
    host_rules_release(&r);
}

/* What was captured is what is seen: every fact of this machine, but for what changes by itself. */
static void round_trip(void **state)
{
    (void)state;
    char path[] = "/tmp/day0-capture-XXXXXX";
    int fd = mkstemp(path);
    struct err e = {0};
    struct host *here = NULL, *there = NULL;
    assert_true(fd >= 0);
    close(fd);
    if (host_capture(path, &e) || host_open(&here, ".", &e) || host_open_capture(&there, path, &e))
        fail_msg("%s", e.message);
    assert_string_equal(here->kernel, there->kernel);
    assert_string_equal(here->hostname, there->hostname);
    assert_string_equal(here->cpu_model ? here->cpu_model : "", there->cpu_model ? there->cpu_model : "");
    assert_string_equal(here->memory_limit_source, there->memory_limit_source);
    assert_int_equal(here->memory_total, there->memory_total);
    assert_int_equal(here->n_cores, there->n_cores);
    assert_int_equal(here->n_threads_usable, there->n_threads_usable);
    assert_int_equal(here->n_libraries, there->n_libraries);
    assert_int_equal(here->n_cards, there->n_cards);
    for (size_t i = 0; i < here->n_libraries; i++) {
        const struct host_library *a = &here->libraries[i], *b = &there->libraries[i];
        assert_string_equal(a->name, b->name);
        assert_int_equal(a->found, b->found);
        assert_string_equal(a->version ? a->version : "", b->version ? b->version : "");
    }
    assert_non_null(there->capture);
    assert_null(here->capture);
    host_close(here);
    host_close(there);
    unlink(path);
}

#define HEAD "{\"format\":\"day0-capture\",\"version\":1,"

static void malformed_captures(void **state)
{
    (void)state;
    static const char *const bad[] = {"",
                                      "[]",
                                      "{}",
                                      "{\"format\":\"day0-capture\",\"version\":2}",
                                      HEAD "\"files\":[]}",
                                      HEAD "\"files\":{\"a\":\"\"}}",
                                      HEAD "\"files\":{\"/a\":1}}",
                                      HEAD "\"files\":{},\"probed\":{\"cores\":-1}}",
                                      HEAD "\"files\":{},\"probed\":{\"cores\":1e9}}",
                                      HEAD "\"files\":{},\"probed\":{\"cores\":9999999999}}",
                                      HEAD "\"files\":{},\"probed\":{\"kernel\":[]}}",
                                      HEAD "\"files\":{},\"probed\":{\"libraries\":{}}}",
                                      HEAD "\"files\":{},\"probed\":{\"libraries\":[{\"name\":\"x\"}]}}",
                                      HEAD "\"files\":{},\"probed\":{\"libraries\":[{\"found\":true}]}}",
                                      HEAD "\"files\":{},\"taken_at\":7}"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct host *h = NULL;
        struct err e = {0};
        if (host_parse_capture(&h, bad[i], strlen(bad[i]), "it", &e) != ERR_FORMAT || h ||
            !strstr(e.message, "it"))
            fail_msg("accepted: %s", bad[i]);
    }
    /* nothing is known of it, and that is all right */
    struct host *h = NULL;
    const char *empty = HEAD "\"files\":{},\"probed\":{\"hostname\":\"a\\u001b[31mb\\u0007\"}}";
    assert_int_equal(host_parse_capture(&h, empty, strlen(empty), "it", NULL), 0);
    assert_string_equal(h->hostname, "a?[31mb?");
    assert_null(h->kernel);
    assert_null(h->memory_limit_source);
    assert_int_equal(h->n_threads_usable, 0);
    host_close(h);
    struct err e = {0};
    assert_int_equal(host_open_capture(&h, "/nonexistent/capture.json", &e), ERR_MISSING);
    assert_int_equal(host_open_capture(&h, "/tmp", &e), ERR_INVALID);
}

#define RULES "{\"format\":\"day0-compat\",\"version\":1,\"rules\":["
#define RULE  "\"id\":\"x\",\"component\":\"c\",\"reason\":\"r\",\"source\":\"s\",\"severity\":\"error\""

static void malformed_rules(void **state)
{
    (void)state;
    static const char *const bad[] = {"{}",
                                      "{\"format\":\"day0-compat\",\"version\":1}",
                                      RULES "1]}",
                                      RULES "{}]}",
                                      RULES "{" RULE "}]}",
                                      RULES "{" RULE ",\"needs\":\"new\"}]}",
                                      RULES "{" RULE ",\"needs\":7}]}",
                                      RULES "{" RULE ",\"needs\":\">= 1\",\"when\":\">= 1\"}]}",
                                      RULES "{" RULE
                                            ",\"needs\":\">= 1\",\"when\":\"1\",\"when_component\":\"d\"}]}",
                                      RULES "{\"id\":\"x\",\"component\":\"c\",\"reason\":\"r\",\"source\":"
                                            "\"s\",\"severity\":\"fatal\",\"needs\":\">= 1\"}]}"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct host_rules r;
        struct err e = {0};
        if (host_rules_parse(&r, bad[i], strlen(bad[i]), "it", &e) != ERR_FORMAT || r.n || !e.message[0])
            fail_msg("accepted: %s", bad[i]);
    }
    struct host_rules r;
    const char *good = RULES "{" RULE ",\"needs\":\">= 1\"}]}";
    assert_int_equal(host_rules_parse(&r, good, strlen(good), "it", NULL), 0);
    assert_int_equal(r.n, 1);
    host_rules_release(&r);
}

#define CARD "{\"format\":\"day0-card\",\"version\":1,\"name\":\"x\","

static void cards(void **state)
{
    (void)state;
    static const char *const names[] = {"ascend-npu", "cpu-x86", "h200-sxm", "memory-24gb"};
    char path[512];
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        struct host_card_profile *p;
        struct err e = {0};
        snprintf(path, sizeof path, TEST_SOURCE_ROOT "/hardware/cards/%s.json", names[i]);
        if (host_card_open(&p, path, &e))
            fail_msg("%s", e.message);
        if (i == 0) {
            assert_int_equal(host_card_takes(p, "attention", "dim", 128), HOST_YES);
            assert_int_equal(host_card_takes(p, "attention", "dim", 256), HOST_NO);
            assert_int_equal(host_card_takes(p, "linear", "dim", 256), HOST_NOT_KNOWN);
            assert_int_equal(host_card_runs(p, "attention", "BF16"), HOST_NOT_KNOWN);
            assert_int_equal(host_card_runs(p, "attention", NULL), HOST_YES);
            assert_int_equal(p->memory_bytes, 0);
        }
        if (i == 1) {
            assert_int_equal(host_card_runs(p, "linear", "BF16"), HOST_YES);
            assert_int_equal(host_card_runs(p, "linear", "F8_E4M3"), HOST_NO);
            assert_int_equal(host_card_runs(p, "delta_rule", "F32"), HOST_NOT_KNOWN);
            assert_int_equal(host_card_runs(p, "delta_rule", "F4"), HOST_NO);
        }
        if (i == 3)
            assert_int_equal(p->memory_bytes, 24000000000);
        host_card_close(p);
    }
    static const char *const bad[] = {"{\"format\":\"day0-card\",\"version\":1}",
                                      CARD "\"dtypes\":{}}",
                                      CARD "\"dtypes\":[1]}",
                                      CARD "\"operators\":[]}",
                                      CARD "\"operators\":{\"a\":1}}",
                                      CARD "\"operators\":{\"a\":{\"supported\":2}}}",
                                      CARD "\"operators\":{\"a\":{\"limits\":{\"b\":[\"c\"]}}}}",
                                      CARD "\"memory_bytes\":-1}"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct host_card_profile *p = NULL;
        struct err e = {0};
        if (host_card_parse(&p, bad[i], strlen(bad[i]), "it", &e) != ERR_FORMAT || p)
            fail_msg("accepted: %s", bad[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(order_of_versions),
        cmocka_unit_test(conditions),
        cmocka_unit_test(machines),
        cmocka_unit_test(round_trip),
        cmocka_unit_test(malformed_captures),
        cmocka_unit_test(malformed_rules),
        cmocka_unit_test(cards),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
