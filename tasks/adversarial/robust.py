"""Measures a model's accuracy on test samples that an adversary may change, and lists doubts about the measurement.

A sample counts by the worst of what it is given: itself, and what each restart of the attack makes of it. So robust
accuracy is never above clean accuracy, and one more restart never raises it. Of a sample with several predictions (an
image's pixels) the worst of these is the one with the fewest right.

Samples are attacked in the order of the split, and where a random start is wanted it follows from the seed and the
sample's number: the same weights give the same robust accuracy, whatever the run's strategy and sync mode.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from ...batches import lone
from ..base import Readable, Taken
from ..errors import SampleError
from ..losses.base import Task
from .attacks import ascent, evaluating, fgsm, pgd
from .threat import Threat

Method = Literal["fgsm", "pgd", "noise"]
Target = Literal["next", "least_likely"] | int


@dataclass(frozen=True)
class InputAttack:
    """`step_size`: a share of the range, like eps; where several eps are tried it keeps its proportion to eps.

    `noise` goes to a random place of the ball and looks at no gradient: what any attack must beat. `target`: what
    samples are to be taken for: the class after their own, the one that the model finds least likely, or one class.
    """

    method: Method
    threat: Threat
    steps: int = 1
    step_size: float = 0.0
    restarts: int = 1
    random_start: bool = True
    target: Target | None = None
    seed: int = 0

    def at(self, eps: float) -> "InputAttack":
        """Returns the attack with another eps, and steps in proportion."""
        step = self.step_size * eps / self.threat.eps if self.threat.eps else self.step_size
        return replace(self, threat=replace(self.threat, eps=eps), step_size=step)

    def points(self, model: nn.Module, task: Task, x: Tensor, y: Tensor, samples: Tensor) -> Iterator[Tensor]:
        """Changed inputs, of each restart. `y`: labels, or what `targets_of` gives."""
        towards = self.target is not None
        for restart in range(self.restarts if self.method != "fgsm" else 1):
            start = None
            if self.method == "noise" or (self.method == "pgd" and self.random_start):
                start = self.threat.norm.start(samples, x.shape[1:], "attack", self.seed, restart)
            match self.method:
                case "noise":
                    assert start is not None
                    yield self.threat.within(x + self.threat.radius * start, x)
                case "fgsm":
                    yield fgsm(model, task.loss, x, y, self.threat, towards)
                case "pgd":
                    yield pgd(model, task.loss, x, y, self.threat, self.steps, self.step_size, start, towards)

    def targets_of(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Returns the labels that samples are to be taken for. Without a target it returns their own, from which they
        are led away.

        outputs [n, ..., classes], labels [n, ...] int64.
        """
        match self.target:
            case None:
                return labels
            case "next":
                return (labels + 1) % outputs.shape[-1]
            case "least_likely":
                return outputs.argmin(dim=-1)
            case number:
                return torch.full_like(labels, number)


@dataclass(frozen=True)
class RobustAccuracy:
    """`accuracy`: as above. `reached`: with a target, the share of predictions of other labels than the target's that
    can be led to it; None without.
    """

    accuracy: float
    reached: float | None
    samples: int


@torch.no_grad()
def robustness(
    task: Task,
    model: nn.Module,
    split: Readable,
    attack: InputAttack,
    batch_size: int = 512,
    device: torch.device | str = "cpu",
    most: int | None = None,
) -> RobustAccuracy:
    """Measures `model`, which lies on `device`, on the first `most` samples. Raises SampleError where the data leave
    the range that they state.
    """
    right = total = led = others = 0.0
    count = len(split) if most is None else min(most, len(split))
    with evaluating(model):
        for first, taken in _batches(split, batch_size, count):
            x, y = lone(taken.inputs).to(device), taken.targets.to(device)
            check_range(x, attack.threat.low, attack.threat.high, f"test samples from {first} on")
            samples = torch.arange(first, first + len(x), device=device)
            weights = torch.ones(y.shape, device=device) if taken.weights is None else taken.weights.to(device)
            weights = weights.double()
            outputs = model(x.clone())  # it may change what it is given
            wanted = attack.targets_of(outputs, y)
            worst = _of_samples((outputs.argmax(dim=-1) == y) * weights)
            elsewhere = (wanted != y) * weights
            most_led = _of_samples((outputs.argmax(dim=-1) == wanted) * elsewhere)
            for changed in attack.points(model, task, x, wanted, samples):
                found = model(changed).argmax(dim=-1)
                worst = torch.minimum(worst, _of_samples((found == y) * weights))
                most_led = torch.maximum(most_led, _of_samples((found == wanted) * elsewhere))
            right, total = right + worst.sum().item(), total + weights.sum().item()
            led, others = led + most_led.sum().item(), others + elsewhere.sum().item()
    reached = None if attack.target is None else led / max(others, 1.0)
    return RobustAccuracy(right / total, reached, count)


def _batches(split: Readable, batch_size: int, count: int) -> Iterator[tuple[int, Taken]]:
    for first in range(0, count, batch_size):
        yield first, split.take(slice(first, min(first + batch_size, count)))


def _of_samples(of_predictions: Tensor) -> Tensor:
    return of_predictions.flatten(1).sum(dim=1) if of_predictions.dim() > 1 else of_predictions


def check_range(x: Tensor, low: float, high: float, what: str) -> None:
    """Raises SampleError."""
    least, most = (float(bound) for bound in x.aminmax())
    if least < low or most > high:
        raise SampleError(
            f"{what} have values from {least:g} to {most:g}, and the data's spec.range is {low:g} to {high:g}, by "
            "which eps is counted and to which changed samples are clipped; it must hold all of them"
        )


# -- what to doubt


@dataclass(frozen=True)
class Signs:
    """Signs of masked gradients: the model errs near its samples, and this attack does not find where."""

    zero_gradients: float  # share of samples whose gradient by the input is 0 in every entry
    half_range: (
        float | None
    )  # accuracy at an eps with which any sample can become the grey in the middle; None: not PGD's
    noise: float  # accuracy under noise of the same eps

    def doubts(self, accuracy: float, of_fgsm: float, method: Method, chance: float, samples: int) -> list[str]:
        """Sentences. `accuracy`: under the attack, `of_fgsm`: under FGSM, at the same eps; `chance`: of the commonest
        class. Differences of less than two samples in a hundred, or of two samples, are none.
        """
        least = max(0.02, 2 / samples)
        found: list[str] = []
        if self.zero_gradients > 0.01:
            found.append(f"the gradient by the input is exactly 0 for {self.zero_gradients:.0%} of the samples")
        if method == "pgd" and accuracy > of_fgsm + least:
            found.append(f"PGD leaves {accuracy:.2%} and FGSM, which is one step of it, {of_fgsm:.2%}")
        if self.half_range is not None and self.half_range > chance + least:
            found.append(
                f"{self.half_range:.2%} are right with an eps of half the range, where any sample can become the grey "
                "in the middle"
            )
        if accuracy > self.noise + least:
            found.append(f"noise of the same size leaves {self.noise:.2%}, less than the attack")
        return found


def zero_gradients(
    task: Task, model: nn.Module, split: Readable, batch_size: int, device: torch.device | str, most: int | None = None
) -> float:
    """The share of samples whose gradient by the input is 0 in every entry."""
    zero, count = 0, len(split) if most is None else min(most, len(split))
    with evaluating(model):
        for _, taken in _batches(split, batch_size, count):
            g = ascent(model, task.loss, lone(taken.inputs).to(device), taken.targets.to(device))
            zero += int((g.flatten(1) == 0).all(dim=1).sum())
    return zero / count
