"""The tensors that torch's FSDP2 holds in its own groups of parameters, and tensors like its rows."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard
from torch.utils._pytree import tree_leaves

from .changed import need

USE = "from which strategy=torch_fsdp reads memory and frozen parameters"


class FSDPTensors(NamedTuple):
    """Tensors; some may be freed, or cut up."""

    sharded: list[Tensor]  # each parameter's rows of this replica
    trained: list[Tensor]  # whose `grad` there may be: those rows, and parameters that are whole for now
    buffers: list[Tensor]  # of gathering and summing


def held_by(module: nn.Module) -> FSDPTensors:
    """Raises `ChangedLibraryError`."""
    groups = _groups(module)
    kept = [parameter for group in groups for parameter in _of(group, "fsdp_params")]
    under_way = _of(groups[0], "comm_ctx")
    gathered = [_of(under_way, "all_gather_state"), *(_of(group, "_all_gather_result") for group in groups)]
    outputs = [output for parameter in kept for output in _of(parameter, "all_gather_outputs")]
    return FSDPTensors(
        [_of(parameter, "_sharded_param_data") for parameter in kept],
        [*(_of(parameter, "sharded_param") for parameter in kept), *_whole(kept)],
        [*outputs, *_tensors([gathered, _summing(under_way)])],
    )


def _summing(under_way: Any) -> Any:
    before = "reduce_scatter_state"  # torch 2.11 has one
    return getattr(under_way, before) if hasattr(under_way, before) else _of(under_way, "reduce_scatter_states")


def whole_parameters(module: nn.Module) -> list[Tensor]:
    """Parameters that have been gathered at least once: FSDP keeps these objects, and frees what is behind them."""
    return list(_whole([parameter for group in _groups(module) for parameter in _of(group, "fsdp_params")]))


def first_of_two(whole: Tensor, dim: int) -> DTensor:
    """Returns the half of a tensor that the first of two workers would have, without a process group."""
    mesh = DeviceMesh(whole.device.type, [0, 1], _init_backend=False, _rank=0)
    half = whole.chunk(2, dim)[0].contiguous()
    return DTensor.from_local(half, mesh, [Shard(dim)], run_check=False, shape=whole.shape, stride=whole.stride())


def note_frozen(module: nn.Module) -> None:
    """Freezes or thaws the rows of each parameter that user code froze or thawed in the last forward pass.

    User code sees whole parameters there. FSDP gives them the flag of their rows each time that it gathers them.
    """
    for parameter in (each for group in _groups(module) for each in _of(group, "fsdp_params")):
        rows = _of(parameter, "sharded_param")
        for whole in _whole([parameter]):
            if rows.requires_grad != whole.requires_grad:
                rows.requires_grad_(whole.requires_grad)


def _groups(module: nn.Module) -> list[Any]:
    sharded = [part for part in module.modules() if isinstance(part, FSDPModule)]
    states = [_of(part, "_get_fsdp_state")() for part in sharded]
    if states and not hasattr(states[0], "_fsdp_param_groups"):  # before torch 2.12 a module has one group, or none
        alone = (_of(state, "_fsdp_param_group") for state in states)
        return [group for group in alone if group is not None]
    return [group for state in states for group in _of(state, "_fsdp_param_groups")]


def _whole(kept: Sequence[Any]) -> Iterator[Tensor]:
    # it is there once it was gathered
    yield from (parameter._unsharded_param for parameter in kept if hasattr(parameter, "_unsharded_param"))


def _of(owner: Any, name: str) -> Any:
    return need(owner, name, "torch", USE)


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
