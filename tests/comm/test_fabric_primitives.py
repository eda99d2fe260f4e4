"""Every primitive of both fabrics against the same computed by plain torch in one process."""

import pytest
import torch
from torch import Tensor

from paceline.comm import MessageError

pytestmark = pytest.mark.dist
SIZES = [2, 3, 4]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.int64, torch.uint8]
SHAPES = [(), (1,), (3, 2)]
REDUCED = [torch.float32, torch.float64, torch.int32, torch.int64]


def whole_numbers(rank: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """Worker `rank`'s input. Sums of a few of these are exact in any order, in every dtype here."""
    generator = torch.Generator().manual_seed(rank)
    return torch.randint(0, 30, shape, generator=generator).to(dtype)


def fractions(rank: int, shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(rank))


def same(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a, b)


def reduce_all(comm, op):
    tensors = [whole_numbers(comm.rank, (7, 3), dtype) for dtype in REDUCED]
    for tensor in tensors:
        comm.all_reduce(tensor, op).wait()
    return tensors


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("op", ["sum", "max", "min"])
def test_all_reduce_is_elementwise(fabric, size, op):
    reduce = {"sum": lambda t: t.sum(0, dtype=t.dtype), "max": lambda t: t.amax(0), "min": lambda t: t.amin(0)}[op]
    expected = [reduce(torch.stack([whole_numbers(r, (7, 3), dtype) for r in range(size)])) for dtype in REDUCED]
    for result in fabric(size, reduce_all, op):
        assert all(same(a, b) for a, b in zip(result, expected, strict=True))


def reduce_fractions(comm, shape):
    tensor = fractions(comm.rank, shape)
    comm.all_reduce(tensor).wait()
    return {"reduced": tensor, "scattered": comm.reduce_scatter(fractions(comm.rank, (comm.size * 5,)))}


@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (100_003,)], ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_all_reduce_leaves_every_worker_with_the_same_bits(fabric, size, shape):
    results = [result["reduced"] for result in fabric(size, reduce_fractions, shape)]
    assert all(torch.equal(result, results[0]) for result in results)
    inputs = torch.stack([fractions(rank, shape) for rank in range(size)]).double()
    # each of size - 1 float32 additions errs by at most half an ulp of a partial sum
    bound = (size - 1) * torch.finfo(torch.float32).eps * inputs.abs().sum(0)
    assert bool(((results[0] - inputs.sum(0)).abs() <= bound).all())


def reduce_several_at_once(comm):
    tensors = [whole_numbers(comm.rank + i, (1000,)) for i in range(8)]
    works = [comm.all_reduce(tensor) for tensor in tensors]
    for work in reversed(works):
        work.wait()
        work.wait()  # a second wait does nothing
    return tensors


def test_all_reduces_under_way_together_do_not_mix(fabric):
    for result in fabric(3, reduce_several_at_once):
        for i, tensor in enumerate(result):
            assert torch.equal(tensor, torch.stack([whole_numbers(rank + i, (1000,)) for rank in range(3)]).sum(0))


def broadcast_from(comm, src):
    tensors = [whole_numbers(comm.rank, (4, 5), dtype) for dtype in DTYPES]
    for tensor in tensors:
        comm.broadcast(tensor, src).wait()
    return tensors


@pytest.mark.parametrize("size", SIZES)
def test_broadcast_gives_all_the_source_tensor(fabric, size):
    for src in {0, size - 1}:
        expected = [whole_numbers(src, (4, 5), dtype) for dtype in DTYPES]
        for result in fabric(size, broadcast_from, src):
            assert all(same(a, b) for a, b in zip(result, expected, strict=True))


def gather(comm):
    return [comm.all_gather(whole_numbers(comm.rank, shape, dtype)) for shape in SHAPES for dtype in DTYPES]


@pytest.mark.parametrize("size", SIZES)
def test_all_gather_stacks_by_rank(fabric, size):
    def stacked(shape, dtype):
        return torch.stack([whole_numbers(rank, shape, dtype) for rank in range(size)])

    expected = [stacked(shape, dtype) for shape in SHAPES for dtype in DTYPES]
    for result in fabric(size, gather):
        assert all(same(a, b) for a, b in zip(result, expected, strict=True))


