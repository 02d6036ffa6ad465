#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Computes tiny Kimi-K3 text models in NumPy, in float64, and records them for tests/parity as tools/reference.py does.

usage: reference_k3.py [--build BUILD] [--out DIR] [--show] [FAMILY...]
transformers has no Kimi-K3. This is a second reading of what is public about it, written from descriptions of the model alone and
not from day0's kernels: every step is the plain formula, one token and one head at a time where that is clearer. Weights and names
are those of the checkpoint that BUILD/tests/parity/parity writes; every tensor of the text must be read, and none may be left over.
"""
import hashlib
import json
import os
import re
import sys
import tempfile

import numpy as np

import tensors as files
import tiny as common

# Probe of day0 -> what was recorded.
ALIASES = [
    (r"(.*\.layers\.\d+)\.add", r"\1.after_attention"),
]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def rms(x, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)


class Model:
    """One forward pass may take any number of tokens; `cache` carries what earlier ones left."""

    def __init__(self, directory):
        self.top = json.load(open(os.path.join(directory, "config.json")))
        self.c = self.top["text_config"]
        every = files.dequantise(files.read(os.path.join(directory, "model.safetensors")))
        self.tensors = {k: v for k, v in every.items() if k.startswith("language_model.")}
        self.unread = set(self.tensors)
        self.values = {}
        self.margin = 1.0
        self.full = {n - 1 for n in self.c["linear_attn_config"]["full_attn_layers"]}  # the file counts layers from 1

    # weights

    def tensor(self, name):
        self.unread.discard(name)
        return self.tensors[name]

    def weight(self, name):
        name = "language_model." + name
        return self.tensor(name + ".weight" if name + ".weight" in self.tensors else name).astype(np.float64)

    def keep(self, name, x):
        self.values["language_model." + name] = x.reshape(x.shape[0], -1)
        return x

    def linear(self, x, name):
        return self.keep(name, x @ self.weight(name).T)

    def norm(self, x, name, eps):
        return self.keep(name, rms(x, eps) * self.weight(name))

    # parts of a layer

    def situ(self, gate, up):
        b, bl = self.c["activation_situ_beta"], self.c["activation_situ_linear_beta"]
        return b * np.tanh(gate / b) * sigmoid(gate) * (bl * np.tanh(up / bl))

    def glu(self, x, at):
        h = self.keep(at + ".act", self.situ(self.linear(x, at + ".gate_proj"), self.linear(x, at + ".up_proj")))
        return self.linear(h, at + ".down_proj")

    def conv(self, x, name, cache):
        """Depthwise and causal: the last tap is the current token's."""
        w = self.weight(name)[:, 0, :]  # [C, 1, k]
        k = w.shape[1]
        before = cache.get(name, np.zeros((k - 1, x.shape[1])))
        seen = np.concatenate([before, x])
        cache[name] = seen[len(seen) - (k - 1):]
        out = np.zeros_like(x)
        for t in range(len(x)):
            for j in range(k):
                out[t] += w[:, j] * seen[t + j]
        return self.keep(name, silu(out))

    def kda(self, x, at, cache):
        c = self.c["linear_attn_config"]
        heads, dim, n = c["num_heads"], c["head_dim"], len(x)
        q, k, v = (self.conv(self.linear(x, "%s.%s_proj" % (at, s)), "%s.%s_conv1d" % (at, s), cache).reshape(n, heads, dim) for s in "qkv")
        a = self.linear(self.linear(x, at + ".f_a_proj"), at + ".f_b_proj").reshape(n, heads, dim)
        speed = np.exp(self.weight(at + ".A_log").reshape(-1)[:heads])  # the release stores more entries than heads
        z = a + self.weight(at + ".dt_bias").reshape(heads, dim)
        lower = c.get("gate_lower_bound")
        if lower is None:
            log_decay = -speed[None, :, None] * np.logaddexp(0, z)
        else:
            log_decay = lower * sigmoid(speed[None, :, None] * z)
        beta = self.keep(at + ".beta", sigmoid(self.linear(x, at + ".b_proj")))
        q = q / np.sqrt((q * q).sum(-1, keepdims=True) + 1e-6) * dim ** -0.5
        k = k / np.sqrt((k * k).sum(-1, keepdims=True) + 1e-6)
        state = cache.get(at, np.zeros((heads, dim, dim))).copy()  # [head, key channel, value channel]
        o = np.zeros((n, heads, dim))
        for t in range(n):
            for h in range(heads):
                s = state[h] * np.exp(log_decay[t, h])[:, None]
                s = s + np.outer(k[t, h], beta[t, h] * (v[t, h] - k[t, h] @ s))
                o[t, h], state[h] = q[t, h] @ s, s
        cache[at] = state
        self.keep(at + ".delta", o)
        gate = sigmoid(self.linear(x, at + ".g_proj")).reshape(n, heads, dim)
        o = self.keep(at + ".o_norm", rms(o, self.c["rms_norm_eps"]) * self.weight(at + ".o_norm"))
        return self.linear(self.keep(at + ".gated", o * gate).reshape(n, -1), at + ".o_proj")

    def mla(self, x, at, cache):
        """No rotation: the part of the key that all heads share is taken as it is."""
        c, n = self.c, len(x)
        heads, nope, shared, vd, latent = (c[k] for k in ("num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank"))
        q = self.norm(self.linear(x, at + ".q_a_proj"), at + ".q_a_layernorm", 1e-6)
        q = self.linear(q, at + ".q_b_proj").reshape(n, heads, nope + shared)
        kv = self.linear(x, at + ".kv_a_proj_with_mqa")
        row = np.concatenate([self.norm(kv[:, :latent], at + ".kv_a_layernorm", 1e-6), kv[:, latent:]], axis=1)
        rows = np.concatenate([cache.get(at, np.zeros((0, row.shape[1]))), row])
        cache[at] = rows
        kv = (rows[:, :latent] @ self.weight(at + ".kv_b_proj").T).reshape(len(rows), heads, nope + vd)
        o = np.zeros((n, heads, vd))
        for t in range(n):
            upto = len(rows) - n + t + 1
            for h in range(heads):
                score = kv[:upto, h, :nope] @ q[t, h, :nope] + rows[:upto, latent:] @ q[t, h, nope:]
                o[t, h] = softmax(score * (nope + shared) ** -0.5) @ kv[:upto, h, nope:]
        o = self.keep(at + ".attn", o).reshape(n, -1)
        if c["mla_use_output_gate"]:
            o = self.keep(at + ".gated", o * sigmoid(self.linear(x, at + ".g_proj")))
        return self.linear(o, at + ".o_proj")

    def experts(self, x, at):
        c = self.c
        z = self.linear(x, at + ".routed_expert_down_proj")
        logits = self.linear(x, at + ".gate")
        score = sigmoid(logits) if c["moe_router_activation_func"] == "sigmoid" else softmax(logits)
        choice = score + self.weight(at + ".gate.e_score_correction_bias")
        k = c["num_experts_per_token"]
        y = np.zeros_like(z)
        chosen = np.zeros((len(x), k))
        w = [[self.weight("%s.experts.%d.%s" % (at, e, s)) for s in ("w1", "w3", "w2")] for e in range(c["num_experts"])]
        for t in range(len(x)):
            order = np.argsort(-choice[t], kind="stable")
            self.margin = min(self.margin, (choice[t, order[k - 1]] - choice[t, order[k]]) / np.abs(choice[t]).max())
            part = score[t, order[:k]]
            chosen[t] = np.sort(order[:k])
            if c["moe_renormalize"]:
                part = part / (part.sum() + 1e-20)
            for e, p in zip(order[:k], part * c["routed_scaling_factor"]):
                w1, w3, w2 = w[e]
                y[t] += p * (w2 @ self.situ(w1 @ z[t], w3 @ z[t]))
        self.keep(at + ".chosen", chosen)
        self.keep(at + ".moe", y)
        if c["latent_moe_use_norm"]:
            y = self.norm(y, at + ".routed_expert_norm", c["rms_norm_eps"])
        y = self.linear(y, at + ".routed_expert_up_proj")
        return self.keep(at, y + self.glu(x, at + ".shared_experts"))

    def mix(self, blocks, s, name):
        """Softmax over the stored sums and the running one, of a score that each gets from its normed values; the values are mixed raw."""
        v = np.stack(blocks + [s])  # [entries, T, H]
        w = self.weight(name + "_norm").reshape(-1) * self.weight(name + "_proj").reshape(-1)
        p = softmax(rms(v, self.c["rms_norm_eps"]) @ w, axis=0)
        return self.keep(name, (p[:, :, None] * v).sum(0))

    def forward(self, ids, cache, pictures=None):
        """pictures: position -> row that takes the place of the token's own."""
        c = self.c
        s = self.keep("model.embed_tokens", self.weight("model.embed_tokens")[np.array(ids)])
        for at, row in (pictures or {}).items():
            s[at] = row
        blocks = []
        for i in range(c["num_hidden_layers"]):
            at = "model.layers.%d" % i
            h = self.norm(self.mix(blocks, s, at + ".self_attention_res"), at + ".input_layernorm", c["rms_norm_eps"])
            y = (self.mla if i in self.full else self.kda)(h, at + ".self_attn", cache)
            if i % c["attn_res_block_size"] == 0:
                blocks, s = blocks + [s], y
            else:
                s = s + y
            self.keep(at + ".after_attention", s)
            h = self.norm(self.mix(blocks, s, at + ".mlp_res"), at + ".post_attention_layernorm", c["rms_norm_eps"])
            y = self.glu(h, at + ".mlp") if i < c["first_k_dense_replace"] else self.experts(h, at + ".block_sparse_moe")
            s = self.keep(at, s + y)
        x = self.norm(self.mix(blocks, s, "model.output_attn_res"), "model.norm", c["rms_norm_eps"])
        return self.linear(x, "lm_head")


