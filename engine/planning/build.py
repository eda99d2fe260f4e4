"""The objects that an experiment names."""

import copy
import inspect
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache, partial
from typing import Any, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer

from ...batches import Samples, call, of_each
from ...conf.errors import ConfigError
from ...conf.grammar import as_override
from ...exchange.aggregate import Aggregator
from ...exchange.compress import Compressor
from ...strategies import Strategy, Sync
from ...strategies.core.copies import give_own_memory
from ...strategies.core.loss import Loss
from ...strategies.core.protocols import ChecksModel
from ...strategies.core.setting import Setting
from ...strategies.domains.replicas import check_process_group
from ...strategies.precision import Float32, Precision
from ...strategies.schedules import Schedule
from ...tasks.base import Data
from ...tasks.checks import check_spec, load_checked
from ...tasks.items import held_to_targets
from ...tasks.outputs import hand_on_logits, hand_on_loss
from ...tasks.partition import Partition, Partitioner, Repeated
from ...tasks.task_data import seen_by
from ...tracking.redact import know_secrets
from ..base.blame import blaming
from ..base.meta import Repeats
from ..base.refusals import refuse_all
from ..config import looking
from ..config.experiment import Choice, Experiment
from ..config.fits import batch_of, check_parts_take, check_takes, checked_loss, materialise, model_takes
from ..config.looking import on_values_where_needed
from ..config.metric import task_of
from ..config.targets import build, load_class, load_maker
from ..fabrics import clients, fabric_of
from ..fabrics.failures import Failures
from ..fabrics.layout import check_samples, lay_out
from ..fabrics.stragglers import Stragglers
from ..features import accumulating, compatibility, experts, injected, models, phases, private, rates
from ..features.feature import Chosen, Feature, Injected, MakeOptimizer, Parts
from ..features.order import features_of

T = TypeVar("T")


def assemble(
    experiment: Experiment,
    allowed: tuple[str, ...],
    world_size: int | None = None,
    features: tuple[Feature, ...] | None = None,
) -> Parts:
    """Builds and cross-checks everything that needs neither data nor other workers. Raises `ConfigError` and its like.

    `features`: in place of the experiment's own. A model that looks at values may need a few samples: see looking.py.
    """
    know_secrets(experiment.model_dump())

    def assembled(instead: Experiment) -> Parts:
        return on_values_where_needed(instead, lambda: _assemble(instead, allowed, world_size, features), allowed)

    def runs(instead: Experiment) -> bool:
        try:
            assembled(instead)
        except Exception:  # whatever is wrong with an alternative, the refusal of what was asked is told
            return False
        return True

    try:
        return assembled(experiment)
    except ConfigError as error:
        raise (compatibility.that_run(error, experiment, runs) if error.refusals else error) from None


def _assemble(
    experiment: Experiment, allowed: tuple[str, ...], world_size: int | None, instead: tuple[Feature, ...] | None
) -> Parts:
    chosen, strategy_choice = choose(experiment, allowed, world_size)
    features = features_of(chosen) if instead is None else instead
    _check_choices(chosen, features)
    resolved = [found for each in features if (found := each.resolved(chosen)) is not None]
    if resolved:
        return assemble(resolved[0], allowed, world_size, instead)
    plain_model = partial(_plain_model, chosen)

    def make_model() -> nn.Module:
        return models.made(features, plain_model())

    model = looking.built(experiment, make_model)
    _check_model(chosen, features, model)
    if (integers := _as_integers(chosen, model)) is not None:
        return assemble(integers, allowed, world_size, instead)
    knobs = _resolved_knobs(chosen, model, plain_model)
    strategy_choice = strategy_choice.model_copy(update={"knobs": strategy_choice.knobs | knobs})
    if knobs:
        strategy, sync = pair_of(experiment, allowed, chosen.of_groups, strategy_choice)
        chosen = replace(chosen, strategy=strategy, sync=sync)
    with injected.naming(experiment):
        modules = _laid_out(chosen, chosen.strategy.split, model, plain_model)
    parts = Parts(
        **vars(chosen),
        deal=cache(partial(_deal, chosen)),
        compute=chosen.fabric.compute(experiment.hardware),
        make_pair=lambda: pair_of(experiment, allowed, injected.make(experiment, allowed), strategy_choice),
        model=model,
        modules=modules,
        make_model=make_model,
        make_optimizer=_optimizers(chosen),
        precision=Float32() if chosen.strategy.traits.rounds_weights else chosen.strategy.setting.precision,
        features=features,
        following=None,
    )
    _check_parts(parts)
    following = phases.following(features)
    if following is None:
        return parts
    again = assemble(experiment, allowed, world_size, following)
    shared = {name: getattr(parts, name) for name in ("data", "load", "deal", "fabric")}
    return replace(parts, following=replace(again, **shared))


