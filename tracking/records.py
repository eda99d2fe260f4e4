"""The files that a run writes: the records of metrics.jsonl and the summary, with their units.

Another version may have written a run's JSON and anybody may have changed it. Readers check the type of each value
(summaries.py).
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from .columns import METRICS

Status = Literal["completed", "interrupted", "failed", "diverged", "pruned"]


@dataclass(frozen=True)
class Start:
    """A run, or an earlier one that goes on, begins to train."""

    name: str
    steps: int  # that it will have made at its end
    epochs: float
    samples: int  # of the training split
    workers: int
    servers: int
    modelled: bool  # times are those of a virtual cluster
    together: bool  # replicas step together, so that a step is one of all of them
    target_accuracy: float
    choices: Mapping[str, str]  # by group, by name
    contents: Mapping[str, Any] | None = None  # of the data, with a line for people; None: nobody knows
    metric: Mapping[str, Any] | None = None  # as `metric_without_column` gives it

    def plain(self) -> dict[str, Any]:
        told = {"kind": "start", **_spread(asdict(self), "choices")}
        told = told if self.metric is not None else _without(told, "metric")
        return told if self.contents is not None else _without(told, "contents")


@dataclass(frozen=True)
class Resume:
    """The run goes on from the checkpoint of this step."""

    step: int

    def plain(self) -> dict[str, Any]:
        return {"kind": "resume", **asdict(self)}


@dataclass(frozen=True)
class StepRecord:
    step: int  # steps made, with this one
    epoch: float
    loss: float  # of replica 0's batch
    samples_per_second: float  # of all replicas where they step together, else of replica 0
    step_time: float  # s
    time: float  # s of training
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])  # what callbacks measured, by name

    def plain(self) -> dict[str, Any]:
        return {"kind": "step", **_spread(asdict(self), "metrics")}


@dataclass(frozen=True)
class Score:
    """The evaluation of some weights on the test split. `metric`: accuracy (from 0 to 1), r2 (at most 1), or another
    name.
    """

    metric: str
    value: float | None
    loss: float | None
    consensus_distance: float | None = None  # sqrt(mean_i |w_i - mean|^2) of the replicas before
    larger_is_better: bool | None = None  # None: not known, or as that metric's column says

    def plain(self) -> dict[str, Any]:
        return {self.metric: self.value, "loss": self.loss, "consensus_distance": self.consensus_distance}


@dataclass(frozen=True)
class EvaluationRecord:
    step: int
    epoch: float
    score: Score
    time: float  # s of training when these weights existed
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])  # what callbacks measured, by name

    def plain(self) -> dict[str, Any]:
        told = {"kind": "evaluation", "step": self.step, "epoch": self.epoch, **self.score.plain(), "time": self.time}
        told |= self.metrics
        return told if self.score.consensus_distance is not None else _without(told, "consensus_distance")


@dataclass(frozen=True)
class CheckpointRecord:
    step: int

    def plain(self) -> dict[str, Any]:
        return {"kind": "checkpoint", **asdict(self)}


@dataclass(frozen=True)
class NoteRecord:
    """A sentence on what a run does other than one may expect."""

    text: str

    def plain(self) -> dict[str, Any]:
        return {"kind": "note", **asdict(self)}


@dataclass(frozen=True)
class End:
    status: Status
    reason: str | None = None  # of all but completed runs

    def plain(self) -> dict[str, Any]:
        return {"kind": "end", **(asdict(self) if self.reason is not None else {"status": self.status})}


Written = Start | Resume | StepRecord | EvaluationRecord | CheckpointRecord | NoteRecord | End


@dataclass(frozen=True)
class MeasuredStepTime:
    """The median step of all workers, in seconds, and how it divides; None: not known."""

    median: float | None
    compute: float | None = None
    communication: float | None = None
    waiting: float | None = None
    hidden: float | None = None  # of compute, at most, beside which communication went on


@dataclass(frozen=True)
class WorkerTime:
    rank: int
    time: MeasuredStepTime

    def plain(self) -> dict[str, Any]:
        return {"rank": self.rank, **asdict(self.time)}


@dataclass(frozen=True)
class Wire:
    """Payload of training, of all workers and servers. Bytes."""

    bytes_per_step: float  # of a worker, with its share of what servers sent
    by_primitive: Mapping[str, float]  # the same
    by_axis: Mapping[str, float]  # the same, of what is sent along an axis of the mesh
    total: int
    messages: int


@dataclass(frozen=True)
class Staleness:
    """The staleness of pushes, in versions."""

    mean: float
    max: int
    histogram: Mapping[str, int]  # pushes by their staleness


@dataclass(frozen=True)
class Measured:
    """The measurements of a run, from all workers' reports."""

    throughput: float | None  # samples/s of all replicas; None: too short to measure
    step_time: MeasuredStepTime
    per_worker: list[WorkerTime]
    memory: Mapping[str, int]  # the largest worker's peak bytes, by kind
    server_memory: Mapping[str, int] | None  # None: there are no servers
    wire: Wire
    staleness: Staleness | None
    dropped: int  # gradients that came too late
    lost: list[int]  # ranks that died
    too_short: bool  # for figures of time
    left: int = 0  # rounds that clients left before they could deliver
    given_up: int = 0  # rounds of secure=bonawitz that too few clients came to the end of
    cut_share: float | None = None  # of entries that clients masked, those cut or rounded to 0; None: none were masked
    compile_s: float | None = None  # s that the slowest worker compiled for; None: nothing is compiled
    hosts: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])  # as disturbance.HostLoad
    disturbed: str | None = None  # why other programs disturbed the times; None: they did not

    def plain(self) -> dict[str, Any]:
        told = {**asdict(self), "per_worker": [each.plain() for each in self.per_worker]}
        told = told if self.hosts else _without(told, "hosts")
        told = told if self.disturbed is not None else _without(told, "disturbed")
        return told if self.compile_s is not None else _without(told, "compile_s")


