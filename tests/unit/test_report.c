/* SPDX-License-Identifier: Apache-2.0
 *
 * The report writers on a synthetic report: every row and section, documented keys, escaping of hostile text,
 * plots of hostile numbers. And the verdict: which rows and findings make it, what can be accepted and
 * waived.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "adapt/html.h"
#include "adapt/rows.h"
#include "report_fixture.h"

#define HOSTILE "<script>alert(1)</script>\"'&\x01\xff"

static char *page(struct fixture *x)
{
    struct strbuf b = STRBUF_INIT;
    report_write_html(&x->report, &b);
    assert_false(strbuf_failed(&b));
    return strbuf_detach(&b);
}

static size_t count(const char *text, const char *what)
{
    size_t n = 0;
    for (const char *at = strstr(text, what); at; at = strstr(at + 1, what))
        n++;
    return n;
}

static void test_page_has_everything(void **state)
{
    (void)state;
    struct fixture x;
    fixture_open(&x, true);
    char *text = page(&x);
    assert_non_null(strstr(text, "<!DOCTYPE html>"));
    static const char *const sections[] = {"checklist", "findings",    "model",    "memory",
                                           "numerics",  "text",        "latency",  "service",
                                           "operators", "environment", "identity", "definitions"};
    for (size_t i = 0; i < ARRAY_LEN(sections); i++) {
        char id[64];
        snprintf(id, sizeof(id), "<section id=\"%s\">", sections[i]);
        assert_int_equal(count(text, id), 1);
    }
    for (unsigned i = 0; i < ROW_N; i++) {
        assert_non_null(strstr(text, row_title((enum row_id)i)));
        char id[64];
        snprintf(id, sizeof(id), "id=\"row-%s\"", row_key((enum row_id)i));
        assert_int_equal(count(text, id), 1);
    }
    assert_int_equal(count(text, "<svg"), 4);
    assert_int_equal(count(text, "<svg"), count(text, "</svg>"));
    assert_int_equal(count(text, "<section"), count(text, "</section>"));
    assert_int_equal(count(text, "<table"), count(text, "</table>"));
    assert_non_null(strstr(text, "limit 1.00e-03"));
    assert_non_null(strstr(text, "concurrency 8"));
    assert_non_null(strstr(text, x.report.sha_manifest));
    assert_non_null(strstr(text, "no kernel for this type"));
    assert_non_null(strstr(text, "Once upon a time</span></bdi>\n<bdi>, there was")); /* two lines */
    assert_non_null(strstr(text, "Alone</span></bdi>\n<bdi><span class=\"note\">(no text)</span>"));
    assert_non_null(strstr(text, "<td>nvidia driver &gt;= 580 with cuda runtime &gt;= 13</td>"));
    assert_non_null(strstr(text, "<td>libevent &gt;= 2.1.13 or package &gt;= 2.1.12-stable-8+deb12u1</td>"));
    assert_int_equal(count(text, "</i>violated</span>"), 1);
    assert_int_equal(count(text, "</i>holds</span>"), 1);
    assert_int_equal(
        count(text, "<span class=\"badge open\"><i aria-hidden=\"true\">\xe2\x97\x8b</i>unknown</span>"), 1);
    assert_null(strstr(text, "<script"));
    assert_null(strstr(text, "src=\"http"));
    assert_null(strstr(text, "href=\"http"));
    free(text);
    fixture_close(&x);
}

static void test_self_consistent_is_not_passed(void **state)
{
    (void)state;
    struct fixture x;
    fixture_open(&x, false);
    char *text = page(&x);
    const char *row = strstr(text, "id=\"row-numerics\"");
    assert_non_null(row);
    char cut[600];
    snprintf(cut, sizeof(cut), "%.*s", (int)(strstr(row, "</tr>") - row), row);
    assert_non_null(strstr(cut, "self-consistent"));
    assert_null(strstr(cut, "badge ok"));
    assert_non_null(strstr(text, "1 row is only self-consistent"));
    assert_non_null(strstr(text, "Incomplete"));
    free(text);
    fixture_close(&x);
}