def choose(experiment: Experiment, allowed: tuple[str, ...], world_size: int | None) -> tuple[Chosen, Choice]:
    """Builds what the experiment names, but for its model. Returns that, and the strategy as it is built."""
    source = build("data", experiment.data, Data, allowed, {})
    task = task_of(experiment.task, allowed)
    if task.ignored is not None:
        source.ignored = task.ignored
    with blaming(f"data={experiment.data.name}", allowed):
        source.check_files()
    partitioner = _partitioner(experiment, allowed)
    load = partial(load_checked, experiment.data.name, source, task.check_targets)
    if partitioner.looks_at_targets or partitioner.owns:  # a report counts the labels that replicas own
        load = partial(held_to_targets, load)
    load = cache(load)
    seen = seen_by(task, source, load)
    data, load = (source, load) if seen is None else (seen, cache(seen.load))
    schedule = build("schedule", experiment.schedule, Schedule, allowed, {})
    stragglers = build("stragglers", experiment.stragglers, Stragglers, allowed, {"seed": experiment.seed})
    failures = build("failures", experiment.choice("failures"), Failures, allowed, {"seed": experiment.seed})
    fabric = fabric_of(experiment)
    of_groups = injected.make(experiment, allowed)
    strategy, sync = pair_of(experiment, allowed, of_groups, experiment.strategy)
    taken, accumulation = accumulating.of(experiment, strategy)
    if taken != experiment.strategy:
        strategy, sync = pair_of(experiment, allowed, of_groups, taken)
    with blaming(f"data={experiment.data.name}", allowed):
        check_spec(experiment.data.name, source.spec)
    if strategy.traits.needs_processes and fabric.modelled:
        raise ConfigError(
            f"hardware=virtual: strategy={experiment.strategy.name} talks to torch's own process groups. Choose "
            "hardware=local, or strategy=data_parallel."
        )
    layout = lay_out(experiment, strategy, sync, world_size)
    aggregate = of_groups["aggregate"]
    assert isinstance(aggregate, Aggregator)
    if aggregate.copies > 1:
        with injected.naming(experiment):
            aggregate.check(layout.replicas)
        partitioner = Repeated(partitioner, aggregate.copies)
    return (
        Chosen(
            experiment=experiment,
            allowed=allowed,
            data=data,
            task=task,
            load=load,
            partitioner=partitioner,
            schedule=schedule,
            stragglers=stragglers,
            failures=failures,
            fabric=fabric,
            of_groups=of_groups,
            strategy=strategy,
            sync=sync,
            accumulation=accumulation,
            layout=layout,
        ),
        taken,
    )


def _partitioner(experiment: Experiment, allowed: tuple[str, ...]) -> Partitioner:
    found = build("partition", experiment.partition, Partitioner, allowed, {"drop_last": experiment.drop_last})
    if experiment.drop_last and not found.drop_last:
        raise ConfigError(
            f"drop_last=true: partition={experiment.partition.name} has no last batch to leave out. Choose "
            "drop_last=false, or partition=shuffled."
        )
    return found


