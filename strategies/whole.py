"""A strategy's replica that is one worker with the whole model, whose pass is plain or, with privacy=dp_sgd, made of
each sample's gradient (exchange/privacy/per_sample.py).
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..batches import Samples
from ..comm import Comm
from ..cost.layout import ReplicaLayout
from ..exchange.privacy.dp_sgd import of_samples
from ..exchange.privacy.per_sample import PerSample, check_model, rehearsed
from .core.batch import Batch, BeforeBackward, Pass
from .core.cost import Memory, payload
from .core.loss import Loss
from .core.strategy import Strategy, StrategyTraits


class Whole(Strategy):
    """`begin` is what `prepare` ends with."""

    traits = StrategyTraits(per_sample=True, steps_whole=True)
    _sample_by_sample: PerSample | None = None
    _at_once = 0  # samples whose gradients are held together, where they are

    def resolved(self, model: nn.Module, inputs: Samples, targets: Samples, loss: Loss) -> dict[str, Any]:
        if (privacy := of_samples(self.setting.privacy)) is not None:
            check_model(model, inputs, targets, loss, privacy)
        return {}

    def begin(self, module: nn.Module, loss: Loss, comm: Comm, before_backward: BeforeBackward) -> None:
        self.module, self._loss, self._before_backward = module, loss, before_backward
        if (privacy := of_samples(self.setting.privacy)) is not None:
            self._sample_by_sample = PerSample(module, loss, privacy, comm.key_values.rank)

    def forward_backward(self, batch: Batch) -> Tensor | None:
        if batch.size == 0 and batch.expected is None:
            return None
        if self._sample_by_sample is None:
            return self.setting.passes.forward_backward(self.module, self._loss, batch, self._before_backward)
        loss = self._sample_by_sample.loss(self.module, batch)
        self._before_backward([loss], True)
        loss.backward()
        return loss.detach() if batch.size else None

    def profile(
        self, parts: Sequence[nn.Module], inputs: Samples, targets: Samples, loss: Loss, device: torch.device
    ) -> Iterator[list[Pass]]:
        if (privacy := of_samples(self.setting.privacy)) is None:
            return super().profile(parts, inputs, targets, loss, device)
        self._at_once = min(privacy.at_once or len(inputs), len(inputs))
        return rehearsed(parts, inputs, targets, loss, privacy)

    def closed_form(self, accumulate: int) -> ReplicaLayout | None:
        return ReplicaLayout(accumulate)

    def memory(self, held: Memory, part: nn.Module) -> Memory:
        trained = [parameter for parameter in part.parameters() if parameter.requires_grad]
        return {**held, "gradients": held["gradients"] + self._at_once * payload(trained)}

    def measured(self, held: Memory) -> Memory:
        own = 0 if self._sample_by_sample is None else self._sample_by_sample.held
        return {**held, "gradients": held["gradients"] + own}
