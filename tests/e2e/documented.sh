#!/bin/sh
# The documents say what there is: every room, every option of every --help, every key of every --json, of the report and of the service's answers, every
# metric, every parameter of a request. Names only: whether what is said of them is true needs a reader.
. "$(dirname "$0")/lib.sh"
docs=$root/docs
model=$root/demo/model

# section COMMAND : of commands.md, with what stands before the first section
section() { awk -v want="## $1" '/^## / { behind = 1; inside = $0 == want; next } inside || !behind' "$docs/commands.md"; }
# keys FILE... : names of all members
keys() { cat "$@" | grep -oE '"[A-Za-z0-9_]+" ?:' | tr -d '": ' | sort -u; }
# all WHAT PAGE PATTERN NAMES : each name, put into the pattern, is somewhere on the page
all() {
    absent=""
    [ -n "$4" ] || absent=" nothing to look for"
    for name in $4; do grep -Eq -e "$(printf "$3" "$name")" "$2" || absent="$absent $name"; done
    [ -z "$absent" ] && ok "$1" || not_ok "$1" "not there:$absent"
}
# named WHAT PAGE NAMES : each stands there in code, alone or within a path (`choices[0].delta.content`), or as a key of an example
named() { all "$1" "$2" '[`"]([][a-z_0-9.]*\.)?%s[`".{]' "$3"; }

# ---- rooms ----
sed -n 's/^\([a-z]*\):.*/\1/p' "$root/tools/layers.txt" > "$scratch/layers"
sed -n '/^## Rooms/,/^## Life/s/^| \([a-z]*\) | .*/\1/p' "$root/ARCHITECTURE.md" | grep -vx room > "$scratch/out"
cmp -s "$scratch/layers" "$scratch/out" && ok "the rooms of ARCHITECTURE.md are those of layers.txt, in their order" ||
    not_ok "the rooms of ARCHITECTURE.md are those of layers.txt, in their order"

# ---- options ----
for command in $("$day0" --help | sed -n 's/^  day0 \([a-z]*\) .*/\1/p'); do
    section "$command" > "$scratch/page"
    options=$("$day0" "$command" --help | grep -oE '^ {2,6}(-., )?--[a-z-]+' | grep -oE -e '--[a-z-]+' | grep -vE -e '--(help|usage)$')
    all "$command: its options" "$scratch/page" '(^|[^a-z-])%s([^a-z-]|$)' "$options"
done

# ---- keys ----
# said STATUS NAME SECTIONS COMMAND... : it ends with that status, and the keys that it prints stand in those sections of commands.md
said() {
    status=$1 name=$2 sections=$3
    shift 3
    run "$status" "$name" "$@"
    for s in $sections; do section "$s"; done > "$scratch/page"
    named "$name: its keys" "$scratch/page" "$(keys "$scratch/out")"
}
printf 'Ada <b>' > "$scratch/text"
printf '[{"role": "user", "content": [{"type": "image", "path": "%s"}, {"type": "text", "text": "Is there a star?"}]}]' \
    "$root/demo/pictures/q01.png" > "$scratch/talk"
said 0 "record" record "$day0" record "$model" --text "Ada looks at the shapes" --watch -o "$scratch/trace" --json
"$day0" record "$model" --text "Ada looks at the shapes" --cpu ref -o "$scratch/other" > /dev/null
said 0 "compare" compare "$day0" compare "$scratch/trace" "$scratch/other" --json
said 0 "compare with a model" compare "$day0" compare "$scratch/trace" "$model" --json
said 4 "compare --drift" compare "$day0" compare --drift "$model" --tokens 32 --json
said 0 "check" "check inspect" "$day0" check "$model" --payload --hash --no-cache --json
said 0 "inspect" inspect "$day0" inspect "$model" --json
said 0 "draft" draft "$day0" draft "$model" --without qwen3_vl.lua -o "$scratch/draft.lua" --json
said 0 "prompt --text" prompt "$day0" prompt "$model" --text "$scratch/text" --json
said 0 "prompt --messages" prompt "$day0" prompt "$model" --messages "$scratch/talk" --json
said 0 "run" run "$day0" run "$model" -p "Is there a star?" --image "$root/demo/pictures/q01.png" -n 2 --json
said 0 "stress" stress "$day0" stress "$model" --requests 2 --max-tokens 2 --json
said 0 "ops" ops "$day0" ops "$model" --json
said 0 "ops --from" ops "$day0" ops "$model" --from "$scratch/trace" --json
said 0 "env" "env check" "$day0" env --json
said 2 "an error" run "$day0" run "$scratch/nowhere" -p x --json
said 0 "adapt" adapt "$day0" adapt "$model" --reference "$root/demo/reference.safetensors" --picture-reference "$root/demo/pictures.safetensors" \
    --questions "$root/demo/questions.json" --requests 2 --out "$scratch/report" --json
named "report.json: its keys" "$docs/report.md" "$(keys "$scratch/report/report.json")"

# ---- the service ----
named "parameters of a request" "$docs/http.md" "$(sed -n '/^} table\[\] = {/,/^};/s/^    {"\([a-z0-9_]*\)".*/\1/p' "$root/src/serve/request_params.c")"
if command -v curl > /dev/null; then
    serve "$model"
    ask() { curl -sN "$url/v1/$1" -d "$2" >> "$scratch/answers"; }
    more='"max_tokens":3,"day0_timings":true'
    ask completions '{"model":"model","prompt":"Ada looks","logprobs":2,"return_token_ids":true,'"$more}"
    ask completions '{"model":"model"}'
    ask chat/completions '{"model":"model","messages":[{"role":"user","content":"What is it?"}],"stream":true,"stream_options":{"include_usage":true},'"$more}"
    ask chat/completions '{"model":"model","messages":[{"role":"user","content":[{"type":"text","text":"Is there a star?"},
        {"type":"image_url","image_url":{"url":"data:image/png;base64,'"$(base64 < "$root/demo/pictures/q01.png" | tr -d '\n')\"}}]}],$more}"
    curl -s "$url/v1/models" "$url/health" >> "$scratch/answers"
    sed -i 's/"top_logprobs":\[[^]]*\]/"top_logprobs":/g' "$scratch/answers" # its members are tokens
    named "answers: their keys" "$docs/http.md" "$(keys "$scratch/answers")"
    curl -s "$url/metrics" > "$scratch/metrics"
    named "metrics" "$docs/http.md" "$(sed -n 's/^# TYPE \([a-z0-9_]*\) .*/\1/p' "$scratch/metrics")"
else
    skip "answers of the service" "curl is not installed"
fi
finish