def pair_of(
    experiment: Experiment, allowed: tuple[str, ...], of_groups: Injected, choice: Choice
) -> tuple[Strategy, Sync]:
    """Builds a strategy, by `choice`, and its sync mode."""
    with injected.naming(experiment):
        strategy = build("strategy", choice, Strategy, allowed, of_groups)
        precision = of_groups["precision"]
        assert isinstance(precision, Precision)
        sync = build("sync", experiment.sync, Sync, allowed, of_groups)
        strategy.configure(Setting(precision=precision, privacy=private.of_gradients(sync)))
        return strategy, strategy.own_sync() or sync


def _check_choices(chosen: Chosen, features: tuple[Feature, ...]) -> None:
    """Raises `ConfigError` and its like for what does not go together, whatever the model."""
    experiment, data, strategy, sync = chosen.experiment, chosen.data, chosen.strategy, chosen.sync
    asked = [*phases.needs(features, experiment), *rates.needs(experiment, chosen.schedule)]
    refuse_all(
        [
            partial(compatibility.check_run, chosen, asked, features),
            partial(_check_owner, chosen),
            *(partial(each.check, chosen) for each in features),
            partial(phases.check, chosen, features),
        ]
    )
    chosen.task.check_data(experiment.task.name, experiment.data.name, data.source.spec)
    if chosen.task.argument and strategy.traits.one_input:
        raise ConfigError(
            f"strategy={experiment.strategy.name}: {strategy.traits.one_input}, and task={experiment.task.name} gives "
            "the model labels beside its inputs. Choose strategy=data_parallel, torch_ddp, torch_fsdp or zero, or wrap "
            "the model for task=cross_entropy (docs/your_own.md)."
        )
    check_parts_take(experiment, strategy, data.spec)
    maker = load_maker("model", experiment.model.target, nn.Module, chosen.allowed)
    if isinstance(maker, type):  # before our own models look for the one input that they know
        check_takes(experiment, maker.forward, data.spec, chosen.task.argument, is_bound=False)
    check_samples(experiment, data.spec.train_size, chosen.layout)
    with injected.naming(experiment):
        clients.check_clients(experiment, data.spec.train_size, sync, chosen.layout)
    chosen.partitioner.check(data.spec, clients.dealt_to(sync, chosen.layout))


def _check_owner(chosen: Chosen) -> None:
    """Raises `ConfigError` where the strategy owns its update and leaves knobs without a use."""
    experiment, strategy = chosen.experiment, chosen.strategy
    if strategy.own_sync() is None:
        return
    mode = load_class("sync", experiment.sync.target, Sync, chosen.allowed)
    usual = {name: each.default for name, each in inspect.signature(mode).parameters.items()}
    unused = [
        f"sync.{name}={as_override(value)}" for name, value in experiment.sync.knobs.items() if value != usual[name]
    ]
    if unused and mode.traits.plain_mean:
        raise ConfigError(
            f"{', '.join(unused)}: strategy={experiment.strategy.name} owns its update, and sync=bsp's knobs do "
            "nothing there. Choose strategy=data_parallel."
        )


def _plain_model(chosen: Chosen) -> nn.Module:
    """Builds the model as it is without features."""
    experiment, spec = chosen.experiment, chosen.data.source.spec
    # a copy of the knobs: what a constructor does to its lists is no business of the next call
    default = torch.get_default_dtype()
    try:
        made = build("model", copy.deepcopy(experiment.model), nn.Module, chosen.allowed, {"spec": spec})
    finally:  # nor is the dtype that it may have made the default
        torch.set_default_dtype(default)
    materialise(made, experiment, chosen.data.spec, chosen.allowed)
    give_own_memory(made)
    if chosen.task.argument:
        hand_on_loss(made)
    elif not chosen.strategy.traits.one_input:
        hand_on_logits(made)
    return made


def _check_model(chosen: Chosen, features: tuple[Feature, ...], model: nn.Module) -> None:
    experiment, strategy = chosen.experiment, chosen.strategy
    looking.check_strategy(experiment, strategy, model, lambda: chosen.load()[0], chosen.allowed)
    check_takes(experiment, model.forward, chosen.data.spec, chosen.task.argument, is_bound=True)
    for feature in features:
        feature.check_model(chosen, model)


