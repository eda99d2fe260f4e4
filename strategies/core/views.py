"""Refuses a model that keeps a view of a parameter which is then moved to other memory: the view would not be trained.

A transpose, `.data` or a detached weight that the constructor put into an attribute is such a view. Modes that exchange
weights as one vector, ZeRO and FSDP move parameters. A layer with hooks before its forward pass makes such an attribute
anew (torch.nn.utils.spectral_norm does), and is let be.
"""

from collections.abc import Iterator, Mapping
from itertools import pairwise

import torch
from torch import Tensor, nn

from ...compat.modules import is_hooked_before
from ...compat.storages import storage_key
from ...conf.errors import ConfigError
from .copies import kept_tensors


class HeldViews:
    """The views of parameters that layers of `model` keep beside the parameters themselves."""

    def __init__(self, model: nn.Module) -> None:
        self._whole = dict(model.named_parameters())
        names = {storage_key(each): name for name, each in self._whole.items() if _is_dense(each)}
        layers = [each for each in model.modules() if not is_hooked_before(each)]
        self._held = [
            (names[storage_key(each)], each)
            for each in kept_tensors(layers)
            if _is_dense(each) and storage_key(each) in names
        ]
        self._overlapping = [
            (one, other, self._whole[other].data_ptr() - self._whole[one].data_ptr())
            for one, other in _overlapping({name: each for name, each in self._whole.items() if _is_dense(each)})
        ]

    def check(self, module: nn.Module, chosen: str) -> None:
        """Raises `ConfigError` if a parameter of `module`, the model or a part of it, is elsewhere now."""
        now = dict(module.named_parameters())
        for one, other, distance in self._overlapping:
            if one not in now or other not in now:
                continue
            a, b = now[one], now[other]
            if storage_key(a) != storage_key(b) or b.data_ptr() - a.data_ptr() != distance:
                raise ConfigError(
                    f"{chosen}: the parameters {one} and {other} share memory, and these move each by itself, so that "
                    "they would be trained apart. Let both layers have one nn.Parameter, or choose "
                    "strategy=data_parallel sync=bsp."
                )
        for name, each in self._held:
            if name in now and storage_key(now[name]) != storage_key(each):
                raise ConfigError(
                    f"{chosen}: the model keeps a view of its parameter {name}, which these move to other memory, so "
                    "that the view would not be trained. Let the forward pass use the parameter itself, or choose "
                    "strategy=data_parallel sync=bsp."
                )


def _overlapping(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, str]]:
    """Yields pairs of names of tensors that have memory in common."""
    ordered = sorted((storage_key(each), *_span(each), name) for name, each in tensors.items())
    for (key, _, end, name), (its_key, start, _, other) in pairwise(ordered):
        if key == its_key and start < end:
            yield name, other


def _span(tensor: Tensor) -> tuple[int, int]:
    """Returns the places in the storage of the first entry, and behind the last one."""
    begin = int(tensor.storage_offset())
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (begin, begin + last + 1) if tensor.numel() else (begin, begin)


def _is_dense(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided
