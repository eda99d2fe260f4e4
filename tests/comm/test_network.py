"""The modelled network against closed forms and against messages sent one by one."""

from math import ceil, log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.comm.errors import NetworkError
from paceline.comm.network import Fabric, Link, Network

# powers of two: every time below is exact
LATENCY, BANDWIDTH = 0.25, 1024.0
FAST = Link(0.125, 8192.0)
FLAT = Network(Link(LATENCY, BANDWIDTH), FAST)
HOSTS = Network(Link(LATENCY, BANDWIDTH), FAST, workers_per_host=4)
SIZE = 4096  # bytes: 4 s on a link between hosts, half a second inside one


def flat(size: int = 8) -> Fabric:
    return Fabric(FLAT, size)


def test_a_message_takes_its_bytes_over_the_bandwidth_and_a_latency() -> None:
    assert flat().send(0, 1, SIZE, at=1.0) == (5.0, 5.25)
    assert flat().send(0, 1, 0, at=1.0) == (1.0, 1.25)


@pytest.mark.parametrize("senders", [1, 2, 7])
def test_incast_of_k_messages_takes_k_times_as_long(senders: int) -> None:
    fabric = flat()
    arrivals = [fabric.send(rank, 0, SIZE, at=0.0)[1] for rank in range(1, senders + 1)]
    assert arrivals == [4.0 * (i + 1) + LATENCY for i in range(senders)]


@pytest.mark.parametrize("receivers", [1, 2, 7])
def test_one_sender_sends_one_after_the_other(receivers: int) -> None:
    fabric = flat()
    left = [fabric.send(0, rank, SIZE, at=0.0)[0] for rank in range(1, receivers + 1)]
    assert left == [4.0 * (i + 1) for i in range(receivers)]


def test_links_are_full_duplex() -> None:
    fabric = flat()
    assert fabric.send(0, 1, SIZE, at=0.0) == fabric.send(1, 0, SIZE, at=0.0) == (4.0, 4.25)


def test_others_links_are_free() -> None:
    fabric = flat()
    assert {fabric.send(rank, rank + 1, SIZE, at=0.0) for rank in (0, 2, 4, 6)} == {(4.0, 4.25)}


def test_a_message_that_waits_for_its_receiver_holds_its_senders_link() -> None:
    fabric = flat()
    fabric.send(0, 2, SIZE, at=0.0)
    assert fabric.send(1, 2, SIZE, at=0.0) == (8.0, 8.25)
    assert fabric.send(1, 3, SIZE, at=0.0) == (12.0, 12.25)


MESSAGES = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 3), st.integers(0, 5000), st.floats(0, 8)), min_size=1, max_size=30
)


@given(MESSAGES)
def test_no_link_carries_two_messages_at_once(messages: list[tuple[int, int, int, float]]) -> None:
    fabric, at = flat(4), 0.0
    sent_until, received_until = [0.0] * 4, [0.0] * 4
    for src, offset, size, later in messages:
        at += later
        dst = (src + offset) % 4
        left, arrival = fabric.send(src, dst, size, at)
        start = left - size / BANDWIDTH
        assert start >= max(at, sent_until[src], received_until[dst]) - 1e-9
        assert arrival == left + LATENCY
        sent_until[src] = received_until[dst] = left


@given(MESSAGES)
def test_messages_between_two_workers_arrive_in_order(messages: list[tuple[int, int, int, float]]) -> None:
    fabric = Fabric(Network(Link(LATENCY, BANDWIDTH), FAST, workers_per_host=2, hosts_per_rack=1), 4)
    last: dict[tuple[int, int], float] = {}
    at = 0.0
    for src, offset, size, later in messages:
        at += later
        way = src, (src + offset) % 4
        arrival = fabric.send(*way, size, at)[1]
        assert arrival >= last.get(way, 0.0)
        last[way] = arrival


# -- collectives


def ring_of_messages(fabric: Fabric, size: int, steps: int, piece: float) -> float:
    """When the last of `size` workers is through, each passing on in every step what it received in the one before."""
    ready = [0.0] * size
    for _ in range(steps):
        arrivals = [fabric.send(rank, (rank + 1) % size, piece, ready[rank])[1] for rank in range(size)]
        ready = [arrivals[rank - 1] for rank in range(size)]
    return max(ready)


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8])
def test_ring_collectives_take_as_long_as_their_messages_one_by_one(size: int) -> None:
    everyone, nbytes = list(range(size)), 960
    expected = {
        "all_reduce": ring_of_messages(flat(), size, 2 * (size - 1), nbytes / size),
        "all_gather": ring_of_messages(flat(), size, size - 1, nbytes),
        "scatter": ring_of_messages(flat(), size, size - 1, nbytes / size),
    }
    for name, seconds in expected.items():
        assert getattr(flat(), name)(everyone, nbytes, 0.0) == pytest.approx(seconds)
    assert flat().all_reduce(everyone, nbytes, 3.0) == pytest.approx(
        3.0 + 2 * (size - 1) * (LATENCY + nbytes / size / BANDWIDTH)
    )


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8])
def test_broadcast_and_barrier_take_a_tree_of_hops(size: int) -> None:
    everyone, hops = list(range(size)), ceil(log2(size))
    assert flat().broadcast(everyone, SIZE, 1.0) == 1.0 + hops * (4.0 + LATENCY)
    assert flat().barrier(everyone, 1.0) == 1.0 + hops * LATENCY


