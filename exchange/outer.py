"""The outer optimizer of modes in which replicas train alone and meet now and then."""

from torch import Tensor


def nesterov(w: Tensor, v: Tensor, mean: Tensor, lr: float, momentum: float) -> tuple[Tensor, Tensor]:
    """[n] each: (w, v) after a step of SGD with Nesterov momentum on the gradient D = w - mean."""
    d = w - mean
    v = momentum * v + d
    return w - lr * (d + momentum * v), v
