#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the models that bench_model and llama_cpp.sh measure: known shapes, made-up weights (make_checkpoint.py --fill hash), stored in
several ways. Owns the list of shapes and storages. Nothing is written into the source tree, and what is there already is kept.

    models.py OUT [SHAPE.STORAGE ...]        OUT/SHAPE.STORAGE/ for each; no name: all. `models.py --list` names them.
"""
import json
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
         "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256, "tie_word_embeddings": True,
         "rope_theta": 500000.0, "rms_norm_eps": 1e-5}
QWEN = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
        "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True, "rope_theta": 1000000.0,
        "rms_norm_eps": 1e-6, "use_sliding_window": False}
MOE = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 1024, "intermediate_size": 3072,
       "moe_intermediate_size": 512, "num_experts": 32, "num_experts_per_tok": 8, "norm_topk_prob": True, "decoder_sparse_step": 1,
       "mlp_only_layers": [], "num_hidden_layers": 14, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 64,
       "vocab_size": 32000, "tie_word_embeddings": True, "attention_bias": False, "rope_theta": 1000000.0, "rms_norm_eps": 1e-6}
SHAPES = {"llama1b": LLAMA, "qwen05": QWEN, "moe": MOE}
ALL = {"bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "max_position_embeddings": 4096, "torch_dtype": "bfloat16"}


def compressed(form, bits, kind, strategy, group=None):
    weights = {"num_bits": bits, "type": kind, "strategy": strategy, "symmetric": True, "group_size": group}
    return {"quant_method": "compressed-tensors", "format": form, "ignore": ["lm_head", "re:.*mlp.gate$"],
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}


STORAGES = {"bf16": None,
            "fp8": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
            "int8": compressed("int-quantized", 8, "int", "channel"),
            "int4g32": compressed("pack-quantized", 4, "int", "group", 32),
            "int4g128": compressed("pack-quantized", 4, "int", "group", 128),
            "mxfp4": compressed("mxfp4-pack-quantized", 4, "float", "group", 32)}


def make(out, name):
    shape, storage = name.split(".")
    if os.path.exists(os.path.join(out, "config.json")):
        return
    config = dict(SHAPES[shape], **ALL)
    if STORAGES[storage]:
        config["quantization_config"] = STORAGES[storage]
    with tempfile.TemporaryDirectory() as scratch:
        with open(os.path.join(scratch, "config.json"), "w", encoding="utf-8") as f:
            json.dump(config, f)
        part = out + ".part"
        subprocess.run([sys.executable, os.path.join(ROOT, "tools", "make_checkpoint.py"), scratch, part, "--fill", "hash"], check=True)
        os.rename(part, out)


def main(argv):
    names = ["%s.%s" % (shape, storage) for shape in SHAPES for storage in STORAGES]
    if argv == ["--list"]:
        print("\n".join(names))
        return 0
    if not argv or any(name not in names for name in argv[1:]):
        sys.exit(__doc__)
    os.makedirs(argv[0], exist_ok=True)
    for name in argv[1:] or names:
        make(os.path.join(argv[0], name), name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
