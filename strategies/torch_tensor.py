"""torch's own tensor parallelism: the reference that a user would pick instead of strategy=tensor.

`parallelize_module` (torch.distributed.tensor.parallel) makes weights of the same pairs of linear layers DTensors, by
ColwiseParallel and RowwiseParallel; torch makes the sums, through the fabric's own groups, where the ledger sees them.
Everything else is whole, the vocabulary too.

A worker's piece of a weight is the DTensor's own memory under the model's name, and the optimizer steps on that: its
fused and foreach kernels refuse DTensors beside other tensors. Dropout between the pairs draws the same on all workers.

Cost per step and pair of S bytes of the first layer's inputs, and of the second's outputs, p workers: all_reduce
2 (p-1)/p 2 S.

Use it to set strategy=tensor beside what torch has, on the same layers and meters.

Source: torch.distributed.tensor.parallel, of torch itself; Shoeybi et al. 2019, "Megatron-LM" (arXiv 1909.08053).
"""

from collections.abc import Mapping, Sequence
from typing import Annotated

from annotated_types import Ge
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.optim import Optimizer

from ..batches import Samples, call
from ..comm import Comm
from ..comm.process import ProcessComm
from ..comm.torch_world import torch_world
from ..conf.errors import ConfigError
from ..cost.layout import ReplicaLayout
from ..exchange.elementwise import check_elementwise
from .core.batch import Batch, BeforeBackward
from .core.copies import let_go, without_data
from .core.cost import Traffic, Transfers, World
from .core.loss import Loss
from .core.memory_format import laid_out
from .core.mesh import Mesh
from .core.placements import gather
from .core.state import state_with
from .core.strategy import NOT_OURS, Strategy, StrategyTraits
from .core.sync import Sync
from .core.trial import Trial
from .tensor_parallel.cost import sent_in_a_pass
from .tensor_parallel.cut import cut_over
from .tensor_parallel.find import kinds_of
from .tensor_parallel.group import TensorGroup


class TorchTensor(Strategy):
    """One replica of `degree` workers; torch owns the pieces and the sums."""

    trial = Trial(slow=True)
    traits = StrategyTraits(
        cuts_on_host=True,
        unpredicted=NOT_OURS,
        bitwise=False,
        max_replicas=1,
        needs_processes=True,
        one_precision="states messages of torch's layers in float32 alone",
    )
    shares = True

    def __init__(self, degree: Annotated[int, Ge(2)] = 2) -> None:
        self.mesh = Mesh({"tensor": degree})

    def own_sync(self) -> Sync:
        return _LocalUpdate(self)

    def check_optimizer(self, optimizer: Optimizer) -> None:
        check_elementwise(optimizer, "strategy=torch_tensor", "strategy=data_parallel")

    def split(self, model: nn.Module, only: int | None = None) -> list[nn.Module]:
        """`only`: the one part that is made; None makes all."""
        kinds = kinds_of(model, self.parts)
        if not kinds:
            raise ConfigError(
                f"{type(model).__name__} has no two linear layers with only element-wise ones "
                "between them. Choose model=mlp with two layers in model.hidden, or strategy=torch_ddp.",
                about=("strategy",),
            )
        return cut_over(model, TensorGroup(self.parts), kinds, only=only)

    def prepare(self, model: nn.Module, loss: Loss, comm: Comm, before_backward: BeforeBackward) -> None:
        self.whole = without_data(model, plain=False)  # until `make_parallel`
        self._parts = self.split(without_data(model))
        [self.module] = self.split(model, comm.rank)
        let_go(model, self.module)
        self.comm, self._loss = comm, loss

    def make_parallel(self) -> None:
        """The model's weights become DTensors, whose local memory is that of this worker's part."""
        assert isinstance(self.comm, ProcessComm)
        torch_world(self.comm)
        mesh = init_device_mesh(self.comm.device.type, (self.parts,))
        ways = {"column": ColwiseParallel(), "row": RowwiseParallel()}
        kinds = kinds_of(self.whole, self.parts)
        plan = {name: ways[kind] for name, kind in kinds.items()}
        parallelize_module(self.whole, mesh, plan, src_data_rank=None)  # every worker has the same model: none is sent
        made: dict[nn.Parameter, nn.Parameter] = {}  # by this worker's: of tied weights there is one
        for name, empty in list(self.whole.named_parameters(remove_duplicate=False)):
            mine = self.module.get_parameter(name)
            if mine not in made:
                made[mine] = nn.Parameter(_filled(empty, mine.detach()), mine.requires_grad)
            _put(self.whole, name, made[mine])
        for name, buffer in self.module.named_buffers(remove_duplicate=False):
            _put(self.whole, name, buffer)

    def forward_backward(self, batch: Batch) -> Tensor | None:
        if batch.size == 0:
            return None
        loss = self._loss(call(self.whole, batch.inputs), batch.targets)
        loss.backward()
        return loss.detach() if self.comm.rank == self.loss_part else None

    def full_state(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        return gather(state_with(self.module, parameters), self._parts, self.mesh, self.comm, self.loss_part)

    def closed_form(self, accumulate: int) -> ReplicaLayout | None:
        return ReplicaLayout(accumulate, zero=0)

    def cost(self, parts: Sequence[nn.Module], inputs: Samples) -> list[Traffic]:
        return [TensorGroup(self.parts).traffic(sent_in_a_pass(parts[0], inputs), self.setting.hosts) for _ in parts]


def _filled(empty: Tensor, mine: Tensor) -> Tensor:
    """Returns `mine`, as a DTensor where `empty`, of the same parameter, is one."""
    if not isinstance(empty, DTensor):
        return mine
    return DTensor.from_local(
        mine, empty.device_mesh, empty.placements, run_check=False, shape=empty.shape, stride=empty.stride()
    )


def _put(module: nn.Module, name: str, tensor: Tensor) -> None:
    owner, _, own = name.rpartition(".")
    setattr(module.get_submodule(owner), own, tensor)


class _LocalUpdate(Sync):
    """A step on this worker's pieces, with the DTensors' gradients."""

    def __init__(self, strategy: TorchTensor) -> None:
        self._strategy = strategy

    def prepare(self, parameters: dict[str, nn.Parameter], optimizer: Optimizer, comm: Comm) -> None:
        super().prepare(parameters, optimizer, comm)
        self._strategy.make_parallel()

    def begin(self, batch: Batch) -> None:
        super().begin(batch)
        self._strategy.whole.zero_grad()

    def update(self) -> None:
        for name, mine in self.parameters.items():
            gradient = self._strategy.whole.get_parameter(name).grad
            if isinstance(gradient, DTensor):
                parameter = self._strategy.whole.get_parameter(name)
                assert isinstance(parameter, DTensor)
                gradient = gradient.redistribute(placements=parameter.placements).to_local()
            mine.grad = gradient if gradient is None else laid_out(gradient, mine)
        self.clip_gradients()
        self.optimizer.step()

    def transfers(self, parameters: Sequence[Tensor], world: World) -> Transfers:
        return Transfers()
