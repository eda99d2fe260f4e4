"""A data set held to its own `spec`: a user's class says one thing and may load another."""

import math
from collections.abc import Callable, Mapping, Sized

import torch
from torch import Tensor

from ..conf.errors import ConfigError
from .base import Data, DataSpec, Field, Readable, Split
from .columns import PIECE, Columns
from .items import label_in_words


def check_spec(name: str, spec: object) -> None:
    """Refuse, before anything is loaded, what nothing here can be trained on. Raises `ConfigError`."""
    if not isinstance(spec, DataSpec):
        raise ConfigError(f"data={name}: spec is a {type(spec).__name__}; must be a paceline.tasks.base.DataSpec")
    if spec.target_dtype != torch.int64 and spec.targets == "labels":
        raise ConfigError(
            f"data={name}: spec.target_dtype={spec.target_dtype}: must be torch.int64 (labels, for task=cross_entropy, "
            "hinge and squared_hinge) or a floating one, such as torch.float32 (numbers, for task=squared, huber and "
            "binary)"
        )
    if spec.targets == "numbers" and spec.classes != 0:
        raise ConfigError(
            f"data={name}: spec.classes={spec.classes}: must be 0 (or left out), as targets of {spec.target_dtype} are "
            "numbers; labels are torch.int64"
        )
    if spec.inputs is not None and not spec.inputs:
        raise ConfigError(f"data={name}: spec.inputs={spec.inputs}: must have one or more (None: one tensor)")
    for key, field in spec.fields.items():
        if not isinstance(field, Field):
            raise ConfigError(f"data={name}: spec.inputs[{key!r}] is a {type(field).__name__}; must be a Field")
        if spec.inputs is not None and isinstance(key, str) and not key.isidentifier():
            raise ConfigError(
                f"data={name}: the input {key!r} must be a name in Python, as a model's forward is given it as a "
                "keyword argument. Rename it, or leave it out of the inputs."
            )
    sizes = {"train_size": spec.train_size, "test_size": spec.test_size}
    if spec.targets == "labels":
        sizes = {"classes": spec.classes, **sizes}
    shapes = {"target_shape": spec.target_shape} | {
        "input_shape" if spec.inputs is None else f"inputs[{key!r}].shape": field.shape
        for key, field in spec.fields.items()
    }
    sizes |= {f"{key}[{i}]": size for key, shape in shapes.items() for i, size in enumerate(shape)}
    for key, size in sizes.items():
        if size is not None and size < 1:
            raise ConfigError(f"data={name}: spec.{key}={size}: must be 1 or more")


def load_checked(
    name: str, data: Data, check_targets: Callable[[str, Tensor], None] | None = None
) -> tuple[Readable, Readable]:
    """The data's two splits. `check_targets`: the task's.

    Raises `ConfigError` where they are not what `spec` says, and what `load` raises.
    """
    spec, splits = data.spec, data.load()
    given = splits if isinstance(splits, tuple | list) else []
    if len(given) != 2 or not all(isinstance(each, Sized) and callable(getattr(each, "take", None)) for each in given):
        kinds = [type(each).__name__ for each in given] or type(splits).__name__
        raise ConfigError(
            f"data={name}: load() gives {kinds}; must be two splits, (train, test). Choose "
            "paceline.tasks.base.Split(inputs, targets) for each"
        )
    for key, split, size in zip(("train", "test"), splits, (spec.train_size, spec.test_size), strict=True):
        what = f"data={name}: load() gives a {key} split"
        if len(split) == 0:
            raise ConfigError(f"{what} without samples")
        tensors = _inputs_of(what, split, spec) if isinstance(split, Split) else {}
        for called, each in [*tensors.items(), *([("targets", split.targets)] if isinstance(split, Split) else [])]:
            if not isinstance(each, Tensor) or each.layout is not torch.strided or each.is_nested:
                layout = "nested" if isinstance(each, Tensor) and each.is_nested else getattr(each, "layout", None)
                found = f"a tensor of layout {layout}" if isinstance(each, Tensor) else f"a {type(each).__name__}"
                raise ConfigError(f"{what} with {called} in {found}; must be a dense tensor")
        for tensor in tensors.values():
            if len(tensor) != len(split):
                raise ConfigError(f"{what} of {len(tensor)} inputs and {len(split)} targets; must be one each")
        if size is not None and len(split) != size:
            raise ConfigError(
                f"{what} of {len(split):,} samples, and spec.{key}_size says {size:,}; they must agree (or None: the "
                "size is only known once the data are there)"
            )
        if isinstance(split, Columns) and not split.counts:
            raise ConfigError(_nothing_counts(what))
        if not isinstance(split, Split):
            continue  # what is read later is held to the spec then
        for key, field in spec.fields.items():
            called = "inputs" if spec.inputs is None else f"inputs[{key!r}]"
            said = (
                "input_shape" if spec.inputs is None else f"{called}.shape",
                ("input_dtype" if spec.inputs is None else f"{called}.dtype"),
            )
            _check(f"{what} with {called}", tensors[key], said, field.shape, field.dtype)
        _check(
            f"{what} with targets",
            split.targets,
            ("target_shape", "target_dtype"),
            spec.target_shape,
            spec.target_dtype,
        )
        _check_weights(what, split, spec)
        _check_values(what, split, spec, data.ignored)
        if check_targets is not None and len(split):
            check_targets(what, split.targets)
    return splits


