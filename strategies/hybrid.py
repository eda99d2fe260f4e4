"""Pipeline stages, each of which is cut over tensor workers; several such replicas agree by a sync mode.

Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM" (arXiv
2104.04473), section 3: pipeline, tensor and data parallelism on one grid. A replica is p x t workers,

    worker = stage * t + tensor,        so that the workers of a stage follow one another, on one host if they fit.

Those of one stage hold a piece each of its pairs of linear layers and of its attention (tensor.py), all else whole, and
compute the same micro-batches: they sum among themselves. Worker i of a stage sends its output to worker i of the next
one, and the gradient comes back (pipeline.py), by any schedule that ends with a flush. p = 1 is tensor parallelism over
micro-batches, t = 1 is a pipeline, both bit for bit.

Deviation from the paper: all t workers of a stage have the whole output, and each sends the whole of it, where section
4.1 sends 1/t of it and gathers the rest on the other side.

Cost per step and worker: that of its pipeline's stage, along `stage`; along `tensor`, for each micro-batch the
collective's for the outputs of its pairs, and for their inputs; with `recompute` once more for what is computed again.
"""

import copy
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge
from torch import Tensor, nn
from torch.optim import Optimizer

from ..comm import Comm
from .base import Batch, BeforeBackward, Loss, MessageTime, Pass, PassTime, Strategy, TimeOf, Traffic, World
from .errors import LayoutError
from .exchange.collectives import Collective, Fabric
from .exchange.collectives.base import added
from .exchange.elementwise import check_elementwise
from .pipeline import Pipeline
from .pipelining.actions import Action
from .pipelining.chunks import Chunks, without_data
from .pipelining.execute import forward
from .pipelining.simulate import Simulation
from .pipelining.split_backward import backward_to_input
from .placements import gather, placements_of
from .tensor_parallel.cut import cut_over
from .tensor_parallel.group import Group, Sent


