# SPDX-License-Identifier: Apache-2.0
"""Small models of every kind of storage, as config.json only: the program itself says what their tensors are. And a reader and writer of safetensors
files that refuses nothing. Standard library only."""
import json
import os
import struct
import subprocess
import sys

MLA = {"hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 128, "kv_lora_rank": 128, "qk_nope_head_dim": 64,
       "qk_rope_head_dim": 64, "v_head_dim": 64, "intermediate_size": 256, "moe_intermediate_size": 128, "n_routed_experts": 4, "n_shared_experts": 1,
       "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "topk_method": "noaux_tc", "scoring_func": "sigmoid", "norm_topk_prob": True,
       "routed_scaling_factor": 2.5, "first_k_dense_replace": 1, "moe_layer_freq": 1, "num_hidden_layers": 3, "rms_norm_eps": 1e-6,
       "rope_theta": 10000, "hidden_act": "silu", "attention_bias": False, "max_position_embeddings": 4096, "vocab_size": 384,
       "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16"}
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
INT4 = {"quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed", "kv_cache_scheme": None,
        "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"],
        "config_groups": {"group_0": {"targets": ["Linear"], "input_activations": None, "output_activations": None, "weights": {
            "num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32, "dynamic": False, "actorder": None}}}}

CONFIGS = {
    "llama": {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 384, "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2,
        "torch_dtype": "bfloat16"},
    "moe": {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 64, "intermediate_size": 128, "moe_intermediate_size": 32,
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2,
        "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [], "vocab_size": 384, "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "rope_scaling": None, "hidden_act": "silu", "attention_bias": False,
        "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16"},
    "fp8": dict(MLA, architectures=["DeepseekV3ForCausalLM"], model_type="deepseek_v3", num_nextn_predict_layers=1, quantization_config=FP8),
    "mxfp4": {
        "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "experts_per_token": 2,
        "attention_bias": True, "sliding_window": 128, "swiglu_limit": 7.0, "layer_types": ["sliding_attention", "full_attention"],
        "initial_context_length": 4096, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 150000, "hidden_act": "silu",
        "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "original_max_position_embeddings": 4096,
                         "truncate": False}, "vocab_size": 384, "tie_word_embeddings": False, "eos_token_id": 2, "torch_dtype": "bfloat16",
        "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": [
            "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}},
    "vlm": {  # experts in INT4, and a tower
        "architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25", "media_placeholder_token_id": 300,
        "tie_word_embeddings": False, "eos_token_id": 2, "dtype": "bfloat16",
        "text_config": dict(MLA, architectures=["DeepseekV3ForCausalLM"], model_type="kimi_k2", num_nextn_predict_layers=0, quantization_config=INT4),
        "vision_config": {"vt_hidden_size": 64, "vt_num_attention_heads": 4, "vt_num_hidden_layers": 2, "vt_intermediate_size": 128, "patch_size": 14,
                          "init_pos_emb_height": 8, "init_pos_emb_width": 8, "init_pos_emb_time": 4, "merge_kernel_size": [2, 2],
                          "merge_type": "sd2_tpool", "mm_projector_type": "patchmerger", "mm_hidden_size": 64, "text_hidden_size": 256,
                          "projector_ln_eps": 1e-5, "projector_hidden_act": "gelu", "pos_emb_type": "divided_fixed",
                          "video_attn_type": "spatial_temporal"}},
    "qwenvl": {  # a flat config, three rows of positions
        "architectures": ["Qwen2_5_VLForConditionalGeneration"], "model_type": "qwen2_5_vl", "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 384, "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}, "hidden_act": "silu",
        "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2, "image_token_id": 300, "torch_dtype": "bfloat16",
        "vision_config": {"depth": 2, "hidden_size": 64, "num_heads": 4, "intermediate_size": 96, "out_hidden_size": 64, "patch_size": 14,
                          "temporal_patch_size": 2, "spatial_merge_size": 2, "window_size": 112, "fullatt_block_indexes": [1], "in_chans": 3,
                          "hidden_act": "silu"}},
    "v4": {  # names of another style: embed.weight, head.weight; scales are exponent bytes
        "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "hidden_size": 256, "num_attention_heads": 4, "head_dim": 128,
        "num_key_value_heads": 1, "q_lora_rank": 128, "o_groups": 2, "o_lora_rank": 128, "qk_rope_head_dim": 64, "index_n_heads": 2,
        "index_head_dim": 128, "index_topk": 16, "hc_mult": 4, "hc_eps": 1e-6, "hc_sinkhorn_iters": 20, "num_hidden_layers": 3,
        "compress_ratios": [0, 4, 128], "num_hash_layers": 1, "moe_intermediate_size": 128, "n_routed_experts": 4, "n_shared_experts": 1,
        "num_experts_per_tok": 2, "norm_topk_prob": True, "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc", "routed_scaling_factor": 1.5,
        "swiglu_limit": 10.0, "sliding_window": 128, "rope_theta": 10000, "compress_rope_theta": 160000, "rope_scaling": {
            "type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 65536}, "rms_norm_eps": 1e-6,
        "hidden_act": "silu", "max_position_embeddings": 4096, "vocab_size": 384, "tie_word_embeddings": False, "expert_dtype": "fp4",
        "eos_token_id": 2, "torch_dtype": "bfloat16", "quantization_config": dict(FP8, scale_fmt="ue8m0")},
}

# Of bases with a tower: the token that stands for a picture, as number 300, and the image processor.
PICTURES = {
    "vlm": ("<|media_pad|>", {"media_proc_cfg": {"in_patch_limit": 4096, "patch_size": 14, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
                                                 "merge_kernel_size": 2, "fixed_output_tokens": None, "patch_limit_on_one_side": 512}}),
    "qwenvl": ("<|image_pad|>", {"image_processor_type": "Qwen2VLImageProcessor", "min_pixels": 3136, "max_pixels": 100352, "patch_size": 14,
                                 "temporal_patch_size": 2, "merge_size": 2}),
}


def make(name, out, tool, day0):
    """Three shards of holes: nothing here looks at values."""
    config = out + ".config"
    os.makedirs(config)
    with open(config + "/config.json", "w") as f:
        json.dump(CONFIGS[name], f, indent=1)
    subprocess.run([sys.executable, tool, config, out, "--day0", day0, "--shards", "3"], check=True, stdout=subprocess.DEVNULL)
    if name in PICTURES:
        token, processor = PICTURES[name]
        with open(out + "/preprocessor_config.json", "w") as f:
            json.dump(processor, f)
        with open(out + "/tokenizer.json", encoding="utf-8") as f:
            t = json.load(f)
        t["model"]["vocab"] = {token if i == 300 else k: i for k, i in t["model"]["vocab"].items()}
        t["added_tokens"].append(dict(t["added_tokens"][-1], id=300, content=token))
        with open(out + "/tokenizer.json", "w", encoding="utf-8") as f:
            json.dump(t, f)


# ---- safetensors, without any opinion

def read(path):
    """Header (names in order of their bytes) and the data behind it."""
    with open(path, "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        header = json.loads(f.read(n))
        data = f.read()
    header.pop("__metadata__", None)
    return dict(sorted(header.items(), key=lambda kv: kv[1]["data_offsets"])), data


def write(path, header, data, raw=None):
    """raw: text of the header instead of the true one."""
    text = raw if raw is not None else json.dumps(dict({"__metadata__": {"format": "pt"}}, **header), separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


WIDTH = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2, "I64": 8, "I32": 4}


def lay_out(header):
    """Offsets anew, one tensor after the other; the data that fit (zeros)."""
    at = 0
    for t in header.values():
        n = WIDTH.get(t["dtype"], 1)
        for d in t["shape"]:
            n *= d
        t["data_offsets"] = [at, at + n]
        at += n
    return header, bytes(at)
