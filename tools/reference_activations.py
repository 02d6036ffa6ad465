#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Computes tiny models whose releases ask for rounded activations, in NumPy, in float64, and records them for tests/parity/rounded.c.

usage: reference_activations.py [--build BUILD] [--out DIR] [--search N] [FAMILY...]
A second reading of what goes into a product, written from how vLLM, compressed-tensors and DeepSeek define it and not from day0's code:
codes are looked up in tables of all numbers that a type has, the nearer one, of two equally near ones the even code.

  int8_token  a = largest magnitude of the row, s = a / 127, code = nearest integer to x / s in -128 .. 127
  fp8_block   of each 128 columns (the last may be fewer): s = a / 448, code = nearest E4M3
  nvfp4       of each 16 columns: c = nearest E4M3 to g * a / 6 where g = input_global_scale, code = nearest E2M1 to x * g / c

What enters a product is code * s. Float32 noise of another computation may turn a code that stands between two into its neighbour, which
moves it by a whole step. A recording therefore holds no such code: where any (and any scale of NVFP4) is nearer to a midpoint than MARGIN,
of the largest magnitude of its run (of the scale itself), the tool stops and another seed is needed (--search N tries N and says the
first). E4M3 has tiny numbers whose steps are below SMALL of the largest magnitude: those may turn, nobody would see it. With that, codes
are determined, and limits are those of float32.
"""
import hashlib
import json
import os
import subprocess
import sys
import tempfile

import numpy as np

import tensors as files
import tiny as common

TREE = os.path.join(common.TREE, "rounded")
MARGIN = 3e-7
SMALL = 2e-5  # a step that moves a row by less than the closest limit
E4M3 = files.e4m3(np.arange(127))  # ascending, no sign
E2M1 = files.E2M1[:8]


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def silu(x):
    return x / (1 + np.exp(-x))


def runs(x, width):
    return [x[:, at:at + width] for at in range(0, x.shape[1], width)]


class Rounding:
    """What a row becomes. `largest` and `width` are the rule's; others are rules that are wrong, to see how far they lead."""

    def __init__(self, rule, largest=None, width=None):
        self.rule, self.margin = rule, 1.0
        self.largest = largest or {"int8_token": 127, "fp8_block": 448, "nvfp4": 6}[rule]
        self.width = width or {"int8_token": 1 << 30, "fp8_block": 128, "nvfp4": 16}[rule]

    def table(self, table, x, unit):
        """Nearest number of a table with both signs; unit: what a distance of 1 is in terms of the margin."""
        m = np.abs(x)
        above = np.clip(np.searchsorted(table, m), 1, len(table) - 1)
        middle = (table[above - 1] + table[above]) / 2
        up = (m > middle) | ((m == middle) & (above % 2 == 0))
        inside = (m < table[-1]) & ((table[above] - table[above - 1]) * unit > SMALL)
        self.see(np.where(inside, np.abs(m - middle) * unit, 1.0))
        return np.where(x < 0, -1.0, 1.0) * np.where(up, table[above], table[above - 1])

    def integers(self, x, unit):
        self.see(np.abs(np.abs(x - np.floor(x)) - 0.5) * unit)
        return np.clip(np.rint(x), -128, 127)

    def see(self, distance):
        self.margin = min(self.margin, float(np.min(distance)))

    def run(self, x, g):
        a = np.abs(x).max(axis=-1, keepdims=True)
        if self.rule == "nvfp4":
            want = g * a / self.largest
            s = self.table(E4M3, want, 1 / want) / g
            return self.table(E2M1, x / s, s / a) * s
        s = a / self.largest
        return (self.integers(x / s, s / a) if self.rule == "int8_token" else self.table(E4M3, x / s, s / a)) * s

    def rows(self, x, g):
        """Runs with a zero row would divide by zero: the tiny models have none."""
        return np.concatenate([self.run(r, g) for r in runs(x, min(self.width, x.shape[1]))], axis=1)


