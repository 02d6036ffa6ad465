#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A server that looks like OpenAI's API and breaks its rules: another text streamed than whole, no error shapes, usage that
counts one token too few. usage: broken_server.py PORT_FILE [SECONDS]   from the first question on it answers 503, as one that loads, so long"""
import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LOADS = float(sys.argv[2] if len(sys.argv) > 2 else 0)


class Broken(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    asked_at = None

    def log_message(self, *_):
        pass

    def answer(self, body, kind="application/json", status=200):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        Broken.asked_at = Broken.asked_at or time.monotonic()
        if time.monotonic() < Broken.asked_at + LOADS:
            self.answer(b'{"error":{"message":"Loading model","code":503}}', status=503)
        elif self.path == "/v1/models":
            self.answer(b'{"object":"list","data":[{"id":"broken","object":"model"}]}')
        else:
            self.answer(b"fine")

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
        if b'"stream":true' in body.replace(b" ", b""):
            parts = [{"choices": [{"index": 0, "text": " streamed", "delta": {"content": " streamed"}, "finish_reason": None}]},
                     {"choices": [{"index": 0, "text": " words", "delta": {"content": " words"}, "finish_reason": "stop"}]},
                     {"choices": [], "usage": usage}]
            text = "".join("data: %s\n\n" % json.dumps(p) for p in parts) + "data: [DONE]\n\n"
            self.answer(text.encode(), "text/event-stream")
        else:
            self.answer(json.dumps({"choices": [{"index": 0, "text": " whole", "message": {"content": " whole"},
                                                 "finish_reason": "stop"}], "usage": usage}).encode())


server = ThreadingHTTPServer(("127.0.0.1", 0), Broken)
with open(sys.argv[1] + ".new", "w") as f:
    f.write("%d\n" % server.server_address[1])
os.rename(sys.argv[1] + ".new", sys.argv[1])
server.serve_forever()
