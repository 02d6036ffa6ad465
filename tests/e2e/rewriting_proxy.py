#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Stands before a server and spoils what passes, for channels.sh. Standard library only.

    rewriting_proxy.py PORT_FILE UPSTREAM_URL FAULT     fault: none, bgr (red and blue of PNGs), swapped (pictures), fewer (one prompt token a picture is not counted),
                                                        blind (pictures are one grey, and no log-probabilities are told of them), silent (and no usage),
                                                        hanging (requests with pictures are not answered, and counted in PORT_FILE.hung)
"""
import base64
import json
import os
import struct
import sys
import time
import urllib.error
import urllib.request
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

UPSTREAM, FAULT = sys.argv[2], sys.argv[3]


def chunks(png):
    at = 8
    while at < len(png):
        n, = struct.unpack(">I", png[at:at + 4])
        yield png[at + 4:at + 8], png[at + 8:at + 8 + n]
        at += 12 + n


def bgr(png):
    """8 bits, RGB, rows without filters: as stage 4 makes them."""
    return spoil_pixels(png, False)


def grey(png):
    """The same size and one colour, whatever was there."""
    return spoil_pixels(png, True)


def spoil_pixels(png, grey):
    parts = list(chunks(png))
    width, height, depth, colour = struct.unpack(">IIBB", parts[0][1][:10])
    raw = bytearray(zlib.decompress(b"".join(d for t, d in parts if t == b"IDAT")))
    assert depth == 8 and colour == 2
    for y in range(height):
        row = y * (1 + 3 * width)
        assert raw[row] == 0
        if grey:
            raw[row + 1:row + 1 + 3 * width] = b"\x80" * (3 * width)
            continue
        a, b = raw[row + 1:row + 1 + 3 * width:3], raw[row + 3:row + 1 + 3 * width:3]
        raw[row + 1:row + 1 + 3 * width:3], raw[row + 3:row + 1 + 3 * width:3] = b, a

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return png[:8] + chunk(b"IHDR", parts[0][1]) + chunk(b"IDAT", zlib.compress(bytes(raw))) + chunk(b"IEND", b"")


SPOILT = {"bgr": bgr, "blind": grey, "silent": grey}


def images(body):
    for m in body.get("messages", []):
        if isinstance(m.get("content"), list):
            for part in m["content"]:
                if part.get("type") == "image_url":
                    yield part["image_url"]


def spoil_request(body):
    found = list(images(body))
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
    if FAULT in ("blind", "silent"):
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
