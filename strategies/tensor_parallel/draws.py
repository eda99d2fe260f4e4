"""Random numbers of pieces: unlike on the workers of a group, where what is whole is drawn alike by all.

All workers of a group draw the same numbers (`Mesh.drawing`), so that dropout of a whole activation drops the same
entries everywhere. Between a column and a row layer, and on slices of the sequence, each worker has other entries, and
what it drops there shall not repeat on the others (Megatron-LM keeps a second generator for that).

Here the piece's numbers follow from the state of the common generator and the piece alone: nothing else is kept, so
that a run that goes on, and a pass that is computed again, draws the same. The common generator goes on by one draw
if anything was drawn in between, and is as it was if not.
"""

from hashlib import blake2b

import torch
from torch import Tensor


class Draws:
    """The random numbers of one worker. Calls of `enter` and `leave` alternate."""

    def __init__(self) -> None:
        self._common: Tensor | None = None  # the common generator's state, while the piece draws
        self._fresh: Tensor | None = None  # the piece's, before its first draw

    def enter(self, piece: int, device: torch.device) -> None:
        """Switches to the piece's random numbers; does nothing if they are in use already."""
        if device.type == "meta" or self._common is not None:
            return
        generator = _generator(device)
        self._common = generator.get_state()
        seed = blake2b(self._common.numpy().tobytes(), digest_size=7, key=b"%d" % piece).digest()
        generator.manual_seed(int.from_bytes(seed, "little"))
        self._fresh = generator.get_state()

    def restart(self) -> None:
        """A pass begins, with the generator as it is now: one that was computed again may have ended in between."""
        self._common = self._fresh = None

    def leave(self, device: torch.device) -> None:
        """Switches back to the common generator, from which all workers draw alike."""
        if self._common is None or self._fresh is None:
            return
        generator = _generator(device)
        drew = not torch.equal(generator.get_state(), self._fresh)
        generator.set_state(self._common)
        if drew:
            torch.rand((), device=device)
        self._common = self._fresh = None


def _generator(device: torch.device) -> torch.Generator:
    if device.type == "cuda":
        return torch.cuda.default_generators[device.index or 0]
    return torch.default_generator
