"""Reads configurations of DeepSpeed, Accelerate and torchtitan as overrides of paceline.

`formats.py` writes these formats, and its docstring names the sources of their keys. A setting that has no override
here is left out, and named. A setting that a file does not have keeps paceline's default.
"""

import math
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..conf.errors import ConfigError
from ..tracking.files import MOST_DEPTH, check_values, parse_json, parse_yaml, read_text
from ..tracking.text import plain, shown

MOST_BYTES = 2**16  # the keys of a TOML of 2**20 bytes may take minutes
AUTO = "auto"  # Hugging Face's Trainer fills it in
SCHEDULES = {"GPipe": "gpipe", "1F1B": "1f1b", "Interleaved1F1B": "interleaved"}  # of torch.distributed.pipelining
MODELS = {"8B": "llama_8b", "70B": "llama_70b", "405B": "llama_405b"}  # flavors of torchtitan's llama3
PRECISIONS = {"no": "fp32", "False": "fp32", "bf16": "bf16", "fp16": "fp16"}
NO_MODEL = "The file names no model and no data. Add model= and data=."


@dataclass(frozen=True)
class ImportedConfiguration:
    """The overrides of a file, the settings that it has beyond them, and what to choose."""

    overrides: list[str]
    left_out: list[str]
    notes: list[str]


