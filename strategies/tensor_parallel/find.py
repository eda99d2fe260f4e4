"""Finds the layers of a model that are partitioned, and how, by name; or takes them from the user's plan.

    column, row    two linear layers with something element-wise between them, or the two of a layer that says so
                   (`by_group`: their names in it, whose rows and columns go by group; `groups`, how many there are;
                   `groups_are`: for errors, the groups in words and the knob for more of them)
    vocabulary     an embedding by rows, and the head by as many outputs

Pairs are found wherever layers are known to follow one another: in an nn.Sequential, and in a pipeline's stage. A plan
takes any linear layer of any module, as torch's `parallelize_module` does: that what is between a column and a row
layer can be computed of each piece alone is then up to the user. A model with a layer that says why it cannot be cut
(`uncut`) is refused.
"""

import difflib
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import groupby
from typing import Any, Literal, NamedTuple, cast

from torch import Tensor, nn

from ...compat.modules import hooked_parameters, is_plain
from ...conf.errors import ConfigError
from ..core.state import layers_of
from ..pipelining.chunks import Chunks, chunks_of

Kind = Literal["column", "row", "vocabulary"]
ELEMENTWISE = (
    nn.ReLU,
    nn.GELU,
    nn.Tanh,
    nn.Sigmoid,
    nn.SiLU,
    nn.LeakyReLU,
    nn.ELU,
    nn.Identity,
    nn.Dropout,  # each piece draws numbers of its own
)


def kinds_of(
    model: nn.Module,
    degree: int,
    plan: Mapping[str, Kind] | None = None,
    vocabulary: Sequence[str] = (),
    whole: Collection[str] = (),
    key: str = "strategy.degree",
) -> dict[str, Kind]:
    """Returns how each layer is cut, by name. Raises `ConfigError` for one that cannot be cut into `degree` pieces.

    Args:
        plan: names, in which * stands for any one part; None looks for pairs, of which none has a parameter of
            `whole`, and adds the layers of `vocabulary`.
        key: of the degree, for errors.
    """
    if degree > 1 and (why := next((layer.uncut for layer in model.modules() if hasattr(layer, "uncut")), None)):
        raise ConfigError(f"{key}={degree}: {why}")
    kinds: dict[str, Kind] = {}
    if plan is not None:
        kinds = planned(model, plan)
    else:
        for first, second in all_pairs(model, whole):
            kinds[first], kinds[second] = "column", "row"
        kinds |= dict.fromkeys(vocabulary, "vocabulary")
    degrees = degrees_of(model, kinds)
    for name, _ in model.named_modules():
        if name in kinds:
            check(name, kinds[name], model, degree, degrees, key)
            for own in hooked_parameters(model.get_submodule(name)):
                raise ConfigError(
                    f"{key}={degree}: parameter {name}.{own} has a hook, and the pieces that are trained in its place "
                    "have none. Choose strategy=data_parallel."
                )
    _check_tied(model, kinds)
    return kinds


def sequences(model: nn.Module) -> Iterator[list[str]]:
    """Names of layers that follow one another, the outermost first."""
    for name, layer in model.named_modules():
        above = f"{name}." if name else ""
        if isinstance(layer, Chunks):
            for chunk in chunks_of(layer):  # what is traced, and no module, may do anything between the layers
                for is_module, blocks in groupby(chunk, lambda block: block.is_module):
                    if is_module:
                        yield [above + block.name for block in blocks]
        elif is_plain(layer, nn.Sequential):
            yield [above + own for own in layers_of(layer)]


def paired(layers: Mapping[str, nn.Module | None]) -> list[tuple[str, str]]:
    """The names of linear layers to cut by columns and by rows: each with the next, if nothing else is between them."""
    pairs: list[tuple[str, str]] = []
    open_: str | None = None
    for name, layer in layers.items():
        if is_plain(layer, nn.Linear):
            if open_ is not None:
                pairs.append((open_, name))
                open_ = None
            else:
                open_ = name
        elif not is_plain(layer, ELEMENTWISE):
            open_ = None
    return pairs


