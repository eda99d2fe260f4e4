"""The modelled network against fluid times that are counted by hand, and against a simulation of all flows at once."""

from math import ceil, inf, log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.comm.errors import NetworkError
from paceline.comm.links import Flow, Lane, fair_rates
from paceline.comm.network import ModelledNetwork, Network, NetworkLink

# powers of two: nearly every time below is exact
LATENCY, BANDWIDTH = 0.25, 1024.0
FAST = NetworkLink(0.125, 8192.0)
FLAT = Network(NetworkLink(LATENCY, BANDWIDTH), FAST)
HOSTS = Network(NetworkLink(LATENCY, BANDWIDTH), FAST, workers_per_host=4)
SIZE = 4096  # bytes: 4 s on a link between hosts, half a second inside one

Message = tuple[int, int, int, float]  # source, destination, bytes, sent at


def play(fabric: ModelledNetwork, *messages: Message) -> list[tuple[float, float]]:
    """When each message has left, and when it has arrived."""
    found = [(inf, inf)] * len(messages)
    for i, (src, dst, nbytes, at) in enumerate(messages):
        fabric.send(src, dst, nbytes, at, lambda left, arrival, i=i: found.__setitem__(i, (left, arrival)))
    while fabric.links.happen(inf):
        pass
    return found


def left(fabric: ModelledNetwork, *messages: Message) -> list[float]:
    """When each message has left."""
    return [moment for moment, _ in play(fabric, *messages)]


def collective(
    fabric: ModelledNetwork, name: str, ranks: list[int], nbytes: int, at: float = 0.0, group: str = "g"
) -> float:
    found: list[float] = []
    getattr(fabric, name)(group, ranks, nbytes, at, found.append)
    while fabric.links.happen(inf):
        pass
    return found[0]


def flat(size: int = 8) -> ModelledNetwork:
    return ModelledNetwork(FLAT, size)


# -- messages, by hand


def test_a_message_takes_its_bytes_over_the_bandwidth_and_a_latency() -> None:
    assert play(flat(), (0, 1, SIZE, 1.0)) == [(5.0, 5.25)]
    assert play(flat(), (0, 1, 0, 1.0)) == [(1.0, 1.25)]


@pytest.mark.parametrize("senders", [1, 2, 4])
def test_incast_of_k_messages_takes_k_times_as_long_for_each(senders: int) -> None:
    """Each has 1/k of the receiver's link."""
    messages = [(rank, 0, SIZE, 0.0) for rank in range(1, senders + 1)]
    assert play(flat(), *messages) == [(4.0 * senders, 4.0 * senders + LATENCY)] * senders


@pytest.mark.parametrize("receivers", [1, 2, 4])
def test_one_sender_shares_its_link_out(receivers: int) -> None:
    assert left(flat(), *[(0, rank, SIZE, 0.0) for rank in range(1, receivers + 1)]) == [4.0 * receivers] * receivers


def test_links_are_full_duplex() -> None:
    assert play(flat(), (0, 1, SIZE, 0.0), (1, 0, SIZE, 0.0)) == [(4.0, 4.25)] * 2
    # 0 sends to two while it receives from two
    both = [(0, 1, SIZE, 0.0), (0, 2, SIZE, 0.0), (3, 0, SIZE, 0.0), (4, 0, SIZE, 0.0)]
    assert left(flat(), *both) == [8.0] * 4


def test_a_ring_is_as_fast_as_one_message() -> None:
    assert left(flat(), *[(rank, (rank + 1) % 8, SIZE, 0.0) for rank in range(8)]) == [4.0] * 8


@pytest.mark.parametrize("size", [4, 8, 64])
def test_gossip_with_several_neighbours_takes_their_number_times_as_long(size: int) -> None:
    """Each sends to its first neighbour, then to its second, ...: no link is asked for more than |to| times S bytes."""
    ring, powers = (1, size - 1), [2**k for k in range(ceil(log2(size)))]
    for to in (ring, powers):
        messages = [(rank, (rank + step) % size, SIZE, 0.0) for rank in range(size) for step in to]
        assert play(flat(size), *messages) == [(len(to) * 4.0, len(to) * 4.0 + LATENCY)] * len(messages)