def scatter(comm):
    return comm.reduce_scatter(whole_numbers(comm.rank, (comm.size * 3, 2)))


@pytest.mark.parametrize("size", SIZES)
def test_reduce_scatter_gives_each_its_rows_of_the_sum(fabric, size):
    total = torch.stack([whole_numbers(rank, (size * 3, 2)) for rank in range(size)]).sum(0)
    for result, expected in zip(fabric(size, scatter), total.chunk(size), strict=True):
        assert torch.equal(result, expected)


def scatter_and_gather_several_at_once(comm):
    """Each sum into its own rows of what is sent, then gathered again into the same tensor."""
    tensors = [whole_numbers(comm.rank + i, (comm.size * (i + 1), 50)) for i in range(6)]
    works = [comm.ireduce_scatter(t, t.chunk(comm.size)[comm.rank], torch.empty_like(t)) for t in tensors]
    for work in reversed(works):
        work.wait()
        work.wait()  # a second wait does nothing
    works = [comm.iall_gather(tensor.view(comm.size, -1)) for tensor in tensors]
    for work in reversed(works):
        work.wait()
        work.wait()
    return {"tensors": tensors, "bytes": comm.ledger.snapshot()}


@pytest.mark.parametrize("size", [1, 2, 3])
def test_scatters_and_gathers_under_way_together_do_not_mix_and_work_in_place(fabric, size):
    expected = [
        torch.stack([whole_numbers(rank + i, (size * (i + 1), 50)) for rank in range(size)]).sum(0) for i in range(6)
    ]
    for result in fabric(size, scatter_and_gather_several_at_once):
        assert all(torch.equal(a, b) for a, b in zip(result["tensors"], expected, strict=True))
        others = (size - 1) * 4 * 50 * sum(range(1, 7))
        assert result["bytes"] == {"reduce_scatter": others, "all_gather": others}


def scatter_whole_numbers(comm):
    return comm.reduce_scatter(whole_numbers(comm.rank, (comm.size * 3, 2), torch.int32))


def test_reduce_scatter_keeps_the_dtype_of_whole_numbers(fabric):
    total = torch.stack([whole_numbers(rank, (6, 2), torch.int32) for rank in range(2)]).sum(0, dtype=torch.int32)
    for result, expected in zip(fabric(2, scatter_whole_numbers), total.chunk(2), strict=True):
        assert same(result, expected)


def exchange(comm):
    return comm.all_to_all(whole_numbers(comm.rank, (comm.size * 2, 3)))


@pytest.mark.parametrize("size", SIZES)
def test_all_to_all_transposes_chunks(fabric, size):
    inputs = torch.stack([whole_numbers(rank, (size * 2, 3)) for rank in range(size)])  # [from, to * 2, 3]
    expected = inputs.view(size, size, 2, 3).transpose(0, 1).reshape(size, size * 2, 3)
    assert torch.equal(torch.stack(fabric(size, exchange)), expected)


def all_of_a_transposed_tensor(comm):
    tensor = whole_numbers(comm.rank, (6, comm.size * 2)).t()  # [size * 2, 6], strides (1, size * 2)
    return {
        "all_gather": comm.all_gather(tensor),
        "all_to_all": comm.all_to_all(tensor),
        "reduce_scatter": comm.reduce_scatter(tensor),
    }


def test_out_of_place_primitives_take_tensors_of_any_strides(fabric):
    size = 2
    inputs = torch.stack([whole_numbers(rank, (6, size * 2)).t() for rank in range(size)])
    exchanged = inputs.reshape(size, size, 2, 6).transpose(0, 1).reshape(size, size * 2, 6)
    for rank, result in enumerate(fabric(size, all_of_a_transposed_tensor)):
        assert torch.equal(result["all_gather"], inputs)
        assert torch.equal(result["all_to_all"], exchanged[rank])
        assert torch.equal(result["reduce_scatter"], inputs.sum(0).chunk(size)[rank])


