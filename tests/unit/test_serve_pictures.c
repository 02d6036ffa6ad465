/* SPDX-License-Identifier: Apache-2.0
 *
 * Pictures over HTTP, from data: URLs to the tower and back, on a small random model that is opened as
 * `day0 serve` opens one. A picture changes the answer; the same request has the same log-probabilities
 * alone, in a crowd and behind a cached prefix; a prefix with another picture is no hit; clients that leave,
 * a tower that fails and a stop give pages, rows of features and memory back.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "picture_chat.h"

#define CROWD 50

static void pictures_change_answers(void **state)
{
    (void)state;
    struct server *s = picture_server(PICTURE_QWEN, (struct serve_options){0}, (struct session_options){0});
    struct strbuf b = STRBUF_INIT;
    struct answer none = {0}, one = {0}, again = {0}, other = {0}, two = {0}, swapped = {0}, only = {0};
    put_content(&b, SEEDS(0), "hello and");
    assert_int_equal(ask(s, b.data, "", &none), 200);
    put_content(&b, SEEDS(1), "hello and");
    if (ask(s, b.data, "", &one) != 200)
        fail_msg("%s", one.message);
    assert_int_equal(one.images, 6);
    assert_int_equal(one.prompt, none.prompt + 6 + 2); /* rows, begin and end */
    assert_int_equal(ask(s, b.data, "", &again), 200);
    assert_string_equal(one.logprobs.data, again.logprobs.data);
    assert_string_equal(one.text.data, again.text.data);
    put_content(&b, SEEDS(2), "hello and");
    assert_int_equal(ask(s, b.data, "", &other), 200);
    assert_string_not_equal(one.logprobs.data, other.logprobs.data);
    assert_string_not_equal(one.logprobs.data, none.logprobs.data);
    put_content(&b, SEEDS(1, 2), "hello and");
    assert_int_equal(ask(s, b.data, "", &two), 200);
    assert_int_equal(two.images, 12);
    put_content(&b, SEEDS(2, 1), "hello and");
    assert_int_equal(ask(s, b.data, "", &swapped), 200);
    assert_string_not_equal(two.logprobs.data, swapped.logprobs.data);
    put_content(&b, SEEDS(3), NULL);
    assert_int_equal(ask(s, b.data, "", &only), 200);
    assert_int_equal(only.prompt, 6 + 2);
    /* the same answer as a stream */
    put_content(&b, SEEDS(1, 2), "hello and");
    assert_int_equal(ask(s, b.data, ",\"stream\":true,\"stream_options\":{\"include_usage\":true}", &again),
                     200);
    assert_true(again.done);
    assert_string_equal(again.logprobs.data, two.logprobs.data);
    assert_int_equal(again.images, 12);
    all_is_free(s);
    struct answer *all[] = {&none, &one, &again, &other, &two, &swapped, &only};
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        answer_release(all[i]);
    strbuf_release(&b);
    picture_server_stop(s);
}

