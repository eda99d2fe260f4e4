"""DeepSpeed's ZeRO and ZeRO-Offload: optimizer state, gradients and parameters are cut up over the replicas.

Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (SC; arXiv 1910.02054);
Ren et al. 2021, "ZeRO-Offload: Democratizing Billion-Scale Model Training" (USENIX ATC; arXiv 2101.06840).

    stage   of K replicas, each holds ...             bytes in mixed precision, Psi parameters
    0       everything                                (2 + 2 + 12) Psi
    1       1/K of the optimizer state                (4 + 12/K) Psi
    2       ... and of the gradients                  (2 + 14/K) Psi
    3       ... and of the parameters                 16 Psi / K

`offload=optimizer` keeps optimizer state on the host, where DeepSpeed's CPU Adam steps; `all` parameters too.

All of this is DeepSpeed itself: its engine owns forward, backward and step. What is ours is the weight of an uneven
batch (its engine takes the mean over replicas and micro-batches: loss * n_i K m / n, of m micro-batches), what is
measured, and that state is saved whole, by parameter and in fp32, so that any strategy goes on from it.

Cost per step and worker, S bytes of gradient, K replicas: all_reduce 2 (K-1)/K S (at stage 2 for each micro-batch; from
stage 1 on the norm beside it, and in less than fp32 a flag), and from stage 1 on all_gather (K-1)/K S, padded. At stage
3, what is fetched when is the affair of DeepSpeed's prefetcher: there is no stated cost.

Use it where a model fits on one device but its optimizer's state does not (stage 1 and 2 send what data parallelism
does), or not even its weights do (stage 3, for half as much again), and layers need not be cut.
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import log2
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import torch
from annotated_types import Ge
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint

from ..batches import Fields, Samples, call, of_each
from ..comm import Comm
from ..comm.process import ProcessComm
from ..comm.torch_world import torch_world
from ..compat.deepspeed import ParameterSlot, is_cut_up, loss_scale, place_of, set_loss_scale, whole_shape
from ..conf.errors import ConfigError
from ..conf.notes import Note
from ..cost.layout import DTYPES as NAMES
from ..cost.layout import Offload, ReplicaLayout
from ..cost.transfer import Transfer
from ..exchange.clip import ByNorm, Clip
from ..exchange.collectives import Fabric
from ..exchange.elementwise import check_elementwise, check_rows, check_uncoupled, check_unknowing
from ..exchange.start_alike import start_alike_on_host
from .core.batch import Batch, BeforeBackward, Pass
from .core.cost import Memory, Transfers, World
from .core.loss import Loss
from .core.placements import kept_by_first
from .core.protocols import Say
from .core.state import ShardedTensor, State, own_entries, read_all
from .core.strategy import NOT_OURS, Strategy, StrategyTraits
from .core.sync import Sync, SyncTraits
from .core.trial import Trial
from .external.deepspeed_memory import DeepSpeedPeaks, stated
from .external.deepspeed_ops import build_ops, end_with_parent, load_built
from .external.deepspeed_settings import merged, read
from .external.deepspeed_start import absence, check_settings, check_there, import_for, in_one_dtype, quiet_import
from .precision import Float16, Float32, Precision

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, dtype) for name, dtype in NAMES.items()}

BUCKET = 500_000_000  # entries; DeepSpeed's default


class Zero(Strategy):
    """A replica is one worker; DeepSpeed owns the update."""

    trial = Trial(rounding=1e-6, slow=True)  # it steps in float32 whatever the weights are
    traits = StrategyTraits(
        software="DeepSpeed",
        unpredicted=NOT_OURS,
        needs_processes=True,
        moves_model=True,
        own_micro_batches="micro_batches",
        rounds_weights=True,
        drops_writes=True,
        uncompiled="has DeepSpeed's engine call the model through hooks of its own",
    )

    def __init__(
        self,
        stage: Literal[0, 1, 2, 3] | None = None,
        offload: Literal["none", "optimizer", "all"] = "none",
        micro_batches: Annotated[int, Ge(1)] = 1,
        recompute: bool = False,
        config: str | dict[str, Any] | None = None,
        clip: Clip | None = None,
        precision: Precision | None = None,
    ) -> None:
        """`stage`: None is 3 with offload=all, else 2. `micro_batches`: a batch is cut into so many, with gradients
        accumulated. `recompute`: keep the inputs of layers only and compute the rest again for backward. `config`: a
        DeepSpeed JSON file, or what one holds; what it says beside the above is passed on. `clip`: of the mean
        gradient, which DeepSpeed does; None for none. `precision`: that DeepSpeed trains in, by its own rules; None for
        float32. Raises `ConfigError`.
        """
        if stage is None:
            stage = 3 if offload == "all" else 2
        if offload == "optimizer" and stage == 0:
            raise ConfigError(
                "strategy.offload=optimizer: stage 0 has nothing to offload. Choose strategy.stage=1, 2 or 3."
            )
        if offload == "all" and stage != 3:
            raise ConfigError(
                f"strategy.offload=all: parameters are cut up at stage 3 only, this is strategy.stage={stage}. Choose "
                "strategy.stage=3 or strategy.offload=optimizer."
            )
        if clip is not None and clip.clips and not isinstance(clip, ByNorm):
            raise ConfigError(
                "DeepSpeed clips a gradient by its norm alone. Choose clip=norm, or clip=none, or "
                "strategy=data_parallel.",
                about=("clip",),
            )
        self.offload: Offload = offload
        self.stage, self.precision = stage, precision or Float32()
        if self.precision.name not in DTYPES:
            raise ConfigError(f"precision: DeepSpeed has {', '.join(DTYPES)}. Choose one of these.")
        if not self.cuts:
            self.traits = replace(self.traits, drops_writes=False)
        self.accumulated, self.recompute, self.config = micro_batches, recompute, config
        self.longest = clip.max if isinstance(clip, ByNorm) else None  # that a gradient may be
        theirs = read(config) if isinstance(config, str) else config or {}
        self.settings = merged(self._own_settings(), theirs)
        self.frozen: list[int] = []  # entries of weights that are not trained
        self.own_adam = False  # that DeepSpeed's steps
        self.bucket = int(self.settings["zero_optimization"].get("reduce_bucket_size", BUCKET))

    @classmethod
    def read_files(cls, knobs: dict[str, Any], allowed: Sequence[str]) -> dict[str, Any]:
        config = knobs.get("config")
        return {**knobs, "config": read(config)} if isinstance(config, str) else knobs

    def _own_settings(self) -> dict[str, Any]:
        zero: dict[str, Any] = {"stage": self.stage}
        if self.offload != "none":
            zero["offload_optimizer"] = {"device": "cpu", "pin_memory": torch.cuda.is_available()}
        if self.offload == "all":
            zero["offload_param"] = {"device": "cpu", "pin_memory": torch.cuda.is_available()}
        if self.stage == 3:
            zero["stage3_param_persistence_threshold"] = 0  # cut up small parameters too, as the paper counts them
        own: dict[str, Any] = {
            "train_micro_batch_size_per_gpu": 1,  # DeepSpeed wants a number, and uses it for its own reports only
            "gradient_accumulation_steps": self.accumulated,
            "gradient_clipping": self.longest or 0.0,  # left out, it would be 1
            "zero_optimization": zero,
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "steps_per_print": 2**31,
        }
        if self._narrow:
            own[self.precision.name] = {"enabled": True}
        if isinstance(self.precision, Float16):
            power, window = int(log2(self.precision.first)), self.precision.grow_every
            own["fp16"] |= {"initial_scale_power": power, "loss_scale_window": window, "hysteresis": 1}
        return own

    @property
    def _narrow(self) -> bool:
        return self.precision.dtype is not None

    @property
    def cuts(self) -> bool:
        """Returns whether the optimizer steps on other tensors than it was made with: shares, or flat masters."""
        return self.stage > 0 or self._narrow

    def closed_form(self, accumulate: int) -> ReplicaLayout | None:
        micro_batches = max(self.accumulated, accumulate)
        return ReplicaLayout(micro_batches, self.stage, recompute=self.recompute, offload=self.offload)

    def own_sync(self) -> Sync:
        return _ZeroUpdate(self)

    def make_ready(self, say: Say) -> None:
        check_there("zero")
        if self.offload != "none":
            build_ops(say)

    def check_optimizer(self, optimizer: Optimizer) -> None:
        self.own_adam = self.offload != "none" and isinstance(optimizer, torch.optim.Adam)
        for check in (check_elementwise, check_uncoupled, check_unknowing):
            if self.stage > 0:
                check(optimizer, f"strategy.stage={self.stage}", "strategy=data_parallel")
            elif self._narrow:  # DeepSpeed's masters are one flat tensor
                check(optimizer, f"precision={self.precision.name}", "precision=fp32")
        self._check_state(optimizer)
        if len(optimizer.param_groups) > 1:
            raise ConfigError(
                f"what it saves is of one group of parameters, and {type(optimizer).__name__} has "
                "several. Choose strategy=data_parallel, or optimizer=adam, adamw or sgd.",
                about=("strategy",),
            )

    def _check_state(self, optimizer: Optimizer) -> None:
        """Raises `ConfigError` for state that DeepSpeed would drop."""
        remade = self.stage > 0 and type(optimizer) is torch.optim.Adagrad
        if any(optimizer.state.values()) and self.cuts and not remade:
            raise ConfigError(
                f"strategy=zero: DeepSpeed steps on other tensors than {type(optimizer).__name__} was made with, and "
                "would drop the state that it makes in its constructor. Choose strategy=data_parallel, or make the "
                "state in the first step."
            )
        for key in own_entries(optimizer.state_dict()):
            raise ConfigError(
                f"strategy=zero: saves what an optimizer keeps for parameters and in groups, and "
                f"{type(optimizer).__name__} saves {key!r} too. Choose strategy=data_parallel, or keep it in the group."
            )

    def split(self, model: nn.Module) -> list[nn.Module]:
        check_rows(model, "strategy=zero")
        self.frozen = [each.numel() for each in model.parameters() if not each.requires_grad]
        return [in_one_dtype(model, "strategy=zero", DTYPES[self.precision.name])]

    def profile(
        self, parts: Sequence[nn.Module], inputs: Samples, targets: Samples, loss: Loss, device: torch.device
    ) -> Iterator[list[Pass]]:
        if self.precision.name == "fp16" and device.type == "cpu":
            raise ConfigError(
                "precision=fp16: DeepSpeed has it on GPUs only. Choose precision=bf16, or strategy=data_parallel."
            )
        if self.accumulated > len(inputs):
            raise ConfigError(
                f"strategy.micro_batches={self.accumulated}: a replica's batch has batch_size={len(inputs)} samples, "
                "and cannot be cut into more pieces"
            )
        if self.config:
            check_settings(self.settings)
        size = -(-len(inputs) // self.accumulated)  # each has its backward pass before the next begins
        for part in parts:
            yield [Pass(lambda part=part: loss(self.forward(part, inputs[:size]), targets[:size]))]

    def prepare(self, model: nn.Module, loss: Loss, comm: Comm, before_backward: BeforeBackward) -> None:
        self.module, self._loss = model, loss
        self.engine: Any = None  # DeepSpeed's, once the replicas have met
        self.account = DeepSpeedPeaks(model, self.stage, self.offload, not self._narrow)
        self.replicas = 1

    def start(self, engine: Any, replicas: int) -> None:
        """The replicas have met, and `engine` is DeepSpeed's."""
        self.engine, self.replicas = engine, replicas

    def forward(self, part: nn.Module, inputs: Samples) -> Tensor:
        """Returns the output of the module for a micro-batch."""
        if self._narrow:
            dtype = DTYPES[self.precision.name]
            inputs = of_each(inputs, lambda x: x.to(dtype) if x.is_floating_point() else x)
        return (_recomputed(part, inputs) if self.recompute else call(part, inputs)).float()  # the loss is of fp32

    def forward_backward(self, batch: Batch) -> Tensor | None:
        total = torch.zeros(())
        for inputs, targets in zip(
            *(x.tensor_split(self.accumulated) for x in (batch.inputs, batch.targets)), strict=True
        ):
            outputs = self.engine(inputs)
            if len(targets):
                loss = self._loss(outputs, targets)
                total += loss.detach().cpu() * len(targets) / batch.size
                weight = len(targets) * self.replicas * self.accumulated / batch.total
                loss = loss if weight == 1 else loss * weight
            else:  # every replica takes part in every backward pass
                loss = outputs.sum() * 0
            self.engine.backward(loss)
            self.engine.step()  # at the last micro-batch
        self.account.end_step()
        return total if batch.size else None


