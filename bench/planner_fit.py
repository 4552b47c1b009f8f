#!/usr/bin/env python3
"""planner_fit.py LIBRARY RUNS.csv [options]: how well the planner predicts runs of sources that its constants have not seen.

Every constant that lib/planner/constants marks as fitted to steps (LOOM_STEPS, AT) is put back to what one would assume without any run:
the value of defaults.c. Then those constants are fitted to the calibration sources only, and the errors of the held-out sources are
reported. Constants that only held-out sources could tell are taken from kin (other generations of the same maker, frameworks of the same family), or stay
at their assumption, as they would on a new machine.

  --hold-out A,B     sources (beginnings of their names) to hold out; default: the two folds of FOLDS, one after the other
  --each             leave out one source at a time
  --device-known     keep the device constants of the tables, fit and hold out those of software only
  --rounds N         passes over all constants (4)
  --write            print the constants fitted to everything, beside those of the tables

Uses only the public call loom_plan_score()."""
import argparse
import collections
import csv
import ctypes
import io
import json
import math
import os
import re
import statistics
import sys
import tempfile

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib", "planner", "constants")

# Two halves with every generation of device in both as far as the sources allow.
FOLDS = [
    ["llm-foundry", "dgxc", "Zero Bubble", "vTrain single", "SimuMax", "Narayanan", "MaxText config", "torchtitan"],
    ["Megatron-Bridge", "vTrain multi", "InternEvo", "Korthikanti", "Megatron-Core README", "Megatron-LM README", "Megatron MoE",
     "tpu-recipes", "AMP", "PaLM", "GLM", "Bloomberg", "llm.c"],
]

# What to assume of a constant before any run, where defaults.c itself is fitted.
BLIND = {"NET_CROWD": 0.03, "OVERLAP_TAX": 0.1, "QUANTISE": 0.8, "JITTER": 0.002, "FIXED": 0.005}
# How far (in logarithms) a constant may well lie from its assumption.
SPREAD = collections.defaultdict(lambda: 0.25, KERNELS_MOE=1.0, FIXED=1.0, HOST_KERNEL=0.4, HOST_FACTOR=0.4, ELEMENTWISE=0.4, JITTER=0.7,
                                 NET_CROWD=0.7, OVERLAP_TAX=0.7, OWNER_TURN=1.5, SHARDED_RATE=1.0, SHARDED_EXPOSED=0.5, NET_START=0.4,
                                 LINK_REDUCE_2=0.5, LINK_REDUCE_4=0.5, SUSTAINED=0.2, MEMORY_SHARE=0.12, NET_SHARE=0.12)
# Shares that start at nothing are fitted on a straight scale.
STRAIGHT = {"TP_HIDDEN": (0.4, 0.3), "EP_HIDDEN": (0.2, 0.3)}
MOST = {"SUSTAINED": 1, "MEMORY_SHARE": 0.95, "NET_SHARE": 0.98, "TP_HIDDEN": 0.9, "EP_HIDDEN": 0.95, "QUANTISE": 1.5, "ATTENTION_NARROW": 1,
        "SHARDED_EXPOSED": 1, "GROUPED_SHARE": 1}


# A kind or framework without runs of its own is taken to be like its kin.
KIN = [r"TPU", r"G?B[23]00", r"H[128]00", r"A100|V100|T4|L40S|A10", r"MI\d", r"nemo|megatron", r"composer|torchtitan|internevo|deepspeed|pytorch",
       r"maxtext|jax"]


def kin_of(parameter):
    return next((k for k in KIN if re.match(k, parameter.owners[0], re.I)), parameter.owners[0])


class Parameter:
    """A constant, or several kinds' with one value."""

    def __init__(self, name, value, assumed, device):
        self.name, self.value, self.assumed, self.device = name, value, assumed, device
        self.owners = []

    def far(self):
        if self.name in STRAIGHT:
            return (self.value - self.assumed) / STRAIGHT[self.name][1]
        if self.value <= 0 or self.assumed <= 0:
            return 0
        return math.log(self.value / self.assumed) / SPREAD[self.name]


