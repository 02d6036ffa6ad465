#!/bin/sh
# usage: fnlen.sh MAX files... : lists functions longer than MAX lines (universal-ctags end field); fails if there is one.
max=$1
shift
ctags -x --languages=C --kinds-C=f --_xformat='%{input}	%n	%e	%{name}' "$@" |
awk -F'\t' -v max="$max" '{n = $3 - $2 + 1; if (n > max) {printf "%s:%d: %s has %d lines (limit %d)\n", $1, $2, $4, n, max; found = 1}} END {exit found}'
