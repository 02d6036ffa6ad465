#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the ids that Hugging Face's tokenizers gives for texts of our own: the golden file of tests/unit/test_text.c.

Usage: tokenizer_golden.py MODEL/tokenizer.json > tests/golden/tokenizer_stories.json
Needs the Python package tokenizers. Only our texts and the ids are written, nothing of the tokenizer file.
"""
import json
import sys

import tokenizers

TEXTS = [
    "", " ", "  ", "a", "Once upon a time", " Once upon a time", "Lily and the dragon went home.", "two\nlines\n\n", "\ttabs\tand  spaces   ",
    "UPPER lower MiXeD 0123456789", "punctuation: ()[]{}<>!?;,.'\"", "na\u00efve caf\u00e9 \u00c5ngstr\u00f6m", "\u4f60\u597d\uff0c\u4e16\u754c",
    "\u041f\u0440\u0438\u0432\u0435\u0442", "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467", "\u0000\u0001\u001f\u007f\u0085", "\u2581", "\u2581 \u2581x",
    "\u00a0\u3000\u200b\ufeff", "<s>", "</s>", "<unk>", "x<s>y</s>z", "<s><s> hello</s>", "< s>", "<s", "<0x41>", "\U0010ffff\ufffd\ue000",
    "e\u0301 \u00e9", "a" * 50, "ab" * 25, "the the the the", "She said, \"Hello, little bird!\" and smiled.",
]


def main():
    t = tokenizers.Tokenizer.from_file(sys.argv[1])
    cases = []
    for text in TEXTS:
        case = {"text": text}
        for parse in (False, True):
            t.encode_special_tokens = not parse
            for special in (False, True):
                case["ids%d" % (special + 2 * parse)] = t.encode(text, add_special_tokens=special).ids
        case["decoded"] = t.decode(case["ids3"], skip_special_tokens=True)
        case["decoded_special"] = t.decode(case["ids3"], skip_special_tokens=False)
        cases.append(case)
    print('{"producer": "tokenizers %s", "cases": [' % tokenizers.__version__)
    print(",\n".join(json.dumps(c) for c in cases))
    print("]}")


main()
