#!/usr/bin/env bash
# Everything that wants a GPU, in one go: run.sh BUILD. Writes BUILD/gpu/report.txt; a part that fails is named and the others go on.
#
# Speeds are measured in each arithmetic, or in the one that RANKLOOM_CUDA_MATH names (f32, tf32, bf16, fp8); then PEAK_TFLOPS (dense, of that arithmetic)
# turns model FLOP/s into utilisation. Beside each figure the same model in PyTorch, by $TORCH_PYTHON (python3 unless set) where that has a torch that sees the GPU.
set -uo pipefail
[ $# = 1 ] || { sed -n '2,5s/^# //p' "$0" >&2; exit 2; }
build=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
out=$build/gpu
layouts=$build/test/parallel/test_parallel_layouts
export LOOM_TEST_DATA=$here/../../test/data
export RANKLOOM_CUDA_MODULE=$build/lib/cuda/librankloom_cuda.so # in a build folder it lies beside no test program
mkdir -p "$out"
exec > >(tee "$out/report.txt") 2>&1
failed=0

say() { printf '\n== %s\n' "$*"; }
part() { # part NAME COMMAND …
    local name=$1 begin=$SECONDS
    shift
    if "$@" >"$out/part.log" 2>&1; then
        printf 'ok    %-60s %4d s\n' "$name" $((SECONDS - begin))
    else
        printf 'FAIL  %-60s %4d s\n' "$name" $((SECONDS - begin))
        tail -20 "$out/part.log" | sed 's/^/      | /'
        failed=1
    fi
}

# Without these there is nothing to do, and the library itself says best what is missing.
say "what is here"
nvidia-smi --query-gpu=index,name,driver_version,memory.total,compute_cap --format=csv 2>/dev/null || echo "nvidia-smi: not found"
printf '1\n' >"$out/data.txt"
seq 1 400000 >>"$out/data.txt"
cat >"$out/tiny.yaml" <<'Y'
model: {family: gpt2, vocab: 256, layers: 2, hidden: 128, heads: 4, ffn: 512, seq: 64}
data: {path: data.txt, tokenizer: bytes}
train: {steps: 3, global_batch: 4, seq: 64}
device: cuda
output: {sample: 0}
Y
"$build/examples/gpt_3d/gpt_3d" "$out/tiny.yaml" || { echo "no GPU to measure: see above"; exit 1; }
[ ! -x "$build/test/cuda/test_cuda_architectures" ] ||
    "$build/test/cuda/test_cuda_architectures" "$build/lib/cuda/librankloom_cuda.so" sm_80 sm_90 sm_100 compute_100

# The kernels' tests hand over their own memory.
say "every kernel against f64"
if nvidia-smi -q 2>/dev/null | grep -qE 'Addressing Mode *: *(HMM|ATS)'; then
    for name in gemm attention norm elementwise tokens experts; do
        part "kernels $name" env LOOM_TEST_MAKERS="cuda device products" "$build/test/kernels/test_kernels_$name"
    done
    part "kernels on tensor cores (tf32)" env LOOM_TEST_MAKERS="cuda device" "$build/test/kernels/test_kernels_tensor_cores"
    part "kernels in fp8" env LOOM_TEST_MAKERS="cuda device" "$build/test/kernels/test_kernels_narrow" fp8
else
    echo "skipped: this GPU does not reach the host's memory (nvidia-smi -q: Addressing Mode is neither HMM nor ATS)"
fi

# Ranks that share a GPU name themselves hosts of their own (NCCL_HOSTID): NCCL refuses two of one host on one device.
say "the fixtures' logits, gradients and losses, on one rank and on ranks that share the GPU"
for model in gpt2_tiny llama_tiny mixtral_tiny deepseek_tiny; do
    for ranks in 1 2 4; do
        part "$model, three layouts of $ranks rank(s)" "$layouts" --model $model --world $ranks --most 3 --device cuda
    done
done
# speed NAME PARAMETERS RUN.yaml: the median step of the last half; by $launcher, where there is one.
launcher=()
speed() {
    local name=$1 parameters=$2 run=$3
    rm -f "$out/metrics.jsonl"
    part "$name" "${launcher[@]}" "$build/examples/gpt_3d/gpt_3d" "$run" "output.metrics=$out/metrics.jsonl"
    sed -nE 's/.*"tokens": *([0-9]+).*"step_time_s": *([0-9.eE+-]+).*/\1 \2/p' "$out/metrics.jsonl" 2>/dev/null | tail -n 10 | sort -k2 -g |
        awk -v n="$parameters" -v peak="${PEAK_TFLOPS:-0}" '{tokens = $1; s[NR] = $2}
            END {if (NR) {t = s[int((NR + 1) / 2)]; f = 6 * n * tokens / t / 1e12
                printf "      %.1f ms a step, %.0f tokens/s, %.1f model TFLOP/s", t * 1e3, tokens / t, f
                if (peak > 0) printf ", MFU %.1f %%", 100 * f / peak
                printf " (6 N a token)\n"}}'
    tail -n 1 "$out/metrics.jsonl" 2>/dev/null | tr '{,}' '\n' | sed -nE 's/^ *"(compute|comm_[a-z]+|pipeline|data|checkpoint|other)_s": *([0-9.eE+-]+)$/\1 \2/p' |
        awk '$2 * 1 > 0 {printf "%s%s %.1f ms", n++ ? ", " : "      the last step: ", $1, $2 * 1e3} END {if (n) print ""}'
}

# peer MATH FAMILY LAYERS HIDDEN HEADS KV_HEADS FFN VOCAB BATCH SEQ: the same in PyTorch, which has no fp8 of its own for these layers.
python=${TORCH_PYTHON:-python3}
has_torch=$("$python" -c 'import torch; print(torch.cuda.is_available())' 2>/dev/null || echo False)
[ "$has_torch" = True ] || echo "PyTorch: left out, $python has no torch that sees a GPU"
peer() {
    local math=$1
    shift
    [ "$has_torch" = True ] && [ "$math" != fp8 ] || return 0
    "$python" -B "$here/torch_peer.py" "$@" "$math" 2>&1 | tail -n 1 | sed 's/^/      /'
}

cat >"$out/gpt2.yaml" <<'Y'
model: {family: gpt2, vocab: 50257, layers: 12, hidden: 768, heads: 12, ffn: 3072, seq: 1024}
data: {path: data.txt, tokenizer: bytes}
train: {steps: 20, global_batch: 8, micro_batch: 8, seq: 1024}
device: cuda
output: {sample: 0, save: false}
Y
sed 's/layers: 12, hidden: 768, heads: 12, ffn: 3072/layers: 48, hidden: 1600, heads: 25, ffn: 6400/; s/_batch: 8/_batch: 4/g' "$out/gpt2.yaml" >"$out/gpt2-xl.yaml"
sed 's/train: {/train: {graphs: false, /' "$out/gpt2.yaml" >"$out/gpt2-eager.yaml"
cat >"$out/llama.yaml" <<'Y'
model: {family: llama, vocab: 128256, layers: 4, hidden: 4096, heads: 32, kv_heads: 8, ffn: 14336, seq: 4096, tied_embeddings: false}
data: {path: data.txt, tokenizer: bytes}
train: {steps: 20, global_batch: 1, micro_batch: 1, seq: 4096}
device: cuda
output: {sample: 0, save: false}
Y

# A receive that is posted early and the work that its sender waits for are branches of one graph, which CUDA does not promise to run at once. Should they wait for each
# other, the run with graphs ends at this deadline, and the one without does not.
if [ "$(nvidia-smi --query-gpu=index --format=csv,noheader 2>/dev/null | wc -l)" -ge 2 ]; then
    say "a pipeline over two GPUs, with graphs and without"
    launcher=(env RANKLOOM_TIMEOUT_S=60 "$build/cli/rankloom" run -n 2 --)
    for yaml in gpt2 gpt2-eager; do
        sed 's/micro_batch: 8/micro_batch: 1/' "$out/$yaml.yaml" >"$out/$yaml-pp.yaml"
        echo 'layout: {pp: 2}' >>"$out/$yaml-pp.yaml"
    done
    speed "GPT-2 124M, pp 2" 124e6 "$out/gpt2-pp.yaml"
    speed "GPT-2 124M, pp 2, each step enqueued anew" 124e6 "$out/gpt2-eager-pp.yaml"
    launcher=()
else
    echo "one GPU: no pipeline over several"
fi
for math in ${RANKLOOM_CUDA_MATH:-f32 tf32 bf16 fp8}; do
    say "speed, one GPU, RANKLOOM_CUDA_MATH=$math"
    export RANKLOOM_CUDA_MATH=$math
    speed "GPT-2 124M" 124e6 "$out/gpt2.yaml"
    peer $math gpt2 12 768 12 12 3072 50257 8 1024
    speed "GPT-2 124M, each step enqueued anew" 124e6 "$out/gpt2-eager.yaml"
    speed "GPT-2 1.5B" 1.56e9 "$out/gpt2-xl.yaml"
    peer $math gpt2 48 1600 25 25 6400 50257 4 1024
    speed "4 layers of Llama 3 8B" 1.92e9 "$out/llama.yaml"
    peer $math llama 4 4096 32 8 14336 128256 1 4096
done

if command -v compute-sanitizer >/dev/null; then
    say "compute-sanitizer"
    for tool in memcheck racecheck synccheck initcheck; do
        part "$tool" compute-sanitizer --tool $tool --error-exitcode 1 "$build/examples/gpt_3d/gpt_3d" "$out/tiny.yaml" train.steps=3 # the last is a replay
    done
fi
say "report: $out/report.txt"
exit $failed
