"""A small run on a virtual cluster in this process, that is watched for its animated picture."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline.engine.api.preparing import prepare
from paceline.engine.features.watching import Watcher
from paceline.engine.launch.virtual import cluster_of
from paceline.engine.launch.virtual import run as run_virtual
from paceline.engine.planning.build import assemble
from paceline.strategies.core.held import Held, HeldPoint, HeldRows
from paceline.tracking import player
from paceline.tracking.run_directory import RunDirectory

SMALL = ("tracking=none", "data=digits", "data.limit=96", "batch_size=8", "model.hidden=[8]", "evaluate.every=1000")
SMALL += ("checkpoint.every=0", "optimizer.momentum=0", "hardware=virtual")


class Noting(Watcher):
    """Keeps what it saw, too, in the order in which workers were looked at."""

    seen: list[tuple[float, int, dict[str, Held]]]

    def look(self, at: float, rank: int, found: Mapping[str, Held]) -> None:
        vars(self).setdefault("seen", []).append(
            (at, rank, {name: _copy(held) for name, held in found.items()}),
        )
        super().look(at, rank, found)


def _copy(held: Held) -> Held:
    match held:
        case HeldPoint():
            return replace(held, vector=held.vector.clone())
        case HeldRows():
            return replace(held, rows=held.rows.clone(), result=held.result.clone())
        case _:
            return held


@dataclass
class WatchedRun:
    document: dict[str, Any]
    seen: list[tuple[float, int, dict[str, Held]]] = field(default_factory=list)

    def held(self, name: str) -> dict[str, Any]:
        [found] = [track for track in self.document["held"] if track["name"] == name]
        return found

    def vectors(self, name: str = "weights") -> list[tuple[float, int, Tensor]]:
        """(at, rank, vector) of each sample of this name, in order of time."""
        found = [(at, rank, held[name].vector) for at, rank, held in self.seen if name in held]  # type: ignore[union-attr]
        return sorted(found, key=lambda each: each[0])


def trained(folder: Path, *overrides: str, watches: bool = True) -> tuple[str, Noting, Any]:
    """Returns the trace, what was seen, and the summary's metrics."""
    keys = {each.partition("=")[0] for each in overrides}
    usual = [each for each in SMALL if not any(f"{each.partition('=')[0]}.".startswith(f"{key}.") for key in keys)]
    trace = folder / "trace.json"
    prepared = prepare([*usual, *overrides], trace=trace)
    directory = RunDirectory.create(folder, "watched")
    hardware: Any = prepared.experiment.hardware
    threads = torch.get_num_threads()
    parts = assemble(prepared.experiment, (), None)
    watcher = Noting(parts.layout)
    try:
        cluster = cluster_of(parts, hardware, watcher.see if watches else None)
        parts = watcher.watched(parts) if watches else parts
        run_virtual(prepared.assignment(directory, prepared.plan()), parts, cluster)
    finally:
        torch.set_num_threads(threads)
    return trace.read_text(), watcher, directory.read_summary()


def watched(folder: Path, *overrides: str) -> WatchedRun:
    trace, watcher, _ = trained(folder, *overrides)
    return WatchedRun(player.of_run("a run", trace, watcher.told()), watcher.seen)
