#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Chats with and without pictures, for soak.sh: what each is answered alone, and then by many clients at once that also leave in between, repeat
themselves and stream. Every answer that is finished has the ids and log-probabilities of the one alone; afterwards the service holds nothing. The
same seed makes the same requests. Standard library only.

    soak.py ALONE_URL CROWD_URL SECONDS SEED      prints what was wrong, one line each, and a summary; exit status 1 if anything was
"""
import base64
import http.client
import json
import random
import socket
import struct
import sys
import threading
import time
import zlib

CLIENTS, REQUESTS, PICTURES = 16, 40, 8
WORDS = "what is the red ring left of a blue square and then how many stars does Ada see below it".split()


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def picture(r):
    w, h = r.choice([8, 16, 31, 40, 64]), r.choice([8, 24, 33, 48])
    rows = b"".join(b"\0" + bytes(r.getrandbits(8) for _ in range(3 * w)) for _ in range(h))
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", w, h, 8, 2, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(png).decode()}}


def request(r, pictures):
    messages = [{"role": "system", "content": "Answer in one word."}] if r.random() < 0.3 else []
    for turn in range(r.choice([1, 1, 1, 2])):
        parts = [r.choice(pictures) for _ in range(r.choice([0, 1, 1, 2, 3]))]
        parts.insert(r.randrange(len(parts) + 1), {"type": "text", "text": " ".join(r.choice(WORDS) for _ in range(r.choice([1, 3, 8, 20])))})
        messages.append({"role": "user", "content": parts})
        if r.random() < 0.3:
            messages.append({"role": "assistant", "content": "a red ring"})
    out = {"messages": messages, "max_tokens": r.choice([1, 2, 5, 9, 16]), "temperature": r.choice([0, 0, 0.8, 1.5]), "seed": r.randrange(1000),
           "logprobs": True, "top_logprobs": r.choice([0, 3]), "return_token_ids": True, "ignore_eos": r.random() < 0.7}
    if r.random() < 0.2:
        out["stop"] = [r.choice(["a", " ring", "st"])]
    return out


class Service:
    def __init__(self, url):
        self.port = int(url.rsplit(":", 1)[1])
        self.model = json.loads(self.get("/v1/models"))["data"][0]["id"]

    def get(self, path):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=100)
        c.request("GET", path)
        data = c.getresponse().read()
        c.close()
        return data

    def body(self, what, **more):
        return json.dumps(dict(what, model=self.model, **more)).encode()

    def ask(self, what, stream=False):
        """Status, and what is compared: ids, log-probabilities, text, why it ended; or the error."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=100)
        c.request("POST", "/v1/chat/completions", self.body(what, stream=stream), {"Content-Type": "application/json"})
        r = c.getresponse()
        data = r.read().decode()
        c.close()
        if r.status != 200:
            return r.status, data
        answer = {"ids": [], "logprobs": [], "text": "", "finish": None}
        for piece in [x[6:] for x in data.split("\n\n") if x.startswith("data: {")] if stream else [data]:
            piece = json.loads(piece)
            if "error" in piece:
                return 500, data
            for choice in piece["choices"]:
                answer["ids"] += choice.get("token_ids") or []
                answer["text"] += (choice["delta"] if stream else choice["message"]).get("content") or ""
                answer["finish"] = choice["finish_reason"] or answer["finish"]
                for token in (choice.get("logprobs") or {}).get("content") or []:
                    answer["logprobs"].append([token["logprob"]] + [t["logprob"] for t in token["top_logprobs"]])
        return 200, answer

    def leave(self, what, r):
        """Sends a request, or a part of one, and closes the connection some time later."""
        body = self.body(what, stream=r.random() < 0.5)
        sent = body if r.random() < 0.8 else body[:r.randrange(len(body))]
        with socket.create_connection(("127.0.0.1", self.port)) as c:
            c.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + sent)
            time.sleep(r.random() * r.choice([0.001, 0.02, 0.2]))

    def numbers(self):
        lines = self.get("/metrics").decode().splitlines()
        return {name: float(value) for name, value in (x.rsplit(" ", 1) for x in lines if not x.startswith("#"))}


class Crowd:
    def __init__(self, service, requests, alone, seconds, seed):
        self.service, self.requests, self.alone = service, requests, alone
        self.end, self.seed = time.monotonic() + seconds, seed
        self.lock, self.counts, self.wrong = threading.Lock(), {"answered": 0, "later": 0, "left": 0}, []

    def count(self, what):
        with self.lock:
            self.counts[what] += 1

    def one(self, r):
        i = r.randrange(len(self.requests))
        if r.random() < 0.25:
            self.service.leave(self.requests[i], r)
            self.count("left")
            return
        status, answer = self.service.ask(self.requests[i], r.random() < 0.5)
        if status == 429:
            self.count("later")
            time.sleep(0.01)
        elif status == 200 and answer == self.alone[i]:
            self.count("answered")
        else:
            self.wrong.append("request %d: %d %s, alone %s" % (i, status, str(answer)[:300], str(self.alone[i])[:300]))

    def client(self, number):
        r = random.Random("%d %d" % (self.seed, number))
        try:
            while time.monotonic() < self.end:
                self.one(r)
        except (OSError, ValueError, http.client.HTTPException) as e:
            self.wrong.append("client %d: %r" % (number, e))

    def run(self):
        threads = [threading.Thread(target=self.client, args=(n,)) for n in range(CLIENTS)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()


def held(service):
    """What is still held once nothing runs."""
    for _ in range(100):
        n = service.numbers()
        left = ["%s %g" % (k, n["day0_" + k]) for k in ("requests_open", "requests_running", "requests_waiting", "images_waiting", "image_held_bytes",
                                                        "image_working_bytes", "failed_steps_total") if n["day0_" + k]]
        left += ["%s %g of %g" % (k, n["day0_%s_free" % k], n["day0_%s_total" % k]) for k in ("kv_pages", "feature_rows")
                 if n["day0_%s_free" % k] != n["day0_%s_total" % k]]
        if not left:
            break
        time.sleep(0.05)
    return left


def main():
    alone_service, service = Service(sys.argv[1]), Service(sys.argv[2])
    seconds, seed = float(sys.argv[3]), int(sys.argv[4])
    r = random.Random(seed)
    pictures = [picture(r) for _ in range(PICTURES)]
    requests = [request(r, pictures) for _ in range(REQUESTS)]
    alone = [alone_service.ask(x) for x in requests]
    wrong = ["request %d alone: %d %s" % (i, s, a) for i, (s, a) in enumerate(alone) if s != 200]
    if not wrong:
        crowd = Crowd(service, requests, [a for _, a in alone], seconds, seed)
        crowd.run()
        wrong = crowd.wrong + ["left behind: " + x for x in held(service)]
        n = service.numbers()
        print("%(answered)d answered, %(later)d told to come later, %(left)d left" % crowd.counts +
              "; %d pictures encoded, %d cached" % (n["day0_images_encoded_total"], n["day0_images_cached_total"]))
        if not crowd.counts["answered"]:
            wrong.append("nothing was answered")
    for line in wrong[:10]:
        print(line)
    return 1 if wrong else 0


sys.exit(main())
