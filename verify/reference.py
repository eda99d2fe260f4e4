"""Serial training in plain torch, and how far another order of the same sums may lead away from it.

Nothing of strategies is used here. The model, the loss and the optimizer are the run's own, and a step's batch is what
all replicas take in it together.

Tolerance. Training in the model's precision (x) is compared with the same in float64 (X), step by step; e = |x - X| is
what rounding has done so far, in this model, growth from step to step included. A layout adds the same numbers in
another order, so its own error is of that size, too, and the two differ by some e + e. What is allowed of a tensor is

    MARGIN * max(e, r max|X|),    r = the median over tensors of e / max|X|,

where r stands in for a small tensor whose few entries were lucky. docs/decisions has what was measured.

An optimizer that divides by a gradient's size, as Adam does, makes a step of full size of a gradient that is nearly 0,
and rounding decides on its sign. Which entry that is differs from one order of sums to another. So e is also that of
some trainings in which each gradient has noise as large as its own e, or as its last digit where it has no e, as in a
model in float64.

A way that computes in bfloat16 or float16 is held to serial training that does so on weights that are kept in the
model's own dtype, and its e is that of this training.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from ..batches import Samples, call
from ..conf.errors import ConfigError
from ..engine.features.feature import Parts
from ..strategies.core.copies import copied
from ..strategies.core.state import state_of
from ..strategies.precision import Float16, Precision

MARGIN = 8.0
NOISY = 3  # trainings with noise
DRAWN = 2**63 - 1  # no seed of the engine's

Named = dict[str, Tensor]


@dataclass(frozen=True)
class Serial:
    """The results of serial training, by step."""

    losses: list[float]
    gradients: list[Named]  # zeros where there is none
    weights: list[Named]  # with buffers
    averaged: Named | None = None  # the last average of them, where one is kept


@dataclass(frozen=True)
class Allowed:
    """Absolute, by step."""

    losses: list[float]
    gradients: list[dict[str, float]]
    weights: list[dict[str, float]]
    averaged: dict[str, float] = field(default_factory=dict[str, float])  # of the last average


@dataclass(frozen=True)
class Reference:
    serial: Serial
    allowed: Allowed
    draws: bool  # the model draws random numbers in training
    together: bool  # the loss of a batch is not the mean of its samples' losses


@dataclass(frozen=True)
class ReferenceTraining:
    """The inputs of serial training. `seed_step`: called before each step, as the engine does on a lone worker."""

    parts: Parts
    make_model: Callable[[], nn.Module]  # with the weights that training begins with
    batches: Sequence[tuple[Samples, Samples]]
    seed_step: Callable[[int], None]
    clip: Callable[[nn.Module], object]  # of the gradients that a model's parameters have
    factors: Sequence[float]  # of the optimizer's rate, by step
    averaging: Callable[[nn.Module], AveragedModel] | None = None  # torch's own, where weights are averaged
    counts: Callable[[int], bool] = lambda _: True  # whether the weights after so many steps are in it


def refer(
    setting: ReferenceTraining, stated: float | None, precision: Precision | None = None, rounds_weights: bool = False
) -> Reference:
    """`stated`: a tolerance relative to the largest entry, in place of what is derived. `precision`: of passes; None
    for float32. `rounds_weights`: they are on weights that are rounded for it, and not under autocast.

    Raises `ConfigError`.
    """
    narrow = None if precision is None or precision.dtype is None else _Narrow(precision, rounds_weights)
    serial = _train(setting, torch.nn.Module.train, narrow=narrow)
    draws = _draws(setting)
    if stated is not None:
        return Reference(serial, _stated(serial, stated), draws, _together(setting, None))
    # random numbers are not those of float64: of such a model the two are compared without them
    mode = nn.Module.eval if draws else nn.Module.train
    ours = _train(setting, mode, narrow=narrow) if draws else serial
    try:
        exact = _train(setting, mode, torch.float64)
        noise = [_noise(*both) for both in zip(ours.gradients, exact.gradients, strict=True)]
        noisy = [_train(setting, mode, narrow=narrow, noise=_Noise(noise, seed)) for seed in range(NOISY)]
        together = _together(setting, torch.float64)
    except (RuntimeError, TypeError, ValueError) as error:
        words = str(error).strip().partition("\n")[0]
        raise ConfigError(
            f"verify: the tolerance is derived from training in float64, which this model refuses ({words}); "
            "--tolerance 1e-5 states one instead"
        ) from error
    return Reference(serial, _derived([ours, *noisy], exact), draws, together)


def _train(
    setting: ReferenceTraining,
    mode: Callable[[nn.Module], Any],
    dtype: torch.dtype | None = None,
    narrow: "_Narrow | None" = None,
    noise: "_Noise | None" = None,
) -> Serial:
    """Trains in `dtype`, or else in the model's own. `narrow`: the precision of forward and backward passes."""
    model = setting.make_model()
    model = mode(model if dtype is None else model.to(dtype))
    optimizer = setting.parts.make_optimizer(model.parameters())
    rates = [group.get("lr") for group in optimizer.param_groups]
    averaged = setting.averaging(model) if setting.averaging is not None else None
    found = Serial([], [], [])
    scaler = None if narrow is None else narrow.scaler(next(model.parameters()).device)
    for step, batch in enumerate(setting.batches):
        setting.seed_step(step)
        optimizer.zero_grad()
        loss = _loss(setting, model, batch, dtype) if narrow is None else narrow.loss(setting, model, batch)
        (loss if scaler is None else scaler.scale(loss)).backward()
        if scaler is not None:
            scaler.unscale_(optimizer)
        if noise is not None:
            noise.add(model, step)
        setting.clip(model)
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            if rate is not None:
                group["lr"] = rate * setting.factors[step]
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            before = scaler.get_scale()
            scaler.update()
            if scaler.get_scale() < before:  # nothing was stepped with
                optimizer.zero_grad()
        if averaged is not None and setting.counts(step + 1):
            averaged.update_parameters(model)
        found.losses.append(loss.item())
        found.gradients.append({name: _gradient(p) for name, p in model.named_parameters() if p.requires_grad})
        found.weights.append({name: tensor.detach().cpu().clone() for name, tensor in state_of(model).items()})
    if averaged is None:
        return found
    own, last = state_of(averaged.module if averaged.n_averaged else model), found.weights[-1]
    floats = {name: tensor.detach().cpu().clone() for name, tensor in own.items() if tensor.is_floating_point()}
    return replace(found, averaged={**last, **floats})  # whole numbers (batches seen) are those of training


