"""The gradient of a batch as DP-SGD (dp_sgd.py) makes it, for strategies whose replicas are whole models.

A strategy's pass through its module is one whose output is the mean loss, and whose gradient is the sum of clipped
gradients with noise, over n: whatever looks at the passes of a module or at its gradients (buckets that are sent during
backward, modelled time, accumulated micro-batches) finds them as in plain training. Where samples are drawn by chance,
n is the number that is expected (`Batch.counted`), and a batch without samples has noise alone, and no pass.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from ...batches import Samples, call, of_each, tensors_of
from ...conf.errors import ConfigError
from ...strategies.core.accumulation import unweighed, weigher
from ...strategies.core.batch import Batch, Pass
from ...strategies.core.copies import with_tensors_of
from ...strategies.core.cost import payload
from ...strategies.core.loss import Loss
from ..seeded import generator
from .clipping import factors
from .dp_sgd import DPSGD

NORMS = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm


class PerSample:
    """The gradients of each sample, on one replica. `held`: the most bytes that samples' gradients took at once."""

    def __init__(self, module: nn.Module, loss: Loss, privacy: DPSGD, replica: int) -> None:
        """`module`: before anybody hooks themselves into it."""
        self.privacy, self.held = privacy, 0
        self._loss, self._weigh, self._replica = unweighed(loss), weigher(loss), replica
        self._bare = with_tensors_of(module)  # how the model computes, without hooks
        self._step, self._noise = -1, generator()

    def loss(self, module: nn.Module, batch: Batch) -> Tensor:
        """The batch's mean loss; its backward pass gives the gradients. Raises `NotFiniteError`."""
        if batch.size == 0:  # by chance: there is noise alone
            return self._weigh(self._of_batch(module, batch))
        module.forward = lambda *_, **__: self._of_batch(module, batch)  # the module's hooks see a pass of the batch
        try:
            return self._weigh(call(module, batch.inputs))
        finally:
            del module.forward

    def _of_batch(self, module: nn.Module, batch: Batch) -> Tensor:
        privacy, trained = self.privacy, _trained(module)
        assert privacy.clip is not None
        totals = [torch.zeros_like(parameter) for parameter in trained.values()]
        mean = torch.zeros((), device=totals[0].device)
        most = max(int(batch.counted), 1)
        most = min(privacy.at_once or most, most)
        pieces = zip(batch.inputs.split(most), batch.targets.split(most), strict=True) if batch.size else ()
        for inputs, targets in pieces:
            losses, weights = self.losses(module, inputs, targets)
            found = torch.autograd.grad(losses.sum(), weights, allow_unused=True, materialize_grads=True)
            gradients = [each.view(len(losses), *total.shape) for each, total in zip(found, totals, strict=True)]
            self.held = max(self.held, payload(gradients))
            mean = mean + losses.detach().sum() / batch.size
            # g_i <- g_i min(1, C / ||g_i||)
            kept = factors(gradients, privacy.clip, f"worker {self._replica} diverged: the gradient of a sample")
            for gradient, total in zip(gradients, totals, strict=True):
                total += torch.tensordot(kept.to(gradient.dtype), gradient, 1)  # two of them may be one in memory
        # 1/n_j (sum_i g_i + N(0, (n_j/n) sigma^2 C^2))
        std = privacy.noise * privacy.clip * (batch.counted / batch.total) ** 0.5
        for total in totals:
            if std > 0:
                total += std * self._drawn(batch.step, total)
            total /= batch.counted
        return _WithGradients.apply(mean, totals, *trained.values())

    def losses(self, module: nn.Module, inputs: Samples, targets: Samples) -> tuple[Tensor, list[Tensor]]:
        """n samples -> [n], the loss of each, and of each parameter what its own gradient is that of, [n, ...]; of a
        lone sample the parameter.
        """
        trained = _trained(module)
        rest = {name: each for name, each in module.named_parameters() if name not in trained}
        rest |= dict(module.named_buffers())
        self._bare.train(module.training)

        def of_one(weights: Mapping[str, Tensor], fields: Sequence[Tensor]) -> Tensor:
            """`fields`: of one sample, its inputs, then its targets."""
            each = iter(fields)
            x, y = (of_each(samples, lambda _: next(each)[None]) for samples in (inputs, targets))
            given = {**weights, **rest}
            outputs = call(partial(_computed, self._bare, given), x)
            # a forward may put another tensor in a buffer's place, even that of another buffer
            for kept, its in [(kept, given[name].detach()) for name, kept in rest.items() if given[name] is not kept]:
                kept.data = its
            return self._loss(outputs, y)

        fields = [*tensors_of(inputs), *tensors_of(targets)]
        if len(inputs) == 1:
            return of_one(trained, [each[0] for each in fields])[None], list(trained.values())
        own = {name: each.expand(len(inputs), *each.shape) for name, each in trained.items()}
        with sdpa_kernel(SDPBackend.MATH), _Padding():  # the fused kernels know no vmap
            return vmap(of_one, randomness="different")(own, fields), list(own.values())

    def _drawn(self, step: int, like: Tensor) -> Tensor:
        """N(0, 1): other numbers in each step, micro-batch and replica, and the same ones in a run that repeats."""
        if step != self._step:
            self._step, self._noise = step, generator("dp_sgd", self.privacy.seed, step, self._replica)
        return torch.randn(like.shape, generator=self._noise, dtype=like.dtype).to(like.device)


