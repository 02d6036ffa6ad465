#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Serves a directory on 127.0.0.1, for arriving.sh. usage: range_server.py DIR PORT_FILE LOG [--no-ranges]

Answers "Range: bytes=A-B" with 206 (or, with --no-ranges, with the whole file) and logs "NAME bytes sent".
"""
import http.server
import os
import re
import sys

directory, port_file, log = sys.argv[1:4]
ranges = "--no-ranges" not in sys.argv


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        path = os.path.join(directory, os.path.basename(self.path))
        if not os.path.isfile(path):
            self.send_error(404)
            return
        with open(path, "rb") as f:
            data = f.read()
        match = re.match(r"bytes=(\d+)-(\d+)$", self.headers.get("Range", ""))
        if match and ranges:
            a, b = int(match[1]), int(match[2]) + 1
            self.send_response(206)
            self.send_header("Content-Range", "bytes %d-%d/%d" % (a, b - 1, len(data)))
            data = data[a:b]
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        try:
            self.wfile.write(data)
        except OSError:
            pass
        with open(log, "a") as f:
            print(os.path.basename(path), len(data), file=f)

    def log_message(self, *a):
        pass


server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
with open(port_file + ".tmp", "w") as f:
    f.write(str(server.server_port))
os.rename(port_file + ".tmp", port_file)
server.serve_forever()
