#!/bin/sh
# A model 100 times larger than memory: 200 GB apparent, 2 GiB of address space. Stages 1, 2 and the plan of 3 work and say what cannot run.
. "$(dirname "$0")/lib.sh"
big=$scratch/big
python3 "$root/tools/make_checkpoint.py" llama "$big" --hidden 6144 --intermediate 16384 --heads 48 --kv-heads 8 --head-dim 128 \
    --vocab 32000 --layers 256 --dtype BF16 --shards 100 --fill sparse > "$scratch/made" 2>&1 || { skip "big" "python3 is not installed"; finish; }
apparent=$(du -s --apparent-size -B1 "$big" | cut -f1)
[ "$apparent" -gt 195000000000 ] && ok "the checkpoint is 200 GB apparent ($apparent bytes)" || not_ok "200 GB apparent" "$apparent"
limited() { (ulimit -v 2097152; "$@"); }
run 0 "check under 2 GiB of address space" limited "$day0" check "$big" --memory 500G --json
run 1 "check says that this machine is too small" limited "$day0" check "$big"
says "with M001" 'M001' "$scratch/out"
run 0 "inspect under 2 GiB" limited "$day0" inspect "$big" --json
begin=$(date +%s)
limited "$day0" adapt "$big" --out "$scratch/report" > "$scratch/out" 2> "$scratch/err"
status=$?
seconds=$(($(date +%s) - begin))
cat "$scratch/err" >> "$scratch/out"
# memory is insufficient: a finding, hence "fail"; never a crash
[ "$status" = 1 ] && ok "adapt ends with status 1: the model does not fit" || not_ok "adapt ends with status 1" "$status"
[ "$seconds" -lt 60 ] && ok "in $seconds s (under 60)" || not_ok "in under 60 s" "$seconds"
says "stage 1 ran" 'stage 1 .*(passed|FAILED|in part)' "$scratch/out"
says "stage 2 ran, streamed" 'stage 2 .*(passed|in part)' "$scratch/out"
says "what cannot run is said, with needs and has" 'needs .*[GT]B.* has ' "$scratch/out"
says "and the smallest layout that fits" 'smallest layout' "$scratch/out"
finish
