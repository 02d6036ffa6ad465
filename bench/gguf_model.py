#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a GGUF file of the shape of a model of models.py, made-up weights and no vocabulary, for llama-bench. Owns names and shapes as llama.cpp
wants them; the values mean nothing. Needs the package gguf (and its numpy); llama_cpp.sh installs both outside the tree.

    gguf_model.py SHAPE bf16|q8_0|q4_0 OUT.gguf
"""
import sys

import gguf
import numpy as np

import models

KINDS = {"bf16": gguf.GGMLQuantizationType.BF16, "q8_0": gguf.GGMLQuantizationType.Q8_0, "q4_0": gguf.GGMLQuantizationType.Q4_0}
ARCH = {"llama": "llama", "qwen2": "qwen2", "qwen3_moe": "qwen3moe"}


class Writer:
    def __init__(self, path, config, kind):
        self.c, self.kind = config, kind
        self.w = gguf.GGUFWriter(path, ARCH[config["model_type"]])
        self.random = np.random.default_rng(1)

    def matrix(self, name, *shape):
        """Small random values; one block of them over and over, since the values do not matter and making them takes long."""
        n = int(np.prod(shape))
        block = (self.random.standard_normal(1 << 16) * shape[-1] ** -0.5).astype(np.float32)
        x = np.resize(block, n).reshape(shape)
        self.w.add_tensor(name + ".weight", gguf.quants.quantize(x, self.kind), raw_dtype=self.kind)

    def vector(self, name, n, value=1.0, what="weight"):
        self.w.add_tensor("%s.%s" % (name, what), np.full(n, value, np.float32))

    def header(self):
        c, w = self.c, self.w
        w.add_block_count(c["num_hidden_layers"])
        w.add_context_length(4096)
        w.add_embedding_length(c["hidden_size"])
        w.add_feed_forward_length(c["intermediate_size"])
        w.add_head_count(c["num_attention_heads"])
        w.add_head_count_kv(c["num_key_value_heads"])
        w.add_layer_norm_rms_eps(c["rms_norm_eps"])
        w.add_rope_freq_base(c["rope_theta"])
        w.add_vocab_size(c["vocab_size"])
        w.add_tokenizer_model("none")
        if "head_dim" in c:
            w.add_key_length(c["head_dim"])
            w.add_value_length(c["head_dim"])
            w.add_rope_dimension_count(c["head_dim"])
        if "num_experts" in c:
            w.add_expert_count(c["num_experts"])
            w.add_expert_used_count(c["num_experts_per_tok"])
            w.add_expert_feed_forward_length(c["moe_intermediate_size"])

    def layer(self, i):
        c, name = self.c, "blk.%d." % i
        d, heads, kv = c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"]
        dim = c.get("head_dim", d // heads)
        self.vector(name + "attn_norm", d)
        self.vector(name + "ffn_norm", d)
        for part, rows in (("attn_q", heads * dim), ("attn_k", kv * dim), ("attn_v", kv * dim)):
            self.matrix(name + part, rows, d)
            if c["model_type"] == "qwen2":
                self.vector(name + part, rows, 0.0, "bias")
        self.matrix(name + "attn_output", d, heads * dim)
        if c["model_type"] == "qwen3_moe":
            self.vector(name + "attn_q_norm", dim)
            self.vector(name + "attn_k_norm", dim)
        if "num_experts" in c:
            n, inter = c["num_experts"], c["moe_intermediate_size"]
            self.w.add_tensor(name + "ffn_gate_inp.weight", self.random.standard_normal((n, d)).astype(np.float32))
            self.matrix(name + "ffn_gate_exps", n, inter, d)
            self.matrix(name + "ffn_up_exps", n, inter, d)
            self.matrix(name + "ffn_down_exps", n, d, inter)
        else:
            self.matrix(name + "ffn_gate", c["intermediate_size"], d)
            self.matrix(name + "ffn_up", c["intermediate_size"], d)
            self.matrix(name + "ffn_down", d, c["intermediate_size"])

    def write(self):
        self.header()
        self.matrix("token_embd", self.c["vocab_size"], self.c["hidden_size"])  # read as the head, too: tied
        self.vector("output_norm", self.c["hidden_size"])
        for i in range(self.c["num_hidden_layers"]):
            self.layer(i)
        self.w.write_header_to_file()
        self.w.write_kv_data_to_file()
        self.w.write_tensors_to_file()
        self.w.close()


def main(argv):
    if len(argv) != 3 or argv[0] not in models.SHAPES or argv[1] not in KINDS:
        sys.exit(__doc__)
    Writer(argv[2], models.SHAPES[argv[0]], KINDS[argv[1]]).write()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
