"""Checks of a strategy with a sync mode: small trainings, compared with serial training and with the traits."""

import copy
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..conf.errors import ConfigError
from ..strategies import Strategy, Sync
from ..strategies.core.cost import World
from ..strategies.core.protocols import cost_along
from ..strategies.core.state import to_bytes
from ..strategies.core.trial import Trial
from ..strategies.data_parallel import DataParallel
from ..strategies.sync.bsp import BSP
from .checks import InvariantCheck, Suite, differs, known_terms, name_of, require, require_equal, run_all
from .fabrics import FABRICS
from .training import (
    IMAGE,
    ROUNDING,
    TrainingCase,
    TrainingPlan,
    Weights,
    distance,
    identical,
    images64,
    serial,
    train,
    workers_of,
)

OnFabric = Literal["virtual", "process"]
PAIRS: Suite["TrainedPair"] = Suite()
SIZES = ([3, 3, 2], [4, 2, 3], [1, 0, 2], [2, 2, 2])  # [step][replica] samples; one replica has none in a step
LONG = 11  # steps: no multiple of what happens every few steps
LONGEST_PERIOD = 16  # steps; a mode with a longer one is saved and resumed as if it had this one


@dataclass(frozen=True)
class TrainedPair:
    """A strategy and a sync mode that are to be tried together; both unused.

    Args:
        strategy: lays out a replica.
        sync: the sync mode; ignored by a strategy that owns its update.
        alone: the same mode with the knobs that one replica needs; None for `sync` itself.
        fabric: of the trainings.
        replicas: of the trainings, two or three.
        case: model, loss, optimizer and shape of a sample; its sizes are not used.
    """

    strategy: Strategy
    sync: Sync
    alone: Sync | None = None
    fabric: OnFabric = "virtual"
    replicas: int = 3
    case: TrainingCase = field(default_factory=lambda: TrainingCase([]))

    @property
    def mode(self) -> Sync:
        return self.strategy.own_sync() or self.sync

    @property
    def is_replicated(self) -> bool:
        return self.strategy.traits.max_replicas != 1

    @property
    def meets(self) -> bool:
        """Returns whether its replicas step together."""
        return self.is_replicated and self.mode.traits.synchronous

    @property
    def each_saves(self) -> bool:
        """Returns whether each replica saves its own state."""
        traits = self.mode.traits
        return self.meets and not (traits.weights_agree and traits.state_agrees)

    def sizes(self, steps: Sequence[Sequence[int]] = SIZES) -> list[list[int]]:
        return [list(each[: self.replicas]) for each in steps]

    def plan(self, sizes: list[list[int]], **more: Any) -> TrainingPlan:
        mode = self.sync if len(sizes[0]) > 1 or self.alone is None else self.alone
        return TrainingPlan(self.strategy, mode, replace(self.case, sizes=sizes), **more)

    def train(self, plan: TrainingPlan) -> list[dict[str, Any]]:
        """Trains on the fabric. Returns the results of the workers, then of the servers."""
        if self.fabric == "process":
            check_importable(plan)
        return FABRICS[self.fabric](workers_of(plan), train, plan)

    def whole(self, results: Sequence[dict[str, Any]]) -> Weights:
        return results[self.strategy.loss_part]["whole"]


def check_importable(plan: TrainingPlan) -> None:
    """Raises `ConfigError` if a worker process cannot be sent the plan."""
    try:
        pickle.dumps(plan)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"fabric=process: a worker process cannot import it ({error}). Choose a class at the top of a module, or "
            "fabric=virtual."
        ) from None


def largest_difference(one: Weights, other: Weights) -> str:
    """Returns in words where two sets of weights differ most."""
    if one.keys() != other.keys():
        return f"other parameters: {sorted(one.keys() ^ other.keys())}"
    far = {name: float((one[name] - other[name]).abs().max()) for name in one}
    name = max(far, key=lambda name: far[name])
    return f"{name} differs by {far[name]:.3g}"


def require_near(one: Weights, other: Weights, rounding: float, expected: str) -> None:
    require(distance(one, other) < rounding, f"{expected}, to {rounding:.0e}", largest_difference(one, other))