class _Settings:
    """A file's settings by dotted keys. What is not taken is left out."""

    def __init__(self, values: Mapping[str, Any], file: Path) -> None:
        self._left, self._file = dict(_flat(values, "")), file
        self.known = False  # whether it has any setting that the tool is asked for

    def error(self, key: str, why: str) -> ConfigError:
        return ConfigError(f"{shown(str(self._file))}: {self._text(key)}: {why}")

    def refusal(self, why: str) -> ConfigError:
        return ConfigError(f"{shown(str(self._file))}: {why}")

    def number(self, key: str) -> float | None:
        return self._taken(key, _is_number, "must be a finite number of at least 0.")

    def pair(self, key: str) -> list[float] | None:
        def allowed(value: Any) -> bool:
            return isinstance(value, list) and len(value) == 2 and all(map(_is_number, value))

        return self._taken(key, allowed, "must be two numbers.")

    def count(self, key: str, least: int = 1, most: int | None = None) -> int | None:
        def allowed(value: Any) -> bool:
            return _is_number(value) and isinstance(value, int) and least <= value <= (value if most is None else most)

        limits = f"of at least {least}" if most is None else f"from {least} to {most}"
        return self._taken(key, allowed, f"must be a whole number {limits}.")

    def flag(self, key: str) -> bool:
        """Returns whether the key is true. It is left out if it is `auto`."""
        return self._taken(key, lambda value: isinstance(value, bool), "must be true or false.") or False

    def one_of(self, key: str, words: Mapping[str, str]) -> str | None:
        """Returns the word's meaning; None for another word, which is left out."""
        self.known |= key in self._left
        return words[str(self._left.pop(key))] if str(self._left.get(key)) in words else None

    def has(self, key: str, *words: object) -> bool:
        """Returns whether the key has one of the values; it is taken then."""
        self.known |= key in self._left
        found = key in self._left and self._left[key] in words
        if found:
            del self._left[key]
        return found

    def __contains__(self, key: str) -> bool:
        self.known |= key in self._left
        return self._left.get(key) not in (None, AUTO)

    def left(self) -> list[str]:
        return [self._text(key) for key, value in self._left.items() if value is not None]

    def _taken(self, key: str, allowed: Callable[[Any], bool], rule: str) -> Any:
        """Returns the value; None where there is none or it is `auto`, which is left out."""
        self.known |= key in self._left
        value = self._left.get(key)
        if value is None or value == AUTO:
            return None
        if not allowed(value):
            raise self.error(key, rule)
        return self._left.pop(key)

    def _text(self, key: str) -> str:
        return shown(f"{key}={plain(self._left[key])}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


def _flat(values: Mapping[str, Any], before: str) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def read(tool: str, file: Path) -> ImportedConfiguration:
    """Raises `ConfigError`."""
    if tool not in TOOLS:
        raise ConfigError(f"import {shown(tool)}: there is no such format. Choose {', '.join(TOOLS)}.")
    if file.suffix == ".py":
        raise ConfigError(f"{shown(str(file))}: is Python, which is not run. Choose a TOML file of torchtitan 0.2.")
    parse, convert = TOOLS[tool]
    try:
        values = parse(read_text(file, MOST_BYTES))
        check_values(values)
    except OSError as error:
        raise ConfigError(f"{shown(str(file))}: cannot be read ({error.strerror}). Choose another file.") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{shown(str(file))}: is not valid TOML ({error}). Choose a file of {tool}.") from None
    except RecursionError:  # of TOML's parser
        raise ConfigError(
            f"{shown(str(file))}: is nested more than {MOST_DEPTH} deep. Choose a file of {tool}."
        ) from None
    except ValueError as error:  # UnusableFileError, or an integer of more digits than Python converts
        raise ConfigError(f"{shown(str(file))}: {error}. Choose a file of {tool}.") from None
    if not isinstance(values, dict) or not values:
        raise ConfigError(f"{shown(str(file))}: has no settings by name. Choose a file of {tool}.")
    settings = _Settings(values, file)
    chosen, notes = convert(settings)
    if not settings.known:
        raise settings.refusal(f"has no setting of {tool}. Choose a file of {tool}.")
    return ImportedConfiguration([f"{key}={value}" for key, value in chosen.items()], settings.left(), notes)


Converted = tuple[dict[str, str], list[str]]  # overrides and notes


def deepspeed(settings: _Settings) -> Converted:
    """Reads the JSON of a DeepSpeed configuration."""
    stage = settings.count("zero_optimization.stage", least=0, most=3) or 0
    devices = [f"zero_optimization.offload_{what}.device" for what in ("optimizer", "param")]
    chosen = _zero(settings, stage, *devices)
    if stage == 3 and settings.flag("zero_optimization.cpu_offload_param"):  # deprecated names
        chosen["strategy.offload"] = "all"
    if stage > 0 and settings.flag("zero_optimization.cpu_offload"):
        chosen.setdefault("strategy.offload", "optimizer")
    notes = [NO_MODEL]
    for key in ("bf16.enabled", "bfloat16.enabled", "fp16.enabled"):
        if settings.flag(key):
            if "precision" in chosen:
                raise settings.refusal(f"{key}=true: {chosen['precision']} is enabled, too. Choose one precision.")
            chosen["precision"] = "fp16" if "fp16" in key else "bf16"
    if chosen.get("precision") == "fp16":
        if power := settings.count("fp16.initial_scale_power", most=1023):
            chosen["precision.scale"] = str(2.0**power)
        if window := settings.count("fp16.loss_scale_window"):
            chosen["precision.grow_every"] = str(window)
    micro = settings.count("train_micro_batch_size_per_gpu")
    pieces = settings.count("gradient_accumulation_steps")
    if pieces is not None and pieces > 1:
        chosen["strategy.micro_batches"] = str(pieces)
    if micro is not None:
        chosen["batch_size"] = str(micro * (pieces or 1))
    if "train_batch_size" in settings and micro and pieces:
        total = settings.count("train_batch_size") or 0
        if total % (micro * pieces):
            raise settings.refusal(
                f"train_batch_size={total}: is no multiple of {micro} samples x {pieces} micro-batches. "
                f"Choose {micro * pieces}."
            )
        chosen["hardware.workers"] = str(total // (micro * pieces))
    elif "train_batch_size" in settings:
        notes.append("train_batch_size is of all workers. Choose batch_size=, the samples of one.")
    if clip := settings.number("gradient_clipping"):
        chosen |= {"clip": "norm", "clip.max": _number(clip)}
    return chosen | _optimizer_of_deepspeed(settings), notes


def _zero(settings: _Settings, stage: int, optimizer: str, parameters: str) -> dict[str, str]:
    chosen = {"strategy": "zero", "strategy.stage": str(stage)}
    if stage == 3 and settings.has(parameters, "cpu"):
        settings.has(optimizer, "cpu")
        return {**chosen, "strategy.offload": "all"}
    if stage > 0 and settings.has(optimizer, "cpu"):
        chosen["strategy.offload"] = "optimizer"
    for key in (optimizer, parameters):
        settings.has(key, "none")
    return chosen


def _optimizer_of_deepspeed(settings: _Settings) -> dict[str, str]:
    """DeepSpeed's Adam decays weights as AdamW unless adam_w_mode is false; its weight_decay is 0 by default."""
    name = settings.one_of("optimizer.type", {"Adam": "adamw", "AdamW": "adamw", "SGD": "sgd", "Lamb": "lamb"})
    if name is None:
        return {}
    prefix = "optimizer.params."
    if name == "adamw" and settings.has(f"{prefix}adam_w_mode", False):
        name = "adam"
    settings.has(f"{prefix}adam_w_mode", True)
    chosen = {"optimizer": name} | _rates(settings, prefix)
    chosen.setdefault("optimizer.weight_decay", "0")
    if name == "sgd":
        chosen["optimizer.momentum"] = _number(settings.number(f"{prefix}momentum") or 0)
    elif betas := settings.pair(f"{prefix}betas"):
        chosen["optimizer.betas"] = f"[{_number(betas[0])},{_number(betas[1])}]"
    return chosen


def _rates(settings: _Settings, prefix: str) -> dict[str, str]:
    found = {key: settings.number(f"{prefix}{key}") for key in ("lr", "eps", "weight_decay")}
    return {f"optimizer.{key}": _number(value) for key, value in found.items() if value is not None}


def accelerate(settings: _Settings) -> Converted:
    """Reads the YAML of `accelerate config`."""
    kinds = ("NO", "MULTI_GPU", "MULTI_CPU", "FSDP", "DEEPSPEED", "MEGATRON_LM")
    kind = settings.one_of("distributed_type", {name: name for name in kinds} | {"False": "NO"})  # YAML's no
    if kind is None:
        if "distributed_type" in settings:
            raise settings.error("distributed_type", f"paceline has nothing like it. Choose {', '.join(kinds)}.")
        raise settings.refusal(f"distributed_type is missing. Choose {', '.join(kinds)}.")
    workers, hosts = settings.count("num_processes"), settings.count("num_machines") or 1
    if workers is not None and workers % hosts:
        raise settings.refusal(f"num_processes={workers}: is no multiple of num_machines={hosts}. Choose one that is.")
    convert = {"FSDP": _fsdp, "DEEPSPEED": _accelerated_deepspeed, "MEGATRON_LM": _megatron}.get(kind)
    if convert is not None:
        chosen = convert(settings, workers, hosts)
    else:
        chosen = {"strategy": "single" if kind == "NO" else "torch_ddp"}
    if precision := settings.one_of("mixed_precision", PRECISIONS):
        chosen["precision"] = precision
    if settings.has("dynamo_config.dynamo_backend", "INDUCTOR"):
        chosen["compile"] = "true"
    if workers is not None and kind != "NO":
        chosen["hardware.workers"] = str(workers)
    if settings.flag("use_cpu"):
        chosen["hardware.device"] = "cpu"
    notes = [NO_MODEL, "Batches and the optimizer are the script's. Choose batch_size=, the samples of one worker."]
    if hosts > 1:
        chosen["hardware.hosts"] = str(hosts)
        notes.append(f"num_machines={hosts}: docs/launchers.md says how to start a run on several hosts.")
    return chosen, notes


def _fsdp(settings: _Settings, workers: int | None, hosts: int) -> dict[str, str]:
    prefix = "fsdp_config.fsdp_"
    settings.has(f"{prefix}version", 1, 2)
    words = {"FULL_SHARD": "true", "1": "true", "SHARD_GRAD_OP": "false", "2": "false", "HYBRID_SHARD": "hybrid"}
    both = words | {"4": "hybrid", "NO_SHARD": "none", "3": "none", "True": "true", "False": "false"}
    found = settings.one_of(f"{prefix}sharding_strategy", both)
    found = settings.one_of(f"{prefix}reshard_after_forward", both) or found or "true"
    for key in ("offload_params", "activation_checkpointing"):
        settings.has(f"{prefix}{key}", False)
    if found == "none":
        return {"strategy": "torch_ddp"}
    chosen = {"strategy": "torch_fsdp", "strategy.reshard": "false" if found == "false" else "true"}
    degree = "parallelism_config.parallelism_config_"
    over = None
    if "parallelism_config.parallelism_config_dp_replicate_size" in settings:
        if (settings.count(f"{degree}dp_replicate_size") or 1) > 1:
            over = settings.count(f"{degree}dp_shard_size")
        else:
            settings.count(f"{degree}dp_shard_size")
        for key in ("tp_size", "cp_size"):
            settings.has(f"{degree}{key}", 1)
    elif found == "hybrid" and workers is not None:
        over = workers // hosts
    return chosen if over is None else {**chosen, "strategy.shard_over": str(over)}


def _accelerated_deepspeed(settings: _Settings, workers: int | None, hosts: int) -> dict[str, str]:
    prefix = "deepspeed_config."
    if f"{prefix}deepspeed_config_file" in settings:
        raise settings.error(f"{prefix}deepspeed_config_file", "has the settings. Choose paceline import deepspeed.")
    stage = settings.count(f"{prefix}zero_stage", least=0, most=3)
    chosen = _zero(
        settings,
        2 if stage is None else stage,
        f"{prefix}offload_optimizer_device",
        f"{prefix}offload_param_device",
    )
    if (pieces := settings.count(f"{prefix}gradient_accumulation_steps")) is not None and pieces > 1:
        chosen["strategy.micro_batches"] = str(pieces)
    if clip := settings.number(f"{prefix}gradient_clipping"):
        chosen |= {"clip": "norm", "clip.max": _number(clip)}
    return chosen


def _megatron(settings: _Settings, workers: int | None, hosts: int) -> dict[str, str]:
    prefix = "megatron_lm_config.megatron_lm_"
    tensor, stages = settings.count(f"{prefix}tp_degree") or 1, settings.count(f"{prefix}pp_degree") or 1
    chosen = _cut(tensor, stages, "1f1b", settings.count(f"{prefix}num_micro_batches"))
    if tensor > 1 and settings.flag(f"{prefix}sequence_parallelism"):
        chosen["strategy.sequence"] = "true"
    if clip := settings.number(f"{prefix}gradient_clipping"):
        chosen |= {"clip": "norm", "clip.max": _number(clip)}
    return chosen


def _cut(tensor: int, stages: int, schedule: str | None, micro_batches: int | None) -> dict[str, str]:
    """Returns the strategy that shards layers over tensor workers and stages."""
    if stages == 1:
        return {"strategy": "tensor", "strategy.degree": str(tensor)} if tensor > 1 else {"strategy": "torch_ddp"}
    chosen = {"strategy": "hybrid" if tensor > 1 else "pipeline", "strategy.stages": str(stages)}
    chosen |= {"strategy.tensor": str(tensor)} if tensor > 1 else {}
    chosen |= {"strategy.schedule": schedule} if schedule else {}
    return chosen | ({"strategy.micro_batches": str(micro_batches)} if micro_batches else {})


def torchtitan(settings: _Settings) -> Converted:
    """Reads the TOML of torchtitan up to 0.2.2."""
    notes: list[str] = []
    chosen: dict[str, str] = {}
    if settings.has("model.name", "llama3") and (model := settings.one_of("model.flavor", MODELS)):
        chosen |= {"model": model, "data": "tokens"}
        if length := settings.count("training.seq_len"):
            chosen["data.context"] = str(length)
    else:
        notes.append(NO_MODEL)
    part = "parallelism."
    tensor = settings.count(f"{part}tensor_parallel_degree") or 1
    stages = settings.count(f"{part}pipeline_parallel_degree") or 1
    copies = settings.count(f"{part}data_parallel_replicate_degree") or 1
    degree = f"{part}data_parallel_shard_degree"
    shards = None if settings.has(degree, -1) else settings.count(degree)  # None: all workers
    settings.has(f"{part}context_parallel_degree", 1)
    local = settings.count("training.local_batch_size")
    data = None if shards is None else copies * shards
    total = settings.count("training.global_batch_size") if data and local else None
    pieces = max(total // (local * data), 1) if total and local and data else 1
    if tensor * stages > 1:
        schedule = settings.one_of(f"{part}pipeline_parallel_schedule", SCHEDULES) if stages > 1 else None
        piece = settings.count(f"{part}pipeline_parallel_microbatch_size") or 1
        chosen |= _cut(tensor, stages, schedule, local * pieces // piece if local else None)
        if shards != 1:
            notes.append("Beside tensor workers and stages, paceline trains whole copies, and shards no parameters.")
    elif shards == 1:
        chosen["strategy"] = "torch_ddp" if copies > 1 else "single"
    else:
        resharded = settings.one_of(f"{part}fsdp_reshard_after_forward", {"always": "true", "never": "false"})
        chosen |= {"strategy": "torch_fsdp"} | ({"strategy.reshard": resharded} if resharded else {})
        chosen |= {"strategy.shard_over": str(shards)} if shards and copies > 1 else {}
    if local:
        chosen["batch_size"] = str(local * pieces)
    if pieces > 1 and stages == 1:
        chosen["accumulate"] = str(pieces)
    if data is None:
        notes.append("data_parallel_shard_degree is -1, all workers. Choose hardware.workers=.")
    elif data * tensor * stages > 1:
        chosen["hardware.workers"] = str(data * tensor * stages)
    return chosen | _training_of_torchtitan(settings, stages > 1), notes


def _training_of_torchtitan(settings: _Settings, staged: bool) -> dict[str, str]:
    chosen: dict[str, str] = {}
    if precision := settings.one_of("training.mixed_precision_param", {"bfloat16": "bf16", "float32": "fp32"}):
        chosen["precision"] = precision
    if steps := settings.count("training.steps"):
        chosen["steps"] = str(steps)
    if clip := settings.number("training.max_norm"):
        chosen |= {"clip": "norm", "clip.max": _number(clip)}
    if name := settings.one_of("optimizer.name", {"Adam": "adam", "AdamW": "adamw"}):
        chosen |= {"optimizer": name} | _rates(settings, "optimizer.")
        first, second = settings.number("optimizer.beta1"), settings.number("optimizer.beta2")
        if first is not None or second is not None:
            betas = (0.9 if first is None else first, 0.95 if second is None else second)  # torchtitan's defaults
            chosen["optimizer.betas"] = f"[{','.join(map(_number, betas))}]"
    if staged and settings.has("activation_checkpoint.mode", "full"):
        chosen["strategy.recompute"] = "true"
    settings.has("activation_checkpoint.mode", "none")
    settings.has("training.enable_cpu_offload", False)
    if settings.flag("compile.enable"):
        chosen["compile"] = "true"
    return chosen


def _number(value: float) -> str:
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)


TOOLS: dict[str, tuple[Callable[[str], Any], Callable[[_Settings], Converted]]] = {
    "deepspeed": (parse_json, deepspeed),
    "accelerate": (parse_yaml, accelerate),
    "torchtitan": (tomllib.loads, torchtitan),
}
