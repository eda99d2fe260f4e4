"""Tensors that a script trains and that the wrapped model lacks: nobody exchanges their gradients."""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from ..comm import Comm
from ..exchange.alike import digest_of, first_other
from .errors import ScriptError

MOST = 1 << 62


class Strangers:
    """Compares the tensors that were met in two looks or more. Others are a step's own, such as an inner loop's model.

    A tensor that some workers train and others do not is a worker's own: the script says so.
    """

    def __init__(self, comm: Comm, device: torch.device) -> None:
        """`comm`: the replicas, on `device`."""
        self._comm, self._device = comm, device
        self._looks = 0
        self._met = WeakIdKeyDictionary()  # by the tensor: the first and the last look in which it was met

    def look(self) -> None:
        """A step begins in which all workers look. Those that the last look did not meet are forgotten."""
        for each in [each for each, (_, last) in self._met.items() if last < self._looks]:
            del self._met[each]
        self._looks += 1

    def meet(self, tensors: Iterable[Tensor], own: Iterable[Tensor]) -> None:
        """Notes those of `tensors` that are not among `own`, the model's and its optimizer's."""
        known = {id(each) for each in own}
        for each in tensors:
            if id(each) not in known:
                first = self._met[each][0] if each in self._met else self._looks
                self._met[each] = first, self._looks

    def compare(self, steps: int) -> None:
        """Raises `ScriptError` where they differ after so many steps. All workers call."""
        found = [each for each, (first, last) in self._met.items() if first < last]
        mine = torch.tensor([len(found), sum(map(digest_of, found)) % MOST], device=self._device)
        with self._comm.ledger.aside():
            every = self._comm.all_gather(mine).cpu().tolist()
        other = first_other(every)
        if other and all(count > 0 for count, *_ in every):
            shapes = ", ".join(str(list(each.shape)) for each in found)
            raise ScriptError(
                f"wrap: the model lacks parameters that the script trains, of shapes {shapes}: those of worker {other} "
                f"differ from worker 0's after {steps} steps. Give wrap one nn.ModuleList of all models"
            )
