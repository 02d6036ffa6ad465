#!/bin/sh
# usage: lint.sh BUILD : every rule of the code that a machine can check. Prints each breach; ends "lint: clean" or fails.
set -u
build=$1
cd "$(dirname "$0")/.."
bad=0
breach() { bad=1; }
c_files=$(find src include tests bench tools -name '*.c' -o -name '*.h' | sort)
src_files=$(find src -name '*.[ch]' | sort)

# 1. layers: who may include whom
awk -f tools/layers.awk tools/layers.txt $src_files || breach

# 2. length: functions 60 soft, 120 hard; files 600 soft, 1,500 hard
sh tools/fnlen.sh 120 $c_files || breach
soft=$(sh tools/fnlen.sh 60 $src_files | wc -l)
for f in $c_files; do
    n=$(wc -l < "$f")
    [ "$n" -le 1500 ] || { echo "$f: $n lines (limit 1500)"; breach; }
    [ "$n" -le 600 ] || echo "note: $f has $n lines (soft limit 600)"
done

# 3. file names are unique under src
find src -name '*.[ch]' -exec basename {} \; | sort | uniq -d | sed 's/$/: two files of this name/' | grep . && breach

# 4. every header stands alone; templates (*_tmpl.h) and machine-specific headers of kern/x86 are parts of one file
for h in $(find src include -name '*.h' ! -path 'src/kern/x86/*' ! -name '*_tmpl.h'); do
    printf '#include "%s"\n' "$(echo "$h" | sed 's,^src/,,; s,^include/,,')" |
        gcc -std=gnu17 -Wall -Wextra -Werror -Iinclude -Isrc -fsyntax-only -x c - || { echo "$h: not self-contained"; breach; }
done

# 5. format
clang-format --dry-run -Werror $c_files || breach

# 6. every file opens with its licence and says what it is
for f in $c_files; do
    head -3 "$f" | grep -q 'SPDX-License-Identifier: Apache-2.0' || { echo "$f: no SPDX line at its head"; breach; }
done

# 7. calls that hide overflow or hidden state; exits outside cli and tests
grep -nE '\b(strcpy|strcat|sprintf|vsprintf|gets|strtok|atoi|atol|atof|alloca|rand|srand)\(' $src_files && breach
grep -nE '\b(exit|_exit|quick_exit)\(' $(echo "$src_files" | grep -vE '^src/(cli|base/process)') && breach
grep -nE '\bprintf\(|\bputs\(|stdout' $(echo "$src_files" | grep -vE '^src/cli/') | grep -vE 'strbuf_|arena_printf|snprintf|//|\*' && breach

# 8. no mutable globals: nothing of ours in .data or .bss
for o in $(find "$build" -path '*day0core*' -name '*.o') $(find "$build" -path '*kern*' -name '*.o'); do
    objdump -t "$o" 2> /dev/null | awk -v o="$o" '$0 ~ / (\.data|\.bss)($|[ \t])/ && / O / {print o ": mutable global " $NF; found = 1} END {exit found}' || breach
done

# 9. shell scripts parse
for s in tools/*.sh tests/e2e/*.sh .ci/run; do [ ! -e "$s" ] || sh -n "$s" || breach; done

[ "$bad" = 0 ] && echo "lint: clean ($soft functions above the soft limit of 60 lines)"
exit $bad
