"""Times of kernels between the sizes that were measured, and what a calibration holds."""

from dataclasses import replace
from itertools import product as all_of
from math import prod
from typing import Any

import pytest

from paceline.cost.alpha_beta import AlphaBeta, fit
from paceline.cost.calibration import Calibration, Disk, MeasuredOperation, plain, read
from paceline.cost.kernels import VIEW, Kernel, KernelRates, KernelTable
from paceline.cost.rules import CostError

COSTS = {"module": 1e-6, "graph": 2e-6, "node": -1e-6, "view": 5e-7, "view_back": 3e-7}
COSTS |= {"parameter": 1e-5, "stepped": 2e-6, "step": 1e-4}
FLAT = KernelTable(((10.0, 1e-5), (1000.0, 1e-4), (100_000.0, 2e-2)))
CUBES = KernelTable(tuple((1.0, m, n, k, 1e-5 + m * n * k / 1e9) for m, n, k in all_of((8.0, 64.0, 512.0), repeat=3)))
RATES = KernelRates(1, 2, {"mul": FLAT, "product": CUBES}, COSTS)
HERE = Calibration(
    "2026-11-01 10:00",
    "lab",
    "A CPU",
    2,
    {"torch": "2.13"},
    0.01,
    [replace(RATES, processes=1), RATES, replace(RATES, threads=2, processes=1)],
    [
        MeasuredOperation("all_reduce", 2, AlphaBeta(1e-5, 1e-9, 0.1)),
        MeasuredOperation("all_reduce", 4, AlphaBeta(4e-5, 2e-9, 0.1)),
    ],
    Disk(4e8, 2e-4),
    None,
)


@pytest.mark.parametrize("table", [FLAT, CUBES])
def test_at_a_measured_size_the_time_is_the_measured_one(table: KernelTable) -> None:
    for point in table.points:
        assert table.seconds(point[:-1]) == point[-1]


def test_a_stream_is_linear_in_logarithms_between_sizes_and_in_proportion_beyond() -> None:
    assert FLAT.seconds((100.0,)) == pytest.approx((1e-5 * 1e-4) ** 0.5)
    assert FLAT.seconds((300_000.0,)) == pytest.approx(3 * 2e-2)
    assert FLAT.seconds((1.0,)) == 1e-5


def test_a_product_of_a_size_between_goes_at_the_rate_around_it() -> None:
    sizes = (1.0, 100.0, 200.0, 80.0)
    assert CUBES.seconds(sizes) == pytest.approx(1e-5 + prod(sizes) / 1e9, rel=0.15)


@pytest.mark.parametrize(
    "points", [(), ((1.0,),), ((1.0, 2.0), (1.0, 2.0, 3.0)), ((0.0, 1.0),), ((1.0, float("nan")),)]
)
def test_a_table_that_makes_no_sense_is_refused(points: Any) -> None:
    with pytest.raises(CostError, match="a table of kernels"):
        KernelTable(points)


def test_an_operator_without_a_table_goes_through_its_memory() -> None:
    assert RATES.seconds(Kernel("erfinv", (1000.0,))) == 1e-4
    assert RATES.seconds(Kernel("convolution", (1000.0, 3.0, 3.0, 3.0, 9.0))) == 1e-4


def test_passes_add_up_operators_views_modules_and_the_graph() -> None:
    kernels = (Kernel("mul", (10.0,)), Kernel(VIEW, (1.0,)), Kernel("mul", (10.0,)))
    assert RATES.forward(kernels, modules=3) == pytest.approx(2 * (1e-5 + 2e-6) + 5e-7 + 3 * 1e-6)
    assert RATES.backward(kernels) == pytest.approx(2 * (1e-5 - 1e-6) + 3e-7)
    assert RATES.plain(kernels) == pytest.approx(2 * 1e-5 + 5e-7)


def test_a_cost_below_nothing_makes_no_pass_shorter_than_nothing() -> None:
    noisy = replace(RATES, costs=dict.fromkeys(COSTS, -1.0))
    assert noisy.forward((Kernel("mul", (10.0,)), Kernel(VIEW, (1.0,))), modules=3) == 0.0
    assert noisy.backward((Kernel(VIEW, (1.0,)),)) == 0.0


