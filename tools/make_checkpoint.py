#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a checkpoint of any size in Hugging Face layout: config, index, shards with true headers, tokenizer.

    make_checkpoint.py llama OUT --hidden 64 --intermediate 172 --layers 5 --heads 8 --kv-heads 4 --head-dim 8 --vocab 512 \\
        --dtype F32 --shards 3 --fill hash --seed 1
    make_checkpoint.py llama OUT --target-bytes 200G --shards 40        (layers are counted so that it comes near; takes seconds)

--fill sparse (default): the data are holes: zeros that take no space on disk. For pre-flight, planning and streaming.
--fill hash: real values, a pure function of seed, tensor name and element index i, so that any program can make the same:

    P    = 1048573                                   (prime: no row of a usual width repeats)
    j    = (i + rng(seed, fnv1a64(name)) % P) % P
    v    = (rng(seed, j / 4) >> 16 * (j % 4)) & 0xFFFF
    x    = offset + (v - 32767.5) / 32768.0 * half   in float64, rounded to float32, then to the type, each to nearest even
    rng(seed, n) = mix(mix(seed + G) + (n + 1) * G)  in 64 bits; G = 0x9E3779B97F4A7C15; mix: the SplitMix64 finaliser
    fnv1a64: offset basis 0xCBF29CE484222325, prime 0x100000001B3, over the UTF-8 bytes of the name

half and offset keep activations near 1: linear weights [N, K]: half = sqrt(3 / K) (standard deviation 1 / sqrt(K)), offset 0; embedding:
half = sqrt(3); norms: half = 1/16, offset 1.

