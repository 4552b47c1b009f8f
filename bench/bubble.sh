#!/usr/bin/env bash
# The pipeline's bubble as measured, beside what theory says of the schedule: the same batch cut into 1 to 16 micro-batches, on a pipeline of STAGES ranks
# with a thread each.
#
#   bubble.sh BUILD CONFIG DATA [STAGES [SEQ [SCHEDULES [MICRO-BATCHES]]]]
#
# "waited" is what the first stage waited for the next over what it computed (rank 0's figures, median of steps): the bubble, and what unequal stages and
# messages cost on top. "theory" is `rankloom verify`'s: even stages, a backward twice as long as a forward. It is of all stages; the first of a zero-bubble
# schedule waits as long as the others.
set -euo pipefail
build=$1 config=$(realpath "$2") data=$(realpath "$3") stages=${4:-2} seq=${5:-256} schedules=${6:-gpipe 1f1b} counts=${7:-1 2 4 8 16}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

cat >"$out/run.yaml" <<YAML
model: {file: $config}
data: {path: $data, tokenizer: uint16, order: sequential}
train: {steps: 8, global_batch: 16, micro_batch: 1, seq: $seq, lr: 1e-4, min_lr: 1e-4, warmup: 10, weight_decay: 0.1, betas: [0.9, 0.95], eps: 1e-8, clip: 1.0}
output: {metrics: $out/metrics.jsonl, sample: 0}
YAML

# theory SCHEDULE VPP COUNT: idle over busy, in per cent.
theory() {
    echo "{pp: $stages, vpp: $2, schedule: $1, global_batch: $3}" >"$out/layout.yaml"
    "$build/cli/rankloom" verify "$out/layout.yaml" | sed -nE 's/^idle during ([0-9.]+) %.*/\1/p' | awk '{print 100 * $1 / (100 - $1)}'
}

printf '%-12s %12s %10s %10s\n' schedule micro-batches 'waited' 'theory'
for schedule in $schedules; do
    vpp=1
    case $schedule in interleaved | zb-v) vpp=2 ;; esac
    for count in $counts; do
        OMP_NUM_THREADS=1 "$build/cli/rankloom" run -n "$stages" -- "$build/examples/gpt_3d/gpt_3d" "$out/run.yaml" layout.pp="$stages" layout.vpp="$vpp" \
            layout.schedule="$schedule" train.micro_batch=$((16 / count)) >"$out/log" 2>&1 || { cat "$out/log" >&2; exit 1; }
        sed -E 's/.*"compute_s": *([0-9.eE+-]+).*"pipeline_s": *([0-9.eE+-]+).*/\1 \2/' "$out/metrics.jsonl" | tail -n +3 |
            awk '{print $2 / $1}' | sort -g | awk -v s="$schedule" -v m="$count" -v theory="$(theory "$schedule" "$vpp" "$count")" \
            '{x[NR] = $1} END {printf "%-12s %12d %9.1f%% %9.1f%%\n", s, m, 100 * x[int((NR + 1) / 2)], theory}'
        rm -f "$out/metrics.jsonl"
    done
done
