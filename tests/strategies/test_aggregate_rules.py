"""Robust rules and what comes before them: by their definitions in plain numpy, their bounds, and what they promise."""

import itertools
import re

import numpy as np
import pytest
import torch
from needs import needs_compiler
from torch import Tensor

from paceline.conf.errors import ConfigError
from paceline.exchange.aggregate import (
    Aggregator,
    Bulyan,
    CenteredClipping,
    Draco,
    FLTrust,
    GeometricMedian,
    Krum,
    MajorityVote,
    Mean,
    Median,
    MinimumDiameter,
    MultiKrum,
    SelfCenteredClipping,
    TrimmedMean,
    ZenoPlusPlus,
)
from paceline.exchange.aggregate.base import Robust
from paceline.exchange.aggregate.before import ARC, Bucketing, Mixing
from paceline.exchange.aggregate.ranked import ranked
from paceline.exchange.aggregation import Aggregation
from paceline.exchange.seeded import generator
from paceline.strategies.core.errors import NotFiniteError
from paceline.testing import check_aggregator

N, F, D = 11, 2, 23
RULES: dict[str, type[Robust]] = {
    "median": Median,
    "trimmed_mean": TrimmedMean,
    "krum": Krum,
    "multi_krum": MultiKrum,
    "bulyan": Bulyan,
    "geometric_median": GeometricMedian,
    "centered_clipping": CenteredClipping,
    "mda": MinimumDiameter,
    "majority_vote": MajorityVote,
}
every_rule = pytest.mark.parametrize("rule", RULES)


def rows_of(n: int = N, d: int = D, seed: int = 0, about: float = 1.0) -> Tensor:
    return about + torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def given(rule: Aggregator, rows: Tensor, f: int = F) -> Tensor:
    return rule.aggregate(rows, torch.ones(len(rows), dtype=torch.float64), f)


def apart(rows: np.ndarray) -> np.ndarray:
    return np.array([[((a - b) ** 2).sum() for b in rows] for a in rows])


def krum_scores(rows: np.ndarray, f: int) -> list[float]:
    found = apart(rows)
    n = len(rows)
    return [float(np.sort(np.delete(found[i], i))[: max(n - f - 2, 1)].sum()) for i in range(n)]


# -- by their definitions


def trimmed_mean(rows: np.ndarray, f: int) -> np.ndarray:
    return np.array([np.sort(column)[f : len(column) - f].mean() for column in rows.T])


def krum_order(rows: np.ndarray, f: int) -> list[int]:
    """Of equal scores the row that is nearer to all first."""
    found, totals = krum_scores(rows, f), apart(rows).sum(1)
    return sorted(range(len(rows)), key=lambda i: (round(found[i], 9), totals[i]))


def krum(rows: np.ndarray, f: int) -> np.ndarray:
    return rows[krum_order(rows, f)[0]]


def multi_krum(rows: np.ndarray, f: int) -> np.ndarray:
    return rows[krum_order(rows, f)[: len(rows) - f]].mean(0)


def bulyan(rows: np.ndarray, f: int) -> np.ndarray:
    left, taken = list(range(len(rows))), []
    for _ in range(len(rows) - 2 * f):
        taken.append(left.pop(krum_order(rows[left], f)[0]))
    chosen = rows[sorted(taken)]
    beta, result = len(chosen) - 2 * f, []
    for column in chosen.T:
        nearest = np.argsort(np.abs(column - np.median(column)), kind="stable")[:beta]
        result.append(column[nearest].mean())
    return np.array(result)


def centered_clipping(rows: np.ndarray, f: int) -> np.ndarray:
    v = np.zeros(rows.shape[1])
    for _ in range(3):
        v = v + np.mean([(x - v) * min(1.0, 1.0 / np.linalg.norm(x - v)) for x in rows], axis=0)
    return v


def mda(rows: np.ndarray, f: int) -> np.ndarray:
    found = apart(rows)
    subsets = itertools.combinations(range(len(rows)), len(rows) - f)
    best = min(subsets, key=lambda s: (round(max(found[i, j] for i in s for j in s), 9), found[np.ix_(s, s)].sum()))
    return rows[list(best)].mean(0)


