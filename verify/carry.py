"""One way, carried out: its workers train as `paceline train` has them train, and write down what there is."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from ..engine.api.preparing import Prepared
from ..engine.api.session import make_ready
from ..engine.base.errors import InterruptedRunError
from ..engine.fabrics import fabric_of
from ..engine.features.feature import Parts
from ..engine.features.weights import convert
from ..engine.launch import launcher_on
from ..engine.launch.launching import to_the_end
from ..engine.launch.virtual import cluster_of
from ..engine.launch.virtual import run as run_virtual
from ..engine.planning.planned import Plan
from ..engine.training.probe import Probed, folder_of, read
from ..tracking.run_directory import RunDirectory


def carry_out(prepared: Prepared, plan: Plan, parts: Parts, root: Path, name: str) -> Probed:
    """`plan.steps` steps, in a run directory `root/name`. Raises what the run ended with."""
    fabric = fabric_of(prepared.experiment)
    make_ready(plan, quiet=True)
    directory = RunDirectory.create(root, name)
    convert(prepared.experiment, directory.path, plan.shapes, plan.added)
    folder_of(directory.path).mkdir()
    assignment = replace(prepared.assignment(directory, plan), probe=True)
    if fabric.modelled:  # in this process: there is nothing that it could leave behind
        with _one_thread():
            run_virtual(assignment, parts, cluster_of(parts, prepared.experiment.hardware))
    else:
        memory = sum(plan.peak_memory().values())
        handle = to_the_end(launcher_on(fabric), assignment, plan.layout, preload=parts.data.preload, memory=memory)
        if number := handle.stop_signal:
            raise InterruptedRunError(f"stopped by {signal.Signals(number).name}", 128 + number)
    assert plan.steps is not None
    return read(directory.path, plan.steps)


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
