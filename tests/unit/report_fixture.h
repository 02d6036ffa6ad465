/* SPDX-License-Identifier: Apache-2.0
 *
 * A synthetic report with every section filled, for tests of the writers and of the plots.
 */
#ifndef TEST_REPORT_FIXTURE_H
#define TEST_REPORT_FIXTURE_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "adapt/report.h"
#include "base/hash.h"
#include "stress/stress.h"

struct fixture {
    struct arena arena;
    struct adapt_result result;
    struct report report;
};

static inline const struct json *fixture_json(struct fixture *x, const char *text)
{
    const struct json *out = NULL;
    struct err e = {0};
    if (json_parse(text, strlen(text), NULL, &x->arena, &out, &e) != ERR_OK) {
        fprintf(stderr, "fixture: %s in %s\n", e.message, text);
        abort();
    }
    return out;
}

static inline const char *fixture_stage1(void)
{
    return "{\"host\":{\"hostname\":\"rack7-node2\",\"os\":\"Debian GNU/Linux "
           "12\",\"kernel\":\"6.1.0-18-amd64\",\"compiler\":\"gcc 12.2.0\","
           "\"cpu\":{\"model\":\"Intel(R) Xeon(R) Platinum 8481C\",\"flags\":\"avx2 fma f16c avx512f "
           "avx512_bf16 amx_bf16\"},"
           "\"memory\":{\"total_bytes\":33554432000,\"available_bytes\":25769803776,\"limited_by\":"
           "\"MemAvailable\"},"
           "\"libraries\":[{\"name\":\"OpenSSL\",\"version\":\"3.0.15\",\"role\":\"SHA-256\",\"found\":true},"
           "{\"name\":\"libcurl\",\"version\":\"7.88.1\",\"role\":\"HTTP client\",\"found\":true},"
           "{\"name\":\"Open MPI\",\"version\":null,\"role\":\"communication between "
           "ranks\",\"found\":false}],"
           "\"topology\":\"Machine (31 GB)\\n  Package L#0\\n    L3 L#0 (105 MB)\\n      Core L#0\\n      "
           "Core L#1\"},"
           "\"device\":{\"name\":\"cpu\",\"description\":\"cpu: Intel(R) Xeon(R) Platinum 8481C, 2 "
           "threads\",\"variant\":\"avx512\"},"
           "\"model\":{\"architecture\":\"LlamaForCausalLM\",\"model_type\":\"llama\",\"parameters\":"
           "1235814400,\"weight_bytes\":2471645608,"
           "\"layers\":16,\"hidden\":2048,\"heads\":32,\"kv_heads\":8,\"vocab\":128256,\"context_limit\":"
           "131072,"
           "\"kv_bytes_per_token\":32768,\"kv_dtype\":\"BF16\",\"tensors\":146,\"shards\":1},"
           "\"machine\":null,\"rules\":[{\"rule\":\"libevent-security\",\"state\":\"holds\",\"component\":"
           "\"libevent\",\"needs\":\">= 2.1.13\",\"package_needs\":\">= 2.1.12-stable-8+deb12u1\",\"seen\":"
           "\"libevent 2.1.13\",\"severity\":\"warning\",\"reason\":\"mended in 2.1.13\"},"
           "{\"rule\":\"cuda13-driver\",\"state\":\"violated\",\"component\":\"nvidia "
           "driver\",\"needs\":\">= "
           "580\",\"when_component\":\"cuda runtime\",\"when\":\">= 13\",\"seen\":\"nvidia driver "
           "570.1\",\"severity\":\"error\",\"reason\":\"does not start\"},"
           "{\"rule\":\"old-kernel\",\"state\":\"unknown\",\"component\":\"kernel\",\"needs\":\">= "
           "9\",\"seen\":null,\"severity\":\"warning\",\"reason\":\"a test\"}],"
           "\"operators\":[{\"op\":\"embed\",\"types\":\"w "
           "BF16\",\"count\":1,\"supported\":true,\"reason\":\"\"},"
           "{\"op\":\"rmsnorm\",\"types\":\"x F32, w BF16\",\"count\":33,\"supported\":true,\"reason\":\"\"},"
           "{\"op\":\"linear\",\"types\":\"x F32, w BF16\",\"count\":113,\"supported\":true,\"reason\":\"\"},"
           "{\"op\":\"attention\",\"types\":\"x F32, kv "
           "BF16\",\"count\":16,\"supported\":true,\"reason\":\"\"},"
           "{\"op\":\"swiglu\",\"types\":\"x F32\",\"count\":16,\"supported\":false,\"reason\":\"no kernel "
           "for this type\"}]}";
}

