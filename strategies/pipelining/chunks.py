"""The layers that one worker of a pipeline holds: those of one stage, or of several."""

import copy
from collections.abc import Sequence
from itertools import chain

from torch import Tensor, nn


class Chunks(nn.Sequential):
    """Layers under the names that the whole model gives them. A pass goes through one chunk of them."""

    def __init__(self, chunks: Sequence[Sequence[tuple[str, nn.Module]]]) -> None:
        super().__init__()
        self.names = [[name for name, _ in chunk] for chunk in chunks]
        for chunk in chunks:
            for name, layer in chunk:
                self.add_module(name, layer)

    def forward(self, input: Tensor, chunk: int = 0) -> Tensor:
        for name in self.names[chunk]:
            input = self.get_submodule(name)(input)
        return input

    def weights(self, chunk: int) -> list[nn.Parameter]:
        """Those of a chunk that want gradients."""
        layers = [self.get_submodule(name) for name in self.names[chunk]]
        found = {id(each): each for layer in layers for each in layer.parameters() if each.requires_grad}
        return list(found.values())


def without_data(module: nn.Module) -> nn.Module:
    """A copy on the meta device, for shapes; tensors that are plain attributes of a layer go there too."""
    own = (value for layer in module.modules() for value in vars(layer).values() if isinstance(value, Tensor))
    tensors = chain(module.parameters(), module.buffers(), own)
    return copy.deepcopy(module, {id(each): each.detach().to("meta") for each in tensors})
