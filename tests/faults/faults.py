#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plants one fault after the other in small models and checks that `day0 check` reports exactly the finding that it should.

    faults.py DAY0 [NAME...]        TAP on stdout, the table of mutation, expected and found in comments. Standard library only.

A fault is a function over a copy of a base (bases.py). A base itself has no finding, with one exception that is also left out of what a copy
is judged by: P005 and P006 of severity info, that this build has no kernels for a form of storage, an operator or a rounding of activations. The letters are those of the classes: A files and index, B embeddings and vocabulary, C config, D layouts (asked of `day0 inspect`),
E quantisation, F numbers, I memory, L operators.
"""
import concurrent.futures
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

import bases

INDEX = "model.safetensors.index.json"
SHARD = "model-%05d-of-00003.safetensors"
FAULTS = []


def fault(name, base, *expected, args=()):
    """expected: ids of all findings, none for a variant that must be accepted. args: further arguments of `day0 check`."""
    def add(f):
        FAULTS.append((name, base, tuple(sorted(expected)), list(args), f))
        return f
    return add


class Model:
    def __init__(self, path):
        self.path = path

    def at(self, name):
        return os.path.join(self.path, name)

    def shard_of(self, tensor):
        return self.json(INDEX)["weight_map"][tensor]

    def shards(self):
        return sorted(os.path.basename(p) for p in glob.glob(self.at("*.safetensors")))

    def json(self, name):
        with open(self.at(name), encoding="utf-8") as f:
            return json.load(f)

    def text(self, name, content):
        with open(self.at(name), "wb") as f:
            f.write(content if isinstance(content, bytes) else content.encode())

    def put(self, name, value):
        self.text(name, json.dumps(value, ensure_ascii=False))

    def config(self, change=None, nested=None, **values):
        """Sets values (... removes), or applies a function."""
        c = self.json("config.json")
        part = c[nested] if nested else c
        for k, v in values.items():
            if v is ...:
                part.pop(k, None)
            else:
                part[k] = v
        if change:
            change(c)
        self.put("config.json", c)

    def index(self, change):
        x = self.json(INDEX)
        change(x)
        self.put(INDEX, x)

    def header(self, shard, change, raw=None):
        header, _ = bases.read(self.at(shard))
        header = change(header) or header
        bases.write(self.at(shard), *bases.lay_out(header), raw=raw)

    def total(self):
        """Makes the index agree with the files."""
        x = {"metadata": {"total_size": 0}, "weight_map": {}}
        for shard in self.shards():
            header, data = bases.read(self.at(shard))
            x["metadata"]["total_size"] += len(data)
            x["weight_map"].update({n: shard for n in header})
        self.put(INDEX, x)

    def every(self, change):
        """change(header) for each shard, and an index that agrees: what a converter would publish."""
        for shard in self.shards():
            self.header(shard, change)
        self.total()


def without(*patterns):
    def change(h):
        return {k: v for k, v in h.items() if not any(re.search(p, k) for p in patterns)}
    return change


def renamed(pattern, to):
    def change(h):
        return {re.sub(pattern, to, k): v for k, v in h.items()}
    return change


def typed(pattern, dtype):
    def change(h):
        for k, v in h.items():
            if re.search(pattern, k):
                v["dtype"] = dtype
    return change


def shaped(pattern, f):
    def change(h):
        for k, v in h.items():
            if re.search(pattern, k):
                v["shape"] = f(v["shape"])
    return change


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:%064d\nsize 4096\n" % 7
Q = "model.layers.1.self_attn.q_proj.weight"
SCALE = "model.layers.1.mlp.experts.0.up_proj.weight_scale_inv"


# ---- nothing planted

for _base in bases.CONFIGS:
    fault("nothing", _base)(lambda m: None)


# ---- A: files and index

@fault("A1 a shard that the index names is gone", "llama", "W002")
def _(m): os.remove(m.at(SHARD % 2))
@fault("A1 two of three shards are gone", "llama", "W002")
def _(m): os.remove(m.at(SHARD % 1)), os.remove(m.at(SHARD % 2))
@fault("A1 all shards are gone", "llama", "W001")
def _(m): [os.remove(m.at(s)) for s in m.shards()]
@fault("A1 a shard is gone, no index, the numbering tells", "llama", "W002")
def _(m): os.remove(m.at(SHARD % 2)), os.remove(m.at(INDEX))
@fault("A1 a shard is a link to nowhere", "llama", "W002")
def _(m): os.remove(m.at(SHARD % 3)), os.symlink("/nonexistent", m.at(SHARD % 3))
@fault("A1 an expert shard of a quantised model is gone", "vlm", "W002")
def _(m): os.remove(m.at(SHARD % 2))
@fault("A2 one byte short", "llama", "W003")
def _(m): os.truncate(m.at(SHARD % 2), os.path.getsize(m.at(SHARD % 2)) - 1)
@fault("A2 half of the data is short", "fp8", "W003")
def _(m): os.truncate(m.at(SHARD % 2), os.path.getsize(m.at(SHARD % 2)) // 2)
@fault("A2 cut within the header", "llama", "W003")
def _(m): os.truncate(m.at(SHARD % 2), 100)
@fault("A2 empty file", "llama", "W003")
def _(m): os.truncate(m.at(SHARD % 2), 0)
@fault("I1 no image processor", "qwenvl", "I001")
def _(m): os.remove(m.at("preprocessor_config.json"))
@fault("I1 a key of the image processor that is not known", "vlm", "I001")
def _(m): m.put("preprocessor_config.json", {"media_proc_cfg": {"sharpen": 2}})
@fault("I2 config.json has another token for pictures", "qwenvl", "I002")
def _(m): m.config(image_token_id=301)
@fault("I3 a template of the base model", "vlm", "I003")
def _(m): m.text("chat_template.jinja", "{% for m in messages %}{{ m.role }}{% endfor %}")
@fault("A3 shard is a git-LFS pointer", "llama", "W017")
def _(m): m.text(SHARD % 1, POINTER)
@fault("A3 all shards are git-LFS pointers", "moe", "W017")
def _(m): [m.text(s, POINTER) for s in m.shards()]
@fault("A3 tokenizer is a git-LFS pointer", "llama", "W017")
def _(m): m.text("tokenizer.json", POINTER)
@fault("A3 shard is an error page", "llama", "W004")
def _(m): m.text(SHARD % 2, "<!DOCTYPE html><html><body>404 Not Found</body></html>" * 9)
@fault("A4 tensor is in no file and not in the index", "llama", "W009")
def _(m): m.every(without(re.escape(Q)))
@fault("A4 index places the tensor in a file that is not there", "llama", "W002")
def _(m): m.index(lambda x: x["weight_map"].update({Q: "model-00009-of-00009.safetensors"})), m.header(m.shards()[1], without(re.escape(Q)))
@fault("A4 the file is there but lacks the tensor", "llama", "W007")
def _(m): m.header(m.shard_of(Q), without(re.escape(Q)))
@fault("A5 index of an older release: other file names", "llama", "W015")
def _(m): m.index(lambda x: x.update(weight_map={k: v.replace("of-00003", "of-00004") for k, v in x["weight_map"].items()}))
@fault("A5 index names a tensor in another shard", "llama", "W015")
def _(m): m.index(lambda x: x["weight_map"].update({Q: [s for s in m.shards() if s != m.shard_of(Q)][0]}))
@fault("A5 index does not name a tensor", "llama", "W008")
def _(m): m.index(lambda x: x["weight_map"].pop(Q))
@fault("A6 second copy in original/", "llama", "W021")
def _(m): os.mkdir(m.at("original")), [shutil.copy(m.at(s), m.at("original/" + s)) for s in m.shards()]
@fault("A6 consolidated.safetensors beside, not in the index", "llama", "W021")
def _(m): shutil.copy(m.at(SHARD % 2), m.at("consolidated.safetensors"))
@fault("A6 one shard is a copy of another", "llama", "W020")
def _(m): shutil.copy(m.at(SHARD % 1), m.at(SHARD % 2))
@fault("A7 tensor in two shards", "llama", "W012")
def _(m):
    t = bases.read(m.at(m.shard_of(Q)))[0][Q]
    m.header([s for s in m.shards() if s != m.shard_of(Q)][0], lambda h: h.update({Q: dict(t)}))
@fault("A7 tensor twice in one header", "llama", "W004")
def _(m):
    h, data = bases.read(m.at(SHARD % 2))
    k, v = next(iter(h.items()))
    bases.write(m.at(SHARD % 2), h, data, raw=(json.dumps(h)[:-1] + ',"%s":%s}' % (k, json.dumps(v))).encode())
@fault("A8 scale in the index but in no file", "fp8", "W007")
def _(m): m.header(m.shard_of(SCALE), without(re.escape(SCALE)))
@fault("A8 scale in neither", "fp8", "Q002")
def _(m): m.every(without(re.escape(SCALE)))
@fault("A8 all scales of one kind gone", "fp8", "Q002")
def _(m): m.every(without(r"kv_b_proj\.weight_scale_inv"))
@fault("A9 tower under another prefix", "vlm", "W009", "W011")
def _(m): m.every(renamed(r"^vision_tower\.", "visual."))
@fault("A10 text under a prefix nobody uses", "llama", "W009", "W011")
def _(m): m.every(renamed(r"^model\.", "transformer."))
@fault("A9 tower of the later generation of names, text of the earlier", "qwenvl", "W009", "W011")
def _(m): m.every(renamed(r"^visual\.", "model.visual."))
@fault("A10 all names of the later generation: no fault", "qwenvl")
def _(m): m.every(lambda h: {re.sub(r"^visual\.", "model.visual.", re.sub(r"^model\.", "model.language_model.", k)): v for k, v in h.items()})
@fault("A12 biases of experts apart from their weights", "mxfp4", "W009", "W011")
def _(m): m.every(renamed(r"gate_up_proj_bias", "w13_bias"))
@fault("A14 tensors that nobody describes", "llama", "W011")
def _(m): m.every(lambda h: h.update({"model.layers.0.self_attn.q_gate.weight": {"dtype": "BF16", "shape": [4], "data_offsets": [0, 0]}})
                  if Q in h else None)
@fault("A14 a file that the index does not name", "llama", "W008")
def _(m): bases.write(m.at("extra.safetensors"), *bases.lay_out({"mtp.weight": {"dtype": "BF16", "shape": [4]}}))
@fault("A14 old buffers are no fault", "llama")
def _(m): m.every(lambda h: h.update({"model.layers.0.self_attn.rotary_emb.inv_freq": {"dtype": "F32", "shape": [8]}}) if Q in h else None)
@fault("A15 norm of the wrong width", "moe", "W010")
def _(m): m.every(shaped(r"k_norm", lambda s: [s[0] * 2]))
@fault("A bytes after the data", "llama", "W005")
def _(m): open(m.at(SHARD % 2), "ab").write(b"\0" * 7)
@fault("A two tensors overlap", "llama", "W004")
def _(m):
    h, data = bases.read(m.at(SHARD % 2))
    a, b = list(h.values())[:2]
    b["data_offsets"] = [o - 2 for o in b["data_offsets"]]
    bases.write(m.at(SHARD % 2), h, data)
@fault("A hole between two tensors", "llama", "W004")
def _(m):
    h, data = bases.read(m.at(SHARD % 2))
    for t in list(h.values())[1:]:
        t["data_offsets"] = [o + 8 for o in t["data_offsets"]]
    bases.write(m.at(SHARD % 2), h, data + b"\0" * 8)
@fault("A shape and bytes of a tensor disagree", "llama", "W004")
def _(m):
    h, data = bases.read(m.at(SHARD % 2))
    next(iter(h.values()))["shape"].append(3)
    bases.write(m.at(SHARD % 2), h, data)
@fault("A header is no JSON", "llama", "W004")
def _(m): m.header(SHARD % 2, lambda h: h, raw=b'{"a": ')
@fault("A header of zeros, reserved and never filled", "llama", "W004")
def _(m): m.text(SHARD % 2, bytes(4096))
@fault("A element type that nobody knows", "llama", "W013")
def _(m):
    h, data = bases.read(m.at(SHARD % 2))
    next(iter(h.values()))["dtype"] = "F5_X"
    bases.write(m.at(SHARD % 2), h, data)
@fault("A total_size is wrong", "llama", "W014")
def _(m): m.index(lambda x: x["metadata"].update(total_size=x["metadata"]["total_size"] + 2))
@fault("A index is cut off", "llama", "W006")
def _(m): os.truncate(m.at(INDEX), os.path.getsize(m.at(INDEX)) // 2)
@fault("A index leads out of the directory", "llama", "W006")
def _(m): m.index(lambda x: x["weight_map"].update({Q: "../other.safetensors"}))
@fault("A index names a tensor twice", "llama", "W006")
def _(m): m.text(INDEX, json.dumps(m.json(INDEX))[:-2] + ',"%s":"%s"}}' % (Q, m.shard_of(Q)))
@fault("A a whole layer is missing", "moe", "W009")
def _(m): m.every(without(r"layers\.2\."))
@fault("A one expert is missing", "moe", "W009")
def _(m): m.every(without(r"layers\.1\.mlp\.experts\.3\."))
@fault("A half of a drafting layer is missing", "fp8", "W009")
def _(m): m.every(without(r"layers\.3\.(enorm|hnorm|eh_proj)"))
@fault("A the whole drafting layer is missing: no fault", "fp8")
def _(m): m.every(without(r"layers\.3\."))
@fault("A16 transformers' names of the family with its own", "v4")
def _(m): m.every(lambda h: {re.sub(r"attn\.kv_norm\.", "attn.norm.", re.sub(r"^model\.head\.", "head.", re.sub(r"^", "model.", re.sub(
    r"^embed\.", "embed_tokens.", re.sub(r"^hc_head_", "hc_head.hc_", k))))): v for k, v in h.items()})
@fault("A16 pos_emb is no text embedding", "vlm", "W009")
def _(m): m.every(without(r"embed_tokens"))


# ---- B: embeddings and vocabulary

@fault("B17 tied and no lm_head: no fault", "llama")
def _(m): m.every(without(r"^lm_head")), m.config(tie_word_embeddings=True)
@fault("B18 the outer config ties, the inner does not, lm_head is there", "vlm", "C008")
def _(m): m.config(tie_word_embeddings=True)
@fault("B19 not tied and no lm_head", "llama", "W009")
def _(m): m.every(without(r"^lm_head"))
@fault("B20 tied and lm_head is there", "llama", "W011")
def _(m): m.config(tie_word_embeddings=True)
@fault("B21 rows padded, config not", "llama", "W010")
def _(m): m.every(shaped(r"embed_tokens|lm_head", lambda s: [s[0] + 16, s[1]]))
@fault("B21 config padded, rows not", "moe", "W010")
def _(m): m.config(vocab_size=400)
@fault("B22 more rows than the tokenizer has ids: no fault", "llama")
def _(m): m.every(shaped(r"embed_tokens|lm_head", lambda s: [512, s[1]])), m.config(vocab_size=512)
@fault("B22 more ids than rows", "llama", "T003")
def _(m): m.every(shaped(r"embed_tokens|lm_head", lambda s: [320, s[1]])), m.config(vocab_size=320)
@fault("B eos beyond the vocabulary", "llama", "T003")
def _(m): m.config(eos_token_id=384), m.put("generation_config.json", {"eos_token_id": 384})
@fault("B no tokenizer", "llama", "T001")
def _(m): os.remove(m.at("tokenizer.json"))
@fault("B tokenizer is cut off", "llama", "T002")
def _(m): os.truncate(m.at("tokenizer.json"), 1000)


# ---- C: config.json

@fault("C23 the text nests under a name nobody uses", "vlm", "C004")
def _(m): m.config(lambda c: c.update(lm_backbone=c.pop("text_config")))
@fault("C23 the text nests in text_config: no fault", "qwenvl")
def _(m):
    def nest(c):
        keep = ("architectures", "model_type", "vision_config", "torch_dtype", "image_token_id")
        c["text_config"] = {k: c.pop(k) for k in list(c) if k not in keep}
    m.config(nest)
@fault("C26 rope of type default with sections of three rows: no fault", "qwenvl")
def _(m): m.config(rope_scaling={"rope_type": "default", "type": "default", "mrope_section": [2, 3, 3]})
@fault("C26 sections of three rows that do not fill the head", "qwenvl", "C006")
def _(m): m.config(rope_scaling={"type": "mrope", "mrope_section": [2, 2, 2]})
@fault("C25 rope_scaling null", "llama")
def _(m): m.config(rope_scaling=None)
@fault("C25 rope_scaling by type", "llama")
def _(m): m.config(rope_scaling={"type": "linear", "factor": 2.0})
@fault("C25 rope_scaling by rope_type", "llama")
def _(m): m.config(rope_scaling={"rope_type": "linear", "factor": 2.0})
@fault("C25 rope_parameters", "llama")
def _(m): m.config(rope_theta=..., rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0})
@fault("C25 rope_parameters for each kind of layer", "llama")
def _(m): m.config(rope_theta=..., rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": 10000.0}})
@fault("C25 two bases of rope", "llama", "C006")
def _(m): m.config(rope_parameters={"rope_type": "default", "rope_theta": 500000.0})
@fault("C25 rope without its factor", "llama", "C004")
def _(m): m.config(rope_scaling={"rope_type": "linear"})
@fault("C25 rope of an unknown kind", "llama", "C006")
def _(m): m.config(rope_scaling={"rope_type": "spiral", "factor": 2.0})
@fault("C27 architectures null, model_type known: no fault", "llama")
def _(m): m.config(architectures=None)
@fault("C27 neither architectures nor model_type", "llama", "C003")
def _(m): m.config(architectures=None, model_type=...)
@fault("C27 no config.json", "llama", "C001")
def _(m): os.remove(m.at("config.json"))
@fault("C28 unknown architecture", "llama", "C003")
def _(m): m.config(architectures=["Llama9ForCausalLM"], model_type="llama9")
@fault("C config.json is no JSON", "llama", "C002")
def _(m): os.truncate(m.at("config.json"), 60)
@fault("C a key twice", "llama", "C002")
def _(m): m.text("config.json", json.dumps(m.json("config.json"))[:-1] + ', "head_dim": 32}')
@fault("C a required key is missing", "llama", "C004")
def _(m): m.config(num_attention_heads=...)
@fault("C a required key is null", "moe", "C004")
def _(m): m.config(num_experts=None)
@fault("C a key that nobody reads", "llama", "C005")
def _(m): m.config(attention_sink_size=4)
@fault("C a nested key that nobody reads", "vlm", "C005")
def _(m): m.config(nested="text_config", qk_gate=True)
@fault("C a number where a list is meant", "mxfp4", "C006")
def _(m): m.config(layer_types=2)
@fault("C a fraction of layers", "llama", "C006")
def _(m): m.config(num_hidden_layers=2.5)
@fault("C an unknown activation", "llama", "C006")
def _(m): m.config(hidden_act="swoosh")
@fault("C an unknown score of the router", "fp8", "C006")
def _(m): m.config(scoring_func="entmax")
@fault("C more experts a token than there are", "moe", "C006")
def _(m): m.config(num_experts_per_tok=9)
@fault("C two numbers of experts a token", "mxfp4", "C006")
def _(m): m.config(experts_per_token=3)
@fault("C more layers than the files hold", "llama", "W009")
def _(m): m.config(num_hidden_layers=4)
@fault("C fewer layers than the files hold", "llama", "W011")
def _(m): m.config(num_hidden_layers=2)
@fault("C wrong hidden_size", "llama", "W010")
def _(m): m.config(hidden_size=80)
@fault("C wrong number of key-value heads", "moe", "W010")
def _(m): m.config(num_key_value_heads=4)
@fault("C more experts than the files hold", "moe", "W009", "W010")
def _(m): m.config(num_experts=8)
@fault("C wrong width of the tower", "vlm", "W010")
def _(m): m.config(nested="vision_config", vt_intermediate_size=96)


# ---- E: how the weights are stored

def quant(m, f, nested=None):
    m.config(lambda c: f((c[nested] if nested else c)["quantization_config"]))

@fault("E38 the list of what is not quantised names what is", "vlm", "Q003")
def _(m): quant(m, lambda q: q["ignore"].append("re:.*experts.*"), "text_config")
@fault("E38 the list names what is, by a suffix", "fp8", "Q003")
def _(m): quant(m, lambda q: q.update(modules_to_not_convert=["kv_b_proj"]))
@fault("E39 other spellings of the list: no fault", "vlm")
def _(m): quant(m, lambda q: q.update(ignore=["language_model.lm_head", "re:.*\\.self_attn\\..*", "re:.*shared_experts\\..*",
                                              "language_model.model.layers.0.mlp.gate_proj", "re:.*mlp\\.(up|down)_proj$"]), "text_config")
@fault("E40 a fused name in the list, parts in the files: no fault", "mxfp4")
def _(m): quant(m, lambda q: q.update(modules_to_not_convert=["self_attn", "router", "embed_tokens", "lm_head"]))
@fault("E41 quantised by config, plain in the files", "llama", "Q001")
def _(m): m.config(quantization_config=dict(bases.FP8))
@fault("E41 quantised in the files, config silent", "vlm", "Q001")
def _(m): m.config(nested="text_config", quantization_config=...)
@fault("E41 quantised in the files, config silent (blocks)", "mxfp4", "Q001")
def _(m): m.config(quantization_config=...)
@fault("E41 config names another method than the files show", "fp8", "Q001")
def _(m): m.config(quantization_config=dict(bases.INT4, ignore=["lm_head"]))
@fault("E41 one layer plain that config says is quantised", "fp8", "Q001")
def _(m): m.every(typed(r"layers\.1\.self_attn\.o_proj\.weight$", "BF16")), m.every(without(r"layers\.1\.self_attn\.o_proj\.weight_scale_inv"))
@fault("E a method that nobody knows", "llama", "Q004")
def _(m): m.config(quantization_config={"quant_method": "hqq9"})
@fault("E13 scales of another format beside plain weights", "moe", "W011")
def _(m): m.every(lambda h: h.update({Q + "_scale_inv": {"dtype": "F32", "shape": [1, 1]}}) if Q in h else None)
@fault("E scale rounded down at a partial block", "fp8", "W010")
def _(m): m.every(shaped(r"kv_a_proj_with_mqa\.weight_scale_inv", lambda s: [s[0] - 1, s[1]]))
@fault("E scales of groups of another size than the codes need", "vlm", "W010")
def _(m): m.every(shaped(r"experts\.0\.up_proj\.weight_scale", lambda s: [s[0], s[1] + 1]))
@fault("E packed shape is missing", "vlm", "Q002")
def _(m): m.every(without(r"weight_shape"))
@fault("E scales of blocks are missing", "mxfp4", "Q002")
def _(m): m.every(without(r"down_proj_scales"))
@fault("E blocks of another shape", "mxfp4", "W010")
def _(m): m.every(shaped(r"down_proj_blocks", lambda s: s[:2] + [s[2] + 1, 16]))
@fault("E exponent bytes are missing", "v4", "Q002")
def _(m): m.every(without(r"attn\.wo_a\.scale"))
@fault("E exponent bytes stored as numbers", "v4", "W013")
def _(m): m.every(typed(r"attn\.wq_b\.scale$", "I32"))
@fault("E exponent bytes stored as floats", "v4", "W013")
def _(m): m.every(typed(r"attn\.wq_b\.scale$", "F32"))
@fault("E codes of blocks stored as floats", "mxfp4", "W013")
def _(m): m.every(typed(r"down_proj_blocks", "BF16"))
@fault("E codes without any scale, in a model that is not quantised", "llama", "W013")
def _(m): m.every(typed(r"layers\.1\.mlp\.up_proj\.weight$", "I8"))
@fault("E a norm in eight bits, which nothing explains", "llama", "W013")
def _(m): m.every(typed(r"layers\.1\.input_layernorm\.weight$", "F8_E4M3"))
@fault("E scales in the 16 bits of the model: no fault", "fp8")
def _(m): m.every(typed(r"weight_scale_inv$", "F16"))
@fault("E weights in 64 bits: no fault", "llama")
def _(m): m.every(typed(r"layers\.1\.mlp\.up_proj\.weight$", "F64"))


# ---- F, I, L

@fault("F43 bias of the router in BF16", "fp8", "W023")
def _(m): m.every(typed(r"e_score_correction_bias", "BF16"))
@fault("F43 bias of the router in BF16, under a prefix", "vlm", "W023")
def _(m): m.every(typed(r"e_score_correction_bias", "BF16"))
@fault("I65 more weights than memory", "llama", "M001", args=["--memory", "64K"])
def _(m): pass
@fault("I66 no memory for a context", "llama", "M001", args=["--memory", "400K"])
def _(m): pass
@fault("L81 heads that cannot be rotated", "llama", "C006")
def _(m): m.config(head_dim=15)
@fault("L81 heads that do not divide", "llama", "C006")
def _(m): m.config(num_key_value_heads=3)


# ---- D: which layouts are legal, told before anything is loaded

LAYOUTS = [  # name, base, values of config.json, ranks, legal, part of the reason
    ("D29 one matrix of an FP8 model is cut within a block", "fp8", {"intermediate_size": 384, "moe_intermediate_size": 512}, 4, False,
     "block of 128"),
    ("D29 every matrix is cut between blocks", "fp8",
     {"intermediate_size": 512, "moe_intermediate_size": 512, "num_attention_heads": 8, "num_key_value_heads": 8}, 4, True, ""),
    ("D30 experts of 192 on 2 ranks", "fp8", {"intermediate_size": 512, "moe_intermediate_size": 192}, 2, False, "block of 128"),
    ("D31 more ranks than groups of the output", "v4", {"moe_intermediate_size": 512, "num_attention_heads": 4}, 4, False, "wo_a"),
    ("D32 fewer key-value heads than ranks", "moe", {"num_attention_heads": 12, "num_key_value_heads": 3}, 4, False, "kv heads"),
    ("D32 fewer key-value heads than ranks, which share them", "llama", {}, 4, True, ""),
    ("D groups of 32 of INT4 experts on 8 ranks", "vlm", {"num_attention_heads": 8, "num_key_value_heads": 8}, 8, False, "block of 32"),
    ("D groups of 32 of MXFP4 experts on 4 ranks", "mxfp4", {}, 4, False, "block of 32"),
    ("D heads do not divide", "moe", {}, 8, False, "heads"),
]


def layout(day0, scratch, number, item):
    _, base, values, ranks, legal, text = item
    path = os.path.join(scratch, "layout-%d" % number)
    shutil.copytree(os.path.join(scratch, base + ".config"), path)
    m = Model(path)
    m.config(nested="text_config" if base == "vlm" else None, **values)
    p = subprocess.run([day0, "inspect", path, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
    shutil.rmtree(path)
    try:
        degree = [d for d in json.loads(p.stdout)["tp_degrees"] if d["tp"] == ranks][0]
    except (ValueError, IndexError):
        return False, "exit %d" % p.returncode
    return degree["legal"] == legal and text in degree["reason"], "%s%s" % ("legal" if degree["legal"] else "illegal: ", degree["reason"])


def run(day0, path, args):
    p = subprocess.run([day0, "check", path, "--json"] + (args or ["--memory", "1T"]), stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
    try:
        return json.loads(p.stdout)["findings"]
    except ValueError:
        return [{"id": "exit %d: %s" % (p.returncode, p.stderr.decode(errors="replace")[:200]), "severity": "error", "subject": ""}]


def is_ours(f):
    """Says something of this build, and nothing of the checkpoint."""
    return (f["id"], f["severity"]) in (("P005", "info"), ("P006", "info"))


def judge(day0, scratch, number, item):
    name, base, expected, args, plant = item
    copy = os.path.join(scratch, "copy-%d" % number)
    shutil.copytree(os.path.join(scratch, base), copy)
    try:
        plant(Model(copy))
        found = run(day0, copy, args)
    finally:
        shutil.rmtree(copy)
    found = [f for f in found if not is_ours(f)]
    return tuple(sorted({f["id"] for f in found})), found


def main():
    day0, wanted = sys.argv[1], sys.argv[2:]
    scratch = tempfile.mkdtemp(prefix="day0-faults.")
    tool = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools", "make_checkpoint.py")
    failed = 0
    try:
        faults = [f for f in FAULTS if not wanted or any(w in f[0] for w in wanted)]
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            list(pool.map(lambda b: bases.make(b, os.path.join(scratch, b), tool, day0), bases.CONFIGS))
            of_bases = list(pool.map(lambda b: run(day0, os.path.join(scratch, b), []), bases.CONFIGS))
            results = list(pool.map(lambda i: judge(day0, scratch, i, faults[i]), range(len(faults))))
        for i, (base, found) in enumerate(zip(bases.CONFIGS, of_bases), 1):
            bad = [f for f in found if not is_ours(f)]
            failed += bool(bad)
            print("%s %d - the base %s: no error, nothing but what this build has no kernels for" % ("not ok" if bad else "ok", i, base))
            for f in bad:
                print("#   %s %s: %s" % (f["id"], f["subject"], f.get("evidence", "")[:300]))
        print("# %-66s %-6s %-10s %s" % ("mutation", "base", "expected", "found"))
        for i, ((name, base, expected, _, _), (found, all_found)) in enumerate(zip(faults, results), 1 + len(bases.CONFIGS)):
            good = found == expected
            failed += not good
            print("# %-66s %-6s %-10s %s" % (name, base, " ".join(expected) or "-", " ".join(found) or "-"))
            print("%s %d - %s (%s)" % ("ok" if good else "not ok", i, name, base))
            for f in [] if good else all_found:
                print("#   %s %s: %s" % (f["id"], f["subject"], f.get("evidence", "")[:300]))
        layouts = [x for x in LAYOUTS if not wanted or any(w in x[0] for w in wanted)]
        before = len(bases.CONFIGS) + len(faults)
        for i, x in enumerate(layouts, 1):
            good, told = layout(day0, scratch, i, x)
            failed += not good
            print("# %-66s %-6s TP %-7d %s" % (x[0], x[1], x[3], told))
            print("%s %d - %s (%s)" % ("ok" if good else "not ok", before + i, x[0], x[1]))
        planted = sum(1 for f in faults if f[2])
        print("# %d mutations in %d bases: %d faults, %d variants to accept, and %d layouts; %d not as expected"
              % (len(faults), len(bases.CONFIGS), planted, len(faults) - planted, len(layouts), failed))
        print("1..%d" % (before + len(layouts)))
    finally:
        shutil.rmtree(scratch)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
