"""The times and the memory of published runs beside their predictions, by software, device and its generation.

`make predictions ARGS=FOLDER` prints these figures: the ranges in its tables "beside plan" and "memory: software", from
runs that no constant was fitted on; the levels by its `--fit`.
"""

from dataclasses import dataclass, replace

from .device import Device, Efficiency
from .devices import generation

# Times that PyTorch's kernels take what `Efficiency` says, by generation: levels.csv of benchmarks/published has their
# groups of runs. Three are of Ampere, one each of Hopper and of Blackwell, none of Ada and CDNA. PyTorch has none of
# Volta and Turing, which have the mean of other software's levels.
LEVELS = {"Volta": 1.08, "Turing": 1.19, "Ampere": 1.06, "Ada": 1.06, "Hopper": 1.23, "Blackwell": 1.79, "CDNA": 1.79}

# Shares of the peak, forward and backward, that PyTorch's fused attention reaches where `Efficiency` has others:
# FlashAttention 2 on an H100, by Shah et al. 2024 (arXiv 2407.08608)
FUSED_ATTENTION = {"Hopper": (0.35, 0.3)}


def with_attention(rates: Efficiency, device: Device) -> Efficiency:
    """Returns `rates` with those of PyTorch's fused attention on this device."""
    forward, back = FUSED_ATTENTION.get(generation(device.name), (rates.attention, rates.attention_back))
    return replace(rates, attention=forward, attention_back=back)


def efficiency(device: Device) -> Efficiency:
    """Returns the rates of PyTorch's kernels on this device."""
    return with_attention(Efficiency(level=LEVELS.get(generation(device.name), 1.0)), device)


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
    Published(PYTORCH, "A100", 61, 0.95, 1.07),
    Published(PYTORCH, "A100 40 GB", 84, 0.99, 1.14),
    Published(PYTORCH, "H100", 3, 1.14, 1.27),
    Published(PYTORCH, "B200", 5, 1.43, 1.65),
    Published(PYTORCH, None, 153, 0.97, 1.17),
    Published(DEEPSPEED, "A100", 1189, 0.84, 1.07),
    Published(DEEPSPEED, "V100", 36, 0.84, 1.36),
    Published(DEEPSPEED, "T4", 47, 1.05, 1.49),
    Published(DEEPSPEED, None, 1272, 0.84, 1.15),
)


def published(software: str, device: str) -> Published:
    """Returns the runs on `device`; where there are none, all of this software."""
    its = {each.device: each for each in RUNS if each.software == software}
    return its.get(device, its[None])


@dataclass(frozen=True)
class PublishedMemory:
    """8 in 10 of `runs` held from `low` to `high` times the memory that is predicted of them, on whatever device."""

    software: str
    runs: int
    low: float
    high: float

    @property
    def margin(self) -> float:
        """The factor by which a device's memory should be more than what is predicted."""
        return max(self.high, 1.0)

    def __str__(self) -> str:
        most = "8 in 10 of" if self.runs >= 10 else "most of"
        return f"{most} {self.runs} published runs of {self.software} held {self.low:g} to {self.high:g} times as much"


MEMORY = (
    PublishedMemory(PYTORCH, 14, 0.99, 1.12),  # in three groups
    PublishedMemory(DEEPSPEED, 4, 1.03, 1.23),  # of one layout
)


def held_by(software: str) -> PublishedMemory | None:
    """Returns the range of this software's runs; None where none states its memory."""
    return next((each for each in MEMORY if each.software == software), None)