class _Padding(TorchFunctionMode):
    """Gives the row of an embedding's `padding_idx` no gradient. Under vmap, torch does so for the first sample."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        padding = kwargs.get("padding_idx") if func is F.embedding and kwargs else None
        if padding is None:
            return made
        ids, weight = args
        return torch.where((ids == padding % len(weight))[..., None], made.detach(), made)


class _WithGradients(torch.autograd.Function):
    """A number whose gradients are told."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, gradients: list[Tensor], *parameters: Tensor) -> Tensor:
        ctx.gradients = gradients
        return value.clone()

    @staticmethod
    def backward(ctx: Any, by: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        gradients = ctx.gradients if by == 1 else [each.mul_(by) for each in ctx.gradients]
        return None, None, *gradients


def _computed(module: nn.Module, state: dict[str, Tensor], *inputs: Tensor, **named: Tensor) -> Tensor:
    return functional_call(module, state, inputs, named)


def _trained(module: nn.Module) -> dict[str, nn.Parameter]:
    return {name: each for name, each in module.named_parameters() if each.requires_grad}


def rehearsed(
    parts: Sequence[nn.Module], inputs: Samples, targets: Samples, loss: Loss, privacy: DPSGD
) -> Iterator[list[Pass]]:
    """Yields the passes of `Strategy.rehearse`, for the largest number of samples at once."""
    [part] = parts
    most = privacy.at_once or len(inputs)
    own = PerSample(part, loss, privacy, 0)
    yield [Pass(lambda: own.losses(part, inputs[:most], targets[:most])[0].sum())]


def check_model(model: nn.Module, inputs: Samples, targets: Samples, loss: Loss, privacy: DPSGD) -> None:
    """All on the meta device. Raises `ConfigError` for a model that has no gradient of each sample."""
    for name, layer in model.named_modules():
        if isinstance(layer, NORMS):
            raise ConfigError(
                f"{name or 'the model'} is a {type(layer).__name__}, which mixes the samples of a batch, so "
                "that there is no gradient of each sample to clip. Choose a model with group or layer norms, or "
                "privacy=none.",
                about=("privacy",),
            )
    most = min(privacy.at_once or len(inputs), 2)
    call(model, inputs[:1])  # what a plain pass refuses is no affair of privacy
    try:
        if most > 1 and any(hasattr(layer, "by_values") for layer in model.modules()):
            raise ValueError("a layer has passes whose shapes follow from values")
        losses, weights = PerSample(model, loss, privacy, 0).losses(model, inputs[:most], targets[:most])
        torch.autograd.grad(losses.sum(), weights, allow_unused=True)
    except (RuntimeError, NotImplementedError, ValueError) as error:
        raise ConfigError(
            f"privacy.at_once={privacy.at_once}: this model cannot compute the gradients of several samples at once by "
            f"torch's vmap ({' '.join(str(error).split())[:200]}). Choose privacy.at_once=1, which takes one sample "
            "after another, or privacy=none."
        ) from None