static inline const char *fixture_stage2(struct fixture *x, bool with_reference)
{
    struct strbuf b = STRBUF_INIT;
    strbuf_puts(&b,
                "{\"pieces\":[{\"name\":\"embedding\",\"weight_bytes\":525336576,\"ran\":true,\"relative_"
                "l2\":0,\"max_abs\":0,"
                "\"all_zero\":false,\"seconds\":0.31,\"why\":\"\"},{\"name\":\"layer "
                "0\",\"weight_bytes\":121643008,\"ran\":true,"
                "\"relative_l2\":3.1e-7,\"max_abs\":2.4e-6,\"all_zero\":false,\"seconds\":0.92,\"why\":\"\"},"
                "{\"name\":\"head\",\"weight_bytes\":525340672,\"ran\":true,\"relative_l2\":4.4e-7,\"max_"
                "abs\":1.1e-5,"
                "\"all_zero\":false,\"seconds\":0.77,\"why\":\"\"}],"
                "\"bits\":{\"evidence\":\"6 of 6 cases (alone, in a batch, in chunks) gave equal bits\"},"
                "\"payload\":{\"evidence\":\"2.47 GB scanned: no NaN, no infinity, no tensor all "
                "zero\"},\"reference\":");
    if (with_reference) {
        strbuf_puts(&b, "{\"producer\":\"transformers "
                        "4.56.2\",\"path\":\"ref/llama.safetensors\",\"sha256\":\"\",\"positions\":96,"
                        "\"max_abs_logit\":0.00021,\"limit\":0.001,\"worst_position\":71,\"relative_l2\":4."
                        "1e-6,\"max_kl\":2.2e-9,"
                        "\"top1_agree\":96,\"greedy_tokens\":64,\"greedy_equal\":64,\"first_bad_probe\":\"\","
                        "\"abs_by_position\":[");
        for (uint64_t i = 0; i < 96; i++)
            strbuf_printf(&b, "%s%.3g", i ? "," : "", i == 0 ? 0.0 : 2e-6 * pow(10, 2.0 * rng_f64(7, i)));
        strbuf_puts(&b, "]}}");
    } else {
        strbuf_puts(&b, "null}");
    }
    const char *copy = arena_strdup(&x->arena, strbuf_cstr(&b));
    strbuf_release(&b);
    return copy;
}

static inline const char *fixture_stage3(void)
{
    return "{\"plan\":{\"layout\":{\"pp\":1,\"dp\":1,\"tp\":1,\"ep\":1},\"predicted\":{\"weights\":"
           "2471645608,\"kv\":536870912,"
           "\"scratch\":180355072,\"device\":12582912,\"staging\":8388608,\"fixed\":67108864,\"total\":"
           "3276951976,\"kv_pages\":"
           "1024},"
           "\"predicted_source\":\"headers and "
           "graph\",\"available\":25769803776,\"available_source\":\"MemAvailable\",\"fits\":true,"
           "\"smallest_layout\":null},\"communicator\":{\"name\":\"self\",\"evidence\":\"self: 1 rank, every "
           "collective exact on 65,536 bytes\"},"
           "\"measured\":{\"ready_rss\":3010000000,\"allowed\":3821133287,\"source\":\"VmHWM of the service "
           "process\","
           "\"rule\":\"peak at most 1.15 x predicted + 64 "
           "MiB\",\"held\":{\"weights\":2471645608,\"kv\":536870912,\"scratch\":180400000,"
           "\"device\":12582912}},\"service\":{\"url\":\"http://127.0.0.1:40123\",\"seconds_to_ready\":2.1}}";
}