/* Everything that a model, a server or a log can name is hostile at once. */
static void test_hostile_names(void **state)
{
    (void)state;
    struct fixture x;
    fixture_open(&x, true);
    x.report.title = x.report.model_dir = x.report.platform = x.report.arch_name = x.report.service_url =
        HOSTILE;
    x.result.rows[ROW_TEXT].evidence = HOSTILE;
    x.result.rows[ROW_TEXT].accept_reason = HOSTILE;
    x.result.stages[0].summary = HOSTILE;
    finding_add_remedy(&x.result.findings, FINDING_W009, HOSTILE, HOSTILE, "%s", HOSTILE);
    x.report.facts[0] = fixture_json(
        &x, "{\"host\":{\"os\":\"<script>x</script>\",\"topology\":\"</"
            "pre><script>\",\"libraries\":[{\"name\":\"<script>\"}]},"
            "\"model\":{\"architecture\":\"<script>\"},\"device\":{\"description\":\"<script>\"},"
            "\"operators\":[{\"op\":\"<script>\",\"types\":\"<script>\",\"reason\":\"<script>\"}]}");
    x.report.facts[3] = fixture_json(&x, "{\"cases\":[{\"name\":\"<script>\",\"why\":\"<script>\",\"prompt\":"
                                         "\"<script>\",\"output\":\"</td><script>\"}]}");
    x.report.facts[4] = fixture_json(&x, "{\"service\":[{\"name\":\"<script>\",\"detail\":\"<script>\"}],"
                                         "\"runs\":[{\"tokens_from\":\"<script>\"}]}");
    char *text = page(&x);
    assert_null(strstr(text, "<script"));
    assert_null(strstr(text, "\x01"));
    assert_true(utf8_valid(text, strlen(text)));
    assert_non_null(
        strstr(text, "&lt;script&gt;alert(1)&lt;/script&gt;&quot;&#39;&amp;\xef\xbf\xbd\xef\xbf\xbd"));
    free(text);
    fixture_close(&x);
}

/* Facts of the wrong shape read as absent; nothing crashes and the page stays whole. */
static void test_wrong_facts(void **state)
{
    (void)state;
    static const char *const wrong[] = {
        "[]",
        "{}",
        "1",
        "null",
        "{\"image\":{\"cases\":[1,{\"pictures\":{}}],\"reference\":{\"steps\":3},\"self\":{}},\"segments\":["
        "7],"
        "\"pictures\":{\"busy\":[null]}}",
        "{\"plan\":[],\"runs\":{},\"cases\":3,\"pieces\":\"x\",\"host\":1,\"service\":{},\"reference\":{}}",
        "{\"runs\":[1,null,{\"ttft_ms\":[],\"ttft_samples_ms\":[null,\"x\",-1,1e300],\"itl_samples_ms\":{}}],"
        "\"plan\":{\"predicted\":{\"weights\":-5,\"kv\":1e300}},"
        "\"measured\":{\"ready_rss\":1e18,\"allowed\":-1},\"reference\":{\"abs_by_position\":[null,1e300,-3,"
        "0,1e-300],\"limit\":-1}}"};
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        struct fixture x;
        fixture_open(&x, true);
        for (size_t k = 0; k < REPORT_STAGES; k++)
            x.report.facts[k] = fixture_json(&x, wrong[i]);
        char *text = page(&x);
        assert_int_equal(count(text, "<section"), 13);
        assert_int_equal(count(text, "</section>"), 13);
        assert_null(strstr(text, "nan"));
        assert_null(strstr(text, "=\"inf"));
        free(text);
        for (size_t k = 0; k < REPORT_STAGES; k++)
            x.report.facts[k] = NULL;
        text = page(&x);
        assert_int_equal(count(text, "</section>"), 13);
        free(text);
        fixture_close(&x);
    }
}

