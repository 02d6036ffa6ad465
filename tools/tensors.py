# SPDX-License-Identifier: Apache-2.0
"""safetensors files in NumPy, and what the stored numbers of quantised releases mean.

dequantise() knows each format by its definition alone, from names, types and shapes of the tensors; nothing of day0 is used:
  X.weight F8_E4M3, X.weight_scale_inv [rows/128, columns/128]  value * scale of its block; the last block of a row may be short
  X.weight F8_E4M3, X.weight_scale [rows, 1]                    value * scale of its row
  X.weight_packed I32 [rows, columns/8], X.weight_scale         (four bits - 8) * scale of its group; element j of a word at bit 4j
  X.weight_packed U8 [rows, columns/2], X.weight_scale U8       E2M1, low half of the byte first, * 2^(scale - 127) of its 32
  X_blocks U8 [E, rows, columns/32, 16], X_scales U8            the same, and the library wants [E, columns, rows]
"""
import json
import struct

import numpy as np

DTYPES = {"F32": np.float32, "BF16": np.uint16, "F8_E4M3": np.uint8, "U8": np.uint8, "I8": np.int8, "I32": np.int32, "I64": np.int64}
E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, -0.0, -.5, -1, -1.5, -2, -3, -4, -6])
BLOCK = 128


def read(path):
    """name -> (type in the file, array). BF16 is widened."""
    raw = open(path, "rb").read()
    n, = struct.unpack("<Q", raw[:8])
    tensors = {}
    for name, t in json.loads(raw[8:8 + n]).items():
        if name == "__metadata__":
            continue
        a, b = t["data_offsets"]
        x = np.frombuffer(raw[8 + n + a:8 + n + b], dtype=DTYPES[t["dtype"]]).reshape(t["shape"])
        tensors[name] = (t["dtype"], (x.astype(np.uint32) << 16).view(np.float32) if t["dtype"] == "BF16" else x)
    return tensors


def write(path, tensors, meta):
    head, at = {"__metadata__": meta}, 0
    for name, x in tensors.items():
        kind = {"float32": "F32", "int32": "I32", "int64": "I64", "uint8": "U8"}[str(x.dtype)]
        head[name] = {"dtype": kind, "shape": list(x.shape), "data_offsets": [at, at + x.nbytes]}
        at += x.nbytes
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for x in tensors.values():
            f.write(np.ascontiguousarray(x).tobytes())


def e4m3(codes):
    """One sign bit, four of exponent with bias 7, three of mantissa; exponent 0 has no hidden one; all ones is no number."""
    c = codes.astype(np.int64)
    exponent, mantissa = c >> 3 & 15, c & 7
    x = np.where(exponent == 0, mantissa / 8 * 2.0 ** -6, (1 + mantissa / 8) * 2.0 ** (exponent - 7))
    return np.where(c & 127 == 127, np.nan, np.where(c & 128, -x, x))


def halves(codes):
    """E2M1 numbers, two a byte, along the last dimension."""
    return E2M1[np.stack([codes & 15, codes >> 4], axis=-1).reshape(codes.shape[:-1] + (-1,))]


def power(codes):
    return np.exp2(codes.astype(np.float64) - 127)


def along(scales, width):
    """Each scale of a row for its share of `width` values."""
    return np.repeat(scales, width // scales.shape[-1], axis=-1)


def in_blocks(scales, shape):
    return np.repeat(np.repeat(scales, BLOCK, axis=0), BLOCK, axis=1)[:shape[0], :shape[1]]


def words(codes):
    """Unsigned numbers of four bits, eight a word, the first in the lowest bits."""
    c = codes.view(np.uint32).astype(np.int64)
    return np.stack([c >> 4 * j & 15 for j in range(8)], axis=-1).reshape(c.shape[0], -1)


def one(left, name, kind, x):
    """(name, values) of one weight of any format; takes its scales out of `left`."""
    stem = name.rsplit(".", 1)[0]
    if kind == "F8_E4M3":
        w = e4m3(x)
        if name + "_scale_inv" in left:
            return name, w * in_blocks(left.pop(name + "_scale_inv")[1].astype(np.float64), w.shape)
        scale = left.pop(name + "_scale")[1].astype(np.float64)
        assert scale.shape == (w.shape[0], 1)
        return name, w * scale
    if name.endswith(".weight_packed"):
        form, scale = left.pop(stem + ".weight_scale")
        if kind == "U8":
            assert form == "U8"
            w = halves(x)
            return stem + ".weight", w * along(power(scale), w.shape[1])
        w = words(x) - 8
        assert list(left.pop(stem + ".weight_shape")[1]) == list(w.shape)
        return stem + ".weight", w * along(scale.astype(np.float64), w.shape[1])
    if name.endswith("_blocks"):
        w = halves(x)  # [E, rows, groups, 32]
        w = w * power(left.pop(name[:-7] + "_scales")[1])[..., None]
        return name[:-7], w.reshape(w.shape[0], w.shape[1], -1).transpose(0, 2, 1)
    return name, x


def dequantise(tensors):
    """name -> float32; integer tables stay as they are. Every tensor must be a weight or belong to one."""
    left, out = dict(tensors), {}
    for name in sorted(tensors, key=lambda k: (k.endswith(("_scale", "_scale_inv", "_scales", "_shape")), k)):
        if name in left:
            kind, x = left.pop(name)
            to, w = one(left, name, kind, x)
            out[to] = w if w.dtype in (np.int32, np.int64) else w.astype(np.float32)
            assert w.dtype != np.uint8 and np.isfinite(w).all(), name
    return out
