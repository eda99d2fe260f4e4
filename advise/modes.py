"""Candidates for which no closed form is known: strategies in their variants, sync modes, compressors and collectives.
Each is tried by itself beside the default of the other groups, and planned exactly.
"""

from collections.abc import Iterator

from ..conf.groups import BY_NAME
from ..engine.config.experiment import CONF, Choice, shipped
from ..engine.config.targets import build
from ..engine.fabrics import fabric_of
from ..engine.features import given
from ..strategies import Sync
from .candidate import Candidate, Settings
from .layouts import divisors
from .question import Question

RACED = "must be raced"
BESIDE = ("compress", "collective")
SCHEDULES = ("gpipe", "1f1b", "zb_h1", "pipedream_2bw")


def alternatives(question: Question, workers: int) -> Iterator[Candidate]:
    """Yields the candidates that contradict nothing that was typed. Only a plan tells whether they are accepted."""
    for family, group, settings, raced in _all(question, workers):
        if question.allows(dict(settings)):
            count = 1 if family == "single" else workers
            per_replica = _replicas(dict(settings), count)
            if count % per_replica or question.batch % (count // per_replica):
                continue
            sized = (*settings, ("batch_size", str(question.batch // (count // per_replica))))
            yield Candidate(family, group, sized, count, 1, raced=raced)


def _all(question: Question, workers: int) -> Iterator[tuple[str, str, Settings, str]]:
    for strategy in _choices("strategy", question):
        for group, knobs in _variants(strategy, workers):
            settings = (("strategy", strategy), *knobs)
            yield strategy, group, settings, "" if _is_exact(strategy, knobs) else RACED
    whole: Settings = (("strategy", "data_parallel"),)
    for sync in _choices("sync", question):
        if sync != "bsp":
            yield "sync", sync, (*whole, ("sync", sync)), _why_raced(shipped_or_own("sync", sync, question))
    for shard in ("optimizer", "gradients"):
        yield "data_parallel", f"sync.shard={shard}", (*whole, ("sync.shard", shard)), ""
    for group in BESIDE:
        for name in _choices(group, question):
            if name != BY_NAME[group].usual and not (group == "collective" and _is_there_already(name, question)):
                raced = RACED + ": lossy" if group == "compress" else ""
                yield group, name, (*whole, (group, name)), raced


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


def _choices(group: str, question: Question) -> list[str]:
    """Names, ours and the user's; only that which was typed where one was."""
    if group in question.given:
        return [question.given[group]]
    folders = [CONF / group, *([question.config_dir / group] if question.config_dir else [])]
    return sorted({file.stem for folder in folders for file in folder.glob("*.yaml")})


def shipped_or_own(group: str, name: str, question: Question) -> Choice | None:
    return shipped(group, name) if (CONF / group / f"{name}.yaml").exists() else None


def _why_raced(choice: Choice | None) -> str:
    """Only what gives all replicas the weights of serial training in every step learns as that does."""
    if choice is None:
        return RACED
    sync = build("sync", choice, Sync, (), given.usual())
    if not sync.traits.synchronous:
        return RACED + ": asynchronous"
    return "" if sync.traits.exact and sync.traits.weights_agree and not sync.traits.survives else RACED


def _is_exact(strategy: str, knobs: Settings) -> bool:
    """Weights of former steps change what is learned."""
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
