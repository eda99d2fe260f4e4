"""The objects that an experiment names."""

import copy
import inspect
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache, partial
from typing import TypeVar

import torch
from torch import nn
from torch.optim import Optimizer

from ...exchange.aggregate import Aggregator
from ...exchange.compress import Compressor
from ...strategies import LayoutError, Strategy, Sync
from ...strategies.adapt import Adapt
from ...strategies.averages import Average
from ...strategies.core.protocols import ChecksModel
from ...strategies.core.setting import Setting
from ...strategies.domains.replicas import check_process_group
from ...strategies.precision import Float32, Precision
from ...strategies.schedules import Schedule
from ...tasks.base import Data
from ...tasks.checks import check_spec, load_checked
from ...tasks.losses.base import Task
from ...tasks.partition import Partition, Partitioner, Repeated
from ...tracking.redact import know_secrets
from ..base.blame import blaming
from ..base.errors import ConfigError
from ..base.meta import Repeats
from ..base.refusals import refuse_all
from ..config import looking
from ..config.experiment import Choice, Experiment
from ..config.fits import batch_of, check_parts_take, check_takes, checked_loss, materialise, model_takes
from ..config.looking import on_values_where_needed
from ..config.targets import build, load_maker
from ..fabrics import clients, fabric_of
from ..fabrics.layout import check_samples, lay_out
from ..fabrics.stragglers import Stragglers
from ..features import (
    accumulating,
    averaging,
    calling,
    compiling,
    experts,
    given,
    iterating,
    pegasos,
    phases,
    poisoning,
    precisions,
    private,
    rates,
    robustness,
    untaken,
)
from ..features.adversary import training_of
from ..features.distilling import teacher_of
from ..features.pairs import check_pair
from ..features.parts import Given, Parts

T = TypeVar("T")


def assemble(
    experiment: Experiment, allowed: tuple[str, ...], world_size: int | None = None, instead: Adapt | None = None
) -> Parts:
    """Build and cross-check everything that needs neither data nor other workers. Raises `ConfigError` and its like.

    `instead`: of the experiment's own `adapt`. A model that looks at values may need a few samples: see looking.py.
    """
    know_secrets(experiment.model_dump())
    return on_values_where_needed(experiment, lambda: _assemble(experiment, allowed, world_size, instead))


