"""Runs as if they had been trained: summaries, configurations, directories, W&B files."""

import json
import struct
import zlib
from pathlib import Path
from typing import Any

import yaml

from paceline.tracking.run_data import RunData, Swept
from paceline.tracking.run_directory import RunDirectory


def summary(name: str = "base", **changes: Any) -> dict[str, Any]:
    return {
        "name": name,
        "strategy": "data_parallel",
        "sync": "bsp",
        "model": "mlp",
        "data": "digits",
        "status": "completed",
        "workers": 4,
        "modelled": False,
        "throughput": 1000.0,
        "memory": {"parameters": 2**20, "process_peak": 300 * 2**20},
        "wire": {"bytes_per_step": 1536, "messages": 20},
        "accuracy": 0.975,
        "loss": 0.08,
        "target_accuracy": 0.95,
        "time_to_accuracy": 20.0,
        "seconds": 1800.0,
    } | changes


def config(seed: int = 0, lr: float = 0.1, sync: str = "bsp", **machine: Any) -> dict[str, Any]:
    return {
        "sync": {"name": sync, "target": "a.B", "knobs": {"staleness": 3}},
        "optimizer": {"name": "sgd", "target": "torch.optim.SGD", "knobs": {"lr": lr, "nesterov": False}},
        "hardware": {"workers": 4, "machine": machine or None},
        "tracking": {"wandb": False, "tags": [f"seed-{seed}"]},
        "name": f"of seed {seed}",
        "seed": seed,
    }


def data(name: str = "base", of: dict[str, Any] | None = None, swept: Swept | None = None, **changes: Any) -> RunData:
    """A completed run with configuration `of`."""
    return RunData(name, summary(name, **changes), of or {}, [], Path("/runs") / name, swept)


def failed(name: str, of: dict[str, Any] | None = None, swept: Swept | None = None) -> RunData:
    told = {"name": name, "status": "failed", "reason": "optimizer.lr=-1: must be positive"}
    return RunData(name, told, of or {}, [], Path("/runs") / name, swept)


def directory(root: Path, name: str, of: dict[str, Any] | None = None, swept: Swept | None = None, **changes: Any):
    """The run directory of a completed run."""
    run = RunDirectory.create(root, name)
    run.append({"kind": "step", "step": 1, "time": 0.1, "loss": 1.0})
    run.write_config(yaml.safe_dump(of or {}))
    run.write_summary(summary(name, **changes))
    if swept is not None:
        (run.path / "trial.json").write_text(json.dumps(vars(swept)))
    return run


def datastore(file: Path, *records: Any) -> list[int]:
    """Writes protobuf records as W&B would; returns where each begins."""
    from wandb.proto import wandb_internal_pb2

    written, begins = bytearray(struct.pack("<4sHB", b":W&B", 0xBEE1, 0)), []
    for record in records:
        begins.append(len(written))
        rest, is_first = getattr(wandb_internal_pb2, "Record")(**record).SerializeToString(), True  # noqa: B009
        while is_first or rest:
            left = 32768 - len(written) % 32768
            if left < 7:
                written += bytes(left)
                continue
            chunk, rest = rest[: left - 7], rest[left - 7 :]
            kind = bytes([(1 if is_first else 4) if not rest else 2 if is_first else 3])
            written += struct.pack("<IHB", zlib.crc32(kind + chunk), len(chunk), kind[0]) + chunk
            is_first = False
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(written)
    return begins


def items(values: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"nested_key": key.split("/"), "value_json": json.dumps(value)} for key, value in values.items()]


def history(**values: Any) -> dict[str, Any]:
    return {"history": {"item": items(values)}}


def began(name: str, of: dict[str, Any] | None = None) -> dict[str, Any]:
    updates = [{"key": key, "value_json": json.dumps(value)} for key, value in (of or {}).items()]
    return {"run": {"run_id": "abc", "display_name": name, "config": {"update": updates}}}