/* Segments follow each other without a gap, in the answer and in the metrics. */
static void times_are_told(void **state)
{
    (void)state;
    struct server *s = picture_server(PICTURE_QWEN, (struct serve_options){0}, (struct session_options){0});
    struct strbuf b = STRBUF_INIT;
    struct answer a = {0};
    put_content(&b, SEEDS(1, 2, 3), "all");
    for (int stream = 0; stream < 2; stream++) {
        assert_int_equal(ask(s, b.data, stream ? ",\"stream\":true" : "", &a), 200);
        double sum = 0;
        for (size_t i = 0; i < 6; i++) {
            assert_true(a.timings[i] >= 0);
            sum += a.timings[i];
        }
        assert_true(a.timings[1] > 0 && a.timings[3] > 0 && a.timings[4] > 0);
        assert_true(sum > 0.999999 * a.timings[6] && sum < 1.000001 * a.timings[6]);
    }
    put_content(&b, SEEDS(0), "all");
    assert_int_equal(ask(s, b.data, "", &a), 200);
    assert_true(a.timings[1] == -1 && a.timings[3] == -1);
    double sum = a.timings[0] + a.timings[2] + a.timings[4] + a.timings[5];
    assert_true(sum > 0.999999 * a.timings[6] && sum < 1.000001 * a.timings[6]);
    assert_true(metric(s->base, "day0_images_total") == 6);
    assert_true(metric(s->base, "day0_images_encoded_total") == 6);
    assert_true(metric(s->base, "day0_image_decode_seconds_count") == 6);
    assert_true(metric(s->base, "day0_image_preprocess_seconds_count") == 6);
    assert_true(metric(s->base, "day0_image_encode_seconds_count") == 6);
    assert_true(metric(s->base, "day0_images_seconds_count") == 2);
    assert_true(metric(s->base, "day0_vision_seconds_count") == 2);
    assert_true(metric(s->base, "day0_queue_seconds_count") == 3);
    assert_true(metric(s->base, "day0_prefill_seconds_count") == 3);
    double busy = metric(s->base, "day0_image_busy_seconds_total"),
           parts = metric(s->base, "day0_image_decode_seconds_sum") +
                   metric(s->base, "day0_image_preprocess_seconds_sum");
    assert_true(busy >= 0.999999 * parts && parts > 0);
    assert_true(metric(s->base, "day0_prompt_seconds_count") == 3);
    assert_true(metric(s->base, "day0_vision_busy_seconds_total") > 0);
    answer_release(&a);
    strbuf_release(&b);
    picture_server_stop(s);
}

static void cached_prefixes(void **state)
{
    (void)state;
    struct server *s = picture_server(PICTURE_QWEN, (struct serve_options){.prefix_cache = true},
                                      (struct session_options){0}),
                  *plain =
                      picture_server(PICTURE_QWEN, (struct serve_options){0}, (struct session_options){0});
    struct strbuf b = STRBUF_INIT;
    struct answer first = {0}, hit = {0}, other = {0}, fresh = {0};
    put_content(&b, SEEDS(1, 2, 3), LETTERS);
    assert_int_equal(ask(s, b.data, "", &first), 200);
    assert_int_equal(first.cached, 0);
    assert_int_equal(ask(s, b.data, "", &hit), 200);
    assert_true(hit.cached >= 16);
    assert_string_equal(hit.logprobs.data, first.logprobs.data);
    assert_true(metric(s->base, "day0_images_cached_total") > 0);
    /* the ids are the same, the last picture is another: only what comes before it is found */
    put_content(&b, SEEDS(1, 2, 4), LETTERS);
    assert_int_equal(ask(s, b.data, "", &other), 200);
    assert_true(other.cached > 0 && other.cached < hit.cached);
    assert_string_not_equal(other.logprobs.data, first.logprobs.data);
    assert_int_equal(ask(plain, b.data, "", &fresh), 200);
    assert_int_equal(fresh.cached, 0);
    assert_string_equal(other.logprobs.data, fresh.logprobs.data);
    /* the first one is another */
    put_content(&b, SEEDS(4, 2, 3), LETTERS);
    assert_int_equal(ask(s, b.data, "", &other), 200);
    assert_int_equal(other.cached, 0);
    assert_int_equal(ask(plain, b.data, "", &fresh), 200);
    assert_string_equal(other.logprobs.data, fresh.logprobs.data);
    all_is_free(s);
    answer_release(&first);
    answer_release(&hit);
    answer_release(&other);
    answer_release(&fresh);
    strbuf_release(&b);
    picture_server_stop(s);
    picture_server_stop(plain);
}

/* Request number i: of 10 kinds, with no, one or two pictures of different sizes. */
static void crowd_content(struct strbuf *b, int i)
{
    int kind = i % 10;
    strbuf_clear(b);
    for (int k = 0; k < kind % 3; k++) {
        picture_part(b, 8 + 8 * (uint32_t)kind, 40, (uint64_t)kind + 100 * (uint64_t)k + 1);
        strbuf_puts(b, ",");
    }
    strbuf_printf(b, TEXT_PART("%.*s"), 5 + 3 * kind, LETTERS);
}

