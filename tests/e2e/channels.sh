#!/bin/sh
# Stage 4 on a small model that takes pictures: each planted fault of a channel is reported as the right channel and step, and the intact model as
# none. A fault is planted in a server that is examined with the intact directory, or in the directory, held against a recorded conversation,
# or in the recording, held against the intact directory. A server that tells too little, or hangs, is not judged to be right.
. "$(dirname "$0")/lib.sh"
command -v python3 > /dev/null || { skip "channels" "python3 is not installed"; finish; }
model=$scratch/model report=$scratch/report
python3 "$here/channels_model.py" make "$model" "$day0" 2> "$scratch/out" || { not_ok "a model is made"; finish; }
reference=$root/tests/golden/conversation.safetensors

row() {
    state=$(grep -A2 "\"row\": \"$2\"" "$report/report.json" | sed -n 's/.*"state": "\(.*\)",/\1/p')
    if [ "$state" = "$3" ]; then ok "$1: row $2 is $3"; else not_ok "$1: row $2 is $3" "it is '$state'"; fi
}
# findings NAME IDS : of severity error, in order, blanks between
findings() {
    got=$(python3 -c 'import json, sys; print(" ".join(sorted(f["id"] for f in json.load(open(sys.argv[1]))["findings"] if f["severity"] == "error")))' "$report/report.json")
    if [ "$got" = "$2" ]; then ok "$1: findings '$2'"; else not_ok "$1: findings '$2'" "they are '$got'"; fi
}
adapt() {
    want=$1 name=$2
    shift 2
    run "$want" "$name: exit status $want" "$day0" adapt "$@" --out "$report" --requests 1
}
stop() { kill "$service_pid" 2> /dev/null && wait "$service_pid" 2> /dev/null; }

# ---- the intact directory
adapt 4 "intact, no reference" "$model"
row "intact, no reference" image self-consistent
row "intact, no reference" text passed
findings "intact, no reference" ""
says "intact: the service is held against the directory" 'image channel: log-probabilities are off by [0-9.]+e-0[789]' "$report/report.json"
for s in picture_decode picture_preprocess vision prefill decode; do says "intact: segment $s" "\"name\": \"$s\"" "$report/report.json"; done
says "intact: the page shows the pictures" 'src="data:image/png;base64,' "$report/index.html"
adapt 4 "intact" "$model" --picture-reference "$reference"
row "intact" image passed
row "intact" text passed
findings "intact" ""
[ "$(count '"state": "equal"' "$report/report.json")" = 9 ] && ok "intact: all nine steps equal the reference's" || not_ok "intact: all nine steps equal the reference's"

# ---- faults of the directory, against the recording
# directory FAULT IDS CHANNEL-ROW WORDS
directory() {
    rm -rf "$scratch/faulty"
    python3 "$here/channels_model.py" "$1" "$model" "$scratch/faulty" || not_ok "$1 is planted"
    adapt 1 "directory with $1" "$scratch/faulty" --picture-reference "$reference" --fresh
    findings "directory with $1" "$2"
    row "directory with $1" "$3" failed
    says "directory with $1: named" "$4" "$report/report.json"
}
directory mean-std I004 image 'equal here if it is as if mean and std of the image processor were swapped'
directory bilinear I004 image 'equal here if it is as if pictures were resized bicubically'
directory no-system T007 text 'the system turn is missing'
directory bos-twice T006 text 'stands twice, and once in the reference'
directory size I005 image 'picture 0: [0-9]+ tokens stand for it, [0-9]+ in the reference'
directory size-unnamed I005 image 'picture 0: [0-9]+ tokens stand for it, [0-9]+ in the reference'
directory merge I005 image '2 x 2 do not divide'
directory sections I006 image 'sections of M-RoPE'

# ---- recordings by somebody who does it wrongly, against the intact directory
# recording FAULT IDS STEP WORDS : the first step that differs
recording() {
    python3 "$here/channels_model.py" "record-$1" "$reference" "$scratch/recording.safetensors" || not_ok "a recording with $1 is made"
    adapt 1 "recording with $1" "$model" --picture-reference "$scratch/recording.safetensors" --fresh
    findings "recording with $1" "$2"
    row "recording with $1" image failed
    row "recording with $1" text passed
    first=$(python3 -c 'import json, sys; print(next(s["step"] for s in json.load(open(sys.argv[1]))["stages"][3]["facts"]["image"]["reference"]["steps"] if s["state"] == "differs"))' "$report/report.json")
    [ "$first" = "$3" ] && ok "recording with $1: the $3 differ first" || not_ok "recording with $1: the $3 differ first" "it is '$first'"
    says "recording with $1: named" "$4" "$report/report.json"
}
recording bgr I004 pixels 'equal here if it is as if red and blue were swapped'
recording swapped I007 'order of pictures' "as if the pictures stood in each other's place: picture 1 stands where the reference has picture 0"

