# rankloom probe: measures ranks that it starts itself, and writes figures that a topology file can hold.
. "$(dirname "$0")/common.sh"

ends 0 "$rankloom" probe --ranks 2 --budget 0.1 --output "$folder/probed.yaml"
has "$folder/out" "all_reduce" "written to $folder/probed.yaml"
has "$folder/probed.yaml" "by rankloom probe: ranks 2" "[all_reduce, domain, 2, 2, " "[send, domain, 2, 2, " "[0, f32, 64, 64, 64, " "pattern: all_to_all"
ends 0 "$rankloom" topo "$folder/probed.yaml"
has "$folder/out" "1 node, 2 devices" "peak f32" "(measured)" "measured: "

ends 2 "$rankloom" probe --budget 0 --output "$folder/none.yaml"
[ ! -e "$folder/none.yaml" ]
