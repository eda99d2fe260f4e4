"""A round of FedAvg against one of Flower's simulation: ten clients, 400 KB of weights, nothing to train.

This is dispatch, not learning: how long it takes to hand out the weights, hear from everyone and average. Our clients
are processes that stay; Flower's simulation runs its clients on Ray's actors. Start-up is in neither.

Flower runs in a Python of its own: the one that FLWR_PYTHON names, or a virtual environment made once in build/.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn

from paceline.comm.process import ProcessComm
from paceline.strategies.core.batch import Batch
from paceline.strategies.sync.fedavg import FedAvg

from .measure import Outcome, alternate, in_processes

CLIENTS, ENTRIES = 10, 100_000  # float32: 400 KB
OUR_ROUNDS, FLOWERS_ROUNDS = 200, 30
FLOWER = "flwr[simulation]==1.41.0"
ROOT = Path(__file__).parent.parent
PATIENCE = 600  # seconds for a run of Flower


def fedavg_against_flower(rounds: int) -> list[Outcome]:
    """`rounds`: whole runs of each, a run being many federated rounds."""
    name, target = f"fedavg round, dispatch alone: {CLIENTS} clients, 400 KB", "<= 0.1"
    try:
        python = _flower()
    except (subprocess.CalledProcessError, OSError) as error:
        print(f"Flower is not there to compare with: {error}", file=sys.stderr)
        return [Outcome(name, _ours(), target=target)]
    return [alternate(name, _ours, lambda: _flowers(python), "Flower's simulation", target, rounds)]


def _flower() -> str:
    """A Python that has Flower. Raises `CalledProcessError` or `OSError` when there is none to be had."""
    python = os.environ.get("FLWR_PYTHON")
    if python is None:
        folder = ROOT / "build" / "flower"
        python = str(folder / "bin" / "python")
        if not (folder / "ready").exists():
            print(f"installing {FLOWER} into {folder}, some 500 MB, once", file=sys.stderr)
            venv.create(folder, with_pip=True, clear=True)
            command = [python, "-m", "pip", "install", "--quiet", FLOWER]
            subprocess.run(command, check=True, env={k: v for k, v in os.environ.items() if k != "PIP_CONSTRAINT"})
            (folder / "ready").touch()
    subprocess.run([python, "-c", "import flwr, ray"], check=True)
    return python


def _flowers(python: str) -> float:
    with tempfile.TemporaryDirectory() as home:
        quiet = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "FLWR_HOME": home}
        printed = subprocess.run(
            [python, str(ROOT / "benchmarks" / "flower_rounds.py"), *map(str, (CLIENTS, ENTRIES, FLOWERS_ROUNDS))],
            check=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=PATIENCE,
            env={**os.environ, **quiet},
        ).stdout
    rounds = next(line for line in reversed(printed.splitlines()) if line.startswith("["))
    return statistics.median(json.loads(rounds)) * 1e3


def _ours() -> float:
    return in_processes(CLIENTS + 1, _measure, OUR_ROUNDS)[0].ours


def _measure(comm: ProcessComm, rounds: int) -> list[Outcome]:
    model = nn.Linear(ENTRIES, 1, bias=False)
    sync = FedAvg()  # a step an epoch, an epoch a round
    sync.prepare(dict(model.named_parameters()), torch.optim.SGD(model.parameters(), lr=0.1), comm)
    if comm.rank == CLIENTS:
        sync.serve()
        return []
    batch = Batch(torch.zeros(1, 1), torch.zeros(1, dtype=torch.int64), CLIENTS)
    opened: list[float] = []
    for step in range(rounds):
        sync.next_step(step)
        sync.begin(batch)
        opened.append(time.perf_counter())
        sync.update()
    sync.finish()
    warm = opened[rounds // 10 :]
    return [Outcome("", statistics.median(end - start for start, end in pairwise(warm)) * 1e3)]
