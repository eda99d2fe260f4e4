"""Measures the time of training beside kernels, by small synthetic models (see cost.kernels.KernelRates.costs)."""

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn

from ...comm import Comm
from ...cost.kernels import Kernel, KernelRates
from ...exchange.buckets import allocate
from ...exchange.reducer import Reducer
from ...tasks.base import Split
from ...tasks.losses.cross_entropy import cross_entropy
from ...tracking.records import StepRecord
from ...tracking.run_directory import RunDirectory
from ..base.operators import trace
from ..training.bare import bare_job
from ..training.job import Job
from ..training.loop import train
from .timing import seconds_of

CHAIN, SIDE, SAMPLES = 50, 8, 4096
BUDGET = 0.1  # seconds each


def times(comm: Comm, steps: int, key: str) -> dict[str, float]:
    """Returns the measured times from which `costs` follow. `key`: of this measurement, among those of the same run."""
    found: dict[str, float] = {}
    x = torch.ones(256)
    grown = torch.ones(256, requires_grad=True)
    with torch.no_grad():
        found["bare"] = seconds_of(lambda i: _chain(x, torch.neg), BUDGET) / CHAIN
        found["view"] = seconds_of(lambda i: _chain(x, lambda y: y.view(256)), BUDGET) / CHAIN
    found["graphed"], found["graphed_back"] = _both_ways(lambda: _chain(grown, torch.neg))
    layers = nn.Sequential(*(nn.Linear(SIDE, SIDE) for _ in range(CHAIN)))
    found["layers"], found["layers_back"] = _both_ways(
        lambda: layers(torch.ones(SIDE, SIDE, requires_grad=True)), layers.zero_grad
    )
    found["unhooked"], found["hooked"] = _of_reducer()
    found["stepped"] = _of_optimizer()
    found["loop"] = _of_loop(comm, steps, key)
    return found


def costs(took: Mapping[str, float], rates: KernelRates) -> dict[str, float]:
    """`took`: as `times` gives them. `rates`: with tables alone."""
    tables, found = rates.tables, {"view": took["view"]}
    found["graph"] = took["graphed"] / CHAIN - took["bare"]
    found["node"] = took["graphed_back"] / CHAIN - took["bare"]
    product = tables["product"].seconds((1.0, SIDE, SIDE, SIDE))
    found["module"] = max(took["layers"] / CHAIN - product - found["graph"] - found["view"], 0.0)  # a product, a view
    kernels = 2 * product + tables["sum"].seconds((float(SIDE * SIDE),))
    # AddmmBackward makes two products and a sum; beside these there are 4 t, 3 detach and a view
    found["view_back"] = max(took["layers_back"] / CHAIN - kernels - 3 * found["node"], 0.0) / 8
    # of a parameter's hook, and its way into its bucket beside the bytes
    found["parameter"] = max(took["hooked"] - took["unhooked"], 0.0) / CHAIN
    # of a parameter that SGD with momentum steps, beside its three operators
    operators = tables["mul_"].seconds((16.0,)) + 2 * tables["add_"].seconds((16.0,))
    found["stepped"] = max(took["stepped"] / CHAIN - operators, 0.0)
    found["step"] = took["loop"] - _of_one(replace(rates, costs=found))
    return found


def _chain(x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    for _ in range(CHAIN):
        x = function(x)
    return x


def _both_ways(forward: Callable[[], Tensor], clear: Callable[[], object] = lambda: None) -> tuple[float, float]:
    """Seconds of forward, and of backward from the sum of what it gives."""
    ahead: list[float] = []
    back: list[float] = []
    for _ in range(60):
        clear()
        start = time.perf_counter()
        out = forward()
        ahead.append(time.perf_counter() - start)
        end = out.sum()
        start = time.perf_counter()
        end.backward()
        back.append(time.perf_counter() - start)
    return median(ahead), median(back)


def _of_reducer() -> tuple[float, float]:
    """Times a backward pass whose gradients stay where they are, and one that hands them on to their bucket."""
    parameters = {str(i): nn.Parameter(torch.ones(16)) for i in range(CHAIN)}
    some: list[Tensor] = [*parameters.values()]

    def step() -> float:
        for parameter in some:
            parameter.grad = None
        end = torch.stack(some).sum()
        start = time.perf_counter()
        end.backward()
        return time.perf_counter() - start

    bare = median(step() for _ in range(40))
    reducer = Reducer(parameters, allocate(some, 2**20, 2**20), lambda bucket: None, find_unused=False)

    def reduced() -> float:
        for parameter in some:
            parameter.grad = None
        end = torch.stack(some).sum()
        start = time.perf_counter()
        reducer.begin(0.5)
        reducer.before_backward((end,), True)
        end.backward()
        reducer.finish()
        return time.perf_counter() - start

    return bare, median(reduced() for _ in range(40))


def _of_optimizer() -> float:
    """Times a step of SGD with momentum on small parameters."""
    parameters = [nn.Parameter(torch.ones(16)) for _ in range(CHAIN)]
    for parameter in parameters:
        parameter.grad = torch.ones(16)
    optimizer = torch.optim.SGD(parameters, lr=1e-6, momentum=0.9)
    return seconds_of(lambda i: optimizer.step(), BUDGET)


def _of_one(rates: KernelRates) -> float:
    """Returns the time of the computation within `_of_loop`: one small layer, its loss, SGD's step, and taking
    a batch.
    """
    model = nn.Linear(SIDE, SIDE)
    traced = trace(lambda: cross_entropy(model(torch.ones(SIDE, SIDE)), torch.zeros(SIDE, dtype=torch.long)))
    taken = sum(rates.seconds(Kernel("index", (entries,))) for entries in (float(SIDE * SIDE), float(SIDE)))
    stepped = rates.seconds(Kernel("mul_", (1.0,))) + 2 * rates.seconds(Kernel("add_", (1.0,))) + rates.costs["stepped"]
    return rates.forward(traced.forward, modules=1) + rates.backward(traced.backward) + taken + 2 * stepped


def _of_loop(comm: Comm, steps: int, key: str) -> float:
    """Times a step with next to nothing to compute."""
    model = nn.Linear(SIDE, SIDE)
    data = Split(torch.ones(SAMPLES, SIDE), torch.zeros(SAMPLES, dtype=torch.long))
    took: list[float] = []
    run: RunDirectory | None = None

    def recorded(job: Job, before: int, done: int, loss: float | None) -> None:
        """Records the step as a run does: the work between steps makes them start with other things in the cache."""
        assert run is not None and loss is not None
        last = job.meter.last
        took.append(last)
        run.add(StepRecord(done, done / SAMPLES, loss, SIDE / last, step_time=last, time=job.meter.seconds))

    job = bare_job(model, data, SIDE, steps, 1e-6, 0.9, comm, key, recorded)
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as root:
        run = RunDirectory.create(root, "calibration")
        train(job)
    return median(took)
