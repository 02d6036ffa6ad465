#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the model that ships in demo/model: a small Qwen3-VL with experts that answers questions about pictures of coloured shapes.

usage: train_demo.py OUT [--work DIR] [--steps N] [--resume] [--minutes M]
Needs torch, transformers and tokenizers (`make demo` installs them outside the tree). Pictures, questions and texts are made by
tools/demo_data.py from seeds, so that nothing is fetched. Several questions on one picture share one sequence: each sees the picture
and itself only, at the places that it would have alone, so that every one of them is a first turn. Rows of the tower also name the
shape in them and its neighbours, by a head that is dropped afterwards. WORK gets a checkpoint every few minutes, and --resume goes on
from there; --steps may be changed then. tools/eval_demo.py holds the result against questions never asked.
"""
import os
os.environ.setdefault("GOMP_SPINCOUNT", "0")  # threads that wait must not spin where cores are shared; read when torch loads
import argparse
import json
import math
import random
import time

import numpy
import torch
import torch.nn.functional as F

import demo_data as data

PATCH, MERGE, SEED = 8, 2, 20261130
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
SYSTEMS = ["You answer questions about pictures of shapes.", "You are a helpful assistant.", "Answer in a few words."]
TEMPLATE = """{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string %}
{{- message.content }}
{%- else %}
{%- for part in message.content %}
{%- if part.type == 'image' or part.type == 'image_url' or 'image' in part %}
{{- '<|vision_start|><|image_pad|><|vision_end|>' }}
{%- elif 'text' in part %}
{{- part.text }}
{%- endif %}
{%- endfor %}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def corpus():
    """Texts that the tokenizer is trained on."""
    for seed in range(3000):
        yield data.document(seed)
        for q, answer in data.questions(data.Scene(seed), 8):
            yield q
            yield answer
    for _ in range(300):
        yield from SYSTEMS + ["system", "user", "assistant"]


