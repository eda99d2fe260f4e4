"""Random numbers that all who draw the same have alike, and a resumed run draws again."""

from torch import Generator


def generator(seed: int, step: int, replica: int = 0) -> Generator:
    """By these alone, on the host."""
    return Generator().manual_seed(((seed * 1_000_003 + step) * 65_537 + replica + 1) % 2**63)
