"""Our collectives beside Open MPI's and torch's Gloo, in turn on one machine, several rounds; prints every figure and a table of medians.

    compare_collectives.py BUILD [--ranks 2,4,8] [--rounds 3] [--torchrun PATH] [--json FILE] [--calls ...] [--bytes ...] [--seconds S]

BUILD is the build folder with bench/collectives and, if MPI was found, bench/mpi_collectives. A maker that is not there is left out and named.
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys


def commands(options, ranks):
    here = pathlib.Path(__file__).parent
    common = ["--calls", options.calls, "--bytes", options.bytes, "--seconds", str(options.seconds)]
    ours = [str(pathlib.Path(options.build, "bench", "collectives")), "--ranks", str(ranks), *common]
    found = {"rankloom heap": [*ours, "--buffers", "heap"], "rankloom malloc": [*ours, "--buffers", "malloc"]}
    if options.tcp:
        found["rankloom tcp"] = [*ours, "--transport", "tcp"]
    mpi = pathlib.Path(options.build, "bench", "mpi_collectives")
    if mpi.exists() and shutil.which("mpirun"):
        crowded = ranks > len(os.sched_getaffinity(0))
        yields = ["--oversubscribe", "--mca", "mpi_yield_when_idle", "1"] if crowded else []
        as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        found["Open MPI"] = ["mpirun", *as_root, *yields, "-n", str(ranks), str(mpi), *common]
    if options.torchrun:
        found["torch gloo"] = [options.torchrun, "--nproc-per-node", str(ranks), str(here / "gloo_collectives.py"), *common]
    return found


def run(command):
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=1800)
    if done.returncode:
        print(f"{command[0]} failed with {done.returncode}: {done.stderr[-500:]}", file=sys.stderr)
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            yield json.loads(line)


def table(rows, makers, ranks):
    print(f"\n{ranks} ranks on {len(os.sched_getaffinity(0))} cores, microseconds (median of rounds)")
    print(f"{'call':16}{'bytes':>10}" + "".join(f"{m:>18}" for m in makers))
    for key in dict.fromkeys((r["call"], r["bytes"]) for r in rows if "us" in r):
        cells = []
        for maker in makers:
            figures = [r["us"] for r in rows if r["who"] == maker and (r["call"], r.get("bytes")) == key and "us" in r]
            cells.append(f"{statistics.median(figures):18.2f}" if figures else f"{'-':>18}")
        print(f"{key[0]:16}{key[1]:10}" + "".join(cells))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--ranks", default="2,4,8")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--torchrun", default=shutil.which("torchrun"))
    parser.add_argument("--tcp", action="store_true", help="also ours over TCP on loopback")
    parser.add_argument("--json")
    parser.add_argument("--calls", default="all_reduce")
    parser.add_argument("--bytes", default="8,1024,4096,65536,1048576,16777216")
    parser.add_argument("--seconds", type=float, default=0.5)
    options = parser.parse_args()
    for ranks in map(int, options.ranks.split(",")):
        makers, rows = commands(options, ranks), []
        for _ in range(options.rounds):
            for maker, command in makers.items():
                rows += [{**row, "who": maker} for row in run(command)]
        table(rows, list(makers), ranks)
        if options.json:
            with open(options.json, "a") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    main()
