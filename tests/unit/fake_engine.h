/* SPDX-License-Identifier: Apache-2.0
 *
 * An engine that computes nothing and answers by script, with the interface of engine.h: linked before the
 * library, it takes the real one's place. The last prompt token chooses the script, so a test decides what a
 * request gets: letters, half characters, NaN, failed steps, slow steps.
 */
#ifndef TESTS_FAKE_ENGINE_H
#define TESTS_FAKE_ENGINE_H

#include <stdatomic.h>
#include <string.h>

#include "base/hash.h"
#include "base/thread.h"
#include "engine/engine.h"
#include "tiny_tokenizer.h"

#define LETTER(c)    (260 + (c) - 'a')
#define BYTE_ID(b)   (3 + (b))
#define SCRIPT_NOISE LETTER('a') /* a function of (seed, position) */
#define SCRIPT_HELLO LETTER('b') /* "hello world", then </s> for ever */
#define SCRIPT_EMOJI LETTER('c') /* bytes of U+1F600, one a token */
#define SCRIPT_NAN   LETTER('d') /* two tokens, then NaN */
#define SCRIPT_CALL  LETTER('g') /* reasoning, text and a tool call, byte by byte, then </s> */
#define SCRIPT_BAD   LETTER('h') /* a tool call that is none */
#define SCRIPT_HALF  LETTER('i') /* half a character, <unk>, "so", then </s> */
#define SCRIPT_ROUND LETTER('j') /* text around a tool call, then </s> */
#define SCRIPT_WORLD LETTER('f') /* " world" */
#define SCRIPT_NAN0  LETTER('e') /* NaN at once */

struct engine {
    struct engine_limits limits;
    _Atomic uint64_t step_ns; /* how long a step takes */
    _Atomic int fail_steps;   /* so many next steps fail as a whole */
    _Atomic int refuse_steps; /* so many next steps cannot even give a result */
    _Atomic uint64_t steps;
    struct {
        uint64_t request;
        uint32_t position; /* of the first generated token */
        int32_t script;
        bool used;
    } seen[4096];
};

const struct engine_limits *engine_limits(const struct engine *x)
{
    return &x->limits;
}

void engine_memory(const struct engine *x, uint64_t *kv, uint64_t *scratch)
{
    *kv = x->limits.n_pages * 1000u;
    *scratch = 4000;
}

uint32_t engine_fusions(const struct engine *x)
{
    (void)x;
    return FUSION_BIT(FUSION_QKV);
}

bool engine_exact(const struct engine *x)
{
    (void)x;
    return true;
}

const struct picture_shape *engine_picture_shape(const struct engine *x)
{
    (void)x;
    return NULL;
}

int engine_picture(struct engine *x, const struct picture_plan *plan, size_t bytes, uint32_t first_row,
                   struct err *e)
{
    (void)x, (void)plan, (void)bytes, (void)first_row;
    return err_set(e, ERR_UNSUPPORTED, "no tower");
}

static int32_t fake_token(int32_t script, uint32_t k, const struct step_sampling *s, uint32_t position)
{
    static const char hello[] = "hello world";
    static const unsigned char emoji[] = {0xF0, 0x9F, 0x98, 0x80};
    static const char call[] =
        "why \xC3\xBC</think>\n\nso\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1]}}\n"
        "</tool_call>\n<tool_call>\n{\"name\": \"g\"}\n</tool_call>";
    static const char bad[] = "<tool_call>no</tool_call>";
    static const char around[] = "so<tool_call>{\"name\": \"f\"}</tool_call>me";
    if (script == SCRIPT_ROUND)
        return k >= sizeof around - 1 ? 2 : BYTE_ID((unsigned char)around[k]);
    if (script == SCRIPT_CALL)
        return k >= sizeof call - 1 ? 2 : BYTE_ID((unsigned char)call[k]);
    if (script == SCRIPT_BAD)
        return k >= sizeof bad - 1 ? 2 : BYTE_ID((unsigned char)bad[k]);
    if (script == SCRIPT_HALF)
        return k == 0 ? BYTE_ID(0xC3) : k == 1 ? 0 : k == 2 ? LETTER('s') : k == 3 ? LETTER('o') : 2;
    if (script == SCRIPT_WORLD)
        k += 5;
    if (script == SCRIPT_HELLO || script == SCRIPT_WORLD)
        return k >= sizeof hello - 1 ? 2 : hello[k] == ' ' ? 259 : LETTER(hello[k]);
    if (script == SCRIPT_EMOJI)
        return BYTE_ID(emoji[k % 4]);
    return (int32_t)(259 + rng_u64(s->seed, position) % 39);
}

static void fake_sequence(struct engine *x, const struct step_plan *p, const struct step_seq *q,
                          struct step_seq_result *out, struct step_top *tops, uint32_t *n_tops)
{
    const int32_t *tokens = (const int32_t *)((const char *)p + p->tokens_at) + q->first_token;
    uint32_t position = q->position + q->n_tokens, slot = (uint32_t)(q->request % 4093);
    *out = (struct step_seq_result){.request = q->request, .token = -1, .first_top = *n_tops};
    if (!(q->flags & STEP_SAMPLE))
        return;
    if (!x->seen[slot].used || x->seen[slot].request != q->request) {
        x->seen[slot].used = true;
        x->seen[slot].request = q->request;
        x->seen[slot].position = position;
        x->seen[slot].script = tokens[q->n_tokens - 1];
    }
    uint32_t k = position - x->seen[slot].position;
    int32_t script = x->seen[slot].script;
    if (script == SCRIPT_NAN0 || (script == SCRIPT_NAN && k >= 2)) {
        out->status = STEP_NOT_FINITE;
        return;
    }
    out->token = fake_token(script, k, &q->sampling, position);
    out->logprob = -0.25f;
    out->n_top = q->sampling.n_top;
    for (uint32_t i = 0; i < out->n_top;
         i++) /* the byte token of 'h' looks like the letter: one key must not come twice */
        tops[(*n_tops)++] = (struct step_top){i == 0   ? out->token
                                              : i == 1 ? BYTE_ID('h')
                                              : i == 2 ? BYTE_ID(0xE2)
                                                       : 270 + (int32_t)i,
                                              -0.25f - (float)i};
}

int engine_step(struct engine *x, const struct step_plan *plan, size_t plan_bytes, void *result, size_t cap,
                struct err *e)
{
    struct step_result *r;
    uint32_t n_tops = 0;
    int rc = step_plan_validate(plan, plan_bytes, &x->limits, e);
    if (rc)
        return rc;
    for (const uint64_t begin = clock_ns(); clock_ns() - begin < x->step_ns;)
        clock_sleep_ns(x->step_ns < 1000000 ? x->step_ns : 1000000); /* a step ends when step_ns is lowered */
    x->steps++;
    if (x->refuse_steps > 0 && x->refuse_steps--)
        return err_set(e, ERR_DEVICE, "the device is on fire");
    if (x->fail_steps > 0 && x->fail_steps--)
        return step_result_error(result, cap, plan->step, ERR_DEVICE, "a kernel failed", &r, e);
    rc = step_result_init(result, cap, plan->n_seqs, 0, plan->n_seqs * STEP_MAX_TOP, &r, e);
    if (rc)
        return rc;
    r->step = plan->step;
    const struct step_seq *seqs = (const struct step_seq *)((const char *)plan + plan->seqs_at);
    for (uint32_t i = 0; i < plan->n_seqs; i++)
        fake_sequence(x, plan, &seqs[i], step_result_seqs(r) + i, step_result_tops(r), &n_tops);
    step_result_finish(r, n_tops);
    return ERR_OK;
}

#endif
