"""ATOMO and PowerSGD by their definitions, against plain torch."""

import copy
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import Case, identical, mlp64, momentum
from replicas import Life, live, saved_after
from torch import Tensor

from paceline.conf.errors import ConfigError
from paceline.exchange.channel import Channel
from paceline.exchange.compress import Atomo, PowerSGD, Slot, UnreadableError, Vector
from paceline.exchange.compress.atomo import probabilities, systematic
from paceline.exchange.compress.atomo import triples as triples_of
from paceline.exchange.compress.matrices import shortened, whole
from paceline.strategies import Sync
from paceline.strategies.core.errors import NotFiniteError
from paceline.strategies.sync.bsp import BSP
from paceline.strategies.sync.local_sgd import LocalSGD
from paceline.testing.messages import LoneWorker, flat_vector, round_trip, slot_of, totalled

DTYPES = [torch.float64, torch.float32, torch.bfloat16]
# a number, a vector, a matrix, a convolution, and matrices that factors of rank 2 do not shorten
SHAPES = ((), (5,), (12, 9), (6, 3, 2, 2), (2, 50), (3, 4), (0, 7))
LENGTHS = st.lists(st.floats(0, 4, width=32), min_size=1, max_size=12)


def sample(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(*size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def of_rank(m: int, n: int, rank: int, seed: int = 0) -> Tensor:
    return sample(m, rank, seed=seed) @ sample(rank, n, seed=seed + 1)


def vector_like(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Vector]:
    vector = Vector(SHAPES, dtype)
    return sample(vector.n).to(dtype), vector


# -- which parameters are shortened


@pytest.mark.parametrize("of", [Atomo, PowerSGD])
@pytest.mark.parametrize("dtype", DTYPES)
def test_matrices_that_factors_do_not_shorten_and_vectors_travel_whole(of, dtype):
    x, vector = vector_like(dtype)
    compress = of(0, 2)
    made = round_trip(compress, x, slot_of(x, vector))
    whole = [same.equal(piece) for same, piece in zip(vector.pieces(made), vector.pieces(x), strict=True)]
    assert whole == [True, True, False, False, True, True, True]
    entries = 1 + 5 + 2 * (12 + 9) + 2 * (6 + 3 * 2 * 2) + 2 * 50 + 3 * 4 + 0
    assert compress.nbytes(vector) == entries * dtype.itemsize
    assert made.dtype == dtype


@pytest.mark.parametrize("of", [Atomo, PowerSGD])
def test_a_rank_above_that_of_every_matrix_is_refused(of):
    """[2, 90] has the most entries, and [5, 40] the highest rank, in another part of the model."""
    parts = [[torch.empty(3, 2), torch.empty(2, 90)], [torch.empty(5, 4, 10), torch.empty(7)]]
    of(0, 5).check_model(parts)
    says = r"compress\.(rank|triples)=6: must be at most 5, the rank that the matrix \[5, 40\] can have and no other"
    with pytest.raises(ConfigError, match=says):
        of(0, 6).check_model(parts)
    of(0, 6).check_model([[torch.empty(7), torch.empty(0, 3)]])  # nothing is a matrix: all travels whole


@pytest.mark.parametrize("of", [Atomo, PowerSGD])
@pytest.mark.parametrize("n", [0, 1, 3])
def test_vectors_without_matrices_travel_as_they_are(of, n):
    x = sample(n)
    assert torch.equal(round_trip(of(), x), x)


@pytest.mark.parametrize("compress", [Atomo(), PowerSGD()], ids=["atomo", "powersgd"])
def test_what_is_no_number_is_reported_and_messages_that_nobody_makes_are_refused(compress):
    x = sample(20 * 30).float()
    vector = Vector(((20, 30),), torch.float32)
    message = compress.encode(x, Slot("x", vector, 0, 1)).contiguous().view(torch.uint8)
    for wrong in (message[:-1], torch.cat([message, message])):
        with pytest.raises(UnreadableError, match=f"{len(wrong)} bytes where {len(message)} were expected"):
            compress.decode(wrong, vector)
    message[:4] = 255
    with pytest.raises(UnreadableError, match="one of its numbers is NaN or infinite"):
        compress.decode(message, vector)
    for value in ("nan", "inf"):
        x[3] = float(value)
        with pytest.raises(NotFiniteError, match="worker 1 diverged: of the 600 numbers") as error:
            compress.encode(x, Slot("x", vector, 1, 2))
        assert error.value.exit_code == 6


# -- ATOMO


def by_bisection(lengths: np.ndarray, s: int) -> np.ndarray:
    """min(1, lambda_i / t) with the t that makes their sum s: where the gradient of the variance is alike."""
    low, high = 0.0, max(lengths.sum(), 1.0)
    for _ in range(200):
        t = (low + high) / 2
        if np.minimum(1, lengths / t).sum() > s:
            low = t
        else:
            high = t
    return np.minimum(1, lengths / high)


@settings(max_examples=40)
@given(LENGTHS, st.integers(1, 14))
def test_the_probabilities_of_triples_add_up_to_s_and_have_the_least_variance(values, s):
    lengths = np.sort(np.array(values, dtype=np.float64))[::-1].copy()
    p = probabilities(torch.from_numpy(lengths), s).numpy()
    assert p.sum() == pytest.approx(min(s, (lengths > 0).sum()), rel=1e-12)
    assert np.all((p >= 0) & (p <= 1)) and np.all((p > 0) == (lengths > 0))
    if (lengths > 0).sum() > s and lengths[lengths > 0].min() > 1e-6:
        np.testing.assert_allclose(p, by_bisection(lengths, s), rtol=1e-6)


def draws_of(p: Tensor, s: int) -> list[tuple[float, list[int]]]:
    """Every outcome with its exact probability: between two fractions of partial sums all u draw the same."""
    ends = sorted({0.0, 1.0, *(float(c) % 1 for c in p.cumsum(0))})
    between = [((low + high) / 2, high - low) for low, high in pairwise(ends) if high > low]
    return [(width, systematic(p, s, u).tolist()) for u, width in between]


@settings(max_examples=40)
@given(LENGTHS, st.integers(1, 14))
def test_each_triple_is_drawn_with_its_probability_and_s_are_drawn(values, s):
    lengths = torch.tensor(sorted(values, reverse=True), dtype=torch.float64)
    p = probabilities(lengths, s)
    drawn, seen = np.zeros(len(p)), 0.0
    for width, places in draws_of(p, s):
        drawn[places] += width
        seen += width
        if width > 1e-9:
            assert len(places) == min(s, int((lengths > 0).sum()))
    assert seen == pytest.approx(1)
    np.testing.assert_allclose(drawn, p.numpy(), atol=1e-9)


@pytest.mark.parametrize("s", [1, 2, 3, 5])
def test_atomo_is_unbiased_by_exact_expectation_with_the_variance_of_the_paper(s):
    matrix = sample(7, 12)
    lengths = torch.linalg.svdvals(matrix)
    p = probabilities(lengths, s)
    mean, variance = torch.zeros_like(matrix), 0.0
    ends = sorted({0.0, 1.0, *(float(c) % 1 for c in p.cumsum(0))})
    for low, high in pairwise(ends):
        left, right = triples_of(matrix, s, (low + high) / 2)
        made = left @ right.T
        mean += (high - low) * made
        variance += (high - low) * float(((made - matrix) ** 2).sum())
    torch.testing.assert_close(mean, matrix, rtol=0, atol=1e-12)
    assert variance == pytest.approx(float((lengths**2 * (1 / p - 1)).sum()), rel=1e-9)


def test_atomo_is_unbiased_by_simulation():
    """Bound: five standard deviations of the mean of 400 draws, of the whole matrix' error."""
    x, draws = sample(8 * 10), 400
    vector = Vector(((8, 10),), torch.float64)
    compress = Atomo(triples=2)
    made = torch.stack([round_trip(compress, x, slot_of(x, vector, count=count)) for count in range(draws)])
    lengths = torch.linalg.svdvals(x.view(8, 10))
    variance = float((lengths**2 * (1 / probabilities(lengths, 2) - 1)).sum())
    assert float((made.mean(0) - x).norm()) <= 5 * (variance / draws) ** 0.5
    errors = ((made - x) ** 2).sum(1)
    assert abs(float(errors.mean()) - variance) <= 5 * float(errors.std()) / draws**0.5


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_atomo_keeps_a_rank_of_s_or_less_exactly(rank):
    matrix = of_rank(9, 14, rank)
    for u in (0.0, 0.3, 0.999):
        left, right = triples_of(matrix, 3, u)
        torch.testing.assert_close(left @ right.T, matrix, rtol=0, atol=1e-12)


# -- PowerSGD


def slots_for(vector: Vector, workers: int) -> list[Slot]:
    return [Slot("x", vector, rank, workers) for rank in range(workers)]


def basis_by_gram_schmidt(p: Tensor) -> Tensor:
    columns: list[Tensor] = []
    for column in p.T:
        for _ in range(2):
            column = column - sum((column @ other) * other for other in columns)
        columns.append(column / column.norm())
    return torch.stack(columns, dim=1)


def test_a_step_is_algorithm_1_and_the_next_begins_with_its_q():
    """The second step in plain torch, of one matrix on three workers, from the Q that the first one left."""
    vector, compress = Vector(((12, 9),), torch.float64), PowerSGD(rank=2)
    slots = slots_for(vector, 3)
    totalled(compress, [sample(108, seed=i) for i in range(3)], slots)
    q = slots[0].memory["q"].view(9, 2).clone()
    assert all(torch.equal(slot.memory["q"], slots[0].memory["q"]) for slot in slots)
    rows = [sample(108, seed=10 + i) for i in range(3)]
    matrices = [row.view(12, 9) for row in rows]
    basis = basis_by_gram_schmidt(sum(m @ q for m in matrices))  # pyright: ignore[reportArgumentType]
    parts = [basis @ (m.T @ basis).T for m in matrices]
    for matrix, part, (total, left) in zip(matrices, parts, totalled(compress, rows, slots), strict=True):
        torch.testing.assert_close(total.view(12, 9), sum(parts), rtol=0, atol=1e-12)
        torch.testing.assert_close(left.view(12, 9), matrix - part, rtol=0, atol=1e-12)


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_to_compress_the_sum_is_to_sum_what_is_compressed(workers):
    """What collectives make of the rows of workers is what one worker makes of their sum; parts add up to it."""
    vector = Vector(SHAPES, torch.float64)
    compress = PowerSGD(rank=2)
    slots, alone = slots_for(vector, workers), slots_for(vector, 1)
    for t in range(3):
        rows = [sample(vector.n, seed=10 * t + i) for i in range(workers)]
        results = totalled(compress, rows, slots)
        [(expected, _)] = totalled(compress, [torch.stack(rows).sum(0)], alone)
        for total, _ in results:
            assert torch.equal(total, results[0][0])
            torch.testing.assert_close(total, expected, rtol=0, atol=1e-10)
        sent = [row - left for row, (_, left) in zip(rows, results, strict=True)]
        torch.testing.assert_close(torch.stack(sent).sum(0), expected)
        assert not any(bool(piece.any()) for _, left in results for piece in whole(left, shortened(vector, 2)))


@pytest.mark.parametrize("size", [1.0, 1e-30, 1e30])
def test_a_sum_of_rank_r_or_less_is_exact_even_after_one_of_lower_rank_or_none(size):
    compress, vector = PowerSGD(rank=3), Vector(((15, 11),), torch.float64)
    slots = slots_for(vector, 2)
    for t, rank in enumerate([3, 1, 3, 0, 3, 2, 3]):
        matrices = [of_rank(15, rank, 1, seed=t) @ sample(rank, 11, seed=i) for i in range(2)] if rank == 1 else None
        left = sample(15, rank, seed=t)
        matrices = matrices or [left @ sample(rank, 11, seed=10 * t + i) for i in range(2)]
        rows = [(matrix * size).flatten() for matrix in matrices]
        for total, _ in totalled(compress, rows, slots):
            torch.testing.assert_close(total, rows[0] + rows[1], rtol=0, atol=1e-9 * size)


def test_a_warm_start_comes_to_the_best_approximation():
    """Eckart and Young: the error of one matrix again and again is that of its first r triples."""
    x, vector = sample(20 * 15), Vector(((20, 15),), torch.float64)
    compress, slot = PowerSGD(rank=3), slot_of(x, vector)
    least = float(torch.linalg.svdvals(x.view(20, 15))[3:].norm())
    errors = [float((compress.decode(compress.encode(x, slot), vector) - x).norm()) for _ in range(80)]
    assert errors[0] > 1.02 * least and errors[-1] == pytest.approx(least, rel=1e-3)
    assert all(later <= former + 1e-12 for former, later in pairwise(errors))


def test_with_feedback_what_is_left_is_the_float_nearest_to_what_was_not_sent():
    vector, compress = Vector(((12, 9), (4,)), torch.float32), PowerSGD(rank=2)
    channel = Channel(compress, LoneWorker(), {"g": vector})  # pyright: ignore[reportArgumentType]
    left = torch.zeros(vector.n)
    for seed in range(5):
        x = sample(vector.n, seed=seed).float()
        p = left + x
        sent = compress.decode(channel.encode("g", x), vector)
        left = channel.state_dict()["g"]["memory"]["e"].clone()
        off = (p.double() - sent.double() - left.double()).abs()
        assert torch.equal(left, (p.double() - sent.double()).float()) and bool((off <= left.abs() * 2.0**-24).all())
        assert not bool(left[-4:].any())  # what travels whole leaves nothing


def test_what_a_sum_leaves_is_the_float_nearest_to_what_was_not_sent():
    vector, compress = Vector(((70, 90), (4,)), torch.float32), PowerSGD(rank=4)
    x, slot = sample(vector.n).float(), slot_of(torch.empty(0), Vector(((70, 90), (4,)), torch.float32))
    for _ in range(3):
        [(total, left)] = totalled(compress, [x], [slot])
        off = (x.double() - total.double() - left.double()).abs()
        assert bool((off <= left.abs() * 2.0**-24).all())


def test_what_slots_hold_is_as_stated():
    x, vector = vector_like(torch.float32)
    for feedback in (True, False):
        compress, slot = PowerSGD(rank=2, error_feedback=feedback), slot_of(x, vector)
        compress.encode(x, slot)
        if compress.feedback is not None:
            compress.feedback.add(x, slot)
        assert sum(tensor.nbytes for tensor in slot.memory.values()) == compress.held(vector)


# -- in training

SIZES = [[4, 3, 2], [3, 3, 3], [1, 4, 2], [2, 2, 2]]
CASE = Case(SIZES, model=mlp64, optimizer=momentum)


@pytest.mark.dist
@pytest.mark.parametrize("feedback", [True, False])
def test_bsp_with_a_rank_that_shortens_nothing_is_bsp_and_replicas_agree(virtual_workers, feedback):
    dense = virtual_workers(3, live, Life(BSP(), CASE))
    for rank in (1, 5):
        results = virtual_workers(3, live, Life(BSP(compress=PowerSGD(rank=rank, error_feedback=feedback)), CASE))
        assert all(identical(result["weights"], results[0]["weights"]) for result in results)
        apart = max(
            float((results[0]["weights"][key] - dense[0]["weights"][key]).abs().max()) for key in dense[0]["weights"]
        )
        assert apart > 1e-3 if rank == 1 else apart < 1e-12


def check_sums(fabric: Callable[..., list[dict[str, Any]]], of: Callable[..., Sync]) -> None:
    results = fabric(3, live, Life(of(compress=PowerSGD(rank=1)), CASE))
    assert all(identical(result["result"], results[0]["result"]) for result in results)
    assert set(results[0]["ledger"]) == {"all_reduce"}


@pytest.mark.dist
@pytest.mark.parametrize("of", [BSP, LocalSGD])
def test_a_collective_makes_its_sums(virtual_workers, of):
    check_sums(virtual_workers, of)


@pytest.mark.slow
@pytest.mark.dist
def test_a_collective_makes_its_sums_on_processes_over_gloo(workers):
    check_sums(workers, BSP)


@pytest.mark.parametrize("compress", [Atomo(triples=1), PowerSGD(rank=1)], ids=["atomo", "powersgd"])
def test_a_saved_rule_goes_on_bit_for_bit(virtual_workers, compress):
    whole = virtual_workers(3, live, Life(BSP(compress=copy.deepcopy(compress)), CASE))
    again = virtual_workers(
        3, live, Life(BSP(compress=copy.deepcopy(compress)), CASE, saved=saved_after(whole, 2), start=2)
    )
    for a, b in zip(whole, again, strict=True):
        assert identical(a["weights"], b["weights"])


def test_flat_vectors_are_no_matrices():
    assert PowerSGD().nbytes(flat_vector(torch.zeros(10))) == 40
