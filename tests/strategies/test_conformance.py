"""What holds of every strategy with every sync mode, through whole runs on real processes and on the virtual cluster.

Choices are found in conf/, and what holds of each is what its class says of itself (strategies/core/): whoever adds
one is held to this. Every sync mode is tried under data_parallel, every strategy with bsp, and each kind of mode with a
strategy of several parts; all other pairs are marked slow.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
import yaml
from choices import CHOICES, CHOSEN, CONF, STRATEGIES, SYNCS
from declared import unmet_terms
from oracles import IMAGE, Case, Weights, distance, identical, images64, mlp, mlp64, momentum

import paceline.strategies
from paceline.batches import lone
from paceline.conf.errors import ConfigError
from paceline.engine import prepare, run
from paceline.engine.config.compose import compose
from paceline.engine.config.experiment import Experiment, shipped
from paceline.engine.features.feature import Parts
from paceline.engine.planning.build import assemble
from paceline.engine.planning.make_plan import make_plan
from paceline.strategies import Sync
from paceline.tasks.data.digits import Digits
from paceline.tasks.models.mlp import MLP
from paceline.tasks.partition import ShuffledPartition
from paceline.testing.checks import Invariant
from paceline.testing.pairs import (
    PAIRS,
    OnFabric,
    TrainedPair,
    a_resumed_run_equals_the_straight_one,
    replicas_agree_after_every_update,
    replicas_train_as_one_worker,
)

HIDDEN, BATCH, LR, MOMENTUM = [16, 12], 8, 0.05, 0.9
SETTINGS = [
    f"model.hidden={HIDDEN}",
    "data=digits",
    f"batch_size={BATCH}",
    "epochs=10",
    "tracking=none",
    "checkpoint.every=0",
]
sgd = partial(torch.optim.SGD, lr=LR, momentum=MOMENTUM)
SGD = {"optimizer": "sgd", "optimizer.lr": LR, "optimizer.momentum": MOMENTUM}


def settings(sync: str, strategy: str = "data_parallel") -> list[str]:
    """With a model that the strategy takes, and an optimizer that the sync mode steps with."""
    needed = {**(STRATEGIES[strategy].trial.model or {"model": "mlp"}), **(SYNCS[sync].trial.optimizer or SGD)}
    needed |= SYNCS[sync].trial.beside
    return [*SETTINGS, *(f"{key}={value}" for key, value in needed.items())]


def pair(strategy: str, sync: str, *more: str) -> Experiment:
    """What composing the two choices gives (held below), without Hydra: there are many pairs."""
    chosen = {"strategy": CHOSEN["strategy", strategy], "sync": CHOSEN["sync", sync]}
    return compose([*settings(sync, strategy), *more]).model_copy(update=chosen)


def parts_of(strategy: str, sync: str, *more: str) -> Parts:
    if not more:
        return assemble(pair(strategy, sync), ())
    return assemble(compose([f"strategy={strategy}", f"sync={sync}", *settings(sync, strategy), *more]), ())


def case_for(strategy: str, sizes: list[list[int]], optimizer: Callable[..., torch.optim.Optimizer]) -> Case:
    """Returns a case in float64 where the strategy takes it, and of images where it takes no other samples."""
    if STRATEGIES[strategy].traits.one_precision:
        return Case(sizes, mlp, optimizer)
    if STRATEGIES[strategy].trial.model:
        return Case(sizes, images64, optimizer, shape=IMAGE)
    return Case(sizes, mlp64, optimizer)


def is_accepted(strategy: str, sync: str) -> bool:
    return not unmet_terms(SYNCS[sync], STRATEGIES[strategy])


def the_sync(strategy: str, sync: str) -> Sync:
    return STRATEGIES[strategy].own_sync() or SYNCS[sync]


def tried(fabric: OnFabric, strategy: str, sync: str) -> TrainedPair:
    """The pair on two replicas where each is a process, and else on three."""
    parts, alone = parts_of(strategy, sync), alone_with(sync)
    return TrainedPair(
        parts.strategy,
        SYNCS[sync] if parts.strategy.own_sync() is not None else parts.sync,
        parts_of(strategy, sync, *alone).sync if alone else None,
        fabric,
        2 if fabric == "process" else 3,
        case_for(strategy, [], optimizer_of(sync)),
    )


def held(invariant: Invariant[TrainedPair], fabric: OnFabric, strategy: str, sync: str) -> None:
    pair = tried(fabric, strategy, sync)
    assert invariant.concerns(pair)
    invariant.check(pair, f"{strategy}, {sync}")


ALL = list(product(CHOICES["strategy"], CHOICES["sync"]))
ACCEPTED = [both for both in ALL if is_accepted(*both)]
REFUSED = [both for both in ALL if both not in ACCEPTED]
REPLICATED = [(strategy, sync) for strategy, sync in ACCEPTED if STRATEGIES[strategy].traits.max_replicas != 1]
AGREEING = [(strategy, sync) for strategy, sync in REPLICATED if the_sync(strategy, sync).traits.weights_agree]
EXACT = [both for both in AGREEING if the_sync(*both).traits.exact]


def kind(strategy: str, sync: str) -> tuple[bool, ...]:
    """Of how many parts, and whether replicas step together, agree, and have servers."""
    mode = the_sync(strategy, sync)
    return STRATEGIES[strategy].parts > 1, mode.traits.synchronous, mode.traits.weights_agree, mode.servers > 0


def first_of_each_kind(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Plain strategies before those that own their update, or move the model about."""
    plain = [both for both in pairs if (both[0], "asp") in ACCEPTED and not STRATEGIES[both[0]].traits.moves_model]
    return list({kind(*both): both for both in reversed(plain)}.values())


