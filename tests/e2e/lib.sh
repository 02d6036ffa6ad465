# Sourced by the end-to-end tests: TAP output, a scratch directory, JSON fields without any JSON tool.
# usage in a test: . "$(dirname "$0")/lib.sh"; ... ; finish
set -u
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
build=${DAY0_BUILD:-$root/build}
day0=$build/day0
material=${DAY0_MATERIAL:-$root/../shared/material}
scratch=$(mktemp -d "${TMPDIR:-/tmp}/day0-e2e.XXXXXX")
children=""
n=0
failed=0
export NO_COLOR=1

cleanup() {
    for pid in $children; do kill "$pid" 2> /dev/null && wait "$pid" 2> /dev/null; done
    rm -rf "$scratch"
}
trap cleanup EXIT
trap 'exit 1' INT TERM

ok() { n=$((n + 1)); echo "ok $n - $1"; }
not_ok() { n=$((n + 1)); failed=1; echo "not ok $n - $1"; [ -z "${2:-}" ] || echo "# $2"; [ ! -f "$scratch/out" ] || sed 's/^/# /' "$scratch/out" | tail -25; }
skip() { n=$((n + 1)); echo "# skip: $2"; echo "ok $n - $1 # SKIP"; }
finish() { echo "1..$n"; exit $failed; }

# run STATUS NAME COMMAND... : the command must end with that status; output goes to $scratch/out (stdout) and $scratch/err.
run() {
    want=$1 name=$2
    shift 2
    "$@" > "$scratch/out" 2> "$scratch/err"
    got=$?
    if [ "$got" = "$want" ]; then ok "$name"; return 0; fi
    cat "$scratch/err" >> "$scratch/out"
    not_ok "$name" "exit status $got, expected $want"
    return 1
}
# says NAME PATTERN FILE... : some line matches the extended pattern
says() {
    name=$1 pattern=$2
    shift 2
    if grep -Eq -e "$pattern" "$@"; then ok "$name"; else not_ok "$name" "no line matches: $pattern"; fi
}
# The value of "key": in a pretty-printed JSON file (first occurrence, quotes removed)
field() { sed -n "s/^ *\"$1\": *\"\{0,1\}\([^\",]*\)\"\{0,1\},\{0,1\}\$/\1/p" "$2" | head -1; }
count() { grep -Ec -e "$1" "$2"; }
# serve MODEL_DIR ARGS... : starts a service, waits until it is ready; sets $url and $service_pid
serve() {
    rm -f "$scratch/port" "$scratch/serve.log"
    "$day0" serve "$@" --port 0 --port-file "$scratch/port" --log-file "$scratch/serve.log" > "$scratch/serve.out" 2>&1 &
    service_pid=$!
    children="$children $service_pid"
    for _ in $(seq 1 300); do
        [ -s "$scratch/port" ] && grep -Eq 'engine (ready|failed)' "$scratch/serve.log" && break
        kill -0 "$service_pid" 2> /dev/null || break
        sleep 0.1
    done
    url="http://127.0.0.1:$(cat "$scratch/port" 2> /dev/null)"
}
