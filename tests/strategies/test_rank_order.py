"""Sums at servers have the same bits whoever comes first."""

from itertools import permutations

import torch

from paceline.exchange.rank_order import RankOrderedSum

ROWS = [torch.tensor([1e8, 0.1]), torch.tensor([1.0, 0.2]), torch.tensor([-1e8, 0.3]), torch.tensor([3.0, 0.7])]
WEIGHTS = [0.3, 0.1, 0.3, 0.3]


def closed(order: tuple[int, ...]) -> torch.Tensor:
    total = RankOrderedSum(torch.zeros(2))
    for rank in order:
        row = ROWS[rank].clone()
        total.add(rank, WEIGHTS[rank], row)
        row.zero_()  # is used again
    assert total.ranks == set(order)
    return total.close().clone()


def test_any_order_of_arrival_gives_the_bits_of_the_order_of_ranks() -> None:
    for ranks in ((0, 1, 2, 3), (0, 2, 3), (1, 3), (2,)):
        expected, weights = torch.zeros(2), 0.0
        for rank in ranks:
            expected.add_(ROWS[rank], alpha=WEIGHTS[rank])
            weights += WEIGHTS[rank]
        assert all(torch.equal(closed(order), expected / weights) for order in permutations(ranks))


def test_plain_sums_in_the_order_of_arrival_would_differ() -> None:
    sums = set()
    for order in permutations(range(4)):
        total = torch.zeros(2)
        for rank in order:
            total.add_(ROWS[rank], alpha=WEIGHTS[rank])
        sums.add(tuple(total.tolist()))
    assert len(sums) > 1


def test_a_cleared_sum_begins_at_zero() -> None:
    total = RankOrderedSum(torch.zeros(1))
    for value in (2.0, 6.0):
        total.add(1, 0.5, torch.tensor([value]))
        total.add(0, 0.5, torch.tensor([0.0]))
        assert float(total.close()) == value / 2
        total.clear()
