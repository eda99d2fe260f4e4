"""Layers cut over workers that compute the same samples: Megatron-LM's tensor parallelism.

Shoeybi et al. 2019, "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism" (arXiv
1909.08053), section 3. Of two linear layers with something element-wise between them,

    Y = f(X A),   Z = Y B,       A = [A_1, ..., A_p] by columns,   B = [B_1; ...; B_p] by rows,

worker i holds A_i and B_i and computes Y_i = f(X A_i), since f is element-wise, and

    Z = sum_i Y_i B_i          by an all-reduce in forward,
    dX = sum_i dY_i' A_i^T     by an all-reduce in backward, where anything before it is trained.

(torch.nn.Linear has A transposed: its rows are the outputs.) All other layers are whole on every worker, which compute
the same of the same activations, with the same random numbers. Attention is such a pair, too, where f is by head, or by
group of heads that share a key and a value. A block of a transformer has two pairs: 2 all-reduces in forward, and 2 in
backward. The rest of the algorithm is in tensor_parallel/:

    find.py         which layers are cut, found or planned
    layers.py       A_i and B_i
    vocabulary.py   an embedding and a head by rows, and their cross-entropy
    unpaired.py     plans without one of the two
    sequence.py     slices of the sequence between the pairs (Korthikanti et al. 2022)
    draws.py        dropout of pieces
    cut.py          all of it over a model, or over a part of one

Cost per step and pair, n samples of the batch: the collective's for n times B's outputs, and for n times A's inputs.
With `sequence` a pair of S bytes of A's inputs, and of B's outputs, sends all_gather 3 (p-1)/p S and reduce_scatter
2 (p-1)/p S; a run begins and ends with an all-gather, and sums the gradients of what is whole in it.

Use it where single layers are too large for a device, or a step must take less time than one device needs for it, and
links are fast: it sums in every layer, and nothing hides that.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Annotated, Any

import torch
from annotated_types import Ge
from torch import Tensor, nn
from torch.optim import Optimizer

from ..batches import Samples, call
from ..comm import Comm
from ..conf.errors import ConfigError
from ..cost.layout import ReplicaLayout
from ..exchange.collectives import Collective
from ..exchange.collectives.base import added
from ..exchange.elementwise import check_elementwise
from .core.batch import Batch, BeforeBackward, Pass
from .core.copies import let_go, without_data
from .core.cost import Traffic
from .core.loss import Loss
from .core.mesh import Mesh
from .core.placements import gather
from .core.state import state_with
from .core.strategy import Strategy, StrategyTraits
from .tensor_parallel import unpaired
from .tensor_parallel.cost import sent_in_a_pass
from .tensor_parallel.cut import cut_over
from .tensor_parallel.find import Kind, kinds_of, vocabulary_of
from .tensor_parallel.group import TensorGroup
from .tensor_parallel.sequence import runs_of
from .tensor_parallel.vocabulary import is_cut, loss_over


class TensorParallel(Strategy):
    """A replica is `degree` workers, each with a piece of some layers."""

    traits = StrategyTraits(
        bitwise=False,  # sums of pieces come in another order
        cuts_on_host=True,
        waits_in_passes=True,
    )
    shares = True

    def __init__(
        self,
        degree: Annotated[int, Ge(2)] = 2,
        collective: Collective | None = None,
        vocabulary: bool | None = None,
        sequence: bool = False,
        plan: dict[str, Kind] | None = None,
    ) -> None:
        """`vocabulary`: cut the embedding and the head, too; None does where the loss is the mean cross-entropy, once
        `resolved` has seen it. `plan`: what is cut, by name (tensor_parallel/find.py); None looks for it. `collective`:
        of the sums of pieces; None for the fabric's.
        """
        self.mesh = Mesh({"tensor": degree})
        self.vocabulary, self.sequence, self.plan = vocabulary, sequence, plan
        self.collective = collective

    def check_optimizer(self, optimizer: Optimizer) -> None:
        check_elementwise(optimizer, "strategy=tensor", "strategy=data_parallel")

    def resolved(self, model: nn.Module, inputs: Samples, targets: Samples, loss: Loss) -> dict[str, Any]:
        if self.plan is not None:
            wanted = bool(self.vocabulary)  # the plan says what is cut
        else:
            wanted = is_cut(self.vocabulary, model, loss, ", or say them in strategy.plan")
        with torch.no_grad():
            loss(call(model, inputs), targets)  # of pieces of the outputs nobody could say whether they fit
        return {"vocabulary": wanted} if self.vocabulary is None else {}

    def split(self, model: nn.Module) -> list[nn.Module]:
        return self._cut(model, TensorGroup(self.parts, self.collective))

    def _cut(self, model: nn.Module, group: TensorGroup, only: int | None = None) -> list[nn.Module]:
        kinds = kinds_of(model, self.parts, self.plan, vocabulary_of(model) if self.vocabulary else ())
        if self.plan is not None and not kinds:
            raise ConfigError("strategy.plan={}: says nothing; null finds pairs of layers")
        if not kinds:
            raise ConfigError(
                f"{type(model).__name__} has no two linear layers with only element-wise ones between "
                "them. Choose model=mlp with two layers in model.hidden, say in strategy.plan which layers are cut, "
                "or choose strategy=data_parallel.",
                about=("strategy",),
            )
        if self.sequence and not runs_of(model, kinds):
            raise ConfigError(
                f"strategy.sequence=true: {type(model).__name__} has no norm beside the layers that are cut, among "
                "layers that compute each place of a sequence by itself (`by_place`). Choose model=gpt, or "
                "strategy.sequence=false."
            )
        return cut_over(model, group, kinds, self.sequence, only)

    def prepare(self, model: nn.Module, loss: Loss, comm: Comm, before_backward: BeforeBackward) -> None:
        group = TensorGroup(self.parts, self.collective)
        self._parts = self.split(without_data(model))  # for the shapes of others' pieces
        [self.module] = self._cut(model, group, comm.rank)
        let_go(model, self.module)
        self._comm, self._before_backward = comm, before_backward
        self._loss = loss_over(self.module, loss)
        group.join(self.module, comm)

    def forward_backward(self, batch: Batch) -> Tensor | None:
        if batch.size == 0:
            return None
        loss = self._loss(call(self.module, batch.inputs), batch.targets)
        self._before_backward([loss], True)
        loss.backward()
        return loss.detach() if self._comm.rank == self.loss_part else None

    def full_state(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        return gather(state_with(self.module, parameters), self._parts, self.mesh, self._comm, self.loss_part)

    def profile(
        self, parts: Sequence[nn.Module], inputs: Samples, targets: Samples, loss: Loss, device: torch.device
    ) -> Iterator[list[Pass]]:
        for part in parts:
            of_part = loss_over(part, loss)
            yield [Pass(lambda part=part, of_part=of_part: of_part(self._outputs(part, inputs), targets))]

    def _outputs(self, part: nn.Module, inputs: Samples) -> Tensor:
        with nullcontext() if self.plan is None else unpaired.named(part):
            return call(part, inputs)

    def closed_form(self, accumulate: int) -> ReplicaLayout | None:
        return ReplicaLayout(accumulate, sequence=self.sequence)

    def cost(self, parts: Sequence[nn.Module], inputs: Samples) -> list[Traffic]:
        """All parts send alike."""
        return [added(*each) for each in self.exchanges(parts, inputs)]

    def exchanges(self, parts: Sequence[nn.Module], inputs: Samples) -> list[list[Traffic]]:
        group = TensorGroup(self.parts, self.collective)
        sent = [group.traffic([each], self.setting.hosts) for each in sent_in_a_pass(parts[0], inputs)]
        return [sent for _ in parts]