def all_pairs(model: nn.Module, whole: Collection[str] = ()) -> list[tuple[str, str]]:
    """The pairs of a model and of the layers within its layers. Those whose weights have another place are whole, and
    those with a parameter that is in `whole`, by name.
    """
    found = [pair for names in sequences(model) for pair in paired(_named(model, names))]
    for name, layer in model.named_modules():
        if (by_group := getattr(layer, "by_group", None)) is not None:
            first, second = (f"{name}.{own}" if name else own for own in by_group)
            found.append((first, second))
    places = Counter(id(weight) for _, weight in model.named_parameters(remove_duplicate=False))
    places.update(id(weight) for name, weight in model.named_parameters() if name in whole)
    return [
        pair
        for pair in found
        if all(places[id(weight)] == 1 for each in pair for weight in model.get_submodule(each).parameters())
        if all(is_plain(model.get_submodule(each), nn.Linear) for each in pair)  # an adapted layer is whole
    ]


def _named(model: nn.Module, names: Sequence[str]) -> dict[str, nn.Module | None]:
    found: dict[str, nn.Module | None] = {}
    for name in names:
        layer = model
        for own in name.split("."):
            layer = getattr(layer, own)
        found[name] = layer
    return found


def vocabulary_of(model: nn.Module) -> list[str]:
    """The head, if a model ends in one, and the embeddings of as many rows as it has outputs; else nothing.

    Where the head's matrix is an embedding's (tied weights), one piece serves both.
    """
    if not is_plain(model, nn.Sequential) or not len(model := cast("nn.Sequential", model)):
        return []
    name, head = list(layers_of(model).items())[-1]
    if not is_plain(head, nn.Linear) or name in (each for pair in all_pairs(model) for each in pair):
        return []
    found = [
        own
        for own, layer in model.named_modules()
        if is_plain(layer, nn.Embedding) and layer.num_embeddings == head.out_features and not _why_not(layer)
    ]
    cut = {id(model.get_submodule(each).weight) for each in (*found, name)}
    places = Counter(id(weight) for _, weight in model.named_parameters(remove_duplicate=False))
    mine = Counter(id(model.get_submodule(each).weight) for each in (*found, name))
    return [*found, name] if found and all(places[each] == mine[each] for each in cut) else []


def planned(model: nn.Module, plan: Mapping[str, Kind]) -> dict[str, Kind]:
    kinds: dict[str, Kind] = {}
    names = [name for name, _ in model.named_modules() if name]
    for key, kind in plan.items():
        pattern = str(key)  # YAML reads the name of a layer of an nn.Sequential, 0, as a number
        matched = [name for name in names if _matches(name, pattern)]
        wanted = (nn.Linear, nn.Embedding) if kind == "vocabulary" else nn.Linear
        fitting = [name for name in names if is_plain(model.get_submodule(name), wanted)]
        if not matched:
            near = difflib.get_close_matches(pattern, fitting, n=3, cutoff=0.3) or fitting[:5]
            raise ConfigError(
                f"strategy.plan.{pattern}={kind}: the model has no such layer; "
                + (f"did you mean {' or '.join(near)}?" if near else "it has none that could be cut so")
            )
        fits = [name for name in matched if name in fitting]
        if not fits:
            name, kind_of = matched[0], type(model.get_submodule(matched[0]))
            what = "an nn.Linear or an nn.Embedding" if kind == "vocabulary" else "an nn.Linear"
            if isinstance(model.get_submodule(name), wanted):
                what += " without a forward, hooks or a parametrization of its own"
            within = [each for each in fitting if each.startswith(f"{name}.")]
            near = within[:3] or difflib.get_close_matches(name, fitting, n=3, cutoff=0.3) or fitting[:3]
            raise ConfigError(
                f"strategy.plan.{pattern}={kind}: {name} is of class {kind_of.__name__}, and must be {what}. "
                f"Choose {' or '.join(near) or 'another strategy: the model has none'}."
            )
        for name in fits:
            if kinds.setdefault(name, kind) != kind:
                raise ConfigError(f"strategy.plan: {name} is {kinds[name]} by one entry and {kind} by another")
    return kinds


def _matches(name: str, pattern: str) -> bool:
    parts, patterns = name.split("."), pattern.split(".")
    return len(parts) == len(patterns) and all(map(fnmatchcase, parts, patterns))


