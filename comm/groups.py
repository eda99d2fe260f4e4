"""torch's process groups, of gloo on CPUs and nccl on GPUs."""

from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist

from ..compat import process_groups
from ..compat.process_groups import Backend
from .errors import PeerLostError, RendezvousError
from .gloo import Gloo


@dataclass(frozen=True)
class Groups:
    """Makes torch's process groups, without torch's global registry: any members may, at any time."""

    store: dist.Store
    timeout: float
    device: torch.device
    gloo: Gloo = field(default_factory=Gloo)

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
        except RendezvousError:
            raise
        except RuntimeError as error:
            raise PeerLostError(f"{name}: could not connect to the other workers: {error}") from error
        return process_groups.group_of(store, rank, size, name, backends)
