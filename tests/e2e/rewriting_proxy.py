#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Stands before a server and spoils what passes, for channels.sh. Standard library only.

    rewriting_proxy.py PORT_FILE UPSTREAM_URL FAULT     fault: none, bgr (red and blue of PNGs), swapped (pictures), fewer (one prompt token a picture is not counted),
                                                        blind (pictures are one grey, and no log-probabilities are told of them), silent (and no usage),
                                                        partly (blind but for conversations that are a picture alone),
                                                        hanging (requests with pictures are not answered, and counted in PORT_FILE.hung)
"""
import base64
import json
import os
import sys
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from channels_model import bgr, grey

UPSTREAM, FAULT = sys.argv[2], sys.argv[3]


SPOILT = {"bgr": bgr, "blind": grey, "silent": grey, "partly": grey}


def images(body):
    for m in body.get("messages", []):
        if isinstance(m.get("content"), list):
            for part in m["content"]:
                if part.get("type") == "image_url":
                    yield part["image_url"]


def alone(body):
    return [part["type"] for m in body["messages"] for part in m["content"]] == ["image_url"]


def spoil_request(body):
    found = list(images(body))
    if FAULT == "partly" and found and alone(body):
        return 0
    if FAULT == "swapped":
        urls = [p["url"] for p in found][::-1]
        for p, url in zip(found, urls):
            p["url"] = url
    elif FAULT in SPOILT:
        for p in found:
            head, data = p["url"].split(",", 1)
            p["url"] = head + "," + base64.b64encode(SPOILT[FAULT](base64.b64decode(data))).decode()
    return len(found)


def spoil_answer(out, n):
    answer = json.loads(out)
    if FAULT == "fewer":
        answer["usage"]["prompt_tokens"] -= n
        answer["usage"]["total_tokens"] -= n
    if FAULT in ("blind", "silent", "partly"):
        answer["choices"][0]["logprobs"] = None
    if FAULT == "silent":
        del answer["usage"]
    return json.dumps(answer).encode()


class Proxy(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"

    def log_message(self, *args):
        pass

    def forward(self, data):
        n = 0
        if data and self.path == "/v1/chat/completions":
            try:
                body = json.loads(data)
                n = spoil_request(body)
                data = json.dumps(body).encode()
            except (ValueError, KeyError, AttributeError):
                pass
        if FAULT == "hanging" and n:
            with open(sys.argv[1] + ".hung", "a") as f:
                f.write(".")
            time.sleep(1000)
        request = urllib.request.Request(UPSTREAM + self.path, data=data, headers={"Content-Type": "application/json"} if data else {})
        try:
            with urllib.request.urlopen(request, timeout=100) as r:
                status, kind, out = r.status, r.headers.get("Content-Type", ""), r.read()
        except urllib.error.HTTPError as e:
            status, kind, out = e.code, e.headers.get("Content-Type", ""), e.read()
        if n and status == 200 and "json" in kind:
            out = spoil_answer(out, n)
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(out)))
        self.end_headers()
        self.wfile.write(out)

    def do_GET(self):
        self.forward(None)

    def do_POST(self):
        self.forward(self.rfile.read(int(self.headers.get("Content-Length", "0"))))


server = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
with open(sys.argv[1] + ".new", "w") as f:
    f.write("%d\n" % server.server_address[1])
os.rename(sys.argv[1] + ".new", sys.argv[1])
server.serve_forever()