def test_pushes_of_four_workers_to_four_servers_take_as_long_as_the_bytes_of_one() -> None:
    """A quarter of the gradient to each server."""
    pushes = [(worker, 4 + server, SIZE // 4, 0.0) for worker in range(4) for server in range(4)]
    assert left(flat(), *pushes) == [4.0] * 16


def test_who_has_less_to_send_ends_first_and_leaves_its_share_to_the_other() -> None:
    """512 bytes a second each: the short one ends at 2 s, when 2048 bytes of the other are left."""
    assert left(flat(), (0, 1, 1024, 0.0), (0, 2, 3072, 0.0)) == [2.0, 4.0]


def test_a_message_that_comes_later_slows_one_that_is_under_way() -> None:
    """Of the first, 2048 bytes have left at 2 s; then both have half the link."""
    assert left(flat(), (0, 1, SIZE, 0.0), (0, 2, 2048, 2.0)) == [6.0, 6.0]
    assert left(flat(), (0, 1, SIZE, 0.0), (0, 2, 1024, 2.0)) == [5.0, 4.0]
    assert left(flat(), (0, 1, SIZE, 0.0), (2, 1, 1024, 2.0)) == [5.0, 4.0]


def test_what_one_link_cannot_give_another_flow_takes() -> None:
    """Three to worker 3 have a third of its link each, so 0 has two thirds of its own for 4: 2048 bytes in 3 s."""
    messages = [(0, 3, 1024, 0.0), (1, 3, 1024, 0.0), (2, 3, 1024, 0.0), (0, 4, SIZE, 0.0)]
    assert left(flat(), *messages) == pytest.approx([3.0, 3.0, 3.0, 5.0])


def test_a_chain_of_shared_links_is_shared_all_along() -> None:
    """0>1 and 0>2 share 0's link, 0>2 and 3>2 share 2's, 3>2 and 3>4 share 3's: half a link each, 2 s for 1024 bytes.

    Then the two that are left have nothing in common any more.
    """
    messages = [(0, 1, 2048, 0.0), (0, 2, 1024, 0.0), (3, 2, 1024, 0.0), (3, 4, 2048, 0.0)]
    assert left(flat(), *messages) == [3.0, 2.0, 2.0, 3.0]


def test_a_message_that_waits_for_a_busy_receiver_holds_up_nobody_else() -> None:
    """Half of 2's link for each of the two; of 1's the other half goes to 3."""
    assert left(flat(), (0, 2, SIZE, 0.0), (1, 2, SIZE, 0.0), (1, 3, SIZE, 0.0)) == [8.0] * 3
    # five to one receiver: the sixth message, to another one, has what is left of its sender's link
    messages = [(rank, 0, SIZE, 0.0) for rank in range(1, 6)]
    assert left(flat(), *messages, (1, 7, SIZE, 0.0))[-1] == pytest.approx(4.0 / 0.8)


def test_messages_from_one_worker_to_another_go_one_after_the_other() -> None:
    assert left(flat(), (0, 1, SIZE, 0.0), (0, 1, 1024, 0.0), (0, 1, 0, 1.0)) == [4.0, 5.0, 5.0]
    assert left(flat(), (0, 1, 1024, 0.0), (0, 1, 1024, 3.0)) == [1.0, 4.0]
    # and share as one: half of the link each until 2 s
    assert left(flat(), (0, 1, 1024, 0.0), (0, 1, 1024, 0.0), (0, 2, 1024, 0.0)) == [2.0, 3.0, 2.0]


def test_what_is_posted_for_the_past_has_the_whole_bandwidth_until_now() -> None:
    """Now is 10 s, since a message between others ended then."""

    def at_ten() -> ModelledNetwork:
        fabric = flat()
        assert left(fabric, (5, 6, SIZE, 6.0)) == [10.0]
        return fabric

    assert left(at_ten(), (0, 1, SIZE, 5.0)) == [9.0]
    assert left(at_ten(), (0, 1, SIZE, 8.0)) == [12.0]
    assert left(at_ten(), (0, 1, SIZE, 8.0), (0, 2, SIZE, 10.0)) == [14.0, 16.0]  # 2048 bytes are left at 10 s


def test_nothing_happens_before_its_time_and_what_begins_together_is_shared_once() -> None:
    fabric, found = flat(), []
    for dst in (1, 2):
        fabric.send(0, dst, SIZE, 1.0, lambda moment, _: found.append(moment))
    assert not fabric.links.happen(1.0)  # others may still post for 1 s
    assert not fabric.links.happen(8.999)
    assert fabric.links.happen(9.0) and found == [9.0, 9.0]
    assert not fabric.links.happen(inf)


# -- messages, at random


def simulated(messages: list[Message]) -> list[float]:
    """When each has left on a flat network: all rates anew at every event, by growing them until a link is full."""
    waiting: dict[int, float] = {i: nbytes for i, (_, _, nbytes, _) in enumerate(messages)}
    found, now = [inf] * len(messages), 0.0
    while waiting:
        first: dict[tuple[int, int], int] = {}
        for i in waiting:
            first.setdefault(messages[i][:2], i)
        going = [i for i in first.values() if messages[i][3] <= now]
        rates = dict.fromkeys(going, 0.0)
        growing = set(going)
        while growing:
            links = [{i for i in going if messages[i][end] == rank} for rank in range(4) for end in (0, 1)]
            step = min(
                (BANDWIDTH - sum(rates[i] for i in link)) / len(link & growing) for link in links if link & growing
            )
            for i in growing:
                rates[i] += step
            full = [link for link in links if sum(rates[i] for i in link) > BANDWIDTH * (1 - 1e-9)]
            growing -= set().union(*full)
        starts = [messages[i][3] for i in first.values() if i not in rates]
        until = min([now + waiting[i] / rates[i] for i in going] + starts)
        for i in going:
            waiting[i] -= rates[i] * (until - now)
            if waiting[i] < 1e-6:
                found[i] = until
                del waiting[i]
        now = until
    return found


MESSAGES = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 3), st.integers(1, 5000), st.floats(0, 4)), min_size=1, max_size=12
)