def error(a, b):
    return (np.linalg.norm(a - b, axis=-1) / np.linalg.norm(b, axis=-1)).max()


def decoded(model, ids):
    n, cache = len(ids) - common.DECODE, {}
    rows = [model.forward(ids[:n], cache)]
    rows += [model.forward(ids[i:i + 1], cache) for i in range(n, len(ids))]
    return np.concatenate(rows)


def find(values, probe, aliases):
    for pattern, target in aliases:
        m = re.fullmatch(pattern, probe)
        if m:
            return values.get(m.expand(target)) if target else None
    return values.get(probe)


def states_of(cache, listed):
    """What stands in the cache behind the last token, by day0's names: the convolutions of a layer are those of q, k and v in order."""
    out = {}
    for name, dims in listed:
        layer, what, number = re.fullmatch(r"state\.(\d+)\.(conv|delta)(?:[._](\d+))?", name).groups()
        at = "model.layers.%s.self_attn" % layer
        v = cache[at] if what == "delta" else cache["%s.%s_conv1d" % (at, "qkv"[int(number or 1) - 1])]
        if list(v.shape) != dims:
            sys.exit("%s is %s, not %s" % (name, list(v.shape), dims))
        out[name] = v.reshape(1, -1).astype(np.float32)
    return out


def record(a, family):
    tiny = common.read(family)
    with tempfile.TemporaryDirectory() as top:
        base, other = os.path.join(top, "base"), os.path.join(top, "off")
        common.tool(a.build, "--write", family, base)
        probes = [line.split("\t") for line in common.tool(a.build, "--probes", base).splitlines()]
        model = Model(base)
        limit = tiny.get("ids_below", model.c["vocab_size"])
        long = common.prompt(limit, tiny["prompt"], tiny["seed"])
        short = common.prompt(limit, tiny.get("short", 11), tiny["seed"] + 1)
        brief = model.forward(short, {})
        tail = decoded(model, long)
        cache = {}
        logits = model.forward(long, cache)  # last: its values are the probes
        listed = [line.split("\t") for line in common.tool(a.build, "--states", base).splitlines()]
        states = states_of(cache, [(line[0], [int(d) for d in line[1:]]) for line in listed])
        if model.unread:
            sys.exit("%s: nobody reads %s" % (family, sorted(model.unread)[:5]))
        if not np.isfinite(logits).all() or model.margin < common.MARGIN:
            sys.exit("%s: not finite, or a choice of the best hangs on %.1e" % (family, model.margin))
        tail = error(tail, logits)
        if tail > 1e-9:
            sys.exit("%s: with its cache the reference differs from itself by %.1e" % (family, tail))
        moved = []
        for s in tiny.get("switches", []):
            if s.get("reference") is False:
                continue
            common.tool(a.build, "--write", family, other, "--switch", s["name"])
            moved.append((s["name"], error(Model(other).forward(long, {}), logits)))
            if not moved[-1][1] >= s.get("least", common.MOVES):
                sys.exit("%s: without %s the reference moves by %.1e only" % moved[-1])
        sha = hashlib.sha256(open(os.path.join(base, "model.safetensors"), "rb").read()).hexdigest()
    aliases = [tuple(x) for x in tiny.get("aliases", [])] + ALIASES
    tensors, absent = {}, []
    for name, width in probes:
        if not common.wanted(name, tiny):
            continue
        v = find(model.values, name, aliases)
        if v is None or v.shape[1] != int(width):
            absent.append(name + ("" if v is None else " (%d, not %s)" % (v.shape[1], width)))
        else:
            tensors[name] = v.astype(np.float32)
    if a.show:
        for k in sorted(model.values):
            print("   recorded %s %s" % (k, list(model.values[k].shape)))
    meta = {"format": "day0-reference-1", "dtype": "float32", "model": family, "model_sha256": sha,
            "producer": "numpy, tools/reference_k3.py"}
    size = 0
    for suffix, ids, more in (("", long, dict({"logits": logits.astype(np.float32)}, **tensors)),
                              (".short", short, {"logits": brief.astype(np.float32)}), (".states", long[-1:], states)):
        path = os.path.join(a.out, family + suffix + ".safetensors")
        files.write(path, dict({"token_ids": np.array(ids, dtype=np.int32)}, **more), meta)
        size += os.path.getsize(path)
    print("%s: %d + %d positions, %d probes, %d states, %d KB; cache %.1e, margin %.0e; %s" % (
        family, len(long), len(short), len(tensors), len(states), size // 1000, tail, model.margin, ", ".join("without %s %.1e" % m for m in moved)), flush=True)
    if absent:
        print("   not recorded: %s" % ", ".join(absent))
    if size > common.MOST_BYTES:
        sys.exit("%s: %d bytes are more than %d" % (family, size, common.MOST_BYTES))


def main():
    ap = common.arguments(__doc__)
    ap.add_argument("--show", action="store_true", help="list everything that could be a probe")
    a = ap.parse_args()
    os.makedirs(a.out, exist_ok=True)
    for family in a.families or common.families("reference_k3.py"):
        record(a, family)


if __name__ == "__main__":
    main()
