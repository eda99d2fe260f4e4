"""The virtual cluster's clock: who runs when, what arrives when, and what takes no time."""

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.comm import MessageError
from paceline.comm.network import Network, NetworkLink
from paceline.comm.virtual import SimulatedCluster, VirtualComm

# powers of two: every time below is exact
LATENCY, BANDWIDTH = 0.25, 1024.0
FAST = NetworkLink(0.125, 8192.0)
FLAT = Network(NetworkLink(LATENCY, BANDWIDTH), FAST)
SIZE = 1024  # float32 entries: 4 s on a link


def run(size: int, function: Callable[[VirtualComm], Any], network: Network = FLAT) -> list[Any]:
    return SimulatedCluster(size, network).run(function)


def message(value: float = 0.0, entries: int = SIZE) -> torch.Tensor:
    return torch.full((entries,), value, dtype=torch.float32)


# -- whose turn it is


def moment(comm: VirtualComm) -> tuple[float, int]:
    """When and by whom something is done that others can see."""
    comm.key_values.post("seen", "")
    return comm.now(), comm.rank


@given(st.lists(st.lists(st.integers(1, 4), max_size=6), min_size=1, max_size=5))
def test_what_workers_do_is_in_the_order_of_the_clock_and_then_of_ranks(pauses: list[list[int]]) -> None:
    done: list[tuple[float, int]] = []

    def act(comm: VirtualComm) -> None:
        done.append(moment(comm))
        for seconds in pauses[comm.rank]:
            comm.elapse(float(seconds))
            done.append(moment(comm))

    run(len(pauses), act)
    expected = [(float(sum(own[:i])), rank) for rank, own in enumerate(pauses) for i in range(len(own) + 1)]
    assert done == sorted(expected)


def test_elapsed_time_adds_up_and_none_passes_backwards() -> None:
    def act(comm: VirtualComm) -> list[float]:
        moments = [comm.now()]
        for seconds in (0.5, 0.0, -1.0, 0.25):
            comm.elapse(seconds)
            moments.append(comm.now())
        return moments

    assert run(2, act) == [[0.0, 0.5, 0.5, 0.5, 0.75]] * 2


def test_who_is_woken_at_a_time_runs_before_those_who_are_later() -> None:
    """Worker 0 sleeps until a message at 4.25 s; worker 1 goes on in steps of a second; worker 2 at 4.25 s too."""
    done: list[tuple[float, int]] = []

    def act(comm: VirtualComm) -> None:
        if comm.rank == 0:
            comm.recv(message(), 3)
        elif comm.rank == 1:
            for _ in range(6):
                comm.elapse(1.0)
                done.append(moment(comm))
            return
        elif comm.rank == 2:
            comm.elapse(4.25)
        else:
            comm.isend(message(), 0)
            return
        done.append(moment(comm))

    run(4, act)
    assert done == [(1, 1), (2, 1), (3, 1), (4, 1), (4.25, 0), (4.25, 2), (5, 1), (6, 1)]


# -- messages


def test_a_blocking_send_takes_until_the_link_is_free_and_a_receive_a_latency_more() -> None:
    def act(comm: VirtualComm) -> float:
        if comm.rank == 0:
            comm.send(message(), 1)
        else:
            comm.recv(message(), 0)
        return comm.now()

    assert run(2, act) == [4.0, 4.25]


def test_a_message_travels_while_both_ends_compute() -> None:
    def act(comm: VirtualComm) -> float:
        work = comm.isend(message(), 1) if comm.rank == 0 else comm.irecv(message(), 0)
        comm.elapse(3.0 if comm.rank == 0 else 5.0)
        work.wait()
        work.wait()  # a second wait does nothing
        return comm.now()

    assert run(2, act) == [4.0, 5.0]


def test_recv_waits_for_a_message_that_has_been_sent_and_has_not_arrived() -> None:
    def act(comm: VirtualComm) -> float:
        if comm.rank == 0:
            comm.isend(message(), 1)
        else:
            comm.elapse(2.0)
            comm.recv(message(), 0)
        return comm.now()

    assert run(2, act) == [0.0, 4.25]


