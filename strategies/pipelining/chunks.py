"""What one worker of a pipeline holds of a model: the blocks of one stage, or of several."""

import copy
from collections.abc import Sequence
from itertools import chain

from torch import Tensor, nn

from .blocks import Block, attribute


class Chunks(nn.Sequential):
    """Modules and tensors under the names that the whole model gives them. A pass goes through one chunk."""

    worker: int = 0  # of the replica

    def __init__(self, model: nn.Module, chunks: Sequence[Sequence[Block]]) -> None:
        super().__init__()
        self.blocks = [list(chunk) for chunk in chunks]
        saved = model.state_dict().keys()
        firsts = {id(weight): name for name, weight in model.named_parameters()}
        used = [path for block in chain.from_iterable(chunks) for path in block.uses]
        for weight in chain.from_iterable(block.parameters(model) for block in chain.from_iterable(chunks)):
            name = firsts[id(weight)]
            if not any(f"{name}.".startswith(f"{path}.") for path in used):  # it is tied to a weight of another stage
                self._take(name, weight, True)
                used.append(name)
        for block in chain.from_iterable(chunks):
            for path in block.uses:
                self._take(path, attribute(model, path), path in saved)

    def _take(self, path: str, value: object, is_saved: bool) -> None:
        *owners, name = path.split(".")
        into: nn.Module = self
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

    def forward(self, input: Tensor, chunk: int = 0) -> Tensor:
        if input.is_leaf and input.requires_grad and self._may_overwrite(chunk):
            input = input.clone()  # its gradient is wanted, and recomputing begins with what it was
        for block in self.blocks[chunk]:
            input = block.run(self, input)
        return input

    def _may_overwrite(self, chunk: int) -> bool:
        """Whether what enters a chunk may be changed in place, as by nn.ReLU(inplace=True)."""
        found = (attribute(self, path) for path in self.blocks[chunk][0].uses)
        layers = (layer for each in found if isinstance(each, nn.Module) for layer in each.modules())
        return any(getattr(layer, "inplace", False) for layer in layers)

    def weights(self, chunk: int) -> list[nn.Parameter]:
        """Those of a chunk that want gradients."""
        found = {
            id(each): each for block in self.blocks[chunk] for each in block.parameters(self) if each.requires_grad
        }
        return list(found.values())


def without_data(module: nn.Module) -> nn.Module:
    """A copy on the meta device, for shapes; tensors that are plain attributes of a layer go there too."""
    own = (value for layer in module.modules() for value in vars(layer).values() if isinstance(value, Tensor))
    tensors = chain(module.parameters(), module.buffers(), own)
    return copy.deepcopy(module, {id(each): _on_meta(each) for each in tensors})


def _on_meta(tensor: Tensor) -> Tensor:
    moved = tensor.detach().to("meta")
    return nn.Parameter(moved, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else moved
