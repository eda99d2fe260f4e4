"""torch's own torch.distributed.pipelining: the reference that a user would pick instead of strategy=pipeline.

The model is cut as strategy=pipeline cuts it, by the same rule, and goes through the schedule of the same name: torch's
ScheduleGPipe, Schedule1F1B, ScheduleInterleaved1F1B, and ScheduleInterleavedZeroBubble with one chunk a worker. Stages,
sends and receives are torch's. Each schedule equals gradient accumulation over the same micro-batches bit for bit.

torch takes micro-batches of one size alone: m must divide the batch, and of an odd last batch as many are made as do
(through GPipe if those are fewer than the stages, which torch's 1F1B refuses).
It makes room to receive all micro-batches before the first step, and keeps it.

Cost per step: that of strategy=pipeline, |output| forward and as much back for each micro-batch and cut.
Memory: that of strategy=pipeline, and buffers of m (|input| + |output|) for each stage: |input| but for the first, and
|output|, of its gradient, but for the last. Inputs that are kept for backward count as activations too.

Use it to set strategy=pipeline beside what torch has, on the same cut, schedule and meters.

Source: torch.distributed.pipelining, of torch itself; each schedule's paper is named in
strategies/pipelining/schedules.py.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge
from torch import Tensor, nn
from torch.optim import Optimizer

from ..batches import Samples, lone
from ..comm import Comm
from ..comm.process import ProcessComm
from ..comm.torch_world import torch_world
from ..conf.errors import ConfigError
from ..cost.layout import ReplicaLayout
from .core.batch import Batch, BeforeBackward, MessageTime, Pass, TimeOf
from .core.copies import without_data
from .core.cost import Memory, Traffic, Transfers, World, payload
from .core.loss import Loss
from .core.precision import META
from .core.staged import StagedStrategy
from .core.strategy import NOT_OURS, StrategyTraits
from .core.sync import Sync
from .core.trial import Trial
from .external.torch_schedules import TorchSchedule
from .pipeline import CutKnob, Pipeline
from .pipelining import one_size
from .pipelining.chunks import Chunks


class TorchPipelining(StagedStrategy):
    """A replica is `stages` workers in a row; there is one."""

    traits = StrategyTraits(
        unpredicted=NOT_OURS,
        one_input="cuts a model into layers, of which each is given the one tensor that the layer before it made",
        whole_targets="hands targets to its own library, which takes one tensor of them",
        own_micro_batches="micro_batches",
        cuts_on_host=True,
        needs_processes=True,
        max_replicas=1,
        uncompiled="has torch's stages call their part in steps alone",
    )
    trial = Trial(slow=True)

    def __init__(
        self,
        stages: Annotated[int, Ge(2)] = 2,
        schedule: Literal["gpipe", "1f1b", "interleaved", "zb_h1"] = "gpipe",
        micro_batches: Annotated[int, Ge(1)] = 4,
        cut: CutKnob = "parameters",
        chunks: Annotated[int, Ge(1)] | None = None,
    ) -> None:
        """Takes the arguments of `Pipeline`. Raises `ConfigError`."""
        if schedule in ("gpipe", "1f1b", "zb_h1") and (chunks or 1) > 1:
            raise ConfigError(
                f"strategy.chunks={chunks}: strategy.schedule={schedule} has one on each worker. Choose "
                "strategy.schedule=interleaved, or strategy.chunks=1."
            )
        if schedule == "1f1b" and micro_batches < stages:
            raise ConfigError(
                f"strategy.micro_batches={micro_batches}: torch's 1F1B takes no fewer than strategy.stages={stages}. "
                f"Choose strategy.micro_batches={stages}, or strategy.schedule=gpipe."
            )
        self._ours = Pipeline(stages, schedule, micro_batches, cut, chunks=chunks)
        self.schedule, self.micro_batches = schedule, micro_batches
        self.mesh, self.loss_part = self._ours.mesh, self._ours.loss_part
        self._running: tuple[int, TorchSchedule] | None = None  # for batches of this size
        self._received = 0  # the most bytes that there was room for
        self._room: dict[int, int] = {}  # stated, by the part

    def closed_form(self, accumulate: int) -> ReplicaLayout | None:
        found = self._ours.closed_form(accumulate)
        return None if found is None else replace(found, zero=0)

    def own_sync(self) -> Sync:
        return _TorchPipeliningUpdate()

    def micro_sizes(self, batch_size: int) -> list[int]:
        return one_size.micro_sizes(batch_size, self.micro_batches)

    # -- the cut, and what is stated of it: as strategy=pipeline does

    def check_optimizer(self, optimizer: Optimizer) -> None:
        self._ours.check_optimizer(optimizer)

    def resolved(self, model: nn.Module, inputs: Samples, targets: Samples, loss: Loss) -> dict[str, Any]:
        one_size.check("torch_pipelining", len(inputs), self.micro_batches)
        return self._ours.resolved(model, inputs, targets, loss)

    def split(self, model: nn.Module) -> list[nn.Module]:
        parts = self._ours.split(model)
        if self._ours.shares:
            raise ConfigError(
                "two stages would share a parameter (tied weights), and torch would not sum "
                "its gradients over them. Untie them, or choose a strategy.cut that leaves both in one stage, or "
                "strategy=pipeline, which sums them.",
                about=("strategy",),
            )
        return parts

    def layers(self, part: nn.Module) -> list[list[str]]:
        return self._ours.layers(part)

    def profile(
        self, parts: Sequence[nn.Module], inputs: Samples, targets: Samples, loss: Loss, device: torch.device
    ) -> Iterator[list[Pass]]:
        sizes = self.micro_sizes(len(inputs))
        inputs = lone(inputs)
        if self._ours.recomputing(parts, inputs[: sizes[0]]):
            raise ConfigError(
                "strategy.schedule=zb_h1: torch takes the gradients of each layer's weights by a call of its own; "
                "what the model computes again for backward (model.recompute=true) would be computed for each call,"
                " and kept, which takes more memory than computing nothing again. Choose strategy.schedule=1f1b, or"
                " strategy=pipeline, or model.recompute=false."
            )
        yield from self._ours.profile(parts, inputs, targets, loss, device)
        flowing = self._flowing(parts, inputs[: sizes[0]])
        last = len(flowing) - 2
        for worker, part in enumerate(parts):
            entering = [flowing[stage] for stage in self._ours.stages_of(worker) if stage > 0]
            leaving = [flowing[stage + 1] for stage in self._ours.stages_of(worker) if stage < last]
            self._room[id(part)] = len(sizes) * payload([*entering, *leaving])

    def at_once(self, part: int, kept: Sequence[int], again: Sequence[int], batch_size: int) -> int:
        return self._ours.at_once(part, kept, again, batch_size)

    def simulate(self, parts: Sequence[nn.Module], inputs: Samples, time: TimeOf, message: MessageTime) -> Any:
        return self._ours.simulate(parts, inputs, time, message)

    def cost(self, parts: Sequence[nn.Module], inputs: Samples) -> list[Traffic]:
        return self._ours.cost(parts, inputs)

    def sends_to(self, parts: Sequence[nn.Module]) -> Mapping[str, list[list[int]]]:
        return self._ours.sends_to(parts)

    def memory(self, held: Memory, part: nn.Module) -> Memory:
        return {**held, "buffers": held["buffers"] + self._room[id(part)]}

    def full_state(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        return self._ours.full_state(parameters)

    # -- a step

    def prepare(self, model: nn.Module, loss: Loss, comm: Comm, before_backward: BeforeBackward) -> None:
        assert isinstance(comm, ProcessComm)
        self._looks = [without_data(part) for part in self._ours.split(model)]
        self._ours.prepare(model, loss, comm, before_backward)
        self.module, self._loss, self._comm = self._ours.module, loss, comm
        torch_world(comm)

    def forward_backward(self, batch: Batch) -> Tensor | None:
        if batch.size == 0:
            return None
        if self._running is None or self._running[0] != batch.size:
            self._running = None  # before there is room for others
            self._running = batch.size, self._made(batch)
            self._received = max(self._received, payload(self._running[1].buffers()))
        return self._running[1].run(lone(batch.inputs), lone(batch.targets))

    def _made(self, batch: Batch) -> TorchSchedule:
        sizes = self.micro_sizes(batch.size)
        assert isinstance(self.module, Chunks)
        return TorchSchedule(
            self.schedule,
            self.module,
            {stage: chunk for chunk, stage in enumerate(self._ours.stages_of(self._comm.rank))},
            self._estimated(lone(batch.inputs)[: sizes[0]]),
            len(sizes),
            self._loss,
            self._comm,
            lone(batch.inputs),
            lone(batch.targets),
        )

    def _estimated(self, inputs: Tensor) -> list[Tensor]:
        with self.setting.precision.casting(META), self.setting.precision.estimated(inputs.device):
            return self._flowing(self._looks, inputs.to("meta"))

    def _flowing(self, parts: Sequence[nn.Module], inputs: Tensor) -> list[Tensor]:
        """Returns the input of each stage and the output of the last, for meta inputs: shapes and dtypes only."""
        left = self._ours.activations(parts, inputs, len(self._ours.holders))
        left = [each.detach().contiguous() for each in left]  # as it is sent
        return [inputs, *(each.requires_grad_(each.is_floating_point()) for each in left)]

    def measured(self, held: Memory) -> Memory:
        return {**held, "buffers": held["buffers"] + self._received}


class _TorchPipeliningUpdate(Sync):
    """The gradients are there, on each stage."""

    def update(self) -> None:
        self.clip_gradients()
        self.optimizer.step()

    def transfers(self, parameters: Sequence[Tensor], world: World) -> Transfers:
        return Transfers()
