"""Rules that join rows, and attacks: by their definitions, and under each sync mode against plain torch."""

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
import pytest
import torch
from choices import STRATEGIES
from declared import unmet_terms
from oracles import Case, Plan, TwoDtypes, identical, mlp, mlp64, momentum, train
from replicas import Life, Replica, flat, live
from torch import Tensor

from paceline.conf.errors import ConfigError
from paceline.engine import prepare, run
from paceline.exchange.aggregate import Aggregator, Mean, Median
from paceline.exchange.aggregation import Aggregation
from paceline.exchange.attack import Attack, Honest, InnerProduct, MinMax, Seen, SignFlip
from paceline.exchange.attack.constant import Infinite
from paceline.exchange.compress import TopK
from paceline.strategies.core.cost import World
from paceline.strategies.core.terms import WHOLE_REPLICA, WHOLE_VECTORS
from paceline.strategies.data_parallel import DataParallel
from paceline.strategies.sync.bsp import BSP
from paceline.strategies.sync.fedavg import FedAvg
from paceline.strategies.sync.gossip import Gossip
from paceline.strategies.sync.local_sgd import LocalSGD
from paceline.strategies.sync.parameter_server import ParameterServer
from paceline.strategies.sync.ssp import SSP

pytestmark = pytest.mark.dist


def rows_of(n: int, d: int = 37, seed: int = 0) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# -- rules


@pytest.mark.parametrize("n", range(1, 8))
def test_the_median_is_that_of_each_entry(n):
    rows = rows_of(n)
    assert np.allclose(Median().aggregate(rows, torch.ones(n), 0), np.median(rows.numpy(), axis=0), rtol=0, atol=0)


@pytest.mark.parametrize("rule", [Mean(), Median()], ids=["mean", "median"])
def test_a_rule_does_not_ask_whose_row_is_whose_and_leaves_rows_alone(rule):
    rows, weights = rows_of(6), torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], dtype=torch.float64)
    before, order = rows.clone(), torch.tensor([4, 0, 5, 2, 1, 3])
    first, second = rule.aggregate(rows, weights, 1), rule.aggregate(rows[order], weights[order], 1)
    assert torch.allclose(first, second, rtol=0, atol=1e-14) and torch.equal(rows, before)


@pytest.mark.parametrize("harm", [float("nan"), float("inf"), -float("inf"), 1e300], ids=str)
@pytest.mark.parametrize(("n", "byzantine"), [(3, 1), (4, 1), (5, 2), (6, 2), (7, 3)])
def test_fewer_liars_than_half_leave_the_median_within_the_honest_range(n, byzantine, harm):
    rows = rows_of(n)
    rows[:byzantine] = harm
    median = Aggregation(Median(), None).join(dict(enumerate(rows)), dict.fromkeys(range(n), 1.0), n, 0)
    assert ((median >= rows[byzantine:].min(0).values) & (median <= rows[byzantine:].max(0).values)).all()


def test_the_mean_weighs_rows_by_the_samples_behind_them():
    rows, weights = rows_of(3), torch.tensor([1.0, 0.5, 2.5], dtype=torch.float64)
    assert torch.allclose(Mean().aggregate(rows, weights, 0), (rows[0] + 0.5 * rows[1] + 2.5 * rows[2]) / 4)


def test_the_middle_of_large_numbers_does_not_overflow():
    most = torch.finfo(torch.float32).max
    assert Median().aggregate(torch.tensor([[most], [most]]), torch.ones(2), 0).tolist() == [most]
    assert Median().aggregate(torch.tensor([[most], [-most]]), torch.ones(2), 0).tolist() == [0.0]


# -- who lies


@pytest.mark.parametrize(
    ("workers", "byzantine"), [(0, set()), (1, {4}), (2, {3, 4}), (5, {0, 1, 2, 3, 4}), ([0, 2], {0, 2}), ([], set())]
)
def test_a_number_means_the_last_replicas_and_a_list_names_them(workers, byzantine):
    attack = SignFlip(workers)
    attack.check(5)
    assert attack.byzantine(5) == byzantine