static inline const char *fixture_stage4(void)
{
    return "{\"cases\":[{\"name\":\"plain\",\"passed\":true,\"why\":\"\",\"prompt\":\"Once upon a "
           "time\",\"output\":\", there was a little girl "
           "named Lily. She loved to play outside in the "
           "park.\",\"prompt_tokens\":5,\"output_tokens\":16,\"ms\":{\"tokenize\":0.02,"
           "\"first_token\":41.3,\"decode\":310,\"total\":351}},{\"name\":\"unicode\",\"passed\":true,"
           "\"why\":\"\",\"prompt\":\"\xe4\xbd\xa0\xe5\xa5\xbd, "
           "\xc3\xa9t\xc3\xa9 \xf0\x9f\x8c\x8d\",\"output\":\"<b>not bold</b> & "
           "more\",\"prompt_tokens\":9,\"output_tokens\":16,\"ms\":{\"tokenize\":0.03,"
           "\"first_token\":44.1,\"decode\":320,\"total\":364}},{\"name\":\"silent\",\"passed\":true,"
           "\"prompt\":\"Alone\",\"output\":\"\",\"ms\":{\"total\":1.6}},{\"name\":\"BOS "
           "once\",\"passed\":true,\"why\":\"usage.prompt_tokens equals the "
           "tokenizer's own count in 5 of 5 cases\",\"prompt\":\"\",\"output\":\"\",\"ms\":{}}]}";
}

static inline void fixture_run(struct strbuf *b, unsigned concurrency, double base, uint64_t seed)
{
    strbuf_printf(b,
                  "{\"concurrency\":%u,\"tokens_from\":\"usage\",\"requests\":{\"sent\":64,\"ok\":64,"
                  "\"failed\":0},\"seconds\":%.1f,"
                  "\"output_tokens_per_second\":%.1f,\"requests_per_second\":%.2f,\"rss_peak\":3120000000,",
                  concurrency, 120.0 / concurrency, 42.0 * sqrt(concurrency), 0.9 * sqrt(concurrency));
    static const char *const keys[] = {"ttft_ms", "tpot_ms", "itl_ms", "e2e_ms"};
    static const double scale[] = {1, 0.5, 0.5, 16};
    for (size_t i = 0; i < 4; i++) {
        double m = base * scale[i];
        strbuf_printf(b,
                      "\"%s\":{\"n\":64,\"mean\":%.3f,\"p50\":%.3f,\"p90\":%.3f,\"p99\":%.3f,\"max\":%.3f},",
                      keys[i], m * 1.1, m, m * 1.6, m * 2.2, m * 2.4);
    }
    for (unsigned k = 0; k < 2; k++) {
        strbuf_printf(b, "\"%s\":[", k ? "itl_samples_ms" : "ttft_samples_ms");
        for (uint64_t i = 0; i < 120; i++)
            strbuf_printf(b, "%s%.3f", i ? "," : "",
                          base * (k ? 0.4 : 0.7) *
                              (1 + 0.5 * rng_f64(seed + k, i) + pow(rng_f64(seed + k, i + 999), 6)));
        strbuf_puts(b, k ? "]}" : "],");
    }
}

static inline const char *fixture_stage5(struct fixture *x)
{
    struct strbuf b = STRBUF_INIT;
    strbuf_puts(&b, "{\"runs\":[");
    fixture_run(&b, 1, 40, 11);
    strbuf_putc(&b, ',');
    fixture_run(&b, 8, 130, 21);
    strbuf_puts(
        &b,
        "],\"memory\":{\"peak_rss\":3120000000},\"service\":[{\"name\":\"GET "
        "/v1/models\",\"passed\":true,\"detail\":\"1 model\"},"
        "{\"name\":\"unknown model\",\"passed\":true,\"detail\":\"404 with an error object\"},"
        "{\"name\":\"client that leaves\",\"passed\":true,\"detail\":\"pages free again after 120 ms\"}]}");
    const char *copy = arena_strdup(&x->arena, strbuf_cstr(&b));
    strbuf_release(&b);
    return copy;
}

