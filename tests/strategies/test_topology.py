"""Communication graphs: what makes mixing on them conserve the mean and bring workers together."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from paceline.exchange.topology import neighbours, out_degree

BALANCED = ["ring", "exponential", "one_peer_exponential", "matching"]
TOPOLOGIES = [*BALANCED, "one_peer_and_random"]
sizes = st.integers(1, 40)
rounds = st.integers(0, 10_000)
seeds = st.integers(0, 2**40)
EXACT = 1e-15  # 1/2, 1/3, ... and sums of a few of them in float64


def everyones(topology, size, round, seed):
    return [neighbours(topology, worker, size, round, seed) for worker in range(size)]


def mixing(topology: str, size: int, round: int = 0, seed: int = 0) -> Tensor:
    """a [size, size] float64: a_ij = 1 / (1 + |of_i|)."""
    a = torch.zeros(size, size, dtype=torch.float64)
    for i, near in enumerate(everyones(topology, size, round, seed)):
        a[i, [i, *near.of]] = 1 / (1 + len(near.of))
    return a


def sharing(topology: str, size: int, round: int = 0, seed: int = 0) -> Tensor:
    """p [size, size] float64: p_ji = 1 / (1 + |to_i|)."""
    p = torch.zeros(size, size, dtype=torch.float64)
    for i, near in enumerate(everyones(topology, size, round, seed)):
        p[[i, *near.to], i] = 1 / (1 + len(near.to))
    return p


def second(a: Tensor) -> float:
    """lambda_2: the second largest singular value; of a symmetric matrix, the second largest |eigenvalue|."""
    return float(torch.linalg.svdvals(a)[1])


def variance(rows: Tensor) -> float:
    return float((rows - rows.mean(0)).square().sum())


# -- every graph, for every number of workers


@given(st.sampled_from(TOPOLOGIES), sizes, rounds, seeds)
def test_who_is_sent_to_receives_and_nobody_is_listed_twice_or_is_his_own_neighbour(topology, size, round, seed):
    near = everyones(topology, size, round, seed)
    sent = {(i, j) for i in range(size) for j in near[i].to}
    assert sent == {(j, i) for i in range(size) for j in near[i].of}
    assert all(0 <= j < size and j != i for i, j in sent)
    assert len(sent) == sum(len(n.to) for n in near) == sum(len(n.of) for n in near)


@given(st.sampled_from(BALANCED), sizes, rounds, seeds)
def test_the_mixing_matrix_is_doubly_stochastic(topology, size, round, seed):
    a = mixing(topology, size, round, seed)
    assert bool((a >= 0).all())
    assert torch.allclose(a.sum(0), torch.ones(size, dtype=torch.float64), rtol=0, atol=8 * EXACT)
    assert torch.allclose(a.sum(1), torch.ones(size, dtype=torch.float64), rtol=0, atol=8 * EXACT)


@given(st.sampled_from(TOPOLOGIES), sizes, rounds, seeds)
def test_the_push_sum_matrix_is_column_stochastic(topology, size, round, seed):
    p = sharing(topology, size, round, seed)
    assert bool((p >= 0).all())
    assert torch.allclose(p.sum(0), torch.ones(size, dtype=torch.float64), rtol=0, atol=8 * EXACT)


def test_a_random_receiver_makes_it_not_doubly_stochastic_so_that_push_sum_has_something_to_correct():
    assert not torch.allclose(sharing("one_peer_and_random", 5).sum(1), torch.ones(5, dtype=torch.float64))


@pytest.mark.parametrize("size", [4, 16, 40])
def test_with_one_sender_at_least_no_push_sum_weight_gets_tiny(size):
    """z moves by eta / w: where anybody may get nothing for many rounds, w falls below 1e-3 and training diverges."""
    w, least = torch.ones(size, dtype=torch.float64), 1.0
    for round in range(300):
        w = sharing("one_peer_and_random", size, round) @ w
        least = min(least, float(w.min()))
    assert 0.15 < least < 0.9


@given(st.sampled_from(["ring", "matching"]), sizes, rounds, seeds)
def test_rings_and_matchings_are_symmetric(topology, size, round, seed):
    a = mixing(topology, size, round, seed)
    assert torch.equal(a, a.T)


@given(st.sampled_from(BALANCED), st.integers(2, 40), rounds, st.integers(0, 2**32))
def test_mixing_conserves_the_mean_and_contracts_the_variance_by_lambda_2_squared(topology, size, round, seed):
    a = mixing(topology, size, round, seed)
    rows = torch.randn(size, 7, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    mixed = a @ rows
    assert torch.allclose(mixed.mean(0), rows.mean(0), rtol=0, atol=1e-14)
    assert variance(mixed) <= second(a) ** 2 * variance(rows) * (1 + 1e-12) + 1e-28
    assert second(a) <= 1 + 1e-12  # so it is never raised


@pytest.mark.parametrize("size", range(3, 41))
def test_a_ring_contracts_its_slowest_eigenvector_by_lambda_2_squared_exactly(size):
    a = mixing("ring", size)
    eigenvalues, vectors = torch.linalg.eigh(a)
    by_size = eigenvalues.abs().argsort(descending=True)
    slowest = by_size[1]
    rows = vectors[:, slowest, None]
    assert abs(second(a) - float(eigenvalues[slowest].abs())) < 1e-12
    assert abs(variance(a @ rows) - second(a) ** 2 * variance(rows)) < 1e-12
    assert abs(second(a) - (1 / 3 + 2 / 3 * math.cos(2 * math.pi / size))) < 1e-12


@given(st.sampled_from(TOPOLOGIES), sizes, rounds, seeds)
def test_the_stated_degree_is_the_mean_of_what_workers_send(topology, size, round, seed):
    sent = sum(len(near.to) for near in everyones(topology, size, round, seed))
    assert sent == pytest.approx(size * out_degree(topology, size), rel=1e-15)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_one_worker_has_no_neighbours_and_two_are_each_others(topology):
    assert neighbours(topology, 0, 1, 3, 0) == ([], [])
    for worker in range(2):
        assert neighbours(topology, worker, 2, 3, 0) == ([1 - worker], [1 - worker])
    assert torch.equal(mixing(topology, 2), torch.full((2, 2), 0.5, dtype=torch.float64))


# -- each graph


def test_a_ring_of_five_by_hand():
    assert [neighbours("ring", i, 5, 0, 0) for i in range(5)] == [
        ([1, 4], [4, 1]),
        ([2, 0], [0, 2]),
        ([3, 1], [1, 3]),
        ([4, 2], [2, 4]),
        ([0, 3], [3, 0]),
    ]


def test_exponential_graphs_of_six_by_hand():
    assert neighbours("exponential", 0, 6, 0, 0) == ([1, 2, 4], [5, 4, 2])
    assert neighbours("exponential", 4, 6, 9, 0) == ([5, 0, 2], [3, 2, 0])
    assert [neighbours("one_peer_exponential", 4, 6, r, 0) for r in range(4)] == [
        ([5], [3]),
        ([0], [2]),
        ([2], [0]),
        ([5], [3]),
    ]


@pytest.mark.parametrize("k", range(1, 6))
def test_as_many_one_peer_rounds_as_the_number_has_bits_make_the_exact_mean(k):
    size = 2**k
    for start in range(3):
        product = torch.eye(size, dtype=torch.float64)
        for round in range(start, start + k):
            product = mixing("one_peer_exponential", size, round) @ product
        assert torch.equal(product, torch.full((size, size), 1 / size, dtype=torch.float64))


@given(st.integers(2, 40), rounds, seeds)
def test_a_matching_pairs_all_but_one_of_an_odd_number(size, round, seed):
    near = everyones("matching", size, round, seed)
    alone = [i for i, n in enumerate(near) if n.to == []]
    assert len(alone) == size % 2
    for i, n in enumerate(near):
        assert n.to == n.of
        assert all(near[j].to == [i] for j in n.to)


def within_five_sigma(counts: Tensor, draws: int, probability: float) -> bool:
    sigma = math.sqrt(draws * probability * (1 - probability))
    return bool(((counts - draws * probability).abs() < 5 * sigma).all())


@pytest.mark.parametrize("size", [4, 5])
def test_every_pair_is_matched_equally_often(size):
    draws = 2000
    met: Any = sum((mixing("matching", size, round) > 0).long() for round in range(draws))
    off_diagonal = met[~torch.eye(size, dtype=torch.bool)]
    assert within_five_sigma(off_diagonal, draws, 1 / (size - 1 + size % 2))


def test_beside_the_one_peer_every_other_worker_is_drawn_equally_often():
    draws, size = 2000, 5
    met = torch.zeros(size, size)
    for round in range(0, 3 * draws, 3):  # the one peer is i + 1
        p = sharing("one_peer_and_random", size, round)
        assert all(p[(i + 1) % size, i] > 0 for i in range(size))
        met += p > 0
    others = torch.ones(size, size, dtype=torch.bool)
    for i in range(size):
        others[[i, (i + 1) % size], i] = False
    assert within_five_sigma(met[others], draws, 1 / (size - 2))


@pytest.mark.parametrize("topology", ["matching", "one_peer_and_random"])
def test_draws_depend_on_the_seed_and_the_round_and_on_nothing_else(topology):
    drawn = [[everyones(topology, 9, round, seed) for round in range(4)] for seed in range(4)]
    assert len({str(graph) for of_seed in drawn for graph in of_seed}) == 16
    torch.manual_seed(5)
    assert everyones(topology, 9, 2, 3) == drawn[3][2]
