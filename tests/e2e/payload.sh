#!/bin/sh
# `day0 check --payload`: damage that headers cannot show, where hashes come from, and the cache.
. "$(dirname "$0")/lib.sh"

model=$scratch/model
copy=$scratch/copy
XDG_CACHE_HOME=$scratch/cache
export XDG_CACHE_HOME
python3 "$root/tools/make_checkpoint.py" llama "$model" --hidden 64 --intermediate 128 --layers 3 --heads 4 --kv-heads 2 \
    --head-dim 16 --vocab 384 --dtype F32 --shards 3 --fill hash --seed 1 > /dev/null || { skip "payload" "python3 is not installed"; finish; }
s1=model-00001-of-00003.safetensors s2=model-00002-of-00003.safetensors
again() { rm -rf "$copy"; cp -r "$model" "$copy"; }
one() { [ "$(count '"id":' "$scratch/out")" = 1 ] && ok "$1: one finding" || not_ok "$1: one finding"; }
old() { touch -d '2020-01-01' "$copy"/*.safetensors; }

run 0 "an intact model passes" "$day0" check "$model" --payload --json
for key in bytes_read bytes_cached hashed compared mismatched same tensors not_finite all_zero threads seconds files; do
    says "--json has payload.$key" "\"$key\":" "$scratch/out"
done
[ -s "$scratch/err" ] && not_ok "no progress where stderr is no terminal" || ok "no progress where stderr is no terminal"
run 0 "people are told that nothing was compared" "$day0" check "$model" --payload
says "in words" "nothing in the directory says what the hashes should be" "$scratch/out"

again; (cd "$copy" && sha256sum ./*.safetensors > SHA256SUMS)
run 0 "hashes as listed" "$day0" check "$copy" --payload --json
says "three compared" '"compared": 3' "$scratch/out"
printf 'x' | dd of="$copy/$s2" bs=1 seek=100000 conv=notrunc 2> /dev/null
run 0 "headers alone do not see a changed byte" "$day0" check "$copy" --json
run 1 "the payload check does" "$day0" check "$copy" --payload --json
one "a changed byte"
says "it is W018" '"id": "W018"' "$scratch/out"
says "it names the file" "\"subject\": \"$s2\"" "$scratch/out"
run 0 "it can be waived" "$day0" check "$copy" --payload --waive W018=known --json

again; printf '\377\377\377\377' | dd of="$copy/$s2" bs=1 seek=100000 conv=notrunc 2> /dev/null
run 1 "a NaN" "$day0" check "$copy" --payload --json
one "a NaN"
says "it is W016" '"id": "W016"' "$scratch/out"
says "with its file" "1 NaN and 0 infinite of .* in $s2" "$scratch/out"

again; dd if=/dev/zero of="$copy/$s2" bs=1024 seek=20 count=150 conv=notrunc 2> /dev/null
run 0 "zeros warn" "$day0" check "$copy" --payload --json
one "zeros"
says "it is W019" '"id": "W019"' "$scratch/out"

# the cache
again; old
run 0 "first" "$day0" check "$copy" --payload --hash --json
run 0 "second" "$day0" check "$copy" --payload --hash --json
says "nothing is read again" '"bytes_read": 0,' "$scratch/out"
[ -s "$scratch/cache/day0/payload.json" ] && ok "the cache is where it should be" || not_ok "the cache is where it should be"
run 0 "--no-cache reads" "$day0" check "$copy" --payload --no-cache --json
[ "$(field bytes_read "$scratch/out")" -gt 100000 ] && ok "all of it" || not_ok "all of it"
printf '\377\377\377\377' | dd of="$copy/$s2" bs=1 seek=100000 conv=notrunc 2> /dev/null
run 1 "a file that changed is read again" "$day0" check "$copy" --payload --json
echo '{"format": 1, "files": [{"path": 3}]}' > "$scratch/cache/day0/payload.json"
run 1 "a corrupt cache is none" "$day0" check "$copy" --payload --json
rm -rf "$scratch/cache"; : > "$scratch/cache"
run 1 "a cache that cannot be written is a note" "$day0" check "$copy" --payload --json
old
run 1 "a cache that cannot be written is a note, once there is something to keep" "$day0" check "$copy" --payload
says "on stderr" "results are not kept" "$scratch/err"
run 1 "--cache FILE" "$day0" check "$copy" --payload --cache "$scratch/mine.json"
[ -s "$scratch/mine.json" ] && ok "is written" || not_ok "is written"
cp "$model/$s1" "$copy/$s1"
for threads in 1 2 7 64; do run 1 "$threads threads" "$day0" check "$copy" --payload --hash --no-cache --threads $threads --json; one "$threads threads"; done
finish
