"""All ways, one after another, each against serial training on the same samples."""

import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, get_swa_multi_avg_fn

from ..batches import Samples
from ..conf.errors import ConfigError
from ..conf.grammar import listed
from ..engine.api.preparing import Prepared, prepare
from ..engine.base.errors import InterruptedRunError, MachineError
from ..engine.base.failures import exit_code_of, named
from ..engine.base.own_modules import find_modules
from ..engine.base.started import was_started
from ..engine.config.choice_files import choices_of
from ..engine.config.compose import compose
from ..engine.config.described import composed, is_composed
from ..engine.config.experiment import Experiment
from ..engine.config.fits import weighted
from ..engine.config.targets import build
from ..engine.features import averaging, injected, models
from ..engine.features.feature import Parts
from ..engine.features.order import FEATURES
from ..engine.features.rates import rate_of
from ..engine.features.weights import put_into
from ..engine.planning.build import assemble
from ..engine.planning.planned import Plan
from ..engine.training.batches import of_mean_one, seed_for
from ..exchange.clip import ByNorm, ByValue, Clip, Unclipped
from ..strategies import Strategy
from ..strategies.averages import EMA, SWA
from ..strategies.core.errors import MissingToolError
from ..tasks.base import Readable
from ..tasks.running_statistics import batch_norms
from ..tracking.run_directory import is_run
from .carry import carry_out
from .judge import VerificationRow, judge, not_judged
from .reference import Reference, ReferenceTraining, refer
from .ways import PLAIN, SERIAL_SYNC, VerifiedLayout, check_found, check_keys, check_only, ways

REFUSALS = (ConfigError, MachineError, MissingToolError)
CANNOT = 2, 3  # exit statuses of what is not laid out: bad configuration, and what this machine lacks
DIVERGED = 6
SECONDS_ON_PROCESSES, SECONDS_VIRTUAL = 2.0, 0.3  # a configuration of the MLP or the CNN, for the estimate at the start


@dataclass(frozen=True)
class Verification:
    """`experiment`: as one worker trains it. `reference`: None where nothing could be laid out."""

    experiment: Experiment
    steps: int
    rows: list[VerificationRow]
    reference: Reference | None
    stated: float | None  # the tolerance, where it was not derived
    seconds: float

    @property
    def passed(self) -> bool:
        """Nothing failed, something passed, and nothing was left out for want of time."""
        words = {row.word for row in self.rows}
        return "pass" in words and words.isdisjoint({"fail", "not run"})


@dataclass
class _Verifier:
    overrides: list[str]
    config_dir: Path | None
    allowed: list[str]
    steps: int
    most: int
    tolerance: float | None
    root: Path
    batch_size: int
    seen: set[str] = field(default_factory=set)  # experiments
    references: dict[Any, Reference] = field(default_factory=dict)

    def row(self, way: VerifiedLayout) -> VerificationRow | None:
        """None: it is another one again, or takes more workers than there may be."""
        try:
            laid_out = self._laid_out(way)
        except REFUSALS as error:
            return VerificationRow(way.overrides, None, None, "refused", str(error))
        if laid_out is None:
            return None
        prepared, plan, parts = laid_out
        reference = self._reference(prepared.experiment, parts)
        each = prepared.experiment.batch_size
        try:
            seen = carry_out(prepared, plan, parts, self.root, f"way-{len(self.seen)}")
        except InterruptedRunError:
            raise
        except Exception as error:  # whatever a class of the user's raises
            code = exit_code_of(error)
            if code in CANNOT:
                return VerificationRow(way.overrides, None, None, "refused", str(error))
            why = not_judged(parts, reference, each)
            word = "by design" if why and code == DIVERGED else "fail"
            said = str(error) if code else named(error)
            return VerificationRow(
                way.overrides, plan.layout.workers, way.replicas, word, f"{why}; {said}" if why else said
            )
        return judge(way.overrides, parts, each, seen, reference)

    def _laid_out(self, way: VerifiedLayout) -> tuple[Prepared, Plan, Parts] | None:
        if self.batch_size % way.replicas:
            raise ConfigError(f"batch_size={self.batch_size}: {way.replicas} replicas cannot have equal shares of it")
        texts = [
            *self.overrides,
            *way.overrides,
            f"batch_size={self.batch_size // way.replicas}",
            f"steps={self.steps}",
            "tracking=none",
            "checkpoint.every=0",
        ]
        experiment = compose(texts, self.config_dir)
        allowed = tuple(self.allowed)
        strategy = build("strategy", experiment.strategy, Strategy, allowed, injected.make(experiment, allowed))
        workers = strategy.parts * way.replicas
        if way.replicas > 1 and (workers > self.most or way.replicas > (strategy.traits.max_replicas or way.replicas)):
            return None
        if workers > self.most:
            raise ConfigError(f"takes {workers} workers, and there may be {self.most}: --workers {workers}")
        prepared = prepare([*texts, f"hardware.workers={workers}"], self.config_dir, self.allowed)
        if (same := prepared.experiment.model_dump_json(exclude={"name"})) in self.seen:
            return None
        self.seen.add(same)
        plan = prepared.plan()
        return prepared, plan, assemble(prepared.experiment, allowed)

    def _reference(self, experiment: Experiment, parts: Parts) -> Reference:
        """Returns serial training on the samples that these replicas take together."""
        partition, replicas = parts.deal(), range(parts.layout.replicas)
        taken = [torch.cat([partition.indices(step, j) for j in replicas]) for step in range(self.steps)]
        precision = parts.strategy.setting.precision
        rounds = parts.strategy.traits.rounds_weights
        rate = rate_of(experiment, parts, partition.steps_per_epoch, len(parts.load()[0]))
        factors = tuple(rate.factor(step) for step in range(self.steps))
        key = precision.name, rounds, factors, tuple(tuple(step.tolist()) for step in taken)
        if key not in self.references:
            device, average = parts.fabric.device(experiment, parts.layout), averaging.of(parts)
            split, _ = parts.load()
            self.references[key] = refer(
                ReferenceTraining(
                    parts,
                    lambda: _begin(experiment, parts).to(device),
                    [
                        _batch(split, numbers, experiment.seed * 1_000_003 + step, device)
                        for step, numbers in enumerate(taken)
                    ],
                    lambda step: seed_for(experiment.seed, step, 0, device),
                    _clipping(experiment, parts.allowed),
                    factors,
                    _averaging(experiment, parts),
                    lambda done: average is not None and average.counts(done, partition.steps_per_epoch),
                ),
                self.tolerance,
                precision,
                rounds,
            )
        return self.references[key]


