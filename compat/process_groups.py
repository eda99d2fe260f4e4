"""torch's process groups without its global registry, and backends of them."""

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import AllgatherOptions, Backend

__all__ = ["AllgatherOptions", "Backend", "all_gather_into", "connect", "gloo", "group_of", "is_registered", "nccl"]

# This process ends a wait that fails, and says who is to blame. torch's watchdog would end it without a name.
_NO_WATCHDOG = {
    "TORCH_NCCL_BLOCKING_WAIT": "1",  # no watchdog thread, and none of its monitor
    # The second keeps the watchdog from ending the process, and from asking our store, if somebody sets the first to 0.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
}


def group_of(
    store: dist.Store, rank: int, size: int, name: str, backends: Mapping[str, Backend], device: torch.device
) -> dist.ProcessGroup:
    """`backends`: by the device of the tensors that they take, "cpu" or "cuda". The first is the default.

    `device`: this process's. Without it nccl's barrier takes the GPU that has the number of the rank.
    """
    group = dist.ProcessGroup(store, rank, size)
    if "cuda" in backends:
        group.bound_device_id = device
    gloo, nccl = dist.ProcessGroup.BackendType.GLOO, dist.ProcessGroup.BackendType.NCCL
    for i, (kind_of_device, backend) in enumerate(backends.items()):
        kind = gloo if isinstance(backend, dist.ProcessGroupGloo) else nccl
        group._register_backend(torch.device(kind_of_device), kind, backend)
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
    """Makes nccl's group. Environment variables that the user has set stay."""
    for variable, value in _NO_WATCHDOG.items():
        os.environ.setdefault(variable, value)
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    return dist.ProcessGroupNCCL(store, rank, size, options)


def connect(backend: Backend, device: torch.device) -> None:
    """Makes nccl's communicator; returns once all members do. torch makes it at the first collective otherwise."""
    torch.cuda.set_device(device)  # of this thread
    backend.eager_connect_single_device(device)


def all_gather_into(group: dist.ProcessGroup, gathered: Tensor, own: Tensor) -> dist.Work:
    """`gathered`: [size n], of all members' `own`: [n]."""
    return group._allgather_base(gathered, own)


def is_registered(backend: str) -> bool:
    return backend.upper() in dist.Backend._plugins
