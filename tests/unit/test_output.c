/* SPDX-License-Identifier: Apache-2.0
 *
 * What a model writes -> events: one table of outputs for each family, every one of them whole, cut in two at
 * every byte, and byte by byte; what is no call, what is not finished, what is hostile.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "output_fixture.h"
#include "tiny_tokenizer.h"

static struct output_rules *rules_of(struct fixture *f, const char *format, const struct tokenizer *t)
{
    struct output_rules *r = NULL;
    struct err e = {0};
    const struct json *v = json_get(f->formats, format);
    assert_non_null(v);
    if (output_rules_compile(&r, without_needs(&f->arena, v), t, "", &f->arena, &e))
        fail_msg("%s: %s", format, e.message);
    assert_non_null(r);
    return r;
}

enum { STOPPED = 0, LENGTH = 1, NO_TOOLS = 2 };

static const char weather_tools[] = "[{\"type\":\"function\",\"function\":{\"name\":\"find\",\"parameters\":{"
                                    "\"type\":\"object\",\"properties\":{"
                                    "\"code\":{\"type\":\"string\"},\"n\":{\"type\":\"integer\"}}}}}]";

static struct output_counts run_cut(struct fixture *f, const struct output_rules *r, const char *prompt,
                                    unsigned how, const char *text, size_t n, const size_t *cuts,
                                    size_t n_cuts, struct event_log *log)
{
    static const struct json *tools;
    struct output_parser *p = NULL;
    struct err e = {0};
    assert_int_equal(json_parse(weather_tools, sizeof weather_tools - 1, NULL, &f->arena, &tools, NULL), 0);
    struct output_options o = {
        .calls = !(how & NO_TOOLS), .tools = tools, .prompt = prompt, .n_prompt = strlen(prompt)};
    assert_int_equal(output_open(&p, r, &o, log_event, log, &e), 0);
    size_t from = 0;
    for (size_t i = 0; i <= n_cuts; i++) {
        size_t to = i < n_cuts ? cuts[i] : n;
        assert_int_equal(output_text(p, text + from, to - from, &e), 0);
        from = to;
    }
    assert_int_equal(output_finish(p, !(how & LENGTH), &e), 0);
    log_close(log);
    struct output_counts counts = *output_counts(p);
    output_close(p);
    return counts;
}

struct expected {
    const char *format, *prompt, *output, *events;
    unsigned how;
    uint32_t malformed, unfinished;
};

static void check_log(const struct expected *x, struct event_log *log, struct output_counts c, size_t cut)
{
    if (strcmp(strbuf_cstr(&log->text), x->events) != 0)
        fail_msg("%s, %s, cut at %zu:\n got  %s\n want %s", x->format, x->output, cut,
                 strbuf_cstr(&log->text), x->events);
    if (c.malformed != x->malformed || c.unfinished != x->unfinished)
        fail_msg("%s, %s, cut at %zu: %u malformed, %u unfinished", x->format, x->output, cut, c.malformed,
                 c.unfinished);
    strbuf_release(&log->text);
    *log = (struct event_log){0};
}

/* Whole, in two at every byte, and byte by byte. */
static void check(struct fixture *f, const struct expected *x)
{
    struct output_rules *r = rules_of(f, x->format, NULL);
    struct event_log log = {0};
    const char *prompt = x->prompt ? x->prompt : "";
    size_t n = strlen(x->output), *all = calloc(n + 1, sizeof *all);
    assert_non_null(all);
    check_log(x, &log, run_cut(f, r, prompt, x->how, x->output, n, NULL, 0, &log), 0);
    for (size_t cut = 1; cut < n; cut++)
        check_log(x, &log, run_cut(f, r, prompt, x->how, x->output, n, &cut, 1, &log), cut);
    for (size_t i = 0; i < n; i++)
        all[i] = i;
    check_log(x, &log, run_cut(f, r, prompt, x->how, x->output, n, all, n, &log), n);
    free(all);
}

