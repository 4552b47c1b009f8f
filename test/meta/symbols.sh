#!/bin/sh
# What the library shows: the shared one exports loom_ symbols alone, the static one defines no global name outside loom_, and no object holds
# memory that changes (.data, .bss; the thread-local buffer of messages is neither). A sanitizer adds names and memory of its own.
# usage: symbols.sh SHARED STATIC
set -eu
shared=$1 static=$2
failed=0
fail() { echo "$1"; failed=1; }

exported=$(nm -D --defined-only "$shared" | awk '$2 ~ /[A-Z]/ {print $3}' | grep -vE '^(_init|_fini|_edata|_end|__bss_start)$' | sort -u)
foreign=$(printf '%s\n' "$exported" | grep -v '^loom_' || true)
[ -z "$foreign" ] || fail "exported without loom_: $foreign"

foreign=$(nm --defined-only "$static" 2>/dev/null | awk 'NF == 3 && $2 ~ /[A-Z]/ {print $3}' | grep -vE '^loom_' | sort -u || true)
[ -z "$foreign" ] || fail "global in the static library without loom_: $foreign"

changing=$(size -A "$static" 2>/dev/null |
    awk '/\(ex / {object = $1} ($1 ~ /^\.data(\.|$)/ && $1 !~ /^\.data\.rel\.ro/ || $1 ~ /^\.bss(\.|$)/) && $2 > 0 {print object " " $1 " " $2 " bytes"}')
[ -z "$changing" ] || fail "memory that changes: $changing"
echo "$(printf '%s\n' "$exported" | wc -l) symbols exported"
[ "$failed" = 0 ]
