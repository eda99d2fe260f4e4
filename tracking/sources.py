"""What is compared: runs, wherever they were recorded."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from .run_directory import Record, RunDirectory

SWEEP_NOTE = "trial.json"  # in the directory of a run that a sweep made: see Swept


@dataclass(frozen=True)
class Swept:
    """Which trial of which sweep a run is."""

    sweep: str
    trial: int
    seed: int
    parameters: dict[str, Any]  # what the sweep chose: {"sync": "ssp", "optimizer.lr": 0.1}


@dataclass(frozen=True)
class RunData:
    """A recorded run. `summary`: as summary.json, or what is known of it so far, with `name` and `status` at least."""

    name: str
    summary: dict[str, Any]
    config: dict[str, Any]  # as config.yaml; {}: not known
    records: list[Record]  # as metrics.jsonl
    path: Path | None  # None: it is no run directory of ours
    swept: Swept | None = None


def from_directory(run: RunDirectory) -> RunData:
    """Raises nothing for a damaged run: its status says so."""
    from .compare import summary_of

    try:
        config = yaml.safe_load(run.config.read_text()) or {}
    except (OSError, yaml.YAMLError):
        config = {}
    return RunData(run.name, summary_of(run), config, run.records(), run.path, _swept(run))


def _swept(run: RunDirectory) -> Swept | None:
    try:
        return Swept(**json.loads((run.path / SWEEP_NOTE).read_text()))
    except (OSError, ValueError, TypeError):
        return None
