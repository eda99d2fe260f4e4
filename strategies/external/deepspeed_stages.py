"""DeepSpeed's PipelineModule of one layer a stage, and the PipelineEngine that trains it."""

import io
import warnings
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...comm.process import ProcessComm
from ...compat.deepspeed_pipeline import after_each_instruction, expect, held_between
from ..core.cost import payload
from ..core.loss import Loss
from .deepspeed_start import import_for

TIED = "tied"  # the key of the weights that stages share


class _StageLayer(nn.Module):
    """A whole stage, as one layer of DeepSpeed's."""

    def __init__(self, part: nn.Module, is_last: bool) -> None:
        super().__init__()
        self.part, self._is_last = part, is_last

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = self.part(inputs)
        return outputs if self._is_last else outputs.contiguous()  # it is sent from where its entries are


class Stages:
    """One worker's stage, within DeepSpeed's engine. All workers of the run make theirs together."""

    def __init__(
        self,
        part: nn.Module,
        stages: int,
        ties: Sequence[tuple[str, Sequence[int]]],
        micro_batches: int,
        loss: Loss,
        optimizer: Optimizer,
        comm: ProcessComm,
    ) -> None:
        """`ties`: the weights that stages share, by name, and those stages, which are the same for all. `comm`: of all
        workers, a replica's in a row.
        """
        deepspeed = import_for(comm)
        from deepspeed.pipe import PipelineModule, TiedLayerSpec
        from deepspeed.runtime.pipe.topology import ProcessTopology

        self.replicas, stage = comm.size // stages, comm.rank % stages
        self._loss, self._is_first = loss, stage == 0
        holders = {holder for _, its in ties for holder in its}
        layers: list[Any] = [nn.Identity() for _ in range(stages)]  # those of others are never built
        layers[stage] = _StageLayer(part, stage == stages - 1)
        for holder in holders:
            names = [f"part.{name}" for name, _ in ties]
            layers[holder] = TiedLayerSpec(TIED, _StageLayer, part, stage == stages - 1, tied_weight_attr=names)
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            module = PipelineModule(
                layers,
                topology=ProcessTopology(axes=["data", "pipe"], dims=[self.replicas, stages]),
                loss_fn=self._weighted_loss,
                partition_method="uniform",
            )
            self.engine, *_ = deepspeed.initialize(
                model=module,
                optimizer=optimizer,
                dist_init_required=False,
                config={
                    "train_micro_batch_size_per_gpu": 1,  # DeepSpeed wants a number, for its own reports
                    "gradient_accumulation_steps": micro_batches,
                    "gradient_clipping": 0.0,  # left out, it would be 1
                    "steps_per_print": 2**31,
                },
            )
        self.most_held = 0  # bytes
        self._looks = True  # in the first step of a shape: the others are as it is
        self._entering: Tensor | None = None
        after_each_instruction(self.engine, self._look)
        flatten = self.engine.flatten

        def noted(tensors: Sequence[Tensor]) -> Tensor:
            """Flattens gradients, which are then summed over replicas, and records the bytes held."""
            flat = flatten(tensors)
            self._look(flat)
            return flat

        self.engine.flatten = noted

    def train(
        self, inputs: Sequence[Tensor], targets: Sequence[Tensor], entering: Tensor, weight: float
    ) -> Tensor | None:
        """A step over a batch's micro-batches; returns their mean loss where the last stage is.

        `entering`: on the meta device, of a micro-batch, what enters this stage. `weight`: of this replica's mean in
        the mean of replicas.
        """
        if self._entering is None or self._entering.shape != entering.shape or self._entering.dtype != entering.dtype:
            self._entering = entering
            room = None if self._is_first else torch.empty_like(entering, device=inputs[0].device, requires_grad=False)
            expect(self.engine, room)
            self._looks = True
        self._weight, self._losses = weight, list[Tensor]()
        self.engine.set_train_batch_size(len(inputs) * self.replicas)  # in micro-batches, as the configuration says
        self.engine.train_batch(iter(list(zip(inputs, targets, strict=True))))
        self._looks = False
        return torch.stack(self._losses).mean() if self._losses else None

    def _weighted_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if len(targets) == 0:
            return outputs.sum() * 0  # every replica takes part in every sum
        loss = self._loss(outputs, targets)
        self._losses.append(loss.detach())
        return loss if self._weight == 1 else loss * self._weight

    def _look(self, *more: Tensor) -> None:
        if self._looks:
            self.most_held = max(self.most_held, payload([*held_between(self.engine), *more]))


def most_held(stage: int, stages: int, micro_batches: int, entering: int, leaving: int, gradients: int) -> int:
    """Returns the stated value of `Stages.most_held`, in bytes, for stage i of p.

    `entering`, `leaving`: bytes of a micro-batch that enter and leave the stage. `gradients`: bytes of its gradients.

    A stage keeps min(p - i, m) of m micro-batches at once, in max(2, p - i) slots. The first stage's inputs and the
    last one's outputs stay in their slot until it is reused. Gradients are flattened into one tensor when the last
    backward pass is over.
    """
    places, kept = min(max(2, stages - stage), micro_batches), min(stages - stage, micro_batches)
    first, last = stage == 0, stage == stages - 1
    room = (0 if first else entering) + (0 if last else leaving)
    inputs = entering * (places if first else kept)
    before_backward = inputs + leaving * (places if last else kept)
    after_backward = inputs + (0 if first else entering) + leaving * (places if last else kept - 1)
    between_steps = (inputs if first else 0) + (leaving * places if last else 0)
    return room + max(before_backward, after_backward, between_steps + gradients)
