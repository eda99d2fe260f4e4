"""Rules and attacks where weights travel, not gradients (local_sgd, gossip): against plain torch."""

import re
from collections.abc import Callable
from typing import cast

import numpy as np
import pytest
import torch
from declared import unmet_terms
from oracles import Case, mlp64, momentum
from replicas import Life, Replica, flat, live, saved_after, stacked
from torch import Tensor

from paceline.engine import prepare, run
from paceline.exchange.aggregate import (
    Aggregator,
    CenteredClipping,
    FLTrust,
    MajorityVote,
    Mean,
    Median,
    SelfCenteredClipping,
)
from paceline.exchange.aggregation import Aggregation
from paceline.exchange.attack import Attack, Honest, InnerProduct, LabelFlip, SignFlip
from paceline.exchange.compress import TopK
from paceline.strategies.core.terms import ADDED_UP, COMMON_ORIGIN, HONEST, NEIGHBOURS
from paceline.strategies.sync.gossip import Gossip
from paceline.strategies.sync.local_sgd import LocalSGD

pytestmark = pytest.mark.dist

UNEVEN = [[4, 3, 2, 3], [3, 3, 3, 3], [1, 4, 0, 2], [2, 2, 2, 2], [1, 1, 1, 0]]
CASE = Case(UNEVEN, model=mlp64, optimizer=momentum)
Rule = Callable[[Tensor, list[int]], Tensor]  # ([n, d], samples) -> [d]


def mean(rows: Tensor, samples: list[int]) -> Tensor:
    return sum((row * n / sum(samples) for row, n in zip(rows, samples, strict=True)), torch.zeros(()))


def median(rows: Tensor, samples: list[int]) -> Tensor:
    return torch.from_numpy(np.median(rows[torch.tensor(samples) > 0].numpy(), axis=0))


def turned(rows: Tensor) -> Tensor:
    """The last replica sends -3 times its row."""
    return torch.cat([rows[:-1], -3 * rows[-1:]])


def conspired(rows: Tensor) -> Tensor:
    """The last replica sends -2 times the mean of the others."""
    return torch.cat([rows[:-1], -2 * rows[:-1].mean(0, keepdim=True)])


HOW: dict[str, tuple[Aggregator, Attack, Rule, Callable[[Tensor], Tensor]]] = {
    "median": (Median(), Honest(), median, lambda rows: rows),
    "median, one lies": (Median(), SignFlip(1, scale=3.0), median, turned),
    "mean, one lies": (Mean(), SignFlip(1, scale=3.0), mean, turned),
    "mean, conspiracy": (Mean(), InnerProduct(1, eps=2.0), mean, conspired),
}
every_way = pytest.mark.parametrize("how", HOW)


# -- local SGD


def local(how: str, period: int, outer: float | None = None) -> list[Tensor]:
    """[replicas, entries] after each step: w <- w + rule(w_1 - w, ..., w_n - w)."""
    _, _, rule, lies = HOW[how]
    replicas = [Replica(CASE, 0, i) for i in range(4)]
    began, samples, trajectory = replicas[0].vector, [0] * 4, []
    for t, sizes in enumerate(UNEVEN):
        for replica in replicas:
            replica.gradient(t)
            replica.step()
        samples = [a + b for a, b in zip(samples, sizes, strict=True)]
        if (t + 1) % period == 0:
            ways = torch.stack([replica.vector - began for replica in replicas])
            began = began + rule(lies(ways), samples) * (1.0 if outer is None else outer)
            for replica in replicas:
                replica.vector = began
            samples = [0] * 4
        trajectory.append(torch.stack([replica.vector for replica in replicas]))
    return trajectory


@every_way
def test_a_round_of_local_sgd_goes_the_way_that_the_rule_makes_of_all_ways(fabric, how):
    aggregate, attack, *_ = HOW[how]
    results = fabric(4, live, Life(LocalSGD(2, aggregate=aggregate, attack=attack), CASE))
    for t, expected in enumerate(local(how, 2)):
        assert torch.allclose(stacked(results, t), expected, rtol=0, atol=1e-12)


def test_two_replicas_are_joined_by_the_rule_too(virtual_workers):
    case = Case([[4, 2]] * 2, model=mlp64, optimizer=momentum)
    modes = LocalSGD(2, aggregate=Median()), LocalSGD(2)
    median, mean = (virtual_workers(2, live, Life(mode, case)) for mode in modes)
    assert not torch.allclose(stacked(median, 1), stacked(mean, 1))  # the mean weighs by samples


