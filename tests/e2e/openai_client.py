#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: openai_client.py BASE_URL : the publisher's own client against the service. Prints TAP."""
import sys
from openai import OpenAI, BadRequestError, NotFoundError

n = 0


def check(what, good):
    global n
    n += 1
    print("%s %d - %s" % ("ok" if good else "not ok", n, what))


client = OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0)
model = client.models.list().data[0].id
check("models.list names the model", bool(model))
a = client.completions.create(model=model, prompt="Ada looks at", max_tokens=16, temperature=0)
check("completions.create answers", a.usage.completion_tokens >= 1 and len(a.choices[0].text) > 0)
pieces = list(client.completions.create(model=model, prompt="Ada looks at", max_tokens=16, temperature=0, stream=True))
check("its stream is the same text", "".join(p.choices[0].text for p in pieces if p.choices) == a.choices[0].text)
b = client.completions.create(model=model, prompt="Ada", max_tokens=12, temperature=1, seed=5)
c = client.completions.create(model=model, prompt="Ada", max_tokens=12, temperature=1, seed=5)
check("a seed repeats", b.choices[0].text == c.choices[0].text)
d = client.chat.completions.create(model=model, messages=[{"role": "user", "content": "What is on the table?"}], max_tokens=8)
check("chat.completions.create answers", d.choices[0].message.role == "assistant" and d.choices[0].finish_reason in ("stop", "length"))
text, usage = "", None
for p in client.chat.completions.create(model=model, messages=[{"role": "user", "content": "What is on the table?"}], max_tokens=8,
                                        temperature=0, stream=True, stream_options={"include_usage": True}):
    usage = p.usage or usage
    if p.choices:
        text += p.choices[0].delta.content or ""
check("chat streams, with usage", usage is not None and usage.completion_tokens <= 8)
l = client.completions.create(model=model, prompt="Ada looks", max_tokens=3, temperature=0, logprobs=2)
check("logprobs", len(l.choices[0].logprobs.token_logprobs) == len(l.choices[0].logprobs.tokens) >= 1)
try:
    client.completions.create(model="nobody", prompt="x")
    check("unknown model is 404", False)
except NotFoundError:
    check("unknown model is 404", True)
try:
    client.completions.create(model=model, prompt="x", max_tokens=10**6)
    check("too many tokens is 400", False)
except BadRequestError as e:
    check("too many tokens is 400", "context" in str(e))
print("1..%d" % n)
