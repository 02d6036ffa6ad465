#!/bin/sh
# `day0 env --capture`, `--root`: a machine that is not here, good and bad ones, and nonsense in their place.
. "$(dirname "$0")/lib.sh"
captures=$root/tests/captures

run 0 "this machine" "$day0" env --json
says "rules are judged" '"state": "holds"' "$scratch/out"
kernel=$(field kernel "$scratch/out")
run 0 "is captured" "$day0" env --capture "$scratch/here.json"
run 0 "and shown from there" "$day0" env --root "$scratch/here.json" --json
[ "$(field kernel "$scratch/out")" = "$kernel" ] && ok "the same kernel" || not_ok "the same kernel" "$(field kernel "$scratch/out"), not $kernel"
says "it says that it is a capture" '"capture": ".*here.json"' "$scratch/out"
run 2 "--capture and --root exclude each other" "$day0" env --root "$scratch/here.json" --capture "$scratch/x.json"

run 0 "a good machine" "$day0" env --root "$captures/good.json"
says "its cards" "card +NVIDIA H200 \(0000:18:00.0" "$scratch/out"
says "its driver" "cuda13-driver +holds +nvidia driver >= 580 +nvidia driver 580.65.06" "$scratch/out"
run 1 "an old driver" "$day0" env --root "$captures/old-driver.json" --json
says "is P002" '"id": "P002"' "$scratch/out"
says "with the rule's severity" '"severity": "error"' "$scratch/out"
run 0 "unknown versions are no findings" "$day0" env --root "$captures/unknown-versions.json"
says "they are said to be unknown" "cuda13-driver +unknown" "$scratch/out"
run 0 "a machine without memory" "$day0" env --root "$captures/no-memory.json"

model=$scratch/model
if python3 "$root/tools/make_checkpoint.py" llama "$model" --hidden 64 --intermediate 128 --layers 2 --heads 4 --kv-heads 2 --head-dim 16 \
    --vocab 384 --dtype F32 --shards 1 --fill hash --seed 1 > /dev/null; then
    run 0 "a model on the good machine" "$day0" check "$model" --root "$captures/good.json" --json
    run 1 "on the one with the old driver" "$day0" check "$model" --root "$captures/old-driver.json" --json
    says "P002" '"id": "P002"' "$scratch/out"
    run 0 "waived" "$day0" check "$model" --root "$captures/old-driver.json" --waive P002=known
    run 1 "on the one without memory" "$day0" check "$model" --root "$captures/no-memory.json" --json
    says "M001" '"id": "M001"' "$scratch/out"
    run 1 "on the one with a small control group" "$day0" check "$model" --root "$captures/cgroup-limited.json" --json
    says "which is named" 'has 525 kB \(cgroup\)' "$scratch/out"
    run 0 "rules that are not known are named" "$day0" check "$model" --root "$captures/unknown-versions.json"
    says "in words" "not known: rule cuda13-driver: nvidia driver of unknown version" "$scratch/out"
else
    skip "check --root" "python3 is not installed"
fi

echo '{"format": "day0-compat", "version": 1, "rules": [{"id": "new-kernel", "component": "kernel", "needs": ">= 99",
 "severity": "warning", "reason": "a test", "source": "none"}]}' > "$scratch/rules.json"
run 0 "rules of one's own" "$day0" env --root "$captures/good.json" --rules "$scratch/rules.json"
says "are judged" "new-kernel +violated" "$scratch/out"
for bad in '' '{}' '[1' '{"format": "day0-capture", "version": 1, "files": {"x": 1}}'; do
    printf '%s' "$bad" > "$scratch/bad.json"
    run 1 "no capture: '$bad'" "$day0" env --root "$scratch/bad.json"
    run 1 "no rules: '$bad'" "$day0" env --rules "$scratch/bad.json"
done
run 2 "no such capture" "$day0" env --root "$scratch/nowhere.json"
head -c 40000000 /dev/zero > "$scratch/huge.json"
run 2 "too large a capture" "$day0" env --root "$scratch/huge.json"
finish
