"""Sub-groups, shared memory and barriers of both fabrics."""

from pathlib import Path

import pytest
import torch

from paceline.comm import Comm, MessageError

pytestmark = pytest.mark.dist


def sum_of_world_ranks(group, world_rank):
    tensor = torch.tensor([float(world_rank)])
    group.all_reduce(tensor).wait()
    return tensor.item()


def split_by(comm, colors):
    group = comm.split(colors[comm.rank])
    if group is None:
        return None
    return [group.rank, group.size, sum_of_world_ranks(group, comm.rank)]


def test_split_groups_those_of_one_color_in_the_order_of_their_ranks(fabric):
    assert fabric(5, split_by, [7, 0, 7, 0, 7]) == [[0, 3, 6.0], [0, 2, 4.0], [1, 3, 6.0], [1, 2, 4.0], [2, 3, 6.0]]


def test_split_with_none_gives_none_and_leaves_the_others_together(fabric):
    assert fabric(4, split_by, [None, 1, None, 1]) == [None, [0, 2, 4.0], None, [1, 2, 4.0]]


@pytest.mark.slow
def test_split_may_leave_a_worker_alone(fabric):
    assert fabric(3, split_by, [0, 0, 1]) == [[0, 2, 1.0], [1, 2, 1.0], [0, 1, 2.0]]


def split_as_the_engine_does(comm):
    """Two replicas of two parts, ranks 0 to 3, and a server for each part, ranks 4 and 5."""
    worker = comm.rank < 4
    replica, part = divmod(comm.rank, 2) if worker else (None, comm.rank - 4)
    of_replica = comm.split(replica)
    of_part = comm.split(part)
    of_workers = comm.split(0 if worker else None)
    return {
        "replica": None if of_replica is None else sum_of_world_ranks(of_replica, comm.rank),
        "part": sum_of_world_ranks(of_part, comm.rank),
        "part rank": of_part.rank,
        "workers": None if of_workers is None else sum_of_world_ranks(of_workers, comm.rank),
    }


@pytest.mark.slow
def test_servers_are_in_some_groups_only(fabric):
    results = fabric(6, split_as_the_engine_does)
    assert [r["replica"] for r in results] == [1.0, 1.0, 5.0, 5.0, None, None]
    assert [r["part"] for r in results] == [0.0 + 2 + 4, 1.0 + 3 + 5] * 3
    assert [r["part rank"] for r in results] == [0, 0, 1, 1, 2, 2]
    assert [r["workers"] for r in results] == [6.0] * 4 + [None, None]


