#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records what transformers computes for the tiny models of tests/parity when their prompts hold pictures, in float32 on the CPU.

usage: reference_pictures.py [--build BUILD] [--out DIR] [FAMILY...]
For each family whose tiny/*.json names "pictures": grids of patches, and the numbers of text tokens around them. Pixels are a pure
function of seed and number, as in tests/parity/pictures.c. Recorded: ids, logits at all positions, the places of all tokens
(get_rope_index, where the family has it), and beside each placeholder the row that the tower gave for it (features.0), with what is added to layers besides
(features.1, ...). Before anything is written, other pixels must move the logits. Needs torch and transformers.
"""
import argparse
import os
import sys
import tempfile
import warnings

import torch
import transformers

import reference
import tensors as files
import tiny as common


def given(out):
    """What the tower gives to the text: rows, then those added to layers."""
    return [out.pooler_output] + list(getattr(out, "deepstack_features", None) or [])


def canvases(rows, grids, patch):
    """Rows of patches, row by row of each picture, as pictures [3, height, width]."""
    out = []
    for t, h, w in grids.tolist():
        part, rows = rows[:t * h * w], rows[t * h * w:]
        out.append(part.reshape(h, w, -1, patch, patch).permute(2, 0, 3, 1, 4).reshape(-1, h * patch, w * patch))
    return out


class Qwen:
    """Rows of patches in blocks, two frames each; the tower merges and projects."""
    def __init__(self, model):
        v = model.config.vision_config
        self.model, self.merge, self.places = model, v.spatial_merge_size, True
        self.width = getattr(v, "in_channels", 3) * v.temporal_patch_size * v.patch_size ** 2
        self.tower = model.model.visual

    def given(self, out):
        return given(out)

    def feed(self, values, grids, types):
        return {"pixel_values": values, "image_grid_thw": grids, "mm_token_type_ids": types}


class Pixtral:
    """Pictures of any size, padded to the largest; the projector gives the rows of all."""
    def __init__(self, model):
        self.model, self.patch, self.places = model, model.config.vision_config.patch_size, False
        self.merge = getattr(model.config, "spatial_merge_size", 1)
        self.width, self.tower = 3 * self.patch ** 2, model.model.multi_modal_projector

    def given(self, out):
        return [out.reshape(-1, out.shape[-1])]

    def feed(self, values, grids, types):
        pictures = canvases(values, grids, self.patch)
        high, wide = max(x.shape[1] for x in pictures), max(x.shape[2] for x in pictures)
        padded = torch.stack([torch.nn.functional.pad(x, (0, wide - x.shape[2], 0, high - x.shape[1])) for x in pictures])
        return {"pixel_values": padded, "image_sizes": torch.tensor([x.shape[1:] for x in pictures])}


class Gemma:
    """Pictures of one size; the tokens of each see each other (token_type_ids)."""
    def __init__(self, model):
        v = model.config.vision_config
        self.model, self.patch, self.places = model, v.patch_size, False
        self.merge = v.image_size // v.patch_size // int(model.config.mm_tokens_per_image ** 0.5)
        self.width, self.tower = 3 * self.patch ** 2, model.model.multi_modal_projector

    def given(self, out):
        return [out.reshape(-1, out.shape[-1])]

    def feed(self, values, grids, types):
        return {"pixel_values": torch.stack(canvases(values, grids, self.patch)), "token_type_ids": types}


class Kimi:
    """Patches row by row; the projector gives the rows of all."""
    def __init__(self, model):
        v = model.config.vision_config
        self.model, self.patch, self.places, self.merge = model, v.patch_size, False, v.merge_kernel_size[0]
        self.width, self.tower = 3 * self.patch ** 2, model.model.mm_projector

    def given(self, out):
        return [out.reshape(-1, out.shape[-1])]

    def feed(self, values, grids, types):
        return {"pixel_values": values.reshape(-1, 3, self.patch, self.patch), "image_grid_thw": grids}


KINDS = {"pixtral": Pixtral, "gemma3": Gemma, "kimi_k25": Kimi}  # by the type of the tower, else of the model


def run(kind, ids, token, values, grids):
    kept = {}
    undo = kind.tower.register_forward_hook(lambda module, args, out: kept.update(given=[x.detach().float() for x in kind.given(out)]))
    types = (ids == token).int()
    out = kind.model(input_ids=ids, use_cache=False, **kind.feed(values, grids, types))
    undo.remove()
    places = None
    if kind.places:
        places = kind.model.model.get_rope_index(ids, mm_token_type_ids=types, image_grid_thw=grids)[0][:, 0].T
    return out.logits[0].float(), kept["given"], places


def record(a, family):
    tiny = common.read(family)
    with tempfile.TemporaryDirectory() as top:
        base = os.path.join(top, "base")
        common.tool(a.build, "--write", family, base)
        reference.adapt(base, tiny)
        model = reference.load(base, tiny)
        token = model.config.image_token_id
        kind = KINDS.get(model.config.vision_config.model_type) or KINDS.get(model.config.model_type, Qwen)
        kind = kind(model)
        ids = torch.tensor([common.prompt_with_pictures(tiny, token, kind.merge)])
        grids = torch.tensor(tiny["pictures"]["grids"])
        n = int(grids.prod(1).sum())
        values = torch.tensor(common.pixels(n * kind.width, tiny["seed"])).reshape(n, kind.width)
        logits, features, places = run(kind, ids, token, values, grids)
        moved = reference.error(run(kind, ids, token, -values, grids)[0], logits)
    if moved < common.MOVES:
        sys.exit("%s: other pixels move the logits by %.1e only" % (family, moved))
    out = {"token_ids": ids[0].int(), "logits": logits}
    if places is not None:
        out["places"] = places.float()
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
