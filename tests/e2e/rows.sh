#!/bin/sh
# Every row of the checklist: what it checks is broken, and it turns red. The intact demo model is the control.
. "$(dirname "$0")/lib.sh"
model=$root/demo/model
reference=$root/demo/reference.safetensors
pictures=$root/demo/pictures.safetensors
command -v python3 > /dev/null || { skip "rows" "python3 is not installed"; finish; }
[ -s "$model/model.safetensors" ] || { skip "rows" "no demo model"; finish; }
report=$scratch/report

# row NAME KEY STATE : the state of one row in the report
row() {
    state=$(grep -A2 "\"row\": \"$2\"" "$report/report.json" | sed -n 's/.*"state": "\(.*\)",/\1/p')
    if [ "$state" = "$3" ]; then ok "$1: row $2 is $3"; else not_ok "$1: row $2 is $3" "it is '$state'"; fi
}
# adapt STATUS NAME ARGS... : with a fresh directory
adapt() {
    want=$1 name=$2
    shift 2
    rm -rf "$report"
    run "$want" "$name: exit status $want" "$day0" adapt "$@" --out "$report" --requests 2
}
copy() { rm -rf "$scratch/copy"; cp -r "$model" "$scratch/copy"; }
edit() { python3 "$here/spoil.py" "$@" || not_ok "spoil.py $1"; }

adapt 0 "intact" "$model" --reference "$reference" --picture-reference "$pictures" --questions "$root/demo/questions.json"
for key in environment weights memory communication numerics text image service; do row "intact" $key passed; done
# the prediction is what the service set aside: from the stage's facts, PART of `predicted` and of `held`
part() { sed -n "/\"$1\": {/,/}/s/^ *\"$2\": \([0-9]*\),*\$/\1/p" "$report/report.json" | head -1; }
for key in kv device; do
    a=$(part predicted $key) b=$(part held $key)
    [ -n "$a" ] && [ "$a" = "$b" ] && ok "intact: $key held as predicted" || not_ok "intact: $key held as predicted" "predicted '$a', held '$b'"
done
[ "$(part predicted device)" -gt 0 ] && ok "intact: the device's kernels count" || not_ok "intact: the device's kernels count"
# pictures that wait are in the total, and not in what a peak is held against
sum=0
for key in weights kv scratch device pictures pictures_waiting staging fixed; do sum=$((sum + $(part predicted $key))); done
[ "$(part predicted pictures_waiting)" -gt 0 ] && [ "$(part predicted total)" = $sum ] && ok "intact: what waits is in the total" ||
    not_ok "intact: what waits is in the total" "total $(part predicted total), its parts $sum"
held=$((sum - $(part predicted pictures_waiting)))
[ "$(part measured allowed)" = $((held + held / 20 * 3 + 67108864)) ] && ok "intact: a peak is held against the rest" ||
    not_ok "intact: a peak is held against the rest" "allowed $(part measured allowed), the rest $held"

# stage 1: the matrix of operators and the version rules
plugin=$(find "$build/tests/plugins" -name 'liblacking_device.so' 2> /dev/null | head -1)
if [ -n "$plugin" ]; then
    adapt 1 "one operator is lacking" "$model" --reference "$reference" --device "$plugin"
    row "one operator is lacking" environment failed
    row "one operator is lacking" numerics "not checked"
    row "one operator is lacking" weights passed
    says "one operator is lacking: which" '"subject": "attention"' "$report/report.json"
    [ "$(count '"supported": false' "$report/report.json")" = 1 ] && ok "one operator is lacking: no other" || not_ok "one operator is lacking: no other"
    says "one operator is lacking: the page says no" 'class="badge bad"><i aria-hidden="true">.*</i>no</span>' "$report/index.html"
else
    skip "one operator is lacking" "the plugin was not built"
