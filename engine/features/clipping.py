"""`clip`: what is recorded of it."""

from collections.abc import Mapping
from typing import Self

from ...strategies import Sync
from .feature import Chosen, Context, Feature, Hooks


class Clips(Feature):
    """Gradients that are too large are changed."""

    key = "clip"

    @classmethod
    def of(cls, chosen: Chosen) -> Self:
        return cls()

    def hooks(self, context: Context) -> Hooks:
        return Clipping(context.parts.sync)


class Clipping(Hooks):
    """Tells how long gradients were before they were clipped."""

    def __init__(self, sync: Sync) -> None:
        self._sync = sync

    def numbers(self) -> Mapping[str, float]:
        clip = self._sync.clip
        return {} if clip is None or clip.norm is None else {"unclipped_norm": clip.norm}
