"""Gradients go into buckets while backward makes them, and full buckets on their way, in order.

The reducer of Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training" (arXiv
2006.15704), Algorithm 1. What becomes of a full bucket is the affair of a `Reduction`: it is all-reduced (bsp.py),
reduce-scattered (sharded_bsp.py), or kept until an aggregate joins it with those of the others (robust_bsp.py).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..comm import Work
from ..strategies.core.cost import Memory, payload
from ..strategies.core.state import State, read_all


class Fillable(Protocol):
    """A bucket. `parameters`: indices; `missing`: those whose gradient is not in it yet, this step."""

    parameters: list[int]
    missing: set[int]

    def view(self, i: int) -> Tensor:
        """Returns the part of the bucket for the gradient of parameter `i`, in its shape."""
        ...


B = TypeVar("B", bound=Fillable)


class Reducer(Generic[B]):
    """Scales gradients by the replica's share as they enter their bucket; what backward never made counts as zero.

    `used`: with `find_unused`, int32 by parameter, whether backward made its gradient in this step. `peak`: the most
    bytes of gradients that autograd held at once, where they are freed as they enter their bucket.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        buckets: Sequence[B],
        launch: Callable[[B], None],
        find_unused: bool,
        frees: bool = False,
    ) -> None:
        """`launch` sends a full bucket on its way. `frees`: gradients stay in their buckets alone."""
        self._params = list(parameters.values())
        self._sizes = [payload([each]) for each in self._params]
        self._buckets, self._launch, self._find_unused, self._frees = buckets, launch, find_unused, frees
        self._bucket_of = {i: bucket for bucket in buckets for i in bucket.parameters}
        self._armed = False
        self._held: set[int] = set()
        self._bytes = self.peak = 0
        self.used = torch.zeros(len(self._params), dtype=torch.int32, device=self._params[0].device)
        for i, parameter in enumerate(self._params):
            parameter.register_post_accumulate_grad_hook(lambda _, i=i: self._gradient_is_ready(i))

    def begin(self, share: float) -> None:
        """A step begins, in which this replica's gradients weigh `share`."""
        self._share, self._launched = share, 0
        if self._find_unused:
            self.used.zero_()
        for bucket in self._buckets:
            bucket.missing = set(bucket.parameters)

    def before_backward(self, roots: Sequence[Tensor], last: bool) -> None:
        self._armed = last  # earlier backward passes only accumulate (no_sync)
        if last and self._find_unused:
            reached = leaves(roots)
            for i, parameter in enumerate(self._params):
                if parameter not in reached:
                    self._mark_ready(i)

    def unused(self) -> set[int]:
        """The parameters that an update leaves alone: frozen since, and with `find_unused` those that `used` lacks."""
        used = self.used.tolist() if self._find_unused else [1] * len(self._params)
        return {i for i, each in enumerate(self._params) if not (each.requires_grad and used[i])}

    def finish(self) -> None:
        """Launches the remaining buckets after backward, which did not reach them, or did not run (an empty batch)."""
        self._armed = False
        for bucket in self._buckets:
            for i in sorted(bucket.missing, reverse=True):
                self._mark_ready(i)

    def _gradient_is_ready(self, i: int) -> None:
        if i not in self._held:
            self._held.add(i)
            self._bytes += self._sizes[i]
            self.peak = max(self.peak, self._bytes)
        if self._armed:
            self._mark_ready(i)

    def _mark_ready(self, i: int) -> None:
        bucket, gradient = self._bucket_of[i], self._params[i].grad
        view = bucket.view(i)
        if gradient is None:
            view.zero_()
        else:
            if gradient.layout is not torch.strided:  # of nn.Embedding(sparse=True)
                gradient = gradient.to_dense()
            torch.mul(gradient, self._share, out=view)
            if self._find_unused:
                self.used[i] = 1
        if self._frees:
            self._params[i].grad = None
        if i in self._held:
            self._held.remove(i)
            self._bytes -= self._sizes[i]
        bucket.missing.discard(i)
        # in order, whatever order they fill in: every worker must launch the same sequence
        while self._launched < len(self._buckets) and not self._buckets[self._launched].missing:
            self._launched += 1
            self._launch(self._buckets[self._launched - 1])


class Reduction:
    """Handles the buckets of a step. This class gives each gradient back as it is.

    `buckets`: they are `Fillable`. `frees`: gradients stay in their buckets alone, and `.grad` never has them.
    """

    frees = False

    def __init__(self, parameters: Sequence[nn.Parameter] = (), buckets: Sequence[Any] = ()) -> None:
        self._params, self.buckets = parameters, buckets

    def launch(self, bucket: Any) -> None:
        """A bucket is full."""

    def close(self, share: float, step: int) -> list[Work]:
        """All buckets are full. Returns what is to be waited for before `land`.

        Args:
            share: This replica's samples among all of the step.
            step: The step of the run.
        """
        return []

    def land(self, unused: Collection[int]) -> None:
        """Gives the optimizer its gradients, and none for the parameters in `unused`."""
        for bucket in self.buckets:
            bucket.give_back(self._params, unused)

    def drop(self) -> None:
        """Waits for transfers under way, and makes no step."""

    def after_step(self) -> None:
        """The optimizer has stepped."""

    def pieces(self) -> dict[int, Tensor] | None:
        """Returns what this replica has of the landed gradients, by parameter; None where it has them whole."""
        return None

    def state_dict(self, optimizer: Optimizer) -> State:
        return {"optimizer": optimizer.state_dict()}

    def load_state_dict(self, state: State, optimizer: Optimizer) -> None:
        optimizer.load_state_dict(read_all(state["optimizer"]))

    def buffers(self) -> list[Tensor]:
        return [bucket.flat for bucket in self.buckets]

    def measured(self, held: Memory, peak: int) -> Memory:
        """See `MeasuresMemory`. `peak`: bytes of gradients that autograd held at once."""
        return held


def leaves(roots: Sequence[Tensor]) -> set[Tensor]:
    """The leaf tensors that a backward pass from `roots` reaches."""
    found: set[Tensor] = set()
    seen: set[object] = set()
    stack = [root.grad_fn for root in roots if root.grad_fn is not None]
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)  # only AccumulateGrad nodes have one
        if leaf is not None:
            found.add(leaf)
        stack.extend(following for following, _ in node.next_functions if following is not None)
    return found
