"""Times of passes for simulated schedules."""

from paceline.strategies.pipelining.actions import Kind
from paceline.strategies.pipelining.simulate import Times


def even(stages: int, forward: float = 1.0, inputs: float = 1.0, weights: float = 1.0) -> Times:
    """Returns the same times for every stage."""
    seconds: dict[Kind, float] = {"F": forward, "B": inputs + weights, "I": inputs, "W": weights}
    return {kind: [each] * stages for kind, each in seconds.items()}
