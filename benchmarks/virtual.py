"""Measures the virtual cluster: worker-steps a second on one core, what they are made of, and many workers' memory.

A short run and one that is longer by as many worker-steps whatever the number of workers: the difference is steps
alone, without what starting costs. A model of 9,610 parameters and one sample a step, so that what is timed is the
fabric and the sync mode rather than the model. Beside a worker-step stand the two parts that can be had alone: torch's
passes and SGD step of this model, and the events of the mode's messages, between workers without a model.
"""

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn

from paceline.comm.carriers import Greenlets
from paceline.comm.network import Network, NetworkLink
from paceline.comm.virtual import SimulatedCluster, VirtualComm

from .measure import Outcome

FIRST, MORE = 5_120, 20_480  # worker-steps
MIDDLE, MOST, MANY = 256, 4096, 10_000
HIDDEN, PARAMETERS = 128, 64 * 128 + 128 + 128 * 10 + 10
NETWORK = Network(NetworkLink(5e-5, 1.25e9), NetworkLink(1e-6, 1e11))


def virtual_speed(rounds: int) -> list[Outcome]:
    outcomes: list[Outcome] = []
    for sync, (events, least) in MODES.items():
        name, steps, passes, alone = f"virtual {sync}: a worker-step of {MIDDLE}", [], [], []
        for _ in range(rounds):
            steps.append(_milliseconds(sync, MIDDLE, SMALL))
            passes.append(_passes([64, HIDDEN, 10], 1))
            alone.append(_events(events))
        target = f"<= {1e3 / least:.3f} ms: {least:,} a second"
        outcomes.append(Outcome(f"{name}, one core", statistics.median(steps), target=target))
        outcomes.append(_share(f"virtual {sync}: torch's passes and SGD alone", passes, steps, name))
        outcomes.append(_share(f"virtual {sync}: events alone", alone, steps, name))
        fewer, most = ([_milliseconds(sync, workers, FASHION) for _ in range(rounds)] for workers in (MIDDLE, MOST))
        growth = _share(f"virtual {sync}: a worker-step of {MOST:,}, Fashion-MNIST", most, fewer, f"of {MIDDLE}")
        by_log = math.log2(MOST) / math.log2(MIDDLE)
        outcomes.append(replace(growth, target=f"<= {by_log:.2f}: n log n"))
    default = [_milliseconds("ssp", MIDDLE, []) for _ in range(rounds)]
    passes = [_passes([64, 256, 128, 10], 32) for _ in range(rounds)]
    name = f"virtual ssp: a worker-step of {MIDDLE}, default model and batch"
    return [
        *outcomes,
        _share("virtual ssp: torch's passes and SGD alone, default model and batch", passes, default, name),
    ]


def many_virtual_workers(rounds: int) -> list[Outcome]:
    """Whole runs of two and of four steps of 10,000 workers, each with a model of its own; `rounds` of each.

    Two steps take the difference; what a run of two takes beside them is starting, set-up and the end.
    """
    outcomes: list[Outcome] = []
    for name, changes in MANY_RUNS.items():
        of = [*changes, f"hardware.workers={MANY}", *FASHION]
        runs = [(_run([*of, "steps=2"]), _run([*of, "steps=4"])) for _ in range(rounds)]
        short = statistics.median(seconds for (seconds, _), _ in runs)
        beside = statistics.median(2 * seconds - longer for (seconds, _), (longer, _) in runs)
        memory = max(gib for pair in runs for _, gib in pair)
        name = f"{MANY:,} virtual workers, {name}"
        outcomes.append(Outcome(f"{name}: a run of 2 steps; {memory:.1f} GiB of 16", short * 1e3))
        outcomes.append(Outcome(f"{name}: beside its steps", beside * 1e3, target="<= 60,000 ms"))
    return outcomes


def _share(name: str, part: list[float], whole: list[float], of: str) -> Outcome:
    """`part` in relation to the `whole`, round by round; both in milliseconds."""
    shares = [one / all_of_it for one, all_of_it in zip(part, whole, strict=True)]
    middle = statistics.median
    return Outcome(name, middle(part), middle(whole), of, middle(shares), min(shares), max(shares))


