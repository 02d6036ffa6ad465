#!/usr/bin/env python3
"""What transformers' image processors make of pictures, for tests/images/processors.

usage: processor_reference.py record DIR    reads DIR/NAME/ (preprocessor_config.json, processor_config.json, config.json),
                                            writes DIR/NAME.tsv

Lines: backend, picture (a file of tests/images, or WIDTHxHEIGHT as pixels() of image_reference.py makes it), shape, grid or "-",
placeholders, SHA-256 of the float32 values, then five values as hexadecimal floats; "refused" where the processor raises.
NAME starts with the processor's rule (see CASES). Kimi's own releases are not in transformers: their arithmetic is written
out here from the releases' description (Pillow, then (x / 255 - mean) / std).

Needs transformers 5.24, torch, torchvision and Pillow 12.2 or 12.3 (PyPI); offline, when the tests' data is to be made anew.
"""
import hashlib
import io
import json
import math
import os
import sys

import numpy as np
from PIL import Image, ImageOps

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import image_reference  # noqa: E402

SIZES = ["1x1", "1x37", "41x1", "37x23", "97x89", "64x64", "31x17", "300x20", "20x199", "211x307", "400x301", "53x640", "450x449", "1000x31", "337x336", "211x1", "1x205", "250x100"]
FILES = ["rgba.png", "grey.jpg", "grey_alpha.png", "palette_8.png", "cmyk.jpg"] + [f"exif_{i}.jpg" for i in range(1, 9)]


def picture(name, folder, white):
    if "." in name:
        with open(os.path.join(folder, name), "rb") as f:
            im = Image.open(io.BytesIO(f.read()))
        im.load()
        im = ImageOps.exif_transpose(im)
        if not white:
            return Image.frombytes("RGB", im.size, im.convert("RGB").tobytes())  # without a transparent colour, which would be laid over white
        ground = Image.new("RGBA", im.size, (255, 255, 255, 255))
        ground.alpha_composite(im.convert("RGBA"))
        return ground.convert("RGB")
    w, h = map(int, name.split("x"))
    return image_reference.picture("RGB", w, h, (w * 7 + h) % 97)