KINDS = first_of_each_kind(REPLICATED)
ON_PROCESSES = [both for both in KINDS if STRATEGIES[both[0]].parts == 1 or both[1] == "bsp"]


def is_tried_by_default(strategy: str, sync: str) -> bool:
    if STRATEGIES[strategy].trial.slow:  # its own tests try it
        return False
    return strategy == "data_parallel" or sync == "bsp" or (strategy, sync) in KINDS


def each(pairs: list[tuple[str, str]]) -> pytest.MarkDecorator:
    marked = [pytest.param(*both, marks=[] if is_tried_by_default(*both) else pytest.mark.slow) for both in pairs]
    return pytest.mark.parametrize(("strategy", "sync"), marked)


def on_both_fabrics(pairs: list[tuple[str, str]]) -> pytest.MarkDecorator:
    """Each pair on the virtual cluster, and on processes, where one of each kind is fast and what runs nowhere else."""
    marked = []
    for strategy, sync in pairs:
        slow = not is_tried_by_default(strategy, sync)
        if not STRATEGIES[strategy].traits.needs_processes:
            marked.append(pytest.param("virtual", strategy, sync, marks=pytest.mark.slow if slow else []))
            slow = (strategy, sync) not in ON_PROCESSES
        marked.append(pytest.param("process", strategy, sync, marks=pytest.mark.slow if slow else []))
    return pytest.mark.parametrize(("fabric", "strategy", "sync"), marked)


def once_of_a_kind(pairs: list[tuple[str, str]]) -> pytest.MarkDecorator:
    marked = [pytest.param(*both, marks=[] if both in ON_PROCESSES else pytest.mark.slow) for both in pairs]
    return pytest.mark.parametrize(("strategy", "sync"), marked)


every_combination = each(ACCEPTED)
every_sync = pytest.mark.parametrize("sync", CHOICES["sync"])


pytestmark = pytest.mark.budget(4)  # most choices pass it in the fast part, too


