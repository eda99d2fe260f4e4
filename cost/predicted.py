"""A step's time as it was predicted: what it is made of, by which formulas, and what follows from it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .published import Published

PARTS = {  # in the order in which they are told
    "compute": "compute",
    "tensor": "sums within layers",
    "context": "keys and values of others",
    "experts": "tokens to experts",
    "bubble": "bubble",
    "shards": "waiting for weights",
    "data": "sum of gradients",
    "communication": "communication",
    "waiting": "waiting for others",
    "optimizer": "optimizer",
    "offload": "host link",
    "input": "input",
    "host": "host",
}


class NotPredicted(Exception):  # it is an answer
    """The time of a step is not predicted; the message gives the reason."""


@dataclass(frozen=True)
class PredictedStep:
    """Seconds by part, of `PARTS`: only what is exposed counts, so that they add up to the step.

    `flops` are those of the model, without recomputation, of all samples of a step. `formulas` has each part's.
    """

    parts: Mapping[str, float]
    formulas: Mapping[str, str]
    how: str  # what the prediction rests on, for people
    samples: int
    tokens: int | None  # None: samples are no sequences
    flops: float | None
    workers: int
    on: str  # what each of them computes on
    peak: float | None  # of one, in the dtype that is computed in: flops a second
    dtype: str
    price_per_second: float | None  # of all hosts
    published: Published | None = None  # how long other people's runs took beside their predictions

    def __post_init__(self) -> None:
        assert self.parts.keys() <= PARTS.keys() and self.parts.keys() <= self.formulas.keys()

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())

    @property
    def mfu(self) -> float | None:
        """Model flops utilisation (Chowdhery et al. 2022, "PaLM", appendix B); None where no peak is known."""
        if self.flops is None or self.peak is None:
            return None
        return self.flops / (self.seconds * self.workers * self.peak)

    @property
    def range(self) -> tuple[float, float] | None:
        """Seconds between which a step lies in 8 of 10 published runs; None where they say nothing of it."""
        if self.published is None:
            return None
        return self.published.low * self.seconds, self.published.high * self.seconds

    def of_tokens(self, tokens: float) -> float:
        """Seconds that so many tokens take. Raises `NotPredicted` where samples have none."""
        if self.tokens is None:
            raise NotPredicted("samples of these data have no tokens")
        return tokens / self.tokens * self.seconds

    def price(self, seconds: float) -> float | None:
        """Dollars; None where nobody says what an hour costs."""
        return None if self.price_per_second is None else seconds * self.price_per_second

    def record(self) -> dict[str, Any]:
        """Returns the contents of a run's `prediction.json`."""
        return {
            "seconds": self.seconds,
            "parts": dict(self.parts),
            "formulas": {name: self.formulas[name] for name in self.parts},
            "how": self.how,
        }

    def as_dict(self) -> dict[str, Any]:
        """Returns values for `--format json`: seconds, samples a second, shares, dollars a step."""
        return {
            **self.record(),
            "samples_per_second": self.samples / self.seconds,
            "tokens_per_second": None if self.tokens is None else self.tokens / self.seconds,
            "mfu": self.mfu,
            "range": None if self.range is None else list(self.range),
            "dollars": self.price(self.seconds),
        }
