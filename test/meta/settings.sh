#!/bin/sh
# Every RANKLOOM_ name in the sources and the documentation is a setting of the table, and the other way round.
# usage: settings.sh ROOT
set -eu
cd "$1"
table=$(grep -oE '\{"RANKLOOM_[A-Z0-9_]+"' lib/core/settings.c | grep -oE 'RANKLOOM_[A-Z0-9_]+' | sort -u)
named=$(grep -rhoE '\bRANKLOOM_[A-Z0-9_]+' README.md docs lib kernels cli examples bench include 2>/dev/null |
    grep -vE '_H$|^RANKLOOM_(VERSION|$)' | sort -u)
failed=0
for name in $named; do
    case $name in *_) continue ;; esac # RANKLOOM_* in prose
    printf '%s\n' "$table" | grep -qx "$name" || { echo "$name is in no row of lib/core/settings.c"; failed=1; }
done
[ -n "$table" ] && [ "$failed" = 0 ]
