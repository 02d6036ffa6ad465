#!/usr/bin/env python3
"""Renders templates with jinja2 as transformers sets it up, for the tests of src/text/jinja_*.c.

usage: template_reference.py cases            tests/templates/cases.json from the templates in this file's list
       template_reference.py material DIR     tests/templates/material.json: hashes of what DIR's templates render
Offline; needs jinja2 and transformers (tools/venv.sh's environment has neither: make one of your own)."""
import datetime
import hashlib
import json
import os
import sys

import template_cases

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "..", "tests", "templates")
NOW = datetime.datetime(2025, 7, 10, 12, 0, 0)


class Fixed(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


def compile_template(text):
    from transformers.utils import chat_template_utils

    chat_template_utils.datetime = Fixed
    return chat_template_utils._compile_jinja_template(text)


def render(text, context):
    try:
        return compile_template(text).render(**json.loads(json.dumps(context)))
    except Exception as why:  # noqa: BLE001: whatever the reference raises is its answer
        return why


def cases():
    out = []
    for template, context in template_cases.cases():
        got = render(template, context)
        case = {"template": template}
        if context:
            case["context"] = context
        if isinstance(got, Exception):
            case["error"] = f"{type(got).__name__}: {got}"[:100]
        else:
            case["expected"] = got
        out.append(case)
    with open(os.path.join(OUT, "cases.json"), "w", encoding="utf-8") as f:
        f.write("[\n" + ",\n".join(json.dumps(c, ensure_ascii=False) for c in out) + "\n]\n")
    print(len(out), "cases,", sum("error" in c for c in out), "of them errors")


def material(root):
    conversations = template_cases.conversations()
    with open(os.path.join(OUT, "conversations.json"), "w", encoding="utf-8") as f:
        f.write("{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}"
                                   for k, v in conversations.items()) + "\n}\n")
    files = [os.path.join("jinja", n) for n in sorted(os.listdir(os.path.join(root, "jinja")))]
    files.append("smg/kimi_k25/chat_template.jinja")
    out = {}
    for name in files:
        with open(os.path.join(root, name), encoding="utf-8") as f:
            text = f.read()
        row = {}
        for key, context in conversations.items():
            got = render(text, context)
            row[key] = "error" if isinstance(got, Exception) else hashlib.sha256(got.encode()).hexdigest()[:16]
            if isinstance(got, Exception) and "-v" in sys.argv:
                print(name, key, type(got).__name__, str(got)[:100])
        out[name] = row
    with open(os.path.join(OUT, "material.json"), "w", encoding="utf-8") as f:
        f.write("{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in out.items()) + "\n}\n")
    errors = sum(v == "error" for row in out.values() for v in row.values())
    print(len(out), "templates,", len(conversations), "conversations,", errors, "errors")


if __name__ == "__main__":
    if sys.argv[1:2] == ["cases"]:
        cases()
    elif sys.argv[1:2] == ["material"] and len(sys.argv) > 2:
        material(sys.argv[2])
    else:
        sys.exit(__doc__)
