"""Who shares a host, as each fabric knows it."""

import pytest

from paceline.comm import Comm
from paceline.comm.network import Link, Network
from paceline.comm.virtual import Cluster


def hosts(comm: Comm) -> list[list[int]]:
    """Of all, and of those whose rank is as odd as this one's."""
    half = comm.split(comm.rank % 2)
    assert half is not None
    return [list(comm.hosts), list(half.hosts)]


def test_hosts_of_a_virtual_cluster_are_those_of_its_network() -> None:
    link = Link(latency=1e-3, bandwidth=1e6)
    told = Cluster(6, Network(between=link, inside=link, workers_per_host=2)).run(hosts)
    assert told == [[[0, 0, 1, 1, 2, 2], [0, 1, 2]]] * 6


@pytest.mark.dist
def test_processes_of_one_machine_share_a_host(workers) -> None:
    assert workers(2, hosts) == [[[0, 0], [0]]] * 2