def test_an_outer_optimizer_steps_with_what_the_rule_makes(virtual_workers):
    sync = LocalSGD(2, outer_lr=0.5, aggregate=Median(), attack=SignFlip(1, scale=3.0))
    results = virtual_workers(4, live, Life(sync, CASE))
    assert torch.allclose(stacked(results, 3), local("median, one lies", 2, outer=0.5)[3], rtol=0, atol=1e-12)


@every_way
def test_what_is_looked_at_inside_a_round_is_what_would_be_left_if_it_ended(virtual_workers, how):
    aggregate, attack, *_ = HOW[how]
    looked = virtual_workers(4, live, Life(LocalSGD(9, aggregate=aggregate, attack=attack), CASE, looks=True))
    ended = virtual_workers(4, live, Life(LocalSGD(5, aggregate=aggregate, attack=attack), CASE))
    assert torch.allclose(flat(looked[1]["seen"][4]), flat(ended[1]["trajectory"][4]), rtol=0, atol=1e-12)
    assert torch.allclose(flat(looked[2]["result"]), flat(ended[2]["result"]), rtol=0, atol=1e-12)


def test_looking_does_not_change_what_a_rule_remembers(virtual_workers):
    lives = [Life(LocalSGD(2, aggregate=CenteredClipping(tau=0.1)), CASE, looks=looks) for looks in (True, False)]
    first, second = (virtual_workers(4, live, life) for life in lives)
    assert torch.equal(flat(first[0]["weights"]), flat(second[0]["weights"]))


def test_what_a_rule_remembers_between_rounds_is_saved_and_gone_on_with(virtual_workers):
    sync = LocalSGD(2, aggregate=CenteredClipping(tau=0.1), attack=SignFlip(1))
    whole = virtual_workers(4, live, Life(sync, CASE))
    rest = virtual_workers(4, live, Life(sync, CASE, saved=saved_after(whole, 3), start=3))
    assert torch.equal(flat(rest[0]["weights"]), flat(whole[0]["weights"]))


def test_compressed_ways_of_all_entries_are_joined_as_whole_ones(virtual_workers):
    plain, packed = (
        virtual_workers(4, live, Life(LocalSGD(2, aggregate=Median(), compress=compress), CASE))
        for compress in (None, TopK(1.0, error_feedback=False))
    )
    assert torch.allclose(flat(plain[0]["weights"]), flat(packed[0]["weights"]), rtol=0, atol=1e-12)
    assert packed[0]["ledger"]["send"] > plain[0]["ledger"]["send"]


def test_samples_that_were_tampered_with_change_nothing_that_travels():
    sync = LocalSGD(2, attack=LabelFlip())
    assert (
        sync.aggregation.plain and not sync.traits.unaveraged and LocalSGD(2, ["momentum_buffer"], attack=LabelFlip())
    )


@pytest.mark.parametrize("knobs", [{"average_state": ["momentum_buffer"]}, {"switch_step": 3}])
@pytest.mark.parametrize(("given", "term"), [({"aggregate": Median()}, ADDED_UP), ({"attack": SignFlip()}, HONEST)])
def test_what_a_rule_of_ways_does_not_go_with_is_refused(knobs, given, term):
    assert unmet_terms(LocalSGD(2, **knobs, **given), **given) == {term}


# -- gossip


def ring(rows: Tensor, i: int) -> Tensor:
    return torch.stack([rows[i], rows[(i - 1) % len(rows)], rows[(i + 1) % len(rows)]])


def clipped(near: Tensor, tau: float) -> Tensor:
    """w_i + 1/3 sum_j CLIP(w_j - w_i, tau), the first row that of i."""
    ways = near - near[0]
    lengths = ways.norm(dim=1, keepdim=True)
    return near[0] + (ways * (tau / lengths.clamp(min=tau))).sum(0) / len(near)


def gossiped(how: str, tau: float = 0.05) -> list[Tensor]:
    """[4, entries] after each step on a ring; worker 3 lies."""
    replicas, trajectory = [Replica(CASE, seed, i) for i, seed in enumerate(range(4))], []
    for t in range(len(UNEVEN)):
        for replica in replicas:
            replica.gradient(t)
            replica.step()
        rows = torch.stack([replica.vector for replica in replicas])
        after = []
        for i in range(4):
            said = rows.clone()
            if "conspiracy" in how:
                honest = [j for j in (i, (i - 1) % 4, (i + 1) % 4) if j != 3]
                if i != 3:  # of the ways from the worker that is lied to
                    said[3] = rows[i] - 2 * (rows[honest] - rows[i]).mean(0)
            elif i != 3:
                said[3] = -3 * rows[3]
            near = ring(said, i)
            if "median" in how:
                after.append(torch.from_numpy(np.median(near.numpy(), axis=0)))
            elif "clipping" in how:
                after.append(clipped(near, tau))
            else:
                after.append(near.mean(0))
        for replica, values in zip(replicas, after, strict=True):
            replica.vector = values
        trajectory.append(torch.stack(after))
    return trajectory


