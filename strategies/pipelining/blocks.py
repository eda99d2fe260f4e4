"""Splits a model into blocks, between which it can be cut. Each takes one tensor and returns one.

    nn.Sequential    its layers, where it has no forward of its own
    blocks()         the modules that this method of the model returns, in the order of its forward
    any other        what torch.fx traces of its forward, cut wherever a single value goes on

A trace never cuts inside an entry of a ModuleList, or inside a module of torch's own. It keeps what happens to tensors
alone. So a forward is refused that changes attributes, buffers or weights, draws random numbers that no tensor of the
batch asks for, or turns gradients or autocast on or off: stages would do it never, or in each step alike. Modules that
are not traced, such as torch's batch norm, may change what they have.
"""

import inspect
import random
import re
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from operator import getitem
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, fx, nn

from ...compat.dispatch import aliases_first
from ...compat.modules import is_as_its_class
from ...compat.storages import version_of
from ...conf.errors import ConfigError
from ..core.state import layers_of

Run = Callable[[nn.Module, Tensor], Tensor]  # (a module that has what the block uses, under the model's names; input)


@dataclass(frozen=True)
class Block:
    name: str
    uses: tuple[str, ...]  # modules, parameters and buffers of the model
    run: Run
    is_module: bool = False  # what it does is what the module of its name does

    def parameters(self, of: nn.Module) -> Iterator[nn.Parameter]:
        """Returns the block's parameters, each once, as `of` has them."""
        found = chain.from_iterable(_parameters(attribute(of, path)) for path in self.uses)
        return iter({id(each): each for each in found}.values())


def blocks_of(model: nn.Module) -> list[Block]:
    """Returns the blocks of a model. The last one also holds the state that no block uses. Raises `ConfigError`."""
    if not is_as_its_class(model):
        raise ConfigError(
            f"strategy.stages: this {type(model).__name__} has a __call__ of its own, or a forward or hooks that were "
            "set on the object, which no stage calls. Choose strategy=data_parallel, or a class with that forward."
        )
    if isinstance(model, nn.Sequential) and type(model).forward is nn.Sequential.forward:
        return [_of_module(name) for name in layers_of(model)]
    if _says_blocks(model):
        blocks = _own(model, cast("Any", model).blocks())
    else:
        blocks = _traced(model)
    used = {path for block in blocks for path in block.uses}
    rest = [name for name in model.state_dict() if not any(f"{name}.".startswith(f"{path}.") for path in used)]
    *first, last = blocks
    return [*first, replace(last, uses=(*last.uses, *rest))]


def _says_blocks(model: nn.Module) -> bool:
    """Returns True if the model has a method blocks() without arguments; a submodule or a helper does not count."""
    own = getattr(type(model), "blocks", None)
    if not inspect.isfunction(own):
        return False
    try:
        inspect.signature(own).bind(model)
    except TypeError:
        return False
    return True


def attribute(module: nn.Module, path: str) -> object:
    *owners, name = path.split(".")
    return getattr(module.get_submodule(".".join(owners)), name)


def _parameters(value: object) -> Iterable[nn.Parameter]:
    if isinstance(value, nn.Module):
        return value.parameters()
    return [value] if isinstance(value, nn.Parameter) else []


def _of_module(path: str) -> Block:
    return Block(path, (path,), partial(_call, path), is_module=True)


def _call(path: str, root: nn.Module, x: Tensor) -> Tensor:
    return root.get_submodule(path)(x)


def _own(model: nn.Module, returned: object) -> list[Block]:
    kind = type(model).__name__
    modules = list(returned) if isinstance(returned, Iterable) else [returned]
    names = {id(module): name for name, module in model.named_modules(remove_duplicate=False) if name}
    foreign = [type(each).__name__ for each in modules if id(each) not in names]
    if foreign or not modules:
        what = f"a {foreign[0]} that is no module of it" if foreign else "nothing"
        raise ConfigError(
            f"strategy.stages: {kind}.blocks() returns {what}; must return modules of the model, in the order in "
            "which forward calls them"
        )
    return [_of_module(names[id(module)]) for module in modules]


