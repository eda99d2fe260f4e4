"""Squared distances between rows, by native code and by torch."""

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
import torch
from needs import needs_compiler
from torch import Tensor

from paceline.comm import native
from paceline.exchange.aggregate import distances
from paceline.exchange.aggregate.distances import SHARE, gram, native_distances, squared, to_combination

Squared = Callable[[Tensor], Tensor]


def by_torch(rows: Tensor) -> Tensor:
    return distances.apart(gram(rows))


both = pytest.mark.parametrize("made", [pytest.param(squared, marks=needs_compiler, id="native"), by_torch])


def exact(rows: Tensor) -> np.ndarray:
    x = rows.double().numpy().astype(np.longdouble)
    return np.array([[((a - b) ** 2).sum() for b in x] for a in x])


def rows_of(n: int, d: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return (1e3 + torch.randn(n, d, generator=torch.Generator().manual_seed(n), dtype=torch.float64)).to(dtype)


def agree(made: Tensor, expected: np.ndarray, bound: float) -> bool:
    return bool((np.abs(made.numpy() - expected) <= bound * expected).all())


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_native_distances_are_exact_but_for_rounding_in_float64(dtype: torch.dtype) -> None:
    assert native_distances() is not None
    for n, d in product((1, 2, 3, 4, 5, 7), (0, 1, 5, 255, 256, 259, 1000)):
        rows = rows_of(n, d, dtype)
        assert agree(squared(rows), exact(rows), 1e-14), (n, d)
        assert torch.equal(squared(rows.T.contiguous().T), squared(rows)), "rows that are not dense in memory"


@both
def test_distances_far_from_zero_keep_their_digits(made: Squared) -> None:
    """A product in float32 of such long rows, without the mean taken off, has no digit of these distances left."""
    rows = 10 * rows_of(6, 5000)
    assert agree(made(rows), exact(rows), 1e-9)
    shares = torch.tensor([0.1, 0.2, 0.3, 0.1, 0.1, 0.2], dtype=torch.float64)
    expected = ((rows.double() - shares @ rows.double()) ** 2).sum(1)
    assert torch.allclose(to_combination(gram(rows), shares), expected, rtol=1e-9)


@both
def test_a_lie_that_is_very_far_leaves_the_digits_of_all_other_distances(made: Squared) -> None:
    """The mean goes with it: measured from there, what is left of honest rows is rounding."""
    rows = rows_of(7, 50)
    rows[5], rows[6] = 1e30, -1e15
    assert agree(made(rows)[:5, :5], exact(rows[:5]), 1e-9)


@both
def test_distances_are_alike_both_ways_and_infinite_where_they_overflow(made: Squared) -> None:
    rows = rows_of(5, 300, torch.float64)
    rows[4] = 1e300
    found = made(rows)
    assert torch.equal(found, found.T) and not found.diagonal().any()
    assert found[:4, 4].isinf().all()


@needs_compiler
def test_native_distances_have_the_same_bits_for_any_number_of_threads() -> None:
    rows, before = rows_of(3, 2 * SHARE + 77), torch.get_num_threads()
    found: list[Tensor] = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(squared(rows))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
    assert agree(found[0], by_torch(rows).numpy(), 1e-9)


def test_without_native_code_torch_computes_distances_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(native, "load", lambda _: None)
    native_distances.cache_clear()
    try:
        rows = rows_of(4, 100)
        assert torch.equal(squared(rows), by_torch(rows)) and torch.equal(squared(rows), by_torch(rows))
    finally:
        native_distances.cache_clear()
    said = capfd.readouterr().err
    assert said.count("\n") == 1 and "torch computes distances between updates" in said
