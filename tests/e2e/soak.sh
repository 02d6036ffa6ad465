#!/bin/sh
# A crowd of chats with and without pictures on a service whose pages, rows of pictures or memory of pictures hardly suffice: every answer equals the
# one alone, and nothing stays behind. usage: soak.sh [SECONDS [SEED]]: of each crowd (default 2 and 1)
. "$(dirname "$0")/lib.sh"
seconds=${1:-2} seed=${2:-1}
command -v python3 > /dev/null || { skip "soak" "python3 is not installed"; finish; }
serve "$root/demo/model" --no-prefix-cache
alone=$url
# crowd NAME ARGS...
crowd() {
    what=$1
    shift
    serve "$root/demo/model" "$@"
    run 0 "$what: answers are those alone, and nothing stays behind" python3 "$here/soak.py" "$alone" "$url" "$seconds" "$seed"
    sed 's/^/# /' "$scratch/out"
    kill -TERM "$service_pid"
    wait "$service_pid" && ok "$what: the service ends well" || not_ok "$what: the service ends well" "$(tail -3 "$scratch/serve.out")"
}
crowd "few pages and rows" --kv-tokens 1024 --image-tokens 200 --max-seqs 6 --max-tokens 48 --prefill-chunk 24 --image-threads 2
crowd "little memory for pictures" --kv-tokens 640 --image-tokens 160 --max-seqs 3 --max-tokens 16 --prefill-chunk 5 --image-memory 9M --image-threads 3
finish
