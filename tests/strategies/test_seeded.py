"""Random numbers by what they are for."""

import torch

from paceline.exchange.seeded import generator


def test_what_is_said_decides_the_numbers_and_where_one_word_ends_counts() -> None:
    told = [(0, 1, 23), (0, 12, 3), (1, 0, 23), ("a", 1, 23), (0, 1), ()]
    drawn = [torch.randn(5, generator=generator(*each)) for each in told]
    assert all(torch.equal(torch.randn(5, generator=generator(*each)), x) for each, x in zip(told, drawn, strict=True))
    assert not any(torch.equal(x, y) for i, x in enumerate(drawn) for y in drawn[:i])
