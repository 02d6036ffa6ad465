#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Computes what tiny Kimi-K3 models make of pictures in NumPy, in float64, and records it as tools/reference_pictures.py does.

usage: reference_k3_pictures.py [--build BUILD] [--out DIR] [FAMILY...]
A second reading of the tower, from descriptions of the model alone: patches by a product without bias, places from a learned table that
is stretched between the centres of its cells, blocks with RMS norms whose queries and keys turn pair by pair, by the place across, down,
across, ..., attention within a picture, and a projector that joins squares of patches and norms what it gives. Before anything is written,
other pixels must move the logits.
"""
import math
import os
import sys
import tempfile

import numpy as np

import reference_k3 as text
import tensors as files
import tiny as common

EPS = 2.0 ** -7


class Tower:
    def __init__(self, directory, config):
        every = files.dequantise(files.read(os.path.join(directory, "model.safetensors")))
        self.tensors = {k: v for k, v in every.items() if k.startswith(("vision_tower.", "mm_projector."))}
        self.unread = set(self.tensors)
        self.v = config["vision_config"]

    def weight(self, name):
        self.unread.discard(name + ".weight")
        return self.tensors[name + ".weight"].astype(np.float64)

    def norm(self, x, name, eps=EPS):
        return text.rms(x, eps) * self.weight(name)

    def shares(self, at, size, cells):
        """Cells of one axis and their shares for place `at` of `size`."""
        where = (at + 0.5) * cells / size - 0.5
        low = math.floor(where)
        if self.v["pos_emb_interpolation_mode"] == "bilinear":
            taps = [(0, 1 - (where - low)), (1, where - low)]
        else:
            a, taps = -0.75, []
            for k in (-1, 0, 1, 2):
                d = abs(where - low - k)
                taps.append((k, ((a + 2) * d - (a + 3)) * d * d + 1 if d <= 1 else ((a * d - 5 * a) * d + 8 * a) * d - 4 * a))
        return [(min(max(low + k, 0), cells - 1), share) for k, share in taps]

    def places(self, h, w):
        table = self.weight("vision_tower.patch_embed.pos_emb")  # [down, across, width]
        out = np.zeros((h, w, table.shape[2]))
        for y in range(h):
            for x in range(w):
                for i, a in self.shares(y, h, table.shape[0]):
                    for j, b in self.shares(x, w, table.shape[1]):
                        out[y, x] += a * b * table[i, j]
        return out.reshape(h * w, -1)

    def turned(self, x, h, w):
        """x [patches, heads, dim]: pair j of a head by the place across where j is even, down where it is odd."""
        n, heads, dim = x.shape
        out = np.zeros_like(x)
        for p in range(n):
            for j in range(dim // 2):
                place = p % w if j % 2 == 0 else p // w
                angle = place * 10000.0 ** (-(j // 2) * 4 / dim)
                a, b = x[p, :, 2 * j], x[p, :, 2 * j + 1]
                out[p, :, 2 * j] = a * math.cos(angle) - b * math.sin(angle)
                out[p, :, 2 * j + 1] = a * math.sin(angle) + b * math.cos(angle)
        return out

    def block(self, x, at, h, w):
        heads = self.v["vt_num_attention_heads"]
        q, k, v = (part.reshape(len(x), heads, -1) for part in np.split(self.norm(x, at + ".norm0") @ self.weight(at + ".wqkv").T, 3, axis=1))
        q, k = self.turned(q, h, w), self.turned(k, h, w)
        o = np.zeros_like(q)
        for i in range(heads):
            o[:, i] = text.softmax(q[:, i] @ k[:, i].T * q.shape[2] ** -0.5) @ v[:, i]
        x = x + o.reshape(len(x), -1) @ self.weight(at + ".wo").T
        y = self.norm(x, at + ".norm1") @ self.weight(at + ".mlp.fc0").T
        y = 0.5 * y * (1 + np.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y ** 3)))
        return x + y @ self.weight(at + ".mlp.fc1").T

    def rows(self, patches, h, w):
        """One picture of h x w patches, row by row -> [rows, width of the text]."""
        proj = self.weight("vision_tower.patch_embed.proj")
        x = patches @ proj.reshape(proj.shape[0], -1).T + self.places(h, w)
        for i in range(self.v["vt_num_hidden_layers"]):
            x = self.block(x, "vision_tower.encoder.blocks.%d" % i, h, w)
        x = self.norm(x, "vision_tower.encoder.final_layernorm").reshape(h, w, -1)
        down, across = self.v["merge_kernel_size"]
        x = x.reshape(h // down, down, w // across, across, -1).transpose(0, 2, 1, 3, 4).reshape(h * w // (down * across), -1)
        x = x @ self.weight("mm_projector.proj.0").T
        x = 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
        x = x @ self.weight("mm_projector.proj.2").T
        return self.norm(x, "mm_projector.post_norm", self.v["projector_ln_eps"])


def run(model, tower, ids, token, values, grids):
    rows, first = [], 0
    for t, h, w in grids:
        rows.append(tower.rows(values[first:first + h * w], h, w))
        first += h * w
    rows = np.concatenate(rows)
    at = [i for i, x in enumerate(ids) if x == token]
    logits = model.forward(ids, {}, dict(zip(at, rows)))
    beside = np.zeros((len(ids), rows.shape[1]))
    beside[at] = rows
    return logits, beside


def record(a, family):
    tiny = common.read(family)
    with tempfile.TemporaryDirectory() as top:
        common.tool(a.build, "--write", family, top)
        model, tower = text.Model(top), Tower(top, tiny["config"])
        token, grids = tiny["config"]["media_placeholder_token_id"], tiny["pictures"]["grids"]
        (down, across), patch = tower.v["merge_kernel_size"], tower.v["patch_size"]
        ids = common.prompt_with_pictures(tiny, token, [t * h * w // (down * across) for t, h, w in grids])
        n = sum(t * h * w for t, h, w in grids)
        values = np.array(common.pixels(n * 3 * patch ** 2, tiny["seed"])).reshape(n, -1)
        moved = run(model, tower, ids, token, -values, grids)[0]
        model.margin = 1.0
        logits, beside = run(model, tower, ids, token, values, grids)
        moved = text.error(moved, logits)
        if tower.unread or model.unread or moved < common.MOVES or model.margin < common.MARGIN:
            sys.exit("%s: not read %s, other pixels move the logits by %.1e, a choice hangs on %.1e" % (
                family, sorted(tower.unread | model.unread)[:5], moved, model.margin))
    meta = {"format": "day0-reference-1", "dtype": "float32", "model": family, "producer": "numpy, tools/reference_k3_pictures.py"}
    path = os.path.join(a.out, family + ".pictures.safetensors")
    files.write(path, {"token_ids": np.array(ids, dtype=np.int32), "logits": logits.astype(np.float32),
                       "features.0": beside.astype(np.float32)}, meta)
    print("%s: %d tokens, %d patches, other pixels %.1e, margin %.0e, %d KB" % (
        family, len(ids), n, moved, model.margin, os.path.getsize(path) // 1000), flush=True)


def main():
    a = common.arguments(__doc__).parse_args()
    for family in a.families or [f for f in common.families("reference_k3.py") if common.read(f).get("pictures")]:
        record(a, family)


if __name__ == "__main__":
    main()