# ---- recordings that contradict themselves: no finding, since nothing is known of the model; the file is named, and what is wrong with it
# contradicts STATUS FAULT WORDS
contradicts() {
    python3 "$here/channels_model.py" "record-$2" "$reference" "$scratch/recording.safetensors" || not_ok "a recording with $2 is made"
    run "$1" "a recording with $2" "$day0" adapt "$model" --picture-reference "$scratch/recording.safetensors" --out "$report" --requests 1
    says "a recording with $2: it is said" "recording.safetensors: $3" "$scratch/err"
}
contradicts 2 fewer 'messages take picture 2, counted from 0, and the file holds 2'
contradicts 1 object 'messages are no array'
contradicts 1 cut 'messages: line 1'

# ---- faults of a server, by what it answers
# server FAULT IDS ROW WORDS : examined with the intact directory
server() {
    adapt 1 "server with $1" "$model" --service "$url"
    findings "server with $1" "$2"
    row "server with $1" "$3" failed
    says "server with $1: named" "$4" "$report/report.json"
}
faulty() {
    rm -rf "$scratch/faulty"
    python3 "$here/channels_model.py" "$1" "$model" "$scratch/faulty"
    serve "$scratch/faulty"
    server "$@"
    stop
}
faulty mean-std I004 image 'image channel, pixels: the service behaves as if mean and std of the image processor were swapped'
row "server with mean-std" text passed
faulty bilinear I004 image 'image channel, pixels: the service behaves as if pictures were resized bilinearly'
faulty sections I006 image 'image channel, places: the service behaves as if sections of M-RoPE'
faulty no-system T007 text 'text channel, rendered text: the service behaves as if the template had no system turn'
row "server with no-system" image self-consistent
faulty bos-twice T006 text '"served": "text channel, ids: the service behaves as if the first token \(BOS\) stood twice'

# One token fewer for each picture, and one more, in the text, the features and the counts: of a model that has no class row a server leaves out the
# first row, and the other way round.
qwen=$model llava=$scratch/llava
python3 "$here/channels_model.py" make-llava "$llava" "$day0" 2> "$scratch/out" || not_ok "a model without a class row is made"
adapt 4 "intact, without a class row" "$llava"
findings "intact, without a class row" ""
model=$llava
faulty first-row I005 image 'image channel, placeholders: the service behaves as if the first row of each picture was left out'
row "server with first-row" text passed
says "server with first-row: counted" 'a picture alone: 35 prompt tokens, 36 here; .*two pictures: 69 prompt tokens, 71 here' "$report/report.json"
serve "$llava"
model=$scratch/faulty
server one-more I005 image 'image channel, placeholders: the service counts tokens as if one token too many stood for each picture'
row "server with one-more" text passed
stop
model=$qwen

serve "$model"
upstream=$url
# before FAULT : a proxy that spoils what passes stands before the service; sets $url and $pid
before() {
    rm -f "$scratch/proxy.port"
    python3 "$here/rewriting_proxy.py" "$scratch/proxy.port" "$upstream" "$1" &
    pid=$!
    children="$children $pid"
    for _ in $(seq 1 100); do [ -s "$scratch/proxy.port" ] && break; sleep 0.1; done
    url="http://127.0.0.1:$(cat "$scratch/proxy.port")"
}
# proxy FAULT IDS WORDS
proxy() {
    before "$1"
    if [ -n "$2" ]; then
        server "$@"
        row "server with $1" text passed
    else
        adapt 4 "server with $1" "$model" --service "$url"
        findings "server with $1" ""
    fi
    kill "$pid" 2> /dev/null
}
proxy none ""
proxy bgr I004 image 'image channel, pixels: the service behaves as if red and blue were swapped'
proxy swapped I007 image "image channel, order of pictures: the service behaves as if the pictures stood in each other's place"
proxy fewer I005 image 'image channel, placeholders: the service counts tokens as if one token too few stood for each picture'
# A server that looks at no picture and gives nothing to tell it by: the directory equals the recording, and that is not the server's.
unseen() {
    before "$1"
    adapt 4 "server that is $1" "$model" --service "$url" --picture-reference "$reference"
    row "server that is $1" image "not checked"
    findings "server that is $1" ""
    says "server that is $1: it is said" "$2" "$report/report.json"
    kill "$pid" 2> /dev/null
}
unseen blind "not checked: nothing tells what the service makes of pictures.*the service told no log-probabilities"
unseen partly "not checked: of 1 of 4 conversations alone log-probabilities tell what the service makes of pictures"
unseen silent "not checked: nothing tells what the service makes of pictures.*the service told neither counts nor log-probabilities"
# One that takes pictures and never answers: it is waited for once.
before hanging
echo '{"questions": [{"question": "What?", "picture": "q.png", "answer": "x"}, {"question": "And?", "picture": "q.png", "answer": "x"}]}' > "$scratch/questions.json"
cp "$root/demo/pictures/q01.png" "$scratch/q.png"
adapt 1 "server that hangs" "$model" --service "$url" --picture-reference "$reference" --questions "$scratch/questions.json" --answer-timeout 8
row "server that hangs" image "not checked"
findings "server that hangs" "S003"
says "server that hangs: it is said" 'did not come in 8 s' "$report/report.json"
[ "$(cat "$scratch/proxy.port.hung")" = . ] && ok "server that hangs: asked once" || not_ok "server that hangs: asked once" "$(cat "$scratch/proxy.port.hung")"
kill "$pid" 2> /dev/null
stop