/* The memory of pictures is told where a service takes some, and a page about text alone has no trace of it.
 */
static void test_memory_of_pictures(void **state)
{
    (void)state;
    static const char *const facts[] = {
        "{\"plan\":{\"predicted\":{\"weights\":5000000,\"pictures\":0,\"pictures_waiting\":0,\"total\":"
        "6000000}}}",
        "{\"plan\":{\"predicted\":{\"weights\":5000000,\"pictures\":3000000,\"pictures_waiting\":2000000,"
        "\"total\":11000000}}}"};
    for (size_t i = 0; i < ARRAY_LEN(facts); i++) {
        struct fixture x;
        fixture_open(&x, true);
        x.report.facts[2] = fixture_json(&x, facts[i]);
        char *text = page(&x);
        assert_int_equal(count(text, "</span>Pictures</td>"), i);
        assert_int_equal(count(text, "class=\"part p6\""), i);
        assert_int_equal(count(text, "Room for pictures that wait"), i);
        assert_int_equal(count(text, "6.00 MB</text>"), 1 - i);
        assert_int_equal(count(text, "9.00 MB</text>"), i); /* without what waits */
        free(text);
        fixture_close(&x);
    }
}

/* A picture is shown if it is a data: URL of a picture and nothing else; it never closes its attribute. */
static void test_pictures(void **state)
{
    (void)state;
    struct fixture x;
    fixture_open(&x, true);
    x.report.facts[3] = fixture_json(
        &x,
        "{\"image\":{\"cases\":[{\"name\":\"a\",\"state\":\"answered\",\"question\":\"q\",\"answer\":\"<u>\","
        "\"pictures\":[\"data:image/png;base64,AAAA\",\"http://elsewhere/p.png\","
        "\"data:image/png;base64,AA\\\" onload=\\\"x\",\"data:text/html;base64,AAAA\"]}]}}");
    char *text = page(&x);
    assert_int_equal(count(text, "<img"), 1);
    assert_non_null(strstr(text, "src=\"data:image/png;base64,AAAA\""));
    assert_null(strstr(text, "http://elsewhere"));
    assert_null(strstr(text, "onload"));
    assert_null(strstr(text, "<u>"));
    free(text);
    fixture_close(&x);
}

static void named(struct strbuf *b, const struct json *v)
{
    html_cell(b, "key", fact_text(v, "name"));
}

/* A row for each element under all heads; an empty or absent array leaves nothing, not even the heading. */
static void test_lists(void **state)
{
    (void)state;
    struct fixture x;
    struct strbuf b = STRBUF_INIT;
    const struct html_list list = {
        .heading = "All <of> them", .heads = {"a", "b", "c"}, .first_number = 2, .cells = named};
    fixture_open(&x, true);
    const struct json *v = fixture_json(&x, "{\"two\":[{\"name\":\"x\"},7],\"none\":[],\"text\":\"x\"}");
    html_list(&b, &list, v, "none");
    html_list(&b, &list, v, "absent");
    html_list(&b, &list, v, "text");
    html_list(&b, &list, NULL, "two");
    assert_int_equal(b.len, 0);
    html_list(&b, &list, v, "two");
    assert_int_equal(count(b.data, "<h3>All &lt;of&gt; them</h3>"), 1);
    assert_int_equal(count(b.data, "<th>"), 2);
    assert_int_equal(count(b.data, "<th class=\"n\">c</th>"), 1);
    assert_int_equal(count(b.data, "<tr><td class=\"key\">x</td></tr>\n<tr><td class=\"key\"></td></tr>\n"),
                     1);
    assert_int_equal(count(b.data, "</tr>"), 3);
    strbuf_release(&b);
    fixture_close(&x);
}

