"""QSGD and TernGrad by their definitions: unbiased, by exact expectation and by simulation, and of which variance."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from needs import needs_compiler
from torch import Tensor

from paceline.exchange.compress import QSGD, Compressor, TernGrad, UnreadableError, Vector, rounding
from paceline.exchange.compress.rounding import BLOCK, floor_of_sum, generator, native_rounding, uniform
from paceline.strategies.core.errors import NotFiniteError
from paceline.testing.messages import flat_vector, round_trip, slot_of

DTYPES = [torch.float64, torch.float32, torch.bfloat16]
RULES: dict[str, Compressor] = {
    **{f"qsgd {bits}": QSGD(bits=bits, bucket=8) for bits in (2, 4, 8)},  # pyright: ignore[reportArgumentType]
    "terngrad": TernGrad(),
}
EACH = pytest.mark.parametrize("compress", RULES.values(), ids=list(RULES))


def sample(n: int, seed: int = 0) -> Tensor:
    return torch.randn(n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def steps_of(compress: Compressor, x: np.ndarray) -> np.ndarray:
    """[n]: how far apart the two values are between which each entry is drawn; one parameter."""
    if isinstance(compress, TernGrad):
        return np.full(len(x), np.abs(x).max())
    assert isinstance(compress, QSGD)
    s = {2: 1, 4: 7, 8: 127}[compress.bits]
    norms = [np.linalg.norm(x[i : i + compress.bucket]) for i in range(0, len(x), compress.bucket)]
    return np.repeat(norms, compress.bucket)[: len(x)] / s


# -- rounding


@pytest.mark.parametrize("r", [0.0, 1.0, -3.0, 127.0, -127.0, 0.5, -0.5, 0.1, -0.9, 1e-6, -1e-6, 6.7, -100.3, 126.99])
def test_over_all_draws_the_mean_of_what_is_rounded_is_what_there_was(r):
    """All 2^23 values of u, one by one: the exact expectation."""
    k = torch.arange(-(2**15), 2**15, dtype=torch.int16)
    x, total, seen = torch.full((len(k),), r), 0, set[float]()
    for j in range(2**7):
        rounded = floor_of_sum(x.clone(), k, torch.tensor(0.5 + j * 2.0**-23), torch.empty(len(k)))
        total += int(rounded.sum(dtype=torch.float64))
        seen |= {float(rounded.min()), float(rounded.max())}
    exact = float(x[0])
    assert abs(total / 2**23 - exact) <= 2.0**-23
    assert seen == ({exact} if exact.is_integer() else {np.floor(exact), np.ceil(exact)})


def test_draws_are_uniform_and_neither_their_order_nor_a_bit_repeats():
    k, h = uniform(256, 256, np.random.Generator(np.random.SFC64(0)))
    u = (k.double() * 2**-16 + h.double()).flatten()
    assert float(u.min()) >= 0 and float(u.max()) < 1 and torch.equal(u * 2**23, (u * 2**23).round())
    n = len(u)
    assert abs(float(u.mean()) - 1 / 2) < 5 * (1 / 12 / n) ** 0.5
    counts = torch.histc(u, 64, 0, 1)
    assert float(((counts - n / 64) ** 2).sum() / (n / 64)) < 63 + 5 * (2 * 63) ** 0.5  # chi squared
    for far in (1, 2, 4, 256):  # one after another, within a word of 64 bits, from row to row
        assert abs(float(torch.corrcoef(torch.stack([u[:-far], u[far:]]))[0, 1])) < 5 / n**0.5


def test_what_is_drawn_follows_from_the_seed_the_key_the_message_and_the_worker():
    x = sample(100).float()

    def made(seed: int = 0, **how: Any) -> list[int]:
        return QSGD(seed, bits=2).encode(x, slot_of(x, **how)).tolist()

    assert made() == made()
    assert len({tuple(each) for each in (made(), made(seed=1), made(rank=1), made(count=1))}) == 4
    a, b = (generator(slot_of(x).draws(seed)).integers(0, 2**64, 4, dtype=np.uint64).tolist() for seed in (0, 1))
    assert a != b


@needs_compiler
@pytest.mark.parametrize("rule", [QSGD(bits=2), QSGD(bits=4), QSGD(bits=8, bucket=100), QSGD(bits=8), TernGrad()])
def test_native_code_rounds_to_the_same_bits(rule: Compressor, monkeypatch: pytest.MonkeyPatch) -> None:
    x = sample(2 * BLOCK + 321).float()
    x[:2000] = 0.0
    x[2000:2600] = torch.linspace(-1, 1, 600) * 1e-40  # subnormal
    x[3000:3003] = torch.tensor([3e38, -1e38, 0.0])
    x[4000:5000:3], x[4001:5000:3] = 1.0, -1.0  # next to zeros: levels without a remainder
    assert native_rounding() is not None
    made = rule.encode(x, slot_of(x))
    monkeypatch.setattr("paceline.exchange.compress.rounding.native_rounding", lambda: None)
    assert torch.equal(made, rule.encode(x, slot_of(x)))


@needs_compiler
@pytest.mark.parametrize(("k", "j"), [(-(2**15), 0), (2**15 - 1, 2**7 - 1)], ids=["the least u", "the largest u"])
def test_native_code_rounds_what_is_next_to_a_level_to_the_same_bits(
    k: int, j: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A product that is rounded to a level was above or below it, and one that should be s may be larger."""

    def extreme(rows: int, width: int, _: np.random.Generator) -> tuple[Tensor, Tensor]:
        return torch.full((rows, width), k, dtype=torch.int16), torch.full((rows, 1), 0.5 + j * 2.0**-23)

    monkeypatch.setattr(rounding, "uniform", extreme)
    scales = sample(200).float().abs()
    x = scales[:, None] * torch.arange(-127, 128) / 127
    x[::2] = x[::2].nextafter(torch.tensor(torch.inf))
    made = torch.empty(2, x.numel(), dtype=torch.uint8)
    rounding.levels(x, scales, 127, generator(torch.Generator()), made[0])
    monkeypatch.setattr(rounding, "native_rounding", lambda: None)
    rounding.levels(x, scales, 127, generator(torch.Generator()), made[1])
    assert torch.equal(made[0], made[1]) and int(made.max()) == 254 and int(made.min()) == 0


