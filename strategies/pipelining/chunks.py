"""Chunks: the blocks of one stage, or of several, that one worker of a pipeline holds."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain

from torch import Tensor, nn

from ...conf.errors import ConfigError
from ..core.copies import closed_over, without_data
from .blocks import Block, attribute
from .traced import operations


class Chunks(nn.Module):
    """Modules and tensors under the names that the whole model gives them. A pass goes through one chunk.

    The model may use any name, such as `blocks` or `weights`. This class therefore has no public attribute or method of
    its own; the functions below read what it keeps.
    """

    def __init__(
        self,
        model: nn.Module,
        chunks: Sequence[Sequence[Block]],
        worker: int = 0,
        firsts: Mapping[int, str] | None = None,
    ) -> None:
        """`worker`: its place in the replica. `firsts`: `first_names` of the model, where they are known."""
        super().__init__()
        self.__paceline_blocks__ = [list(chunk) for chunk in chunks]
        self.__paceline_worker__ = worker
        firsts = first_names(model) if firsts is None else firsts
        used = [path for block in chain.from_iterable(chunks) for path in block.uses]
        for weight in chain.from_iterable(block.parameters(model) for block in chain.from_iterable(chunks)):
            name = firsts[id(weight)]
            if not any(f"{name}.".startswith(f"{path}.") for path in used):  # it is tied to a weight of another stage
                _put(self, name, weight, True)
                used.append(name)
        for block in chain.from_iterable(chunks):
            for path in block.uses:
                value = attribute(model, path)
                _put(self, path, value, isinstance(value, Tensor) and path in model.state_dict())

    def forward(self, input: Tensor, chunk: int = 0) -> Tensor:
        blocks = chunks_of(self)[chunk]
        if input.is_leaf and input.requires_grad and _may_overwrite(self, blocks[0]):
            input = input.clone()  # its gradient is wanted, and recomputing begins with what it was
        for block in blocks:
            input = block.run(self, input)
        return input


def check_own(model: nn.Module, block: Block) -> None:
    """Raises `ConfigError` where functions in the layers of a block use a weight or buffer that is not the block's."""
    layers = [each for path in block.uses if isinstance(each := attribute(model, path), nn.Module)]
    own = {id(each) for layer in layers for each in chain(layer.parameters(), layer.buffers())}
    own |= {id(attribute(model, path)) for path in block.uses}
    names = {id(each): name for name, each in chain(model.named_parameters(), model.named_buffers())}
    for layer in layers:
        other = next((names[id(each)] for each in closed_over(layer) if id(each) in names.keys() - own), None)
        if other is not None:
            raise ConfigError(
                f"strategy.stages: a function in the layer {block.name} uses {other}, which is another layer's, and a "
                "stage has its own layers alone. Choose strategy=data_parallel, or let the layer use its own weights."
            )


def check_traced(model: nn.Module, layers: Sequence[Chunks], inputs: Tensor) -> None:
    """Raises `ConfigError` where the trace of a forward took another branch than the forward takes with tensors.

    Args:
        layers: The model's blocks, each alone.
    """
    if all(block.is_module for layer in layers for block in chain.from_iterable(chunks_of(layer))):
        return
    whole, split = operations(without_data(model), inputs), operations(nn.Sequential(*layers), inputs)
    if whole != split:
        one_sided = {"forward": Counter(whole) - Counter(split), "stages": Counter(split) - Counter(whole)}
        differs = [f"only the {side} would run {', '.join([*its][:3])}" for side, its in one_sided.items() if its]
        raise ConfigError(
            f"strategy.stages: the stages of {type(model).__name__} would not do what its forward does: "
            f"{' and '.join(differs) or 'the order of operations differs'}. torch.fx, which splits it, has no tensors "
            "where a forward asks for their class (isinstance, type). Remove that branch, give the model a method "
            "blocks(), or choose strategy=data_parallel."
        )


def first_names(model: nn.Module) -> dict[int, str]:
    """Returns the first name of each parameter, by its id."""
    return {id(weight): name for name, weight in model.named_parameters()}


def chunks_of(part: Chunks) -> list[list[Block]]:
    """The blocks of each chunk, in the order of the forward pass."""
    return part.__paceline_blocks__


def worker_of(part: Chunks) -> int:
    """The part's place in the replica."""
    return part.__paceline_worker__


def weights_of(part: Chunks, chunk: int) -> list[nn.Parameter]:
    """The parameters of a chunk that require gradients, each once."""
    found = {
        id(each): each for block in chunks_of(part)[chunk] for each in block.parameters(part) if each.requires_grad
    }
    return list(found.values())


def _put(root: nn.Module, path: str, value: object, is_saved: bool) -> None:
    *owners, name = path.split(".")
    into = root
    for owner in owners:
        if owner not in dict(into.named_children()):
            into.add_module(owner, nn.Module())
        into = into.get_submodule(owner)
    if isinstance(value, nn.Module):
        into.add_module(name, value)
    elif isinstance(value, nn.Parameter):
        into.register_parameter(name, value)
    elif isinstance(value, Tensor):
        into.register_buffer(name, value, persistent=is_saved)
    else:
        setattr(into, name, value)


def _may_overwrite(part: Chunks, first: Block) -> bool:
    """Returns True if the first block may change its input in place, as nn.ReLU(inplace=True) does."""
    found = (attribute(part, path) for path in first.uses)
    layers = (layer for each in found if isinstance(each, nn.Module) for layer in each.modules())
    return any(getattr(layer, "inplace", False) is True for layer in layers)