def split_twice(comm):
    half = comm.split(comm.rank // 2)
    alone = half.split(half.rank)
    again = half.split(0)
    crossed = comm.split(comm.rank % 2)
    return [
        sum_of_world_ranks(half, comm.rank),
        sum_of_world_ranks(alone, comm.rank),
        sum_of_world_ranks(again, comm.rank),
        sum_of_world_ranks(crossed, comm.rank),
    ]


def test_groups_nest_and_overlap(fabric):
    assert fabric(4, split_twice) == [[1, 0, 1, 2], [1, 1, 1, 4], [5, 2, 5, 2], [5, 3, 5, 4]]


def talk_in_groups_at_once(comm):
    """Each group works at its own pace: no group waits for another."""
    group = comm.split(comm.rank % 2)
    for _ in range(1 + 5 * (comm.rank % 2)):
        sum_of_world_ranks(group, comm.rank)
    return {
        "ledger": comm.ledger.snapshot(),
        "same": group.ledger is comm.ledger and group.key_values is comm.key_values,
    }


def test_groups_share_their_workers_ledger_and_board(fabric):
    results = fabric(4, talk_in_groups_at_once)
    assert all(result["same"] for result in results)
    assert [result["ledger"]["all_reduce"] for result in results] == [4, 24, 4, 24]  # 2 (n-1)/n S, n = 2, S = 4


def share_and_write(comm):
    mine = torch.full((3, 4), float(comm.rank))
    tensor = comm.shared(mine)
    start = tensor.clone()
    comm.barrier()
    tensor[comm.rank] = 10.0 + comm.rank
    comm.barrier()
    maps = Path("/proc/self/maps").read_text().splitlines()
    named = [line for line in maps if "paceline-" in line and "(deleted)" not in line]
    return {"start": start, "end": tensor, "own": mine, "named": len(named)}


def test_shared_memory_starts_as_worker_zeros_and_shows_everyones_writes(fabric):
    for rank, result in enumerate(fabric(3, share_and_write)):
        assert torch.equal(result["start"], torch.zeros(3, 4))
        assert torch.equal(result["end"], torch.tensor([10.0, 11.0, 12.0])[:, None].expand(3, 4))
        assert torch.equal(result["own"], torch.full((3, 4), float(rank)))  # the tensor given is not the shared one
        assert result["named"] == 0  # it is in no directory


OTHERS = [((2, 3), torch.int32), ((5,), torch.float32), ((7,), torch.float32)]


def share_others(comm):
    refused = []
    for shape, dtype in OTHERS:
        with pytest.raises(MessageError) as caught:
            comm.shared(torch.zeros(2, 3) if comm.rank == 0 else torch.zeros(shape, dtype=dtype))
        refused.append(str(caught.value))
    return refused


def test_whoever_shares_another_tensor_is_named(workers):
    for rank, refused in enumerate(workers(2, share_others)):
        for words, (shape, dtype) in zip(refused, OTHERS, strict=True):
            said = f"for worker 1 it holds {shape} of {dtype}, where worker 0 has put (2, 3) of torch.float32"
            assert words == f"worker {rank} in shared memory of world: {said}"


def share_in_groups(comm):
    group = comm.split(comm.rank // 2)
    tensors = [group.shared(torch.full((2,), float(comm.rank) + i)) for i in range(2)]
    group.barrier()
    return tensors


def test_groups_share_memory_of_their_own(fabric):
    firsts = [float(result[0][0]) for result in fabric(4, share_in_groups)]
    seconds = [float(result[1][0]) for result in fabric(4, share_in_groups)]
    assert firsts == [0, 0, 2, 2]
    assert seconds == [1, 1, 3, 3]


def cross_barrier(comm, rounds):
    seen = []
    counter = comm.shared(torch.zeros(comm.size))
    for i in range(rounds):
        counter[comm.rank] = i + 1
        comm.barrier()
        seen.append(int(counter.min()))
        comm.barrier()
    return seen


def test_nobody_leaves_a_barrier_before_all_have_come(fabric):
    assert all(seen == list(range(1, 21)) for seen in fabric(3, cross_barrier, 20))


def threads_of_gloo(comm):
    halves, everyone = comm.split(comm.rank // 2), comm.split(0)
    assert halves is not None and everyone is not None
    halves.all_reduce(torch.ones(1)).wait()
    everyone.all_reduce(torch.ones(1)).wait()
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    return names.count("gloo_tcp_loop")


def test_all_groups_of_a_worker_share_one_thread_that_polls(workers):
    assert workers(4, threads_of_gloo) == [1, 1, 1, 1]


def along_axes(comm: Comm) -> dict[str, dict[str, int]]:
    rows, columns = comm.split(comm.rank // 2, "replica"), comm.split(comm.rank % 2, "stage")
    assert rows is not None and columns is not None
    again = columns.split(0)
    assert again is not None
    rows.all_gather(torch.zeros(3))
    columns.all_reduce(torch.zeros(5)).wait()
    again.all_reduce(torch.zeros(7)).wait()
    comm.broadcast(torch.zeros(1), 3).wait()
    return {"": comm.ledger.snapshot(), **{axis: its.snapshot() for axis, its in comm.ledger.axes.items()}}


def test_bytes_of_a_group_along_an_axis_are_known_by_it(fabric) -> None:
    for found in fabric(4, along_axes):
        assert found["replica"] == {"all_gather": 12} and found["stage"] == {"all_reduce": 48}
        assert {name: found[""][name] for name in ("all_gather", "all_reduce")} == {"all_gather": 12, "all_reduce": 48}
