"""One worker or server of a run: who it is, and what it has once it is set up. work.py says what it does."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from ...comm import Comm, PeerLostError
from ...conf.groups import SHOWN
from ...exchange.clip import Counted
from ...strategies import Strategy, Sync
from ...strategies.adapt import Held, While
from ...strategies.core.accumulation import Accumulation
from ...strategies.core.placements import owned
from ...strategies.core.protocols import SideBySide
from ...strategies.core.state import State, load_state, state_of
from ...strategies.precision import LossScale
from ...tasks.running_statistics import batch_norms, renew
from ...tracking.run_directory import RunDirectory
from ..base import checkpoint, memory
from ..base.checkpoint import Manifest
from ..base.trained import Vectors
from ..config.experiment import Experiment
from ..fabrics.assignment import Assignment
from ..fabrics.compute import ModelledCompute, RealCompute
from ..fabrics.layout import Layout, Role, share_of_cores
from ..features import experts, iterating, phases, weights
from ..features.averaging import Averaging, keeps
from ..features.calling import Calling
from ..features.compiling import Compiler
from ..features.parts import Parts
from ..features.rates import rate_of


def prepare_process(experiment: Experiment, parts: Parts, rank: int) -> torch.device:
    """Threads and device of this process, which is worker or server `rank`; before any torch work."""
    here = parts.fabric.processes_here(parts.layout)
    torch.set_num_threads(experiment.hardware.threads or share_of_cores(here))
    memory.keep_freed()
    device = parts.fabric.device_of(experiment, parts.layout, rank)
    if device.type == "cuda":
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
    accumulation: Accumulation
    scale: LossScale | None  # of its replica's loss
    average: Averaging | None  # of weights over steps, where it keeps one
    meanwhile: While | None  # what is done to the model as it trains
    compiler: Compiler | None  # of its passes; None: they are not compiled
    phase: int  # which of the run's: see phases.py
    vectors: Vectors  # in which the sync mode keeps the parameters

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
        return self.parts.fabric.saves

    @cached_property
    def directory(self) -> RunDirectory:
        return RunDirectory(self.assignment.run)

    def choices(self) -> dict[str, str]:
        """What was chosen of each group, by name."""
        return {group.name: self.experiment.choice(group.name).name for group in SHOWN}

    def consensus(self) -> dict[str, Tensor] | None:
        """The whole model's weights to evaluate, on the chief; everyone else helps and gets None."""
        average = self.average
        state = self._whole(self.sync.consensus if average is None else average.evaluated)
        if state is None or average is None or not (average.average.renews and average.count):
            return state
        return self._renewed(state)

    def trained(self) -> dict[str, Tensor] | None:
        """As `consensus`, whatever is evaluated: the weights that training goes on with."""
        return self._whole(self.sync.consensus)

    def _whole(self, of_part: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor] | None:
        if not (self.sync.traits.synchronous or self.role.replica == 0):
            return None
        parameters = of_part()
        if self.sync.traits.experts:
            whole = self.strategy.full_state(parameters)
            assert whole is not None, "a replica of experts is one worker"
            assert isinstance(self.sync, SideBySide)
            return self.sync.gathered(whole)
        return self.strategy.full_state(parameters) if self.role.replica == 0 else None

    def _renewed(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """With running statistics of batch norms that are those of these weights; on the chief."""
        assert self.judged is not None, "the chief judges"
        if not batch_norms(self.judged):
            return state
        self.judged.to(self.device)
        load_state(self.judged, state)
        renew(self.judged, self.parts.load()[0], self.experiment.batch_size, self.device)
        found = {name: tensor.detach().clone() for name, tensor in state_of(self.judged).items()}
        self.judged.to("cpu")  # its place on the device is training's
        return found

    def read_of_living(self, key: str, ranks: Iterable[int]) -> list[Any]:
        """What each of `ranks` posted, without those who died; where a death is the end of the run, it is one here."""
        found: list[Any] = []
        for rank in ranks:
            try:
                found.append(json.loads(self.comm.board.read(f"{key}/{rank}", rank)))
            except PeerLostError:
                if not self.sync.traits.survives:
                    raise
        return found


def set_up(assignment: Assignment, parts: Parts, comm: Comm, device: torch.device) -> Worker:
    """Everything that one worker needs before its first step, or a server before its first message; all call this."""
    resident = memory.process_now()
    experiment, phase, manifest = assignment.experiment, 0, None
    if assignment.resume is not None:
        manifest = checkpoint.read_manifest(assignment.resume)
        phase = manifest.phase
        parts = phases.phase_of(parts, phase)
    if parts.sync.traits.experts:
        centres = experts.centres(experiment, parts.load()[0], parts.deal())
        parts.sync.configure(replace(parts.sync.setting, centres=centres))
        experts.check_alike(comm.board, parts.layout.chief, parts.deal())
    torch.manual_seed(experiment.seed)
    model = parts.make_model()
    if experiment.weights is not None and manifest is None:
        replica = parts.layout.role(comm.rank).replica
        weights.put_into(model, experiment.weights, assignment.run, parts.adapt, replica, parts.sync.setting.centres)
    elif manifest is None:
        iterating.begin(model, parts.load)
    chief, together = parts.layout.chief, parts.sync.traits.synchronous
    calling = Calling(parts.callbacks, comm.board, chief, together, experiment.strategy.name)
    if manifest is not None and manifest.callbacks is not None:
        calling.load(manifest.callbacks)
    trains = parts.layout.role(comm.rank).kind == "worker"
    compiler = Compiler() if experiment.compile and trains else None
    kept = _Kept(assignment, comm, device, manifest, resident, calling, compiler)
    return _laid_out(kept, parts, phase, model, manifest)


def set_up_again(worker: Worker) -> Worker:
    """After the last step of a phase, for the first of the next one; all call this.

    The chief makes the next model of what training has made so far, and everyone begins with that.
    """
    state = worker.trained()
    parts = phases.phase_of(worker.parts, 1)
    with torch.random.fork_rng(devices=[]):  # what is drawn here is written over
        model = parts.make_model()
    if state is not None:
        on_host = {name: tensor.detach().cpu() for name, tensor in state.items()}
        load_state(model, parts.adapt.carried(model, on_host))
    for tensor in state_of(model).values():
        sent = tensor.to(worker.device)
        worker.comm.broadcast(sent, parts.layout.chief).wait()
        tensor.copy_(sent)
    scale = None if worker.scale is None else worker.scale.state_dict()
    kept = _Kept(
        worker.assignment,
        worker.comm,
        worker.device,
        worker.manifest,
        worker.resident,
        worker.calling,
        worker.compiler,
        scale,
    )
    return _laid_out(kept, parts, worker.phase + 1, model, None)


@dataclass(frozen=True)
class _Kept:
    """Of a worker, what is the same in all phases of its run."""

    assignment: Assignment
    comm: Comm
    device: torch.device
    manifest: Manifest | None
    resident: int
    calling: Calling
    compiler: Compiler | None
    scale: State | None = None  # that of its loss, from the phase before


def _laid_out(kept: _Kept, parts: Parts, phase: int, model: nn.Module, saved: Manifest | None) -> Worker:
    """With `model`, the whole one. `saved`: of the checkpoint that its weights, and all else, are read from."""
    comm, device, calling = kept.comm, kept.device, kept.calling
    role = parts.layout.role(comm.rank)
    trains = role.kind == "worker"
    axes = list(parts.strategy.axes)
    of_replica = comm.split(role.replica if trains else None, axes[0] if len(axes) == 1 else None)
    of_part = comm.split(role.part, "replica")
    workers = comm.split(0 if trains else None)
    if parts.strategy.traits.across_replicas:
        across = comm.split(role.part if trains else None, "replica")
        parts.strategy.configure(replace(parts.strategy.setting, across=across))
    assert of_part is not None
    if parts.compute is not None:
        compute = ModelledCompute(comm, parts.compute, role.part, parts.stragglers)
    else:
        compute = RealCompute(comm, parts.stragglers)
    with torch.random.fork_rng(devices=[]):  # what is drawn here is written over
        judged = None
        if comm.rank == parts.layout.chief:
            judged = experts.judged(parts.sync, parts.layout.replicas, parts.make_model)
    accumulation = Accumulation(parts.accumulation.micro_batches)
    scale = parts.precision.scale() if trains else None
    if of_replica is not None:
        model = model if parts.strategy.traits.moves_model else model.to(device)
        plain = parts.task.function(parts.data.spec)
        parts.strategy.prepare(
            model,
            parts.precision.loss(accumulation.weighing(parts.loss(calling.seeing(plain))), scale),
            of_replica,
            accumulation.telling(_before_backward(compute, parts.sync)),
        )
        module = parts.strategy.module
        parts.precision.attach(module, device)
        compute.attach(module)
    else:
        module = parts.strategy.split(model)[role.part].to(device)
    module.train()
    if kept.compiler is not None and of_replica is not None:
        kept.compiler.compile(parts.strategy, parts, device)
    if scale is not None and of_replica is not None:
        among = workers if parts.sync.traits.steps_together else of_replica
        scale.among = among if among is not None and among.size > 1 else None
        if kept.scale is not None:
            scale.load_state_dict(kept.scale)
    state, meanwhile, vectors = _begin(kept.assignment, parts, role, module, of_part, of_replica, scale, saved)
    average = None
    if trains and keeps(parts.average, parts.sync, role.replica):
        average = Averaging(parts.average, parts.sync, module, parts.sync.setting.steps_per_epoch)
        if state is not None:
            average.load_state_dict(state["average"])
    return Worker(
        kept.assignment,
        parts,
        comm,
        workers,
        device,
        role,
        module,
        judged,
        compute,
        kept.manifest,
        kept.resident,
        calling,
        accumulation,
        scale,
        average,
        meanwhile,
        kept.compiler,
        phase,
        vectors,
    )


def _before_backward(compute: ModelledCompute | RealCompute, sync: Sync) -> Callable[[Sequence[Tensor], bool], None]:
    def tell(roots: Sequence[Tensor], last: bool) -> None:
        compute.backward_begins(roots)
        sync.before_backward(roots, last)

    return tell


def _begin(
    assignment: Assignment,
    parts: Parts,
    role: Role,
    module: nn.Module,
    of_part: Comm,
    of_replica: Comm | None,
    scale: LossScale | None,
    saved: Manifest | None,
) -> tuple[State | None, While | None, Vectors]:
    """Hand the part to the sync mode, with all that a checkpoint kept of it; returns that, what is done meanwhile, and
    where the sync mode keeps the parameters.
    """
    sync, state = parts.sync, None
    if saved is not None:
        assert assignment.resume is not None
        replica = role.replica if role.kind == "worker" else 0
        state = checkpoint.read_part(assignment.resume, role.part, replica, saved)
        load_state(module, state["parameters"])
    optimizer = parts.make_optimizer(module.parameters())
    trained = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    counted, dealt = None, parts.deal()
    if of_replica is not None and of_replica.size > 1:
        counted = Counted(of_replica, frozenset(owned(parts.modules, parts.strategy.mesh)[role.part]))
    sync.configure(
        replace(
            sync.setting,
            steps_per_epoch=dealt.steps_per_epoch,
            shares_of_samples=dealt.shares,
            counted=counted if sync.clip is not None and sync.clip.measures else None,
            rate=rate_of(assignment.experiment, parts, dealt.steps_per_epoch, len(parts.load()[0])),
            scaled=scale is not None,
        )
    )
    vectors = Vectors(trained.values() if parts.strategy.own_sync() is None else ())
    sync.prepare(trained, optimizer, of_part)
    vectors.accept()
    if scale is not None:
        scale.watch(sync.parameters.values(), sync.traits.hooked)
        if state is not None:
            scale.load_state_dict(state["scale"])
    meanwhile = _meanwhile(assignment.experiment, parts, module, counted) if role.kind == "worker" else None
    if state is not None:
        if sync.traits.synchronous and not (sync.traits.weights_agree and sync.traits.state_agrees):
            load_state(module, state["parameters"])  # `prepare` may have made all replicas alike
        sync.load_state_dict(state["sync"])
        if meanwhile is not None:
            meanwhile.load_state_dict(state["adapt"])
    return state, meanwhile, vectors


def _meanwhile(experiment: Experiment, parts: Parts, module: nn.Module, counted: Counted | None) -> While | None:
    steps = experiment.steps_in_all(parts.sync.setting.steps_per_epoch)
    assert steps is not None

    def redraw(number: int) -> dict[str, Tensor]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(((experiment.seed + 1) * 1_000_003 + number) % 2**63)
            return state_of(parts.make_model())

    return parts.adapt.begin(Held(module, parts.sync, steps, redraw, counted))
