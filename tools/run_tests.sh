#!/bin/sh
# usage: run_tests.sh BUILD SUITE... : builds, runs each suite, prints every failure and skip with its reason, the time of
# each suite against tests/budgets.txt, and closes with "N passed, N failed, N skipped". Single cases are counted: test
# programs speak TAP. A program that dies counts as one failure more.
set -u
build=$1
shift
cd "$(dirname "$0")/.."
export CMOCKA_MESSAGE_OUTPUT=TAP
ninja -C "$build" --quiet all || { echo "the build failed"; echo "0 passed, 1 failed, 0 skipped"; exit 1; }
total=$(mktemp)
trap 'rm -f "$total"' EXIT
for suite in "$@"; do
    begin=$(date +%s)
    meson test -C "$build" --no-rebuild --suite "$suite" --logbase "log-$suite" --num-processes 2 \
        --timeout-multiplier "${TIMEOUT_MULTIPLIER:-1}" > "$build/run-$suite.txt" 2>&1
    status=$?
    end=$(date +%s)
    awk -v suite="$suite" -v status="$status" -f tools/tap_count.awk "$build/meson-logs/log-$suite.txt" > "$build/counts-$suite.txt"
    grep -v '^COUNTS' "$build/counts-$suite.txt"
    grep '^COUNTS' "$build/counts-$suite.txt" >> "$total"
    budget=$(awk -v s="$suite" '$1 == s {print $2}' tests/budgets.txt)
    awk -v s="$suite" -v t=$((end - begin)) -v b="${budget:-0}" '/^COUNTS/ {
        printf "suite %-7s %5d passed, %d failed, %d skipped in %d s (budget %d s%s)\n", s, $2, $3, $4, t, b, (t > b ? ": OVER" : "") }' "$build/counts-$suite.txt"
done
awk '{p += $2; f += $3; s += $4} END {printf "%d passed, %d failed, %d skipped\n", p, f, s; exit f > 0 || p == 0}' "$total"
