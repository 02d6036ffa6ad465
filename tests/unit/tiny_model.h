/* SPDX-License-Identifier: Apache-2.0
 *
 * Small models for tests, of any family: a config.json and, for every tensor that its description names,
 * random values that keep activations near one.
 */
#ifndef TEST_TINY_MODEL_H
#define TEST_TINY_MODEL_H

#include "ckpt/ckpt.h"
#include "dev/dev.h"
#include "spec/spec.h"

#define TINY_LLAMA_CONFIG                                                                                    \
    "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"hidden_size\":64,"                 \
    "\"intermediate_size\":80,\"num_hidden_layers\":3,\"num_attention_heads\":4,\"num_key_value_heads\":2,"  \
    "\"head_dim\":16,\"vocab_size\":96,\"max_position_embeddings\":256,\"rms_norm_eps\":1e-05,"              \
    "\"rope_theta\":10000.0,\"hidden_act\":\"silu\",\"attention_bias\":false,\"mlp_bias\":false,"            \
    "\"tie_word_embeddings\":false,\"bos_token_id\":1,\"eos_token_id\":2,\"torch_dtype\":\"float32\"}"

/* Norms of every head, a window in the odd layers, one table for both ends, 16-bit weights and pages. */
#define TINY_QWEN3_CONFIG                                                                                    \
    "{\"architectures\":[\"Qwen3ForCausalLM\"],\"model_type\":\"qwen3\",\"hidden_size\":64,"                 \
    "\"intermediate_size\":96,\"num_hidden_layers\":4,\"num_attention_heads\":4,\"num_key_value_heads\":2,"  \
    "\"head_dim\":32,\"vocab_size\":128,\"max_position_embeddings\":256,\"rms_norm_eps\":1e-06,"             \
    "\"rope_theta\":10000.0,\"hidden_act\":\"silu\",\"attention_bias\":false,\"sliding_window\":8,"          \
    "\"use_sliding_window\":true,\"max_window_layers\":1,\"tie_word_embeddings\":true,\"bos_token_id\":1,"   \
    "\"eos_token_id\":2,\"torch_dtype\":\"bfloat16\"}"

/* Called with each tensor before it is written, as float32 [n]. */
typedef void (*tiny_model_edit)(void *context, const char *name, float *x, size_t n);

/* arch: the text of an architecture file, or NULL for a shipped one. Fails the test on any trouble. */
void tiny_model_write(const char *dir, const char *config, const char *arch, uint64_t seed,
                      tiny_model_edit edit, void *context);

struct tiny_model {
    struct d0 d0;
    struct findings f;
    struct ckpt *c;
    struct spec *s;
    struct dev d;
};
void tiny_model_open(struct tiny_model *m, const char *dir, const char *arch, const char *isa);
void tiny_model_close(struct tiny_model *m);

#endif
