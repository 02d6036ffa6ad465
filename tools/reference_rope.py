#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records inverse frequencies, cosines and sines as transformers computes them, bit by bit: tests/parity/golden/ropes.json.

usage: reference_rope.py [--out FILE]
The cases stand in tests/parity/ropes.json. Numbers are float32, eight hexadecimal digits each. torch's power of float32 numbers is
not correctly rounded and need not be the same on every machine: "library" are the frequencies as they come here, "inv_freq" those
of the same functions when every power is rounded correctly; cosines and sines are of the latter. Needs torch and transformers.
"""
import argparse
import json
import os

import torch
import transformers

import tiny as common

POSITIONS = [0, 1, 2, 7, 33, 511, 4095, 4096, 8191, 32767, 131071, 1048575]


def digits(x):
    return "".join("%08x" % (v & 0xFFFFFFFF) for v in x.float().contiguous().view(torch.int32).flatten().tolist())


def exact_power(exponent, base):
    return torch.pow(torch.tensor(base, dtype=torch.float32).double(), exponent.double()).to(exponent.dtype)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--out", default=os.path.join(common.TREE, "golden", "ropes.json"))
    a = ap.parse_args()
    torch.set_grad_enabled(False)
    out = []
    for case in json.load(open(os.path.join(common.TREE, "ropes.json"))):
        kept = dict(hidden_size=64, num_attention_heads=4, max_position_embeddings=131072)
        kept.update(json.loads(json.dumps(case["config"])))
        make = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding
        library = make(transformers.LlamaConfig(**json.loads(json.dumps(kept)))).inv_freq.clone()
        plain, torch.Tensor.__rpow__ = torch.Tensor.__rpow__, exact_power
        rope = make(transformers.LlamaConfig(**json.loads(json.dumps(kept))))
        torch.Tensor.__rpow__ = plain
        inv = rope.inv_freq.clone()
        # up to the original length: beyond it longrope takes other factors, in all angles at once
        limit = (case["config"].get("rope_scaling") or {}).get("original_max_position_embeddings", 1 << 30) if "long" in case["name"] else 1 << 30
        at = [p for p in POSITIONS if p < limit]
        cos, sin = [], []
        for p in at:
            c, s = rope(torch.zeros(1, 1, 1), torch.tensor([[p]]))
            if case["config"].get("rope_scaling", {}).get("rope_type") == "dynamic" and p >= kept["max_position_embeddings"]:
                break
            assert torch.equal(rope.inv_freq, inv), case["name"]
            half = c.shape[-1] // 2
            assert torch.equal(c[..., :half], c[..., half:])
            cos.append(digits(c[0, 0, :half]))
            sin.append(digits(s[0, 0, :half]))
        out.append({"name": case["name"], "inv_freq": digits(inv), "library": digits(library), "positions": at[:len(cos)], "cos": cos, "sin": sin})
        print("%s: %d frequencies (%d not as the library has them), %d positions, factor %.9g" % (
            case["name"], len(inv), (library != inv).sum(), len(cos), rope.attention_scaling))
    with open(a.out, "w") as f:
        f.write('{"producer": "transformers %s, torch %s", "cases": [\n' % (transformers.__version__, torch.__version__.split("+")[0]))
        f.write(",\n".join(json.dumps(c) for c in out) + "\n]}\n")


if __name__ == "__main__":
    main()
