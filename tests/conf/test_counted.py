"""Numbers with their nouns."""

import pytest

from paceline.conf.counted import counted


@pytest.mark.parametrize(
    ("number", "thing", "says"),
    [
        (0, "run", "0 runs"),
        (1, "run", "1 run"),
        (2, "run", "2 runs"),
        (2000, "loss", "2,000 losses"),
        (1, "loss", "1 loss"),
    ],
)
def test_the_noun_follows_the_number(number: int, thing: str, says: str) -> None:
    assert counted(number, thing) == says