def weights(directory):
    """name -> float64 [N, K], and name -> input_global_scale."""
    left, given, out = files.read(os.path.join(directory, "model.safetensors")), {}, {}
    for name in [n for n in left if n.endswith(".input_global_scale")]:
        given[name.rsplit(".", 1)[0]] = float(left.pop(name)[1].reshape(-1)[0])
    for name in [n for n in left if n.endswith(".weight_global_scale")]:
        stem = name.rsplit(".", 1)[0]
        codes, scale, over = left.pop(stem + ".weight_packed")[1], left.pop(stem + ".weight_scale")[1], left.pop(name)[1]
        w = files.halves(codes)
        out[stem] = w * files.along(files.e4m3(scale), w.shape[1]) / float(over.reshape(-1)[0])
    for name in [n for n in left if left[n][0] == "I8"]:
        stem = name.rsplit(".", 1)[0]
        out[stem] = left.pop(name)[1].astype(np.float64) * left.pop(stem + ".weight_scale")[1].reshape(-1, 1).astype(np.float64)
    for name, x in files.dequantise(left).items():
        out[name[:-7] if name.endswith(".weight") else name] = x.astype(np.float64)
    return out, given


class Model:
    def __init__(self, directory, rounding):
        self.c = json.load(open(os.path.join(directory, "config.json")))
        self.weights, self.given = weights(directory)
        self.unread = set(self.weights)
        self.rounding, self.values, self.choice = rounding, {}, 1.0

    def weight(self, name):
        self.unread.discard(name)
        return self.weights[name]

    def keep(self, name, x):
        """What is recorded is float32, and the next step takes it so: a step that is fed with it has the very same input."""
        x = x.astype(np.float32).astype(np.float64)
        self.values[name] = x.reshape(x.shape[0], -1)
        return x

    def product(self, x, name):
        if self.rounding and "lm_head" not in name and not name.endswith(".gate"):
            x = self.rounding.rows(x, self.given.get(name))
        return x @ self.weight(name).T

    def linear(self, x, name):
        return self.keep(name, self.product(x, name))

    def norm(self, x, name):
        shape = x.shape
        y = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.c["rms_norm_eps"]) * self.weight(name)
        return self.keep(name, y.reshape(shape))

    def rotate(self, x):
        """The two halves of a head turn against each other; x [T, heads, dim]."""
        half = x.shape[-1] // 2
        angle = np.arange(len(x))[:, None] * self.c["rope_theta"] ** (-np.arange(half) / half)
        cos, sin = np.cos(angle)[:, None, :], np.sin(angle)[:, None, :]
        a, b = x[..., :half], x[..., half:]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    def attention(self, x, at):
        c, n = self.c, len(x)
        heads, groups, dim = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        q, k, v = (self.linear(x, "%s.%s_proj" % (at, s)).reshape(n, h, dim) for s, h in (("q", heads), ("k", groups), ("v", groups)))
        if at + ".q_norm" in self.weights:
            q, k = self.norm(q, at + ".q_norm"), self.norm(k, at + ".k_norm")
        q, k = self.keep(at + ".q_rope", self.rotate(q)), self.keep(at + ".k_rope", self.rotate(k))
        o = np.zeros((n, heads, dim))
        for t in range(n):
            for h in range(heads):
                g = h * groups // heads
                o[t, h] = softmax(k[:t + 1, g] @ q[t, h] * dim ** -0.5) @ v[:t + 1, g]
        return self.linear(self.keep(at + ".attn", o).reshape(n, -1), at + ".o_proj")

    def mlp(self, x, at):
        h = self.keep(at + ".act", silu(self.linear(x, at + ".gate_proj")) * self.linear(x, at + ".up_proj"))
        return self.linear(h, at + ".down_proj")

    def experts(self, x, at):
        k = self.c["num_experts_per_tok"]
        p = softmax(self.linear(x, at + ".gate"))
        y = np.zeros_like(x)
        for t in range(len(x)):
            order = np.argsort(-p[t], kind="stable")
            self.choice = min(self.choice, (p[t, order[k - 1]] - p[t, order[k]]) / p[t].max())
            for e in order[:k]:
                one = "%s.experts.%d." % (at, e)
                h = silu(self.product(x[t:t + 1], one + "gate_proj")) * self.product(x[t:t + 1], one + "up_proj")
                y[t] += p[t, e] / p[t, order[:k]].sum() * self.product(h, one + "down_proj")[0]
        for name in [w for w in self.unread if w.startswith(at + ".experts.")]:
            self.unread.discard(name)
        return self.keep(at + ".experts", y)

    def forward(self, ids):
        s = self.keep("model.embed_tokens", self.weight("model.embed_tokens")[np.array(ids)])
        for i in range(self.c["num_hidden_layers"]):
            at = "model.layers.%d" % i
            s = self.keep(at + ".after_attention", s + self.attention(self.norm(s, at + ".input_layernorm"), at + ".self_attn"))
            h = self.norm(s, at + ".post_attention_layernorm")
            y = self.experts(h, at + ".mlp") if at + ".mlp.gate" in self.weights else self.mlp(h, at + ".mlp")
            s = self.keep(at, s + y)
        return self.linear(self.norm(s, "model.norm"), "lm_head")


