"""The operators of a GPT's layer under the roof of the accelerator that is described, before anything runs.

A product of an (m, k) by a (k, n) matrix has the intensity 2 m n k / ((m k + k n + m n) bytes of an entry); its rate is
its flops over the time that `cost.device.product` predicts.
"""

from ...cost.device import Efficiency, entry_bytes, product
from ...cost.predicted import NotPredicted
from ...cost.transformer import products
from ...tracking.drawn.roofline import Roof, RooflinePoint
from ..planning.planned import Plan
from .step_time import transformer_on

NAMES = (
    "queries, keys, values",
    "scores",
    "scores x values",
    "attention's output",
    "feed-forward, up",
    "feed-forward, down",
)


def roofline(plan: Plan, allowed: tuple[str, ...] = ()) -> tuple[Roof, list[RooflinePoint]]:
    """Forward products of one micro-batch on one device, as single kernels. Raises `NotPredicted`."""
    device, of, layout = transformer_on(plan.experiment, plan.layout, plan.spec, plan.device, allowed)
    dtype = layout.dtype
    if dtype not in device.peak:
        raise NotPredicted(f"how fast {device.name} is in {dtype} is not known")
    points: list[RooflinePoint] = []
    for name, each in zip(NAMES, products(of, layout.samples, layout.tensor), strict=True):
        moved = (each.m * each.k + each.k * each.n + each.m * each.n) * each.count * entry_bytes(dtype)
        seconds = product(device, Efficiency(), dtype, each.m, each.n, each.k, each.count)
        points.append(RooflinePoint(name, each.flops / moved, each.flops / seconds))
    return Roof(f"{device.name} in {dtype}", device.peak[dtype], device.bandwidth), points
