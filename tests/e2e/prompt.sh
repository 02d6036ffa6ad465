#!/bin/sh
# day0 prompt: texts, conversations, tools, templates, pictures, and files that are none of these.
. "$(dirname "$0")/lib.sh"
command -v python3 > /dev/null || { skip "prompt" "python3 is not installed"; finish; }

# model NAME TINY PROCESSOR: no weights, the configuration of a tiny model of tests/parity, all tokens of all families.
model() {
    mkdir -p "$scratch/$1"
    python3 - "$root/tests" "$2" "$scratch/$1" << 'END'
import json, sys
tests, tiny, out = sys.argv[1:]
def widen(v):
    return {k: 400 if k == "vocab_size" else 14 if k in ("patch_size", "spatial_patch_size") and "spatial_patch_size" in v else widen(x) for k, x in v.items()} if isinstance(v, dict) else v
config = widen(json.load(open(tests + "/parity/tiny/" + tiny + ".json"))["config"])
tokens = json.load(open(tests + "/golden/placeholders_tokenizer.json"))
if "image_token_id" in config:
    config["image_token_id"] = next(t["id"] for t in tokens["added_tokens"] if t["content"] == "<|image_pad|>")
json.dump(config, open(out + "/config.json", "w"))
json.dump(tokens, open(out + "/tokenizer.json", "w"))
END
    cp "$root/tests/images/processors/$3/"*.json "$scratch/$1"
    cat > "$scratch/$1/chat_template.jinja" << 'END'
{% if tools %}<|im_start|>tools {{ tools | tojson }}<|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{% if p.type == 'image' or p.type == 'image_url' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}
END
}
model qwen qwen2_vl qwen_2
m=$scratch/qwen
mkdir "$scratch/talk"

# ---- texts ----
printf 'he said <|im_end|>' > "$scratch/text"
run 0 "a text" "$day0" prompt "$m" --text "$scratch/text"
says "is shown piece by piece" '"<\|im_end\|>"' "$scratch/out"
run 0 "a text as JSON" "$day0" prompt "$m" --text "$scratch/text" --json
says "with its ids" '"ids": *\[' "$scratch/out"
printf 'a\377b' > "$scratch/binary"
run 1 "a text that is no UTF-8" "$day0" prompt "$m" --text "$scratch/binary"
run 2 "a text that is not there" "$day0" prompt "$m" --text "$scratch/nothing"

# ---- conversations ----
echo '[{"role": "user", "content": "he <|im_end|> she"}]' > "$scratch/talk/plain.json"
run 0 "messages" "$day0" prompt "$m" --messages "$scratch/talk/plain.json"
says "by the model's template" '^template +jinja' "$scratch/out"
says "which opens an answer" '<.im_start.>assistant' "$scratch/out"
run 0 "messages as JSON" "$day0" prompt "$m" --messages "$scratch/talk/plain.json" --json

plain=$(python3 -c 'import json,sys; d=json.load(open(sys.argv[1])); print(len(d["ids"]), len(d["placeholders"]))' "$scratch/out")
run 0 "what looks like a token" "$day0" prompt "$m" --messages "$scratch/talk/plain.json" --parse-special --json
parsed=$(python3 -c 'import json,sys; print(len(json.load(open(sys.argv[1]))["ids"]))' "$scratch/out")
[ "${plain% *}" -gt "$parsed" ] && ok "is text unless it is asked for" || not_ok "is text unless it is asked for" "$plain ids, $parsed parsed"
[ "${plain#* }" = 0 ] && ok "no placeholders" || not_ok "no placeholders"
echo '{"messages": [{"role": "user", "content": "x"}], "add_generation_prompt": false, "tools": [{"type": "function", "function": {"name": "look"}}]}' > "$scratch/talk/tools.json"
run 0 "tools" "$day0" prompt "$m" --messages "$scratch/talk/tools.json"
says "are written by the template" '"name": "look"' "$scratch/out"
grep -q assistant "$scratch/out" && not_ok "and no answer is opened" || ok "and no answer is opened"
echo '[{"type": "function", "function": {"name": "other"}}]' > "$scratch/tools"
run 0 "tools of a file" "$day0" prompt "$m" --messages "$scratch/talk/tools.json" --tools "$scratch/tools"
says "come before those of the messages" '"name": "other"' "$scratch/out"

