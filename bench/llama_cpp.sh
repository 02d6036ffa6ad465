#!/bin/sh
# usage: llama_cpp.sh BUILD MODELS [ROUNDS [THREADS [SHAPE...]]] : day0 beside llama.cpp on the same shapes, in turns; prints ratios and their medians.
# Makes llama-bench from the source that PyPI's llama-cpp-python carries (minutes; once), outside the tree: in $DAY0_LLAMA, default beside $DAY0_VENV.
# MODELS: directory for the models of bench/models.py and for GGUF files of the same shapes; what is there is kept. Exit 77: cannot be made here.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
[ $# -ge 2 ] || { sed -n 2,4p "$0" >&2; exit 2; }
build=$1 models=$2 rounds=${3:-5} threads=${4:-$(nproc)}
[ $# -le 4 ] && set -- || shift 4
[ $# -gt 0 ] || set -- qwen05 llama1b moe
cache=${DAY0_LLAMA:-$(dirname "$("$here/../tools/venv.sh" --print)")/day0-llama}
mkdir -p "$cache" "$models"
cannot() { echo "llama_cpp.sh: $1" >&2; exit 77; }

# llama-bench
bench=$cache/build/bin/llama-bench
[ -x "$cache/venv/bin/python" ] || python3 -m venv "$cache/venv" > /dev/null 2>&1 || cannot "no virtual environment at $cache/venv"
"$cache/venv/bin/python" -c 'import gguf, scikit_build_core' 2> /dev/null ||
    "$cache/venv/bin/python" -m pip install --quiet --disable-pip-version-check gguf scikit-build-core || cannot "gguf cannot be installed"
if [ ! -x "$bench" ]; then
    command -v cmake > /dev/null || cannot "cmake is not installed"
    [ -n "$(ls "$cache"/llama_cpp_python-*.tar.gz 2> /dev/null)" ] ||
        "$cache/venv/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps --no-build-isolation --no-binary llama-cpp-python \
            -d "$cache" llama-cpp-python || cannot "no source"
    tar -xzf "$cache"/llama_cpp_python-*.tar.gz -C "$cache"
    cmake -S "$cache"/llama_cpp_python-*/vendor/llama.cpp -B "$cache/build" -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DBUILD_SHARED_LIBS=OFF \
        -DLLAMA_BUILD_COMMON=ON -DLLAMA_BUILD_TOOLS=ON -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_CURL=OFF \
        > "$cache/configure.log" 2>&1 || cannot "cmake fails: $cache/configure.log"
    nice -n 19 cmake --build "$cache/build" --target llama-bench -j"${JOBS:-1}" > "$cache/build.log" 2>&1 || cannot "the build fails: $cache/build.log"
fi

# pairs of storages that take as many bits: ours and theirs
lines=$(mktemp "${TMPDIR:-/tmp}/day0-llama.XXXXXX")
trap 'rm -f "$lines"' EXIT
rate() { sed -n "s/^$1 *\([0-9.]*\).*/\1/p"; }
theirs() { "$bench" -m "$1" -t "$threads" -p "$2" -n "$3" -r 1 -o csv 2> /dev/null | awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) if ($i ~ /avg_ts/) at = i } NR == 2 { gsub(/"/, "", $at); print $at }'; }
for shape in "$@"; do
    for pair in bf16:bf16 int8:q8_0 int4g32:q4_0; do
        ours=$models/$shape.${pair%:*} gguf=$models/$shape.${pair#*:}.gguf
        python3 "$here/models.py" "$models" "$shape.${pair%:*}" > /dev/null
        [ -s "$gguf" ] || { "$cache/venv/bin/python" "$here/gguf_model.py" "$shape" "${pair#*:}" "$gguf.part" && mv "$gguf.part" "$gguf"; }
        for round in $(seq "$rounds"); do
            # who comes first changes from round to round
            [ $((round % 2)) = 0 ] && a=$("$build/bench/bench_model" "$ours" 1 "$threads")
            decode=$(theirs "$gguf" 0 16) prefill=$(theirs "$gguf" 512 0)
            [ $((round % 2)) = 1 ] && a=$("$build/bench/bench_model" "$ours" 1 "$threads")
            echo "$shape $pair $(echo "$a" | rate 'decode, 1 request') $decode $(echo "$a" | rate 'prefill of 512, float32') $prefill"
        done
    done
done | awk '{ printf "%s decode %s against %s (%.2f), prefill %s against %s (%.2f)\n", $1 " " $2, $3, $4, $3 / $4, $5, $6, $5 / $6; fflush() }' | tee "$lines"
awk '{ gsub(/[(),]/, ""); key = $1 " " $2; n[key]++; d[key, n[key]] = $7; p[key, n[key]] = $12 }
    END { for (k in n) printf "%s: median of %d rounds: decode %.2f, prefill %.2f of llama.cpp\n", k, n[k], middle(d, k, n[k]), middle(p, k, n[k]) }
    function middle(x, k, m,   i, j, t, s) {
        for (i = 1; i <= m; i++) s[i] = x[k, i] + 0
        for (i = 2; i <= m; i++) for (j = i; j > 1 && s[j - 1] > s[j]; j--) { t = s[j]; s[j] = s[j - 1]; s[j - 1] = t }
        return s[int((m + 1) / 2)]
    }' "$lines" | sort
