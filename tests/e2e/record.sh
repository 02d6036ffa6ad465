#!/bin/sh
# Traces: a model larger than the memory it may take, an interrupted run, layers by themselves.
. "$(dirname "$0")/lib.sh"
model=$root/demo/model
[ -s "$model/model.safetensors" ] || { skip "record" "no demo model"; finish; }

run 0 "a trace of a prompt" "$day0" record "$model" --text "Ada looks at the shapes" -o "$scratch/text.safetensors"
says "with logits" 'layers 0 to 3, .* probes, logits' "$scratch/out"
run 0 "a trace of the ids of a reference" "$day0" record "$model" --tokens "$root/demo/reference.safetensors" -o "$scratch/ids.safetensors" --json
[ "$(field positions "$scratch/out")" = 64 ] && ok "64 positions" || not_ok "64 positions"
[ "$(field pieces "$scratch/out")" = 6 ] && ok "embedding, four layers, head" || not_ok "embedding, four layers, head"
run 2 "layers that there are not" "$day0" record "$model" --text x --layers 2-9 -o "$scratch/x"
says "are told" 'layers 2 to 9: the model has layers 0 to 3' "$scratch/err"
run 2 "a beginning in mid-model without a trace" "$day0" record "$model" --text x --layers 2-3 -o "$scratch/x"
says "is told what it lacks" 'model.language_model.layers.1 enters layer 2.*--from' "$scratch/err"
run 2 "neither --text nor --tokens" "$day0" record "$model" -o "$scratch/x"
run 1 "a device that computes nothing" "$day0" record "$model" --text x --device null -o "$scratch/x"
[ ! -e "$scratch/x" ] && [ ! -e "$scratch/x.partial" ] && ok "nothing is left behind" || not_ok "nothing is left behind"

run 0 "the watch for overflow" "$day0" record "$model" --text "Ada looks" --watch --probes none -o "$scratch/watch.safetensors" --json
says "finds nothing here" '"first_beyond_f16": null' "$scratch/out"
[ "$(count '"f16_headroom_bits"' "$scratch/out")" = 69 ] && ok "and looked at all 69 operators" || not_ok "and looked at all 69 operators"
if command -v python3 > /dev/null; then
    cp -r "$model" "$scratch/large"
    python3 "$here/spoil.py" enlarge "$scratch/large" model.language_model.layers.0.mlp.down_proj.weight 100000 || not_ok "spoil.py enlarge"
    run 0 "a projection whose sum passes 65,504 is a warning" "$day0" record "$scratch/large" --text "Ada looks" --watch -o "$scratch/watch.safetensors"
    says "with layer and operator" 'N008 beyond-range +model.language_model.layers.0.mlp.down_proj' "$scratch/out"
    says "and by how much" 'linear of layer 0 gives .* more than the 65,504 of F16 by [0-9.]+ bits' "$scratch/out"
else
    skip "a projection whose sum passes 65,504" "python3 is not installed"
fi

# --- 2 GB of weights, 512 MiB of address space
big=$scratch/big
python3 "$root/tools/make_checkpoint.py" llama "$big" --hidden 1024 --intermediate 4096 --heads 16 --kv-heads 4 --head-dim 64 --vocab 8192 \
    --layers 64 --dtype BF16 --shards 8 --fill sparse > "$scratch/made" 2>&1 || { skip "a model larger than memory" "python3 is not installed"; finish; }
echo 1 5 9 4096 8191 5 9 1 > "$scratch/ids.txt"
limited() { (ulimit -v 524288; "$@"); }
run 0 "2 GB of weights under 512 MiB of address space" limited "$day0" record "$big" --tokens "$scratch/ids.txt" --probes layers -o "$scratch/big.safetensors" --json
[ "$(field weight_bytes "$scratch/out")" -gt 1900000000 ] && ok "every layer was read" || not_ok "every layer was read"
[ "$(field weight_bytes "$scratch/out")" -lt 1970000000 ] && ok "once, and the embedding only where it was used" || not_ok "once"

"$day0" record "$big" --tokens "$scratch/ids.txt" --probes layers -o "$scratch/killed.safetensors" > /dev/null 2>&1 &
victim=$!
children="$children $victim"
for _ in $(seq 1 300); do [ -s "$scratch/killed.safetensors.state" ] && break; sleep 0.05; done
kill -9 "$victim" 2> /dev/null
wait "$victim" 2> /dev/null
if [ -s "$scratch/killed.safetensors.state" ]; then
    run 1 "another prompt does not take it over" "$day0" record "$big" --text "other" --probes layers -o "$scratch/killed.safetensors"
    says "and says so" 'nothing of it is used.*--fresh' "$scratch/err"
    run 0 "a killed run goes on" "$day0" record "$big" --tokens "$scratch/ids.txt" --probes layers -o "$scratch/killed.safetensors" --json
    [ "$(field pieces_resumed "$scratch/out")" -gt 0 ] && ok "where it stopped" || not_ok "where it stopped"
    cmp -s "$scratch/big.safetensors" "$scratch/killed.safetensors" && ok "to the same trace" || not_ok "to the same trace"
    [ ! -e "$scratch/killed.safetensors.state" ] && ok "and its state is gone" || not_ok "and its state is gone"
else
    skip "a killed run goes on" "it was done before it was killed"
fi
finish
