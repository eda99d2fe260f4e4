"""What compressors make of a vector, by their definitions."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from paceline.conf.errors import ConfigError
from paceline.exchange.channel import Channel
from paceline.exchange.compress import Dense, SparseLoCo, TopK, UnreadableError, Vector, WireBFloat16
from paceline.exchange.compress.topk import candidates, largest
from paceline.testing.messages import LoneWorker, flat_vector, round_trip, slot_of

FLOATS = st.floats(-4, 4, width=32)
VECTORS = st.lists(st.one_of(FLOATS, st.sampled_from([0.0, -0.0, 1.0, -1.0])), min_size=1, max_size=40)
RATIOS = st.sampled_from([0.01, 0.1, 0.3, 0.5, 0.99, 1.0])


def by_sorting(x: Tensor, k: int) -> Tensor:
    """The k largest magnitudes, of equal ones the first, by Python's stable sort."""
    kept = sorted(range(len(x)), key=lambda i: -abs(float(x[i])))[:k]
    return torch.tensor([float(value) if i in kept else 0.0 for i, value in enumerate(x)], dtype=x.dtype)


@given(VECTORS, RATIOS)
def test_topk_keeps_exactly_the_k_largest_and_of_equal_ones_the_first(values, ratio):
    x = torch.tensor(values)
    compress = TopK(ratio)
    k = compress.count(len(x))
    assert 1 <= k <= len(x) and k >= ratio * len(x) > k - 1
    assert torch.equal(round_trip(compress, x), by_sorting(x, k))
    assert compress.nbytes(flat_vector(x)) == k * (4 + 4)


def shaped(shape: str, n: int) -> Tensor:
    """Vectors that a sample of every 61st entry tells the truth of, and others."""
    x = torch.randn(n, generator=torch.Generator().manual_seed(3))
    if shape == "constant":
        x.fill_(-2.0)
    if shape in ("rising", "falling"):
        x = x.sort(descending=shape == "falling").values
    if shape == "many ties":
        x = (4 * x).round()
    if shape == "large in the sample alone":
        x[::61] *= 1e3
    if shape == "large outside of the sample alone":
        x[1::61] *= 1e3
    if shape == "few that are not 0":
        x *= torch.arange(n) % 997 == 5
    if shape == "some are no numbers":
        x[5::1000] = float("nan")
        x[6::500] = -float("inf")
    if shape == "most are no numbers":
        x[: n - 100] = float("nan")
    return x


SHAPES = (
    "normal",
    "constant",
    "rising",
    "falling",
    "many ties",
    "large in the sample alone",
    "large outside of the sample alone",
    "few that are not 0",
    "some are no numbers",
    "most are no numbers",
)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_k_largest_are_exact_whatever_a_sample_says_of_them(shape, dtype):
    """Against a stable sort: larger magnitudes first, a NaN before all, and of equal ones the first."""
    x = shaped(shape, 40_000).to(dtype)
    order = x.abs().nan_to_num(nan=float("inf"), posinf=torch.finfo(dtype).max).sort(descending=True, stable=True)
    for k in (1, 40, 61, 400):
        assert torch.equal(largest(x, k), order.indices[:k].sort().values)


def test_a_sample_that_tells_the_truth_leaves_few_candidates():
    for k in (1, 40, 400):
        found = candidates(shaped("normal", 40_000), k)
        assert found is not None and k <= len(found) <= 4000
    for shape in ("constant", "large in the sample alone", "most are no numbers"):
        assert candidates(shaped(shape, 40_000), 400) is None


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_ratio_of_one_and_no_compression_give_back_every_bit(dtype):
    x = torch.randn(1001, dtype=torch.float64).to(dtype)
    x[7] = float("inf")
    for compress in (TopK(1.0), Dense()):
        assert compress.traits.lossless
        assert torch.equal(round_trip(compress, x), x)


def test_complex_parameters_are_refused_with_another_way_to_hold_them():
    with pytest.raises(ConfigError, match=r"complex64, and replicas sum .* real numbers\. Keep .*view_as_complex"):
        Dense().check(flat_vector(torch.zeros(3, dtype=torch.complex64)))


def test_topk_sends_what_is_not_a_number():
    x = torch.tensor([1.0, 5.0, float("nan"), 4.0, float("nan")])
    for k in (1, 2, 3):
        kept = round_trip(TopK(k / 5), x)
        assert int(kept.isnan().sum()) == min(k, 2)
        assert bool(kept[2].isnan())


def test_topk_refuses_messages_that_it_does_not_make():
    compress, x = TopK(0.5), torch.arange(6.0)
    message = compress.encode(x, slot_of(x))
    places = message[:12].view(torch.int32)
    for damaged in ([5, 4, 3], [3, 3, 4], [-1, 4, 5], [3, 4, 6]):
        places.copy_(torch.tensor(damaged))
        with pytest.raises(UnreadableError, match="not 3 rising numbers below 6"):
            compress.decode(message, flat_vector(x))
    with pytest.raises(UnreadableError, match="23 bytes where 24 were expected"):
        compress.decode(message[1:], flat_vector(x))
    with pytest.raises(UnreadableError, match="3 bytes where 12 were expected"):
        WireBFloat16().decode(message[:3], flat_vector(x))


@given(VECTORS)
def test_bf16_rounds_to_nearest(values):
    x = torch.tensor(values)
    assert torch.equal(round_trip(WireBFloat16(), x), x.to(torch.bfloat16).float())
    assert WireBFloat16().nbytes(flat_vector(x)) == 2 * len(x)


@given(st.lists(VECTORS, min_size=1, max_size=6), RATIOS)
def test_what_was_sent_and_what_is_left_are_what_there_was_bit_for_bit(several, ratio):
    n = min(map(len, several))
    channel = Channel(TopK(ratio), LoneWorker(), {"g": Vector(((n,),), torch.float32)})  # pyright: ignore[reportArgumentType]
    left = torch.zeros(n)
    for values in several:
        x = torch.tensor(values[:n])
        accumulated = left + x
        sent = channel.compress.decode(channel.encode("g", x.clone()), flat_vector(x))
        left = channel.state_dict()["g"]["memory"]["e"].clone()
        assert torch.equal(sent + left, accumulated)
        assert not bool((sent.bool() & left.bool()).any())


def test_without_error_feedback_nothing_is_kept():
    channel = Channel(TopK(0.1, error_feedback=False), LoneWorker(), {"g": Vector(((50,),), torch.float32)})  # pyright: ignore[reportArgumentType]
    channel.encode("g", torch.randn(50))
    assert channel.state_dict() == {"g": {"count": 1, "memory": {}}} and channel.buffers() == []


@pytest.mark.parametrize("compress", [SparseLoCo(ratio=1, quantize=False), WireBFloat16(error_feedback=True)])
def test_a_lossless_message_is_the_vector_and_not_what_error_feedback_leaves_of_it(compress):
    x = torch.arange(1.0, 5.0, dtype=torch.bfloat16)
    vector = flat_vector(x)
    channel = Channel(compress, LoneWorker(), {"g": vector})  # pyright: ignore[reportArgumentType]
    assert torch.equal(compress.decode(channel.encode("g", x), vector), x)