def _batch(split: Readable, numbers: Tensor, drawn: int, device: torch.device) -> tuple[Samples, Samples]:
    """Returns the batch as the engine takes it from all replicas."""
    taken = split.take(numbers, drawn)
    weights = None if taken.weights is None else of_mean_one(taken.weights, taken.weights)
    return taken.inputs.to(device), weighted(taken.targets, weights).to(device)


def _clipping(experiment: Experiment, allowed: tuple[str, ...]) -> Callable[[nn.Module], object]:
    """torch's own. Raises `ConfigError` for a rule of the user's."""
    chosen = experiment.choice("clip")
    match build("clip", chosen, Clip, allowed, {}):
        case Unclipped():
            return lambda model: None
        case ByNorm(max=most):
            return lambda model: clip_grad_norm_(model.parameters(), most)
        case ByValue(max=most):
            return lambda model: clip_grad_value_(model.parameters(), most)
        case _:
            pass
    raise ConfigError(f"clip={chosen.name}: torch has no such rule to verify it with. Choose clip=none, norm or value.")


def _averaging(experiment: Experiment, parts: Parts) -> Callable[[nn.Module], AveragedModel] | None:
    """torch's own. Raises `ConfigError` for a rule of the user's, and for what is made anew for an evaluation."""
    chosen, average = f"average={experiment.choice('average').name}", averaging.of(parts)
    if average is None:
        return None
    if average.renews and batch_norms(parts.model):
        raise ConfigError(
            f"{chosen}: evaluates running statistics that are made anew by a pass over the training data, which no "
            "step of serial training has. Choose average=ema, average=none, or a model with other norms."
        )
    match average:
        case EMA(decay=decay, warmup=False):
            return lambda model: AveragedModel(
                model, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=average.buffers
            )
        case EMA(decay=most):

            def warmed_up(average: Tensor, weights: Tensor, count: Tensor | int) -> Tensor:
                decay = min(most, (1 + int(count)) / (10 + int(count)))
                return decay * average + (1 - decay) * weights

            return lambda model: AveragedModel(model, avg_fn=warmed_up, use_buffers=average.buffers)
        case SWA():
            return lambda model: AveragedModel(model, multi_avg_fn=get_swa_multi_avg_fn())
        case _:
            pass
    raise ConfigError(f"{chosen}: torch has no such average to verify it with. Choose average=none, ema or swa.")


def _begin(experiment: Experiment, parts: Parts) -> nn.Module:
    """The whole model, with the weights that training begins with."""
    torch.manual_seed(experiment.seed)
    model = parts.make_model()
    if experiment.weights is not None:
        put_into(model, experiment.weights, Path(), partial(models.added, parts))
    else:
        for feature in parts.features:
            feature.initialise(parts, model)
    return model


