"""What would run, and what it would cost: nothing is trained, no data are needed, no process is started."""

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..batches import Samples
from ..compat import checkpointing
from ..compat.dynamo import without_dynamo
from ..strategies import LayoutError, Strategy, Sync
from ..strategies.base import Traffic, World, payload, state_of
from ..strategies.exchange.clip.base import NORM
from ..strategies.exchange.collectives import Collective, Fabric
from ..strategies.exchange.collectives.base import added
from ..strategies.exchange.compress import Dense
from ..strategies.placements import entries, placements_of
from ..tasks.base import DataSpec
from ..tasks.partition import Shuffled, ShuffledPartition
from ..tracking.columns import human_bytes
from ..tracking.records import Predicted
from . import accumulating, averaging, calling, given, kept, memory, precisions
from .build import MakeOptimizer, Parts, assemble
from .errors import ConfigError
from .experiment import Experiment
from .fits import batch_of, checked_loss, model_takes
from .launchers import launcher_of
from .layout import Layout
from .meta import Repeats
from .notes import notes_on
from .phases import ends_of
from .rates import Point, in_words, points_of, rate_of
from .targets import build


@dataclass(frozen=True)
class Sent:
    """By the workers, and by the servers, of one part, in a step of the run; None: nobody can say beforehand."""

    worker: Traffic | None
    server: Traffic | None


@dataclass(frozen=True)
class PartPlan:
    """What the workers of one part hold and send. Bytes, and bytes a step."""

    runs: list[list[str]]  # of layers that follow one another in the model
    layers: list[str]  # all of them
    parameters: int  # entries
    own: int  # of these, those that no part before has: their sum is the whole model's
    memory: dict[str, int]  # of a worker, by kind
    server_memory: dict[str, int]  # at most, if the sync mode has servers
    held_in_parameters: int  # bytes of the whole part's parameters, whoever holds them
    within: Traffic  # what its workers send by the strategy: to others of their replica, or along `across`
    along: dict[str, float]  # the same, by axis
    to: dict[str, list[int]]  # by axis, the places on it that this is sent to; without an axis along which all send
    is_cut: bool  # some of its layers are pieces
    worker: Traffic | None  # on average over the run; None: nobody can say beforehand
    server: Traffic | None
    varies: str  # why nobody can; "" otherwise


@dataclass(frozen=True)
class Phase:
    """The steps in which the model is one and the same (phases.py)."""

    first: int | None  # step, and the one before which it ends; None: only known once the data are there
    until: int | None
    parts: list[PartPlan]
    uncompressed: list[Sent] | None  # of each part, with compress=none; None where that is chosen, or is refused

    @property
    def steps(self) -> int | None:
        """How many there are; None where it is not known, or where there are none."""
        return self.left(0) or None

    @property
    def entries(self) -> int:
        """Of the whole model's parameters."""
        return sum(part.own for part in self.parts)

    @property
    def sent(self) -> list[Sent]:
        """Of each part, on average over these steps."""
        return [Sent(part.worker, part.server) for part in self.parts]

    def left(self, done: int) -> int | None:
        """Those after the first `done` of the run."""
        return None if self.first is None or self.until is None else max(self.until - max(self.first, done), 0)

    def bytes_per_step(self, layout: Layout) -> float | None:
        """As the plan's, in this phase."""
        return _bytes_per_step(self.sent, layout, self.steps)

    def peak_memory(self) -> dict[str, int]:
        """As the plan's, in this phase."""
        return _peaks([part.memory for part in self.parts])


