"""Evaluates the weights during training and at its end, on the chief, with the help of all."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ...comm import PeerLostError
from ...strategies.core.protocols import what_may_help
from ...strategies.core.state import load_state
from ...tasks.base import Readable
from ...tasks.evaluation import Evaluation, evaluate
from ...tracking.evaluations import first_at, lived
from ...tracking.records import EvaluationRecord, NoteRecord, Resume, Score
from ..base import checkpoint
from ..base.errors import DivergedError
from ..callbacks.base import EvaluationView
from ..callbacks.best import FILE
from ..features.models import exported
from ..features.sizes import evaluated_at_once
from .diverged import holds_unknown
from .job import Job
from .laid_out import laid_out
from .spread import consensus_distance
from .timestamps import Timestamps
from .worker import Worker

NUMBERS = (int, float)  # and no bool, as `training` is
BUFFER = "Keep it in a buffer, or leave it out of evaluations."


@dataclass(frozen=True)
class Snapshot:
    """The consensus at some time; of an asynchronous run it is judged once training is over."""

    done: int  # steps
    seconds: float  # of training, when these weights existed: see timestamps.py
    state: dict[str, Tensor]


class Evaluations:
    """All workers call these methods. The results are the chief's."""

    def __init__(self, worker: Worker, timestamps: Timestamps, test: Readable) -> None:
        self._worker, self._timestamps, self._test = worker, timestamps, test
        self._snapshots: list[Snapshot] = []
        metric = worker.parts.task.metric
        self.time_to_accuracy = None  # s
        if worker.manifest and worker.is_chief:
            # not the manifest's: the checkpoint of a step may be older than its evaluation, and the target another one
            earlier = lived([*worker.directory.records(), Resume(worker.manifest.step).plain()])
            self.time_to_accuracy = first_at(metric.name, self._reaches, earlier)
        self.last = Score(metric.name, None, None, larger_is_better=metric.larger_is_better)
        self.last_date = 0.0
        self._evaluated_at: int | None = None

    def _reaches(self, value: float) -> bool:
        return self._worker.parts.task.metric.reaches(value, self._worker.experiment.target_accuracy)

    def go_on(self, worker: Worker, timestamps: Timestamps) -> None:
        """Goes on with another model."""
        self._worker, self._timestamps = worker, timestamps

    def during(self, done: int, job: Job) -> None:
        """Evaluates after step `done`, between two steps."""
        self._evaluated_at = done
        if self._worker.sync.traits.synchronous:
            self._evaluate(done, job, self.spread())
        else:
            self._take_snapshot(done, job)

    def at_end(self, done: int, job: Job, spread: float | None) -> None:
        """Evaluates the trained weights. `spread`: of the replicas, before they took over the consensus."""
        if self._worker.sync.traits.synchronous:
            if done != self._evaluated_at:  # else the evaluation ended the run
                self._evaluate(done, job, spread)
        elif (state := self._worker.consensus()) is not None:
            self._judge(Snapshot(done, self._timestamps.of_end(job.meter), state), job, spread)

    def judge_snapshots(self, job: Job) -> None:
        """Evaluates the snapshots that were taken while others trained on."""
        for snapshot in self._snapshots:
            self._judge(snapshot, job, None)
        self._snapshots.clear()

    def spread(self, completed: bool = True) -> float | None:
        """Returns the distance of replicas from their mean, on the chief; None elsewhere, and where they are alike.

        `completed`: whether this worker made all its steps. Those that step apart may differ in this, where the run is
        told to stop while some have made them all. The distance is of those that have, if the chief is among them.
        """
        worker, layout = self._worker, self._worker.layout
        if worker.sync.traits.weights_agree or layout.replicas == 1 or worker.role.part != layout.loss_part:
            return None
        own = worker.role.replica
        others: Sequence[int] = range(1, layout.replicas)
        if not worker.sync.traits.synchronous:
            worker.comm.key_values.post(f"completed/{own}", json.dumps(completed))
            if completed:
                asked = others if own == 0 else [0]
                others = [replica for replica in asked if replica == own or self._has_completed(replica)]
        if not completed or not others:
            return None
        return consensus_distance(list(worker.sync.parameters.values()), own, others, layout, worker.comm)

    def _has_completed(self, replica: int) -> bool:
        """Once its training has ended; False of the dead."""
        layout = self._worker.layout
        try:
            return json.loads(
                self._worker.comm.key_values.read(f"completed/{replica}", replica * layout.parts + layout.loss_part)
            )
        except PeerLostError:
            return False

    def _evaluate(self, done: int, job: Job, spread: float | None) -> None:
        state, seconds = self._worker.consensus(), self._timestamps.of_step(done, job.meter)
        if state is not None:
            self._judge(Snapshot(done, seconds, state), job, spread)

    def _take_snapshot(self, done: int, job: Job) -> None:
        """Others train on meanwhile: only a copy is made now, with its date."""
        if self._worker.role.replica != 0:
            return
        state = self._worker.consensus()
        copies = {name: tensor.detach().to("cpu", copy=True) for name, tensor in (state or {}).items()}
        seconds = self._timestamps.of_snapshot(done, job.meter, self._worker.comm.now())
        if state is not None:
            self._snapshots.append(Snapshot(done, seconds, copies))

    def _judge(self, snapshot: Snapshot, job: Job, spread: float | None) -> None:
        worker, judged = self._worker, self._worker.judged
        assert judged is not None, "the chief judges"
        load_state(judged, snapshot.state)
        with laid_out(judged, worker.device):
            result = evaluate(worker.parts.task, judged, self._test, evaluated_at_once(worker.parts), worker.device)
            if not math.isfinite(result.score):
                raise DivergedError(self._why_unknown(result, snapshot.done))
            values = self._values_of(result)
            metric, epoch = worker.parts.task.metric.name, snapshot.done / job.partition.steps_per_epoch
            view = EvaluationView(
                snapshot.done,
                epoch,
                snapshot.seconds,
                values,
                judged.eval(),
                self._test,
                worker.device,
                self._values,
                loss=worker.parts.task.loss,
            )
            own = worker.hooks.evaluated(view)
            judged.train()
        if worker.hooks.found_best():
            checkpoint.export(worker.directory.path / FILE, exported(worker.parts, snapshot.state))
        if self.time_to_accuracy is None and self._reaches(values[metric]):
            self.time_to_accuracy = snapshot.seconds
        self.last = replace(self.last, value=values[metric], loss=values["loss"], consensus_distance=spread)
        self.last_date = snapshot.seconds
        worker.directory.add(EvaluationRecord(snapshot.done, epoch, self.last, snapshot.seconds, own))

    def _why_unknown(self, result: Evaluation, done: int) -> str:
        """Returns the message for a metric that is not a number."""
        begins = f"worker {self._worker.comm.rank} diverged: evaluated after step {done}, the test split's loss is"
        if result.unknown is None:
            return f"{begins} {result.loss}; {what_may_help(self._worker.sync)}"
        inputs = self._test.take(slice(result.unknown, result.unknown + 1)).inputs
        sample = f"of test sample {result.unknown} (counted from 0)"
        if holds_unknown(inputs):
            return f"{begins} {result.loss}: the inputs {sample} hold NaN or infinite values. Look at the data"
        return (
            f"{begins} {result.loss} and the outputs {sample} are NaN or infinite; {what_may_help(self._worker.sync)}"
        )

    def finish(self) -> None:
        """Concludes a run that came to its end, on the chief, after its last evaluation."""
        worker, judged = self._worker, self._worker.judged
        if judged is None:
            return
        for name, trained, evaluated in _other_numbers(worker.module, judged):
            text = f"model={worker.experiment.model.name}: {name} is {trained:g} where it trained, and {evaluated:g}"
            worker.directory.add(NoteRecord(f"{text} in evaluations, which have weights and buffers alone. {BUFFER}"))
        with laid_out(judged, worker.device):
            for each in worker.hooks:
                each.conclude(judged, worker.device, worker.directory)

    def _values(self, model: nn.Module, device: torch.device, split: Readable | None = None) -> dict[str, float]:
        """The task's metric by its name, and the loss; what is unknown is NaN. `split`: in place of the test split."""
        task = self._worker.parts.task
        return self._values_of(
            evaluate(task, model, self._test if split is None else split, evaluated_at_once(self._worker.parts), device)
        )

    def _values_of(self, result: Evaluation) -> dict[str, float]:
        return {self._worker.parts.task.metric.name: result.score, "loss": result.loss}


def _other_numbers(module: nn.Module, judged: nn.Module) -> Iterator[tuple[str, float, float]]:
    """Yields the attributes of users' layers that are numbers, and other ones in training than in evaluations."""
    layers = dict(module.named_modules())
    for path, layer in judged.named_modules():
        its = layers.get(path)
        if not isinstance(its, type(layer)) or type(layer).__module__.split(".")[0] in ("torch", "paceline"):
            continue
        for key, value in vars(layer).items():
            trained: Any = vars(its).get(key)
            if type(value) in NUMBERS and type(trained) in NUMBERS and trained != value:
                yield f"{path}.{key}".removeprefix("."), trained, value