def sent(drawn: list[tuple[int, int, int, float]]) -> list[Message]:
    """In the order of time."""
    messages: list[Message] = []
    at = 0.0
    for src, offset, nbytes, later in drawn:
        at += later
        messages.append((src, (src + offset) % 4, nbytes, at))
    return messages


@given(MESSAGES)
def test_flows_go_as_a_simulation_of_all_of_them_says(drawn: list[tuple[int, int, int, float]]) -> None:
    messages = sent(drawn)
    assert left(flat(4), *messages) == pytest.approx(simulated(messages), abs=1e-6)


@given(MESSAGES)
def test_messages_between_two_workers_arrive_in_order(drawn: list[tuple[int, int, int, float]]) -> None:
    fabric = ModelledNetwork(Network(NetworkLink(LATENCY, BANDWIDTH), FAST, workers_per_host=2, hosts_per_rack=1), 4)
    messages = sent(drawn)
    last: dict[tuple[int, int], float] = {}
    for (src, dst, _, at), (moment, arrival) in zip(messages, play(fabric, *messages), strict=True):
        assert at <= moment < arrival
        assert arrival >= last.get((src, dst), 0.0)
        last[src, dst] = arrival


@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True), min_size=1, max_size=10))
def test_rates_are_max_min_fair(ways: list[list[int]]) -> None:
    """No link carries more than it can, and each flow has a full link on which nobody has more than it."""
    lanes = [Lane(10.0 * (i + 1)) for i in range(6)]
    flows = [Flow(i, [lanes[j] for j in way], 1.0, 0.0, lambda _: None) for i, way in enumerate(ways)]
    for flow in flows:
        for lane in flow.lanes:
            lane.flows[flow] = None
    rates = dict(zip(flows, fair_rates(flows), strict=True))
    loads = {lane: sum(rates[flow] for flow in lane.flows) for lane in lanes}
    assert all(load <= lane.bandwidth * (1 + 1e-9) for lane, load in loads.items())
    for flow in flows:
        assert any(
            loads[lane] >= lane.bandwidth * (1 - 1e-9)
            and all(rates[other] <= rates[flow] * (1 + 1e-9) for other in lane.flows)
            for lane in flow.lanes
        )


# -- collectives