def _as_integers(chosen: Chosen, model: nn.Module) -> Experiment | None:
    """Returns the experiment with inputs of integers, if the model takes these and not the same as floats."""
    knobs = chosen.data.source.as_integers
    if not knobs:
        return None
    device = next((each.device for each in model.parameters()), torch.device("cpu"))
    fields = chosen.data.spec.fields
    zeros = {key: torch.zeros(2, *each.shape, dtype=each.dtype, device=device) for key, each in fields.items()}
    inputs = chosen.data.spec.joined(zeros)
    if _passes(model, inputs) or not _passes(model, of_each(inputs, lambda each: each.long())):
        return None
    data = chosen.experiment.data
    return chosen.experiment.model_copy(
        update={"data": data.model_copy(update={"knobs": {**data.knobs, **dict(knobs)}})}
    )


def _passes(model: nn.Module, inputs: Samples) -> bool:
    training = model.training
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            call(model.eval(), inputs)
    except Exception:  # of whatever kind: it is the user's forward
        return False
    finally:
        model.train(training)
    return True


def _resolved_knobs(chosen: Chosen, model: nn.Module, plain_model: Callable[[], nn.Module]) -> dict[str, object]:
    """Returns the strategy's knobs that follow from a rehearsal of the model's passes."""
    experiment, spec = chosen.experiment, chosen.data.spec
    inputs, targets = batch_of(spec, chosen.accumulation.sizes(experiment.batch_size)[0])
    with injected.naming(experiment), model_takes(experiment, inputs, chosen.allowed), Repeats():
        loss = checked_loss(experiment, model, spec, chosen.task, chosen.allowed)
        settle = partial(_resolve, chosen.strategy, inputs, targets, loss)
        return _laid_out(chosen, settle, model, plain_model)


def _resolve(strategy: Strategy, inputs: Samples, targets: Samples, loss: Loss, model: nn.Module) -> dict[str, object]:
    return dict(strategy.resolved(model, inputs, targets, loss))


def _check_parts(parts: Parts) -> None:
    """Raises `ConfigError` and its like for what the parts of the model do not allow."""
    experiment, strategy, sync, modules = parts.experiment, parts.strategy, parts.sync, parts.modules
    if parts.layout.replicas > 1 and not strategy.traits.needs_processes:
        check_process_group(modules)
    with injected.naming(experiment):
        parts.precision.check(modules)
    device = parts.fabric.device(experiment, parts.layout)
    for part in modules:
        parts.precision.attach(part, device)
    compatibility.check_run(parts, features=parts.features)  # what parts share is known now
    for feature in parts.features:
        feature.check_parts(parts)
    trained = [[parameter for parameter in part.parameters() if parameter.requires_grad] for part in modules]
    whole = parts.make_optimizer(parts.model.parameters()) if len(modules) > 1 else None
    for part, its in zip(modules, trained, strict=True):
        if not its:
            raise ConfigError(f"model={experiment.model.name}: has no parameters to train")
        optimizer = parts.make_optimizer(part.parameters())
        if whole is not None:
            _check_settings(parts, whole, part, optimizer)
        rates.check(experiment, parts.schedule, optimizer)
        with injected.naming(experiment):
            strategy.check_optimizer(optimizer)
            sync.check_optimizer(optimizer)
    if whole is not None:
        with injected.naming(experiment):
            strategy.check_optimizer(whole)
    compress = parts.of_groups["compress"]
    assert isinstance(compress, Compressor)
    with injected.naming(experiment):
        if isinstance(sync, ChecksModel):
            sync.check_model(trained)
        compress.check_model(trained)
    if parts.compute is not None:
        parts.compute.precision, parts.compute.allowed = parts.precision, parts.allowed