@PAIRS.invariant("strategies/core/terms.py")
def terms_are_known(pair: TrainedPair) -> None:
    """`lacks` has terms of the group itself, and `needs` terms of other groups, all of the vocabulary."""
    known_terms(pair.sync, "sync")
    known_terms(pair.strategy, "strategy")


@PAIRS.invariant("strategies/core/terms.py")
def the_two_go_together(pair: TrainedPair) -> None:
    """Neither needs what the other lacks. Otherwise give the checks another strategy or sync mode."""
    for one, group, other in ((pair.sync, "strategy", pair.strategy), (pair.strategy, "sync", pair.sync)):
        for need in one.needs:
            named = f"{type(other).__name__} with the term {need.term.name!r}, as {type(one).__name__} {need.because}"
            if need.term.group == group:
                require(need.term not in other.lacks, named, f"{type(other).__name__} lacks it")


@PAIRS.invariant("Strategy.split")
def parts_hold_the_model(pair: TrainedPair) -> None:
    """`split` gives one module for each worker of a replica, which together have the parameters of the model."""
    model = replace(pair.case, sizes=[[1]]).start()
    expected = {name for name, _ in model.named_parameters()}
    parts = pair.strategy.split(model.to("meta"))
    require_equal(len(parts), pair.strategy.parts, "modules")
    require_equal({name for part in parts for name, _ in part.named_parameters()}, expected, "parameters")


@PAIRS.invariant(
    "SyncTraits.serial_alone, StrategyTraits.bitwise",
    lambda pair: pair.mode.traits.serial_alone and pair.strategy.traits.bitwise,
)
def one_replica_is_serial_training(pair: TrainedPair) -> None:
    """One replica trains as one worker does, bit for bit, over the same micro-batches."""
    plan = pair.plan([[5], [3], [4], [2], [5]])
    results = pair.train(plan)
    micro_sizes = getattr(pair.strategy, "micro_sizes", lambda n: [n])  # of a pipeline
    alone = serial(plan.case, lambda n: len(micro_sizes(n)))
    whole = pair.whole(results)
    require(identical(whole, alone), "the weights of serial training, bit for bit", largest_difference(whole, alone))


@PAIRS.invariant(
    "SyncTraits.weights_agree; Li et al. 2020 (arXiv 2006.15704), Algorithm 1",
    lambda pair: pair.is_replicated and pair.mode.traits.weights_agree,
)
def replicas_agree_after_every_update(pair: TrainedPair) -> None:
    """Replicas that start with different weights are bit-identical after each update."""
    sizes = pair.sizes()
    results = pair.train(pair.plan(sizes, seeds=[0, 1, 2]))
    parts = pair.strategy.parts
    for worker in range(parts, parts * pair.replicas):
        one, other = results[worker % parts]["trajectory"], results[worker]["trajectory"]
        require_equal((len(one), len(other)), (len(sizes), len(sizes)), "updates")
        for step, (a, b) in enumerate(zip(one, other, strict=True)):
            where = f"after step {step}, replica {worker // parts}: {largest_difference(b, a)}"
            require(identical(a, b), "the weights of replica 0, bit for bit", where)


@PAIRS.invariant(
    "SyncTraits.exact; g = sum_j (n_j / n) g_j (Li et al. 2020, arXiv 2006.15704)",
    lambda pair: pair.is_replicated and pair.mode.traits.weights_agree and pair.mode.traits.exact,
)
def replicas_train_as_one_worker(pair: TrainedPair) -> None:
    """K replicas train as one worker with all their samples. Uneven batches count by their samples."""
    plan = pair.plan(pair.sizes())
    whole, alone = pair.whole(pair.train(plan)), serial(plan.case)
    require_near(whole, alone, pair.strategy.trial.rounding, "the weights of serial training on all samples")


@PAIRS.invariant("every mean and every mixing matrix has weights that add up to 1", lambda pair: pair.is_replicated)
def without_a_gradient_weights_stay(pair: TrainedPair) -> None:
    """Replicas that start alike keep their weights while each gradient is 0."""
    case = replace(pair.case, loss=no_loss, optimizer=without_decay(pair.case.optimizer))
    plan = replace(pair, case=case).plan([[2] * pair.replicas] * 5)
    results = pair.train(plan)
    require_near(pair.whole(results), serial(replace(case, sizes=[])), ROUNDING, "the weights of the start")


