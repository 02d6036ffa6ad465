#!/bin/sh
# Wrong usage and hostile files get a clear error and the right exit status; nothing crashes or hangs.
. "$(dirname "$0")/lib.sh"
model=$scratch/model
python3 "$root/tools/make_checkpoint.py" llama "$model" --hidden 64 --intermediate 128 --layers 2 --heads 4 --kv-heads 2 --head-dim 16 \
    --vocab 384 --dtype F32 --shards 1 --max-positions 64 --fill hash --seed 1 > /dev/null || { skip "bad input" "python3 is not installed"; finish; }
run 2 "no arguments" "$day0"
run 2 "unknown command" "$day0" chekc
says "names the nearest" "did you mean 'check'" "$scratch/err"
for c in check inspect adapt serve ops; do
    run 2 "$c: no such directory" timeout 20 "$day0" $c "$scratch/nowhere"
    says "$c: says which" "$scratch/nowhere" "$scratch/err"
done
run 2 "run: no such directory" "$day0" run "$scratch/nowhere" -p hello
run 2 "a file is no model directory" "$day0" check "$model/config.json"
run 2 "unknown option" "$day0" check "$model" --frobnicate
run 2 "nonsense number" "$day0" run "$model" -p x --max-tokens banana
says "says what it wants" "whole number" "$scratch/err"
run 2 "a waiver without reason" "$day0" check "$model" --waive W003

copy() { rm -rf "$scratch/copy"; cp -r "$model" "$scratch/copy"; }
copy; rm "$scratch/copy/config.json"
run 1 "adapt: no config.json" "$day0" adapt "$scratch/copy" --out "$scratch/r1"
says "names the finding" "C001" "$scratch/out"
copy; echo 'not json' > "$scratch/copy/config.json"
run 1 "run: config that is not JSON" "$day0" run "$scratch/copy" -p hello
copy; sed -i 's/LlamaForCausalLM/LlamoForCausalLM/; s/"model_type": *"llama"/"model_type": "llamo"/' "$scratch/copy/config.json"
run 1 "unknown architecture" "$day0" check "$scratch/copy"
says "names the nearest known one" "LlamaForCausalLM" "$scratch/out"
says "with C003" "C003" "$scratch/out"

echo 'while true do end' > "$scratch/endless.lua"
run 1 "an arch file that loops for ever" timeout 60 "$day0" check "$model" --arch "$scratch/endless.lua"
says "is stopped by its limit" "C007.*|instructions|time" "$scratch/out"
echo 'local t, i = {}, 1 while true do t[i] = {i, i, i, i, i, i, i, i} i = i + 1 end' > "$scratch/greedy.lua"
run 1 "an arch file that eats memory" timeout 60 "$day0" check "$model" --arch "$scratch/greedy.lua"
says "is stopped by its limit" "C007" "$scratch/out"
run 2 "an arch file that is not there" "$day0" check "$model" --arch "$scratch/none.lua"

long=$(printf 'word %.0s' $(seq 1 200))
run 2 "a prompt longer than the context" "$day0" run "$model" -p "$long"
says "says both numbers" "tokens, the context holds 64" "$scratch/err"
run 2 "an empty prompt is refused by no crash" "$day0" run "$model" -p "$long" --json
says "also as JSON" '"error"' "$scratch/out"

serve "$model"
port=${url##*:}
run 3 "a port in use" timeout 20 "$day0" serve "$model" --port "$port"
says "says which" "127.0.0.1:$port" "$scratch/err"
run 3 "stress: nobody listens" timeout 30 "$day0" stress http://127.0.0.1:9
mkdir "$scratch/mine"; echo precious > "$scratch/mine/index.html"
run 2 "adapt: refuses to write into a directory that is not its own" "$day0" adapt "$model" --out "$scratch/mine"
grep -q precious "$scratch/mine/index.html" && ok "and nothing there was touched" || not_ok "and nothing there was touched"
finish