# -- the rules


@EACH
@pytest.mark.parametrize("dtype", DTYPES)
def test_each_entry_is_one_of_the_two_levels_beside_it(compress, dtype):
    x = sample(61).to(dtype)
    exact = x.double().numpy()
    steps = steps_of(compress, exact)
    sent = round_trip(compress, x)
    assert sent.dtype == dtype
    rounding = 4 * torch.finfo(dtype).eps * (np.abs(sent.double().numpy()) + np.abs(exact))
    below, above = np.floor(exact / steps) * steps, np.ceil(exact / steps) * steps
    made = sent.double().numpy()
    assert np.all((np.abs(made - below) <= rounding) | (np.abs(made - above) <= rounding))


@EACH
def test_by_simulation_it_is_unbiased_and_its_variance_is_that_of_the_paper(compress):
    """Bounds: five standard deviations of the means of so many draws, which 61 entries hold with P > 0.9999."""
    x, draws = sample(61, seed=3).float(), 400
    exact = x.double().numpy()
    made = np.stack([round_trip(compress, x, slot_of(x, count=count)).double().numpy() for count in range(draws)])
    steps = steps_of(compress, exact)
    p = exact / steps - np.floor(exact / steps)
    variance = steps**2 * p * (1 - p)
    assert np.all(np.abs(made.mean(0) - exact) <= 5 * np.sqrt(variance / draws) + 1e-5 * steps)
    errors = ((made - exact) ** 2).sum(1)
    assert abs(errors.mean() - variance.sum()) <= 5 * errors.std() / draws**0.5


@given(st.lists(st.floats(-4, 4, width=32), min_size=1, max_size=8), st.sampled_from([2, 4, 8]))
def test_the_variance_of_qsgd_is_within_the_bound_of_the_paper(values, bits):
    """In closed form from the probabilities, for one bucket."""
    exact, s = np.array(values, dtype=np.float64), 2 ** (bits - 1) - 1
    if not exact.any():
        return
    n, norm = len(exact), np.linalg.norm(exact)
    step = steps_of(QSGD(bits=bits, bucket=n), exact)
    p = np.abs(exact) / step - np.floor(np.abs(exact) / step)
    assert (step**2 * p * (1 - p)).sum() <= min(n / s**2, n**0.5 / s) * norm**2 * (1 + 1e-12)


def test_with_half_as_many_levels_the_variance_bound_of_qsgd_would_not_hold():
    """The bound can fail."""
    step = 8 / 1.5  # of 64 ones
    p = 1 / step
    assert 64 * step**2 * p * (1 - p) > min(64 / 3**2, 8 / 3) * 64


