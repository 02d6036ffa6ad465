/* SPDX-License-Identifier: Apache-2.0
 *
 * What the service refuses of pictures, before it decodes them where it can, naming the part; and what waits
 * for memory.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "picture_chat.h"

static void refusals(void **state)
{
    (void)state;
    static const struct {
        const char *content, *part, *code, *word;
    } cases[] = {
        {URL_PART("data:image/png;base64,iVBO*"), "messages[0].content[0]", "invalid_value", "base64"},
        {URL_PART("data:image/png;base64,iVBORw"), "messages[0].content[0]", "invalid_value", "base64"},
        {URL_PART("data:image/png;base64,AAAA"), "messages[0].content[0]", NULL, ""},
        {URL_PART("data:image/png,abc"), "messages[0].content[0]", "invalid_value", "base64"},
        {URL_PART("http://example.com/a.png"), "messages[0].content[0]", "unsupported", "fetches nothing"},
        {URL_PART("https://example.com/a.png"), "messages[0].content[0]", "unsupported", "data:"},
        {URL_PART("file:///etc/passwd"), "messages[0].content[0]", "unsupported", "fetches nothing"},
        {"{\"type\":\"image\",\"path\":\"/etc/passwd\"}", "messages[0].content[0]", "unsupported",
         "fetches nothing"},
        {"{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"image_url\"}", "messages[0].content[1]",
         "invalid_value", "url"},
        {"{\"type\":\"image_url\",\"image_url\":{\"url\":\"data:,\",\"detail\":\"low\"}}",
         "messages[0].content[0]", "unsupported", "detail"},
        {"{\"type\":\"text\",\"text\":\"a\",\"image\":\"data:image/png;base64,AAAA\"}",
         "messages[0].content[0]", "invalid_value", "has the key image,"}, /* the template looks at the key */
        {TEXT_PART("a") ",{\"type\":\"text\",\"text\":\"a\",\"image_url\":{\"url\":\"data:image/png;"
                        "base64,AAAA\"}}",
         "messages[0].content[1]", "invalid_value", "has the key image_url,"}, /* and at this one not */
        {"{\"type\":\"text\",\"text\":\"a\",\"image\":null}", "messages", "invalid_value",
         "no part is of type image"}, /* the template writes a place for it all the same */
        {"{\"type\":\"input_image\",\"image_url\":\"data:image/png;base64,AAAA\"}", NULL, "unsupported",
         "input_image"},
    };
    struct server *s = picture_server(
        PICTURE_QWEN, (struct serve_options){.max_pictures = 2, .max_pixels = 10000, .max_body = 1u << 20},
        (struct session_options){0});
    struct strbuf b = STRBUF_INIT, png = STRBUF_INIT;
    struct answer a = {0};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        if (ask(s, cases[i].content, "", &a) != 400 ||
            (cases[i].code && strcmp(a.code, cases[i].code) != 0) ||
            (cases[i].part && strcmp(a.param, cases[i].part) != 0) || !strstr(a.message, cases[i].word))
            fail_msg("%s: status %d, code %s, param %s: %s", cases[i].content, a.status, a.code, a.param,
                     a.message);
    }
    /* cut short: its header is whole, so this is seen by a thread of the pool */
    picture_png(&png, 16, 16, 1);
    strbuf_puts(&b, "{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"image_url\",\"image_url\":{\"url\":\""
                    "data:image/png;base64,");
    picture_base64(&b, png.data, png.len / 2);
    strbuf_puts(&b, "\"}}");
    assert_int_equal(ask(s, b.data, "", &a), 400);
    assert_string_equal(a.param, "messages[0].content[1]");
    assert_string_equal(a.code, "invalid_value");
    assert_int_equal(ask(s, b.data, ",\"stream\":true", &a), 400);
    /* more pixels than are taken, more pictures, a larger body */
    strbuf_clear(&b);
    picture_part(&b, 101, 100, 1);
    assert_int_equal(ask(s, b.data, "", &a), 400);
    assert_string_equal(a.param, "messages[0].content[0]");
    put_content(&b, SEEDS(1, 2, 3), "a");
    assert_int_equal(ask(s, b.data, "", &a), 400);
    assert_string_equal(a.param, "messages[0].content[2]");
    assert_true(metric(s->base, "day0_images_failed_total") == 2); /* these were seen before */
    all_is_free(s);
    put_content(&b, SEEDS(1, 2), "a");
    assert_int_equal(ask(s, b.data, "", &a), 200);
    answer_release(&a);
    strbuf_release(&png);
    strbuf_release(&b);
    picture_server_stop(s);
}

