"""The step time and the memory of every layout of a GPT on accelerators that are described, by closed forms alone."""

import time
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache

import torch

from ..cost.layout import DTYPES
from ..cost.predicted import NotPredicted
from ..cost.published import efficiency
from ..cost.step import Cluster, step_time
from ..cost.transformer import Transformer
from ..engine.config.choice_files import choices_of
from ..engine.config.experiment import Machine
from ..engine.config.targets import build
from ..engine.fabrics.layout import RunLayout as Workers
from ..engine.features import injected
from ..engine.planning.planned import Plan
from ..engine.predict.device_use import device_use
from ..engine.predict.step_time import cluster_of, device_of, gpt_knobs, transformer_of
from ..strategies import Strategy
from ..strategies.core.mesh import Mesh
from ..strategies.core.strategy import StrategyTraits
from .candidate import Candidate, Predicted
from .layouts import LayoutProblem, PrunedFamily
from .limits import dollars
from .memory import BOUND, Shape, UsableMemory, capacity, checkpoint, need
from .question import Question
from .sent import sent
from .space import ways

WIDE = "computes in float32 alone"
COMPUTED_IN = {dtype: precision for precision, dtype in DTYPES.items()}


@dataclass
class Searched:
    """`points`: how many were looked at, in `seconds`. `near`: those that closed forms say do not fit. `too_often`: why
    the first is refused that fits and whose workers fail too often.
    """

    fit: list[Predicted] = field(default_factory=list[Predicted])
    near: list[Predicted] = field(default_factory=list[Predicted])
    pruned: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    points: int = 0
    seconds: float = 0.0
    too_often: str = ""


@dataclass(frozen=True)
class Ground:
    """The common inputs of all layouts."""

    question: Question
    machine: Machine
    of: Transformer
    shape: Shape

    def cluster(self, workers: int) -> Cluster:
        """Raises `NotPredicted`."""
        device = device_of(self.question.experiment, torch.device("cuda"))[1]
        return cluster_of(self.machine, device, Workers(Mesh({"replica": workers}), 0, 0))

    def precision(self, cluster: Cluster) -> str:
        """Returns the precision that was typed; else the half precision that the hardware has a rate for, or fp32."""
        if self.question.fixes("precision") or self.question.narrow:
            return self.question.experiment.choice("precision").name
        known = [name for name in ("bfloat16", "float16") if name in self.machine.flops and name in cluster.device.peak]
        return COMPUTED_IN[known[0]] if known else "fp32"

    def problem(self, workers: int, cluster: Cluster) -> LayoutProblem:
        traits = traits_by_name()
        return LayoutProblem(
            workers,
            self.machine.devices,
            self.question.batch,
            self.precision(cluster),
            frozenset(name for name, its in traits.items() if its.one_precision),
            frozenset(name for name, its in traits.items() if its.rounds_weights),
        )


@lru_cache(maxsize=1)
def traits_by_name() -> dict[str, StrategyTraits]:
    """Returns the traits of our strategies, as their defaults are."""
    usual = injected.usual()
    return {each.name: build("strategy", each, Strategy, (), usual).traits for each in choices_of("strategy")}


def ground(question: Question, plan: Plan) -> Ground:
    """`plan`: of the configuration as it was typed, or nearly. Raises `NotPredicted`."""
    experiment = question.experiment
    machine, _ = device_of(experiment, plan.device)
    of = transformer_of(experiment, plan.spec, question.allowed)
    knobs = gpt_knobs(experiment)
    part = plan.parts[0]
    parameters = max(part.memory["parameters"], 1)
    shape = Shape(
        of.layers,
        of.width,
        of.heads,
        of.kv_heads or of.heads,
        of.feed_forward,
        of.gated,
        knobs["rms_norm"],
        knobs["bias"],
        (knobs["context"] or of.context) if of.positions else 0,
        of.context,
        of.vocabulary,
        of.tied,
        of.dropout,
        part.memory["optimizer"] / parameters,
        of.experts,
        of.active,
    )
    return Ground(question, machine, of, shape)


def search(ground: Ground) -> Searched:
    found, began = Searched(), time.perf_counter()
    for workers in ground.question.workers():
        try:
            cluster = ground.cluster(workers)
        except NotPredicted as why:
            found.pruned["all", str(why)] += 1
            continue
        machine = ground.machine
        limits = capacity(machine.device_memory, machine.host_memory, machine.devices, workers)
        place = ground.problem(workers, cluster)
        for way in ways(ground.shape, place):
            found.points += 1
            if isinstance(way, PrunedFamily):
                if ground.question.allows({"strategy": way.family}):
                    found.pruned[way.family, way.why] += 1
            elif way.family in place.wide and ground.question.narrow:
                found.pruned[way.family, WIDE] += 1
            elif ground.question.allows(dict(way.settings)):
                _add(found, ground, way, cluster, limits)
    found.seconds = time.perf_counter() - began
    return found


def _add(found: Searched, ground: Ground, way: Candidate, cluster: Cluster, limits: UsableMemory) -> None:
    assert way.layout is not None
    if way.layout.dtype not in cluster.device.peak:
        found.pruned[way.family, f"how fast {cluster.device.name} is in {way.layout.dtype} is not known"] += 1
        return
    device, host = need(ground.shape, way, limits)
    over = device - limits.device, host - limits.host
    if device * (1 - BOUND) > limits.device or host * (1 - BOUND) > limits.host:
        found.near.append(Predicted(way, None, device, host, *over, None))
        return
    seconds = step_time(ground.of, way.layout, cluster, efficiency(cluster.device)).total
    bytes_sent = sent(ground.shape, way)
    software = traits_by_name()[way.family].software
    row = Predicted(
        way,
        seconds,
        device,
        host,
        *over,
        bytes_sent,
        dollars(ground.question, seconds, way.hosts),
        beyond_margin=device_use(device, ground.machine.device_memory, software).beyond_margin,
    )
    if (failures := ground.question.failures) is not None:
        row = failures.lower(row, checkpoint(ground.shape, way))
        if row.why:
            found.pruned[way.family, row.why] += 1
            found.too_often = found.too_often or row.why
            return
    found.fit.append(row)