_OF_TORCH = frozenset(vars(nn.Module()))


class _Value(fx.Proxy):
    """Stands for a tensor in a trace."""

    def __setattr__(self, name: str, value: object) -> None:
        if name not in ("tracer", "node"):
            raise ValueError(f"it sets the attribute {name} of a tensor, which no stage would do")
        super().__setattr__(name, value)


class _Tracer(fx.Tracer):
    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Value(node, self)

    def trace(self, root: nn.Module | Callable[..., Any], concrete_args: dict[str, Any] | None = None) -> fx.Graph:
        """Raises `ValueError` for a forward of which the trace is not the whole."""
        assert isinstance(root, nn.Module)
        self._modes, attributes, random_states = _modes(), _attributes(root), _random_states()
        self._switches = {id(each): (name, key, getattr(each, key)) for each, name, key in _switches(root)}
        self._named, tensors = dict(root.named_parameters(remove_duplicate=False)), _tensors(root)
        graph = super().trace(root, concrete_args)
        if _random_states() != random_states:
            raise ValueError("it draws random numbers whose shape is not the batch's, once for all steps")
        for key, value in _attributes(root).items():
            if not _same(attributes.get(key), value):
                raise ValueError(f"it changes the attribute {key}, which no stage would do")
        self._check(*root.modules(), *root.parameters())
        after = _tensors(root)
        changed = [key for key, before in tensors.items() if not _is_kept(before, after.get(key))]
        changed += [key for key in map(_written, graph.nodes) if key]
        if changed:
            raise _changes(tensors[changed[0]][0] if changed[0] in tensors else "a tensor that is not of the batch")
        return graph

    def _check(self, *used: nn.Module | nn.Parameter) -> None:
        """Raises `ValueError` if one of them is not in the mode in which it was before the trace."""
        for each in used:
            if id(each) in self._switches:
                name, key, value = self._switches[id(each)]
                if getattr(each, key) != value:
                    raise _changes(f"{key} of {name or 'the model'}")

    def create_node(self, *given: Any, **named: Any) -> fx.Node:
        if _modes() != self._modes:
            raise ValueError("it turns gradients or autocast on or off, which no stage would do")
        node = super().create_node(*given, **named)
        if node.op == "call_module":
            module = self.root.get_submodule(str(node.target))
            self._check(*module.modules(), *module.parameters())
        self._check(*(self._named[name] for name in map(_fetched, node.all_input_nodes) if name in self._named))
        return node

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        owner = self.root.get_submodule(module_qualified_name.rpartition(".")[0])
        return isinstance(owner, nn.ModuleList) or super().is_leaf_module(m, module_qualified_name)


def _changes(what: str) -> ValueError:
    return ValueError(
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
    }


def _is_kept(before: tuple[str, Tensor, int], after: tuple[str, Tensor, int] | None) -> bool:
    if after is None:
        return False
    (what, one, version), (_, other, later) = before, after
    if one is other:
        return version == later
    is_plain = what.startswith("the tensor ")  # a forward may make it again, with the same numbers
    return is_plain and one.shape == other.shape and (one.is_meta or (one.dtype == other.dtype and one.equal(other)))


_IN_PLACE = re.compile(r"(?!__)\w*[^_]_|(__)?i(add|sub|mul|(true|floor)div|mod|pow|matmul|and|x?or|[lr]shift)(__)?")
_VIEWS = frozenset({"getitem", "__getitem__", "getattr", "float"})  # beside those that torch says itself