fi
# a device that runs every text and no tower: what it does not compute is not checked, and nobody is to blame
# sightless NAME : what the last adapt says of pictures, text and the service
sightless() {
    row "$1" image "not checked"
    says "$1: why" '"evidence": "not checked: .*segments are not on this device"' "$report/report.json"
    for key in numerics text service; do row "$1" $key passed; done
    [ "$(count '"id": ' "$report/report.json")" = 0 ] && ok "$1: no finding" || not_ok "$1: no finding"
}
sightless=$(find "$build/tests/plugins" -name 'libsightless_device.so' 2> /dev/null | head -1)
if [ -n "$sightless" ]; then
    adapt 4 "no tower here" "$model" --reference "$reference" --picture-reference "$pictures" --device "$sightless"
    sightless "no tower here"
    row "no tower here" environment passed
    adapt 4 "no tower here, nothing recorded" "$model" --reference "$reference" --questions "$root/demo/questions.json" --device "$sightless"
    sightless "no tower here, nothing recorded"
else
    skip "no tower here" "the plugin was not built"
fi
# stage 2: fusions, each against what it stands for
# fusion NAME KEY : the value of a key of one fusion in the report
fusion() { sed -n "/\"name\": \"$1\"/,/}/p" "$report/report.json" | sed -n "s/^ *\"$2\": *\"\{0,1\}\([^\",]*\).*/\1/p" | head -1; }
# same NAME GOT WANTED
same() { if [ "$2" = "$3" ]; then ok "$1"; else not_ok "$1" "got '$2', expected '$3'"; fi; }
adapt 0 "fusions" "$model" --reference "$reference" --picture-reference "$pictures"
for f in qkv gate_up norm_residual norm_rope_store; do
    same "fusions: $f is on" "$(fusion $f on)" true
    same "fusions: $f gave the same bits" "$(fusion $f measured)" 0.0
done
says "fusions: the page shows them" 'norm_residual</td>.*</i>on</span>' "$report/index.html"
adapt 0 "fusions: one is asked for" "$model" --reference "$reference" --picture-reference "$pictures" --fuse qkv
same "fusions: asked for, on" "$(fusion qkv on)" true
same "fusions: not asked for, off" "$(fusion gate_up on)" false
same "fusions: not asked for, accepted all the same" "$(fusion gate_up accepted)" true
run 2 "fusions: a name that is none" "$day0" adapt "$model" --fuse q_k_v --out "$report"
says "fusions: the known ones are named" 'norm_rope_store' "$scratch/out" "$scratch/err"
plugin=$(find "$build/tests/plugins" -name 'libfusion_device.so' 2> /dev/null | head -1)
if [ -n "$plugin" ]; then
    adapt 0 "a wrong fused kernel" "$model" --reference "$reference" --picture-reference "$pictures" --device "$plugin"
    says "a wrong fused kernel: N010 names it" '"id": "N010"' "$report/report.json"
    same "a wrong fused kernel: not accepted" "$(fusion norm_residual accepted)" false
    same "a wrong fused kernel: off" "$(fusion norm_residual on)" false
    same "a wrong fused kernel: one that the device does not run is off" "$(fusion norm_rope_store on)" false
    same "a wrong fused kernel: the others are on" "$(fusion gate_up on)" true
    for key in numerics text service; do row "a wrong fused kernel" $key passed; done
    says "a wrong fused kernel: the service runs without it" 'fusions: qkv,gate_up,expert_grouping;' "$report/service.log"
    says "a wrong fused kernel: the page says so" 'norm_residual</td>.*</i>failed</span>' "$report/index.html"
else
    skip "a wrong fused kernel" "the plugin was not built"
fi