def table(text, marks):
    found = {}
    for name, mark, value in re.findall(r"(?:\[LOOM_(?:DEV|SOFT)_(\w+)\]\s*=\s*)LOOM_(%s)\(\s*([^,()]+(?:\([^)]*\))?[^,()]*)[,)]" % marks, text):
        found[name] = (mark, eval(value.replace("0x1p30", "2**30").strip()))
    return found


def first_name(text):
    return re.search(r'\.names = \{"([^"]*)"', text).group(1)


def read_constants():
    """All fitted constants, and what the tables say of the others."""
    text = open(os.path.join(ROOT, "defaults.c")).read()
    cut = text.index("loom_software_defaults")
    defaults = {True: table(text[:cut], "HABIT|STEPS"), False: table(text[cut:], "HABIT|STEPS")}
    parameters = {}

    def add(name, value, owner, device):
        assumed = BLIND.get(name, defaults[device][name][1])
        if name in STRAIGHT:
            assumed = STRAIGHT[name][0]
        key = (device, name, value)
        if key not in parameters:
            parameters[key] = Parameter(name, value, assumed, device)
        parameters[key].owners.append(owner)

    for device in (True, False):
        for name, (mark, value) in defaults[device].items():
            if mark == "STEPS":
                add(name, value, "all", device)
    for path in sorted(os.listdir(ROOT)):
        text = open(os.path.join(ROOT, path)).read()
        if path in ("defaults.c", "frameworks.c") or not path.endswith(".c"):
            continue
        for name, (mark, value) in table(text, "STEPS").items():
            add(name, value, first_name(text), True)
    frameworks = {}
    for block in open(os.path.join(ROOT, "frameworks.c")).read().split(".names = {")[1:]:
        names = re.findall(r'"([^"]*)"', block[: block.index("}")])
        frameworks[names[0]] = {n: (m, float(v)) for m, n, v in re.findall(r"(AT|SAY)\((\w+), ([^,]+),", block)}
    for owner, at in frameworks.items():
        for name, (mark, value) in at.items():
            if mark == "AT" and name not in ("WEIGHT_SCRATCH", "HEAD_SCRATCH", "TRANSIENT", "LOGIT_BYTES"):  # memory, not time
                add(name, value, owner, False)
    return list(parameters.values()), frameworks, defaults[False]


class Scorer:
    def __init__(self, library, rows, header):
        self.library = ctypes.CDLL(library)
        self.library.loom_last_error.restype = ctypes.c_char_p
        self.rows, self.header = rows, header
        self.files = {}
        self.folder = tempfile.TemporaryDirectory()

    def path_of(self, indices, alone):
        key = tuple(indices), alone
        if key not in self.files:
            self.files[key] = os.path.join(self.folder.name, "%d.csv" % len(self.files))
            with open(self.files[key], "w", newline="") as out:
                writer = csv.DictWriter(out, self.header)
                writer.writeheader()
                writer.writerows(dict(self.rows[i], source="row %d" % i) if alone else self.rows[i] for i in indices)
        return self.files[key]

    def score(self, indices, settings, alone=False):
        """alone: each row is a source by itself, so none calibrates another."""
        given = (ctypes.c_char_p * (len(settings) + 1))(*[s.encode() for s in settings], None)
        text = ctypes.c_void_p()
        if self.library.loom_plan_score(self.path_of(indices, alone).encode(), given, 1, ctypes.byref(text)) != 0:
            raise SystemExit(self.library.loom_last_error().decode())
        answer = json.loads(ctypes.string_at(text))
        self.library.loom_text_free(text)
        return answer


