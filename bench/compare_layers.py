"""Long attention and experts, ours and PyTorch's in turn on one machine, several rounds; prints every figure and a table of medians.

    compare_layers.py BUILD --reference DIR --torchrun PATH [--only attention1,attention2,experts2] [--rounds 3] [--seconds 1] [--tokens ...] [--heads 2 ...]

BUILD is the build folder with bench/layers and cli/rankloom, DIR the folder of the reference programs (see torch_layers.py). `attention1` is one rank,
`attention2` two ranks that share the sequence, `experts2` two ranks that share the experts; each rank has one thread.
What is not known here goes to both programs.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

LAYERS = {"attention1": ("attention", 1, [[]]), "attention2": ("attention", 2, [["--cp-kind", k] for k in ("ring", "allgather", "ulysses")]),
          "experts1": ("experts", 1, [[]]), "experts2": ("experts", 2, [["--dispatch", d] for d in ("alltoall", "allgather")])}
TOKENS = {"attention": "1024,4096,16384", "experts": "1024,4096"}


def commands(o, layer, ranks, variants):
    here = pathlib.Path(__file__).parent
    common = ["--tokens", o.tokens or TOKENS[layer], "--seconds", str(o.seconds), *o.more]
    launch = [str(pathlib.Path(o.build, "cli", "rankloom")), "run", "-n", str(ranks), "--"] if ranks > 1 else []
    for variant in variants:
        yield [*launch, str(pathlib.Path(o.build, "bench", "layers")), layer, *common, *variant]
    python = [o.torchrun, "--nproc-per-node", str(ranks)] if ranks > 1 else [str(pathlib.Path(o.torchrun).parent / "python")]
    yield [*python, str(here / "torch_layers.py"), layer, "--reference", o.reference, *common]


def run(command):
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=1800)
    if done.returncode:
        print(f"{command[0]} failed with {done.returncode}: {done.stderr[-500:]}", file=sys.stderr)
    for line in done.stdout.splitlines():
        if "{" in line:
            yield json.loads(line[line.index("{"):])


def table(rows):
    for layer, ranks in dict.fromkeys((r["layer"], r["ranks"]) for r in rows):
        mine = [r for r in rows if (r["layer"], r["ranks"]) == (layer, ranks)]
        makers = list(dict.fromkeys(r["who"] for r in mine))
        print(f"\n{layer}, {ranks} rank{'s' if ranks > 1 else ''}: ms forward and backward (median of rounds), and the ratio of torch's to it")
        print(f"{'tokens':>8}" + "".join(f"{m:>28}" for m in makers))
        for tokens in sorted({r["tokens"] for r in mine}):
            figure = {m: statistics.median(r["ms"] for r in mine if r["who"] == m and r["tokens"] == tokens) for m in makers}
            print(f"{tokens:8}" + "".join(f"{figure[m]:18.2f}{figure['torch'] / figure[m] if 'torch' in figure else 0:9.2f}x" for m in makers))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--reference", required=True)
    parser.add_argument("--torchrun", required=True)
    parser.add_argument("--only", default="attention1,attention2,experts2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--tokens")
    o, o.more = parser.parse_known_args()
    rows = []
    for _ in range(o.rounds):
        for name in o.only.split(","):
            for command in commands(o, *LAYERS[name]):
                for row in run(command):
                    rows.append(row)
                    print(json.dumps(row), flush=True)
    table(rows)


if __name__ == "__main__":
    main()