/* Numbers inside d="..." and coordinate attributes: digits, signs, dots, commas and path letters only. */
static void check_svg(const char *svg)
{
    assert_null(strstr(svg, "nan"));
    assert_null(strstr(svg, "inf"));
    static const char *const attributes[] = {" d=\"",  " x=\"",  " y=\"",  " x1=\"", " y1=\"",
                                             " x2=\"", " y2=\"", " cx=\"", " cy=\"", " width=\""};
    for (size_t i = 0; i < ARRAY_LEN(attributes); i++) {
        for (const char *at = strstr(svg, attributes[i]); at; at = strstr(at + 1, attributes[i])) {
            const char *value = at + strlen(attributes[i]);
            size_t n = strspn(value, "0123456789.,-ML ");
            assert_int_equal(value[n], '"');
        }
    }
}

static void test_svg_of_hostile_numbers(void **state)
{
    (void)state;
    static const double odd[] = {NAN, INFINITY, -INFINITY, -1, 0, 1e-320, 1e308, 5, 5, 5};
    static const double same[] = {3, 3, 3}, zero[] = {0, 0}, one[] = {0.25};
    const struct {
        const double *v;
        size_t n;
    } sets[] = {{odd, ARRAY_LEN(odd)}, {same, 3}, {zero, 2}, {one, 1}, {odd, 0}, {odd, 1}};
    static const double limits[] = {0, 1e-3, NAN, INFINITY, -1, 1e-300};
    for (size_t i = 0; i < ARRAY_LEN(sets); i++) {
        for (size_t k = 0; k < ARRAY_LEN(limits); k++) {
            struct strbuf b = STRBUF_INIT;
            struct svg_series series[2] = {{"a", sets[i].v, sets[i].n}, {"<b>", one, 1}};
            struct svg_bar bars[2] = {{"a", "n", sets[i].v, sets[i].n}, {"b", "m", one, 1}};
            svg_cdf(&b, "t", series, 1 + k % 2);
            svg_positions(&b, "t", sets[i].v, sets[i].n, limits[k]);
            svg_doublings(&b, "t", sets[i].v, sets[i].v, sets[i].n, limits[k]);
            svg_bars(&b, "t", bars, 2, limits[k], "mark");
            check_svg(strbuf_cstr(&b));
            assert_null(strstr(strbuf_cstr(&b), "<b>"));
            strbuf_release(&b);
        }
    }
}

/* A peak must survive thinning: it is what the plot is for. */
static void test_positions_keep_the_peak(void **state)
{
    (void)state;
    static double v[5000];
    for (size_t i = 0; i < ARRAY_LEN(v); i++)
        v[i] = 1e-6;
    v[3333] = 0.5;
    struct strbuf b = STRBUF_INIT;
    svg_positions(&b, "t", v, ARRAY_LEN(v), 1e-3);
    assert_int_equal(count(strbuf_cstr(&b), "dot over"), 1);
    assert_true(count(strbuf_cstr(&b), "<circle") <= 480);
    strbuf_release(&b);
}

static void test_numbers(void **state)
{
    (void)state;
    static const struct {
        double v;
        unsigned decimals;
        const char *text;
    } cases[] = {{0, 0, "0"},      {1.005, 1, "1.0"},  {-0.05, 1, "-0.1"},         {12.3456, 2, "12.35"},
                 {NAN, 2, "0.00"}, {INFINITY, 0, "0"}, {1e300, 0, "1000000000000"}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct strbuf b = STRBUF_INIT;
        html_number(&b, cases[i].v, cases[i].decimals);
        assert_string_equal(strbuf_cstr(&b), cases[i].text);
        strbuf_release(&b);
    }
}

