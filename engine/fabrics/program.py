"""A computation on tensors as the flat list of torch's operations that it called, to be called again for others.

The list is made into one Python function, which frees each result after its last use, as autograd does. It holds for
tensors of the same shapes, dtypes and strides only, and only where nothing but their values differs: it knows of no
other path through the Python code that called the operations.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...compat.dispatch import writes
from ...compat.recording import Call, NotRecordable, OperationRecorder, below_autograd, fast_call, plain_call
from ...compat.storages import storage_key

_ALIASES = (torch.ops.aten.detach.default, torch.ops.aten.alias.default)
_TRANSPOSED = torch.ops.aten.t.default

MOST = 2**26  # bytes of results; of a larger computation autograd takes a small part of the time

Compute = Callable[[], Sequence[Tensor | None]]
Caller = Callable[[Any], Callable[..., Any]]  # of an operation


class Program:
    """Calls the operations that a computation called.

    `operations`: in order. Those that do nothing, and those whose results nobody uses, are left out.
    """

    def __init__(self, compute: Compute, inputs: Sequence[Tensor]) -> None:
        """Records `compute`, which reads `inputs` and no other tensors. Raises `NotRecordable`."""
        drawn, before = torch.default_generator.get_state(), [each.detach().clone() for each in inputs]
        with torch.random.fork_rng(devices=[]):
            try:
                with OperationRecorder(inputs, MOST) as recorder:
                    results = compute()
            finally:
                changed = _restored(inputs, before)
            if changed or not torch.equal(drawn, torch.default_generator.get_state()):
                raise NotRecordable("random numbers, or a tensor that changes")
        self._listing = _ProgramSource(recorder.calls, inputs, results)
        self.operations = [line.operation for line in self._listing.lines]
        self._caller = fast_call
        self._function = self._listing.function(fast_call, ())
        if not self._calls_the_same(inputs):
            self._caller = plain_call
            self._function = self._listing.function(plain_call, ())

    def _calls_the_same(self, inputs: Sequence[Tensor]) -> bool:
        """Returns whether the fast functions call the operations of the list."""
        try:
            with torch.no_grad(), OperationRecorder(inputs, MOST) as recorder:
                self._function(*inputs)
        except (TypeError, NotRecordable):
            return False
        return [each for each, *_ in recorder.calls if each not in _ALIASES] == self.operations

    def run(self, inputs: Sequence[Tensor]) -> list[Tensor | None]:
        """Returns the results, which have no history."""
        with below_autograd():
            return self._function(*inputs)

    def own(self, inputs: Sequence[Tensor], like: Sequence[Tensor | None]) -> None:
        """Has each result be in memory of its own from now on, with the strides of `like`.

        Raises `NotRecordable` where one does not have them and they are not those of a contiguous tensor.
        """
        copied, taken = set[int](), {storage_key(each) for each in inputs}
        results = self.run(inputs)
        for i, (result, wanted) in enumerate(zip(results, like, strict=True)):
            if result is None or wanted is None:
                continue
            key, storage = storage_key(result), result.untyped_storage()
            is_own = key not in taken and storage.nbytes() == result.numel() * result.element_size()
            taken.add(key)
            if is_own and result.stride() == wanted.stride():
                continue
            if not wanted.is_contiguous():
                raise NotRecordable("strides of a gradient")
            copied.add(i)
        if copied:
            self._function = self._listing.function(self._caller, copied)


@dataclass(frozen=True)
class _ProgramLine:
    """One call: the source of its arguments, the names of its results, and the names in the arguments."""

    operation: Any
    arguments: str
    results: str
    names: set[str]
    used: set[str]


class _ProgramSource:
    """The source of a function that calls recorded operations."""

    def __init__(self, calls: Sequence[Call], inputs: Sequence[Tensor], results: Sequence[Tensor | None]) -> None:
        """`calls`: hold all tensors, so that no two have the same id."""
        self._constants: dict[str, Any] = {}
        self._inputs = [f"x{i}" for i in range(len(inputs))]
        self._names = {id(each): name for each, name in zip(inputs, self._inputs, strict=True)}
        if len(self._names) != len(inputs):
            raise NotRecordable("one tensor is given twice")
        turned, lines = dict[str, str](), list[_ProgramLine]()
        for operation, args, kwargs, made in calls:
            if operation in _ALIASES:
                self._names[id(made)] = self._name(args[0])
                continue
            used = set[str]()
            written = [self._expression(each, used) for each in args]
            if operation is _TRANSPOSED and written[0] in turned:
                self._names[id(made)] = turned[written[0]]
                continue
            written += [f"{key}={self._expression(each, used)}" for key, each in kwargs.items()]
            own = made if isinstance(made, tuple | list) else [made]
            names = [f"v{len(lines)}_{i}" for i in range(len(own))]
            self._names.update(zip(map(id, own), names, strict=True))
            if operation is _TRANSPOSED:
                turned[names[0]] = written[0]
            text = f"[{', '.join(names)}]" if own is made else names[0]
            lines.append(_ProgramLine(operation, ", ".join(written), text, {*names}, used))
        self._results = ["None" if each is None else self._name(each) for each in results]
        needed, self.lines = {*self._results}, list[_ProgramLine]()
        for line in reversed(lines):
            if needed & line.names or writes(line.operation):
                needed |= line.used
                self.lines.append(line)
        self.lines.reverse()

    def _name(self, tensor: Tensor) -> str:
        if id(tensor) not in self._names:
            raise NotRecordable("a tensor that is no input")
        return self._names[id(tensor)]

    def _expression(self, value: Any, used: set[str]) -> str:
        """Returns the source of an argument. `used`: gets the names of tensors in it."""
        if isinstance(value, Tensor):
            used.add(name := self._name(value))
            return name
        if isinstance(value, tuple | list):
            return f"[{', '.join(self._expression(each, used) for each in value)}]"
        if isinstance(value, torch.Generator):
            raise NotRecordable("a generator of random numbers")
        if value is None or isinstance(value, int):
            return repr(value)
        name = f"c{len(self._constants)}"
        self._constants[name] = value
        return name

    def function(self, caller: Caller, copied: Collection[int]) -> Callable[..., list[Tensor | None]]:
        """Returns the function. `copied`: the results to copy at the end, by place."""
        space: dict[str, Any] = {**self._constants, "copy": _copied}
        body, alive = list[str](), {*self._results, *self._inputs}
        for i, line in reversed([*enumerate(self.lines)]):
            space[f"f{i}"] = caller(line.operation)
            if over := sorted((line.names | line.used) - alive):
                body.append(f"del {', '.join(over)}")
            alive |= line.used
            body.append(f"{line.results} = f{i}({line.arguments})")
        results = [f"copy({each})" if i in copied else each for i, each in enumerate(self._results)]
        lines = [f"def program({', '.join(self._inputs)}):", *reversed(body), f"return [{', '.join(results)}]"]
        exec("\n    ".join(lines), space)  # it has names and numbers of our own alone
        return space["program"]


def _restored(tensors: Sequence[Tensor], before: Sequence[Tensor]) -> bool:
    """Gives tensors their values of before; returns whether they had others."""
    changed = [each for each in zip(tensors, before, strict=True) if not torch.equal(*each)]
    with torch.no_grad():
        for tensor, its in changed:
            tensor.copy_(its)
    return bool(changed)


def _copied(tensor: Tensor) -> Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)
