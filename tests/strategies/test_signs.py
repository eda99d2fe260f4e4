"""Rules that send one bit an entry, and casts, against their definitions in plain numpy."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import Case, identical, mlp64, momentum, train
from oracles import Plan as Training
from replicas import Life, Replica, flat, live
from torch import Tensor

from paceline.exchange.channel import Channel
from paceline.exchange.compress import (
    Compressor,
    EFSignSGD,
    OneBit,
    SignSGD,
    UnreadableError,
    Vector,
    WireBFloat16,
    WireFloat16,
)
from paceline.exchange.compress.packing import pack, packed_bytes, unpack
from paceline.strategies.core.errors import NotFiniteError
from paceline.strategies.data_parallel import DataParallel
from paceline.strategies.sync.bsp import BSP
from paceline.strategies.sync.parameter_server import ParameterServer
from paceline.testing.messages import LoneWorker, flat_vector, round_trip, slot_of, totalled

FLOATS = st.floats(-4, 4, width=32)
VECTORS = st.lists(st.one_of(FLOATS, st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e-45, 1e38])), min_size=1, max_size=40)
DTYPES = [torch.float64, torch.float32, torch.bfloat16]
SHAPES = ((3, 5), (3,), (2, 3, 2, 2), (), (0, 4), (0,), (4, 0))


def vector_like(shapes: tuple[tuple[int, ...], ...], dtype: torch.dtype = torch.float32) -> tuple[Tensor, Vector]:
    vector = Vector(shapes, dtype)
    return torch.randn(vector.n, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).to(dtype), vector


def channel_of(compress: Compressor, vector: Vector) -> Channel:
    return Channel(compress, LoneWorker(), {"g": vector})  # pyright: ignore[reportArgumentType]


# -- packing


@given(st.sampled_from([1, 2, 4, 8]), st.integers(0, 70))
def test_packed_codes_are_unpacked_and_each_has_its_place(bits, n):
    codes = torch.randint(2**bits, (n,), dtype=torch.uint8, generator=torch.Generator().manual_seed(n))
    packed = pack(codes, bits)
    assert packed.nbytes == packed_bytes(n, bits) == -(-n * bits // 8)
    assert torch.equal(unpack(packed, n, bits), codes)
    for i, code in enumerate(codes.tolist()):
        run, place = divmod(i, len(packed))
        assert (int(packed[place]) >> (bits * run)) % 2**bits == code


def test_what_fills_up_the_last_byte_must_be_0():
    packed = pack(torch.ones(9, dtype=torch.uint8), 1)
    assert packed.tolist() == [0b11111, 0b1111]  # two bytes: runs of two, the fifth with one code
    with pytest.raises(UnreadableError, match="fills up its last byte is not 0"):
        unpack(packed | 0b100000, 9, 1)


# -- casts


@given(st.lists(st.one_of(FLOATS, st.sampled_from([65504.0, 1e-7, 3e-8, 1e-45])), min_size=1, max_size=40))
def test_fp16_rounds_to_nearest(values):
    x = torch.tensor(values)
    assert round_trip(WireFloat16(), x).tolist() == np.array(values, np.float32).astype(np.float16).tolist()
    assert WireFloat16().nbytes(flat_vector(x)) == 2 * len(x)


@pytest.mark.parametrize("of", [WireBFloat16, WireFloat16])
def test_a_casts_feedback_is_what_rounding_left_out_bit_for_bit(of):
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    for feedback in (True, False):
        [(total, left), _] = totalled(of(error_feedback=feedback), [x, 2 * x], [slot_of(x), slot_of(x)])
        rounded = x.to(of.to).float()
        assert torch.equal(total, (x.to(of.to) + (2 * x).to(of.to)).float())
        assert torch.equal(left, x - rounded if feedback else total) and torch.equal(rounded + (x - rounded), x)


@pytest.mark.parametrize("of", [WireBFloat16, WireFloat16])
def test_of_a_number_below_half_the_last_bit_a_cast_with_feedback_sends_all_in_time(of):
    step = 2.0**-13  # added to 1, it is rounded away
    x, compress = torch.tensor([1.0 + step]), of(error_feedback=True)
    channel = channel_of(compress, flat_vector(x))
    sent = sum(float(compress.decode(channel.encode("g", x), flat_vector(x))) for _ in range(64))
    assert sent != 64 and abs(sent - 64 * (1 + step)) <= 2.0**-8
    assert sum(float(round_trip(of(), x)) for _ in range(64)) == 64


@pytest.mark.parametrize("of", [WireBFloat16, WireFloat16])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3.4e38])
def test_a_number_that_a_cast_cannot_hold_is_reported(of, value):
    x = torch.tensor([1.0, value])
    for run in (lambda: of().encode(x, slot_of(x)), lambda: totalled(of(), [x], [slot_of(x)])):
        with pytest.raises(NotFiniteError, match=f"worker 0 diverged: .* {of.to} holds") as error:
            run()
        assert error.value.exit_code == 6


def test_a_sum_that_leaves_fp16_is_reported():
    x = torch.tensor([6e4])
    with pytest.raises(NotFiniteError, match=r"beyond the 65504 that torch\.float16 holds"):
        totalled(WireFloat16(), [x, x], [slot_of(x), slot_of(x)])


# -- signs


def ef_sign(m: np.ndarray) -> np.ndarray:
    return np.where(m >= 0, 1, -1) * (np.abs(m).sum() / max(1, m.size))


def two_means(m: np.ndarray) -> np.ndarray:
    """Of the rows of [out, in, ...]; of a vector as one."""
    rows = m.reshape(m.shape[0], -1) if m.ndim > 1 and m.size else m.reshape(1, -1)
    sent = np.zeros_like(rows)
    for row, made in zip(rows, sent, strict=True):
        for group in (row >= 0, row < 0):
            if group.any():
                made[group] = row[group].mean()
    return sent.reshape(m.shape)


ORACLES = {"ef_signsgd": (EFSignSGD, ef_sign), "onebit": (OneBit, two_means)}
BY_NAME = pytest.mark.parametrize("name", ORACLES)


@BY_NAME
@pytest.mark.parametrize("dtype", DTYPES)
def test_signs_with_sizes_are_the_papers_of_each_parameter(name, dtype):
    of, oracle = ORACLES[name]
    x, vector = vector_like(SHAPES, dtype)
    x[::5] = 0  # counts as not negative
    sent = round_trip(of(), x, slot_of(x, vector))
    assert sent.dtype == dtype
    rounding = torch.finfo(dtype).eps
    for piece, made in zip(vector.pieces(x), vector.pieces(sent), strict=True):
        np.testing.assert_allclose(made.double().numpy(), oracle(piece.double().numpy()), rtol=4 * rounding)
        assert made.shape == piece.shape


def test_the_bytes_of_signs_are_a_bit_an_entry_and_the_sizes():
    _, vector = vector_like(SHAPES)
    n, parameters, columns = 3 * 5 + 3 + 2 * 3 * 2 * 2 + 1, len(SHAPES), 3 + 1 + 2 + 1 + 0 + 1 + 4
    assert vector.n == n
    assert SignSGD().nbytes(vector) == 1 + -(-n // 8)
    assert EFSignSGD().nbytes(vector) == 4 * parameters + -(-n // 8)
    assert OneBit().nbytes(vector) == 8 * columns + -(-n // 8)
    assert OneBit().nbytes(Vector(SHAPES, torch.float64)) == 16 * columns + -(-n // 8)
    assert OneBit().nbytes(Vector(SHAPES, torch.bfloat16)) == 8 * columns + -(-n // 8)


@BY_NAME
@settings(max_examples=40)
@given(values=st.lists(VECTORS, min_size=1, max_size=5))
def test_what_is_left_is_the_float_nearest_to_what_was_not_sent(name, values):
    """And where what was sent is between half and twice of what there was, sent + left are that, bit for bit."""
    compress, n = ORACLES[name][0](), min(map(len, values))
    vector = Vector(((n,),), torch.float32)
    channel, left = channel_of(compress, vector), torch.zeros(n)
    for each in values:
        p = left + torch.tensor(each[:n])
        sent = compress.decode(channel.encode("g", torch.tensor(each[:n])), vector)
        left = channel.state_dict()["g"]["memory"]["e"].clone()
        for what, gone, stays in zip(p.tolist(), sent.tolist(), left.tolist(), strict=True):
            off = Fraction(what) - Fraction(gone) - Fraction(stays)
            assert abs(off) <= Fraction(float(np.spacing(np.float32(abs(stays))))) / 2
            if 0 < gone / 2 <= what <= 2 * gone or 0 > gone / 2 >= what >= 2 * gone:
                assert off == 0 and np.float32(gone) + np.float32(stays) == np.float32(what)


@BY_NAME
@settings(max_examples=50)
@given(values=VECTORS)
def test_the_error_of_signs_with_sizes_is_never_longer_than_what_there_was(name, values):
    x = torch.tensor(values)
    sent = round_trip(ORACLES[name][0](), x).double()
    assert (x.double() - sent).norm() <= x.double().norm() * (1 + 1e-6)


@BY_NAME
def test_sizes_of_the_smallest_and_largest_numbers_are_right(name):
    """What float32 cannot add up: subnormal numbers, and ones whose sum it does not hold."""
    compress = ORACLES[name][0]()
    for x in (torch.full((7,), 1e-45), torch.full((7,), 3e38), -torch.full((7,), 3e38), torch.zeros(7)):
        assert torch.equal(round_trip(compress, x), x)


@pytest.mark.parametrize("compress", [SignSGD(), EFSignSGD(), OneBit()], ids=lambda each: type(each).__name__)
def test_of_signs_what_is_no_number_is_reported_and_not_spread(compress):
    for value, says in ((float("nan"), "1 are NaN and 0 infinite"), (float("inf"), "0 are NaN and 1 infinite")):
        x = torch.tensor([1.0, value, 2.0])
        with pytest.raises(NotFiniteError, match=rf"worker 2 diverged: of the 3 numbers .*{says}") as error:
            compress.encode(x, slot_of(x, rank=2))
        assert error.value.exit_code == 6


@BY_NAME
def test_signs_refuse_messages_that_they_do_not_make(name):
    compress, x = ORACLES[name][0](), torch.arange(-4.0, 5)
    message = compress.encode(x, slot_of(x))
    with pytest.raises(UnreadableError, match=f"{len(message) - 1} bytes where {len(message)} were expected"):
        compress.decode(message[1:], flat_vector(x))
    for value in (float("nan"), float("inf"), -1.0):
        wrong = message.clone()
        wrong[:4] = torch.tensor([value]).view(torch.uint8)
        with pytest.raises(UnreadableError, match="one of its scales is NaN, infinite or negative"):
            compress.decode(wrong, flat_vector(x))
    message[-1] |= 0x80
    with pytest.raises(UnreadableError, match="fills up its last byte"):
        compress.decode(message, flat_vector(x))


# -- the majority vote


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_vote_is_the_sign(dtype):
    x, vector = vector_like(((3, 5), (4,)), dtype)
    assert torch.equal(round_trip(SignSGD(), x, slot_of(x, vector)), x.sign())
    assert round_trip(SignSGD(), x[:0]).numel() == 0


def test_an_entry_of_0_votes_in_turn_and_the_next_worker_votes_against_it():
    x = torch.tensor([0.0, -0.0, 3.0, -2.0])
    votes = [[round_trip(SignSGD(), x, slot_of(x, rank=rank, count=t)) for rank in (0, 1)] for t in (0, 1)]
    assert votes[0][0].tolist() == [1, 1, 1, -1] and votes[0][1].tolist() == [-1, -1, 1, -1]
    assert torch.equal(votes[0][0], votes[1][1]) and torch.equal(votes[0][1], votes[1][0])


def test_a_worker_whose_batch_was_empty_abstains():
    nothing = torch.zeros(9)
    for rank in (0, 1):
        assert torch.equal(round_trip(SignSGD(), nothing, slot_of(nothing, rank=rank)), nothing)


@pytest.mark.parametrize("workers", [1, 2, 3, 6, 7, 64])
@pytest.mark.parametrize("shared", [False, True], ids=["votes", "shares"])
def test_all_step_with_the_sign_of_the_sum_of_votes_and_a_tie_is_none(workers, shared):
    rows = torch.randn(workers, 501, generator=torch.Generator().manual_seed(workers))
    votes = torch.stack([round_trip(SignSGD(), row) for row in rows])
    total = sum(vote / workers if shared else vote for vote in votes)
    assert isinstance(total, Tensor)
    made = SignSGD().finish(total, flat_vector(rows[0]))
    assert made.tolist() == np.sign((np.sign(rows.numpy())).sum(0)).tolist()


def test_votes_that_nobody_casts_are_refused():
    x = torch.tensor([1.0, -1.0, 2.0])
    message = SignSGD().encode(x, slot_of(x))
    for first, says in ((2, "its first byte is 2"), (0, "its first byte is 0, and must be 1, or 0 before nothing but")):
        message[0] = first
        with pytest.raises(UnreadableError, match=says):
            SignSGD().decode(message, flat_vector(x))
    with pytest.raises(UnreadableError, match="1 bytes where 2 were expected"):
        SignSGD().decode(message[:1], flat_vector(x))


VOTING = Case([[3, 3, 2], [4, 0, 2], [1, 3, 2], [2, 2, 0]], model=mlp64, optimizer=momentum)


def voted(case: Case, by_samples: bool) -> list[Tensor]:
    """[entries] after each step: w <- step(w, sign(sum of votes)). A 0 votes (-1)^(messages before + rank)."""
    replicas = [Replica(case, 0, rank) for rank in range(len(case.sizes[0]))]
    messages, trajectory = [0] * len(replicas), []
    for t, sizes in enumerate(case.sizes):
        total = torch.zeros_like(replicas[0].vector)
        for rank, replica in enumerate(replicas):
            replica.gradient(t)
            if sizes[rank] > 0:
                gradient = torch.cat([parameter.grad.flatten() for parameter in replica.model.parameters()])  # pyright: ignore[reportOptionalMemberAccess]
                vote = torch.where(gradient == 0, (-1.0) ** (messages[rank] + rank), gradient.sign())
                total += vote * (sizes[rank] / sum(sizes) if by_samples else 1)
            messages[rank] += 1 if sizes[rank] > 0 or not by_samples else 0
        decided = torch.where(total.abs() < 1e-6, 0, total.sign())
        for replica in replicas:
            parameters = list(replica.model.parameters())
            pieces = decided.split([parameter.numel() for parameter in parameters])
            for parameter, piece in zip(parameters, pieces, strict=True):
                parameter.grad = piece.view_as(parameter).clone()
            replica.step()
        trajectory.append(replicas[0].vector)
    return trajectory


def test_bsp_steps_with_the_majority_of_votes_and_who_has_no_batch_has_none(virtual_workers):
    results = virtual_workers(3, live, Life(BSP(compress=SignSGD()), VOTING))
    for result in results:
        assert identical(result["weights"], results[0]["weights"])
        for weights, expected in zip(result["trajectory"], voted(VOTING, by_samples=False), strict=True):
            assert torch.allclose(flat(weights), expected, rtol=0, atol=1e-12)


def test_a_server_weighs_votes_by_samples(virtual_workers):
    results = virtual_workers(4, train, Training(DataParallel(), ParameterServer(compress=SignSGD()), VOTING))
    expected = voted(VOTING, by_samples=True)[-1]
    for result in results[:3]:
        assert torch.allclose(flat(result["weights"]), expected, rtol=0, atol=1e-12)
