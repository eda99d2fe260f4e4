"""Collectives over two levels of links: the formulas of a ring, and who shares which card."""

import math
from dataclasses import replace

import pytest

from paceline.comm.network import NetworkLink as Modelled
from paceline.cost.links import Link, Links

LINKS = Links(inside=Link(1e-5, 1e11), between=Link(5e-5, 2e10), per_host=8)


@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_inside_a_host_a_ring_takes_its_formula(size: int) -> None:
    assert LINKS.all_reduce(1e8, size, 1) == pytest.approx(1e-5 + 2 * (size - 1) / size * 1e8 / 1e11)
    assert LINKS.all_gather(1e8, size, 1) == pytest.approx(1e-5 + (size - 1) / size * 1e8 / 1e11)


def test_one_device_sends_nothing() -> None:
    assert LINKS.all_reduce(1e9, 1, 1) == LINKS.all_gather(1e9, 1, 8) == 0.0


def test_across_hosts_a_group_goes_at_the_pace_of_the_cards() -> None:
    hosts = 4
    expected = 5e-5 * 2 + 2 * 31 / 32 * 1e9 / 2e10
    assert LINKS.all_reduce(1e9, 8 * hosts, 1) == pytest.approx(expected)


def test_each_turn_of_a_gather_s_ring_adds_its_latency_across_hosts() -> None:
    """Large messages go by the protocol of the whole bandwidth, small ones by the quicker one (NCCL's tuning.cc)."""
    large = 5e-5 + 3 * 1.4e-5 + 28 * 3.4e-6 + 31 / 32 * 1e9 / 2e10
    assert LINKS.all_gather(1e9, 32, 1) == pytest.approx(large)
    small = 5e-5 + 3 * 4e-6 + 28 * 1.9e-6 + 31 / 32 * 1e5 / 2e10 / 0.92
    assert LINKS.all_gather(1e5, 32, 1) == pytest.approx(small)
    assert LINKS.all_gather(0, 4, 8) == pytest.approx(5e-5 + 3 * 4e-6)


@pytest.mark.parametrize(("stride", "sharing"), [(1, 1), (2, 2), (8, 8), (32, 8)])
def test_groups_of_one_host_share_its_card(stride: int, sharing: int) -> None:
    link = LINKS.slowest(64, stride)
    assert link.bandwidth == pytest.approx(2e10 / sharing)


def test_tensor_groups_that_fit_into_a_host_never_leave_it() -> None:
    assert LINKS.slowest(8, 1) == LINKS.inside
    assert LINKS.slowest(4, 2) == LINKS.inside
    assert LINKS.slowest(8, 2) != LINKS.inside


@pytest.mark.parametrize("size", [2, 8])
def test_an_all_to_all_on_one_host_sends_all_but_its_own_part(size: int) -> None:
    assert LINKS.all_to_all(1e8, size) == pytest.approx(1e-5 + (size - 1) / size * 1e8 / 1e11)
    assert LINKS.all_to_all(1e8, 1) == 0.0


@pytest.mark.parametrize("hosts", [2, 4])
def test_an_all_to_all_across_hosts_takes_what_counted_messages_take(hosts: int) -> None:
    size, part = 8 * hosts, 1e8 / (8 * hosts)
    pairs = [(a, b) for a in range(size) for b in range(size) if a != b]
    over_card = sum(part for a, b in pairs if a // 8 == 0 and b // 8 != 0)  # of the first host's devices together
    over_link = sum(part for a, b in pairs if a == 0 and b // 8 == 0)
    latency = 5e-5 * math.log2(hosts)
    assert LINKS.all_to_all(1e8, size) == pytest.approx(latency + over_card / 2e10)
    quick = replace(LINKS, between=Link(5e-5, 1e13))
    assert quick.all_to_all(1e8, size) == pytest.approx(latency + over_link / 1e11)


def test_a_message_to_the_next_host_shares_the_card_with_its_neighbours() -> None:
    assert LINKS.send(1e6, 4) == pytest.approx(1e-5 + 1e6 / 1e11)
    assert LINKS.send(1e6, 8) == pytest.approx(5e-5 + 1e6 / (2e10 / 8))


def test_a_link_has_the_fields_of_the_virtual_cluster_s_but_for_what_it_sends_at() -> None:
    assert {**vars(Link(1e-5, 1e9)), "upload": None} == vars(Modelled(1e-5, 1e9))