def test_a_barrier_holds_no_link_and_a_collective_holds_those_of_its_members_until_its_last_byte() -> None:
    fabric = flat()
    fabric.barrier([0, 1], 0.0)
    assert fabric.send(0, 1, 0, at=0.0) == (0.0, LATENCY)
    assert fabric.all_reduce([0, 1], SIZE, 0.0) == 4.0 + 2 * LATENCY  # two steps of half the bytes
    assert fabric.send(0, 2, 0, at=0.0)[0] == 4.0
    assert fabric.send(2, 1, 0, at=0.0)[0] == 4.0
    assert fabric.send(3, 4, 0, at=0.0)[0] == 0.0


def test_collectives_one_after_the_other_share_the_bandwidth_and_overlap_their_latencies() -> None:
    fabric = flat()
    ends = [fabric.all_reduce([0, 1], SIZE, 0.0) for _ in range(3)]
    assert ends == [4.0 * (i + 1) + 2 * LATENCY for i in range(3)]


# -- hosts and racks


def test_workers_of_one_host_talk_inside_it_and_not_over_its_card() -> None:
    fabric = Fabric(HOSTS, 8)
    assert fabric.send(0, 4, SIZE, at=0.0) == (4.0, 4.25)
    assert fabric.send(1, 3, SIZE, at=0.0) == (0.5, 0.625)  # the card is busy
    assert fabric.send(5, 6, SIZE, at=0.0) == (0.5, 0.625)


def test_workers_of_one_host_share_its_card() -> None:
    fabric = Fabric(HOSTS, 8)
    assert [fabric.send(rank, rank + 4, SIZE, at=0.0)[0] for rank in range(4)] == [4.0, 8.0, 12.0, 16.0]
    assert [fabric.send(rank + 4, rank, SIZE, at=0.0)[0] for rank in range(4)] == [4.0, 8.0, 12.0, 16.0]  # full duplex


@pytest.mark.parametrize(("oversubscription", "expected"), [(1.0, [4.0, 5.0, 6.0, 7.0]), (4.0, [4.0, 8.0, 12.0, 16.0])])
def test_racks_share_an_uplink(oversubscription: float, expected: list[float]) -> None:
    """Of 4 hosts' bandwidth over the oversubscription. A message waits until the one before has passed the uplink."""
    network = Network(Link(LATENCY, BANDWIDTH), FAST, hosts_per_rack=4, oversubscription=oversubscription)
    fabric = Fabric(network, 8)
    assert [fabric.send(rank, rank + 4, SIZE, at=0.0)[0] for rank in range(4)] == expected
    assert fabric.send(1, 2, SIZE, at=16.0)[0] == 20.0  # within the rack
    assert Fabric(network, 8).send(0, 1, SIZE, at=0.0) == (4.0, 4.25)


def test_a_slow_uplink_is_the_slowest_link_of_a_message() -> None:
    network = Network(Link(LATENCY, BANDWIDTH), FAST, hosts_per_rack=1, oversubscription=2.0)
    assert Fabric(network, 2).send(0, 1, SIZE, at=0.0) == (8.0, 8.25)


def test_a_collective_goes_at_the_pace_of_its_slowest_hop() -> None:
    inside = Fabric(HOSTS, 8).all_reduce([0, 1, 2, 3], SIZE, 0.0)
    assert inside == 6 * (FAST.latency + SIZE / 4 / FAST.bandwidth)
    across = Fabric(HOSTS, 8).all_reduce(list(range(8)), SIZE, 0.0)
    assert across == 14 * (LATENCY + SIZE / 8 / BANDWIDTH)
    racks = Network(Link(LATENCY, BANDWIDTH), FAST, workers_per_host=4, hosts_per_rack=1, oversubscription=4.0)
    assert Fabric(racks, 8).all_reduce(list(range(8)), SIZE, 0.0) == 14 * (LATENCY + SIZE / 8 / (BANDWIDTH / 4))
    assert Fabric(racks, 8).all_reduce([0, 1, 2, 3], SIZE, 0.0) == inside
    slow_inside = Network(Link(LATENCY, BANDWIDTH), Link(0.0, 512.0), workers_per_host=4)
    assert Fabric(slow_inside, 8).all_reduce(list(range(8)), SIZE, 0.0) == 14 * (LATENCY + SIZE / 8 / 512.0)


def test_a_ring_over_hosts_is_never_faster_than_its_messages_one_by_one() -> None:
    closed = Fabric(HOSTS, 8).all_reduce(list(range(8)), SIZE, 0.0)
    assert ring_of_messages(Fabric(HOSTS, 8), 8, 14, SIZE / 8) <= closed


def test_a_collective_holds_the_cards_and_uplinks_between_its_members() -> None:
    network = Network(Link(LATENCY, BANDWIDTH), FAST, workers_per_host=2)
    fabric = Fabric(network, 4)
    busy = fabric.all_reduce([0, 2], SIZE, 0.0) - 2 * LATENCY
    assert busy == 4.0
    assert fabric.send(1, 3, 0, at=0.0)[0] == busy  # other workers of the same hosts
    racks = Network(Link(LATENCY, BANDWIDTH), FAST, hosts_per_rack=2, oversubscription=2.0)
    fabric = Fabric(racks, 4)
    fabric.all_reduce([0, 2], SIZE, 0.0)
    assert fabric.send(1, 3, 0, at=0.0)[0] == busy  # other hosts of the same racks
    assert fabric.send(1, 0, 0, at=0.0)[0] == busy  # to a member
    assert Fabric(racks, 4).send(0, 1, 0, at=0.0)[0] == 0.0


@pytest.mark.parametrize("link", [Link(-1e-6, 1e9), Link(0.0, 0.0), Link(0.0, -1.0)])
def test_a_link_without_bandwidth_or_of_negative_latency_is_refused(link: Link) -> None:
    for network in ((link, FAST), (FAST, link)):
        with pytest.raises(NetworkError, match="make no link") as caught:
            Network(*network)
        assert caught.value.exit_code == 2