ORACLES = {
    "median": lambda rows, f: np.median(rows, axis=0),
    "trimmed_mean": trimmed_mean,
    "krum": krum,
    "multi_krum": multi_krum,
    "bulyan": bulyan,
    "centered_clipping": centered_clipping,
    "mda": mda,
    "majority_vote": lambda rows, f: np.sign(np.sign(rows).sum(0)),
}


@pytest.mark.parametrize(("n", "f"), [(11, 2), (7, 1), (8, 0), (12, 2)])
@pytest.mark.parametrize("rule", ORACLES)
def test_a_rule_is_its_definition(rule: str, n: int, f: int) -> None:
    rows = rows_of(n, seed=n)
    rows[:f] *= -20
    assert np.allclose(given(RULES[rule](), rows, f), ORACLES[rule](rows.numpy(), f), rtol=0, atol=1e-12)


def test_the_geometric_median_is_where_the_unit_vectors_to_all_rows_add_up_to_nothing() -> None:
    rows = rows_of()
    z = given(GeometricMedian(nu=1e-9, steps=1000), rows)
    units = (rows - z) / torch.linalg.vector_norm(rows - z, dim=1, keepdim=True)
    assert float(units.sum(0).norm()) < 1e-5
    assert torch.allclose(given(GeometricMedian(), rows[:1].repeat(5, 1)), rows[0], rtol=1e-14)  # and not 0 / 0


def test_fltrust_weighs_by_cosine_at_the_trusted_length() -> None:
    rows = rows_of(5)
    rows[3] *= -1
    rows[4] *= 1000
    expected, total = np.zeros(D), 0.0
    g0 = rows[0].numpy()
    for x in rows[1:].numpy():
        trust = max(0.0, float(x @ g0 / np.linalg.norm(x) / np.linalg.norm(g0)))
        expected, total = expected + trust * np.linalg.norm(g0) / np.linalg.norm(x) * x, total + trust
    assert np.allclose(given(FLTrust(), rows), expected / total)
    assert not given(FLTrust(), torch.stack([rows[0], -rows[0]])).any()
    joined = Aggregation(FLTrust(trusted=2), None).join(dict(enumerate(rows)), dict.fromkeys(range(5), 1.0), 5, 0)
    assert torch.allclose(joined, given(FLTrust(), rows[[2, 0, 1, 3, 4]]))


def test_the_smallest_diameter_counts_and_not_the_smallest_sum_of_distances() -> None:
    side = 9 * 3**0.5 / 2
    rows = torch.tensor([[0, 0], [0, 0], [10, 0], [10 + side, 4.5], [10 + side, -4.5]], dtype=torch.float64)
    # 0, 0 and 10 have a smaller sum of squares (200) than the triangle of sides 9 (243), and a larger diameter
    assert torch.allclose(given(MinimumDiameter(), rows, 2), rows[2:].mean(0))


def test_multi_krum_takes_the_mean_of_as_many_as_are_selected() -> None:
    rows = rows_of()
    MultiKrum(selected=N).check(N)  # all of them
    assert torch.equal(given(MultiKrum(selected=1), rows), given(Krum(), rows))
    assert any(torch.equal(given(Krum(), rows), row) for row in rows)


def test_centered_clipping_goes_on_from_the_result_before_and_from_what_was_saved() -> None:
    rule, other = CenteredClipping(steps=1, tau=0.5), CenteredClipping(steps=1, tau=0.5)
    given(rule, rows_of())
    assert rule.state_dict().keys() == {"v"} and other.state_dict() == {}
    other.load_state_dict(rule.state_dict())
    assert torch.equal(given(rule, rows_of(seed=1)), given(other, rows_of(seed=1)))
    assert not torch.equal(given(CenteredClipping(steps=1, tau=0.5), rows_of(seed=1)), given(rule, rows_of(seed=1)))