#define B(x)              "<\xEF\xBD\x9C" x "\xEF\xBD\x9C>"
#define T                 "\xE2\x96\x81"
#define DS_CALLS(x)       B("tool" T "calls" T "begin") x B("tool" T "calls" T "end")
#define DS_BEGIN          B("tool" T "call" T "begin")
#define DS_END            B("tool" T "call" T "end")
#define DS_SEP            B("tool" T "sep")
#define K2(x)             "<|tool_calls_section_begin|>" x "<|tool_calls_section_end|>"
#define K2_CALL(id, args) "<|tool_call_begin|>" id "<|tool_call_argument_begin|>" args "<|tool_call_end|>"
#define K3_OPEN(x)        "<|open|>" x "<|sep|>"
#define K3_CLOSE(x)       "<|close|>" x "<|sep|>"
#define K3_ARG(k, t, v)   K3_OPEN("argument key=\"" k "\" type=\"" t "\"") v K3_CLOSE("argument")
#define DSML(x)                                                                                              \
    "<\xEF\xBD\x9C"                                                                                          \
    "DSML\xEF\xBD\x9C" x

static const struct expected families[] = {
    /* reasoning alone */
    {"think", NULL, "<think>\nwhy\n</think>\n\nso", "R[why]C[so]", 0, 0, 0},
    {"think", "a<think>\n", "why\n</think>\nso\n", "R[why]C[so\n]", 0, 0, 0},
    {"think", "a<think>\n\n</think>\n\n", "so", "C[so]", 0, 0, 0},
    {"think", "a<think></think>", "\n\nso", "C[so]", 0, 0, 0},
    {"think", NULL, " plain </think> <thin\n", "C[ plain </think> <thin\n]", 0, 0, 0},
    {"think", "<think>", "cut sho", "R[cut sho]", LENGTH, 0, 0},
    {"think", NULL, "<think></think>x", "C[x]", 0, 0, 0},
    /* Hermes: Qwen2.5, Qwen3 */
    {"hermes", NULL, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>",
     "T(f||{\"a\": 1})", 0, 0, 0},
    {"hermes", NULL,
     "<think>\nx\n</think>\n\nI "
     "look.\n<tool_call>\n{\"name\":\"f\",\"arguments\":{\"a\":{\"b\":[1,{\"c\":null}]}}}\n"
     "</tool_call>\n<tool_call>\n{\"name\":\"g\",\"arguments\":{\"t\":\"\xC3\xBC \\u00fc "
     "\xE4\xBD\xA0\"}}\n</tool_call>",
     "R[x]C[I look.]T(f||{\"a\":{\"b\":[1,{\"c\":null}]}})T(g||{\"t\":\"\xC3\xBC \\u00fc \xE4\xBD\xA0\"})", 0,
     0, 0},
    {"hermes", NULL, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"</tool_call> \\\" {\"}}</tool_call>.",
     "T(f||{\"a\":\"</tool_call> \\\" {\"})C[.]", 0, 0, 0},
    {"hermes", NULL, "<tool_call>{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":1}\"}</tool_call>",
     "T(f||{\"a\":1})", 0, 0, 0},
    {"hermes", NULL, "<tool_call>{\"name\":\"f\"}</tool_call>", "T(f||{})", 0, 0, 0},
    {"hermes", NULL, "<tool_call>{\"name\":\"f\",\"arguments\":null}</tool_call>", "T(f||{})", 0, 0, 0},
    {"hermes", NULL, "<tool_call>{\"arguments_of\":1,\"name\":\"f\",\"arguments\":{\"a\":1}}</tool_call>",
     "T(f||{\"a\":1})", 0, 0, 0},
    {"hermes", "<think>", "a<tool_call>{\"name\":\"f\"}</tool_call></think>b",
     "R[a<tool_call>{\"name\":\"f\"}</tool_call>]C[b]", 0, 0, 0}, /* thinking of a call is none */
    {"hermes", NULL, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"x\n}}</tool_call>so",
     "C[<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"x\n}}</tool_call>so]", 0, 1,
     0}, /* no string of JSON */
    {"hermes", NULL,
     "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":12345678901234567890123,\"b\":1.50}}</tool_call>",
     "T(f||{\"a\":12345678901234567890123,\"b\":1.50})", 0, 0, 0},
    {"hermes", NULL, "so <tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}\n</tool_call>!",
     "C[so <tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}\n</tool_call>!]", 0, 1, 0},
    {"hermes", NULL, "<tool_call>{\"name\":\"f\",\"arguments\":[1]}</tool_call>",
     "C[<tool_call>{\"name\":\"f\",\"arguments\":[1]}</tool_call>]", 0, 1, 0},
    {"hermes", NULL, "<tool_call>{\"name\":\"\",\"arguments\":{}}</tool_call>",
     "C[<tool_call>{\"name\":\"\",\"arguments\":{}}</tool_call>]", 0, 1, 0},
    {"hermes", NULL, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1,\"a\":2}}</tool_call>",
     "C[<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1,\"a\":2}}</tool_call>]", 0, 1, 0},
    {"hermes", NULL, "<tool_call>{\"name\":\"f\",\"argu", "C[<tool_call>{\"name\":\"f\",\"argu]", LENGTH, 0,
     1},
    {"hermes", NULL, "<tool_call>\n{\"name\":\"f\",\"arguments\":{}}\n", "T(f||{})", 0, 0,
     0}, /* no closing marker */
    {"hermes", NULL, "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>",
     "C[<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>]", NO_TOOLS, 0, 0},
    {"hermes", NULL, "a <tool_cal", "C[a <tool_cal]", LENGTH, 0, 0},
    {"hermes", NULL, "\n\nhello\n\n", "C[\n\nhello\n\n]", 0, 0, 0},
    /* Qwen3-Coder */
    {"qwen3_coder", NULL,
     "Well.\n<tool_call>\n<function=find>\n<parameter=code>\n42\n</parameter>\n<parameter=n>\n7\n</"
     "parameter>\n"
     "</function>\n</tool_call>",
     "C[Well.]T(find||{\"code\":\"42\",\"n\":7})", 0, 0, 0},
    {"qwen3_coder", NULL,
     "<tool_call>\n<function=other>\n<parameter=a>\n{\"x\": [1, "
     "\"\xC3\xA9\"]}\n</parameter>\n<parameter=b>\n two\nlines "
     "\n</parameter>\n<parameter=c>\n5\n</parameter>\n</function>\n</"
     "tool_call>\n<tool_call>\n<function=g>\n</function>\n"
     "</tool_call>",
     "T(other||{\"a\":{\"x\": [1, \"\xC3\xA9\"]},\"b\":\" two\\nlines \",\"c\":5})T(g||{})", 0, 0, 0},
    {"qwen3_coder", NULL, "<tool_call>\n<function=f>\n<parameter=a>\n1\n</para</function>\n</tool_call>",
     "C[<tool_call>\n<function=f>\n<parameter=a>\n1\n</para</function>\n</tool_call>]", 0, 1, 0},
    {"qwen3_coder", NULL, "<tool_call>\n<function=f>\n<parameter=a>\n1",
     "C[<tool_call>\n<function=f>\n<parameter=a>\n1]", LENGTH, 0, 1},
    {"qwen3_coder", NULL, "<tool_call><function=other><parameter=code>42</parameter></function></tool_call>",
     "T(other||{\"code\":42})", 0, 0, 0}, /* the schema is another tool's */
    {"qwen3_coder", NULL, "<tool_call><function=f></function>more</tool_call>",
     "C[<tool_call><function=f></function>more</tool_call>]", 0, 1, 0},
    {"qwen3_coder", NULL,
     "<tool_call><function=f><parameter=a>1</parameter><parameter=a>2</parameter></function></tool_call>",
     "C[<tool_call><function=f><parameter=a>1</parameter><parameter=a>2</parameter></function></tool_call>]",
     0, 1, 0},
    /* GLM 4.5 and later */
    {"glm", "<think>",
     "r</think>Now.<tool_call>find<arg_key>code</arg_key><arg_value>7</arg_value><arg_key>n</"
     "arg_key>\n<arg_value>7"
     "</arg_value></tool_call>",
     "R[r]C[Now.]T(find||{\"code\":\"7\",\"n\":7})", 0, 0, 0},
    {"glm", "</think>",
     "<tool_call>f\n<arg_key>q</arg_key>\n<arg_value>{\"a\": [true, "
     "\"<\"]}</arg_value>\n</tool_call>\n<tool_call>g"
     "</tool_call>",
     "T(f||{\"q\":{\"a\": [true, \"<\"]}})T(g||{})", 0, 0, 0},
    {"glm", NULL, "<tool_call>f<arg_key>q</arg_key><arg_value>1",
     "C[<tool_call>f<arg_key>q</arg_key><arg_value>1]", LENGTH, 0, 1},
    {"glm", NULL, "<tool_call>two words<arg_key>q</arg_key><arg_value>1</arg_value></tool_call>",
     "C[<tool_call>two words<arg_key>q</arg_key><arg_value>1</arg_value></tool_call>]", 0, 1, 0},
    /* Kimi K2 */
    {"kimi_k2", "<think>",
     "hm</think>Let me see." K2(K2_CALL("functions.get_weather:0", "{\"city\": \"Paris\"}")
                                    K2_CALL("functions.f:1", "{}")),
     "R[hm]C[Let me see.]T(get_weather|functions.get_weather:0|{\"city\": \"Paris\"})T(f|functions.f:1|{})",
     0, 0, 0},
    {"kimi_k2", "<think>", "hm " K2(K2_CALL("functions.f:2", " {\"a\":{\"b\":[]}} ")) " ",
     "R[hm]T(f|functions.f:2|{\"a\":{\"b\":[]}})", 0, 0, 0},
    {"kimi_k2", NULL, "x " K2(K2_CALL("functions.f:0", "{bad}")),
     "C[x " K2_CALL("functions.f:0", "{bad}") "]", 0, 1, 0},
    {"kimi_k2", NULL, K2("noise " K2_CALL("f:0", "{}")), "C[noise ]T(f|f:0|{})", 0, 1, 0},
    {"kimi_k2", NULL, K2(K2_CALL("functions.f:", "{}") K2_CALL("functions.", "{}")),
     "T(f:|functions.f:|{})T(functions.|functions.|{})", 0, 0, 0},
    {"kimi_k2", NULL, K2(K2_CALL("f :0", "{}")), "C[" K2_CALL("f :0", "{}") "]", 0, 1, 0},
    {"kimi_k2", NULL,
     "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"a\":",
     "C[<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"a\":]", LENGTH, 0, 1},
    /* DeepSeek V3 and R1, V3.1, V3.2 */
    {"deepseek_v3", "<think>\n",
     "r\n</think>\n\n" DS_CALLS(DS_BEGIN "function" DS_SEP "f\n```json\n{\"a\": \"``` {\"}\n```" DS_END
                                         "\n" DS_BEGIN "function" DS_SEP "g\n```json\n{}\n```" DS_END),
     "R[r]T(f||{\"a\": \"``` {\"})T(g||{})", 0, 0, 0},
    {"deepseek_v3", "</think>", "Hi. " DS_CALLS(DS_BEGIN "f" DS_SEP "{\"a\":[{}]}" DS_END),
     "C[Hi.]T(f||{\"a\":[{}]})", 0, 0, 0},
    {"deepseek_v3", "", DS_CALLS(DS_BEGIN "f" DS_SEP "no" DS_END), "C[" DS_BEGIN "f" DS_SEP "no" DS_END "]",
     0, 1, 0},
    {"deepseek_v32", "</think>",
     "Go\n\n" DSML("function_calls>\n") DSML("invoke name=\"f\">\n")
         DSML("parameter name=\"a\" string=\"true\">7</") "\xEF\xBD\x9C"
                                                          "DSML\xEF\xBD\x9Cparameter>\n" DSML(
                                                              "parameter name=\"b\" "
                                                              "string=\"false\">[7]</") "\xEF\xBD\x9C"
                                                                                        "DSML\xEF\xBD\x9C"
                                                                                        "parameter>\n</"
                                                                                        "\xEF\xBD\x9C"
                                                                                        "DSML\xEF\xBD\x9C"
                                                                                        "invoke>\n</"
                                                                                        "\xEF\xBD\x9C"
                                                                                        "DSML\xEF\xBD\x9C"
                                                                                        "function_calls>",
     "C[Go]T(f||{\"a\":\"7\",\"b\":[7]})", 0, 0, 0},
    /* Llama 3.x */
    {"llama3", NULL, "{\"name\": \"f\", \"parameters\": {\"a\": \"x}\"}}", "T(f||{\"a\": \"x}\"})", 0, 0, 0},
    {"llama3", NULL,
     "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", \"arguments\": {\"b\":[]}}",
     "T(f||{})T(g||{\"b\":[]})", 0, 0, 0},
    {"llama3", NULL, "{\"a\": 1} is JSON", "C[{\"a\": 1} is JSON]", 0, 0, 0},
    {"llama3", NULL, "{\"a\": 1} {\"name\": \"f\"}", "C[{\"a\": 1} {\"name\": \"f\"}]", 0, 0, 0},
    {"llama3", NULL, "{\"name\": \"f\"}; {\"a\": 1}", "T(f||{})C[; {\"a\": 1}]", 0, 1, 0},
    {"llama3", NULL, "{\"name\": \"f\", \"param", "C[{\"name\": \"f\", \"param]", LENGTH, 0, 1},
    {"llama3", NULL, " text {\"name\": \"f\", \"parameters\": {}}",
     "C[ text {\"name\": \"f\", \"parameters\": {}}]", 0, 0, 0},
    {"llama3", NULL, "<|python_tag|>print(1)", "C[<|python_tag|>print(1)]", 0, 1, 0},
    {"llama3", NULL, "{\"name\": \"f\", \"parameters\": {}}", "C[{\"name\": \"f\", \"parameters\": {}}]",
     NO_TOOLS, 0, 0},
    /* Kimi K3 */
    {"kimi_k3", K3_OPEN("think"),
     "why " K3_CLOSE("think") K3_OPEN("response") "\nSo. " K3_CLOSE("response") K3_OPEN("tools")
         K3_OPEN("call tool=\"get&quot;&amp;\" index=\"1\"") K3_ARG("city", "string", "5 \"x\"\n")
             K3_ARG("n", "number", "7") K3_ARG("o", "object", "{\"a\": [null]}") K3_CLOSE("call") K3_OPEN(
                 "call tool=\"g\" index=\"2\"") K3_CLOSE("call") K3_CLOSE("tools") K3_CLOSE("message"),
     "R[why ]C[\nSo. ]T(get\"&||{\"city\":\"5 \\\"x\\\"\\n\",\"n\":7,\"o\":{\"a\": [null]}})T(g||{})", 0, 0,
     0},
    {"kimi_k3", K3_OPEN("response"), "Hi" K3_CLOSE("response") K3_CLOSE("message") "<|end_of_msg|>", "C[Hi]",
     0, 0, 0},
    {"kimi_k3", K3_OPEN("response"),
     K3_CLOSE("response") K3_OPEN("tools") K3_OPEN("call tool=\"f\" index=\"1\"")
         K3_OPEN("json type=\"object\"") "{\"a\":1}" K3_CLOSE("json") K3_CLOSE("call") K3_CLOSE("tools"),
     "T(f||{\"a\":1})", 0, 0, 0},
    {"kimi_k3", K3_OPEN("response"),
     K3_CLOSE("response") K3_OPEN("tools") K3_OPEN("call tool=\"f\" index=\"1\"")
         K3_OPEN("json type=\"object\"") "{\"a\":\"" K3_CLOSE("json") "\"}" K3_CLOSE("json") K3_CLOSE("call")
             K3_CLOSE("tools"),
     "T(f||{\"a\":\"" K3_CLOSE("json") "\"})", 0, 0, 0},
    {"kimi_k3", K3_OPEN("response"),
     K3_CLOSE("response") K3_OPEN("tools") K3_OPEN("call tool=\"f\" index=\"1\"") K3_ARG("n", "number", "x")
         K3_CLOSE("call") K3_CLOSE("tools"),
     "C[" K3_OPEN("call tool=\"f\" index=\"1\"") K3_ARG("n", "number", "x") K3_CLOSE("call") "]", 0, 1, 0},
    {"kimi_k3", K3_OPEN("response"),
     K3_CLOSE("response") K3_OPEN("tools") K3_OPEN("call tool=\"f\" index=\"1\""),
     "C[" K3_OPEN("call tool=\"f\" index=\"1\"") "]", LENGTH, 0, 1},
    /* gpt-oss */
    {"harmony", "<|start|>assistant",
     "<|channel|>analysis<|message|>why<|end|><|start|>assistant<|channel|>final<|message|>so {}<|return|>",
     "R[why]C[so {}]", 0, 0, 0},
    {"harmony", "<|start|>assistant",
     "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant to=functions.f<|channel|>commentary "
     "<|constrain|>json<|message|>{\"a\": {\"b\": \"\xC3\xA9\"}}<|call|>",
     "C[I look.]T(f||{\"a\": {\"b\": \"\xC3\xA9\"}})", 0, 0, 0},
    {"harmony", "<|start|>assistant", "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}",
     "T(f||{})", 0, 0, 0},
    {"harmony", "<|start|>assistant", "<|channel|>commentary to=functions.f<|constrain|>json<|message|>{}",
     "T(f||{})", 0, 0, 0},
    {"harmony", "<|start|>assistant", "<|channel|>commentary to=functions.f<|message|>{\"a\":", "C[{\"a\":]",
     LENGTH, 0, 1},
    {"harmony", "<|start|>assistant", "<|channel|>commentary to=functions.f<|message|>nothing<|call|>",
     "C[nothing]", 0, 1, 0},
    {"harmony", "<|start|>assistant", "<|channel|>anal", "", LENGTH, 0, 1},
    {"harmony", "<|start|>assistant", "<|channel|>commentary Hello<|end|>",
     "C[assistant<|channel|>commentary Hello]", 0, 1, 0},
    {"harmony", "", "<|channel|>final<|message|>x<|end|>", "C[x]", 0, 0, 0},
    {"harmony", "", "<|channel|>final to=assistant<|message|>x<|end|>", "C[x]", 0, 0, 0},
    {"harmony", "", "<|channel|>final<|start|>assistant<|channel|>final<|message|>x<|end|>",
     "C[<|channel|>finalx]", 0, 1, 0},
    {"harmony", "", "<|channel|>final<|message|>x<|end|><|start|>", "C[x]", LENGTH, 0, 0},
    {"harmony", "", "just text", "C[just text]", 0, 1, 0},
};