class Degrees(NamedTuple):
    """Numbers of pieces into which all the partitioned layers can be cut."""

    divide: int  # they divide this; 0: any do
    most: int | None  # rows of the shortest vocabulary; None where there is none

    def __contains__(self, degree: object) -> bool:
        return isinstance(degree, int) and self.divide % degree == 0 and (self.most is None or degree <= self.most)

    def nearest(self, to: int, dividing: int = 0) -> list[int]:
        """Returns the nearest degrees, from 2 on, below and above `to` that divide `dividing` too."""
        whole = math.gcd(self.divide, dividing)
        last = whole or self.most or 0
        found = [n for n in range(2, last + 1) if whole % n == 0 and n in self]
        return [*[n for n in found if n < to][-1:], *[n for n in found if n > to][:1]]


def degrees_of(model: nn.Module, kinds: Mapping[str, Kind]) -> Degrees:
    sizes = [_divided(name, kind, model) for name, kind in kinds.items() if kind != "vocabulary"]
    rows = [cast("Any", model.get_submodule(name)).weight.shape[0] for name in kinds if kinds[name] == "vocabulary"]
    return Degrees(math.gcd(*sizes), min(rows, default=None))


def _divided(name: str, kind: Kind, model: nn.Module) -> int:
    """Returns the number that a degree must divide: the groups, or the width, of a layer by columns or rows."""
    above, _, own = name.rpartition(".")
    owner: Any = model.get_submodule(above)
    if own in getattr(owner, "by_group", ()):
        return owner.groups
    layer = model.get_submodule(name)
    assert isinstance(layer, nn.Linear)
    return layer.out_features if kind == "column" else layer.in_features


def check(name: str, kind: Kind, model: nn.Module, degree: int, degrees: Degrees, key: str) -> None:
    """Refuses a layer that cannot be cut into so many pieces. Raises `ConfigError`."""
    layer = model.get_submodule(name)
    if kind == "vocabulary":
        rows = cast("Any", layer).weight.shape[0]
        if rows < degree:
            raise ConfigError(f"{key}={degree}: the {rows} rows of {name} cannot be cut into {degree}; at most {rows}")
        if why := _why_not(layer):
            raise ConfigError(f"strategy.plan.{name}=vocabulary: {why}; leave it out of strategy.plan")
        return
    width = _divided(name, kind, model)
    if width % degree == 0:
        return
    others = " or ".join(map(str, degrees.nearest(degree)))
    above, _, own = name.rpartition(".")
    owner: Any = model.get_submodule(above)
    if own in getattr(owner, "by_group", ()):
        what, knob = getattr(owner, "groups_are", ("groups", ""))
        choose = others or f"more of them{f' ({knob})' if knob else ''}, or strategy=data_parallel"
        raise ConfigError(f"{key}={degree} does not divide the {width} {what} of {above}. Choose {choose}.")
    which = "outputs" if kind == "column" else "inputs"
    raise ConfigError(
        f"{key}={degree}: {width} {which} of the layer {name} cannot be cut into {degree} equal pieces. "
        f"Choose {_nearest(width, degree)} of them" + (f", or {key}={others}." if others else ".")
    )


def _check_tied(model: nn.Module, kinds: Mapping[str, Kind]) -> None:
    """A weight with several places is cut alike in all of them."""
    first: dict[int, str] = {}
    for name, layer in model.named_modules(remove_duplicate=False):
        is_a_name = type(layer) is nn.Module  # of a stage's weight, for the layer that has it in another stage
        if isinstance(weight := getattr(layer, "weight", None), Tensor) and not is_a_name:
            other = first.setdefault(id(weight), name)
            if other != name and (kinds.get(name), kinds.get(other)) not in (
                (None, None),
                ("vocabulary", "vocabulary"),
            ):
                raise ConfigError(
                    f"strategy.plan: {other} and {name} have one weight (tied); both must be vocabulary, or neither cut"
                )


def _why_not(layer: nn.Module) -> str | None:
    """Says why an embedding's rows cannot be on several workers; None if they can."""
    if not isinstance(layer, nn.Embedding):
        return None
    chosen = {
        "padding_idx": layer.padding_idx,
        "max_norm": layer.max_norm,
        "scale_grad_by_freq": layer.scale_grad_by_freq or None,
        "sparse": layer.sparse or None,
    }
    used = [name for name, value in chosen.items() if value is not None]
    return f"an embedding with {', '.join(used)} is whole" if used else None


def _nearest(outputs: int, degree: int) -> str:
    below = outputs // degree * degree
    return f"{below} or {below + degree}" if below else str(degree)
