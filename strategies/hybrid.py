"""Pipeline stages, each of which is cut over tensor workers; several such replicas agree by a sync mode.

Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM" (arXiv
2104.04473), section 3: pipeline, tensor and data parallelism on one grid. A replica is p x t workers,

    worker = stage * t + tensor,        so that the workers of a stage follow one another, on one host if they fit.

Those of one stage hold a piece each of its pairs of linear layers, of its attention and of the model's vocabulary
(tensor.py), all else whole, and compute the same micro-batches: they sum among themselves. Worker i of a stage sends
its output to worker i of the next one, and the gradient comes back (pipeline.py), by any schedule. A weight that two
stages share is cut alike in both, and worker i of the one and of the other sum the gradients of their piece
(pipelining/ties.py). p = 1 is tensor parallelism over micro-batches, t = 1 is a pipeline, both bit for bit.

Deviation from the paper: all t workers of a stage have the whole output, and each sends the whole of it, where section
4.1 sends 1/t of it and gathers the rest on the other side.

Cost per step and worker: that of its pipeline's stage, along `stage`, with its tied weights; along `tensor`, for each
micro-batch what strategy=tensor sends for the layers of the stage; with `recompute` once more for what is computed
again.

Use it where a model needs more devices than one host has: tensor workers within a host, stages between hosts,
replicas with what is left.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain
from typing import Annotated, Any

import torch
from annotated_types import Ge
from torch import Tensor, nn
from torch.optim import Optimizer

from ..batches import Samples, lone
from ..comm import Comm
from ..conf.errors import ConfigError
from ..cost.layout import ReplicaLayout
from ..exchange.collectives import Collective, Fabric
from ..exchange.collectives.base import added
from ..exchange.elementwise import check_elementwise
from .core.batch import Batch, BeforeBackward, MessageTime, Pass, TimeOf
from .core.copies import let_go, without_data
from .core.cost import Memory, Traffic
from .core.loss import Loss
from .core.mesh import Mesh
from .core.placements import gather
from .core.setting import Setting
from .core.staged import StagedStrategy
from .core.state import state_with
from .core.strategy import StrategyTraits
from .core.sync import Sync
from .hybrid_stages import StageSums, kinds_of_stages
from .pipeline import CutKnob, Pipeline, ScheduleKnob
from .pipelining.chunks import check_traced
from .pipelining.simulate import Simulation
from .pipelining.ties import traffic
from .tensor_parallel.cut import cut_over
from .tensor_parallel.find import Kind
from .tensor_parallel.group import Sent, TensorGroup
from .tensor_parallel.sequence import runs_of
from .tensor_parallel.vocabulary import is_cut, loss_over


class Hybrid(StagedStrategy):
    """A replica is `stages` x `tensor` workers."""

    traits = StrategyTraits(
        one_input="cuts a model into layers, of which each is given the one tensor that the layer before it made",
        own_micro_batches="micro_batches",
        cuts_on_host=True,
        waits_in_passes=True,
    )

    def __init__(
        self,
        stages: Annotated[int, Ge(1)] = 2,
        tensor: Annotated[int, Ge(1)] = 2,
        schedule: ScheduleKnob = "gpipe",
        micro_batches: Annotated[int, Ge(1)] = 4,
        cut: CutKnob = "parameters",
        recompute: bool = False,
        chunks: Annotated[int, Ge(1)] | None = None,
        vertical_sync: bool = False,
        vocabulary: bool | None = None,
        sequence: bool = False,
        collective: Collective | None = None,
    ) -> None:
        """`vocabulary`, `sequence` and `collective` are as in `TensorParallel`, and all else as in `Pipeline`.

        Raises `ConfigError`.
        """
        self.mesh = Mesh({"stage": stages, "tensor": tensor})
        self.vocabulary, self.sequence, self.collective = vocabulary, sequence, collective or Fabric()
        for name, wanted in {"vocabulary": vocabulary, "sequence": sequence}.items():
            if wanted and tensor == 1:
                raise ConfigError(
                    f"strategy.{name}=true: cuts among the tensor workers of a stage, and strategy.tensor=1 is one. "
                    f"Choose strategy.tensor=2, or strategy.{name}=false."
                )
        self._pipeline = Pipeline(stages, schedule, micro_batches, cut, recompute, chunks, vertical_sync)
        self.loss_part = self.mesh.rank({"stage": self._pipeline.loss_part, "tensor": 0})
        self.shares = tensor > 1
        self.traits = replace(self.traits, bitwise=tensor == 1 and self._pipeline.traits.bitwise)
        self.traits = replace(
            self.traits, fills=self._pipeline.traits.fills, owns_update=self._pipeline.traits.owns_update
        )
        self.traits = replace(self.traits, uncompiled=self._pipeline.traits.uncompiled)

    @classmethod
    def read_files(cls, knobs: dict[str, Any], allowed: Sequence[str]) -> dict[str, Any]:
        return Pipeline.read_files(knobs, allowed)

    def closed_form(self, accumulate: int) -> ReplicaLayout | None:
        found = self._pipeline.closed_form(accumulate)
        return None if found is None else replace(found, sequence=self.sequence)

    def own_sync(self) -> Sync | None:
        return self._pipeline.own_sync()

    def check_optimizer(self, optimizer: Optimizer) -> None:
        if self.mesh.axes["tensor"] > 1:
            check_elementwise(optimizer, "strategy=hybrid", "strategy=pipeline")
        self._pipeline.check_optimizer(optimizer)

    def resolved(self, model: nn.Module, inputs: Samples, targets: Samples, loss: Loss) -> dict[str, Any]:
        """Resolves the stages by the cost of each layer on one of its workers.

        A column and a row layer are still two layers here: a stage boundary may separate them.
        """
        layers = self._pipeline.layers_alone(model)
        check_traced(model, layers, lone(inputs))
        vocabulary = self.mesh.axes["tensor"] > 1 and is_cut(self.vocabulary, model, loss)
        if vocabulary:
            with torch.no_grad():
                loss(model(lone(inputs)), targets)  # of pieces of the outputs nobody could say whether they fit
        kinds = self._kinds(model, layers, vocabulary)
        one = [self._pieces(layer, own, self._group(), 0)[0] for layer, own in zip(layers, kinds, strict=True)]
        chosen = {"vocabulary": vocabulary} if self.vocabulary is None else {}
        return {**chosen, **self._pipeline.cut_for(one, lone(inputs), targets, loss_over(one[-1], loss))}

    # -- the parts, and how they are put together

    def split(self, model: nn.Module) -> list[nn.Module]:
        stages = self._pipeline.split(model)
        self.shares = self.mesh.axes["tensor"] > 1 or self._pipeline.shares
        kinds = self._kinds(model, stages, bool(self.vocabulary))
        if self.mesh.axes["tensor"] > 1 and not any(kinds):
            raise ConfigError(
                f"strategy.tensor={self.mesh.axes['tensor']}: no stage has two linear layers with only element-wise "
                "ones between them, or attention that says its groups of heads (by_group), so that there is nothing to "
                "cut. Choose strategy.tensor=1, fewer strategy.stages, or strategy.cut=[...] with a pair in one stage."
            )
        if self.sequence and not any(map(runs_of, stages, kinds)):
            raise ConfigError(
                f"strategy.sequence=true: no stage of {type(model).__name__} has a norm beside layers that are cut, "
                "among layers that compute each place of a sequence by itself (`by_place`). Choose model=gpt, or "
                "strategy.sequence=false."
            )
        return [
            part for stage, own in zip(stages, kinds, strict=True) for part in self._pieces(stage, own, self._group())
        ]

    def _group(self) -> TensorGroup:
        return TensorGroup(self.mesh.axes["tensor"], self.collective, "strategy.tensor")

    def _kinds(self, model: nn.Module, stages: Sequence[nn.Module], vocabulary: bool) -> list[dict[str, Kind]]:
        """Returns the layers of each stage that are partitioned, by name. Raises `ConfigError`."""
        if self.mesh.axes["tensor"] == 1:
            return [{} for _ in stages]
        return kinds_of_stages(model, stages, self.mesh.axes["tensor"], vocabulary)

    def _pieces(
        self, stage: nn.Module, kinds: Mapping[str, Kind], group: TensorGroup, only: int | None = None
    ) -> list[nn.Module]:
        """Returns the piece of `stage` that each of its workers holds, or that worker `only` of them holds."""
        return [stage] if group.size == 1 else cut_over(stage, group, kinds, self.sequence, only)

    def prepare(self, model: nn.Module, loss: Loss, comm: Comm, before_backward: BeforeBackward) -> None:
        """The model in stages, a stage in pieces, and a schedule along the stages."""
        mesh, rank, here = self.mesh, comm.rank, self.mesh.position(comm.rank)
        self._comm = comm
        self._parts = self.split(without_data(model))  # what each worker holds, without the memory
        along = {axis: _joined(comm.split(mesh.along(rank, axis)[0], axis)) for axis in self.mesh.axes}

        stages, group = self._pipeline.split(model), self._group()
        kinds = self._kinds(model, stages, bool(self.vocabulary))[here["stage"]]
        [part] = self._pieces(stages[here["stage"]], kinds, group, here["tensor"])
        let_go(model, part)
        group.join(part, along["tensor"])
        lane = [part if each == rank else self._parts[each] for each in mesh.along(rank, "stage")]
        self._pipeline.take(lane, loss_over(part, loss), along["stage"], before_backward)
        self.module = part

    def configure(self, setting: Setting) -> None:
        super().configure(setting)
        self._pipeline.configure(setting)

    def forward_backward(self, batch: Batch) -> Tensor | None:
        loss = self._pipeline.forward_backward(batch)
        return loss if self._comm.rank == self.loss_part else None

    def passes(self, inputs: Samples) -> Iterator[Tensor]:
        return self._pipeline.passes(inputs)

    def drain(self) -> None:
        self._pipeline.drain()

    def full_state(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        return gather(state_with(self.module, parameters), self._parts, self.mesh, self._comm, self.loss_part)

    # -- what a plan asks, of each pipeline along the stages

    def _lanes(self, parts: Sequence[nn.Module]) -> list[Sequence[nn.Module]]:
        return [parts[piece :: self.mesh.axes["tensor"]] for piece in range(self.mesh.axes["tensor"])]

    def layers(self, part: nn.Module) -> list[list[str]]:
        return self._pipeline.layers(part)

    def micro_sizes(self, batch_size: int) -> list[int]:
        return self._pipeline.micro_sizes(batch_size)

    def profile(
        self, parts: Sequence[nn.Module], inputs: Samples, targets: Samples, loss: Loss, device: torch.device
    ) -> Iterator[list[Pass]]:
        last, lanes = self._pipeline.loss_part, self._lanes(parts)
        looks = [[_shapes(part) for part in lane] for lane in lanes]
        firsts = [looks.index(look) for look in looks]  # the first lane whose pieces are of the same sizes
        passes = {
            i: self._pipeline.profile(lanes[i], inputs, targets, loss_over(lanes[i][last], loss), device)
            for i in dict.fromkeys(firsts)
        }
        for of_stage in zip(*passes.values(), strict=True):
            found = dict(zip(passes, of_stage, strict=True))
            yield from (found[first] for first in firsts)

    def at_once(self, part: int, kept: Sequence[int], again: Sequence[int], batch_size: int) -> int:
        return self._pipeline.at_once(self.mesh.position(part)["stage"], kept, again, batch_size)

    def memory(self, held: Memory, part: nn.Module) -> Memory:
        return self._pipeline.memory(held, part)

    def measured(self, held: Memory) -> Memory:
        return self._pipeline.measured(held)

    def simulate(self, parts: Sequence[nn.Module], inputs: Samples, time: TimeOf, message: MessageTime) -> Simulation:
        """A pass takes as long as its sums, too."""
        first, mesh = self._lanes(parts)[0], self.mesh
        ranks = [mesh.rank({"stage": stage, "tensor": 0}) for stage in range(self.mesh.axes["stage"])]
        timed = StageSums(self._pipeline, first).timed(
            lambda worker, entered, chunk: time(ranks[worker], entered, chunk),
            lambda worker, sums: self._seconds(sums, ranks[worker], message),
        )

        def between(nbytes: int, one: int, other: int) -> float:
            return message(nbytes, ranks[one], ranks[other])

        return self._pipeline.simulate(first, inputs, timed, between)

    def _seconds(self, sums: Sequence[Sent], rank: int, message: MessageTime) -> float:
        """Returns the seconds of `sums` within a stage: their phases, as messages over the busiest link."""
        group, hosts = self.mesh.along(rank, "tensor"), self._hosts(rank)
        return sum(
            phase.steps
            * max(message(int(phase.nbytes * max(phase.sharing, phase.crossing)), group[0], to) for to in group[1:])
            for phase in self._group().phases(sums, hosts)
        )

    # -- cost

    def cost(self, parts: Sequence[nn.Module], inputs: Samples) -> list[Traffic]:
        along = self.cost_along(parts, inputs)
        return [added(*(each[i] for each in along.values())) for i in range(self.parts)]

    def cost_along(self, parts: Sequence[nn.Module], inputs: Samples) -> Mapping[str, list[Traffic]]:
        """All workers of a stage send alike, but for the pieces of a weight that it shares: these may be uneven."""
        lanes = self._lanes(parts)
        sent = self._pipeline.messages(lanes[0], inputs)
        shared = [traffic(lane) for lane in lanes]
        of_stages = StageSums(self._pipeline, lanes[0])
        sums = [of_stages.of_step(stage, lone(inputs)) for stage in range(self.mesh.axes["stage"])]
        at = [self.mesh.position(rank) for rank in range(self.parts)]
        within = cache(lambda stage, hosts: self._group().traffic(sums[stage], hosts))
        return {
            "stage": [added(sent[here["stage"]], shared[here["tensor"]][here["stage"]]) for here in at],
            "tensor": [within(here["stage"], self._hosts(rank)) for rank, here in enumerate(at)],
        }

    def sends_to(self, parts: Sequence[nn.Module]) -> Mapping[str, list[list[int]]]:
        return self._pipeline.sends_to(self._lanes(parts)[0])

    def _hosts(self, rank: int) -> tuple[int, ...] | None:
        """Returns the hosts of the workers of the stage of `rank`; None if hosts are not known."""
        hosts = self.setting.hosts
        return None if hosts is None else tuple(hosts[each] for each in self.mesh.along(rank, "tensor"))


def _shapes(part: nn.Module) -> list[tuple[str, torch.Size, bool]]:
    tensors = chain(part.named_parameters(), part.named_buffers())
    return [(name, tensor.shape, tensor.requires_grad) for name, tensor in tensors]


def _joined(comm: Comm | None) -> Comm:
    assert comm is not None, "every worker gave a colour"
    return comm