def navit(im, cfg):
    """Kimi's release, in NumPy and Pillow."""
    p, k, side = cfg["patch_size"], cfg["merge_kernel_size"], cfg["patch_limit_on_one_side"]
    w, h = im.size
    s = min(1.0, math.sqrt(cfg["in_patch_limit"] / (max(1.0, w // p) * max(1.0, h // p))), side * p / w, side * p / h)
    to_w, to_h = (min(max(1, int(v * s)), side * p) for v in (w, h))
    x = np.asarray(im.resize((to_w, to_h), Image.Resampling.BICUBIC))
    f = p * k
    x = np.pad(x, ((0, -to_h % f), (0, -to_w % f), (0, 0)))
    x = (x / 255.0).astype(np.float32)
    x -= np.array(cfg["image_mean"], np.float32)
    x *= 1.0 / np.array(cfg["image_std"], np.float32)
    gh, gw = x.shape[0] // p, x.shape[1] // p
    return x.reshape(gh, p, gw, p, 3).transpose(0, 2, 4, 1, 3).reshape(-1, 3, p, p), [1, gh, gw], gh * gw // k // k


def internvl(im, config, pre):
    """InternVL's release: dynamic_preprocess and the transform of its model card."""
    n, m, side = config["min_dynamic_patch"], config["max_dynamic_patch"], config["force_image_size"]
    w, h = im.size
    best, diff = (1, 1), math.inf
    ratios = sorted({(i, j) for k in range(n, m + 1) for i in range(1, k + 1) for j in range(1, k + 1) if n <= i * j <= m}, key=lambda r: (r[0] * r[1], r))
    for r in ratios:
        d = abs(w / h - r[0] / r[1])
        if d < diff or (d == diff and w * h > 0.5 * side * side * r[0] * r[1]):
            best, diff = r, d
    big = im.resize((side * best[0], side * best[1]))
    tiles = [big.crop((c * side, r * side, (c + 1) * side, (r + 1) * side)) for r in range(best[1]) for c in range(best[0])]
    if config["use_thumbnail"] and len(tiles) > 1:
        tiles.append(im.resize((side, side)))
    x = np.stack([np.asarray(t).transpose(2, 0, 1) for t in tiles]).astype(np.float32) / np.float32(255)
    mean, std = (np.array(pre[k], np.float32).reshape(1, 3, 1, 1) for k in ("image_mean", "image_std"))
    return (x - mean) / std, None, len(tiles) * int((side // config["vision_config"]["patch_size"]) ** 2 * config["downsample_ratio"] ** 2)


def tokens(rule, processor, im, out, proc, config):
    """Placeholders by the processors' own functions, or by the line that expands them."""
    from types import SimpleNamespace
    w, h = im.size
    if rule in ("qwen", "kimi"):
        return int(np.prod(out["image_grid_thw"][0])) // processor.merge_size**2
    if rule == "llava":
        side = out["pixel_values"].shape[-2:]
        return (side[0] // proc["patch_size"]) * (side[1] // proc["patch_size"]) + proc["num_additional_image_tokens"] - (proc["vision_feature_select_strategy"] == "default")
    if rule == "llavanext":
        from transformers.models.llava_next.processing_llava_next import LlavaNextProcessor as P
        me = SimpleNamespace(image_processor=processor, patch_size=proc["patch_size"], num_additional_image_tokens=proc["num_additional_image_tokens"])
        me._get_unpadded_features = lambda *a: P._get_unpadded_features(me, *a)
        side = out["pixel_values"].shape[-2:]
        return P._get_number_of_features(me, h, w, *side) - (proc["vision_feature_select_strategy"] == "default")
    if rule == "pixtral":
        p = proc["patch_size"] * proc["spatial_merge_size"]
        return int(out["image_sizes"][0][0] // p * (out["image_sizes"][0][1] // p))
    if rule in ("gemma", "internvl"):
        return out["pixel_values"].shape[0] * proc["image_seq_length"]
    if rule == "idefics":
        return out["pixel_values"].shape[1] * proc["image_seq_len"]
    return 0


def line(backend, name, values, grid, n):
    values = np.ascontiguousarray(values, dtype=np.float32)
    flat = values.reshape(-1)
    few = [float(flat[(len(flat) - 1) * i // 4]).hex() for i in range(5)]
    return [backend, name, "x".join(map(str, values.shape)), "x".join(map(str, grid)) if grid else "-", n, hashlib.sha256(flat.tobytes()).hexdigest(), *few]


def call_arguments(rule):
    return {"gemma": {}, "internvl": {"crop_to_patches": True}}.get(rule, {})


def record(folder, name, out):
    def read(what):
        path = os.path.join(folder, name, what)
        return json.load(open(path)) if os.path.exists(path) else None

    pre, proc, config = read("preprocessor_config.json"), read("processor_config.json"), read("config.json")
    rule, images = name.split("_")[0], os.path.dirname(os.path.abspath(folder))
    settings = (proc or {}).get("image_processor") or pre
    for backend in ("pillow", "torchvision"):
        own = "media_proc_cfg" in settings or (config or {}).get("model_type") == "internvl_chat"
        if own and backend == "torchvision":
            continue
        processor = None
        if not own:
            import transformers
            kind = settings.get("image_processor_type", "CLIPImageProcessor").removesuffix("Fast") + ("Pil" if backend == "pillow" else "")
            if kind == "Kimi_K25ImageProcessorPil":
                continue
            processor = getattr(transformers, kind)(**{k: v for k, v in settings.items() if k not in ("image_processor_type", "feature_extractor_type")})
            if rule == "pixtral":
                processor.patch_size = {"height": proc["patch_size"] * proc["spatial_merge_size"]} | {"width": proc["patch_size"] * proc["spatial_merge_size"]}
        for what in SIZES + FILES:
            im = picture(what, images, rule == "idefics")
            try:
                if own and rule == "kimi":
                    values, grid, n = navit(im, settings["media_proc_cfg"])
                elif own:
                    values, grid, n = internvl(im, config, pre)
                else:
                    got = processor(im, return_tensors="np", **call_arguments(rule))
                    grid = [int(v) for v in got["image_grid_thw"][0]] if "image_grid_thw" in got else None
                    n = tokens(rule, processor, im, got, proc or {}, config or {})
                    values = got["pixel_values"]
                    values = values[0] if rule in ("idefics", "llavanext") else values
                print(*line(backend, what, values, grid, n), sep="\t", file=out)
            except Exception as why:  # whatever a processor refuses with
                print(backend, what, "refused", type(why).__name__, sep="\t", file=out)
                print(name, backend, what, str(why)[:100], file=sys.stderr)


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] != "record":
        sys.exit(__doc__)
    for one in sys.argv[3:] or sorted(d for d in os.listdir(sys.argv[2]) if os.path.isdir(os.path.join(sys.argv[2], d))):
        with open(os.path.join(sys.argv[2], one + ".tsv"), "w") as f:
            record(sys.argv[2], one, f)