@pytest.mark.parametrize(
    ("workers", "says"),
    [(6, "attack.workers=6: there are 5 replicas. Choose"), ([1, 5], "there are 5 replicas, 0 to 4. Choose")],
)
def test_more_liars_than_replicas_are_refused(workers, says):
    with pytest.raises(ConfigError, match=says):
        SignFlip(workers).check(5)


@pytest.mark.parametrize("workers", [-1, [0, -2]])
def test_nobody_is_numbered_below_zero(workers):
    with pytest.raises(ConfigError, match="must be at least 0, or a list of replicas from 0 on"):
        SignFlip(workers)


class Conspiracy(Attack):
    """What only those can send who know the honest rows: minus twice their mean."""

    colludes = True

    def forge(self, own: Tensor, seen: Seen) -> Tensor:
        assert seen.honest is not None
        return -2 * seen.honest.mean(0)


# -- joined under a sync mode, against plain torch

SIZES = [[4, 3, 2, 3], [3, 3, 3, 3], [1, 4, 0, 2], [2, 2, 2, 2]]
CASE = Case(SIZES, model=mlp64, optimizer=momentum)
ENTRIES = sum(parameter.numel() for parameter in mlp().parameters())
HOW: dict[str, tuple[Aggregator, Attack]] = {
    "median": (Median(), Honest()),
    "median, one lies": (Median(), SignFlip(1, scale=3.0)),
    "mean, one lies": (Mean(), SignFlip([1], scale=3.0)),
    "mean, conspiracy": (Mean(), Conspiracy([0, 2])),
    "median, conspiracy": (Median(), Conspiracy(1)),
}
every_way = pytest.mark.parametrize("how", HOW)


def row(replica: Replica) -> Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in replica.model.parameters()])


def rule(name: str, rows: list[Tensor], weights: Sequence[float]) -> Tensor:
    """The rules and attacks of `HOW` a second time."""
    used = [i for i, weight in enumerate(weights) if weight > 0]
    lying = {"median, one lies": [3], "mean, one lies": [1], "mean, conspiracy": [0, 2], "median, conspiracy": [3]}
    forged = {}
    for i in used:
        forged[i] = rows[i]
        if i in lying.get(name, []):
            honest = [rows[j] for j in used if j not in lying[name]]
            forged[i] = -3 * rows[i] if "one lies" in name else -2 * sum(honest) / len(honest)
    if name.startswith("mean"):
        return cast(Tensor, sum(forged[i] * weights[i] for i in used) / sum(weights[i] for i in used))
    return torch.from_numpy(np.median(torch.stack(list(forged.values())).numpy(), axis=0))


def step_with(replica: Replica, gradient: Tensor) -> None:
    at = 0
    for parameter in replica.model.parameters():
        parameter.grad = gradient[at : at + parameter.numel()].view_as(parameter).clone()
        at += parameter.numel()
    replica.step()


def joined(name: str, case: Case) -> list[Tensor]:
    """[entries] after each step: w <- step(w, rule(g_1, ..., g_n))."""
    replicas = [Replica(case, 0, i) for i in range(len(case.sizes[0]))]
    trajectory = []
    for t, sizes in enumerate(case.sizes):
        for replica in replicas:
            replica.gradient(t)
        rows = [row(replica) if n else torch.zeros(ENTRIES) for replica, n in zip(replicas, sizes, strict=True)]
        gradient = rule(name, rows, sizes)
        for replica in replicas:
            step_with(replica, gradient)
        trajectory.append(replicas[0].vector.clone())
    return trajectory


@every_way
def test_bsp_steps_with_what_the_rule_makes_of_all_gradients(fabric, how):
    results = fabric(4, live, Life(BSP(aggregate=HOW[how][0], attack=HOW[how][1]), CASE))
    expected = joined(how, CASE)
    for result in results:
        assert identical(result["weights"], results[0]["weights"])
        for weights, oracle in zip(result["trajectory"], expected, strict=True):
            assert torch.allclose(flat(weights), oracle, rtol=0, atol=1e-12)


