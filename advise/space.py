"""Every way to lay a GPT out over so many accelerators that the cost model has a closed form for, and why others cannot
be. What is enumerated: all divisors as degrees, all powers of two that divide a batch as numbers of micro-batches.
"""

from collections.abc import Iterator
from itertools import product

from ..cost.layout import Offload
from .candidate import Candidate
from .cut import staged, tensor
from .layouts import (
    LayoutProblem,
    PrunedFamily,
    candidate_of,
    divisors,
    flags,
    layout_of,
    pieces,
    samples_of,
    shards_of,
)
from .memory import Shape


def ways(of: Shape, place: LayoutProblem) -> Iterator[Candidate | PrunedFamily]:
    workers = place.workers
    if workers == 1:
        yield from _whole(place, "single")
        if place.devices > 1:
            return  # one of several devices: to compare with
    else:
        yield from _whole(place, "data_parallel")
        yield from _whole(place, "torch_ddp")
        yield from _whole(place, "torch_fsdp")
    yield from _zero(place)
    for t in divisors(workers):
        yield from tensor(of, place, t)
        for p in divisors(workers // t):
            yield from staged(of, place, p, t)


def _whole(place: LayoutProblem, family: str) -> Iterator[Candidate | PrunedFamily]:
    """Each replica is one worker."""
    samples = samples_of(place, place.workers, family)
    if isinstance(samples, PrunedFamily):
        yield samples
        return
    cut = (1,) if family == "torch_fsdp" else pieces(samples)  # cost/ does not know it with accumulate
    for shard, name in shards_of(place.workers if family == "data_parallel" else 1):
        for accumulate, chosen in product(cut, flags("model.recompute")):
            zero = 3 if family == "torch_fsdp" else shard
            layout = layout_of(place, family, samples, accumulate, place.workers, chosen["model.recompute"], zero=zero)
            group = f"sync.shard={name}" if shard else "whole copies" if family == "data_parallel" else family
            knobs = {"sync.shard": name} if family == "data_parallel" else {}
            several = {"accumulate": accumulate} if accumulate > 1 else {}
            yield candidate_of(place, family, group, {**knobs, **chosen, **several}, layout, shard=shard)


def _zero(place: LayoutProblem) -> Iterator[Candidate | PrunedFamily]:
    samples = samples_of(place, place.workers, "zero")
    if isinstance(samples, PrunedFamily):
        yield samples
        return
    offloads: dict[int, tuple[Offload, ...]] = {0: ("none",), 1: ("none", "optimizer"), 2: ("none", "optimizer")}
    for stage in range(4):
        for offload in offloads.get(stage, ("none", "optimizer", "all")):
            beside = f" offload {offload}" if offload != "none" else ""
            for micro_batches in pieces(samples):
                for chosen in flags("strategy.recompute"):
                    layout = layout_of(
                        place,
                        "zero",
                        samples,
                        micro_batches,
                        place.workers,
                        chosen["strategy.recompute"],
                        zero=stage,
                        offload=offload,
                    )
                    knobs = {
                        "strategy.stage": stage,
                        "strategy.offload": offload,
                        "strategy.micro_batches": micro_batches,
                        **chosen,
                    }
                    yield candidate_of(place, "zero", f"stage {stage}{beside}", knobs, layout)
