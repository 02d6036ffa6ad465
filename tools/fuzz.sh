#!/bin/sh
# usage: fuzz.sh SECONDS : builds every target with libFuzzer, ASan and UBSan and runs each for SECONDS on a copy of its corpus.
# Prints the rate of each; a crash stays in build-fuzz/ and fails the run.
set -eu
seconds=$1
cd "$(dirname "$0")/.."
test -f build-fuzz/build.ninja ||
    CC=clang meson setup build-fuzz -Dfuzz=true -Dc_args=-fsanitize=fuzzer-no-link -Db_sanitize=address,undefined -Db_lundef=false --buildtype=debugoptimized > /dev/null
ninja -C build-fuzz --quiet
failed=0
for target in build-fuzz/tests/fuzz/fuzz_*; do
    [ -f "$target" ] && [ -x "$target" ] || continue
    name=$(basename "$target")
    corpus=build-fuzz/corpus/$name
    mkdir -p "$corpus"
    seeds=tests/fuzz/corpus/${name#fuzz_}
    [ -d "$seeds" ] || seeds=$corpus
    "$target" -max_total_time="$seconds" -max_len=65536 -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
        -artifact_prefix="build-fuzz/crash-$name-" "$corpus" "$seeds" > "build-fuzz/$name.log" 2>&1 || { failed=1; tail -30 "build-fuzz/$name.log"; }
    awk -v n="$name" '/stat::number_of_executed_units/ {u = $2} /stat::average_exec_per_sec/ {r = $2} END {printf "%-20s %d inputs, %d per second\n", n, u, r}' "build-fuzz/$name.log"
done
exit $failed
