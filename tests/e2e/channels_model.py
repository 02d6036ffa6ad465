#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A small random Qwen3-VL-MoE with tokenizer, chat template and image processor, for channels.sh; and faults of it. Standard library only.

    channels_model.py make DIR DAY0          writes the model
    channels_model.py FAULT IN OUT           a copy with one fault: mean-std, bilinear, merge and size (placeholders; size-unnamed: and
                                             config.json does not say which token they are), no-system, bos-twice, sections (of M-RoPE)
"""
import json
import os
import shutil
import struct
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
BOS, EOS, IMAGE, VOCAB = 256, 257, 262, 512
# What the model writes: words. Text is spelt with the 256 bytes; their rows of lm_head are zero, so that greedy answers read like writing.
WORDS = [a + b + c + d for a in "bdfgklmn" for b in "aeiou" for c in "lnrst" for d in "aeo"][:VOCAB - 256 - len(SPECIAL)]

CONFIG = {
    "architectures": ["Qwen3VLMoeForConditionalGeneration"], "model_type": "qwen3_vl_moe", "dtype": "float32",
    "text_config": {
        "model_type": "qwen3_vl_moe_text", "dtype": "float32", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "hidden_act": "silu", "rms_norm_eps": 0.01, "vocab_size": VOCAB, "max_position_embeddings": 1024,
        "intermediate_size": 96, "head_dim": 16, "attention_bias": False, "rope_theta": 2000.0,
        "rope_scaling": {"rope_type": "default", "mrope_section": [4, 2, 2], "mrope_interleaved": True}, "num_experts": 6,
        "num_experts_per_tok": 2, "moe_intermediate_size": 40, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [1],
        "bos_token_id": BOS, "eos_token_id": EOS},
    "vision_config": {
        "depth": 2, "hidden_size": 32, "hidden_act": "gelu_pytorch_tanh", "intermediate_size": 48, "num_heads": 2, "in_channels": 3,
        "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": 64, "num_position_embeddings": 16,
        "model_type": "qwen3_vl_moe", "deepstack_visual_indexes": [0]},
    "tie_word_embeddings": False, "image_token_id": IMAGE, "video_token_id": 263, "vision_start_token_id": 260, "vision_end_token_id": 261}

PROCESSOR = {
    "size": {"longest_edge": 4096, "shortest_edge": 64}, "patch_size": 4, "temporal_patch_size": 2, "merge_size": 2, "resample": 3,
    "image_mean": [0.48, 0.45, 0.40], "image_std": [0.26, 0.27, 0.28], "do_normalize": True, "do_rescale": True, "do_resize": True,
    "processor_class": "Qwen3VLProcessor", "image_processor_type": "Qwen2VLImageProcessorFast"}

TEMPLATE = (
    "{{- '<s>' }}"
    "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' }}"
    "{%- if m.content is string %}{{- m.content }}{%- else %}{%- for p in m.content %}"
    "{%- if p.type == 'image' %}{{- '<|vision_start|><|image_pad|><|vision_end|>' }}{%- else %}{{- p.text }}{%- endif %}"
    "{%- endfor %}{%- endif %}{{- '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}")


def byte_letters():
    """The letter that stands for each byte in byte-level vocabularies."""
    plain = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    out, more = {b: chr(b) for b in plain}, 256
    for b in range(256):
        if b not in out:
            out[b] = chr(more)
            more += 1
    return out


def tokenizer():
    letters = byte_letters()
    vocab = {letters[b]: b for b in range(256)}
    vocab.update({s: 256 + i for i, s in enumerate(SPECIAL + [" " + w for w in WORDS])})
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": 256 + i, "content": s, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                          "special": s in SPECIAL} for i, s in enumerate(SPECIAL + [" " + w for w in WORDS])],
        "normalizer": None, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                           "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
                           "special_tokens": {"<s>": {"id": "<s>", "ids": [BOS], "tokens": ["<s>"]}}},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "vocab": vocab, "merges": []}}


def write(path, value):
    with open(path, "w", encoding="utf-8") as f:
        if isinstance(value, str):
            f.write(value)
        else:
            json.dump(value, f, indent=1)


def only_words(path):
    with open(path, "r+b") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        t = json.loads(f.read(n))["lm_head.weight"]
        f.seek(8 + n + t["data_offsets"][0])
        f.write(bytes(4 * t["shape"][1] * (256 + len(SPECIAL))))


def make(out, day0):
    config = out + ".config"
    os.makedirs(config, exist_ok=True)
    write(config + "/config.json", CONFIG)
    subprocess.run([sys.executable, ROOT + "/tools/make_checkpoint.py", config, out, "--day0", day0, "--fill", "hash", "--seed", "8"],
                   check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(config)
    only_words(out + "/model.safetensors")
    write(out + "/tokenizer.json", tokenizer())
    write(out + "/tokenizer_config.json", {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True})
    write(out + "/chat_template.jinja", TEMPLATE)
    write(out + "/preprocessor_config.json", PROCESSOR)


def change(path, edit):
    with open(path, encoding="utf-8") as f:
        value = json.load(f)
    edit(value)
    write(path, value)


def spoil(fault, source, out):
    shutil.copytree(source, out)
    if fault == "mean-std":
        change(out + "/preprocessor_config.json", lambda p: p.update(image_mean=p["image_std"], image_std=p["image_mean"]))
    elif fault == "bilinear":
        change(out + "/preprocessor_config.json", lambda p: p.update(resample=2))
    elif fault in ("size", "size-unnamed"):
        change(out + "/preprocessor_config.json", lambda p: p["size"].update(shortest_edge=2048))
        if fault == "size-unnamed":
            change(out + "/config.json", lambda c: c.pop("image_token_id"))
    elif fault == "merge":
        change(out + "/preprocessor_config.json", lambda p: p.update(merge_size=1))
    elif fault == "no-system":
        write(out + "/chat_template.jinja", TEMPLATE.replace("{%- for m in messages %}", "{%- for m in messages if m.role != 'system' %}"))
    elif fault == "bos-twice":
        write(out + "/chat_template.jinja", TEMPLATE.replace("{{- '<s>' }}", "{{- '<s><s>' }}"))
    elif fault == "sections":
        change(out + "/config.json", lambda c: c["text_config"]["rope_scaling"].update(mrope_section=[2, 4, 2]))
    else:
        sys.exit("channels_model.py: unknown fault " + fault)


def main(argv):
    if argv[1] == "make":
        make(argv[2], argv[3])
    else:
        spoil(argv[1], argv[2], argv[3])


if __name__ == "__main__":
    main(sys.argv)