def ring_of_messages(size: int, steps: int, piece: float, network: Network = FLAT) -> float:
    """When the last of `size` workers is through, each passing on in every step what it received in the one before."""
    fabric, ready = ModelledNetwork(network, size), 0.0
    for _ in range(steps):
        ready = max(arrival for _, arrival in play(fabric, *[(r, (r + 1) % size, piece, ready) for r in range(size)]))  # type: ignore[misc]
    return ready


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8])
def test_ring_collectives_take_as_long_as_their_messages_one_by_one(size: int) -> None:
    everyone, nbytes = list(range(size)), 960
    expected = {
        "all_reduce": ring_of_messages(size, 2 * (size - 1), nbytes / size),
        "all_gather": ring_of_messages(size, size - 1, nbytes),
        "scatter": ring_of_messages(size, size - 1, nbytes / size),
    }
    for name, seconds in expected.items():
        assert collective(flat(), name, everyone, nbytes) == pytest.approx(seconds)
    assert collective(flat(), "all_reduce", everyone, nbytes, 3.0) == pytest.approx(
        3.0 + 2 * (size - 1) * (LATENCY + nbytes / size / BANDWIDTH)
    )


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8])
def test_broadcast_and_barrier_take_a_tree_of_hops(size: int) -> None:
    everyone, hops = list(range(size)), ceil(log2(size))
    assert collective(flat(), "broadcast", everyone, SIZE, 1.0) == 1.0 + hops * (4.0 + LATENCY)
    assert collective(flat(), "barrier", everyone, 0, 1.0) == 1.0 + hops * LATENCY


def test_a_barrier_waits_for_no_link() -> None:
    fabric, found = flat(), []
    fabric.send(0, 1, SIZE, 0.0, lambda moment, _: None)
    fabric.barrier("g", [0, 1], 0, 0.0, found.append)
    assert found == [LATENCY]


@pytest.mark.parametrize("message", [(0, 2), (2, 1)])
def test_a_collective_and_a_message_share_the_link_of_a_member(message: tuple[int, int]) -> None:
    """Two steps of 2048 bytes: 4096 in all. Half a link each until the message's 1024 bytes have left, at 2 s."""
    fabric, found = flat(), []
    fabric.all_reduce("g", [0, 1], SIZE, 0.0, found.append)
    assert left(fabric, (*message, 1024, 0.0), (3, 4, 1024, 0.0)) == [2.0, 1.0]
    assert found == [5.0 + 2 * LATENCY]


def test_a_groups_collectives_go_one_after_the_other_and_overlap_their_latencies() -> None:
    fabric, ends = flat(), []
    for _ in range(3):
        fabric.all_reduce("g", [0, 1], SIZE, 0.0, ends.append)
    while fabric.links.happen(inf):
        pass
    assert ends == [4.0 * (i + 1) + 2 * LATENCY for i in range(3)]


def test_collectives_of_two_groups_share_the_links_of_who_is_in_both() -> None:
    fabric, ends = flat(), []
    for group, ranks in (("g", [0, 1]), ("h", [1, 2])):
        fabric.all_reduce(group, ranks, SIZE, 0.0, ends.append)
    while fabric.links.happen(inf):
        pass
    assert ends == [8.0 + 2 * LATENCY] * 2


# -- hosts and racks


def test_workers_of_one_host_talk_inside_it_and_not_over_its_card() -> None:
    """What 0 sends to another host takes 1024 of the 8192 bytes a second of its own link."""
    assert play(ModelledNetwork(HOSTS, 8), (0, 4, SIZE, 0.0), (1, 3, SIZE, 0.0), (5, 6, SIZE, 0.0)) == [
        (4.0, 4.25),
        (0.5, 0.625),
        (0.5, 0.625),
    ]


def test_workers_of_one_host_share_its_card() -> None:
    there = [(rank, rank + 4, SIZE, 0.0) for rank in range(4)]
    back = [(rank + 4, rank, SIZE, 0.0) for rank in range(4)]
    assert left(ModelledNetwork(HOSTS, 8), *there, *back) == [16.0] * 8  # full duplex


@pytest.mark.parametrize(("oversubscription", "expected"), [(1.0, 4.0), (2.0, 8.0), (4.0, 16.0)])
def test_racks_share_an_uplink(oversubscription: float, expected: float) -> None:
    """Of 4 hosts' bandwidth over the oversubscription: at 1, every host has the whole of its card."""
    network = Network(NetworkLink(LATENCY, BANDWIDTH), FAST, hosts_per_rack=4, oversubscription=oversubscription)
    across = [(rank, rank + 4, SIZE, 0.0) for rank in range(4)]
    assert left(ModelledNetwork(network, 8), *across) == [expected] * 4
    assert left(ModelledNetwork(network, 8), *across, (1, 2, SIZE, 100.0))[-1] == 104.0  # within the rack


