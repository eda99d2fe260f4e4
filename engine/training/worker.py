"""One worker or server of a run: who it is, and what it has once it is set up. work.py says what it does."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from ...comm import Comm, PeerLostError
from ...conf.errors import ConfigError
from ...conf.groups import SHOWN
from ...exchange.clip import Counted
from ...strategies import Strategy, Sync
from ...strategies.core.accumulation import Accumulation
from ...strategies.core.placements import owned
from ...strategies.core.protocols import SideBySide
from ...strategies.core.regrouped import SavedParts, is_recut, order_of
from ...strategies.core.state import in_pieces, load_state, mapped, mean_of, read_all, state_of
from ...strategies.core.views import HeldViews
from ...tracking.records import NoteRecord
from ...tracking.run_directory import RunDirectory
from ..base import checkpoint, machine, memory
from ..base.checkpoint import Manifest
from ..base.trained import FixedState, Vectors, keep_memory
from ..config.experiment import Experiment
from ..fabrics.assignment import Assignment
from ..fabrics.compute import ModelledCompute, RealCompute
from ..fabrics.layout import Role, RunLayout, share_of_cores
from ..features import models, phases, weights
from ..features.compiling import Compiler
from ..features.feature import Context, Hooks, Parts
from ..features.hook_list import HookList
from ..features.known import known_of
from ..features.rates import rate_of
from . import one_build
from .alike import UNSEEDED, EqualReplicas, begin_alike
from .batches import seed_generators


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
    resident: int | None  # bytes that its process held before anything of the run was there; None where others share it
    hooks: HookList  # of the features, in the order in which they act
    compiler: Compiler | None  # of its passes; None: they are not compiled
    phase: int  # which of the run's: see phases.py

    @property
    def experiment(self) -> Experiment:
        return self.assignment.experiment

    @property
    def layout(self) -> RunLayout:
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
        """Returns the names of the choices by group."""
        return {group.name: self.experiment.choice(group.name).name for group in SHOWN}

    def consensus(self) -> dict[str, Tensor] | None:
        """The whole model's weights to evaluate, on the chief; everyone else helps and gets None."""
        state = self._whole(partial(self.hooks.weights, self.sync.consensus))
        if state is None:
            return None
        assert self.judged is not None, "the chief judges"
        return self.hooks.whole(state, self.judged)

    def trained(self) -> dict[str, Tensor] | None:
        """Returns the weights that training goes on with, like `consensus`, whichever are evaluated."""
        return self._whole(self.sync.consensus)

    def _whole(self, of_part: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor] | None:
        if not (self.sync.traits.synchronous or self.role.replica == 0):
            return None
        parameters = of_part()
        if isinstance(self.sync, SideBySide):
            whole = self.strategy.full_state(parameters)
            assert whole is not None, "a replica of experts is one worker"
            return self.sync.gathered(whole)
        return self.strategy.full_state(parameters) if self.role.replica == 0 else None

    def read_of_living(self, key: str, ranks: Iterable[int]) -> list[Any]:
        """Returns the values that each of `ranks` posted, without those who died; where a death is the end of the run,
        it is one here.
        """
        found: list[Any] = []
        for rank in ranks:
            try:
                found.append(json.loads(self.comm.key_values.read(f"{key}/{rank}", rank)))
            except PeerLostError:
                if not self.sync.traits.survives:
                    raise
        return found


def set_up(assignment: Assignment, parts: Parts, comm: Comm, device: torch.device) -> Worker:
    """Everything that one worker needs before its first step, or a server before its first message; all call this."""
    resident = None
    if not parts.fabric.modelled:
        resident = memory.process_now()
        machine.begin()
    experiment, phase, manifest = assignment.experiment, 0, None
    if assignment.resume is not None:
        manifest = checkpoint.read_manifest(assignment.resume)
        phase = manifest.phase
        parts = phases.phase_saved(parts, assignment.resume, phase)
    for feature in parts.features:
        feature.set_up(parts, comm)

    def build() -> nn.Module:
        seed_generators(experiment.seed, device)
        made = parts.make_model()
        if manifest is None:
            _initialise(assignment, parts, made, comm)
        return made

    model = one_build.built(parts, comm, build)
    if begin_alike(parts, model, comm, device) and comm.rank == parts.layout.chief:
        RunDirectory(assignment.run).add(NoteRecord(UNSEEDED.format(experiment.model.name)))
    trains = parts.layout.role(comm.rank).kind == "worker"
    compiler = Compiler() if experiment.compile and trains else None
    return _laid_out(
        _AcrossPhases(assignment, comm, device, manifest, resident, compiler), parts, phase, model, manifest
    )


