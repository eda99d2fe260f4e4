"""torch's process groups, of gloo on CPUs and nccl on GPUs."""

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist

from ..compat import process_groups
from ..compat.full_gpu import says_full
from ..compat.process_groups import Backend
from .errors import PeerLostError, RendezvousError
from .gloo import Gloo

ABORTS = 5.0  # seconds that nccl's groups may take to be aborted


@dataclass(frozen=True)
class Groups:
    """Makes torch's process groups, without torch's global registry: any members may, at any time."""

    store: dist.Store
    timeout: float
    device: torch.device
    gloo: Gloo = field(default_factory=Gloo)
    of_nccl: list[Backend] = field(default_factory=list)  # that were made

    def make(self, name: str, rank: int, size: int, on_gpus: bool) -> dist.ProcessGroup:
        return self.over(dist.PrefixStore(name, self.store), rank, size, name, on_gpus)

    def over(self, store: dist.Store, rank: int, size: int, name: str, on_gpus: bool) -> dist.ProcessGroup:
        """`on_gpus`: every member has a GPU. Without it, gloo also takes tensors on a GPU, by way of the host."""
        try:
            backends: dict[str, Backend] = {"cpu": self.gloo.make(store, rank, size, self.timeout)}
            if self.device.type == "cuda" and not on_gpus:
                backends["cuda"] = backends["cpu"]
            elif on_gpus:
                patience = timedelta(seconds=self.timeout)
                backends["cuda"] = process_groups.nccl(dist.PrefixStore("cuda", store), rank, size, patience)
                self._connect(backends["cuda"])
        except RendezvousError:
            raise
        except RuntimeError as error:
            if says_full(str(error)):
                raise
            raise PeerLostError(f"{name}: could not connect to the other workers: {error}") from error
        return process_groups.group_of(store, rank, size, name, backends, self.device)

    def _connect(self, made: Backend) -> None:
        """Connects all members now: at the first collective one might wait in nccl for the others without end."""
        self.of_nccl.append(made)
        if not _within(self.timeout, lambda: process_groups.connect(made, self.device)):
            raise RuntimeError(f"nccl did not connect them in {self.timeout:g} s")

    def abort(self) -> None:
        """Ends what nccl has under way. Nobody may use its groups after this. Another call does nothing."""
        made, self.of_nccl[:] = list(self.of_nccl), []
        if made:
            with suppress(Exception):  # what made us abort says more
                _within(ABORTS, lambda: [backend.abort() for backend in made])


def _within(seconds: float, do: Callable[[], object]) -> bool:
    """Does `do` in a thread, for so many seconds at most. Returns whether it was done, and raises what it raised."""
    raised: list[Exception] = []

    def run() -> None:
        try:
            do()
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=run, name="nccl", daemon=True)
    thread.start()
    thread.join(seconds)
    if raised:
        raise raised[0]
    return not thread.is_alive()