def _assemble(experiment: Experiment, allowed: tuple[str, ...], world_size: int | None, instead: Adapt | None) -> Parts:
    data = build("data", experiment.data, Data, allowed, {})
    with blaming(f"data={experiment.data.name}", allowed):
        data.check_files()
    task = build("task", experiment.task, Task, allowed, {})
    adapt = instead or build("adapt", experiment.choice("adapt"), Adapt, allowed, {})
    average = build("average", experiment.choice("average"), Average, allowed, {})
    partitioner = build("partition", experiment.partition, Partitioner, allowed, {})
    schedule = build("schedule", experiment.schedule, Schedule, allowed, {})
    stragglers = build("stragglers", experiment.stragglers, Stragglers, allowed, {"seed": experiment.seed})

    fabric = fabric_of(experiment)

    def make_pair() -> tuple[Strategy, Sync]:
        return pair_of(given.make(experiment, allowed), settled)

    def pair_of(of_groups: Given, chosen: Choice) -> tuple[Strategy, Sync]:
        with given.naming(experiment):
            return named_pair_of(of_groups, chosen)

    def named_pair_of(of_groups: Given, chosen: Choice) -> tuple[Strategy, Sync]:
        strategy = build("strategy", chosen, Strategy, allowed, of_groups)
        precision = of_groups["precision"]
        assert isinstance(precision, Precision)
        sync = build("sync", experiment.sync, Sync, allowed, of_groups)
        check_pair(experiment.strategy.name, experiment.sync.name, strategy, sync)
        strategy.configure(Setting(precision=precision, privacy=private.of_gradients(sync)))
        own = strategy.own_sync()
        if own is None:
            return strategy, sync
        for name, value in experiment.sync.knobs.items():
            if value != inspect.signature(type(sync)).parameters[name].default:
                raise ConfigError(
                    f"sync.{name}={value}: strategy={experiment.strategy.name} owns its update, and sync=bsp's knobs "
                    "do nothing there; strategy=data_parallel takes them"
                )
        if strategy.traits.needs_processes and fabric.modelled:
            raise ConfigError(
                f"hardware=virtual: strategy={experiment.strategy.name} talks to torch's own process groups; "
                "hardware=local runs it, and strategy=data_parallel runs here"
            )
        return strategy, own

    of_groups = given.make(experiment, allowed)
    strategy, sync = pair_of(of_groups, experiment.strategy)
    taken, accumulation = accumulating.of(experiment, strategy)
    if taken != experiment.strategy:
        strategy, sync = pair_of(of_groups, taken)
    elsewhere = ["attack"] if poisoning.found(of_groups) is not None else []
    with blaming(f"data={experiment.data.name}", allowed):
        check_spec(experiment.data.name, data.spec)
    mode = sync if strategy.own_sync() is None else None
    refuse_all(
        [
            partial(untaken.check_taken, experiment, of_groups, strategy, mode, elsewhere),
            partial(experts.check, experiment, sync, partitioner, data.spec),
            partial(averaging.check, experiment, average, strategy, sync),
        ]
    )
    phases.check(experiment, adapt, strategy, sync)
    callbacks = calling.make(experiment, allowed, task.metric.name)
    calling.check_fit(callbacks, experiment, strategy, sync, partitioner, data.spec)

    def plain_model() -> nn.Module:
        # a copy of the knobs: what a constructor does to its lists is no business of the next call
        made = build("model", copy.deepcopy(experiment.model), nn.Module, allowed, {"spec": data.spec})
        materialise(made, experiment, data.spec, allowed)
        return made

    def make_model() -> nn.Module:
        return adapt.apply(plain_model())

    def check_inputs() -> None:
        """Before our own models look for the one input that they know."""
        maker = load_maker("model", experiment.model.target, nn.Module, allowed)
        if isinstance(maker, type):
            check_takes(experiment, maker.forward, data.spec, is_bound=False)

    def make_optimizer(parameters: Iterable[nn.Parameter]) -> Optimizer:
        params, chosen = list(parameters), experiment.optimizer
        if any(parameter.is_meta for parameter in params):
            # torch has neither for the meta device, and capturable=true on no CPU; all else is as without them
            absent = {"fused": None, **({"capturable": False} if device.type == "cuda" else {})}
            knobs = {key: absent.get(key, value) for key, value in chosen.knobs.items()}
            chosen = chosen.model_copy(update={"knobs": knobs})
        return build("optimizer", chosen, Optimizer, allowed, {"params": params})

    load = cache(partial(load_checked, experiment.data.name, data, task.check_targets))

    task.check_data(experiment.task.name, experiment.data.name, data.spec)
    robustness.check(experiment, data.spec)
    adversarial_training = training_of(experiment, data.spec, strategy, allowed)
    teacher = teacher_of(experiment, data, task, strategy, sync, allowed)
    check_parts_take(experiment, strategy, data.spec)
    check_inputs()
    layout = lay_out(experiment, strategy, sync, world_size)
    calling.check_norms(callbacks, experiment, strategy, sync, layout.replicas)
    check_samples(experiment, data.spec.train_size, layout)
    with given.naming(experiment):
        poisoning.check(of_groups, data.spec, task, layout.replicas)
        clients.check_clients(experiment, data.spec.train_size, sync, layout)
    aggregate = of_groups["aggregate"]
    assert isinstance(aggregate, Aggregator)
    if aggregate.copies > 1:
        with given.naming(experiment):
            aggregate.check(layout.replicas)
        partitioner = Repeated(partitioner, aggregate.copies)
    partitioner.check(data.spec, clients.dealt_to(sync, layout))
    private.check(experiment, strategy, sync, adapt, partitioner, data.spec)
    if (settled_noise := private.settled(experiment, sync, data.spec, partitioner, layout)) is not None:
        return assemble(settled_noise, allowed, world_size, instead)
    model = looking.built(experiment, make_model)
    looking.check_strategy(experiment, strategy, model, lambda: load()[0], allowed)
    check_takes(experiment, model.forward, data.spec, is_bound=True)
    iterating.check(experiment, allowed, model, task, strategy, sync)
    averaging.check_adapt(experiment, average, adapt)
    averaging.check_model(experiment, average, sync, model)
    calling.check_model(callbacks, model)
    inputs, targets = batch_of(data.spec, accumulation.sizes(experiment.batch_size)[0])
    with given.naming(experiment), model_takes(experiment, inputs, allowed), Repeats():
        loss = checked_loss(experiment, model, data.spec, task)
        knobs = _laid_out(experiment, lambda each: strategy.settled(each, inputs, targets, loss), model, plain_model)
    settled = taken.model_copy(update={"knobs": taken.knobs | knobs})
    if knobs:
        strategy, sync = pair_of(of_groups, settled)
    with given.naming(experiment):
        modules = _laid_out(experiment, strategy.split, model, plain_model)
    if layout.replicas > 1 and not strategy.traits.needs_processes:
        check_process_group(modules)
    precisions.check(experiment, strategy, sync)
    compiling.check(experiment, strategy, fabric)
    precision = Float32() if strategy.traits.rounds_weights else strategy.setting.precision
    with given.naming(experiment):
        precision.check(modules)
    device = fabric.device(experiment, layout)
    for part in modules:
        precision.attach(part, device)
    with given.naming(experiment):
        check_pair(experiment.strategy.name, experiment.sync.name, strategy, sync)  # what parts share is known now
        adapt.check(strategy, sync, modules, (experiment.strategy.name, experiment.sync.name))
    _check_trainings(experiment, adapt, given.of_kept(of_groups))
    for part in modules:
        if not any(parameter.requires_grad for parameter in part.parameters()):
            raise ConfigError(f"model={experiment.model.name}: has no parameters to train")
        optimizer = make_optimizer(part.parameters())
        rates.check(experiment, schedule, sync, optimizer)
        pegasos.check(experiment, optimizer, task, strategy, sync, modules, of_groups)
        with given.naming(experiment):
            strategy.check_optimizer(optimizer)
            sync.check_optimizer(optimizer)
    trained = [[parameter for parameter in part.parameters() if parameter.requires_grad] for part in modules]
    compress = of_groups["compress"]
    assert isinstance(compress, Compressor)
    with given.naming(experiment):
        if isinstance(sync, ChecksModel):
            sync.check_model(trained)
        compress.check_model(trained)
    compute = fabric.compute(experiment.hardware)
    if compute is not None:
        compute.precision = precision

    @cache
    def deal() -> Partition:
        train = load()[0]
        check_samples(experiment, len(train), layout)
        clients.check_clients(experiment, len(train), sync, layout)
        spec, targets = data.spec, train.targets if partitioner.looks_at_targets else None
        if targets is None:
            targets = torch.empty(len(train), *spec.target_shape, dtype=spec.target_dtype, device="meta")
        inputs = experts.inputs_of(train) if partitioner.looks_at_inputs else None
        sizes = clients.dealt_to(sync, layout), experiment.batch_size
        dealt = partitioner.deal(targets, *sizes, experiment.seed, inputs)
        return clients.shared_out(dealt, sync, layout)

    following = None
    if adapt.following is not None:
        again = assemble(experiment, allowed, world_size, adapt.following)
        following = replace(again, data=data, load=load, deal=deal, fabric=fabric, callbacks=callbacks, teacher=teacher)
    return Parts(
        data,
        task,
        load,
        partitioner,
        deal,
        schedule,
        stragglers,
        fabric,
        compute,
        strategy,
        sync,
        accumulation,
        of_groups,
        make_pair,
        layout,
        model,
        modules,
        make_model,
        adapt,
        following,
        adversarial_training,
        teacher,
        average,
        make_optimizer,
        precision,
        allowed,
        callbacks,
    )


