#!/bin/sh
# The largest model there is a published index of, as 96 files of holes: 497,220 tensors, 1.56 TB. Headers are all that `day0 check` reads of it;
# `day0 record` computes four layers of it (all zeroes) as on a small machine.
. "$(dirname "$0")/lib.sh"

config=$material/configs/moonshotai--Kimi-K3
[ -f "$config/model.safetensors.index.json.gz" ] || { skip "Kimi-K3" "no material at $material"; finish; }
command -v python3 > /dev/null || { skip "Kimi-K3" "python3 is not installed"; finish; }
model=$scratch/k3
run 0 "a checkpoint in 96 files" python3 "$root/tools/make_checkpoint.py" "$config" "$model" --day0 "$day0" --shards 96
python3 - "$config" "$model" > "$scratch/out" 2>&1 << 'EOF' && ok "names and total size are those of the published index" || not_ok "names and total size are those of the published index"
import gzip, json, sys
published = json.load(gzip.open(sys.argv[1] + "/model.safetensors.index.json.gz"))
made = json.load(open(sys.argv[2] + "/model.safetensors.index.json"))
assert set(published["weight_map"]) == set(made["weight_map"]), "names differ"
assert published["metadata"]["total_size"] == made["metadata"]["total_size"], "sizes differ"
EOF
python3 - "$day0" "$model" > "$scratch/out" 2>&1 << 'EOF' && ok "check: at most 3 s of processor time and 1 GiB, no error" || not_ok "check: time, memory or findings"
import json, resource, subprocess, sys
p = subprocess.run([sys.argv[1], "check", sys.argv[2], "--json", "--memory", "2T"], stdout=subprocess.PIPE)
r = resource.getrusage(resource.RUSAGE_CHILDREN)
d = json.loads(p.stdout)
print("%.2f s user, %.2f s system, %.2f s in all, %d MiB" % (r.ru_utime, r.ru_stime, d["seconds"], r.ru_maxrss // 1024))
print([(f["id"], f["subject"]) for f in d["findings"]])
assert r.ru_utime + r.ru_stime <= 3 and r.ru_maxrss <= 1 << 20
assert not [f for f in d["findings"] if f["severity"] == "error"]
json.dump(d["layouts"], open(sys.argv[2] + ".layouts", "w"))
EOF
# TP cuts 96 heads, 163,840 tokens, and the 3,072 values of an expert in groups of 32; EP deals out 896 experts.
python3 - "$day0" "$model" > "$scratch/out" 2>&1 << 'EOF' && ok "within that time every TP degree 1..64 and EP degree 1..896 is judged" || not_ok "layouts of TP 1..64 and EP 1..896"
import json, subprocess, sys
d = json.load(open(sys.argv[2] + ".layouts"))
tp, ep = d["tp_degrees"], d["ep_degrees"]
assert [x["tp"] for x in tp] == list(range(1, 65)) and [x["ep"] for x in ep] == list(range(1, 897))
legal = [x["tp"] for x in tp if x["legal"]]
print("TP", legal, "exact", [x["tp"] for x in tp if x["exact"]])
assert legal == [n for n in range(1, 65) if 96 % n == 0 and 163840 % n == 0 and 3072 % (32 * n) == 0]
assert [x["ep"] for x in ep if x["legal"]] == [n for n in range(1, 897) if 896 % n == 0]
for x in tp + ep:
    assert x["legal"] or not x["exact"], x
    assert (x["reason"] == "") == x["exact"], x
for n, why in ((3, "163840 values do not divide by 3"), (5, "96 heads do not divide by 5"), (7, "96 heads do not divide by 7"), (64, "96 heads do not divide by 64")):
    assert why in tp[n - 1]["reason"], tp[n - 1]
assert ep[767]["reason"] == "896 experts do not divide by 768", ep[767]
inspected = json.loads(subprocess.run([sys.argv[1], "inspect", sys.argv[2], "--json"], stdout=subprocess.PIPE).stdout)
assert all(inspected[k] == d[k] for k in ("tp_degrees", "ep_degrees")), "inspect and check differ"
EOF
# --- one layer of each kind (dense, delta rule, compressed attention) computed in 4 GiB of address space; the 896 experts of one are 15.7 GB
echo 1 5 9 4096 163839 5 9 1 > "$scratch/ids.txt"
limited() { (ulimit -v 4194304; "$@"); }
run 0 "layers 0 to 3 under 4 GiB of address space" limited "$day0" record "$model" --tokens "$scratch/ids.txt" --layers 0-3 --memory 3500M \
    -o "$scratch/k3.safetensors" --json
echo "# $(field seconds "$scratch/out") s, $(field weight_bytes "$scratch/out") bytes"
[ "$(field experts_read "$scratch/out")" = 48 ] && ok "16 experts in each of three layers were read" || not_ok "16 experts in each of three layers were read"
[ "$(field weight_bytes "$scratch/out")" -lt 7000000000 ] && ok "of 47 GB of experts less than 1 GB" || not_ok "of 47 GB of experts less than 1 GB"
says "all values are finite" '"findings": \[\]' "$scratch/out"
python3 - "$scratch/k3.safetensors" > "$scratch/out" 2>&1 << 'EOF' && ok "every kind of layer is in the trace, all rows of it" || not_ok "every kind of layer is in the trace, all rows of it"
import json, struct, sys
f = open(sys.argv[1], "rb")
n, = struct.unpack("<Q", f.read(8))
t = json.loads(f.read(n))
print(sorted(t))
for name in ("0.mlp.down_proj", "1.self_attn.delta", "1.block_sparse_moe.experts", "2.block_sparse_moe.experts", "3.self_attn.attn", "3.block_sparse_moe.experts"):
    assert t["language_model.model.layers." + name]["shape"][0] == 8, name
EOF
rm "$model/model-00017-of-00096.safetensors"
run 1 "a file of 96 is gone" "$day0" check "$model" --json --memory 2T
says "and it is named" 'model-00017-of-00096' "$scratch/out"
finish
