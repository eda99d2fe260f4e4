"""The range of times of published runs beside their predictions, by software and device.

`make predictions ARGS=FOLDER` prints these figures (its table "step time: software", column "8 in 10 took"), from runs
that no constant was fitted on.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """8 in 10 of `runs` took from `low` to `high` times what is predicted of them."""

    software: str
    device: str | None  # None: all devices of the runs
    runs: int
    low: float
    high: float

    def __str__(self) -> str:
        where = f"{self.software} on {self.device}" if self.device else f"{self.software}, none of them on this device,"
        most = "8 in 10 of" if self.runs >= 10 else "most of"
        return f"{most} {self.runs:,} published runs of {where} took {self.low:g} to {self.high:g} times as long"


PYTORCH, DEEPSPEED = "PyTorch", "DeepSpeed"
RUNS = (
    Published(PYTORCH, "A100", 61, 1.01, 1.13),
    Published(PYTORCH, "A100 40 GB", 84, 1.04, 1.24),
    Published(PYTORCH, "H100", 3, 1.05, 1.34),
    Published(PYTORCH, "B200", 5, 2.32, 2.89),
    Published(PYTORCH, None, 153, 1.03, 1.28),
    Published(DEEPSPEED, "A100", 1189, 0.88, 1.10),
    Published(DEEPSPEED, "V100", 36, 0.87, 1.39),
    Published(DEEPSPEED, "T4", 47, 1.23, 1.62),
    Published(DEEPSPEED, None, 83, 1.01, 1.55),
)


def published(software: str, device: str) -> Published:
    """Returns the runs on `device`; where there are none, all of this software."""
    its = {each.device: each for each in RUNS if each.software == software}
    return its.get(device, its[None])