class Fit:
    def __init__(self, scorer, parameters, frameworks, software):
        self.scorer, self.parameters, self.frameworks, self.software = scorer, parameters, frameworks, software
        self.touched = {}

    def settings(self):
        """Longer owner names last: "megatron-lm" also means "megatron-lm-fork", which may have a value of its own. What no calibration row tells is
        assumed (~), so that intervals know."""
        said, told = {}, set()
        for p in self.parameters:
            for owner in p.owners:
                said[owner, p.name] = p.value
                if len(self.touched.get(p, [])) >= 3:
                    told.add((owner, p.name))
        for owner, name in list(said):
            for child, at in self.frameworks.items():
                if child.startswith(owner + "-") and (child, name) not in said:
                    common = [p.value for p in self.parameters if p.name == name and "all" in p.owners and not p.device]
                    said[child, name] = at[name][1] if name in at else common[0] if common else self.software[name][1]
        return ["%s.%s%s%.6g" % (owner, name.lower(), "=" if (owner, name) in told else "~", said[owner, name])
                for owner, name in sorted(said, key=lambda k: (k[0] != "all", len(k[0])))]

    def loss(self, answer, weights):
        sum_, all_ = 0, 0
        for row, weight in zip(answer["rows"], weights):
            if row["predicted_step_time_s"] and row["measured_step_time_s"]:
                e = abs(math.log(row["predicted_step_time_s"] / row["measured_step_time_s"]))
                sum_ += weight * (0.1 + 0.5 * (e - 0.1) if e > 0.1 else e)
                all_ += weight
        return sum_, all_

    def run(self, indices, rounds):
        rows = self.scorer.rows
        sizes = collections.Counter((rows[i]["source"], rows[i]["gpu"]) for i in indices)
        weight = {i: sizes[rows[i]["source"], rows[i]["gpu"]] ** -0.6 for i in indices}
        strength = 0.0006 * sum(weight.values())
        for p in self.parameters:
            self.touched[p] = self.rows_of(p, indices)
        for step in [0.15] + [0.06] * (rounds // 2) + [0.025] * (rounds - rounds // 2 - 1):
            for p in self.parameters:
                mine = self.touched[p]
                if not mine:
                    continue
                at = [weight[i] for i in mine]

                def cost():
                    return self.loss(self.scorer.score(mine, self.settings(), True), at)[0] + strength * p.far() ** 2

                best, best_value = cost(), p.value
                for sign in (1, -1):
                    for _ in range(3):
                        start = best_value
                        p.value = start + sign * step * 0.8 if p.name in STRAIGHT else start * math.exp(sign * step * max(1, 4 * SPREAD[p.name]))
                        p.value = max(0, min(p.value, MOST.get(p.name, math.inf)))
                        c = cost()
                        if c < best - 1e-9:
                            best, best_value = c, p.value
                        else:
                            break
                    p.value = best_value

        self.follow_kin()

    def follow_kin(self):
        fitted = [p for p in self.parameters if len(self.touched[p]) >= 3]
        for p in self.parameters:
            kin = [q for q in fitted if q.name == p.name and q.device == p.device and kin_of(q) == kin_of(p)]
            if p in fitted or not kin:
                continue
            if p.name in STRAIGHT or any(q.value <= 0 for q in kin):
                p.value = sum(q.value for q in kin) / len(kin)
            else:
                p.value = math.exp(sum(math.log(q.value) for q in kin) / len(kin))

    def rows_of(self, p, indices):
        """Rows whose prediction the constant changes."""
        before = self.scorer.score(indices, self.settings(), True)["rows"]
        old = p.value
        p.value = old * 0.8 if old else 0.1
        after = self.scorer.score(indices, self.settings(), True)["rows"]
        p.value = old
        return [i for i, a, b in zip(indices, before, after) if a["predicted_step_time_s"] != b["predicted_step_time_s"]]


def starts(row, names):
    return any(row["source"].startswith(n) for n in names)


def report(title, answer, out=sys.stdout):
    s = answer["summary"]
    print("%s: %d rows, %.1f %% mean by source and device (%.1f %% median of rows); one measured step: %.1f %% mean, %.1f %% median; "
          "interval %.0f %%, with one step %.0f %%" % (title, s["predicted"], 100 * s["mean_by_source_and_device"], 100 * s["median"],
                               100 * (s["one_step_mean_by_source_and_device"] or math.nan), 100 * (s["one_step_median"] or math.nan),
                               100 * s["interval_holds"], 100 * (s["one_step_interval_holds"] or math.nan)), file=out)
    for where in ("one_node", "several_nodes"):
        c = s["choice_" + where]
        if c["groups"]:
            print("    choice on %s: %d groups, mean regret %.2f %%, rank correlation %.2f" % (where.replace("_", " "), c["groups"],
                  100 * c["mean_regret"], c["rank_correlation"]), file=out)
    for g in s["groups"]:
        if g["rows"]:
            print("    %-40.40s %-24.24s %4d  %5.1f %%  %s" % (g["source"], g["gpu"], g["rows"], 100 * g["mean"],
                  "%5.1f %%" % (100 * g["one_step_mean"]) if g["one_step_mean"] else ""), file=out)
    out.flush()


def rows_together(answers):
    """Medians and intervals over the rows of all held-out sources."""
    plain, one, inside, one_inside = [], [], [], []
    for row in (r for a in answers for r in a["rows"] if r["predicted_step_time_s"] and r["measured_step_time_s"]):
        measured = row["measured_step_time_s"]
        plain.append(abs(row["predicted_step_time_s"] / measured - 1))
        inside.append(row["low"] <= measured <= row["high"])
        if row["one_step_calibrated_s"]:
            one.append(abs(row["one_step_calibrated_s"] / measured - 1))
            one_inside.append(row["one_step_low"] <= measured <= row["one_step_high"])
    return "%.1f %% median of %d rows, interval %.0f %%; one measured step: %.1f %% median of %d rows, interval %.0f %%" % (
        100 * statistics.median(plain), len(plain), 100 * statistics.mean(inside), 100 * statistics.median(one), len(one), 100 * statistics.mean(one_inside))


def held_out(arguments, scorer, names):
    parameters, frameworks, software = read_constants()
    if arguments.device_known:
        parameters = [p for p in parameters if not p.device]
    for p in parameters:
        p.value = p.assumed
    calibration = [i for i, row in enumerate(scorer.rows) if not starts(row, names) and row["step_time_s"]]
    rest = [i for i, row in enumerate(scorer.rows) if starts(row, names) and row["step_time_s"]]
    fit = Fit(scorer, parameters, frameworks, software)
    fit.run(calibration, arguments.rounds)
    seen, unseen = scorer.score(calibration, fit.settings()), scorer.score(rest, fit.settings())
    return fit, seen, unseen


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("library")
    parser.add_argument("runs")
    parser.add_argument("--hold-out")
    parser.add_argument("--each", action="store_true")
    parser.add_argument("--device-known", action="store_true")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    text = open(arguments.runs, newline="").read()
    reader = csv.DictReader(io.StringIO(text))
    rows = list(reader)
    scorer = Scorer(os.path.abspath(arguments.library), rows, reader.fieldnames)
    if arguments.write:
        tables = {(o, p.name): p.value for p in read_constants()[0] for o in p.owners}
        fit, seen, _ = held_out(arguments, scorer, ["nobody"])
        report("fitted to all", seen)
        for p in fit.parameters:
            print("%-14s %-20s assumed %-10.4g tables %-10.4g fitted %-10.4g rows %d" % (",".join(p.owners)[:14], p.name, p.assumed,
                  tables[p.owners[0], p.name], p.value, len(fit.touched[p])))
        return
    if arguments.each:
        folds = [[s] for s in sorted({row["source"] for row in rows if row["step_time_s"]})]
    else:
        folds = [arguments.hold_out.split(",")] if arguments.hold_out else FOLDS
    groups, answers = [], []
    for names in folds:
        _, seen, unseen = held_out(arguments, scorer, names)
        if not unseen["summary"]["predicted"]:
            continue
        if not arguments.each:
            report("calibrated on", seen)
        report("held out", unseen)
        groups += [g for g in unseen["summary"]["groups"] if g["rows"]]
        answers.append(unseen)
    print("all held-out groups: %.1f %% mean; one measured step %.1f %%" % (
        100 * sum(g["mean"] for g in groups) / len(groups),
        100 * sum(g["one_step_mean"] for g in groups if g["one_step_mean"]) / max(1, sum(1 for g in groups if g["one_step_mean"]))))
    print("over rows: " + rows_together(answers))


main()
