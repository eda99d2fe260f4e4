"""Traces a forward pass by torch.fx, and refuses one that does more than its trace says.

A trace keeps what happens to tensors of the batch alone. So a forward is refused that changes attributes, buffers or
weights, draws random numbers that no tensor of the batch asks for, or turns gradients or autocast on or off: stages
would do it never, or in each step alike. Modules that are not traced, such as torch's batch norm, may change what they
have.
"""

import ast
import operator
import random
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from inspect import Parameter, currentframe, getframeinfo, signature
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from ...compat.dispatch import TorchDispatchMode, aliases_first, draws, tree_leaves, unbind
from ...compat.storages import version_of

_OF_TORCH = frozenset(vars(nn.Module()))
_IN_PLACE = re.compile(r"(?!__)\w*[^_]_|(__)?i(add|sub|mul|(true|floor)div|mod|pow|matmul|and|x?or|[lr]shift)(__)?")
_COMPARED = ast.Eq, ast.Lt, ast.LtE, ast.Gt, ast.GtE
_MAKERS = {
    each.__name__: each
    for each in (
        torch.arange,
        torch.empty,
        torch.eye,
        torch.full,
        torch.linspace,
        torch.ones,
        torch.rand,
        torch.randn,
        torch.zeros,
    )
}
_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_VIEWS = frozenset({"getitem", "__getitem__", "getattr", "float"})  # beside those that torch says itself


class PartialTraceError(ValueError):
    """A forward does something that its trace does not say."""


class _Value(fx.Proxy):
    """Stands for a tensor in a trace."""

    def __setattr__(self, name: str, value: object) -> None:
        if name not in ("tracer", "node"):
            raise PartialTraceError(f"it sets the attribute {name} of a tensor, which no stage would do")
        super().__setattr__(name, value)

    def __bool__(self) -> bool:
        """Stages assert what the forward asserts."""
        frame = currentframe()
        assert frame is not None and frame.f_back is not None
        caller = getframeinfo(frame.f_back)
        if not _asserts(line := "".join(caller.code_context or ()).strip()):
            return self.tracer.to_bool(self)
        self.tracer.create_proxy("call_function", assert_of_forward, (self, f"{line} ({caller.filename})"), {})
        return True

    def __setitem__(self, key: object, value: object) -> None:
        self.tracer.create_proxy("call_function", operator.setitem, (self, key, value), {})


def _in_place(operation: Callable[..., Any]) -> Callable[..., fx.Proxy]:
    """Returns the method for an operation such as `x += 1`, of which torch.fx itself makes `x = x + 1`."""
    return lambda self, other: self.tracer.create_proxy("call_function", operation, (self, other), {})


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift"):
    setattr(_Value, f"__i{_name}__", _in_place(getattr(operator, f"i{_name}")))


def _asserts(line: str) -> bool:
    """Returns True if a line of code asserts comparisons, all of which must hold.

    A function that it calls, such as `max`, would ask for the truth of other comparisons.
    """
    try:
        [statement] = ast.parse(line).body
    except (SyntaxError, ValueError):
        return False
    if not isinstance(statement, ast.Assert):
        return False
    test = statement.test
    every = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]
    if any(isinstance(each, ast.Call) and isinstance(each.func, ast.Name) for each in ast.walk(test)):
        return False
    return all(isinstance(each, ast.Compare) and all(isinstance(op, _COMPARED) for op in each.ops) for each in every)


def assert_of_forward(holds: bool, statement: str) -> None:
    """Raises `AssertionError` as the forward does, with its statement."""
    if not holds:
        raise AssertionError(statement)


@contextmanager
def _taking_sizes() -> Iterator[None]:
    """Has torch's functions that make tensors take sizes of the batch, which their C code wants to be numbers."""

    def taking(make: Callable[..., Any]) -> Callable[..., Any]:
        def made(*args: Any, **kwargs: Any) -> Any:
            sizes = [each for each in tree_leaves((args, kwargs)) if isinstance(each, fx.Proxy)]
            return sizes[0].tracer.create_proxy("call_function", make, args, kwargs) if sizes else make(*args, **kwargs)

        return made

    try:
        for name, make in _MAKERS.items():
            setattr(torch, name, taking(make))
        yield
    finally:
        for name, make in _MAKERS.items():
            setattr(torch, name, make)


