#!/usr/bin/env python3
"""Feeds what `rankloom emit` writes to the projects' own parsers and validators, compares the degrees that they derive with the layout, and reads it back.

    pip install torch megatron-core megatron-bridge torchtitan==0.2.2 tomli tyro deepspeed maxtext flax jax accelerate axolotl verl ray hydra-core
    bench/emit_check.py build/cli/rankloom [--layouts 30] [--only megatron,maxtext]

No GPU: its two or three device queries are answered for the projects, and packages that only exist with CUDA are absent or empty (see Absent). Not part
of the tests: it needs those packages. One that is not installed is named and left out; none at all is a failure. docs/emit.md has the versions and results.
"""
import argparse
import importlib.abc
import importlib.machinery
import importlib.metadata
import json
import logging
import os
import random
import shlex
import subprocess
import sys
import tempfile
import types
import typing
import warnings
from pathlib import Path

MODEL = "model: {name: check, layers: 32, hidden: 4096, heads: 32, kv_heads: 8, ffn: 14336, vocab: 128256, seq: 8192, tied_embeddings: false%s}\n"
EXPERTS = ", experts: {count: 8, top_k: 2, ffn: 14336}"


# --- layouts ------------------------------------------------------------------------------------------------------------------------

def draw(rng, experts):
    """A layout that may or may not be legal, as a dictionary of our keys."""
    tp, cp, dp = 2 ** rng.randrange(4), 2 ** rng.randrange(3), 2 ** rng.randrange(4)
    pp = rng.choice([1, 1, 2, 4])
    vpp = rng.choice([1, 2]) if pp > 1 else 1
    mbs = rng.choice([1, 2])
    layout = dict(tp=tp, cp=cp, dp=dp, pp=pp, vpp=vpp, zero=rng.randrange(4), sequence_parallel=tp > 1 and rng.random() < 0.7, micro_batch=mbs,
                  schedule="interleaved" if vpp == 2 else "1f1b", global_batch=mbs * dp * pp * rng.choice([1, 2, 4]), seq=8192,
                  recompute=rng.choice(["none", "selective", "full"]), cp_kind=rng.choice(["ring", "allgather", "ulysses", "hybrid"]) if cp > 1 else "ring",
                  ep=2 ** rng.randrange(4) if experts else 1, etp=rng.choice([1, tp]) if experts else 1)
    if vpp == 2 and rng.random() < 0.2:
        layout["schedule"] = "zb-v"
    if rng.random() < 0.2:
        layout["order"] = ["tp", "cp", "pp", "dp"]
    chunks = [32 // (pp * vpp)] * (pp * vpp)
    if len(chunks) > 2 and rng.random() < 0.3:
        chunks[0] -= 1
        chunks[1] += 1
    layout["layers_per_stage"] = chunks
    return layout


def world_of(layout):
    return layout["tp"] * layout["cp"] * layout["dp"] * layout["pp"]


def as_yaml(layout):
    return "".join(f"{key}: {json.dumps(value)}\n".replace('"', "") for key, value in layout.items())


def from_yaml(text):
    """Our layout files are flat: a key, a value or a list a line."""
    layout = {}
    for line in text.splitlines():
        line = line.split("#")[0].strip()
        if line:
            key, value = line.split(": ", 1)
            words = [word.strip() for word in value.strip("[]").split(",")]
            words = [int(word) if word.lstrip("-").isdigit() else {"true": True, "false": False}.get(word, word) for word in words]
            layout[key] = words if value.startswith("[") else words[0]
    return layout


# --- what stands in for a GPU ---------------------------------------------------------------------------------------------------------

class Nothing(type):
    """A class whose every attribute is another one."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing(name, (), {})

    def __or__(cls, other):
        return cls

    __ror__ = __or__


class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Packages that need CUDA to be installed, as empty ones; megatron.core asks whether they are there and goes without."""

    NAMES = {"transformer_engine", "mamba_ssm", "causal_conv1d", "fla", "flash_attn", "ring_flash_attn", "modelopt", "nvidia_resiliency_ext", "timm", "open_clip", "mlflow", "comet_ml",
             "qwen_vl_utils", "peft", "diffusers", "wandb"}

    def find_spec(self, name, path=None, target=None):
        frame = sys._getframe(1)
        while frame:
            module = frame.f_globals.get("__name__", "")
            if module.startswith(("megatron.core", "deepspeed")):
                return None
            if module.startswith(("megatron.bridge", "axolotl", "verl")):
                break
            frame = frame.f_back
        wanted = name.split(".")[0] in self.NAMES or name.startswith("megatron.energon")
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if wanted else None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__path__, module.__version__ = [], "2.10.0"

        def attribute(name):
            if name.startswith("__"):
                raise AttributeError(name)
            return Nothing(name, (), {})

        module.__getattr__ = attribute
        return module

    def exec_module(self, module):
        pass


def pretend_a_gpu():
    import torch

    torch.cuda.get_device_capability = lambda *device: (9, 0)
    torch.cuda.get_device_properties = lambda *device: types.SimpleNamespace(major=9, minor=0, name="H100", total_memory=80 << 30, multi_processor_count=132)
    torch.cuda.get_device_name = lambda *device: "H100"
    torch.cuda.device_count = lambda: 8
    if not hasattr(typing, "override"):  # from Python 3.12 on
        import typing_extensions

        typing.override = typing_extensions.override


# --- the projects ----------------------------------------------------------------------------------------------------------------------

class Megatron:
    """Parses with its argument parser, validates with validate_args()."""

    name, package, suffix, has_experts, reads, pipelines = "megatron", "megatron-core", ".args", True, True, True

    def __init__(self):
        pretend_a_gpu()
        import megatron.training.arguments as arguments

        self.arguments = arguments

    def understands(self, path, layout, experts):
        sharded = layout["zero"] >= 2
        os.environ.update(RANK="0", WORLD_SIZE=str(world_of(layout)))
        os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
        if not sharded:  # docs/emit.md: its FSDP wants it unset, the rest 1
            os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
        sys.argv = ["pretrain_gpt.py", *shlex.split(path.read_text(), comments=True)]
        a = self.arguments.parse_args()
        self.arguments.validate_args(a, {})
        got = dict(tp=a.tensor_model_parallel_size, pp=a.pipeline_model_parallel_size, cp=a.context_parallel_size, dp=a.data_parallel_size, vpp=a.virtual_pipeline_model_parallel_size or 1,
                   sequence_parallel=bool(a.sequence_parallel), micro_batch=a.micro_batch_size, global_batch=a.global_batch_size, seq=a.seq_length, recompute=a.recompute_granularity or "none")
        strategy = {"optim_grads": 2, "optim_grads_params": 3}
        got["zero"] = strategy[a.data_parallel_sharding_strategy] if a.use_megatron_fsdp else int(bool(a.use_distributed_optimizer))
        if experts:
            got.update(ep=a.expert_model_parallel_size, etp=a.expert_tensor_parallel_size)
        return got


def flat(tree, path=""):
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from flat(value, f"{path}{key}.")
        else:
            yield f"{path}{key}={str(value).lower() if isinstance(value, bool) else value}"


class Bridge:
    """Merges into its ConfigContainer as its recipes do, then runtime_config_update(), which validates."""

    name, package, suffix, has_experts, reads, pipelines = "nemo", "megatron-bridge", ".yaml", True, True, True

    def __init__(self):
        pretend_a_gpu()
        import megatron.bridge.training.config as config
        from megatron.bridge.models.gpt_provider import GPTModelProvider
        from megatron.bridge.training.tokenizers.config import TokenizerConfig
        from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides

        self.config, self.model, self.tokenizer, self.merge = config, GPTModelProvider, TokenizerConfig, process_config_with_overrides

    def base(self, experts):
        c = self.config
        model = dict(hidden_size=4096, num_attention_heads=32, num_query_groups=8, ffn_hidden_size=14336, vocab_size=128256, gated_linear_unit=True, normalization="RMSNorm",
                     add_bias_linear=False, position_embedding_type="rope", share_embeddings_and_output_weights=False)
        if experts:
            model.update(num_moe_experts=8, moe_router_topk=2, moe_ffn_hidden_size=14336, moe_token_dispatcher_type="alltoall")
        dataset = c.MockGPTDatasetConfig(random_seed=1, seq_length=1, reset_position_ids=False, reset_attention_mask=False, eod_mask_loss=False, dataloader_type="single")
        return c.ConfigContainer(model=self.model(num_layers=1, **model), train=c.TrainingConfig(micro_batch_size=1, global_batch_size=1, train_iters=10), dataset=dataset,
                                 optimizer=c.OptimizerConfig(optimizer="adam", lr=1e-4), scheduler=c.SchedulerConfig(lr_decay_style="cosine"), logger=c.LoggerConfig(),
                                 tokenizer=self.tokenizer(tokenizer_type="NullTokenizer", vocab_size=128256), checkpoint=c.CheckpointConfig())

    def understands(self, path, layout, experts):
        import yaml

        os.environ.update(RANK="0", WORLD_SIZE=str(world_of(layout)))
        os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
        c = self.merge(self.base(experts), cli_overrides=list(flat(yaml.safe_load(path.read_text()))))
        self.config.runtime_config_update(c)
        m = c.model
        got = dict(tp=m.tensor_model_parallel_size, pp=m.pipeline_model_parallel_size, cp=m.context_parallel_size, dp=c.data_parallel_size, vpp=m.virtual_pipeline_model_parallel_size or 1,
                   sequence_parallel=bool(m.sequence_parallel), micro_batch=c.train.micro_batch_size, global_batch=c.train.global_batch_size, seq=m.seq_length,
                   recompute=m.recompute_granularity or "none")
        strategy = {"optim_grads": 2, "optim_grads_params": 3}
        got["zero"] = strategy[c.ddp.data_parallel_sharding_strategy] if c.dist.use_megatron_fsdp else int(bool(c.ddp.use_distributed_optimizer))
        if experts:
            got.update(ep=m.expert_model_parallel_size, etp=m.expert_tensor_parallel_size)
        return got


class Torchtitan:
    """Parses with its ConfigManager, checks degrees with ParallelDims, splits layers with its own function."""

    name, package, suffix, has_experts, reads, pipelines = "torchtitan", "torchtitan", ".toml", True, True, True

    def __init__(self):
        from torchtitan.config import ConfigManager
        from torchtitan.distributed.parallel_dims import ParallelDims

        self.manager, self.dims, self.split = ConfigManager, ParallelDims, None
        try:  # wants torchtitan's other dependencies too
            from torchtitan.distributed.pipeline_parallel import generate_llm_fqn_per_model_part

            self.split = generate_llm_fqn_per_model_part
        except ImportError as missing:
            print(f"{self.name}: even splits of layers are not compared ({missing})")

    def understands(self, path, layout, experts):
        config = self.manager().parse_args([f"--job.config_file={path}"])
        p, t = config.parallelism, config.training
        dims = self.dims(dp_replicate=p.data_parallel_replicate_degree, dp_shard=p.data_parallel_shard_degree, cp=p.context_parallel_degree, tp=p.tensor_parallel_degree,
                         pp=p.pipeline_parallel_degree, ep=p.expert_parallel_degree, etp=p.expert_tensor_parallel_degree, world_size=world_of(layout))
        got = dict(tp=dims.tp, cp=dims.cp, pp=dims.pp, dp=dims.dp_replicate * dims.dp_shard, seq=t.seq_len, global_batch=t.global_batch_size, recompute=config.activation_checkpoint.mode)
        got["micro_batch"] = p.pipeline_parallel_microbatch_size if dims.pp > 1 else t.local_batch_size
        if layout["dp"] > 1:
            got["zero"] = 0 if dims.dp_shard == 1 else {"never": 2, "always": 3}[p.fsdp_reshard_after_forward]
        if dims.ep > 1:
            got.update(ep=dims.ep, etp=dims.etp)
            assert dims.dp_shard * dims.cp * dims.tp % (dims.ep * dims.etp) == 0, "no whole mesh of experts"
        if dims.pp > 1:
            names = {"GPipe": "gpipe", "1F1B": "1f1b", "Interleaved1F1B": "interleaved", "ZBVZeroBubble": "zb-v"}
            got["schedule"] = names[p.pipeline_parallel_schedule]
            stages = -(-32 // p.pipeline_parallel_layers_per_stage) if p.pipeline_parallel_layers_per_stage else 0
            if not p.module_fqns_per_model_part and not self.split:
                assert stages == layout["pp"] * layout["vpp"]
                return got
            parts = p.module_fqns_per_model_part or self.split(stages, 32, p.pipeline_parallel_first_stage_less_layers, p.pipeline_parallel_last_stage_less_layers)
            got["layers_per_stage"] = [sum(name.startswith("layers.") for name in part) for part in parts]
        return got


class DeepSpeed:
    """Parses with its config class."""

    name, package, suffix, has_experts, reads, pipelines = "deepspeed", "deepspeed", ".json", True, True, False

    def __init__(self):
        import deepspeed.runtime.config as module

        module.dist.get_rank = lambda group=None: 0  # it asks for its rank, and takes a world of one when no processes are joined
        self.config = module.DeepSpeedConfig

    def understands(self, path, layout, experts):
        class Ranks:  # stands for the process groups: their sizes
            get_data_parallel_world_size = staticmethod(lambda: layout["dp"])
            get_model_parallel_world_size = staticmethod(lambda: layout["tp"])

        c, text = self.config(str(path), mpu=Ranks), json.loads(path.read_text())
        got = dict(zero=c.zero_optimization_stage, global_batch=c.train_batch_size, micro_batch=c.train_micro_batch_size_per_gpu)
        assert c.gradient_accumulation_steps * c.train_micro_batch_size_per_gpu * layout["dp"] == c.train_batch_size
        got["tp"] = c.tensor_parallel_config.autotp_size or 1
        got["cp"] = text.get("sequence_parallel_size", 1)  # read at initialize(), not by the class
        experts_of = getattr(c, "expert_parallel_config", None)
        if experts_of is not None and layout["ep"] > 1:
            assert experts_of.enabled
            got["ep"] = experts_of.autoep_size
        return got


class MaxText:
    """Merges over its base.yml and validates with its pydantic model."""

    name, package, suffix, has_experts, reads, pipelines = "maxtext", "maxtext", ".yaml", True, True, True

    def __init__(self):
        os.environ["JAX_PLATFORMS"] = "cpu"
        import maxtext
        import maxtext.configs.pyconfig as pyconfig

        self.initialize = pyconfig.initialize_pydantic
        self.base = str(Path(maxtext.__file__).parent / "configs" / "base.yml")

    def understands(self, path, layout, experts):
        import yaml

        model = ["base_num_decoder_layers=32", "base_num_query_heads=32", "base_num_kv_heads=8", "base_emb_dim=4096", "base_mlp_dim=14336"]
        if experts:
            model += ["num_experts=8", "num_experts_per_tok=2", "base_moe_mlp_dim=14336", "decoder_block=mixtral"]
        on_tpu = layout["cp"] > 1 and layout["cp_kind"] == "ulysses"
        c = self.initialize(["train.py", self.base, *flat(yaml.safe_load(path.read_text())), *model, "run_name=check", "enable_checkpointing=false", "skip_jax_distributed_system=true",
                             "internal_compile=true", f"internal_compile_num_devices={world_of(layout)}", "hardware=tpu" if on_tpu else "hardware=gpu"])
        size = dict(zip(c.mesh_axes, (max(a, 1) * max(b, 1) for a, b in zip(c.ici_parallelism, c.dcn_parallelism))))
        got = dict(tp=size["tensor"] * size["tensor_sequence"], cp=size["context"] * size.get("context_usp_ulysses", 1), pp=size["stage"], dp=size["data"] * size["fsdp"] * size["expert"],
                   seq=c.max_target_length, recompute={"full": "full", "none": "none"}.get(str(c.remat_policy).lower(), "selective"))
        if layout["tp"] > 1:
            got["sequence_parallel"] = size["tensor_sequence"] > 1
        if layout["pp"] > 1:
            got.update(vpp=c.num_pipeline_repeats, global_batch=c.micro_batch_size_to_train_on, micro_batch=c.micro_batch_size_to_train_on // c.num_pipeline_microbatches // layout["dp"])
            got["layers_per_stage"] = [c.num_layers_per_pipeline_stage] * (layout["pp"] * c.num_pipeline_repeats)
        else:
            got.update(global_batch=c.global_batch_size_to_train_on, micro_batch=c.micro_batch_size_to_train_on // layout["dp"])
        if experts:
            got["ep"] = size["expert"]
        return got


class Accelerate:
    """Builds its ParallelismConfig."""

    name, package, suffix, has_experts, reads, pipelines = "accelerate", "accelerate", ".py", False, False, False

    def __init__(self):
        from accelerate.parallelism_config import ParallelismConfig

        self.config = ParallelismConfig

    def understands(self, path, layout, experts):
        c = eval(path.read_text(), {"ParallelismConfig": self.config})
        assert c.total_size == world_of(layout)
        got = dict(tp=c.tp_size, cp=c.cp_size * c.sp_size, dp=c.dp_replicate_size * c.dp_shard_size)
        if layout["dp"] > 1:
            got["zero"] = 3 if c.dp_shard_size > 1 else 0
        return got


class Axolotl:
    """Validates with its input schema."""

    name, package, suffix, has_experts, reads, pipelines = "axolotl", "axolotl", ".yaml", True, False, False

    def __init__(self):
        from axolotl.integrations.base import PluginManager
        from axolotl.integrations.config import merge_input_args
        from axolotl.utils.schemas.config import AxolotlInputConfig

        self.config, self.plugins, self.merged = AxolotlInputConfig, PluginManager.get_instance(), merge_input_args

    def understands(self, path, layout, experts):
        import yaml

        said = yaml.safe_load(path.read_text())
        config = self.config
        for plugin in said.get("plugins", []):
            self.plugins.register(plugin)
            config = self.merged()[1]
        unknown = set(said) - set(config.model_fields)
        assert not unknown, f"its schema has no {unknown}"
        c = config(**said, base_model="model", datasets=[{"path": "data", "type": "alpaca"}], learning_rate=1e-4)
        ep = getattr(c, "expert_parallel_size", 1)
        assert ep * c.dp_replicate_size * c.dp_shard_size * c.tensor_parallel_size * c.context_parallel_size == world_of(layout), "its product of axes is not the world"
        got = dict(tp=c.tensor_parallel_size, cp=c.context_parallel_size, dp=ep * c.dp_replicate_size * c.dp_shard_size, micro_batch=c.micro_batch_size, seq=c.sequence_len,
                   global_batch=c.micro_batch_size * c.gradient_accumulation_steps * layout["dp"], recompute="full" if c.gradient_checkpointing else "none")
        if layout["dp"] > layout["ep"]:
            got["zero"] = 3 if c.dp_shard_size > 1 else 0
        if experts:
            got["ep"] = ep
        return got


class VeRL:
    """Composes its Megatron trainer's configuration and makes the engine's dataclass of it."""

    name, package, suffix, has_experts, reads, pipelines = "verl", "verl", ".args", True, False, True

    def __init__(self):
        import verl
        from hydra import compose, initialize_config_dir
        from verl.utils.config import omega_conf_to_dataclass

        self.compose, self.open, self.as_dataclass = compose, initialize_config_dir, omega_conf_to_dataclass
        self.folder = str(Path(verl.__file__).parent / "trainer" / "config")

    def understands(self, path, layout, experts):
        lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
        with self.open(self.folder, version_base=None):
            c = self.compose("ppo_megatron_trainer", overrides=shlex.split("\n".join(lines)))
        m = self.as_dataclass(c.actor_rollout_ref.actor.megatron)
        got = dict(tp=m.tensor_model_parallel_size, pp=m.pipeline_model_parallel_size, vpp=m.virtual_pipeline_model_parallel_size or 1, cp=m.context_parallel_size,
                   sequence_parallel=m.sequence_parallel and m.tensor_model_parallel_size > 1, zero=int(m.use_distributed_optimizer),
                   micro_batch=c.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu, recompute=m.override_transformer_config.get("recompute_granularity") or "none")
        if experts:
            got.update(ep=m.expert_model_parallel_size, etp=m.expert_tensor_parallel_size)
        return got


# --- the check --------------------------------------------------------------------------------------------------------------------------

def open_parsers(only):
    parsers = []
    for kind in (Megatron, Bridge, Torchtitan, DeepSpeed, MaxText, Accelerate, Axolotl, VeRL):
        if only and kind.name not in only:
            continue
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
    if run.returncode and "cannot say this layout" not in run.stderr and "layout.yaml" not in run.stderr:
        sys.exit(f"emit failed for another reason: {run.stderr}")
    return path if run.returncode == 0 else None


def differences(got, layout):
    return {key: (value, layout[key]) for key, value in got.items() if value != layout[key]}


def comes_back(program, folder, path, layout, parser):
    """What `import` makes of the file, against the layout; keys that one stage or one cp rank does not use may differ."""
    run = subprocess.run([program, "import", path, "--from", parser.name, "--model", folder / "model.yaml", "--world", str(world_of(layout))], capture_output=True, text=True)
    if run.returncode:
        return {"import": run.stderr}
    back = from_yaml(run.stdout)
    keys = [key for key in layout if key in back and not (key == "seq" and parser.name == "deepspeed")]
    return differences({key: back[key] for key in keys}, layout)


def check(program, folder, parser, wanted, rng):
    done = wrong = tries = with_experts = 0
    while done < wanted and tries < 400 * wanted:
        tries += 1
        experts = parser.has_experts and done % 2 == 1
        layout = draw(rng, experts)
        if experts and layout["ep"] == 1 and rng.random() < 0.8:
            continue
        if not parser.pipelines and layout["pp"] * layout["vpp"] > 1:
            continue  # would be refused: saves starting the program
        path = emit(program, folder, layout, experts, parser)
        if not path:
            continue
        done += 1
        with_experts += experts
        try:
            differs = differences(parser.understands(path, layout, experts), layout)
        except (Exception, SystemExit) as refused:
            differs = {"refused": f"{type(refused).__name__}: {refused}"}
        if parser.reads:
            differs.update(comes_back(program, folder, path, layout, parser))
        if differs:
            wrong += 1
            print(f"{parser.name}: understood, and meant: {differs}\n{as_yaml(layout)}{path.read_text()}", flush=True)
    version = importlib.metadata.version(parser.package)
    print(f"{parser.name}: {parser.package} {version}: {done} layouts, {with_experts} of them with experts; {wrong} refused or understood otherwise", flush=True)
    return wrong == 0 and done == wanted


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("program", help="the rankloom command")
    options.add_argument("--layouts", type=int, default=30)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--only", default="", help="dialects, separated by commas")
    given = options.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    sys.meta_path.insert(0, Absent())
    parsers = open_parsers(given.only.split(",") if given.only else [])
    with tempfile.TemporaryDirectory() as folder:
        good = [check(given.program, Path(folder), parser, given.layouts, random.Random(given.seed)) for parser in parsers]
    sys.exit(0 if good and all(good) else 1)


if __name__ == "__main__":
    main()
