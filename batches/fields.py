"""Several tensors of the same samples, which are cut, moved and given to a model as one.

The rule by which a model is called: a dict's tensors are keyword arguments, forward(**inputs); a tuple's are positional
ones in their order, forward(*inputs); a lone tensor is the only argument, forward(inputs). A dict's tensors with a
number in the place of a name are positional, too.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, overload

import torch
from torch import Tensor, nn

Cut = int | Sequence[int]


class Fields:
    """Tensors [n, ...] of the same n samples, by name (a dict's) or by place (a tuple's). Not to be mutated.

    What cuts a tensor along its samples, or moves it, is here by the name that it has in torch: `len`, `x[index]`,
    `split`, `tensor_split`, `to`. All tensors must lie on one device.
    """

    def __init__(self, tensors: Mapping[Any, Tensor] | Sequence[Tensor]) -> None:
        named = tensors.items() if isinstance(tensors, Mapping) else enumerate(tensors)
        self.tensors: dict[str | int, Tensor] = dict(named)
        assert self.tensors and len({len(tensor) for tensor in self.tensors.values()}) == 1, self

    def map(self, function: Callable[[Tensor], Tensor]) -> "Fields":
        return Fields({key: function(tensor) for key, tensor in self.tensors.items()})

    def __len__(self) -> int:
        return len(next(iter(self.tensors.values())))

    def __getitem__(self, index: slice | Tensor) -> "Fields":
        return self.map(lambda tensor: tensor[index])

    def __repr__(self) -> str:
        return ", ".join(f"{key} {tensor.dtype} {list(tensor.shape)}" for key, tensor in self.tensors.items())

    def split(self, size: Cut) -> list["Fields"]:
        return self._pieces(lambda tensor: tensor.split(size))  # pyright: ignore[reportArgumentType]

    def tensor_split(self, pieces: int) -> list["Fields"]:
        return self._pieces(lambda tensor: tensor.tensor_split(pieces))

    def _pieces(self, cut: Callable[[Tensor], Sequence[Tensor]]) -> list["Fields"]:
        columns = {key: cut(tensor) for key, tensor in self.tensors.items()}
        return [Fields(dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True)]

    def to(self, to: torch.device | torch.dtype | str) -> "Fields":
        """A dtype changes floating tensors alone."""
        is_dtype = isinstance(to, torch.dtype)
        return self.map(lambda tensor: tensor if is_dtype and not tensor.is_floating_point() else tensor.to(to))

    @property
    def device(self) -> torch.device:
        return next(iter(self.tensors.values())).device

    @property
    def arguments(self) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        """Positional and keyword ones, as `call` gives them."""
        named = {key: tensor for key, tensor in self.tensors.items() if isinstance(key, str)}
        return tuple(tensor for key, tensor in self.tensors.items() if not isinstance(key, str)), named


Samples = Tensor | Fields
S = TypeVar("S", Tensor, Fields)
R = TypeVar("R")


@overload
def call(module: nn.Module, inputs: Samples) -> Tensor: ...
@overload
def call(module: Callable[..., R], inputs: Samples) -> R: ...
def call(module: Callable[..., Any], inputs: Samples) -> Any:
    """Returns the outputs of `module` for a batch of inputs."""
    if isinstance(inputs, Tensor):
        return module(inputs)
    positional, named = inputs.arguments
    return module(*positional, **named)


def of_each(samples: Samples, function: Callable[[Tensor], Tensor]) -> Samples:
    """The same of a lone tensor and of each of several."""
    return samples.map(function) if isinstance(samples, Fields) else function(samples)


def lone(samples: Samples) -> Tensor:
    """Returns the samples as one tensor, for callers that know that there is one."""
    assert isinstance(samples, Tensor), samples
    return samples


def tensors_of(samples: Samples) -> Iterator[Tensor]:
    yield from samples.tensors.values() if isinstance(samples, Fields) else [samples]
