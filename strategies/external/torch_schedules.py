"""torch.distributed.pipelining, for micro-batches of one shape."""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from ...comm import Comm
from ...compat.torch_pipelining import receive_buffers, start
from ..core.loss import Loss
from ..pipelining.chunks import Chunks

SINGLE = {"gpipe": "GPipe", "1f1b": "1F1B"}
SEVERAL = {"interleaved": "Interleaved1F1B", "zb_h1": "InterleavedZeroBubble"}  # the second with one chunk: ZB-H1


class _ChunkStage(nn.Module):
    """One of a worker's chunks. It and the loss may change the batch in place, whose micro-batches are views.

    Its output is sent from where its entries are, and so is contiguous.
    """

    def __init__(self, part: Chunks, chunk: int) -> None:
        super().__init__()
        self._part, self._chunk = part, chunk

    def forward(self, input: Tensor) -> Tensor:
        return self._part(input if input.requires_grad else input.data, self._chunk).contiguous()


class TorchSchedule:
    """torch's schedule of one worker, and its stages. All workers of the replica make theirs together."""

    def __init__(
        self,
        schedule: str,
        part: Chunks,
        chunks: Mapping[int, int],
        flowing: Sequence[Tensor],
        micro_batches: int,
        loss: Loss,
        comm: Comm,
        example: Tensor,
        targets: Tensor,
    ) -> None:
        """`chunks`: this worker's stages -> the chunk of `part` that each is. `flowing`: on the meta device, of one
        micro-batch, what enters each stage, and what leaves the last one. `example`, `targets`: a batch.
        """
        from torch.distributed.pipelining import PipelineStage
        from torch.distributed.pipelining.schedules import get_schedule_class

        self.stages = [
            PipelineStage(
                _ChunkStage(part, chunk),
                stage,
                len(flowing) - 1,
                example.device,
                input_args=flowing[stage],
                output_args=flowing[stage + 1],
            )
            for stage, chunk in chunks.items()
        ]

        def of_the_mean(output: Tensor, targets: Tensor) -> Tensor:
            return loss(output, targets.data) * (1 / micro_batches)

        if schedule == "1f1b" and micro_batches < len(flowing) - 1:
            schedule = "gpipe"  # whose order it would be; torch's 1F1B refuses so few
        made: Callable[..., Any] = get_schedule_class({**SINGLE, **SEVERAL}[schedule])
        stages = self.stages[0] if schedule in SINGLE else self.stages
        self._schedule = made(stages, micro_batches, of_the_mean, scale_grads=False)
        self._inputs = [example] if 0 in chunks else []
        self._has_loss = len(flowing) - 2 in chunks
        with comm.ledger.aside():  # torch's workers tell one another that they know all shapes
            start(self._schedule, self.stages, self._inputs, targets if self._has_loss else None)

    def run(self, inputs: Tensor, targets: Tensor) -> Tensor | None:
        """The mean loss, where the last stage is."""
        losses: list[Tensor] = []
        if self._has_loss:
            more: dict[str, Any] = {"target": targets, "losses": losses}
        else:
            more = {}
        self._schedule.step(*([inputs] if self._inputs else []), return_outputs=False, **more)
        return torch.stack(losses).detach().sum() if losses else None

    def buffers(self) -> list[Tensor]:
        """Returns torch's receive buffers, those of all micro-batches at once."""
        return list(chain.from_iterable(map(receive_buffers, self.stages)))