def make_tokenizer(vocab):
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    tok = Tokenizer(models.BPE())
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(PATTERN), "isolated"),
                                                 pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.post_processor = processors.ByteLevel(add_prefix_space=False, use_regex=False, trim_offsets=False)
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(corpus(), trainers.BpeTrainer(vocab_size=vocab - len(SPECIAL), show_progress=False,
                                                          initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tok.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    return tok


def write_text_files(tok, out):
    tok.save(os.path.join(out, "tokenizer.json"))
    with open(os.path.join(out, "tokenizer_config.json"), "w") as f:
        json.dump({"tokenizer_class": "Qwen2Tokenizer", "processor_class": "Qwen3VLProcessor", "bos_token": None,
                   "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "unk_token": None, "add_prefix_space": False,
                   "model_max_length": 512, "image_token": "<|image_pad|>", "video_token": "<|video_pad|>",
                   "vision_bos_token": "<|vision_start|>", "vision_eos_token": "<|vision_end|>"}, f, indent=1)
    with open(os.path.join(out, "chat_template.jinja"), "w") as f:
        f.write(TEMPLATE)


def make_model(tok):
    from transformers import Qwen3VLMoeConfig, Qwen3VLMoeForConditionalGeneration
    at = tok.token_to_id
    text = dict(vocab_size=tok.get_vocab_size(), hidden_size=128, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
                head_dim=32, intermediate_size=256, moe_intermediate_size=80, num_experts=6, num_experts_per_tok=2,
                decoder_sparse_step=1, mlp_only_layers=[0], norm_topk_prob=True, max_position_embeddings=512, rms_norm_eps=1e-6,
                rope_parameters={"rope_type": "default", "rope_theta": 1000.0, "mrope_section": [6, 5, 5], "mrope_interleaved": True},
                bos_token_id=None, eos_token_id=at("<|im_end|>"), pad_token_id=at("<|endoftext|>"), tie_word_embeddings=False)
    vision = dict(depth=3, hidden_size=96, intermediate_size=192, num_heads=6, patch_size=PATCH, spatial_merge_size=MERGE,
                  temporal_patch_size=2, in_channels=3, out_hidden_size=128, num_position_embeddings=64, deepstack_visual_indexes=[1])
    config = Qwen3VLMoeConfig(text_config=text, vision_config=vision, image_token_id=at("<|image_pad|>"),
                              video_token_id=at("<|video_pad|>"), vision_start_token_id=at("<|vision_start|>"),
                              vision_end_token_id=at("<|vision_end|>"), tie_word_embeddings=False)
    model = Qwen3VLMoeForConditionalGeneration(config).float()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "language_model" in name and p.dim() >= 2:
                n = p.shape[-1]
                p.normal_(0, 0.5 / math.sqrt(n) if name.endswith(("o_proj.weight", "down_proj", "down_proj.weight")) else 1 / math.sqrt(n))
            elif "visual" in name and p.dim() >= 2:
                p.normal_(0, 1 / math.sqrt(p[0].numel()))
        for layer in model.model.language_model.layers:  # every second head begins by looking for what is like the token itself
            q, k = (x.weight.view(-1, 32, 128) for x in (layer.self_attn.q_proj, layer.self_attn.k_proj))
            k.copy_(q[::2])
        model.model.language_model.embed_tokens.weight.normal_(0, 0.5)
        model.model.visual.pos_embed.weight.normal_(0, 0.3)
    return model


# ---- the model's function over batches: the same numbers as transformers' forward (tested by check()), in fewer operations ----

def patches(pixels):
    """[B, H, W, 3] bytes -> [B, T, 3 * P * P], in the order of merged rows; the second frame equals the first and is left out."""
    b, h, w, _ = pixels.shape
    x = torch.from_numpy(pixels).float() / 127.5 - 1
    x = x.view(b, h // 16, 2, PATCH, w // 16, 2, PATCH, 3).permute(0, 1, 4, 2, 5, 7, 3, 6)
    return x.reshape(b, h * w // PATCH ** 2, 3 * PATCH * PATCH)


def tower(v, x, grid):
    """x [B, T, 3 * P * P], all of one grid -> rows [B, R, hidden] and the list of those added to layers."""
    from transformers import vision_utils as u
    thw = torch.tensor([[1, *grid]])
    at, weight = u.get_vision_interpolation_indices_and_weights(thw, num_grid_per_side=v.num_grid_per_side, mode="bilinear",
                                                                align_corners=True, spatial_merge_size=MERGE)
    proj = v.patch_embed.proj
    x = F.linear(x, proj.weight.sum(2).flatten(1), proj.bias) + (v.pos_embed(at) * weight[:, :, None]).sum(1)
    cos, sin = v.rotary_pos_emb(x, u.get_vision_position_ids(thw, MERGE))
    b, t, c = x.shape
    extra = []
    for i, block in enumerate(v.blocks):
        h = block.norm1(x)
        q, k, val = block.attn.qkv(h).view(b, t, 3, block.attn.num_heads, -1).permute(2, 0, 3, 1, 4)
        h = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), val)
        x = x + block.attn.proj(h.transpose(1, 2).reshape(b, t, c))
        x = x + block.mlp(block.norm2(x))
        if i in v.deepstack_visual_indexes:
            extra.append(v.deepstack_merger_list[v.deepstack_visual_indexes.index(i)](x).view(b, t // 4, -1))
    return v.merger(x).view(b, t // 4, -1), extra


def rotate(x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


def experts(block, x):
    """x [n, hidden]; also the router's probabilities, for the balance of experts."""
    p = F.linear(x, block.gate.weight).softmax(-1)
    top, which = p.topk(block.gate.top_k, -1)
    top = top / top.sum(-1, keepdim=True)
    out = torch.zeros_like(x)
    for e in range(p.shape[1]):
        at, slot = (which == e).nonzero(as_tuple=True)
        h = F.linear(gated(F.linear(x[at], block.experts.gate_up_proj[e])), block.experts.down_proj[e])
        out = out.index_add(0, at, h * top[at, slot][:, None])
    used = F.one_hot(which, p.shape[1]).sum(1).float().mean(0)
    return out, (used * p.mean(0)).sum() * p.shape[1] / block.gate.top_k


def norm(m, x):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + m.variance_epsilon) * m.weight


def gated(x):
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


def text(lm, ids, places, mask, rows, extra, first, want=None):
    """ids [B, L]; places [3, B, L]; mask [B, 1, L, L] or None; rows of pictures begin at token `first`; want [B, L]: tokens whose
    outputs are wanted (the last layer gives no others) -> [n wanted, hidden], balance."""
    x = lm.embed_tokens(ids)
    n = rows.shape[1] if rows is not None else 0
    if n:
        x = torch.cat((x[:, :first], rows, x[:, first + n:]), 1)
    cos, sin = (y[:, None] for y in lm.rotary_emb(x, places))
    b, length, hidden = x.shape
    balance = 0
    for i, layer in enumerate(lm.layers):
        s = layer.self_attn
        h = norm(layer.input_layernorm, x)
        q = norm(s.q_norm, s.q_proj(h).view(b, length, -1, s.head_dim)).transpose(1, 2)
        k = norm(s.k_norm, s.k_proj(h).view(b, length, -1, s.head_dim)).transpose(1, 2)
        v = s.v_proj(h).view(b, length, -1, s.head_dim).transpose(1, 2)
        k, v = (y.repeat_interleave(s.num_key_value_groups, 1) for y in (rotate(k, cos, sin), v))
        h = F.scaled_dot_product_attention(rotate(q, cos, sin), k, v, attn_mask=mask, is_causal=mask is None)
        h = h.transpose(1, 2).reshape(b, length, -1)
        last = layer is lm.layers[-1]
        if last:
            x, h = (y.flatten(0, 1) if want is None else y[want] for y in (x, h))
        x = x + s.o_proj(h)
        h = norm(layer.post_attention_layernorm, x)
        if hasattr(layer.mlp, "experts"):
            h, even = experts(layer.mlp, h.view(-1, hidden))
            balance = balance + even
        else:
            h = layer.mlp.down_proj(gated(torch.cat((layer.mlp.gate_proj(h), layer.mlp.up_proj(h)), -1)))
        x = x + h.view(x.shape)
        if i < len(extra) and not last:
            x = torch.cat((x[:, :first], x[:, first:first + n] + extra[i], x[:, first + n:]), 1)
    return norm(lm.norm, x), balance / sum(hasattr(layer.mlp, "experts") for layer in lm.layers)


# ---- batches ----

class Encoder:
    """Token ids of texts, remembered; ids of the turns of a chat."""

    def __init__(self, tok):
        self.tok, self.known = tok, {}

    def __call__(self, s):
        if s not in self.known:
            if len(self.known) > 200000:
                self.known.clear()
            self.known[s] = self.tok.encode(s).ids
        return self.known[s]

    def opening(self, system, rows):
        """Up to and with the picture."""
        say = "<|im_start|>system\n%s<|im_end|>\n" % system if system else ""
        return self(say + "<|im_start|>user\n<|vision_start|>") + self("<|image_pad|>") * rows + self("<|vision_end|>")

    def turn(self, question, answer):
        """Question, and answer with what ends it: (ids, how many of them are the question)."""
        q = self(question) + self("<|im_end|>\n<|im_start|>assistant\n")
        return q + self(answer) + self("<|im_end|>"), len(q)


def pictures(step, batch, easy=False):
    """One step's pictures, all of one size, and what each row of the tower shows: 0 for nothing, and the same of the cells around it."""
    r = random.Random(SEED * 7919 + step)
    size = r.choice([(64, 64), (64, 80), (80, 64)]) if easy else data.random_size(r)
    scenes = [data.Scene((step + 1) * 4096 + i, size, most=4 if easy else 16) for i in range(batch)]
    own = torch.zeros(batch, size[0] * size[1] // 256, 5, 2, dtype=torch.long)
    for b, s in enumerate(scenes):
        for cell, (colour, shape) in s.cells.items():
            row = own[b, s.centres[cell][0] * (size[1] // 16) + s.centres[cell][1]]
            for k, thing in enumerate([(colour, shape)] + [s.neighbour(cell, k) for k in range(4)]):
                if thing:
                    row[k] = torch.tensor([thing[0] + 1, thing[1] + 1])
    return scenes, dict(pixels=numpy.stack([s.pixels for s in scenes]), grid=(size[0] // PATCH, size[1] // PATCH), own=own), r


def picture_batch(encode, step, batch, asked, easy=False):
    """One step's pictures under one opening, and what is asked about them."""
    scenes, b, r = pictures(step, batch, easy)
    weights = (5, 3, 3, 0.5, 1) if easy else (6, 1, 1, 3, 1.5)
    size, n_rows = (scenes[0].height, scenes[0].width), b["own"].shape[1]
    opening = encode.opening(r.choice(SYSTEMS) if r.random() < 0.2 else None, n_rows)
    first, head = len(opening) - 1 - n_rows, len(opening)
    high, wide = size[0] // 16, size[1] // 16
    after = first + max(high, wide) + 1  # place of the first token behind the picture's end mark
    lines = []
    for s in scenes:
        ids, places, part, want = [], [], [], []
        for number in range(asked):
            turns = [data.questions(s, 1, weights)[0]]
            if number == 0 and r.random() < 0.3:
                turns.append(data.questions(s, 1, weights)[0])
            p = after
            for i, (q, answer) in enumerate(turns):
                more, n = encode.turn(q, answer)
                if i:
                    between = encode("\n<|im_start|>user\n")
                    more, n = between + more, n + len(between)
                ids += more
                want += [False] * n + [True] * (len(more) - n)
                places += range(p, p + len(more))
                part += [number + 1] * len(more)
                p += len(more)
        lines.append((ids, places, part, want))
    length = max(len(x[0]) for x in lines)
    pad = encode("<|endoftext|>")[0]
    tail = lambda k, fill: torch.tensor([list(x[k]) + [fill] * (length - len(x[0])) for x in lines])
    ids = torch.cat((torch.tensor(opening).expand(batch, -1), tail(0, pad)), 1)
    grid = torch.arange(n_rows)
    h = torch.arange(head)
    h[first:first + n_rows], w, t = first + grid // wide, h.clone(), h.clone()
    w[first:first + n_rows], t[first:first + n_rows] = first + grid % wide, first
    for y in (h, w, t):
        y[-1] = after - 1
    places = torch.cat((torch.stack((t, h, w))[:, None].expand(3, batch, head), tail(1, 0).expand(3, batch, length)), 2)
    part = torch.cat((torch.zeros(batch, head, dtype=torch.long), tail(2, asked + 1)), 1)
    total = head + length
    mask = torch.ones(total, total, dtype=torch.bool).tril() & ((part[:, :, None] == part[:, None]) | (part[:, None] == 0))
    want = torch.cat((torch.zeros(batch, head, dtype=torch.bool), tail(3, False)), 1)
    return dict(b, ids=ids, places=places, mask=mask[:, None], want=want, first=first)


def text_batch(encode, step, batch, length=128):
    """Short texts one after the other, and every other line as a question in a chat."""
    seed, lines = 10 ** 9 + step * 4096, []
    end = encode("<|endoftext|>")
    for i in range(batch):
        ids = []
        while len(ids) <= length:
            seed += 1
            d = data.document(seed)
            if i % 2 and "?" in d:
                at = d.index("?") + 1
                before, answer = d[:at], d[at:].strip().split(".")[0] + "."
                ids += encode.tok.encode("<|im_start|>user\n").ids + encode.tok.encode(before).ids
                ids += encode("<|im_end|>\n<|im_start|>assistant\n") + encode(answer) + encode("<|im_end|>") + encode("\n")
            else:
                ids += encode.tok.encode(d).ids + end
        lines.append(ids[:length + 1])
    return torch.tensor(lines)


class Head(torch.nn.Module):
    """What a row of the tower shows: colour and shape in it, by the embeddings of the words for them, so that words are like the rows that
    they name; and those of the four cells around. Dropped after training."""

    def __init__(self, hidden, encode):
        super().__init__()
        self.words = torch.tensor([encode(" " + w)[0] for w in data.COLOURS + data.SHAPES])
        self.nothing = torch.nn.Linear(hidden, 2)
        self.scale = torch.nn.Parameter(torch.tensor(0.2))
        self.out = torch.nn.Linear(hidden, 4 * 16)

    def loss(self, rows, own, embedding):
        named = F.linear(rows, embedding[self.words]) * self.scale
        none = self.nothing(rows)
        here = torch.cat((none[..., :1], named[..., :8], none[..., 1:], named[..., 8:]), -1)
        x = torch.cat((here[:, :, None], self.out(rows).view(*rows.shape[:2], 4, 16)), 2)
        seen = (own[:, :, :1, 0] > 0).expand(own.shape[:3]).clone()
        seen[:, :, 0] = True
        x, own = x[seen], own[seen]
        return F.cross_entropy(x[:, :9], own[:, 0]) + F.cross_entropy(x[:, 9:], own[:, 1])


def losses(model, head, b):
    m = model.model
    rows, extra = tower(m.visual, patches(b["pixels"]), b["grid"])
    want = b["want"].roll(-1, 1)  # what tells a token is the one before it; the first of a line is never asked for
    x, balance = text(m.language_model, b["ids"], b["places"], b["mask"], rows, extra, b["first"], want)
    logits = model.lm_head(x)
    target = b["ids"].roll(-1, 1)[want]
    answer = F.cross_entropy(logits, target)
    right = (logits.argmax(-1) == target).float().mean().item()
    return answer, head.loss(rows, b["own"], m.language_model.embed_tokens.weight), balance, right


def text_loss(model, lines):
    n = lines.shape[1] - 1
    places = torch.arange(n).expand(3, len(lines), n)
    x, balance = text(model.model.language_model, lines[:, :-1], places, None, None, [], 0)
    return F.cross_entropy(model.lm_head(x), lines[:, 1:].flatten()), balance


def check(model, encode):
    """The function above against transformers' own forward, on one picture and one question."""
    b = picture_batch(encode, 10 ** 6, 1, 1)
    x = patches(b["pixels"])[0].view(-1, 3, 1, PATCH * PATCH).expand(-1, 3, 2, PATCH * PATCH).reshape(-1, 6 * PATCH * PATCH)
    types = (b["ids"] == model.config.image_token_id).int()
    with torch.no_grad():
        ours = model.lm_head(text(model.model.language_model, b["ids"], b["places"], b["mask"],
                                  *tower(model.model.visual, patches(b["pixels"]), b["grid"]), b["first"])[0])
        theirs = model(input_ids=b["ids"], pixel_values=x, image_grid_thw=torch.tensor([[1, *b["grid"]]]), mm_token_type_ids=types,
                       use_cache=False).logits[0]
    off = ((ours - theirs).norm() / theirs.norm()).item()
    assert off < 1e-5, "the training's forward is off by %g" % off
    print("forward as transformers': off by %.1e" % off, flush=True)


def rate(step, first, steps):
    """Warm up, twice, hold, and come down over the last third."""
    since = step - first if step >= first else step
    return min(1, (since + 1) / 150) * min(1, max(0.01, (steps - step) / (steps / 3)))


def train(a, model, head, encode):
    path = os.path.join(a.work, "state.pt")
    decay = [p for p in model.parameters() if p.dim() >= 2]
    plain = [p for p in model.parameters() if p.dim() < 2] + list(head.parameters())
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}], lr=a.lr,
                            betas=(0.9, 0.98), foreach=True)
    step = 0
    if a.resume and os.path.exists(path):
        s = torch.load(path)
        model.load_state_dict(s["model"]), head.load_state_dict(s["head"]), opt.load_state_dict(s["opt"])
        step = s["step"]
    begin = saved = time.time()
    seen = {}

    def save():
        torch.save({"model": model.state_dict(), "head": head.state_dict(), "opt": opt.state_dict(), "step": step}, path + ".new")
        os.replace(path + ".new", path)
    while step < a.steps and time.time() - begin < a.minutes * 60:
        for g in opt.param_groups:
            g["lr"] = a.lr * rate(step, a.first, a.steps)
        opt.zero_grad()
        if step < a.first:  # the tower by itself: a fifth of the work
            b = pictures(step, 2 * a.batch)[1]
            loss = head.loss(tower(model.model.visual, patches(b["pixels"]), b["grid"])[0], b["own"], model.model.language_model.embed_tokens.weight)
            seen.setdefault("rows", []).append(loss.item())
        else:
            answer, shown, balance, right = losses(model, head, picture_batch(encode, step, a.batch, a.asked, step < a.easy))
            loss = answer + 0.5 * shown + 0.01 * balance
            for k, v in (("answers", answer.item()), ("right", right), ("rows", shown.item()), ("balance", balance.item())):
                seen.setdefault(k, []).append(v)
            if step % 3 == 0:
                words, even = text_loss(model, text_batch(encode, step, 8))
                loss = loss + 0.4 * words + 0.01 * even
                seen.setdefault("text", []).append(words.item())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(model.parameters()) + list(head.parameters()), 1.0)
        opt.step()
        step += 1
        if step % 25 == 0 or step == a.steps:
            print("step %5d  %.0f s  " % (step, time.time() - begin) + "  ".join("%s %.3f" % (k, sum(v) / len(v)) for k, v in seen.items()),
                  flush=True)
            seen = {}
        if time.time() - saved > 150:
            save()
            saved = time.time()
    save()
    return step


def publish(out):
    """What transformers 5 writes of a model that was made here, put into the form of the published releases: experts with inputs before
    outputs, and the keys of their config.json. transformers reads both."""
    import safetensors.torch as st
    path = os.path.join(out, "model.safetensors")
    tensors = st.load_file(path)
    for name, x in tensors.items():
        if ".mlp.experts." in name:
            tensors[name] = x.transpose(1, 2).contiguous()
    st.save_file(tensors, path, metadata={"format": "pt"})
    path = os.path.join(out, "config.json")
    with open(path) as f:
        c = json.load(f)
    c["text_config"]["num_experts"] = c["text_config"].pop("num_local_experts")
    del c["vision_config"]["rope_parameters"]
    with open(path, "w") as f:
        json.dump(c, f, indent=2)
        f.write("\n")


def export(model, out):
    model.bfloat16()
    model.generation_config.do_sample = False
    model.generation_config.eos_token_id = model.config.text_config.eos_token_id
    model.generation_config.pad_token_id = model.config.text_config.pad_token_id
    model.save_pretrained(out, safe_serialization=True)
    publish(out)
    with open(os.path.join(out, "preprocessor_config.json"), "w") as f:
        json.dump({"image_processor_type": "Qwen2VLImageProcessorFast", "processor_class": "Qwen3VLProcessor", "patch_size": PATCH,
                   "temporal_patch_size": 2, "merge_size": MERGE, "size": {"shortest_edge": 64 * 64, "longest_edge": 112 * 112},
                   "do_convert_rgb": True, "do_resize": True, "resample": 3, "do_rescale": True, "rescale_factor": 1 / 255,
                   "do_normalize": True, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}, f, indent=1)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("out", help="directory that gets model/")
    ap.add_argument("--work", default="/tmp/day0-demo")
    ap.add_argument("--steps", type=int, default=4400)
    ap.add_argument("--first", type=int, default=1200, help="so many of the steps train the tower alone, to name what is in its rows")
    ap.add_argument("--easy", type=int, default=1700, help="up to this step pictures are small and hold at most four shapes")
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--asked", type=int, default=8, help="questions on a picture")
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--minutes", type=float, default=1e9, help="stop after so many, with a checkpoint")
    ap.add_argument("--resume", action="store_true")
    a = ap.parse_args()
    torch.manual_seed(SEED)
    torch.set_num_threads(a.threads)
    out = os.path.join(a.out, "model")
    os.makedirs(out, exist_ok=True)
    os.makedirs(a.work, exist_ok=True)
    kept = os.path.join(a.work, "tokenizer.json")
    if a.resume and os.path.exists(kept):
        from tokenizers import Tokenizer
        tok = Tokenizer.from_file(kept)
    else:
        tok = make_tokenizer(512)
        tok.save(kept)
    write_text_files(tok, out)
    model = make_model(tok)
    encode = Encoder(tok)
    head = Head(128, encode)
    print("%d parameters" % sum(p.numel() for p in model.parameters()), flush=True)
    check(model, encode)
    if train(a, model, head, encode) >= a.steps:
        export(model, out)


if __name__ == "__main__":
    main()