def test_a_table_of_other_sizes_than_the_call_is_not_asked() -> None:
    odd = KernelRates(1, 1, {"mul": FLAT, "product": KernelTable(((16.0, 16.0, 1e-6),))}, COSTS)
    assert odd.seconds(Kernel("product", (1000.0, 3.0, 3.0, 3.0))) == 1e-4


def test_alpha_and_beta_are_found_again() -> None:
    found = fit([(nbytes, 3e-5 + 2e-9 * nbytes) for nbytes in (1e3, 1e5, 1e7)])
    assert (found.alpha, found.beta) == (pytest.approx(3e-5), pytest.approx(2e-9))
    assert found.residual == pytest.approx(0.0, abs=1e-9)


def test_relative_residuals_let_small_messages_count_as_much_as_large_ones() -> None:
    points = [(1e3, 1.1e-5), (2e3, 0.9e-5), (1e7, 1e-2), (2e7, 2.4e-2)]

    def loss(alpha: float, beta: float) -> float:
        return sum(((alpha + beta * nbytes) / seconds - 1) ** 2 for nbytes, seconds in points)

    best = fit(points)
    least = loss(best.alpha, best.beta)
    assert all(loss(best.alpha * a, best.beta * b) >= least for a in (0.9, 1.0, 1.1) for b in (0.9, 1.0, 1.1))


@pytest.mark.parametrize(
    ("points", "zero"), [([(1e3, 1e-6), (1e6, 2e-3)], "alpha"), ([(1e3, 1e-3), (1e6, 9e-4)], "beta")]
)
def test_neither_latency_nor_bandwidth_is_negative(points: list[tuple[float, float]], zero: str) -> None:
    found = fit(points)
    assert getattr(found, zero) == 0.0 and found.alpha + found.beta > 0


def test_one_size_makes_no_line() -> None:
    with pytest.raises(CostError, match="at least two sizes"):
        fit([(1e3, 1e-3), (1e3, 2e-3)])


def test_a_calibration_is_read_as_it_was_written() -> None:
    assert plain(read(plain(HERE))) == plain(HERE)
    assert read(plain(HERE)).rates[1].seconds(Kernel("mul", (1000.0,))) == pytest.approx(1e-4, rel=1e-3)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"format": 99}, "format=99"),
        ({"rates": None}, "not as paceline calibrate writes it"),
        ({"disk": {}}, "'bandwidth' is missing"),
        ({"rates": [{**plain(HERE)["rates"][0], "tables": {"product": "1 1"}}]}, "no table of mul"),
        ({"rates": [{**plain(HERE)["rates"][0], "tables": {"mul": "1 x"}}]}, "table mul"),
        ({"rates": [{**plain(HERE)["rates"][0], "tables": {"mul": "1 1 1"}}]}, "no table of mul"),
        ({"rates": [{**plain(HERE)["rates"][0], "threads": 0}]}, "threads=0"),
        ({"rates": [{**plain(HERE)["rates"][0], "costs": {**COSTS, "graph": float("nan")}}]}, "graph=nan"),
        ({"rates": []}, "has no rates"),
        ({"links": [{**plain(HERE)["links"][0], "alpha": -1.0}]}, "alpha=-1"),
        ({"links": [{**plain(HERE)["links"][0], "beta": float("inf")}]}, "beta=inf"),
        ({"links": [{**plain(HERE)["links"][0], "workers": 0}]}, "workers=0"),
        ({"cores": 0}, "cores=0"),
        ({"disk": {"bandwidth": 0.0, "latency": 1e-4}}, "bandwidth=0"),
    ],
)
def test_a_calibration_that_was_changed_is_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(CostError, match=says):
        read({**plain(HERE), **change})


def test_the_nearest_conditions_are_taken() -> None:
    assert (HERE.of(1, 4).threads, HERE.of(1, 4).processes) == (1, 2)
    assert (HERE.of(2, 1).threads, HERE.of(1, 1).processes) == (2, 1)
    assert HERE.link("all_reduce", 3).alpha == 4e-5 and HERE.link("all_reduce", 2).alpha == 1e-5
    with pytest.raises(CostError, match="gather: is not in the calibration of lab"):
        HERE.link("gather", 2)


def test_another_machine_is_told_from_this_one() -> None:
    assert HERE.differs("lab", "A CPU", 2) == []
    assert HERE.differs("desk", "A CPU", 4) == [
        "host desk where it was measured on lab",
        "cores 4 where it was measured on 2",
    ]