def reduce_in_place_across_strides(comm):
    permuted = whole_numbers(comm.rank, (2, 3)).t()
    comm.all_reduce(permuted).wait()
    whole = torch.zeros(3, 4)
    holes = whole[:, ::2]
    refused = []
    for call in (
        comm.all_reduce,
        lambda t: comm.broadcast(t, 0),
        lambda t: comm.isend(t, 0),
        lambda t: comm.irecv(t, 0),
    ):
        try:
            call(holes)
        except AssertionError as error:
            refused.append(str(error))
    return {"permuted": permuted, "whole": whole, "refused": refused}


def test_in_place_primitives_take_permuted_tensors_and_refuse_those_with_holes(fabric):
    total = torch.stack([whole_numbers(rank, (2, 3)).t() for rank in range(2)]).sum(0)
    for result in fabric(2, reduce_in_place_across_strides):
        assert torch.equal(result["permuted"], total)
        assert len(result["refused"]) == 4
        assert torch.equal(result["whole"], torch.zeros(3, 4))  # nothing was written beside the tensor


def everything_alone(comm):
    tensor = whole_numbers(3, (4, 2))
    comm.all_reduce(tensor).wait()
    comm.broadcast(tensor, 0).wait()
    comm.barrier()
    return {
        "in place": tensor,
        "all_gather": comm.all_gather(tensor),
        "reduce_scatter": comm.reduce_scatter(tensor),
        "all_to_all": comm.all_to_all(tensor),
        "bytes": sum(comm.ledger.snapshot().values()),
    }


def test_one_worker_alone_talks_to_nobody(fabric):
    [result] = fabric(1, everything_alone)
    tensor = whole_numbers(3, (4, 2))
    assert torch.equal(result["all_gather"], tensor[None])
    assert all(torch.equal(result[name], tensor) for name in ("in place", "reduce_scatter", "all_to_all"))
    assert result["bytes"] == 0


def test_results_do_not_alias_the_input_of_one_worker(fabric):
    [result] = fabric(1, change_results_alone)
    assert torch.equal(result, torch.zeros(2))


def change_results_alone(comm):
    tensor = torch.zeros(2)
    for copy in (comm.all_gather(tensor), comm.reduce_scatter(tensor), comm.all_to_all(tensor)):
        copy.add_(1)
    return tensor


# -- messages of any length

LENGTHS = [0, 1, 5, 3_000_000, 2]


def of_bytes(rank: int, length: int) -> Tensor:
    return torch.randint(0, 256, (length,), generator=torch.Generator().manual_seed(rank), dtype=torch.uint8)


def exchange_messages(comm):
    """Everybody sends to everybody, longer ones than the network holds too, before anybody receives."""
    others = [rank for rank in range(comm.size) if rank != comm.rank]
    sends = [comm.isend(of_bytes(comm.rank, length), other) for length in LENGTHS for other in others]
    received = [[comm.recv_message(other, max(LENGTHS)) for _ in LENGTHS] for other in others]
    for send in sends:
        send.wait()
    sent = sum(LENGTHS) * len(others)
    assert comm.ledger.snapshot() == {"send": sent}
    return received


@pytest.mark.parametrize("size", [2, 3])
def test_messages_of_any_length_arrive_in_order_and_whole(fabric, size):
    for rank, received in enumerate(fabric(size, exchange_messages)):
        senders = [other for other in range(size) if other != rank]
        for sender, messages in zip(senders, received, strict=True):
            assert all(same(a, of_bytes(sender, n)) for a, n in zip(messages, LENGTHS, strict=True))


def take_a_long_one(comm):
    if comm.rank == 1:
        comm.send(torch.zeros(1001, dtype=torch.uint8), 0)
        return None
    with pytest.raises(MessageError, match="worker 1 sent a message of 1,001 bytes where at most 1,000 can come") as e:
        comm.recv_message(1, 1000)
    return e.value.exit_code


def test_a_message_that_is_too_long_is_refused_and_its_sender_named(fabric):
    assert fabric(2, take_a_long_one)[0] == 4
