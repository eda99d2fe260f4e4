"""torch's own FSDP2: the reference that a user would pick instead of strategy=zero strategy.stage=3.

Zhao et al. 2023, "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel" (VLDB; arXiv 2304.11277), in
torch's second version, `fully_shard`: of the rows of every parameter each of K replicas keeps 1/K, and of its gradient
and optimizer state too. A block of the model (an entry of its list of modules) is gathered whole for its forward pass,
and again, ahead of time, for its backward pass; what is in no block, or in two, is gathered once a step.

With `shard_over` N < K it is the paper's hybrid sharding (HSDP, section 3.2.2): rows are over N workers that follow one
another, and K/N such groups hold the same. A gradient is summed inside of a group, then each worker's rows of it over
the groups.

Uneven batches are weighted through the loss, as FSDP averages over replicas: loss_j * K n_j / sum_i n_i.

Of several micro-batches (accumulation.py) each gathers the weights anew. Gradients are kept whole, and summed over
replicas in the last backward pass: once a step.

Cost per step and worker, of S bytes of parameters in blocks and R in none (rows padded to a multiple of N, which is K
without `shard_over`): all_gather (N-1)/N (2 S + R), without `reshard` (N-1)/N (S + R); of gradients reduce_scatter
(N-1)/N (S + R), which gloo does by an all-reduce and so sends twice, and all_reduce 2 (K/N-1)/(K/N) (S + R)/N. With
micro-batches the all_gather is for each of them.

Use it where torch's own sharding is wanted, or beside strategy=zero strategy.stage=3: weights are gathered block by
block, ahead of their use.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Annotated, Any

import torch
from annotated_types import Ge
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from ..batches import Samples, call
from ..comm import Comm
from ..comm.process import ProcessComm
from ..comm.torch_world import torch_world
from ..compat.fsdp import first_of_two, note_frozen
from ..compat.modules import hooked_parameters
from ..conf.errors import ConfigError
from ..cost.layout import ReplicaLayout
from ..cost.predicted import NotPredicted
from ..cost.transfer import Transfer
from ..exchange.clip import Clip, Shared
from ..exchange.collectives import Fabric
from ..exchange.elementwise import check_elementwise, check_pieces, check_rows, check_saved, check_unknowing
from ..exchange.start_alike import start_alike_on_host
from .core.batch import Batch, BeforeBackward, Pass
from .core.clip import NORM
from .core.cost import Memory, Transfers, World
from .core.loss import Loss
from .core.own_forwards import OwnForwards
from .core.placements import kept_by_first
from .core.protocols import own_gradients
from .core.state import ShardedTensor, State, read_all
from .core.strategy import NOT_OURS, Strategy, StrategyTraits
from .core.sync import Sync, SyncTraits
from .core.trial import Trial
from .external.fsdp_memory import FSDPPeaks, Group, held_bytes, padded, stated

GATHERS = "and FSDP2 gathers a layer's parameters for that pass alone. Choose strategy=data_parallel"


class TorchFSDP(Strategy):
    """A replica is one worker; torch owns the sharding and the exchange."""

    trial = Trial(slow=True)
    traits = StrategyTraits(
        needs_processes=True, moves_model=True, drops_writes=True, passes_together=True, unpredicted=NOT_OURS
    )

    def __init__(
        self, reshard: bool = True, shard_over: Annotated[int, Ge(2)] | None = None, clip: Clip | None = None
    ) -> None:
        """`reshard`: a block is cut up again after its forward pass; else it stays whole until its backward pass.

        `shard_over`: N, the workers that hold a model together; None for all. `clip`: of the mean gradient; None for
        none.
        """
        self.reshard, self.shard_over, self.clip = reshard, shard_over, clip

    def shards(self, workers: int) -> int:
        """N of these K workers. Raises `ConfigError`."""
        shards = self.shard_over or workers
        if workers % shards == 0:
            return shards
        divisors = [n for n in range(2, workers + 1) if workers % n == 0]
        nearest = min(divisors, key=lambda n: abs(n - shards), default=None)
        raise ConfigError(
            f"strategy.shard_over={shards}: must divide hardware.workers={workers}, "
            + (f"for instance {nearest}" if nearest else "and one worker has nobody to share with. Choose null.")
        )

    def closed_form(self, accumulate: int) -> ReplicaLayout | None:
        if accumulate > 1:
            raise NotPredicted(f"accumulate={accumulate}: times of torch_fsdp are known of accumulate=1 alone")
        return ReplicaLayout(accumulate, zero=3, shard_over=self.shard_over)

    def own_sync(self) -> Sync:
        return _FSDPUpdate(self)

    def check_optimizer(self, optimizer: Optimizer) -> None:
        for check in (check_elementwise, check_unknowing, check_saved):
            check(optimizer, "strategy=torch_fsdp", "strategy=data_parallel")
        check_pieces(optimizer, first_of_two, "strategy=torch_fsdp", "strategy=data_parallel")
        dtypes = sorted({str(parameter.dtype) for group in optimizer.param_groups for parameter in group["params"]})
        if len(dtypes) > 1:
            raise ConfigError(
                f"FSDP2 wants parameters of one dtype, these are {', '.join(dtypes)}. Choose strategy=data_parallel.",
                about=("strategy",),
            )

    def split(self, model: nn.Module) -> list[nn.Module]:
        check_rows(model, "strategy=torch_fsdp")
        for name in hooked_parameters(model):
            raise ConfigError(
                f"strategy=torch_fsdp: parameter {name} has a hook, and the rows that FSDP2 trains in its place have "
                "none. Choose strategy=data_parallel or strategy=zero."
            )
        return [model]

    def profile(
        self, parts: Sequence[nn.Module], inputs: Samples, targets: Samples, loss: Loss, device: torch.device
    ) -> Iterator[list[Pass]]:
        [[forward]] = super().profile(parts, inputs, targets, loss, device)

        def watched() -> Tensor:
            with OwnForwards(parts[0], block_modules(parts[0]), GATHERS, "strategy"):
                return forward.forward()

        yield [replace(forward, forward=watched)]
        self.root, self.blocks = grouped(parts[0])
        self.sends_twice = device.type == "cpu"

    def prepare(self, model: nn.Module, loss: Loss, comm: Comm, before_backward: BeforeBackward) -> None:
        self.module, self._loss = model, loss
        self.replicas = 1

    def meet(self, replicas: int) -> None:
        """The replicas have met."""
        self.replicas = replicas

    def forward_backward(self, batch: Batch) -> Tensor | None:
        if isinstance(self.module, FSDPModule):
            self.module.set_requires_gradient_sync(batch.last)
        outputs = call(self.module, batch.inputs)
        if isinstance(self.module, FSDPModule):
            note_frozen(self.module)
        if batch.size == 0:  # every replica takes part in every exchange
            (outputs.sum() * 0).backward()
            return None
        loss = self._loss(outputs, batch.targets)
        weight = batch.share * self.replicas
        (loss if weight == 1 else loss * weight).backward()
        return loss.detach()


def block_modules(model: nn.Module) -> list[nn.Module]:
    """Entries of the model's outermost lists of modules that are there once and share no parameter with another."""
    entries = [entry for entry in _entries(model) if next(entry.parameters(), None) is not None]
    uses = Counter(parameter for entry in entries for parameter in entry.parameters())
    return [entry for entry in entries if all(uses[parameter] == 1 for parameter in entry.parameters())]


