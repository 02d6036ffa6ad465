#!/bin/sh
# usage: tokenizer_bench.sh BUILD PYTHON TOKENIZER.json TEXT : single-thread encoding, ours and that of the Python package tokenizers, in turns.
# Prints processor seconds of the best of each turn's runs, and the ratio of the best of all.
set -eu
here=$(dirname "$0")
ours="" theirs=""
for turn in 1 2 3; do
    a=$("$1/bench/bench_tokenizer" "$3" "$4")
    b=$(TOKENIZERS_PARALLELISM=false RAYON_NUM_THREADS=1 "$2" "$here/../tools/tokenizer_reference.py" speed "$3" "$4")
    echo "turn $turn: day0 $a, tokenizers $b (seconds, ids)"
    ours="$ours ${a%% *}" theirs="$theirs ${b%% *}"
done
echo "$ours |$theirs" | awk '{ for (i = 1; i <= 3; i++) { if (i == 1 || $i < a) a = $i; j = i + 4; if (i == 1 || $j < b) b = $j } printf "tokenizers / day0: %.2f\n", b / a }'
