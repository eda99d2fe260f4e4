"""The harness (loop, meters, records, stop agreement) against a bare loop that does the same work by hand."""

import tempfile
import time
from collections.abc import Callable

import torch
from torch import nn

from paceline.batches import lone
from paceline.comm.connecting import connect
from paceline.comm.process import ProcessComm
from paceline.comm.rendezvous import serve_store
from paceline.engine.training.bare import bare_job
from paceline.engine.training.job import Job
from paceline.engine.training.loop import train
from paceline.tasks.base import DataSpec, Split
from paceline.tasks.losses.cross_entropy import cross_entropy
from paceline.tasks.models.cnn import CNN
from paceline.tasks.models.mlp import MLP
from paceline.tracking.run_directory import RunDirectory

from .measure import Outcome, alternate

IMAGES = DataSpec((1, 28, 28), torch.float32, (), 10, 60_000, 10_000)
CASES: dict[str, tuple[Callable[[], nn.Module], int, int]] = {
    "mlp, 2.9 M parameters, batch 256": (lambda: MLP(IMAGES, [1024, 1024, 1024]), 256, 20),
    "cnn, 108 k parameters, batch 256": (lambda: CNN(IMAGES), 256, 20),
    "logistic regression, batch 32": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 10)), 32, 500),
}


def harness_against_bare_loop(rounds: int) -> list[Outcome]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    store = serve_store(0)
    comm = connect(store.endpoint, 0, 1, 60.0, torch.device("cpu"))
    data = Split(torch.randn(8192, 1, 28, 28), torch.randint(10, (8192,)))
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, (make, batch_size, steps)) in enumerate(CASES.items()):
            run = RunDirectory.create(folder, f"case-{number}")
            ours, bare = make(), make()
            outcomes.append(
                alternate(
                    f"harness, 1 worker: {name}",
                    lambda m=ours, r=run, b=batch_size, s=steps: _harness(m, data, b, s, comm, r),
                    lambda m=bare, b=batch_size, s=steps: _bare(m, data, b, s),
                    "bare loop",
                    "<= 1.03" if batch_size > 32 else "(overhead alone)",
                    rounds,
                )
            )
    comm.close()
    store.close()
    torch.set_num_threads(threads)
    return outcomes


def _harness(model: nn.Module, data: Split, batch_size: int, steps: int, comm: ProcessComm, run: RunDirectory) -> float:
    def record(job: Job, before: int, done: int, loss: float | None) -> None:
        meter = job.meter
        run.append({"kind": "step", "step": done, "loss": loss, "step_time": meter.last, "time": meter.seconds})

    job = bare_job(model, data, batch_size, steps, 0.01, 0.0, comm, f"bench {time.perf_counter()}", record)
    start = time.perf_counter()
    train(job)
    return (time.perf_counter() - start) / steps * 1e3


def _bare(model: nn.Module, data: Split, batch_size: int, steps: int) -> float:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    order = torch.randperm(len(data))
    per_epoch = -(-len(data) // batch_size)
    start = time.perf_counter()
    for step in range(steps):
        at = step % per_epoch * batch_size
        taken = order[at : at + batch_size]
        optimizer.zero_grad()
        loss = cross_entropy(model(lone(data.samples)[taken]), data.targets[taken])
        loss.backward()
        optimizer.step()
        loss.item()
    return (time.perf_counter() - start) / steps * 1e3