# rules SEVERITY COMPONENT NEEDS [PACKAGE_NEEDS]
rules() {
    printf '{"format": "day0-compat", "version": 1, "rules": [{"id": "a-test", "component": "%s", "needs": "%s", %s' "$2" "$3" \
        "${4:+\"package_needs\": \"$4\", }"
    printf '"severity": "%s", "reason": "a test", "source": "none"}]}\n' "$1"
}
rules error kernel ">= 99" > "$scratch/rules.json"
adapt 1 "a violated rule" "$model" --reference "$reference" --rules "$scratch/rules.json"
row "a violated rule" environment failed
row "a violated rule" numerics passed
says "a violated rule: P002 in the report" '"id": "P002"' "$report/report.json"
says "a violated rule: it is judged" '"state": "violated"' "$report/report.json"
says "a violated rule: what was found" '"seen": "kernel Linux' "$report/report.json"
says "a violated rule: the page shows it" 'a-test</td><td>kernel &gt;= 99</td>.*</i>violated</span>' "$report/index.html"
adapt 0 "a violated rule, waived" "$model" --reference "$reference" --picture-reference "$pictures" --rules "$scratch/rules.json" --waive P002=known
row "a violated rule, waived" environment failed
rules warning kernel ">= 99" > "$scratch/rules.json"
adapt 0 "a violated rule that only warns" "$model" --reference "$reference" --picture-reference "$pictures" --rules "$scratch/rules.json"
row "a violated rule that only warns" environment passed
says "a violated rule that only warns: the row names it" '"evidence": ".*; violated: warning a-test \(kernel ' "$report/report.json"
says "a violated rule that only warns: P002 in the report" '"id": "P002"' "$report/report.json"
rules error kernel ">= 1" > "$scratch/rules.json"
adapt 0 "a rule that holds" "$model" --reference "$reference" --picture-reference "$pictures" --rules "$scratch/rules.json"
row "a rule that holds" environment passed
run 1 "rules that are none" "$day0" adapt "$model" --out "$scratch/none" --rules "$model/config.json"
run 2 "a capture without --service" "$day0" adapt "$model" --out "$scratch/none" --root "$root/tests/captures/good.json"

# stage 1 and 2: the weights
copy; truncate -s -1 "$scratch/copy/model.safetensors"
adapt 1 "one byte short" "$scratch/copy" --reference "$reference"
row "one byte short" weights failed
says "one byte short: W003 in the report" '"id": "W003"' "$report/report.json"
copy; rm "$scratch/copy/model.safetensors"
adapt 1 "shard deleted" "$scratch/copy"
row "shard deleted" weights failed
row "shard deleted" numerics "not checked"
row "shard deleted" service "not checked"
copy
(cd "$scratch/copy" && sha256sum model.safetensors > SHA256SUMS)
adapt 0 "a shard and its hash" "$scratch/copy" --reference "$reference" --picture-reference "$pictures"
row "a shard and its hash" weights passed
edit weight "$scratch/copy"
adapt 1 "a shard that was altered" "$scratch/copy" --reference "$reference"
row "a shard that was altered" weights failed
says "a shard that was altered: W018 in the report" '"id": "W018"' "$report/report.json"
row "a shard that was altered" environment passed
copy; edit nan "$scratch/copy"
adapt 1 "a NaN in the weights" "$scratch/copy"
row "a NaN in the weights" weights failed
[ "$(count '"id": ' "$report/report.json")" = 1 ] && ok "a NaN in the weights: one finding" || not_ok "a NaN in the weights: one finding"
says "a NaN in the weights: W016 with the tensor" '"subject": "model.language_model.layers.3' "$report/report.json"
row "a NaN in the weights" numerics "not checked"

adapt 1 "1 MB of memory" "$model" --reference "$reference" --memory 1M
row "1 MB of memory" memory failed
row "1 MB of memory" service "not checked"
says "1 MB of memory: needs and has" 'needs .*B, has 1.00 MB' "$report/report.json"

# a device whose kernels hold 200 MB: one that says so before, and one that does not. Neither computes, so other rows fail
for device in telling quiet; do
    plugin=$(find "$build/tests/plugins" -name "lib${device}_device.so" 2> /dev/null | head -1)
    if [ -z "$plugin" ]; then skip "a $device device" "the plugin was not built"; continue; fi
    adapt 1 "a $device device" "$model" --reference "$reference" --device "$plugin"
    if [ $device = telling ]; then
        row "a telling device" memory passed
        says "a telling device: predicted, for text and tower" '"device": 400000000' "$report/report.json"
    else
        row "a quiet device" memory failed
        says "a quiet device: M002" '"id": "M002"' "$report/report.json"
        says "a quiet device: the source says what is missing" 'does not say what its kernels need' "$report/report.json"
    fi
done

plugin=$(find "$build/tests/plugins" -name 'libbad_comm.so' 2> /dev/null | head -1)
if [ -n "$plugin" ]; then
    adapt 1 "wrong communicator" "$model" --reference "$reference" --comm "$plugin"
    row "wrong communicator" communication failed
    row "wrong communicator" numerics passed