def test_two_flows_across_an_uplink_of_two_cards_take_what_their_cards_take() -> None:
    """1.25 MB over 10 Gb/s and 30 us: 1.03 ms."""
    network = Network(NetworkLink(3e-5, 1.25e9), FAST, hosts_per_rack=2, oversubscription=1.0)
    both = play(ModelledNetwork(network, 4), (0, 2, 1_250_000, 0.0), (1, 3, 1_250_000, 0.0))
    assert [arrival for _, arrival in both] == pytest.approx([1.03e-3] * 2)


def test_a_slow_uplink_is_the_slowest_link_of_a_message() -> None:
    network = Network(NetworkLink(LATENCY, BANDWIDTH), FAST, hosts_per_rack=1, oversubscription=2.0)
    assert play(ModelledNetwork(network, 2), (0, 1, SIZE, 0.0)) == [(8.0, 8.25)]


def test_a_collective_goes_at_the_pace_of_its_slowest_hop() -> None:
    inside = collective(ModelledNetwork(HOSTS, 8), "all_reduce", [0, 1, 2, 3], SIZE)
    assert inside == 6 * (FAST.latency + SIZE / 4 / FAST.bandwidth)
    everyone = list(range(8))
    assert collective(ModelledNetwork(HOSTS, 8), "all_reduce", everyone, SIZE) == 14 * (LATENCY + SIZE / 8 / BANDWIDTH)
    racks = Network(NetworkLink(LATENCY, BANDWIDTH), FAST, workers_per_host=4, hosts_per_rack=1, oversubscription=4.0)
    across = collective(ModelledNetwork(racks, 8), "all_reduce", everyone, SIZE)
    assert across == 14 * (LATENCY + SIZE / 8 / (BANDWIDTH / 4))
    assert collective(ModelledNetwork(racks, 8), "all_reduce", [0, 1, 2, 3], SIZE) == inside
    slow_inside = Network(NetworkLink(LATENCY, BANDWIDTH), NetworkLink(0.0, 512.0), workers_per_host=4)
    assert collective(ModelledNetwork(slow_inside, 8), "all_reduce", everyone, SIZE) == 14 * (
        LATENCY + SIZE / 8 / 512.0
    )


def test_a_ring_over_hosts_is_never_faster_than_its_messages_one_by_one() -> None:
    closed = collective(ModelledNetwork(HOSTS, 8), "all_reduce", list(range(8)), SIZE)
    assert ring_of_messages(8, 14, SIZE / 8, HOSTS) <= closed


def test_a_collective_shares_the_cards_and_uplinks_between_its_members() -> None:
    """Two steps of 2048 bytes between the hosts, at half of their cards until the message's 1024 have left."""
    hosts = Network(NetworkLink(LATENCY, BANDWIDTH), FAST, workers_per_host=2)
    uplinks = Network(NetworkLink(LATENCY, BANDWIDTH), FAST, hosts_per_rack=2, oversubscription=2.0)  # of one card each
    for network in (hosts, uplinks):
        fabric, found = ModelledNetwork(network, 4), []
        fabric.all_reduce("g", [0, 2], SIZE, 0.0, found.append)
        assert left(fabric, (1, 3, 1024, 0.0)) == [2.0]
        assert found == [5.0 + 2 * LATENCY]
    assert left(ModelledNetwork(uplinks, 4), (0, 1, 1024, 0.0)) == [1.0]


WAN = NetworkLink(3.0, 512.0)
REGIONS = Network(NetworkLink(LATENCY, BANDWIDTH), FAST, hosts_per_rack=2, uplink=WAN)


def test_regions_share_the_link_between_them_and_its_latency() -> None:
    """4096 bytes over 512 bytes a second: 8 s alone, 16 s for both hosts at once; within a region 4 s as ever."""
    assert play(ModelledNetwork(REGIONS, 4), (0, 2, SIZE, 0.0)) == [(8.0, 11.0)]
    assert play(ModelledNetwork(REGIONS, 4), (0, 2, SIZE, 0.0), (1, 3, SIZE, 0.0)) == [(16.0, 19.0)] * 2
    assert play(ModelledNetwork(REGIONS, 4), (0, 1, SIZE, 0.0)) == [(4.0, 4.25)]
    assert collective(ModelledNetwork(REGIONS, 4), "all_reduce", [0, 1, 2, 3], SIZE) == 6 * (3.0 + SIZE / 4 / 512.0)
    assert collective(ModelledNetwork(REGIONS, 4), "all_reduce", [2, 3], SIZE) == 2 * (LATENCY + SIZE / 2 / BANDWIDTH)
    assert collective(ModelledNetwork(REGIONS, 4), "barrier", [0, 1, 2, 3], 0) == 2 * 3.0