static void test_json(void **state)
{
    (void)state;
    struct fixture x;
    fixture_open(&x, true);
    x.result.rows[ROW_TEXT].evidence = HOSTILE;
    struct strbuf b = STRBUF_INIT;
    report_write_json(&x.report, &b);
    const struct json *v = fixture_json(&x, strbuf_cstr(&b));
    static const char *const keys[] = {
        "generator", "version",  "schema_version", "date",     "seconds",          "verdict", "with_waivers",
        "reason",    "identity", "checklist",      "findings", "findings_dropped", "stages",  "definitions"};
    assert_int_equal(v->n, ARRAY_LEN(keys));
    for (size_t i = 0; i < ARRAY_LEN(keys); i++)
        assert_non_null(json_get(v, keys[i]));
    assert_int_equal(json_get(v, "checklist")->n, ROW_N);
    assert_int_equal(json_get(v, "stages")->n, REPORT_STAGES);
    assert_string_equal(json_string(json_get(v, "verdict")), "pass");
    assert_string_equal(fact_text(json_at(json_get(v, "stages"), 2), "facts.plan.available_source"),
                        "MemAvailable");
    static const char *const identity[] = {"model",         "directory",   "manifest_sha256",
                                           "arch_file",     "arch_origin", "arch_sha256",
                                           "binary_sha256", "service_url", "platform"};
    for (size_t i = 0; i < ARRAY_LEN(identity); i++)
        assert_non_null(json_get(json_get(v, "identity"), identity[i]));
    strbuf_release(&b);
    fixture_close(&x);
}

/* Every key of report.json stands in docs/report.md. */
static void documented(const char *docs, const struct json *v)
{
    if (v->type == JSON_OBJECT) {
        for (size_t i = 0; i < v->n; i++) {
            char quoted[128];
            snprintf(quoted, sizeof(quoted), "`%s`", v->as.members[i].key);
            if (!strstr(docs, quoted))
                fail_msg("docs/report.md does not document %s", quoted);
            documented(docs, &v->as.members[i].value);
        }
    }
    for (size_t i = 0; v->type == JSON_ARRAY && i < v->n; i++)
        documented(docs, &v->as.items[i]);
}

static void test_docs(void **state)
{
    (void)state;
    struct fixture x;
    fixture_open(&x, true);
    FILE *f = fopen(TEST_SOURCE_ROOT "/docs/report.md", "r");
    assert_non_null(f);
    static char docs[100000];
    size_t n = fread(docs, 1, sizeof(docs) - 1, f);
    fclose(f);
    docs[n] = '\0';
    struct strbuf b = STRBUF_INIT;
    report_write_json(&x.report, &b);
    documented(docs, fixture_json(&x, strbuf_cstr(&b)));
    strbuf_release(&b);
    fixture_close(&x);
}

/* ---- verdict */

static void judge(struct fixture *x, const struct adapt_options *o, bool drafted, enum verdict want,
                  int status)
{
    rows_judge(&x->result, o, drafted);
    assert_int_equal(x->result.verdict, want);
    assert_int_equal(adapt_exit_status(&x->result), status);
}

static void test_verdicts(void **state)
{
    (void)state;
    struct adapt_options none = {0};
    struct fixture x;
    fixture_open(&x, true);
    judge(&x, &none, false, VERDICT_PASS, 0);
    assert_false(x.result.with_waivers);
    judge(&x, &none, true, VERDICT_INCOMPLETE, 4);
    fixture_close(&x);

    fixture_open(&x, false);
    judge(&x, &none, false, VERDICT_INCOMPLETE, 4);
    struct adapt_override numerics = {"numerics", "no reference yet"};
    struct adapt_options accept = {.accept = &numerics, .n_accept = 1};
    judge(&x, &accept, false, VERDICT_PASS, 0);
    assert_true(x.result.with_waivers);
    assert_string_equal(x.result.rows[ROW_NUMERICS].accept_reason, "no reference yet");
    assert_int_equal(x.result.rows[ROW_NUMERICS].state, ROW_SELF_CONSISTENT);
    fixture_close(&x);
}

static void test_accept_does_not_cover_failure(void **state)
{
    (void)state;
    struct fixture x;
    struct adapt_override numerics = {"numerics", "never mind"};
    struct adapt_options accept = {.accept = &numerics, .n_accept = 1};
    fixture_open(&x, true);
    row_set(&x.result.rows[ROW_NUMERICS], &x.result.arena, ROW_FAILED, "off by 3");
    row_set(&x.result.rows[ROW_NUMERICS], &x.result.arena, ROW_PASSED, "changed my mind");
    judge(&x, &accept, false, VERDICT_FAIL, 1);
    assert_string_equal(x.result.rows[ROW_NUMERICS].evidence, "off by 3");
    fixture_close(&x);
}

