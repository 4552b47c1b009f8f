#!/usr/bin/env bash
# The demo: one model, one start, two layouts over four ranks; both learn the same curve. Leaves everything in demo-out/.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
out=$top/demo-out
run=$top/build/cli/rankloom
trainer=$top/build/examples/gpt_3d/gpt_3d

mkdir -p "$out"
[ -s "$out/book.txt" ] || bible -f "gen1:1-rev22:21" >"$out/book.txt"
printf 'text     %s bytes of the King James Bible (package bible-kjv, public domain)\n' "$(wc -c <"$out/book.txt")"

# train NAME LAYOUT... : four ranks, everything of the run in demo-out/NAME.
train() {
    local name=$1
    shift
    printf '\n=== %s\n' "$name"
    mkdir -p "$out/$name"
    "$run" run -n 4 -- "$trainer" "$here/demo.yaml" data.path="$out/book.txt" output.dir="$out/$name" \
        output.metrics="$out/$name/metrics.jsonl" output.trace="$out/$name/trace" output.plot="$out/$name/loss.svg" "$@" |
        tee "$out/$name/log.txt"
}

train tp2-pp2 layout.tp=2 layout.pp=2
train dp2-pp2 layout.tp=1 layout.pp=2 layout.dp=2 layout.sequence_parallel=false

# last_loss NAME
last_loss() { sed -n 's/.*"loss": *\([0-9.eE+-]*\).*/\1/p' "$out/$1/metrics.jsonl" | tail -n 1; }

"$run" plot -o "$out/loss.svg" --title "The same start, two layouts" "tp2-pp2=$out/tp2-pp2/metrics.jsonl" "dp2-pp2=$out/dp2-pp2/metrics.jsonl"
printf '\nlast loss: tp2-pp2 %s, dp2-pp2 %s nats a byte\n' "$(last_loss tp2-pp2)" "$(last_loss dp2-pp2)"
awk -v a="$(last_loss tp2-pp2)" -v b="$(last_loss dp2-pp2)" 'BEGIN {
    d = a - b; if (d < 0) d = -d
    printf "difference %.5f\n", d
    if (!(a < 2.2 && b < 2.2)) { print "the model did not learn: above 2.2"; exit 1 }
    if (!(d < 0.02)) { print "the two layouts did not learn the same curve"; exit 1 }
}'
cat <<EOF

left for you in demo-out/
  loss.svg                      both curves
  tp2-pp2/trace.json            open in https://ui.perfetto.dev
  tp2-pp2/metrics.jsonl         loss, time and its breakdown, step by step
  tp2-pp2/log.txt               layout, groups, memory, text sample
  tp2-pp2/model.safetensors     the weights, with config.json
EOF
