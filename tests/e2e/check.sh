#!/bin/sh
# `day0 check` on an intact directory and on copies with one fault each: one finding each, with its identifier, file and tensor.
. "$(dirname "$0")/lib.sh"

model=$scratch/model
"$day0" --version > /dev/null || { not_ok "the program runs"; finish; }
python3 "$root/tools/make_checkpoint.py" llama "$model" --hidden 64 --intermediate 128 --layers 3 --heads 4 --kv-heads 2 \
    --head-dim 16 --vocab 384 --dtype F32 --shards 3 --fill hash --seed 1 > /dev/null || { skip "check" "python3 is not installed"; finish; }
run 0 "an intact directory passes" "$day0" check "$model" --json
says "its verdict is pass" '"verdict": "pass"' "$scratch/out"
[ "$(count '"id":' "$scratch/out")" = 0 ] && ok "and no finding is made" || not_ok "and no finding is made"
for key in verdict findings seconds layouts; do says "--json has $key" "\"$key\":" "$scratch/out"; done

[ "$(count '"tp":' "$scratch/out")" = 64 ] && ok "and a line for each TP degree" || not_ok "and a line for each TP degree"
run 0 "in words" "$day0" check "$model"
says "the layouts in a line" '^layouts: 64 degrees judged; TP exact 1, 2; TP not exact 4$' "$scratch/out"
run 0 "inspect in words" "$day0" inspect "$model"
says "exact degrees in a line" '^  exact +1, 2$' "$scratch/out"
says "what is possible, and why it is not exact" '^  not exact +4: self_attn.o_proj is summed in 2 x 32 values$' "$scratch/out"
says "degrees that fail alike in another, runs of them as ranges" '^  not possible +3, 5-64: 4 heads with 2 kv heads do not divide$' "$scratch/out"

# fault NAME ID SUBJECT-PATTERN COMMAND : a copy, the fault planted by the command in its directory, exactly one finding
fault() {
    copy=$scratch/copy
    rm -rf "$copy"
    cp -r "$model" "$copy"
    (cd "$copy" && eval "$4")
    run 1 "$1: exit status 1" "$day0" check "$copy" --json
    [ "$(count '"id":' "$scratch/out")" = 1 ] && ok "$1: one finding" || not_ok "$1: one finding"
    says "$1: it is $2" "\"id\": \"$2\"" "$scratch/out"
    says "$1: it names the subject" "$3" "$scratch/out"
}
shard=model-00002-of-00003.safetensors
fault "shard deleted" W002 "$shard" "rm $shard"
fault "shard truncated by one byte" W003 "$shard" "truncate -s -1 $shard"
fault "index names an absent tensor" W007 "model.layers.9.self_attn.q_proj.weight" \
    "sed -i '0,/\"weight_map\": *{/s//&\"model.layers.9.self_attn.q_proj.weight\": \"$shard\",/' model.safetensors.index.json"
fault "tensor of a wrong shape" W010 "mlp.up_proj.weight" \
    "sed -i 's/\"intermediate_size\": *128/\"intermediate_size\": 128/' config.json; python3 $root/tests/e2e/reshape.py . model.layers.1.mlp.up_proj.weight"
fault "shard is a git-LFS pointer" W017 "$shard" \
    "printf 'version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n' > $shard"
fault "config.json is not JSON" C002 "config.json" "echo '{\"hidden_size\": ' > config.json"
fault "no config.json" C001 "config.json" "rm config.json"

copy=$scratch/copy
rm -rf "$copy"
cp -r "$model" "$copy"
truncate -s -1 "$copy/$shard"
run 0 "a waived finding passes" "$day0" check "$copy" --waive W003=known --json
says "and its reason is recorded" 'known' "$scratch/out"

for dir in stories260K-hf stories260K-hf-5shards; do
    if [ -d "$material/models/$dir" ]; then
        run 0 "$dir passes" "$day0" check "$material/models/$dir" --json
        [ "$(count '"id":' "$scratch/out")" = 0 ] && ok "$dir: no finding" || not_ok "$dir: no finding"
    else
        skip "$dir" "no material at $material"
    fi
done
finish