def _written(node: fx.Node) -> str | None:
    """Returns the tensor of the model that `node` changes in place; None for what the forward computes."""
    name = _operation(node)
    is_first = _IN_PLACE.fullmatch(name) or name == "__setitem__" or node.kwargs.get("inplace")
    target = node.args[0] if is_first and node.args else node.kwargs.get("out")
    while isinstance(target, fx.Node) and _is_view(_operation(target)):
        target = target.args[0] if target.args else None
    return _fetched(target) if isinstance(target, fx.Node) else None


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


def _traced(model: nn.Module) -> list[Block]:
    kind = type(model).__name__
    try:
        graph = _Tracer().trace(model)
        graph.lint()  # a forward that keeps what it computes, such as in a dict, gives values of an earlier trace
    except Exception as error:
        line = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError(
            f"strategy.stages: cannot find where to cut {kind}: it is no nn.Sequential, and torch.fx cannot trace its "
            f"forward ({line}); give it a method blocks() that returns its modules in the order in which forward calls "
            "them, each of which takes what the one before gives; strategy=data_parallel takes any module"
        ) from error
    _check_names(graph)
    inputs = [node for node in graph.nodes if node.op == "placeholder" and node.users]
    nodes = [node for node in graph.nodes if node.op not in ("placeholder", "get_attr", "output")]
    if len(inputs) != 1 or not nodes:
        raise ConfigError(
            f"strategy.stages: the forward of {kind} must take one tensor, do something with it and return one. It "
            f"takes {', '.join(node.name for node in inputs) or 'none'}. Wrap it in a module that calls it with one "
            "tensor (docs/your_own.md), or choose strategy=data_parallel, which takes any module."
        )
    blocks: list[Block] = []
    entering, begin = inputs[0], 0
    alive = {inputs[0]: len(inputs[0].users)}  # values -> users to come
    for i, node in enumerate(nodes):
        for given in node.all_input_nodes:
            if given in alive:
                alive[given] -= 1
        alive = {value: users for value, users in alive.items() if users} | {node: len(node.users)}
        if len(alive) == 1 and not any(map(_takes_apart, node.users)):
            blocks.append(_segment(entering, nodes[begin : i + 1]))
            entering, begin = node, i + 1
    return blocks


def _takes_apart(node: fx.Node) -> bool:
    """Returns True if `node` fetches an entry, as of the tuple that an LSTM returns."""
    return node.target is getitem and isinstance(node.args[1], int)


def _check_names(graph: fx.Graph) -> None:
    """Raises `ConfigError` for a name that torch.fx, which writes it between quotes, would write as another one."""
    for target in (str(node.target) for node in graph.nodes if node.op in ("call_module", "get_attr")):
        if {*target} & {*'"\\\r\n'}:
            raise ConfigError(
                f"strategy.stages: the name {target!r} in the model has a quote, a backslash or a line break, which "
                "torch.fx does not write. Choose another name, or strategy=data_parallel, which takes any."
            )


def _segment(entering: fx.Node, nodes: list[fx.Node]) -> Block:
    graph = fx.Graph()
    copies = {entering: graph.placeholder("x")}

    def copied(node: fx.Node) -> fx.Node:
        if node not in copies:  # a parameter, fetched where it is used
            copies[node] = graph.node_copy(node)
        return copies[node]

    for node in nodes:
        for given in node.all_input_nodes:
            copied(given)
        copies[node] = graph.node_copy(node, copied)
    graph.output(copies[nodes[-1]])
    uses = tuple(dict.fromkeys(str(node.target) for node in graph.nodes if node.op in ("call_module", "get_attr")))
    name = next((str(node.target) for node in nodes if node.op == "call_module"), nodes[0].name)
    return Block(name, uses, _function(graph))


def _function(graph: fx.Graph) -> Run:
    """The graph as a function of a module and its input. An fx.GraphModule reserves some names, such as `graph`."""
    code = graph.python_code("self")
    namespace = dict(code.globals)
    exec(code.src, namespace)  # torch.fx's own text of its graph
    return namespace["forward"]
