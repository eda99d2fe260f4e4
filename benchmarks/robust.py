"""Krum and the median of 20 rows of a million entries against byzfl's, float32, on one thread.

byzfl is installed once, alone, into a folder of build/, which is on the path while it is imported. Its own benchmark
wants torchvision, and is left out.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from paceline.comm.process import ProcessComm
from paceline.exchange.aggregate import Aggregator, Krum, Median

from .measure import Outcome, alternate, in_processes

PEER = "byzfl==0.0.11"
FOLDER = Path(__file__).parent.parent / "build" / "byzfl"
ROWS, ENTRIES, LIARS = 20, 10**6, 4
RULES: dict[str, tuple[Aggregator, str]] = {"Krum": (Krum(), "<= 0.09"), "median": (Median(), "<= 0.2")}


def rules_against_byzfl(rounds: int) -> list[Outcome]:
    return in_processes(1, _rules, rounds)


def _rules(_: ProcessComm, rounds: int) -> list[Outcome]:
    rows = torch.randn(ROWS, ENTRIES, generator=torch.Generator().manual_seed(0))
    weights = torch.ones(ROWS, dtype=torch.float64)
    try:
        peers = _byzfl()
    except (subprocess.CalledProcessError, OSError, ImportError) as error:
        print(f"byzfl is not there to compare with: {error}", file=sys.stderr)
        peers = None
    outcomes: list[Outcome] = []
    for name, (rule, target) in RULES.items():
        what = f"{name} of {ROWS} rows of {ENTRIES:,}, f = {LIARS}, one thread"
        ours = _timed(lambda rule=rule: rule.aggregate(rows, weights, LIARS))
        if peers is None:
            outcomes.append(Outcome(what, ours(), peer_name="byzfl, left out: not installed", target=target))
            continue
        theirs = peers.Krum(LIARS) if name == "Krum" else peers.Median()
        assert torch.equal(theirs(rows), rule.aggregate(rows, weights, LIARS)) or name == "median"
        outcomes.append(alternate(what, ours, _timed(lambda theirs=theirs: theirs(rows)), "byzfl's", target, rounds))
    return outcomes


def _timed(do: Callable[[], Tensor]) -> Callable[[], float]:
    def milliseconds() -> float:
        start = time.perf_counter()
        do()
        return (time.perf_counter() - start) * 1e3

    return milliseconds


def _byzfl() -> Any:
    """Returns byzfl's rules."""
    if not FOLDER.is_dir():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(FOLDER), PEER]
        subprocess.run(command, check=True)
    sys.path.insert(0, str(FOLDER))
    sys.modules["byzfl.benchmark"] = ModuleType("byzfl.benchmark")
    try:
        return import_module("byzfl.aggregators.aggregators")
    finally:
        sys.path.remove(str(FOLDER))