class _ZeroUpdate(Sync):
    """DeepSpeed's engine steps within forward_backward."""

    traits = SyncTraits(
        copies=False,
        keeps_pieces=True,
        unaveraged="leaves its weights to DeepSpeed, which would have to gather them after each step",
        shows_gradients=False,
    )

    def __init__(self, strategy: Zero) -> None:
        self._strategy = strategy

    def prepare(self, parameters: dict[str, nn.Parameter], optimizer: Optimizer, comm: Comm) -> None:
        super().prepare(parameters, optimizer, comm)
        assert isinstance(comm, ProcessComm)
        strategy = self._strategy
        start_alike_on_host(parameters, comm)
        weights = {name: parameter.detach() for name, parameter in parameters.items()}  # DeepSpeed puts others in place
        torch_world(comm)
        deepspeed = import_for(comm)
        if strategy.offload != "none":
            self.optimizer = optimizer = _on_the_host(optimizer)
        forward = _Forward(strategy, strategy.module)
        strategy.account.watch(lambda: strategy.engine)  # before DeepSpeed has its own hooks
        bucket = min(strategy.bucket, sum(parameter.numel() for parameter in parameters.values()))
        zero = {**strategy.settings["zero_optimization"], "reduce_bucket_size": bucket}
        config = {**strategy.settings, "zero_optimization": zero}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if strategy.stage == 3:
                _cut_up(deepspeed, forward, config, DTYPES[strategy.precision.name], comm.device)
            engine, *_ = deepspeed.initialize(
                model=forward,
                optimizer=optimizer,
                config=config,
                dist_init_required=False,
            )
        strategy.start(engine, comm.size)
        self._engine = engine
        if strategy.stage > 0:
            self.optimizer = engine.optimizer.optimizer  # of torch's Adagrad, DeepSpeed makes another one
        for name, parameter in parameters.items():
            self._keep(parameter, None, weights[name])  # DeepSpeed copies them from what it has rounded already

    def begin(self, batch: Batch) -> None: ...

    def update(self) -> None: ...

    # -- state: whole, by parameter, in fp32, laid out as the optimizer's own state_dict would be

    def gradients(self) -> None:
        """DeepSpeed keeps them in shares, and drops them as it steps."""

    def consensus(self) -> dict[str, Tensor]:
        named = self._strategy.module.named_parameters()
        return kept_by_first(self.comm, ((name, self._whole(parameter, None)) for name, parameter in named))

    def _whole(self, parameter: nn.Parameter, key: str | None) -> Tensor:
        """All of a parameter's fp32 weights, or of what the optimizer keeps for it as `key`; every replica calls."""
        from deepspeed.runtime.zero.partition_parameters import GatheredParameters
        from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

        if parameter.requires_grad:
            kept = safe_get_full_fp32_param(parameter) if key is None else safe_get_full_optimizer_state(parameter, key)
            if kept is not None:
                return kept.detach()
            flat, own, _ = self._place(parameter)  # stage 0: all of it is here
            held = flat if key is None else self.optimizer.state[flat][key]
            return own.of(held.detach()).view_as(parameter)
        with GatheredParameters([parameter], enabled=is_cut_up(parameter)):
            whole = parameter.detach().clone()
            return whole.float() if whole.is_floating_point() else whole

    def state_dict(self) -> State:
        if not self._strategy.cuts:  # state may have any shape
            return {"optimizer": self.optimizer.state_dict(), "scaler": loss_scale(self._engine)}
        kept = next((kept for kept in self.optimizer.state.values() if kept), {})
        shaped = [key for key, value in kept.items() if isinstance(value, Tensor) and value.dim() > 0]
        scalars = {key: value for key, value in kept.items() if key not in shaped}
        knobs = {key: value for key, value in self.optimizer.param_groups[0].items() if key != "params"}
        every = list(self._strategy.module.parameters())
        state = {
            i: {**scalars, **{key: self._sharded(parameter, key, kept[key].dtype) for key in shaped}}
            for i, parameter in enumerate(every)
            if parameter.requires_grad and kept
        }
        return {
            "optimizer": {"state": state, "param_groups": [{**knobs, "params": list(range(len(every)))}]},
            "scaler": loss_scale(self._engine),
        }

    def _sharded(self, parameter: nn.Parameter, key: str, dtype: torch.dtype) -> ShardedTensor:
        return ShardedTensor(whole_shape(parameter), dtype, partial(self._whole, parameter, key))

    def load_state_dict(self, state: State) -> None:
        set_loss_scale(self._engine, state.get("scaler", {}))
        if not self._strategy.cuts:
            self.optimizer.load_state_dict(read_all(state["optimizer"]))
            return
        kept = state["optimizer"]["state"]
        for i, parameter in enumerate(self._strategy.module.parameters()):
            for key, value in kept.get(i, {}).items():
                self._keep(parameter, key, read_all(value))
        [group], [saved] = self.optimizer.param_groups, state["optimizer"]["param_groups"]
        group.update({key: read_all(saved[key]) for key in group if key != "params" and key in saved})

    def _keep(self, parameter: nn.Parameter, key: str | None, whole: Any) -> None:
        """Sets this replica's piece of a parameter's fp32 weights (`key` None) or optimizer state from the whole."""
        flat, own, piece = self._place(parameter)
        if key is None:
            if flat is not parameter:
                own.of(flat.detach()).copy_(piece.of(whole))
            return
        its = self.optimizer.state[flat]
        if not (isinstance(whole, Tensor) and whole.dim() > 0):
            its[key] = whole
            return
        if key not in its:
            its[key] = torch.zeros_like(flat, memory_format=torch.contiguous_format).detach()
        own.of(its[key]).copy_(piece.of(whole))

    def _place(self, parameter: nn.Parameter) -> ParameterSlot:
        strategy = self._strategy
        fp32 = strategy.precision.dtype is None
        return place_of(parameter, self._engine.optimizer, self.optimizer, strategy.stage, fp32, self.comm.rank)

    # -- measures

    def measured(self, held: Memory) -> Memory:
        return {**held, **self._strategy.account.peak}

    def memory(self, held: Memory, parameters: Sequence[Tensor], replicas: int) -> Memory:
        strategy = self._strategy
        return stated(
            strategy.stage,
            strategy.offload,
            DTYPES[strategy.precision.name].itemsize,
            strategy.bucket,
            strategy.accumulated > 1,
            held,
            parameters,
            strategy.frozen,
            replicas,
            strategy.own_adam,
        )

    def notes(self, parameters: Sequence[Tensor], world: World) -> Sequence[Note | str]:
        return absence()

    def transfers(self, parameters: Sequence[Tensor], world: World) -> Transfers:
        strategy = self._strategy
        if strategy.config is not None:
            return Transfers(varies="strategy.config: what DeepSpeed sends follows from a file of its own")
        if strategy.stage == 3:
            return Transfers(varies="strategy.stage=3: DeepSpeed fetches parameters when it finds it best")
        width, psi = DTYPES[strategy.precision.name].itemsize, sum(parameter.numel() for parameter in parameters)
        replicas = world.replicas
        norm = 4  # of the gradient, in fp32
        if strategy.stage == 0:
            clips = strategy.longest is not None and strategy.precision.dtype is None
            return Transfers(Fabric().transfers(width * psi + (norm if clips else 0), world))
        passes = strategy.accumulated if strategy.stage == 2 else 1
        overflow = 0 if strategy.precision.dtype is None else 1
        piece = -(-psi // (2 * replicas)) * 2  # DeepSpeed aligns its flat parameters to 2 K entries
        gathered = Transfer("all_gather", replicas, (replicas - 1) * width * piece)
        return Transfers([*Fabric().transfers(passes * width * psi + norm + overflow, world), gathered])


def _cut_up(deepspeed: Any, module: nn.Module, config: dict[str, Any], dtype: torch.dtype, to: torch.device) -> None:
    """Moves each parameter to the device and leaves this replica's piece there, one after the other.

    DeepSpeed's engine does the same, but has the whole model on the device before.
    """
    deepspeed.zero.Init(module=_CastInTurn(module, dtype), config_dict_or_path=config, dtype=dtype)
    for buffer in module.buffers():
        buffer.data = buffer.data.to(to)


class _CastInTurn(nn.Module):
    """A module whose parameters have another type once they are asked for, each when it is its turn."""

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self._module, self._dtype = module, dtype

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        for parameter in self._module.parameters(recurse):
            if parameter.is_floating_point():
                parameter.data = parameter.data.to(self._dtype)
            yield parameter


class _Forward(nn.Module):
    """The module that DeepSpeed's engine calls."""

    def __init__(self, strategy: Zero, module: nn.Module) -> None:
        super().__init__()
        self._strategy, self.module = strategy, module

    def __repr__(self) -> str:
        """Returns its name alone: DeepSpeed prints it when parameters are pieces, of which layers may ask the shape."""
        return type(self).__name__

    def forward(self, inputs: Samples) -> Tensor:
        return self._strategy.forward(self.module, inputs)


def _recomputed(module: nn.Module, inputs: Samples) -> Tensor:
    if isinstance(inputs, Fields) or not isinstance(module, nn.Sequential):
        return cast(Tensor, checkpoint(call, module, inputs, use_reentrant=False))
    for layer in module:
        inputs = cast(Tensor, checkpoint(layer, inputs, use_reentrant=False))
    return inputs


# -- DeepSpeed's ways


def read_checkpoint(path: Path) -> dict[str, Tensor]:
    """The fp32 weights in a checkpoint that DeepSpeed wrote, by the model's own names. It is unpickled: trust it."""
    quiet_import()
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    state = cast("dict[str, Tensor]", get_fp32_state_dict_from_zero_checkpoint(str(path)))
    wrapped = all(name.startswith("module.") for name in state)  # as torch's and our own wrappers call what they wrap
    return {name.removeprefix("module.") if wrapped else name: tensor.float() for name, tensor in state.items()}


def load_ops() -> None:
    """Have DeepSpeed compile and load its CPU Adam, in a process of its own (external/deepspeed_ops.py)."""
    end_with_parent()
    quiet_import()
    from deepspeed.ops.op_builder.cpu import CPUAdamBuilder

    CPUAdamBuilder().load(verbose=False)


def _on_the_host(optimizer: Optimizer) -> Optimizer:
    """DeepSpeed's CPU Adam in place of torch's; any other optimizer steps on the host as it is."""
    if not isinstance(optimizer, torch.optim.Adam):
        return optimizer
    load_built()
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    group = optimizer.param_groups[0]
    if group["amsgrad"] or group["maximize"]:
        raise ConfigError(
            "optimizer.amsgrad, optimizer.maximize: DeepSpeed's CPU Adam has neither. Choose strategy.offload=none."
        )
    return DeepSpeedCPUAdam(
        group["params"],
        lr=group["lr"],
        betas=group["betas"],
        eps=group["eps"],
        weight_decay=group["weight_decay"],
        adamw_mode=group["decoupled_weight_decay"],
    )
