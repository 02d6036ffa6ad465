#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records what transformers computes for the tiny models of tests/parity, in float32 on the CPU.

usage: reference.py [--build BUILD] [--out DIR] [--show] [--halves] [FAMILY...]
For each family: the program BUILD/tests/parity/parity writes config.json and model.safetensors (weights are a pure function of
seed, name and index; names and shapes are those of day0's own description), transformers loads these files, and every
parameter must come from them. Two prompts are run: logits at all positions, and for the long one the values at the points that
day0's graph names. Where the checkpoint is quantised, the library gets the numbers that its codes stand for (tools/tensors.py).
Before anything is written the reference must agree with itself: prompt at once against the last tokens one by one through its
cache, and every switch of the family must move its logits. Recurrent states behind the last token go into a file of their own.
With --halves nothing of that is written, but how far the library's own run in bfloat16 is from float32, every layer fed with
what float32 gave: of each recorded probe and of the logits the worst and the median row. Format: docs/references.md. Needs torch
and transformers
(`make references`). Families whose tiny/*.json names another "recorder" are left to that one.
"""
import hashlib
import json
import os
import re
import sys
import tempfile
import warnings

import torch
import transformers

import tensors as files
import tiny as common

CACHE_LIMIT = 2e-5

# Probe of day0 -> what was recorded: the module's output, or NAME:in for its input. The first that is there counts.
ALIASES = [
    (r"(.*\.self_attn)\.attn", r"\1.attention"),
    (r"(.*\.self_attn)\.attn", r"\1.o_proj:in"),
    (r"(.*\.mlp)\.act", r"\1.down_proj:in"),
    (r"(.*\.mlp)\.add", r"\1"),
    (r"(.*\.shared_experts?)\.act", r"\1.down_proj:in"),
    (r"(.*\.layers\.\d+)\.add", r"\1.post_attention_layernorm:in"),
    (r"(.*)\.chosen", r"\1.gate.topk"),
    (r"(.*)\.chosen", r"\1.router.topk"),
    (r"(.*)\.chosen", r"\1.topk"),
]


class Choices:
    """Watches torch.topk: how far, relative to the largest value, the last chosen one is from the best one left out. What was
    chosen last in a module is recorded, ascending, under its name with ".topk"."""

    def __init__(self, recorder):
        self.recorder = recorder
        self.margin, self.plain = 1.0, (torch.topk, torch.Tensor.topk)

    def __enter__(self):
        def look(x, k, dim=-1):
            v = x.detach().double().sort(dim=dim, descending=True).values.movedim(dim, -1)
            if v.is_floating_point() and 0 < k < v.shape[-1]:
                last, next_one = v[..., k - 1], v[..., k]
                live = (last > -1e30) & (next_one > -1e30)  # beyond are masked ones
                if live.any():
                    size = v.masked_fill(v < -1e30, 0).abs().max()
                    self.margin = min(self.margin, ((last - next_one)[live].min() / size).item())

        def topk(x, k, dim=-1, *args, **kwargs):
            look(x, k, dim)
            out = self.plain[0](x, k, dim, *args, **kwargs)
            if self.recorder.scope:
                self.recorder.keep(self.recorder.scope[-1] + ".topk", out.indices.sort(dim=-1).values.float())
            return out
        torch.topk, torch.Tensor.topk = topk, topk
        return self

    def __exit__(self, *args):
        torch.topk, torch.Tensor.topk = self.plain


class Recorder:
    """Values by name: outputs and inputs of modules, and what the library's functions for rotation give."""

    def __init__(self, model, renames, tokens):
        self.values, self.scope, self.tokens, self.undo, self.calls = {}, [], tokens, [], {}
        self.renames = renames
        for name, module in model.named_modules():
            if not name:
                continue
            at = self.rename(name)
            self.undo.append(module.register_forward_pre_hook(self.enter(at), with_kwargs=True).remove)
            self.undo.append(module.register_forward_hook(self.leave(at)).remove)
        # the functions are looked up in the module that defines each layer
        for m in sorted({type(x).__module__ for x in model.modules()}):
            code = sys.modules[m]
            for f in ("apply_rotary_pos_emb", "apply_rotary_pos_emb_interleave", "apply_multimodal_rotary_pos_emb", "apply_rotary_emb"):
                if hasattr(code, f):
                    self.patch(code, f)
            self.patch_delta(code)
            self.patch_attention(code)

    def rename(self, name):
        for a, b in self.renames:
            name = re.sub(a, b, name)
        return name

    def keep(self, name, value):
        if isinstance(value, (tuple, list)):
            value = value[0] if value else None
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return
        v = value.detach()
        while v.dim() > 2 and v.shape[0] == 1:
            v = v[0]
        if v.dim() == 3 and v.shape[0] != self.tokens and v.shape[1] == self.tokens:  # [heads, T, dim]
            v = v.transpose(0, 1)
        if v.dim() == 2 and name.endswith("norm") and v.shape[0] % self.tokens == 0:  # [T * heads, dim]
            v = v.reshape(self.tokens, -1)
        if v.dim() >= 2 and v.shape[0] == self.tokens:
            self.values[name] = v.reshape(self.tokens, -1).float().contiguous().clone()

    def enter(self, name):
        def hook(module, args, kwargs):
            self.scope.append(name)
            for x in list(args) + list(kwargs.values()):
                if isinstance(x, torch.Tensor) and x.is_floating_point():
                    self.keep(name + ":in", x)
                    break
        return hook

    def leave(self, name):
        def hook(module, args, output):
            self.scope.pop()
            self.keep(name, output)
            if isinstance(output, tuple) and len(output) > 1:
                self.keep(name + ":1", output[1])
        return hook

    def patch_delta(self, code):
        """Gated delta rule: its convolution [1, C, T] and its output [1, T, heads, dim]."""
        for f, probe in (("causal_conv1d_fn", "conv1d"), ("torch_chunk_gated_delta_rule", "delta")):
            plain = getattr(code, f, None)
            if plain is None:
                continue

            def wrapped(*args, plain=plain, probe=probe, **kwargs):
                out = plain(*args, **kwargs)
                x = out[0] if isinstance(out, tuple) else out.transpose(1, 2)
                if x.shape[1] == self.tokens:
                    self.values["%s.%s" % (self.scope[-1], probe)] = x[0].reshape(self.tokens, -1).float().contiguous().clone()
                return out
            setattr(code, f, wrapped)
            self.undo.append(lambda f=f, plain=plain: setattr(code, f, plain))

    def patch_attention(self, code):
        """What attention takes, and what it gives before anything is made of it."""
        plain = getattr(code, "eager_attention_forward", None)
        if plain is None:
            return

        def wrapped(*args, **kwargs):
            out = plain(*args, **kwargs)
            self.keep(self.scope[-1] + ".attention", out[0])  # [1, T, heads, dim]
            self.keep(self.scope[-1] + ".attention_q", args[1])  # [1, heads, T, dim]
            return out
        code.eager_attention_forward = wrapped
        self.undo.append(lambda: setattr(code, "eager_attention_forward", plain))

    def patch(self, code, f):
        plain = getattr(code, f)

        def wrapped(*args, **kwargs):
            out = plain(*args, **kwargs)
            at = self.scope[-1]
            if isinstance(out, tuple):
                named = zip(("q_rope", "k_rope"), out)
            else:  # one value a call: queries, keys that are values as well, and the output turned back
                self.calls[at] = self.calls.get(at, 0) + 1
                named = ((("q_rope", "kv_rope", "o_rope", "more_rope")[min(self.calls[at], 4) - 1], out),)
            for what, x in named:
                # [1, heads, T, dim]
                if x.dim() == 4 and x.shape[2] == self.tokens:
                    x = x[0].transpose(0, 1)
                elif x.dim() == 4 and x.shape[1] == self.tokens:
                    x = x[0]
                else:
                    continue
                if f.endswith("interleave"):  # the library leaves the pairs apart: even ones first
                    x = torch.stack((x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2:]), -1).flatten(-2)
                self.values["%s.%s" % (at, what)] = x.reshape(self.tokens, -1).float().contiguous().clone()
            return out
        setattr(code, f, wrapped)
        self.undo.append(lambda: setattr(code, f, plain))

    def close(self):
        for u in self.undo:
            u()

    def join(self, whole, part, where, width):
        """The rotated part of each head, put back into the head."""
        if whole not in self.values or part not in self.values:
            return None
        b = self.values[part]
        heads = b.shape[1] // width
        a = self.values[whole].reshape(self.tokens, heads, -1).clone()
        at = slice(0, width) if where == "first" else slice(a.shape[2] - width, a.shape[2])
        a[:, :, at] = b.reshape(self.tokens, heads, width)
        return a.reshape(self.tokens, -1)

    def find(self, probe, aliases, width):
        for pattern, target in aliases:
            m = re.fullmatch(pattern, probe)
            joined = re.fullmatch(r"join\((\S+), (\S+), (\w+)\)", m.expand(target)) if m else None
            if joined:
                return self.join(*joined.groups(), width)
            if m and not target:  # named alike, and another thing
                return None
            if m and m.expand(target) in self.values:
                return self.values[m.expand(target)]
        return self.values.get(probe)


def error(a, b):
    return ((a - b).norm(dim=-1) / b.norm(dim=-1)).max().item()


def adapt(directory, tiny):
    """What the library must be told otherwise than config.json says ("library": merged at its top). Of a quantised release it gets
    the numbers that its codes stand for."""
    path = os.path.join(directory, "config.json")
    config = json.load(open(path))

    def merge(into, more):
        for k, v in more.items():
            if isinstance(v, dict) and isinstance(into.get(k), dict):
                merge(into[k], v)
            else:
                into[k] = v
    merge(config, tiny.get("library", {}))
    stated = [c.pop("quantization_config") for c in (config, config.get("text_config") or {}) if "quantization_config" in c]
    json.dump(config, open(path, "w"))
    if stated:
        path = os.path.join(directory, "model.safetensors")
        weights = files.dequantise(files.read(path))
        files.write(path, weights, {"format": "pt"})


def load(directory, tiny, dtype=torch.float32):
    raw = json.load(open(os.path.join(directory, "config.json")))
    name = tiny.get("class", raw["architectures"][0])
    cls = getattr(transformers, name)
    options = dict(dtype=dtype, attn_implementation="eager", output_loading_info=True)
    if tiny.get("experts"):
        options["experts_implementation"] = tiny["experts"]
    model, info = cls.from_pretrained(directory, **options)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        left = [k for k in info.get(kind) or [] if not any(re.fullmatch(p, str(k)) for p in tiny.get("not_loaded", []))]
        if left:
            sys.exit("%s: %s: %s" % (directory, kind, left[:5]))
    for n, p in model.named_parameters():
        if p.dtype not in (dtype, torch.float32) or not torch.isfinite(p).all():
            sys.exit("%s: %s is %s or not finite" % (directory, n, p.dtype))
    return model.eval()


def logits_of(model, ids):
    return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float()


def decoded(model, ids):
    """The last tokens one by one through the cache, the rest at once."""
    n = len(ids) - common.DECODE
    out = model(input_ids=torch.tensor([ids[:n]]), use_cache=True)
    rows = [out.logits[0].float()]
    for i in range(n, len(ids)):
        out = model(input_ids=torch.tensor([[ids[i]]]), past_key_values=out.past_key_values, use_cache=True)
        rows.append(out.logits[0].float())
    return torch.cat(rows)


def states_of(model, ids, listed):
    """Recurrent states behind the last token, as day0 lays them out: name -> [1, values]. listed: (name, dimensions) of each."""
    cache = model(input_ids=torch.tensor([ids]), use_cache=True).past_key_values
    out = {}
    for name, dims in listed:
        layer, what = re.fullmatch(r"state\.(\d+)\.(conv|delta)", name).groups()
        x = cache.layers[int(layer)]
        # the library keeps a row more of the convolution than is used, and channels first
        v = x.recurrent_states[0][0] if what == "delta" else x.conv_states[0][0][:, -dims[0]:].transpose(0, 1)
        if list(v.shape) != dims:
            sys.exit("%s is %s, not %s" % (name, list(v.shape), dims))
        out[name] = v.float().reshape(1, -1).contiguous()
    return out


def listed_states(a, directory, tiny):
    if "states_not_recorded" in tiny:
        return []
    lines = [line.split("\t") for line in common.tool(a.build, "--states", directory).splitlines()]
    return [(line[0], [int(d) for d in line[1:]]) for line in lines]


def text_of(model):
    """The part that has embedding, layers and last norm."""
    return next(m for m in model.modules() if all(hasattr(m, x) for x in ("layers", "norm", "embed_tokens")))


def forced(model, inputs, store):
    """Each layer and the last norm: its input is kept in `inputs` (store), or taken from there, in the model's type."""
    text = text_of(model)
    undo = []
    for name, module in [(str(i), m) for i, m in enumerate(text.layers)] + [("norm", text.norm)]:
        def hook(module, args, kwargs, name=name):
            x = args[0] if args else kwargs["hidden_states"]
            if store:
                inputs[name] = x.detach().clone()
                return None
            x = inputs[name].to(x.dtype)
            return ((x,) + args[1:], kwargs) if args else (args, dict(kwargs, hidden_states=x))
        undo.append(module.register_forward_pre_hook(hook, with_kwargs=True, prepend=True).remove)
    return undo


def row_errors(got, want):
    d = (got.double() - want.double()).norm(dim=-1)
    n = want.double().norm(dim=-1)
    if want.shape[1] == 1:  # a row of one value has no norm: as tests/parity/recorded.c
        n = want.double().pow(2).mean().sqrt().expand_as(n)
    return torch.where(n > 0, d / n, d)


def record_halves(a, family):
    tiny = common.read(family)
    path = os.path.join(a.out, family + ".safetensors")
    golden = {k: torch.from_numpy(x.copy()) for k, (_, x) in files.read(path).items() if not k.endswith(".chosen")}
    ids = golden.pop("token_ids").tolist()
    inputs = {}
    with tempfile.TemporaryDirectory() as top:
        base = os.path.join(top, "base")
        common.tool(a.build, "--write", family, base)
        adapt(base, tiny)
        model = load(base, tiny)
        forced(model, inputs, True)
        off = error(logits_of(model, ids), golden["logits"])
        if off > 1e-5:
            sys.exit("%s: float32 differs from what was recorded by %.1e" % (family, off))
        model = load(base, tiny, torch.bfloat16)
        forced(model, inputs, False)
        r = Recorder(model, tiny.get("renames", []), len(ids))
        values = {"logits": logits_of(model, ids)}
        r.close()
    aliases = [tuple(x) for x in tiny.get("aliases", [])] + ALIASES
    out = {}
    for name in sorted(golden):
        v = values.get(name) if name in values else r.find(name, aliases, tiny.get("rope_dim", 0))
        if v is None or v.shape != golden[name].shape:
            sys.exit("%s: %s is not there in bfloat16" % (family, name))
        e = row_errors(v, golden[name]).sort().values
        if not torch.isfinite(e).all():
            sys.exit("%s: %s is not finite in bfloat16" % (family, name))
        out[name] = [float("%.4g" % e[-1].item()), float("%.4g" % e[len(e) // 2].item())]
    with open(os.path.join(a.out, family + ".halves.json"), "w") as f:
        producer = "transformers %s, torch %s" % (transformers.__version__, torch.__version__.split("+")[0])
        f.write('{"producer": "%s", "dtype": "bfloat16", "probes": {\n' % producer)
        f.write(",\n".join("  %s: %s" % (json.dumps(k), json.dumps(v)) for k, v in out.items()) + "\n}}\n")
    print("%s: %d probes, logits %.1e worst, %.1e median" % ((family, len(out) - 1) + tuple(out["logits"])), flush=True)


def record(a, family):
    tiny = common.read(family)
    with tempfile.TemporaryDirectory() as top:
        base = os.path.join(top, "base")
        common.tool(a.build, "--write", family, base)
        sha = hashlib.sha256(open(os.path.join(base, "model.safetensors"), "rb").read()).hexdigest()
        probes = [line.split("\t") for line in common.tool(a.build, "--probes", base).splitlines()]
        adapt(base, tiny)
        model = load(base, tiny)
        vocab = (tiny["config"].get("text_config") or tiny["config"])["vocab_size"]
        limit = tiny.get("ids_below", vocab)
        long, short = common.prompt(limit, tiny["prompt"], tiny["seed"]), common.prompt(limit, tiny.get("short", 11), tiny["seed"] + 1)
        r = Recorder(model, tiny.get("renames", []), len(long))
        with Choices(r) as choices:
            logits = logits_of(model, long)
            brief = logits_of(model, short)
        r.close()
        if choices.margin < common.MARGIN:
            sys.exit("%s: a choice of the best hangs on %.1e: another seed is needed" % (family, choices.margin))
        tail = error(decoded(model, long), logits_of(model, long))
        if tail > tiny.get("cache_limit", CACHE_LIMIT):
            sys.exit("%s: with its cache the reference differs from itself by %.1e" % (family, tail))
        again = error(logits_of(model, long), logits)
        listed = listed_states(a, base, tiny)
        states = states_of(model, long, listed) if listed else {}
        moved = []
        for s in tiny.get("switches", []):
            if s.get("reference") is False:
                continue
            other = os.path.join(top, "off")
            common.tool(a.build, "--write", family, other, "--switch", s["name"])
            adapt(other, tiny)
            # parameters that the changed model lacks may stay behind
            off = load(other, dict(tiny, not_loaded=tiny.get("not_loaded", []) + s.get("not_loaded", [])))
            moved.append((s["name"], error(logits_of(off, long), logits)))
            if not moved[-1][1] >= s.get("least", common.MOVES):
                sys.exit("%s: without %s the reference moves by %.1e only" % (family, s["name"], moved[-1][1]))
    aliases = [tuple(x) for x in tiny.get("aliases", [])] + ALIASES
    tensors, absent = {}, []
    for name, width in probes:
        if not common.wanted(name, tiny):
            continue
        v = r.find(name, aliases, tiny.get("rope_dim", 0))
        if v is None or v.shape[1] != int(width):
            absent.append(name + ("" if v is None else " (%d, not %s)" % (v.shape[1], width)))
        else:
            tensors[name] = v
    if a.show:
        for k in sorted(r.values):
            print("   recorded %s %s" % (k, list(r.values[k].shape)))
    meta = {"format": "day0-reference-1", "dtype": "float32", "model": family, "model_sha256": sha,
            "producer": "transformers %s, torch %s" % (transformers.__version__, torch.__version__.split("+")[0])}
    size = 0
    recordings = [("", long, dict({"logits": logits}, **tensors)), (".short", short, {"logits": brief})]
    if states:  # one row: behind the last token
        recordings.append((".states", long[-1:], states))
    for suffix, ids, more in recordings:
        path = os.path.join(a.out, family + suffix + ".safetensors")
        values = dict({"token_ids": torch.tensor(ids, dtype=torch.int32)}, **more)
        files.write(path, {k: v.numpy() for k, v in values.items()}, meta)
        size += os.path.getsize(path)
    print("%s: %d + %d positions, %d probes, %d states, %d KB; repeated %.0e, cache %.1e, margin %.0e; %s" % (
        family, len(long), len(short), len(tensors), len(states), size // 1000, again, tail, choices.margin,
        ", ".join("without %s %.1e" % m for m in moved)), flush=True)
    if absent:
        print("   not recorded: %s" % ", ".join(absent))
    if size > common.MOST_BYTES:
        sys.exit("%s: %d bytes are more than %d" % (family, size, common.MOST_BYTES))


def settle():
    """One thread, the same kernels each time, no gradients, and no chatter."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.set_grad_enabled(False)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    warnings.simplefilter("ignore")


def main():
    ap = common.arguments(__doc__)
    ap.add_argument("--show", action="store_true", help="list everything that could be a probe")
    ap.add_argument("--halves", action="store_true", help="record errors of bfloat16 instead, against what is recorded")
    a = ap.parse_args()
    settle()
    os.makedirs(a.out, exist_ok=True)
    for family in a.families or common.families("reference.py"):
        if not a.halves:
            record(a, family)
        elif a.families or common.read(family).get("halves"):
            record_halves(a, family)


if __name__ == "__main__":
    main()
