#!/usr/bin/env python3
"""The planner against this machine: probes it, predicts the layouts of a few ranks, runs them all, and says how well that went.

  bench/planner_here.py --build build --out /tmp/here [--ranks 4] [--steps 4] [--rounds 1] [--micro 1,4] [--budget 20] [--topology T.yaml]

Layouts: every legal split of the ranks over tp, cp, pp and dp, with each kind of cp, each schedule (one and two chunks a stage), and the given micro-batches; ZeRO-1 and
sequence parallelism where they apply. Then the one that `rankloom plan` picks from its whole space. Each is run with gpt_3d for --steps steps a round,
rounds over all of them one after another; its time is the median of the steps behind the first, of all rounds.

Prints a line a layout (predicted, measured), then: Spearman's rank correlation; how far the planned one is from the fastest measured; the ratio of
predicted to measured with its spread; in how many runs rank 0's allocated memory was the predicted one to the byte. Run it on a machine that does nothing else.
"""
import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))


def layouts(world, heads, layers, seq, batch, micros):
    for tp in [t for t in range(1, world + 1) if world % t == 0 and heads % t == 0]:
        for cp in [c for c in range(1, world // tp + 1) if world // tp % c == 0 and (c == 1 or seq % (2 * c * tp) == 0)]:
            for pp in [p for p in range(1, world // tp // cp + 1) if world // tp // cp % p == 0 and p <= layers]:
                dp = world // tp // cp // pp
                for kind in ["ring"] if cp == 1 else ["ring", "allgather", "ulysses"]:
                    if kind == "ulysses" and heads % (tp * cp):
                        continue
                    for schedule in schedules(pp, layers):
                        vpp = 2 if schedule in ("interleaved", "zb-v") else 1
                        for micro in micros:
                            count = batch // (micro * dp)
                            if batch % (micro * dp) or (schedule == "interleaved" and count % pp):
                                continue
                            yield {"tp": tp, "cp": cp, "pp": pp, "vpp": vpp, "dp": dp, "zero": 1 if dp * cp > 1 else 0, "cp_kind": kind,
                                   "sequence_parallel": "true" if tp > 1 else "false", "schedule": schedule, "micro_batch": micro}


def schedules(pp, layers):
    if pp == 1:
        return ["1f1b"]
    return ["1f1b", "zb-h1"] + (["interleaved", "zb-v"] if 2 * pp <= layers else [])


def say(command, **more):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def name(layout):
    kept = [f"{k}{layout[k]}" for k in ("tp", "cp", "pp", "vpp", "dp") if layout[k] > 1] + [f"mb{layout['micro_batch']}"]
    return " ".join(kept + ([layout["schedule"]] if layout["pp"] > 1 else []) + ([layout["cp_kind"]] if layout["cp"] > 1 else []))


def ranks_of(values):
    order = sorted(range(len(values)), key=lambda i: values[i])
    rank = [0.0] * len(values)
    for place, i in enumerate(order):
        rank[i] = place
    return rank


def spearman(a, b):
    x, y = ranks_of(a), ranks_of(b)
    return statistics.correlation(x, y) if len(a) > 2 else float("nan")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--model", default=os.path.join(HERE, "planner_here.yaml"))
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--micro", default="1,4")
    parser.add_argument("--budget", type=float, default=20)
    parser.add_argument("--topology", help="probed before; else it is probed now")
    parser.add_argument("--seconds", type=float, default=1e9, help="start no further run after so long")
    parser.add_argument("--first", type=int, default=10**6, help="only so many layouts, spread over all")
    a = parser.parse_args()
    began = time.monotonic()
    rankloom, gpt_3d = os.path.join(a.build, "cli/rankloom"), os.path.join(a.build, "examples/gpt_3d/gpt_3d")
    os.makedirs(a.out, exist_ok=True)
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    topology = a.topology or os.path.join(a.out, "topology.yaml")
    if not a.topology:
        print(say([rankloom, "probe", "-n", str(a.ranks), "--budget", str(a.budget), "--model", a.model, "-o", topology], env=environment))

    data = os.path.join(a.out, "noise.bin")
    with open(data, "wb") as out:
        out.write(random.Random(0).randbytes(1 << 20))
    run = os.path.join(a.out, "run.yaml")
    with open(run, "w") as out:
        model = [line for line in open(a.model) if line.startswith("model:")][0]
        out.write(f"{model}data: {{path: {data}, tokenizer: bytes}}\n"
                  "train: {global_batch: 16, micro_batch: 4, seq: 256, lr: 1e-4, warmup: 10}\nlayout: {dp: auto}\noutput: {sample: 0}\n")

    def predict(layout_file):
        return json.loads(say([rankloom, "predict", a.model, "--topology", topology, "--layout", layout_file, "--format", "json"]))

    def write_layout(index, layout):
        path = os.path.join(a.out, f"layout{index}.yaml")
        with open(path, "w") as out:
            out.write("".join(f"{key}: {value}\n" for key, value in layout.items()) + "global_batch: 16\nseq: 256\n")
        return path

    contenders = []
    chosen = list(layouts(a.ranks, 6, 6, 256, 16, [int(m) for m in a.micro.split(",")]))
    chosen = chosen[::max(1, -(-len(chosen) // a.first))]
    for index, layout in enumerate(chosen):
        path = write_layout(index, layout)
        contenders.append({"name": name(layout), "file": path, "predicted": predict(path), "times": [], "bytes": None})
    planned = os.path.join(a.out, "planned.yaml")
    say([rankloom, "plan", a.model, "--topology", topology, "--max-gpus", str(a.ranks), "-o", planned])
    contenders.append({"name": "planned", "file": planned, "predicted": predict(planned), "times": [], "bytes": None})

    for _ in range(a.rounds):
        for c in contenders:
            if time.monotonic() - began > a.seconds:
                break
            metrics = os.path.join(a.out, "metrics.jsonl")
            say([rankloom, "run", "-n", str(a.ranks), "--", gpt_3d, run, f"layout={c['file']}", f"train.steps={a.steps}", f"output.metrics={metrics}"],
                env=environment)
            rows = [json.loads(line) for line in open(metrics)]
            c["times"] += [row["step_time_s"] for row in rows[1:]]
            c["bytes"] = rows[-1]["memory_bytes"]

    ran = [c for c in contenders if c["times"]]
    layouts_of = lambda p: p["layouts"][0] if "layouts" in p else p
    for c in ran:
        p = layouts_of(c["predicted"])
        c["s"], c["said"] = statistics.median(c["times"]), p["step_time_s"]
        c["exact"] = p["memory_parts_per_stage"][0]["allocated"] == c["bytes"]
        print(f"{c['name']:34s} predicted {1e3 * c['said']:8.1f} ms  measured {1e3 * c['s']:8.1f} ms  ratio {c['said'] / c['s']:5.2f}"
              f"  memory {'exact' if c['exact'] else str(c['bytes']) + ' not ' + str(p['memory_parts_per_stage'][0]['allocated'])}")
    plain = [c for c in ran if c["name"] != "planned"]
    fastest = min(ran, key=lambda c: c["s"])
    ratios = [c["said"] / c["s"] for c in plain]
    print(f"\n{len(plain)} layouts of {a.ranks} ranks; Spearman {spearman([c['said'] for c in plain], [c['s'] for c in plain]):.3f}")
    for c in ran:
        if c["name"] == "planned":
            print(f"planned: {1e3 * c['s']:.1f} ms, {100 * (c['s'] / fastest['s'] - 1):.1f} % over the fastest ({fastest['name']}, {1e3 * fastest['s']:.1f} ms)")
    print(f"predicted over measured: median {statistics.median(ratios):.3f}, from {min(ratios):.3f} to {max(ratios):.3f}; "
          f"{sum(abs(r - 1) <= 0.1 for r in ratios)} of {len(ratios)} within 10 %")
    print(f"memory of rank 0 to the byte in {sum(c['exact'] for c in ran)} of {len(ran)} runs")


main()
