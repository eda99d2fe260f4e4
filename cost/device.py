"""The time of one kernel on a device: a roofline (Williams et al. 2009, "Roofline", CACM 52(4)) in whole waves.

A product of an (m, k) by a (k, n) matrix is cut into tiles, of which a device computes as many at once as it has
multiprocessors; the last wave takes as long as a full one. It takes

    max(waves x (a wave's flops) / (best peak) (1 + inner / k), (m k + k n + m n) bytes / (streamed bandwidth)) + ramp

seconds. `best` is the share of the data sheet's peak that the best products reach; `ramp` is what a kernel takes to
begin and to end; `inner` is the length of the sum at which the work around the inner loop (loading the first tiles,
writing the result) is as much as the loop itself. A kernel without products takes the time of its bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil

TILES = ((256, 128, 1.0), (128, 128, 1.06), (128, 64, 1.2))  # rows, columns, and time beside that of the largest


@dataclass(frozen=True)
class Device:
    """Data sheet figures, and what was measured beside them. Shares default to those of `Efficiency`."""

    name: str
    peak: Mapping[str, float]  # dense floating-point operations a second, by dtype
    bandwidth: float  # bytes of its memory a second
    units: int  # multiprocessors, or what computes a tile
    best: Mapping[str, float] = field(default_factory=dict)  # by dtype: the share of peak that the best products reach
    cuda: bool = True  # torch trains on it as on a CUDA device; ROCm's count


@dataclass(frozen=True)
class Efficiency:
    """The share of a data sheet that is reached, and the overhead of software: fitted once (see docs/predictions.md),
    for all devices.

    `best` to `contended` are shares; `level` is a factor; `norm` to `scores` are counts; `inner` is a length; all
    others are seconds.
    """

    best: float = 0.869  # A100 in bfloat16, where a device's own is not known
    streamed: float = 0.8  # of the memory's bandwidth
    attention: float = 0.4  # of peak, in one kernel: 0.25 to 0.4 by Dao et al. 2022, 0.5 to 0.73 by Dao 2023
    attention_back: float = 0.3
    contended: float = 0.189  # of compute, lost while a collective runs beside (Lee et al. 2025, arXiv 2507.03114)
    level: float = 1.0  # times that a kernel takes what it takes at these rates: see cost/profiles.py
    norm: int = 2  # entries that a layer's norm reads and writes for each of its input
    residual: int = 3  # that dropout and the residual's sum do
    activation: int = 2  # that an activation function without gates does
    scores: int = 4  # that softmax and dropout do for each score
    inner: float = 87.0
    ramp: float = 3.8e-5
    launch: float = 3.9e-5  # of the host, for each kernel that it launches
    collective: float = 2.2e-5  # of the host, for each collective
    step: float = 4.6e-3  # of the host, for each step: the loss's value, gradient scaling, learning rate
    send: float = 1.0e-4  # for each message from stage to stage, on both sides


def product(device: Device, fits: Efficiency, dtype: str, m: float, n: float, k: float, count: float = 1) -> float:
    """Seconds of `count` products of (m, k) by (k, n) in one kernel."""
    reached = device.best.get(dtype, fits.best) * device.peak[dtype]
    at_once = device.units
    computed = min(
        ceil(ceil(m / rows) * ceil(n / columns) * count / at_once) * at_once * 2 * rows * columns * k / reached * slower
        for rows, columns, slower in TILES
    )
    moved = (m * k + k * n + m * n) * count * entry_bytes(dtype)
    return max(fits.level * computed * (1 + fits.inner / k), streamed(device, fits, moved)) + fits.ramp


def entry_bytes(dtype: str) -> int:
    return {"float32": 4, "tf32": 4, "float8": 1, "float4": 1}.get(dtype, 2)


def streamed(device: Device, fits: Efficiency, nbytes: float) -> float:
    """Seconds to read and write `nbytes` of the device's memory."""
    return fits.level * nbytes / (fits.streamed * device.bandwidth)