/* The same request alone and in a crowd, while every third client of the crowd leaves. */
static void alone_and_in_a_crowd(void **state)
{
    (void)state;
    struct server *s =
        picture_server(PICTURE_QWEN, (struct serve_options){.prefix_cache = true, .picture_threads = 3},
                       (struct session_options){0});
    struct http_client *c = client_open();
    struct strbuf b = STRBUF_INIT;
    static const char stream[] = ",\"stream\":true,\"stream_options\":{\"include_usage\":true}";
    struct answer alone[10] = {0}, *many = calloc(CROWD, sizeof *many);
    assert_non_null(many);
    for (int i = 0; i < 10; i++) {
        crowd_content(&b, i);
        ask_along(s, c, b.data, stream, &alone[i]);
        client_run(c);
        assert_int_equal(alone[i].status, 200);
        assert_true(alone[i].done);
    }
    for (int i = 0; i < CROWD; i++) {
        many[i].leave_after = i % 3 == 2 ? 1 + i % 4 : 0;
        crowd_content(&b, i);
        ask_along(s, c, b.data, stream, &many[i]);
    }
    client_run(c);
    for (int i = 0; i < CROWD; i++) {
        if (many[i].leave_after == 0) {
            assert_true(many[i].done);
            assert_string_equal(many[i].logprobs.data, alone[i % 10].logprobs.data);
            assert_int_equal(many[i].images, alone[i % 10].images);
        }
        answer_release(&many[i]);
    }
    all_is_free(s);
    for (int i = 0; i < 10; i++)
        answer_release(&alone[i]);
    free(many);
    strbuf_release(&b);
    http_client_close(c);
    picture_server_stop(s);
}

/* Clients that leave before their pictures are made: nothing is left of them. */
static void leaving_early(void **state)
{
    (void)state;
    struct server *s = picture_server(PICTURE_QWEN, (struct serve_options){0}, (struct session_options){0});
    struct http_transfer *t[CROWD];
    struct http_client *c = client_open();
    struct strbuf b = STRBUF_INIT;
    struct answer left[CROWD] = {0}, a = {0};
    struct err e = {0};
    picture_part(&b, 600, 400, 7); /* takes a while to be made small */
    for (int i = 0; i < 3; i++) {
        strbuf_puts(&b, ",");
        picture_part(&b, 600, 400 + (uint32_t)i, 8 + (uint64_t)i);
    }
    for (int i = 0; i < CROWD; i++)
        t[i] = ask_along(s, c, b.data, "", &left[i]);
    for (int i = 0; i < 1000 && metric(s->base, "day0_images_waiting") < 8; i++)
        assert_int_equal(http_client_poll(c, 20000000, &e), 0);
    for (int i = 0; i < CROWD; i++)
        http_client_cancel(c, t[i]);
    client_run(c);
    all_is_free(s);
    assert_true(metric(s->base, "day0_requests_total{outcome=\"client_gone\"}") > 0);
    assert_true(metric(s->base, "day0_images_total") > metric(s->base, "day0_image_decode_seconds_count"));
    put_content(&b, SEEDS(1), "hello");
    assert_int_equal(ask(s, b.data, "", &a), 200); /* and the service goes on */
    for (int i = 0; i < CROWD; i++)
        answer_release(&left[i]);
    answer_release(&a);
    strbuf_release(&b);
    http_client_close(c);
    picture_server_stop(s);
}

/* Clients that leave within their answers: fewer steps than one answer takes, so nobody's request went on to
 * its own end. */
static void leaving_late(void **state)
{
    (void)state;
    struct server *s =
        picture_server(PICTURE_QWEN, (struct serve_options){0}, (struct session_options){.context = 4096});
    struct http_client *c = client_open();
    struct strbuf b = STRBUF_INIT;
    struct answer left[CROWD] = {0};
    const double steps = metric(s->base, "day0_steps_total");
    put_content(&b, SEEDS(1, 2), "hello");
    for (int i = 0; i < CROWD; i++) {
        left[i].leave_after = 2 + i % 3;
        ask_along(s, c, b.data, ",\"stream\":true,\"max_tokens\":3900", &left[i]);
    }
    client_run(c);
    all_is_free(s);
    assert_true(metric(s->base, "day0_requests_total{outcome=\"client_gone\"}") == CROWD);
    assert_in_range((uint64_t)(metric(s->base, "day0_steps_total") - steps), 1, 3899);
    for (int i = 0; i < CROWD; i++)
        answer_release(&left[i]);
    strbuf_release(&b);
    http_client_close(c);
    picture_server_stop(s);
}

