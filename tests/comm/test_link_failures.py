"""Links that fail, against clocks that are counted by hand."""

from collections.abc import Callable
from itertools import count

import pytest
import torch

from paceline.comm import HangError
from paceline.comm.links import LinkChange, ModelledLinks, SharedLinks
from paceline.comm.native_links import links_here
from paceline.comm.network import ModelledNetwork, Network, NetworkLink
from paceline.comm.virtual import SimulatedCluster, VirtualComm

LINK = NetworkLink(0.25, 1024.0)
FLAT, HOSTS = Network(LINK, LINK), Network(LINK, NetworkLink(0.125, 8192.0), workers_per_host=2)
FOUR_SECONDS = 1024  # float32, over a link between hosts


def clocks(cluster: SimulatedCluster, function: Callable[[VirtualComm], None]) -> list[float]:
    """When each worker is through."""
    cluster.run(function)
    return [worker.clock for worker in cluster.workers]


def sends(comm: VirtualComm) -> None:
    """Worker 0 sends to 1, and 2 to 3, for four seconds each."""
    if comm.rank % 2 == 0:
        comm.send(torch.zeros(FOUR_SECONDS), comm.rank + 1)
    else:
        comm.recv(torch.zeros(FOUR_SECONDS), comm.rank - 1)


def cut(cluster: SimulatedCluster, ranks: set[int], at: float, until: float | None) -> None:
    lane = cluster.fabric.cut(frozenset(ranks))
    ends = [] if until is None else [LinkChange(until, [(lane, cluster.fabric.links.bandwidth(lane))], "")]
    cluster.fabric.links.plan([LinkChange(at, [(lane, 0.0)], "the cable is out"), *ends])


def test_a_message_over_a_cut_waits_and_goes_on_with_the_rest() -> None:
    """One second has passed when it is cut off for ten; the others notice nothing."""
    cluster = SimulatedCluster(4, FLAT)
    cut(cluster, {1}, 1.0, 11.0)
    assert clocks(cluster, sends) == [14.0, 14.25, 4.0, 4.25]


def test_those_on_one_side_of_a_cut_reach_each_other() -> None:
    cluster = SimulatedCluster(4, FLAT)
    cut(cluster, {0, 1}, 0.0, None)
    assert clocks(cluster, sends) == [4.0, 4.25, 4.0, 4.25]


def test_what_is_sent_into_a_cut_begins_when_it_is_over() -> None:
    cluster = SimulatedCluster(2, FLAT)
    cut(cluster, {1}, 0.0, 2.0)
    assert clocks(cluster, sends) == [6.0, 6.25]


def test_a_collective_waits_for_a_cut_between_its_members_alone() -> None:
    """A ring of two sends 2 (n-1)/n S: as long as one message, and two latencies."""

    def reduces(comm: VirtualComm) -> None:
        group = comm.split(comm.rank // 2)
        assert group is not None
        group.all_reduce(torch.zeros(FOUR_SECONDS)).wait()

    cluster = SimulatedCluster(4, FLAT)
    cut(cluster, {1, 2, 3}, 1.0, 3.0)
    assert clocks(cluster, reduces) == [6.5, 6.5, 4.5, 4.5]


def test_a_slower_link_takes_longer_from_that_moment_on() -> None:
    """One second at full speed, two at a quarter, then the rest: 1 + 2/4 of four seconds have passed at second 3."""
    cluster = SimulatedCluster(4, FLAT)
    lanes = cluster.fabric.links_of("worker", [0])
    changes = [(1.0, 256.0), (3.0, 1024.0)]
    cluster.fabric.links.plan(LinkChange(at, [(lane, bandwidth) for lane in lanes], "") for at, bandwidth in changes)
    assert clocks(cluster, sends) == [5.5, 5.75, 4.0, 4.25]


def test_a_link_that_flaps_for_ever_delays_what_it_carries_and_no_more() -> None:
    """Up for a second, down for two, from second 1 on: four seconds of bytes leave at 0-1, 3-4, 6-7, 9-10."""
    cluster = SimulatedCluster(4, FLAT)
    lanes = cluster.fabric.links_of("worker", [1])
    states = ((1.0 + cycle * 3.0 + wait, bandwidth) for cycle in count() for wait, bandwidth in ((0, 0.0), (2, 1024.0)))
    cluster.fabric.links.plan(LinkChange(at, [(lane, bandwidth) for lane in lanes], "") for at, bandwidth in states)
    assert clocks(cluster, sends) == [10.0, 10.25, 4.0, 4.25]


def test_the_links_of_a_host_are_those_that_its_workers_share() -> None:
    """Inside of a host all goes on; of one worker a host, its link is the worker's."""
    several, single = ModelledNetwork(HOSTS, 4), ModelledNetwork(FLAT, 4)
    assert set(map(several.links.bandwidth, several.links_of("host", [1]))) == {1024.0}
    assert single.links_of("host", [1]) == single.links_of("worker", [1])
    assert several.members("host", [1]) == {2, 3}
    assert (several.count("worker"), several.count("host"), several.count("rack")) == (4, 2, 1)


@pytest.mark.parametrize("until", [None, 1e9])
def test_a_deadlock_behind_a_cut_without_end_names_it(until: float | None) -> None:
    cluster = SimulatedCluster(2, FLAT)
    cut(cluster, {1}, 1.0, until)
    if until is None:
        with pytest.raises(HangError, match=r"waits in send to worker 1; .*\. the cable is out$"):
            cluster.run(sends)
    else:
        assert clocks(cluster, sends)[0] == until + 3.0


@pytest.mark.parametrize("make", [SharedLinks, links_here])
def test_a_link_that_is_up_again_stops_nothing(make: Callable[[], ModelledLinks]) -> None:
    links, ends = make(), list[float]()
    lane = links.add(1.0)
    links.plan([LinkChange(1.0, [(lane, 0.0)], "the cable is out"), LinkChange(3.0, [(lane, 1.0)], "")])
    links.post("one", [lane], 4.0, 0.0, ends.append)
    assert not links.happen(2.0) and links.stopped() == ["the cable is out"]
    assert not links.happen(4.0) and links.stopped() == []
    assert links.happen(10.0) and ends == [6.0]