NEAR: dict[str, tuple[Aggregator, Attack]] = {
    "mean, one lies": (Mean(), SignFlip(1, scale=3.0)),
    "mean, conspiracy": (Mean(), InnerProduct(1, eps=2.0)),
    "median, one lies": (Median(), SignFlip(1, scale=3.0)),
    "median, conspiracy": (Median(), InnerProduct(1, eps=2.0)),
    "clipping, one lies": (SelfCenteredClipping(tau=0.05), SignFlip(1, scale=3.0)),
}


@pytest.mark.parametrize("how", NEAR)
def test_each_worker_of_a_ring_joins_its_own_weights_and_its_neighbours(fabric, how):
    aggregate, attack = NEAR[how]
    results = fabric(4, live, Life(Gossip(aggregate=aggregate, attack=attack), CASE, seeds=[0, 1, 2, 3]))
    expected = gossiped(how)
    for t in range(len(UNEVEN)):
        assert torch.allclose(stacked(results, t), expected[t], rtol=0, atol=1e-12)
    for result in results:  # the mean of those that do not lie
        assert torch.allclose(flat(result["weights"]), expected[-1][:3].mean(0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("rule", [SelfCenteredClipping(f=0), SelfCenteredClipping(tau=1e6)], ids=["f=0", "far"])
def test_a_radius_that_nobody_is_further_than_is_plain_gossip(virtual_workers, rule):
    first, plain = (
        virtual_workers(4, live, Life(Gossip("exponential", aggregate=each), CASE, seeds=[0, 1, 2, 3]))
        for each in (rule, None)
    )
    assert torch.allclose(stacked(first, 4), stacked(plain, 4), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("far", "f", "radius"),
    [(-1000.0, 2, np.sqrt((3**2 + 4**2) / 2)), (-5.0, 1, np.sqrt(3**2 + 4**2 + 5**2))],
)
def test_the_radius_is_the_root_of_the_nearer_squares_over_f(far, f, radius):
    rows = torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 4.0], [1000.0, 0.0], [far, 0.0]], dtype=torch.float64)
    expected = cast(torch.Tensor, sum(row * min(1, radius / row.norm()) for row in rows[1:]) / 5)
    assert torch.allclose(SelfCenteredClipping().aggregate(rows, torch.ones(5), f), expected)


def test_where_all_have_the_same_weights_they_stay():
    rows = torch.ones(3, 5)
    assert torch.equal(SelfCenteredClipping().aggregate(rows, torch.ones(3), 1), torch.ones(5))


def test_a_rule_of_lengths_or_for_neighbours_is_refused_where_it_means_nothing():
    for rule in (CenteredClipping(), MajorityVote(), FLTrust()):
        assert COMMON_ORIGIN in unmet_terms(Gossip(aggregate=rule), aggregate=rule)
    own = SelfCenteredClipping()
    assert unmet_terms(LocalSGD(aggregate=own), aggregate=own) == {NEIGHBOURS}
    given = {"compress": TopK(0.5), "attack": SignFlip()}
    assert unmet_terms(Gossip(**given), **given) == {HONEST}
    assert Aggregation(Median(), None).aggregate.traits.of_points


# -- whole runs

TINY = ("tracking=none", "model.hidden=[16]", "batch_size=8", "checkpoint.every=0", "data.limit=96", "steps=7")
WAYS = {
    "sync=local_sgd aggregate=median attack=sign_flip": True,
    "sync=local_sgd attack=sign_flip": False,
    "sync=diloco aggregate=krum attack=alie": False,
    "sync=local_sgd aggregate=trimmed_mean compress=bf16": False,
    "sync=gossip aggregate=self_centered_clipping attack=sign_flip": True,
    "sync=gossip sync.topology=exponential aggregate=krum attack=alie attack.workers=1 hardware.workers=9": False,
    "sync=gossip_matching aggregate=median attack=gaussian": False,
    "sync=local_sgd sync.period=2 aggregate=median strategy=pipeline hardware.workers=6 steps=2": False,
}