def no_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return 0 * F.cross_entropy(outputs, targets)


class without_decay:
    """Builds the same optimizer without weight decay."""

    def __init__(self, make: Callable[..., torch.optim.Optimizer]) -> None:
        self._make = make

    def __call__(self, parameters: Any) -> torch.optim.Optimizer:
        made = self._make(parameters)
        for group in made.param_groups:
            group["weight_decay"] = 0.0
        return made


def averages_own(pair: TrainedPair) -> bool:
    """Returns whether it declares that an average of each replica's own weights is one of the consensus."""
    traits = pair.mode.traits
    return pair.meets and traits.averages == "own" and not traits.unaveraged


@PAIRS.invariant('SyncTraits.averages="own"', averages_own)
def the_consensus_is_the_mean_of_the_weights(pair: TrainedPair) -> None:
    """The weights to evaluate are the plain mean over the replicas' own weights."""
    parts = pair.strategy.parts
    results = pair.train(pair.plan([[3] * pair.replicas] * 5, looks=True))
    for part in range(parts):
        own = [results[part + parts * k]["before finish"] for k in range(pair.replicas)]
        mean = {name: torch.stack([each[name] for each in own]).mean(0) for name in own[0]}
        require_near(results[part]["consensus"], mean, ROUNDING, "the mean of the weights of all replicas")


@PAIRS.invariant("Sync.transfers, Strategy.cost_along", lambda pair: pair.is_replicated)
def measured_bytes_are_the_stated_bytes(pair: TrainedPair) -> None:
    """The bytes that leave all workers and servers in a run are the bytes that the class states."""
    sizes = [[4] * pair.replicas] * LONG
    plan = pair.plan(sizes)
    strategy, mode, parts = pair.strategy, pair.mode, pair.strategy.parts
    world = World(pair.replicas, steps_per_epoch=1, hosts=tuple(range(pair.replicas)), steps=LONG)
    strategy, mode = copy.deepcopy((strategy, mode))
    strategy.configure(replace(strategy.setting, worlds=[world] * parts))
    modules = strategy.split(plan.case.start().to("meta"))
    inputs, _ = plan.case.step(0)
    along = cost_along(strategy, modules, inputs[:4].to("meta")).values()
    stated = 0.0
    for part, module in enumerate(modules):
        cost = mode.cost(list(module.parameters()), world)
        if cost.varies:
            return
        within = sum(sum(by_part[part].values()) for by_part in along)
        stated += pair.replicas * (within + sum(cost.worker.values())) + mode.servers * sum(cost.server.values())
    results = pair.train(plan)
    measured = sum(result["sent"] for result in results)
    by_primitive = {key: sum(result["ledger"].get(key, 0) for result in results) for key in results[0]["ledger"]}
    told = f"{round(LONG * stated):,} bytes in {LONG} steps of {pair.replicas} replicas"
    require(round(measured) == round(LONG * stated), told, f"{round(measured):,} bytes: {by_primitive}")


@PAIRS.invariant("Sync.state_dict and Sync.load_state_dict; docs/decisions/0004-resume-bit-for-bit.md")
def a_resumed_run_equals_the_straight_one(pair: TrainedPair) -> None:
    """A run that new workers resume ends with the weights of a run without a stop, bit for bit.

    It is saved inside the second round of `Sync.period` steps, and ends one step after the third. With a period of 1 it
    is saved after step 5 and ends at step 8. The state goes through bytes. Where replicas differ, each saves its own.
    """
    replicas = pair.replicas if pair.meets else 1
    at, last = resumed_at(pair.mode.period)
    sizes = [[3] * replicas] * last
    halfway = pair.train(pair.plan(sizes[:at]))[: pair.strategy.parts * (replicas if pair.each_saves else 1)]
    weights = "before finish" if pair.each_saves else "weights"
    saved = [to_bytes({"weights": result[weights], "sync": result["state"]}) for result in halfway]
    straight, resumed = pair.train(pair.plan(sizes)), pair.train(pair.plan(sizes, state=saved, start=at))
    for worker, (one, other) in enumerate(zip(straight, resumed, strict=True)):
        where = f"worker {worker}, {last} steps, resumed after {at}: "
        where += largest_difference(one["weights"], other["weights"])
        require(identical(one["weights"], other["weights"]), "the weights of the straight run, bit for bit", where)
    if identical(straight[0]["weights"], halfway[0]["weights"]):
        differs(f"weights that change after step {at}", f"the same weights after steps {at} and {last}")


