#!/usr/bin/env bash
# gpt_3d as one contender of a comparison: the steps as JSON lines on stdout ("step", "ms", "loss"), at the end "peak_rss_mb" of all ranks together.
#
#   gpt_3d_peer.sh BUILD RANKS THREADS CONFIG WEIGHTS DATA STEPS BATCH MICRO SEQ [key=value …]
#
# Memory is the largest sum of the ranks' proportional set sizes (a page that ranks share counts once), looked at once a second.
set -euo pipefail
build=$1 ranks=$2 threads=$3 config=$4 weights=$5 data=$6 steps=$7 batch=$8 micro=$9 seq=${10}
shift 10
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

cat >"$out/run.yaml" <<EOF
model: {file: $(realpath "$config")}
init: $(realpath "$weights")
data: {path: $(realpath "$data"), tokenizer: uint16, order: sequential}
train: {steps: $steps, global_batch: $batch, micro_batch: $micro, seq: $seq, lr: 1e-4, min_lr: 1e-4, warmup: 10, weight_decay: 0.1, betas: [0.9, 0.95], eps: 1e-8, clip: 1.0}
output: {metrics: $out/metrics.jsonl, sample: 0}
EOF

OMP_NUM_THREADS=$threads "$build/cli/rankloom" run -n "$ranks" -- "$build/examples/gpt_3d/gpt_3d" "$out/run.yaml" "$@" >"$out/log" 2>&1 &
job=$!
peak=0
while kill -0 "$job" 2>/dev/null; do
    now=0
    for pid in $(pgrep -f "$out/run.yaml" || true); do
        pss=$(awk '/^Pss:/ {print $2}' "/proc/$pid/smaps_rollup" 2>/dev/null || true)
        now=$((now + ${pss:-0}))
    done
    [ "$now" -le "$peak" ] || peak=$now
    sleep 1
done
wait "$job" || { cat "$out/log" >&2; exit 1; }
sed -E 's/.*"step": *([0-9]+).*"loss": *([0-9.eE+-]+).*"step_time_s": *([0-9.eE+-]+).*/\1 \2 \3/' "$out/metrics.jsonl" |
    awk '{printf "{\"step\": %d, \"loss\": %s, \"ms\": %.3f}\n", $1, $2, $3 * 1000}'
printf '{"peak_rss_mb": %d}\n' $((peak / 1024))