static void test_findings_turn_their_row_red(void **state)
{
    (void)state;
    static const struct {
        enum finding_id id;
        enum row_id row;
    } cases[] = {
        {FINDING_W002, ROW_WEIGHTS},     {FINDING_C003, ROW_WEIGHTS},  {FINDING_M001, ROW_MEMORY},
        {FINDING_M003, ROW_COMM},        {FINDING_N001, ROW_NUMERICS}, {FINDING_P001, ROW_ENVIRONMENT},
        {FINDING_P003, ROW_ENVIRONMENT}, {FINDING_T005, ROW_TEXT},     {FINDING_S002, ROW_SERVICE}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct adapt_options none = {0};
        struct fixture x;
        fixture_open(&x, true);
        finding_add(&x.result.findings, cases[i].id, "subject", "seen %d", 7);
        judge(&x, &none, false, VERDICT_FAIL, 1);
        assert_int_equal(x.result.rows[cases[i].row].state, ROW_FAILED);
        assert_non_null(strstr(x.result.rows[cases[i].row].evidence, "seen 7"));
        fixture_close(&x);
        /* waived: no longer decides, still red in the table, reason beside it */
        struct adapt_override waiver = {finding_code(cases[i].id), "known"};
        struct adapt_options waive = {.waive = &waiver, .n_waive = 1};
        fixture_open(&x, true);
        finding_add(&x.result.findings, cases[i].id, "subject", "seen %d", 7);
        row_set(&x.result.rows[cases[i].row], &x.result.arena, ROW_FAILED, "red");
        judge(&x, &waive, false, VERDICT_PASS, 0);
        assert_true(x.result.with_waivers);
        assert_int_equal(x.result.rows[cases[i].row].state, ROW_FAILED);
        assert_non_null(strstr(x.result.rows[cases[i].row].accept_reason, "known"));
        fixture_close(&x);
    }
}

static void test_overrides_must_exist(void **state)
{
    (void)state;
    static const struct {
        struct adapt_override o;
        bool accept;
        const char *says;
    } cases[] = {{{"weather", "sunny"},
                  true,
                  "environment, weights, memory, communication, numerics, text, image, service"},
                 {{"numerics", ""}, true, "a reason is needed"},
                 {{"numerics", NULL}, true, "a reason is needed"},
                 {{"W999", "x"}, false, "C001"},
                 {{"w003", "x"}, false, "W003"},
                 {{"W003", ""}, false, "a reason is needed"}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct adapt_options o = {0};
        struct err e = {0};
        if (cases[i].accept) {
            o.accept = &cases[i].o;
            o.n_accept = 1;
        } else {
            o.waive = &cases[i].o;
            o.n_waive = 1;
        }
        assert_int_equal(rows_check_overrides(&o, &e), ERR_USAGE);
        assert_non_null(strstr(e.message, cases[i].says));
    }
    struct adapt_override good = {"W003", "fine"};
    struct adapt_options o = {.waive = &good, .n_waive = 1};
    assert_int_equal(rows_check_overrides(&o, NULL), ERR_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_page_has_everything),
        cmocka_unit_test(test_self_consistent_is_not_passed),
        cmocka_unit_test(test_hostile_names),
        cmocka_unit_test(test_wrong_facts),
        cmocka_unit_test(test_pictures),
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_memory_of_pictures),
        cmocka_unit_test(test_svg_of_hostile_numbers),
        cmocka_unit_test(test_positions_keep_the_peak),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_docs),
        cmocka_unit_test(test_verdicts),
        cmocka_unit_test(test_accept_does_not_cover_failure),
        cmocka_unit_test(test_findings_turn_their_row_red),
        cmocka_unit_test(test_overrides_must_exist),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
