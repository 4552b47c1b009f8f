# rankloom topo: every kind of file, every output, and refusals that say what to do.
. "$(dirname "$0")/common.sh"

ends 0 "$rankloom" topo "$data/clusters/h100-2x8.yaml"
has "$folder/out" "2 nodes, 16 devices" "50 GB/s (given) a device" "450 GB/s (assumed)"
ends 0 "$rankloom" topo --line "$data/clusters/nvl72-1rack.yaml"
has "$folder/out" "18 nodes x 4 GB200 NVL72, domains of 72"
ends 0 "$rankloom" topo --matrix "$data/topology/D11-bridged-pairs-b.txt"
has "$folder/out" "NV4" "SYS"
ends 0 "$rankloom" topo --gpu h100-80g "$data/topology/D13-cloud-without-links.xml"
has "$folder/out" "H100-SXM5-80GB" "(assumed)"
ends 0 "$rankloom" topo --line "$data/topology/D04-numa-not-in-main-tree.xml"
has "$folder/out" "1 node x 2 cpu"
ends 0 "$rankloom" topo --ranks 2 --line
has "$folder/out" "1 node x 2 cpu, domains of 2"

# What -o writes is the same machine room.
ends 0 "$rankloom" topo "$data/clusters/uneven-2-3-3.yaml" -o "$folder/exact.yaml" --svg "$folder/picture.svg"
ends 0 "$rankloom" topo "$folder/exact.yaml" -o "$folder/again.yaml"
cmp "$folder/exact.yaml" "$folder/again.yaml"
has "$folder/picture.svg" "<svg" "8 devices in 3 nodes" "</svg>"

printf 'cluster:\n  gpus_per_nod: 8\n  gpu: h1000\n' >"$folder/wrong.yaml"
ends 2 "$rankloom" topo "$folder/wrong.yaml"
has "$folder/err" "wrong.yaml:2:" "gpus_per_node" "wrong.yaml:3:" "h100"
ends 1 "$rankloom" topo "$folder/nothing.yaml"
has "$folder/err" "nothing.yaml"
