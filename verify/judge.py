"""Decides whether a run was serial training: by the tolerance where it must be, else by the promises of its
sync mode.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from ..engine.features.feature import Parts
from ..engine.training.probe import Probed
from ..strategies.core.protocols import SideBySide, accumulated_by
from ..strategies.core.staged import StagedStrategy
from .reference import Named, Reference, distance, largest

Word = Literal["pass", "fail", "by design", "refused", "not run"]


@dataclass(frozen=True)
class Deviation:
    """A deviation from serial training: `largest` is relative to the largest entry of the same tensor, or to
    the loss.
    """

    step: int
    what: Literal["loss", "gradient", "weight", "average"]
    name: str  # of the tensor; "" for the loss
    largest: float
    share: float  # of what is allowed; more than 1 is too much

    def __str__(self) -> str:
        of = f"the {self.what} of {self.name}" if self.name else "the loss"
        return f"step {self.step}: {of} differs by {self.largest:.1e}, {self.share:.3g} times what is allowed"


@dataclass(frozen=True)
class VerificationRow:
    """The result of one layout. Differences are the largest of all steps; None where nothing could be compared."""

    overrides: tuple[str, ...]
    workers: int | None
    replicas: int | None
    word: Word
    why: str = ""
    loss: Deviation | None = None
    gradients: dict[str, Deviation] = field(default_factory=dict)  # by parameter
    weights: dict[str, Deviation] = field(default_factory=dict)
    first: Deviation | None = None  # that is too large
    differing: int = 0  # parameters that differ too much in that step

    def as_dict(self) -> dict[str, Any]:
        return {
            "overrides": list(self.overrides),
            "workers": self.workers,
            "replicas": self.replicas,
            "verdict": self.word,
            "why": self.why or None,
            "loss": _plain(self.loss),
            "gradients": {name: _plain(each) for name, each in self.gradients.items()} or None,
            "weights": {name: _plain(each) for name, each in self.weights.items()} or None,
            "first": _plain(self.first),
            "differing": self.differing,
        }


def _plain(each: Deviation | None) -> dict[str, Any] | None:
    if each is None:
        return None
    return {"step": each.step, "what": each.what, "name": each.name, "relative": each.largest, "share": each.share}


def not_judged(parts: Parts, reference: Reference, batch_size: int) -> str:
    """Returns the reason why a run with these parts need not be serial training; "" where it must be."""
    strategy, sync, replicas = parts.strategy, parts.sync, parts.layout.replicas
    alone = replicas == 1
    accumulated = max(parts.accumulation.micro_batches, accumulated_by(strategy))
    pieces = accumulated * (len(strategy.micro_sizes(batch_size)) if isinstance(strategy, StagedStrategy) else 1)
    if reference.draws and not (alone and pieces == 1 and strategy.traits.bitwise):
        return "the model draws random numbers (dropout), and each worker and micro-batch its own"
    if reference.together and (pieces > 1 or not (alone or strategy.traits.across_replicas)):
        return "the model treats a batch's samples together (batch norm), and each replica and micro-batch its own"
    if alone:
        return "" if sync.traits.serial_alone else "one replica alone is not serial training in this mode either"
    if not sync.traits.synchronous:
        return "asynchronous: replicas step at paces of their own"
    if isinstance(sync, SideBySide):
        return "each replica learns its own samples alone, and the run's model is all of them side by side"
    if not sync.traits.weights_agree:
        return "replicas differ between exchanges"
    if not sync.traits.exact:
        return "what is sent is rounded or left out, or gradients are joined, cut or timed in another way"
    return ""


def judge(
    overrides: tuple[str, ...], parts: Parts, batch_size: int, seen: Probed, reference: Reference
) -> VerificationRow:
    """Evaluates a run that came to its end."""
    found = list(_differences(seen, reference))
    loss = max((each for each in found if each.what == "loss"), key=lambda each: each.share, default=None)
    gradients, weights = _worst(found, "gradient"), _worst(found, "weight")
    why, word, first, differing = not_judged(parts, reference, batch_size), "pass", None, 0
    agrees = "replicas, and all that hold the same tensor, agree bit for bit"
    if seen.disagree is not None:
        step, name = seen.disagree
        word, why = "fail", f"step {step}: workers that should hold the same {name} hold different values"
    elif why:
        word = "by design"
        if parts.sync.traits.synchronous and parts.sync.traits.weights_agree and parts.layout.workers > 1:
            why = f"{why}; {agrees}"
    elif wrong := [each for each in found if not each.share <= 1]:
        first = next((each for each in wrong if each.name and each.step == wrong[0].step), wrong[0])
        differing = len({each.name for each in wrong if each.step == first.step and each.what == first.what})
        word, why = "fail", str(first)
    elif not weights:
        word, why = "fail", "no weights were kept, so that there is nothing to compare"
    return VerificationRow(
        overrides, parts.layout.workers, parts.layout.replicas, word, why, loss, gradients, weights, first, differing
    )  # type: ignore[arg-type]


def _differences(seen: Probed, reference: Reference) -> Iterator[Deviation]:
    """Yields deviations step by step: the loss, the gradients in the model's order, the weights after the step."""
    serial, allowed = reference.serial, reference.allowed
    last = len(serial.losses)
    for i in range(last):
        if (loss := seen.losses[i]) is not None:
            far = abs(loss - serial.losses[i])
            yield Deviation(i + 1, "loss", "", far / (abs(serial.losses[i]) or 1.0), _share(far, allowed.losses[i]))
        yield from _of(i + 1, "gradient", seen.gradients[i], serial.gradients[i], allowed.gradients[i])
        weights = seen.weights[i]
        if weights is None and i + 1 == last:
            weights = seen.made
        yield from _of(i + 1, "weight", weights, serial.weights[i], allowed.weights[i])
    if serial.averaged is not None:
        yield from _of(last, "average", seen.averaged or {}, serial.averaged, allowed.averaged)


def _of(
    step: int,
    what: Literal["gradient", "weight", "average"],
    seen: Named | None,
    wanted: Named,
    allowed: dict[str, float],
) -> Iterator[Deviation]:
    if seen is None:
        return
    for name, tensor in wanted.items():
        far = _far(seen.get(name), tensor)
        yield Deviation(step, what, name, far / (largest(tensor) or 1.0), _share(far, allowed[name]))


def _far(seen: Tensor | None, wanted: Tensor) -> float:
    if seen is None or seen.shape != wanted.shape:
        return float("inf")
    return distance(seen, wanted)


def _share(far: float, allowed: float) -> float:
    """Returns the share of the allowed deviation. If none is allowed (also for a tensor that is zero in exact
    arithmetic), any is too much.
    """
    return far / allowed if allowed > 0 else (0.0 if far == 0 else float("inf"))


def _worst(found: list[Deviation], what: str) -> dict[str, Deviation]:
    worst: dict[str, Deviation] = {}
    for each in found:
        if each.what == what and (each.name not in worst or each.share > worst[each.name].share):
            worst[each.name] = each
    return worst
