"""An optimizer shared out by torch's ZeroRedundancyOptimizer, and its state whole.

torch sorts the tensors by size and gives each to the worker that has the fewest entries yet. A worker steps on its own
tensors, and then broadcasts them, one by one. Tensors stay whole, so optimizers that need a whole tensor work (Muon).
"""

import warnings
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from ...comm.process import ProcessComm
from ...comm.torch_world import torch_world
from ..core.state import State, own_entries, recv_state, to_messages


def shares_of(parameters: Sequence[Tensor], workers: int) -> list[list[Tensor]]:
    """The tensors that each worker owns."""
    shares: list[list[Tensor]] = [[] for _ in range(workers)]
    sizes = [0] * workers
    for parameter in sorted(parameters, key=lambda each: each.numel(), reverse=True):
        owner = sizes.index(min(sizes))
        shares[owner].append(parameter)
        sizes[owner] += parameter.numel()
    return shares


class ZeroRedundancy:
    """Takes over an optimizer, which steps on this worker's tensors alone from here on."""

    def __init__(self, optimizer: Optimizer, comm: ProcessComm) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # torch's own, of what else is in there
            from torch.distributed.optim import ZeroRedundancyOptimizer
        self._own, self._comm = optimizer, comm
        whole = optimizer.state_dict()  # some keep state from the start
        groups = [
            {**group, "params": [parameter for parameter in group["params"] if parameter.requires_grad]}
            for group in optimizer.param_groups
        ]

        def on_its_tensors(groups: list[dict[str, Any]], **_: Any) -> Optimizer:
            optimizer.param_groups = groups
            return optimizer

        numbers = iter(range(sum(len(group["params"]) for group in optimizer.param_groups)))
        self._numbers = {parameter: next(numbers) for group in optimizer.param_groups for parameter in group["params"]}
        self._groups = [[self._numbers[parameter] for parameter in group["params"]] for group in optimizer.param_groups]
        optimizer.state.clear()
        torch_world(comm)
        self.torchs = ZeroRedundancyOptimizer(groups, on_its_tensors)  # pyright: ignore[reportArgumentType]
        if whole["state"]:
            self.load_state_dict({"optimizer": whole})

    def state_dict(self) -> State:
        """Called on all. On worker 0: the whole state, as the optimizer would have it alone; else nothing.

        torch's `consolidate_state_dict` pickles, and what comes from another process is not unpickled here.
        """
        kept = {self._numbers[parameter]: its for parameter, its in self._own.state.items()}
        if self._comm.rank != 0:
            for message in to_messages({"kept": kept}):
                self._comm.send(message, 0)
            return {}
        for worker in range(1, self._comm.size):
            kept |= recv_state(worker, self._comm)["kept"]
        groups = [
            {**{key: value for key, value in group.items() if key != "params"}, "params": numbers}
            for group, numbers in zip(self._own.param_groups, self._groups, strict=True)
        ]
        own = own_entries(self._own.state_dict())
        return {"optimizer": {**own, "state": dict(sorted(kept.items())), "param_groups": groups}}

    def load_state_dict(self, state: State) -> None:
        """Loads a whole state of `state_dict`, or of the optimizer alone. All workers call it.

        Raises `ValueError` as torch does.
        """
        whole = state["optimizer"]
        if [group["params"] for group in whole["param_groups"]] != self._groups:
            raise ValueError("the saved optimizer state is of other parameters")
        mine: list[nn.Parameter] = [parameter for group in self._own.param_groups for parameter in group["params"]]
        kept = {k: whole["state"][n] for k, p in enumerate(mine) if (n := self._numbers[p]) in whole["state"]}
        places = iter(range(len(mine)))
        groups = [
            {**group, "params": [next(places) for _ in own["params"]]}
            for group, own in zip(whole["param_groups"], self._own.param_groups, strict=True)
        ]
        self._own.load_state_dict({**whole, "state": kept, "param_groups": groups})
        for exposed, own in zip(self.torchs.param_groups, self._own.param_groups, strict=True):
            exposed.update({key: value for key, value in own.items() if key != "params"})  # each step copies them back
