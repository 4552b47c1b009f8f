#!/bin/sh
# What the library shows: the shared one exports loom_ symbols alone, and exactly those that public headers mark LOOM_API; the static one
# defines no global name outside loom_; and no object holds memory that changes (.data, .bss), thread-local message buffers apart.
# usage: symbols.sh ROOT SHARED STATIC [sanitized]
set -eu
root=$1 shared=$2 static=$3 sanitized=${4:-}
failed=0
fail() { echo "$1"; failed=1; }

exported=$(nm -D --defined-only "$shared" | awk '$2 ~ /[A-Z]/ {print $3}' | grep -vE '^(_init|_fini|_edata|_end|__bss_start)$' | sort -u)
foreign=$(printf '%s\n' "$exported" | grep -v '^loom_' || true)
[ -z "$foreign" ] || [ -n "$sanitized" ] || fail "exported without loom_: $foreign"

foreign=$(nm --defined-only "$static" 2>/dev/null | awk 'NF == 3 && $2 ~ /[A-Z]/ {print $3}' | grep -vE '^(loom_|__asan|__ubsan|__tsan|__odr_asan|\.)' | sort -u || true)
[ -z "$foreign" ] || [ -n "$sanitized" ] || fail "global in the static library without loom_: $foreign"

# A declaration may run over lines; the name is the word before the first '('. Comments are taken out first.
promised=$(cat "$root"/include/rankloom/*.h | sed -E 's://.*$::' | tr '\n' ' ' | sed -E 's:/\*([^*]|\*+[^*/])*\*+/: :g' |
    grep -oE 'LOOM_API [^;(]*[( ;]' | grep -oE 'loom_[a-z0-9_]+ *\($' | tr -d ' (' | sort -u)
printf '%s\n' "$promised" >"${TMPDIR:-/tmp}/promised.$$"
printf '%s\n' "$exported" >"${TMPDIR:-/tmp}/exported.$$"
trap 'rm -f "${TMPDIR:-/tmp}/promised.$$" "${TMPDIR:-/tmp}/exported.$$"' EXIT
missing=$(comm -23 "${TMPDIR:-/tmp}/promised.$$" "${TMPDIR:-/tmp}/exported.$$")
[ -z "$missing" ] || fail "declared in a public header and not in the library: $(echo $missing)"
undefined=$(nm -D --undefined-only "$shared" | awk '{print $NF}' | grep '^loom_' || true)
[ -z "$undefined" ] || fail "called by the library and defined nowhere: $(echo $undefined)"

if [ -z "$sanitized" ]; then
    changing=$(cd "$(dirname "$static")" && size -A "$static" 2>/dev/null |
        awk '/:$/ || / ex / {object = $1} ($1 ~ /^\.data(\.|$)/ && $1 !~ /^\.data\.rel\.ro/ || $1 ~ /^\.bss(\.|$)/) && $2 > 0 {print object " " $1 " " $2 " bytes"}')
    [ -z "$changing" ] || fail "memory that changes: $changing"
fi
echo "$(printf '%s\n' "$exported" | wc -l) symbols exported, $(printf '%s\n' "$promised" | wc -l) declared"
[ "$failed" = 0 ]
