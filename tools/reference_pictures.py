#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records what transformers computes for the tiny models of tests/parity when their prompts hold pictures, in float32 on the CPU.

usage: reference_pictures.py [--build BUILD] [--out DIR] [FAMILY...]
For each family whose tiny/*.json names "pictures": grids of patches (or sizes of pictures that become tiles), and the numbers of text
tokens around them. Pixels are a pure function of seed and number, as in tests/parity/pictures.c. Recorded: ids, logits at all
positions, the places of all tokens (get_rope_index, where the family has it), and beside each placeholder the row that the tower gave
for it (features.0), with what is added to layers besides (features.1, ...). Before anything is written, other pixels must move the
logits. Needs torch and transformers.
"""
import os
import sys
import tempfile

import torch
import transformers

import reference
import tensors as files
import tiny as common


def canvases(rows, grids, patch):
    """Rows of patches, row by row of each picture, as pictures [3, height, width]."""
    out = []
    for t, h, w in grids.tolist():
        part, rows = rows[:t * h * w], rows[t * h * w:]
        out.append(part.reshape(h, w, -1, patch, patch).permute(2, 0, 3, 1, 4).reshape(-1, h * patch, w * patch))
    return out


class Qwen:
    """Rows of patches in blocks, two frames each; the tower merges and projects."""
    def __init__(self, model, want):
        v = model.config.vision_config
        self.model, self.merge, self.places = model, v.spatial_merge_size, True
        self.width = getattr(v, "in_channels", 3) * v.temporal_patch_size * v.patch_size ** 2
        self.grids = torch.tensor(want["grids"])

    def watch(self, keep):
        def given(module, args, out):
            keep([out.pooler_output] + list(getattr(out, "deepstack_features", None) or []))
        return self.model.model.visual.register_forward_hook(given).remove

    def feed(self, values, types):
        return {"pixel_values": values, "image_grid_thw": self.grids, "mm_token_type_ids": types}

    def rows(self, values):
        return [int(g.prod()) // self.merge ** 2 for g in self.grids]


class Tiles:
    """Pictures or tiles of one size; the rows of each are one run of placeholders."""
    def __init__(self, model, want):
        patch = model.config.vision_config.patch_size
        self.model, self.patch, self.places = model, patch if isinstance(patch, int) else patch[0], False
        self.width, self.grids = 3 * self.patch ** 2, torch.tensor(want.get("grids", []))

    def watch(self, keep):
        plain = self.model.model.get_image_features

        def wrapped(*args, **kwargs):
            out = plain(*args, **kwargs)
            keep([torch.cat([x.reshape(-1, x.shape[-1]) for x in out.pooler_output])])
            return out
        self.model.model.get_image_features = wrapped

        def undo():
            self.model.model.get_image_features = plain
        return undo

    def feed(self, values, types):
        return {"pixel_values": torch.stack(canvases(values, self.grids, self.patch))}

    def rows(self, values):
        return [len(x) for x in self.model.model.get_image_features(**self.feed(values, None)).pooler_output]


class Idefics(Tiles):
    """All tiles are those of one prompt."""
    def feed(self, values, types):
        return {"pixel_values": torch.stack(canvases(values, self.grids, self.patch))[None]}

    def rows(self, values):
        return [int(g.prod()) // self.model.config.scale_factor ** 2 for g in self.grids]


class LlavaNext(Tiles):
    """Sizes of pictures, each cut into tiles of the best of some canvases behind the whole."""
    def __init__(self, model, want):
        super().__init__(model, want)
        side = model.config.vision_config.image_size
        count = transformers.models.llava_next.modeling_llava_next.image_size_to_num_patches
        self.sizes = want["sizes"]
        self.tiles = [count(size, model.config.image_grid_pinpoints, side) for size in self.sizes]
        self.grids = torch.tensor([[1, side // self.patch, side // self.patch]] * sum(self.tiles))

    def feed(self, values, types):
        tiles = torch.stack(canvases(values, self.grids, self.patch)).split(self.tiles)
        full = [torch.cat([x, x.new_zeros(max(self.tiles) - len(x), *x.shape[1:])]) for x in tiles]
        return {"pixel_values": torch.stack(full), "image_sizes": torch.tensor(self.sizes)}


class Gemma(Tiles):
    """The tokens of each picture see each other (token_type_ids)."""
    def feed(self, values, types):
        return dict(super().feed(values, types), token_type_ids=types)

    def rows(self, values):
        return [self.model.config.mm_tokens_per_image] * len(self.grids)


class Pixtral(Tiles):
    """Pictures of any size, padded to the largest."""
    def feed(self, values, types):
        pictures = canvases(values, self.grids, self.patch)
        high, wide = max(x.shape[1] for x in pictures), max(x.shape[2] for x in pictures)
        padded = torch.stack([torch.nn.functional.pad(x, (0, wide - x.shape[2], 0, high - x.shape[1])) for x in pictures])
        return {"pixel_values": padded, "image_sizes": torch.tensor([x.shape[1:] for x in pictures])}


class Kimi(Tiles):
    """Patches row by row."""
    def feed(self, values, types):
        return {"pixel_values": values.reshape(-1, 3, self.patch, self.patch), "image_grid_thw": self.grids}

    def rows(self, values):
        merge = self.model.config.vision_config.merge_kernel_size
        return [int(g.prod()) // (merge[0] * merge[1]) for g in self.grids]


# By the type of the tower, else of the model.
KINDS = {"pixtral": Pixtral, "llava": Tiles, "llava_next": LlavaNext, "internvl": Tiles, "idefics3": Idefics, "smolvlm": Idefics, "gemma3": Gemma,
         "kimi_k25": Kimi}


def run(kind, ids, token, values):
    kept = []
    undo = kind.watch(lambda given: kept.append([x.detach().float() for x in given]))
    types = (ids == token).int()
    out = kind.model(input_ids=ids, use_cache=False, **kind.feed(values, types))
    undo()
    places = None
    if kind.places:
        places = kind.model.model.get_rope_index(ids, mm_token_type_ids=types, image_grid_thw=kind.grids)[0][:, 0].T
    return out.logits[0].float(), kept[-1], places


def record(a, family):
    tiny = common.read(family)
    want = tiny["pictures"]
    with tempfile.TemporaryDirectory() as top:
        base = os.path.join(top, "base")
        common.tool(a.build, "--write", family, base)
        reference.adapt(base, tiny)
        model = reference.load(base, tiny)
        token = model.config.image_token_id
        kind = KINDS.get(model.config.vision_config.model_type) or KINDS.get(model.config.model_type, Qwen)
        kind = kind(model, want)
        n = int(kind.grids.prod(1).sum())
        values = torch.tensor(common.pixels(n * kind.width, tiny["seed"])).reshape(n, kind.width)
        ids = torch.tensor([common.prompt_with_pictures(tiny, token, kind.rows(values))])
        logits, features, places = run(kind, ids, token, values)
        moved = reference.error(run(kind, ids, token, -values)[0], logits)
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
    a = common.arguments(__doc__).parse_args()
    reference.settle()
    for family in a.families or [f for f in common.families("reference.py") if common.read(f).get("pictures")]:
        record(a, family)


if __name__ == "__main__":
    main()
