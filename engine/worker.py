"""One worker or server of a run: who it is, and what it has once it is set up. work.py says what it does."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from ..comm import Comm, PeerLostError
from ..conf.groups import SHOWN
from ..strategies import Strategy, Sync
from ..strategies.adapt import Held, While
from ..strategies.base import load_state, state_of
from ..strategies.exchange.clip import Counted
from ..strategies.placements import owned
from ..tracking.run_directory import RunDirectory
from . import checkpoint, memory, weights
from .assignment import Assignment
from .build import Parts
from .calling import Calling
from .checkpoint import Manifest
from .compute import ModelledCompute, RealCompute
from .experiment import Experiment
from .layout import Layout, Role
from .planning import share_of_cores
from .rates import rate_of


def prepare_process(experiment: Experiment, parts: Parts, rank: int) -> torch.device:
    """Threads and device of this process; before any torch work."""
    torch.set_num_threads(experiment.hardware.threads or share_of_cores(parts.layout))
    memory.keep_freed()
    device = parts.launcher.device(experiment, parts.layout)
    if device.type == "cuda":
        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    return device


@dataclass(frozen=True)
class Worker:
    """`comm` spans all workers and servers, `workers` the workers alone (None on a server)."""

    assignment: Assignment
    parts: Parts
    comm: Comm
    workers: Comm | None
    device: torch.device
    role: Role
    module: nn.Module  # its part of the model
    judged: nn.Module | None  # on the chief, a whole model to evaluate what was gathered in; on the host until then
    compute: ModelledCompute | RealCompute
    manifest: Manifest | None  # of the checkpoint that it goes on from
    resident: int  # bytes that its process held before anything of the run was there
    calling: Calling  # the callbacks
    meanwhile: While | None  # what is done to the model as it trains

    @property
    def experiment(self) -> Experiment:
        return self.assignment.experiment

    @property
    def layout(self) -> Layout:
        return self.parts.layout

    @property
    def strategy(self) -> Strategy:
        return self.parts.strategy

    @property
    def sync(self) -> Sync:
        return self.parts.sync

    @property
    def is_chief(self) -> bool:
        return self.comm.rank == self.layout.chief

    @property
    def saves(self) -> bool:
        """A virtual cluster saves nothing: it replays from its seed."""
        return self.parts.launcher.saves

    @cached_property
    def directory(self) -> RunDirectory:
        return RunDirectory(self.assignment.run)

    def choices(self) -> dict[str, str]:
        """What was chosen of each group, by name."""
        return {group.name: self.experiment.choice(group.name).name for group in SHOWN}

    def consensus(self) -> dict[str, Tensor] | None:
        """The whole model's weights to evaluate, on the chief; everyone else helps and gets None."""
        if not (self.sync.synchronous or self.role.replica == 0):
            return None
        parameters = self.sync.consensus()
        if self.role.replica != 0:
            return None
        return self.strategy.full_state(parameters)

    def read_of_living(self, key: str, ranks: Iterable[int]) -> list[Any]:
        """What each of `ranks` posted, without those who died; where a death is the end of the run, it is one here."""
        found: list[Any] = []
        for rank in ranks:
            try:
                found.append(json.loads(self.comm.board.read(f"{key}/{rank}", rank)))
            except PeerLostError:
                if not self.sync.survives:
                    raise
        return found


