#!/bin/sh
# Two traces, a trace and a model: the first probe or operator that went wrong is named, with the exit status of a failed check.
. "$(dirname "$0")/lib.sh"
model=$root/demo/model
reference=$root/demo/reference.safetensors
[ -s "$model/model.safetensors" ] || { skip "compare" "no demo model"; finish; }

"$day0" record "$model" --tokens "$reference" -o "$scratch/good.safetensors" > /dev/null || not_ok "record"
"$day0" record "$model" --tokens "$reference" --cpu ref -o "$scratch/ref.safetensors" > /dev/null || not_ok "record --cpu ref"
run 0 "a trace agrees with another engine's" "$day0" compare "$reference" "$scratch/good.safetensors"
says "probes and logits" '10 probes right, 0 wrong' "$scratch/out"
says "best tokens" 'best token agrees at 100.0 %' "$scratch/out"
run 0 "the same against the model itself" "$day0" compare "$reference" "$model" --json
[ "$(field right "$scratch/out")" = 10 ] && ok "ten spans are right" || not_ok "ten spans are right"
says "what a span is made of" '"operators": "9 operators from linear to linear"' "$scratch/out"
run 0 "fast kernels against the definitions" "$day0" compare "$scratch/ref.safetensors" "$scratch/good.safetensors"
says "that is self-consistent" 'self-consistent' "$scratch/out"

command -v python3 > /dev/null || { skip "a flipped weight" "python3 is not installed"; finish; }
cp -r "$model" "$scratch/copy"
python3 "$here/spoil.py" weight "$scratch/copy" || not_ok "spoil.py weight"
"$day0" record "$scratch/copy" --tokens "$reference" -o "$scratch/bad.safetensors" > /dev/null || not_ok "record"
run 1 "a flipped weight: the traces part" "$day0" compare "$scratch/good.safetensors" "$scratch/bad.safetensors" --json
first=$(field first_wrong "$scratch/out")
says "it is N001" '"id": "N001"' "$scratch/out"
[ "$(count '"id":' "$scratch/out")" = 1 ] && ok "one finding" || not_ok "one finding"
run 1 "and the operator is named" "$day0" compare "$scratch/good.safetensors" "$scratch/copy" --json
says "it is N007" '"id": "N007"' "$scratch/out"
[ "$(field first_wrong "$scratch/out")" = "$first" ] && ok "the same probe: $first" || not_ok "the same probe" "$first"
[ "$(field wrong "$scratch/out")" = 1 ] && ok "one operator only: what follows was fed what is right" || not_ok "one operator only"
run 0 "waived" "$day0" compare "$scratch/good.safetensors" "$scratch/copy" --waive N007=known

# --- what another tool dumped: .npy files and a map
mkdir "$scratch/dump"
python3 - "$reference" "$scratch/dump" > "$scratch/out" 2>&1 << 'PY' || not_ok "writing .npy files"
import json, struct, sys
with open(sys.argv[1], "rb") as f:
    n = struct.unpack("<Q", f.read(8))[0]
    header = json.loads(f.read(n))
    names = {}
    for i, (name, t) in enumerate((k, v) for k, v in header.items() if k != "__metadata__"):
        f.seek(8 + n + t["data_offsets"][0])
        data = f.read(t["data_offsets"][1] - t["data_offsets"][0])
        theirs = "layer_%02d" % int(name[-1]) if name[:-1] == "model.language_model.layers." else "array%d" % i
        shape = t["shape"] if name == "token_ids" else [1] + t["shape"]
        head = "{'descr': '%s', 'fortran_order': False, 'shape': (%s,), }" % ({"F32": "<f4", "I32": "<i4", "I64": "<i8"}[t["dtype"]],
                                                                           ", ".join(map(str, shape)))
        head = head.encode().ljust(118) + b"\n"
        with open("%s/%s.npy" % (sys.argv[2], theirs), "wb") as out:
            out.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + data)
        if name == "token_ids":
            ids = theirs
        elif theirs[0] == "a":
            names[theirs] = name
    names["layer_%d"] = "model.language_model.layers.%d"
