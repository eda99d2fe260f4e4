"""torch's process groups without its global registry, and backends of them."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import AllgatherOptions, Backend

__all__ = ["AllgatherOptions", "Backend", "all_gather_into", "gloo", "group_of", "is_registered", "nccl"]


def group_of(store: dist.Store, rank: int, size: int, name: str, backends: Mapping[str, Backend]) -> dist.ProcessGroup:
    """`backends`: by the device of the tensors that they take, "cpu" or "cuda". The first is the default."""
    group = dist.ProcessGroup(store, rank, size)
    gloo, nccl = dist.ProcessGroup.BackendType.GLOO, dist.ProcessGroup.BackendType.NCCL
    for i, (device, backend) in enumerate(backends.items()):
        kind = gloo if isinstance(backend, dist.ProcessGroupGloo) else nccl
        group._register_backend(torch.device(device), kind, backend)
        if i == 0:
            group._set_default_backend(kind)
    group._set_group_name(cast(Any, name))  # torch's DDP logs it
    return group


def gloo(store: dist.Store, rank: int, size: int, timeout: timedelta, device: Any) -> dist.ProcessGroupGloo:
    """`device`: where it listens, of `ProcessGroupGloo.create_device`."""
    options = dist.ProcessGroupGloo._Options()  # pyright: ignore[reportAttributeAccessIssue] as torch calls it
    options._timeout, options._devices = timeout, [device]
    return dist.ProcessGroupGloo(store, rank, size, options)


def nccl(store: dist.Store, rank: int, size: int, timeout: timedelta) -> "dist.ProcessGroupNCCL":
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    return dist.ProcessGroupNCCL(store, rank, size, options)


def all_gather_into(group: dist.ProcessGroup, gathered: Tensor, own: Tensor) -> dist.Work:
    """`gathered`: [size n], of all members' `own`: [n]."""
    return group._allgather_base(gathered, own)


def is_registered(backend: str) -> bool:
    return backend.upper() in dist.Backend._plugins