class _Noise:
    """Noise in gradients. `sizes`: the largest of each parameter's, by step."""

    def __init__(self, sizes: Sequence[dict[str, float]], seed: int) -> None:
        self._sizes, self._generator = sizes, torch.Generator().manual_seed(seed)

    def add(self, model: nn.Module, step: int) -> None:
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                drawn = 2 * torch.rand(parameter.shape, generator=self._generator, dtype=torch.float64) - 1
                parameter.grad += self._sizes[step][name] * drawn.to(parameter.grad)


def _gradient(parameter: Tensor) -> Tensor:
    return (torch.zeros_like(parameter) if parameter.grad is None else parameter.grad).detach().cpu().clone()


def _loss(
    setting: ReferenceTraining, model: nn.Module, batch: tuple[Samples, Samples], dtype: torch.dtype | None
) -> Tensor:
    inputs, targets = (_as(samples, dtype) for samples in batch)
    return _of_task(setting)(call(model, inputs), targets)


@dataclass(frozen=True)
class _Narrow:
    precision: Precision
    rounds_weights: bool

    def loss(self, setting: ReferenceTraining, model: nn.Module, batch: tuple[Samples, Samples]) -> Tensor:
        dtype = self.precision.dtype
        assert dtype is not None
        if self.rounds_weights:
            return _narrow_loss(setting, model, batch, dtype)
        with torch.autocast(next(model.parameters()).device.type, dtype):
            return _loss(setting, model, batch, None)

    def scaler(self, device: torch.device) -> torch.amp.GradScaler | None:
        """torch's own."""
        if self.rounds_weights or not isinstance(self.precision, Float16):
            return None
        first, every = self.precision.first, self.precision.grow_every
        return torch.amp.GradScaler(device.type, init_scale=first, growth_interval=every)


def _narrow_loss(
    setting: ReferenceTraining, model: nn.Module, batch: tuple[Samples, Samples], narrow: torch.dtype
) -> Tensor:
    """Computes the loss of a rounded copy of the weights, whose gradients are added to the weights' own."""
    rounded = copied(model).to(narrow)
    for mine, its in zip(model.parameters(), rounded.parameters(), strict=True):
        if mine.requires_grad:
            its.register_hook(lambda gradient, mine=mine: _add(mine, gradient))
    inputs, targets = batch
    return _of_task(setting)(call(rounded, _as(inputs, narrow)).float(), targets)


def _add(parameter: Tensor, gradient: Tensor) -> None:
    own = gradient.to(parameter.dtype)
    parameter.grad = own if parameter.grad is None else parameter.grad + own


def _of_task(setting: ReferenceTraining) -> Callable[[Tensor, Samples], Tensor]:
    return setting.parts.task.function(setting.parts.data.spec)


