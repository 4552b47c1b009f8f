#!/usr/bin/env bash
# The demo of experts: one model, one start, two layouts over four ranks; both learn the same curve, and the router spreads the tokens over the experts.
# Leaves everything in demo-out/.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
out=$top/demo-out
run=$top/build/cli/rankloom
trainer=$top/build/examples/gpt_3d/gpt_3d
same_steps=5

mkdir -p "$out"
[ -s "$out/book.txt" ] || bible -f "gen1:1-rev22:21" >"$out/book.txt"
printf 'text     %s bytes of the King James Bible (package bible-kjv, public domain)\n' "$(wc -c <"$out/book.txt")"

# train NAME KEY=VALUE... : four ranks, everything of the run in demo-out/NAME.
train() {
    local name=$1
    shift
    printf '\n=== %s\n' "$name"
    mkdir -p "$out/$name"
    "$run" run -n 4 -- "$trainer" "$here/demo-moe.yaml" data.path="$out/book.txt" output.dir="$out/$name" \
        output.metrics="$out/$name/metrics.jsonl" output.plot="$out/$name/loss.svg" "$@" | tee "$out/$name/log.txt"
}

# values NAME KEY : of every step
values() { sed -n "s/.*\"$2\": *\\([0-9.eE+-]*\\).*/\\1/p" "$out/$1/metrics.jsonl"; }

train moe-tp2-ep2
train moe-pp2-ep2 layout.tp=1 layout.pp=2 layout.sequence_parallel=false train.steps=$same_steps train.warmup=20 output.save=false

printf '\n'
paste <(values moe-tp2-ep2 loss | head -n $same_steps) <(values moe-pp2-ep2 loss) | awk '{
    d = $1 - $2; if (d < 0) d = -d
    printf "step %d: tp2 ep2 %s, pp2 ep2 %s nats a byte\n", NR, $1, $2
    if (!(d < 1e-3)) { print "the two layouts do not learn the same"; exit 1 }
}'
values moe-tp2-ep2 expert_load_most | awk 'NR == 1 { first = $1 } { last = $1 } END {
    printf "busiest expert: %s of the mean in the first step, %s in the last\n", first, last
    if (!(last < 2 && last < first)) { print "the router did not spread the tokens"; exit 1 }
}'
values moe-tp2-ep2 loss | tail -n 1 | awk '{ printf "last loss %s nats a byte\n", $1; if (!($1 < 2.2)) { print "the model did not learn: above 2.2"; exit 1 } }'
