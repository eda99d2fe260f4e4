"""A model, or any part of one under the model's own names, cut over the workers of a group."""

from collections.abc import Callable, Mapping
from itertools import chain

import torch
from torch import Tensor, nn

from ..core.copies import copied
from ..core.placements import placements_of
from .find import Kind, degrees_of, kinds_of
from .group import TensorGroup
from .layers import ColumnLinear, RowLinear
from .sequence import Begin, Enter, Leave, runs_of
from .vocabulary import VocabularyEmbedding, VocabularyHead


def cut_over(
    model: nn.Module,
    group: TensorGroup,
    kinds: Mapping[str, Kind] | None = None,
    sequence: bool = False,
    only: int | None = None,
) -> list[nn.Module]:
    """The parts of `model`, one for each worker of `group`: copies of its modules, with a piece of each layer that is
    cut and the same tensors otherwise. Names stay; placements.py knows the pieces.

    `kinds`: what is cut (`find.kinds_of`); None finds the pairs of this model. `sequence`: between them each worker has
    a slice of the sequence; a model without such runs is as without. `only`: the one worker whose part is made; None
    makes all. A worker calls `group.join(part, comm)` before its first pass. A part whose head is cut is trained with
    `vocabulary.loss_over`.

    Raises `ConfigError` for what cannot be cut.
    """
    kinds = kinds_of(model, group.size) if kinds is None else kinds
    runs = runs_of(model, kinds) if sequence else []
    parts = [_part(model, kinds, piece, group, runs) for piece in (range(group.size) if only is None else [only])]
    group.partial = _partial(parts[0], runs)
    return parts


def _part(
    model: nn.Module, kinds: Mapping[str, Kind], piece: int, group: TensorGroup, runs: list[list[str]]
) -> nn.Module:
    own = (value for layer in model.modules() for value in vars(layer).values() if isinstance(value, Tensor))
    part = copied(model, {id(each): each for each in chain(model.parameters(), model.buffers(), own)})
    pieces: dict[int, nn.Parameter] = {}  # of tied weights there is one

    def cut(parameter: Tensor, dim: int) -> nn.Parameter:
        if id(parameter) not in pieces:
            mine = parameter.detach().tensor_split(group.size, dim)[piece].clone(memory_format=torch.contiguous_format)
            pieces[id(parameter)] = nn.Parameter(mine, requires_grad=parameter.requires_grad)
            vars(pieces[id(parameter)]).update(vars(parameter))  # what an optimizer may look at
        return pieces[id(parameter)]

    for name, kind in kinds.items():
        layer = model.get_submodule(name)
        in_run = any(name == each or name.startswith(f"{each}.") for run in runs for each in run)
        part.set_submodule(name, _layer(layer, kind, piece, group, in_run, cut))
    for layer in part.modules():  # a stage has a weight that it shares with another one under that one's name, too
        for own, weight in list(layer.named_parameters(recurse=False)):
            if id(weight) in pieces:
                layer.register_parameter(own, pieces[id(weight)])
    part.register_forward_pre_hook(Begin(group))
    for run in runs:
        is_whole = isinstance(part.get_submodule(run[-1]), VocabularyHead)
        part.get_submodule(run[0]).register_forward_pre_hook(Enter(piece, group, degrees_of(model, kinds)))
        part.get_submodule(run[-1]).register_forward_hook(Leave(piece, group, is_whole))
    return part


def _layer(
    layer: nn.Module,
    kind: Kind,
    piece: int,
    group: TensorGroup,
    in_run: bool,
    cut: Callable[[Tensor, int], nn.Parameter],
) -> nn.Module:
    if isinstance(layer, nn.Embedding):
        return VocabularyEmbedding(cut(layer.weight, 0), _first(layer.num_embeddings, piece, group), group)
    assert isinstance(layer, nn.Linear)
    if kind == "row":
        return RowLinear(cut(layer.weight, 1), layer.bias, piece, group, in_run)
    weight, bias = cut(layer.weight, 0), None if layer.bias is None else cut(layer.bias, 0)
    if kind == "column":
        return ColumnLinear(weight, bias, piece, group, in_run)
    return VocabularyHead(weight, bias, _first(layer.out_features, piece, group), group, in_run)


def _first(rows: int, piece: int, group: TensorGroup) -> int:
    """Returns the first row of a piece of `torch.tensor_split`: the first rows % size pieces have one row more."""
    each, more = divmod(rows, group.size)
    return piece * each + min(piece, more)


def _partial(part: nn.Module, runs: list[list[str]]) -> list[str]:
    """Whole parameters of which a worker has the gradient of its slice; a row layer gathers what its bias needs."""
    split, found = placements_of(part), []
    for name, layer in part.named_modules():
        if any(name == each or name.startswith(f"{each}.") for run in runs for each in run):
            own = [f"{name}.{each}" for each, weight in layer.named_parameters(recurse=False) if weight.requires_grad]
            found += [each for each in own if each not in split and not isinstance(layer, RowLinear)]
    return found
