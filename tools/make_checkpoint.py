#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a checkpoint of any size in Hugging Face layout: config, index, shards with true headers, tokenizer.

    make_checkpoint.py llama OUT --hidden 64 --intermediate 172 --layers 5 --heads 8 --kv-heads 4 --head-dim 8 --vocab 512 \\
        --dtype F32 --shards 3 --fill hash --seed 1
    make_checkpoint.py llama OUT --target-bytes 200G --shards 40        (layers are counted so that it comes near; takes seconds)
    make_checkpoint.py CONFIG_DIR OUT --shards 96                       (any model day0 knows: names, types and shapes are those of
                                                                         `day0 inspect CONFIG_DIR --tensors`; also drafting layers)
    make_checkpoint.py CONFIG_DIR OUT --index model.safetensors.index.json[.gz]
                                                                        (of these only what that index names, in the form it names them:
                                                                         experts one by one or packed)

--fill sparse (default): the data are holes: zeros that take no space on disk. For pre-flight, planning and streaming.
--fill hash: real values, a pure function of seed, tensor name and element index i, so that any program can make the same:

    P    = 1048573                                   (prime: no row of a usual width repeats)
    j    = (i + rng(seed, fnv1a64(name)) % P) % P
    v    = (rng(seed, j / 4) >> 16 * (j % 4)) & 0xFFFF
    x    = offset + (v - 32767.5) / 32768.0 * half   in float64, rounded to float32, then to the type, each to nearest even
    rng(seed, n) = mix(mix(seed + G) + (n + 1) * G)  in 64 bits; G = 0x9E3779B97F4A7C15; mix: the SplitMix64 finaliser
    fnv1a64: offset basis 0xCBF29CE484222325, prime 0x100000001B3, over the UTF-8 bytes of the name

half and offset keep activations near 1: linear weights [N, K]: half = sqrt(3 / K) (standard deviation 1 / sqrt(K)), offset 0; embedding:
half = sqrt(3); norms: half = 1/16, offset 1. Of a model by CONFIG_DIR what has one dimension is filled like a norm. Quantised parts: codes are
the low bytes of v without NaN, scales are positive and of size 1 / sqrt(K) / the largest code, zero points are the middle.

