#!/bin/sh
# The main job on a real trained model (from the material, where present) and on the demo model that ships.
. "$(dirname "$0")/lib.sh"
for dir in stories260K-hf stories260K-hf-5shards; do
    model=$material/models/$dir
    if [ ! -d "$model" ]; then skip "$dir" "no material at $material"; continue; fi
    ref=$scratch/reference.safetensors
    numbers=$material/numerics/stories260K
    python3 "$root/tools/make_reference.py" --ids "$numbers/greedy_bos_256.ids.txt" --logits "$numbers/greedy_bos_256.logits.f32" \
        --vocab 512 --prompt-tokens 1 --greedy --producer "llama2.c" -o "$ref" > /dev/null || { skip "$dir" "python3 is not installed"; continue; }
    begin=$(date +%s)
    run 0 "$dir: adapt with a reference passes" "$day0" adapt "$model" --reference "$ref" --out "$scratch/$dir" --json
    seconds=$(($(date +%s) - begin))
    [ "$seconds" -lt 30 ] && ok "$dir: in $seconds s (under 30)" || not_ok "$dir: under 30 s" "$seconds"
    says "$dir: verdict pass" '"verdict": "pass"' "$scratch/out"
    if grep -q 'set apart for pictures' "$scratch/$dir/report.json"; then not_ok "$dir: no room for pictures"; else ok "$dir: no room for pictures"; fi
    [ -s "$scratch/$dir/index.html" ] && [ -s "$scratch/$dir/report.json" ] && ok "$dir: report written" || not_ok "$dir: report written"
    if grep -Eq 'src="http|href="http' "$scratch/$dir/index.html"; then not_ok "$dir: the page is self-contained"; else ok "$dir: the page is self-contained"; fi
    run 0 "$dir: a second run resumes" "$day0" adapt "$model" --reference "$ref" --out "$scratch/$dir"
    says "$dir: and says so" 'resumed' "$scratch/out"
    run 4 "$dir: without a reference the exit status is 4" "$day0" adapt "$model" --out "$scratch/$dir-none" --requests 4
    says "$dir: and the numerical row is self-consistent" 'self-consistent +Numerical' "$scratch/out"
    run 0 "$dir: accepted with a reason it passes with waivers" "$day0" adapt "$model" --out "$scratch/$dir-none" --requests 4 --accept numerics="no reference yet"
    says "$dir: and says so" 'pass with waivers' "$scratch/out"
    run 2 "$dir: an unknown row is wrong usage" "$day0" adapt "$model" --out "$scratch/$dir-none" --accept weather=sunny
done
run 0 "demo: adapt passes with its references" "$day0" adapt "$root/demo/model" --reference "$root/demo/reference.safetensors" \
    --picture-reference "$root/demo/pictures.safetensors" --questions "$root/demo/questions.json" --out "$scratch/demo" --json
says "demo: verdict pass" '"verdict": "pass"' "$scratch/out"
says "demo: room for pictures is told beside what is predicted" '[0-9.]+ MB predicted and [0-9.]+ [MG]B set apart for pictures that wait, ' "$scratch/demo/report.json"
predicted=$(sed -n 's/.*"summary": "\(.*B predicted\) and .* set apart .*/\1/p' "$scratch/demo/report.json")
says "demo: and the memory row holds the peak against the same figure" "measured under load \(VmHWM\), ${predicted:-nothing} \(plan\)" "$scratch/demo/report.json"
says "demo: errors by position are in the report" '"decode_identical": ?true' "$scratch/demo/report.json"
says "demo: and on its page" 'Errors by position' "$scratch/demo/index.html"
first=$(grep -m1 '"picture": "pictures/q01.png"' "$root/demo/questions.json")
question=$(echo "$first" | sed 's/.*"question": "\([^"]*\)".*/\1/') answer=$(echo "$first" | sed 's/.*"answer": "\([^"]*\)".*/\1/')
run 1 "demo: with room for less than its weights" "$day0" adapt "$root/demo/model" --memory 800000 --out "$scratch/tight" --requests 2
says "demo: positions are not run, and the report says why" 'not run: .* of weights would be read three times' "$scratch/tight/report.json"
run 0 "demo: run answers" "$day0" run "$root/demo/model" -p "Ada looks at the shapes on the table." -n 24 --json
says "demo: with text" '"text": ".*There is .* and ' "$scratch/out"
run 0 "demo: run answers about a picture" "$day0" run "$root/demo/model" -p "$question" --image "$root/demo/pictures/q01.png" -n 8 --json
says "demo: rightly" "\"text\": \"$answer\"" "$scratch/out"
run 0 "demo: and about another" "$day0" run "$root/demo/model" -p "$question" --image "$root/demo/pictures/q02.png" -n 8 --json
if grep -q "\"text\": \"$answer\"" "$scratch/out"; then not_ok "demo: otherwise"; else ok "demo: otherwise"; fi
run 0 "demo: inspect" "$day0" inspect "$root/demo/model" --json
run 0 "demo: ops at the model's shapes" "$day0" ops "$root/demo/model" --json
run 0 "env" "$day0" env --json
finish
