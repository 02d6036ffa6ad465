#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds the model in demo/ against questions that it was never asked, greedy: with transformers and its own processor in float32, or
through a service that has the model (day0 serve DEMO/model).

usage: eval_demo.py DEMO [--each N] [--text N] [--write]
       eval_demo.py DEMO --url URL [--each N] [--text N] [--draws N]
Three figures over the same questions: with their pictures, with grey pictures of the same size, and the answer that is right most often. Then
questions about texts. --write makes DEMO/pictures and DEMO/questions.json anew: two dozen of such questions that ship with the
model, chosen by shipped() alone, whatever their answers. --draws N asks N further sets that the same rule gives from other seeds.
Needs numpy; without --url torch, torchvision, transformers and Pillow, too.
"""
import argparse
import base64
import collections
import json
import os
import shutil
import urllib.request

import numpy

import demo_data as data

SEED = 5 * 10 ** 9  # beyond all seeds of training
SHIPPED = 24


class Model:
    def __init__(self, directory, threads):
        import torch
        import transformers
        torch.set_num_threads(threads)
        transformers.logging.set_verbosity_error()
        self.model = transformers.AutoModelForImageTextToText.from_pretrained(directory, dtype=torch.float32).eval()
        self.processor = transformers.AutoProcessor.from_pretrained(directory)
        self.from_numpy = torch.from_numpy

    def inputs(self, pixels, question):
        content = [{"type": "image"}] if pixels is not None else []
        text = self.processor.apply_chat_template([{"role": "user", "content": content + [{"type": "text", "text": question}]}],
                                                  add_generation_prompt=True, tokenize=False)
        images = None if pixels is None else [self.from_numpy(pixels).permute(2, 0, 1)]
        return self.processor(text=[text], images=images, return_tensors="pt")

    def answer(self, pixels, question, n=8):
        x = self.inputs(pixels, question)
        out = self.model.generate(**x, max_new_tokens=n, do_sample=False)[0, x["input_ids"].shape[1]:]
        return self.processor.decode(out, skip_special_tokens=True).strip()


class Service:
    """The same through a server of OpenAI's format: the picture is a PNG in the message."""

    def __init__(self, url):
        self.url = url.rstrip("/") + "/v1"
        with urllib.request.urlopen(self.url + "/models") as answer:
            self.name = json.load(answer)["data"][0]["id"]

    def answer(self, pixels, question, n=8):
        content = [{"type": "text", "text": question}]
        if pixels is not None:
            url = "data:image/png;base64," + base64.b64encode(data.png(pixels)).decode()
            content.insert(0, {"type": "image_url", "image_url": {"url": url}})
        body = {"model": self.name, "messages": [{"role": "user", "content": content}], "max_tokens": n, "temperature": 0}
        ask = urllib.request.Request(self.url + "/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(ask) as answer:
            return json.load(answer)["choices"][0]["message"]["content"].strip()


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


def shipped(draw=0):
    """The two dozen questions that ship (draw 0), and what else the rule would have given."""
    return data.held_out_questions(SEED + (1 + draw) * 10 ** 6, SHIPPED // 8, noise=False)


def as_ruled(demo):
    """How many of the pictures and questions in DEMO are what the rule gives, byte for byte."""
    with open(os.path.join(demo, "questions.json")) as f:
        listed = json.load(f)["questions"]
    same = 0
    for (scene, kind, question, answer), there in zip(shipped(), listed, strict=True):
        with open(os.path.join(demo, there["picture"]), "rb") as f:
            same += f.read() == data.png(scene.pixels) and (kind, question, answer) == (there["kind"], there["question"], there["answer"])
    return same


def draws(model, n):
    """Right answers of further draws of the rule: the shipped ones may have been lucky."""
    return [sum(model.answer(scene.pixels, question) == answer for scene, _, question, answer in shipped(k)) for k in range(1, n + 1)]


def ship(a, model):
    folder = os.path.join(a.demo, "pictures")
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    listed = []
    for i, (scene, kind, question, answer) in enumerate(shipped()):
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
    ap.add_argument("--url")
    ap.add_argument("--draws", type=int, default=0)
    a = ap.parse_args()
    if a.write and a.url:
        ap.error("--write takes transformers, not --url: prompt_tokens are those of its processor")
    model = Service(a.url) if a.url else Model(os.path.join(a.demo, "model"), a.threads)
    if a.write:
        ship(a, model)
    print("shipped as ruled:  " + share(as_ruled(a.demo), SHIPPED))
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
    if a.draws:
        right = draws(model, a.draws)
        print("further draws:     " + share(sum(right), SHIPPED * a.draws) + "; right of each: " + " ".join(map(str, sorted(right))))
    print("\n".join(wrong[:10]))


if __name__ == "__main__":
    main()
