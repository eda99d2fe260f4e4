"""Splits that are read sample by sample, or batch by batch, when they are wanted: larger than memory.

What the engine asks of any split is `Readable` (base.py), which `Split` is too. Here nothing is known beforehand, so
that each sample is held to `spec` as it is read, and an error names the sample.
"""

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from .base import DataSpec, Loaded, Taken
from .errors import SampleError

IGNORED = -100  # torch's ignore_index


class Reads(Protocol):
    """Samples by their numbers: a torch Dataset, a folder of images, columns of a table on disk."""

    def __len__(self) -> int: ...
    def __getitem__(self, number: int, /) -> Any:
        """`(inputs, target)`; inputs are a tensor, or what becomes one, or a dict or a tuple of such."""


class Items:
    """The samples `numbers` of `source` (None: all), read one by one. `targets`: of all of `source`, where they are
    known without reading samples. `what` begins each sentence of an error: "data=mine: the train split".

    Each sample is read under random numbers of its own, drawn from `seed`, its number and how often it was read by then
    (the pass): whoever reads it, in whatever order, a run and a resumed run augment it alike.
    """

    def __init__(
        self,
        source: Reads,
        spec: DataSpec,
        what: str,
        targets: Tensor | None = None,
        numbers: Tensor | None = None,
    ) -> None:
        self._source, self._spec, self._what, self._numbers = source, spec, what, numbers
        self._targets = targets
        self._held: Tensor | None = None  # the targets that samples must have

    def __len__(self) -> int:
        return len(self._source) if self._numbers is None else len(self._numbers)

    @property
    def targets(self) -> Tensor | None:
        """[n, ...], where they are known."""
        return self._targets if self._targets is None or self._numbers is None else self._targets[self._numbers]

    def hold_to_targets(self) -> None:
        """Lets `take` refuse samples whose targets are not the known ones, because something is made of these.

        Raises SampleError for a known target that no sample may have.
        """
        self._held = self._targets
        if self._held is not None:
            check_target(self._held, self._spec, f"{self._what}, the Dataset's attribute `targets`")

    weights = None  # of a sample that is read when it is wanted nothing is known before

    def weights_of(self, index: Tensor | slice, shape: torch.Size) -> None:
        return None

    def first(self, n: int | None) -> "Items":
        if n is None or n >= len(self):
            return self
        return self.rows(torch.arange(n) if self._numbers is None else self._numbers[:n])

    def rows(self, numbers: Tensor) -> "Items":
        """Returns these items of the whole source."""
        return Items(self._source, self._spec, self._what, self._targets, numbers)

    def take(self, index: Tensor | slice, drawn: int = 0) -> Taken:
        """`drawn`: of what the random numbers of a sample are made beside its own number: the seed and the step.

        Raises SampleError, which names the first sample that cannot be read or is other than `spec` says, and as
        `hold_to_targets` says.
        """
        numbers, spec = numbered(index, len(self)) if self._numbers is None else self._numbers[index], self._spec
        size = len(numbers)
        inputs = {key: torch.empty(size, *field.shape, dtype=field.dtype) for key, field in spec.fields.items()}
        targets = torch.empty(size, *spec.target_shape, dtype=spec.target_dtype)
        with own_draws() as draw, torch.no_grad():
            for row, number in enumerate(numbers.tolist()):
                draw((drawn * 1_000_003 + number) % 2**63)
                fields, targets[row] = self._sample(number)
                for key, tensor in fields.items():  # copied at once: a source may fill one tensor anew for each sample
                    inputs[key][row] = tensor
        return Taken(spec.joined(inputs), targets, None)

    def _sample(self, number: int) -> tuple[dict[str | int, Tensor], Tensor]:
        what, spec = f"{self._what}, sample {number}", self._spec
        try:
            read = self._source[number]
        except Exception as error:
            text = " ".join(str(error).split())[:500]
            raise SampleError(f"{what}: reading it raised {type(error).__name__}: {text}") from error
        if not isinstance(read, tuple | list) or len(read) != 2:
            raise SampleError(f"{what} is {_kind(read)}; must be a pair (inputs, target)")
        given = fields_of(read[0], spec, what)
        inputs = {
            key: tensor_of(given[key], field.dtype, f"{what}: {_called(key, spec)}")
            for key, field in spec.fields.items()
        }
        for key, field in spec.fields.items():
            _check_shape(inputs[key], field.shape, f"{what}: {_called(key, spec)}")
        target = tensor_of(read[1], spec.target_dtype, f"{what}: the target")
        _check_shape(target, spec.target_shape, f"{what}: the target")
        check_target(target, spec, what)
        if self._held is not None and not torch.equal(known := self._held[number], target):
            raise SampleError(
                f"{what}: its target is {target.tolist()!s:.60}, and the Dataset's attribute `targets`, by which "
                f"samples are dealt, counted or weighed, says {known.tolist()!s:.60}; both must agree"
            )
        return inputs, target


def held_to_targets(load: Callable[[], Loaded]) -> Loaded:
    """Loads splits and holds the ones that are read sample by sample to their known targets. Raises SampleError."""
    splits = load()
    for split in splits:
        if isinstance(split, Items):
            split.hold_to_targets()
    return splits


def numbered(index: Tensor | slice, size: int) -> Tensor:
    """The numbers that it chooses of all from 0 on."""
    return torch.arange(*index.indices(size)) if isinstance(index, slice) else index


