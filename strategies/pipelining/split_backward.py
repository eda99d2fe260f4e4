"""A backward pass in two: the gradient of the input, which another worker waits for, and those of the weights, later.

Qi et al. 2024 (arXiv 2401.10241), section 2. Autograd's graph has a path from the output to the input, and branches
that leave it to the weights: for y = x W^T the path goes on with dx = dy W, and the branch is dW = dy^T x. The first
pass takes the path alone, and keeps the gradient (dy) that comes to each node at which branches leave; the second one
takes the branches, each from there. Both compute what one pass would, in its order, so that the bits are the same.
(torch.distributed.pipelining does so too, by names that are private.)
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

Gradients = tuple[Tensor | None, ...]


def backward_to_input(
    output: Tensor, gradient: Tensor | None, inputs: Tensor, weights: Sequence[Tensor]
) -> Callable[[], None]:
    """Writes the gradient of `inputs`, a leaf, into its `grad`. Returns the rest of the pass.

    The rest is a function, to be called once, that adds up the gradients of `weights`.

    `gradient`: of the output; None where that is a loss. Nothing in the graph may be computed again for backward: it
    would be for each call that asks for it (again.py).
    """
    root = output.grad_fn
    assert root is not None
    branches = _branches(root, inputs)
    kept: dict[Node, Gradients] = {}
    hooks = [node.register_prehook(partial(kept.__setitem__, node)) for node in branches]
    [inputs.grad] = torch.autograd.grad([output], [inputs], [gradient], retain_graph=True)
    for hook in hooks:
        hook.remove()
    ends = [end for found in branches.values() for end in found]
    if len(ends) != len(set(ends)):  # one weight has several branches, which add up on the way
        return partial(torch.autograd.backward, [output], [gradient], inputs=list(weights))
    return partial(_take, [(node, gradients, branches[node]) for node, gradients in kept.items()])


def _take(branches: list[tuple[Node, Gradients, list[Tensor]]]) -> None:
    for node, gradients, ends in branches:
        edges = [(GradientEdge(node, i), each) for i, each in enumerate(gradients) if each is not None]
        torch.autograd.backward([edge for edge, _ in edges], [each for _, each in edges], inputs=ends)
    branches.clear()


def _branches(root: Node, inputs: Tensor) -> dict[Node, list[Tensor]]:
    """Returns, for each node on a path to `inputs`, the other leaves that are reached beside the paths, if any."""
    ordered = list(_after_what_they_need(root))
    path: set[Node] = set()
    for node in ordered:
        if _leaf(node) is inputs or any(each in path for each in _next(node)):
            path.add(node)
    beside: dict[Node, list[Tensor]] = {}  # of a node off the paths, the leaves that are reached from it
    for node in ordered:
        if node not in path:
            leaf = _leaf(node)
            beside[node] = _distinct([] if leaf is None else [leaf], *(beside[each] for each in _next(node)))
    found = {node: _distinct(*(beside[each] for each in _next(node) if each not in path)) for node in path}
    return {node: leaves for node, leaves in found.items() if leaves}


def _after_what_they_need(root: Node) -> Iterator[Node]:
    """Every node of the graph after those that follow it on the way to the leaves."""
    stack, seen = [(root, iter(_next(root)))], {root}
    while stack:
        following = next((each for each in stack[-1][1] if each not in seen), None)
        if following is None:
            yield stack.pop()[0]
        else:
            seen.add(following)
            stack.append((following, iter(_next(following))))


def _next(node: Node) -> list[Node]:
    return [each for each, _ in node.next_functions if each is not None]


def _leaf(node: Node) -> Tensor | None:
    return getattr(node, "variable", None)  # only nodes that accumulate a leaf's gradient have one


def _distinct(*groups: Sequence[Tensor]) -> list[Tensor]:
    return list({id(each): each for group in groups for each in group}.values())
