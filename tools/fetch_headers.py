#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fetches the headers of a remote checkpoint, so that `day0 check --partial DIR` can judge it before it is downloaded.

usage: fetch_headers.py URL DIR [--index FILE] [--token-file FILE] [--files NAME...]

URL is the folder that holds the files; "{file}" in it stands for a file's name, else the name is added after a slash:
    https://HOST/OWNER/MODEL/resolve/main          https://HOST/get?path={file}
Of each *.safetensors file that the index names (--index: a local copy; default: the URL's own) the first 8 bytes and
then the header are asked for by range, and written to DIR: a few MB for a model of a terabyte. The small files (index, config,
tokenizer) are fetched whole. Existing files that are longer than their header are left alone. Standard library only.
"""
import argparse
import json
import os
import struct
import sys
import urllib.error
import urllib.parse
import urllib.request

MAX_HEADER = 100_000_000
MAX_SMALL = 256 << 20
INDEX = "model.safetensors.index.json"
SMALL = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
         "chat_template.jinja", "preprocessor_config.json"]


class Remote:
    def __init__(self, url, token):
        self.url, self.token = url, token

    def address(self, name):
        quoted = urllib.parse.quote(name)
        return self.url.replace("{file}", quoted) if "{file}" in self.url else self.url.rstrip("/") + "/" + quoted

    def get(self, name, begin=None, count=None, limit=MAX_SMALL):
        """The bytes, or None if there is no such file. With a range: exactly `count` bytes."""
        request = urllib.request.Request(self.address(name), headers={"User-Agent": "day0-fetch-headers"})
        if count is not None:
            request.add_header("Range", "bytes=%d-%d" % (begin, begin + count - 1))
        if self.token:
            request.add_unredirected_header("Authorization", "Bearer " + self.token)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                if count is None:
                    data = answer.read(limit + 1)
                    if len(data) > limit:
                        raise ValueError("%s: more than %d bytes" % (name, limit))
                    return data
                if answer.status == 200:  # the server does not know ranges: take what is wanted and hang up
                    answer.read(begin)
                data = answer.read(count)
        except urllib.error.HTTPError as e:
            if e.code == 404:
                return None
            raise ValueError("%s: HTTP status %d" % (name, e.code))
        if len(data) != count:
            raise ValueError("%s: %d bytes from byte %d wanted, got %d" % (name, count, begin, len(data)))
        return data


def write(directory, name, data):
    path = os.path.join(directory, name)
    with open(path + ".tmp", "wb") as f:
        f.write(data)
    os.replace(path + ".tmp", path)


def plain(name):
    return name not in ("", ".", "..") and "/" not in name and "\\" not in name and name.isprintable()


def fetch_header(remote, directory, name):
    """Number of bytes written, or None if the remote has no such file."""
    start = remote.get(name, 0, 8)
    if start is None:
        return None
    n = struct.unpack("<Q", start)[0]
    if n > MAX_HEADER:
        raise ValueError("%s: a header of %d bytes; is it a safetensors file?" % (name, n))
    path = os.path.join(directory, name)
    if os.path.exists(path) and os.path.getsize(path) > 8 + n:
        return 0
    write(directory, name, start + (remote.get(name, 8, n) if n else b""))
    return 8 + n


def names_of(index_text):
    index = json.loads(index_text)
    names = sorted(set(index["weight_map"].values()))
    bad = [n for n in names if not (isinstance(n, str) and plain(n) and n.endswith(".safetensors"))]
    if bad:
        raise ValueError("the index names what is no plain file name: %r" % bad[0])
    return names


def weight_files(remote, a):
    if a.files:
        return a.files
    if a.index:
        with open(a.index, "rb") as f:
            text = f.read()
    else:
        text = remote.get(INDEX)
    if text is None:
        return ["model.safetensors"]
    write(a.dir, INDEX, text)
    return names_of(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("dir")
    parser.add_argument("--index", help="a local copy of the index")
    parser.add_argument("--token-file", help="a file that holds an access token")
    parser.add_argument("--files", nargs="+", help="weight files, if there is no index")
    a = parser.parse_args()
    token = open(a.token_file).read().strip() if a.token_file else None
    remote = Remote(a.url, token)
    os.makedirs(a.dir, exist_ok=True)
    total, missing = 0, []
    try:
        for name in SMALL:
            data = None if os.path.exists(os.path.join(a.dir, name)) else remote.get(name)
            if data is not None:
                write(a.dir, name, data)
        names = weight_files(remote, a)
        for i, name in enumerate(names):
            if not plain(name):
                raise ValueError("%r is no plain file name" % name)
            n = fetch_header(remote, a.dir, name)
            missing += [name] if n is None else []
            total += n or 0
            if sys.stderr.isatty():
                print("\r%d of %d headers" % (i + 1, len(names)), end="", file=sys.stderr)
    except (OSError, ValueError, KeyError) as e:
        sys.exit("fetch_headers.py: %s" % (e,))
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    print("%d headers, %d bytes in %s" % (len(names) - len(missing), total, a.dir))
    for name in missing:
        print("not there: " + name)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
