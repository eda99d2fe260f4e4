"""Configurations of torchtitan, Accelerate and DeepSpeed that hold a layout.

They hold degrees, batches, precision, recomputation and offload. The model, the data and the optimizer stay those of
the tool's own script.

Sources of the keys: torchtitan 0.2.2 (`config/job_config.py`) and 0.3.0 (`config/configs.py`); Accelerate 1.15
(`commands/config/config_args.py`, `commands/launch.py`); DeepSpeed 0.19 (`runtime/config.py`).
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any, Literal, cast

import yaml

from ..cost.layout import ParallelLayout
from ..exchange.clip import ByNorm, Clip
from ..strategies.precision import Precision
from ..strategies.zero import Zero

SCHEDULES = {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "Interleaved1F1B"}  # of torch.distributed.pipelining
FLAVORS = {"llama_8b": "8B", "llama_70b": "70B", "llama_405b": "405B"}  # of torchtitan's llama3
# Settings of strategy=zero for its own optimizer, its reports and its stated memory
OURS = ("zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer", "steps_per_print")
LAYERS = "Layers are recomputed by the model, as with gradient_checkpointing_enable() of Hugging Face."


class InexpressibleError(Exception):
    """A format has no words for a layout."""


@dataclass(frozen=True)
class ExportedFile:
    """`notes`: settings that the file cannot hold."""

    text: str
    notes: list[str]


@dataclass(frozen=True)
class ExportedLayout:
    """A layout and the settings of its run that formats have keys for.

    Args:
        layers: of a transformer.
        tokens: of a sample. None: samples are no sequences of tokens.
        schedule: of stages, by its name here.
        groups: of workers that each hold a whole model in shards.
        reshards: weights are sharded again between a forward pass and its backward pass.
        config: DeepSpeed's, that was typed.
    """

    layout: ParallelLayout
    command: str
    model: str
    layers: int
    tokens: int | None
    workers: int
    hosts: int
    schedule: str | None
    groups: int
    reshards: bool
    config: str | dict[str, Any] | None
    clip: Clip
    precision: Precision


def torchtitan(of: ExportedLayout, file: Path) -> ExportedFile:
    """Returns TOML of torchtitan up to 0.2.2; for FILE.py, a function of torchtitan 0.3, whose configurations are
    Python. Raises `InexpressibleError`.
    """
    its, precision = of.layout, of.precision.name
    if of.tokens is None:
        raise InexpressibleError("torchtitan trains transformers on sequences of tokens")
    if precision == "fp16":
        raise InexpressibleError("torchtitan has no float16")
    _check_sharding(of, "torchtitan")
    if its.zero == 0 and its.data > 1 and its.tensor * its.stages > 1:
        raise InexpressibleError("torchtitan has no whole copies beside tensor parallelism or stages")
    shards = its.data // of.groups if its.zero else 1
    replica = its.batch // its.data
    parallelism: dict[str, Any] = {
        "data_parallel_replicate_degree": its.data // shards,
        "data_parallel_shard_degree": shards,
        "fsdp_reshard_after_forward": "always" if of.reshards else "never",
        "tensor_parallel_degree": its.tensor,
        "pipeline_parallel_degree": its.stages,
        "context_parallel_degree": its.context,
    }
    if its.stages > 1:
        parallelism |= _stages(of)
    training: dict[str, Any] = {
        "local_batch_size": replica if its.stages > 1 else its.micro_batch,
        "global_batch_size": its.batch,
        "seq_len": of.tokens,
        "enable_cpu_offload": its.offload == "all",
        "mixed_precision_param": "bfloat16" if precision == "bf16" else "float32",
    }
    if isinstance(of.clip, ByNorm):
        training["max_norm"] = of.clip.max
    recompute = its.recompute == "full"
    if file.suffix == ".py":
        return _function(of, {"training": training, "parallelism": parallelism}, recompute)
    if precision == "bf16" and shards == 1 and its.tensor * its.stages > 1:
        raise InexpressibleError("torchtitan 0.2 rounds to bfloat16 with shards, DDP or one GPU only")
    model = {"name": "llama3", "flavor": FLAVORS[of.model]} if of.model in FLAVORS else {}
    sections = {
        **({"model": model} if model else {}),
        "training": training,
        "parallelism": parallelism,
        "activation_checkpoint": {"mode": "full" if recompute else "none"},
    }
    lines = [f"# {of.command}", "# For torchtitan up to 0.2.2: --job.config_file"]
    for name, section in sections.items():
        lines += ["", f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in section.items())]
    notes = [] if model else ["Set name and flavor of [model]: torchtitan trains its debugmodel without them."]
    return ExportedFile("\n".join(lines) + "\n", notes)


def _stages(of: ExportedLayout) -> dict[str, Any]:
    its = of.layout
    schedule = SCHEDULES.get(of.schedule or "")
    if schedule is None:
        raise InexpressibleError(f"torchtitan has no strategy.schedule={of.schedule}")
    found = {"pipeline_parallel_schedule": schedule, "pipeline_parallel_microbatch_size": its.micro_batch}
    if its.chunks == 1:
        return found
    stages = its.stages * its.chunks
    for less in (1, 0):  # layers that the first and the last stage have less, for the embedding and the head
        of_stage = ceil((of.layers + 2 * less) / stages)
        if ceil((of.layers + 2 * less) / of_stage) == stages:
            ends = {f"pipeline_parallel_{end}_stage_less_layers": less for end in ("first", "last")}
            return {**found, **ends, "pipeline_parallel_layers_per_stage": of_stage}
    raise InexpressibleError(f"torchtitan does not cut {of.layers} layers into {stages} stages")


def _function(of: ExportedLayout, sections: dict[str, dict[str, Any]], recompute: bool) -> ExportedFile:
    sections["parallelism"]["enable_sequence_parallel"] = of.layout.sequence
    lines = [
        f"    config.{name}.{key} = {value!r}" for name, section in sections.items() for key, value in section.items()
    ]
    text = "\n".join(
        [
            f"# {of.command}",
            "# For torchtitan 0.3: a recipe of yours returns laid_out(llama3_8b()), or of another configuration.",
            *(["from torchtitan.distributed.activation_checkpoint import FullAC", "", ""] if recompute else ["", ""]),
            "def laid_out(config):",
            *lines,
            f"    config.activation_checkpoint = {'FullAC.Config()' if recompute else None}",
            "    return config",
            "",
        ]
    )
    return ExportedFile(text, [])


def accelerate(of: ExportedLayout, file: Path) -> ExportedFile:
    """Returns YAML of `accelerate config`: FSDP 2 for shards, else a process a card. Raises `InexpressibleError`."""
    its = of.layout
    if its.stages > 1:
        raise InexpressibleError("Accelerate's configuration has no stages")
    if its.tensor > 1:
        raise InexpressibleError("Accelerate leaves tensor parallelism to the model's own plan")
    _check_sharding(of, "FSDP of Accelerate")
    config: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP" if its.zero else "MULTI_GPU" if of.workers > 1 else "NO",
        "mixed_precision": {"bf16": "bf16", "fp16": "fp16"}.get(of.precision.name, "no"),
        "num_machines": of.hosts,
        "num_processes": of.workers,
        "machine_rank": 0,
        "rdzv_backend": "static",
        "same_network": True,
        "main_training_function": "main",
        "use_cpu": False,
    }
    recompute = its.recompute == "full"
    if its.zero:
        config["fsdp_config"] = {
            "fsdp_version": 2,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_reshard_after_forward": of.reshards,
            "fsdp_offload_params": its.offload == "all",
            "fsdp_activation_checkpointing": recompute,
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        }
    if of.groups > 1:
        shards = its.data // of.groups
        degrees = {"dp_replicate": of.groups, "dp_shard": shards, "tp": 1, "cp": 1}
        config["parallelism_config"] = {f"parallelism_config_{name}_size": size for name, size in degrees.items()}
    steps = its.micro_batches
    notes = [
        f"Batches are the script's: {its.micro_batch} a process, Accelerator(gradient_accumulation_steps={steps})."
    ]
    if recompute and not its.zero:
        notes.append(LAYERS)
    if of.hosts > 1:
        notes.append("On host K: accelerate launch --machine_rank K --main_process_ip HOST --main_process_port PORT.")
    head = "\n".join(f"# {line}" for line in (of.command, *notes))
    return ExportedFile(f"{head}\n{yaml.safe_dump(config, sort_keys=False)}", notes)


def deepspeed(of: ExportedLayout, file: Path) -> ExportedFile:
    """Returns the JSON of strategy=zero, with all sizes of batches. Raises `InexpressibleError`."""
    its = of.layout
    if its.tensor * its.stages > 1:
        raise InexpressibleError("DeepSpeed's JSON shards states and cuts no layers")
    if of.groups > 1 or (its.zero == 3 and not of.reshards):
        raise InexpressibleError("ZeRO-3 shards over all workers, after each pass")
    stage = cast("Literal[0, 1, 2, 3]", its.zero)
    zero = Zero(stage, its.offload, its.micro_batches, config=of.config, clip=of.clip, precision=of.precision)
    settings = {key: value for key, value in zero.settings.items() if key not in OURS}
    settings["zero_optimization"].pop("stage3_param_persistence_threshold", None)
    for part in ("offload_optimizer", "offload_param"):
        if part in settings["zero_optimization"]:
            settings["zero_optimization"][part]["pin_memory"] = True
    sizes = {"train_batch_size": its.batch, "train_micro_batch_size_per_gpu": its.micro_batch}
    return ExportedFile(json.dumps({**settings, **sizes}, indent=2) + "\n", [LAYERS] if its.recompute == "full" else [])


def _check_sharding(of: ExportedLayout, tool: str) -> None:
    """FSDP shards parameters, gradients and optimizer state together."""
    if of.layout.zero == 1:
        raise InexpressibleError(f"{tool} shards no optimizer state without gradients")
    if of.layout.offload == "optimizer":
        raise InexpressibleError(f"{tool} keeps no optimizer state on the host without parameters")


FORMATS: dict[str, Callable[[ExportedLayout, Path], ExportedFile]] = {
    "torchtitan": torchtitan,
    "accelerate": accelerate,
    "deepspeed": deepspeed,
}