def _inputs_of(what: str, split: Split, spec: DataSpec) -> dict[str | int, Tensor]:
    """Returns the inputs by name or index, as `spec` has them. Raises `ConfigError`."""
    inputs, wanted = split.inputs, list(spec.fields)
    if spec.inputs is None:
        if not isinstance(inputs, Tensor):
            raise ConfigError(f"{what} with inputs in a {type(inputs).__name__}; spec.inputs must say what is in it")
        return {"inputs": inputs}
    kind = dict if isinstance(spec.inputs, Mapping) else tuple
    found = list(inputs) if isinstance(inputs, Mapping) else list(range(len(inputs)))
    if isinstance(inputs, Tensor) or isinstance(inputs, Mapping) != (kind is dict):
        raise ConfigError(f"{what} with inputs in a {type(inputs).__name__}; spec.inputs says a {kind.__name__}")
    if set(found) != set(wanted):
        raise ConfigError(f"{what} with inputs {found}; spec.inputs says {wanted}")
    return {key: inputs[key] for key in wanted}  # pyright: ignore[reportCallIssue, reportArgumentType]


def _check_weights(what: str, split: Split, spec: DataSpec) -> None:
    weights, shape = split.weights, tuple(split.targets.shape)
    if (weights is not None) != spec.weights:
        has = "without weights" if weights is None else "with weights"
        raise ConfigError(f"{what} {has}, and spec.weights={spec.weights} says otherwise")
    if weights is None:
        return
    if tuple(weights.shape) not in (shape[:1], shape):
        raise ConfigError(
            f"{what} with weights of {list(weights.shape)}; must be {list(shape[:1])}, one for each sample"
            + (f", or {list(shape)}, one for each target" if len(shape) > 1 else "")
        )
    if weights.dtype != torch.bool and not weights.is_floating_point():
        raise ConfigError(f"{what} with weights of {weights.dtype}; must be floating, or torch.bool (a mask)")
    strange = _first(weights, lambda part: ~part.isfinite() | (part < 0))
    if strange is not None:
        raise ConfigError(f"{what} with weights that are negative or not finite, at first in sample {strange}")
    if len(weights) and _first(weights, lambda part: part > 0) is None:
        raise ConfigError(_nothing_counts(what))


def _nothing_counts(what: str) -> str:
    return f"{what} with weights that are all 0, so that nothing counts"


def _check_values(what: str, split: Split, spec: DataSpec, ignored: int | None) -> None:
    """A target whose weight is 0 is looked at, too: 0 times NaN is NaN."""
    targets = split.targets if ignored is None else split.targets.masked_fill(split.targets == ignored, 0)
    if len(targets) == 0:
        return
    if spec.targets == "numbers":
        strange = _first(targets, lambda part: ~part.isfinite())
        if strange is not None:
            also = "; with weights, 0 will do in the place of what is not known" if spec.weights else ""
            raise ConfigError(
                f"{what} with targets that are NaN or infinite, at first in sample {strange}; must be finite{also}"
            )
        return
    bounds = [part.aminmax() for part in targets.split(PIECE)]
    low, high = min(int(each.min) for each in bounds), max(int(each.max) for each in bounds)
    if low < 0 or high >= spec.classes:
        more = f"; a label is {label_in_words(low)}" if low < 0 else ""
        raise ConfigError(
            f"{what} with targets from {low} to {high}; spec.classes={spec.classes} leaves 0 to "
            f"{spec.classes - 1}{more}"
        )


def _first(tensor: Tensor, strange: Callable[[Tensor], Tensor]) -> int | None:
    """The first sample of which something is strange. What is mapped from a file is looked at piece by piece."""
    for start, part in zip(range(0, len(tensor), PIECE), tensor.split(PIECE), strict=True):
        found = strange(part).reshape(len(part), -1).any(dim=1).nonzero()
        if len(found) > 0:
            return start + int(found[0])
    return None


def _check(what: str, tensor: Tensor, keys: tuple[str, str], shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if tuple(tensor.shape[1:]) != tuple(shape):
        raise ConfigError(
            f"{what} of {list(tensor.shape[1:])} each, and spec.{keys[0]} says {list(shape)} "
            f"({math.prod(tensor.shape[1:])} numbers and {math.prod(shape)})"
        )
    if tensor.dtype != dtype:
        raise ConfigError(f"{what} of {tensor.dtype}, and spec.{keys[1]} says {dtype}; they must agree")
