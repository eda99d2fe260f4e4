"""Pegasos, a sub-gradient solver of support vector machines (Shalev-Shwartz, Singer, Srebro, Cotter 2011, "Pegasos:
Primal Estimated sub-GrAdient SOlver for SVM", Mathematical Programming 127, Figure 2, of mini-batches).

It minimises lambda / 2 |w|^2 + mean of max(0, 1 - y <w, x>), with lambda = `weight_decay`. In step t = 1, 2, ... a
batch A of k samples is drawn, A+ are those of it whose margin y <w, x> is below 1, and

    eta = 1 / (lambda t)
    w <- (1 - eta lambda) w + eta / k sum_{(x, y) in A+} y x
    w <- min(1, 1 / (sqrt(lambda) |w|)) w                       with `project`

There is no rate to choose. The gradient of the batch's mean hinge loss is -1 / k sum_{A+} y x, and comes from backward
(task=hinge task.multiclass=one_vs_rest). Replicas that step with the mean over the samples of all (sync=bsp) are
Pegasos with a k of all these samples.

Of K classes there are K machines, each against all other classes: row r of the weights W [K, d] and its bias are w of
one of them, and are projected by themselves. The bias is the weight of a feature that is always 1, the first way of
the paper's section 6: it is regularised, as by LIBLINEAR.

Deviations: samples are dealt by epochs, without replacement, where the paper draws each batch anew; the first w is that
of the model, where the paper's is 0 (or, in its first version of ICML 2007, any in the ball). In the first step
1 - eta lambda = 0, so that all that is left of the first w is which samples are in A+.

A step is of a row of W and its bias together: pieces of them cannot be stepped by themselves.

Use it for linear support vector machines: it comes within epsilon of the minimum in some 1 / (lambda epsilon) steps of
one sample, whatever the number of samples is.
"""

from collections.abc import Iterable
from typing import Annotated, Any

import torch
from annotated_types import Gt
from torch import Tensor, nn
from torch.optim import Optimizer

from ...conf.errors import ConfigError


class Pegasos(Optimizer):
    """Steps on the weights [classes, features] of one linear layer, and on its biases [classes] if it has some.

    Its state is t, and nothing as long as the weights.
    """

    whole_tensors = True

    def __init__(
        self, params: Iterable[nn.Parameter], weight_decay: Annotated[float, Gt(0)] = 0.001, project: bool = True
    ) -> None:
        """`weight_decay`: lambda. `project`: onto the ball of radius 1 / sqrt(lambda), in which the minimum is.

        Raises `ConfigError` for other parameters.
        """
        params = list(params)
        _check_shapes([list(each.shape) for each in params])
        super().__init__(params, {"weight_decay": weight_decay, "project": project, "t": 0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """A parameter without a gradient has one of zeros, as a batch does in which no margin is missed."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        [group] = self.param_groups
        group["t"] += 1
        decay, w = group["weight_decay"], group["params"]  # lambda; W [K, d], b [K]
        eta = 1 / (decay * group["t"])
        for each in w:
            # w <- (1 - eta lambda) w + eta / k sum_{A+} y x
            each.mul_(1 - eta * decay)
            if each.grad is not None:
                each.sub_(each.grad, alpha=eta)
        if group["project"]:
            # w <- min(1, 1 / (sqrt(lambda) |w|)) w
            shrink = (1 / (decay**0.5 * norms(w))).clamp(max=1)
            for each in w:
                each.mul_(shrink.view(-1, *[1] * (each.dim() - 1)))
        return loss


def norms(w: list[Tensor]) -> Tensor:
    """[K]: |w| of each class, of its row of the weights [K, d] and its bias, where there are biases [K]."""
    return torch.stack([each.square().view(len(each), -1).sum(dim=1) for each in w]).sum(dim=0).sqrt()


def _check_shapes(shapes: list[list[int]]) -> None:
    """Raises `ConfigError` unless they are [K, d], and maybe [K]."""
    weights, biases = [each for each in shapes if len(each) == 2], [each for each in shapes if len(each) != 2]
    if len(weights) == 1 and biases in ([], [weights[0][:1]]):
        return
    tensors = "one tensor" if len(shapes) == 1 else f"{len(shapes)} tensors"
    listed = ", ".join(map(str, shapes[:4])) + (", ..." if len(shapes) > 4 else "")
    raise ConfigError(
        "optimizer=pegasos: steps with the weights and biases of one linear layer, which is the whole model, and here "
        f"are {tensors} ({listed}). Choose model=linear, or optimizer=sgd."
    )