def fields_of(inputs: object, spec: DataSpec, what: str) -> dict[str | int, Any]:
    """Returns a sample's inputs, by name or index. Raises SampleError."""
    wanted = list(spec.fields)
    if spec.inputs is None:
        return {"inputs": inputs}
    if not isinstance(inputs, Mapping if isinstance(spec.inputs, Mapping) else tuple | list):
        raise SampleError(f"{what} has inputs in {_kind(inputs)}; must be those of the first: {wanted}")
    assert isinstance(inputs, Iterable)
    found: dict[str | int, Any] = {}
    found.update(inputs if isinstance(inputs, Mapping) else enumerate(inputs))
    if set(found) != set(wanted):
        raise SampleError(f"{what} has inputs {list(found)}; must be those of the first: {wanted}")
    return found


def tensor_of(value: Any, dtype: torch.dtype | None, what: str) -> Tensor:
    """Returns a tensor, an array, a number or a list of them as a tensor of `dtype`.

    Floating numbers become float32 where `dtype` is None, and integers int64. Raises SampleError for complex numbers,
    sparse and other special tensors and masked arrays, and as `converted`.
    """
    if np.ma.is_masked(value):
        raise SampleError(f"{what} has masked entries; must have a number in each, as filled makes")
    try:
        tensor = value if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))
    except (TypeError, ValueError) as error:
        raise SampleError(f"{what} is {_kind(value)}; must be a tensor, an array or a number ({error})") from None
    is_special = tensor.is_nested or tensor.is_quantized or tensor.is_meta
    if is_special or tensor.is_complex() or tensor.layout is not torch.strided:
        layout = "" if tensor.layout is torch.strided else f" in layout {tensor.layout}"
        layout += " (nested or on the meta device)" if tensor.is_nested or tensor.is_meta else ""
        raise SampleError(
            f"{what} is of {tensor.dtype}{layout}; must be a dense tensor of real numbers, as torch.view_as_real and "
            "to_dense make"
        )
    if dtype is None:
        dtype = torch.float32 if tensor.is_floating_point() else torch.int64
    return converted(tensor, dtype, lambda _: what)


def converted(values: Tensor, dtype: torch.dtype, where: Callable[[int], str]) -> Tensor:
    """Returns `values` [k, ...] as `dtype`. Raises SampleError for a value that `dtype` cannot hold.

    Whole numbers and float64 are rounded to float32, but none becomes infinite.

    Args:
        where: begins the sentence of an error, given the row of `values` that is wrong.
    """
    found = values.to(dtype)
    if dtype.is_floating_point:
        if not values.is_floating_point() or torch.finfo(values.dtype).max <= torch.finfo(dtype).max:
            return found
        wrong, why = found.isinf() & ~values.isinf(), f", which {str(dtype).removeprefix('torch.')} cannot hold"
    elif values.is_floating_point():
        wrong, why = (found.to(values.dtype) != values) | (values.abs() >= 2**63), "; must be a whole number"
    elif dtype == torch.bool and values.dtype != torch.bool:
        wrong, why = (values != 0) & (values != 1), "; must be true or false"
    elif dtype == torch.int64 and values.dtype == torch.uint64:
        wrong, why = found < 0, "; must be less than 2^63"
    else:
        return found
    if bool(wrong.any()):
        first = int(wrong.flatten().nonzero()[0])
        value = values.flatten()[first].item()
        raise SampleError(f"{where(first // math.prod(values.shape[1:]))} is {value}{why}")
    return found


def check_target(target: Tensor, spec: DataSpec, what: str) -> None:
    """Checks the target of a sample, or of a batch. Raises SampleError."""
    if target.numel() == 0:
        return
    if spec.targets == "numbers":
        if not bool(target.isfinite().all()):
            raise SampleError(f"{what}: a target is NaN or infinite; must be finite")
        return
    if spec.ignored is not None:
        target = target.masked_fill(target == spec.ignored, 0)
    low, high = (int(bound) for bound in target.aminmax())
    if low < 0 or high >= spec.classes:
        told = label_in_words(low) if low < 0 else f"{high}; must be 0 to {spec.classes - 1}"
        raise SampleError(f"{what}: its label is {told}")


def label_in_words(label: int) -> str:
    """A label below 0 and what to do about it."""
    if label != IGNORED:
        return f"{label}; must be 0 or more"
    return (
        f"{label}, by which torch leaves out targets. Choose task.ignore_index={label} of task=weighted_labels or "
        "task=model, or data.weights=MASK"
    )


def _check_shape(tensor: Tensor, shape: Sequence[int], what: str) -> None:
    if tuple(tensor.shape) != tuple(shape):
        raise SampleError(f"{what} is of {list(tensor.shape)}; must be {list(shape)}, as that of the first sample")


def _called(key: str | int, spec: DataSpec) -> str:
    return "the input" if spec.inputs is None else f"the input {key!r}"


def _kind(value: object) -> str:
    return f"a {type(value).__name__}" + (f" of {len(value)}" if isinstance(value, tuple | list) else "")


@contextmanager
def own_draws() -> Iterator[Callable[[int], None]]:
    """Gives what seeds the generators of torch (on the host), Python and NumPy; they are put back at the end."""
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002

    def draw(seed: int) -> None:
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002

    try:
        yield draw
    finally:
        torch.set_rng_state(before[0])
        random.setstate(before[1])
        np.random.set_state(before[2])  # noqa: NPY002