def traced(model: nn.Module) -> fx.Graph:
    """Returns the trace of a model's forward, in which buffers are fetched anew in each pass.

    A forward that looks at the values of buffers has them as they are now. Raises as torch.fx, or `PartialTraceError`.
    """
    try:
        return StrictTracer(of_buffers=True).trace(model)
    except PartialTraceError:
        raise
    except Exception:
        return StrictTracer(of_buffers=False).trace(model)


def recomputable(graph: fx.Graph, model: nn.Module) -> set[fx.Node]:
    """Returns the nodes that each stage may compute by itself: what it fetches, and values of buffers alone."""
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    changed = {each for node in graph.nodes for each in written(node)}  # other stages would lack the change
    fetched = {node for node in graph.nodes if node.op == "get_attr"}
    alone = {node for node in fetched if str(node.target) not in parameters}
    for node in graph.nodes:
        its = node.all_input_nodes
        is_called = node.op in ("call_function", "call_method")
        if is_called and its and alone.issuperset(its) and node not in changed:
            if draws(_operation(node)):  # each stage would draw others
                return fetched
            alone.add(node)
    return fetched | alone


def operations(run: Callable[[Tensor], object], inputs: Tensor) -> list[str]:
    """Returns the names of torch's operations on `inputs` and on what comes of them, in the order of `run`."""
    found: list[str] = []
    inputs = inputs.clone()  # `run` may change its shape
    reached = {id(inputs): inputs}  # kept, as a tensor that is freed may have its id again

    class OperationsOf(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = func(*args, **(kwargs or {}))
            if any(id(each) in reached for each in tree_leaves((args, kwargs))):
                # a tensor is unpacked by `unbind`, and one of torch.fx by its entries
                found.extend(["aten.select.int"] * len(made) if func is unbind else [str(func)])
                reached.update((id(each), each) for each in tree_leaves(made) if isinstance(each, Tensor))
            return made

    with torch.no_grad(), OperationsOf():
        run(inputs)
    return found


class StrictTracer(fx.Tracer):
    def __init__(self, of_buffers: bool) -> None:
        super().__init__()
        self.proxy_buffer_attributes = of_buffers

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Value(node, self)

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> tuple[Any, list[Any]]:
        """Gives `root_fn` values for the parameters without defaults alone: stages call it with one tensor."""
        parameters = signature(root_fn).parameters.values()
        needed = [its.name for its in parameters if its.kind in _POSITIONAL and its.default is its.empty]
        names = needed[1:] or ["x"]  # beside `self`; a forward may take any arguments
        return root_fn, [self.root, *(self.create_proxy("placeholder", name, (), {}) for name in names)]

    def trace(self, root: nn.Module | Callable[..., Any], concrete_args: dict[str, Any] | None = None) -> fx.Graph:
        """Raises `PartialTraceError` for a forward of which the trace is not the whole."""
        assert isinstance(root, nn.Module)
        self._modes, attributes, random_states = _modes(), _attributes(root), _random_states()
        self._switches = {id(each): (name, key, getattr(each, key)) for each, name, key in _switches(root)}
        self._named, tensors = dict(root.named_parameters(remove_duplicate=False)), _tensors(root)

        def check(written: Sequence[str] = ()) -> None:
            if _random_states() != random_states:
                raise PartialTraceError("it draws random numbers whose shape is not the batch's, once for all steps")
            for key, value in _attributes(root).items():
                if not _same(attributes.get(key), value):
                    raise PartialTraceError(f"it changes the attribute {key}, which no stage would do")
            self._check(*root.modules(), *root.parameters())
            after = _tensors(root)
            changed = [key for key, before in tensors.items() if not _is_kept(before, after.get(key))]
            if changed := [*changed, *written]:
                raise _changes(tensors[changed[0]][0] if changed[0] in tensors else "a tensor that is not of the batch")

        try:
            with _taking_sizes():
                graph = super().trace(root, concrete_args)
        except Exception:
            check()  # another trace would not see what this one changed
            raise
        check([key for node in graph.nodes for key in map(_fetched, written(node)) if key])
        return graph

    def _check(self, *used: nn.Module | nn.Parameter) -> None:
        """Raises `PartialTraceError` if one of them is not in the mode in which it was before the trace."""
        for each in used:
            if id(each) in self._switches:
                name, key, value = self._switches[id(each)]
                if getattr(each, key) != value:
                    raise _changes(f"{key} of {name or 'the model'}")

    def create_node(self, *given: Any, **named: Any) -> fx.Node:
        if _modes() != self._modes:
            raise PartialTraceError("it turns gradients or autocast on or off, which no stage would do")
        node = super().create_node(*given, **named)
        if node.op == "call_module":
            module = self.root.get_submodule(str(node.target))
            self._check(*module.modules(), *module.parameters())
        self._check(*(self._named[name] for name in map(_fetched, node.all_input_nodes) if name in self._named))
        return node

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        owner = self.root.get_submodule(module_qualified_name.rpartition(".")[0])
        return (
            isinstance(owner, nn.ModuleList)
            or isinstance(m, torch.jit.ScriptModule)
            or super().is_leaf_module(m, module_qualified_name)
        )


def _changes(what: str) -> PartialTraceError:
    return PartialTraceError(
        f"it changes {what}, which only a module that blocks() returns may, or a layer where the model is nn.Sequential"
    )


def _switches(model: nn.Module) -> Iterator[tuple[nn.Module | nn.Parameter, str, str]]:
    for name, module in model.named_modules():
        yield module, name, "training"
    for name, parameter in model.named_parameters():
        yield parameter, name, "requires_grad"


def _tensors(model: nn.Module) -> dict[str, tuple[str, Tensor, int]]:
    """Returns all tensors of a model by name: in words, itself, and how often it was changed in place."""
    plain = (
        (f"{path}.{name}".removeprefix("."), value)
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, Tensor) and not name.startswith("_tensor_constant")  # of torch.fx itself
    )
    found = {
        "tensor": plain,
        "buffer": model.named_buffers(remove_duplicate=False),
        "parameter": model.named_parameters(remove_duplicate=False),
    }
    return {
        name: (f"the {kind} {name}", each, 0 if each.is_inference() else version_of(each))
        for kind, named in found.items()
        for name, each in named
        if isinstance(each, Tensor)  # a trace may put a value of its own there
    }