# ---- questions whose answers and prompt tokens are known
# ask ANSWER TOKENS : a file of one question on a picture; "" leaves a field out
ask() {
    python3 - "$scratch" "$1" "$2" << 'PYTHON'
import json, struct, sys, zlib
out, answer, tokens = sys.argv[1:]
def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
rows = b"".join(b"\0" + bytes(v for x in range(32) for v in (8 * x, 7 * y, 200 - x)) for y in range(24))
with open(out + "/q.png", "wb") as f:
    f.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 32, 24, 8, 2, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))
q = {"picture": "q.png", "question": "What is this?"}
if answer:
    q["answer"] = answer
if tokens:
    q["prompt_tokens"] = int(tokens)
with open(out + "/questions.json", "w") as f:
    json.dump({"questions": [q], "at_least": 1}, f)
PYTHON
}
# of the question in the report
asked() { python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["stages"][3]["facts"]["image"]["questions"][0][sys.argv[2]])' "$report/report.json" "$1"; }
ask "" ""
adapt 4 "a question without an answer" "$model" --questions "$scratch/questions.json"
row "a question without an answer" image self-consistent
answer=$(asked answer) tokens=$(asked prompt_tokens)
ask "$answer" "$tokens"
adapt 4 "a known answer" "$model" --questions "$scratch/questions.json"
row "a known answer" image passed
findings "a known answer" ""
resumed() { python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["stages"][3]["resumed"])' "$report/report.json"; }
adapt 4 "the same again" "$model" --questions "$scratch/questions.json"
[ "$(resumed)" = True ] && ok "the same again: it is not asked again" || not_ok "the same again: it is not asked again"
cp "$scratch/q.png" "$scratch/kept.png"
cp "$root/demo/pictures/q02.png" "$scratch/q.png"
"$day0" adapt "$model" --out "$report" --requests 1 --questions "$scratch/questions.json" > "$scratch/out" 2>&1
[ "$(resumed)" = False ] && ok "another picture of the same name: it is asked again" || not_ok "another picture of the same name: it is asked again"
cp "$scratch/kept.png" "$scratch/q.png"
ask "something else" "$tokens"
adapt 1 "a known answer that is missed" "$model" --questions "$scratch/questions.json"
findings "a known answer that is missed" "I010"
row "a known answer that is missed" image failed
ask "$answer" "$((tokens + 1))"
adapt 1 "stated prompt tokens that are missed" "$model" --questions "$scratch/questions.json"
findings "stated prompt tokens that are missed" "I005"
# refused NAME WORDS JSON
refused() {
    echo "$3" > "$scratch/questions.json"
    run 1 "questions: $1" "$day0" adapt "$model" --out "$scratch/unmade" --questions "$scratch/questions.json"
    says "questions: $1, it is said" "$2" "$scratch/err"
}
refused "one without a question" 'has no "question"' '{"questions": [{"picture": "q.png"}]}'
refused "one that reads as a picture" 'begins with "data:"' '{"questions": [{"question": "data: what is this?"}]}'
refused "one without a picture" 'no picture' '{"questions": [{"question": "Is this easy?", "answer": "yes"}]}'
refused "a file that is none" 'no array "questions"' '{"question": [{"picture": "q.png", "question": "What?"}]}'
refused "more pictures than are sent" 'more than 4' '{"questions": [{"pictures": ["q.png", "q.png", "q.png", "q.png", "q.png"], "question": "What?"}]}'
refused "a picture that is none" 'questions.json' '{"questions": [{"picture": "questions.json", "question": "What?"}]}'
mkdir "$scratch/beside"
refused "a picture from elsewhere" 'lies beside its file' '{"questions": [{"picture": "beside/../q.png", "question": "What?"}]}'
refused "a picture by its whole path" 'lies beside its file' "{\"questions\": [{\"picture\": \"$scratch/q.png\", \"question\": \"What?\"}]}"
[ ! -e "$scratch/unmade" ] && ok "they are refused before anything runs" || not_ok "they are refused before anything runs"
run 2 "a file of questions that is not there" "$day0" adapt "$model" --out "$report" --questions "$scratch/none.json"
finish
