"""Parameters that a loss depends on and that the model does not hold."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn


def parameters_of(loss: Tensor) -> list[nn.Parameter]:
    """Returns the parameters that a backward pass from `loss` gives gradients, each once."""
    nodes, seen = [loss.grad_fn], set[Any]()
    found: dict[int, nn.Parameter] = {}
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if isinstance(variable, nn.Parameter):
            found[id(variable)] = variable
        nodes += [each for each, _ in node.next_functions]
    return list(found.values())


def foreign_to(modules: Iterable[nn.Module], loss: Tensor) -> list[nn.Parameter]:
    """Returns the parameters of `parameters_of` that none of the modules holds."""
    own = {id(each) for module in modules for each in module.parameters()}
    return [each for each in parameters_of(loss) if id(each) not in own]
