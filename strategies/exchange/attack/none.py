"""Nobody lies."""

from torch import Tensor

from .base import Attack


class Honest(Attack):
    def __init__(self) -> None:
        super().__init__(0)

    def forge(self, own: Tensor, honest: Tensor | None) -> Tensor:
        return own