@dataclass(frozen=True, repr=False)
class Plan:
    experiment: Experiment
    layout: Layout
    device: torch.device
    threads: int
    steps_per_epoch: int | None  # None: only known once the data are there
    steps: int | None
    trainings: int  # that they are made in, each as long as the others
    phases: list[Phase]  # most runs have one; each is said as it is where a run has several
    strategy: Strategy
    shapes: dict[str, list[int]]  # of the whole model's tensors
    added: frozenset[str]  # of these, what `adapt` has added
    survives: bool  # the others go on when a worker dies
    period: int  # steps from one exchange of replicas to the next; the last one may be missing
    notes: list[str]  # what is other than one may think
    spec: DataSpec
    decided: list[str]  # what was left to a choice such as collective=auto, and why
    rate: list[Point]  # by its schedule; none where there is none, or the data must say

    @property
    def parts(self) -> list[PartPlan]:
        """Of the model that training begins with."""
        return self.phases[0].parts

    @property
    def varies(self) -> str:
        """Why nobody can say beforehand what is sent; "" where `bytes_per_step` says it."""
        phases = self._made()
        if len(phases) > 1 and self.steps is None:
            return "how many steps are made with each of the run's models is known once the data are dealt"
        return next((part.varies for phase in phases for part in phase.parts if part.varies), "")

    def bytes_per_step(self, done: int = 0) -> float | None:
        """Payload bytes a worker and step, the mean over the run, servers' sends shared out over the workers; None:
        nobody can say beforehand, and `varies` tells why. `done`: of a run of several phases, the mean over the steps
        after the first `done`.
        """
        return self._mean([(phase, phase.sent) for phase in self._made(done)], done)

    def uncompressed_bytes_per_step(self) -> float | None:
        """The same with compress=none; None where that is what is chosen, too."""
        return self._mean([(phase, phase.uncompressed) for phase in self._made()])

    def _made(self, done: int = 0) -> list[Phase]:
        """The phases that have a step after the first `done`; one at least."""
        return [phase for phase in self.phases if phase.left(done) != 0] or self.phases[-1:]

    def _mean(self, sent: list[tuple[Phase, list[Sent] | None]], done: int = 0) -> float | None:
        """Over the steps that are left. Each phase's bytes together are whole, and so are those of all."""
        total, steps = 0, 0
        for phase, of_parts in sent:
            value = None if of_parts is None else _bytes_per_step(of_parts, self.layout, phase.steps)
            if len(sent) == 1:
                return value
            if value is None or (left := phase.left(done)) is None:
                return None
            total, steps = total + round(value * self.layout.workers * left), steps + left
        return total / (steps * self.layout.workers)

    def peak_memory(self, done: int = 0) -> dict[str, int]:
        """The largest worker, kind by kind, in all phases that have a step after the first `done`."""
        return _peaks([phase.peak_memory() for phase in self._made(done)])

    def largest(self) -> int:
        """Bytes that the worker which holds most holds, the process itself aside."""
        return max(sum(part.memory.values()) for phase in self._made() for part in phase.parts)

    def predicted(self, done: int = 0) -> Predicted:
        """Of a run that goes on after so many steps."""
        return Predicted(self.bytes_per_step(done), self.peak_memory(done))

    def __repr__(self) -> str:
        chosen, layout = self.experiment, self.layout
        steps = "" if self.steps is None else f"{self.steps:,} steps; "
        sent = self.bytes_per_step()
        told = (
            f"nobody can say beforehand what is sent: {self.varies}"
            if sent is None
            else f"{human_bytes(sent)} sent a step and worker"
        )
        what = f"{chosen.model.name} on {chosen.data.name}, {chosen.strategy.name} + {chosen.sync.name}"
        held = human_bytes(sum(self.peak_memory().values()))
        return f"Plan({what}, {layout.workers} workers: {steps}{told}, {held} at most on one)"

    def _repr_html_(self) -> str:
        from ..tracking.display import table_of

        plain = self.as_dict()
        memory = {f"memory: {kind}": human_bytes(size) for kind, size in plain.pop("memory").items()}
        sent, notes = plain.pop("bytes_per_step"), plain.pop("notes")
        plain["rate"] = in_words(self.rate) or None
        del plain["bytes_why"], plain["decided"], plain["uncompressed_bytes_per_step"], plain["phases"]
        chosen = {group: self.experiment.choice(group).name for group in ("strategy", "sync", "model", "data")}
        rows = chosen | plain | {"sent a step and worker": "-" if sent is None else human_bytes(sent)} | memory
        lines = [[name, "-" if value is None else str(value)] for name, value in rows.items()]
        return table_of(["", "planned"], [False, True], [*lines, *(["note", note] for note in notes)])

    def as_dict(self) -> dict[str, Any]:
        return {
            "workers": self.layout.workers,
            "replicas": self.layout.replicas,
            "stages": self.layout.mesh.axes.get("stage", 1),
            "mesh": dict(self.layout.mesh.axes),
            "servers": self.layout.servers * self.layout.parts,
            "device": self.device.type,
            "steps": self.steps,
            "bytes_per_step": self.bytes_per_step(),
            "bytes_why": self.varies or None,
            "memory": self.peak_memory(),
            "phases": [
                {
                    "first_step": None if phase.first is None else phase.first + 1,
                    "parameters": phase.entries,
                    "bytes_per_step": phase.bytes_per_step(self.layout),
                    "memory": phase.peak_memory(),
                }
                for phase in self.phases
            ],
            "uncompressed_bytes_per_step": self.uncompressed_bytes_per_step(),
            "rate": [asdict(point) for point in self.rate],
            "decided": self.decided,
            "notes": self.notes,
        }


