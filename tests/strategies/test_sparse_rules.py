"""Rules that send some entries, or some coefficients, against their definitions in plain numpy."""

from math import ceil
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from paceline.conf.errors import ConfigError
from paceline.exchange.channel import Channel
from paceline.exchange.compress import (
    DGC,
    Compressor,
    DeMo,
    RandomK,
    SparseLoCo,
    Threshold,
    TopK,
    UnreadableError,
    Vector,
)
from paceline.exchange.compress.demo import dct, restore, tiles_of, transformed
from paceline.exchange.compress.places import largest_of_rows, pack_places, unpack_places
from paceline.exchange.compress.randomk import places_of
from paceline.strategies.core.errors import NotFiniteError
from paceline.testing.messages import LoneWorker, flat_vector, round_trip, slot_of, totalled

DTYPES = [torch.float64, torch.float32, torch.bfloat16]
SHAPES = ((6, 10), (7,), (4, 3, 2, 2), (), (0, 3))


def drawn(n: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return torch.randn(n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def channel_of(compress: Compressor, vector: Vector) -> Channel:
    return Channel(compress, LoneWorker(), {"g": vector})  # pyright: ignore[reportArgumentType]


def sent_by(channel: Channel, vector: Vector, x: Tensor) -> Tensor:
    return channel.compress.decode(channel.encode("g", x), vector)


def memory(channel: Channel) -> dict[str, Tensor]:
    return channel.state_dict()["g"]["memory"]


def first_largest(x: np.ndarray, k: int) -> np.ndarray:
    return np.sort(np.argsort(-np.abs(x), kind="stable")[:k])


# -- all of them

EVERY = [
    TopK(0.3),
    RandomK(0, 0.3),
    RandomK(0, 0.3, error_feedback=False),
    Threshold(0.5),
    DGC(0.3),
    DGC(0.01, warmup=4),
    SparseLoCo(0.3, chunk=8),
    SparseLoCo(0.3, chunk=8, quantize=False),
    DeMo(3, chunk=4),
]


@pytest.mark.parametrize("rule", EVERY, ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize("dtype", DTYPES)
def test_vectors_of_no_entry_and_of_one_and_of_every_dtype_are_messages(rule, dtype):
    for n in (0, 1, 2, 21):
        x, vector = drawn(n, dtype), Vector(((n,),), dtype)
        message = rule.encode(x, slot_of(x))
        assert message.dtype == torch.uint8 and message.nbytes <= rule.nbytes(vector)
        assert not rule.traits.steady or message.nbytes == rule.nbytes(vector)
        decoded = rule.decode(message, vector)
        assert decoded.dtype == dtype and decoded.shape == x.shape


@pytest.mark.parametrize("rule", [rule for rule in EVERY if rule.traits.steady], ids=lambda rule: type(rule).__name__)
def test_messages_of_another_length_are_refused(rule):
    x = drawn(21)
    message = rule.encode(x, slot_of(x))
    for other in (message[1:], torch.cat([message, message[:1]])):
        with pytest.raises(UnreadableError, match=f"bytes where {message.nbytes} were expected"):
            rule.decode(other, flat_vector(x))


@pytest.mark.parametrize(
    "rule",
    [Threshold(0.5), RandomK(0, 0.3), SparseLoCo(0.3, beta=0.5, chunk=8, quantize=False), TopK(0.3)],
    ids=lambda rule: type(rule).__name__,
)
def test_what_was_sent_and_what_is_left_are_what_there_was_bit_for_bit(rule):
    vector = Vector(((21,),), torch.float32)
    channel, left = channel_of(rule, vector), torch.zeros(21)
    for t in range(4):
        x = drawn(21, torch.float32, t)
        accumulated = left * rule.feedback.decay + x
        sent = sent_by(channel, vector, x)
        left = memory(channel)["e"].clone()
        assert torch.equal(sent + left, accumulated) and not bool((sent.bool() & left.bool()).any())


# -- randomk


def test_randomk_sends_k_places_that_all_workers_draw_alike_and_others_with_the_next_message():
    x, rule = drawn(50), RandomK(3, 0.1)
    first, other = (rule.encode(x, slot_of(x, rank=rank, workers=2)) for rank in (0, 1))
    assert torch.equal(first, other) and first.nbytes == 8 + 5 * 8
    kept = round_trip(rule, x)
    assert int((kept != 0).sum()) == 5 and torch.equal(kept[kept != 0], x[kept != 0])
    assert not torch.equal(first, rule.encode(x, slot_of(x, count=1)))


@pytest.mark.parametrize(("n", "k"), [(12, 3), (20_000, 7)])
def test_places_are_distinct_rising_and_each_as_likely(n, k):
    counts = np.zeros(n)
    for seed in range(300):
        places = places_of(n, k, seed).numpy()
        assert len(places) == k and (np.diff(places) > 0).all() and places[0] >= 0 and places[-1] < n
        counts[places] += 1
    thirds = counts.reshape(-1, n // 4).sum(1)
    assert (abs(thirds - 300 * k / 4) < 5 * (300 * k / 4) ** 0.5).all()


@pytest.mark.slow
def test_without_feedback_randomk_is_unbiased():
    x, rule = drawn(8), RandomK(0, 0.25, error_feedback=False)
    total = sum(rule.decode(rule.encode(x, slot_of(x, count=t)), flat_vector(x)) for t in range(4000))
    deviation = x.abs() * (8 / 2 - 1) ** 0.5
    assert bool(((total / 4000 - x).abs() < 5 * deviation / 4000**0.5).all())


@pytest.mark.parametrize("feedback", [True, False])
def test_the_sum_that_workers_make_of_values_alone_is_that_of_what_is_decoded(feedback):
    rule, rows = RandomK(1, 0.3, error_feedback=feedback), [drawn(20, seed=i) for i in range(3)]
    slots = [slot_of(row, rank=i, workers=3) for i, row in enumerate(rows)]
    assert rule.of_total(flat_vector(rows[0])) == [6 * 8]
    sent = [round_trip(rule, row, slot) for row, slot in zip(rows, slots, strict=True)]
    for (total, left), row, own in zip(totalled(rule, rows, slots), rows, sent, strict=True):
        assert torch.allclose(total, cast(torch.Tensor, sum(sent)), rtol=0, atol=1e-14)
        assert torch.equal(left, row - own if feedback else total)


def test_randomk_refuses_a_seed_that_none_draws():
    x, rule = drawn(10), RandomK(0, 0.5)
    message = rule.encode(x, slot_of(x))
    message[7] |= 128
    with pytest.raises(UnreadableError, match="its seed is negative"):
        rule.decode(message, flat_vector(x))


# -- threshold


def test_threshold_sends_what_reaches_it_and_what_is_no_number():
    x = torch.tensor([0.5, -0.5, 0.49, float("nan"), -float("inf"), 0.0])
    message = Threshold(0.5).encode(x, slot_of(x))
    assert message.nbytes == 4 * 8
    assert torch.equal(message[:16].view(torch.int32), torch.tensor([0, 1, 3, 4], dtype=torch.int32))
    kept = Threshold(0.5).decode(message, flat_vector(x))
    assert kept.nan_to_num(9).tolist() == [0.5, -0.5, 0, 9, -torch.finfo(torch.float32).max, 0]
    assert Threshold(9.0).encode(torch.ones(3), slot_of(torch.ones(3))).nbytes == 0


def test_threshold_refuses_messages_that_it_does_not_make():
    x = drawn(6, torch.float32)
    message = Threshold(1e-9).encode(x, slot_of(x))
    with pytest.raises(UnreadableError, match="no whole number of places and values"):
        Threshold().decode(message[1:], flat_vector(x))
    message[:4] = 255
    with pytest.raises(UnreadableError, match="not 6 rising numbers below 6"):
        Threshold().decode(message, flat_vector(x))


# -- DGC


@pytest.mark.parametrize("masking", [True, False])
def test_dgc_is_its_algorithm(masking):
    """In numpy: u <- m u + g, v <- v + u, the k largest of v leave, and u is 0 where they left."""
    n, k, m, c = 20, 4, 0.8, 2.0
    vector = Vector(((n,),), torch.float64)
    channel = channel_of(DGC(k / n, m, c, masking), vector)
    u, v = np.zeros(n), np.zeros(n)
    for t in range(6):
        g = drawn(n, seed=t).numpy()
        u = m * u + g * min(1.0, c / np.linalg.norm(g))
        v = v + u
        places, expected = first_largest(v, k), np.zeros(n)
        expected[places] = v[places]
        v[places] = 0
        if masking:
            u[places] = 0
        sent = sent_by(channel, vector, torch.from_numpy(g))
        assert np.allclose(sent.numpy(), expected, rtol=0, atol=1e-13)
        assert np.allclose(memory(channel)["u"].numpy(), u, rtol=0, atol=1e-13)
        assert np.allclose(memory(channel)["v"].numpy(), v, rtol=0, atol=1e-13)
    assert channel.compress.held(vector) == 2 * 8 * n == sum(kept.nbytes for kept in channel.buffers())


def test_clipping_takes_time_on_a_modelled_worker():
    """A norm and a product: on one core it took as long again as all else that is done with u and v."""
    plain, clipping = (DGC(clip=clip).feedback for clip in (None, 1.0))
    assert plain is not None and clipping is not None and clipping.passes == 2 * plain.passes


def test_each_of_n_workers_is_clipped_to_its_part_of_the_bound():
    g, compress = torch.tensor([3.0, 4.0]), DGC(1.0, 0.0, clip=2.0)
    slot = slot_of(g, workers=16)
    assert torch.allclose(compress.feedback.add(g, slot), g / 5 * 2 / 4) and g.tolist() == [3, 4]
    small = torch.tensor([0.1, 0.2])
    assert torch.equal(compress.feedback.add(small, slot_of(small, workers=16)), small)


@pytest.mark.parametrize(("masking", "momentum"), [(False, 0.9), (True, 0.0)])
def test_dgc_that_sends_all_is_sgd_with_momentum_and_with_masking_without(masking, momentum):
    vector, weights = Vector(((9,),), torch.float64), nn.Parameter(drawn(9, seed=50))
    channel, own = channel_of(DGC(1.0, 0.9, masking=masking), vector), weights.detach().clone()
    optimizer = torch.optim.SGD([weights], lr=0.1, momentum=momentum)
    for t in range(5):
        weights.grad = drawn(9, seed=t)
        own -= 0.1 * sent_by(channel, vector, weights.grad)
        optimizer.step()
        assert torch.allclose(own, weights, rtol=0, atol=1e-13)


def test_the_share_falls_in_four_stages_of_the_warm_up():
    rule, n = DGC(0.001, warmup=8), 100_000
    x = drawn(n, torch.float32)
    lengths = [rule.encode(x, slot_of(x, count=t)).nbytes for t in (0, 1, 2, 4, 6, 7, 8, 99)]
    assert lengths == [8 * ceil(0.001 ** (i / 5) * n) for i in (1, 1, 2, 3, 4, 4, 5, 5)]
    assert not rule.traits.steady and rule.nbytes(flat_vector(x)) == lengths[0] and DGC().traits.steady
    with pytest.raises(UnreadableError, match="bytes where at most"):
        rule.decode(torch.zeros(lengths[0] + 8, dtype=torch.uint8), flat_vector(x))


def test_the_mean_of_its_messages_is_stated_for_any_number_of_them():
    rule, vector = DGC(0.001, warmup=8), flat_vector(x := drawn(100_000, torch.float32))
    lengths = [rule.encode(x, slot_of(x, count=t)).nbytes for t in range(12)]
    for messages in range(1, 13):
        assert not rule.varies(messages)
        assert rule.mean_nbytes(vector, messages) * messages == pytest.approx(sum(lengths[:messages]), rel=1e-14)
    assert rule.varies(None) and rule.mean_nbytes(vector, None) == lengths[-1]


@pytest.mark.parametrize("rule", [DGC(), DeMo()], ids=["dgc", "demo"])
def test_an_optimizer_with_a_momentum_of_its_own_is_refused(rule):
    weights = [nn.Parameter(torch.zeros(2))]
    for optimizer in (torch.optim.SGD(weights, momentum=0.9), torch.optim.AdamW(weights)):
        with pytest.raises(ConfigError, match=f"{type(optimizer).__name__} would add its own. Choose optimizer=sgd"):
            rule.check_optimizer(optimizer)
    rule.check_optimizer(torch.optim.SGD(weights, momentum=0))


# -- SparseLoCo


def two_bits(e: np.ndarray, chunk: int, ratio: float) -> np.ndarray:
    """Q(TopK(e)), chunk by chunk."""
    made = np.zeros_like(e)
    for at in range(0, len(e), chunk):
        part = e[at : at + chunk]
        places = first_largest(part, ceil(ratio * len(part)))
        sizes = np.abs(part[places])
        large = sizes > sizes.mean()
        for of in (large, ~large):
            if of.any():
                made[at + places[of]] = np.sign(part[places[of]]) * sizes[of].mean()
    return made


def test_sparseloco_is_its_algorithm():
    """e <- beta e + D, q = Q(TopK(e)), e <- e - q"""
    vector, beta = Vector(((45,),), torch.float64), 0.9
    channel, e = channel_of(SparseLoCo(0.25, beta, chunk=16), vector), np.zeros(45)
    for t in range(5):
        difference = drawn(45, seed=t)
        e = beta * e + difference.numpy()
        q = two_bits(e, 16, 0.25)
        e = e - q
        assert np.allclose(sent_by(channel, vector, difference).numpy(), q, rtol=0, atol=1e-13)
        assert np.allclose(memory(channel)["e"].numpy(), e, rtol=0, atol=1e-13)


def test_sparseloco_has_the_bytes_that_it_states_and_twelve_bits_a_place():
    vector = Vector(((10_000,),), torch.float32)
    k = 2 * ceil(0.03 * 4096) + ceil(0.03 * 1808)
    assert SparseLoCo().nbytes(vector) == 3 * 8 + ceil(k * 12 / 8) + ceil(k * 2 / 8)
    assert round_trip(SparseLoCo(), drawn(10_000, torch.float32)).count_nonzero() == k


def test_sparseloco_that_sends_all_is_what_there_was():
    x = drawn(100, torch.float32)
    assert SparseLoCo(1.0, quantize=False).traits.lossless and not SparseLoCo(1.0).traits.lossless
    assert torch.equal(round_trip(SparseLoCo(1.0, quantize=False), x), x)


@pytest.mark.parametrize("rule", [SparseLoCo(0.5, chunk=4), DeMo(2, chunk=4)], ids=["sparseloco", "demo"])
def test_what_is_no_number_is_reported_instead_of_spread(rule):
    x = drawn(8)
    x[3] = float("inf")
    with pytest.raises(NotFiniteError, match="0 are NaN and 1 infinite"):
        rule.encode(x, slot_of(x))


def test_places_in_rows_are_packed_and_must_rise():
    places = torch.tensor([0, 3, 4095, 7, 9])
    packed = pack_places(places, 12)
    assert packed.nbytes == 8 and torch.equal(unpack_places(packed, 5, 12), places)
    packed[-1] |= 1
    with pytest.raises(UnreadableError, match="fills up the last byte"):
        unpack_places(packed, 5, 12)
    x, rule = drawn(8), SparseLoCo(0.5, chunk=4, quantize=False)
    message = rule.encode(x, slot_of(x))
    message[0] = 0
    with pytest.raises(UnreadableError, match="not 2 rising numbers below 4"):
        rule.decode(message, flat_vector(x))
    message = SparseLoCo(0.5, chunk=4).encode(x, slot_of(x))
    message[:8] = 255
    with pytest.raises(UnreadableError, match="magnitudes is NaN, infinite or negative"):
        SparseLoCo(0.5, chunk=4).decode(message, flat_vector(x))


# -- DeMo


@pytest.mark.parametrize("s", [1, 2, 7, 64])
def test_the_transform_is_the_orthonormal_dct_and_there_and_back_is_exact_to_rounding(s):
    matrix = dct(s, torch.float64, torch.device("cpu"))
    assert torch.allclose(matrix @ matrix.T, torch.eye(s, dtype=torch.float64), rtol=0, atol=1e-12)
    for i in range(s):
        for j in (0, s - 1):
            scale = (1 / s if i == 0 else 2 / s) ** 0.5
            assert float(matrix[i, j]) == pytest.approx(scale * np.cos(np.pi * (2 * j + 1) * i / (2 * s)), abs=1e-14)


@pytest.mark.parametrize("width", [8, 250, 256, 512])
@pytest.mark.parametrize("scale", [1e6, 100, 3])
def test_of_each_row_the_first_of_the_largest_are_chosen(width: int, scale: float) -> None:
    """Ties are settled: nearly all whole numbers of 0 to 3 are equal, and of 10^6 nearly none."""
    rows = torch.randn(40, width, generator=torch.Generator().manual_seed(width)).mul(scale).round()
    rows[7] = 0
    for k in {1, 5, width // 8 - 1, width // 8, width - 1, width} - {0}:
        expected = np.stack([np.sort(first_largest(row, k)) for row in rows.numpy()])
        assert np.array_equal(largest_of_rows(rows, k).numpy(), expected), k


def test_tiles_are_the_largest_that_divide_and_are_put_back():
    assert (
        tiles_of((6, 10), 4) == (2, 3, 5, 2) and tiles_of((7,), 4) == (1, 1, 7, 1) and tiles_of((), 4) == (1, 1, 1, 1)
    )
    x, tiles = drawn(60), tiles_of((6, 10), 4)
    coefficients = transformed(x.view(6, 10), tiles)
    first = dct(3, torch.float64, x.device) @ x.view(6, 10)[:3, 2:4] @ dct(2, torch.float64, x.device).T
    assert torch.allclose(coefficients[1], first.flatten(), rtol=0, atol=1e-13)
    restored = torch.empty_like(x)
    restore(coefficients, tiles, restored.view(6, 10))
    assert torch.allclose(restored, x, rtol=0, atol=1e-13)


def fast_part(d: np.ndarray, k: int, chunk: int) -> np.ndarray:
    """[m, n] -> IDCT of the k largest coefficients of each tile."""
    tiles, made = tiles_of(d.shape, chunk), np.zeros_like(d)
    left, right = (dct(s, torch.float64, torch.device("cpu")).numpy() for s in (tiles.a, tiles.b))
    for i in range(0, d.shape[0], tiles.a):
        for j in range(0, d.shape[1], tiles.b):
            of = left @ d[i : i + tiles.a, j : j + tiles.b] @ right.T
            kept, places = np.zeros(of.size), first_largest(of.flatten(), k)
            kept[places] = of.flatten()[places]
            made[i : i + tiles.a, j : j + tiles.b] = left.T @ kept.reshape(of.shape) @ right
    return made


def test_demo_is_its_algorithm():
    """d <- beta d + g, q of the k largest coefficients, d <- d - IDCT(q)"""
    vector, beta = Vector(((6, 10),), torch.float64), 0.9
    channel, d = channel_of(DeMo(2, beta, chunk=4), vector), np.zeros((6, 10))
    for t in range(5):
        g = drawn(60, seed=t)
        d = beta * d + g.view(6, 10).numpy()
        q = fast_part(d, 2, 4)
        d = d - q
        assert np.allclose(sent_by(channel, vector, g).view(6, 10).numpy(), q, rtol=0, atol=1e-12)
        assert np.allclose(memory(channel)["e"].view(6, 10).numpy(), d, rtol=0, atol=1e-12)


def test_all_coefficients_and_no_memory_is_sign_sgd():
    vector = Vector(SHAPES, torch.float64)
    rule = DeMo(16, 0.0, chunk=4)
    channels = [channel_of(rule, vector) for _ in range(3)]
    for t in range(3):
        gradients = [drawn(vector.n, seed=3 * t + i) for i in range(3)]
        total: Any = sum(sent_by(channel, vector, g) for channel, g in zip(channels, gradients, strict=True))
        whole: Any = sum(gradients)
        assert torch.equal(rule.finish(total, vector), whole.sign())


def test_demo_has_the_bytes_that_it_states():
    vector = Vector(((128, 64), (10,)), torch.float32)
    m = 2 * 32 + 10
    assert DeMo().nbytes(vector) == ceil(m * 12 / 8) + 4 * m
    x = drawn(vector.n, torch.float32)
    round_trip(DeMo(), x, slot_of(x, vector))
