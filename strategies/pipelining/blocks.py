"""Splits a model into blocks, between which it can be cut. Each takes one tensor and returns one.

    nn.Sequential    its layers, where it has no forward of its own
    blocks()         the modules that this method of the model returns, in the order of its forward
    any other        what torch.fx traces of its forward, cut wherever a single value goes on

A trace never cuts inside an entry of a ModuleList, or inside a module of torch's own. traced.py says which forwards are
refused.
"""

import inspect
import keyword
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, pairwise
from operator import getitem
from pathlib import Path
from traceback import walk_tb
from typing import Any, cast
from unicodedata import normalize

from torch import Tensor, fx, nn

from ...compat.modules import is_as_its_class
from ...conf.errors import ConfigError
from ..core.state import layers_of
from .traced import recomputable, traced, written

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
        names = layers_of(model)
        _check_train(model, names)
        return [_of_module(name) for name in names]
    if _says_blocks(model):
        blocks = _own(model, cast("Any", model).blocks())
    else:
        blocks = _traced(model)
    used = {path for block in blocks for path in block.uses}
    _check_train(model, used)
    rest = [name for name in model.state_dict() if not any(f"{name}.".startswith(f"{path}.") for path in used)]
    *first, last = blocks
    return [*first, replace(last, uses=(*last.uses, *rest))]


def _check_train(model: nn.Module, used: Collection[str]) -> None:
    """Raises `ConfigError` for a module with a `train` of its own, unless a stage holds all of it and so calls it."""
    for path, module in model.named_modules():
        if type(module).train is not nn.Module.train and not any(f"{path}.".startswith(f"{each}.") for each in used):
            raise ConfigError(
                f"strategy.stages: this {type(module).__name__} has a train() of its own, which no stage calls. Choose "
                "strategy=data_parallel, or let each layer keep its own mode."
            )


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


def _traced(model: nn.Module) -> list[Block]:
    kind = type(model).__name__
    try:
        graph = traced(model)
        graph.lint()  # a forward that keeps what it computes, such as in a dict, gives values of an earlier trace
    except Exception as error:
        line = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError(
            f"strategy.stages: cannot find where to cut {kind}: it is no nn.Sequential, and torch.fx cannot trace its "
            f"forward ({_line_of(error)}{line}); give it a method blocks() that returns its modules in the order in "
            "which forward calls them, each of which takes what the one before gives; strategy=data_parallel takes any "
            "module"
        ) from error
    _check_names(graph)
    returned: Any = graph.output_node().args[0]
    if not isinstance(returned, fx.Node) or isinstance(returned.target, type):  # a tuple; a named one
        raise ConfigError(
            f"strategy.stages: the forward of {kind} returns an object, and a stage passes on one tensor. Wrap it in a "
            "module that returns the logits (docs/your_own.md), or choose strategy=data_parallel, which takes any "
            "module."
        )
    inputs = [node for node in graph.nodes if node.op == "placeholder" and node.users]
    anywhere = recomputable(graph, model)
    nodes = [node for node in graph.nodes if node.op not in ("placeholder", "output") and node not in anywhere]
    if len(inputs) != 1 or returned not in nodes:
        raise ConfigError(
            f"strategy.stages: the forward of {kind} must take one tensor, do something with it and return one. It "
            f"takes {', '.join(node.name for node in inputs) or 'none'}. Wrap it in a module that calls it with one "
            "tensor (docs/your_own.md), or choose strategy=data_parallel, which takes any module."
        )
    ends: list[tuple[fx.Node, int]] = []  # the value that leaves a block, and how many nodes come before it
    alive = {inputs[0]: len(inputs[0].users)}  # values -> users to come
    changed = {value: i for i, node in enumerate(nodes) for value in written(node)}  # when it is for the last time
    for i, node in enumerate(nodes):
        for given in node.all_input_nodes:
            if given in alive:
                alive[given] -= 1
        alive = {value: users for value, users in alive.items() if users} | {node: len(node.users)}
        if len(alive) == 1 and changed.get(node, i) <= i and not any(map(_takes_apart, node.users)):
            ends.append((node, i + 1))
    # the last block has all that follows: changes of its result in place, and values that nobody uses
    ends = [*(end for end in ends if end[0] is not returned), (returned, len(nodes))]
    begins = [(inputs[0], 0), *ends]
    return [_segment(entering, nodes[i:j], leaving) for (entering, i), (leaving, j) in pairwise(begins)]


def _line_of(error: Exception) -> str:
    """Returns the file and the line of a user's code that the error comes from; "" where it is from none."""
    frames = [
        (Path(frame.f_code.co_filename).name, line)
        for frame, line in walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__")).partition(".")[0] not in ("torch", "paceline")
    ]
    return f"{frames[-1][0]}, line {frames[-1][1]}: " if frames else ""


def _takes_apart(node: fx.Node) -> bool:
    """Returns True if `node` fetches an entry, as of the tuple that an LSTM returns."""
    return node.target is getitem and isinstance(node.args[1], int)


def _check_names(graph: fx.Graph) -> None:
    """Raises `ConfigError` for a name that Python would not read as it is, where torch.fx writes it between quotes or,
    if it is an identifier, as an attribute.
    """
    for target in (str(node.target) for node in graph.nodes if node.op in ("call_module", "get_attr")):
        identifiers = list(filter(str.isidentifier, target.split(".")))
        if {*target} & {*'"\\\r\n'}:
            why = "has a quote, a backslash or a line break"
        elif any(map(keyword.iskeyword, identifiers)):
            why = "has a keyword of Python"
        elif any(normalize("NFKC", name) != name for name in identifiers):
            why = "has letters that Python reads as others"
        else:
            continue
        raise ConfigError(
            f"strategy.stages: the name {target!r} in the model {why}, which torch.fx does not write. Choose another "
            "name, or strategy=data_parallel, which takes any."
        )


def _segment(entering: fx.Node, nodes: list[fx.Node], leaving: fx.Node) -> Block:
    graph = fx.Graph()
    copies = {entering: graph.placeholder("x")}

    def copied(node: fx.Node) -> fx.Node:
        if node not in copies:  # a parameter, fetched where it is used, or a value of buffers
            copies[node] = graph.node_copy(node, copied)
        return copies[node]

    for node in nodes:
        for given in node.all_input_nodes:
            copied(given)
        copies[node] = graph.node_copy(node, copied)
    graph.output(copies[leaving])
    uses = tuple(dict.fromkeys(str(node.target) for node in graph.nodes if node.op in ("call_module", "get_attr")))
    name = next((str(node.target) for node in nodes if node.op == "call_module"), nodes[0].name)
    return Block(name, uses, _function(graph))


def _function(graph: fx.Graph) -> Run:
    """The graph as a function of a module and its input. An fx.GraphModule reserves some names, such as `graph`."""
    code = graph.python_code("self")
    namespace = dict(code.globals)
    exec(code.src, namespace)  # torch.fx's own text of its graph
    return namespace["forward"]