@without_dynamo()
def make_plan(experiment: Experiment, allowed: tuple[str, ...] = (), world_size: int | None = None) -> Plan:
    """Check all that can be checked beforehand; every worker's part is built on the meta device and given one batch.

    Raises `ConfigError` and the strategies', sync modes' and tasks' own refusals.
    """
    parts = assemble(experiment, allowed, world_size)
    layout, spec = parts.layout, parts.data.spec
    steps_per_epoch = None
    if spec.train_size is not None:
        steps_per_epoch = parts.partitioner.steps_per_epoch(spec.train_size, layout.replicas, experiment.batch_size)
    training = experiment.steps_in_all(steps_per_epoch)
    steps = None if training is None else training * parts.adapt.trainings
    if training is not None:
        parts.adapt.check_steps(training)
    device = launcher_of(experiment).device(experiment, layout)
    shapes = {name: list(tensor.shape) for name, tensor in state_of(parts.model).items()}
    own = launcher_of(experiment).hosts(experiment.hardware, layout.world_size)
    phases: list[Phase] = []
    surprises: list[str] = []
    first: int | None = 0
    of_phase: Parts | None = parts
    while of_phase is not None:
        until = ends_of(experiment, of_phase, steps_per_epoch)
        worlds = _worlds(experiment, of_phase, steps_per_epoch, first, until)
        of_phase.strategy.hosts = None if own is None else own[: layout.parts]
        of_phase.strategy.worlds = worlds
        with given.naming(experiment):
            plans = _part_plans(experiment, of_phase, worlds, device)
        phases.append(Phase(first, until, plans, _uncompressed(experiment, of_phase, worlds, plans)))
        trained = [parameter for parameter in of_phase.modules[0].parameters() if parameter.requires_grad]
        since = "" if of_phase is parts else "later: " if first is None else f"from step {first + 1:,}: "
        surprises += [since + text for text in of_phase.sync.notes(trained, worlds[0]) if text not in surprises]
        first, of_phase = until, of_phase.following
    rate: list[Point] = []
    if steps_per_epoch is not None:
        rate = points_of(rate_of(experiment, parts, steps_per_epoch), parts)
    collective = parts.of_groups["collective"]
    assert isinstance(collective, Collective)
    with given.naming(experiment):
        if device.type == "cuda" and not collective.on_gpus:
            raise LayoutError(
                "collective: sums in a host's memory, and the workers compute on GPUs; choose collective=fabric, or "
                "hardware.device=cpu"
            )
    return Plan(
        experiment,
        layout,
        device,
        experiment.hardware.threads or share_of_cores(layout),
        steps_per_epoch,
        steps,
        parts.adapt.trainings,
        phases,
        parts.strategy,
        shapes,
        parts.adapt.added(frozenset(shapes)),
        parts.sync.survives,
        parts.sync.period,
        [
            *notes_on(experiment, parts.sync, layout, steps, spec.train_size if steps_per_epoch else None, device),
            *accumulating.notes_on(experiment, parts.model),
            *(given.named(text, experiment) for text in surprises),
            *parts.adapt.notes(training),
            *(given.named(text, experiment) for text in kept.notes(parts, parts.strategy.worlds)),
            *calling.notes_on(parts.callbacks, parts.launcher.modelled),
        ],
        spec,
        [given.named(text, experiment) for text in collective.explain()],
        rate,
    )


def _peaks(every: list[dict[str, int]]) -> dict[str, int]:
    kinds = dict.fromkeys(kind for held in every for kind in held)
    return {kind: max(held.get(kind, 0) for held in every) for kind in kinds}


