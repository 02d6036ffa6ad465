#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Small random models with tokenizer, chat template and image processor, for channels.sh; and faults of them and of a recording. Standard library only.

    channels_model.py make DIR DAY0          writes a Qwen3-VL-MoE
    channels_model.py make-llava DIR DAY0    writes a LLaVA with SigLIP's tower: every patch of a picture is a row
    channels_model.py FAULT IN OUT           a copy with one fault: mean-std, bilinear, merge and size (placeholders; size-unnamed: and
                                             config.json does not say which token they are), no-system, bos-twice, sections (of M-RoPE); first-row (of a LLaVA: the first row of each picture is left out)
    channels_model.py record-bgr IN OUT      a recording by somebody who swaps red and blue: the pictures in the file are swapped back
    channels_model.py record-swapped IN OUT  one by somebody who swaps two pictures
    channels_model.py record-fewer IN OUT    one whose messages take more pictures than the file holds
    channels_model.py record-object IN OUT   one whose messages are no array
    channels_model.py record-cut IN OUT      one whose messages are no JSON
"""
import json
import os
import shutil
import struct
import subprocess
import sys
import zlib

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

LLAVA = {
    "architectures": ["LlavaForConditionalGeneration"], "model_type": "llava", "dtype": "float32",
    "text_config": {
        "model_type": "llama", "dtype": "float32", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "hidden_act": "silu", "rms_norm_eps": 0.01, "vocab_size": VOCAB, "max_position_embeddings": 1024, "intermediate_size": 96,
        "rope_theta": 2000.0, "bos_token_id": BOS, "eos_token_id": EOS},
    "vision_config": {
        "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "num_hidden_layers": 2, "patch_size": 4, "num_channels": 3,
        "model_type": "siglip_vision_model", "image_size": 16, "hidden_act": "gelu_pytorch_tanh", "vision_use_head": False},
    "tie_word_embeddings": False, "image_token_index": IMAGE, "projector_hidden_act": "gelu", "vision_feature_layer": -1,
    "vision_feature_select_strategy": "full"}

SIGLIP = {"image_processor_type": "SiglipImageProcessor", "size": {"height": 16, "width": 16}, "image_mean": [0.48, 0.45, 0.40], "image_std": [0.26, 0.27, 0.28]}

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


def tokenizer(image):
    """image: how the token is spelt that stands for a row of a picture."""
    special = [image if i == IMAGE - 256 else s for i, s in enumerate(SPECIAL)]
    letters = byte_letters()
    vocab = {letters[b]: b for b in range(256)}
    vocab.update({s: 256 + i for i, s in enumerate(special + [" " + w for w in WORDS])})
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": 256 + i, "content": s, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                          "special": s in special} for i, s in enumerate(special + [" " + w for w in WORDS])],
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
        head = json.loads(f.read(n))
        t = next(head[k] for k in head if k.endswith("lm_head.weight"))
        f.seek(8 + n + t["data_offsets"][0])
        f.write(bytes(4 * t["shape"][1] * (256 + len(SPECIAL))))


def make(out, day0, config_json, processor, image, template):
    config = out + ".config"
    os.makedirs(config, exist_ok=True)
    write(config + "/config.json", config_json)
    subprocess.run([sys.executable, ROOT + "/tools/make_checkpoint.py", config, out, "--day0", day0, "--fill", "hash", "--seed", "8"],
                   check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(config)
    only_words(out + "/model.safetensors")
    write(out + "/tokenizer.json", tokenizer(image))
    write(out + "/tokenizer_config.json", {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True})
    write(out + "/chat_template.jinja", template)
    write(out + "/preprocessor_config.json", processor)


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
    elif fault == "first-row":
        change(out + "/config.json", lambda c: c.update(vision_feature_select_strategy="default"))
    else:
        sys.exit("channels_model.py: unknown fault " + fault)


# ---- recordings

def unfiltered(raw, width, height):
    """Rows of a PNG of 8 bits and RGB without their filters: bytes that were stored as differences."""
    out, above, row_bytes = [], bytes(3 * width), 1 + 3 * width
    for y in range(height):
        kind, row = raw[y * row_bytes], bytearray(raw[y * row_bytes + 1:(y + 1) * row_bytes])
        for i in range(3 * width):
            left, up, corner = (row[i - 3] if i >= 3 else 0), above[i], (above[i - 3] if i >= 3 else 0)
            paeth = min((left, up, corner), key=lambda v: abs(left + up - corner - v))
            row[i] = row[i] + (0, left, up, (left + up) // 2, paeth)[kind] & 255
        out.append(row)
        above = row
    return out


def repainted(png, paint):
    """Each row through paint(row), of a PNG of 8 bits and RGB that is not interlaced."""
    parts, at = [], 8
    while at < len(png):
        n, = struct.unpack(">I", png[at:at + 4])
        parts.append((png[at + 4:at + 8], png[at + 8:at + 8 + n]))
        at += 12 + n
    width, height, depth, colour = struct.unpack(">IIBB", parts[0][1][:10])
    assert depth == 8 and colour == 2
    rows = unfiltered(zlib.decompress(b"".join(d for t, d in parts if t == b"IDAT")), width, height)
    for row in rows:
        paint(row)

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return png[:8] + chunk(b"IHDR", parts[0][1]) + chunk(b"IDAT", zlib.compress(b"".join(b"\0" + row for row in rows))) + chunk(b"IEND", b"")


def bgr(png):
    """Red and blue swapped."""
    def swap(row):
        row[::3], row[2::3] = row[2::3], row[::3]
    return repainted(png, swap)


def grey(png):
    """The same size and one colour, whatever was there."""
    def cover(row):
        row[:] = b"\x80" * len(row)
    return repainted(png, cover)


def record(fault, source, out):
    """Whoever gets the spoilt pictures of this file and spoils them again sees what was recorded."""
    with open(source, "rb") as f:
        n, = struct.unpack("<Q", f.read(8))
        head, data = json.loads(f.read(n)), f.read()
    names = sorted((k for k in head if k != "__metadata__"), key=lambda k: head[k]["data_offsets"])
    tensors = {k: data[slice(*head[k]["data_offsets"])] for k in names}
    told = head["__metadata__"]
    if fault == "record-fewer":
        told["messages"] = told["messages"].replace('{"type": "text", "text": "and"}', '{"type": "image"}')
    elif fault == "record-object":
        told["messages"] = "{}"
    elif fault == "record-cut":
        told["messages"] = told["messages"][:20]
    if fault == "record-bgr":
        tensors.update({k: bgr(tensors[k]) for k in names if k.startswith("picture.")})
    elif fault == "record-swapped":
        tensors["picture.0"], tensors["picture.1"] = tensors["picture.1"], tensors["picture.0"]
    at = 0
    for k in names:
        if k.startswith("picture."):
            head[k]["shape"] = [len(tensors[k])]
        head[k]["data_offsets"] = [at, at + len(tensors[k])]
        at += len(tensors[k])
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(out, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(tensors[k] for k in names))


def main(argv):
    if argv[1] == "make":
        make(argv[2], argv[3], CONFIG, PROCESSOR, "<|image_pad|>", TEMPLATE)
    elif argv[1] == "make-llava":
        make(argv[2], argv[3], LLAVA, SIGLIP, "<image>", TEMPLATE.replace("<|vision_start|><|image_pad|><|vision_end|>", "<image>"))
    elif argv[1].startswith("record-"):
        record(argv[1], argv[2], argv[3])
    else:
        spoil(argv[1], argv[2], argv[3])


if __name__ == "__main__":
    main(sys.argv)