static inline void fixture_open(struct fixture *x, bool with_reference)
{
    memset(x, 0, sizeof(*x));
    arena_init(&x->arena, NULL, MEM_REPORT);
    arena_init(&x->result.arena, NULL, MEM_REPORT);
    findings_init(&x->result.findings, NULL);
    finding_add(&x->result.findings, FINDING_C005, "rope_scaling.beta",
                "nobody read this key of config.json");
    finding_add(&x->result.findings, FINDING_W005, "model.safetensors", "12 bytes after the last tensor");
    static const char *const titles[] = {"Environment", "Minimal validation", "Layout and start", "Channels",
                                         "Stress"};
    static const char *const said[] = {"146 tensors in 1 shard; every operator of the model runs on cpu",
                                       "embedding, layer 0 and head agree",
                                       "3.26 GB predicted, 25.8 GB available; ready in 2.1 s", "6 of 6 cases",
                                       "128 requests, none failed"};
    static const double seconds[] = {0.4, 3.2, 2.6, 2.4, 150.3};
    for (size_t i = 0; i < 5; i++)
        x->result.stages[i] = (struct stage){titles[i], STAGE_PASSED, seconds[i], i == 0, said[i]};
    static const char *const evidence[] = {
        "all 6 operators of the model run here; 1 of 3 version rules hold",
        "146 tensors in 1 shard, every name, shape and byte range as described; 2.47 GB scanned, all finite",
        "peak 3.12 GB measured, 3.26 GB predicted, 25.8 GB available",
        "self: 1 rank, every collective exact on 65,536 bytes",
        ("largest |difference| 2.10e-04 <= 1.00e-03 over 96 positions against transformers 4.56.2; 64 of 64 "
         "greedy tokens equal"),
        "6 of 6 cases",
        "text model",
        "12 of 12 checks"};
    for (size_t i = 0; i < ROW_N; i++)
        x->result.rows[i] = (struct row){ROW_PASSED, evidence[i], NULL};
    x->result.rows[ROW_IMAGE].state = ROW_NOT_APPLICABLE;
    if (!with_reference) {
        x->result.rows[ROW_NUMERICS].state = ROW_SELF_CONSISTENT;
        x->result.rows[ROW_NUMERICS].evidence =
            "agrees with the reference kernels within 4.40e-07; no reference was given (--reference FILE)";
        x->result.stages[1].state = STAGE_PARTIAL;
    }
    struct report *r = &x->report;
    *r = (struct report){.title = "Llama-3.2-1B-Instruct",
                         .model_dir = "/models/Llama-3.2-1B-Instruct",
                         .platform =
                             "Intel(R) Xeon(R) Platinum 8481C, 2 threads, 33.6 GB, Debian GNU/Linux 12",
                         .unix_ns = INT64_C(1790000000000000000),
                         .seconds = 158.9,
                         .rows = x->result.rows,
                         .stages = x->result.stages,
                         .findings = &x->result.findings,
                         .sha_manifest = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
                         .sha_arch = "60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752",
                         .sha_binary = "fd61a03af4f77d870fc21e05e7e80678095c92d808cfb3b5c279ee04c74aca13",
                         .arch_name = "llama.lua",
                         .arch_origin = "shipped",
                         .version = "0.1.0"};
    r->definitions = stress_definitions();
    r->facts[0] = fixture_json(x, fixture_stage1());
    r->facts[1] = fixture_json(x, fixture_stage2(x, with_reference));
    r->facts[2] = fixture_json(x, fixture_stage3());
    r->facts[3] = fixture_json(x, fixture_stage4());
    r->facts[4] = fixture_json(x, fixture_stage5(x));
    r->verdict = with_reference ? VERDICT_PASS : VERDICT_INCOMPLETE;
}

static inline void fixture_close(struct fixture *x)
{
    findings_release(&x->result.findings);
    arena_release(&x->result.arena);
    arena_release(&x->arena);
}

#endif