def _bytes_per_step(sent: list[Sent], layout: Layout, steps: int | None) -> float | None:
    """`steps`: over which the bytes are a mean, all of them together being whole; None where it is not known."""
    total = 0.0
    for part in sent:
        if part.worker is None or part.server is None:
            return None
        total += sum(part.worker.values()) * layout.replicas + sum(part.server.values()) * layout.servers
    return total / layout.workers if steps is None else round(total * steps) / (steps * layout.workers)


def _uncompressed(
    experiment: Experiment, parts: Parts, worlds: list[World], plans: list[PartPlan]
) -> list[Sent] | None:
    """What the same sync mode sends with compress=none: the strategy sends as much, inside of a replica."""
    if isinstance(parts.of_groups["compress"], Dense):
        return None
    usual = {**parts.of_groups, "compress": Dense()}
    try:
        sync = build("sync", experiment.sync, Sync, parts.allowed, usual)
    except LayoutError:  # with these knobs there is nothing to compare with, such as sync.compress_answers=true
        return None
    sync.backward_passes = parts.sync.backward_passes
    found: list[Sent] = []
    for module, world, plan in zip(parts.modules, worlds, plans, strict=True):
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        cost = sync.cost(trained, world)
        if cost.varies:
            found.append(Sent(None, None))
        else:
            found.append(Sent(added(plan.within, cost.worker), cost.server))
    return found


def _worlds(
    experiment: Experiment, parts: Parts, steps_per_epoch: int | None, first: int | None, until: int | None
) -> list[World]:
    """The holders of each part, in the steps from `first` on that come before `until`."""
    layout = parts.layout
    hosts = launcher_of(experiment).hosts(experiment.hardware, layout.world_size)
    of_part = [range(part, layout.workers, layout.parts) for part in range(layout.parts)]
    steps, busy = None, ()
    if first is not None and until is not None and first < until:
        steps, busy = until - first, _busy(experiment, parts, first, until)
    return [
        World(
            layout.replicas,
            steps_per_epoch,
            None if hosts is None else tuple(hosts[rank] for rank in holders),
            steps,
            busy,
        )
        for holders in of_part
    ]


def _busy(experiment: Experiment, parts: Parts, first: int, until: int) -> tuple[tuple[int, int], ...]:
    """See `World.busy`: the last step of an epoch may have fewer samples than there are replicas."""
    samples, replicas = parts.data.spec.train_size, parts.layout.replicas
    if samples is None or not isinstance(parts.partitioner, Shuffled):
        return ()
    dealt = ShuffledPartition(samples, replicas, experiment.batch_size, seed=0)
    last = dealt.total(dealt.steps_per_epoch - 1)
    epochs = until // dealt.steps_per_epoch - first // dealt.steps_per_epoch  # whose last step is among these
    if last >= replicas or epochs == 0:
        return ()
    return (until - first, last), (until - first - epochs, replicas - last)


