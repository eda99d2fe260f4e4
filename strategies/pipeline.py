"""Layers split over stages: naive model parallelism, and GPipe.

Huang et al. 2019, "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism" (arXiv 1811.06965).

The model, an `nn.Sequential`, is cut into p contiguous stages. A batch is cut into m micro-batches:

    naive   m = 1: one stage works at a time, utilisation 1/p; equals serial training bit for bit.
    gpipe   all m forward passes, then all m backward passes; equals gradient accumulation over the same
            micro-batches bit for bit; bubble (p-1)/(m+p-1); a stage keeps the activations of m micro-batches,
            or with `recompute` only their inputs.

Deviation from the paper: backward takes the micro-batches in the order of forward, not in reverse, so that sums come
out as in gradient accumulation.

Cost per step: stage i sends its output forward, and the gradient of its input backward:
sum over micro-batches of |output_i| + |input_i| (the first stage has no input gradient, the last sends no output).
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Annotated, Literal

import torch
from annotated_types import Ge
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..comm import Comm, Work
from .balance import balanced
from .base import Batch, BeforeBackward, Loss, Pass, Strategy, Traffic, layers_of, payload
from .errors import LayoutError
from .placements import gather


class Pipeline(Strategy):
    """A replica is `stages` workers in a row."""

    def __init__(
        self,
        stages: Annotated[int, Ge(2)] = 2,
        schedule: Literal["naive", "gpipe"] = "gpipe",
        micro_batches: Annotated[int, Ge(1)] = 4,
        cuts: list[Annotated[int, Ge(1)]] | None = None,
        recompute: bool = False,
    ) -> None:
        """`cuts`: the indices of the layers at which stages 1, 2, ... begin; None balances the parameters.

        `micro_batches`: m of the gpipe schedule; a batch of fewer samples is cut into single samples.
        """
        self.axes, self.loss_part = {"stage": stages}, stages - 1
        self.micro_batches = 1 if schedule == "naive" else micro_batches
        self.cuts, self.recompute = cuts, recompute

    def split(self, model: nn.Module) -> list[nn.Module]:
        if not isinstance(model, nn.Sequential):
            raise LayoutError(
                f"strategy=pipeline cuts a model between the layers of an nn.Sequential, and {type(model).__name__} "
                "is none; strategy=data_parallel takes any module"
            )
        layers = list(layers_of(model).items())
        if len(layers) < self.parts:
            raise LayoutError(
                f"strategy.stages={self.parts}: the model has {len(layers)} layers to cut between; "
                f"choose strategy.stages <= {len(layers)}"
            )
        if self.cuts is not None and not _rises(self.cuts, self.parts, len(layers)):
            raise LayoutError(
                f"strategy.cuts={self.cuts}: needs {self.parts - 1} rising layer indices from 1 to {len(layers) - 1}"
            )
        cuts = self.cuts or balanced([payload(list(layer.parameters())) for _, layer in layers], self.parts)
        bounds = [0, *cuts, len(layers)]
        stages = [_stage(layers[a:b]) for a, b in pairwise(bounds)]
        empty = [i for i, stage in enumerate(stages) if not any(p.requires_grad for p in stage.parameters())]
        if empty:
            raise LayoutError(
                f"stage {empty[0]} of strategy=pipeline has no parameters to train (cuts {cuts}); choose fewer "
                "strategy.stages, or strategy.cuts that leave each stage some"
            )
        if sum(len(list(stage.parameters())) for stage in stages) > len(list(model.parameters())):
            raise LayoutError(
                f"strategy.cuts={cuts}: two stages would share a parameter (tied weights) by a copy each; "
                "untie them, cut elsewhere, or choose strategy=data_parallel"
            )
        return stages

    def prepare(self, model: nn.Module, loss: Loss, comm: Comm, before_backward: BeforeBackward) -> None:
        self._loss, self._comm, self._before_backward = loss, comm, before_backward
        # What the other stages hold, without the memory: for shapes between stages and the names of full_state.
        self._all = [stage if i == comm.rank else _on_meta(stage) for i, stage in enumerate(self.split(model))]
        self.module = self._all[comm.rank]
        self._first, self._last = comm.rank == 0, comm.rank == comm.size - 1
        self._shapes: dict[tuple[int, ...], Tensor] = {}

    def forward_backward(self, batch: Batch) -> Tensor | None:
        if batch.size == 0:
            return None
        sizes = self.micro_sizes(batch.size)
        micro_inputs, micro_targets = batch.inputs.split(sizes), batch.targets.split(sizes)
        inputs: list[Tensor] = []
        outputs: list[Tensor] = []
        sending: list[Work] = []
        total = torch.zeros((), device=batch.inputs.device)

        for x, y in zip(micro_inputs, micro_targets, strict=True):  # all forward
            activation = x if self._first else self._receive_like(x)
            inputs.append(activation)
            output = self._forward(self.module, activation)
            if self._last:
                # the mean over the batch is the mean of the micro-batches' means, weighted by their sizes
                output = self._loss(output, y) * (len(y) / batch.size)
                total += output.detach()
            else:
                with self._comm.timeline.named("activations"):
                    sending.append(self._comm.isend(output.detach().contiguous(), self._comm.rank + 1))
            outputs.append(output)

        for i in range(len(sizes)):  # all backward
            gradient = None
            if not self._last:
                gradient = torch.empty_like(outputs[i], memory_format=torch.contiguous_format)
                self._comm.recv(gradient, self._comm.rank + 1)
            self._before_backward([outputs[i]], i == len(sizes) - 1)
            outputs[i].backward(gradient)
            if not self._first:
                received = inputs[i].grad
                assert received is not None
                with self._comm.timeline.named("gradients"):
                    sending.append(self._comm.isend(received.contiguous(), self._comm.rank - 1))
            outputs[i] = inputs[i] = torch.empty(0)  # frees the activations

        for work in sending:
            work.wait()
        return total if self._last else None

    def _forward(self, stage: nn.Module, inputs: Tensor) -> Tensor:
        if not self.recompute:
            return stage(inputs)
        output = checkpoint(stage, inputs, use_reentrant=False)
        assert isinstance(output, Tensor)
        return output

    def rehearse(
        self, parts: Sequence[nn.Module], inputs: Tensor, targets: Tensor, loss: Loss, device: torch.device
    ) -> Iterator[list[Pass]]:
        """Of several micro-batches of one size two are taken: each after the first adds what the second does."""
        sizes = self.micro_sizes(len(inputs))
        seen = [sizes[:i].count(size) for i, size in enumerate(sizes)]
        counts = [(size, 1 if i == 0 else sizes.count(size) - 1) for i, size in zip(seen, sizes, strict=True) if i < 2]
        flowing = [inputs[:size] for size, _ in counts]
        for i, stage in enumerate(parts):
            outputs: list[Tensor] = []
            end = loss if i == self.loss_part else None
            yield [
                Pass(partial(self._take_pass, stage, x, targets[:size], end, outputs), times)
                for x, (size, times) in zip(flowing, counts, strict=True)
            ]
            flowing = [output.detach().requires_grad_() for output in outputs]

    def _take_pass(
        self, stage: nn.Module, inputs: Tensor, targets: Tensor, loss: Loss | None, outputs: list[Tensor]
    ) -> Tensor:
        """Returns where backward begins; what goes on to the next stage is added to `outputs`."""
        outputs.append(self._forward(stage, inputs))
        return outputs[-1] if loss is None else loss(outputs[-1], targets)

    def micro_sizes(self, batch_size: int) -> list[int]:
        each, more = divmod(batch_size, m := min(self.micro_batches, batch_size))
        return [each + (i < more) for i in range(m)]

    def _receive_like(self, x: Tensor) -> Tensor:
        """The previous stage's output for inputs of the shape of `x`."""
        shape = tuple(x.shape)
        if shape not in self._shapes:
            self._shapes[shape] = activations(self._all[: self._comm.rank], x.to("meta"))[-1]
        activation = torch.empty_like(self._shapes[shape], device=x.device, memory_format=torch.contiguous_format)
        self._comm.recv(activation, self._comm.rank - 1)
        return activation.requires_grad_(activation.is_floating_point())

    def full_state(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        return gather(self.part_state(parameters), self._all, self._comm, self.loss_part)

    def cost(self, parts: Sequence[nn.Module], inputs: Tensor) -> list[Traffic]:
        sent = [0] * len(parts)
        for size, times in Counter(self.micro_sizes(len(inputs))).items():
            for i, activation in enumerate(activations(parts[:-1], inputs[:size])):
                sent[i] += times * payload([activation])  # forward
                sent[i + 1] += times * payload([activation])  # its gradient, backward
        return [{"send": bytes_sent} for bytes_sent in sent]


def activations(stages: Sequence[nn.Module], x: Tensor) -> list[Tensor]:
    """Each stage's output on the meta device for a meta input `x`: shapes and dtypes only."""
    outputs: list[Tensor] = []
    with torch.no_grad():
        for stage in stages:
            x = stage(x)
            outputs.append(x)
    return outputs


def _rises(cuts: Sequence[int], parts: int, layers: int) -> bool:
    return len(cuts) == parts - 1 and all(a < b for a, b in zip([0, *cuts], [*cuts, layers], strict=True))


def _stage(layers: Sequence[tuple[str, nn.Module]]) -> nn.Module:
    stage = nn.Sequential()
    for name, layer in layers:
        stage.add_module(name, layer)  # the names that the whole model gives them
    return stage


def _on_meta(stage: nn.Module) -> nn.Module:
    return stage.to("meta")
