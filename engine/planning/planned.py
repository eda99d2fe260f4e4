"""The contents of a plan: parameters, bytes sent and memory, by part and phase; made by make_plan.py."""

from dataclasses import asdict, dataclass
from typing import Any

import torch

from ...conf.counted import counted
from ...strategies import Strategy
from ...strategies.core.cost import Traffic
from ...tasks.base import DataSpec
from ...tasks.contents import Contents
from ...tracking.columns import human_bytes
from ...tracking.records import PlanSummary
from ..config.experiment import Experiment
from ..fabrics.layout import RunLayout
from ..features.feature import Stated
from ..features.private import Spent
from ..features.rates import RatePoint, in_words


@dataclass(frozen=True)
class SentTraffic:
    """The bytes of one part's workers and servers in a step of the run; None: they cannot be known beforehand."""

    worker: Traffic | None
    server: Traffic | None


@dataclass(frozen=True)
class PartPlan:
    """The memory and the bytes sent of one part's workers. Bytes, and bytes a step."""

    runs: list[list[str]]  # of layers that follow one another in the model
    layers: list[str]  # all of them
    parameters: int  # entries
    own: int  # of these, those that no part before has: their sum is the whole model's
    memory: dict[str, int]  # of a worker, by kind
    server_memory: dict[str, int]  # of the largest one, if the sync mode has servers
    held_in_parameters: int  # bytes of the whole part's parameters, whoever holds them
    within: Traffic  # what its workers send by the strategy: to others of their replica, or along `across`
    along: dict[str, float]  # the same, by axis
    to: dict[str, list[int]]  # by axis, the places on it that this is sent to; without an axis along which all send
    is_cut: bool  # some of its layers are pieces
    worker: Traffic | None  # on average over the run; None: nobody can say beforehand
    server: Traffic | None
    varies: str  # why nobody can; "" otherwise


@dataclass(frozen=True)
class PlanPhase:
    """The steps in which the model is one and the same (phases.py)."""

    first: int | None  # step, and the one before which it ends; None: only known once the data are there
    until: int | None
    parts: list[PartPlan]
    uncompressed: list[SentTraffic] | None  # of each part, with compress=none; None where that is chosen, or is refused

    @property
    def steps(self) -> int | None:
        """The number of steps; None if it is not known, or if there are none."""
        return self.left(0) or None

    @property
    def entries(self) -> int:
        """The entries of the whole model's parameters."""
        return sum(part.own for part in self.parts)

    @property
    def sent(self) -> list[SentTraffic]:
        """The bytes of each part, on average over these steps."""
        return [SentTraffic(part.worker, part.server) for part in self.parts]

    def left(self, done: int) -> int | None:
        """Returns the number of steps after the first `done` of the run."""
        return None if self.first is None or self.until is None else max(self.until - max(self.first, done), 0)

    def bytes_per_step(self, layout: RunLayout) -> float | None:
        """Returns the same as the plan's, in this phase."""
        return _bytes_per_step(self.sent, layout, self.steps)

    def peak_memory(self) -> dict[str, int]:
        """Returns the same as the plan's, in this phase."""
        return _peaks([part.memory for part in self.parts])


@dataclass(frozen=True)
class ActiveParameters:
    """The entries of a mixture of experts that compute a token, and all of them."""

    active: int
    total: int

    def in_words(self) -> str:
        return f"{self.active:,} of {self.total:,} parameters compute a token"

    def as_dict(self) -> dict[str, Any]:
        return {"active_parameters": self.active, "parameters": self.total}


