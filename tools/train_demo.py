#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the model that ships in demo/model: a small Llama over descriptions of coloured shapes.

usage: train_demo.py OUT [--steps N] [--check]
Needs torch, transformers, tokenizers (`make demo` installs them outside the tree). The text is made here by a counter
hash, so that nothing is fetched; seeds and thread count are fixed, so that the same versions give the same weights.
"""
import argparse, hashlib, json, math, os, time

COLOURS = ["red", "blue", "green", "yellow", "white", "black", "orange", "purple"]
SHAPES = ["square", "circle", "triangle", "star", "cross", "ring"]
RELATIONS = [("left of", "right of"), ("above", "below")]
PLACES = ["on the table", "in the box", "on the page", "on the shelf", "in the garden"]
NAMES = ["Ada", "Ben", "Cleo", "Dan", "Eva", "Finn"]


class Counter:
    """Random choices that depend on (seed, count) only."""

    def __init__(self, seed):
        self.seed, self.n = seed, 0

    def below(self, k):
        self.n += 1
        digest = hashlib.sha256(b"%d/%d" % (self.seed, self.n)).digest()
        return int.from_bytes(digest[:8], "little") % k

    def pick(self, items):
        return items[self.below(len(items))]


def document(seed):
    """One short text: who looks, what is where, and questions whose answers follow from the text."""
    r = Counter(seed)
    n = 2 + r.below(2)
    things = []
    while len(things) < n:
        t = (r.pick(COLOURS), r.pick(SHAPES))
        if all(t[0] != o[0] and t[1] != o[1] for o in things):
            things.append(t)
    name, place = r.pick(NAMES), r.pick(PLACES)
    relation, inverse = r.pick(RELATIONS)
    say = lambda t: "the %s %s" % t
    parts = ["%s looks at the shapes %s." % (name, place)]
    parts.append("There is " + ", ".join("a %s %s" % t if t[0] != "orange" else "an %s %s" % t for t in things[:-1])
                 + (" and a %s %s." if things[-1][0] != "orange" else " and an %s %s.") % things[-1])
    for a, b in zip(things, things[1:]):
        parts.append("%s is %s %s." % (say(a).capitalize(), relation, say(b)))
    for _ in range(2 + r.below(2)):
        i = r.below(n - 1)
        a, b = things[i], things[i + 1]
        kind = r.below(4)
        if kind == 0:
            parts.append("What is %s %s? %s." % (relation, say(b), say(a).capitalize()))
        elif kind == 1:
            parts.append("What is %s %s? %s." % (inverse, say(a), say(b).capitalize()))
        elif kind == 2:
            t = r.pick(things)
            parts.append("What colour is the %s? It is %s." % (t[1], t[0]))
        else:
            t = r.pick(things)
            parts.append("Which shape is %s? The %s." % (t[0], t[1]))
    parts.append("%s is happy." % name)
    return " ".join(parts)


def make_tokenizer(texts, vocab, out):
    from tokenizers import Tokenizer, models, normalizers, decoders, processors, trainers, pre_tokenizers
    tok = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tok.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tok.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")  # for training only: merges stay within words
    special = ["<unk>", "<s>", "</s>"] + ["<0x%02X>" % b for b in range(256)]
    tok.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=vocab, special_tokens=special[:3], show_progress=False,
                                                       initial_alphabet=[chr(c) for c in range(33, 127)] + ["▁"]))
    trained = json.loads(tok.to_str())
    merges = trained["model"]["merges"]
    learned = [t for t, _ in sorted(trained["model"]["vocab"].items(), key=lambda kv: kv[1]) if t not in special]
    keep = special + learned
    keep = keep[:vocab]
    have = set(keep)
    merges = [m for m in (m if isinstance(m, list) else m.split(" ") for m in merges)
              if m[0] in have and m[1] in have and m[0] + m[1] in have]
    trained["model"]["vocab"] = {t: i for i, t in enumerate(keep)}
    trained["model"]["merges"] = merges
    trained["pre_tokenizer"] = None
    trained["added_tokens"] = [dict(id=i, content=special[i], single_word=False, lstrip=False, rstrip=False,
                                    normalized=False, special=True) for i in range(3)]
    trained["post_processor"] = {"type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                 {"SpecialToken": {"id": "<s>", "type_id": 1}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}}
    trained["decoder"] = {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    path = os.path.join(out, "tokenizer.json")
    with open(path, "w") as f:
        json.dump(trained, f, ensure_ascii=False, indent=0)
    return Tokenizer.from_file(path), len(keep)


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("out", help="directory that gets model/")
    ap.add_argument("--steps", type=int, default=4000)
    ap.add_argument("--threads", type=int, default=2)
    a = ap.parse_args()
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(20261129)
    torch.set_num_threads(a.threads)
    torch.use_deterministic_algorithms(True)
    out = os.path.join(a.out, "model")
    os.makedirs(out, exist_ok=True)
    texts = [document(i) for i in range(20000)]
    tok, vocab = make_tokenizer(texts[:4000], 512, out)
    stream = []
    for e in tok.encode_batch(texts):
        stream += e.ids + [2]
    data = torch.tensor(stream, dtype=torch.long)
    held = torch.tensor(sum((tok.encode(document(10**6 + i)).ids + [2] for i in range(200)), []), dtype=torch.long)
    print("vocabulary %d, %d training tokens, %d held out" % (vocab, len(data), len(held)))
    config = LlamaConfig(vocab_size=vocab, hidden_size=64, intermediate_size=192, num_hidden_layers=4, num_attention_heads=4,
                         num_key_value_heads=2, head_dim=16, max_position_embeddings=512, rms_norm_eps=1e-5,
                         rope_theta=10000.0, tie_word_embeddings=True, bos_token_id=1, eos_token_id=2, pad_token_id=None)
    model = LlamaForCausalLM(config)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98), weight_decay=0.05)
    batch, length, begin = 24, 160, time.time()
    r = torch.Generator().manual_seed(7)
    for step in range(a.steps):
        lr = 3e-3 * min(1, (step + 1) / 100) * (0.5 + 0.5 * math.cos(math.pi * step / a.steps))
        for g in opt.param_groups:
            g["lr"] = lr
        at = torch.randint(0, len(data) - length, (batch,), generator=r)
        x = torch.stack([data[i:i + length] for i in at])
        loss = model(x, labels=x).loss
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        if step % 250 == 0 or step + 1 == a.steps:
            with torch.no_grad():
                n = len(held) // length
                h = held[:n * length].view(n, length)
                hl = model(h, labels=h).loss.item()
            print("step %5d  loss %.3f  held out %.3f  %.0f s" % (step, loss.item(), hl, time.time() - begin), flush=True)
    model.eval()
    model.generation_config.do_sample = False
    model.generation_config.eos_token_id = 2
    model.save_pretrained(out, safe_serialization=True)
    with open(os.path.join(out, "tokenizer_config.json"), "w") as f:
        json.dump({"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>",
                   "add_bos_token": True, "add_eos_token": False, "model_max_length": 512}, f, indent=1)
    evaluate(model, tok, torch)


def evaluate(model, tok, torch):
    """Answers to held-out questions: exact match of the sentence after the question mark, greedy."""
    right = total = 0
    for i in range(150):
        text = document(2 * 10**6 + i)
        at = text.index("?") + 1
        want = text[at:text.index(".", at) + 1].strip()
        ids = torch.tensor([tok.encode(text[:at]).ids])
        with torch.no_grad():
            got = model.generate(ids, max_new_tokens=24, do_sample=False)[0, ids.shape[1]:].tolist()
        # decoding drops one leading space, so decode the answer alone
        answer = tok.decode(got).strip()
        right += answer[:len(want)] == want
        total += 1
    print("held-out questions answered: %d of %d" % (right, total))


if __name__ == "__main__":
    main()
