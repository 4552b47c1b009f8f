#!/usr/bin/env bash
# The long runs: run.sh BUILD. Every legal layout against the truth; restarts under a real torchrun where $TORCHRUN names one.
#
# All layouts take a night on two cores. $SOAK_LAYOUTS="FIRST-LAST/PARTS" runs some of the parts that the list is cut into (default 0-999/1000),
# so that several machines or evenings can share them; a part that fails is named and the others go on. $SOAK_OPTIONS goes to the test as it
# stands, such as "--axes tp,pp,dp --model gpt2_tiny".
set -euo pipefail
build=$1
here=$(cd "$(dirname "$0")" && pwd)
export LOOM_TEST_DATA=$here/../data
failed=0

IFS=-/ read -r first last parts <<<"${SOAK_LAYOUTS:-0-999/1000}"
printf '== legal layouts on 1, 2, 3, 4, 6 and 8 ranks, parts %d to %d of %d\n' "$first" "$last" "$parts"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
for ((part = first; part <= last; part++)); do
    if "$build/test/parallel/test_parallel_layouts" --part "$part/$parts" ${SOAK_OPTIONS:-} >"$log" 2>&1; then
        printf 'part %d: %s\n' "$part" "$(awk '/legal layouts/ {n += $2; t += $4} END {print n " of " t " layouts agree with the truth"}' "$log")"
    else
        printf 'part %d FAILED: test_parallel_layouts --part %d/%d\n' "$part" "$part" "$parts"
        cat "$log"
        failed=1
    fi
done

if [ -x "$build/test/cuda/test_cuda_schedules" ]; then
    printf '== the GPU path on the double: orders of the streams, removed waits, layouts\n'
    export RANKLOOM_CUDA_MODULE=$build/test/cuda/librankloom_cuda_double.so
    "$build/test/cuda/test_cuda_schedules" 1000 || failed=1
    for model in gpt2_tiny llama_tiny mixtral_tiny deepseek_tiny; do
        for ((part = 0; part < ${SOAK_CUDA_PARTS:-4}; part++)); do
            LOOM_DOUBLE_SEED=$part "$build/test/parallel/test_parallel_layouts" --model $model --part "$((part * 701))/4000" --device cuda || failed=1
        done
    done
    unset RANKLOOM_CUDA_MODULE
fi

if [ -n "${TORCHRUN:-}" ]; then
    printf '== under %s\n' "$TORCHRUN"
    "$here/torchrun.sh" "$build" || failed=1
else
    printf '== torchrun: skipped, TORCHRUN does not name one\n'
fi
exit $failed
