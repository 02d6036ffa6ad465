#!/usr/bin/env python3
"""What transformers' processors make of prompts with pictures, for tests/unit/test_placeholders.c.

usage: placeholder_reference.py        writes tests/golden/placeholders_tokenizer.json and tests/golden/placeholders.json

One small tokenizer (bytes, a few merges, the special tokens of all families) and the processors of tests/images/processors. A
case: a model of tests/parity/tiny, the directory of its processor, messages whose pictures are only sizes, the ids as pairs of an id and
how often it comes. Kimi-K3 is not in transformers: its block is written out here from the release's description.

Needs transformers 5.24, torch, torchvision and Pillow 12.2 or 12.3 (PyPI); offline, when the tests' data is to be made anew.
"""
import json
import os
import sys

from jinja2 import Environment
from PIL import Image
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
import transformers
from transformers import PreTrainedTokenizerFast

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import processor_reference  # noqa: E402

TESTS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tests")
MERGES = ["Ċ Ċ", "ĊĊ Ċ", "ĊĊ ĊĊ", "h e", "Ġ i", "Ġi m", "a n", "Ġ a", "i s", "Ġ Ġ"]
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>", "<image>", "<IMG_CONTEXT>", "<img>", "</img>",
           "<video>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>", "<start_of_image>", "<image_soft_token>", "<end_of_image>", "[IMG]",
           "[IMG_BREAK]", "[IMG_END]", "<|media_begin|>", "<|media_content|>", "<|media_pad|>", "<|media_end|>",
           "<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"]
SPECIAL += ["<row_%d_col_%d>" % (r, c) for r in range(1, 7) for c in range(1, 7)]
TEMPLATE = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
            "{% if p.type == 'image' %}MARKER{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
# The processor passes values of its own for these, whatever the directory says.
PAN = {"do_pan_and_scan": True, "pan_and_scan_min_crop_size": 60, "pan_and_scan_max_num_crops": 4, "pan_and_scan_min_ratio_to_activate": 1.2}
# model of tests/parity/tiny, directory, processor, marker, special tokens by name, arguments of the call
FAMILIES = [
    ("qwen2_vl", "qwen_2", "Qwen2VLProcessor", "<|vision_start|><|image_pad|><|vision_end|>", {"image_token": "<|image_pad|>", "video_token": "<|video_pad|>"}, {}),
    ("qwen2_5_vl", "qwen_2", "Qwen2_5_VLProcessor", "<|vision_start|><|image_pad|><|vision_end|>", {"image_token": "<|image_pad|>", "video_token": "<|video_pad|>"}, {}),
    ("qwen3_vl", "qwen_3", "Qwen3VLProcessor", "<|vision_start|><|image_pad|><|vision_end|>", {"image_token": "<|image_pad|>", "video_token": "<|video_pad|>"}, {}),
    ("qwen3_5", "qwen_3", "Qwen3VLProcessor", "<|vision_start|><|image_pad|><|vision_end|>", {"image_token": "<|image_pad|>", "video_token": "<|video_pad|>"}, {}),
    ("llava", "llava_15", "LlavaProcessor", "<image>", {}, {}),
    ("llava_next", "llavanext_16", "LlavaNextProcessor", "<image>\n", {}, {}),
    ("pixtral", "pixtral_12b", "PixtralProcessor", "[IMG]", {}, {}),
    ("mistral3", "pixtral_merge", "PixtralProcessor", "[IMG]", {}, {}),
    ("internvl", "internvl_hf", "InternVLProcessor", "<IMG_CONTEXT>\n", {"start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>", "video_token": "<video>"}, {}),
    ("idefics3", "idefics_3", "Idefics3Processor", "<image>", {}, {}),
    ("smolvlm", "idefics_whole", "SmolVLMProcessor", "<image>", {}, {}),
    ("gemma3", "gemma_3", "Gemma3Processor", "<start_of_image>", {"image_token": "<image_soft_token>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"}, {}),
    ("gemma3", "gemma_pan", "Gemma3Processor", "<start_of_image>", {"image_token": "<image_soft_token>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"}, PAN),
    ("kimi_k25", "kimi_hf", "Kimi_K25Processor", "<|media_begin|>image<|media_content|><|media_pad|><|media_end|>", {}, {}),
    ("kimi_k3", "kimi_k25", None, None, {}, {}),
]


def image(w, h):
    return {"type": "image", "image": "%dx%d" % (w, h)}


def text(t):
    return {"type": "text", "text": t}


def user(*parts):
    return {"role": "user", "content": list(parts)}


