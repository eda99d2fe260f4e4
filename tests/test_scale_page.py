"""The page of 100,000 workers has the figures of the code, and a plan of so many is made without pairs of workers."""

import pytest

from benchmarks.scale import DOCS, written
from paceline.exchange.collectives import HalvingDoubling
from paceline.exchange.collectives.base import phase
from paceline.exchange.collectives.peers import exchanges
from paceline.strategies.core.cost import World
from paceline.strategies.core.mesh import Mesh


@pytest.mark.slow
def test_the_page_has_the_tables_as_they_are_computed() -> None:
    page = DOCS.read_text(encoding="utf-8")
    assert page == written(page), "write it anew: python -m benchmarks.scale --write"


def test_an_exchange_counts_as_its_messages_do_one_by_one() -> None:
    for workers in (2, 6, 8, 12, 30, 49):
        for each in (1, 2, 3, 5, 50):
            world = World(workers, hosts=tuple(rank // each for rank in range(workers)))
            for meeting in exchanges(workers):
                pairs = [(rank, other) for rank in range(workers) for other in meeting.group(rank) if other != rank]
                found, expected = meeting.phase("exchange", 8, world), phase("exchange", 8, pairs, world)
                assert (found.of_workers, found.of_hosts) == (expected.of_workers, expected.of_hosts)


def test_a_prime_number_of_workers_is_one_exchange_and_no_list_of_pairs() -> None:
    workers = 99_991
    world = World(workers, hosts=tuple(range(workers)))
    [halving, doubling] = HalvingDoubling().phases(1e9, world)
    assert (halving.nbytes, halving.sharing, halving.crossing) == (1e9 / workers, workers - 1, workers - 1)
    assert doubling.crossing == workers - 1


def test_ranks_along_an_axis_differ_in_it_alone() -> None:
    mesh = Mesh({"replica": 3, "stage": 2, "tensor": 4})
    for rank in range(mesh.size):
        for axis in mesh.axes:
            at = mesh.position(rank)
            assert mesh.along(rank, axis) == [mesh.rank({**at, axis: i}) for i in range(mesh.axes[axis])]