def error(a, b):
    return float((np.linalg.norm(a - b, axis=-1) / np.linalg.norm(b, axis=-1)).max())


def tool(build, *args):
    r = subprocess.run([os.path.join(build, "tests", "parity", "rounded")] + list(args), stdout=subprocess.PIPE, universal_newlines=True)
    if r.returncode:
        sys.exit("rounded %s failed" % " ".join(args))
    return r.stdout


def computed(a, family, rule, prompt, seed, top):
    base = os.path.join(top, "base")
    tool(a.build, "--write", family, base, str(seed))
    m = Model(base, Rounding(rule))
    ids = common.prompt(m.c["vocab_size"], prompt, seed)
    logits = m.forward(ids)
    if m.unread or not np.isfinite(logits).all():
        sys.exit("%s: not finite, or nobody reads %s" % (family, sorted(m.unread)[:5]))
    return base, m, ids, logits


def determined(m):
    return m.rounding.margin >= MARGIN and m.choice >= common.MARGIN


def search(a, family, tiny):
    for seed in range(tiny["seed"], tiny["seed"] + a.search):
        with tempfile.TemporaryDirectory() as top:
            m = computed(a, family, tiny["rule"], tiny["prompt"], seed, top)[1]
        if determined(m):
            print("%s: seed %d: margin %.1e" % (family, seed, m.rounding.margin))
            return
    sys.exit("%s: no seed of %d" % (family, a.search))


def record(a, family):
    tiny = json.load(open(os.path.join(TREE, "tiny", family + ".json")))
    if a.search:
        return search(a, family, tiny)
    with tempfile.TemporaryDirectory() as top:
        base, m, ids, logits = computed(a, family, tiny["rule"], tiny["prompt"], tiny["seed"], top)
        if not determined(m):
            sys.exit("%s: a code hangs on %.1e, a choice on %.1e: another seed is needed" % (family, m.rounding.margin, m.choice))
        probes = dict(line.split("\t") for line in tool(a.build, "--probes", base).splitlines())
        wrong = {}
        if tiny["rule"] == "int8_token":
            wrong["127.5"] = Model(base, Rounding(tiny["rule"], largest=127.5)).forward(ids)
        moved = dict({"exact": error(Model(base, None).forward(ids), logits)}, **{k: error(v, logits) for k, v in wrong.items()})
        sha = hashlib.sha256(open(os.path.join(base, "model.safetensors"), "rb").read()).hexdigest()
    meta = {"format": "day0-reference-1", "dtype": "float32", "model": family, "model_sha256": sha,
            "producer": "numpy, tools/reference_activations.py", "activations": "released", "margin": "%.1e" % m.rounding.margin}
    kept = {}
    for name, width in probes.items():
        name_here = name.replace(".add", ".after_attention") if name.endswith(".add") else name
        if name_here in m.values and m.values[name_here].shape[1] == int(width) and name != "lm_head":
            kept[name] = m.values[name_here].astype(np.float32)
    path = os.path.join(a.out, "rounded.%s.safetensors" % family)
    head = {"token_ids": np.array(ids, dtype=np.int32)}
    files.write(path, dict(head, logits=logits.astype(np.float32), **kept), meta)
    for name, x in wrong.items():
        files.write(os.path.join(a.out, "rounded.%s.%s.safetensors" % (family, name)), dict(head, logits=x.astype(np.float32)), meta)
    print("%s: %d positions, %d of %d probes, %d KB; margin %.1e; %s" % (family, len(ids), len(kept), len(probes), os.path.getsize(path) // 1000,
          m.rounding.margin, ", ".join("%s moves by %.1e" % x for x in moved.items())))
    for name in sorted(set(probes) - set(kept)):
        print("   not recorded: %s" % name)
    if os.path.getsize(path) > common.MOST_BYTES:
        sys.exit("%s: more than %d bytes" % (family, common.MOST_BYTES))


def main():
    ap = common.arguments(__doc__)
    ap.add_argument("--search", type=int, default=0)
    a = ap.parse_args()
    for family in a.families or sorted(f[:-5] for f in os.listdir(os.path.join(TREE, "tiny"))):
        record(a, family)


if __name__ == "__main__":
    main()