def _as(samples: Samples, dtype: torch.dtype | None) -> Samples:
    if dtype is None or (isinstance(samples, Tensor) and not samples.is_floating_point()):
        return samples
    return samples.to(dtype)


# -- what kind of model it is


@contextmanager
def _own_draws() -> Iterator[None]:
    with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []):
        torch.manual_seed(DRAWN)
        yield


def _draws(setting: ReferenceTraining) -> bool:
    """Returns whether its forward pass moves the random generator of its device."""
    model = setting.make_model().train()
    cuda = next(model.parameters()).device.type == "cuda"
    state = torch.cuda.get_rng_state if cuda else torch.get_rng_state
    with _own_draws(), torch.no_grad():
        before = state()
        _loss(setting, model, setting.batches[0], None)
        return not torch.equal(before, state())


def _together(setting: ReferenceTraining, dtype: torch.dtype | None) -> bool:
    """Returns whether the loss of a batch differs from that of its halves by more than rounding: batch norm, for
    instance.
    """
    inputs, targets = setting.batches[0]
    if len(inputs) < 2:
        return False
    model = setting.make_model()
    model = (model if dtype is None else model.to(dtype)).train()
    for module in model.modules():
        if not [*module.children(), *module.parameters(), *module.buffers()]:
            module.eval()  # dropout; of another layer without weights that changes nothing
    half = len(inputs) // 2
    with _own_draws(), torch.no_grad():
        whole = _loss(setting, model, (inputs, targets), dtype).item()
        one = _loss(setting, model, (inputs[:half], targets[:half]), dtype).item()
        two = _loss(setting, model, (inputs[half:], targets[half:]), dtype).item()
    mean = (half * one + (len(inputs) - half) * two) / len(inputs)
    return abs(whole - mean) > (1e-9 if dtype is torch.float64 else 1e-4) * max(1.0, abs(whole))


# -- the tolerance


def _derived(ours: Sequence[Serial], exact: Serial) -> Allowed:
    """`ours`: trainings in the model's precision."""
    losses: list[float] = []
    for i, loss in enumerate(exact.losses):
        far = max(abs(each.losses[i] - loss) for each in ours)
        precision = torch.finfo(_dtype(ours[0])).eps * abs(loss)
        losses.append(MARGIN * max(far, precision, losses[-1] / MARGIN if losses else 0.0))
    return Allowed(
        losses,
        [_of_step([each.gradients[i] for each in ours], step) for i, step in enumerate(exact.gradients)],
        [_of_step([each.weights[i] for each in ours], step) for i, step in enumerate(exact.weights)],
        _of_step([each.averaged or {} for each in ours], exact.averaged or {}),
    )


def _of_step(ours: Sequence[Named], exact: Named) -> dict[str, float]:
    each = [_errors(one, exact) for one in ours]
    errors = {name: max(its[name] for its in each) for name in exact}
    scales = {name: largest(tensor) for name, tensor in exact.items()}
    shares = [errors[name] / scale for name, scale in scales.items() if scale > 0 and exact[name].is_floating_point()]
    usual = max(median(shares) if shares else 0.0, torch.finfo(_narrowest(ours[0])).eps)
    return {name: MARGIN * max(errors[name], usual * scales[name]) for name in errors}


def _errors(ours: Named, exact: Named) -> dict[str, float]:
    return {name: distance(tensor, exact[name]) for name, tensor in ours.items()}


def _noise(ours: Named, exact: Named) -> dict[str, float]:
    """Returns the sizes of noise in gradients: their errors, or of one without an error its last digit's."""
    eps = torch.finfo(_narrowest(ours)).eps
    return {name: far or eps * largest(exact[name]) for name, far in _errors(ours, exact).items()}


def _stated(serial: Serial, tolerance: float) -> Allowed:
    def of(tensors: Named) -> dict[str, float]:
        return {name: tolerance * largest(tensor) for name, tensor in tensors.items()}

    losses = [tolerance * abs(loss) for loss in serial.losses]
    each = [of(step) for step in serial.gradients], [of(step) for step in serial.weights]
    return Allowed(losses, *each, of(serial.averaged or {}))


def _dtype(serial: Serial) -> torch.dtype:
    return _narrowest(serial.weights[0])


def _narrowest(tensors: Named) -> torch.dtype:
    floats = [tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()]
    return max(floats, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float32)


def distance(one: Tensor, other: Tensor) -> float:
    """The largest difference of two entries; infinite where one is not a number."""
    if one.numel() == 0:
        return 0.0
    far = (one.double() - other.double()).abs().max().item()
    return far if far == far else float("inf")


def largest(tensor: Tensor) -> float:
    return tensor.double().abs().max().item() if tensor.numel() else 0.0