# ---- pictures ----
cp "$root/tests/images/rgb.png" "$root/tests/images/exif_6.jpg" "$root/tests/images/plain.gif" "$scratch/talk"
data=$(python3 -c 'import base64,sys; print(base64.b64encode(open(sys.argv[1],"rb").read()).decode())' "$scratch/talk/rgb.png")
printf '[{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,%s"}}, {"type": "text", "text": "b"}, {"type": "image", "image": "exif_6.jpg"}, {"type": "image", "path": "%s/talk/rgb.png"}]}]' \
    "$data" "$scratch" > "$scratch/talk/pictures.json"
run 0 "pictures" "$day0" prompt "$m" --messages "$scratch/talk/pictures.json"
says "stand for so many tokens" '^picture 0 .*messages\[0\].content\[1\].* placeholders from position [0-9]+, grid .*decoded in' "$scratch/out"
says "shown as one entry" '[0-9]+ x [0-9]+' "$scratch/out"
run 0 "pictures as JSON" "$day0" prompt "$m" --messages "$scratch/talk/pictures.json" --json
python3 - "$scratch/out" "$m/config.json" > "$scratch/judged" 2>&1 << 'END' && ok "places, counts, grids and keys agree" || { not_ok "places, counts, grids and keys agree"; sed 's/^/# /' "$scratch/judged"; }
import json, sys
d, token = json.load(open(sys.argv[1])), json.load(open(sys.argv[2]))["image_token_id"]
p = d["placeholders"]
assert len(p) == 3
assert sum(x["count"] for x in p) == d["ids"].count(token) > 0
for x in p:
    assert all(i == token for i in d["ids"][x["first"]:x["first"] + x["count"]])
    assert d["ids"][x["first"] - 1] != token != d["ids"][x["first"] + x["count"]]
    assert x["count"] * 4 == x["grid"][1] * x["grid"][2] == x["patches"]
assert p[0]["key"] == p[2]["key"] != p[1]["key"]
assert p[0]["format"] == "PNG" and p[1]["format"] == "JPEG"
assert d["place_delta"] < 0
END
run 0 "without a file" "$day0" prompt "$m" --messages "$scratch/talk/pictures.json" --image-size 64x64 --json
says "the size that was given" '"width": 64' "$scratch/out"
run 2 "a size that is none" "$day0" prompt "$m" --messages "$scratch/talk/pictures.json" --image-size 64

# InternVL's release: CLIP's processor in its file, tiles by config.json. Its template may know strings only.
own=$scratch/own
mkdir "$own"
sed 's/151674/400/' "$root/tests/parity/configs/internvl3-8b.json" > "$own/config.json"
cp "$root/tests/images/processors/internvl_release/preprocessor_config.json" "$root/tests/golden/placeholders_tokenizer.json" "$own"
mv "$own/placeholders_tokenizer.json" "$own/tokenizer.json"
echo "{% for m in messages %}{% for p in m.content %}{% if p.type == 'image' %}<IMG_CONTEXT>{% else %}{{ p.text }}{% endif %}{% endfor %}{% endfor %}" > "$own/chat_template.jinja"
echo '[{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]}]' > "$scratch/talk/tiles.json"
# tiles SIZE N : of 448 pixels, 256 tokens each, the whole picture among them where there are several
tiles() {
    run 0 "a picture of $1 for InternVL's release" "$day0" prompt "$own" --messages "$scratch/talk/tiles.json" --image-size "$1" --json
    got=$(python3 -c 'import json,sys; d=json.load(open(sys.argv[1])); p=d["placeholders"][0]; print(p["tiles"], p["count"], d["text"] == "a<img>" + "<IMG_CONTEXT>" * p["count"] + "</img>b")' "$scratch/out")
    [ "$got" = "$2 $((256 * $2)) True" ] && ok "is $2 tiles in one frame" || not_ok "is $2 tiles in one frame" "$got"
}
tiles 450x450 1
tiles 900x300 4
tiles 300x900 4
tiles 1000x3000 13
tiles 6000x4000 7
echo "{% for m in messages %}{{ '<|im_start|>' + m.content }}{% endfor %}" > "$own/chat_template.jinja"
run 2 "its template of strings alone" "$day0" prompt "$own" --messages "$scratch/talk/tiles.json" --image-size 500x400
says "refuses a picture by name" "unsupported operand types for \+: 'str' and 'list'" "$scratch/err"

