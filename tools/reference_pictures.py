#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records what transformers computes for the tiny models of tests/parity when their prompts hold pictures, in float32 on the CPU.

usage: reference_pictures.py [--build BUILD] [--out DIR] [FAMILY...]
For each family whose tiny/*.json names "pictures": grids of patches, and the numbers of text tokens around them. Pixels are a pure
function of seed and number, as in tests/parity/pictures.c. Recorded: ids, logits at all positions, the places of all tokens
(get_rope_index), and beside each placeholder the row that the tower gave for it (features.0), with what is added to layers besides
(features.1, ...). Before anything is written, other pixels must move the logits. Needs torch and transformers.
"""
import argparse
import os
import sys
import tempfile
import warnings

import numpy
import torch
import transformers

import reference
import tensors as files
import tiny as common


def pixels(n, width, seed):
    x, out = seed & 0xFFFFFFFF, numpy.empty(n * width, dtype=numpy.float32)
    for i in range(n * width):
        x = (x * 1103515245 + 12345) & 0x7FFFFFFF
        out[i] = numpy.float32(x >> 8) / numpy.float32(4194304) - numpy.float32(1)
    return torch.from_numpy(out.reshape(n, width))


def given(out):
    """What the tower gives to the text: rows, then those added to layers."""
    return [out.pooler_output] + list(getattr(out, "deepstack_features", None) or [])


def run(model, tower, ids, token, values, grids):
    kept = {}
    undo = tower.register_forward_hook(lambda module, args, out: kept.update(given=[x.detach().float() for x in given(out)]))
    types = (ids == token).int()
    out = model(input_ids=ids, pixel_values=values, image_grid_thw=grids, mm_token_type_ids=types, use_cache=False)
    undo.remove()
    places = model.model.get_rope_index(ids, mm_token_type_ids=types, image_grid_thw=grids)[0][:, 0].T
    return out.logits[0].float(), kept["given"], places


def record(a, family):
    tiny = common.read(family)
    want = tiny["pictures"]
    with tempfile.TemporaryDirectory() as top:
        base = os.path.join(top, "base")
        common.tool(a.build, "--write", family, base)
        reference.adapt(base, tiny)
        model = reference.load(base, tiny)
        config, token = model.config.vision_config, model.config.image_token_id
        merge = config.spatial_merge_size
        ids, text = [], common.prompt(tiny.get("ids_below", 100), sum(want["around"]), tiny["seed"])
        for i, n in enumerate(want["around"]):
            ids += [text.pop(0) for _ in range(n)]
            if i < len(want["grids"]):
                t, h, w = want["grids"][i]
                ids += [token] * (t * h * w // merge ** 2)
        ids = torch.tensor([ids])
        grids = torch.tensor(want["grids"])
        width = getattr(config, "in_channels", 3) * config.temporal_patch_size * config.patch_size ** 2
        values = pixels(int(grids.prod(1).sum()), width, tiny["seed"])
        logits, features, places = run(model, model.model.visual, ids, token, values, grids)
        moved = reference.error(run(model, model.model.visual, ids, token, -values, grids)[0], logits)
    if moved < common.MOVES:
        sys.exit("%s: other pixels move the logits by %.1e only" % (family, moved))
    out = {"token_ids": ids[0].int(), "logits": logits, "places": places.float()}
    at = (ids[0] == token).nonzero()[:, 0]
    for k, f in enumerate(features):
        rows = torch.zeros(ids.shape[1], f.shape[1])
        rows[at] = f
        out["features.%d" % k] = rows
    meta = {"format": "day0-reference-1", "dtype": "float32", "model": family,
            "producer": "transformers %s, torch %s" % (transformers.__version__, torch.__version__.split("+")[0])}
    path = os.path.join(a.out, family + ".pictures.safetensors")
    files.write(path, {k: v.contiguous().numpy() for k, v in out.items()}, meta)
    print("%s: %d tokens, %d patches, %d rows, %d given, other pixels %.1e, %d KB" % (
        family, ids.shape[1], len(values), len(at), len(features), moved, os.path.getsize(path) // 1000), flush=True)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("families", nargs="*")
    ap.add_argument("--build", default=os.path.join(common.ROOT, "build"))
    ap.add_argument("--out", default=os.path.join(common.TREE, "golden"))
    a = ap.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.set_grad_enabled(False)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    warnings.simplefilter("ignore")
    for family in a.families or [f for f in common.families("reference.py") if common.read(f).get("pictures")]:
        record(a, family)


if __name__ == "__main__":
    main()
