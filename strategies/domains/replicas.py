"""Statistics of the batches of all replicas: synchronised batch norm (norms.py says the mathematics).

Every replica takes part in every pass, one without samples too: else the others would wait for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ...batches import Samples, call, infers
from ...comm import Comm
from ...compat.modules import is_plain
from ...conf.errors import ConfigError
from ...exchange.collectives import Collective
from ..core.cost import World
from .group import SlabGroup

BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d
ALL = "strategy.batch_norm=all"


@dataclass
class Across:
    """The workers that hold one part, one of each replica. A copy is alone, as that of a `SlabGroup` is."""

    group: SlabGroup
    counts: bool = True  # whether this replica has samples in this step

    @staticmethod
    def of(collective: Collective) -> "Across":
        return Across(SlabGroup(0, 1, collective))

    @property
    def has_others(self) -> bool:
        return self.group.degree > 1

    def join(self, comm: Comm) -> None:
        self.group.comm, self.group.place, self.group.degree = comm, comm.rank, comm.size

    def estimate(self, world: World) -> None:
        """Prepares to count the bytes that it would send among the replicas of `world`."""
        self.group.degree, self.group.hosts = world.replicas, world.hosts
        self.group.traffic()

    def gather(self, mean: Tensor, var: Tensor, samples: int) -> tuple[Tensor, Tensor, Tensor]:
        """Combines mean and variance, [1, c] each, of this replica's `samples` with those of all replicas.

        Returns the mean and the variance of all samples, [1, c] each, and the number of samples, [].
        """
        row = torch.cat([mean.flatten(), var.flatten(), mean.new_tensor([samples])])
        if not self.counts:
            row.zero_()
        channels = mean.numel()
        rows = self.group.gather(row, "statistics of replicas")  # [replicas, 2 c + 1]
        means, variances, counts = rows.split([channels, channels, 1], dim=1)
        shares = counts / counts.sum()  # n_j / n
        whole = (shares * means).sum(0, keepdim=True)
        squares = (shares * (variances + (means - whole).square())).sum(0, keepdim=True)
        return whole, squares, counts.sum()

    def sum(self, gradients: Tensor, samples: int, total: Tensor) -> Tensor:
        """sum_j (n_j / n) gradients_j, where this replica has `samples` of `total`."""
        weighted = gradients * (samples / total) if self.counts else torch.zeros_like(gradients)
        return self.group.sum(weighted, "gradients of replicas")

    def stand_in(self, module: nn.Module, inputs: Samples) -> None:
        """Take part in a pass without samples: of one that is made up, and counts for nothing.

        `inputs`: of that one. No gradient is left, and nobody who waits for gradients is told.
        """
        self.counts = False
        try:
            trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
            torch.autograd.grad(call(module, inputs).sum(), trained, allow_unused=True)
        finally:
            self.counts = True


def check_process_group(parts: Sequence[nn.Module]) -> None:
    """Refuses torch's SyncBatchNorm, which exchanges nothing without torch's process group. Raises `ConfigError`."""
    for name, layer in (each for part in parts for each in part.named_modules()):
        if isinstance(layer, nn.SyncBatchNorm):
            raise ConfigError(
                f"model: {name or 'it'} is torch's SyncBatchNorm, and would see one replica's batch alone. Choose "
                f"nn.BatchNorm1d, 2d or 3d; paceline train joins their batches by {ALL}."
            )


def across_of(part: nn.Module) -> Across | None:
    its = (vars(layer).get("across") for layer in part.modules())
    return next((across for across in its if isinstance(across, Across)), None)


def batch_norms(model: nn.Module) -> dict[str, BatchNorm]:
    """Returns the batch norms of `model` by name. Raises `ConfigError` if there is none, or frozen ones alone."""
    kinds = nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d
    layers = model.named_modules()
    found = {
        name: each
        for name, each in layers
        if isinstance(each, BatchNorm) and is_plain(each, kinds) and not infers(each)
    }
    if not found:
        raise ConfigError(
            f"{ALL}: {type(model).__name__} has no batch norm, or frozen ones alone: there is nothing to join. "
            "Choose strategy.batch_norm=replica."
        )
    return found


def check_norms(parts: Sequence[nn.Module], inputs: Sequence[Samples]) -> None:
    """Raises `ConfigError` if anything but a batch norm layer normalises over a batch: that of one replica.

    `inputs`: of each part, on the meta device.
    """
    for part, x in zip(parts, inputs, strict=True):
        with _NoOther(), torch.no_grad():
            call(part, x)


class _NoOther(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        norms = (F.batch_norm, torch.batch_norm, torch.native_batch_norm)
        if func in norms and (kwargs or {}).get("training", args[5] if len(args) > 5 else False):
            raise ConfigError(
                f"{ALL}: something other than a layer nn.BatchNorm1d, 2d or 3d calls {func.__name__}, which would "
                "normalise over one replica's batch. Make it such a layer, or choose strategy.batch_norm=replica."
            )
        return func(*args, **(kwargs or {}))