static void outputs_of_families(void **state)
{
    for (size_t i = 0; i < ARRAY_LEN(families); i++)
        check(*state, &families[i]);
}

/* ---- markers as tokens ---- */

/* Where the tokenizer has the marker, only the token is one: text that looks like it is text. */
static void tokens_are_not_text(void **state)
{
    struct fixture *f = *state;
    struct strbuf b = STRBUF_INIT;
    struct tokenizer *t = NULL;
    struct event_log log = {0};
    struct output_parser *p = NULL;
    struct err e = {0};
    static const char added[] =
        ",{\"id\":300,\"content\":\"<|tool_calls_section_begin|>\",\"special\":true,\"normalized\":false}"
        ",{\"id\":301,\"content\":\"<|tool_call_begin|>\",\"special\":true,\"normalized\":false}"
        ",{\"id\":302,\"content\":\"<|tool_call_argument_begin|>\",\"special\":true,\"normalized\":false}"
        ",{\"id\":303,\"content\":\"<|tool_call_end|>\",\"special\":true,\"normalized\":false}"
        ",{\"id\":304,\"content\":\"<|tool_calls_section_end|>\",\"special\":true,\"normalized\":false}";
    tiny_tokenizer(&b, &(struct tiny_options){.added = added});
    assert_int_equal(tokenizer_open(&t, b.data, b.len, NULL, &e), 0);
    const struct output_rules *r = rules_of(f, "kimi_k2", t);
    struct output_options o = {.calls = true, .prompt = ""};
    assert_int_equal(output_open(&p, r, &o, log_event, &log, &e), 0);
    assert_true(output_is_marker(p, 301));
    assert_false(output_is_marker(p, 260));
#define TEXT(s)  assert_int_equal(output_text(p, s, sizeof(s) - 1, &e), 0)
#define TOKEN(i) assert_int_equal(output_marker(p, i, &e), 0)
    TEXT(K2(K2_CALL("functions.no:0", "{}")) " \xFF<|tool_call_begin|>\xFE ");
    TOKEN(300);
    TOKEN(301);
    TEXT("functions.f:0");
    TOKEN(302);
    TEXT("{\"a\":\"<|tool_call_end|> \\");
    TEXT("\" \"}");
    TOKEN(303);
    TOKEN(301);
    TEXT("functions.g:1");
    TOKEN(302);
    TEXT("{\"a\":\"");
    TOKEN(303); /* within a string: it ends the call all the same */
    TOKEN(304);
    TEXT("end");
    assert_int_equal(output_finish(p, true, &e), 0);
    log_close(&log);
    assert_string_equal(
        strbuf_cstr(&log.text),
        "C[" K2(K2_CALL("functions.no:0", "{}")) " ?<|tool_call_begin|>?]"
                                                 "T(f|functions.f:0|{\"a\":\"<|tool_call_end|> \\\" \"})"
                                                 "C[<|tool_call_begin|>functions.g:1<|tool_call_argument_"
                                                 "begin|>{\"a\":\"<|tool_call_end|>end]");
    assert_int_equal(output_counts(p)->malformed, 1);
    output_close(p);
    strbuf_release(&log.text);
    tokenizer_close(t);
    strbuf_release(&b);
}