A new family is one entry of FAMILIES: arguments, config and list of tensors. Python standard library only.
"""
import argparse
import array
import json
import math
import os
import struct
import sys

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
PERIOD = 1048573
DTYPES = {"F32": (4, "float32"), "BF16": (2, "bfloat16"), "F16": (2, "float16")}


# ---- values

def mix(z):
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def rng(seed, counter):
    return mix((mix((seed + GOLDEN) & MASK) + (counter + 1) * GOLDEN) & MASK)


def fnv1a64(text):
    h = 0xCBF29CE484222325
    for byte in text.encode():
        h = ((h ^ byte) * 0x100000001B3) & MASK
    return h


def float32_bits(x):
    return struct.unpack("<I", struct.pack("<f", x))[0]


def encode(x, dtype):
    """Bits of x in the type: float64 -> float32 -> type, each to nearest even."""
    bits = float32_bits(x)
    if dtype == "BF16":
        return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16) & 0xFFFF
    if dtype == "F16":
        return struct.unpack("<H", struct.pack("<e", struct.unpack("<f", struct.pack("<I", bits))[0]))[0]
    return bits


class HashFill:
    def __init__(self, seed, dtype):
        self.seed, self.dtype, self.patterns = seed, dtype, {}
        codes = array.array("H")
        for block in range((PERIOD + 3) // 4):
            h = rng(seed, block)
            codes.extend((h & 0xFFFF, h >> 16 & 0xFFFF, h >> 32 & 0xFFFF, h >> 48))
        self.codes = codes[:PERIOD]

    def pattern(self, half, offset):
        """One period of values as bytes, twice, so that any rotation is one slice."""
        key = (half, offset)
        if key not in self.patterns:
            table = [encode(offset + (v - 32767.5) / 32768.0 * half, self.dtype) for v in range(65536)]
            one = array.array("I" if self.dtype == "F32" else "H", map(table.__getitem__, self.codes))
            if sys.byteorder == "big":
                one.byteswap()
            self.patterns[key] = one.tobytes() * 2
        return self.patterns[key]

    def write(self, f, tensor):
        size = DTYPES[self.dtype][0]
        twice = memoryview(self.pattern(tensor["half"], tensor["offset"]))
        at = rng(self.seed, fnv1a64(tensor["name"])) % PERIOD * size
        period, left = PERIOD * size, tensor["bytes"]
        while left:
            n = min(left, period)
            f.write(twice[at:at + n])
            left -= n


# ---- families

def norm(name, n):
    return {"name": name, "shape": [n], "half": 1 / 16, "offset": 1.0}


def linear(name, n, k):
    return {"name": name, "shape": [n, k], "half": math.sqrt(3 / k), "offset": 0.0}


def embedding(name, n, k):
    return {"name": name, "shape": [n, k], "half": math.sqrt(3), "offset": 0.0}


def llama_arguments(p):
    p.add_argument("--hidden", type=int, default=8192)
    p.add_argument("--intermediate", type=int, default=28672)
    p.add_argument("--layers", type=int, default=None, help="default 80, or as many as --target-bytes needs")
    p.add_argument("--heads", type=int, default=64)
    p.add_argument("--kv-heads", type=int, default=8)
    p.add_argument("--head-dim", type=int, default=128)
    p.add_argument("--vocab", type=int, default=128256)
    p.add_argument("--tied", action="store_true", help="no lm_head: the embedding is used")
    p.add_argument("--max-positions", type=int, default=8192)


def llama_config(a):
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": a.hidden, "intermediate_size": a.intermediate,
        "num_hidden_layers": a.layers, "num_attention_heads": a.heads, "num_key_value_heads": a.kv_heads, "head_dim": a.head_dim,
        "vocab_size": a.vocab, "max_position_embeddings": a.max_positions, "rms_norm_eps": 1e-05, "rope_theta": 500000.0,
        "hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": a.tied, "bos_token_id": 1,
        "eos_token_id": 2, "torch_dtype": DTYPES[a.dtype][1],
    }


def llama_tensors(a):
    q, kv = a.heads * a.head_dim, a.kv_heads * a.head_dim
    out = [embedding("model.embed_tokens.weight", a.vocab, a.hidden)]
    for i in range(a.layers):
        at = "model.layers.%d." % i
        out += [
            norm(at + "input_layernorm.weight", a.hidden),
            linear(at + "self_attn.q_proj.weight", q, a.hidden),
            linear(at + "self_attn.k_proj.weight", kv, a.hidden),
            linear(at + "self_attn.v_proj.weight", kv, a.hidden),
            linear(at + "self_attn.o_proj.weight", a.hidden, q),
            norm(at + "post_attention_layernorm.weight", a.hidden),
            linear(at + "mlp.gate_proj.weight", a.intermediate, a.hidden),
            linear(at + "mlp.up_proj.weight", a.intermediate, a.hidden),
            linear(at + "mlp.down_proj.weight", a.hidden, a.intermediate),
        ]
    out.append(norm("model.norm.weight", a.hidden))
    if not a.tied:
        out.append(linear("lm_head.weight", a.vocab, a.hidden))
    return out


FAMILIES = {"llama": (llama_arguments, llama_config, llama_tensors, 80)}


def size_up(tensors, dtype):
    for t in tensors:
        t["bytes"] = math.prod(t["shape"]) * DTYPES[dtype][0]
    return sum(t["bytes"] for t in tensors)


def count_layers(a, tensors_of, default):
    """The number of layers whose total comes nearest to --target-bytes."""
    if a.layers is not None:
        if a.target_bytes:
            sys.exit("--layers and --target-bytes exclude one another")
        return a.layers
    if not a.target_bytes:
        return default
    a.layers = 1
    one = size_up(tensors_of(a), a.dtype)
    a.layers = 2
    layer = size_up(tensors_of(a), a.dtype) - one
    return max(1, 1 + round((a.target_bytes - one) / layer))


# ---- tokenizer

def tokenizer(vocab_size):
    """Byte-fallback BPE made of nothing: three special tokens, 256 bytes, the word mark, printable ASCII and a few merges."""
    tokens = ["<unk>", "<s>", "</s>"] + ["<0x%02X>" % b for b in range(256)]
    if vocab_size < len(tokens):
        sys.exit("--vocab must be at least %d" % len(tokens))
    tokens += ["\u2581"] + [chr(c) for c in range(0x21, 0x7F)]
    merges = []
    for left, right in [("\u2581", "t"), ("h", "e"), ("\u2581", "a"), ("i", "n"), ("r", "e"), ("o", "n"), ("\u2581t", "he"), ("e", "r"),
                        ("\u2581", "s"), ("a", "t"), ("n", "d"), ("\u2581a", "nd"), ("o", "u"), ("e", "n"), ("in", "g"), ("o", "r")]:
        tokens.append(left + right)
        merges.append([left, right])
    tokens = tokens[:vocab_size]
    known = set(tokens)
    merges = [m for m in merges if m[0] in known and m[1] in known and m[0] + m[1] in known]

    def special(i):
        return {"id": i, "content": tokens[i], "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                "special": True}

    def bos(type_id):
        return {"SpecialToken": {"id": "<s>", "type_id": type_id}}

    def sequence(name, type_id):
        return {"Sequence": {"id": name, "type_id": type_id}}

    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [special(i) for i in range(3)],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "\u2581"}, {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]},
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing", "single": [bos(0), sequence("A", 0)],
            "pair": [bos(0), sequence("A", 0), bos(1), sequence("B", 1)],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
                  "vocab": {t: i for i, t in enumerate(tokens)}, "merges": merges},
    }


# ---- files

def split(tensors, n):
    """n shards in model order, of about the same size; each has at least one tensor."""
    if not 1 <= n <= len(tensors):
        sys.exit("--shards must be from 1 to %d" % len(tensors))
    left, shards, at = sum(t["bytes"] for t in tensors), [], 0
    for s in range(n):
        shard, size, goal = [], 0, left / (n - s)
        while at < len(tensors) - (n - s - 1) and (not shard or s == n - 1 or size + tensors[at]["bytes"] / 2 <= goal):
            shard.append(tensors[at])
            size += tensors[at]["bytes"]
            at += 1
        shards.append(shard)
        left -= size
    return shards


def write_shard(path, tensors, dtype, fill):
    tensors = sorted(tensors, key=lambda t: t["name"])  # the order of the reference writer
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for t in tensors:
        header[t["name"]] = {"dtype": dtype, "shape": t["shape"], "data_offsets": [at, at + t["bytes"]]}
        at += t["bytes"]
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        if fill:
            for t in tensors:
                fill.write(f, t)
        else:
            f.truncate(8 + len(text) + at)


def write_json(directory, name, value):
    with open(os.path.join(directory, name), "w", encoding="utf-8") as f:
        json.dump(value, f, indent=1, ensure_ascii=False)
        f.write("\n")


def to_bytes(text):
    units = {"K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
    return int(float(text[:-1]) * units[text[-1].upper()]) if text[-1].upper() in units else int(text)


def parse_arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    families = p.add_subparsers(dest="family", required=True)
    for name, (add_arguments, _, _, _) in FAMILIES.items():
        f = families.add_parser(name)
        f.add_argument("out", metavar="OUT", help="directory, made if it is not there")
        add_arguments(f)
        f.add_argument("--dtype", choices=DTYPES, default="BF16")
        f.add_argument("--shards", type=int, default=1)
        f.add_argument("--fill", choices=("sparse", "hash"), default="sparse")
        f.add_argument("--seed", type=int, default=1)
        f.add_argument("--target-bytes", type=to_bytes, default=0, help="e.g. 200G; decides the number of layers")
    return p.parse_args()


def main():
    a = parse_arguments()
    _, config_of, tensors_of, default_layers = FAMILIES[a.family]
    a.layers = count_layers(a, tensors_of, default_layers)
    tensors = tensors_of(a)
    total = size_up(tensors, a.dtype)
    shards = split(tensors, a.shards)
    fill = HashFill(a.seed, a.dtype) if a.fill == "hash" else None
    os.makedirs(a.out, exist_ok=True)
    weight_map = {}
    for i, shard in enumerate(shards):
        name = "model.safetensors" if len(shards) == 1 else "model-%05d-of-%05d.safetensors" % (i + 1, len(shards))
        write_shard(os.path.join(a.out, name), shard, a.dtype, fill)
        weight_map.update({t["name"]: name for t in shard})
    if len(shards) > 1:
        write_json(a.out, "model.safetensors.index.json",
                   {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))})
    write_json(a.out, "config.json", config_of(a))
    write_json(a.out, "generation_config.json", {"bos_token_id": 1, "eos_token_id": [2], "do_sample": False})
    write_json(a.out, "tokenizer.json", tokenizer(a.vocab))
    write_json(a.out, "tokenizer_config.json", {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "add_bos_token": True})
    print("%s: %d tensors, %d layers, %.3g GB in %d file%s" % (a.out, len(tensors), a.layers, total / 1e9, len(shards),
                                                               "" if len(shards) == 1 else "s"))


if __name__ == "__main__":
    main()
