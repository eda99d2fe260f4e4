"""A small real run of a choice on the virtual cluster, for its picture: sixteen workers, digits, a few steps."""

import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...conf.errors import ConfigError
from ..base.errors import WorkerFailedError
from ..base.signals import noted
from .preparing import prepare
from .session import carry_out

BASE = (
    "hardware=virtual",
    "hardware.workers=16",
    "data=digits",
    "model=mlp",
    "batch_size=8",
    "evaluate.every=1000",
    "tracking=none",
)
FURTHER = (  # what a choice may need beside, of which the first that it takes is used; the second if that diverges
    (),
    ("aggregate=median",),
    ("optimizer.momentum=0",),
    ("optimizer=adam",),
    ("model=cnn",),
    ("hardware.workers_per_host=4",),
    ("hardware.workers_per_host=16",),
    ("hardware.workers=1",),
    ("average.unit=steps",),
    ("adapt=pruned", "adapt.rounds=1"),
    ("partition=clusters",),
    ("sync=fedavg",),
    ("sync=fedavg", "optimizer.momentum=0"),
    ("sync=asp",),
    ("sync=gossip",),
    ("privacy=dp_sgd",),
    ("hardware.workers=15",),
    ("freeze.first=1",),
    ("data=diabetes",),
    ("model=linear", "task=hinge", "task.multiclass=one_vs_rest"),
    ("model=kmeans", "task=reconstruction", "optimizer=lloyd"),
    ("model=pca", "task=reconstruction", "optimizer=power_iteration"),
)
OF_PACES = "stragglers=lognormal"  # without which nobody would be late: for sync
LEAST_STEPS, MOST_STEPS = 16, 130


class NoPictureError(Exception):
    """A choice is not run on the virtual cluster; the message gives the reason."""


@dataclass(frozen=True)
class SmallRun:
    overrides: tuple[str, ...]  # that repeat it
    trace: str  # the text of its trace (trace.py)
    samples: dict[str, Any] | None  # what its workers and servers held (watching.py); None: nobody watched
    summary: dict[str, Any]


def small_run(
    choice: str,
    overrides: Sequence[str] = (),
    config_dir: Path | None = None,
    allowed: Sequence[str] = (),
    *,
    watch: bool = False,
) -> SmallRun:
    """Runs a choice, such as sync=ssp. `watch`: keep what its workers and servers hold, which takes time and memory.

    Raises `NoPictureError`, or the error of `overrides` that cannot be or diverge.
    """
    given = {each.partition("=")[0] for each in overrides}
    base = (*BASE, OF_PACES) if choice.startswith("sync=") else BASE
    refusal: ConfigError | WorkerFailedError | None = None
    with noted(), tempfile.TemporaryDirectory(prefix="paceline-explain-") as root:
        for further in FURTHER:
            own = {each.partition("=")[0] for each in (choice, *further)} | given
            kept = (each for each in base if each.partition("=")[0] not in own)
            every = (*dict.fromkeys((choice, *kept, *further)), *overrides)
            if given & {each.partition("=")[0] for each in further} or _replaces(further, choice):
                continue
            try:
                found = _long_enough(every, given, config_dir, allowed)
            except ConfigError as error:
                refusal = refusal or error
                continue
            trace, samples = Path(root) / "trace.json", Path(root) / "samples.json"
            prepared = prepare(found, config_dir, allowed, name="explained", root=root, trace=trace)
            prepared = replace(prepared, samples=samples if watch else None)
            try:
                result = carry_out(prepared, prepared.plan(), Path(root), quiet=True)
            except WorkerFailedError as error:  # of attack=not_finite alone, or of data that do not fit
                refusal = error
                if further:
                    break
                shutil.rmtree(Path(root) / "explained")
                continue
            assert result is not None, "the virtual cluster is one process"
            seen = json.loads(samples.read_text()) if watch else None
            return SmallRun(found, trace.read_text(), seen, result.summary)
    assert refusal is not None
    if overrides:
        raise refusal
    raise NoPictureError(str(refusal)) from refusal


def _replaces(further: Sequence[str], choice: str) -> bool:
    """Returns whether another choice of the same group would run in its place."""
    group = choice.partition("=")[0]
    return any(each.partition("=")[0] == group and each != choice for each in further)


def _long_enough(
    every: tuple[str, ...], given: set[str], config_dir: Path | None, allowed: Sequence[str]
) -> tuple[str, ...]:
    """Returns the overrides with enough steps for one exchange among replicas, and some more. Raises as such a plan
    does.
    """
    if {"steps", "epochs"} & given:
        prepare(every, config_dir, allowed).plan()
        return every
    period = prepare((*every, f"steps={LEAST_STEPS}"), config_dir, allowed).plan().period
    return (*every, f"steps={min(max(period + 3, LEAST_STEPS), MOST_STEPS)}")
