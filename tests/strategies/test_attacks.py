"""What liars send: by the papers' formulas in plain numpy, who lies and from when on."""

import numpy as np
import pytest
import torch
from torch import Tensor

from paceline.conf.errors import ConfigError
from paceline.engine.config.compose import compose
from paceline.engine.planning.build import assemble
from paceline.exchange.aggregate import Median
from paceline.exchange.aggregation import Aggregation
from paceline.exchange.attack import (
    ALittleIsEnough,
    Attack,
    ConstantAttack,
    Infinite,
    InnerProduct,
    Mimic,
    MinMax,
    MinSum,
    Noise,
    Seen,
    SignFlip,
)
from paceline.exchange.attack.alie import largest_z

N, F, D = 9, 2, 31
ROWS = torch.randn(N, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.5
HONEST = ROWS[: N - F]


def forged(attack: Attack, step: int = 0, replica: int = N - 1) -> Tensor:
    return attack.forge(ROWS[replica], Seen(N, F, replica, step, HONEST if attack.colludes else None))


def test_rows_are_turned_noised_and_replaced() -> None:
    own = ROWS[-1]
    assert torch.equal(forged(SignFlip(scale=3.0)), -3 * own)
    assert torch.equal(forged(ConstantAttack()), torch.zeros(D, dtype=torch.float64))
    assert forged(ConstantAttack(value="nan")).isnan().all() and forged(Infinite()).isnan().all()
    assert forged(Infinite(value="-inf")).isneginf().all() and forged(Infinite(value=float("inf"))).isposinf().all()
    assert torch.allclose(forged(InnerProduct(eps=2.0)), -2 * HONEST.mean(0))
    assert torch.equal(forged(Mimic(copies=3)), ROWS[3])
    few = Seen(N, F, N - 1, 0, HONEST[:2])  # the others had no samples
    assert torch.equal(Mimic(copies=3).forge(own, few), HONEST[1])


def test_noise_is_drawn_by_seed_step_and_replica_and_has_its_deviation() -> None:
    long = torch.zeros(20_000)
    one, same, other, step, seed = (
        Noise(std=2.0, added=False, seed=s).forge(long, Seen(N, F, replica, at))
        for s, replica, at in ((0, 8, 1), (0, 8, 1), (0, 7, 1), (0, 8, 2), (1, 8, 1))
    )
    assert torch.equal(one, same) and not any(torch.equal(one, each) for each in (other, step, seed))
    assert abs(float(one.std()) - 2) < 0.05 and abs(float(one.mean())) < 0.05
    assert torch.allclose(Noise(std=2.0, seed=0).forge(long + 1, Seen(N, F, 8, 1)), one + 1)
    assert torch.equal(Noise(std=2.0, added=False, seed=0).forge(long + 1, Seen(N, F, 8, 1)), one)


@pytest.mark.parametrize(("n", "f"), [(50, 12), (12, 3), (10, 1)])
def test_a_little_is_as_much_as_the_paper_says(n: int, f: int) -> None:
    from scipy.stats import norm  # an inverse of its own

    s = n // 2 + 1 - f
    assert largest_z(n, f) == pytest.approx(max(norm.ppf((n - f - s) / (n - f)), 0.0), abs=1e-9)


def test_a_little_is_enough_moves_each_entry_by_deviations() -> None:
    honest = HONEST.numpy()
    assert np.allclose(forged(ALittleIsEnough(z=1.5)), honest.mean(0) - 1.5 * honest.std(0))
    assert np.allclose(forged(ALittleIsEnough(2)), honest.mean(0) - largest_z(N, F) * honest.std(0))


@pytest.mark.parametrize("direction", ["std", "unit", "sign"])
def test_the_furthest_lies_just_meet_their_condition(direction) -> None:
    honest = HONEST.numpy()
    between = np.array([[((a - b) ** 2).sum() for b in honest] for a in honest])
    mu = honest.mean(0)
    p = {"std": -honest.std(0), "unit": -mu / np.linalg.norm(mu), "sign": -np.sign(mu)}[direction]
    for attack, measure, limit in (
        (MinMax(direction=direction), np.max, between.max()),
        (MinSum(direction=direction), np.sum, between.sum(1).max()),
    ):
        lie = forged(attack).numpy()
        assert measure(((lie - honest) ** 2).sum(1)) == pytest.approx(limit)
        along = (lie - mu) / p
        assert np.allclose(along, along[0]) and along[0] > 0
        further = mu + 1.01 * (lie - mu)
        assert measure(((further - honest) ** 2).sum(1)) > limit


def test_where_honest_rows_are_alike_there_is_no_room() -> None:
    alike = ROWS[:1].repeat(4, 1)
    for attack in (MinMax(), MinSum()):
        assert torch.allclose(attack.forge(ROWS[1], Seen(5, 1, 4, 0, alike)), ROWS[0])


def test_liars_tell_the_truth_before_their_step() -> None:
    alone, together = (
        Aggregation(None, SignFlip(from_step=3)),
        Aggregation(Median(), InnerProduct([0], from_step=3, eps=5.0)),
    )
    rows, weights = dict(enumerate(ROWS)), dict.fromkeys(range(N), 1.0)
    assert torch.equal(alone.sent(ROWS[8], 8, N, 2), ROWS[8]) and torch.equal(alone.sent(ROWS[8], 8, N, 3), -ROWS[8])
    assert torch.equal(alone.sent(ROWS[7], 7, N, 3), ROWS[7])
    assert torch.equal(together.join(rows, weights, N, 2), torch.from_numpy(np.median(ROWS.numpy(), axis=0)))
    lied = torch.cat([-5 * ROWS[1:].mean(0, keepdim=True), ROWS[1:]])
    assert torch.equal(together.join(rows, weights, N, 3), torch.from_numpy(np.median(lied.numpy(), axis=0)))


@pytest.mark.parametrize(
    ("attack", "says"),
    [
        (SignFlip(10), "attack.workers=10: there are 9 replicas"),
        (InnerProduct(9), "attack.workers=9: all 9 replicas lie, and this attack is made of what honest ones send"),
        (ALittleIsEnough(5), "attack.workers=5: 5 of 9 replicas are a majority, for which the paper has no z"),
        (Mimic(2, copies=7), "attack.copies=7: there are 7 honest replicas, 0 to 6"),
    ],
)
def test_what_makes_no_sense_is_refused(attack: Attack, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        attack.check(N)
    ALittleIsEnough(4).check(N)


def test_a_step_before_the_first_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"attack.from_step=-1: must be at least 0"):
        SignFlip(from_step=-1)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "'inf'"])
def test_what_is_not_finite_is_taken_as_it_is_typed(value: str) -> None:
    asked = ["attack=not_finite", f"attack.value={value}", "hardware.workers=3"]
    attack = assemble(compose(asked), ()).of_groups["attack"]
    assert isinstance(attack, Infinite) and str(attack.value) == value.strip("'")


def test_a_finite_value_of_what_is_not_finite_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^attack\.value=1: must be nan, inf or -inf"):
        assemble(compose(["attack=not_finite", "attack.value=1", "hardware.workers=3"]), ())