def _check_settings(parts: Parts, whole: Optimizer, part: nn.Module, optimizer: Optimizer) -> None:
    """Raises `ConfigError` where an optimizer that is made with the parameters of a part has other settings for one
    than `whole`, which is made with all: a class may give them rates by their places, or by the number of them.
    """
    expected = _settings(whole, parts.model)
    for name, its in _settings(optimizer, part).items():
        for key, value in its.items():
            if (before := expected.get(name, its).get(key, value)) != value:
                raise ConfigError(
                    f"strategy={parts.experiment.strategy.name}: a worker makes {type(optimizer).__name__} with its "
                    f"part of the parameters, and then {key} of {name} is {value}, where it is {before} with all of "
                    "them. Choose strategy=data_parallel, or let the optimizer go by a parameter's own shape."
                )


def _settings(optimizer: Optimizer, module: nn.Module) -> dict[str, dict[str, Any]]:
    """Returns the plain settings of each parameter, by its names."""
    names: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return {
        name: {key: value for key, value in group.items() if isinstance(value, bool | int | float | str)}
        for group in optimizer.param_groups
        for parameter in group["params"]
        for name in names.get(id(parameter), ())
    }


def _optimizers(chosen: Chosen) -> MakeOptimizer:
    """Returns what makes the optimizer of some parameters."""
    device = chosen.fabric.device(chosen.experiment, chosen.layout)

    def make(parameters: Iterable[nn.Parameter]) -> Optimizer:
        params, choice = list(parameters), chosen.experiment.optimizer
        if any(parameter.is_meta for parameter in params):
            # torch has neither for the meta device, and capturable=true on no CPU; all else is as without them
            absent = {"fused": None, **({"capturable": False} if device.type == "cuda" else {})}
            knobs = {key: absent.get(key, value) for key, value in choice.knobs.items()}
            if choice.knobs.get("fused") and (device.type == "cpu" or choice.target.startswith("torch.optim.")):
                on_cpu = choice.model_copy(update={"knobs": {**knobs, "fused": choice.knobs["fused"]}})
                made(on_cpu, [nn.Parameter(torch.empty(1, 1, device="cpu"))])  # says which knobs go together
            choice = choice.model_copy(update={"knobs": knobs})
        return made(choice, params)

    def made(choice: Choice, params: list[nn.Parameter]) -> Optimizer:
        return build("optimizer", choice, Optimizer, chosen.allowed, {"params": params})

    return make


def _deal(chosen: Chosen) -> Partition:
    """Deals the training samples to replicas."""
    train, data, layout, partitioner = chosen.load()[0], chosen.data, chosen.layout, chosen.partitioner
    check_samples(chosen.experiment, len(train), layout)
    clients.check_clients(chosen.experiment, len(train), chosen.sync, layout)
    spec, targets = data.spec, train.targets if partitioner.looks_at_targets else None
    if targets is None:
        targets = torch.empty(len(train), *spec.target_shape, dtype=spec.target_dtype, device="meta")
    inputs = experts.inputs_of(train) if partitioner.looks_at_inputs else None
    sizes = clients.dealt_to(chosen.sync, layout), chosen.experiment.batch_size
    dealt = partitioner.deal(targets, *sizes, chosen.experiment.seed, inputs)
    return clients.shared_out(dealt, chosen.sync, layout)


def _laid_out(
    chosen: Chosen, lay_out: Callable[[nn.Module], T], model: nn.Module, plain_model: Callable[[], nn.Module]
) -> T:
    """Returns `lay_out(model)`. Raises `ConfigError`, which names `adapt` where the model goes without it."""
    try:
        return lay_out(model)
    except ConfigError as error:
        experiment = chosen.experiment
        adapt = experiment.choice("adapt").name
        if adapt == "none" or chosen.strategy.parts == 1:  # which cuts nothing
            raise
        plain = looking.built(experiment, plain_model)
        try:
            lay_out(plain)
        except ConfigError:
            raise error from None
        raise ConfigError(
            f"adapt={adapt}: has swapped layers of the model that strategy={experiment.strategy.name} would cut, and "
            "these stay whole. Choose adapt=none, or a strategy that cuts no layers, such as data_parallel, pipeline "
            "or zero."
        ) from None