@pytest.mark.parametrize("n", range(1, 26))
def test_ranked_entries_are_those_of_a_sorted_column(n: int) -> None:
    rows, order = rows_of(n), rows_of(n).sort(dim=0).values
    for first, last in ((0, n), ((n - 1) // 2, n // 2 + 1), (n // 3, n - n // 3)):
        assert torch.equal(ranked(rows, first, last), order[first:last])


@pytest.mark.parametrize("distances", [pytest.param("native", marks=needs_compiler), "torch"])
@pytest.mark.parametrize("lie", [1e8, 1e15, 1e30])
@pytest.mark.parametrize("rule", ["krum", "multi_krum", "bulyan", "mda"])
def test_with_lies_that_are_very_far_a_rule_is_its_definition(
    rule: str, lie: float, distances: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if distances == "torch":
        monkeypatch.setattr("paceline.exchange.aggregate.distances.native_distances", lambda: None)
    n, f = 12, 2  # bulyan has one row more than it needs, so that which rows are chosen shows
    rows = rows_of(n, seed=5)
    rows[:f] = lie
    exact = ORACLES[rule](rows.numpy().astype(np.longdouble), f).astype(np.float64)
    assert np.allclose(given(RULES[rule](), rows, f), exact, rtol=0, atol=1e-12)


@pytest.mark.parametrize("lie", [1e3, 1e8, 1e30])
@pytest.mark.parametrize(("n", "f"), [(3, 1), (11, 5), (12, 5)])
def test_however_far_as_many_lie_as_may_the_geometric_median_stays_with_the_others(n: int, f: int, lie: float) -> None:
    rows = rows_of(n)
    rows[:f] = lie * torch.randn(f, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    z, honest = given(GeometricMedian(), rows, f), rows[f:]
    radius = float((honest - honest.mean(0)).norm(dim=1).max())
    # Wu, Ling, Chen and Giannakis 2020 (arXiv 1912.12716), lemma 1: C = (2 - 2 f / n) / (1 - 2 f / n)
    assert float((z - honest.mean(0)).norm()) < 2 * (n - f) / (n - 2 * f) * radius


def test_of_entries_that_are_alike_bulyan_takes_no_more_than_are_near() -> None:
    """Of -2, -2, 0, 1 and 5 the three nearest to 0 are 0, 1 and one -2."""
    column = torch.tensor([-2.0, -2.0, 0.0, 1.0, 5.0, 400.0, -400.0], dtype=torch.float64)
    for sign in (1, -1):
        rows = torch.stack([sign * column, torch.zeros(7, dtype=torch.float64)], dim=1)
        assert float(given(Bulyan(), rows, 1)[0]) == pytest.approx(sign * -1 / 3)


# -- before a rule


def test_mixing_takes_the_mean_of_the_nearest_itself_included() -> None:
    rows = rows_of()
    rows[3] = rows[4]  # equal rows: each is its own nearest
    found = apart(rows.numpy())
    mixed = Mixing().mix(rows, F, generator(0, 0))
    for i in range(N):
        nearest = [i, *sorted((j for j in range(N) if j != i), key=lambda j: found[i, j])[: N - F - 1]]
        assert np.allclose(mixed[i], rows[nearest].mean(0))
    assert torch.allclose(Mixing().mix(rows, 0, generator(0, 0)), rows.mean(0).expand(N, D))


def test_buckets_are_means_of_a_permutation_drawn_by_seed_and_step() -> None:
    rows = rows_of()
    first, again, later = (Bucketing(3).mix(rows, F, generator(7, step)) for step in (4, 4, 5))
    assert torch.equal(first, again) and not torch.equal(first, later) and len(first) == Bucketing(3).rows(N) == 4
    sizes = torch.tensor([3.0, 3.0, 3.0, 2.0], dtype=torch.float64)
    assert torch.allclose((sizes[:, None] * first).sum(0), rows.sum(0))
    assert torch.allclose(Bucketing(1).mix(rows, F, generator(0, 0)).sort(0).values, rows.sort(0).values)


def test_a_bucket_of_two_lies_is_finite_where_they_are() -> None:
    rows = rows_of(4).float()
    rows[[0, 1]] = 3e38
    assert all(Bucketing(2).mix(rows, 2, generator(0, step)).isfinite().all() for step in range(9))


def test_arc_clips_the_longest_to_the_next() -> None:
    rows = rows_of()
    k = int(2 * F / N * (N - F))
    lengths = np.linalg.norm(rows, axis=1)
    longest = np.sort(lengths)[::-1][k]
    clipped = ARC().mix(rows, F, generator(0, 0))
    assert np.allclose(clipped, rows.numpy() * np.minimum(1, longest / lengths)[:, None])
    assert torch.equal(ARC().mix(rows, 0, generator(0, 0)), rows)


# -- what is promised


@pytest.mark.parametrize("rule", [*RULES.values(), Draco, FLTrust, Mean, SelfCenteredClipping, ZenoPlusPlus])
def test_a_rule_passes_the_checks_of_a_class_of_ones_own(rule: type[Aggregator]) -> None:
    """Among them: it does not ask whose row is whose, and leaves rows alone."""
    assert len(check_aggregator(rule)) >= 2


@pytest.mark.parametrize("lie", [1e6, -1e6])
@pytest.mark.parametrize("before", ["none", "nnm", "arc"])
@pytest.mark.parametrize("rule", [name for name in RULES if name != "majority_vote"])
def test_as_many_liars_as_it_withstands_do_not_carry_it_away(rule: str, before: str, lie: float) -> None:
    made = RULES[rule](before=before)  # pyright: ignore[reportArgumentType]
    rows = rows_of(seed=3)
    f = made.withstands(N)
    rows[:f] = lie
    joined = Aggregation(made, None).join(dict(enumerate(rows)), dict.fromkeys(range(N), 1.0), N, 0)
    honest = rows[f:]
    width = float((honest - honest.mean(0)).norm(dim=1).max())
    # clipping, and what comes before, leave each liar a pull of no more than an honest row's length
    reach = 3 * float(honest.norm(dim=1).max()) if before == "arc" or rule == "centered_clipping" else 3 * width
    assert float((joined - honest.mean(0)).norm()) < reach
    mean = Aggregation(Mean(), None).join(dict(enumerate(rows)), dict.fromkeys(range(N), 1.0), N, 0)
    assert float((mean - honest.mean(0)).norm()) > 1e5 and reach < 1e3


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@every_rule
def test_rows_that_are_not_finite_are_left_out_and_count_against_f(rule: str, bad: float) -> None:
    rows = rows_of()
    rows[4, 7] = bad
    good = [i for i in range(N) if i != 4]
    joined = Aggregation(RULES[rule](F), None).join(dict(enumerate(rows)), dict.fromkeys(range(N), 1.0), N, 0)
    assert torch.equal(joined, given(RULES[rule](), rows[good], F - 1))
    rows[[5, 6], 1] = bad
    with pytest.raises(NotFiniteError, match=r"what replicas 4, 5, 6 sent in step 9 is not finite, .* withstands 2"):
        Aggregation(RULES[rule](F), None).join(dict(enumerate(rows)), dict.fromkeys(range(N), 1.0), N, 9)


@every_rule
def test_rows_whose_squares_are_infinite_are_left_out_like_those_that_are_infinite(rule: str) -> None:
    rows, infinite = rows_of(), rows_of()
    rows[4], infinite[4] = 1e200, float("inf")
    joined, expected = (
        Aggregation(RULES[rule](F), None).join(dict(enumerate(each)), dict.fromkeys(range(N), 1.0), N, 0)
        for each in (rows, infinite)
    )
    assert torch.equal(joined, expected)


def test_what_comes_before_a_rule_is_told_how_many_liars_are_left() -> None:
    rows = rows_of()
    rows[4] = float("nan")
    joined = Aggregation(Krum(F, "nnm"), None).join(dict(enumerate(rows)), dict.fromkeys(range(N), 1.0), N, 0)
    good = rows[[i for i in range(N) if i != 4]]
    assert torch.equal(joined, given(Krum(), Mixing().mix(good, F - 1, generator(0, 0)), F - 1))


@pytest.mark.parametrize("before", ["nnm", "arc", "bucketing"])
@pytest.mark.parametrize("there", [1, 2, 4, 5])
@pytest.mark.parametrize("rule", [Median, TrimmedMean])
def test_where_few_of_the_replicas_have_samples_fewer_liars_are_told_of(rule, before, there) -> None:
    """With data of their own some replicas have none left at an epoch's end: 11 withstand 5, and 5 do not."""
    rows = rows_of(there)
    weights = {i: 1.0 if i < there else 0.0 for i in range(11)}
    found = Aggregation(rule(before=before), None).join({i: rows[min(i, there - 1)] for i in range(11)}, weights, 11, 0)
    assert ((found >= rows.min(0).values - 1e-12) & (found <= rows.max(0).values + 1e-12)).all()


def test_the_mean_does_not_hide_what_is_not_finite() -> None:
    rows = rows_of(3)
    rows[1] = float("nan")
    assert Aggregation(None, None).join(dict(enumerate(rows)), dict.fromkeys(range(3), 1.0), 3, 0).isnan().all()


@every_rule
def test_without_f_and_with_equal_rows_it_is_that_row(rule: str) -> None:
    rows = rows_of(1).repeat(5, 1)
    made = CenteredClipping(tau=1e3) if rule == "centered_clipping" else RULES[rule]()
    expected = rows[0].sign() if rule == "majority_vote" else rows[0]
    assert torch.allclose(given(made, rows, 0), expected, rtol=1e-12)


# -- bounds

BOUNDS = {  # the fewest rows for f = 1, 2
    "median": (3, 5),
    "trimmed_mean": (3, 5),
    "krum": (5, 7),
    "multi_krum": (5, 7),
    "bulyan": (7, 11),
    "geometric_median": (3, 5),
    "centered_clipping": (3, 5),
    "mda": (3, 5),
    "majority_vote": (3, 5),
}


@every_rule
def test_too_few_rows_are_refused_with_the_bound(rule: str) -> None:
    for f, fewest in enumerate(BOUNDS[rule], 1):
        RULES[rule](f).check(fewest)
        assert RULES[rule]().withstands(fewest) == f and RULES[rule]().withstands(fewest - 1) == f - 1
        bound = re.escape(RULES[rule].traits.bound)
        with pytest.raises(ConfigError, match=f"aggregate.f={f}: the rule needs {bound}, and"):
            RULES[rule](f).check(fewest - 1)


def test_bounds_hold_for_what_is_left_after_buckets() -> None:
    assert Krum(before="bucketing").withstands(12) == 1 and Krum().withstands(12) == 4
    with pytest.raises(
        ConfigError, match=r"6 are left after aggregate.before: at most f=1. .* smaller aggregate.bucket"
    ):
        Krum(2, before="bucketing").check(12)
    with pytest.raises(ConfigError, match=r"n=2 rows: too few for any f"):
        Krum().check(2)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Median(-1), "aggregate.f=-1: must be at least 0, or null"),
        (lambda: Median(before="bucketing", bucket=0), "aggregate.bucket=0: must be at least 1"),
        (lambda: Median(bucket=3), "aggregate.bucket=3: is of aggregate.before=bucketing, and aggregate.before=none"),
        (lambda: MultiKrum(selected=0), "aggregate.selected=0: must be at least 1"),
        (lambda: MultiKrum(selected=9).check(8), "aggregate.selected=9: the rule is given 8 rows"),
        (lambda: MinimumDiameter().check(40), r"aggregate.f=19: of n=40 rows it would look at 131,282,408,400 subsets"),
        (lambda: FLTrust(-1), "aggregate.trusted=-1: must be a replica"),
        (lambda: FLTrust(3).check(3), "aggregate.trusted=3: there are 3 replicas"),
    ],
)
def test_knobs_that_make_no_sense_are_refused(make, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make()
