"""The constants of `paceline.cost.device.Efficiency`, from the rows that may be fitted on."""

from dataclasses import replace
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from paceline.cost.device import Efficiency

from .rows import Case, measured

FITTED = ("inner", "ramp", "launch", "collective", "step", "send")


def fitted(cases: list[Case], keys: tuple[str, ...] = FITTED) -> Efficiency:
    """Least squares of log(predicted / measured), large errors weighed less,
    with a weak prior at the starting values."""
    start = Efficiency()

    def at(logs: Any) -> Efficiency:
        return replace(
            start, **{key: getattr(start, key) * float(np.exp(x)) for key, x in zip(keys, logs, strict=True)}
        )

    def residuals(logs: Any) -> list[float]:
        fits = at(logs)
        times = [np.log(c.predicted(fits) / measured(c)) for c in cases]
        return [*times, *(x / 1.4 for x in logs)]

    return at(least_squares(residuals, np.zeros(len(keys)), loss="soft_l1", f_scale=0.05).x)
