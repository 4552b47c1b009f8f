# gpt_3d runs what was planned: a layout file, and layout: auto, where rank 0 decides for all.
# usage: planned.sh RANKLOOM DATA GPT_3D
. "$(dirname "$0")/../cli/common.sh"
gpt_3d=$3 # the program

cat >"$folder/run.yaml" <<END
model: {file: $data/fixtures/llama_tiny/config.json}
data: {path: $data/fixtures/tokens.bin, tokenizer: uint16}
train: {steps: 2, global_batch: 8, micro_batch: 1, seq: 32, lr: 1e-3}
layout: {tp: 1}
output: {sample: 0}
END
cat >"$folder/room.yaml" <<END
cluster: {nodes: 1, cpu_ranks_per_node: 4, cores_per_node: 4, memory_gib_per_node: 16}
END
export OMP_NUM_THREADS=1

# What `rankloom plan -o` writes, unlike anything the run file says.
ends 0 "$rankloom" plan "$data/fixtures/llama_tiny/config.json" --topology "$folder/room.yaml" --global-batch 8 --fix tp=2 --fix pp=2 \
    --exclude recompute=selective --fix schedule=1f1b --fix mbs=2 -o "$folder/layout.yaml"
ends 0 "$rankloom" run -n 4 -- "$gpt_3d" "$folder/run.yaml" "layout=$folder/layout.yaml"
has "$folder/out" "layout   tp2 pp2 dp1" "mb2, 4 ranks, 4 micro-batches a step" "done     2 steps"

# It is a layout for this batch and this sequence, and for a world of this size.
ends 2 "$gpt_3d" "$folder/run.yaml" --dry-run "layout=$folder/layout.yaml" train.global_batch=4 train.seq=16
has "$folder/err" "layout.yaml is a layout for global_batch 8, and train.global_batch is 4" "layout.yaml is a layout for seq 32, and train.seq is 16"
ends 2 "$gpt_3d" "$folder/run.yaml" --dry-run --ranks 8 "layout=$folder/layout.yaml"
has "$folder/err" "4 ranks needed, the world has 8"
ends 2 "$gpt_3d" "$folder/run.yaml" --dry-run "layout=$folder/none.yaml"
has "$folder/err" "none.yaml: cannot open"

# auto: the same choice on every rank, or the same refusal.
sed -i "s|^layout:.*|layout: auto\ntopology: room.yaml|" "$folder/run.yaml"
ends 0 "$rankloom" run -n 4 -- "$gpt_3d" "$folder/run.yaml"
took=$(sed -n 's/^.*planned  \([^:]*\):.*/\1/p' "$folder/out")
[ -n "$took" ]
has "$folder/out" "layout   $took, 4 ranks" "done     2 steps"
ends 0 "$gpt_3d" "$folder/run.yaml" --dry-run --ranks 4
has "$folder/out" "planned  $took:" "layout   $took, 4 ranks"
ends 2 "$rankloom" run -n 5 -- "$gpt_3d" "$folder/run.yaml"
has "$folder/err" "room.yaml has 4 devices, and there are 5 ranks"

# auto without a topology measures the ranks at hand.
sed -i "/^topology:/d" "$folder/run.yaml"
ends 0 "$rankloom" run -n 2 -- "$gpt_3d" "$folder/run.yaml"
has "$folder/out" "by rankloom probe: ranks 2" "done     2 steps"
ends 2 "$gpt_3d" "$folder/run.yaml" --dry-run
has "$folder/err" "a dry run has none: name a \`topology:\` file"