@every_way
@pytest.mark.parametrize("of", [ParameterServer, partial(SSP, 0)], ids=["synchronous", "ssp 0"])
def test_a_server_steps_with_what_the_rule_makes_of_a_clocks_gradients(fabric, of, how):
    aggregate, attack = HOW[how]
    sync = of(aggregate=aggregate, attack=attack)
    results = fabric(5, train, Plan(DataParallel(), sync, CASE))
    for worker in results[:4]:
        assert torch.allclose(flat(worker["weights"]), joined(how, CASE)[-1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("how", ["median", "median, one lies"])
def test_several_servers_join_their_pieces(virtual_workers, how):
    aggregate, attack = HOW[how]
    sync = ParameterServer(servers=2, aggregate=aggregate, attack=attack)
    for worker in virtual_workers(6, train, Plan(DataParallel(), sync, CASE))[:4]:
        assert torch.allclose(flat(worker["weights"]), joined(how, CASE)[-1], rtol=0, atol=1e-12)


def test_what_is_sent_and_joined_is_what_was_compressed(virtual_workers):
    """A ratio of one compresses nothing, though each gradient travels as places and values."""
    plain = virtual_workers(4, live, Life(BSP(aggregate=Median()), CASE))
    sync = BSP(aggregate=Median(), compress=TopK(1.0, error_feedback=False))
    packed = virtual_workers(4, live, Life(sync, CASE))
    assert identical(plain[0]["weights"], packed[0]["weights"])
    assert packed[0]["ledger"]["send"] > plain[0]["ledger"]["send"]


def test_an_attack_sees_a_gradient_whole_whatever_the_buckets(virtual_workers):
    sync = BSP(bucket_mb=1e-5, first_bucket_mb=1e-5, attack=SignFlip(1), aggregate=Median())
    assert virtual_workers(4, live, Life(sync, CASE))[0]["report"]["buckets"] == 1


def test_a_colluding_attack_alone_needs_all_rows():
    assert (
        Aggregation(None, None).plain
        and Aggregation(None, SignFlip()).streaming
        and not Aggregation(None, SignFlip()).plain
    )
    assert not Aggregation(None, Conspiracy()).streaming and not Aggregation(Median(), None).streaming


# -- whole runs

TINY = ("tracking=none", "model.hidden=[16]", "batch_size=8", "checkpoint.every=0", "data.limit=96", "steps=12")
LIES = ("attack=sign_flip", "attack.workers=1", "hardware.workers=5")
MODES = {
    "bsp": ("aggregate=median",),
    "bsp, mean": ("sync=bsp",),
    "bsp, topk": ("sync=bsp", "aggregate=median", "compress=topk", "compress.ratio=0.1"),
    "parameter_server": ("aggregate=median",),
    "asp": (),
    "fedavg": ("aggregate=median",),
    "fedavg, mean": ("sync=fedavg",),
}


def check_bytes(mode: str, *overrides: str) -> None:
    chosen = () if "," in mode else (f"sync={mode}",)
    result = run([*TINY, *LIES, *chosen, *MODES[mode], *overrides], quiet=True)
    assert result is not None and result.summary["status"] == "completed"
    summary: dict[str, Any] = result.summary
    assert summary["wire"]["bytes_per_step"] == pytest.approx(summary["predicted"]["bytes_per_step"])
    assert summary["memory"]["buffers"] == summary["predicted"]["memory"]["buffers"]


@pytest.mark.parametrize("mode", MODES)
def test_on_the_virtual_cluster_as_many_bytes_leave_as_the_plan_states(here, mode):
    check_bytes(mode, "hardware=virtual")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.slow
def test_on_processes_as_many_bytes_leave_as_the_plan_states(here, mode):
    check_bytes(mode, "hardware.threads=1")


@pytest.mark.slow
@pytest.mark.parametrize("sync", ["bsp", "parameter_server", "fedavg"])
def test_digits_are_learnt_by_median_though_one_of_five_lies_and_not_by_mean(here, sync):
    asked = ("tracking=none", "hardware=virtual", *LIES, "attack.scale=10", f"sync={sync}", "epochs=8")
    accuracies = []
    for aggregate in ("median", "mean"):
        try:
            result = run([*asked, f"aggregate={aggregate}"], quiet=True)
            assert result is not None
            accuracies.append(result.summary["accuracy"])
        except Exception as error:  # diverged
            assert getattr(error, "exit_code", None) == 6, error
            accuracies.append(0.0)
    assert accuracies[0] > 0.9 and accuracies[1] < 0.5


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (("sync=easgd", "aggregate=median"), "aggregate=median: sync=easgd takes no aggregate. Choose "),
        (("sync=easgd", "attack=sign_flip"), "attack=sign_flip: sync=easgd takes no attack. Choose .*bsp"),
        (
            ("sync=asp", "aggregate=median"),
            "aggregate=median: compares .* sync=asp applies each push as it comes.*Choose sync=bsp",
        ),
        (("sync=ssp", "aggregate=median"), "aggregate=median: compares .* sync=ssp applies each push as it comes"),
        (
            ("sync.shard=optimizer", "attack=sign_flip"),
            "sync.shard=optimizer: .*attack=sign_flip has some workers send something else. Choose sync.shard=none",
        ),
        (
            ("aggregate=median", "collective=ring"),
            "collective=ring: .*aggregate=median .*Choose aggregate=mean, or collective=fabric",
        ),
        (("attack=sign_flip", "attack.workers=3"), "attack.workers=3: there are 2 replicas. Choose fewer"),
        (("attack=sign_flip", "attack.workers=[1,0,1]"), r"attack.workers=\[1, 0, 1\]: names replica 1 twice"),
        (
            ("aggregate=krum", "strategy=pipeline", "hardware.workers=8"),
            "aggregate=krum: looks at each replica's gradient as a whole, and strategy=pipeline cuts a",
        ),
        (("attack=sign_flip", "attack.workers=[2]"), r"attack.workers=\[2\]: there are 2 replicas, 0 to 1"),
        (("attack=sign_flip", "attack.workers=-1"), "attack.workers=-1: must be at least 0"),
        (("attack=sign_flip", "attack.scale=0"), "attack.scale=0: must be greater than 0"),
        (("attack=sign_flip", "hardware.workers=1"), "one replica alone sends its gradient to nobody"),
        (("sync=fedavg", "attack=sign_flip", "attack.workers=3"), "attack.workers=3: there are 2 replicas"),
        (("aggregate=medain",), "aggregate=medain"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_makes_no_sense_is_refused_by_name(here, overrides, says):
    with pytest.raises(ValueError, match=says) as refused:
        prepare([*TINY, "hardware.workers=2", *overrides]).plan()
    assert getattr(refused.value, "exit_code", None) == 2


class Whole(Median):
    """A rule that is not coordinate-wise, as far as it says."""

    traits = replace(Median.traits, coordinatewise=False)


@pytest.mark.parametrize("before", ["nnm", "arc", "bucketing"])
def test_a_rule_of_entries_looks_at_whole_gradients_where_what_comes_before_it_does(before):
    rule = Median(before=before)
    assert unmet_terms(ParameterServer(servers=2, aggregate=rule), aggregate=rule) == {WHOLE_VECTORS}
    assert WHOLE_VECTORS not in {need.term for need in Median().needs}


def test_a_rule_that_looks_at_whole_gradients_is_not_given_pieces():
    for sync in (ParameterServer(servers=2, aggregate=Whole()), SSP(0, servers=2, aggregate=Whole())):
        assert unmet_terms(sync, aggregate=Whole()) == {WHOLE_VECTORS}
    pipeline = STRATEGIES["pipeline"]
    of = [BSP, FedAvg, ParameterServer, partial(SSP, 0)]
    for one in of:
        assert unmet_terms(one(aggregate=Whole()), pipeline, aggregate=Whole()) == {WHOLE_REPLICA}
        assert not unmet_terms(one(attack=InnerProduct()), pipeline, attack=InnerProduct())
    for one in [*of, LocalSGD, Gossip]:  # it goes as far as whole rows are apart
        assert unmet_terms(one(attack=MinMax()), pipeline, attack=MinMax()) == {WHOLE_REPLICA}
    with pytest.raises(ConfigError, match=r"one vector of one dtype, and the model has torch\.float32, torch\.float64"):
        BSP(aggregate=Median()).cost(list(TwoDtypes().parameters()), World(2))


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (
            ("attack=sign_flip", "aggregate=median"),
            "attack.workers=1: 1 of 2 replicas lie, .* is made for 0",
        ),
        (("attack=sign_flip", "attack.workers=[]"), "nobody lies"),
        (
            ("attack=sign_flip", "hardware.workers=5", "aggregate=median", "aggregate.f=0"),
            "attack.workers=1: 1 of 5 replicas lie, .* is made for 0",
        ),
        (("attack=sign_flip", "attack.from_step=3", "steps=3"), "attack.from_step=3: the run has 3 steps, and nobody"),
        (
            ("attack=sign_flip", "aggregate=fltrust", "aggregate.trusted=1"),
            r"aggregate.trusted=1: this replica lies \(attack.workers=1\)",
        ),
        (
            ("aggregate=median",),
            r"^aggregate=median: of 2 rows it withstands none that lie. Choose more hardware.workers\.$",
        ),
        (
            ("aggregate=median", "sync=fedavg", "sync.fraction=0.25", "hardware.workers=4"),
            r"1 row of a round it withstands none that lie. Choose more hardware.workers or a larger sync.fraction\.$",
        ),
        (("compress=topk", "aggregate=median"), "compress=topk, aggregate=median: each worker sends other entries"),
        (("compress=topk", "hardware.workers=1"), "compress=topk: one replica alone sends nothing"),
        (
            ("collective=ring", "sync=local_sgd", "hardware.workers=1"),
            "collective=ring: one replica alone",
        ),
        (("compress=topk", "compress.ratio=1"), "compress=topk: sends .* for which compress=none sends"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_may_surprise_is_said(here, overrides, says):
    notes = prepare([*TINY, "hardware.workers=2", *overrides]).plan().notes
    assert any(re.search(says, note) for note in notes)


@pytest.mark.parametrize("overrides", [("compress=topk",), ("aggregate=median", "compress=bf16"), ("collective=ring",)])
def test_and_nothing_where_nothing_does(here, overrides):
    assert prepare([*TINY, "hardware.workers=3", "measure.after=0", *overrides]).plan().notes[1:] == []


def test_nothing_is_said_of_medians_where_the_mean_is_taken(here):
    notes = prepare([*TINY, "hardware.workers=4", "attack=alie", "compress=topk"]).plan().notes
    assert not any("median" in note for note in notes)


class Odd(Aggregator):
    """What a user may write."""

    def __init__(self, gives: object) -> None:
        self.gives = gives

    def aggregate(self, rows: Tensor, weights: Tensor, f: int) -> Tensor:
        return rows if self.gives is Tensor else None  # pyright: ignore[reportReturnType]


@pytest.mark.parametrize(("gives", "said"), [(Tensor, r"a tensor \[2, 5\]"), (None, "a NoneType")])
def test_a_rule_that_gives_something_else_is_named(gives, said):
    rows = {0: torch.zeros(5), 1: torch.ones(5)}
    with pytest.raises(ValueError, match=rf"Odd.aggregate returned {said} for rows \[2, 5\]; must be a tensor \[5\]"):
        Aggregation(Odd(gives), None).join(rows, {0: 1.0, 1: 1.0}, 2, 0)


class Placed(Median):
    """Knows where the rows were that it was given, and which."""

    def __init__(self, first: int | None = None) -> None:
        super().__init__()
        self.first = first

    def aggregate(self, rows: Tensor, weights: Tensor, f: int) -> Tensor:
        self.place, self.rows = rows.data_ptr(), rows.clone()
        return super().aggregate(rows, weights, f)


@pytest.mark.parametrize("attack", [None, Infinite(1)], ids=["honest", "one is not finite"])
@pytest.mark.parametrize("first", [None, 2, 3])
@pytest.mark.parametrize("without", [(), (0,), (1, 4), (5,)], ids=str)
def test_rows_are_joined_in_the_memory_in_which_they_came(first, without, attack):
    """[7, d]: those of none are left out, the trusted one comes first, what is not finite goes; nothing is copied."""
    rows, rule = rows_of(7), Placed(first)
    weights = {replica: 0.0 if replica in without else 1.0 for replica in range(7)}
    if attack is not None:
        rows[6] = attack.forge(rows[6], Seen(7, 1, 6, 0))
    order = sorted((k for k in weights if weights[k] > 0 and (attack is None or k != 6)), key=lambda k: (k != first, k))
    expected = rows[order].clone()
    joined = Aggregation(rule, None).join_in_place(rows, range(7), weights, 7, 0)
    assert rule.place == rows.data_ptr() and torch.equal(rule.rows, expected)
    assert np.array_equal(joined, np.median(expected.numpy(), axis=0))


# -- each choice in a whole run

AGGREGATES = ("krum", "multi_krum", "bulyan", "trimmed_mean", "geometric_median", "centered_clipping", "mda")
EVERY = {f"aggregate={name}": () for name in (*AGGREGATES, "fltrust", "majority_vote")} | {
    **{f"aggregate=krum aggregate.before={name}": ("aggregate=krum",) for name in ("nnm", "bucketing", "arc")},
    **{f"attack={name}": () for name in ("gaussian", "random", "zero", "negative_mean", "fall_of_empires")},
    **{f"attack={name}": () for name in ("alie", "mimic", "min_max", "min_sum")},
    "attack=not_finite aggregate=krum": (),
}


def check_run(choice: str, *overrides: str) -> None:
    asked = [*TINY, "hardware.workers=8", *choice.split(), *overrides]
    result = run([*asked, "steps=3"], quiet=True)
    assert result is not None and result.summary["status"] == "completed"
    assert result.summary["wire"]["bytes_per_step"] == pytest.approx(result.summary["predicted"]["bytes_per_step"])


FAST = ("aggregate=krum aggregate.before=nnm", "attack=alie", "attack=not_finite aggregate=krum")


@pytest.mark.parametrize(
    "choice", [pytest.param(each, marks=[] if each in FAST else [pytest.mark.slow]) for each in EVERY]
)
def test_each_choice_trains_on_the_virtual_cluster(here, choice):
    check_run(choice, "hardware=virtual")


@pytest.mark.slow
@pytest.mark.parametrize("choice", EVERY)
def test_each_choice_trains_on_processes(here, choice):
    check_run(choice, "hardware.threads=1")


@pytest.mark.slow
@pytest.mark.parametrize("sync", ["parameter_server", "ssp", "fedavg"])
@pytest.mark.parametrize("choice", ["aggregate=krum aggregate.before=nnm attack=alie attack.workers=2"])
def test_servers_take_what_looks_at_whole_gradients(here, sync, choice):
    at_once = ("sync.staleness=0",) if sync == "ssp" else ()
    check_run(f"sync={sync} {choice}", "hardware=virtual", *at_once)


@pytest.mark.slow
@pytest.mark.parametrize("sync", ["bsp", "parameter_server", "fedavg"])
def test_what_a_rule_remembers_is_saved_and_gone_on_with(here, sync):
    asked = [*TINY, "hardware.workers=3", f"sync={sync}", "aggregate=centered_clipping", "hardware.threads=1"]
    asked += ["optimizer.momentum=0"]  # of clients, whose optimizers begin anew
    whole = run([*asked, "steps=8"], quiet=True)
    run([*asked, "steps=4", "checkpoint.every_steps=4"], name="half", quiet=True)  # a round
    rest = run(["steps=8"], resume="half", quiet=True)
    assert whole is not None and rest is not None
    assert whole.summary["model_sha256"] == rest.summary["model_sha256"]


def test_what_is_not_finite_ends_a_run_that_takes_the_mean(here):
    with pytest.raises(Exception, match="diverged at step") as ended:
        run([*TINY, "hardware=virtual", "hardware.workers=4", "attack=not_finite"], quiet=True)
    assert getattr(ended.value, "exit_code", None) == 6


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (
            ("aggregate=krum",),
            "aggregate=krum: the rule needs n > 2 f [+] 2, .* n=2 rows: too few for any f",
        ),
        (("aggregate=bulyan", "aggregate.f=2", "hardware.workers=10"), "aggregate.f=2: the rule needs n >= 4 f [+] 3"),
        (
            ("aggregate=median", "aggregate.before=mixing"),
            "before='mixing': must be 'none', 'nnm', 'bucketing' or 'arc'",
        ),
        (("sync=asp", "attack=alie"), "attack=alie: has its workers know what the honest ones send, and"),
        (("attack=alie", "attack.workers=2"), "attack.workers=2: all 2 replicas lie"),
        (
            ("sync=parameter_server", "sync.servers=2", "attack=min_max", "hardware.workers=4"),
            "attack=min_max: looks at each .* gives each server a piece of a gradient. Choose sync.servers=1",
        ),
        (
            ("strategy=pipeline", "strategy.stages=2", "attack=min_sum", "hardware.workers=4"),
            "attack=min_sum: looks at each replica's gradient as a whole, and",
        ),
        (
            ("sync=parameter_server", "sync.servers=2", "aggregate=krum", "hardware.workers=6"),
            "aggregate=krum: .*sync.servers=1",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bounds_of_rules_are_said_by_name(here, overrides, says):
    with pytest.raises(ValueError, match=says) as refused:
        prepare([*TINY, "hardware.workers=2", *overrides]).plan()
    assert getattr(refused.value, "exit_code", None) == 2


class Strange(Attack):
    """An attack of a user's, which returns anything."""

    def __init__(self, gives: object) -> None:
        super().__init__(1)
        self.gives = gives

    def forge(self, own: Tensor, seen: Seen) -> Tensor:
        return self.gives  # pyright: ignore[reportReturnType]


@pytest.mark.parametrize(
    ("gives", "said"),
    [(torch.zeros(4), r"a tensor \[4\]"), (torch.zeros(1, 5), r"a tensor \[1, 5\]"), (None, "a NoneType")],
)
@pytest.mark.parametrize("colludes", [False, True])
def test_an_attack_that_gives_something_else_is_named(gives, said, colludes):
    attack = Strange(gives)
    attack.colludes = colludes
    joined = Aggregation(Median(), attack)
    rows = {0: torch.zeros(5), 1: torch.ones(5)}
    with pytest.raises(ValueError, match=rf"Strange.forge returned {said} for a row \[5\]; must be a tensor \[5\]"):
        joined.join(rows, {0: 1.0, 1: 1.0}, 2, 0) if colludes else joined.sent(rows[1], 1, 2, 0)


@pytest.mark.parametrize("dtype", [torch.int32, torch.float64])
def test_a_row_of_another_dtype_is_sent_as_the_workers_own(dtype):
    sent = Aggregation(Median(), Strange(torch.full((5,), 3, dtype=dtype))).sent(torch.zeros(5), 1, 2, 0)
    assert sent.dtype == torch.float32 and torch.equal(sent, torch.full((5,), 3.0))