MESSAGES = [
    [user(image(37, 23), text("What is this image?"))],
    [user(image(211, 307))],
    [user(text("the"), image(400, 301), text("\n\nand"), image(64, 64), text("\n"), image(300, 120), text(" the same"))],
    [user(image(250, 100), text("\nthe")), {"role": "assistant", "content": "an image"}, user(text("  an"), image(97, 589))],
]


def make_tokenizer():
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {c: i for i, c in enumerate(alphabet)}
    merges = [tuple(m.split(" ")) for m in MERGES]
    for a, b in merges:
        vocab[a + b] = len(vocab)
    t = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens([AddedToken(s, normalized=False, special=True) for s in SPECIAL])
    return t


def render(marker, messages):
    env = Environment(trim_blocks=True, lstrip_blocks=True)
    return env.from_string(TEMPLATE.replace("MARKER", marker)).render(messages=messages, add_generation_prompt=True)


def sizes(messages):
    return [[int(v) for v in p["image"].split("x")] for m in messages if isinstance(m["content"], list) for p in m["content"] if p["type"] == "image"]


def runs(ids):
    out = []
    for i in ids:
        if out and out[-1][0] == i:
            out[-1][1] += 1
        else:
            out.append([i, 1])
    return out


def read(directory, name):
    path = os.path.join(TESTS, "images", "processors", directory, name)
    return json.load(open(path)) if os.path.exists(path) else {}


def open_processor(directory, kind, tokens):
    pre, proc = read(directory, "preprocessor_config.json"), read(directory, "processor_config.json")
    tok = PreTrainedTokenizerFast(tokenizer_object=make_tokenizer(), extra_special_tokens=tokens)
    name = pre["image_processor_type"].removesuffix("Fast")
    images = getattr(transformers, name)(**{k: v for k, v in pre.items() if k != "image_processor_type"})
    more = {k: v for k, v in proc.items() if k != "processor_class"}
    if kind == "SmolVLMProcessor":
        sys.modules["transformers.models.smolvlm.processing_smolvlm"].num2words = str
    videos = {"Qwen2VLProcessor": "Qwen2VLVideoProcessor", "Qwen2_5_VLProcessor": "Qwen2VLVideoProcessor", "Qwen3VLProcessor": "Qwen3VLVideoProcessor",
              "InternVLProcessor": "InternVLVideoProcessor", "SmolVLMProcessor": "SmolVLMVideoProcessor", "Kimi_K25Processor": "Kimi_K25VideoProcessor"}.get(kind)
    if videos:
        more["video_processor"] = getattr(transformers, videos)()
    return getattr(transformers, kind)(image_processor=images, tokenizer=tok, **more), tok


def k3(messages, cfg):
    """The release's own encoding: text and blocks of pictures, each tokenized by itself; here with the segments of the chat function."""
    tok, ids = make_tokenizer(), []
    for w, h in sizes(messages):
        im = Image.new("RGB", (w, h))
        n = processor_reference.navit(im, cfg)[2]
        ids.append(tok.encode("<|media_begin|>image %dx%d<|media_content|>%s<|media_end|>" % (w, h, "<|media_pad|>" * n), add_special_tokens=False).ids)
    return ids


def main():
    golden = os.path.join(TESTS, "golden")
    make_tokenizer().save(os.path.join(golden, "placeholders_tokenizer.json"))
    cases = []
    for family, directory, kind, marker, tokens, arguments in FAMILIES:
        if kind is None:
            for messages in MESSAGES:
                blocks = k3(messages, read(directory, "preprocessor_config.json")["media_proc_cfg"])
                cases.append({"family": family, "directory": directory, "messages": messages, "blocks": [runs(b) for b in blocks]})
            continue
        if kind == "SmolVLMProcessor":
            import transformers.models.smolvlm.processing_smolvlm  # noqa: F401
        processor, tok = open_processor(directory, kind, tokens)
        for messages in MESSAGES:
            pictures = [Image.new("RGB", tuple(s), (90, 120, 30)) for s in sizes(messages)]
            written = render(marker, messages)
            got = processor(text=[written], images=[pictures] if "Idefics" in kind or "Smol" in kind or "Gemma" in kind else pictures, add_special_tokens=False, **arguments)
            ids = got["input_ids"][0]
            ids = ids.tolist() if hasattr(ids, "tolist") else list(ids)
            cases.append({"family": family, "directory": directory, "marker": marker, "messages": messages, "ids": runs(ids)})
        print(family, directory, len(ids), file=sys.stderr)
    with open(os.path.join(golden, "placeholders.json"), "w", encoding="utf-8") as f:
        f.write('{"template": %s, "cases": [\n' % json.dumps(TEMPLATE))
        f.write(",\n".join(json.dumps(c, ensure_ascii=False, separators=(",", ":")) for c in cases))
        f.write("\n]}\n")


if __name__ == "__main__":
    main()