def _check_trainings(experiment: Experiment, adapt: Adapt, of_kept: bool) -> None:
    """Raises `ConfigError` for what asks of `adapt` another number of trainings than it has.

    Args:
        of_kept: Whether messages leave out what `adapt` takes out.
    """
    if adapt.trainings > 1 and experiment.stop_at_target:
        raise ConfigError(
            f"stop_at_target=true: would end a run of adapt={experiment.choice('adapt').name} in its first training, "
            "before there is anything to look at; choose stop_at_target=false, or adapt=none"
        )
    if of_kept and not adapt.prunes:
        name = experiment.choice("adapt").name
        raise ConfigError(
            f"compress={experiment.choice('compress').name}: leaves out what adapt=pruned has taken out, and adapt="
            f"{name} {'with adapt.rounds=0 ' if name == 'pruned' else ''}takes out nothing; choose adapt=pruned "
            "with rounds, or compress=none"
        )


def _laid_out(
    experiment: Experiment, lay_out: Callable[[nn.Module], T], model: nn.Module, plain_model: Callable[[], nn.Module]
) -> T:
    """`lay_out(model)`. Raises `LayoutError`, which names `adapt` where the model can be laid out without it."""
    try:
        return lay_out(model)
    except LayoutError as error:
        adapt = experiment.choice("adapt").name
        if adapt == "none":
            raise
        plain = looking.built(experiment, plain_model)
        try:
            lay_out(plain)
        except LayoutError:
            raise error from None
        raise LayoutError(
            f"adapt={adapt}: has swapped layers of the model that strategy={experiment.strategy.name} would cut, and "
            "these stay whole; choose adapt=none, or a strategy that cuts no layers, such as data_parallel, pipeline "
            "or zero"
        ) from None
