"""Running statistics of batch norms, made anew: what they are of weights that never saw a batch."""

import torch
from torch import nn

from ..batches import call, infers
from .base import Readable

BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm


def batch_norms(model: nn.Module) -> list[BatchNorm]:
    """Returns torch's own whose running statistics follow the batches: frozen ones do not."""
    norms = [each for each in model.modules() if isinstance(each, BatchNorm)]
    return [each for each in norms if each.track_running_stats and not infers(each)]


def other_keepers(model: nn.Module) -> list[str]:
    """Layers that keep running statistics and are no batch norms of torch's, by name."""
    norms = batch_norms(model)
    kept = {name: each for name, each in model.named_modules() if getattr(each, "running_mean", None) is not None}
    kept = {name: each for name, each in kept.items() if not infers(each)}
    return [name for name, each in kept.items() if each not in norms]


@torch.no_grad()
def renew(model: nn.Module, split: Readable, batch_size: int, device: torch.device | str = "cpu") -> None:
    """One pass over `split` in training mode; statistics are the mean over its batches, each counted alike.

    As torch.optim.swa_utils.update_bn, but for the last batch, which is not smaller than others by more than a sample:
    one sample alone has no variance. `model` lies on `device`; its training mode is put back.
    """
    norms = batch_norms(model)
    if not norms:
        return
    training, momenta = model.training, [each.momentum for each in norms]
    model.train()
    for each in norms:
        each.reset_running_stats()
        each.momentum = None  # the mean of all batches
    try:
        number = -(-len(split) // batch_size)
        for i in range(number):
            taken = split.take(slice(i * len(split) // number, (i + 1) * len(split) // number))
            call(model, taken.inputs.to(device))
    finally:
        for each, momentum in zip(norms, momenta, strict=True):
            each.momentum = momentum
        model.train(training)