def _entries(module: nn.Module) -> Iterator[nn.Module]:
    if isinstance(module, nn.ModuleList | nn.Sequential):
        yield from module
    else:
        for child in module.children():
            yield from _entries(child)


def grouped(model: nn.Module) -> tuple[Group, list[Group]]:
    """(The parameters in no block, those of each block)."""
    blocks: list[Group] = [list(block.parameters()) for block in block_modules(model)]
    inside = set(chain.from_iterable(blocks))
    return [parameter for parameter in model.parameters() if parameter not in inside], blocks


class _FSDPUpdate(Sync):
    traits = SyncTraits(
        steps_together=True,
        copies=False,
        keeps_pieces=True,
        unaveraged="cuts its weights up over the workers, which would have to gather them after each step",
        shows_gradients=False,
    )

    def __init__(self, strategy: TorchFSDP) -> None:
        self._strategy, self.clip = strategy, strategy.clip

    def prepare(self, parameters: dict[str, nn.Parameter], optimizer: Optimizer, comm: Comm) -> None:
        assert isinstance(comm, ProcessComm)
        strategy, module = self._strategy, self._strategy.module
        start_alike_on_host(parameters, comm)
        self.account: FSDPPeaks | None = None
        if comm.size == 1:
            module.to(comm.device)
            super().prepare(parameters, optimizer, comm)
            return
        torch_world(comm)
        shards = strategy.shards(comm.size)
        sizes = (shards,) if shards == comm.size else (comm.size // shards, shards)
        mesh = init_device_mesh(comm.device.type, sizes, mesh_dim_names=("groups", "rows")[-len(sizes) :])
        names = {parameter: name for name, parameter in module.named_parameters()}
        before = optimizer.state_dict()  # some keep state from the start
        blocks = block_modules(module)
        self.account = FSDPPeaks(module, blocks)  # before FSDP has hooks of its own
        for block in [*blocks, module]:
            whole = [parameter for parameter in block.parameters() if not isinstance(parameter, DTensor)]
            fully_shard(block, mesh=mesh, reshard_after_forward=strategy.reshard and block is not module)
            for parameter in whole:  # the optimizer and others still know it, and FSDP has moved it to the device
                parameter.data = parameter.data.new_empty(0)
        cut_up = dict(module.named_parameters())
        for group in optimizer.param_groups:
            group["params"] = [cut_up[names[parameter]] for parameter in group["params"]]
        optimizer.state.clear()
        strategy.meet(comm.size)
        # FSDP scatters gradients of whole parameters, and leaves rows of their sum
        self.traits = replace(self.traits, hooked=False)
        super().prepare({name: cut_up[name] for name in parameters}, optimizer, comm)
        if before["state"]:
            self.load_state_dict({"optimizer": before})

    def update(self) -> None:
        if self.account is not None:
            self.account.end_step()
        self.clip_gradients()
        self.optimizer.step()

    def clip_gradients(self) -> None:
        if self.account is None or self.clip is None:
            super().clip_gradients()
            return
        rows = {name: _rows(each.grad) for name, each in self.parameters.items() if each.grad is not None}
        copies = self.comm.size // self._strategy.shards(self.comm.size)
        self.clip.apply(rows, self.comm.key_values.rank, shared=Shared(self.comm, copies))

    # -- state: whole, by parameter

    def gradients(self) -> dict[str, Tensor]:
        return {name: _whole(gradient) for name, gradient in own_gradients(self).items()}

    def consensus(self) -> dict[str, Tensor]:
        named = self._strategy.module.named_parameters()
        return kept_by_first(self.comm, ((name, _whole(parameter.detach())) for name, parameter in named))

    def state_dict(self) -> State:
        state = self.optimizer.state_dict()
        whole = {i: {key: _sharded(value) for key, value in its.items()} for i, its in state["state"].items()}
        return {"optimizer": {**state, "state": whole}}

    def load_state_dict(self, state: State) -> None:
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        kept = {
            i: {key: _cut_up_like(parameters[i], read_all(value)) for key, value in its.items()}
            for i, its in state["optimizer"]["state"].items()
        }
        self.optimizer.load_state_dict({**state["optimizer"], "state": kept})

    # -- measures

    def measured(self, held: Memory) -> Memory:
        if self.account is None:
            return held
        state = held_bytes([leaf for its in self.optimizer.state.values() for leaf in its.values()])
        return {**held, **self.account.peak, "optimizer": state}

    def memory(self, held: Memory, parameters: Sequence[Tensor], replicas: int) -> Memory:
        strategy = self._strategy
        accumulates = self.setting.backward_passes > 1
        return stated(strategy.root, strategy.blocks, strategy.reshard, accumulates, held, strategy.shards(replicas))

    def transfers(self, parameters: Sequence[Tensor], world: World) -> Transfers:
        strategy, shards, replicas = self._strategy, self._strategy.shards(world.replicas), world.replicas
        every = list(chain(strategy.root, *strategy.blocks))
        gathered = padded(every, shards) + (padded(list(chain(*strategy.blocks)), shards) if strategy.reshard else 0)
        reduced = padded([parameter for parameter in every if parameter.requires_grad], shards)
        others = (shards - 1) / shards
        twice = 2 if strategy.sends_twice else 1
        sent = [
            Transfer("all_gather", shards, self.setting.backward_passes * others * gathered),
            Transfer("reduce_scatter", shards, twice * others * reduced),
        ]
        if shards < replicas:
            sent += Fabric().transfers(reduced // shards, World(replicas // shards))
        if strategy.clip is not None and strategy.clip.measures:
            sent += Fabric().transfers(NORM, world)
        return Transfers(sent)


def _rows(gradient: Tensor) -> Tensor:
    """Returns the rows that this replica has, in the same memory."""
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient


def _whole(value: Any) -> Any:
    """A tensor of which replicas hold pieces, gathered: every replica calls."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def _sharded(value: Any) -> Any:
    """Returns a tensor of which replicas hold pieces as one that is gathered when it is written."""
    return ShardedTensor(tuple(value.shape), value.dtype, value.full_tensor) if isinstance(value, DTensor) else value


def _cut_up_like(parameter: nn.Parameter, whole: Any) -> Any:
    """Returns this replica's rows of a whole tensor of the parameter's shape; any other value as it is."""
    if not (isinstance(parameter, DTensor) and isinstance(whole, Tensor) and whole.shape == parameter.shape):
        return whole
    mesh, placements = parameter.device_mesh, parameter.placements
    rows = mesh.ndim - 1  # the axis that they are cut up along
    pieces, rank = whole.to(mesh.device_type).chunk(mesh.size(rows)), mesh.get_local_rank(rows)
    own = pieces[rank] if rank < len(pieces) else whole[:0]
    return DTensor.from_local(
        own.clone(), mesh, placements, run_check=False, shape=parameter.shape, stride=parameter.stride()
    )
