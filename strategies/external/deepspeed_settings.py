"""A user's own DeepSpeed configuration beside ours."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...conf.errors import ConfigError

MOST_BYTES = 2**20  # of a configuration
_ELSEWHERE = {
    "optimizer": "the optimizer is chosen by optimizer=...",
    "scheduler": "there are no schedules of DeepSpeed's here",
    "train_batch_size": "batch_size=... says how many samples a replica takes in a step",
    "train_micro_batch_size_per_gpu": "batch_size=... says how many samples a replica takes in a step",
    "data_types": "what is trained in is chosen by precision=...",
}
_FIGURES = "where figures go is chosen by tracking=..."
_PLUS = "what ZeRO++ sends and holds is not accounted for here"
_NOT_HERE = {  # fine when switched off
    "gradient_predivide_factor": "gradients are averaged as under every other strategy",
    "tensor_parallel": "strategy=zero cuts up state, not layers",
    "sequence_parallel_size": "a sequence stays on one worker",
    "csv_monitor": _FIGURES,
    "comet": _FIGURES,
    "tensorboard": _FIGURES,
    "wandb": _FIGURES,
    "zero_force_ds_cpu_optimizer": "optimizer=adam takes DeepSpeed's CPU Adam where state is on the host",
    "zero_optimization.zero_hpz_partition_size": _PLUS,
    "zero_optimization.zero_quantized_weights": _PLUS,
    "zero_optimization.zero_quantized_nontrainable_weights": _PLUS,
    "zero_optimization.zero_quantized_gradients": _PLUS,
}
_COUNTS = "reduce_bucket_size", "allgather_bucket_size"
ANY = object()  # it is looked at where our settings have it
_KNOBS: dict[str, tuple[str, Any]] = {  # where it stands in DeepSpeed's file -> (whose it is, when that is not there)
    "zero_optimization.stage": ("strategy.stage", None),
    "zero_optimization.offload_optimizer.device": ("strategy.offload", "none"),
    "zero_optimization.offload_param.device": ("strategy.offload", "none"),
    "gradient_accumulation_steps": ("strategy.micro_batches, or accumulate", None),
    "gradient_clipping": ("clip.max", None),
    "fp16.initial_scale_power": ("precision.scale", ANY),
    "fp16.loss_scale_window": ("precision.grow_every", ANY),
    "bf16.enabled": ("precision", False),
    "fp16.enabled": ("precision", False),
    "torch_autocast.enabled": ("precision", False),
}


def read(path: str) -> dict[str, Any]:
    """A user's file. Raises `ConfigError`."""
    if not path:
        raise ConfigError("strategy.config=: name a DeepSpeed JSON file, or leave it out (null)")
    file = Path(path)
    try:
        if file.exists() and not (file.is_file() and file.stat().st_size <= MOST_BYTES):
            raise ConfigError(f"strategy.config={path}: must be a regular file of at most {MOST_BYTES:,} bytes")
        theirs = json.loads(file.read_text())
    except ConfigError:
        raise
    except (OSError, ValueError) as error:
        raise ConfigError(f"strategy.config={path}: cannot be read as JSON: {error}") from None
    except RecursionError:
        raise ConfigError(f"strategy.config={path}: cannot be read as JSON: it is nested too deeply") from None
    if not isinstance(theirs, dict):
        raise ConfigError(f"strategy.config={path}: must be a JSON object, is a {type(theirs).__name__}")
    return theirs


def merged(own: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """Merges a user's settings into this project's. Raises `ConfigError` if they contradict each other."""
    for key, instead in _ELSEWHERE.items():
        if theirs.get(key, "auto") != "auto":
            raise ConfigError(f"strategy.config: {key}={json.dumps(theirs[key])}: {instead}; leave it out there")
    return _joined(own, theirs, "")


class Noting(dict[str, Any]):
    """Settings that note which of their keys are looked at."""

    def __init__(self, settings: Mapping[str, Any], seen: set[str] | None = None) -> None:
        super().__init__(settings)
        self.seen = set() if seen is None else seen

    def __getitem__(self, key: str) -> Any:
        self.seen.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.seen.add(key)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self.seen.add(str(key))
        return super().__contains__(key)

    def __copy__(self) -> "Noting":
        return Noting(self, self.seen)


def _is_count(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 1 <= value < math.inf


def _is_off(value: Any) -> bool:
    if isinstance(value, dict):
        return value.get("enabled") is False or all(map(_is_off, value.values()))
    return value is not True and value in (False, None, 1)


def _joined(own: dict[str, Any], theirs: dict[str, Any], at: str) -> dict[str, Any]:
    joined = dict(own)
    for key, value in theirs.items():
        where = f"{at}{key}"
        if value == "auto":
            continue
        if isinstance(own.get(key), dict) and not isinstance(value, dict):
            raise ConfigError(f"strategy.config: {where}={json.dumps(value)}: must be a JSON object")
        if where in _NOT_HERE and not _is_off(value):
            raise ConfigError(f"strategy.config: {where}={json.dumps(value)}: {_NOT_HERE[where]}; leave it out there")
        if key in _COUNTS and not _is_count(value):
            raise ConfigError(f"strategy.config: {where}={json.dumps(value)}: must be a number of entries")
        if isinstance(value, dict) and isinstance(own.get(key, {}), dict):
            joined[key] = _joined(own.get(key, {}), value, f"{where}.")
        elif where in _KNOBS and own.get(key, _KNOBS[where][1]) not in (value, ANY):
            knob, otherwise = _KNOBS[where]
            ours = json.dumps(own.get(key, otherwise))
            raise ConfigError(
                f"strategy.config: {where} is {json.dumps(value)} there and {ours} by {knob}; "
                "make them agree, or leave it out there"
            )
        else:
            joined[key] = value
    return joined
