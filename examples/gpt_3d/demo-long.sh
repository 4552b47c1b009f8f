#!/usr/bin/env bash
# The demo of long context: sequences of 8,192 bytes over two ranks by ring attention. One rank alone gives the same losses, with twice the memory for
# activations. Leaves everything in demo-out/.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
out=$top/demo-out
run=$top/build/cli/rankloom
trainer=$top/build/examples/gpt_3d/gpt_3d
same_steps=3

mkdir -p "$out"
[ -s "$out/book.txt" ] || bible -f "gen1:1-rev22:21" >"$out/book.txt"
printf 'text     %s bytes of the King James Bible (package bible-kjv, public domain)\n' "$(wc -c <"$out/book.txt")"

# train NAME RANKS KEY=VALUE... : everything of the run in demo-out/NAME.
train() {
    local name=$1 ranks=$2
    shift 2
    printf '\n=== %s\n' "$name"
    mkdir -p "$out/$name"
    "$run" run -n "$ranks" -- "$trainer" "$here/demo-long.yaml" data.path="$out/book.txt" output.dir="$out/$name" \
        output.metrics="$out/$name/metrics.jsonl" output.plot="$out/$name/loss.svg" "$@" | tee "$out/$name/log.txt"
}

# losses NAME COUNT: of the first steps
losses() { sed -n 's/.*"loss": *\([0-9.eE+-]*\).*/\1/p' "$out/$1/metrics.jsonl" | head -n "$2"; }

# activations CP: what a rank keeps of a sequence
activations() { "$trainer" "$here/demo-long.yaml" --dry-run --ranks "$1" layout.cp="$1" | sed -n 's/^ *activations *//p'; }

train long-cp2 2
train long-one-rank 1 layout.cp=1 train.steps=$same_steps output.save=false

printf '\nactivations a rank: cp 1 %s, cp 2 %s, cp 4 %s, cp 8 %s\n' "$(activations 1)" "$(activations 2)" "$(activations 4)" "$(activations 8)"
paste <(losses long-one-rank $same_steps) <(losses long-cp2 $same_steps) | awk '{
    d = $1 - $2; if (d < 0) d = -d
    printf "step %d: one rank %s, two ranks %s\n", NR, $1, $2
    if (!(d < 1e-4)) { print "the two did not learn the same"; exit 1 }
}'
losses long-cp2 40 | tail -n 1 | awk '{ printf "last loss %s nats a byte\n", $1; if (!($1 < 2.8)) { print "the model did not learn: above 2.8"; exit 1 } }'
