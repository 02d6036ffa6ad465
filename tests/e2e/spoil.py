#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plants one fault in a copy of a model directory, for rows.sh, record.sh and compare.sh. Standard library only.

    spoil.py nan|weight|shuffle|bos DIR      spoil.py reference IN OUT      spoil.py enlarge DIR TENSOR FACTOR
"""
import json
import random
import struct
import sys


def tensors(path):
    with open(path, "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        header = json.loads(f.read(n))
    return {k: v for k, v in header.items() if k != "__metadata__"}, 8 + n


def patch(path, offset, data):
    with open(path, "r+b") as f:
        f.seek(offset)
        f.write(data)


def a_matrix(path, which):
    """A two-dimensional weight of the first (0) or last (-1) layer: its type and byte offset."""
    table, base = tensors(path)
    name = sorted(k for k, v in table.items() if len(v["shape"]) == 2 and ".layers." in k)[which]
    return table[name]["dtype"], base + table[name]["data_offsets"][0]


def edit(path, change):
    with open(path, encoding="utf-8") as f:
        value = json.load(f)
    change(value)
    with open(path, "w", encoding="utf-8") as f:
        json.dump(value, f, ensure_ascii=False)


def added(directory):
    with open(directory + "/tokenizer.json", encoding="utf-8") as f:
        return json.load(f)["added_tokens"]


def shuffle(t):
    vocab = t["model"]["vocab"]
    fixed = {a["content"] for a in t.get("added_tokens", [])}
    keys = [k for k in vocab if k not in fixed and not k.startswith("<0x")]
    ids = [vocab[k] for k in keys]
    random.Random(4).shuffle(ids)
    vocab.update(zip(keys, ids))


def double_bos(t):
    def special(parts):
        return next((i for i, p in enumerate(parts) if "SpecialToken" in p), None)

    post = t["post_processor"]
    for p in [post] + post.get("processors", []):
        if p.get("type") == "TemplateProcessing":
            at = special(p["single"])
            p["single"].insert(at, p["single"][at])
            return
    first = min(t["added_tokens"], key=lambda a: a["id"])  # there was none: the first special token, twice
    one, text = {"SpecialToken": {"id": first["content"], "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    t["post_processor"] = {"type": "TemplateProcessing", "single": [one, one, text], "pair": [one, one, text, {"Sequence": {"id": "B", "type_id": 0}}],
                           "special_tokens": {first["content"]: {"id": first["content"], "ids": [first["id"]], "tokens": [first["content"]]}}}


def main(argv):
    what, path = argv[1], argv[2]
    weights = path + "/model.safetensors"
    if what == "nan":
        dtype, at = a_matrix(weights, -1)
        patch(weights, at, struct.pack("<f", float("nan")) if dtype == "F32" else b"\xc0\x7f\xc0\x7f")
    elif what == "weight":
        dtype, at = a_matrix(weights, 0)
        patch(weights, at, struct.pack("<f", 9.0) if dtype == "F32" else b"\x10\x41")
    elif what == "shuffle":
        edit(path + "/tokenizer.json", shuffle)
    elif what == "bos":
        edit(path + "/tokenizer.json", double_bos)
        edit(path + "/config.json", lambda c: c.setdefault("bos_token_id", min(x["id"] for x in added(path))))
    elif what == "reference":
        table, base = tensors(path)
        with open(path, "rb") as f:
            data = bytearray(f.read())
        begin, end = table["logits"]["data_offsets"]
        at = base + begin + (end - begin) // 8 * 4
        data[at:at + 4] = struct.pack("<f", struct.unpack("<f", data[at:at + 4])[0] + 4.0)
        with open(argv[3], "wb") as f:
            f.write(data)
    elif what == "enlarge":
        table, base = tensors(weights)
        begin, end = table[argv[3]]["data_offsets"]
        with open(weights, "rb") as f:
            f.seek(base + begin)
            data = f.read(end - begin)
        wide = table[argv[3]]["dtype"] == "F32"  # BF16 is the upper half of F32
        data = data if wide else b"".join(b"\0\0" + data[i:i + 2] for i in range(0, len(data), 2))
        values = struct.unpack("<%df" % (len(data) // 4), data)
        data = struct.pack("<%df" % len(values), *(v * float(argv[4]) for v in values))
        patch(weights, base + begin, data if wide else b"".join(data[i + 2:i + 4] for i in range(0, len(data), 4)))
    else:
        sys.exit("spoil.py: unknown fault " + what)


main(sys.argv)
