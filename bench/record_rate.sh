#!/bin/sh
# usage: record_rate.sh BUILD MODEL [ROUNDS] : rate at which `day0 record` reads weights, over that of plain reads of the same files, in interleaved rounds
# with cold caches (and once warm). One token, so that computing is small beside reading. Prints a line a round and the medians.
set -u
day0=$1/day0 model=$2 rounds=${3:-5}
scratch=$(mktemp -d "${TMPDIR:-/tmp}/day0-rate.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
bytes=$(cat "$model"/*.safetensors | wc -c)
echo 1 > "$scratch/ids.txt"
now() { date +%s.%N; }
cold() { for f in "$model"/*.safetensors; do dd of="$f" oflag=nocache conv=notrunc,fdatasync count=0 2> /dev/null; done; }
plain() { for f in "$model"/*.safetensors; do dd if="$f" of=/dev/null bs=8M 2> /dev/null; done; }
record() { "$day0" record "$model" --tokens "$scratch/ids.txt" --probes none --fresh -o "$scratch/out.safetensors" --json > "$scratch/json"; }
number() { sed -n "s/^ *\"$1\": *\([0-9.]*\),*/\1/p" "$scratch/json"; }
for kind in cold warm; do
    for round in $(seq "$rounds"); do
        # who comes second may find the files in a cache below this machine: they take turns
        [ $((round % 2)) = 0 ] && { [ $kind = cold ] && cold; record; }
        [ $kind = cold ] && cold
        a=$(now); plain; b=$(now)
        [ $((round % 2)) = 1 ] && { [ $kind = cold ] && cold; record; }
        echo "$kind $round $(awk -v a="$a" -v b="$b" -v n="$bytes" -v w="$(number weight_bytes)" -v r="$(number read_seconds)" -v s="$(number seconds)" \
            'BEGIN { p = n / (b - a); printf "plain %.0f MB/s, reading thread %.0f MB/s (%.0f %%), whole run %.0f MB/s (%.0f %%)", p / 1e6, w / r / 1e6, 100 * w / r / p, w / s / 1e6, 100 * w / s / p }')"
    done
done | tee "$scratch/lines"
for kind in cold warm; do
    sed -n "s/^$kind .*thread [0-9]* MB.s (\([0-9]*\) %).*(\([0-9]*\) %)/\1 \2/p" "$scratch/lines" | sort -n | awk -v k=$kind '{a[NR] = $1; b[NR] = $2}
        END {n = asort_n(b, NR); printf "%s: median of reading %d %%, of the whole run %d %% of plain reads\n", k, a[int((NR + 1) / 2)], b[int((NR + 1) / 2)]}
        function asort_n(x, m,   i, j, t) {for (i = 2; i <= m; i++) for (j = i; j > 1 && x[j - 1] > x[j]; j--) {t = x[j]; x[j] = x[j - 1]; x[j - 1] = t} return m}'
done
