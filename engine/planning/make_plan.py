"""Plans a run and its cost: nothing is trained, no data are needed, no process is started."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import Tensor, nn

from ...batches import Samples, call
from ...compat import checkpointing
from ...compat.dynamo import without_dynamo
from ...conf.errors import ConfigError
from ...conf.notes import Note
from ...exchange.collectives import Collective, Fabric
from ...exchange.collectives.base import added
from ...exchange.compress import Compressor, Dense, vector_of
from ...exchange.multiplexed import shares_of
from ...strategies import Sync
from ...strategies.adapt.replaced import only_called
from ...strategies.core.batch import Pass
from ...strategies.core.clip import NORM
from ...strategies.core.cost import Traffic, World, payload
from ...strategies.core.placements import entries, placements_of
from ...strategies.core.protocols import SideBySide, StatesMemory, accumulated_by, cost_along, stepped_by
from ...strategies.core.read_only import read_only
from ...strategies.core.staged import StagedStrategy
from ...strategies.core.state import state_of
from ...strategies.core.uncalled import uncalled
from ...strategies.core.with_servers import SyncWithServers
from ...tasks.contents import contents
from ...tasks.contents import notes_on as notes_on_contents
from ...tasks.models.mixture import idle_entries
from ...tasks.partition import Repeated
from ..base import memory
from ..base.errors import ChangedModelError
from ..base.failures import ONE_SAMPLE
from ..base.meta import Repeats
from ..base.trained import FixedState
from ..config import looking
from ..config.experiment import Experiment
from ..config.fits import batch_of, checked_loss, model_takes
from ..config.targets import build
from ..fabrics import clients, fabric_of
from ..fabrics.layout import share_of_cores
from ..features import injected, models
from ..features.feature import Parts, Stated
from ..features.known import known_of
from ..features.optimizer_state import optimizer_state
from ..features.phases import ends_of
from ..features.rates import RatePoint, points_of, rate_of
from .build import assemble
from .notes import notes_on
from .planned import ActiveParameters, PartPlan, Plan, PlanPhase, SentTraffic


@without_dynamo()
def make_plan(experiment: Experiment, allowed: tuple[str, ...] = (), world_size: int | None = None) -> Plan:
    """Check all that can be checked beforehand; every worker's part is built on the meta device and given one batch.

    A model that looks at values is given a few samples of the data: see looking.py. Raises `ConfigError` and the
    strategies', sync modes' and tasks' own refusals.
    """
    return looking.on_values_where_needed(experiment, lambda: _make_plan(experiment, allowed, world_size), allowed)


def _make_plan(experiment: Experiment, allowed: tuple[str, ...], world_size: int | None) -> Plan:
    parts = assemble(experiment, allowed, world_size)
    experiment = parts.experiment  # with what follows from the rest of it
    for feature in parts.features:
        feature.check_files()
    layout, spec, described = parts.layout, parts.data.source.spec, parts.data.described()
    steps_per_epoch = None
    if spec.train_size is not None:
        sizes = spec.train_size, parts.sync, layout, experiment.batch_size
        steps_per_epoch = clients.steps_per_epoch(parts.partitioner, *sizes)
    known = known_of(parts, spec.train_size, steps_per_epoch)
    for feature in parts.features:
        feature.check_steps(known)
    device = parts.fabric.device(experiment, layout)
    shapes = models.plain_shapes(parts, {name: list(each.shape) for name, each in state_of(parts.model).items()})
    planned, surprises = _phases(parts, steps_per_epoch, device)
    rate: list[RatePoint] = []
    if steps_per_epoch is not None and spec.train_size is not None:
        rate = points_of(rate_of(experiment, parts, steps_per_epoch, spec.train_size), parts)
    collective = parts.of_groups["collective"]
    assert isinstance(collective, Collective)
    with injected.naming(experiment):
        if device.type == "cuda" and not collective.on_gpus:
            raise ConfigError(
                "collective: sums in a host's memory, and the workers compute on GPUs. Choose collective=fabric, or "
                "hardware.device=cpu."
            )
    samples = spec.train_size if steps_per_epoch else None
    return Plan(
        experiment,
        layout,
        device,
        experiment.hardware.threads or share_of_cores(parts.fabric.processes_here(layout)),
        steps_per_epoch,
        known.steps,
        models.trainings(parts.features),
        planned,
        parts.strategy,
        shapes,
        models.added(parts, frozenset(shapes)),
        parts.sync.traits.survives,
        parts.sync.period,
        [
            *notes_on(experiment, parts.sync, layout, known.steps, samples, device),
            *(injected.named(note, experiment) for note in _uncalled(parts)),
            *surprises,
            *(note for feature in parts.features for note in feature.notes(known)),
            *_on_one_sample(parts, known.steps),
            *notes_on_contents(spec, described),
            *looking.notes_on(experiment),
        ],
        spec,
        contents(spec, described),
        [f"collective={experiment.choice('collective').name}: {why}" for why in collective.explain()],
        rate,
        {each.key: found for each in parts.features if (found := each.stated(known)) is not None}
        | _experts(parts.model),
        layout.replicas if isinstance(parts.sync, SideBySide) else None,
        layout.replicas > 1 and not parts.sync.traits.weights_agree,
    )


def _experts(model: nn.Module) -> dict[str, Stated]:
    total, idle = sum(each.numel() for each in model.parameters()), idle_entries(model)
    return {"experts": ActiveParameters(total - idle, total)} if idle else {}


def _uncalled(parts: Parts) -> Iterator[Note]:
    """Yields notes on members that the classes of users define in vain."""
    owns = parts.strategy.own_sync() is not None
    for group, choice in (("strategy", parts.strategy), ("strategy" if owns else "sync", parts.sync)):
        yield from (Note((group,), text) for text in uncalled(choice))


def _on_one_sample(parts: Parts, steps: int | None) -> list[str]:
    """Raises `ConfigError` if the last batch of an epoch leaves a batch norm one value per channel, which torch
    refuses. Returns a note where rounds of clients may leave that batch out.
    """
    experiment, partitioner, samples = parts.experiment, parts.partitioner, parts.data.spec.train_size
    if samples is None or partitioner.looks_at_targets or partitioner.looks_at_inputs or partitioner.draws:
        return []
    among, size = clients.dealt_to(parts.sync, parts.layout), experiment.batch_size
    dealt = partitioner.deal(torch.empty(samples, device="meta"), among, size, experiment.seed)
    last = [dealt.size(dealt.steps_per_epoch - 1, replica) for replica in range(among)]
    alone = sum(1 in _micro_sizes(parts, each) for each in last)
    if not alone or 1 in _micro_sizes(parts, size) or parts.strategy.traits.across_replicas:
        return []
    if (steps is not None and steps < dealt.steps_per_epoch) or not _refuses_one(parts):
        return []
    told = (
        f"batch_size={size}: of {samples:,} samples the last step of an epoch leaves a batch of 1 to {alone:,} of "
        f"{among:,} replicas, and batch norm in model={experiment.model.name} cannot train on it. Choose "
        "drop_last=true, or another batch_size."
    )
    if not parts.sync.traits.client_rounds:
        raise ConfigError(told)
    return [told]


def _micro_sizes(parts: Parts, size: int) -> set[int]:
    """Returns the sizes of the batches on which the model computes, for a replica with `size` samples."""
    sizes = {each for each in parts.accumulation.sizes(size) if each}
    if isinstance(parts.strategy, StagedStrategy):
        return {micro for each in sizes for micro in parts.strategy.micro_sizes(each)}
    return sizes


def _refuses_one(parts: Parts) -> bool:
    """Returns whether a batch norm of the model refuses to train on one sample."""
    model = looking.built(parts.experiment, parts.make_model).train()
    real = looking.tried(parts.experiment) is looking.Tried.REAL
    inputs, _ = looking.real_batch(parts.load()[0], 1) if real else batch_of(parts.data.spec, 1)
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            call(model, inputs)
    except Exception as error:  # of whatever kind: it is the user's forward
        return str(error).startswith(ONE_SAMPLE)
    return False


def _phases(parts: Parts, steps_per_epoch: int | None, device: torch.device) -> tuple[list[PlanPhase], list[str]]:
    """Returns what is planned of each phase, and what is other than one may think."""
    experiment = parts.experiment
    own = parts.fabric.hosts(experiment.hardware, parts.layout.world_size)
    hosts = None if own is None else own[: parts.layout.parts]
    planned: list[PlanPhase] = []
    surprises: list[str] = []
    first: int | None = 0
    of_phase: Parts | None = parts
    while of_phase is not None:
        until = ends_of(of_phase, steps_per_epoch)
        worlds = _worlds(experiment, of_phase, steps_per_epoch, first, until)
        of_phase.strategy.configure(replace(of_phase.strategy.setting, hosts=hosts, worlds=worlds))
        with injected.naming(experiment):
            plans = _part_plans(experiment, of_phase, worlds, device)
        planned.append(PlanPhase(first, until, plans, _uncompressed(experiment, of_phase, worlds, plans)))
        trained = [parameter for parameter in of_phase.modules[0].parameters() if parameter.requires_grad]
        since = "" if of_phase is parts else "later: " if first is None else f"from step {first + 1:,}: "
        notes = [*of_phase.sync.notes(trained, worlds[0]), *_on_messages(of_phase, trained, worlds[0])]
        told = [injected.named(each, experiment) for each in notes]
        surprises += [since + text for text in told if text not in surprises]
        first, of_phase = until, of_phase.following
    return planned, surprises


def _on_messages(parts: Parts, trained: Sequence[Tensor], world: World) -> Sequence[Note | str]:
    """Returns the notes of a compressor on a message of all trained parameters; a message of a part has no others."""
    compress = parts.of_groups["compress"]
    assert isinstance(compress, Compressor)
    return compress.notes(vector_of(trained)) if world.replicas > 1 and trained else []


def _uncompressed(
    experiment: Experiment, parts: Parts, worlds: list[World], plans: list[PartPlan]
) -> list[SentTraffic] | None:
    """Returns the bytes of the same sync mode with compress=none: the strategy sends as much, inside of a replica."""
    if isinstance(parts.of_groups["compress"], Dense):
        return None
    usual = {**parts.of_groups, "compress": Dense()}
    try:
        sync = build("sync", experiment.sync, Sync, parts.allowed, usual)
    except ConfigError:  # with these knobs there is nothing to compare with, such as sync.compress_answers=true
        return None
    sync.configure(parts.sync.setting)
    found: list[SentTraffic] = []
    for module, world, plan in zip(parts.modules, worlds, plans, strict=True):
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        cost = sync.cost(trained, world)
        if cost.varies:
            found.append(SentTraffic(None, None))
        else:
            found.append(SentTraffic(added(plan.within, cost.worker), cost.server))
    return found


def _worlds(
    experiment: Experiment, parts: Parts, steps_per_epoch: int | None, first: int | None, until: int | None
) -> list[World]:
    """The holders of each part, in the steps from `first` on that come before `until`."""
    layout = parts.layout
    hosts = fabric_of(experiment).hosts(experiment.hardware, layout.world_size)
    of_part = [range(part, layout.workers, layout.parts) for part in range(layout.parts)]
    steps, busy = None, None if steps_per_epoch is None and parts.data.spec.train_size is not None else ()
    if first is not None and until is not None and first < until:
        steps, busy = until - first, None if busy is None else _busy(experiment, parts, first, until)
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
    copies, partitioner = parts.partitioner.copies, parts.partitioner
    samples, replicas = parts.data.spec.train_size, parts.layout.replicas // copies
    each = partitioner.each if isinstance(partitioner, Repeated) else partitioner
    if samples is None or shares_of(parts.sync, replicas) is not None:
        return ()
    sizes = samples, replicas, experiment.batch_size
    steps_per_epoch, last = each.steps_per_epoch(*sizes), each.in_last_step(*sizes)
    if steps_per_epoch is None or last is None:
        return ()
    epochs = until // steps_per_epoch - first // steps_per_epoch  # whose last step is among these
    if last >= replicas or epochs == 0:
        return ()
    return (until - first, last * copies), (until - first - epochs, (replicas - last) * copies)


def _part_plans(experiment: Experiment, parts: Parts, worlds: list[World], device: torch.device) -> list[PartPlan]:
    modules = parts.modules
    parts.model.train()
    inputs, targets = batch_of(parts.data.spec, experiment.batch_size)
    sizes = parts.accumulation.sizes(experiment.batch_size)
    repeats = Repeats()
    estimated = parts.precision.estimated
    if looking.tried(experiment) is looking.Tried.REAL:
        activations = _activations_of_few(experiment, parts, sizes[0], device)
    else:
        with model_takes(experiment, inputs, parts.allowed), memory.AttentionOf(device), estimated(device), repeats:
            activations = _activations(experiment, parts, inputs[: sizes[0]], targets[: sizes[0]], device)
    with estimated(device), repeats:
        along = _summed_over(sizes, lambda size: cost_along(parts.strategy, modules, inputs[:size]))
    along, over_axes = _with_sums(parts, along)
    staged = parts.strategy if isinstance(parts.strategy, StagedStrategy) else None
    passes = len(sizes) * (len(staged.micro_sizes(sizes[0])) if staged else 1)
    parts.sync.configure(replace(parts.sync.setting, backward_passes=passes))
    plans: list[PartPlan] = []
    receivers = staged.sends_to(modules) if staged else {}
    owned = entries(modules, parts.strategy.mesh)
    for i, (module, saved, own) in enumerate(zip(modules, activations, owned, strict=True)):
        traffic = added(*(each[i] for each in along.values()), over_axes)
        parameters = list(module.parameters())
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        cost = parts.sync.cost(trained, worlds[i])
        for feature in parts.features:
            cost = feature.cost(parts, module, worlds[i], cost)
        whole = optimizer_state(parts, parameters, trained)
        server = {"parameters": payload(parameters), "gradients": payload(trained), "optimizer": whole}
        server["buffers"] = payload(trained)
        if isinstance(parts.sync, SyncWithServers):
            server = dict(parts.sync.server_memory(server, trained, worlds[i]))
        server["buffers"] += payload(list(module.buffers()))
        shares = stepped_by(parts.sync, trained, parts.layout.replicas)
        if shares[0] is trained:  # as most modes have it
            state = whole
        else:
            state = max(optimizer_state(parts, parameters, share) for share in shares)
        held = {
            "parameters": payload(parameters),
            "gradients": payload(trained),
            "optimizer": state if parts.sync.traits.steps_on_workers else 0,
            "activations": saved,
            "buffers": cost.buffers + payload(list(module.buffers())),
        }
        beside = [feature.memory(module, trained) for feature in parts.features]
        held |= {kind: size + sum(each.get(kind, 0) for each in beside) for kind, size in held.items()}
        others = {kind: size for each in beside for kind, size in each.items() if kind not in held}
        if isinstance(parts.sync, StatesMemory):
            held = parts.sync.memory(held, trained, parts.layout.replicas)
        held = {**parts.strategy.memory(held, module), **others}
        plans.append(
            PartPlan(
                runs=(runs := staged.layers(module) if staged else [[name for name, _ in module.named_children()]]),
                layers=[name for run in runs for name in run],
                parameters=sum(parameter.numel() for parameter in parameters),
                own=own,
                memory=dict(held),
                server_memory=server,
                held_in_parameters=payload(parameters),
                within=traffic,
                along={axis: sum(each[i].values()) for axis, each in along.items()},
                to={axis: to[parts.strategy.mesh.position(i)[axis]] for axis, to in receivers.items()},
                is_cut=bool(placements_of(module)),
                worker=None if cost.varies else added(traffic, cost.worker),
                server=None if cost.varies else cost.server,
                varies=injected.named(cost.varies, experiment),
            )
        )
    return plans


def _summed_over(sizes: list[int], cost: Callable[[int], Mapping[str, list[Traffic]]]) -> Mapping[str, list[Traffic]]:
    """Returns the bytes by axis and part, of all micro-batches that are taken one after another."""
    found = {size: cost(size) for size in dict.fromkeys(sizes)}
    if len(sizes) == 1:
        return found[sizes[0]]
    return {
        axis: [added(*(found[size][axis][i] for size in sizes)) for i in range(len(each))]
        for axis, each in found[sizes[0]].items()
    }


def _with_sums(parts: Parts, along: Mapping[str, list[Traffic]]) -> tuple[Mapping[str, list[Traffic]], Traffic]:
    """Returns the bytes of a strategy by axis, with the sums of a few bytes over a replica's workers (of a gradient's
    norm and of whether it overflowed), and the bytes of sums that are over several axes at once.
    """
    clip, axes = parts.sync.clip, [*parts.strategy.mesh.axes]
    agreed = [feature.sums(parts) for feature in parts.features]
    sums = [each.within for each in agreed if each.within is not None]
    if clip is not None and clip.measures and parts.layout.parts > 1:
        sums.append(Fabric().traffic(NORM, World(parts.layout.parts)))
    own, over_axes = added(*sums), added(*(each.among_all for each in agreed if each.among_all is not None))
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
    loss = checked_loss(experiment, parts.modules[parts.strategy.loss_part], parts.data.spec, parts.task, parts.allowed)
    plain = targets
    for feature in parts.features:
        loss, targets = feature.loss(loss), feature.targets(inputs, targets)
    loss = parts.precision.loss(loss)
    second = looking.second(experiment, parts.model, parts.make_model)  # it lives on until the passes are made
    peaks: list[int] = []
    taken: list[list[Pass]] = []
    for part, passes in enumerate(parts.strategy.profile(parts.modules, inputs, targets, loss, device)):
        alike = next((i for i, each in enumerate(taken) if each is passes), None)
        taken.append(passes)
        if alike is not None:
            peaks.append(peaks[alike])
            continue
        before = 0
        kept: list[int] = []
        again: list[int] = []
        ends: list[Tensor] = []
        fixed = FixedState(parts.modules[part])
        with memory.activations() as account:
            for each in passes:
                # privacy=dp_sgd takes the gradients of samples through a copy of the model
                called = nullcontext() if parts.strategy.setting.privacy else only_called(parts.modules[part])
                kept_elsewhere = parts.strategy.traits.drops_writes, parts.sync.traits.drops_writes
                with read_only(parts.modules[part], *kept_elsewhere), called:
                    ends.append(each.forward())
                _check_has_gradient(experiment, parts.modules[part], ends[-1])
                if second is not None:
                    looking.check_held(experiment, [parts.model, *parts.modules], ends[-1])
                kept.append(account.peak - before)
                before = account.peak
            for end in ends:
                before = account.restart()
                if account.recomputes:
                    checkpointing.backward(end)
                again.append(account.peak - before)
        _check_fixed(fixed)
        if isinstance(parts.strategy, StagedStrategy):
            peaks.append(parts.strategy.at_once(part, kept, again, len(inputs)))
        else:  # all forward passes come first
            peaks.append(max(sum(kept[i:]) + more for i, more in enumerate(again)))
    peaks[0] = max(peaks[0], *(feature.activations(parts, inputs, plain) for feature in parts.features))
    looking.note_held(experiment, parts.model)
    return peaks


def _check_has_gradient(experiment: Experiment, part: nn.Module, end: Tensor) -> None:
    """Raises `ConfigError` where backward has nowhere to begin: the run would end in its first step."""
    if not end.requires_grad and any(each.requires_grad for each in part.parameters()):
        raise ConfigError(
            f"model={experiment.model.name}: its outputs have no gradient, and it has parameters to train. Compute "
            "them from its parameters, without no_grad() and without detach()."
        )


def _check_fixed(fixed: FixedState) -> None:
    """Raises `ConfigError` where a forward pass exchanges what a run trains and saves: the run would end."""
    try:
        fixed.check("after a forward pass")
    except ChangedModelError as error:
        raise ConfigError(str(error)) from None


def _activations_of_few(experiment: Experiment, parts: Parts, size: int, device: torch.device) -> list[int]:
    """Returns `_activations` of a model that looks at values: a line through two small batches of the data."""
    most = max(looking.SAMPLES, 2 * accumulated_by(parts.strategy))

    def of(samples: int) -> list[int]:
        inputs, targets = looking.real_batch(parts.load()[0], samples)
        with model_takes(experiment, inputs, parts.allowed), torch.random.fork_rng(devices=[]):
            return _activations(experiment, parts, inputs, targets, device)

    if size <= most:
        return of(size)
    return [
        more + (more - less) * (size - most) // (most - most // 2)
        for less, more in zip(of(most // 2), of(most), strict=True)
    ]
