# Reads a Meson text log whose programs print TAP; prints failures and skips, then "COUNTS passed failed skipped".
# A program without TAP lines counts as one case by its exit status; one that ended badly without a "not ok" as one failure.
function close_program() {
    if (name == "") return
    bad = result != "exit status 0"
    if (result == "exit status 77") { skipped++; print "skip " suite "/" name ": " (reason == "" ? "no reason given" : reason) }
    else if (cases == 0) { if (bad) { failed++; print "FAIL " suite "/" name ": " result } else passed++ }
    else if (bad && failures == 0) { failed++; print "FAIL " suite "/" name ": " result " after " cases " cases" }
    name = ""
}
/^=+ [0-9]+\/[0-9]+ =+$/ { close_program(); next }
/^test: / { name = $2; for (i = 3; i <= NF; i++) name = name " " $i; cases = failures = 0; reason = ""; result = ""; next }
/^result: / { result = substr($0, 9); gsub(/^ +| +$/, "", result); next }
/^ *# skip: / { reason = $0; sub(/^ *# skip: */, "", reason); next }
/^not ok .*# ?(SKIP|skip)/ || /^ok .*# ?(SKIP|skip)/ {
    cases++; skipped++; line = $0; sub(/^(not )?ok [0-9]+ *-? */, "", line)
    print "skip " suite "/" name ": " line (reason == "" ? "" : ": " reason); reason = ""; next }
/^not ok / { cases++; failures++; failed++; line = $0; sub(/^not ok [0-9]+ *-? */, "", line); print "FAIL " suite "/" name ": " line; next }
/^ok / { cases++; passed++; next }
END {
    close_program()
    if (passed + failed + skipped == 0 && status != 0) { failed++; print "FAIL " suite ": the suite did not run, see the log" }
    print "COUNTS " passed + 0 " " failed + 0 " " skipped + 0
}
