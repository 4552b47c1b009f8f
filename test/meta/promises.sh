#!/bin/sh
# Every function that a public header declares is in the shared library, and the library calls no loom_ function that nobody defines.
# usage: promises.sh ROOT SHARED
set -eu
root=$1 shared=$2
names=$(mktemp -d)
trap 'rm -rf "$names"' EXIT
failed=0
fail() { echo "$1"; failed=1; }

# A declaration may run over lines; the name is the word before the first '('. Comments are taken out first.
cat "$root"/include/rankloom/*.h | sed -E 's://.*$::' | tr '\n' ' ' | sed -E 's:/\*([^*]|\*+[^*/])*\*+/: :g' |
    grep -oE 'LOOM_API [^;(]*[( ;]' | grep -oE 'loom_[a-z0-9_]+ *\($' | tr -d ' (' | sort -u >"$names/declared"
nm -D --defined-only "$shared" | awk '{print $NF}' | sort -u >"$names/defined"

missing=$(comm -23 "$names/declared" "$names/defined")
[ -z "$missing" ] || fail "declared in a public header and not in the library: $(echo $missing)"
undefined=$(nm -D --undefined-only "$shared" | awk '{print $NF}' | grep '^loom_' || true)
[ -z "$undefined" ] || fail "called by the library and defined nowhere: $(echo $undefined)"
echo "$(wc -l <"$names/declared") functions declared"
[ "$failed" = 0 ] && [ -s "$names/declared" ]
