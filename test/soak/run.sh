#!/usr/bin/env bash
# The long runs: run.sh BUILD. Every legal layout against the truth; restarts under a real torchrun where $TORCHRUN names one.
#
# All layouts take a night on two cores, and several nights on the double. $SOAK_LAYOUTS="FIRST-LAST/PARTS" runs some of the parts that the list is cut into (default 0-999/1000),
# so that several machines or evenings can share them; a part that fails is named and the others go on. $SOAK_OPTIONS goes to the test as it
# stands, such as "--axes tp,pp,dp --model gpt2_tiny".
set -euo pipefail
build=$1
here=$(cd "$(dirname "$0")" && pwd)
export LOOM_TEST_DATA=$here/../data
failed=0

IFS=-/ read -r first last parts <<<"${SOAK_LAYOUTS:-0-999/1000}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# layouts OPTION...: the parts of the list, each by a run of its own.
layouts() {
    local part
    for ((part = first; part <= last; part++)); do
        if LOOM_DOUBLE_SEED=$part "$build/test/parallel/test_parallel_layouts" --part "$part/$parts" "$@" ${SOAK_OPTIONS:-} >"$log" 2>&1; then
            printf 'part %d: %s\n' "$part" "$(awk '/legal layouts/ {n += $2; t += $4} END {print n " of " t " layouts agree with the truth"}' "$log")"
        else
            printf 'part %d FAILED: LOOM_DOUBLE_SEED=%d test_parallel_layouts --part %d/%d %s\n' "$part" "$part" "$part" "$parts" "$*"
            cat "$log"
            failed=1
        fi
    done
}

# asked_at_the_end FILE: whether the back traces of a wait that was left out come from a run's closing, when all is over and frees have nothing to wait for.
asked_at_the_end() {
    sed -nE 's/.*test_parallel_layouts\(\+(0x[0-9a-f]+)\).*/\1/p' "$1" | addr2line -f -e "$build/test/parallel/test_parallel_layouts" | grep -q '_close$'
}

# removed_waits OPTION...: of a run of gpt_3d on four ranks, of the layout that the options choose, each 13th wait by itself is left out, under nine orders of the streams, up to
# those of the end. Not every wait is needed where another one comes to the same, so three quarters have to be noticed, not all (docs/cuda.md has the counts). Of those
# that are not, where they were asked for.
removed_waits() {
    local wait order noticed=0 tried=0 where
    where=$(mktemp)
    for ((wait = 1; ; wait += 13)); do
        : >"$where"
        for ((order = 0; order < 9; order++)); do
            if ! LOOM_DOUBLE_DROPPED=$where LOOM_DOUBLE_DROP=$wait LOOM_DOUBLE_SEED=$order "$build/test/parallel/test_parallel_layouts" --model gpt2_tiny --world 4 --axes tp,pp,dp --most 1 \
                --steps 1 --device cuda "$@" >"$log" 2>&1; then
                noticed=$((noticed + 1))
                tried=$((tried + 1))
                continue 2
            fi
        done
        if [ ! -s "$where" ] || asked_at_the_end "$where"; then break; fi
        tried=$((tried + 1))
        printf 'wait %d was not missed; one rank asked for it at\n' "$wait"
        head -10 "$where"
    done
    rm -f "$where"
    printf '%d of %d removed waits were noticed\n' "$noticed" "$tried"
    [ "$tried" -gt 0 ] && [ $((4 * noticed)) -ge $((3 * tried)) ] || failed=1
}

printf '== legal layouts on 1, 2, 3, 4, 6 and 8 ranks, parts %d to %d of %d\n' "$first" "$last" "$parts"
layouts

if [ -x "$build/test/cuda/test_cuda_schedules" ]; then
    printf '== the GPU path on the double: 1,000 orders of the streams, removed waits\n'
    RANKLOOM_CUDA_MODULE=$build/test/cuda/librankloom_cuda_double.so "$build/test/cuda/test_cuda_schedules" 1000 || failed=1
    printf '== the same layouts on the double, each part under another order of the streams\n'
    export RANKLOOM_CUDA_MODULE=$build/test/cuda/librankloom_cuda_quick.so
    layouts --device cuda
    printf '== waits removed from gpt_3d\n'
    removed_waits --seed 2
    removed_waits --seed 4 --zero 3
    printf "== a few of them with the kernels' own bodies\n"
    export RANKLOOM_CUDA_MODULE=$build/test/cuda/librankloom_cuda_double.so
    first=0 last=$((${SOAK_CUDA_PARTS:-4} - 1)) parts=16000
    layouts --device cuda
    unset RANKLOOM_CUDA_MODULE
fi

if [ -n "${TORCHRUN:-}" ]; then
    printf '== under %s\n' "$TORCHRUN"
    "$here/torchrun.sh" "$build" || failed=1
else
    printf '== torchrun: skipped, TORCHRUN does not name one\n'
fi
exit $failed
