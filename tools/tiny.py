# SPDX-License-Identifier: Apache-2.0
"""What the recorders of tests/parity share: where things are, the prompts, which probes are kept. Imports nothing that is not in
Python itself, so that a recorder without torch can use it.
"""
import argparse
import json
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TREE = os.path.join(ROOT, "tests", "parity")
# Probes whose error shows in the next one as well.
PLAIN = r".*\.((q|k|v|o|gate|up|down|q_a|q_b|out)_proj|kv_a_proj_with_mqa|wq_b|wk|shared_expert_gate|in_proj_\w+|split(_\d+)?)$"
DECODE = 6  # tokens fed one by one through the cache
MOVES = 1e-2
MARGIN = 3e-5  # between what is chosen and what is not, of the largest value
MOST_BYTES = 300 * 1000


def arguments(doc):
    """A parser of what every recorder takes: the families (none: all of its own), where the tools are built, where files go."""
    ap = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("families", nargs="*")
    ap.add_argument("--build", default=os.path.join(ROOT, "build"))
    ap.add_argument("--out", default=os.path.join(TREE, "golden"))
    return ap


def read(family):
    return json.load(open(os.path.join(TREE, "tiny", family + ".json")))


def families(recorder):
    """The families that this recorder computes: tiny/*.json name another one by "recorder"."""
    names = sorted(f[:-5] for f in os.listdir(os.path.join(TREE, "tiny")))
    return [f for f in names if read(f).get("recorder", "reference.py") == recorder]


def tool(build, *args):
    r = subprocess.run([os.path.join(build, "tests", "parity", "parity")] + list(args), stdout=subprocess.PIPE, universal_newlines=True)
    if r.returncode:
        sys.exit("parity %s failed" % " ".join(args))
    return r.stdout


def prompt(vocab, n, seed):
    """Ids of a linear congruence; every fourth one repeats an earlier one, so that attention has something to find."""
    ids, x = [], seed
    for i in range(n):
        x = (x * 1103515245 + 12345) & 0x7FFFFFFF
        ids.append(ids[(x >> 16) % i] if i > 4 and i % 4 == 3 else (x >> 12) % vocab)
    return ids


def pixels(n, seed):
    """Numbers in -1..1, each exact in float32, as tests/parity/pictures.c makes them."""
    x, out = seed & 0xFFFFFFFF, []
    for _ in range(n):
        x = (x * 1103515245 + 12345) & 0x7FFFFFFF
        out.append((x >> 8) / 4194304.0 - 1)
    return out


def prompt_with_pictures(tiny, token, rows):
    """Ids of text around the placeholders of each picture; rows: how many each has."""
    want = tiny["pictures"]
    ids, text = [], prompt(tiny.get("ids_below", 100), sum(want["around"]), tiny["seed"])
    for i, n in enumerate(want["around"]):
        ids += [text.pop(0) for _ in range(n)]
        ids += [token] * (rows[i] if i < len(rows) else 0)
    return ids


def wanted(probe, tiny):
    if re.match(tiny.get("plain", PLAIN), probe):
        return False
    m = re.search(r"layers\.(\d+)(\..*)?$", probe)
    if not m:
        return probe != tiny.get("head", "lm_head") and not probe.endswith("lm_head")
    return m.group(2) is None or int(m.group(1)) in tiny["probe_layers"]
