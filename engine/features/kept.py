"""The bytes of a run that sends no gradients of pruned weights: fewer in each training than in the one before."""

from collections.abc import Sequence

import torch
from torch import nn

from ...exchange.collectives.base import added, times
from ...strategies.adapt import Adapt
from ...strategies.core.cost import Traffic, World
from ...tracking.columns import human_bytes
from . import injected
from .feature import Parts

TOLD = 12  # trainings, one by one


def by_training(parts: Parts, adapt: Adapt, module: nn.Module, world: World) -> list[Traffic] | None:
    """A step's of the sync mode, for a part; None where all is sent, or the run alone will tell what is kept of it.

    It is what the mode states for parameters of as many entries as are kept.
    """
    if not injected.of_kept(parts.of_groups):
        return None
    trained = {name: each for name, each in module.named_parameters() if each.requires_grad}
    counts = adapt.kept(trained)
    if counts is None:
        return None
    found: list[Traffic] = []
    for of_training in counts:
        smaller = [
            torch.empty(count, dtype=each.dtype, device="meta")
            for count, each in zip(of_training, trained.values(), strict=True)
        ]
        cost = parts.sync.cost(smaller, world)
        assert cost is not None, "what a step sends does not depend on the data"
        found.append(cost.worker)
    return found


def mean(trainings: Sequence[Traffic]) -> Traffic:
    """Returns the mean bytes of a step over a run: all trainings have as many steps."""
    return times(1 / len(trainings), added(*trainings))


def notes(parts: Parts, adapt: Adapt, worlds: Sequence[World]) -> list[str]:
    if not injected.of_kept(parts.of_groups):
        return []
    compress = f"compress={parts.experiment.choice('compress').name}"
    of_parts = [by_training(parts, adapt, module, world) for module, world in zip(parts.modules, worlds, strict=True)]
    stated = [each for each in of_parts if each is not None]
    if len(stated) < len(of_parts):
        return [
            f"{compress}: which stage keeps how many of the weights is known once a round is over, as they are pruned "
            "by one threshold for all; with adapt.scope=layer a plan states what is sent"
        ]
    sent = [sum(sum(each.values()) for each in step) / len(step) for step in zip(*stated, strict=True)]
    told = [human_bytes(each) for each in (sent if len(sent) <= TOLD else [*sent[: TOLD - 2], sent[-1]])]
    if len(sent) > TOLD:
        told.insert(-1, "...")
    return [f"{compress}: by training {', '.join(told)} sent a step and worker, in the mean {human_bytes(_mean(sent))}"]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
