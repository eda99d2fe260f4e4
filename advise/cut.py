"""Layouts of which a replica takes several workers: tensor parallelism, pipelines, and both."""

from collections.abc import Iterator

from .candidate import Candidate, Schedule
from .layouts import LayoutProblem, PrunedFamily, candidate_of, flags, layout_of, pieces, samples_of, shards_of
from .memory import Shape

SCHEDULES: tuple[Schedule, ...] = ("gpipe", "1f1b", "interleaved")
ONE_STAGE: tuple[Schedule, ...] = ("1f1b",)  # micro-batches one after the other
CHUNKS = (2, 4)
BESIDE = 3  # layers of a GPT beside its blocks that a pipeline can cut between: embedding, last norm, head


def tensor(of: Shape, place: LayoutProblem, t: int) -> Iterator[Candidate | PrunedFamily]:
    if t == 1:
        return
    if why := _cannot_cut(of, t):
        yield PrunedFamily("tensor", why)
        return
    replicas = place.workers // t
    samples = samples_of(place, replicas, "tensor")
    if isinstance(samples, PrunedFamily):
        yield samples
        return
    for shard, name in shards_of(replicas):
        for chosen in flags("strategy.sequence", "model.recompute"):
            layout = layout_of(
                place,
                "tensor",
                samples,
                1,
                replicas,
                chosen["model.recompute"],
                tensor=t,
                zero=shard,
                sequence=chosen["strategy.sequence"],
            )
            knobs = {"strategy.degree": t, "sync.shard": name, **chosen}
            yield candidate_of(place, "tensor", f"degree {t}", knobs, layout, shard=shard)
    if replicas == 1:
        for chosen in flags("model.recompute"):
            layout = layout_of(place, "torch_tensor", samples, 1, 1, chosen["model.recompute"], tensor=t)
            yield candidate_of(place, "torch_tensor", f"degree {t}", {"strategy.degree": t, **chosen}, layout)


def staged(of: Shape, place: LayoutProblem, p: int, t: int) -> Iterator[Candidate | PrunedFamily]:
    """Pipelines (t = 1), hybrids, and tensor parallelism over micro-batches (p = 1)."""
    if p * t == 1:
        return
    family = "pipeline" if t == 1 else "hybrid"
    if t > 1 and (why := _cannot_cut(of, t)):
        yield PrunedFamily(family, why)
        return
    replicas = place.workers // (p * t)
    samples = samples_of(place, replicas, family)
    if isinstance(samples, PrunedFamily):
        yield samples
        return
    degrees = {"strategy.stages": p} if t == 1 else {"strategy.stages": p, "strategy.tensor": t}
    for schedule in SCHEDULES if p > 1 else ONE_STAGE:
        for chunks in CHUNKS if schedule == "interleaved" else (1,):
            if p * chunks > of.layers + BESIDE:
                yield PrunedFamily(family, f"{of.layers + BESIDE} layers are not cut into {p} x {chunks} stages")
                continue
            for m in pieces(samples):
                if m == 1 and p > 1:
                    continue  # nothing overlaps
                if schedule == "interleaved" and m % max(1, m // p):
                    yield PrunedFamily(
                        family, f"interleaved: {m} micro-batches are not taken in equal rounds by {p} workers"
                    )
                    continue
                for shard, name in shards_of(replicas):
                    for chosen in flags("strategy.recompute", *(["strategy.sequence"] if t > 1 else [])):
                        layout = layout_of(
                            place,
                            family,
                            samples,
                            m,
                            replicas,
                            chosen["strategy.recompute"],
                            tensor=t,
                            stages=p,
                            chunks=chunks,
                            zero=shard,
                            sequence=chosen.get("strategy.sequence", False),
                        )
                        knobs: dict[str, object] = {
                            **degrees,
                            "strategy.schedule": schedule,
                            "strategy.micro_batches": m,
                            "strategy.chunks": chunks if schedule == "interleaved" else None,
                            "sync.shard": name,
                            **chosen,
                        }
                        group = f"{p} stages {schedule}" if t == 1 else f"{p} x {t} {schedule}"
                        again = chosen["strategy.recompute"]
                        yield candidate_of(
                            place, family, group, knobs, layout, shard=shard, schedule=schedule, stage_recompute=again
                        )


def _cannot_cut(of: Shape, t: int) -> str:
    """Attention goes by groups of heads; the feed-forward layers by columns; the vocabulary by rows."""
    if of.experts:
        return "experts are not cut over tensor workers"
    if of.kv_heads % t:
        return f"{of.kv_heads} groups of heads are not divided by {t}"
    if of.ffn_width % t:
        return f"{of.ffn_width} columns are not divided by {t}"
    return ""
