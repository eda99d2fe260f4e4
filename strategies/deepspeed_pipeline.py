"""DeepSpeed's own pipeline engine: the reference that a DeepSpeed user would pick instead of strategy=pipeline.

Rasley et al. 2020, "DeepSpeed: System Optimizations Enable Training Deep Learning Models with Over 100 Billion
Parameters" (KDD); its PipelineModule and PipelineEngine, whose TrainSchedule is 1F1B.

The model is cut as strategy=pipeline cuts it, by the same rule; a stage is one layer of the PipelineModule. Passes,
messages, sums over replicas and the update are DeepSpeed's, in fp32. One replica equals gradient accumulation over the
same micro-batches bit for bit. Weights that stages share (tied weights) are a TiedLayerSpec's, where the same stages
share all of them.

What is ours is the weight of an uneven batch (its engine takes the mean over replicas and micro-batches:
loss * n_i K / n), and shapes are given beforehand, so that none are sent. DeepSpeed takes micro-batches of one size: m
must divide the batch, and of an odd last batch as many are made as do.

Cost per step: that of strategy=pipeline within a replica, and broadcast 8 bytes of the loss from the last stage to the
others; over K replicas, S bytes of a stage's gradients, all_reduce 2 (K-1)/K S, on the last stage 2 (K-1)/K (S + 4).
Memory: that of schedule=1f1b, and what DeepSpeed keeps between instructions (external/deepspeed_stages.py), among it a
copy of all gradients, which are joined even where there is one replica.

Use it to set strategy=pipeline strategy.schedule=1f1b beside what DeepSpeed has, on the same cut and meters.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge
from torch import Tensor, nn
from torch.optim import Optimizer

from ..batches import Samples, lone
from ..comm import Comm
from ..comm.ledger import broadcast_bytes
from ..comm.process import ProcessComm
from ..comm.torch_world import torch_world
from ..conf.errors import ConfigError
from ..conf.notes import Note
from ..exchange.collectives import Fabric
from ..exchange.collectives.base import added
from .core.batch import Batch, BeforeBackward, MessageTime, Pass, TimeOf
from .core.copies import without_data
from .core.cost import Memory, Traffic, Transfers, World, payload
from .core.loss import Loss
from .core.protocols import Say
from .core.staged import StagedStrategy
from .core.strategy import NOT_OURS, StrategyTraits
from .core.sync import Sync, SyncTraits
from .core.trial import Trial
from .external.deepspeed_stages import Stages, most_held
from .external.deepspeed_start import absence, check_there, in_one_dtype
from .pipeline import CutKnob, Pipeline
from .pipelining import one_size
from .pipelining.ties import tied

LOSSES, LOSS = 8, 4  # bytes: its own mean and that over replicas, in fp32


class DeepSpeedPipeline(StagedStrategy):
    """A replica is `stages` workers in a row; DeepSpeed owns the passes and the update."""

    traits = StrategyTraits(
        software="DeepSpeed",
        unpredicted=NOT_OURS,
        one_input="cuts a model into layers, of which each is given the one tensor that the layer before it made",
        whole_targets="hands targets to its own library, which takes one tensor of them",
        own_micro_batches="micro_batches",
        cuts_on_host=True,
        needs_processes=True,
        one_precision="sets DeepSpeed's pipeline engine up for float32",
        uncompiled="has DeepSpeed's pipeline engine call layers one by one",
    )
    trial = Trial(rounding=1e-6, slow=True)  # it trains in float32 whatever the weights are

    def __init__(
        self,
        stages: Annotated[int, Ge(2)] = 2,
        schedule: Literal["1f1b"] = "1f1b",
        micro_batches: Annotated[int, Ge(1)] = 4,
        cut: CutKnob = "parameters",
    ) -> None:
        """Takes the arguments of `Pipeline`; DeepSpeed has one `schedule` only. Raises `ConfigError`."""
        self._ours = Pipeline(stages, schedule, micro_batches, cut)
        self.micro_batches = micro_batches
        self.mesh, self.loss_part = self._ours.mesh, self._ours.loss_part
        self._room: dict[int, int] = {}  # stated, by the part

    def own_sync(self) -> Sync:
        return _DeepSpeedPipelineUpdate(self)

    def make_ready(self, say: Say) -> None:
        check_there("deepspeed_pipeline")

    def micro_sizes(self, batch_size: int) -> list[int]:
        return one_size.micro_sizes(batch_size, self.micro_batches)

    # -- the cut, and what is stated of it: as strategy=pipeline does

    def check_optimizer(self, optimizer: Optimizer) -> None:
        self._ours.check_optimizer(optimizer)

    def resolved(self, model: nn.Module, inputs: Samples, targets: Samples, loss: Loss) -> dict[str, Any]:
        one_size.check("deepspeed_pipeline", len(inputs), self.micro_batches)
        return self._ours.resolved(model, inputs, targets, loss)

    def split(self, model: nn.Module) -> list[nn.Module]:
        for name, parameter in model.named_parameters():
            if not parameter.is_contiguous():
                raise ConfigError(
                    f"parameter {name} is not contiguous in memory, such as a transposed tensor or one in "
                    "channels_last, and DeepSpeed takes contiguous ones alone. Choose strategy=pipeline, or "
                    "contiguous().",
                    about=("strategy",),
                )
        parts = self._ours.split(in_one_dtype(model, "strategy=deepspeed_pipeline", torch.float32))
        if len({tuple(holders) for holders in tied(parts).values()}) > 1:
            raise ConfigError(
                "some stages share one weight and others another (tied weights), and a "
                "stage is of one TiedLayerSpec. Untie them, or choose another strategy.cut or strategy=pipeline.",
                about=("strategy",),
            )
        self._last = [each for each in parts[-1].parameters() if each.requires_grad]
        return parts

    def layers(self, part: nn.Module) -> list[list[str]]:
        return self._ours.layers(part)

    def profile(
        self, parts: Sequence[nn.Module], inputs: Samples, targets: Samples, loss: Loss, device: torch.device
    ) -> Iterator[list[Pass]]:
        """Yields the passes of strategy=pipeline, except that the first stage gets copies of its micro-batches."""
        sizes = self.micro_sizes(len(inputs))
        flowing = self._flowing(parts, lone(inputs)[: sizes[0]])
        for stage, (part, passes) in enumerate(
            zip(parts, self._ours.profile(parts, inputs, targets, loss, device), strict=True)
        ):
            entering, leaving = map(payload, ([flowing[stage]], [flowing[stage + 1]]))
            trained = payload([each for each in part.parameters() if each.requires_grad])
            self._room[id(part)] = most_held(stage, self.parts, len(sizes), entering, leaving, trained)
            copied = Pass(lambda part=part: part(flowing[0].clone()))
            yield [copied for _ in passes] if stage == 0 else passes

    def at_once(self, part: int, kept: Sequence[int], again: Sequence[int], batch_size: int) -> int:
        return self._ours.at_once(part, kept, again, batch_size)

    def simulate(self, parts: Sequence[nn.Module], inputs: Samples, time: TimeOf, message: MessageTime) -> Any:
        return self._ours.simulate(parts, inputs, time, message)

    def cost(self, parts: Sequence[nn.Module], inputs: Samples) -> list[Traffic]:
        def told(part: int) -> Traffic:
            return {"broadcast": float(broadcast_bytes(LOSSES, len(parts), (part - self.loss_part) % len(parts)))}

        return [added(traffic, told(part)) for part, traffic in enumerate(self._ours.cost(parts, inputs))]

    def memory(self, held: Memory, part: nn.Module) -> Memory:
        return {**held, "buffers": held["buffers"] + self._room[id(part)]}

    def full_state(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        return self._ours.full_state(parameters)

    # -- a step

    def prepare(self, model: nn.Module, loss: Loss, comm: Comm, before_backward: BeforeBackward) -> None:
        parts = self._ours.split(in_one_dtype(model, "strategy=deepspeed_pipeline", torch.float32))
        self._ties = list(tied(parts).items())
        self._looks = [without_data(part) for part in parts]
        self._ours.prepare(model, loss, comm, before_backward)
        self.module, self._loss, self._comm = self._ours.module, loss, comm
        self._entering: dict[int, Tensor] = {}  # by the samples of a micro-batch

    def start(self, optimizer: Optimizer) -> None:
        """All workers of all replicas, once weights are what training begins with."""
        assert isinstance(self._comm, ProcessComm)
        everyone = self._comm.root
        torch_world(everyone)
        self.stages = Stages(self.module, self.parts, self._ties, self.micro_batches, self._loss, optimizer, everyone)

    def forward_backward(self, batch: Batch) -> Tensor | None:
        inputs = lone(batch.inputs)
        inputs = inputs.float() if inputs.is_floating_point() else inputs
        sizes = self.micro_sizes(batch.size) if batch.size else [0]
        if sizes[0] not in self._entering:
            flowing = self._flowing(self._looks, inputs[: sizes[0]].to("meta"))
            self._entering[sizes[0]] = flowing[self._comm.rank]
        weight = batch.size * self.stages.replicas / batch.total
        pieces = inputs.split(sizes), lone(batch.targets).split(sizes)
        return self.stages.train(*pieces, self._entering[sizes[0]], weight)

    def _flowing(self, parts: Sequence[nn.Module], inputs: Tensor) -> list[Tensor]:
        """Returns the input of each stage and the output of the last, for meta inputs: shapes and dtypes only."""
        return [inputs, *self._ours.activations(parts, inputs, self.parts)]

    def is_last(self, parameters: Sequence[Tensor]) -> bool:
        return {id(each) for each in parameters} == {id(each) for each in self._last}


class _DeepSpeedPipelineUpdate(Sync):
    """DeepSpeed's engine steps within forward_backward."""

    traits = SyncTraits(
        unaveraged="leaves its weights to DeepSpeed, which would have to gather them after each step",
        shows_gradients=False,
    )

    def __init__(self, strategy: DeepSpeedPipeline) -> None:
        self._strategy = strategy

    def prepare(self, parameters: dict[str, nn.Parameter], optimizer: Optimizer, comm: Comm) -> None:
        super().prepare(parameters, optimizer, comm)
        self._strategy.start(optimizer)

    def begin(self, batch: Batch) -> None: ...

    def update(self) -> None: ...

    def gradients(self) -> None:
        """DeepSpeed drops them as it steps."""

    def measured(self, held: Memory) -> Memory:
        return {**held, "buffers": held["buffers"] + self._strategy.stages.most_held}

    def notes(self, parameters: Sequence[Tensor], world: World) -> Sequence[Note | str]:
        return absence()

    def transfers(self, parameters: Sequence[Tensor], world: World) -> Transfers:
        more = LOSS if self._strategy.is_last(parameters) else 0
        return Transfers(Fabric().transfers(payload(parameters) + more, world))
