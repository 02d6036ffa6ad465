#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records what transformers makes of one conversation with pictures, in float32 on the CPU: every step that stage 4 of `day0 adapt` is held to.

usage: reference_conversation.py MODEL_DIR MESSAGES.json PICTURE... -o FILE [--answer N] [--pillow]
       reference_conversation.py MODEL_DIR --again OLD_FILE -o FILE          the conversation of an earlier recording

MESSAGES.json: [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "..."}]}], the n-th image part being the n-th PICTURE.
Written (docs/references.md, Pictures): token_ids with placeholders and N greedy tokens behind them, logits, places, features beside placeholders,
pixel_values, grids, the picture files, messages and rendered text. For models of the Qwen-VL kind. Needs torch, transformers and Pillow.
"""
import argparse
import io
import json
import os
import struct
import sys
import warnings

import numpy
import torch
import transformers
from PIL import Image, ImageOps
from transformers.utils.chat_template_utils import render_jinja_template

import tensors as files


def pictures(files):
    return [ImageOps.exif_transpose(Image.open(io.BytesIO(f))).convert("RGB") for f in files]


def recorded(path):
    """Messages and picture files of an earlier recording."""
    with open(path, "rb") as f:
        n, = struct.unpack("<Q", f.read(8))
        head, data = json.loads(f.read(n)), f.read()
    found = []
    while "picture.%d" % len(found) in head:
        begin, end = head["picture.%d" % len(found)]["data_offsets"]
        found.append(data[begin:end])
    return json.loads(head["__metadata__"]["messages"]), found


def given(path):
    with open(path, "rb") as f:
        return f.read()


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


def ids_of(directory, messages, grids, merge, token):
    """The rendered text, and its ids with as many placeholders as each picture gives rows."""
    template = read(os.path.join(directory, "chat_template.jinja"))
    rendered = render_jinja_template(conversations=[messages], chat_template=template, add_generation_prompt=True)[0][0]
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=os.path.join(directory, "tokenizer.json"))
    parts, text = rendered.split(token), ""
    if len(parts) != len(grids) + 1:
        sys.exit("%d markers in the rendered text, %d pictures" % (len(parts) - 1, len(grids)))
    for i, part in enumerate(parts):
        text += part
        if i < len(grids):
            t, h, w = grids[i]
            text += token * (t * h * w // merge ** 2)
    return rendered, tokenizer.encode(text, add_special_tokens=False), tokenizer


def run(model, ids, token_id, values, grids):
    kept = {}
    hook = model.model.visual.register_forward_hook(
        lambda module, args, out: kept.update(given=[out.pooler_output] + list(getattr(out, "deepstack_features", None) or [])))
    types = (ids == token_id).int()
    out = model(input_ids=ids, pixel_values=values, image_grid_thw=grids, mm_token_type_ids=types, use_cache=False)
    hook.remove()
    places = model.model.get_rope_index(ids, mm_token_type_ids=types, image_grid_thw=grids)[0][:, 0].T
    return out.logits[0].float(), [x.detach().float() for x in kept["given"]], places


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("model")
    ap.add_argument("messages", nargs="?")
    ap.add_argument("pictures", nargs="*")
    ap.add_argument("--again")
    ap.add_argument("-o", required=True)
    ap.add_argument("--answer", type=int, default=8)
    ap.add_argument("--pillow", action="store_true", help="the processor that needs no torchvision")
    a = ap.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    if not a.again and not a.pictures:
        ap.error("messages and pictures, or --again FILE")
    messages, asked = recorded(a.again) if a.again else (json.loads(read(a.messages)), [given(p) for p in a.pictures])
    with open(os.path.join(a.model, "preprocessor_config.json"), encoding="utf-8") as f:
        config = json.load(f)
    name = config.pop("image_processor_type")
    config.pop("processor_class", None)
    if a.pillow:
        name = name.replace("Fast", "") + "Pil"
    processor = (getattr(transformers, name, None) or getattr(transformers, name.replace("Fast", "")))(**config)
    made = processor(images=pictures(asked), return_tensors="pt")
    values, grids = made["pixel_values"].float(), made["image_grid_thw"]
    model = transformers.AutoModelForImageTextToText.from_pretrained(a.model, dtype=torch.float32, attn_implementation="eager")
    model.eval()
    token_id = model.config.image_token_id
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=os.path.join(a.model, "tokenizer.json"))
    token = tokenizer.convert_ids_to_tokens(token_id)
    rendered, ids, _ = ids_of(a.model, messages, grids.tolist(), model.config.vision_config.spatial_merge_size, token)
    n_prompt = len(ids)
    for _ in range(a.answer):
        logits, features, places = run(model, torch.tensor([ids]), token_id, values, grids)
        ids.append(int(logits[-1].argmax()))
    logits, features, places = run(model, torch.tensor([ids]), token_id, values, grids)
    out = {"token_ids": numpy.array(ids, dtype=numpy.int32), "logits": logits.numpy(), "places": places.float().contiguous().numpy(),
           "pixel_values": values.contiguous().numpy(), "grids": grids.int().numpy()}
    at = (torch.tensor(ids) == token_id).nonzero()[:, 0]
    for k, f in enumerate(features):
        rows = torch.zeros(len(ids), f.shape[1])
        rows[at] = f
        out["features.%d" % k] = rows.numpy()
    for i, picture in enumerate(asked):
        out["picture.%d" % i] = numpy.frombuffer(picture, dtype=numpy.uint8)
    meta = {"format": "day0-reference-1", "dtype": "float32", "greedy": "true", "prompt_tokens": str(n_prompt), "model": os.path.basename(os.path.abspath(a.model)),
            "messages": json.dumps(messages), "rendered": rendered,
            "producer": "transformers %s, torch %s" % (transformers.__version__, torch.__version__.split("+")[0])}
    files.write(a.o, out, meta)
    print("%d prompt tokens, %d rows, %d patches, %d KB" % (n_prompt, len(at), len(values), os.path.getsize(a.o) // 1000))


if __name__ == "__main__":
    main()