/* What this server's tower and store cannot hold is refused before anything is decoded. */
static void too_large(void **state)
{
    (void)state;
    struct server *s = picture_server(PICTURE_QWEN, (struct serve_options){0},
                                      (struct session_options){.max_patches = 64, .n_feature_rows = 20});
    struct strbuf b = STRBUF_INIT;
    struct answer a = {0};
    picture_part(&b, 64, 64, 1); /* 256 patches */
    assert_int_equal(ask(s, b.data, "", &a), 400);
    assert_string_equal(a.code, "image_too_large");
    assert_string_equal(a.param, "messages[0].content[0]");
    assert_non_null(strstr(a.message, "256 patches"));
    put_content(&b, SEEDS(1, 2, 3, 4), "a"); /* 24 rows */
    assert_int_equal(ask(s, b.data, "", &a), 400);
    assert_string_equal(a.code, "image_too_large");
    assert_string_equal(a.param, "messages[0].content[3]");
    put_content(&b, SEEDS(1, 2, 3), "a");
    assert_int_equal(ask(s, b.data, "", &a), 200);
    assert_true(metric(s->base, "day0_image_decode_seconds_count") == 3);
    all_is_free(s);
    picture_server_stop(s);
    s = picture_server(PICTURE_QWEN, (struct serve_options){.max_context = 17}, (struct session_options){0});
    put_content(&b, SEEDS(1, 2, 3), "a"); /* 18 rows */
    assert_int_equal(ask(s, b.data, "", &a), 400);
    assert_string_equal(a.code, "context_length_exceeded");
    assert_string_equal(a.param, "messages[0].content[2]");
    all_is_free(s);
    answer_release(&a);
    strbuf_release(&b);
    picture_server_stop(s);
}

/* A class row is a patch of the tower: a server that takes one fewer refuses the picture early. */
static void class_rows_count(void **state)
{
    (void)state;
    struct strbuf b = STRBUF_INIT;
    put_content(&b, SEEDS(1, 2), "hello");
    for (uint32_t most = 16; most <= 17; most++) {
        struct server *s = picture_server(PICTURE_LLAVA, (struct serve_options){0},
                                          (struct session_options){.max_patches = most});
        struct answer a = {0};
        assert_int_equal(ask(s, b.data, "", &a), most == 17 ? 200 : 400);
        assert_string_equal(a.code, most == 17 ? "" : "image_too_large");
        assert_true(most == 17 || strstr(a.message, "17 patches"));
        assert_true(metric(s->base, "day0_image_decode_seconds_count") == (most == 17 ? 2 : 0));
        all_is_free(s);
        answer_release(&a);
        picture_server_stop(s);
    }
    strbuf_release(&b);
}

/* Tokens that see each other go through one step whole: a server of smaller steps refuses the picture early,
 * and one of steps that just hold it gives what any other gives. */
static void spans_fit_a_step(void **state)
{
    (void)state;
    static const uint32_t chunks[] = {0, 16, 15};
    struct strbuf b = STRBUF_INIT;
    struct answer a[ARRAY_LEN(chunks)] = {{0}};
    strbuf_puts(&b, TEXT_PART("he and") ",");
    picture_part(&b, 16, 24, 1);
    strbuf_puts(&b, ",");
    picture_part(&b, 40, 24, 2);
    for (size_t i = 0; i < ARRAY_LEN(chunks); i++) {
        struct server *s = picture_server(PICTURE_GEMMA, (struct serve_options){.prefill_chunk = chunks[i]},
                                          (struct session_options){0});
        if (ask(s, b.data, "", &a[i]) != (i < 2 ? 200 : 400))
            fail_msg("chunk %u: %d %s", chunks[i], a[i].status, a[i].message);
        assert_true(metric(s->base, "day0_image_decode_seconds_count") == (i < 2 ? 2 : 0));
        all_is_free(s);
        picture_server_stop(s);
    }
    assert_int_equal(a[0].images, 32);
    assert_string_equal(a[0].logprobs.data, a[1].logprobs.data);
    assert_string_equal(a[2].code, "image_too_large");
    assert_string_equal(a[2].param, "messages[0].content[1]");
    assert_non_null(strstr(a[2].message, "16 tokens"));
    for (size_t i = 0; i < ARRAY_LEN(chunks); i++)
        answer_release(&a[i]);
    strbuf_release(&b);
}

static void without_a_tower(void **state)
{
    (void)state;
    struct server *s = picture_server(PICTURE_QWEN, (struct serve_options){0},
                                      (struct session_options){.images = SESSION_IMAGES_OFF});
    struct strbuf b = STRBUF_INIT;
    struct answer a = {0};
    put_content(&b, SEEDS(1), "a");
    assert_int_equal(ask(s, b.data, "", &a), 400);
    assert_string_equal(a.code, "unsupported");
    assert_string_equal(a.param, "messages[0].content[0]");
    assert_false(has_metric(s->base, "day0_images_total"));
    put_content(&b, SEEDS(0), "a");
    assert_int_equal(ask(s, b.data, "", &a), 200);
    answer_release(&a);
    strbuf_release(&b);
    picture_server_stop(s);
}