/* ---- hostile ---- */

static void long_calls_are_text(void **state)
{
    struct fixture *f = *state;
    struct output_rules *r = rules_of(f, "hermes", NULL);
    size_t n = (1u << 20) + 4000;
    struct strbuf b = STRBUF_INIT;
    strbuf_puts(&b, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"");
    for (size_t i = 0; i < n; i++)
        strbuf_putc(&b, 'x');
    strbuf_puts(&b, "\"}}</tool_call>");
    assert_false(strbuf_failed(&b));
    n = b.len;
    char *text = strbuf_detach(&b);
    struct event_log whole = {0}, cut = {0};
    size_t cuts[] = {1000, 500000, 1u << 20, (1u << 20) + 100, (1u << 20) + 700, n - 3};
    struct output_counts c = run_cut(f, r, "", 0, text, n, NULL, 0, &whole);
    assert_int_equal(c.calls, 0);
    assert_int_equal(c.malformed, 1);
    c = run_cut(f, r, "", 0, text, n, cuts, ARRAY_LEN(cuts), &cut);
    assert_int_equal(c.malformed, 1);
    assert_int_equal(whole.text.len, n + 3); /* C[ ] */
    assert_true(memcmp(whole.text.data + 2, text, n) == 0);
    assert_string_equal(whole.text.data, cut.text.data);
    strbuf_release(&whole.text);
    strbuf_release(&cut.text);
    free(text);
}

