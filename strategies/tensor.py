"""Layers cut over workers that compute the same samples: Megatron-LM's tensor parallelism of two linear layers.

Shoeybi et al. 2019, "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism" (arXiv
1909.08053), section 3. Of two linear layers with something element-wise between them,

    Y = f(X A),   Z = Y B,       A = [A_1, ..., A_p] by columns,   B = [B_1; ...; B_p] by rows,

worker i holds A_i and B_i and computes Y_i = f(X A_i), since f is element-wise, and

    Z = sum_i Y_i B_i          by an all-reduce in forward,
    dX = sum_i dY_i' A_i^T     by an all-reduce in backward, where anything before it is trained.

(torch.nn.Linear has A transposed: its rows are the outputs.) B's bias is added once, to the sum. All other layers are
whole on every worker, which compute the same of the same activations, with the same random numbers.

Deviation from the paper: pairs are found in an `nn.Sequential`; a linear layer without a partner is whole.

Cost per step and pair, n samples of the batch: the collective's for n times B's outputs, and for n times A's inputs.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor, nn
from torch.optim import Optimizer

from ..comm import Comm
from .base import Batch, BeforeBackward, Loss, Strategy, Traffic, World, layers_of
from .errors import LayoutError
from .exchange.collectives import Collective, Fabric
from .exchange.collectives.base import added
from .exchange.elementwise import check_elementwise
from .placements import Split, gather

ELEMENTWISE = (nn.ReLU, nn.GELU, nn.Tanh, nn.Sigmoid, nn.SiLU, nn.LeakyReLU, nn.ELU, nn.Identity)


class TensorParallel(Strategy):
    """A replica is `degree` workers, each with a piece of pairs of linear layers."""

    bitwise = False  # sums of pieces come in another order
    shares = True

    def __init__(self, degree: Annotated[int, Ge(2)] = 2, collective: Collective | None = None) -> None:
        """`collective`: of the sums of pieces; None for the fabric's."""
        self.axes = {"tensor": degree}
        self.collective = collective or Fabric()

    def check_optimizer(self, optimizer: Optimizer) -> None:
        check_elementwise(optimizer, "strategy=tensor", "strategy=data_parallel")

    def split(self, model: nn.Module) -> list[nn.Module]:
        if not isinstance(model, nn.Sequential):
            raise LayoutError(
                f"strategy=tensor looks for pairs of linear layers in an nn.Sequential, and {type(model).__name__} is "
                "none; strategy=data_parallel takes any module"
            )
        layers, degree = layers_of(model), self.parts
        pairs = paired(layers)
        if not pairs:
            raise LayoutError(
                f"strategy=tensor: {type(model).__name__} has no two linear layers with only element-wise ones between "
                "them; choose model=mlp with two layers in model.hidden, or strategy=data_parallel"
            )
        for first, _ in pairs:
            layer = layers[first]
            assert isinstance(layer, nn.Linear)
            if (outputs := layer.out_features) % degree:
                raise LayoutError(
                    f"strategy.degree={degree}: {outputs} outputs of the layer {first} cannot be cut into {degree} "
                    f"equal pieces; choose {_nearest(outputs, degree)} of them, or a degree that divides {outputs}"
                )
        group = Group(self.collective)
        parts: list[nn.Module] = []
        for piece in range(degree):
            part = nn.Sequential()
            for name, layer in layers.items():
                part.add_module(name, _cut(name, layer, pairs, piece, degree, group))
            parts.append(part)
        return parts

    def prepare(self, model: nn.Module, loss: Loss, comm: Comm, before_backward: BeforeBackward) -> None:
        parts = self.split(model)
        self.module, self._loss, self._comm, self._before_backward = parts[comm.rank], loss, comm, before_backward
        group_of(self.module).comm = comm
        self._parts = [copy.deepcopy(part).to("meta") for part in parts]  # for the shapes of others' pieces

    def forward_backward(self, batch: Batch) -> Tensor | None:
        if batch.size == 0:
            return None
        loss = self._loss(self.module(batch.inputs), batch.targets)
        self._before_backward([loss], True)
        loss.backward()
        return loss.detach() if self._comm.rank == self.loss_part else None

    def full_state(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        return gather(self.part_state(parameters), self._parts, self._comm, self.loss_part)

    def cost(self, parts: Sequence[nn.Module], inputs: Tensor) -> list[Traffic]:
        """Counted in a rehearsal of a pass: all parts send alike."""
        group = group_of(parts[0])
        group.sums.clear()
        outputs = parts[0](inputs)
        outputs.sum().backward()
        parts[0].zero_grad()
        world = World(self.parts, hosts=self.hosts)
        traffic = added(*(self.collective.traffic(size, world) for size in group.sums))
        return [traffic for _ in parts]


class Group:
    """The workers of a replica. Without `comm`, as a copy is, it is alone; `sums`: the bytes that it summed then."""

    def __init__(self, collective: Collective) -> None:
        self.collective = collective
        self.comm: Comm | None = None
        self.sums: list[int] = []

    def __deepcopy__(self, memo: object) -> "Group":
        return Group(self.collective)

    def sum(self, x: Tensor, purpose: str) -> Tensor:
        """[...] on each -> their sum, on all; `x` is the result's memory."""
        if self.comm is None:
            self.sums.append(x.numel() * x.element_size())
            return x
        with self.comm.timeline.named(purpose):
            self.collective.all_reduce(x, self.comm).wait()
        return x


class ColumnLinear(nn.Module):
    """A linear layer's outputs of one piece; its input is all of it, the same on all workers."""

    placements: ClassVar = {"weight": Split(0), "bias": Split(0)}

    def __init__(self, layer: nn.Linear, piece: int, pieces: int, group: Group) -> None:
        super().__init__()
        self.group = group
        self.weight = _piece(layer.weight, 0, piece, pieces)
        self.bias = None if layer.bias is None else _piece(layer.bias, 0, piece, pieces)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(_SummedInBackward.apply(x, self.group), self.weight, self.bias)


class RowLinear(nn.Module):
    """A linear layer over one piece of its inputs, summed over the pieces: its output is all of it, on all workers."""

    placements: ClassVar = {"weight": Split(1)}

    def __init__(self, layer: nn.Linear, piece: int, pieces: int, group: Group) -> None:
        super().__init__()
        self.group = group
        self.weight = _piece(layer.weight, 1, piece, pieces)
        self.bias = layer.bias

    def forward(self, x: Tensor) -> Tensor:
        z = _SummedInForward.apply(F.linear(x, self.weight), self.group)
        return z if self.bias is None else z + self.bias


class _SummedInBackward(torch.autograd.Function):
    """The paper's f: the identity, whose gradient is summed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        (gradient,) = grad_outputs
        return ctx.group.sum(gradient.clone(memory_format=torch.contiguous_format), "gradients of inputs"), None


class _SummedInForward(torch.autograd.Function):
    """The paper's g: a sum, whose gradient is everyone's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        return group.sum(x.clone(memory_format=torch.contiguous_format), "activations")

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        return grad_outputs[0], None


def paired(layers: Mapping[str, nn.Module | None]) -> list[tuple[str, str]]:
    """The names of linear layers to cut by columns and by rows: each with the next, if nothing else is between them."""
    pairs: list[tuple[str, str]] = []
    open_: str | None = None
    for name, layer in layers.items():
        if isinstance(layer, nn.Linear):
            if open_ is not None:
                pairs.append((open_, name))
                open_ = None
            else:
                open_ = name
        elif not isinstance(layer, ELEMENTWISE):
            open_ = None
    return pairs


def group_of(part: nn.Module) -> Group:
    return next(layer.group for layer in part.modules() if isinstance(layer, ColumnLinear))


def _cut(
    name: str, layer: nn.Module | None, pairs: Sequence[tuple[str, str]], piece: int, pieces: int, group: Group
) -> nn.Module | None:
    if isinstance(layer, nn.Linear):
        if name in [first for first, _ in pairs]:
            return ColumnLinear(layer, piece, pieces, group)
        if name in [second for _, second in pairs]:
            return RowLinear(layer, piece, pieces, group)
    return layer


def _piece(parameter: Tensor, dim: int, piece: int, pieces: int) -> nn.Parameter:
    own = parameter.detach().chunk(pieces, dim=dim)[piece].clone(memory_format=torch.contiguous_format)
    return nn.Parameter(own, requires_grad=parameter.requires_grad)


def _nearest(outputs: int, degree: int) -> str:
    below = outputs // degree * degree
    return f"{below} or {below + degree}" if below else str(degree)