/* The tower fails on some pictures (tests/plugins/tower_device.c): these requests end with an error, behind
 * pictures that went well too; the others get what they get alone, and nothing is kept. */
static void tower_that_fails(void **state)
{
    (void)state;
    struct server *s = picture_server(
        PICTURE_QWEN, (struct serve_options){.prefix_cache = true},
        (struct session_options){.device = TEST_BUILD_ROOT "/tests/plugins/libtower_device.so"});
    static const char stream[] = ",\"stream\":true";
    struct http_client *c = client_open();
    struct strbuf good = STRBUF_INIT, bad = STRBUF_INIT;
    struct answer alone = {0}, many[24] = {0};
    put_content(&good, SEEDS(1, 2), LETTERS);
    if (ask(s, good.data, "", &alone) != 200)
        fail_msg("%s", alone.message);
    picture_part(&bad, 16, 24, 3);
    strbuf_puts(&bad, ",");
    picture_part(&bad, 64, 64, 4); /* 256 patches */
    strbuf_puts(&bad, "," TEXT_PART("hello"));
    assert_int_equal(ask(s, bad.data, "", &many[0]), 500);
    assert_string_equal(many[0].code, "step_failed");
    assert_non_null(strstr(many[0].message, "256 rows are too many"));
    all_is_free(s);
    for (size_t i = 0; i < ARRAY_LEN(many); i++) {
        answer_release(&many[i]);
        ask_along(s, c, i % 3 == 1 ? bad.data : good.data, stream, &many[i]);
    }
    client_run(c);
    for (size_t i = 0; i < ARRAY_LEN(many); i++) {
        if (i % 3 == 1) {
            assert_string_equal(many[i].code, "step_failed");
            assert_int_equal(many[i].text.len, 0);
        } else {
            assert_true(many[i].done);
            assert_string_equal(many[i].logprobs.data, alone.logprobs.data);
        }
        answer_release(&many[i]);
    }
    assert_true(metric(s->base, "day0_vision_failed_total") == 9);
    assert_true(metric(s->base, "day0_ready") == 1); /* a picture is not the engine */
    all_is_free(s);
    answer_release(&alone);
    strbuf_release(&good);
    strbuf_release(&bad);
    http_client_close(c);
    picture_server_stop(s);
}

/* A stop while pictures wait and are made. */
static void stop_in_between(void **state)
{
    (void)state;
    struct server *s =
        picture_server(PICTURE_QWEN, (struct serve_options){.drain_ns = 1}, (struct session_options){0});
    struct http_client *c = client_open();
    struct strbuf b = STRBUF_INIT;
    struct answer a[20] = {0};
    struct err e = {0};
    picture_part(&b, 900, 700, 7);
    for (size_t i = 0; i < ARRAY_LEN(a); i++)
        ask_along(s, c, b.data, "", &a[i]);
    for (int i = 0; i < 50 && metric(s->base, "day0_images_total") == 0; i++)
        assert_int_equal(http_client_poll(c, 20000000, &e), 0);
    assert_true(metric(s->base, "day0_images_total") > metric(s->base, "day0_image_decode_seconds_count"));
    picture_server_stop(s);
    http_client_close(c);
    for (size_t i = 0; i < ARRAY_LEN(a); i++)
        answer_release(&a[i]);
    strbuf_release(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pictures_change_answers), cmocka_unit_test(times_are_told),
        cmocka_unit_test(cached_prefixes),         cmocka_unit_test(alone_and_in_a_crowd),
        cmocka_unit_test(leaving_early),           cmocka_unit_test(leaving_late),
        cmocka_unit_test(tower_that_fails),        cmocka_unit_test(stop_in_between),
    };
    return cmocka_run_group_tests_name("serve_pictures", tests, NULL, NULL);
}
