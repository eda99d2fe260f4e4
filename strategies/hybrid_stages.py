"""Layers of each stage of a pipeline that are partitioned, and the messages among the workers of a stage."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from .core.batch import PassTime, TimeOf
from .pipelining.actions import Action
from .pipelining.again import joined, recomputes
from .pipelining.chunks import Chunks
from .tensor_parallel.cost import SentBy, sent_by_passes
from .tensor_parallel.find import Kind, kinds_of, vocabulary_of
from .tensor_parallel.group import Sent

if TYPE_CHECKING:
    from .pipeline import Pipeline


def kinds_of_stages(
    model: nn.Module, stages: Sequence[nn.Module], degree: int, vocabulary: bool
) -> list[dict[str, Kind]]:
    """Returns each stage's partitioned layers by name, as `find.kinds_of` does for a whole model.

    They are pairs within a stage, and the model's `vocabulary`.

    A weight that several stages share is cut alike in all of them: as part of the vocabulary, or not at all. Raises
    `ConfigError` for what cannot be cut into `degree` pieces.
    """
    held = Counter(name for stage in stages for name, _ in stage.named_parameters())
    shared = {name for name, times in held.items() if times > 1}
    words = vocabulary_of(model) if vocabulary else []
    found: list[dict[str, Kind]] = []
    for stage in stages:
        layers = dict(stage.named_modules(remove_duplicate=False))
        # where a stage shares the embedding's matrix alone, there is a name, and no layer
        own = [name for name in words if isinstance(layers.get(name), nn.Linear | nn.Embedding)]
        found.append(kinds_of(stage, degree, vocabulary=own, whole=shared, key="strategy.tensor"))
    return found


class StageSums:
    """Sums that a worker of each stage sends to the others of its stage; all send alike. All is on the meta device.

    `lane`: what one worker of each stage holds, in the order of stages.
    """

    def __init__(self, pipeline: "Pipeline", lane: Sequence[nn.Module]) -> None:
        self._pipeline, self._lane = pipeline, lane
        self._outputs: dict[int, list[Tensor]] = {}  # of each stage, by the samples of a micro-batch

    def of_step(self, worker: int, inputs: Tensor) -> list[Sent]:
        """`worker`: of the pipeline. `inputs`: a replica's batch."""
        pipeline = self._pipeline
        sizes = pipeline.micro_sizes(len(inputs))
        row = joined(pipeline.of_first(len(sizes))[worker], pipeline.recomputing(self._lane, inputs[: sizes[0]]))
        of_batch = [(stage, j) for stage, kind, j in row if kind == "F" and j < len(sizes)]
        passes = Counter((stage, sizes[j], Action(stage, "I", j) in row) for stage, j in of_batch)
        sums: list[Sent] = []
        for (stage, size, apart), count in passes.items():
            entered = self._entering(stage, inputs[:size])
            entered.requires_grad_(stage > 0 and entered.is_floating_point())
            sums += count * self._of_passes(worker, pipeline.stages_of(worker).index(stage), entered, apart).all
        return sums

    def _entering(self, stage: int, inputs: Tensor) -> Tensor:
        if stage == 0:
            return inputs
        if len(inputs) not in self._outputs:
            last = len(self._pipeline.holders) - 1
            self._outputs[len(inputs)] = self._pipeline.activations(self._lane, inputs, last)
        return torch.empty_like(self._outputs[len(inputs)][stage - 1])

    def _of_passes(self, worker: int, chunk: int, entered: Tensor, apart: bool) -> SentBy:
        part = self._lane[worker]
        assert isinstance(part, Chunks)
        ends = self._pipeline.stages_of(worker)[chunk] == len(self._pipeline.holders) - 1
        return sent_by_passes(part, chunk, entered, ends, self._pipeline.recompute, apart)

    def timed(self, time: TimeOf, seconds: Callable[[int, Sequence[Sent]], float]) -> TimeOf:
        """`time`, of a worker's passes alone, and with it the `seconds` of what they send."""
        in_two = any(action.kind == "I" for row in self._pipeline.schedule for action in row)

        def of_both(worker: int, entered: Tensor, chunk: int) -> PassTime:
            found, part = time(worker, entered, chunk), self._lane[worker]
            assert isinstance(part, Chunks)
            apart = in_two and not recomputes(part, chunk, entered)
            forward, back, weights = (seconds(worker, sums) for sums in self._of_passes(worker, chunk, entered, apart))
            # what is computed again is a forward pass more, whose sums `back` has already
            again = forward if self._pipeline.recompute else 0.0
            to_input = found.to_input + back - again if entered.requires_grad else 0.0
            return PassTime(found.forward + forward, found.backward + back + weights - again, to_input)

        return of_both