def _is_kept(before: tuple[str, Tensor, int], after: tuple[str, Tensor, int] | None) -> bool:
    if after is None:
        return False
    (what, one, version), (_, other, later) = before, after
    if one is other:
        return version == later
    is_plain = what.startswith("the tensor ")  # a forward may make it again, with the same numbers
    return is_plain and one.shape == other.shape and (one.is_meta or (one.dtype == other.dtype and one.equal(other)))


def written(node: fx.Node) -> Iterator[fx.Node]:
    """Yields the values in whose memory `node` changes something: its arguments, and those that they are views of."""
    name = _operation(node)
    is_first = _IN_PLACE.fullmatch(name) or name in ("setitem", "__setitem__") or node.kwargs.get("inplace")
    targets = node.args[0] if is_first and node.args else node.kwargs.get("out")
    for target in targets if isinstance(targets, list | tuple) else [targets]:
        each = target
        while isinstance(each, fx.Node):
            yield each
            each = each.args[0] if each.args and _is_view(_operation(each)) else None


def _operation(node: fx.Node) -> str:
    if node.op == "call_method":
        return str(node.target)
    return getattr(node.target, "__name__", "") if node.op == "call_function" else ""


def _is_view(operation: str) -> bool:
    """Returns True if what the operation returns may be in the memory of its first argument."""
    return operation in _VIEWS or _IN_PLACE.fullmatch(operation) is not None or aliases_first(operation)


def _fetched(node: fx.Node) -> str | None:
    return str(node.target) if node.op == "get_attr" else None


def _modes() -> tuple[bool, ...]:
    return torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")


def _random_states() -> tuple[bytes, object, str]:
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), str(np.random.get_state())  # noqa: NPY002


def _attributes(model: nn.Module) -> dict[str, object]:
    """Returns the attributes of all modules that are no tensors and no modules, by name. A value that a trace has kept
    counts as a tensor, in a list or a dict, too.
    """
    return {
        f"{path}.{name}".removeprefix("."): _plain(value)
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if name not in _OF_TORCH and not isinstance(value, fx.Proxy | Tensor)
    }


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {key: each for key, each in value.items() if not isinstance(each, fx.Proxy | Tensor)}
    if isinstance(value, list):
        return [each for each in value if not isinstance(each, fx.Proxy | Tensor)]
    return copy(value) if isinstance(value, set) else value


def _same(one: object, other: object) -> bool:
    try:
        return one is other or bool(one == other)
    except Exception:  # of a class of somebody's, an array of several numbers
        return False
