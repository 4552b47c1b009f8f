#!/usr/bin/env python3
"""Feeds what `rankloom emit` writes to the projects' own parsers and compares what they make of it.

    pip install torch torchtitan==0.2.2 tyro deepspeed
    bench/emit_check.py build/cli/rankloom [--layouts 40]

Not part of the tests: it needs those packages. A parser that is not installed is named and left out; none at all is a failure.
"""
import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

MODEL = "model: {name: check, layers: 32, hidden: 4096, heads: 32, kv_heads: 8, ffn: 14336, vocab: 128256, seq: 8192, tied_embeddings: false%s}\n"
EXPERTS = ", moe: {experts: 8, top_k: 2, ffn: 14336}"


def draw(rng, experts):
    """A layout that may or may not be legal, as a dictionary of our keys."""
    tp, cp, dp = 2 ** rng.randrange(4), 2 ** rng.randrange(3), 2 ** rng.randrange(4)
    pp = rng.choice([1, 1, 2, 4])
    vpp = rng.choice([1, 2]) if pp > 1 else 1
    mbs = rng.choice([1, 2])
    layout = dict(tp=tp, cp=cp, dp=dp, pp=pp, vpp=vpp, zero=rng.randrange(4), sequence_parallel=tp > 1 and rng.random() < 0.7, micro_batch=mbs,
                  schedule="interleaved" if vpp == 2 else "1f1b", global_batch=mbs * dp * pp * rng.choice([1, 2, 4]), seq=8192,
                  recompute=rng.choice(["none", "selective", "full"]), cp_kind=rng.choice(["ring", "allgather", "ulysses"]) if cp > 1 else "ring",
                  ep=2 ** rng.randrange(4) if experts else 1, etp=rng.choice([1, tp]) if experts else 1)
    chunks = [32 // (pp * vpp)] * (pp * vpp)
    if len(chunks) > 2 and rng.random() < 0.3:
        chunks[0] -= 1
        chunks[1] += 1
    layout["layers_per_stage"] = chunks
    return layout


def as_yaml(layout):
    return "".join(f"{key}: {json.dumps(value)}\n".replace('"', "") for key, value in layout.items())


class Torchtitan:
    """Parses with its ConfigManager, checks degrees with ParallelDims, splits layers with its own function."""

    name, suffix, done = "torchtitan", ".toml", 0

    def __init__(self):
        from torchtitan.config import ConfigManager
        from torchtitan.distributed.parallel_dims import ParallelDims

        self.manager, self.dims, self.split = ConfigManager, ParallelDims, None
        try:  # wants torchtitan's other dependencies too
            from torchtitan.distributed.pipeline_parallel import generate_llm_fqn_per_model_part

            self.split = generate_llm_fqn_per_model_part
        except ImportError as missing:
            print(f"{self.name}: even splits of layers are not compared ({missing})")

    def understands(self, path, layout):
        config = self.manager().parse_args([f"--job.config_file={path}"])
        p, t = config.parallelism, config.training
        world = layout["tp"] * layout["cp"] * layout["dp"] * layout["pp"]
        dims = self.dims(dp_replicate=p.data_parallel_replicate_degree, dp_shard=p.data_parallel_shard_degree, cp=p.context_parallel_degree,
                         tp=p.tensor_parallel_degree, pp=p.pipeline_parallel_degree, ep=p.expert_parallel_degree, etp=p.expert_tensor_parallel_degree,
                         world_size=world)
        got = dict(tp=dims.tp, cp=dims.cp, pp=dims.pp, dp=dims.dp_replicate * dims.dp_shard, seq=t.seq_len, global_batch=t.global_batch_size,
                   recompute=config.activation_checkpoint.mode)
        got["micro_batch"] = p.pipeline_parallel_microbatch_size if dims.pp > 1 else t.local_batch_size
        if dims.ep > 1:
            got.update(ep=dims.ep, etp=dims.etp)
            assert dims.dp_shard * dims.cp * dims.tp % (dims.ep * dims.etp) == 0, "no whole mesh of experts"
        if dims.pp > 1:
            stages = -(-32 // p.pipeline_parallel_layers_per_stage) if p.pipeline_parallel_layers_per_stage else 0
            if not p.module_fqns_per_model_part and not self.split:
                assert stages == layout["pp"] * layout["vpp"]
                return got
            parts = p.module_fqns_per_model_part or self.split(stages, 32, p.pipeline_parallel_first_stage_less_layers, p.pipeline_parallel_last_stage_less_layers)
            got["layers_per_stage"] = [sum(name.startswith("layers.") for name in part) for part in parts]
        return got


class DeepSpeed:
    """Parses with its config class."""

    name, suffix, done = "deepspeed", ".json", 0

    def __init__(self):
        import deepspeed.runtime.config as module

        module.dist.get_rank = lambda group=None: 0  # it asks for its rank, and takes a world of one when no processes are joined
        self.config = module.DeepSpeedConfig

    def understands(self, path, layout):
        class Ranks:  # stands for the process groups: their sizes
            get_data_parallel_world_size = staticmethod(lambda: layout["dp"])
            get_model_parallel_world_size = staticmethod(lambda: layout["tp"])

        c = self.config(str(path), mpu=Ranks)
        got = dict(zero=c.zero_optimization_stage, global_batch=c.train_batch_size, micro_batch=c.train_micro_batch_size_per_gpu)
        assert c.gradient_accumulation_steps * c.train_micro_batch_size_per_gpu * layout["dp"] == c.train_batch_size
        if layout["tp"] > 1:
            got["tp"] = c.tensor_parallel_config.autotp_size
        return got


def open_parsers():
    parsers = []
    for kind in (Torchtitan, DeepSpeed):
        try:
            parsers.append(kind())
        except ImportError as missing:
            print(f"{kind.name}: left out ({missing})")
    return parsers


def emit(program, folder, layout, experts, parser):
    """The emitted file, or None when the layout is not legal or the dialect cannot say it."""
    (folder / "model.yaml").write_text(MODEL % (EXPERTS if experts else ""))
    (folder / "layout.yaml").write_text(as_yaml(layout))
    path = folder / ("emitted" + parser.suffix)
    run = subprocess.run([program, "emit", folder / "layout.yaml", "--model", folder / "model.yaml", "--to", parser.name, "-o", path], capture_output=True, text=True)
    return path if run.returncode == 0 else None


def check(program, folder, parser, wanted, rng):
    wrong = tries = 0
    while parser.done < wanted and tries < 60 * wanted:
        tries += 1
        experts = rng.random() < 0.4
        layout = draw(rng, experts)
        path = emit(program, folder, layout, experts, parser)
        if not path:
            continue
        parser.done += 1
        got = parser.understands(path, layout)
        differs = {key: (value, layout[key]) for key, value in got.items() if value != layout[key]}
        if differs:
            wrong += 1
            print(f"{parser.name}: understood, and meant: {differs}\n{path.read_text()}")
    print(f"{parser.name}: {parser.done} layouts accepted, {wrong} understood otherwise")
    return wrong == 0 and parser.done == wanted


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("program", help="the rankloom command")
    options.add_argument("--layouts", type=int, default=30)
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args()
    parsers = open_parsers()
    with tempfile.TemporaryDirectory() as folder:
        good = [check(given.program, Path(folder), parser, given.layouts, random.Random(given.seed)) for parser in parsers]
    sys.exit(0 if good and all(good) else 1)


if __name__ == "__main__":
    main()
