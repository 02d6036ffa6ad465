#!/bin/sh
# Every release that there is a published index of, as a checkpoint of holes with the names of that index: an intact release has no error, whoever
# computes it. The largest, Kimi-K3, has a test of its own (k3.sh).
. "$(dirname "$0")/lib.sh"

command -v python3 > /dev/null || { skip "releases" "python3 is not installed"; finish; }
found=0
for index in "$material"/configs/*/model.safetensors.index.json "$material"/configs/*/model.safetensors.index.json.gz; do
    [ -f "$index" ] || continue
    config=$(dirname "$index")
    release=$(basename "$config")
    [ "$release" = moonshotai--Kimi-K3 ] && continue
    found=$((found + 1))
    model=$scratch/$release
    run 0 "$release: a checkpoint with the names of its index" python3 "$root/tools/make_checkpoint.py" "$config" "$model" --day0 "$day0" \
        --index "$index" --shards 3 || continue
    "$day0" check "$model" --json --memory 8T > "$scratch/findings" 2> "$scratch/err"
    python3 - "$index" "$model" "$scratch/findings" > "$scratch/out" 2>&1 << 'EOF' && ok "$release: no error" || not_ok "$release: no error"
import gzip, json, sys
index, model, findings = sys.argv[1:]
published = json.load((gzip.open if index.endswith(".gz") else open)(index))
made = json.load(open(model + "/model.safetensors.index.json"))
assert set(published["weight_map"]) == set(made["weight_map"]), "names differ"
size = published.get("metadata", {}).get("total_size", 0)
print("%d tensors; total size published %d, made %d" % (len(made["weight_map"]), size, made["metadata"]["total_size"]))
findings = json.load(open(findings))["findings"]
for f in findings:
    print(f["id"], f["severity"], f["subject"], f["evidence"][:300])
assert not [f for f in findings if f["severity"] == "error"], "an error"
assert size in (0, made["metadata"]["total_size"]), "sizes differ"
EOF
    sed 's/^/# /' "$scratch/out"
    rm -rf "$model"
done
[ "$found" -gt 0 ] || skip "releases" "no material at $material"
finish
