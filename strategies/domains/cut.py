"""A model on slabs: each layer with spatial meaning is swapped by one that exchanges what it needs; all else is as it
is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch import nn

from ...batches import infers
from ...compat.modules import is_plain
from ...conf.errors import ConfigError
from ...exchange.collectives import Collective
from .group import SlabGroup
from .layers import (
    AfterGathering,
    SlabConv,
    SlabDropout,
    SlabNearest,
    SlabOwn,
    SlabPool,
    SlabTransposed,
    side,
)
from .look import INSTEAD, look
from .norms import SlabBatchNorm, SlabGroupNorm, over_replicas
from .replicas import Across, batch_norms
from .rows import Deal, Halo, Rule, TooThinError, Transposed, Window, even, follow, halos
from .swap import swapped

GATHERING = (nn.Flatten, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)
NORMS = (nn.BatchNorm2d, nn.GroupNorm)
AS_IT_IS = (nn.Dropout2d,)  # a map of a sample is dropped on all slabs, as all workers draw the same numbers


@dataclass(frozen=True)
class Cut:
    """`parts`: the model of each worker. `deal`: the rows of an image that each has. `output`: the shape of what the
    model gives of a sample. `rows`: the dimension of rows in a batch of them, where each part gives its own; None where
    all give the same. `outs`: the deal of these rows.
    """

    parts: list[nn.Module]
    deal: Deal
    output: tuple[int, ...]
    rows: int | None
    outs: Deal


def cut(
    model: nn.Module, image: Sequence[int], degree: int, collective: Collective, of_all_replicas: bool = False
) -> Cut:
    """`image`: [channels, height, width] of a sample. The parts share the model's tensors. `of_all_replicas`: batch
    norm is over the batches of all. Raises `ConfigError`.
    """
    if degree > image[1]:
        raise ConfigError(
            f"strategy.degree={degree}: an image of these data has {image[1]} rows. Choose strategy.degree <= "
            f"{image[1]}."
        )
    layers = {name: layer for name, layer in model.named_modules() if is_known(layer)}
    seen = look(model, image, {name: not isinstance(layer, GATHERING) for name, layer in layers.items()})
    if all(isinstance(layers[name], (*GATHERING, *AS_IT_IS)) for name in seen.met):
        raise ConfigError(
            f"no layer of {type(model).__name__} works on slabs of an image, as a convolution does. "
            "Choose model=cnn, resnet, alexnet or unet, or strategy=data_parallel.",
            about=("strategy",),
        )
    rules = {name: rule_of(name, layers[name], *seen.met[name]) for name in seen.met}
    deals = _deals(image[1], degree, rules, seen.met)
    moved: dict[str, list[Halo]] = {}
    for name, rule in rules.items():
        if rule is None:
            continue
        try:
            moved[name] = halos(rule, *(deals[rows] for rows in seen.met[name]))
        except TooThinError as error:
            raise ConfigError(
                f"strategy.degree={degree}: at the layer {name} {error}. {_nearest(image[1], degree, rules, seen.met)}"
            ) from None
    norms = batch_norms(model) if of_all_replicas else {}
    # a batch norm that infers has a factor and a sum for each channel, whatever the slab
    on_slabs = [name for name in rules if not (isinstance(layers[name], AS_IT_IS) or infers(layers[name]))]
    behind = {name: layer for name, layer in norms.items() if name not in rules}
    parts: list[nn.Module] = []
    for place in range(degree):
        group, across = SlabGroup(place, degree, collective), Across.of(collective) if of_all_replicas else None
        others = {} if across is None else over_replicas(behind, across)
        for name in on_slabs:
            halo = moved[name][place] if name in moved else None
            others[name] = _on_slab(layers[name], halo, deals[seen.met[name][0]], group, across)
        parts.append(swapped(model, others))
    outs = () if seen.rows is None else deals[seen.output[seen.rows - 1]]
    return Cut(parts, deals[image[1]], seen.output, seen.rows, outs)


def is_known(layer: nn.Module) -> bool:
    kinds = (nn.Conv2d, nn.ConvTranspose2d, nn.MaxPool2d, nn.AvgPool2d, nn.Upsample, nn.Dropout)
    known = (*kinds, *NORMS, *AS_IT_IS, *GATHERING)
    return is_plain(layer, known) or hasattr(layer, "row_window")


def rule_of(name: str, layer: nn.Module, rows_in: int, rows_out: int) -> Rule | None:
    """Returns the rows that `layer` reads; None if each row reads itself alone, or all rows.

    Raises `ConfigError` for settings of a layer that are not known.
    """
    said = {
        "padding_mode": "zeros",
        "ceil_mode": False,
        "return_indices": False,
    }
    for knob, value in said.items():
        if getattr(layer, knob, value) != value:
            raise _refused(name, layer, f"{knob}={getattr(layer, knob)!r}", f"{knob}={value!r}")
    if hasattr(layer, "row_window"):
        kernel, stride = cast("Any", layer).row_window
        return Window(kernel, stride)
    if isinstance(layer, nn.ConvTranspose2d):
        window = side(layer, 0)
        return Transposed(window.kernel, window.stride, window.padding, window.dilation)
    if isinstance(layer, nn.Upsample):
        if layer.mode != "nearest" or rows_out % rows_in:
            raise _refused(
                name, layer, f"mode={layer.mode!r} from {rows_in} to {rows_out} rows", "nearest, by a whole factor"
            )
        return Transposed(rows_out // rows_in, rows_out // rows_in)
    if isinstance(layer, nn.Conv2d | nn.MaxPool2d | nn.AvgPool2d):
        windows = [side(layer, dim) for dim in (0, 1)]
        if getattr(layer, "padding", 0) == "same" and any(w.dilation * (w.kernel - 1) % 2 for w in windows):
            raise _refused(name, layer, "padding='same' with an even kernel", "an odd one")
        return windows[0]
    return None


def _refused(name: str, layer: nn.Module, what: str, right: str) -> ConfigError:
    return ConfigError(
        f"{name} ({type(layer).__name__}) has {what}. Choose {right}, or {INSTEAD}.", about=("strategy",)
    )


def _deals(height: int, degree: int, rules: dict[str, Rule | None], met: dict[str, tuple[int, int]]) -> dict[int, Deal]:
    """Returns deals by height. Maps of one height are dealt alike, so that they can be added and concatenated."""
    deals = {height: even(height, degree)}
    for name, rule in rules.items():
        rows_in, rows_out = met[name]
        if rule is not None and rows_out not in deals:
            deals[rows_out] = follow(rule, deals[rows_in], rows_out)
    return deals


def _nearest(height: int, degree: int, rules: dict[str, Rule | None], met: dict[str, tuple[int, int]]) -> str:
    """The next smaller degree that would do."""
    for fewer in range(degree - 1, 1, -1):
        deals = _deals(height, fewer, rules, met)
        try:
            for name, rule in rules.items():
                if rule is not None:
                    halos(rule, *(deals[rows] for rows in met[name]))
        except TooThinError:
            continue
        return f"Choose strategy.degree={fewer}."
    return "Choose strategy=data_parallel, or larger images."


def _on_slab(layer: nn.Module, halo: Halo | None, deal: Deal, group: SlabGroup, across: Across | None) -> nn.Module:
    if isinstance(layer, GATHERING):
        return AfterGathering(layer, deal, group)
    if isinstance(layer, nn.BatchNorm2d):
        return SlabBatchNorm(layer, deal, group, across)
    if isinstance(layer, nn.GroupNorm):
        return SlabGroupNorm(layer, deal, group)
    if isinstance(layer, nn.Dropout):
        return SlabDropout(layer, deal, group)
    assert halo is not None
    if isinstance(layer, nn.Conv2d):
        return SlabConv(layer, halo, group)
    if isinstance(layer, nn.ConvTranspose2d):
        return SlabTransposed(layer, halo, group)
    if isinstance(layer, nn.Upsample):
        return SlabNearest(layer, halo, group)
    if isinstance(layer, nn.MaxPool2d | nn.AvgPool2d):
        return SlabPool(layer, halo, group)
    return SlabOwn(layer, halo, group)