def test_recv_any_takes_what_arrives_first_even_when_it_was_sent_later() -> None:
    """From the other host a message takes 4.25 s, from the same host less: sent at 2, it overtakes the one sent at 0.

    That one takes 1024 of the receiver's 8192 bytes a second, which leaves 7168 for it: 4096 / 7168 + 0.125 s.

    Worker 0 is asleep in recv_any before the second is sent; then again, with both already under way.
    """

    def act(comm: VirtualComm) -> list[tuple[int, float]]:
        if comm.rank == 0:
            received: list[tuple[int, float]] = []
            for late in (False, True):
                comm.elapse(20.0 - comm.now() + 2.5 if late else 0.0)
                for _ in range(2):
                    source = comm.recv_any(message())
                    received.append((source, comm.now()))
            return received
        for start in (0.0, 20.0):
            comm.elapse(start + (2.0 if comm.rank == 1 else 0.0) - comm.now())
            comm.isend(message(), 0)
        return []

    hosts = Network(NetworkLink(LATENCY, BANDWIDTH), FAST, workers_per_host=2)
    sources, moments = zip(*run(3, act, hosts)[0], strict=True)
    assert sources == (1, 2, 1, 2)
    beside = 4096 / 7168 + 0.125
    assert moments == pytest.approx((2 + beside, 4.25, 22 + beside, 24.25))


def test_what_arrives_at_the_same_time_is_received_by_rank() -> None:
    def act(comm: VirtualComm) -> list[int]:
        if comm.rank == 0:
            comm.elapse(1.0)
            return [comm.recv_any(message(entries=0)) for _ in range(3)]
        comm.isend(message(entries=0), 0)
        return []

    assert run(4, act)[0] == [1, 2, 3]


def test_try_recv_any_finds_a_message_from_its_arrival_on_and_never_waits() -> None:
    def act(comm: VirtualComm) -> list[tuple[float, int | None]]:
        if comm.rank == 1:
            comm.send(message(), 0)
            return []
        found: list[tuple[float, int | None]] = []
        for moment in (0.0, 4.0, 4.25, 4.25):
            comm.elapse(moment - comm.now())
            found.append((comm.now(), comm.try_recv_any(message())))
        return found

    assert run(2, act)[0] == [(0.0, None), (4.0, None), (4.25, 1), (4.25, None)]


def test_messages_of_one_sender_are_received_in_order_however_they_are_asked_for() -> None:
    """Receives posted ahead get the messages in the order of posting, whichever is waited for first."""

    def act(comm: VirtualComm) -> list[float]:
        if comm.rank == 1:
            for value in range(6):
                comm.send(message(value, 1), 0)
            return []
        tensors = [message(-1, 1) for _ in range(6)]
        first, second = comm.irecv(tensors[0], 1), comm.irecv(tensors[1], 1)
        comm.recv(tensors[2], 1)
        second.wait()
        assert float(tensors[0]) == -1  # not written to before somebody waits
        fourth = comm.irecv(tensors[3], 1)
        assert comm.recv_any(tensors[4]) == 1
        comm.recv(tensors[5], 1)
        fourth.wait()
        first.wait()
        return [float(tensor) for tensor in tensors]

    assert run(2, act)[0] == [0, 1, 2, 3, 4, 5]


def test_incast_at_one_server_shows_on_the_clock() -> None:
    """k messages of n bytes to one receiver share its link: each takes k n / bandwidth."""

    def act(comm: VirtualComm) -> float:
        if comm.rank == 0:
            for _ in range(comm.size - 1):
                comm.recv_any(message())
        else:
            comm.send(message(), 0)
        return comm.now()

    assert run(6, act) == [5 * 4.0 + LATENCY] + [5 * 4.0] * 5


