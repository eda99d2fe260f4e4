"""GPipe and 1F1B in a screen: the bits of the schedule executor, and of serial gradient accumulation."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paceline.comm import Comm
from paceline.strategies.core.batch import Batch
from paceline.strategies.pipeline import Pipeline
from paceline.strategies.pipelining.plain import Stage, gpipe, one_forward_one_backward

LAYERS = (0, 2, 4, 5, 7)  # where each of up to four stages begins in `model`


def model() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(
        *(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5), nn.ReLU(), nn.LayerNorm(5), nn.Linear(5, 5), nn.Tanh()),
        nn.Linear(5, 3),
    )


def samples() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(4)
    return torch.randn(11, 6, generator=generator), torch.randint(3, (11,), generator=generator)


def gradients(part: nn.Module) -> dict[str, Tensor]:
    """Returns gradients by name: the layers of a slice have those of the whole model."""
    return {name: each.grad for name, each in part.named_parameters() if each.grad is not None}


def naively(comm: Comm, run: Callable[[Stage], None], micro_batches: int) -> dict[str, Tensor]:
    """One worker's gradients."""
    inputs, targets = (each.tensor_split(micro_batches) for each in samples())
    whole, rank = model(), comm.rank
    first, until = LAYERS[rank], LAYERS[rank + 1] if rank + 1 < comm.size else 8
    with torch.no_grad():
        entering = [torch.empty_like(whole[:first](x)) for x in inputs]
    module = whole[first:until]
    run(Stage(module, comm, F.cross_entropy, inputs, targets, entering))
    return gradients(module)


def by_schedule(comm: Comm, schedule: str, micro_batches: int) -> dict[str, Tensor]:
    """One worker's gradients, by the schedule executor."""
    cut = list(LAYERS[1 : comm.size])
    strategy = Pipeline(comm.size, schedule, micro_batches, cut)  # type: ignore[arg-type] a list of layers
    strategy.prepare(model(), F.cross_entropy, comm, lambda roots, last: None)
    inputs, targets = samples()
    strategy.forward_backward(Batch(inputs, targets, len(targets), 0))
    return gradients(strategy.module)


def serially(micro_batches: int) -> dict[str, Tensor]:
    whole, (inputs, targets) = model(), (each.tensor_split(micro_batches) for each in samples())
    for x, y in zip(inputs, targets, strict=True):
        (F.cross_entropy(whole(x), y) * (len(y) / 11)).backward()
    return gradients(whole)


@pytest.mark.parametrize("micro_batches", [1, 3, 7])
@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize(("name", "run"), [("gpipe", gpipe), ("1f1b", one_forward_one_backward)])
def test_it_has_the_bits_of_the_executor_and_of_accumulated_gradients(
    virtual_workers: Any, name: str, run: Callable[[Stage], None], stages: int, micro_batches: int
) -> None:
    ours = virtual_workers(stages, naively, run, micro_batches)
    executed = virtual_workers(stages, by_schedule, name, micro_batches)
    wanted = serially(micro_batches)
    found = {key: each for worker in ours for key, each in worker.items()}
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[key], each) for key, each in wanted.items())
    others = {key: each for worker in executed for key, each in worker.items()}
    assert len(others) == len(wanted) and all(torch.equal(others[key], each) for key, each in wanted.items())
