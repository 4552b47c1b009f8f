#!/bin/sh
# No file under version control names a place on somebody's machine, and only two places of the library read the environment.
# usage: files.sh ROOT
set -eu
cd "$1"
git rev-parse --is-inside-work-tree >/dev/null 2>&1 || { echo "not a checkout"; exit 77; }
failed=0

# Brackets keep this very line from being found.
if git grep -nIE '(^|[^a-zA-Z0-9_.$/}])/(wor[k]|roo[t]|User[s])/[a-zA-Z0-9_.]|/hom[e]/[a-z]' -- . ':!test/fuzz/corpus'; then
    echo "paths of a machine"
    failed=1
fi
if git grep -nE '\b(secure_)?getenv *\(|\benviron\b' -- 'lib/*.[ch]' 'kernels/*.[ch]' | grep -vE '^(lib/launch/|lib/core/settings\.[ch]:)'; then
    echo "the environment is read by lib/launch and lib/core/settings alone"
    failed=1
fi
if git grep -nIE '[[:space:]]$' -- '*.c' '*.h' '*.sh' '*.build' ':!test/data' ':!test/fuzz/corpus' | head -5 | grep .; then
    echo "blanks at the end of a line"
    failed=1
fi
[ "$failed" = 0 ]
