"""FGSM and PGD: inputs that are changed as far as allowed where the loss grows most.

FGSM, Goodfellow, Shlens and Szegedy 2015, "Explaining and Harnessing Adversarial Examples" (ICLR; arXiv 1412.6572),
section 4:

    x' = x + eps sign(grad_x L(x, y))

PGD, Madry et al. 2018, "Towards Deep Learning Models Resistant to Adversarial Attacks" (ICLR; arXiv 1706.06083),
section 2.1, from x or from a random place in the ball S around it:

    x^{t+1} = Proj_{x + S}(x^t + a sign(grad_x L(x^t, y)))

In L2 the sign is g / |g|, the direction of steepest ascent there. Towards a target t it is the other way: L(x, t)
falls. Both stay in the data's range. One step of PGD of size eps from x is FGSM, to the bit.

Gradients are those of the model in evaluation mode: batch norms use their running statistics, which the passes of an
attack leave as they are, and dropout drops nothing and draws nothing. No gradient of a weight is computed.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ...batches import Samples, of_each
from ...conf.errors import ConfigError
from .threat import Threat

Loss = Callable[..., Tensor]  # (outputs, targets) -> [], a mean over samples


def fgsm(model: nn.Module, loss: Loss, x: Tensor, y: Samples, threat: Threat, towards: bool = False) -> Tensor:
    """Changed inputs, of the shape of `x` [n, ...]. `towards`: y is what they are to be taken for."""
    with evaluating(model):
        g = ascent(model, loss, x, y, towards)
    return threat.within(x + threat.radius * threat.norm.direction(g), x)


def pgd(
    model: nn.Module,
    loss: Loss,
    x: Tensor,
    y: Samples,
    threat: Threat,
    steps: int,
    step_size: float,
    start: Tensor | None = None,
    towards: bool = False,
) -> Tensor:
    """Changed inputs, of the shape of `x` [n, ...]. `step_size`: a share of the data's range, as eps is.

    `start`: of the unit ball (`Norm.start`); None: from x itself.
    """
    a = step_size * (threat.high - threat.low)
    changed = x if start is None else threat.within(x + threat.radius * start, x)
    with evaluating(model):
        for _ in range(steps):
            g = ascent(model, loss, changed, y, towards)
            changed = threat.within(changed + a * threat.norm.direction(g), x)
    return changed


def ascent(model: nn.Module, loss: Loss, x: Tensor, y: Samples, towards: bool = False) -> Tensor:
    """The gradient of the loss by the inputs, n times that of its mean; of `towards` the way in which it falls.

    The model and the loss are given copies, which they may change. Raises `ConfigError` for a model whose outputs
    have no gradient by its inputs.
    """
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        total = loss(model(x.clone()), of_each(y, Tensor.clone)) * len(x)
        sought = -total if towards else total
        g = torch.autograd.grad(sought, [x], allow_unused=True)[0] if sought.requires_grad else None
    if g is None:
        raise ConfigError(
            f"{type(model).__name__}: its outputs have no gradient by its inputs, which an attack follows. Choose "
            "evaluate.attack=none and adversarial_training=none, or compute them without detach() and without integers."
        )
    return g


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Puts the model in evaluation mode. Afterwards each of its modules is in its former mode."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


def default_step(eps: float, steps: int) -> float:
    """2.5 eps / steps: the edge is reached from anywhere, and there is some way left to move along it."""
    return 2.5 * eps / max(steps, 1)
