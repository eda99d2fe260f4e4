"""Candidates for which no closed form is known: strategies in their variants, sync modes, compressors and collectives.
Each is tried by itself beside the default of the other groups, and planned exactly.
"""

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from ..engine.config.choice_files import choices_of
from ..engine.config.described import composed, is_composed
from ..engine.config.experiment import Choice
from ..engine.config.targets import build
from ..engine.fabrics import fabric_of
from ..engine.features import injected
from ..engine.features.pairs import Pair, pairs
from ..strategies import Sync
from .candidate import Candidate, Settings
from .layouts import divisors
from .question import Question

RACED = "must be raced"
PLAIN, BSP = "data_parallel", "bsp"  # the usual pair
BESIDE = ("compress", "collective")
SCHEDULES = ("gpipe", "1f1b", "zb_h1", "pipedream_2bw")


def alternatives(question: Question, workers: int) -> list[Candidate]:
    """Returns the candidates that contradict nothing that was typed: one of each family first, then the second of each,
    and so on. The usual strategy comes first, then the other ones, and in a family what need not be raced. What holds
    a sample at a time has its own turns, as it may be all that fits. Only a plan tells whether they are accepted.
    """
    queues: dict[str, list[Candidate]] = {}
    for each in sorted(_candidates(question, workers), key=_turn):
        queues.setdefault(each.group if "accumulate" in dict(each.settings) else each.family, []).append(each)
    turns = zip_longest(*queues.values())
    return [each for turn in turns for each in turn if each is not None]


def _turn(candidate: Candidate) -> tuple[bool, ...]:
    return bool(candidate.raced), dict(candidate.settings)["strategy"] != candidate.family, candidate.family != PLAIN


