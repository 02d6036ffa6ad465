#!/usr/bin/env python3
"""Prints src/text/jinja_unicode.def: what Python knows of characters, as ranges. usage: unicode_tables.py > FILE"""
import sys
import unicodedata

LAST = 0x110000


def ranges(test):
    out, start = [], None
    for c in range(LAST + 1):
        yes = c < LAST and not 0xD800 <= c < 0xE000 and test(chr(c))
        if yes and start is None:
            start = c
        elif not yes and start is not None:
            out.append((start, c - 1))
            start = None
    return out


def cases(change):
    """(first, last, step, delta): runs of characters that change by the same distance."""
    out = []
    for c in range(128, LAST):
        if 0xD800 <= c < 0xE000:
            continue
        to = change(chr(c))
        if len(to) != 1 or ord(to) == c:
            continue
        delta = ord(to) - c
        if out and out[-1][3] == delta and c - out[-1][1] in (1, 2) and out[-1][2] in (0, c - out[-1][1]):
            out[-1] = (out[-1][0], c, c - out[-1][1], delta)
        else:
            out.append((c, c, 0, delta))
    return out


def rows(name, items):
    line = ""
    for item in items:
        word = f"{name}({', '.join(hex(v) if i < 2 else str(v) for i, v in enumerate(item))}) "
        if len(line) + len(word) > 108:
            print(line.rstrip())
            line = ""
        line += word
    print(line.rstrip())


print("/* SPDX-License-Identifier: Apache-2.0")
print(" *")
print(f" * Made by tools/unicode_tables.py from Unicode {unicodedata.unidata_version}; ranges are inclusive, sorted.")
print(" */")
for name, test in (("PRINTABLE", str.isprintable), ("ALPHA", str.isalpha)):
    print(f"#ifdef {name}")
    rows(name, ranges(test))
    print(f"#undef {name}\n#endif")
for name, change in (("UPPER", str.upper), ("LOWER", str.lower)):
    print(f"#ifdef {name} /* first, last, step (0: one character), distance */")
    rows(name, [(a, b, s, d) for a, b, s, d in cases(change)])
    print(f"#undef {name}\n#endif")
print("#ifdef SPECIAL /* becomes several characters in upper case */")
for c in range(128, LAST):
    if not 0xD800 <= c < 0xE000 and len(chr(c).upper()) > 1:
        print(f'SPECIAL({hex(c)}, "' + "".join(f"\\x{b:02x}" for b in chr(c).upper().encode()) + '")')
print("#undef SPECIAL\n#endif")
sys.stdout.flush()