def resumed_at(period: int) -> tuple[int, int]:
    """Returns the step after which a run is saved, and its last step.

    The exchange before the save leaves state that is not 0. The exchanges after it show a lost step counter. The last
    step has no exchange, which `finish` would repeat.
    """
    period = min(period, LONGEST_PERIOD)
    if period == 1:
        return 5, 8  # topologies repeat after 2 or 3 exchanges: a counter that begins again at 0 has other neighbours
    return period + (period + 1) // 2, 3 * period + 1


@PAIRS.invariant(
    "docs/decisions/0008-virtual-cluster.md",
    lambda pair: pair.is_replicated and pair.fabric == "virtual" and not pair.strategy.traits.needs_processes,
)
def a_virtual_run_repeats(pair: TrainedPair) -> None:
    """Two virtual runs with the same delays have the same weights, clocks and bytes. The only clock is `comm.now`."""
    seconds = [0.01, 0.013, 0.007][: pair.replicas]
    plan = pair.plan([[3] * pair.replicas] * 5, seconds=seconds)
    for worker, (one, other) in enumerate(zip(pair.train(plan), pair.train(plan), strict=True)):
        where = f"worker {worker}: {largest_difference(one['weights'], other['weights'])}"
        require(identical(one["weights"], other["weights"]), "the same weights in both runs", where)
        for key in ("clock", "ledger"):
            if key in one:
                require_equal(other[key], one[key], f"{key} of worker {worker}")


# -- for a class of one's own


def usual_case(trial: Trial) -> TrainingCase:
    """Returns the case that a class is tried with, if its user says nothing."""
    return TrainingCase([], images64, shape=IMAGE) if trial.model else TrainingCase([])


def sync_checks(
    make: Callable[..., Sync],
    fabric: OnFabric = "virtual",
    strategy: Strategy | None = None,
    case: TrainingCase | None = None,
) -> list[InvariantCheck]:
    """Returns the checks of a sync mode, for `pytest.mark.parametrize`.

    Args:
        make: the class, or a function that builds the mode. It is called with the knobs of `Sync.trial.alone`, too.
        fabric: "virtual", or "process" for real processes.
        strategy: None for data_parallel.
        case: model, optimizer, loss and shape of a sample; None for a small network with SGD.
    """
    made = make()
    alone = make(**made.trial.alone) if made.trial.alone else None
    laid = strategy or DataParallel()
    pair = TrainedPair(laid, made, alone, fabric, case=case or usual_case(laid.trial))
    return PAIRS.checks(pair, name_of(make, made))


def strategy_checks(
    make: Callable[[], Strategy],
    fabric: OnFabric = "virtual",
    sync: Sync | None = None,
    case: TrainingCase | None = None,
) -> list[InvariantCheck]:
    """Returns the checks of a strategy, for `pytest.mark.parametrize`.

    Args:
        make: the class, or a function that builds the strategy.
        fabric: "virtual", or "process" for real processes.
        sync: None for bsp.
        case: model, optimizer, loss and shape of a sample; None for a small network with SGD.
    """
    made = make()
    pair = TrainedPair(made, sync or BSP(), None, fabric, case=case or usual_case(made.trial))
    return PAIRS.checks(pair, name_of(make, made))


def check_sync(make: Callable[..., Sync], **how: Any) -> list[str]:
    """Runs `sync_checks` and returns the names of the invariants. Raises one `InvariantError` of all failures."""
    return run_all(sync_checks(make, **how))


def check_strategy(make: Callable[[], Strategy], **how: Any) -> list[str]:
    """Runs `strategy_checks` and returns the names of the invariants. Raises one `InvariantError` of all failures."""
    return run_all(strategy_checks(make, **how))
