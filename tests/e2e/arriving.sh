#!/bin/sh
# A model whose files are still arriving, headers only, and copies that nobody uses.
. "$(dirname "$0")/lib.sh"

model=$scratch/model
copy=$scratch/copy
python3 "$root/tools/make_checkpoint.py" llama "$model" --hidden 64 --intermediate 128 --layers 3 --heads 4 --kv-heads 2 \
    --head-dim 16 --vocab 384 --dtype F32 --shards 3 --fill hash --seed 1 > /dev/null || { skip "arriving" "python3 is not installed"; finish; }
s1=model-00001-of-00003.safetensors s2=model-00002-of-00003.safetensors s3=model-00003-of-00003.safetensors
again() { rm -rf "$copy"; cp -r "$model" "$copy"; }
one() { [ "$(count '"id":' "$scratch/out")" = 1 ] && ok "$1: one finding" || not_ok "$1: one finding"; }

# --- partial
run 0 "everything here: --partial passes" "$day0" check "$model" --partial --json
again; rm "$copy/$s2"; truncate -s -100 "$copy/$s3"
run 4 "one file absent, one short: incomplete" "$day0" check "$copy" --partial --json
one "absent and short"
says "it is W022" '"id": "W022"' "$scratch/out"
says "it names the absent file" "absent: 1 file: $s2" "$scratch/out"
says "and the short one" "a part: 1 file: $s3; at least 100 B to come" "$scratch/out"
run 1 "without --partial both are errors" "$day0" check "$copy" --json
says "missing" '"id": "W002"' "$scratch/out"
says "truncated" '"id": "W003"' "$scratch/out"
run 4 "the payload of what is here is read" "$day0" check "$copy" --partial --payload --no-cache --json
says "from two files" '"from": "read"' "$scratch/out"

again; rm "$copy"/*.safetensors
run 4 "no weight file yet: incomplete" "$day0" check "$copy" --partial --json
one "no weight file yet"
rm "$copy/model.safetensors.index.json"
run 4 "nor an index: incomplete" "$day0" check "$copy" --partial --json

again; truncate -s 3 "$copy/$s1"; truncate -s 60 "$copy/$s2"; size=$(wc -c < "$copy/$s3"); rm "$copy/$s3"; truncate -s "$size" "$copy/$s3"
run 4 "headers that are not yet whole: incomplete" "$day0" check "$copy" --partial --json
one "headers not whole"
says "three files" "the header at most: 3 files" "$scratch/out"

again; rm "$copy/$s2"; sed -i '0,/"weight_map": *{/s//&"model.layers.9.x.weight": "'$s1'",/' "$copy/model.safetensors.index.json"
run 1 "an error in what is here fails" "$day0" check "$copy" --partial --json
says "it is W007" '"id": "W007"' "$scratch/out"

# --- headers only, from a server
fetch=$root/tools/fetch_headers.py
python3 "$root/tests/e2e/range_server.py" "$model" "$scratch/range.port" "$scratch/range.log" & children="$children $!"
python3 "$root/tests/e2e/range_server.py" "$model" "$scratch/plain.port" "$scratch/plain.log" --no-ranges & children="$children $!"
for _ in $(seq 1 100); do [ -s "$scratch/range.port" ] && [ -s "$scratch/plain.port" ] && break; sleep 0.1; done
url=http://127.0.0.1:$(cat "$scratch/range.port")
run 0 "headers are fetched" python3 "$fetch" "$url" "$scratch/headers"
total=$(awk '/safetensors / {n += $2} END {print n}' "$scratch/range.log")
whole=$(cat "$scratch/headers"/*.safetensors | wc -c)
[ "$total" = "$whole" ] && ok "and nothing else of the weight files" || not_ok "and nothing else of the weight files" "$total bytes sent, $whole kept"
run 4 "a directory of headers is incomplete, not wrong" "$day0" check "$scratch/headers" --partial --json
one "headers only"
says "it says that headers are here" "the header at most: 3 files" "$scratch/out"
run 1 "without --partial it is truncated" "$day0" check "$scratch/headers" --json
cp "$model/$s1" "$scratch/headers/$s1"
run 0 "a file that is here is left alone" python3 "$fetch" "$url/{file}" "$scratch/headers"
cmp -s "$model/$s1" "$scratch/headers/$s1" && ok "bytes unchanged" || not_ok "bytes unchanged"
run 0 "a server without ranges serves as well" python3 "$fetch" "http://127.0.0.1:$(cat "$scratch/plain.port")" "$scratch/headers2" --index "$model/model.safetensors.index.json"
cmp -s "$scratch/headers/$s2" "$scratch/headers2/$s2" && ok "the same header" || not_ok "the same header"
sed 's/model-00002-of/other-00002-of/g' "$model/model.safetensors.index.json" > "$scratch/stale.json"
run 1 "a file that the server lacks is named" python3 "$fetch" "$url" "$scratch/headers3" --index "$scratch/stale.json"
says "by its name" "not there: other-00002-of-00003.safetensors" "$scratch/out"
echo '{"weight_map": {"a": "../evil.safetensors"}}' > "$scratch/evil.json"
run 1 "an index with paths is refused" python3 "$fetch" "$url" "$scratch/headers4" --index "$scratch/evil.json"
run 1 "a server that is not there" python3 "$fetch" "http://127.0.0.1:9" "$scratch/headers5"

# --- copies
again; cp "$copy/$s1" "$copy/$s2"
run 1 "one file under two names" "$day0" check "$copy" --json
one "one file under two names"
says "it is W020" '"id": "W020"' "$scratch/out"
says "with what is lost" "its header is that of $s1.*places here 14 tensors" "$scratch/out"
run 1 "and with --hash" "$day0" check "$copy" --hash --no-cache --json
one "one file twice, hashed"
says "that all bytes are" "all its bytes are those of $s1" "$scratch/out"
rm "$copy/model.safetensors.index.json"
run 1 "without an index" "$day0" check "$copy" --json
one "one file twice, no index"

again; mkdir "$copy/original"; cat "$copy"/*.safetensors > "$copy/original/consolidated.00.pth"; mkdir "$copy/2_Dense"; head -c 1000 "$copy/$s1" > "$copy/2_Dense/model.safetensors"
run 0 "a second copy in a folder warns" "$day0" check "$copy" --json
one "a second copy in a folder"
says "it is W021" '"id": "W021"' "$scratch/out"
says "and names the folder" '"subject": "original/"' "$scratch/out"
again; python3 "$root/tests/e2e/relayout.py" "$copy" consolidated.safetensors
run 0 "another layout beside the files warns" "$day0" check "$copy" --json
one "another layout beside"
says "it is W021 as well" '"id": "W021"' "$scratch/out"
rm "$copy/model.safetensors.index.json"
run 0 "also without an index" "$day0" check "$copy" --json
one "another layout, no index"

# --- what a file may not hold
again; printf 'PK' >> "$copy/$s1"
run 0 "trailing bytes warn" "$day0" check "$copy" --json
says "with W005" '"id": "W005"' "$scratch/out"
for fault in hole overlap; do
    again; python3 "$root/tests/e2e/relayout.py" "$copy" --$fault "$s1"
    run 1 "$fault in a file" "$day0" check "$copy" --json
    one "$fault"
    says "$fault: W004 InvalidOffset" "InvalidOffset.*$fault" "$scratch/out"
done
finish
