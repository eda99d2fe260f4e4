"""Runs as if they had been recorded, for tests of what is made of them."""

import math
import random
from typing import Any

from paceline.tracking.run_data import RunData, Swept

KINDS = ("parameters", "gradients", "optimizer", "activations", "buffers")


def recorded(
    name: str = "bsp",
    *,
    points: int = 60,
    epochs: int = 6,
    number: int = 0,
    modelled: bool = False,
    status: str = "completed",
    swept: Swept | None = None,
    config: dict[str, Any] | None = None,
    summary: dict[str, Any] | None = None,
    sync: str = "bsp",
) -> RunData:
    """A run of 2 workers with `points` steps and `epochs` evaluations; `summary`: what is different in it."""
    noise = random.Random(number)
    step_time = 0.004 * (1 + 0.13 * (number % 11))
    records: list[dict[str, Any]] = [{"kind": "start", "name": name}]
    reached, accuracy = None, 0.0
    for step in range(1, points + 1):
        epoch, time = step * epochs / points, step * step_time
        loss = 2.3 * math.exp(-step / points * (2 + number % 7)) + 0.1 * noise.random()
        records.append(
            {"kind": "step", "step": step, "epoch": epoch, "loss": loss, "time": time, "step_time": step_time}
        )
        if step * epochs // points > (step - 1) * epochs // points:
            accuracy = 1 - 0.9 * math.exp(-epoch * (0.5 + 0.07 * (number % 9)))
            reached = time if reached is None and accuracy >= 0.9 else reached
            evaluation = {"accuracy": accuracy, "loss": loss * 1.1, "time": time}
            records.append({"kind": "evaluation", "step": step, "epoch": epoch, **evaluation})
    records.append({"kind": "end", "status": status})
    held = {kind: 200_000 * (i + 1) for i, kind in enumerate(KINDS)}
    told = {
        "name": name,
        "status": status,
        "strategy": "data_parallel",
        "sync": sync,
        "model": "mlp",
        "data": "digits",
        "workers": 2,
        "modelled": modelled,
        "throughput": 64 / step_time,
        "step_time": {"median": step_time, "compute": step_time * 0.6, "communication": step_time * 0.3}
        | {"waiting": step_time * 0.1},
        "memory": {**held, "other": 26_000_000, "process_peak": 340_000_000},
        "wire": {"bytes_per_step": 1000.0 * (1 + number % 5), "messages": 184},
        "staleness": {"mean": 1.0, "max": 3, "histogram": {"0": 5, "1": 20, "3": 2}} if sync == "asp" else None,
        "accuracy": accuracy,
        "loss": 0.1,
        "target_accuracy": 0.9,
        "time_to_accuracy": reached,
        "predicted": {"bytes_per_step": 1000.0 * (1 + number % 5), "memory": held},
    }
    known: dict[str, Any] = {"optimizer": {"name": "sgd", "knobs": {"lr": 0.02 + number, "momentum": 0.9}}}
    known["seed"] = swept.seed if swept else 0
    return RunData(name, told | (summary or {}), known if config is None else config, records, None, swept)


def failed(name: str = "failed", reason: str = "worker 1 ended: ValueError: no", swept: Swept | None = None) -> RunData:
    records = [{"kind": "end", "status": "failed", "reason": reason}]
    return RunData(name, {"name": name, "status": "failed"}, {}, records, None, swept)


def many(count: int, points: int = 60, epochs: int = 6) -> list[RunData]:
    """A sweep of sync modes and learning rates."""
    syncs = ("bsp", "asp", "ssp", "gossip", "local_sgd", "easgd")
    return [
        recorded(
            f"{syncs[i % 6]}-lr{0.1 / (1 + i // 6):.3g}-{i}",
            points=points,
            epochs=epochs,
            number=i,
            sync=syncs[i % 6],
            swept=Swept(
                "sweep", i, 0, {"sync": syncs[i % 6], "optimizer.lr": 0.1 / (1 + i // 6), "batch": 16 << i % 3}
            ),
        )
        for i in range(count)
    ]


def seeds_of(setting: int, sync: str, count: int) -> list[RunData]:
    """Runs of one setting of a sweep."""
    return [
        recorded(
            f"000{setting}-{sync}-s{seed}",
            number=3 * setting + 7 * seed,
            sync=sync,
            swept=Swept("sweep", setting, seed, {"sync": sync}),
            config={"sync": {"name": sync}, "seed": seed},
        )
        for seed in range(count)
    ]
