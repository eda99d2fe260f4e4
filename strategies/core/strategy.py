"""The interface of a strategy: how one replica of the model is laid over workers."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...batches import Samples, call
from ...comm import Comm
from ...cost.layout import ReplicaLayout
from .batch import Batch, BeforeBackward, Pass
from .cost import Memory, Traffic
from .loss import Loss
from .mesh import Mesh
from .setting import Setting
from .state import state_with
from .sync import Sync
from .terms import (
    ALL_ALIVE,
    ALL_STEPPED,
    BY_ENTRY,
    COMPILABLE,
    EVERY_PRECISION,
    MESSAGE_BY_ENTRY,
    ONE_MODEL_AT_A_TIME,
    OWN_PASSES,
    PLAIN_MEAN,
    SAMPLE_GRADIENTS,
    STRATEGY_AVERAGED,
    TOGETHER,
    WHOLE_REPLICA,
    WHOLE_TENSORS,
    WITHIN_REPLICA,
    Compatible,
    Need,
    Term,
    absent,
    required,
)
from .trial import Trial

NOT_OURS = "its engine is not ours, and what that takes beside was not measured"  # see `StrategyTraits.unpredicted`


@dataclass(frozen=True)
class StrategyTraits:
    """The declaration of a strategy. A constructor may change it by the knobs."""

    bitwise: bool = True  # one replica is serial training bit for bit, and not only but for the order of sums
    max_replicas: int | None = None  # the most replicas; None for any number
    fills: int = 1  # steps until a worker holds as many activations as it ever does
    per_sample: bool = False  # it makes of `privacy` what a step's gradient is

    # Use of the machine.
    software: str = "PyTorch"  # that computes a step, as cost/published.py names it
    needs_processes: bool = False  # it talks to torch.distributed by itself
    moves_model: bool = False  # it moves the model to the device itself, and the engine must not
    cuts_on_host: bool = False  # `prepare` gets the model on the host; the engine moves `module` to the device then
    needs_shapes: bool = False  # it computes shapes on the meta device as it trains, also with one worker a replica
    steps_whole: bool = False  # one worker steps all parameters of a replica at once
    runs_whole: bool = False  # `module` is the whole model, which others may run between two passes
    rounds_weights: bool = False  # it computes in another precision in a way of its own, with rounded weights
    drops_writes: bool = False  # what a forward pass writes to parameters would be lost, and is refused
    passes_together: bool = False  # replicas talk in forward and backward passes, and so make equally many of them
    waits_in_passes: bool = False  # its workers wait for others within a pass, and not only between two
    across_replicas: str = ""  # the override by which it talks to other replicas in every step; "" where it does not
    own_micro_batches: str = ""  # the knob by which it cuts a batch into micro-batches; "" where it does not

    # Limits. A text says why something is impossible, after the strategy's name; "" stands for possible.
    owns_update: str = "owns its update"  # why no sync mode is chosen, where `own_sync` gives one
    unpredicted: str = ""  # why the time of a step is not predicted from its operators and transfers
    one_precision: str = ""  # why it computes in float32 alone
    uncompiled: str = ""  # why its passes cannot be compiled (compile=true)
    unaveraged: str = ""  # why no average of weights over steps is kept
    one_input: str = ""  # why a sample must be one tensor
    whole_targets: str = ""  # why targets can have no weights


class Strategy(Compatible, ABC):
    """The layout of ONE replica over workers: one, or those of a mesh (mesh.py).

    After `prepare`, `module` is this worker's part; its parameters are named as in the whole model, and are whole but
    for those that its layers say are split (placements.py).
    """

    traits = StrategyTraits()
    mesh: Mesh = Mesh({})  # of the workers of one replica: Mesh({"stage": 4}), Mesh({"tensor": 2})
    loss_part: int = 0  # the part whose loss counts; it also gathers `full_state`
    shares: bool = False  # parts hold some parameters in common, which every update must leave alike on them
    trial: Trial = Trial()
    setting: Setting = Setting()
    module: nn.Module

    @property
    def lacks(self) -> Mapping[Term, str]:
        traits = self.traits
        lacking = absent(
            (WHOLE_REPLICA, self.parts == 1),
            (WHOLE_TENSORS, self.mesh.axes.get("tensor", 1) == 1),
            (SAMPLE_GRADIENTS, traits.per_sample),
            (OWN_PASSES, traits.runs_whole),
            (ALL_STEPPED, traits.steps_whole),
            (ONE_MODEL_AT_A_TIME, not traits.needs_processes),
            (WITHIN_REPLICA, not traits.across_replicas),
        )
        texts = {
            EVERY_PRECISION: traits.one_precision,
            COMPILABLE: traits.uncompiled,
            STRATEGY_AVERAGED: traits.unaveraged,
        }
        return lacking | {term: text for term, text in texts.items() if text}

    @property
    def needs(self) -> tuple[Need, ...]:
        across, own, apart = self.traits.across_replicas, self.own_sync() is not None, "which would drift apart"
        waits = "waits for all replicas in every step"
        holds = "holds some parameters whole on several workers of a replica"
        return required(
            (Need(PLAIN_MEAN, self.traits.owns_update), own),
            (Need(TOGETHER, waits, across), bool(across)),
            (Need(ALL_ALIVE, waits, across), bool(across)),
            (Need(TOGETHER, f"{holds}, {apart}"), self.shares),
            (Need(BY_ENTRY, f"{holds}, {apart}"), self.shares),
            (Need(MESSAGE_BY_ENTRY, f"{holds}, {apart}"), self.shares),
        )

    def configure(self, setting: Setting) -> None:
        """Takes over what the run tells; called again when more is known (`Setting` says when)."""
        self.setting = setting

    @property
    def parts(self) -> int:
        """Returns the number of workers of one replica."""
        return self.mesh.size

    def own_sync(self) -> "Sync | None":
        """The update, when it is not left to a sync mode (torch's DDP). Such a strategy takes sync=bsp only."""
        return None

    def resolved(self, model: nn.Module, inputs: Samples, targets: Samples, loss: Loss) -> dict[str, Any]:
        """The knobs that it chooses by the model and a replica's batch, which are on the meta device: once, before
        `split`, so that all workers have the same. Raises `ConfigError`.
        """
        return {}

    def split(self, model: nn.Module) -> list[nn.Module]:
        """The parts of `model`, in order; it works on the meta device too. Raises `ConfigError`."""
        return [model]

    def check_optimizer(self, optimizer: Optimizer) -> None:
        """Refuse an optimizer that cannot step on these parts; its parameters may be on the meta device.

        Raises `ConfigError`.
        """

    @abstractmethod
    def prepare(self, model: nn.Module, loss: Loss, comm: Comm, before_backward: BeforeBackward) -> None:
        """Keep this worker's part of `model`. `comm` spans the parts of this replica.

        `before_backward(roots, last)` must be called before each backward pass; see `Sync.before_backward`.
        """

    @abstractmethod
    def forward_backward(self, batch: Batch) -> Tensor | None:
        """Accumulate the gradient of the batch's mean loss; returns that loss at `loss_part`, None elsewhere.

        With `accumulate` it is called for each micro-batch of a step, and `loss` has its weight in it.

        An empty batch leaves every gradient None and returns None. One that is empty by chance (`Batch.expected`) has
        the noise of `privacy` as its gradient, and returns None.
        """

    def full_state(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        """The whole model's state at `loss_part`, None elsewhere; `parameters` are this part's, by name."""
        return state_with(self.module, parameters)

    def profile(
        self, parts: Sequence[nn.Module], inputs: Samples, targets: Samples, loss: Loss, device: torch.device
    ) -> Iterator[list[Pass]]:
        """The passes of a replica's batch, part by part: a plan takes those of one before it asks for the next. Parts
        whose passes keep as much have one and the same list.

        All is on the meta device, and nobody is there to talk to. `device`: that it will be trained on. What a strategy
        must know of a batch before `memory` is asked, it sees here. Raises `ConfigError`.
        """
        for part in parts:
            yield [Pass(lambda part=part: loss(call(part, inputs), targets))]

    def cost(self, parts: Sequence[nn.Module], inputs: Samples) -> list[Traffic]:
        """Stated traffic within one replica, by part. `inputs`: a replica's batch on the meta device."""
        return [{} for _ in parts]

    def closed_form(self, accumulate: int) -> ReplicaLayout | None:
        """Returns the layout of a replica's step by which closed forms of transformers (cost/step.py) time it.

        None where they do not know it. `accumulate`: micro-batches, where a step is cut into some without the
        strategy. Raises `NotPredicted` for knobs that they do not know.
        """
        return None

    def memory(self, held: Memory, part: nn.Module) -> Memory:
        """Stated peak bytes of a worker by kind, where `held` is what the sync mode says that this part takes."""
        return held

    def measured(self, held: Memory) -> Memory:
        """Measured peak bytes of this worker by kind, where `held` is what the sync mode says that its tensors take."""
        return held