else
    skip "wrong communicator" "the plugin was not built"
fi

edit reference "$reference" "$scratch/wrong.safetensors"
adapt 1 "wrong reference" "$model" --reference "$scratch/wrong.safetensors"
row "wrong reference" numerics failed
copy; edit weight "$scratch/copy"
adapt 1 "a flipped weight" "$scratch/copy" --reference "$reference"
row "a flipped weight" numerics failed
row "a flipped weight" weights passed

copy; edit shuffle "$scratch/copy"
adapt 1 "vocabulary shuffled" "$scratch/copy" --reference "$reference"
row "vocabulary shuffled" text failed
says "vocabulary shuffled: T005 in the report" '"id": "T005"' "$report/report.json"
copy; edit bos "$scratch/copy"
adapt 1 "BOS twice" "$scratch/copy" --reference "$reference"
row "BOS twice" text failed
says "BOS twice: T006 in the report" '"id": "T006"' "$report/report.json"

adapt 1 "a device that computes nothing" "$model" --device null
row "a device that computes nothing" numerics "not checked"
row "a device that computes nothing" text failed
row "a device that computes nothing" image "not checked"
says "a device that computes nothing: why" '"evidence": "not checked: the device does not compute' "$report/report.json"
adapt 1 "a device that computes nothing, pictures recorded" "$model" --picture-reference "$pictures" --device null
row "a device that computes nothing, pictures recorded" image "not checked"
says "a device that computes nothing, pictures recorded: why" '"evidence": "not checked: the device does not compute' "$report/report.json"

