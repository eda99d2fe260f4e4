"""Layers of a model in place of others."""

from collections.abc import Mapping
from itertools import chain

from torch import Tensor, nn

from ..core.copies import copied


def swapped(model: nn.Module, others: Mapping[str, nn.Module]) -> nn.Module:
    """A copy of the model, with its tensors, and with other layers at these names, and wherever else they are."""
    tensors = {id(each): each for each in chain(model.parameters(), model.buffers())}
    plain = (value for layer in model.modules() for value in vars(layer).values() if isinstance(value, Tensor))
    part = copied(model, {**tensors, **{id(each): each for each in plain}})
    names: dict[int, list[str]] = {}
    for name, layer in part.named_modules(remove_duplicate=False):
        names.setdefault(id(layer), []).append(name)
    places = {name: names[id(part.get_submodule(name))] for name in others}
    for name, layer in others.items():
        if not name:
            return layer.train(model.training)
        for place in places[name]:
            part.set_submodule(place, layer)
        layer.train(model.training)
    return part
