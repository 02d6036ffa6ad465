#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes what tests/unit/test_tokenizers.c compares with: small tokenizers of each model, and hashes of the ids that the reference
implementations (tokenizers, tiktoken) give for generated text.

Usage: tokenizer_reference.py text OUT.json            the recipe of the text; probes the reference's Unicode tables (minutes)
       tokenizer_reference.py make DIR                 trains the small tokenizers (needs sentencepiece too)
       tokenizer_reference.py record MATERIAL DIR      DIR/reference.json from DIR/text.json, DIR/*.json, DIR/small.tiktoken
       tokenizer_reference.py pipelines DIR            DIR/pipelines.json: small files whose stages meet, texts, ids, what they decode to
       tokenizer_reference.py speed TOKENIZER TEXT     best of several: bytes per second, for bench/tokenizer_bench.sh
Needs PyPI's tokenizers, tiktoken, sentencepiece. The text is made by counter and hash, so C makes the same (generate below).
"""
import base64
import glob
import gzip
import json
import os
import sys
import time
import unicodedata

M64 = (1 << 64) - 1
BLOCK = 10000  # characters of one block; blocks take the classes in turn
BLOCKS = 100
SEED = 20

WORDS = """the and of to in that it was for on are with as his they at be this from have or by one had not but what all were when we there can an
your which their said if do will each about how up out them then she many some so these would other into has more her two like him see time could no make
than first been its who now people my made over did down only way find use may water long little very after words called just where most know""".split()
CODE = ["for (int i = 0; i < n; i++) {\n", "    return x->y[i] * 2.5e-3f;\n", "}\n\n", "if __name__ == '__main__':\n", "\tdef f(self, *args, **kw):\n",
        "#include <stdio.h>\n", "const char *s = \"a\\\"b\\n\";", "  // TODO: fix\r\n", "x += y << 3 | 0xFFu;", "SELECT * FROM t WHERE id=42;", "<div class=\"a\">&amp;</div>",
        "let v: Vec<_> = it.map(|x| x?).collect();", "https://example.org/a?b=c&d=%20", "<|endoftext|>", "<s>", "</s>", "<|im_start|>", "        ", "\n\n\n", "1234567890",
        "3.14159", "___", "!=", "==>", "don't", "I'LL", "we've", "it's", "''''", "[UNK]", "[CLS]", "user@host", "\t\t", " \n ", "CamelCaseName", "snake_case_name", "$x"]
SCRIPTS = [[0x410, 0x44F], [0x391, 0x3C9], [0x620, 0x64A], [0x64B, 0x652], [0x5D0, 0x5EA], [0x905, 0x939], [0x93E, 0x94D], [0xE01, 0xE3A], [0xE40, 0xE4E], [0xAC00, 0xD7A3],
           [0x1100, 0x11FF], [0x300, 0x345], [0xC0, 0x17F], [0x1E00, 0x1EFF], [0x1F600, 0x1F64F], [0x1F3FB, 0x1F3FF], [0x1F1E6, 0x1F1FF], [0x2000, 0x200F], [0x2028, 0x202F],
           [0x2160, 0x2188], [0xFF01, 0xFF5E], [0x1D400, 0x1D4FF], [0x900, 0x903], [0x10A0, 0x10C5], [0x660, 0x669], [0x249C, 0x24E9], [0x180B, 0x180D],
           "\u200d", "\ufe0f", "\u00a0", "\u3000", "\u0085", "\u017f", "\u212a", "\u0130", "\u1e9e", "\ufb01", " ", " ", "\n", "a", "e", "s", "'", "\u2581", "\ufeff", "\ufffd", "\u00ad"]
CJK = [[0x4E00, 0x9FA5]] * 12 + [[0x3041, 0x3096], [0x30A1, 0x30FA], "\u3001", "\u3002", "\uff0c", "\uff01", "\u30fc", "\u3099", " ", "\n", [0x30, 0x39], [0x61, 0x7A], "2026\u5e74",
                               [0x3400, 0x4DB5], [0x20000, 0x2A6D6], [0xF900, 0xFA6D], "\u300c", "\u300d"]


def mix(z):
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & M64
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & M64
    return z ^ z >> 31


START = mix((SEED + 0x9E3779B97F4A7C15) & M64)


def rng(counter):
    """rng_u64(SEED, counter) of src/base/hash.c"""
    return mix((START + (counter + 1) * 0x9E3779B97F4A7C15) & M64)


def generate(recipe, block):
    """Block `block` of the text: every entry is a string, or a range of code points."""
    entries = recipe["classes"][block % len(recipe["classes"])]["entries"]
    out, chars, k = [], 0, block << 32
    while chars < BLOCK:
        r = rng(k)
        k += 1
        e = entries[r % len(entries)]
        s = e if isinstance(e, str) else chr(e[0] + (r >> 32) % (e[1] - e[0] + 1))
        s = s[:BLOCK - chars]
        out.append(s)
        chars += len(s)
    return "".join(out)


def ranges_of(chars):
    out = []
    for c in sorted(chars):
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def stable():
    """Code points that Python's Unicode (14, as PCRE2's) and the reference see alike, and those that they do not."""
    from tokenizers import Regex, normalizers, pre_tokenizers
    scalars = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    text = "".join(map(chr, scalars))
    seen = {}
    for k in "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co".split():
        for piece, _ in pre_tokenizers.Split(Regex("\\p{%s}" % k), "removed", invert=True).pre_tokenize_str(text):
            seen[ord(piece)] = k
    alike, other = [], []
    forms = [(getattr(normalizers, f)(), (lambda f: lambda s: unicodedata.normalize(f, s))(f)) for f in ("NFC", "NFD", "NFKC", "NFKD")]
    forms.append((normalizers.Lowercase(), lambda s: s.lower() if s != "\u03a3" else "\u03c3"))
    clean = normalizers.BertNormalizer(clean_text=True, handle_chinese_chars=False, strip_accents=False, lowercase=False)
    marks, accents = pre_tokenizers.Punctuation("removed"), normalizers.StripAccents()
    nonspacing = normalizers.BertNormalizer(clean_text=False, handle_chinese_chars=False, strip_accents=True, lowercase=False)
    for c in scalars:
        s, k = chr(c), unicodedata.category(chr(c))
        if k == "Cn" and c not in seen:
            continue
        gone = c in (0, 0xFFFD) or (k in ("Cc", "Cf", "Co") and s not in "\t\n\r")
        space = c in (9, 10, 13, 32, 0xA0, 0x1680, 0x202F, 0x205F, 0x3000, 0x2028, 0x2029) or 0x2000 <= c <= 0x200A
        same = seen.get(c) == k and all(n.normalize_str(s) == f(s) for n, f in forms)
        same = same and clean.normalize_str(s) == ("" if gone else " " if space else s)
        same = same and (marks.pre_tokenize_str(s) == []) == (k[0] == "P" or c < 128 and k[0] == "S")
        same = same and accents.normalize_str(s) == ("" if k[0] == "M" else s)
        same = same and nonspacing.normalize_str(s) == "".join(d for d in unicodedata.normalize("NFD", s) if unicodedata.category(d) != "Mn")
        if k[0] == "M":  # the order of marks
            same = same and all(n.normalize_str(x) == f(x) for n, f in forms[:2] for x in ("a\u0301" + s + "\u0316", "a\u0316" + s, s + "\u0345\u0334", "a\u3099" + s + "\u0f71"))
        (alike if same else other).append(c)
    return ranges_of(alike), ranges_of(other)


def write_text(path):
    alike, other = stable()
    recipe = {"seed": SEED, "block": BLOCK, "blocks": BLOCKS, "other_unicode": other, "classes": [
        {"name": "random", "entries": alike}, {"name": "code", "entries": CODE + [" ", "\n"]},
        {"name": "cjk", "entries": CJK},
        {"name": "words", "entries": [" " + w for w in WORDS] + [w.capitalize() for w in WORDS[:40]] + [" " + w.upper() for w in WORDS[:40]] +
            [".", ",", "!", "?", " ", "\n", "  ", "'s", "n't", " 7", "2026", "-", "\u2019s", "\u00e9", "na\u00efve", " caf\u00e9"]},
        {"name": "scripts", "entries": SCRIPTS}]}
    with open(path, "w") as f:
        f.write(json.dumps(recipe, separators=(",", ":")) + "\n")


# ---- small tokenizers ----

def training_text():
    return [" ".join(WORDS[(i * 7 + j * (i % 5 + 1)) % len(WORDS)] for j in range(12)) + CODE[i % len(CODE)] for i in range(600)]


CL100K = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"
KIMI = "|".join(["[\\p{Han}]+", "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
                 "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
                 "\\p{N}{1,3}", " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*", "\\s*[\\r\\n]+", "\\s+(?!\\S)", "\\s+"])


def make(out):
    import io
    import sentencepiece as spm
    from sentencepiece import sentencepiece_model_pb2 as pb
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    text = training_text() + ["caf\u00e9 na\u00efve \u4f60\u597d\u4e16\u754c \u041f\u0440\u0438\u0432\u0435\u0442 \u00bd \u2460"] * 20
    # WordPiece, as BERT
    t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    t.normalizer = normalizers.BertNormalizer()
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.decoder = decoders.WordPiece()
    t.train_from_iterator(text, trainers.WordPieceTrainer(vocab_size=400, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]"], show_progress=False))
    t.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    t.save(out + "/wordpiece.json", pretty=False)
    # WordLevel
    t = Tokenizer(models.WordLevel(unk_token="<unk>"))
    t.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Strip(), normalizers.Lowercase()])
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.Punctuation()])
    t.train_from_iterator(text, trainers.WordLevelTrainer(vocab_size=300, special_tokens=["<unk>", "<s>"], show_progress=False))
    t.add_tokens([AddedToken("the", single_word=True, lstrip=True), AddedToken("user@", rstrip=True)])
    t.save(out + "/wordlevel.json", pretty=False)
    # BPE with suffix and BPEDecoder
    t = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>", fuse_unk=True))
    t.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()])
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.decoder = decoders.BPEDecoder()
    t.train_from_iterator(text, trainers.BpeTrainer(vocab_size=500, special_tokens=["<unk>"], end_of_word_suffix="</w>", show_progress=False))
    t.save(out + "/suffix.json", pretty=False)
    # BPE with a prefix
    t = Tokenizer(models.BPE(unk_token="<unk>", continuing_subword_prefix="##"))
    t.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    t.decoder = decoders.WordPiece(cleanup=False)
    t.train_from_iterator(text, trainers.BpeTrainer(vocab_size=400, special_tokens=["<unk>"], continuing_subword_prefix="##", show_progress=False))
    t.save(out + "/prefix.json", pretty=False)
    # Unigram with a charsmap and byte fallback, from sentencepiece
    rules = out + "/rules.tsv"
    with open(rules, "w") as f:
        for a, b in [("\u00bd", "1/2"), ("\u2460", "1"), ("\u3000", " "), ("\uff01", "!"), ("\ufb01", "fi"), ("e\u0301", "\u00e9"), ("\u212a", "K"), ("\t", " "), ("\n", " "), ("\u00ad", "")]:
            f.write(" ".join("%X" % ord(c) for c in a) + "\t" + " ".join("%X" % ord(c) for c in b) + "\n")
    model = io.BytesIO()
    spm.SentencePieceTrainer.train(sentence_iterator=iter(text), model_writer=model, vocab_size=560, model_type="unigram", byte_fallback=True,
                                   normalization_rule_tsv=rules, minloglevel=2, hard_vocab_limit=False)
    os.unlink(rules)
    m = pb.ModelProto()
    m.ParseFromString(model.getvalue())
    t = {"version": "1.0", "added_tokens": [{"id": i, "content": p.piece, "special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
                                            for i, p in enumerate(m.pieces) if p.type in (2, 3)],
         "normalizer": {"type": "Sequence", "normalizers": [{"type": "Precompiled", "precompiled_charsmap": base64.b64encode(m.normalizer_spec.precompiled_charsmap).decode()},
                                                            {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}]},
         "pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True},
         "post_processor": None, "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always"}]},
         "model": {"type": "Unigram", "unk_id": 0, "byte_fallback": True, "vocab": [[p.piece, p.score] for p in m.pieces]}}
    t["decoder"] = {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
                                                     {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    with open(out + "/unigram.json", "w") as f:
        json.dump(t, f, ensure_ascii=False, separators=(",", ":"))
    t["model"] = dict(t["model"], byte_fallback=False)
    t["pre_tokenizer"] = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False}
    t["decoder"] = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first"}
    with open(out + "/unigram_unk.json", "w") as f:
        json.dump(t, f, ensure_ascii=False, separators=(",", ":"))
    # tiktoken
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.train_from_iterator(text, trainers.BpeTrainer(vocab_size=700, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    table = {c: b for b, c in byte_alphabet().items()}
    vocab = json.loads(t.to_str())["model"]["vocab"]
    singles = sorted(v for v in vocab if len(v) == 1)
    merged = sorted((v for v in vocab if len(v) > 1), key=vocab.get)
    with open(out + "/small.tiktoken", "w") as f:
        for rank, token in enumerate(singles + merged):
            f.write("%s %d\n" % (base64.b64encode(bytes(table[c] for c in token)).decode(), rank))


def byte_alphabet():
    keep = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b]
    table, n = {b: chr(b) for b in keep}, 0
    for b in range(256):
        if b not in table:
            table[b] = chr(256 + n)
            n += 1
    return table


# ---- recording ----

def fnv(data):
    h = 0xCBF29CE484222325
    for b in data:
        h = ((h ^ b) * 0x100000001B3) & M64
    return "%016x" % h


def fnv_ids(ids):
    h = 0xCBF29CE484222325
    for i in ids:
        h = ((h ^ i) * 0x100000001B3) & M64
    return "%016x" % h


def regex(s):
    return {"Regex": s}


def components():
    split = lambda p, b, i=False: {"type": "Split", "pattern": p, "behavior": b, "invert": i}
    pre = [split(regex("\\s+"), b, i) for b in ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous") for i in (False, True)]
    pre += [split({"String": "e"}, b) for b in ("Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")]
    pre += [split(regex(p), "Isolated") for p in (
        CL100K.replace("?+", "?").replace("++", "+"), "\\p{Han}+", KIMI, "\\d|\\w+", "\\bt\\w*\\b", "[^\\w\\s]+",
        "(?i)the|K", "\\p{Lu}\\p{Ll}+|\\P{L}{2,}", "[\\p{Cyrillic}\\p{Greek}]+", "\\p{^L}+", "^.{3}|.$", "\\h{2}|\\v", "(?<=e)\\s|\\S(?=!)", "x{,2}y|a{2}")]
    pre += [{"type": "ByteLevel", "add_prefix_space": a, "trim_offsets": True, "use_regex": r} for a in (True, False) for r in (True, False)]
    pre += [{"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": p, "split": s} for p in ("always", "first", "never") for s in (True, False)]
    pre += [{"type": "Whitespace"}, {"type": "WhitespaceSplit"}, {"type": "BertPreTokenizer"}, {"type": "Digits", "individual_digits": True}, {"type": "Digits", "individual_digits": False},
            {"type": "CharDelimiterSplit", "delimiter": "e"}]
    pre += [{"type": "Punctuation", "behavior": b} for b in ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")]
    pre += [{"type": "Sequence", "pretokenizers": [{"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}, split({"String": "\u0120"}, "MergedWithNext")]}]
    norm = [{"type": n} for n in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt", "ByteLevel")]
    norm += [{"type": "Strip", "strip_left": a, "strip_right": b} for a, b in ((True, True), (True, False), (False, True))]
    norm += [{"type": "BertNormalizer", "clean_text": c, "handle_chinese_chars": h, "strip_accents": s, "lowercase": w}
             for c, h, s, w in ((True, True, None, True), (True, False, False, True), (False, True, True, False), (True, True, None, False))]
    norm += [{"type": "Prepend", "prepend": "ab"}, {"type": "Replace", "pattern": regex("\\s+"), "content": "_"}, {"type": "Replace", "pattern": {"String": "e"}, "content": "\u00e9"},
             {"type": "Sequence", "normalizers": [{"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Replace", "pattern": regex("[^a-z ]"), "content": ""}]}]
    return [{"normalizer": None, "pre_tokenizer": p} for p in pre] + [{"normalizer": n, "pre_tokenizer": None} for n in norm]


def component_file(c):
    """No vocabulary but bytes; the suffix, in bytes too, shows where words end."""
    return json.dumps({"version": "1.0", "added_tokens": [], "normalizer": c["normalizer"], "pre_tokenizer": c["pre_tokenizer"], "post_processor": None, "decoder": None,
                       "model": {"type": "BPE", "byte_fallback": True, "end_of_word_suffix": "|", "merges": [], "vocab": {"<0x%02X>" % b: b for b in range(256)}}})


def pipelines():
    """Tokenizer files whose stages meet each other in ways that are easy to get wrong, with texts."""
    vocab = ["<unk>", "<s>"] + list("abcABC .,!'\u2581_\u00e9\t\n") + ["\u2581a", "_a", "ab", "bc", "  ", "\u2581\u2581", "b c"]

    def added(tokens):
        new = [c for c, _ in tokens if c not in vocab]
        return [{"id": vocab.index(c) if c in vocab else len(vocab) + new.index(c), "content": c, "single_word": "w" in f, "lstrip": "l" in f, "rstrip": "r" in f,
                 "normalized": "n" in f, "special": "s" in f} for c, f in tokens]

    level = {"type": "WordLevel", "unk_token": "<unk>", "vocab": {v: i for i, v in enumerate(vocab)}}
    bpe = {"type": "BPE", "unk_token": "<unk>", "fuse_unk": False, "merges": [["\u2581", "a"], ["_", "a"], ["a", "b"]], "vocab": {v: i for i, v in enumerate(vocab)}}
    first = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": True}
    never = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "never", "split": True}
    seq = lambda kind, *v: {"type": "Sequence", kind: list(v)}
    strip = {"type": "Strip", "strip_left": True, "strip_right": True}
    replace = lambda p, c: {"type": "Replace", "pattern": p, "content": c}
    prepend = {"type": "Prepend", "prepend": "_"}
    bert = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": True, "lowercase": True}
    string = lambda c: {"String": c}
    texts = ["", "a", " a b", "  a b", "\ta", "ab  c", "\u00e9a a", "aab", "\u4e2da", "\u0301a", "\u0001a b", "bca", "<x>  a", "a <x>a"]

    def file(model=level, tokens=(), norm=None, pre=None, decoder=None):
        return {"version": "1.0", "added_tokens": added(tokens), "normalizer": norm, "pre_tokenizer": pre, "post_processor": None, "decoder": decoder, "model": model}

    # white space that a token took is looked through for others
    spaces = ["<x>   a", "<x> <x>a", "a  <x>  <x>", "  <x>", "<x>\t  b", "<x>    ", "    a    ", " \n     c  "]
    yield file(tokens=[("<x>", "r"), ("  ", "")]), spaces
    yield file(tokens=[("  ", "lr"), ("<x>", "r")]), spaces
    yield file(tokens=[(" <x>", "r"), ("\t", "s")]), spaces + [" <x> <x> a"]
    yield file(tokens=[("<x>", "lrw"), (" ", "n")]), spaces
    # what begins the text, once normalizers and other stages were there
    for norm in (strip, {"type": "Strip", "strip_left": False, "strip_right": True}, replace(string("a"), ""), replace(string("a"), "b"), replace(string("ab"), "c"),
                 replace(regex("^\\s+"), ""), replace(regex("\\s{2}"), "_"), prepend, seq("normalizers", prepend, strip), seq("normalizers", prepend, replace(string("_"), "")), bert,
                 {"type": "StripAccents"}, {"type": "Nmt"}, {"type": "NFD"}, seq("normalizers", {"type": "NFD"}, {"type": "StripAccents"}), {"type": "Lowercase"}):
        yield file(bpe, norm=norm, pre=first), texts
        yield file(bpe, norm=norm, pre=seq("pretokenizers", {"type": "Split", "pattern": regex("[_a]"), "behavior": "Isolated", "invert": False}, first)), texts
    yield file(bpe, pre=seq("pretokenizers", first, dict(first, replacement="_"))), texts
    yield file(bpe, pre=seq("pretokenizers", {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}, dict(first, replacement="_"))), texts
    yield file(bpe, pre=seq("pretokenizers", {"type": "BertPreTokenizer"}, first)), texts
    # an unknown character that ends a longer token needs no unknown token
    yield file({"type": "Unigram", "unk_id": None, "byte_fallback": False, "vocab": [[v, -1.0 - i / 8] for i, v in enumerate(["a", "b", "ca\u00e9", "b\u00e9", "c"])]}), \
        ["ab\u00e9", "b\u00e9b\u00e9c", "abca"]
    # an added token decodes from what it is behind the normalizers
    for norm in (prepend, {"type": "Lowercase"}, seq("normalizers", prepend, replace(string(" "), "\u2581"))):
        for decoder in (None, never, {"type": "WordPiece", "prefix": "##", "cleanup": False}):
            yield file(bpe, [("<X> A", "n"), ("C", "n")], norm, None, decoder), ["<X> A", "a<X> Ab", "CaC", "abc"]


# Texts for the rule of Kimi's code: [characters, times] one after the other. Ranks of these characters merge across each cut.
CUTS = [[["the", 8000], ["t", 1], ["he", 1]], [["the", 8333], ["the", 1]], [["the", 8334]], [["t", 1], ["the", 20000]], [["the", 8330], ["\x1c", 1], ["t", 1], ["the", 30]],
        [["the", 8330], ["\u3000", 1], ["t", 1], ["the", 30]], [["the", 8330], ["\u200b", 1], ["t", 1], ["the", 30]], [[" ", 25001], ["the", 9000]], [["the ", 99999], ["a the the", 30000]],
        [["the then\n", 44444], ["the", 20000], ["  ", 13000], ["\u4e2d\u6587", 13000], ["the", 10]]]


def cut(s, piece=400000, run=25000):
    """Each piece of 400,000 characters, and within it runs of one kind of at most 25,000."""
    for p in (s[i:i + piece] for i in range(0, len(s), piece)):
        begin = length = 0
        for i, c in enumerate(p):
            length = length + 1 if i and c.isspace() == p[i - 1].isspace() else 1
            if length > run:
                yield p[begin:i]
                begin, length = i, 1
        yield p[begin:]


def record_pipelines(out):
    from tokenizers import Tokenizer
    rows = []
    for spec, texts in pipelines():
        text = json.dumps(spec, ensure_ascii=False, separators=(",", ":"))
        t = Tokenizer.from_str(text)
        cases = [[s, ids := t.encode(s).ids, t.decode(ids, skip_special_tokens=False)] for s in texts]
        rows.append(json.dumps({"file": text, "texts": cases}, ensure_ascii=False, separators=(",", ":")))
    with open(out + "/pipelines.json", "w") as f:
        f.write("[\n" + ",\n".join(rows) + "\n]\n")
    print(len(rows), "pipelines")


def measure(encode, decode, recipe, blocks=BLOCKS):
    texts = [generate(recipe, b) for b in range(blocks)]
    out = {"blocks": [fnv_ids(encode(s)) for s in texts]}
    if decode:
        ids = encode("".join(texts))
        out.update(ids=len(ids), whole=fnv_ids(ids), decoded=fnv(decode(ids).encode()))
    return out


def record_cuts(e):
    out = []
    for parts in CUTS:
        s = "".join(c * n for c, n in parts)
        whole, ids = e.encode_ordinary(s), [i for p in cut(s) for i in e.encode_ordinary(p)]
        print("cuts", len(s), len(list(cut(s))), whole != ids)
        out.append({"parts": parts, "n": len(ids), "ids": fnv_ids(ids), "matters": whole != ids})
    return out


def record(material, out):
    import tiktoken
    import tokenizers
    recipe = json.load(open(out + "/text.json"))
    texts = [fnv(generate(recipe, b).encode()) for b in range(len(recipe["classes"]))]
    result = {"producer": "tokenizers %s, tiktoken %s" % (tokenizers.__version__, tiktoken.__version__), "text": texts, "material": [], "made": [], "components": []}
    seen = set()
    for path in sorted(glob.glob(material + "/tokenizers/*/tokenizer.json.gz")) + sorted(glob.glob(material + "/models/*/tokenizer.json")):
        entry = {"file": path[len(material) + 1:]}
        with (gzip.open if path.endswith(".gz") else open)(path, "rb") as f:
            text = f.read().decode()
        if text in seen:  # one that several models share
            continue
        seen.add(text)
        try:
            t = tokenizers.Tokenizer.from_str(text)
        except Exception as e:
            result["material"].append(dict(entry, refused=str(e)))
            continue
        entry.update(measure(lambda s: t.encode(s, add_special_tokens=False).ids, lambda i: t.decode(i, skip_special_tokens=False), recipe))
        result["material"].append(entry)
        print(entry["file"], entry["whole"], flush=True)
    for path in sorted(glob.glob(out + "/*.json")):
        if os.path.basename(path) in ("text.json", "reference.json"):
            continue
        t = tokenizers.Tokenizer.from_file(path)
        entry = {"file": os.path.basename(path)}
        entry.update(measure(lambda s: t.encode(s, add_special_tokens=False).ids, lambda i: t.decode(i, skip_special_tokens=False), recipe, 20))
        entry["special"] = t.encode("the user@ host theatre the", add_special_tokens=True).ids
        result["made"].append(entry)
        print(entry["file"], entry["whole"], flush=True)
    ranks = {base64.b64decode(a): int(b) for a, b in (line.split() for line in open(out + "/small.tiktoken"))}
    special = {"<|endoftext|>": 1000, "<|im_start|>": 1001}
    for pattern in (CL100K, KIMI):
        e = tiktoken.Encoding("small", pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)
        entry = {"file": "small.tiktoken", "pattern": pattern, "special_tokens": special}
        entry.update(measure(lambda s: e.encode(s, allowed_special="all"), lambda i: e.decode(i), recipe, 20))
        result["made"].append(entry)
        print(entry["file"], entry["whole"], flush=True)
    result["cuts"] = record_cuts(tiktoken.Encoding("small", pat_str=KIMI, mergeable_ranks=ranks, special_tokens={}))
    for c in components():
        t = tokenizers.Tokenizer.from_str(component_file(c))
        c.update(measure(lambda s: t.encode(s).ids, None, recipe, 10))
        result["components"].append(c)
    with open(out + "/reference.json", "w") as f:
        f.write(json.dumps(result, separators=(",", ":")).replace('{"file"', '\n{"file"').replace('{"normalizer":', '\n{"normalizer":') + "\n")


def speed(path, text):
    import tokenizers
    t = tokenizers.Tokenizer.from_file(path)
    s = open(text, encoding="utf-8", newline="").read()
    best = None
    for _ in range(5):
        begin = time.process_time()
        n = len(t.encode(s, add_special_tokens=False).ids)
        took = time.process_time() - begin
        best = took if best is None or took < best else best
    print("%.4f %d" % (best, n))


if __name__ == "__main__":
    commands = {"text": write_text, "make": make, "record": record, "pipelines": record_pipelines, "speed": speed}
    if len(sys.argv) < 3 or sys.argv[1] not in commands:
        sys.exit(__doc__)
    commands[sys.argv[1]](*sys.argv[2:])