def set_up(assignment: Assignment, parts: Parts, comm: Comm, device: torch.device) -> Worker:
    """Everything that one worker needs before its first step, or a server before its first message; all call this."""
    resident = memory.process_now()
    experiment, role = assignment.experiment, parts.layout.role(comm.rank)
    trains = role.kind == "worker"
    axes = list(parts.strategy.axes)
    of_replica = comm.split(role.replica if trains else None, axes[0] if len(axes) == 1 else None)
    of_part = comm.split(role.part, "replica")
    workers = comm.split(0 if trains else None)
    if parts.strategy.across_replicas:
        parts.strategy.across = comm.split(role.part if trains else None, "replica")
    assert of_part is not None
    if parts.compute is not None:
        compute = ModelledCompute(comm, parts.compute, role.part, parts.stragglers)
    else:
        compute = RealCompute(comm, parts.stragglers)
    torch.manual_seed(experiment.seed)
    model = parts.make_model()
    if experiment.weights is not None and assignment.resume is None:
        weights.put_into(model, experiment.weights, assignment.run, parts.adapt)
    judged = parts.make_model() if comm.rank == parts.layout.chief else None
    chief, together = parts.layout.chief, parts.sync.synchronous
    calling = Calling(parts.callbacks, comm.board, chief, together, experiment.strategy.name)
    if of_replica is not None:
        model = model if parts.strategy.moves_model else model.to(device)
        parts.strategy.prepare(
            model,
            calling.seeing(parts.task.function(parts.data.spec)),
            of_replica,
            _before_backward(compute, parts.sync),
        )
        module = parts.strategy.module
        compute.attach(module)
    else:
        module = parts.strategy.split(model)[role.part].to(device)
    module.train()
    manifest, meanwhile = _begin(assignment, parts, role, module, of_part, of_replica)
    if manifest is not None and manifest.callbacks is not None:
        calling.load(manifest.callbacks)
    return Worker(
        assignment,
        parts,
        comm,
        workers,
        device,
        role,
        module,
        judged,
        compute,
        manifest,
        resident,
        calling,
        meanwhile,
    )


def _before_backward(compute: ModelledCompute | RealCompute, sync: Sync) -> Callable[[Sequence[Tensor], bool], None]:
    def tell(roots: Sequence[Tensor], last: bool) -> None:
        compute.backward_begins(roots)
        sync.before_backward(roots, last)

    return tell


def _begin(
    assignment: Assignment, parts: Parts, role: Role, module: nn.Module, of_part: Comm, of_replica: Comm | None
) -> tuple[Manifest | None, While | None]:
    """Hand the part to the sync mode, with all that a checkpoint kept of it; returns the checkpoint's manifest, and
    what is done meanwhile.
    """
    sync = parts.sync
    manifest = state = None
    if assignment.resume is not None:
        manifest = checkpoint.read_manifest(assignment.resume)
        replica = role.replica if role.kind == "worker" else 0
        state = checkpoint.read_part(assignment.resume, role.part, replica, manifest)
        load_state(module, state["parameters"])
    optimizer = parts.make_optimizer(module.parameters())
    trained = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    sync.steps_per_epoch = parts.deal().steps_per_epoch
    counted = None
    if of_replica is not None and of_replica.size > 1:
        counted = Counted(of_replica, frozenset(owned(parts.modules, parts.strategy.mesh)[role.part]))
    if sync.clip is not None and sync.clip.measures:
        sync.counted = counted
    sync.rate = rate_of(assignment.experiment, parts, sync.steps_per_epoch)
    sync.prepare(trained, optimizer, of_part)
    meanwhile = _meanwhile(assignment.experiment, parts, module, counted) if role.kind == "worker" else None
    if state is not None:
        if sync.synchronous and not (sync.weights_agree and sync.state_agrees):
            load_state(module, state["parameters"])  # `prepare` may have made all replicas alike
        sync.load_state_dict(state["sync"])
        if meanwhile is not None:
            meanwhile.load_state_dict(state["adapt"])
    return manifest, meanwhile


def _meanwhile(experiment: Experiment, parts: Parts, module: nn.Module, counted: Counted | None) -> While | None:
    steps = experiment.steps_in_all(parts.sync.steps_per_epoch)
    assert steps is not None

    def redraw(number: int) -> dict[str, Tensor]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(((experiment.seed + 1) * 1_000_003 + number) % 2**63)
            return state_of(parts.make_model())

    return parts.adapt.begin(Held(module, parts.sync, steps, redraw, counted))