def verify(
    overrides: Sequence[str] = (),
    *,
    config_dir: Path | str | None = None,
    allow_modules: Sequence[str] = (),
    steps: int = 3,
    workers: int = 4,
    only: Sequence[str] = (),
    every: bool = False,
    tolerance: float | None = None,
    time_limit: float | None = None,
    say: Callable[[str], object] = lambda _: None,
) -> Verification:
    """Train one model for `steps` steps in every way that `workers` workers allow, as `paceline verify` does.

    `overrides`: of the model, the data, the optimizer, the hardware; `batch_size` is that of serial training. `only`:
    see `ways.check_only`. `time_limit`: seconds after which nothing more is begun. `say`: is told how each way went.
    Raises `ConfigError` and other errors with an `exit_code`.
    """
    if was_started():
        raise ConfigError("verify: starts its workers itself; start it without torchrun")
    directory = Path(config_dir) if config_dir else None
    overrides, only, allow_modules = listed(overrides), listed(only), listed(allow_modules)
    find_modules(allow_modules)
    check_keys(overrides)
    strategies, modes = choices_of("strategy", directory), choices_of("sync", directory)
    named = (word.removeprefix("sync=") for word in only)
    modes += [composed("sync", name, directory) for name in named if is_composed("sync", name)]
    check_only(only, strategies, modes)
    began = time.monotonic()
    serial = compose([*overrides, f"strategy={PLAIN}", f"sync={SERIAL_SYNC}"], directory)
    if serial.weights is not None and Path(serial.weights).is_dir() and not is_run(Path(serial.weights)):
        raise ConfigError(f"weights={serial.weights}: must be a file here, such as runs/NAME/model.safetensors")
    for feature in FEATURES:
        if why := feature.unverified(serial, tuple(allow_modules)):
            raise ConfigError(why)
    if serial.choice("average").name != "none":  # whatever the way, there must be weights to average in so few steps
        alone = [f"strategy={PLAIN}", f"sync={SERIAL_SYNC}", "hardware.workers=1", f"steps={steps}", "tracking=none"]
        prepare([*overrides, *alone], config_dir, allow_modules).plan()
    todo = list(ways(strategies, modes, tuple(allow_modules), workers, [*only], every))
    if serial.choice("precision").name != "fp32":  # all are in that one
        todo = [way for way in todo if not any(text.startswith("precision=") for text in way.overrides)]
    check_found(only, todo)
    say(_announced(len(todo), serial.hardware.fabric == "virtual"))
    with tempfile.TemporaryDirectory(prefix="paceline-verify-") as root:
        verifier = _Verifier(
            [*overrides], directory, [*allow_modules], steps, workers, tolerance, Path(root), serial.batch_size
        )
        rows = _once(_rows(verifier, todo, began, time_limit, say))
    reference = next(iter(verifier.references.values()), None)
    return Verification(serial, steps, rows, reference, tolerance, time.monotonic() - began)


def _announced(count: int, is_virtual: bool) -> str:
    """Says how many configurations there are, and about how long they take with a small model on two cores."""
    minutes = count * (SECONDS_VIRTUAL if is_virtual else SECONDS_ON_PROCESSES) / 60
    about = "under a minute" if minutes < 1 else f"about {math.ceil(minutes)} min"
    faster = "" if is_virtual or minutes < 1 else "; hardware=virtual is faster, and --only CHOICE tries less"
    return f"{count} configurations: {about} with a small model on two cores{faster}"


def _once(rows: Iterator[VerificationRow]) -> list[VerificationRow]:
    """Returns the rows with a refusal once for a layout, whatever its replicas, and not at all if some number of them
    is accepted.
    """
    found = list(rows)
    goes = {row.overrides for row in found if row.word != "refused"}
    left: dict[tuple[Any, ...], VerificationRow] = {}
    for row in found:
        if row.word != "refused" or row.overrides not in goes:
            key = row.overrides if row.word == "refused" else (row.overrides, row.replicas)
            left.setdefault(key, row)
    return list(left.values())


def _rows(
    verifier: _Verifier, todo: list[VerifiedLayout], began: float, limit: float | None, say: Callable[[str], object]
) -> Iterator[VerificationRow]:
    for i, way in enumerate(todo):
        if limit is not None and time.monotonic() - began > limit:
            yield VerificationRow(
                way.overrides, None, way.replicas, "not run", f"the time limit of {limit:g} s was reached"
            )
            continue
        row = verifier.row(way)
        if row is not None:
            at_once = "" if row.replicas is None else f", replicas: {row.replicas}"
            say(f"[{i + 1}/{len(todo)}] {' '.join(row.overrides)}{at_once}: {row.word}")
            yield row