def _milliseconds(sync: str, workers: int, changes: list[str]) -> float:
    """Wall time of one worker's step."""
    of = [f"sync={sync}", f"hardware.workers={workers}", *changes]
    few = max(FIRST // workers, 2)
    short, _ = _run([*of, f"steps={few}"])
    long, _ = _run([*of, f"steps={few + MORE // workers}"])
    return (long - short) * 1e3 / (MORE // workers * workers)


def _run(changes: list[str]) -> tuple[float, float]:
    """(Wall seconds, GiB.)"""
    paceline = str(Path(sys.executable).with_name("paceline"))
    core = min(os.sched_getaffinity(0))
    always = ["epochs=1000", "evaluate.every=1000", "hardware=virtual", "tracking=none", "checkpoint.every=0"]
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        subprocess.run(
            ["taskset", "-c", str(core), paceline, "train", "--name", "timed", *always, *changes],
            check=True,
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        seconds = time.perf_counter() - start
        summary = json.loads((Path(folder) / "runs" / "timed" / "summary.json").read_text())
    return seconds, summary["memory"]["process_peak"] / 2**30


def _passes(widths: list[int], batch: int, times: int = 300) -> float:
    """Milliseconds of a forward and a backward pass of an MLP and a step of SGD, as anybody writes them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    layers = [layer for pair in pairwise(widths) for layer in (nn.Linear(*pair), nn.ReLU())]
    model = nn.Sequential(nn.Flatten(), *layers[:-1])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, targets = torch.randn(batch, 1, 8, 8), torch.zeros(batch, dtype=torch.long)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    for _ in range(20):
        step()
    start = time.perf_counter()
    for _ in range(times):
        step()
    took = time.perf_counter() - start
    torch.set_num_threads(threads)
    return took * 1e3 / times


def _events(life: Callable[[VirtualComm, int], None], steps: int = 20) -> float:
    """Milliseconds of one worker's step without a model."""
    # the last one is the server, where there is one; a run of these modes has this carrier, too
    cluster = SimulatedCluster(MIDDLE + 1, NETWORK, carrier=Greenlets)
    start = time.perf_counter()
    cluster.run(lambda comm: life(comm, steps))
    return (time.perf_counter() - start) * 1e3 / (steps * MIDDLE)


def _push_and_fetch(comm: VirtualComm, steps: int) -> None:
    head, weights = torch.zeros(1, dtype=torch.float64), torch.zeros(PARAMETERS)
    server = MIDDLE
    if comm.rank == server:
        for _ in range(2 * steps * MIDDLE):
            sender = comm.recv_any(head)
            if head.item() < 0:
                comm.send(weights, sender)
            else:
                comm.recv(weights, sender)
        return
    for _ in range(steps):
        works = [comm.isend(head.fill_(-1.0), server), comm.irecv(weights, server)]
        for work in works:
            work.wait()
        comm.elapse(3e-4 * (1 + comm.rank % 7 / 10))
        for work in [comm.isend(head.fill_(1.0), server), comm.isend(weights, server)]:
            work.wait()


def _with_neighbours(comm: VirtualComm, steps: int) -> None:
    mine, others = torch.zeros(PARAMETERS), [torch.zeros(PARAMETERS) for _ in range(2)]
    if comm.rank == MIDDLE:
        return
    ring = [(comm.rank + away) % MIDDLE for away in (-1, 1)]
    for _ in range(steps):
        comm.elapse(3e-4 * (1 + comm.rank % 7 / 10))
        works = [comm.irecv(other, rank) for other, rank in zip(others, ring, strict=True)]
        works += [comm.isend(mine, rank) for rank in ring]
        for work in works:
            work.wait()


def _sums(comm: VirtualComm, steps: int) -> None:
    gradients = torch.zeros(PARAMETERS)
    for _ in range(steps):
        comm.elapse(3e-4 * (1 + comm.rank % 7 / 10))
        comm.all_reduce(gradients)


# the events of each mode, and as many worker-steps a second as it should make
MODES = {"bsp": (_sums, 4_000), "gossip": (_with_neighbours, 8_000), "ssp": (_push_and_fetch, 5_000)}
SMALL = [f"model.hidden=[{HIDDEN}]", "batch_size=1"]
FASHION = ["data=fashion_mnist", "model.hidden=[16]", "batch_size=1"]
MANY_RUNS = {
    "gossip": ["sync=gossip"],
    "local_sgd": ["sync=local_sgd"],
    "fedavg": ["sync=fedavg"],
    "bsp": ["sync=bsp"],
    "bsp, tree": ["sync=bsp", "collective=tree"],
}