A new family is one entry of FAMILIES: arguments, config and list of tensors. Python standard library only.
"""
import argparse
import array
import gzip
import json
import math
import os
import shutil
import struct
import subprocess
import sys
import tempfile

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
PERIOD = 1048573
DTYPES = {"F32": (4, "float32"), "BF16": (2, "bfloat16"), "F16": (2, "float16")}
BYTES = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}


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
    def __init__(self, seed):
        self.seed, self.patterns = seed, {}
        codes = array.array("H")
        for block in range((PERIOD + 3) // 4):
            h = rng(seed, block)
            codes.extend((h & 0xFFFF, h >> 16 & 0xFFFF, h >> 32 & 0xFFFF, h >> 48))
        self.codes = codes[:PERIOD]

    def pattern(self, dtype, half, offset):
        """One period of values as bytes, twice, so that any rotation is one slice."""
        key = (dtype, half, offset)
        if key not in self.patterns:
            if dtype in DTYPES:
                table = [encode(offset + (v - 32767.5) / 32768.0 * half, dtype) for v in range(65536)]
            elif dtype == "F8_E8M0":  # 2^-7 to 1
                table = [120 + v % 8 for v in range(65536)]
            else:
                table = [v & 255 if dtype[:2] != "F8" or v & 127 < 120 else v & 128 for v in range(65536)]
            one = array.array("I" if dtype == "F32" else "H" if dtype in DTYPES else "B", map(table.__getitem__, self.codes))
            if sys.byteorder == "big":
                one.byteswap()
            self.patterns[key] = one.tobytes() * 2
        return self.patterns[key]

    def write(self, f, tensor):
        if "fixed" in tensor:
            f.write(tensor["fixed"])
            return
        dtype = tensor["dtype"]
        size = DTYPES[dtype][0] if dtype in DTYPES else 1
        twice = memoryview(self.pattern(dtype, tensor["half"], tensor["offset"]))
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
        t["dtype"] = dtype
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


# ---- any model that day0 describes

def fixed_bytes(name, dtype, role, dims, count, known):
    """Integers that mean something: shapes, orders, zero points."""
    if role == "shape":  # of what is packed, eight codes to a word
        n, words = known.get(name.replace("_shape", "_packed"), (1, 1))
        return struct.pack("<2q" if dtype == "I64" else "<2i", n, words * 8)
    if role == "order":
        return struct.pack("<%di" % count, *(i // 128 for i in range(count)))
    if role == "zero_point":
        return b"\x88" * (count * BYTES[dtype])
    return bytes(count * BYTES[dtype])  # token tables: all expert 0


def describe(day0, directory):
    """Tensors as day0 expects them on disk."""
    p = subprocess.run([day0, "inspect", directory, "--tensors"], stdout=subprocess.PIPE, universal_newlines=True)
    if p.returncode != 0:
        sys.exit("day0 inspect %s failed" % directory)
    rows = [line.split("\t") for line in p.stdout.splitlines()]
    known = {r[0]: [int(d) for d in r[2].split(",")] for r in rows if r[0].endswith("_packed")}
    tensors = []
    for name, dtype, dims, role, _part, _group, size in rows:
        shape = [int(d) for d in dims.split(",")] if dims else []
        t = {"name": name, "dtype": dtype, "shape": shape, "bytes": int(size), "half": 1 / 16, "offset": 1.0}
        width = shape[-1] if shape else 1
        if role in ("scale", "global_scale", "input_scale"):
            t["offset"] = 1.0 if role != "scale" else 1 / 256 / math.sqrt(width)
            t["half"] = t["offset"] / 4
        elif role == "weight" and len(shape) > 1:
            t["half"], t["offset"] = math.sqrt(3 / width), 0.0
        if role in ("shape", "order", "zero_point") or dtype in ("I64", "I16", "BOOL"):
            t["fixed"] = lambda r=role, x=t: fixed_bytes(x["name"], x["dtype"], r, x["shape"], math.prod(x["shape"]), known)
        tensors.append(t)
    return tensors


def names_of(path):
    with (gzip.open if path.endswith(".gz") else open)(path, "rt", encoding="utf-8") as f:
        return json.load(f)["weight_map"]


def describe_as_published(day0, directory, names):
    """Only what an index names. Where day0 expects other names it sees these first, as tensors without elements: shapes it then tells anew."""
    tensors = describe(day0, directory)
    if not names.keys() <= {t["name"] for t in tensors}:
        with tempfile.TemporaryDirectory() as scratch:
            for name in ("config.json", "hf_quant_config.json"):
                if os.path.exists(os.path.join(directory, name)):
                    shutil.copyfile(os.path.join(directory, name), os.path.join(scratch, name))
            text = json.dumps({n: {"dtype": "BF16", "shape": [0], "data_offsets": [0, 0]} for n in names}).encode()
            with open(os.path.join(scratch, "model.safetensors"), "wb") as f:
                f.write(struct.pack("<Q", len(text)) + text)
            tensors = describe(day0, scratch)
    tensors = [t for t in tensors if t["name"] in names]
    missing = names.keys() - {t["name"] for t in tensors}
    if missing:
        sys.exit("%d names of the index are of no tensor that day0 describes, first: %s" % (len(missing), min(missing)))
    return tensors


def value_of(config, key):
    for part in (config, config.get("text_config") or {}, config.get("llm_config") or {}):
        if isinstance(part.get(key), int):
            return part[key]
    return None


def from_config(argv):
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    p = argparse.ArgumentParser(description="A checkpoint for a config.json.")
    p.add_argument("config_dir")
    p.add_argument("out", metavar="OUT")
    p.add_argument("--day0", default=os.path.join(root, "build", "day0"))
    p.add_argument("--index", metavar="FILE", help="only the tensors that this index names")
    p.add_argument("--shards", type=int, default=1)
    p.add_argument("--fill", choices=("sparse", "hash"), default="sparse")
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args(argv)
    with open(os.path.join(a.config_dir, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    tensors = describe_as_published(a.day0, a.config_dir, names_of(a.index)) if a.index else describe(a.day0, a.config_dir)
    os.makedirs(a.out, exist_ok=True)
    for name in ("config.json", "hf_quant_config.json"):
        path = os.path.join(a.config_dir, name)
        if os.path.exists(path):
            shutil.copyfile(path, os.path.join(a.out, name))
    write_checkpoint(a, tensors)
    write_tokenizer(a.out, value_of(config, "vocab_size"))
    total = sum(t["bytes"] for t in tensors)
    print("%s: %d tensors, %.6g GB in %d file%s" % (a.out, len(tensors), total / 1e9, a.shards, "" if a.shards == 1 else "s"))


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


def write_shard(path, tensors, fill):
    tensors = sorted(tensors, key=lambda t: t["name"])  # the order of the reference writer
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for t in tensors:
        header[t["name"]] = {"dtype": t["dtype"], "shape": t["shape"], "data_offsets": [at, at + t["bytes"]]}
        at += t["bytes"]
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        if fill:
            for t in tensors:
                if "fixed" in t:
                    t["fixed"] = t["fixed"]()
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


def write_checkpoint(a, tensors):
    """Shards and, if there are several, the index."""
    fill = HashFill(a.seed) if a.fill == "hash" else None
    weight_map = {}
    shards = split(tensors, a.shards)
    for i, shard in enumerate(shards):
        name = "model.safetensors" if len(shards) == 1 else "model-%05d-of-%05d.safetensors" % (i + 1, len(shards))
        write_shard(os.path.join(a.out, name), shard, fill)
        weight_map.update({t["name"]: name for t in shard})
    if len(shards) > 1:
        write_json(a.out, "model.safetensors.index.json",
                   {"metadata": {"total_size": sum(t["bytes"] for t in tensors)}, "weight_map": dict(sorted(weight_map.items()))})


def write_tokenizer(out, vocab):
    write_json(out, "generation_config.json", {"bos_token_id": 1, "eos_token_id": [2], "do_sample": False})
    write_json(out, "tokenizer.json", tokenizer(vocab))
    write_json(out, "tokenizer_config.json", {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "add_bos_token": True})


def main():
    if len(sys.argv) > 1 and sys.argv[1] not in FAMILIES and os.path.isdir(sys.argv[1]):
        return from_config(sys.argv[1:])
    a = parse_arguments()
    _, config_of, tensors_of, default_layers = FAMILIES[a.family]
    a.layers = count_layers(a, tensors_of, default_layers)
    tensors = tensors_of(a)
    total = size_up(tensors, a.dtype)
    os.makedirs(a.out, exist_ok=True)
    write_checkpoint(a, tensors)
    write_json(a.out, "config.json", config_of(a))
    write_tokenizer(a.out, a.vocab)
    print("%s: %d tensors, %d layers, %.3g GB in %d file%s" % (a.out, len(tensors), a.layers, total / 1e9, a.shards,
                                                               "" if a.shards == 1 else "s"))


if __name__ == "__main__":
    main()
