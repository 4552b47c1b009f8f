#!/usr/bin/env bash
# Runs a rank program under a real torchrun, and PyTorch's ranks under `rankloom run`. Takes minutes; not part of the tests.
#
#   TORCHRUN=/path/to/torchrun test/soak/torchrun.sh BUILD_FOLDER [PROGRAM [ARGUMENT …]]
#
# PROGRAM has to run for at least some seconds with any number of ranks, end with 0, and end with another status when a rank goes missing. Default: the
# probe of the tests, which passes barriers of the store. The environment may set KILLS (10), LIMIT (seconds for one scenario, 300), ONLY (words:
# scenarios to run). Python with torch is looked for beside torchrun.
set -uo pipefail

build=$(cd "$1" && pwd); shift
program=("$@")
((${#program[@]})) || program=("$build/test/launch/probe_rank" barriers=100 pause=0.03 deadline=10)
: "${TORCHRUN:?TORCHRUN=/path/to/torchrun is needed}" "${KILLS:=10}" "${LIMIT:=300}" "${ONLY:=}"
python=$(dirname "$TORCHRUN")/python
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
failures=0
cores=$(nproc)
export SOAK_ID="soak-$$" OMP_NUM_THREADS=1

free_port() { "$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# Processes that carry our mark and are not this script's own.
marked() {
    local p
    for p in /proc/[0-9]*; do
        [ "${p#/proc/}" != $$ ] && [ "${p#/proc/}" != "$BASHPID" ] && grep -qz "^SOAK_ID=$SOAK_ID\$" "$p/environ" 2>/dev/null && printf '%s ' "${p#/proc/}"
    done
}
ranks_of() { # pids of the ranks below the launcher $1, once all of $2 are there
    local pids
    for ((i = 0; i < 600; i++)); do
        mapfile -t pids < <(pgrep -P "$1")
        ((${#pids[@]} >= $2)) && { echo "${pids[@]}"; return 0; }
        kill -0 "$1" 2>/dev/null || return 1
        sleep 0.05
    done
    return 1
}

# kill_some LAUNCHER RANKS TIMES: kills one rank of each attempt with SIGKILL, sooner or later after its start.
kill_some() {
    local pids before=none victim
    for ((k = 1; k <= $3; k++)); do
        for ((i = 0; i < 2400; i++)); do
            pids=($(ranks_of "$1" "$2")) || { echo "kill $k: no ranks" >&2; return 1; }
            [[ " ${pids[*]} " != *" $before "* ]] && break # the victim of the last round is gone, so this is a new attempt
            sleep 0.05
        done
        sleep "0.$((RANDOM % 10))"
        victim=${pids[RANDOM % ${#pids[@]}]}
        kill -9 "$victim" 2>/dev/null && before=$victim
    done
}

# scenario NAME COMMAND …: runs a function within the limit; it has to return 0, and nothing may be left.
scenario() {
    local name=$1 began=$SECONDS status=0 left; shift
    [[ -n $ONLY && " $ONLY " != *" $name "* ]] && return
    "$@" >"$folder/$name.log" 2>&1 &
    local pid=$!
    while kill -0 $pid 2>/dev/null && ((SECONDS - began < LIMIT)); do sleep 0.1; done
    if kill -0 $pid 2>/dev/null; then
        status=hang
        for p in $(marked); do # who waits, in which attempt
            echo "$p $(tr '\0' ' ' <"/proc/$p/cmdline" | cut -c1-60) $(tr '\0' '\n' <"/proc/$p/environ" | grep -E '^(RANK|TORCHELASTIC_RESTART_COUNT)=' | tr '\n' ' ')"
        done >>"$folder/$name.log"
        kill $(jobs -p) 2>/dev/null
    else wait $pid; status=$?; fi
    for ((i = 0; i < 50; i++)); do left=$(marked); [ -z "$left" ] && break; sleep 0.1; done
    if [ "$status" = 0 ] && [ -z "$left" ]; then
        printf 'ok    %-28s %3d s\n' "$name" $((SECONDS - began))
    else
        printf 'FAIL  %-28s %3d s, status %s, left over: %s\n' "$name" $((SECONDS - began)) "$status" "${left:-nothing}"
        grep -v "step  *[0-9]*/" "$folder/$name.log" | tail -40 | sed 's/^/      | /'
        for p in $left; do kill -9 "$p" 2>/dev/null; done
        failures=$((failures + 1))
    fi
}

# --- torchrun starts our ranks ------------------------------------------------------------------------------------------------------

one_node() { "$TORCHRUN" --standalone --nproc-per-node 4 --no-python "${program[@]}"; }

agents() { # agents RESTARTS OPTION …: two launchers of two ranks each; %k becomes their number
    local restarts=$1 pids=() status=0; shift
    for k in 0 1; do
        "$TORCHRUN" --nnodes 2 --nproc-per-node 2 --max-restarts "$restarts" "${@//%k/$k}" --no-python "${program[@]}" &
        pids+=($!)
    done
    ((restarts > 0)) && { kill_some "${pids[1]}" 2 "$restarts" || status=1; }
    for p in "${pids[@]}"; do wait "$p" || status=$?; done
    return $status
}
two_agents_c10d() { local p; p=$(free_port); agents 0 --rdzv-backend c10d --rdzv-endpoint "127.0.0.1:$p" --rdzv-id "$p" --local-addr 127.0.0.1; }
two_agents_static() { local p; p=$(free_port); agents 0 --master-addr 127.0.0.1 --master-port "$p" --node-rank %k; }
two_agents_own_store() { TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 two_agents_c10d; }
killed_one_node() {
    local status=0
    "$TORCHRUN" --standalone --nproc-per-node 4 --max-restarts "$KILLS" --no-python "${program[@]}" &
    local pid=$!
    kill_some $pid 4 "$KILLS" || status=1
    wait $pid || status=$?
    return $status
}
killed_c10d() { local p; p=$(free_port); agents 3 --rdzv-backend c10d --rdzv-endpoint "127.0.0.1:$p" --rdzv-id "$p" --local-addr 127.0.0.1; }
killed_static() { local p; p=$(free_port); agents 1 --master-addr 127.0.0.1 --master-port "$p" --node-rank %k; }
killed_launcher() { # the ranks of a launcher that is gone end too
    "$TORCHRUN" --standalone --nproc-per-node 4 --no-python "${program[@]}" &
    local pid=$!
    ranks_of $pid 4 >/dev/null || return 1
    sleep 1
    kill -9 $pid; wait $pid
    sleep 1; return 0 # that nothing is left is checked by scenario()
}

# --- our launcher starts PyTorch's ranks ------------------------------------------------------------------------------------------------

cat >"$folder/gloo.py" <<'P'
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
for _ in range(int(os.environ.get("ROUNDS", "20"))):
    x = torch.full((1000,), float(rank + 1))
    dist.all_reduce(x)
    assert x[0].item() == size * (size + 1) / 2, x[0]
    time.sleep(0.05)
dist.barrier()
store = dist.distributed_c10d._get_default_store()
store.set(f"seen/{rank}", "yes")
store.wait([f"seen/{r}" for r in range(size)])
dist.destroy_process_group()
print("torch", torch.__version__, "rank", rank, "of", size, flush=True)
P
cat >"$folder/look.py" <<'P'
import os, time
from datetime import timedelta
from torch.distributed import TCPStore
store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, wait_for_workers=False, timeout=timedelta(seconds=20))
store.set("from/python", "hello")
assert store.get("from/python") == b"hello" and store.add("count", 3) == 3 and store.compare_set("new", "", "v") == b"v"
assert store.check(["from/python"]) and store.delete_key("from/python") and not store.check(["from/python"])
store.append("a", "x"); store.append("a", "y"); assert store.get("a") == b"xy"
store.multi_set(["m1", "m2"], ["1", "2"]); assert store.multi_get(["m1", "m2"]) == [b"1", b"2"]
if hasattr(store, "queue_push"):
    store.queue_push("q", "item"); assert store.queue_len("q") == 1 and store.queue_pop("q") == b"item"
for i in range(200):
    keys = [k for k in store.list_keys() if k.startswith("loom/")] if hasattr(store, "list_keys") else ["?"]
    if keys: break
    time.sleep(0.05)
print("python sees", len(keys), "keys of the C ranks, such as", sorted(keys)[0] if keys else None, flush=True)
assert keys
P
torch_ranks() { "$build/cli/rankloom" run -n 3 -- "$python" "$folder/gloo.py"; }
torch_ranks_killed() {
    local status=0
    ROUNDS=400 "$build/cli/rankloom" run -n 3 --max-restarts 5 -- "$python" "$folder/gloo.py" &
    local pid=$! pids before=none
    for ((k = 1; k <= 5; k++)); do
        for ((i = 0; i < 600; i++)); do
            mapfile -t pids < <(pgrep -P $pid -f "^$python")
            ((${#pids[@]} == 3)) && [[ " ${pids[*]} " != *" $before "* ]] && break
            sleep 0.05
        done
        sleep $((RANDOM % 9)).$((RANDOM % 10))
        ((${#pids[@]} == 3)) || return 1
        before=${pids[RANDOM % 3]}; kill -9 "$before"
    done
    wait $pid || status=$?
    return $status
}
python_looks_in() { # one look from the side, while the ranks run or right after
    cat >"$folder/rank.sh" <<'S'
[ "$RANK" = 0 ] && { "$LOOKER" "$LOOK" || touch "$LOOK.failed"; } &
"$@"; status=$?
wait
exit $status
S
    LOOKER=$python LOOK="$folder/look.py" "$build/cli/rankloom" run -n 4 -- sh "$folder/rank.sh" "${program[@]}" &&
        grep -q "python sees" "$folder/python_looks_in.log" && [ ! -e "$folder/look.py.failed" ]
}

echo "torch $("$python" -c 'import torch; print(torch.__version__)'), $cores cores, program: ${program[*]}"
scenario one_node one_node
scenario two_agents_c10d two_agents_c10d
scenario two_agents_static two_agents_static
scenario two_agents_own_store two_agents_own_store
scenario killed_one_node killed_one_node
scenario killed_c10d killed_c10d
scenario killed_static killed_static
scenario killed_launcher killed_launcher
scenario torch_ranks torch_ranks
scenario torch_ranks_killed torch_ranks_killed
scenario python_looks_in python_looks_in
exit $((failures > 0))
