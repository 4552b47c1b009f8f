#!/usr/bin/env bash
# The long runs: run.sh BUILD. Every legal layout against the truth; restarts under a real torchrun where $TORCHRUN names one.
set -euo pipefail
build=$1
here=$(cd "$(dirname "$0")" && pwd)
export LOOM_TEST_DATA=$here/../data
failed=0

printf '== every legal layout on 1, 2, 3, 4, 6 and 8 ranks\n'
"$build/test/parallel/test_parallel_layouts" --all || failed=1

if [ -n "${TORCHRUN:-}" ]; then
    printf '== under %s\n' "$TORCHRUN"
    "$here/torchrun.sh" "$build" || failed=1
else
    printf '== torchrun: skipped, TORCHRUN does not name one\n'
fi
exit $failed
