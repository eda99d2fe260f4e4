"""Sharded optimizer state against torch's ZeroRedundancyOptimizer; Adam on the host against torch's and DeepSpeed's.

Two workers train the same model on the same batch in the same two processes, in turn.
"""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from paceline.comm.process import ProcessComm
from paceline.engine import prepare
from paceline.engine.planning.build import assemble
from paceline.strategies.core.batch import Batch
from paceline.strategies.data_parallel import DataParallel
from paceline.strategies.sync.bsp import BSP
from paceline.tasks.base import DataSpec
from paceline.tasks.losses.cross_entropy import cross_entropy
from paceline.tasks.models.mlp import MLP

from .measure import Outcome, alternate, in_processes

IMAGES = DataSpec((1, 28, 28), torch.float32, (), 10, 60_000, 10_000)
BATCHES, STEPS = (256, 32), 20  # of the larger one three quarters of a step are the same passes on both sides
ENTRIES, ADAM_STEPS = 10_000_000, 10


def sharding_against_torch(rounds: int) -> list[Outcome]:
    return in_processes(2, _sharded_step, rounds) + in_processes(1, _host_adam, rounds)


def adam(parameters: list[nn.Parameter]) -> Optimizer:
    """Returns the optimizer of optimizer=adam."""
    return assemble(prepare(["optimizer=adam"]).experiment, ()).make_optimizer(parameters)


# -- two workers


def _sharded_step(comm: ProcessComm, rounds: int) -> list[Outcome]:
    torch.manual_seed(comm.rank)
    outcomes: list[Outcome] = []
    for batch in BATCHES:
        inputs, targets = torch.randn(batch, 1, 28, 28), torch.randint(10, (batch,))
        ours, peer = OurSharding(comm, inputs, targets), TorchShardingPeer(comm, inputs, targets)
        outcomes.append(
            alternate(
                f"bsp step, sync.shard=optimizer, Adam, 2 workers: mlp, 2.9 M parameters, batch {batch}",
                lambda ours=ours: _block(ours, comm),
                lambda peer=peer: _block(peer, comm),
                "torch DDP with ZeroRedundancyOptimizer(Adam)",
                "<= 0.85",
                rounds,
            )
        )
        dist.destroy_process_group()
    return outcomes


class OurSharding:
    def __init__(self, comm: ProcessComm, inputs: Tensor, targets: Tensor) -> None:
        self.batch = Batch(inputs, targets, total=2 * len(inputs))
        alone, replicas = comm.split(comm.rank), comm.split(0)
        assert alone is not None and replicas is not None
        model = MLP(IMAGES, [1024, 1024, 1024])
        self.sync, self.strategy = BSP(shard="optimizer"), DataParallel()
        self.strategy.prepare(model, cross_entropy, alone, self.sync.before_backward)
        self.sync.prepare(dict(model.named_parameters()), adam(list(model.parameters())), replicas)

    def __call__(self) -> None:
        self.sync.begin(self.batch)
        self.strategy.forward_backward(self.batch)
        self.sync.update()


class TorchShardingPeer:
    """The code of torch's tutorial."""

    def __init__(self, comm: ProcessComm, inputs: Tensor, targets: Tensor) -> None:
        with TemporaryDirectory() as folder:
            if comm.rank == 0:
                comm.key_values.post(f"rendezvous {len(inputs)}", folder)
            meeting = Path(comm.key_values.read(f"rendezvous {len(inputs)}", 0)) / "store"
            dist.init_process_group("gloo", init_method=meeting.as_uri(), rank=comm.rank, world_size=comm.size)
            comm.barrier()  # all have met: the folder may go
        self.inputs, self.targets = inputs, targets
        self.model = DistributedDataParallel(MLP(IMAGES, [1024, 1024, 1024]))
        self.optimizer = ZeroRedundancyOptimizer(self.model.parameters(), torch.optim.Adam, lr=0.001)

    def __call__(self) -> None:
        self.optimizer.zero_grad()
        cross_entropy(self.model(self.inputs), self.targets).backward()
        self.optimizer.step()


def _block(step: OurSharding | TorchShardingPeer, comm: ProcessComm) -> float:
    """The median step of a block, in milliseconds."""
    comm.barrier()
    return _median(step, STEPS)


# -- one host


def _host_adam(comm: ProcessComm, rounds: int) -> list[Outcome]:
    name = "optimizer=adam, one step, 10 M parameters, one thread"
    ours = _on_host(adam)
    outcomes = [alternate(name, ours, _on_host(torch.optim.Adam), "torch.optim.Adam's default", "<= 0.12", rounds)]
    deepspeed, why = _deepspeed_adam()
    if deepspeed is None:
        outcomes.append(Outcome(name, ours(), peer_name=f"DeepSpeedCPUAdam, left out: {why}", target="<= 1.5"))
    else:
        outcomes.append(alternate(name, ours, _on_host(deepspeed), "DeepSpeedCPUAdam", "<= 1.5", rounds))
    return outcomes


def _deepspeed_adam() -> tuple[Callable[[list[nn.Parameter]], Optimizer] | None, str]:
    """DeepSpeed's Adam, or why there is none here. Its first use compiles it, in about 100 s."""
    missing = [tool for tool in ("g++", "ninja") if shutil.which(tool) is None]
    if missing:
        return None, f"no {' and no '.join(missing)} to compile it with"
    os.environ["DS_ACCELERATOR"] = "cpu"
    try:
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        DeepSpeedCPUAdam([nn.Parameter(torch.zeros(1))])
    except Exception as error:
        return None, (str(error).strip() or type(error).__name__).splitlines()[0]
    return lambda parameters: DeepSpeedCPUAdam(parameters, adamw_mode=False), ""


def _on_host(make: Callable[[list[nn.Parameter]], Optimizer]) -> Callable[[], float]:
    """Gives the median step of a block, in milliseconds."""
    parameter = nn.Parameter(torch.randn(ENTRIES))
    parameter.grad = torch.randn(ENTRIES)
    optimizer = make([parameter])
    return lambda: _median(optimizer.step, ADAM_STEPS)


def _median(step: Callable[[], object], steps: int) -> float:
    times: list[float] = []
    for _ in range(steps):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return median(times) * 1e3