@dataclass(frozen=True, repr=False)
class Plan:
    experiment: Experiment
    layout: RunLayout
    device: torch.device
    threads: int
    steps_per_epoch: int | None  # None: only known once the data are there
    steps: int | None
    trainings: int  # that they are made in, each as long as the others
    phases: list[PlanPhase]  # most runs have one; each is said as it is where a run has several
    strategy: Strategy
    shapes: dict[str, list[int]]  # of the whole model's tensors
    added: frozenset[str]  # of these, what features have added
    survives: bool  # the others go on when a worker dies
    period: int  # steps from one exchange of replicas to the next; the last one may be missing
    notes: list[str]  # what is other than one may think
    spec: DataSpec
    contents: Contents  # of the data
    decided: list[str]  # what was left to a choice such as collective=auto, and why
    rate: list[RatePoint]  # by its schedule; none where there is none, or the data must say
    stated: dict[str, Stated]  # of the whole run, by features, by their keys; and of experts of a model
    experts: int | None = None  # the replicas, where each is one (sync=routed)
    differ: bool = False  # the weights of replicas, between two exchanges

    @property
    def parts(self) -> list[PartPlan]:
        """The parts of the model that training begins with."""
        return self.phases[0].parts

    @property
    def privacy(self) -> Spent | None:
        """The privacy that the whole run spends; None where nothing is hidden, or the data must say."""
        spent = self.stated.get("privacy")
        return spent if isinstance(spent, Spent) else None

    @property
    def varies(self) -> str:
        """Returns why the bytes cannot be known beforehand; "" where `bytes_per_step` states them."""
        phases = self._made()
        if len(phases) > 1 and self.steps is None:
            return "how many steps are made with each of the run's models is known once the data are dealt"
        return next((part.varies for phase in phases for part in phase.parts if part.varies), "")

    def bytes_per_step(self, done: int = 0) -> float | None:
        """Payload bytes a worker and step, the mean over the run, servers' sends shared out over the workers; None:
        nobody can say beforehand, and `varies` tells why. `done`: of a run of several phases, the mean over the steps
        after the first `done`.
        """
        return self._mean([(phase, phase.sent) for phase in self._made(done)], done)

    def uncompressed_bytes_per_step(self) -> float | None:
        """The same with compress=none; None where that is what is chosen, too."""
        return self._mean([(phase, phase.uncompressed) for phase in self._made()])

    def _made(self, done: int = 0) -> list[PlanPhase]:
        """The phases that have a step after the first `done`; one at least."""
        return [phase for phase in self.phases if phase.left(done) != 0] or self.phases[-1:]

    def _mean(self, sent: list[tuple[PlanPhase, list[SentTraffic] | None]], done: int = 0) -> float | None:
        """Returns the mean over the steps that are left. Each phase's bytes together are whole, and so are those of
        all.
        """
        total, steps = 0, 0
        for phase, of_parts in sent:
            value = None if of_parts is None else _bytes_per_step(of_parts, self.layout, phase.steps)
            if len(sent) == 1:
                return value
            if value is None or (left := phase.left(done)) is None:
                return None
            total, steps = total + round(value * self.layout.workers * left), steps + left
        return total / (steps * self.layout.workers)

    def peak_memory(self, done: int = 0) -> dict[str, int]:
        """The largest worker, kind by kind, in all phases that have a step after the first `done`."""
        return _peaks([phase.peak_memory() for phase in self._made(done)])

    def largest(self) -> int:
        """Bytes that the worker which holds most holds, the process itself aside."""
        return max(sum(part.memory.values()) for phase in self._made() for part in phase.parts)

    def predicted(self, done: int = 0) -> PlanSummary:
        """Returns the prediction for a run that goes on after so many steps, by the means over each phase that is left.

        Steps of a phase that send unequal bytes, as those of post_local_sgd, count as that mean.
        """
        return PlanSummary(self.bytes_per_step(done), self.peak_memory(done))

    def __repr__(self) -> str:
        chosen, layout = self.experiment, self.layout
        steps = "" if self.steps is None else f"{counted(self.steps, 'step')}; "
        sent = self.bytes_per_step()
        told = (
            f"nobody can say beforehand what is sent: {self.varies}"
            if sent is None
            else f"{human_bytes(sent)} sent a step and worker"
        )
        what = f"{chosen.model.name} on {chosen.data.name}, {chosen.strategy.name} + {chosen.sync.name}"
        held = human_bytes(sum(self.peak_memory().values()))
        return f"Plan({what}, {counted(layout.workers, 'worker')}: {steps}{told}, {held} at most on one)"

    def _repr_html_(self) -> str:
        from ...tracking.display import table_of

        plain = self.as_dict()
        memory = {f"memory: {kind}": human_bytes(size) for kind, size in plain.pop("memory").items()}
        sent, notes = plain.pop("bytes_per_step"), plain.pop("notes")
        plain["rate"] = in_words(self.rate) or None
        plain |= {key: each.in_words() for key, each in self.stated.items()}
        plain["contents"] = plain["contents"]["in_words"]
        del plain["bytes_why"], plain["decided"], plain["uncompressed_bytes_per_step"], plain["phases"]
        chosen = {group: self.experiment.choice(group).name for group in ("strategy", "sync", "model", "data")}
        rows = chosen | plain | {"sent a step and worker": "-" if sent is None else human_bytes(sent)} | memory
        lines = [[name, "-" if value is None else str(value)] for name, value in rows.items()]
        return table_of(["", "planned"], [False, True], [*lines, *(["note", note] for note in notes)])

    def as_dict(self) -> dict[str, Any]:
        return {
            "workers": self.layout.workers,
            "replicas": self.layout.replicas,
            "stages": self.layout.mesh.axes.get("stage", 1),
            "mesh": dict(self.layout.mesh.axes),
            "servers": self.layout.servers * self.layout.parts,
            "device": self.device.type,
            "steps": self.steps,
            "bytes_per_step": self.bytes_per_step(),
            "bytes_why": self.varies or None,
            "memory": self.peak_memory(),
            "phases": [
                {
                    "first_step": None if phase.first is None else phase.first + 1,
                    "parameters": phase.entries,
                    "bytes_per_step": phase.bytes_per_step(self.layout),
                    "memory": phase.peak_memory(),
                }
                for phase in self.phases
            ],
            "uncompressed_bytes_per_step": self.uncompressed_bytes_per_step(),
            "rate": [asdict(point) for point in self.rate],
            "privacy": None,  # where nothing is stated of it
            **{key: each.as_dict() for key, each in self.stated.items()},
            "decided": self.decided,
            "contents": self.contents.plain(),
            "notes": self.notes,
        }


def _peaks(every: list[dict[str, int]]) -> dict[str, int]:
    kinds = dict.fromkeys(kind for held in every for kind in held)
    return {kind: max(held.get(kind, 0) for held in every) for kind in kinds}


def _bytes_per_step(sent: list[SentTraffic], layout: RunLayout, steps: int | None) -> float | None:
    """`steps`: over which the bytes are a mean, all of them together being whole; None where it is not known."""
    total = 0.0
    for part in sent:
        if part.worker is None or part.server is None:
            return None
        total += sum(part.worker.values()) * layout.replicas + sum(part.server.values()) * layout.servers
    return total / layout.workers if steps is None else round(total * steps) / (steps * layout.workers)
