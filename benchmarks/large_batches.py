"""A step of optimizer=lars against pytorch_optimizer's LARS: 13 M entries in 58 tensors, half of them vectors.

Both step on copies of the same weights with the same gradients. pytorch_optimizer writes into gradients: they are given
to it anew before each step, which is not timed. Ours leaves them as they are.

pytorch_optimizer is installed once, alone, into a folder of build/, which is on the path while it is imported.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from paceline.comm.process import ProcessComm
from paceline.engine import prepare
from paceline.engine.planning.build import assemble

from .measure import Outcome, alternate, in_processes

PEER = "pytorch_optimizer==4.1.0"
FOLDER = Path(__file__).parent.parent / "build" / "pytorch_optimizer"
SHAPES = [shape for _ in range(29) for shape in ((74, 74, 9, 9), (74,))]  # 12.9 M entries, half of the tensors vectors
STEPS = 10
KNOBS: dict[str, Any] = {"lr": 1.0, "momentum": 0.9, "weight_decay": 0.0005, "trust_coefficient": 0.001}


def lars_against_pytorch_optimizer(rounds: int) -> list[Outcome]:
    return in_processes(1, _steps, rounds)


def _steps(_: ProcessComm, rounds: int) -> list[Outcome]:
    """One thread, as a worker that has a core of its own."""
    name = "optimizer=lars, one step, 13 M entries in 58 tensors, one thread"
    target = "<= 0.6"
    ours = _block(_ours, writes=False)
    try:
        peers = _pytorch_optimizers()
    except (subprocess.CalledProcessError, OSError, ImportError) as error:
        print(f"pytorch_optimizer is not there to compare with: {error}", file=sys.stderr)
        return [Outcome(name, ours(), peer_name="pytorch_optimizer, left out: not installed", target=target)]
    outcomes = [alternate(name, ours, _block(peers, writes=True), "pytorch_optimizer's LARS", target, rounds)]
    each = _block(lambda parameters: peers(parameters, foreach=False), writes=True)
    return [*outcomes, alternate(name, ours, each, "the same, foreach=False", "", rounds)]


def _ours(parameters: list[nn.Parameter]) -> Optimizer:
    """Returns the optimizer of optimizer=lars."""
    knobs = [f"optimizer.{key}={value}" for key, value in KNOBS.items()]
    return assemble(prepare(["optimizer=lars", *knobs]).experiment, ()).make_optimizer(parameters)


def _pytorch_optimizers() -> Callable[..., Optimizer]:
    """Raises `CalledProcessError`, `OSError` or `ImportError` where it cannot be had."""
    if find_spec("pytorch_optimizer") is None:
        if not (FOLDER / "ready").exists():
            print(f"installing {PEER} into {FOLDER}, once", file=sys.stderr)
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(FOLDER), PEER]
            subprocess.run(pip, check=True)
            (FOLDER / "ready").touch()
        sys.path.append(str(FOLDER))
    lars = import_module("pytorch_optimizer.optimizer.lars").LARS
    return lambda parameters, **knobs: lars(parameters, **KNOBS, **knobs)


def _block(make: Callable[[list[nn.Parameter]], Optimizer], writes: bool) -> Callable[[], float]:
    """Gives the median step of a block, in milliseconds. `writes`: it changes gradients."""
    generator = torch.Generator().manual_seed(0)
    parameters = [nn.Parameter(0.05 * torch.randn(shape, generator=generator)) for shape in SHAPES]
    gradients: list[Tensor] = [0.01 * torch.randn(shape, generator=generator) for shape in SHAPES]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.clone()
    optimizer = make(parameters)

    def block() -> float:
        times: list[float] = []
        for _ in range(STEPS):
            if writes:
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    assert parameter.grad is not None
                    parameter.grad.copy_(gradient)
            start = time.perf_counter()
            optimizer.step()
            times.append(time.perf_counter() - start)
        return median(times) * 1e3

    return block
