"""The curves of a run's metrics over its steps, thinned to as many points as a screen can show."""

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..evaluations import AXES, lived
from ..run_data import RunData
from ..values import number

TRAINING_LOSS, TEST_LOSS, ACCURACY, R2 = "training loss", "test loss", "accuracy", "r2"
POINTS_OF_ALL = 150_000  # in one report
POINTS_AT_LEAST = 64  # of a curve, however many there are
_NOT_DRAWN = {*AXES, "kind", "step_time", "samples_per_second"}  # the last two: the summary has them, in steady state
_NAMES = {("step", "loss"): TRAINING_LOSS, ("evaluation", "loss"): TEST_LOSS}

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """`values` at each of `steps`; `epochs` and `seconds` (of training): the same moments, None where unknown.

    `bytes_per_step`: what all workers send in a step, on average.
    """

    values: Floats
    steps: Floats
    epochs: Floats | None
    seconds: Floats | None
    bytes_per_step: float | None = None

    def __len__(self) -> int:
        return len(self.values)

    def at(self, places: NDArray[np.intp]) -> "Curve":
        def some(axis: Floats | None) -> Floats | None:
            return None if axis is None else axis[places]

        return Curve(
            self.values[places], self.steps[places], some(self.epochs), some(self.seconds), self.bytes_per_step
        )

    def along(self, axis: str) -> Floats | None:
        """Returns the positions of its points on one of AXES; None where they are not known."""
        match axis:
            case "bytes":
                return None if self.bytes_per_step is None else self.steps * self.bytes_per_step
            case "epoch":
                return self.epochs
            case "time":
                return self.seconds
        return self.steps


def curves_of(run: RunData) -> dict[str, Curve]:
    """Returns the curves by metric, in the order of the steps."""
    points: dict[str, list[tuple[float, ...]]] = {}
    for record in lived(run.records):
        kind = record.get("kind")
        if kind not in ("step", "evaluation"):
            continue
        step, epoch, time = (number(record.get(axis)) for axis in AXES)
        if step is None or not math.isfinite(step):
            continue
        moment = (step, math.nan if epoch is None else epoch, math.nan if time is None else time)
        for key, value in record.items():
            if key not in _NOT_DRAWN and (read := number(value)) is not None:
                points.setdefault(_NAMES.get((kind, key), key), []).append((read, *moment))
    return {name: _curve(of_metric) for name, of_metric in points.items()}


def _curve(points: list[tuple[float, ...]]) -> Curve:
    values, steps, epochs, seconds = np.array(points, dtype=np.float64).T
    order = np.argsort(steps, kind="stable")
    known = [axis[order] if np.isfinite(axis).all() else None for axis in (epochs, seconds)]
    return Curve(values[order], steps[order], *known)


def limit_for(lengths: Sequence[int], total: int = POINTS_OF_ALL) -> int:
    """The points a curve may have, so that all together have `total`: short ones leave theirs to long ones."""
    left, curves = total, sorted(lengths)
    for i, length in enumerate(curves):
        share = left // (len(curves) - i)
        if length > share:
            return max(share, POINTS_AT_LEAST)
        left -= length
    return max([*lengths, POINTS_AT_LEAST])


def thin(curve: Curve, limit: int) -> Curve:
    """Returns at most `limit` points: the first, the last, and the smallest and the largest of each of equal bins
    between.

    A bin with values that are not finite keeps one of them: where a run diverged is seen.
    """
    if len(curve) <= limit:
        return curve
    bins = np.array_split(np.arange(1, len(curve) - 1), max((limit - 2) // 2, 1))
    kept = {0, len(curve) - 1}
    for places in bins:
        values = curve.values[places]
        finite = np.isfinite(values)
        if finite.any():
            kept.add(int(places[np.where(finite, values, np.inf).argmin()]))
        last = ~finite if not finite.all() else np.where(finite, values, -np.inf)
        kept.add(int(places[last.argmax()]))
    return curve.at(np.array(sorted(kept)))


def encode(curve: Curve) -> dict[str, Any]:
    """Returns the curve in the page's format: float32 in base64; even steps as [first, distance], even epochs as epochs
    a step.
    """
    steps: Any = _base64(curve.steps)
    if len(curve) > 1 and np.ptp(np.diff(curve.steps)) == 0:
        steps = [curve.steps[0], curve.steps[1] - curve.steps[0]]
    epochs: Any = None
    if curve.epochs is not None:
        rate = curve.epochs[-1] / curve.steps[-1] if curve.steps[-1] else 0.0
        even = np.allclose(curve.epochs, curve.steps * rate, rtol=1e-5, atol=1e-9)
        epochs = rate if even else _base64(curve.epochs)
    seconds = None if curve.seconds is None else _base64(curve.seconds)
    along = {"step": steps, "epoch": epochs, "time": seconds, "bytes": curve.bytes_per_step}
    return {"n": len(curve), "y": _base64(curve.values), **along}


def _base64(values: Floats) -> str:
    with np.errstate(over="ignore"):
        return base64.b64encode(values.astype("<f4").tobytes()).decode()