def _candidates(question: Question, workers: int) -> Iterator[Candidate]:
    for family, group, settings, raced in _all(question, workers):
        if question.allows(dict(settings)):
            count = 1 if family == "single" else workers
            per_replica = _replicas(dict(settings), count)
            if count % per_replica or question.batch % (count // per_replica):
                continue
            sized = (*settings, ("batch_size", str(question.batch // (count // per_replica))))
            yield Candidate(family, group, sized, count, 1, raced=raced)


def _all(question: Question, workers: int) -> Iterator[tuple[str, str, Settings, str]]:
    """Yields what goes together: each strategy with the usual sync mode, each mode with the usual strategy, and both
    where one of them was typed; and what the usual pair takes beside.
    """
    strategies, modes = (_choices(group, question) for group in ("strategy", "sync"))
    for pair in pairs(strategies, modes, question.allowed):
        usual = pair.strategy == PLAIN, pair.sync == BSP
        if not pair.accepted or not (any(usual) or question.fixes("strategy", "sync")):
            continue
        sync: Settings = () if usual[1] else (("sync", pair.sync),)
        raced = "" if usual[1] else _why_raced(pair.sync, modes, question)
        for group, knobs in _variants(pair.strategy, workers):
            settings = (("strategy", pair.strategy), *sync, *knobs)
            why = raced or ("" if _is_exact(knobs) else RACED)
            yield ("sync", pair.sync, settings, why) if sync else (pair.strategy, group, settings, why)
        if all(usual):
            yield from _beside(pair, question, workers)


def _beside(pair: Pair, question: Question, workers: int) -> Iterator[tuple[str, str, Settings, str]]:
    """Yields what the usual pair takes beside."""
    whole: Settings = (("strategy", pair.strategy),)
    for group, knobs in _smaller(question, question.batch // workers):
        yield pair.strategy, group, (*whole, *knobs), ""
    for shard in ("optimizer", "gradients"):
        yield pair.strategy, f"sync.shard={shard}", (*whole, ("sync.shard", shard)), ""
    for group in BESIDE:
        for name in pair.takes.get(group, []):
            if question.given.get(group, name) == name and not (
                group == "collective" and _is_there_already(name, question)
            ):
                raced = RACED + ": lossy" if group == "compress" else ""
                yield group, name, (*whole, (group, name)), raced


def _smaller(question: Question, batch: int) -> Iterator[tuple[str, Settings]]:
    """Yields the ways to a step of so many samples that hold least on an accelerator: a sample at a time, layers
    computed again, half precision where it is faster, and frozen matrices in it.
    """
    machine = question.experiment.hardware.machine
    if machine is None or not machine.devices or batch < 2:
        return
    half = machine.flops.get("bfloat16", 0.0) > machine.flops.get("float32", 0.0) and not question.fixes("precision")
    narrow = half and "base" in question.experiment.choice("adapt").knobs and not question.fixes("adapt.base")
    one: Settings = (("accumulate", str(batch)), *((("precision", "bf16"),) if half else ()))
    one += (("adapt.base", "bf16"),) if narrow else ()
    yield "a sample at a time", one
    if "recompute" in question.experiment.model.knobs:
        yield "a sample at a time, recomputed", (*one, ("model.recompute", "true"))


def _is_there_already(collective: str, question: Question) -> bool:
    """Returns whether another candidate is the same: `auto` takes one of the others, and in the memory of one host's
    CPUs `fabric` is `shared_memory`. A collective that was typed is always listed.
    """
    if "collective" in question.given:
        return False
    hardware = question.experiment.hardware
    on_cpus = hardware.machine is None or hardware.machine.devices == 0
    in_memory = on_cpus and hardware.hosts in (None, 1) and not fabric_of(question.experiment).modelled
    return collective == "auto" or (collective == "shared_memory" and in_memory)


def _choices(group: str, question: Question) -> list[Choice]:
    """Returns our choices and the user's; only the one that was typed where one was."""
    if is_composed(group, typed := question.given.get(group)):
        return [composed(group, str(typed), question.config_dir)]
    found = choices_of(group, question.config_dir)
    return [each for each in found if question.given.get(group, each.name) == each.name]


def _why_raced(name: str, modes: Sequence[Choice], question: Question) -> str:
    """Returns "" for a mode that gives all replicas the weights of serial training in every step."""
    choice = next(each for each in modes if each.name == name)
    traits = build("sync", choice, Sync, question.allowed, injected.usual()).traits
    if not traits.synchronous:
        return RACED + ": asynchronous"
    return "" if traits.exact and traits.weights_agree and not traits.survives else RACED


def _is_exact(knobs: Settings) -> bool:
    """Returns False where weights of former steps change what is learned."""
    return "pipedream" not in dict(knobs).get("strategy.schedule", "")


def _variants(strategy: str, workers: int) -> Iterator[tuple[str, Settings]]:
    several = [degree for degree in divisors(workers) if degree > 1]
    match strategy:
        case "zero":
            for stage in range(4):
                yield f"stage {stage}", (("strategy.stage", str(stage)),)
        case "pipeline":
            for stages in several:
                for schedule in SCHEDULES:
                    yield (
                        f"{stages} stages {schedule}",
                        (("strategy.stages", str(stages)), ("strategy.schedule", schedule)),
                    )
        case "torch_pipelining" | "deepspeed_pipeline":
            for stages in several:
                yield f"{stages} stages", (("strategy.stages", str(stages)),)
        case "tensor" | "torch_tensor" | "domain":
            for degree in several:
                yield f"degree {degree}", (("strategy.degree", str(degree)),)
        case "hybrid":
            for stages in several:
                for tensor in divisors(workers // stages)[1:]:
                    yield (
                        f"{stages} x {tensor}",
                        (("strategy.stages", str(stages)), ("strategy.tensor", str(tensor))),
                    )
        case _:
            yield strategy, ()


def _replicas(settings: dict[str, str], workers: int) -> int:
    """Workers of one replica."""
    if settings["strategy"] == "torch_tensor" or settings["strategy"] == "torch_pipelining":
        return workers
    found = 1
    for key in ("strategy.stages", "strategy.tensor", "strategy.degree"):
        found *= int(settings.get(key, "1"))
    return found
