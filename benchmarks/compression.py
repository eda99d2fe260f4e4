"""Rules of compression against what one would write with torch, on one thread."""

import time
from collections.abc import Callable
from functools import partial

import torch

from paceline.strategies.exchange.compress.topk import largest

from .measure import Outcome, alternate

ENTRIES, RATIO = 10_000_000, 0.001


def compression_against_torch(rounds: int) -> list[Outcome]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in a worker that has a core of its own
    try:
        return [topk_against_torch(rounds)]
    finally:
        torch.set_num_threads(threads)


def topk_against_torch(rounds: int) -> Outcome:
    """The places of the 0.1 % of largest magnitude. Ours gives them in rising order, and of ties the first."""
    x, k = torch.randn(ENTRIES, generator=torch.Generator().manual_seed(0)), int(RATIO * ENTRIES)
    ours = partial(_milliseconds, lambda: largest(x, k))
    peer = partial(_milliseconds, lambda: x.abs().topk(k, sorted=False).indices)
    return alternate("top-k, 0.1 % of 10 M float32", ours, peer, "torch.topk", "<= 0.35", rounds)


def _milliseconds(do: Callable[[], object]) -> float:
    start = time.perf_counter()
    do()
    return (time.perf_counter() - start) * 1e3