class Hybrid(Strategy):
    """A replica is `stages` x `tensor` workers."""

    def __init__(
        self,
        stages: Annotated[int, Ge(1)] = 2,
        tensor: Annotated[int, Ge(1)] = 2,
        schedule: Literal["naive", "gpipe", "1f1b", "interleaved", "zb_h1", "zb_v"] | str | list[str] = "gpipe",
        micro_batches: Annotated[int, Ge(1)] = 4,
        cut: Literal["time", "memory", "parameters"] | list[Annotated[int, Ge(1)]] = "parameters",
        recompute: bool = False,
        chunks: Annotated[int, Ge(1)] | None = None,
        collective: Collective | None = None,
    ) -> None:
        """`collective`: of the sums of pieces; None for the fabric's. All else is as in `Pipeline`."""
        self.axes = {"stage": stages, "tensor": tensor}
        self.collective = collective or Fabric()
        self._pipeline = Pipeline(stages, schedule, micro_batches, cut, recompute, chunks)
        if self._pipeline.own_sync() is not None:
            raise LayoutError(
                f"strategy.schedule={schedule}: updates the stages itself, and strategy=hybrid leaves that to a sync "
                "mode; choose strategy.schedule=1f1b, or strategy=pipeline"
            )
        self.loss_part = self.mesh.rank({"stage": self._pipeline.loss_part, "tensor": 0})
        self.shares, self.bitwise = tensor > 1, tensor == 1

    @classmethod
    def read_files(cls, knobs: dict[str, Any], allowed: Sequence[str]) -> dict[str, Any]:
        return Pipeline.read_files(knobs, allowed)

    def check_optimizer(self, optimizer: Optimizer) -> None:
        if self.shares:
            check_elementwise(optimizer, "strategy=hybrid", "strategy=pipeline")

    def settled(self, model: nn.Module, inputs: Tensor, targets: Tensor, loss: Loss) -> dict[str, Any]:
        """By what a layer takes on one of its workers. A pair of layers is not yet one: they may come apart."""
        layers = [self._pieces(layer, Group(self.axes["tensor"]))[0] for layer in self._pipeline.layers_alone(model)]
        return self._pipeline.cut_for(layers, inputs, targets, loss)

    # -- the parts, and how they are put together

    def split(self, model: nn.Module) -> list[nn.Module]:
        parts: list[nn.Module] = []
        stages = self._pipeline.split(model)
        if self._pipeline.shares:
            raise LayoutError(
                "strategy=hybrid: two stages would share a parameter (tied weights); untie them, choose a strategy.cut "
                "that leaves both in one stage, or choose strategy=pipeline or strategy=tensor, which take tied weights"
            )
        for stage in stages:
            parts += self._pieces(stage, self._group())
        if self.shares and not any(map(placements_of, parts)):
            raise LayoutError(
                f"strategy.tensor={self.axes['tensor']}: no stage has two linear layers with only element-wise ones "
                "between them, or attention that says its groups of heads (by_group), so that there is nothing to cut; "
                "choose strategy.tensor=1, fewer strategy.stages, or strategy.cut=[...] that leaves a pair in one stage"
            )
        return parts

    def _group(self) -> Group:
        return Group(self.axes["tensor"], self.collective)

    def _pieces(self, stage: nn.Module, group: Group) -> list[nn.Module]:
        """What each worker of a stage holds of it. Raises `LayoutError`."""
        if group.size == 1:
            return [stage]
        try:
            return cut_over(stage, group)
        except LayoutError as error:
            raise LayoutError(str(error).replace("strategy.degree", "strategy.tensor")) from None

    def prepare(self, model: nn.Module, loss: Loss, comm: Comm, before_backward: BeforeBackward) -> None:
        """The model in stages, a stage in pieces, and a schedule along the stages."""
        mesh, rank, here = self.mesh, comm.rank, self.mesh.position(comm.rank)
        self._comm = comm
        self._parts = self.split(without_data(model))  # what each worker holds, without the memory
        along = {axis: _joined(comm.split(mesh.along(rank, axis)[0], axis)) for axis in self.axes}

        stages = self._pipeline.split(model)
        group = self._group()
        part = self._pieces(stages[here["stage"]], group)[here["tensor"]]
        group.join(part, along["tensor"])
        lane = [part if each == rank else self._parts[each] for each in mesh.along(rank, "stage")]
        self._pipeline.take(lane, loss, along["stage"], before_backward)
        self.module = part

    def forward_backward(self, batch: Batch) -> Tensor | None:
        loss = self._pipeline.forward_backward(batch)
        return loss if self._comm.rank == self.loss_part else None

    def full_state(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        return gather(self.part_state(parameters), self._parts, self.mesh, self._comm, self.loss_part)

    # -- what a plan asks, of each pipeline along the stages

    def _lanes(self, parts: Sequence[nn.Module]) -> list[Sequence[nn.Module]]:
        return [parts[piece :: self.axes["tensor"]] for piece in range(self.axes["tensor"])]

    def layers(self, part: nn.Module) -> list[list[str]]:
        return self._pipeline.layers(part)

    def micro_sizes(self, batch_size: int) -> list[int]:
        return self._pipeline.micro_sizes(batch_size)

    def rehearse(
        self, parts: Sequence[nn.Module], inputs: Tensor, targets: Tensor, loss: Loss, device: torch.device
    ) -> Iterator[list[Pass]]:
        lanes = [self._pipeline.rehearse(lane, inputs, targets, loss, device) for lane in self._lanes(parts)]
        for of_stage in zip(*lanes, strict=True):
            yield from of_stage

    def at_once(self, part: int, kept: Sequence[int], batch_size: int) -> int:
        return self._pipeline.at_once(self.mesh.position(part)["stage"], kept, batch_size)

    def simulate(self, parts: Sequence[nn.Module], inputs: Tensor, time: TimeOf, message: MessageTime) -> Simulation:
        """A pass takes as long as its sums, too."""
        first = self._lanes(parts)[0]

        def with_sums(stage: int, entered: Tensor, chunk: int) -> PassTime:
            rank = self.mesh.rank({"stage": stage, "tensor": 0})
            found = time(rank, entered, chunk)
            part = first[stage]
            assert isinstance(part, Chunks)
            once, back = (self._seconds(sums, rank, message) for sums in summed(part, chunk, entered))
            to_input = found.to_input + back if entered.requires_grad else 0.0
            return PassTime(found.forward + once, found.backward + back, to_input)

        def between(nbytes: int, one: int, other: int) -> float:
            return message(nbytes, *(self.mesh.rank({"stage": stage, "tensor": 0}) for stage in (one, other)))

        return self._pipeline.simulate(first, inputs, with_sums, between)

    def _seconds(self, sums: Sequence[Sent], rank: int, message: MessageTime) -> float:
        """Of sums among the workers of a stage: their phases, as messages over the busiest link."""
        group, hosts = self.mesh.along(rank, "tensor"), self._hosts(rank)
        other = next((i for i, host in enumerate(hosts or ()) if hosts and host != hosts[0]), len(group) - 1)
        world = World(len(group), hosts=hosts)
        phases = [phase for each in sums for phase in self.collective.phases(each.nbytes, world)]
        return sum(
            phase.steps * message(int(phase.nbytes * max(phase.sharing, phase.crossing)), group[0], group[other])
            for phase in phases
        )

    # -- cost

    def cost(self, parts: Sequence[nn.Module], inputs: Tensor) -> list[Traffic]:
        along = self.cost_along(parts, inputs)
        return [added(*(each[i] for each in along.values())) for i in range(self.parts)]

    def cost_along(self, parts: Sequence[nn.Module], inputs: Tensor) -> Mapping[str, list[Traffic]]:
        """All workers of a stage send alike."""
        first = self._lanes(parts)[0]
        sent = self._pipeline.cost(first, inputs)
        sums = [self._sums(first, stage, inputs) for stage in range(self.axes["stage"])]
        at = [self.mesh.position(rank)["stage"] for rank in range(self.parts)]
        return {
            "stage": [sent[stage] for stage in at],
            "tensor": [self._group().traffic(sums[stage], self._hosts(rank)) for rank, stage in enumerate(at)],
        }

    def sends_to(self, parts: Sequence[nn.Module]) -> Mapping[str, list[list[int]]]:
        return self._pipeline.sends_to(self._lanes(parts)[0])

    def _sums(self, lane: Sequence[nn.Module], worker: int, inputs: Tensor) -> list[Sent]:
        """All that the workers of a stage send to one another in a step."""
        pipeline, part = self._pipeline, lane[worker]
        assert isinstance(part, Chunks)
        sizes = pipeline.micro_sizes(len(inputs))
        row = pipeline.of_first(len(sizes))[worker]
        passes = Counter((stage, sizes[j], Action(stage, "I", j) in row) for stage, kind, j in row if kind == "F")
        sums: list[Sent] = []
        for (stage, size, apart), count in passes.items():
            outputs = pipeline.activations(lane, inputs[:size], stage)
            entered = torch.empty_like(outputs[-1]) if outputs else inputs[:size]
            entered.requires_grad_(bool(outputs) and entered.is_floating_point())
            once, back = summed(part, pipeline.stages_of(worker).index(stage), entered, pipeline.recompute, apart)
            sums += count * [*once, *back]
        return sums

    def _hosts(self, rank: int) -> tuple[int, ...] | None:
        """Of the workers of its stage."""
        return None if self.hosts is None else tuple(self.hosts[each] for each in self.mesh.along(rank, "tensor"))


def _joined(comm: Comm | None) -> Comm:
    assert comm is not None, "every worker gave a colour"
    return comm


def summed(
    part: Chunks, chunk: int, entered: Tensor, recompute: bool = False, apart: bool = False
) -> tuple[list[Sent], list[Sent]]:
    """What a micro-batch sends along `tensor` in its forward and in its backward pass, counted on the meta device.

    `apart`: the gradient of the input comes first, and those of the weights later.
    """
    alone = copy.deepcopy(part)
    group = next((each for layer in alone.modules() if isinstance(each := getattr(layer, "group", None), Group)), None)
    if group is None:
        return [], []
    group.join(alone, None)
    output = forward(alone, chunk, entered, recompute)
    once = list(group.sent)
    if apart and entered.requires_grad:
        backward_to_input(output, torch.ones_like(output), entered, alone.weights(chunk), recompute)()
    else:
        output.backward(torch.ones_like(output))
    return once, group.sent[len(once) :]