@pytest.fixture(autouse=True)
def own_directory(fork_server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


REAL = ["hardware.threads=1", "hardware.device=cpu", "hardware.timeout=30"]
HARDWARE = {"process": REAL, "virtual": ["hardware=virtual"]}


def finish(
    strategy: str, sync: str, replicas: int, *more: str, fabric: str = "process", **how: Any
) -> tuple[Weights, dict]:
    """Run to the end: the trained weights and the summary."""
    overrides: list[str] = list(more)
    if "resume" not in how:
        workers = replicas * parts_of(strategy, sync).strategy.parts
        alone = alone_with(sync) if replicas == 1 else []
        overrides = [
            f"strategy={strategy}",
            f"sync={sync}",
            *settings(sync, strategy),
            *HARDWARE[fabric],
            f"hardware.workers={workers}",
            *alone,
        ]
        overrides += more
    result = run(overrides, quiet=True, **how)
    assert result is not None
    assert result.summary["status"] == "completed"
    return safetensors.torch.load_file(result.path / "model.safetensors"), result.summary


def optimizer_of(
    sync: str, usual: Callable[..., torch.optim.Optimizer] = momentum
) -> Callable[..., torch.optim.Optimizer]:
    """In plain torch: `usual`, or the one that this mode steps with."""
    wanted = dict(SYNCS[sync].trial.optimizer)
    if not wanted:
        return usual
    chosen = shipped("optimizer", str(wanted.pop("optimizer")))
    knobs = chosen.knobs | {key.removeprefix("optimizer."): value for key, value in wanted.items()}
    return partial(getattr(torch.optim, chosen.target.rpartition(".")[2]), **knobs)


def alone_with(sync: str) -> list[str]:
    return [f"sync.{knob}={value}" for knob, value in SYNCS[sync].trial.alone.items()]


def serial_digits(samples: int, steps: int, micro_sizes, make_optimizer) -> Weights:
    """Serial training in plain torch, the gradient of a batch accumulated over its micro-batches."""
    data = Digits(limit=samples)
    split, _ = data.load()
    order = ShuffledPartition(len(split), 1, BATCH, seed=0)
    torch.manual_seed(0)
    model = MLP(data.spec, HIDDEN)
    optimizer = make_optimizer(model.parameters())
    for step in range(steps):
        chosen = order.indices(step, 0)
        optimizer.zero_grad()
        pieces = micro_sizes(len(chosen))
        for piece in chosen.split(pieces):
            loss = F.cross_entropy(model(lone(split.samples)[piece]), split.targets[piece])
            (loss * (len(piece) / len(chosen)) if len(pieces) > 1 else loss).backward()
        optimizer.step()
    return {name: tensor.detach() for name, tensor in model.state_dict().items()}


# -- the choices


@pytest.mark.parametrize(("group", "choice"), CHOSEN)
def test_a_choice_of_this_file_is_what_composing_it_gives(group, choice):
    others = {"strategy": "data_parallel", "sync": "bsp"} | {group: choice}
    assert pair(**others) == compose([f"{group}={choice}", *settings(others["sync"], others["strategy"])])


@pytest.mark.budget(1)
@pytest.mark.parametrize(("strategy", "sync"), REFUSED)
def test_what_does_not_go_together_is_refused_as_bad_configuration(strategy, sync):
    with pytest.raises(ConfigError, match=rf"(?s)(?=.*sync={sync})(?=.*strategy={strategy})") as caught:
        make_plan(pair(strategy, sync), (), None)
    assert caught.value.exit_code == 2


@every_combination
def test_what_goes_together_has_a_plan(strategy, sync):
    plan = make_plan(pair(strategy, sync), (), None)
    assert plan.layout.replicas >= 1
    sent = plan.bytes_per_step()
    assert sent is not None and sent >= 0 and not plan.varies


def test_every_algorithm_file_has_a_choice():
    room = Path(next(iter(paceline.strategies.__path__)))
    plumbing = {"__init__", "hybrid_stages", "whole", "robust_bsp", "sharded_bsp", "servers", "mean_of_replicas"}
    named = {
        yaml.safe_load(path.read_text())["_target_"].rpartition(".")[0]
        for group in CHOICES
        for path in (CONF / group).glob("*.yaml")
    }
    modules = {f"paceline.strategies.{path.stem}" for path in room.glob("*.py") if path.stem not in plumbing}
    modules |= {
        f"paceline.strategies.sync.{path.stem}" for path in (room / "sync").glob("*.py") if path.stem not in plumbing
    }
    assert modules == named


@pytest.mark.budget(1)
@pytest.mark.parametrize(("group", "choice"), CHOSEN)
def test_a_misspelt_knob_is_refused_with_the_nearest_name_and_an_unknown_one_by_its_name(group, choice):
    """Set, which Hydra refuses, and added, which the class's signature does."""
    other = "sync=bsp" if group == "strategy" else "strategy=data_parallel"
    for add, key in product(["", "+"], [*CHOSEN[group, choice].knobs, None]):
        wrong, nearest = ("zzz", "") if key is None else (f"{key}x", rf".*did you mean [\w. ]*\b{key}\b")
        with pytest.raises(ConfigError, match=rf"{group}\.{wrong}: {nearest}") as caught:
            prepare([f"{group}={choice}", other, "model=mlp", *SETTINGS, f"{add}{group}.{wrong}=1"]).plan()
        assert caught.value.exit_code == 2


# -- one replica


@pytest.mark.dist
@on_both_fabrics(
    [both for both in ACCEPTED if the_sync(*both).traits.serial_alone and STRATEGIES[both[0]].traits.bitwise]
)
def test_one_replica_is_serial_training_bit_for_bit(fabric, strategy, sync):
    """Over its micro-batches, where it has several. Nine steps, an uneven last batch among them."""
    weights, _ = finish(strategy, sync, 1, "data.limit=60", "steps=9", fabric=fabric)
    built = parts_of(strategy, sync).strategy
    sizes = getattr(built, "micro_sizes", lambda size: [size])
    assert identical(weights, serial_digits(60, 9, sizes, optimizer_of(sync, sgd)))


@pytest.mark.dist
def test_the_naive_schedule_is_strategy_single_bit_for_bit():
    naive, _ = finish("pipeline", "bsp", 1, "strategy.schedule=naive", "data.limit=60", "steps=9")
    single, _ = finish("single", "bsp", 1, "data.limit=60", "steps=9")
    assert identical(naive, single)


# -- several replicas


@pytest.mark.dist
@on_both_fabrics(AGREEING)
def test_replicas_that_are_said_to_agree_do_bit_for_bit_after_every_update(fabric, strategy, sync):
    held(replicas_agree_after_every_update, fabric, strategy, sync)


@pytest.mark.dist
@on_both_fabrics(EXACT)
def test_replicas_that_agree_train_as_one_worker_with_all_their_samples(fabric, strategy, sync):
    held(replicas_train_as_one_worker, fabric, strategy, sync)


def stated_by_primitive(strategy: str, sync: str) -> Counter[str]:
    """Bytes a worker and step of the run below, as its plan states them."""
    workers = 2 * STRATEGIES[strategy].parts
    plan = make_plan(pair(strategy, sync, f"hardware.workers={workers}", "data.limit=96", "steps=11"), (), None)
    stated = Counter[str]()
    for part in plan.phases[0].parts:
        for traffic, of in ((part.worker, plan.layout.replicas), (part.server, plan.layout.servers)):
            stated.update({key: nbytes * of / plan.layout.workers for key, nbytes in (traffic or {}).items()})
    return stated


def bytes_told(total: float, by_primitive: Mapping[str, float]) -> str:
    """`12.5 bytes (all_reduce 8, send 4.5)`"""
    return f"{total:,} bytes ({', '.join(f'{key} {by_primitive[key]:,.6g}' for key in sorted(by_primitive))})"


@pytest.mark.dist
@on_both_fabrics(REPLICATED)
def test_measured_bytes_are_the_stated_cost(fabric, strategy, sync):
    """Every batch is full; steps are no multiple of anything that happens every few steps."""
    _, summary = finish(strategy, sync, 2, "data.limit=96", "steps=11", fabric=fabric)
    measured, stated = summary["wire"]["bytes_per_step"], summary["predicted"]["bytes_per_step"]
    assert measured == stated >= 0, (
        f"strategy={strategy} sync={sync}: {bytes_told(stated, stated_by_primitive(strategy, sync))} a worker and step "
        f"are stated, and {bytes_told(measured, summary['wire']['by_primitive'])} were measured. Compare the messages "
        f"with `transfers` of {type(the_sync(strategy, sync)).__name__} and `cost` of "
        f"{type(STRATEGIES[strategy]).__name__}."
    )
    assert sum(summary["wire"]["by_primitive"].values()) == pytest.approx(summary["wire"]["bytes_per_step"], rel=1e-14)


@pytest.mark.dist
@once_of_a_kind(ACCEPTED)
def test_the_same_seed_gives_the_same_bits_and_a_resumed_run_equals_the_uninterrupted_one(strategy, sync):
    replicas = 2 if (strategy, sync) in REPLICATED and parts_of(strategy, sync).sync.traits.synchronous else 1
    data = ["data.limit=60", "checkpoint.every_steps=5"]  # inside a round, where one has four steps
    straight, _ = finish(strategy, sync, replicas, *data, "steps=8", name="straight")
    again, _ = finish(strategy, sync, replicas, *data, "steps=5", name="again")
    assert not identical(straight, again)
    resumed, summary = finish(strategy, sync, replicas, "steps=8", resume="again")
    assert summary["steps"] == 8
    assert identical(straight, resumed)


# -- the virtual cluster

VIRTUAL = ["hardware=virtual", "hardware.workers=6", "stragglers=lognormal"]


@pytest.mark.budget(2.5)
@pytest.mark.dist
@every_sync
def test_a_virtual_run_repeats_bit_for_bit_weights_clock_and_events(sync):
    run_again = [
        run([f"sync={sync}", *settings(sync), *VIRTUAL, "data.limit=96", "steps=12"], quiet=True) for _ in range(2)
    ]
    first, second = (result.summary for result in run_again if result is not None)
    weights = [safetensors.torch.load_file(result.path / "model.safetensors") for result in run_again if result]
    assert identical(*weights)
    assert first["event_digest"] == second["event_digest"]
    assert first["seconds"] == second["seconds"] > 0
    assert first["modelled"] is True


@pytest.mark.dist
def test_another_seed_gives_other_weights():
    first, _ = finish("data_parallel", "bsp", 2, "data.limit=60", "steps=2", "seed=0")
    second, _ = finish("data_parallel", "bsp", 2, "data.limit=60", "steps=2", "seed=1")
    assert distance(first, second) > 1e-3


@pytest.mark.dist
@on_both_fabrics(ACCEPTED)
def test_what_a_sync_mode_saves_goes_through_bytes_and_back(fabric, strategy, sync):
    held(a_resumed_run_equals_the_straight_one, fabric, strategy, sync)


# -- what is tried of a class of one's own, too (paceline.testing)

ABOVE = (replicas_agree_after_every_update, replicas_train_as_one_worker, a_resumed_run_equals_the_straight_one)
PROMISED = [
    pytest.param(invariant, *both, id="-".join([*both, invariant.name]))
    for both in ACCEPTED
    if "bsp" in both or "data_parallel" in both
    if not STRATEGIES[both[0]].traits.needs_processes
    for invariant in PAIRS.invariants
    if invariant not in ABOVE and invariant.concerns(TrainedPair(STRATEGIES[both[0]], SYNCS[both[1]]))
]


@pytest.mark.budget(6)
@pytest.mark.parametrize(("invariant", "strategy", "sync"), PROMISED)
def test_it_passes_the_checks_of_a_class_of_ones_own(invariant, strategy, sync):
    held(invariant, "virtual", strategy, sync)
