#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: reshape.py DIR TENSOR : swaps the two dimensions of a tensor in its shard's header; bytes and offsets stay as they are."""
import glob, json, os, struct, sys

for path in glob.glob(os.path.join(sys.argv[1], "*.safetensors")):
    data = open(path, "rb").read()
    n = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + n])
    if sys.argv[2] in header:
        header[sys.argv[2]]["shape"].reverse()
        text = json.dumps(header, separators=(",", ":")).encode()
        assert len(text) <= n, "the header grew"
        open(path, "wb").write(data[:8] + text.ljust(n) + data[8 + n:])
        sys.exit(0)
sys.exit("no such tensor")