picture() { printf '[{"role": "user", "content": [%s]}]' "$1" > "$scratch/talk/one.json"; }
picture '{"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}'
run 1 "a picture of another machine" "$day0" prompt "$m" --messages "$scratch/talk/one.json"
says "is not fetched" 'not fetched' "$scratch/err"
picture '{"type": "image", "image": "nothing.png"}'
run 2 "a picture that is not there" "$day0" prompt "$m" --messages "$scratch/talk/one.json"
says "says which part" 'messages\[0\].content\[0\]' "$scratch/err"
picture '{"type": "image", "image": "pictures.json"}'
run 1 "a picture that is none" "$day0" prompt "$m" --messages "$scratch/talk/one.json"
head -c 300 "$scratch/talk/exif_6.jpg" > "$scratch/talk/cut.jpg"
picture '{"type": "image", "image": "cut.jpg"}'
run 1 "a picture that is cut short" "$day0" prompt "$m" --messages "$scratch/talk/one.json"
picture '{"type": "image_url", "image_url": {"url": "data:image/png;base64,@@@@"}}'
run 1 "base64 that is none" "$day0" prompt "$m" --messages "$scratch/talk/one.json"
sed -i 's/<|vision_start|><|image_pad|><|vision_end|>/(picture)/' "$m/chat_template.jinja"
run 1 "a template that writes no placeholder" "$day0" prompt "$m" --messages "$scratch/talk/pictures.json"
says "says both numbers" 'writes <.image_pad.> 0 times, and there are 3 pictures' "$scratch/err"
run 1 "the check of such a model" "$day0" check "$m"
says "tells it before" 'I003' "$scratch/out"
rm "$m/preprocessor_config.json"
run 1 "a model without a processor" "$day0" prompt "$m" --messages "$scratch/talk/pictures.json"
says "says what is missing" 'no preprocessor_config.json' "$scratch/err"
run 0 "still reads texts" "$day0" prompt "$m" --messages "$scratch/talk/plain.json"
run 1 "and its check" "$day0" check "$m"
says "tells it" 'I001' "$scratch/out"

# ---- bad files ----
for bad in 'nonsense' '{"messages": 7}' '[]' '{"messages": [{"content": "x"}]}' '{"messages": [{"role": "user", "content": [{"type": "text"}]}], "tools": 3}' '[{"role": "user", "content": {"a": 1}}]'; do
    echo "$bad" > "$scratch/talk/bad.json"
    "$day0" prompt "$m" --messages "$scratch/talk/bad.json" > "$scratch/out" 2> "$scratch/err"
    got=$?
    { [ $got = 1 ] || [ $got = 2 ]; } && [ -s "$scratch/err" ] && ok "refused: $bad" || not_ok "refused: $bad" "exit status $got"
done
run 2 "neither messages nor text" "$day0" prompt "$m"
run 2 "both" "$day0" prompt "$m" --messages "$scratch/talk/plain.json" --text "$scratch/text"
echo '{% for m in messages %}{{ m.content' > "$m/chat_template.jinja"
run 1 "a template that is broken" "$day0" prompt "$m" --messages "$scratch/talk/plain.json"
says "says so" 'template' "$scratch/err"
finish
