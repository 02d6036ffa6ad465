#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rewrites safetensors files of a directory, for arriving.sh. Standard library only.

    relayout.py DIR NAME              all tensors of all files under other names, in one file NAME
    relayout.py DIR --hole NAME       eight bytes between the first two tensors that no tensor claims
    relayout.py DIR --overlap NAME    the second tensor begins eight bytes inside the first
"""
import glob
import json
import struct
import sys


def read(path):
    with open(path, "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        return json.loads(f.read(n)), f.read()


def write(path, header, data):
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def shift(path, by):
    """Every tensor but the first moves by that many bytes."""
    header, data = read(path)
    tensors = sorted((v["data_offsets"][0], k) for k, v in header.items() if k != "__metadata__")
    end = header[tensors[0][1]]["data_offsets"][1]
    for _, name in tensors[1:]:
        header[name]["data_offsets"] = [x + by for x in header[name]["data_offsets"]]
    write(path, header, data[:end] + b"\0" * by + data[end:] if by > 0 else data[:end + by] + data[end:])


def main(argv):
    directory = argv[1]
    if argv[2] == "--hole":
        return shift(directory + "/" + argv[3], 8)
    if argv[2] == "--overlap":
        return shift(directory + "/" + argv[3], -8)
    header, data = {}, b""
    for path in sorted(glob.glob(directory + "/*.safetensors")):
        one, bytes_ = read(path)
        for name, t in one.items():
            if name != "__metadata__":
                header["mistral." + name] = dict(t, data_offsets=[x + len(data) for x in t["data_offsets"]])
        data += bytes_
    write(directory + "/" + argv[2], header, data)


main(sys.argv)