/* Where one picture at a time has room to be decoded in, the others wait for it, however many threads there
 * are, and all are answered; what never has room is refused before it is decoded. */
static void room_to_work(void **state)
{
    (void)state;
    struct server *s =
        picture_server(PICTURE_QWEN, (struct serve_options){.picture_bytes = 10 << 20, .picture_threads = 4},
                       (struct session_options){0});
    struct http_client *c = client_open();
    struct strbuf b = STRBUF_INIT;
    struct answer many[12] = {0}, refused = {0};
    for (size_t i = 0; i < ARRAY_LEN(many); i++) {
        strbuf_clear(&b);
        picture_part(&b, 220, 220, i + 1);
        strbuf_puts(&b, ",");
        picture_part(&b, 64, 64, i + 1);
        ask_along(s, c, b.data, "", &many[i]);
    }
    client_run(c);
    for (size_t i = 0; i < ARRAY_LEN(many); i++) {
        assert_int_equal(many[i].status, 200);
        answer_release(&many[i]);
    }
    strbuf_clear(&b);
    picture_part(&b, 64, 64, 1);
    strbuf_puts(&b, ",");
    picture_part(&b, 1000, 1000, 1); /* RGBA and RGB are 7 MB, and there are 5 MiB */
    assert_int_equal(ask(s, b.data, "", &refused), 400);
    if (!strstr(refused.message, "picture of 1000 x 1000 pixels takes up to"))
        fail_msg("%s", refused.message);
    assert_string_equal(refused.param, "messages[0].content[1]");
    strbuf_clear(&b);
    picture_part(&b, 1400, 1400, 1); /* the body alone is 8 MB */
    assert_int_equal(ask(s, b.data, "", &refused), 400);
    if (!strstr(refused.message, "all requests together may have 5242880"))
        fail_msg("%s", refused.message);
    answer_release(&refused);
    const double most = metric(s->base, "day0_image_most_working_bytes");
    assert_true(most > 4e5 && most <= 5 << 20);
    assert_true(metric(s->base, "day0_image_working_bytes") == 0);
    assert_true(metric(s->base, "day0_image_decode_seconds_count") == 2 * ARRAY_LEN(many));
    all_is_free(s);
    strbuf_release(&b);
    http_client_close(c);
    picture_server_stop(s);
}

/* Bodies that a thread of the pool reads are refused as others are; and where they and their pictures fill
 * the memory for them, some clients are told to come again, and none is forgotten. */
static void large_bodies(void **state)
{
    (void)state;
    struct server *s = picture_server(PICTURE_QWEN, (struct serve_options){.picture_bytes = 10 << 20},
                                      (struct session_options){0});
    struct http_client *c = client_open();
    struct strbuf b = STRBUF_INIT, text = STRBUF_INIT;
    struct answer a = {0}, many[48] = {0};
    for (int i = 0; i < 6000000; i++)
        strbuf_putc(&text, ' ');
    assert_int_equal(post(s, text.data, 300000, &a), 400);
    assert_string_equal(a.code, "invalid_json");
    static const char other[] = "{\"model\":\"x\",\"messages\":[1]}";
    memcpy(text.data, other, sizeof other - 1);
    assert_int_equal(post(s, text.data, 300000, &a), 404);
    assert_int_equal(post(s, text.data, 6000000, &a), 400); /* more than the memory for pictures */
    static const char good[] =
        "{\"model\":\"tiny\",\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"max_tokens\":1}";
    memcpy(text.data, good, sizeof good - 1);
    assert_int_equal(post(s, text.data, 300000, &a), 200);
    picture_part(&b, 500, 400, 7);
    for (size_t i = 0; i < ARRAY_LEN(many); i++)
        ask_along(s, c, b.data, "", &many[i]);
    client_run(c);
    int n_good = 0, n_busy = 0;
    for (size_t i = 0; i < ARRAY_LEN(many); i++) {
        n_good += many[i].status == 200;
        n_busy += many[i].status == 429;
        answer_release(&many[i]);
    }
    assert_true(n_good > 0 && n_busy > 0);
    assert_int_equal(n_good + n_busy, ARRAY_LEN(many));
    assert_true(metric(s->base, "day0_requests_total{outcome=\"queue_full\"}") == n_busy);
    all_is_free(s);
    answer_release(&a);
    strbuf_release(&b);
    strbuf_release(&text);
    http_client_close(c);
    picture_server_stop(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refusals),         cmocka_unit_test(too_large),
        cmocka_unit_test(class_rows_count), cmocka_unit_test(spans_fit_a_step),
        cmocka_unit_test(without_a_tower),  cmocka_unit_test(room_to_work),
        cmocka_unit_test(large_bodies),
    };
    return cmocka_run_group_tests_name("serve_pictures_refused", tests, NULL, NULL);
}
