#!/bin/sh
# Pictures with the program as a user has it: day0 run --image, and the service, give the same answer; what is wrong is refused by name.
. "$(dirname "$0")/lib.sh"
make=$build/tests/unit/make_picture_model
[ -x "$make" ] || { skip "pictures" "cmocka is not installed"; finish; }
model=$scratch/model
"$make" "$model" > "$scratch/made" 2>&1 || { cat "$scratch/made"; exit 1; }
text() { sed -n 's/^ *"text": \(".*"\),$/\1/p' "$1"; }

run 0 "run: text alone" "$day0" run "$model" -p "hello" -n 8 --ignore-eos --json
text "$scratch/out" > "$scratch/none"
run 0 "run: a picture" "$day0" run "$model" -p "hello" -n 8 --ignore-eos --image "$model/a.png" --json
text "$scratch/out" > "$scratch/a"
says "its tokens are counted" '"tokens": 6' "$scratch/out"
says "it comes first" '"first_token": 1' "$scratch/out"
run 0 "run: another picture" "$day0" run "$model" -p "hello" -n 8 --ignore-eos --image "$model/b.png" --json
text "$scratch/out" > "$scratch/b"
cmp -s "$scratch/a" "$scratch/b" && not_ok "another picture, another answer" || ok "another picture, another answer"
cmp -s "$scratch/a" "$scratch/none" && not_ok "no picture, another answer" || ok "no picture, another answer"
run 0 "run: two pictures where the text says" "$day0" run "$model" -p "he <image> and <image>" -n 4 --image "$model/a.png" --image "$model/b.png" --json
says "the first one stands behind the text" '"first_token": [3-9]' "$scratch/out"
run 2 "run: more markers than pictures" "$day0" run "$model" -p "<image><image>" --image "$model/a.png"
says "both numbers are told" '2 times <image>.* 1 pictures' "$scratch/err"
run 2 "run: a file that is not there" "$day0" run "$model" -p x --image "$scratch/no.png"
says "it is named" 'no.png' "$scratch/err"
head -c 200 "$model/a.png" > "$scratch/cut.png"
run 1 "run: a picture that is cut short" "$day0" run "$model" -p x --image "$scratch/cut.png"
says "it is named" 'cut.png' "$scratch/err"
if python3 "$root/tools/make_checkpoint.py" llama "$scratch/text" --hidden 64 --intermediate 128 --layers 2 --heads 4 --kv-heads 2 --head-dim 16 \
    --vocab 512 > /dev/null 2>&1; then
    cp "$root/demo/model/tokenizer.json" "$root/demo/model/tokenizer_config.json" "$scratch/text"
    run 1 "run: a model without a tower" "$day0" run "$scratch/text" -p x --image "$model/a.png"
    says "it says so" 'takes no pictures' "$scratch/err"
else
    skip "run: a model without a tower" "python3 is not installed"
fi

if command -v curl > /dev/null; then
    serve "$model" --context 256
    post() {
        printf '{"model":"model","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"%s"}},{"type":"text","text":"hello"}]}],"max_tokens":8,"temperature":0,"ignore_eos":true}' "$1" > "$scratch/body"
        curl -s "$url/v1/chat/completions" -H 'Content-Type: application/json' -d "@$scratch/body" > "$scratch/out"
    }
    post "data:image/png;base64,$(base64 < "$model/a.png" | tr -d '\n')"
    sed -n 's/.*"content":\("[^}]*"\),"refusal".*/\1/p' "$scratch/out" > "$scratch/served"
    [ "$(cat "$scratch/a")" = "$(cat "$scratch/served")" ] && ok "the service answers as run does" || not_ok "the service answers as run does" "$(cat "$scratch/a")"
    says "and counts the tokens of the picture" '"image_tokens":6' "$scratch/out"
    post "https://example.com/a.png"
    says "a URL is refused" 'fetches nothing' "$scratch/out"
    curl -s "$url/metrics" > "$scratch/out"
    says "its pictures are counted" '^day0_images_encoded_total 1$' "$scratch/out"
    curl -s "$url/" > "$scratch/out"
    says "its page says that it takes some" 'conversations with pictures' "$scratch/out"
    kill -TERM "$service_pid"; wait "$service_pid"
    serve "$model" --context 256 --no-images
    curl -s "$url/" > "$scratch/out"
    says "started without pictures, its page does not" 'conversations, in' "$scratch/out"
    post "data:image/png;base64,$(base64 < "$model/a.png" | tr -d '\n')"
    says "started without pictures, it says so" 'without pictures' "$scratch/out"
    kill -TERM "$service_pid"; wait "$service_pid"
else
    skip "the service" "curl is not installed"
fi
finish
