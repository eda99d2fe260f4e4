"""What a replica of strategy=torch_ddp exchanges in a step, and what it computes for that, as torch's
DistributedDataParallel does it on gloo (Li et al. 2020, VLDB, section 4; torch/csrc/distributed/c10d/reducer.cpp).

    gradients   each bucket: copies into it, a division, one sum by gloo, copies out of it
    buffers     those that are not parameters (BatchNorm's) are broadcast before the forward pass
    weights     with `zero_optimizer`, each tensor is broadcast by the replica that owns it and alone steps on it

torch's own code for a parameter, between its operators, was not measured and counts nothing.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from ...comm.ledger import all_reduce_bytes
from ...cost.kernels import Kernel
from ...cost.worker import Exchange
from ...exchange.buckets import grouped
from ...strategies.core.cost import payload
from ...strategies.core.strategy import Strategy
from ...strategies.external.zero_redundancy import shares_of
from ...strategies.torch_ddp import TorchDDP
from .exchanges_of_sync import Between
from .step_work import trained


def owned(strategy: Strategy, parameters: Sequence[Tensor], replicas: int) -> Sequence[Tensor]:
    """What the optimizer of the replica that has most to do steps on."""
    if isinstance(strategy, TorchDDP) and strategy.zero_optimizer:
        return max(shares_of(parameters, replicas), key=payload)
    return parameters


def of_ddp(strategy: TorchDDP, module: nn.Module, replicas: int) -> Between:
    if replicas == 1:
        return Between()
    parameters = trained(module)
    capacity = int(strategy.bucket_mb * 2**20)  # of the first one, too: torch makes it smaller by default alone
    exchanges: list[Exchange] = []
    moved = [_pass("copy_", each.numel()) for each in parameters for _ in ("into its bucket", "out of it")]
    for members in grouped(parameters, capacity, capacity):
        nbytes = payload([parameters[i] for i in members])
        exchanges.append(Exchange("gloo", replicas, float(all_reduce_bytes(nbytes, replicas))))
        moved.append(_pass("mul_", sum(parameters[i].numel() for i in members)))
    if buffers := list(module.buffers()):
        exchanges.append(Exchange("broadcast", replicas, payload(buffers)))
    if strategy.zero_optimizer:
        exchanges += [Exchange("broadcast", replicas, payload([each])) for each in parameters]
    return Between(tuple(exchanges), tuple(moved))


def _pass(operator: str, entries: int) -> Kernel:
    return Kernel(operator, (float(max(entries, 1)),))
