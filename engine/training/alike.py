"""Holds a run to equal weights on replicas, where its sync mode declares them (`SyncTraits.weights_agree`).

The code of a model may change weights on each replica in another way: an optimizer of its own in forward, values that
are set from the first batch, `nn.Embedding(max_norm=...)`. So workers exchange a digest of their weights after steps
1, 2, 4, 8, ..., before a checkpoint and at the end. They also compare the weights before an update, since an update
with servers or with shards may write over a difference. Buffers may differ: batch norm keeps means of its own batches.

A constructor may draw numbers that do not follow from the run's seed. Then all workers take the model of worker 0.
"""

import hashlib

import torch
from torch import Tensor, nn

from ...comm import Comm
from ...exchange.aggregate import Aggregator
from ...exchange.alike import digest, digest_of, first_apart, give_all, is_compared
from ...strategies import Sync
from ...strategies.core.protocols import SideBySide
from ...strategies.core.staged import StagedStrategy
from ...strategies.core.terms import ADDED_UP
from ..base.errors import ReplicasDifferError
from ..features.feature import Hooks, Parts

BEFORE = "\0before"
UNSEEDED = (
    "model={}: its constructor draws numbers that do not follow from the seed. All workers begin with those of worker "
    "0, and another run with this seed begins with others."
)
FIRST = 4096  # entries of a tensor that tell drawn values apart


def begin_alike(parts: Parts, model: nn.Module, comm: Comm, device: torch.device) -> bool:
    """Gives all workers and servers worker 0's parameters and buffers, if any has others. Returns whether one had.

    Raises `ReplicasDifferError` for another model.

    Args:
        model: The whole model, just built.
    """
    if comm.size == 1 or (parts.experiment.weights is not None and isinstance(parts.sync, SideBySide)):
        return False
    state = [*model.named_parameters(), *model.named_buffers()]
    kinds = [f"{name} {list(each.shape)} {each.dtype} {each.requires_grad}" for name, each in state]
    values = [str(digest_of(each.detach().reshape(-1)[:FIRST])) for _, each in state]
    digests = {what: digest(hashlib.blake2b(), each) for what, each in (("kinds", kinds), ("values", values))}
    found = first_apart(digests, comm, device)
    if found is not None and found[0] == "kinds":
        raise ReplicasDifferError(
            f"model={parts.experiment.model.name}: worker {found[1]} builds another model than worker 0: other "
            "parameters, buffers, shapes or dtypes. Have its constructor build the same on all workers."
        )
    if found is not None:
        give_all([each for _, each in state], comm, device)
    return found is not None


class EqualReplicas(Hooks):
    """Compares the replicas' weights."""

    def __init__(
        self, parts: Parts, sync: Sync, module: nn.Module, workers: Comm, device: torch.device, chosen: str
    ) -> None:
        """Takes the sync mode once it is prepared. `chosen`: the strategy and the mode, as they are typed."""
        self._sync, self._module, self._workers, self._device, self._chosen = sync, module, workers, device, chosen
        self._parts, strategy = parts.layout.parts, parts.strategy
        traits = sync.traits
        equal = traits.synchronous and traits.weights_agree and traits.copies and not traits.survives
        rule = parts.of_groups["aggregate"]
        # a robust rule expects that workers lie, and no liar may end the run
        trusted = isinstance(rule, Aggregator) and ADDED_UP not in rule.lacks
        self._compares = equal and trusted and parts.layout.replicas > 1
        # a pipeline without a flush is not stopped to compare
        self._flows = isinstance(strategy, StagedStrategy) and strategy.own_sync() is not None
        self._passes = 0
        self._seen: dict[str, int] = {}

    def after_backward(self, step: int) -> None:
        self._passes += 1
        if self._compares and not self._flows and is_compared(self._passes):
            held = dict(self._module.named_parameters())
            self._seen = {name + BEFORE: digest_of(each) for name, each in held.items()}

    def acts_before(self, step: int) -> bool:
        return bool(self._seen)

    def before_step(self, step: int) -> None:
        self._check(step)

    def before_saving(self, done: int) -> None:
        self._check(done)

    def finish(self, done: int) -> None:
        self._check(done)

    def _check(self, done: int) -> None:
        """Compares after `done` steps. All workers call, with nothing under way. Raises `ReplicasDifferError`."""
        if not self._compares:
            return
        held: dict[str, Tensor] = dict(self._module.named_parameters()) | self._sync.consensus()
        digests = self._seen | {name: digest_of(each) for name, each in held.items()}
        self._seen = {}
        found = first_apart(digests, self._workers, self._device, self._parts)
        if found is not None:
            name, other = found
            raise ReplicasDifferError(
                f"model: parameter {name.removesuffix(BEFORE)} of worker {other} differs from worker "
                f"{other % self._parts}'s in step {done}, and {self._chosen} has equal replicas "
                "(SyncTraits.weights_agree). Forward may have changed it, by an optimizer of its own, by values set "
                "from a batch or by Embedding(max_norm=...), or hosts of several kinds round it differently. Change it "
                "alike on all workers, make it a buffer, take hosts with the same processors and torch, or choose "
                "sync=local_sgd or hardware.workers=1."
            )