/* One fault, however much text follows it. */
static void long_headers_are_text(void **state)
{
    struct fixture *f = *state;
    struct output_rules *r = rules_of(f, "harmony", NULL);
    struct strbuf b = STRBUF_INIT;
    struct event_log log = {0};
    strbuf_puts(&b, "<|channel|>");
    for (int i = 0; i < 3000; i++)
        strbuf_puts(&b, "ab ");
    struct output_counts c = run_cut(f, r, "", 0, strbuf_cstr(&b), b.len, NULL, 0, &log);
    assert_int_equal(c.malformed, 1);
    assert_int_equal(log.notes, 1);
    assert_int_equal(log.text.len, b.len + 3); /* C[ ] */
    assert_memory_equal(log.text.data + 2, b.data, b.len);
    strbuf_release(&log.text);
    strbuf_release(&b);
}

/* Rules that mean nothing are refused, with the name of what is wrong. */
static void wrong_rules(void **state)
{
    struct fixture *f = *state;
    static const struct {
        const char *rules, *what;
    } bad[] = {
        {"{\"name\":\"x\",\"resoning\":{}}", "resoning"},
        {"{\"reasoning\":{\"open\":\"a\",\"close\":\"b\"}}", "name"},
        {"{\"name\":\"x\",\"reasoning\":{\"open\":\"a\"}}", "close"},
        {"{\"name\":\"x\",\"reasoning\":{\"open\":\"\",\"close\":\"b\"}}", "open"},
        {"{\"name\":\"x\",\"tools\":{\"open\":\"a\",\"close\":\"b\"}}", "body"},
        {"{\"name\":\"x\",\"tools\":{\"open\":\"a\",\"close\":\"b\",\"body\":\"$nothing\"}}", "$"},
        {"{\"name\":\"x\",\"tools\":{\"open\":\"a\",\"close\":\"b\",\"body\":\"$name\"}}", "$json"},
        {"{\"name\":\"x\",\"tools\":{\"open\":\"a\",\"close\":\"b\",\"body\":\"$name$args\"}}", "argument"},
        {"{\"name\":\"x\",\"tools\":{\"open\":\"a\",\"close\":\"b\",\"body\":\"$name$json\"}}", "two fields"},
        {"{\"name\":\"x\",\"tools\":{\"open\":\"<a\",\"close\":\"b\",\"body\":\"$call\"},\"skip\":[\"<ab\"]}",
         "begins"},
        {"{\"name\":\"x\",\"tools\":{\"open\":\"a\",\"close\":\"b\",\"body\":\"$name<$args\",\"argument\":"
         "\"<$key=$value>$args\"}}",
         "field of body"},
        {"{\"name\":\"x\",\"tokens\":3}", "tokens"},
        {"{\"name\":\"x\",\"messages\":{\"start\":\"a\"}}", "channel"},
        {"[3]", "output"},
        {"3", "output"},
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        const struct json *v = NULL;
        struct output_rules *r = NULL;
        struct err e = {0};
        assert_int_equal(json_parse(bad[i].rules, strlen(bad[i].rules), NULL, &f->arena, &v, NULL), 0);
        assert_int_equal(output_rules_compile(&r, v, NULL, "", &f->arena, &e), ERR_FORMAT);
        assert_null(r);
        if (!strstr(e.message, bad[i].what))
            fail_msg("%s: %s", bad[i].rules, e.message);
    }
}