@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 64, 65])
@EACH
def test_any_number_of_entries_makes_messages_of_the_stated_length(compress, n):
    x = sample(n).float()
    made = round_trip(compress, x)
    assert made.shape == x.shape
    if isinstance(compress, QSGD):
        assert compress.nbytes(flat_vector(x)) == 4 * -(-n // 8) + -(-n * compress.bits // 8)
        assert compress.nbytes(flat_vector(x.double())) == 8 * -(-n // 8) + -(-n * compress.bits // 8)
    else:
        assert compress.nbytes(flat_vector(x)) == 4 + -(-n // 4)


@EACH
def test_what_is_on_a_level_stays_and_zeros_are_zeros(compress):
    assert torch.equal(round_trip(compress, torch.zeros(13)), torch.zeros(13))
    x = torch.zeros(16)
    x[3], x[12] = -2.5, 2.5
    assert torch.equal(round_trip(compress, x), x)


def test_each_bucket_has_a_norm_of_its_own():
    x = torch.cat([torch.full((512,), 1e-6), torch.full((512,), 1e6), torch.full((5,), 1.0)])
    made = round_trip(QSGD(), x)
    assert float(made[:512].max()) < 1e-5 and float((made[:512] - 1e-6).abs().max()) > 0
    assert float((made[512:1024] - 1e6).abs().max()) < 1e6


@EACH
@pytest.mark.parametrize("size", [1e-45, 1e-40, 1e-36, 1e-25, 1e-15, 1e15, 1e25, 3e38])
def test_the_smallest_and_largest_numbers_are_rounded_like_others_unbiased(compress, size):
    x = torch.tensor([1.0, -0.5, 0.25, 0.0] * 4) * size
    made = torch.stack([round_trip(compress, x, slot_of(x, count=count)).double() for count in range(300)])
    assert bool(made.isfinite().all()) and not bool(made[:, x == 0].any())
    scale = max(16**0.5 * size, 2.0**-110)
    assert float((made.mean(0) - x.double()).abs().max()) <= 5 * scale / 300**0.5


@EACH
def test_what_is_no_number_is_reported_and_not_spread(compress):
    for value, says in (("nan", "1 are NaN and 0 infinite"), ("inf", "0 are NaN and 1 infinite"), ("-inf", "1 infin")):
        x = sample(30).float()
        x[17] = float(value)
        with pytest.raises(NotFiniteError, match=rf"worker 3 diverged: of the 30 numbers .*{says}") as error:
            compress.encode(x, slot_of(x, rank=3))
        assert error.value.exit_code == 6


@EACH
def test_messages_that_it_does_not_make_are_refused(compress):
    x = sample(13).float()
    message = compress.encode(x, slot_of(x))
    with pytest.raises(UnreadableError, match=f"{len(message) + 1} bytes where {len(message)} were expected"):
        compress.decode(torch.cat([message, message[:1]]), flat_vector(x))
    for value in (float("nan"), float("inf"), -1.0):
        wrong = message.clone()
        wrong[:4] = torch.tensor([value]).view(torch.uint8)
        with pytest.raises(UnreadableError, match="one of its scales is NaN, infinite or negative"):
            compress.decode(wrong, flat_vector(x))
    wrong = message.clone()
    wrong[4 if isinstance(compress, TernGrad) else 8] = 255  # the first codes
    with pytest.raises(UnreadableError, match=r"one of its levels is above \d"):
        compress.decode(wrong, flat_vector(x))


@pytest.mark.parametrize("bits", [2, 4])
def test_the_last_byte_is_filled_up_with_zeros(bits):
    x = sample(17).float()
    message = QSGD(bits=bits).encode(x, slot_of(x))
    message[-1] |= 0x40
    with pytest.raises(UnreadableError, match="fills up its last byte"):
        QSGD(bits=bits).decode(message, flat_vector(x))


@settings(max_examples=50)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=4))
def test_terngrad_scales_each_parameter_by_its_own_largest(sizes):
    vector = Vector(tuple((size,) for size in sizes), torch.float32)
    x = torch.cat([sample(size, seed=i).float() * 10.0**i for i, size in enumerate(sizes)])
    made = round_trip(TernGrad(), x, slot_of(x, vector))
    for before, after in zip(vector.pieces(x), vector.pieces(made), strict=True):
        if len(before):
            allowed = {0.0, float(before.abs().max())}
            assert {abs(float(value)) for value in after} <= allowed


def test_terngrads_clipping_brings_entries_to_so_many_standard_deviations():
    x = torch.cat([sample(1000).float(), torch.tensor([50.0])])
    sigma = float(np.std(x.numpy()))
    for c in (1.0, 2.5):
        made = round_trip(TernGrad(clip=c), x)
        assert float(made.abs().max()) == pytest.approx(c * sigma, rel=1e-6)
    assert float(round_trip(TernGrad(), x).abs().max()) == 50
    assert torch.equal(round_trip(TernGrad(clip=2.5), torch.zeros(3)), torch.zeros(3))
