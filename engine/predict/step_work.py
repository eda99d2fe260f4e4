"""Traces the work of one worker in a step, of each part of a configuration: once, on the meta device."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from ...batches import tensors_of
from ...compat.dynamo import without_dynamo
from ...cost.kernels import Kernel
from ...cost.predicted import NotPredicted
from ...cost.transfer import Operation, Transfer
from ...cost.worker import StepWork
from ...strategies.core.cost import Traffic
from ..base import memory
from ..base.operators import Traced, recorded, trace
from ..config import looking
from ..config.experiment import Experiment
from ..config.fits import batch_of, checked_loss, model_takes
from ..features.feature import MakeOptimizer, Parts

OPERATIONS: dict[str, Operation] = {  # by which operation of comm/ a primitive of the ledger is measured
    "all_reduce": "all_reduce",
    "shared_memory": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "broadcast": "broadcast",
    "send": "send",
}


@without_dynamo()
def work_of_parts(experiment: Experiment, parts: Parts) -> list[StepWork]:
    """Returns the work of each part's worker: its passes, its optimizer, and the batch."""
    if looking.tried(experiment) is looking.Tried.REAL:
        raise NotPredicted(f"model={experiment.model.name} looks at values, and a step is traced without them")
    inputs, targets = batch_of(parts.data.spec, experiment.batch_size)
    device, strategy = torch.device("cpu"), parts.strategy
    parts.model.train()
    loss = checked_loss(experiment, parts.modules[strategy.loss_part], parts.data.spec, parts.task, parts.allowed)
    sizes = parts.accumulation.sizes(experiment.batch_size)
    traced: list[list[Traced]] = [[] for _ in parts.modules]
    with model_takes(experiment, inputs, parts.allowed), memory.AttentionOf(device):
        for size, count in Counter(sizes).items():
            for module in parts.modules:
                module.zero_grad()  # to add to them is counted below
            rehearsed = strategy.profile(parts.modules, inputs[:size], targets[:size], loss, device)
            for known, passes in zip(traced, rehearsed, strict=True):
                known += count * [trace(each.forward) for each in passes]
    found = [_work(module, passes, len(sizes)) for module, passes in zip(parts.modules, traced, strict=True)]
    tensors = (*tensors_of(inputs), *tensors_of(targets))
    taken = tuple(Kernel("index", (float(max(each.numel(), experiment.batch_size)),)) for each in tensors)
    return [replace(work, taken=taken) for work in found]


def _work(module: nn.Module, passes: Sequence[Traced], accumulated: int) -> StepWork:
    """`accumulated`: micro-batches, whose gradients are added to those of the first."""
    added = [Kernel("add_", (float(each.numel()),)) for each in trained(module)] * (accumulated - 1)
    return StepWork(
        forward=tuple(kernel for each in passes for kernel in each.forward),
        backward=(*(kernel for each in passes for kernel in each.backward), *added),
        modules=len(passes) * sum(1 for _ in module.modules()),
        accumulated=accumulated,
    )


def stepped(work: StepWork, tensors: Sequence[Tensor], make_optimizer: MakeOptimizer, fused: bool) -> StepWork:
    """Returns the work with the optimizer's step of parameters like these."""
    parameters = [nn.Parameter(torch.empty_like(each, device="meta")) for each in tensors]
    if not parameters:  # of a worker that owns none
        return work
    optimizer = make_optimizer(parameters)
    if fused and type(optimizer) in (torch.optim.Adam, torch.optim.AdamW):
        kernels = (Kernel("adam", (float(sum(each.numel() for each in parameters)),)),)
        return replace(work, optimizer=kernels, stepped=0)
    for parameter in parameters:
        parameter.grad = torch.empty_like(parameter)
    try:
        optimizer.step()  # makes what it keeps
    except Exception as error:  # a plan tells whether it fails with values, too
        raise NotPredicted(f"{type(optimizer).__name__} looks at values, and a step is traced without them") from error
    return replace(work, optimizer=recorded(optimizer.step), stepped=len(parameters))


def transfers(sent: Sequence[Traffic], workers: int) -> list[Transfer]:
    """`sent`: what leaves a worker each time, by primitive."""
    return [
        Transfer(OPERATIONS[primitive], workers, nbytes)
        for traffic in sent
        for primitive, nbytes in traffic.items()
        if nbytes
    ]


def trained(module: nn.Module) -> list[Tensor]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]
