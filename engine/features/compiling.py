"""`compile=true`: passes of a worker's part are compiled by torch.compile, before the first step.

A worker compiles its module in place, so that names and checkpoints stay. It then passes one batch of each size that
the run will have forward and backward, and puts everything back. Sizes go down from the largest: torch makes code for
the first and, from the second on, code for any size. So a resumed run has the same code, whichever batch comes next.
"""

import os
import shutil
import sysconfig
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Self

import torch

from ...batches import Samples, call, of_each
from ...comm.private import NotPrivateError, private, user_cache
from ...compat.compiler import CompileClock, compile_in_place, unsupported, usual_folder
from ...conf.errors import ConfigError
from ...strategies import Strategy
from ...strategies.core.staged import StagedStrategy
from ...strategies.core.terms import BATCH_GRADIENTS, COMPILABLE, WITHIN_REPLICA, Need
from ..base.errors import MachineError
from ..config.experiment import Experiment
from ..fabrics.kinds import FabricKind
from .feature import Chosen, Feature, Known, Parts

FOLDERS = "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"  # code is loaded from these


class Compiled(Feature):
    """Passes are compiled before the first step."""

    key = "compile"

    @classmethod
    def of(cls, chosen: Chosen) -> Self | None:
        return cls() if chosen.experiment.compile else None

    def needs(self, chosen: Chosen) -> Sequence[Need]:
        compiles = "compiles each pass as a whole", "compile=true", "compile=false"
        return [Need(term, *compiles) for term in (COMPILABLE, WITHIN_REPLICA, BATCH_GRADIENTS)]

    def check(self, chosen: Chosen) -> None:
        check(chosen.fabric)

    def notes(self, known: Known) -> list[str]:
        return [
            "compile=true: workers compile before the first step, which no throughput or step time counts "
            "(compile_s). Memory of activations is stated as without it; compiled passes may keep less or more"
        ]


def check(fabric: FabricKind) -> None:
    """Raises `ConfigError` for workers whose passes cannot be compiled."""
    if fabric.modelled:
        raise ConfigError(
            "compile=true: hardware=virtual models the time of passes, and its workers are threads of one process. "
            "Choose compile=false or hardware=local."
        )


def check_machine(experiment: Experiment, device: torch.device) -> None:
    """Raises `MachineError` for a machine that cannot compile."""
    if not experiment.compile:
        return
    if why := unsupported():
        raise MachineError(f"compile=true: {why}. Choose compile=false or another Python.")
    if device.type == "cuda" and find_spec("triton") is None:
        raise MachineError(
            "compile=true: torch.compile makes code for GPUs by Triton, and the package triton is not installed. "
            "Install the one that your torch asks for (pip show torch), or choose compile=false."
        )
    names = [os.environ.get("CXX") or "g++"] if device.type == "cpu" else [os.environ.get("CC") or "gcc", "clang"]
    if not any(map(shutil.which, names)):
        raise MachineError(
            f"compile=true: torch.compile needs a C++ compiler, and there is no {names[0]} here. Install one (on "
            "Debian: apt-get install g++) or choose compile=false."
        )
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        raise MachineError(
            "compile=true: torch.compile needs Python's headers, and there is no Python.h here. Install them (on "
            "Debian: apt-get install python3-dev) or choose compile=false."
        )
    use_private_folders()


def use_private_folders() -> None:
    """Has torch keep compiled code where nobody else can write: by default its folder in /tmp has a known name.

    Raises `MachineError`.
    """
    if os.environ.get(FOLDERS[0], usual_folder()) == usual_folder():
        try:
            os.environ[FOLDERS[0]] = str(user_cache("inductor"))
        except RuntimeError as error:
            raise MachineError(f"compile=true: {error}. Name a folder in {FOLDERS[0]}") from None
    for name in FOLDERS:
        folder = os.environ.get(name)
        if folder is None:
            continue
        try:
            os.environ[name] = str(private(Path(folder).absolute()))
        except NotPrivateError as error:
            raise MachineError(
                f"{name}={folder}: torch.compile loads code from there, and {error}. Name a folder that only you can "
                "write"
            ) from None
        except OSError as error:
            raise MachineError(
                f"{name}={folder}: torch.compile keeps code there, and {error}. Name a folder that you can write"
            ) from None


class Compiler:
    """Compiles what one worker trains, and counts the seconds that it takes, later compilations included."""

    def __init__(self, backend: str = "inductor") -> None:
        use_private_folders()
        self._backend = backend
        self._clock = CompileClock()

    @property
    def seconds(self) -> float:
        return self._clock.seconds

    def compile(self, strategy: Strategy, parts: Parts, device: torch.device) -> None:
        """Compiles the module of `strategy`, which is in training, for all sizes of the run's batches."""
        compile_in_place(strategy.module, self._backend, torch.get_num_threads())
        sizes = sorted(
            {micro for size in parts.deal().sizes() for micro in parts.accumulation.sizes(size)} - {0}, reverse=True
        )
        samples = parts.load()[0].take(slice(0, sizes[0])).inputs
        inputs = of_each(samples, lambda each: each.to(device))
        with torch.random.fork_rng(devices=[]):
            profile(strategy, [of_each(inputs, lambda each, size=size: each[:size]) for size in sizes])


def profile(strategy: Strategy, batches: Sequence[Samples]) -> None:
    """Passes each batch forward and backward; buffers and gradients are afterwards what they were."""
    module = strategy.module
    kept = [(buffer, buffer.clone()) for buffer in module.buffers()]
    for inputs in batches:
        outputs = strategy.passes(inputs) if isinstance(strategy, StagedStrategy) else [call(module, inputs)]
        for output in outputs:
            if output.requires_grad:
                output.float().sum().backward()
    module.zero_grad()
    for buffer, before in kept:
        buffer.copy_(before)