def _initialise(assignment: Assignment, parts: Parts, model: nn.Module, comm: Comm) -> None:
    """Gives the whole model the weights that the run begins with."""
    told = assignment.experiment.weights
    if told is None:
        for feature in parts.features:
            feature.initialise(parts, model)
        return
    replica = parts.layout.role(comm.rank).replica
    added, begun = partial(models.added, parts), partial(models.begun, parts)
    weights.put_into(model, told, assignment.run, added, replica, parts.sync.setting.centres, begun)


def set_up_again(worker: Worker) -> Worker:
    """Sets the worker up after the last step of a phase, for the first of the next one; all call this.

    The chief makes the next model of what training has made so far, and everyone begins with that.
    """
    state = worker.trained()
    parts = phases.phase_of(worker.parts, 1)
    with torch.random.fork_rng(devices=[]):  # what is drawn here is written over
        model = parts.make_model()
    if state is not None:
        on_host = {name: tensor.detach().cpu() for name, tensor in state.items()}
        load_state(model, models.carried(parts, model, on_host))
    for tensor in state_of(model).values():
        sent = tensor.to(worker.device)
        worker.comm.broadcast(sent, parts.layout.chief).wait()
        tensor.copy_(sent)
    kept = _AcrossPhases(
        worker.assignment, worker.comm, worker.device, worker.manifest, worker.resident, worker.compiler, worker.hooks
    )
    return _laid_out(kept, parts, worker.phase + 1, model, None)


@dataclass(frozen=True)
class _AcrossPhases:
    """The parts of a worker that stay the same in all phases of its run."""

    assignment: Assignment
    comm: Comm
    device: torch.device
    manifest: Manifest | None
    resident: int | None
    compiler: Compiler | None
    hooks: HookList | None = None  # of the phase before


def _laid_out(kept: _AcrossPhases, parts: Parts, phase: int, model: nn.Module, saved: Manifest | None) -> Worker:
    """Sets the worker up with `model`, the whole one. `saved`: of the checkpoint from which its weights, and all else,
    are read.
    """
    comm, device = kept.comm, kept.device
    role = parts.layout.role(comm.rank)
    trains = role.kind == "worker"
    axes = list(parts.strategy.mesh.axes)
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
    if not (parts.strategy.traits.waits_in_passes or parts.sync.traits.waits_in_passes):
        parts.strategy.configure(replace(parts.strategy.setting, passes=compute.passes()))
    judged = _judged(parts) if comm.rank == parts.layout.chief else None
    parts = replace(parts, accumulation=Accumulation(parts.accumulation.micro_batches))
    hooks: list[Hooks] = []
    views = HeldViews(model)
    if of_replica is not None and workers is not None:
        context = Context(parts, comm, workers, of_replica, role, device, compute)
        hooks = [made for each in parts.features if (made := each.hooks(context)) is not None]
        module = _prepared(parts, model, device, of_replica, compute, hooks)
        if kept.compiler is not None:
            kept.compiler.compile(parts.strategy, parts, device)
    else:
        module = _moved(parts.strategy.split(model)[role.part], device)
        module.train()
    if kept.manifest is not None and kept.hooks is None:
        HookList(hooks).load_manifest(kept.manifest.callbacks or {})
    found = _begin(kept, parts, role, module, of_part, of_replica, workers, hooks, saved)
    if trains:
        views.check(module, _chosen(kept.assignment.experiment))
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
        found,
        kept.compiler,
        phase,
    )


def _judged(parts: Parts) -> nn.Module:
    """Returns a model to evaluate weights in."""
    with torch.random.fork_rng(devices=[]):  # what is drawn here is written over
        if isinstance(parts.sync, SideBySide):
            return parts.sync.judged(parts.layout.replicas, parts.make_model)
        return parts.make_model()


def _prepared(
    parts: Parts,
    model: nn.Module,
    device: torch.device,
    of_replica: Comm,
    compute: ModelledCompute | RealCompute,
    hooks: Sequence[Hooks],
) -> nn.Module:
    """Prepares the strategy; returns this worker's part of the model."""
    traits = parts.strategy.traits
    model = model if traits.moves_model or traits.cuts_on_host else _moved(model, device)
    loss = parts.task.function(parts.data.spec)
    for each in hooks:
        loss = each.loss(loss)
    tell = parts.accumulation.telling(_before_backward(compute, parts.sync))
    parts.strategy.prepare(model, loss, of_replica, tell)
    module = _moved(parts.strategy.module, device) if traits.cuts_on_host else parts.strategy.module
    parts.precision.attach(module, device)
    compute.attach(module)
    module.train()
    return module