# What this build has no kernels for is one finding, and no fault of the weights: integers of three bits are described, and no format holds them.
python3 - "$root" "$day0" "$scratch" << 'EOF'
import sys
sys.path.insert(0, sys.argv[1] + "/tests/faults")
import bases
weights = {"num_bits": 3, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
bases.CONFIGS["odd"] = dict(bases.CONFIGS["llama"], quantization_config=dict(
    bases.INT4, ignore=["lm_head"], config_groups={"g": {"targets": ["Linear"], "weights": weights}}))
bases.make("odd", sys.argv[3] + "/odd", sys.argv[1] + "/tools/make_checkpoint.py", sys.argv[2])
EOF
run 0 "not computed here: check passes" "$day0" check "$scratch/odd" --json --memory 1T
says "and says so as information" '"id": "P005"' "$scratch/out"
adapt 1 "not computed here" "$scratch/odd"
row "not computed here" weights passed
row "not computed here" environment failed
row "not computed here" numerics "not checked"
row "not computed here" service "not checked"
python3 - "$report/report.json" > "$scratch/out" 2>&1 << 'EOF' && ok "not computed here: one finding for it" || not_ok "not computed here: one finding for it"
import json, sys
errors = [f for f in json.load(open(sys.argv[1]))["findings"] if f["severity"] == "error"]
print([(f["id"], f["subject"], f["evidence"]) for f in errors])
told = [f for f in errors if f["id"] == "P005"]
assert len(told) == 1
assert errors == told
EOF
run 1 "not computed here: run refuses" "$day0" run "$scratch/odd" -p x
says "run says why" 'P005 not-computed-here' "$scratch/out"
run 1 "not computed here: serve refuses" "$day0" serve "$scratch/odd" --port 0
says "serve says why" 'P005 not-computed-here' "$scratch/err"
run 3 "not computed here: stress cannot start it" "$day0" stress "$scratch/odd" --requests 1
says "stress says why" 'P005 not-computed-here' "$scratch/err"

adapt 4 "no recorded pictures" "$model" --reference "$reference"
row "no recorded pictures" image self-consistent
cp -r "$root/demo/pictures" "$scratch/pictures"
sed 's/"answer": "[^"]*"/"answer": "nothing"/' "$root/demo/questions.json" > "$scratch/wrong.json"
adapt 1 "known answers that are wrong" "$model" --reference "$reference" --picture-reference "$pictures" --questions "$scratch/wrong.json"
row "known answers that are wrong" image failed
row "known answers that are wrong" text passed
says "known answers that are wrong: I010 in the report" '"id": "I010"' "$report/report.json"

# broken [SECONDS] : a server that breaks the rules, and loads so long
broken() {
    rm -f "$scratch/broken.port"
    python3 "$here/broken_server.py" "$scratch/broken.port" "$@" &
    children="$children $!"
    for _ in $(seq 1 100); do [ -s "$scratch/broken.port" ] && break; sleep 0.1; done
}
broken 1000
adapt 1 "server that loads for ever" "$model" --service "http://127.0.0.1:$(cat "$scratch/broken.port")" --answer-timeout 2
row "server that loads for ever" service failed
row "server that loads for ever" text "not checked"
says "server that loads for ever: it is said" 'GET /health: still status 503 after [2-9] s' "$report/report.json"
broken 3
adapt 1 "server that loads" "$model" --service "http://127.0.0.1:$(cat "$scratch/broken.port")"
says "server that loads: it is waited for" '"seconds_to_ready": ?[2-9]' "$report/report.json"
says "server that loads: and judged" '"summary": "[^"]*the server answers"' "$report/report.json"
broken
adapt 1 "broken server" "$model" --reference "$reference" --service "http://127.0.0.1:$(cat "$scratch/broken.port")"
row "broken server" service failed
row "broken server" memory "not checked"
adapt 1 "no server there" "$model" --service http://127.0.0.1:9
row "no server there" service failed
row "no server there" text "not checked"
serve "$model"
adapt 4 "a good server elsewhere" "$model" --reference "$reference" --picture-reference "$pictures" --service "$url"
row "a good server elsewhere" service passed
row "a good server elsewhere" text passed
if [ -n "$sightless" ]; then # the server sees, the examiner does not
    adapt 4 "a good server elsewhere, no tower here" "$model" --reference "$reference" --picture-reference "$pictures" --service "$url" --device "$sightless"
    sightless "a good server elsewhere, no tower here"
fi
# the server's machine, captured: its rules count, and what nobody knows does not pass
captured() {
    adapt "$1" "$2" "$model" --reference "$reference" --picture-reference "$pictures" --service "$url" --root "$root/tests/captures/$3.json"
    row "$2" environment "$4"
    says "$2: the report names the capture" "\"machine\": \".*$3.json\"" "$report/report.json"
}
captured 4 "a good server's machine" good passed
captured 1 "a server with an old driver" old-driver failed
captured 4 "a server of unknown versions" unknown-versions "not checked"
says "a server of unknown versions: which rule" 'not known: .*cuda13-driver \(nvidia driver of unknown version\)' "$report/report.json"

# resume: the same again is taken over; a changed weight, another option and --fresh are not
copy
adapt 0 "first run" "$scratch/copy" --reference "$reference" --picture-reference "$pictures"
again() { run "$1" "$2: exit status $1" "$day0" adapt "$scratch/copy" --reference "$reference" --picture-reference "$pictures" --out "$report" --requests 2 $3; }
again 0 "unchanged" ""
[ "$(count 'resumed' "$scratch/out")" = 5 ] && ok "unchanged: five stages resumed" || not_ok "unchanged: five stages resumed"
again 0 "--fresh" "--fresh"
[ "$(count 'resumed' "$scratch/out")" = 0 ] && ok "--fresh: none resumed" || not_ok "--fresh: none resumed"
again 0 "another context" "--context 256"
[ "$(count 'resumed' "$scratch/out")" = 2 ] && ok "another context: stages 1 and 2 resumed" || not_ok "another context: stages 1 and 2 resumed"
edit weight "$scratch/copy"
again 1 "a weight flipped behind the same header" ""
[ "$(count 'resumed' "$scratch/out")" = 0 ] && ok "a flipped weight: none resumed" || not_ok "a flipped weight: none resumed"
again 1 "and once more" ""
[ "$(count 'stage 2.*resumed' "$scratch/out")" = 0 ] && ok "a failed stage is not resumed" || not_ok "a failed stage is not resumed"
echo '{"key": "x"' > "$report/stages/1.json"
again 1 "a stored stage that is no JSON runs again" ""
finish
