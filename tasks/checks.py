"""A data set held to its own `spec`: a user's class says one thing and may load another."""

import math

import torch
from torch import Tensor

from .base import Data, DataSpec, Split
from .errors import TaskConfigError


def check_spec(name: str, spec: object) -> None:
    """Refuse, before anything is loaded, what nothing here can be trained on. Raises `TaskConfigError`."""
    if not isinstance(spec, DataSpec):
        raise TaskConfigError(f"data={name}: spec is a {type(spec).__name__}; must be a paceline.tasks.base.DataSpec")
    if spec.target_dtype != torch.int64 and spec.targets == "labels":
        raise TaskConfigError(
            f"data={name}: spec.target_dtype={spec.target_dtype}: must be torch.int64 (labels, for task=cross_entropy "
            "and task=hinge) or a floating one, such as torch.float32 (numbers, for task=squared)"
        )
    if spec.targets == "numbers" and spec.classes != 0:
        raise TaskConfigError(
            f"data={name}: spec.classes={spec.classes}: must be 0 (or left out), as targets of {spec.target_dtype} are "
            "numbers; labels are torch.int64"
        )
    sizes = {"train_size": spec.train_size, "test_size": spec.test_size}
    if spec.targets == "labels":
        sizes = {"classes": spec.classes, **sizes}
    else:
        sizes |= {f"target_shape[{i}]": size for i, size in enumerate(spec.target_shape)}
    for key, size in sizes.items():
        if size is not None and size < 1:
            raise TaskConfigError(f"data={name}: spec.{key}={size}: must be 1 or more")


def load_checked(name: str, data: Data) -> tuple[Split, Split]:
    """The data's two splits. Raises `TaskConfigError` where they are not what `spec` says, and what `load` raises."""
    spec, splits = data.spec, data.load()
    for key, split, size in zip(("train", "test"), splits, (spec.train_size, spec.test_size), strict=True):
        what = f"data={name}: load() gives a {key} split"
        if len(split.inputs) != len(split.targets):
            raise TaskConfigError(
                f"{what} of {len(split.inputs)} inputs and {len(split.targets)} targets; must be one each"
            )
        if size is not None and len(split) != size:
            raise TaskConfigError(
                f"{what} of {len(split):,} samples, and spec.{key}_size says {size:,}; they must agree (or None: the "
                "size is only known once the data are there)"
            )
        _check(f"{what} with inputs", split.inputs, "input", spec.input_shape, spec.input_dtype)
        _check(f"{what} with targets", split.targets, "target", spec.target_shape, spec.target_dtype)
        _check_values(what, split.targets, spec)
    return splits


def _check_values(what: str, targets: Tensor, spec: DataSpec) -> None:
    if len(targets) == 0:
        return
    if spec.targets == "numbers":
        strange = (~targets.isfinite()).reshape(len(targets), -1).any(dim=1).nonzero()
        if len(strange) > 0:
            raise TaskConfigError(
                f"{what} with targets that are NaN or infinite, at first in sample {int(strange[0])}; must be finite"
            )
        return
    low, high = (int(bound) for bound in targets.aminmax())
    if low < 0 or high >= spec.classes:
        raise TaskConfigError(
            f"{what} with targets from {low} to {high}; spec.classes={spec.classes} leaves 0 to {spec.classes - 1}"
        )


def _check(what: str, tensor: Tensor, key: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if tuple(tensor.shape[1:]) != tuple(shape):
        raise TaskConfigError(
            f"{what} of {list(tensor.shape[1:])} each, and spec.{key}_shape says {list(shape)} "
            f"({math.prod(tensor.shape[1:])} numbers and {math.prod(shape)})"
        )
    if tensor.dtype != dtype:
        raise TaskConfigError(f"{what} of {tensor.dtype}, and spec.{key}_dtype says {dtype}; they must agree")