def _moved(module: nn.Module, device: torch.device) -> nn.Module:
    """Moves the module to the device, and out of memory that workers of the host share."""
    moved = module.to(device)
    one_build.leave_file(moved)
    return moved


def _before_backward(compute: ModelledCompute | RealCompute, sync: Sync) -> Callable[[Sequence[Tensor], bool], None]:
    def tell(roots: Sequence[Tensor], last: bool) -> None:
        compute.backward_begins(roots)
        sync.before_backward(roots, last)

    return tell


def _begin(
    kept: _AcrossPhases,
    parts: Parts,
    role: Role,
    module: nn.Module,
    of_part: Comm,
    of_replica: Comm | None,
    workers: Comm | None,
    hooks: Sequence[Hooks],
    saved: Manifest | None,
) -> HookList:
    """Hands the part to the sync mode and to the hooks, with all that a checkpoint kept of it."""
    assignment, sync, state = kept.assignment, parts.sync, None
    if saved is not None:
        assert assignment.resume is not None
        modules, resized = parts.modules, saved.workers not in (None, parts.layout.workers)
        moved = not saved.is_of(assignment.experiment.strategy.model_dump())
        states = checkpoint.open_parts(assignment.resume, saved) if moved or resized else []
        if moved or (resized and is_recut(states, modules)):
            planned = parts.make_optimizer(modules[role.part].parameters())
            state = SavedParts(states).of_part(modules, parts.strategy.mesh, role.part, planned)
        elif resized:
            state = mean_of(checkpoint.open_replicas(assignment.resume, role.part, saved))
        else:
            replica = role.replica if role.kind == "worker" else 0
            state = checkpoint.open_part(assignment.resume, role.part, replica, saved)
        load_state(module, mapped(state["parameters"]))
    optimizer = parts.make_optimizer(module.parameters())
    if state is not None and state.get("order", now := order_of(module, optimizer)) != now:
        raise ConfigError(
            f"optimizer={assignment.experiment.optimizer.name}: has its parameters in another order than at the "
            "checkpoint, whose state it would mix up. Have it group them in the order in which it is given them"
        )
    trained = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    counted, dealt, samples = None, parts.deal(), len(parts.load()[0])
    if of_replica is not None and of_replica.size > 1:
        counted = Counted(of_replica, frozenset(owned(parts.modules, parts.strategy.mesh)[role.part]))
    known = known_of(parts, samples, dealt.steps_per_epoch)
    for feature in parts.features:
        feature.check_steps(known)
    sync.configure(
        replace(
            sync.setting,
            steps_per_epoch=dealt.steps_per_epoch,
            shares_of_samples=dealt.shares,
            counted=counted if sync.clip is not None and sync.clip.measures else None,
            rate=rate_of(assignment.experiment, parts, dealt.steps_per_epoch, samples),
            scaled=role.kind == "worker" and parts.precision.scale() is not None,
        )
    )
    vectors = Vectors(trained.values() if parts.strategy.own_sync() is None else ())
    sync.prepare(trained, optimizer, of_part)
    keep_memory(optimizer)
    vectors.accept()
    chosen, own = _chosen(assignment.experiment), list[Hooks]()
    if workers is not None:
        alike = EqualReplicas(parts, sync, module, workers, kept.device, chosen)
        own = [UnchangedModel(module, vectors), alike]
    found = HookList([*own, *hooks])
    for each in hooks:
        each.begin(module, counted)
    found.watch(sync, chosen)
    if kept.hooks is not None:
        found.follow(kept.hooks)
    if state is not None:
        if sync.traits.synchronous and not (sync.traits.weights_agree and sync.traits.state_agrees):
            load_state(module, mapped(state["parameters"]))  # `prepare` may have made all replicas alike
        sync.load_state_dict(in_pieces(state["sync"]) if sync.traits.keeps_pieces else read_all(state["sync"]))
        found.load_state_dict(read_all({key: each for key, each in state.items() if key not in ("parameters", "sync")}))
    return found


def _chosen(experiment: Experiment) -> str:
    return ", ".join(f"{group}={experiment.choice(group).name}" for group in ("strategy", "sync"))


class UnchangedModel(Hooks):
    """Holds user code to leaving the model's parameters, and the shapes of its saved buffers, as they are."""

    def __init__(self, module: nn.Module, vectors: Vectors) -> None:
        self._fixed = FixedState(module, vectors)

    def after_backward(self, step: int) -> None:
        self._fixed.check(f"since step {step}")
