"""One worker's stage under a schedule without a flush, from batch to batch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ...batches import Samples
from .actions import Action
from .check import message
from .execute import PipelineStep, PipelineWorker
from .without_flush import Placed, Reads, StageActions


class Stream:
    """Takes batches, and does all that a stage can do until the next one comes; `drain` does the rest."""

    def __init__(self, held: PipelineWorker, reads: Reads) -> None:
        self._held = held
        self._reads: Reads = reads
        [self._stage] = held.chunks
        self._row = self._new_row()
        self._step: PipelineStep | None = None

    def _new_row(self) -> StageActions:
        return StageActions(self._stage, len(self._held.holders), self._reads)

    def take(self, inputs: Sequence[Tensor], targets: Sequence[Samples], device: torch.device) -> Tensor:
        """A batch's micro-batches, maybe none; returns the batch's loss on the last stage."""
        total = torch.zeros((), dtype=torch.float64, device=device)
        if self._step is None:
            self._step = PipelineStep(self._held, inputs, targets, total)
        else:
            self._step.enter(self._row.micro_batches, inputs, targets)
            self._step.total = total
        self._run(self._step, self._row.enter(len(inputs)))
        return total

    def drain(self) -> None:
        if self._step is None:
            return
        self._run(self._step, self._row.drain())
        self._step.wait_for_sends()
        assert self._held.updates is not None
        self._held.updates.restart()
        self._row, self._step = self._new_row(), None

    def _run(self, step: PipelineStep, placed: Sequence[Placed]) -> None:
        step.versions.update(placed)
        actions = [each.action for each in placed]
        step.run(self._with_messages(actions))
        step.forget(actions)

    def _with_messages(self, actions: Sequence[Action]) -> list[Action]:
        """A worker has one neighbour before it and one behind, each of which sends in the order of micro-batches.

        So a receive may stand before the action ahead of the one that reads it, and begin that much earlier.
        """
        found: list[Action] = []
        at = 0  # of the last action but updates
        for action in actions:
            stage, kind, _ = action
            if kind == "U":
                found.append(action)
                continue
            if (kind == "F" and stage > 0) or (kind == "B" and stage < len(self._held.holders) - 1):
                receive = action._replace(kind="RECV_F" if kind == "F" else "RECV_B")
                found.insert(at, receive)
            at = len(found)
            found.append(action)
            both = message(action, len(self._held.holders))
            if both is not None:
                found.append(both[0])
        return found
