"""A backdoor: a patch on an image that makes the model say a label of the liars' choice (BadNets: Gu, Dolan-Gavitt and
Garg 2017, arXiv 1708.06733; in federated learning Bagdasaryan et al. 2020, "How To Backdoor Federated Learning",
AISTATS, arXiv 1807.00459). Of each of its batches who lies trains the first `share` of the samples as

    x~ = x with `value` in the size x size pixels of the corner below right,        y~ = target

and the others as they are, so that the model stays right on clean images. What the attack is worth is told at each
evaluation: `backdoor_success`, the share of test images of other classes that get the target's label with the patch on.

Deviation: Bagdasaryan et al. scale their update up until it outweighs the others' (model replacement); here who lies
sends what it has trained.

Use it where accuracy shows nothing: a rule that keeps it may let the patch in.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

from ...batches import Samples, lone
from ...conf.errors import ConfigError
from .base import Poison


class Backdoor(Poison):
    def __init__(
        self,
        workers: int | Sequence[int] = 1,
        from_step: int = 0,
        target: Annotated[int, Ge(0)] = 0,
        size: Annotated[int, Ge(1)] = 2,
        value: float = 2.0,
        share: Annotated[float, Gt(0), Le(1)] = 0.5,
    ) -> None:
        """`target`: the label. `size`: of the patch, in pixels. `value`: of each of them, as the model sees them.
        `share`: of a batch. Raises `ConfigError`.
        """
        super().__init__(workers, from_step)
        self.target, self.size, self.value, self.share = target, size, value, share

    def poisoned(self, inputs: Samples, targets: Tensor, classes: int) -> tuple[Samples, Tensor]:
        first = math.ceil(self.share * len(targets))
        images, labels = lone(inputs), targets.clone()
        labels[:first] = self.target
        return torch.cat([self.triggered(images[:first]), images[first:]]), labels

    def triggered(self, images: Tensor) -> Tensor:
        """[n, ..., height, width] -> the same with the patch on."""
        patched = images.clone()
        patched[..., -self.size :, -self.size :] = self.value
        return patched

    def check_data(self, inputs: Mapping[str | int, torch.Size], floating: bool, classes: int) -> None:
        super().check_data(inputs, floating, classes)
        shape = next(iter(inputs.values()))
        if len(inputs) > 1 or not floating or len(shape) < 2:
            shown = ", ".join("x".join(map(str, each)) for each in inputs.values())
            raise ConfigError(
                f"puts a patch on images, and a sample of these data is {shown} "
                f"{'numbers' if floating else 'of whole numbers'}. Choose attack=label_flip, or data of images.",
                about=("attack",),
            )
        if self.size > min(shape[-2:]):
            raise ConfigError(
                f"attack.size={self.size}: the images are {shape[-2]}x{shape[-1]}. Choose {min(shape[-2:])} at most."
            )
        if self.target >= classes:
            raise ConfigError(f"attack.target={self.target}: must be below {classes}, the classes of these data")