def share_of_cores(layout: Layout) -> int:
    return max(1, len(os.sched_getaffinity(0)) // layout.world_size)


def _part_plans(experiment: Experiment, parts: Parts, worlds: list[World], device: torch.device) -> list[PartPlan]:
    modules = parts.modules
    parts.model.train()
    inputs, targets = batch_of(parts.data.spec, experiment.batch_size)
    sizes = parts.accumulation.sizes(experiment.batch_size)
    repeats = Repeats()
    foreseen = parts.precision.foreseen
    with model_takes(experiment, inputs, parts.allowed), memory.AttentionOf(device), foreseen(device), repeats:
        activations = _activations(experiment, parts, inputs[: sizes[0]], targets[: sizes[0]], device)
    with foreseen(device), repeats:
        along = _summed_over(sizes, lambda size: parts.strategy.cost_along(modules, inputs[:size]))
    along, over_axes = _with_sums(parts, along)
    parts.sync.backward_passes = len(sizes) * len(parts.strategy.micro_sizes(sizes[0]))
    plans: list[PartPlan] = []
    receivers = parts.strategy.sends_to(modules)
    owned = entries(modules, parts.strategy.mesh)
    for i, (module, saved, own) in enumerate(zip(modules, activations, owned, strict=True)):
        traffic = added(*(each[i] for each in along.values()), over_axes)
        parameters = list(module.parameters())
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        cost = parts.sync.cost(trained, worlds[i])
        if (while_pruned := kept.by_training(parts, module, worlds[i])) is not None:
            cost = replace(cost, worker=kept.mean(while_pruned), varies="")
        state = _optimizer_state(parameters, parts.make_optimizer)
        server = {"parameters": payload(parameters), "gradients": payload(trained), "optimizer": state}
        held = {
            "parameters": payload(parameters),
            "gradients": payload(trained),
            "optimizer": state if parts.sync.steps_on_workers else 0,
            "activations": saved,
            "buffers": cost.buffers + payload(list(module.buffers())) + parts.adapt.holds(module),
        }
        held = parts.strategy.memory(parts.sync.memory(held, trained, parts.layout.replicas), module)
        held = {**held, **averaging.stated(parts.average, module, trained)}
        plans.append(
            PartPlan(
                runs=(runs := parts.strategy.layers(module)),
                layers=[name for run in runs for name in run],
                parameters=sum(parameter.numel() for parameter in parameters),
                own=own,
                memory=dict(held),
                server_memory={**server, "buffers": payload(parameters)},
                held_in_parameters=payload(parameters),
                within=traffic,
                along={axis: sum(each[i].values()) for axis, each in along.items()},
                to={axis: to[parts.strategy.mesh.position(i)[axis]] for axis, to in receivers.items()},
                is_cut=bool(placements_of(module)),
                worker=None if cost.varies else added(traffic, cost.worker),
                server=None if cost.varies else cost.server,
                varies=given.named(cost.varies, experiment),
            )
        )
    return plans


def _summed_over(sizes: list[int], cost: Callable[[int], Mapping[str, list[Traffic]]]) -> Mapping[str, list[Traffic]]:
    """What is sent by axis and part, of all micro-batches that are taken one after another."""
    found = {size: cost(size) for size in dict.fromkeys(sizes)}
    if len(sizes) == 1:
        return found[sizes[0]]
    return {
        axis: [added(*(found[size][axis][i] for size in sizes)) for i in range(len(each))]
        for axis, each in found[sizes[0]].items()
    }


def _with_sums(parts: Parts, along: Mapping[str, list[Traffic]]) -> tuple[Mapping[str, list[Traffic]], Traffic]:
    """What a strategy sends by axis, with the sums of a few bytes over a replica's workers, of a gradient's norm and of
    whether it overflowed; and those sums that are over several axes at once.
    """
    clip, axes = parts.sync.clip, [*parts.strategy.axes]
    overflow, within = precisions.flag(parts)
    sums = [overflow] if within else []
    if clip is not None and clip.measures and parts.layout.parts > 1:
        sums.append(Fabric().traffic(NORM, World(parts.layout.parts)))
    own, over_axes = added(*sums), {} if within else overflow
    if len(axes) != 1 or not own:
        return along, added(own, over_axes)
    [axis] = axes
    return {**along, axis: [added(each, own) for each in along[axis]]}, over_axes


def _activations(
    experiment: Experiment, parts: Parts, inputs: Samples, targets: Samples, device: torch.device
) -> list[int]:
    """Bytes that each part's passes keep for backward.

    In backward there is more only where something is computed again: how much, each pass is asked by itself.
    """
    loss = checked_loss(experiment, parts.modules[parts.strategy.loss_part], parts.data.spec, parts.task)
    loss = parts.precision.loss(loss)
    peaks: list[int] = []
    for part, passes in enumerate(parts.strategy.rehearse(parts.modules, inputs, targets, loss, device)):
        before = 0
        kept: list[int] = []
        again: list[int] = []
        ends: list[Tensor] = []
        with memory.activations() as account:
            for each in passes:
                ends.append(each.forward())
                kept.append(account.peak - before)
                before = account.peak
            for end in ends:
                before = account.restart()
                if account.recomputes:
                    checkpointing.backward(end)
                again.append(account.peak - before)
        peaks.append(parts.strategy.at_once(part, kept, again, len(inputs)))
    return peaks


def _optimizer_state(parameters: list[nn.Parameter], make_optimizer: MakeOptimizer) -> int:
    optimizer = make_optimizer(parameters)
    for parameter in parameters:
        if parameter.requires_grad:
            parameter.grad = torch.empty_like(parameter)
    try:
        optimizer.step()
    except (TypeError, RuntimeError, OverflowError) as error:  # wants a closure, sparse gradients, smaller numbers
        raise ConfigError(f"optimizer: {type(optimizer).__name__} cannot be used here: {error}") from error
    return memory.held(memory.optimizer_state(optimizer))