def check_run(chosen: str, *overrides: str) -> None:
    workers = () if "hardware.workers" in chosen else ("hardware.workers=5",)
    result = run([*TINY, *chosen.split(), *workers, *overrides], quiet=True)
    assert result is not None and result.summary["status"] == "completed"
    summary = result.summary
    assert summary["wire"]["bytes_per_step"] == pytest.approx(summary["predicted"]["bytes_per_step"])
    assert summary["memory"]["buffers"] == summary["predicted"]["memory"]["buffers"]


@pytest.mark.parametrize(
    "chosen", [pytest.param(each, marks=[] if fast else [pytest.mark.slow]) for each, fast in WAYS.items()]
)
def test_as_many_bytes_leave_and_are_held_as_the_plan_states(here, chosen):
    check_run(chosen, "hardware=virtual")


@pytest.mark.slow
@pytest.mark.parametrize("chosen", WAYS)
def test_on_processes_too(here, chosen):
    check_run(chosen, "hardware.threads=1")


@pytest.mark.slow
def test_processes_and_the_virtual_cluster_train_the_same(here):
    asked = [*TINY, "sync=local_sgd", "aggregate=krum", "attack=alie", "hardware.workers=5"]
    sums = [
        run([*asked, *more], quiet=True).summary["model_sha256"]  # pyright: ignore[reportOptionalMemberAccess]
        for more in (["hardware.threads=1"], ["hardware=virtual"])
    ]
    assert sums[0] == sums[1]


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (("sync=post_local_sgd", "aggregate=median"), "sync.switch_step=40: exchanges gradients before the switch"),
        (
            ("sync=local_sgd", "aggregate=median", "average=ema"),
            "average=ema: averages the weights that are evaluated, and",
        ),
        (
            ("sync=local_sgd", "aggregate=median", "collective=ring"),
            "collective=ring: adds vectors up on their way, and aggregate=median compares",
        ),
        (("sync=local_sgd", "aggregate=krum"), "aggregate=krum: the rule needs n > 2 f [+] 2"),
        (("sync=gossip", "aggregate=krum"), "aggregate=krum: .* n=2 rows: too few .* its own row and those of 1 neigh"),
        (("sync=gossip", "aggregate=fltrust"), "aggregate=fltrust: is a rule for gradients, or changes of weights"),
        (
            ("sync=bsp", "aggregate=self_centered_clipping"),
            "aggregate=self_centered_clipping: measures from each worker's",
        ),
        (
            ("sync=gossip", "aggregate=median", "compress=topk"),
            "compress=topk: lets a worker know the sum of its neighbours' messages",
        ),
        (
            ("sync=gossip", "aggregate=median", "average=ema"),
            "average=ema: averages the weights that are evaluated, and sync=gossip",
        ),
        (("sync=local_sgd", "attack=alie", "hardware.workers=1"), "attack=alie: one replica alone|attack.workers=1"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_makes_no_sense_is_refused_by_name(here, overrides, says):
    workers = () if any("hardware.workers" in each for each in overrides) else ("hardware.workers=2",)
    with pytest.raises(ValueError, match=says) as refused:
        prepare([*TINY, *workers, *overrides]).plan()
    assert getattr(refused.value, "exit_code", None) == 2


def test_more_liars_beside_a_worker_than_its_rule_withstands_are_told_of(here):
    asked = [*TINY, "sync=gossip", "hardware.workers=6", "aggregate=median", "attack=sign_flip"]
    told = [prepare([*asked, f"attack.workers={byzantine}"]).plan().notes for byzantine in ("[1]", "[1,3]")]
    assert not any("lie" in note for note in told[0])
    assert any(re.search("2 of the neighbours of worker 2 lie, .* is made for 1", note) for note in told[1])


@pytest.mark.slow
def test_workers_of_a_ring_learn_digits_though_one_lies_if_they_clip(here):
    asked = ("tracking=none", "hardware=virtual", "hardware.workers=6", "epochs=10", "attack=sign_flip", "sync=gossip")
    accuracies = []
    for aggregate in ("self_centered_clipping", "mean"):
        try:
            result = run([*asked, "attack.scale=5", f"aggregate={aggregate}"], quiet=True)
            assert result is not None
            accuracies.append(result.summary["accuracy"])
        except Exception as error:  # diverged
            assert getattr(error, "exit_code", None) == 6, error
            accuracies.append(0.0)
    assert accuracies[0] > 0.9 and accuracies[1] < 0.5