/* The first of a list that suits the tokenizer and the template. */
static void rules_are_chosen(void **state)
{
    struct fixture *f = *state;
    struct strbuf b = STRBUF_INIT;
    struct tokenizer *t = NULL;
    struct output_rules *r = NULL;
    struct json items[3], list = {.type = JSON_ARRAY, .n = 3, .as.items = items};
    items[0] = *json_get(f->formats, "qwen3_coder");
    items[1] = *json_get(f->formats, "hermes");
    items[2] = *json_get(f->formats, "think");
    tiny_tokenizer(
        &b, &(struct tiny_options){
                .added = ",{\"id\":300,\"content\":\"<tool_call>\",\"special\":false,\"normalized\":false}"});
    assert_int_equal(tokenizer_open(&t, b.data, b.len, NULL, NULL), 0);
    assert_int_equal(output_rules_compile(&r, &list, t, "... <function=", &f->arena, NULL), 0);
    assert_string_equal(output_rules_name(r), "qwen3-coder");
    assert_int_equal(output_rules_compile(&r, &list, t, "", &f->arena, NULL), 0);
    assert_string_equal(output_rules_name(r), "hermes");
    assert_int_equal(output_rules_compile(&r, &list, NULL, "", &f->arena, NULL), 0);
    assert_string_equal(output_rules_name(r), "think");
    list.n = 2;
    assert_int_equal(output_rules_compile(&r, &list, NULL, "", &f->arena, NULL), 0);
    assert_null(r);
    assert_string_equal(output_rules_name(r), "none");
    tokenizer_close(t);
    strbuf_release(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(outputs_of_families), cmocka_unit_test(tokens_are_not_text),
        cmocka_unit_test(long_calls_are_text), cmocka_unit_test(long_headers_are_text),
        cmocka_unit_test(wrong_rules),         cmocka_unit_test(rules_are_chosen),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