@dataclass(frozen=True)
class PlanSummary:
    """The plan's prediction: payload bytes a worker and step (None: they depend on the data), and memory in bytes by
    kind.
    """

    bytes_per_step: float | None
    memory: Mapping[str, int]
    step_ms: float | None = None  # None: it was not predicted; prediction.json has its parts


@dataclass(frozen=True)
class Summary:
    """A run that came to its end, or was asked to stop."""

    name: str
    choices: Mapping[str, str]
    status: Status
    workers: int
    servers: int
    replicas: int
    stages: int
    mesh: Mapping[str, int]  # workers by axis
    device: str
    steps: int
    epochs: float
    resumed_at: int | None
    batch_size: int
    effective_batch: int  # that was trained with, at most
    measured_after: int  # steps that are left out of times
    seed: int
    modelled: bool
    event_digest: str | None  # of the virtual cluster
    measured: Measured
    score: Score
    target_accuracy: float
    time_to_accuracy: float | None  # s of training
    seconds: float  # of training, until the last evaluated weights existed
    model_sha256: str | None  # of model.safetensors
    reason: str | None  # of runs that ended before their last step
    predicted: PlanSummary
    model_bytes: int | None = None  # where it is put to use, packed if `adapt` packs it; None: not known
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])  # what callbacks measured last, by name
    # what features tell of the run, by name
    beside: Mapping[str, float] = field(default_factory=dict[str, float])
    labels: list[list[int]] | None = None  # of each replica that owns samples, how many of each label it trains on

    def plain(self) -> dict[str, Any]:
        """Returns the contents of summary.json."""
        told = {
            **asdict(self),
            "measured": self.measured.plain(),
            "score": {"accuracy": None, **self.score.plain()},
            "predicted": _without(asdict(self.predicted), "step_ms"),
        }
        if self.predicted.step_ms is not None:
            told["predicted_step_ms"] = self.predicted.step_ms
        if (metric := metric_without_column(self.score.metric, self.score.larger_is_better)) is not None:
            told["metric"] = metric
        told = _spread(_spread(_spread(_spread(told, "choices"), "measured"), "score"), "beside")
        told = told if self.metrics else _without(told, "metrics")
        told = told if self.labels is not None else _without(told, "labels")
        return told if self.reason is not None else _without(told, "reason")


def metric_without_column(name: str, larger_is_better: bool | None) -> dict[str, Any] | None:
    """Returns how a run tells of its task's metric; None: the metric has a column, which says as much."""
    return None if name in METRICS else {"name": name, "larger_is_better": larger_is_better}


def _spread(told: dict[str, Any], section: str) -> dict[str, Any]:
    """Returns the mapping with the section's keys in the section's place."""
    return {
        inner: value
        for key, outer in told.items()
        for inner, value in (outer.items() if key == section else [(key, outer)])
    }


def _without(told: dict[str, Any], left_out: str) -> dict[str, Any]:
    return {key: value for key, value in told.items() if key != left_out}