def test_a_hop_between_groups_of_a_dragonfly_takes_its_own_latency_at_the_tapered_bandwidth() -> None:
    """Two cards of 1024 bytes a second behind global links of half of that: 4 s for one message, 8 s for two."""
    card = NetworkLink(LATENCY, BANDWIDTH)
    links = NetworkLink(0.5, 2 * BANDWIDTH / 2)
    dragonfly = Network(card, FAST, hosts_per_rack=2, oversubscription=2.0, uplink=links)
    assert play(ModelledNetwork(dragonfly, 4), (0, 2, SIZE, 0.0)) == [(4.0, 4.5)]
    assert play(ModelledNetwork(dragonfly, 4), (0, 2, SIZE, 0.0), (1, 3, SIZE, 0.0)) == [(8.0, 8.5)] * 2


HOME = NetworkLink(LATENCY, BANDWIDTH, upload=BANDWIDTH / 4)


def test_a_link_that_is_slower_up_than_down_sends_at_the_one_and_receives_at_the_other() -> None:
    """Four senders fill one receiver's link; a fifth makes each wait for it."""
    home = Network(HOME, FAST)
    assert play(ModelledNetwork(home, 8), (0, 1, SIZE, 0.0)) == [(16.0, 16.25)]
    for senders, expected in ((4, 16.0), (5, 20.0)):
        assert left(ModelledNetwork(home, 8), *((rank, 0, SIZE, 0.0) for rank in range(1, senders + 1))) == (
            pytest.approx([expected] * senders)
        )
    assert left(ModelledNetwork(home, 8), (0, 1, SIZE, 0.0), (0, 2, SIZE, 0.0)) == [32.0, 32.0]
    assert collective(ModelledNetwork(home, 4), "all_reduce", [0, 1, 2, 3], SIZE) == 6 * (LATENCY + SIZE / 4 / 256.0)


def test_servers_have_their_own_link() -> None:
    """Three phones send to a server at once, each as fast as it can; the latency is that of the slower end."""
    server = NetworkLink(0.125, 16 * BANDWIDTH)
    phones = Network(HOME, FAST, server=server, workers=3)
    assert play(ModelledNetwork(phones, 5), *((rank, 3, SIZE, 0.0) for rank in range(3))) == [(16.0, 16.25)] * 3
    assert play(ModelledNetwork(phones, 5), *((3, rank, SIZE, 0.0) for rank in range(3))) == [(4.0, 4.25)] * 3
    assert play(ModelledNetwork(phones, 5), (3, 4, SIZE, 0.0)) == [(0.25, 0.375)]


def test_hosts_beyond_the_last_rack_are_in_it() -> None:
    """Servers are beside the workers of all racks, and their hosts are counted last."""
    regions = Network(NetworkLink(LATENCY, BANDWIDTH), FAST, hosts_per_rack=2, uplink=WAN, racks=2)
    assert play(ModelledNetwork(regions, 5), (2, 4, SIZE, 0.0)) == [(4.0, 4.25)]
    assert play(ModelledNetwork(regions, 5), (0, 4, SIZE, 0.0)) == [(8.0, 11.0)]


def test_a_message_alone_takes_what_is_said_beforehand() -> None:
    for network in (REGIONS, Network(HOME, FAST), HOSTS):
        for dst in (1, 4):
            fabric = ModelledNetwork(network, 8)
            said = fabric.alone(0, dst, SIZE)
            assert play(fabric, (0, dst, SIZE, 0.0))[0][1] == said


@pytest.mark.parametrize(
    "link", [NetworkLink(-1e-6, 1e9), NetworkLink(0.0, 0.0), NetworkLink(0.0, -1.0), NetworkLink(0.0, 1.0, 0.0)]
)
def test_a_link_without_bandwidth_or_of_negative_latency_is_refused(link: NetworkLink) -> None:
    for network in ((link, FAST), (FAST, link)):
        with pytest.raises(NetworkError, match="make no link") as caught:
            Network(*network)
        assert caught.value.exit_code == 2