json.dump({"producer": "a dump", "token_ids": ids, "tensors": names}, open(sys.argv[2] + "/map.json", "w"))
PY
run 0 "a trace from .npy files" "$day0" record --import "$scratch/dump" --map "$scratch/dump/map.json" -o "$scratch/imported.safetensors" --json
[ "$(field tensors "$scratch/out")" = 10 ] && ok "all ten tensors" || not_ok "all ten tensors"
run 0 "is what it was made from" "$day0" compare "$reference" "$scratch/imported.safetensors"
says "bit for bit" '10 probes right, 0 wrong, 0 not judged; every bit is equal' "$scratch/out"
run 0 "and the model is held against it" "$day0" compare "$scratch/imported.safetensors" "$model"
run 2 "--import without a map" "$day0" record --import "$scratch/dump" -o "$scratch/x"
run 2 "--import beside a MODEL" "$day0" record "$model" --import "$scratch/dump" --map "$scratch/dump/map.json" -o "$scratch/x"

"$day0" record "$model" --text "Ada looks" -o "$scratch/other.safetensors" > /dev/null
run 1 "traces of other tokens" "$day0" compare "$scratch/good.safetensors" "$scratch/other.safetensors"
says "are N006" 'N006' "$scratch/out"
"$day0" record "$model" --tokens "$reference" --layers 0-1 --probes none -o "$scratch/part.safetensors" > /dev/null
"$day0" record "$model" --tokens "$reference" --layers 2-3 --from "$scratch/part.safetensors" -o "$scratch/rest.safetensors" > /dev/null
run 4 "no probe in common: incomplete" "$day0" compare "$scratch/part.safetensors" "$scratch/rest.safetensors"
run 2 "one argument" "$day0" compare "$reference"
run 2 "no such trace" "$day0" compare "$reference" "$scratch/nowhere"
head -c 3000 "$reference" > "$scratch/cut.safetensors"
run 1 "a trace that was cut off" "$day0" compare "$reference" "$scratch/cut.safetensors"

# --- operators on recorded values
run 0 "operators on what was recorded" "$day0" ops "$model" --from "$scratch/good.safetensors" --json
[ "$(field not_judged "$scratch/out")" = 0 ] && [ "$(field right "$scratch/out")" -ge 64 ] && ok "all of them" || not_ok "all of them"
run 0 "on another engine's trace" "$day0" ops "$model" --from "$reference"
says "what it lacks is computed, and counted" 'inputs that it lacks were computed' "$scratch/out"
run 4 "operators that do not fit are not judged" "$day0" ops "$model" --from "$reference" --memory 65536
says "and said" 'not judged: .*there is room for' "$scratch/out"
run 1 "a trace of another model" "$day0" ops "$model" --from "$root/tests/parity/golden/llama.safetensors"
says "is N006" 'N006' "$scratch/out"
run 1 "a trace that was cut off" "$day0" ops "$model" --from "$scratch/cut.safetensors"
run 2 "--from without a MODEL" "$day0" ops --from "$reference"

# --- errors by position
run 0 "errors by position" "$day0" compare --drift "$model" --json
[ "$(field tokens "$scratch/out")" = 512 ] && ok "as many as there are positions" || not_ok "as many as there are positions"
says "decode gives the bits of prefill" '"decode_identical": true' "$scratch/out"
run 4 "a sequence that ends too early" "$day0" compare --drift "$model" --tokens 100
says "is said" 'the original length was not reached' "$scratch/out"
run 0 "with another engine's logits" "$day0" compare --drift "$model" --tokens "$reference"
says "these too" 'recorded: logits against those of transformers' "$scratch/out"
run 2 "--drift with two arguments" "$day0" compare --drift "$reference" "$model"
run 2 "--tokens without --drift" "$day0" compare "$reference" "$model" --tokens 5
finish