def test_a_send_that_is_under_way_takes_longer_when_another_one_begins() -> None:
    """Half of worker 0's 4 s are over when worker 2 begins to send half as much to worker 1 too: both end at 6 s."""

    def act(comm: VirtualComm) -> float:
        if comm.rank == 1:
            comm.recv(message(), 0)
            comm.recv(message(entries=SIZE // 2), 2)
        elif comm.rank == 0:
            comm.send(message(), 1)
        else:
            comm.elapse(2.0)
            comm.send(message(entries=SIZE // 2), 1)
        return comm.now()

    assert run(3, act) == [6.0, 6.25, 6.0]


def test_who_sends_to_several_at_once_waits_for_none_of_them_longer_than_their_bytes_take() -> None:
    """Gossip on a ring, each first to its right neighbour, then to its left: 2 S / bandwidth, and a latency."""

    def act(comm: VirtualComm) -> float:
        right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        sending = [comm.isend(message(comm.rank), right), comm.isend(message(comm.rank), left)]
        for source in (left, right):
            tensor = message()
            comm.recv(tensor, source)
            assert float(tensor[0]) == source
        for work in sending:
            work.wait()
        return comm.now()

    for size in (4, 8):
        assert run(size, act) == [2 * 4.0 + LATENCY] * size


def test_what_is_under_way_when_its_sender_turns_aside_arrives_in_its_time() -> None:
    def act(comm: VirtualComm) -> list[float]:
        if comm.rank == 0:
            work = comm.isend(message(), 1)
            with comm.ledger.aside():
                work.wait()
            return [comm.now()]
        comm.recv(message(), 0)
        return [comm.now()]

    assert run(2, act) == [[0.0], [4.25]]


def test_who_waited_aside_for_workers_that_are_ahead_goes_on_in_its_own_time() -> None:
    """Worker 0 comes to the barrier at 1 s and worker 1 at 50 s; then worker 0's messages take what they take alone."""

    def act(comm: VirtualComm) -> float:
        comm.elapse(50.0 if comm.rank == 1 else 1.0)
        if comm.rank < 2:
            with comm.ledger.aside():
                comm.key_values.post(f"here/{comm.rank}", "")
                comm.key_values.read(f"here/{1 - comm.rank}", 1 - comm.rank)
        if comm.rank == 0:
            comm.send(message(), 2)
        elif comm.rank == 1:
            comm.send(message(), 3)
        else:
            comm.recv(message(), comm.rank - 2)
        return comm.now()

    assert run(4, act) == [5.0, 54.0, 5.25, 54.25]


def test_a_message_is_as_it_was_when_it_was_sent() -> None:
    def act(comm: VirtualComm) -> float:
        tensor = message(comm.rank, 1)
        if comm.rank == 0:
            comm.send(tensor, 1)
            tensor.fill_(7.0)
        else:
            comm.elapse(1.0)
            comm.recv(tensor, 0)
        return float(tensor)

    assert run(2, act)[1] == 0.0


# -- collectives


def test_a_collective_is_over_for_all_a_ring_after_the_last_has_come() -> None:
    def act(comm: VirtualComm) -> list[float]:
        comm.elapse(float(comm.rank))
        comm.all_reduce(message()).wait()
        first = comm.now()
        comm.barrier()
        return [first, comm.now()]

    assert run(4, act) == [[3.0 + 6 * (1.0 + LATENCY), 3.0 + 6 * (1.0 + LATENCY) + 2 * LATENCY]] * 4


def test_a_collective_goes_on_while_its_members_compute() -> None:
    def act(comm: VirtualComm) -> list[float]:
        work = comm.all_reduce(message())  # two steps of 2 s and their latencies
        comm.elapse(3.0 + 3.0 * comm.rank)
        before = comm.now()
        work.wait()
        return [before, comm.now()]

    assert run(2, act) == [[3.0, 4.5], [6.0, 6.0]]


@pytest.mark.parametrize("call", ["all_gather", "reduce_scatter", "all_to_all", "broadcast"])
def test_each_collective_takes_its_own_time(call: str) -> None:
    def act(comm: VirtualComm) -> float:
        if call == "broadcast":
            comm.broadcast(message(), 0).wait()
        else:
            getattr(comm, call)(message())
        return comm.now()

    seconds = {"all_gather": 3 * 4.25, "reduce_scatter": 3 * 1.25, "all_to_all": 3 * 1.25, "broadcast": 2 * 4.25}
    assert run(4, act) == [seconds[call]] * 4


def test_groups_have_links_of_their_own_and_meet_apart() -> None:
    def act(comm: VirtualComm) -> float:
        group = comm.split(comm.rank // 2)
        assert group is not None
        comm.elapse(1.0 if comm.rank == 3 else 0.0)
        group.all_reduce(message()).wait()
        return comm.now()

    assert run(4, act) == [4.5, 4.5, 5.5, 5.5]


@pytest.mark.parametrize(
    "other",
    [
        lambda comm: comm.broadcast(message(), 0),
        lambda comm: comm.all_reduce(message(), "max"),
        lambda comm: comm.all_reduce(message(entries=1)),
        lambda comm: comm.all_reduce(message().double()),
        lambda comm: comm.barrier(),
        lambda comm: comm.split(0),
    ],
)
def test_members_that_call_different_collectives_are_told(other: Callable[[VirtualComm], Any]) -> None:
    says = (
        r"worker 1 in \w+ of world: it calls \w.* where others \(0\) call all_reduce sum of 1,?\d+ entries of float32"
    )
    with pytest.raises(MessageError, match=says):
        run(2, lambda comm: comm.all_reduce(message()) if comm.rank == 0 else other(comm))


# -- aside


def test_what_happens_aside_takes_no_time_and_moves_no_link() -> None:
    def act(comm: VirtualComm) -> list[float]:
        comm.elapse(float(comm.rank))
        with comm.ledger.aside():
            comm.all_reduce(message()).wait()
            comm.broadcast(message(), 1).wait()
            comm.barrier()
            comm.elapse(100.0)
            comm.shared(message())
            if comm.rank == 0:
                comm.send(message(), 1)
            elif comm.rank == 1:
                comm.recv(message(), 0)
                with comm.mutex():
                    pass
            if comm.rank != 1:
                comm.mutex()
        before = comm.now()
        if comm.rank == 0:
            comm.send(message(), 1)
        elif comm.rank == 1:
            comm.recv_any(message())
        return [before, comm.now()]

    assert run(3, act) == [[0.0, 4.0], [1.0, 4.25], [2.0, 2.0]]


def test_messages_sent_aside_do_not_overtake_earlier_ones() -> None:
    def act(comm: VirtualComm) -> list[float]:
        if comm.rank == 0:
            comm.isend(message(1), 1)
            with comm.ledger.aside():
                comm.send(message(2), 1)
            return []
        received = []
        for _ in range(2):
            tensor = message()
            comm.recv_any(tensor)
            received.append(float(tensor[0]))
        return [*received, comm.now()]

    assert run(2, act)[1] == [1.0, 2.0, 4.25]


# -- the board


def test_a_board_shows_a_value_from_the_time_of_its_posting_on() -> None:
    def act(comm: VirtualComm) -> list[float | str]:
        if comm.rank == 0:
            comm.elapse(2.0)
            comm.key_values.post("key", "value")
            return []
        if comm.rank == 2:
            comm.elapse(3.0)
        value = comm.key_values.read("key", 0)
        return [value, comm.now()]

    assert run(3, act) == [[], ["value", 2.0], ["value", 3.0]]


# -- shared memory and the lock


def test_shared_memory_shows_others_writes_in_the_order_of_the_clock() -> None:
    def act(comm: VirtualComm) -> list[float]:
        memory = comm.shared(torch.zeros(()))
        seen = []
        comm.elapse(0.5 * comm.rank)
        for _ in range(3):
            seen.append(float(memory))
            memory += 1
            comm.elapse(1.0)
        return seen

    assert run(2, act) == [[0, 2, 4], [1, 3, 5]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("shape", [(), (0,), (3, 2)])
def test_shared_memory_has_worker_zeros_content_shape_and_dtype(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    def act(comm: VirtualComm) -> torch.Tensor:
        own = torch.full(shape, 1 - comm.rank).to(dtype)
        memory = comm.shared(own)
        own.zero_()  # is not the shared one
        return memory

    one, other = run(2, act)
    assert one.dtype == other.dtype == dtype
    assert torch.equal(one, torch.ones(shape).to(dtype)) and torch.equal(other, one)
    assert one.data_ptr() == other.data_ptr()


def test_autograd_does_not_see_what_others_write_between_forward_and_backward() -> None:
    """As on processes: the gradient is that of the weights as they are then, and no error."""

    def act(comm: VirtualComm) -> torch.Tensor | None:
        weights = comm.shared(torch.ones(2)).requires_grad_()
        if comm.rank == 0:
            loss = (weights * weights).sum()
            comm.elapse(2.0)
            loss.backward()
            return weights.grad
        comm.elapse(1.0)
        with torch.no_grad():
            weights.mul_(3.0)
        return None

    gradient = run(2, act)[0]
    assert torch.equal(gradient, torch.full((2,), 6.0))  # 2 w, w = 3


@pytest.mark.parametrize("call", ["recv", "broadcast", "all_reduce"])
def test_autograd_does_not_see_what_arrives_between_forward_and_backward(call: str) -> None:
    def act(comm: VirtualComm) -> bool:
        weights = torch.nn.Parameter(torch.ones(2))
        loss = (weights * weights).sum()
        if call == "recv" and comm.rank == 0:
            comm.send(torch.ones(2), 1)
        elif call == "recv":
            comm.recv(weights, 0)
        else:
            (comm.broadcast(weights, 0) if call == "broadcast" else comm.all_reduce(weights)).wait()
        loss.backward()
        return weights.grad is not None

    assert run(2, act) == [True, True]


def test_the_lock_is_held_by_one_at_a_time_in_the_order_in_which_they_came() -> None:
    """Each holds it for 10 s; worker 3 comes first, then 0 and 2 at once, then 1, then 3 again."""
    held: list[tuple[float, float, int]] = []

    def act(comm: VirtualComm) -> None:
        mutex = comm.mutex()
        comm.elapse({3: 0.0, 0: 1.0, 2: 1.0, 1: 2.0}[comm.rank])
        for _ in range(2 if comm.rank == 3 else 1):
            with mutex:
                start = comm.now()
                comm.elapse(10.0)
                held.append((start, comm.now(), comm.rank))
            comm.elapse(0.5)

    run(4, act)
    assert held == [(0, 10, 3), (10, 20, 0), (20, 30, 2), (30, 40, 1), (40, 50, 3)]


def test_locks_of_groups_are_apart_and_an_error_inside_gives_the_lock_back() -> None:
    def act(comm: VirtualComm) -> float:
        first, second = comm.mutex(), comm.mutex()
        group = comm.split(comm.rank % 2)
        assert group is not None
        own = group.mutex()
        with first if comm.rank == 0 else second, own:
            comm.elapse(1.0)
        with pytest.raises(KeyError), own:
            raise KeyError
        with own:
            return comm.now()

    assert run(2, act) == [1.0, 1.0]


# -- randomness


def draws(comm: VirtualComm) -> list[float]:
    torch.default_generator.manual_seed(comm.rank)
    found = []
    for _ in range(5):
        found += torch.nn.functional.dropout(torch.ones(8)).tolist()
        comm.elapse(1.0)  # the others draw
        found.append(float(torch.rand(())))
        comm.barrier()
    return found


def test_what_a_worker_draws_does_not_depend_on_who_draws_in_between() -> None:
    together = run(3, draws)
    alone = [run(1, lambda comm: draws(cast(Any, Seeded(comm, rank))))[0] for rank in range(3)]  # noqa: B023
    assert together == alone
    assert together[0] != together[1]


class Seeded:
    """A lone worker that seeds as worker `rank` of others does."""

    def __init__(self, comm: VirtualComm, rank: int) -> None:
        self.rank, self.elapse, self.barrier = rank, comm.elapse, comm.barrier


def test_the_callers_own_generator_goes_on_as_if_nothing_had_been_drawn() -> None:
    torch.manual_seed(5)
    before = torch.default_generator.get_state()
    run(3, draws)
    assert torch.equal(torch.default_generator.get_state(), before)


def test_workers_begin_with_the_callers_generator() -> None:
    torch.manual_seed(5)
    expected = float(torch.rand(()))
    torch.manual_seed(5)
    assert run(3, lambda comm: float(torch.rand(()))) == [expected] * 3
