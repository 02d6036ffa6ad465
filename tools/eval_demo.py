#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds the model in demo/ against questions that it was never asked: with transformers, its own processor, greedy, in float32.

usage: eval_demo.py DEMO [--each N] [--text N] [--write]
Three figures over the same questions: with their pictures, with grey pictures of the same size, and the answer that is right most often. Then
questions about texts. --write makes DEMO/pictures and DEMO/questions.json anew: two dozen of such questions that ship with the
model. Needs torch, torchvision, transformers and Pillow.
"""
import argparse
import collections
import json
import os
import shutil

import numpy
import torch
import transformers

import demo_data as data

SEED = 5 * 10 ** 9  # beyond all seeds of training
SHIPPED = 24


class Model:
    def __init__(self, directory):
        self.model = transformers.AutoModelForImageTextToText.from_pretrained(directory, dtype=torch.float32).eval()
        self.processor = transformers.AutoProcessor.from_pretrained(directory)

    def inputs(self, pixels, question):
        content = [{"type": "image"}] if pixels is not None else []
        text = self.processor.apply_chat_template([{"role": "user", "content": content + [{"type": "text", "text": question}]}],
                                                  add_generation_prompt=True, tokenize=False)
        images = None if pixels is None else [torch.from_numpy(pixels).permute(2, 0, 1)]
        return self.processor(text=[text], images=images, return_tensors="pt")

    def answer(self, pixels, question, n=8):
        x = self.inputs(pixels, question)
        out = self.model.generate(**x, max_new_tokens=n, do_sample=False)[0, x["input_ids"].shape[1]:]
        return self.processor.decode(out, skip_special_tokens=True).strip()


def texts(model, n):
    """The first question of a text, in a chat."""
    right = 0
    for i in range(n):
        text = data.document(SEED + i)
        at = text.index("?") + 1
        want = text[at:].strip().split(".")[0] + "."
        right += model.answer(None, text[:at], 12) == want
    return right


def share(right, n):
    return "%d of %d (%.1f %%)" % (right, n, 100 * right / n)


def ship(a, model):
    folder = os.path.join(a.demo, "pictures")
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    listed = []
    asked = data.held_out_questions(SEED + 10 ** 6, SHIPPED // 8, noise=False)
    for i, (scene, kind, question, answer) in enumerate(asked):
        name = "q%02d.png" % (i + 1)
        with open(os.path.join(folder, name), "wb") as f:
            f.write(data.png(scene.pixels))
        listed.append({"picture": "pictures/" + name, "question": question, "answer": answer, "kind": kind,
                       "prompt_tokens": model.inputs(scene.pixels, question)["input_ids"].shape[1]})
    with open(os.path.join(a.demo, "questions.json"), "w") as f:
        f.write('{"at_least": 0.85, "questions": [\n' + ",\n".join(json.dumps(q) for q in listed) + "\n]}\n")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("demo")
    ap.add_argument("--each", type=int, default=60)
    ap.add_argument("--text", type=int, default=150)
    ap.add_argument("--threads", type=int, default=1)
    ap.add_argument("--write", action="store_true")
    a = ap.parse_args()
    torch.set_num_threads(a.threads)
    transformers.logging.set_verbosity_error()
    model = Model(os.path.join(a.demo, "model"))
    if a.write:
        ship(a, model)
    asked = data.held_out_questions(SEED, a.each)
    right, grey, wrong = collections.Counter(), collections.Counter(), []
    for scene, kind, question, answer in asked:
        got = model.answer(scene.pixels, question)
        right[kind] += got == answer
        grey[kind] += model.answer(numpy.full_like(scene.pixels, 128), question) == answer
        if got != answer:
            wrong.append("%s %s, not %s" % (question, got, answer))
    n, kinds = len(asked), collections.Counter(x[1] for x in asked)
    most, often = collections.Counter(x[3] for x in asked).most_common(1)[0]
    print("with the picture:  " + share(sum(right.values()), n))
    print("with a grey one:   " + share(sum(grey.values()), n))
    print("always \"%s\": " % most + share(often, n))
    for k in data.KINDS:
        best = collections.Counter(x[3] for x in asked if x[1] == k).most_common(1)[0]
        print("  %-9s %s; grey %s; always \"%s\" %s" % (k, share(right[k], kinds[k]), share(grey[k], kinds[k]), best[0],
                                                       share(best[1], kinds[k])))
    print("texts:             " + share(texts(model, a.text), a.text))
    print("\n".join(wrong[:10]))


if __name__ == "__main__":
    main()
