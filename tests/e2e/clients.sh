#!/bin/sh
# Real clients against the service on the demo model: the openai package where it can be installed, curl where it is present.
. "$(dirname "$0")/lib.sh"
serve "$root/demo/model" --context 256
if command -v curl > /dev/null; then
    run 0 "curl: /health" curl -sf "$url/health"
    says "it says ready" 'ready' "$scratch/out"
    run 0 "curl: /metrics" curl -sf "$url/metrics"
    says "in Prometheus' format" '^# TYPE ' "$scratch/out"
    run 0 "curl: a stream" curl -sfN "$url/v1/completions" -H 'Content-Type: application/json' -d '{"model":"model","prompt":"Ada looks","max_tokens":4,"stream":true}'
    says "ends with [DONE]" '^data: \[DONE\]' "$scratch/out"
else
    skip "curl" "curl is not installed"
fi
if why=$("$root/tools/venv.sh" clients 2>&1); then
    "$("$root/tools/venv.sh" --print)/bin/python" "$here/openai_client.py" "$url" > "$scratch/client" 2> "$scratch/out" || { cat "$scratch/out" >&2; }
    grep -q '^1\.\.' "$scratch/client" && ok "the openai client ran to its end" || not_ok "the openai client ran to its end"
    while read -r state _ _ what; do
        case "$state" in ok) ok "openai: $what" ;; not) not_ok "openai: $what" ;; esac
    done < "$scratch/client"
else
    skip "openai client" "$why"
fi
run 0 "stress at the service" "$day0" stress "$url" --concurrency 4 --requests 12 --max-tokens 8 --json
says "all requests went through" '"failed": 0' "$scratch/out"
failures=0
for _ in 1 2 3 4 5 6 7 8; do "$day0" stress "$root/demo/model" --requests 1 --max-tokens 1 > "$scratch/out" 2>&1 || failures=$((failures + 1)); done
[ "$failures" = 0 ] && ok "stress at a model waits until it is ready" || not_ok "stress at a model waits until it is ready" "$failures of 8 failed"
run 3 "stress at a model: its service gets --memory" "$day0" stress "$root/demo/model" --memory 1M --requests 1
says "which is too little" 'this machine has 1.00 MB' "$scratch/err"
kill -TERM "$service_pid"; wait "$service_pid"; status=$?
[ "$status" = 0 ] && ok "SIGTERM ends it with status 0" || not_ok "SIGTERM ends it with status 0" "$status"
finish
