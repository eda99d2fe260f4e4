"""DeepSpeed's insides: where its optimizers keep what belongs to a parameter, and which tensors they hold."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, NamedTuple, cast

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from .changed import need

STATE = "from which it is known which entries of DeepSpeed's state belong to which parameter"
HELD = "from which the memory of strategy=zero is read"
COPIES = {  # of the weights in fp32, by stage; at stage 0 in less than fp32 alone
    0: "fp32_groups",
    1: "single_partition_of_fp32_groups",
    2: "single_partition_of_fp32_groups",
    3: "fp32_partitioned_groups_flat",
}
SCALER = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")  # what fp16 keeps of its loss scale


class EntryRange(NamedTuple):
    start: int
    size: int

    def of(self, tensor: Tensor) -> Tensor:
        """[size]: these entries, as a view."""
        return tensor.view(-1).narrow(0, self.start, self.size)


class ParameterSlot(NamedTuple):
    """`own` entries of `flat`, which the optimizer steps, are `piece` of a parameter."""

    flat: Tensor
    own: EntryRange
    piece: EntryRange


def place_of(
    parameter: nn.Parameter, zero: Any, optimizer: Optimizer, stage: int, fp32: bool, rank: int
) -> ParameterSlot:
    """Returns the slot of the entries that this replica steps. `zero`: the engine's optimizer. `fp32`: the precision of
    training is float32. Raises `ChangedLibraryError`.
    """
    if stage == 3:
        if parameter.requires_grad:
            need(parameter, "ds_id", "deepspeed", STATE)
        return _place_at_stage_3(parameter, zero, rank)
    if stage > 0:
        if not parameter.requires_grad:
            mapping = getattr(parameter, "_hp_mapping", None)
        else:
            mapping = need(parameter, "_hp_mapping", "deepspeed", STATE)
        if mapping is None:  # all of it is other replicas'
            return ParameterSlot(optimizer.param_groups[0]["params"][0], EntryRange(0, 0), EntryRange(0, 0))
        own, piece = mapping.hp_fragment_address, mapping.lp_fragment_address
        flat = optimizer.param_groups[mapping.param_group_index]["params"][0]
        return ParameterSlot(flat, EntryRange(own.start, own.numel), EntryRange(piece.start, piece.numel))
    whole = EntryRange(0, parameter.numel())
    if fp32:
        return ParameterSlot(parameter, whole, whole)
    trained = next(
        i for i, trained in enumerate(need(zero, "fp16_groups", "deepspeed", STATE)[0]) if trained is parameter
    )
    return ParameterSlot(need(zero, "fp32_groups", "deepspeed", STATE)[0][trained], whole, whole)


def _place_at_stage_3(parameter: nn.Parameter, zero: Any, rank: int) -> ParameterSlot:
    positions = need(zero, "grad_position", "deepspeed", STATE)
    group, start, size = positions[need(zero, "get_param_id", "deepspeed", STATE)(parameter)]
    entries: int = need(parameter, "ds_numel", "deepspeed", STATE)
    first = size * rank  # the last pieces may reach beyond its end
    size = max(0, min(size, entries - first))
    flat = need(zero, "fp32_partitioned_groups_flat", "deepspeed", STATE)[group]
    return ParameterSlot(flat, EntryRange(start, size), EntryRange(min(first, entries), size))


def whole_shape(parameter: nn.Parameter) -> tuple[int, ...]:
    return tuple(parameter.ds_shape if is_cut_up(parameter) else parameter.shape)  # pyright: ignore[reportAttributeAccessIssue]


def is_cut_up(parameter: nn.Parameter) -> bool:
    """Returns whether the parameter is whole only while it is gathered (stage 3)."""
    return hasattr(parameter, "ds_id")


class DeepSpeedTensors(NamedTuple):
    parameters: list[Tensor]
    copies: list[Tensor]  # of the weights in fp32
    gradients: list[Tensor]  # beside parameters' own
    partition: list[Tensor]  # of gradients, at stage 3, on the host with offload
    buckets: list[Tensor]


def held_by(engine: Any, module: nn.Module, stage: int, fp32: bool) -> DeepSpeedTensors:
    """Raises `ChangedLibraryError`."""
    zero, parameters = engine.optimizer, list(module.parameters())
    if stage == 0:
        copies = [] if fp32 else _tensors(_of(zero, COPIES[0]))
        return DeepSpeedTensors(list(parameters), copies, [], [], [])
    buckets = [leaf for bucket in _of(zero, "ipg_buckets").values() for leaf in _tensors(_of(bucket, "buffer"))]
    return DeepSpeedTensors(
        [_of(parameter, "ds_tensor") for parameter in parameters] if stage == 3 else list(parameters),
        _tensors(_of(zero, COPIES[stage])),
        _tensors(_of(zero, "averaged_gradients")),
        _tensors(_of(zero, "grad_partitions_flat_buffer")) if stage == 3 else [],
        buckets,
    )


def optimizer_state(engine: Any) -> list[Tensor]:
    """Returns the state of the optimizer within DeepSpeed's."""
    return _tensors(list(_of(engine, "basic_optimizer").state.values()))


def loss_scale(engine: Any) -> dict[str, Any]:
    """Returns the state of fp16 training's loss scale; empty in other precisions."""
    scaler = getattr(engine.optimizer, "loss_scaler", None)
    return {key: getattr(scaler, key) for key in SCALER if hasattr(scaler, key)}


def set_loss_scale(engine: Any, kept: dict[str, Any]) -> None:
    scaler = getattr(engine.optimizer, "loss_scaler", None)
    if scaler is None:  # at stage 0; another stage may have saved one
        return
    for key, value in kept.items():
        setattr(scaler, key, value)


def leave_out(op: str) -> None:
    """Have DeepSpeed believe that this machine cannot compile an operation of its own."""
    import deepspeed.ops

    cast(dict[str, Any], deepspeed.ops.__compatible_ops__)[op] = False


def preload(op: str, file: Path) -> None:
    """Have DeepSpeed take an operation that was compiled before from `file`, in place of compiling it."""
    from deepspeed.ops.op_builder.builder import OpBuilder

    loaded = need(OpBuilder, "_loaded_ops", "deepspeed", "where it looks for operations that are loaded")
    spec = spec_from_file_location(op, file)
    assert spec is not None and spec.loader is not None, file
    loaded[op] = module_from_spec(spec)
    spec.loader.exec_module(loaded[op])


def _of(owner: Any, name: str) -> Any:
    return need(owner, name, "deepspeed", HELD)


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
