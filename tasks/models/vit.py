"""A vision transformer: images cut into patches, which are read as a text is.

Source: Dosovitskiy et al., "An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale", 2020 (arXiv
2010.11929), section 3.1. Every patch of p x p pixels becomes a vector of width w by one matrix; a class token that is
learned stands before them, a position that is learned is added to each, and the class token's output is classified.
Blocks are GPT's (gpt.py) in which every place looks at all.
Deviates: drops out where GPT does, so attention's weights too, and of the perceptron its output alone; begins with
GPT-2's deviation of 0.02.

Parameters, for images of c colours and h x v pixels, K outputs, L layers:

    (c p^2 + 1) w + w + (h v / p^2 + 1) w + L (12 w^2 + 13 w) + 2 w + (w + 1) K
"""

from collections import OrderedDict
from math import gcd
from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor, nn

from ..base import DataSpec
from .checks import need_divisor, need_image
from .gpt import Count, Depth, Probability, TransformerBlock, Width, initialise


class Patches(nn.Module):
    """[n, colours, height, width of the image] -> [n, 1 + patches, width], the class token first."""

    def __init__(self, colours: int, places: int, patch: int, width: int, dropout: float) -> None:
        super().__init__()
        self.pixels = nn.Conv2d(colours, width, patch, stride=patch)  # a matrix times each patch
        self.class_token = nn.Parameter(torch.empty(width))
        self.position = nn.Parameter(torch.empty(1 + places, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.pixels(x).flatten(2).transpose(1, 2)  # [n, patches, width]
        tokens = torch.cat([self.class_token.expand(len(x), 1, -1), patches], dim=1)
        return self.dropout(tokens + self.position)


class ClassTokenPooling(nn.Module):
    """[n, t, width] -> [n, width]: what stands at the class token's place."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, 0]


class ViT(nn.Sequential):
    """[n, channels, height, width] float -> [n, outputs].

    `patch`: pixels of a patch's side. Raises ConfigError for data that are not images, and where the patch does not
    divide both sides of the image, or the heads the width.
    """

    depth_knob = "n_layer"  # more of it makes more layers

    def __init__(
        self,
        spec: DataSpec,
        patch: Annotated[int, Ge(1)] = 4,
        width: Width = 64,
        n_layer: Depth = 4,
        n_head: Count = 4,
        dropout: Probability = 0.0,
    ) -> None:
        need_image("vit", spec, smallest=1)
        colours, height, breadth = spec.input_shape
        need_divisor("patch", patch, gcd(height, breadth), f"both sides of images of {height}x{breadth}")
        need_divisor("n_head", n_head, width, f"model.width={width}")
        places = (height // patch) * (breadth // patch)
        layers: OrderedDict[str, nn.Module] = OrderedDict(patches=Patches(colours, places, patch, width, dropout))
        for number in range(1, n_layer + 1):
            layers[f"block{number}"] = TransformerBlock(width, n_head, n_head, dropout, causal=False)
        layers["norm"] = nn.LayerNorm(width)
        layers["first"] = ClassTokenPooling()
        layers["head"] = nn.Linear(width, spec.outputs)
        super().__init__(layers)
        initialise(self, n_layer)
