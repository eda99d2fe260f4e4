"""What a whole `.wandb` file holds, W&B's own keys (`_step`, `_timestamp`) left out of its history."""

from pathlib import Path
from typing import Any

from paceline.tracking.wandb_datastore import StoredWandbRun, read


def run(path: Path) -> StoredWandbRun:
    stored = read(path)
    assert not stored.damaged
    return stored


def history(path: Path) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key[0] != "_"} for row in run(path).history]


def config(path: Path) -> dict[str, Any]:
    return run(path).config


def summary(path: Path) -> dict[str, Any]:
    return run(path).summary


def exit_code(path: Path) -> int | None:
    return run(path).exit_code
