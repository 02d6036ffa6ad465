#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Turns raw token ids and float32 arrays into a day0 reference file (docs/references.md). Standard library only.

    make_reference.py --ids ids.txt --logits logits.f32 --vocab 512 --prompt-tokens 1 --greedy \\
                      --producer "transformers 4.56.2" -o reference.safetensors

Refuses what the reader would refuse: sizes that do not fit, values that are not finite, ids outside the vocabulary,
and, with --greedy, a continuation that the logits themselves contradict.
"""
import argparse
import array
import hashlib
import json
import math
import os
import struct
import sys


def fail(message):
    sys.exit("make_reference.py: " + message)


def read_ids(path, vocab):
    try:
        with open(path, encoding="ascii") as f:
            ids = [int(word) for word in f.read().replace(",", " ").split()]
    except (OSError, ValueError) as error:
        fail(f"{path}: {error}")
    if not ids:
        fail(f"{path}: no token ids")
    for i, v in enumerate(ids):
        if not 0 <= v < (vocab or 2**31):
            fail(f"{path}: id {i} is {v}, outside the vocabulary of {vocab}")
    return ids


def read_floats(path, rows, width=None):
    """float32 little-endian [rows, width]; width is deduced when not given. Returns (array, width)."""
    try:
        with open(path, "rb") as f:
            raw = f.read()
    except OSError as error:
        fail(str(error))
    if width is None:
        width = len(raw) // (4 * rows)
    if width < 1 or len(raw) != 4 * rows * width:
        fail(f"{path}: {len(raw)} bytes are not float32 [{rows}, {width or 'width'}]")
    values = array.array("f")
    values.frombytes(raw)
    if sys.byteorder == "big":
        values.byteswap()
    for i, v in enumerate(values):
        if not math.isfinite(v):
            fail(f"{path}: row {i // width}, column {i % width} is {v}")
    return values, width


def check_greedy(ids, logits, vocab, n_prompt):
    for t in range(n_prompt - 1, len(ids) - 1):
        row = logits[t * vocab:(t + 1) * vocab]
        best = max(row)
        if row[ids[t + 1]] != best:
            fail(f"not greedy: id {t + 1} is {ids[t + 1]} with logit {row[ids[t + 1]]:g}, the largest at position {t} is {best:g}")


def little_endian(values):
    if sys.byteorder == "big":
        values = array.array(values.typecode, values)
        values.byteswap()
    return values.tobytes()


def write_safetensors(path, tensors, metadata):
    """tensors: [(name, dtype, shape, bytes)]. The file appears whole or not at all."""
    header = {"__metadata__": metadata}
    offset = 0
    for name, dtype, shape, data in tensors:
        if name in header:
            fail(f"two tensors are named {name}")
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=True).encode()
    text += b" " * (-len(text) % 8)  # data starts at a multiple of 8
    temporary = path + ".tmp"
    digest = hashlib.sha256()
    try:
        with open(temporary, "wb") as f:
            for part in [struct.pack("<Q", len(text)), text] + [data for _, _, _, data in tensors]:
                f.write(part)
                digest.update(part)
        os.replace(temporary, path)
    except OSError as error:
        fail(str(error))
    return digest.hexdigest()


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--ids", required=True, help="text file of token ids")
    p.add_argument("--logits", help="float32 little-endian [ids, vocab]")
    p.add_argument("--vocab", type=int, help="width of a row of logits")
    p.add_argument("--prompt-tokens", type=int, help="how many ids were given; the rest was generated (default: all)")
    p.add_argument("--greedy", action="store_true", help="ids after the prompt are the producer's greedy continuation")
    p.add_argument("--producer", required=True, help="what computed it, with version")
    p.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"], help="what it computed in")
    p.add_argument("--model", default="", help="name and revision of the model")
    p.add_argument("--probe", action="append", default=[], metavar="NAME=FILE", help="float32 [ids, width] of a named probe")
    p.add_argument("-o", "--output", required=True)
    return p.parse_args()


def main():
    a = arguments()
    if a.logits and not (a.vocab and a.vocab > 0):
        fail("--logits needs --vocab N")
    ids = read_ids(a.ids, a.vocab)
    n_prompt = len(ids) if a.prompt_tokens is None else a.prompt_tokens
    if not 1 <= n_prompt <= len(ids):
        fail(f"--prompt-tokens {n_prompt} of {len(ids)} ids")
    if a.greedy and a.prompt_tokens is None:
        fail("--greedy needs --prompt-tokens N")
    tensors = [("token_ids", "I32", [len(ids)], little_endian(array.array("i", ids)))]
    if a.logits:
        logits, _ = read_floats(a.logits, len(ids), a.vocab)
        if a.greedy:
            check_greedy(ids, logits, a.vocab, n_prompt)
        tensors.append(("logits", "F32", [len(ids), a.vocab], little_endian(logits)))
    for item in a.probe:
        name, _, path = item.partition("=")
        if not name or not path or name in ("token_ids", "logits", "__metadata__"):
            fail(f"--probe {item}: want NAME=FILE")
        values, width = read_floats(path, len(ids))
        tensors.append((name, "F32", [len(ids), width], little_endian(values)))
    metadata = {"format": "day0-reference-1", "producer": a.producer, "dtype": a.dtype, "model": a.model,
                "prompt_tokens": str(n_prompt), "greedy": "true" if a.greedy else "false"}
    digest = write_safetensors(a.output, tensors, metadata)
    print(f"{a.output}: {len(ids)} tokens, {len(tensors)} tensors, sha256 {digest}")


if __name__ == "__main__":
    main()
