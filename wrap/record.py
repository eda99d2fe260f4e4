"""The run directory of a wrapped script: the same files as any run's, so that `compare` shows it beside others."""

import json
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from math import ceil
from pathlib import Path

import torch
import yaml
from torch import nn

from ..comm import Comm
from ..conf.errors import ConfigError
from ..conf.groups import SHOWN
from ..engine.base import checkpoint
from ..engine.base.checkpoint import Manifest
from ..engine.base.failures import exit_code_of
from ..engine.base.generations import note_job
from ..engine.config.experiment import Experiment
from ..engine.fabrics.layout import RunLayout
from ..engine.planning.notes import untimed
from ..engine.training.meters import Meter, Report, is_too_short, summarise, with_loads, without_times
from ..engine.training.outcome import held_by
from ..strategies import Sync
from ..strategies.core.cost import World
from ..strategies.core.state import state_of, uncompiled
from ..tracking.alive import held
from ..tracking.columns import METRICS
from ..tracking.environment import environment
from ..tracking.errors import StorageError
from ..tracking.evaluations import first_at, lived
from ..tracking.mirror import Mirror
from ..tracking.records import End, EvaluationRecord, PlanSummary, Resume, Score, Start, Status, StepRecord, Summary
from ..tracking.redact import redact
from ..tracking.run_directory import RunDirectory
from ..tracking.sinks import check as check_tracking
from ..tracking.sinks import sinks_from
from .errors import ElsewhereError
from .setting import WrappedScript
from .stopping import ScriptTerminated, Unended

DIVERGED = 6
BESIDE_METRIC = {"kind", "step", "epoch", "time", "loss"}  # in the record of an evaluation


def _status(error: BaseException) -> Status:
    if isinstance(error, KeyboardInterrupt | ScriptTerminated | Unended) or _is_chosen(error):
        return "interrupted"
    return "diverged" if exit_code_of(error) == DIVERGED else "failed"


def _is_chosen(error: BaseException) -> bool:
    """Returns True if the script ended itself with exit status 0."""
    return isinstance(error, SystemExit) and error.code in (None, 0)


def _reason(error: BaseException) -> str:
    if isinstance(error, Unended):
        return str(error)
    if _is_chosen(error):
        return "the script called sys.exit(0) before the end of the run"
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def agreed(comm: Comm, workers: int, topic: str, find: Callable[[], Path | None]) -> Path | None:
    """Returns the path that the chief finds, or None, on all workers. Raises what the chief's `find` raises, or
    `ElsewhereError`.
    """
    key_values = comm.key_values
    if comm.rank == 0:
        try:
            path = find()
        except Exception as error:
            refused = {"refused": f"worker 0: {error}", "status": exit_code_of(error) or 1}
            key_values.post(topic, json.dumps(refused))
            for rank in range(1, workers):  # stay until they have heard: who finds the chief gone would say that
                key_values.read(f"heard/{topic}/{rank}", rank)
            raise
        key_values.post(topic, json.dumps({"path": None if path is None else str(path)}))
        return path
    told = json.loads(key_values.read(topic, 0))
    if "refused" in told:
        key_values.post(f"heard/{topic}/{comm.rank}", "")
        raise ElsewhereError(told["refused"], told["status"])
    return None if told["path"] is None else Path(told["path"])


class WrapRecord:
    """All workers make one; the chief writes."""

    def __init__(
        self,
        experiment: Experiment,
        comm: Comm,
        layout: RunLayout,
        device: torch.device,
        sync: Sync,
        per_epoch: int,
        samples: int,
        script: WrappedScript,
        resumed: Manifest | None = None,
    ) -> None:
        """`per_epoch`: batches. `samples`: of the data. Raises on all workers what is wrong with the directory."""
        self._experiment, self._comm, self._layout, self._device, self._sync = experiment, comm, layout, device, sync
        self._samples, self._per_epoch, self.is_over = samples, per_epoch, False
        self._resumed = resumed
        self._scores: dict[str, Score] = {}  # the last of each metric, the latest at the end
        self._date = 0.0  # of the last of them
        self._largest = 0  # samples of the chief in a step before the checkpoint that the run goes on from
        self.reached: float | None = None  # seconds until the target accuracy
        self._choices = {group.name: experiment.choice(group.name).name for group in SHOWN}
        self._mirror: Mirror | None = None
        self._alive = ExitStack()  # until the run ends, others see that it goes on
        path = agreed(comm, layout.workers, "run", lambda: self._made(script.root))
        assert path is not None
        if comm.rank != 0:
            self.directory = RunDirectory(path)
        else:
            self._begin(script.planned(per_epoch), float(script.epochs))

    def _made(self, root: Path) -> Path:
        """Returns the directory, made or opened once more, on the chief."""
        experiment = self._experiment
        if self._resumed is not None:
            check_tracking(experiment.tracking)
            self.directory = RunDirectory.open(root, experiment.name or "")
            self._alive.enter_context(held(self.directory.metrics))
            self.directory.forget_summary()
            self._mirror_to(self.directory)
            return self.directory.path
        name = experiment.name
        if name is not None and (root / name).exists():
            raise ConfigError(
                f"name={name}: {root.absolute() / name} is a run already. Choose another name, or go on with it: "
                "paceline launch --resume, or wrap(..., resume=True)"
            )
        check_tracking(experiment.tracking)
        if name is None:
            stem = f"{experiment.sync.name}-{experiment.model.name}-{time.strftime('%m%d-%H%M%S')}"[-60:]
            directory = RunDirectory.create_unnamed(root, stem)
        else:
            directory = RunDirectory.create(root, name)
        self._alive.enter_context(held(directory.metrics))
        directory.write_environment({**environment(), "wrapped": True})
        directory.write_config(yaml.safe_dump(redact(experiment.model_dump()), sort_keys=False))
        note_job(directory)
        self.directory = directory
        self._mirror_to(directory)
        return directory.path

    def _mirror_to(self, directory: RunDirectory) -> None:
        experiment = self._experiment
        sinks = sinks_from(experiment.tracking, run=directory, config=experiment.model_dump())
        self._mirror = Mirror(directory, sinks)

    def _begin(self, steps: int, epochs: float) -> None:
        if self._resumed is not None:
            earlier = lived([*self.directory.records(), Resume(self._resumed.step).plain()])
            dates = [first_at(metric, self._experiment.target_accuracy.__le__, earlier) for metric in METRICS]
            self.reached = min((date for date in dates if date is not None), default=None)
            for record in earlier:
                if record["kind"] == "evaluation":
                    [metric] = record.keys() - BESIDE_METRIC
                    self._keep(Score(metric, record[metric], record["loss"]), record["time"])
            made = [each["samples_per_second"] * each["step_time"] for each in earlier if each["kind"] == "step"]
            self._largest = ceil(round(max(made, default=0)) / self._layout.workers)
            self.directory.add(Resume(self._resumed.step))
        self.directory.add(
            Start(
                name=self.directory.name,
                steps=steps,
                epochs=epochs,
                samples=self._samples,
                workers=self._layout.workers,
                servers=0,
                modelled=False,
                together=True,
                target_accuracy=self._experiment.target_accuracy,
                choices=self._choices,
            )
        )

    def step(self, done: int, batches: int, loss: float | None, samples: int, meter: Meter) -> None:
        if self._comm.rank == 0 and loss is not None:
            rate = samples / meter.last
            self.directory.add(
                StepRecord(done, batches / self._per_epoch, loss, rate, step_time=meter.last, time=meter.seconds)
            )

    def evaluated(self, done: int, batches: int, score: Score, seconds: float) -> None:
        """`batches`: that training was on, in `done` steps; more where a step accumulates gradients."""
        self._keep(score, seconds)
        is_there = score.value is not None and score.value >= self._experiment.target_accuracy
        if self.reached is None and score.metric in METRICS and is_there:
            self.reached = seconds
        if self._comm.rank == 0:
            self.directory.add(EvaluationRecord(done, batches / self._per_epoch, score, seconds))

    def _keep(self, score: Score, seconds: float) -> None:
        self._scores.pop(score.metric, None)
        self._scores[score.metric] = score
        self._date = seconds

    def failed(self, error: BaseException) -> None:
        """The others find out by themselves."""
        self.is_over = True
        end = End(_status(error), _reason(error))
        if self._comm.rank == 0:
            if isinstance(error, ScriptTerminated):
                with suppress(RuntimeError):  # the store is gone
                    end = self._of_another() or end
            with suppress(StorageError):  # the error that ends the run is to be told
                self.directory.add(end)
            self._close()
        else:
            with suppress(RuntimeError):  # worker 0, which may serve the store, has ended
                self._comm.key_values.post(f"end/{self._comm.rank}", json.dumps([end.status, end.reason]))

    def _of_another(self) -> End | None:
        """Returns the end of the worker that failed, for which a launcher ends the others by SIGTERM."""
        lost = self._comm.lost()
        for rank in range(1, self._layout.workers):
            told = self._comm.key_values.posted(f"end/{rank}")
            if told is None and rank in lost:
                return End("failed", f"worker {rank} was lost without a word: it was killed, or left by os._exit")
            status, reason = json.loads(told or "[null, null]")
            if status not in (None, "interrupted"):
                return End(status, f"worker {rank}: {reason}")
        return None

    def over(
        self, model: nn.Module, meter: Meter, batches: int, activations: int, resident: int, stopped: str | None
    ) -> None:
        """The weights, the summary, and how it ended: `stopped` is why before its end.

        All workers call; nobody leaves before that.
        """
        held = held_by(self._sync, model, activations, self._device, resident)
        own = meter.report(self._comm.rank, self._layout.role(self._comm.rank), held, self._sync.report())
        key_values, ranks = self._comm.key_values, range(self._layout.workers)
        key_values.post(f"report/{self._comm.rank}", json.dumps(own.as_json()))
        if self._comm.rank == 0:
            reports = [Report.from_json(json.loads(key_values.read(f"report/{rank}", rank))) for rank in ranks]
            sha256 = checkpoint.export(self.directory.path / "model.safetensors", uncompiled(state_of(model)))
            self.directory.write_summary(self._summary(reports, meter, batches, sha256, stopped).plain())
            self.is_over = True
            self.directory.add(End("completed" if stopped is None else "interrupted", stopped))
            self._close()
            key_values.post("over", "")
        self.is_over = True
        key_values.read("over", 0)

    def _summary(self, reports: list[Report], meter: Meter, batches: int, sha256: str, stopped: str | None) -> Summary:
        experiment, layout = self._experiment, self._layout
        left_out = untimed(experiment.measure.after, meter.trained_steps)
        for report in reports:
            report.left_out = left_out
        measured, short = summarise(reports, layout), is_too_short(reports)
        done = meter.trained_steps + (self._resumed.step if self._resumed else 0)
        names = [*self._scores]
        first = next((name for name in [*METRICS, *reversed(names)] if name in names), None)
        losses = [score.loss for score in self._scores.values() if score.loss is not None]
        score = Score("accuracy", None, None)
        if first is not None:
            score = replace(self._scores[first], loss=losses[-1] if losses else None)
        last = {name: each.value for name, each in self._scores.items()}
        others = {name: value for name, value in last.items() if name != first and value is not None}
        largest = max((samples for _, _, samples in meter.steps), default=self._largest)
        return Summary(
            name=self.directory.name,
            choices=self._choices,
            status="completed" if stopped is None else "interrupted",
            workers=layout.workers,
            servers=0,
            replicas=layout.replicas,
            stages=1,
            mesh=dict(layout.mesh.axes),
            device=self._device.type,
            steps=done,
            epochs=batches / self._per_epoch,
            resumed_at=self._resumed.step if self._resumed else None,
            batch_size=largest,  # of a replica
            effective_batch=largest,
            measured_after=left_out,
            seed=experiment.seed,
            modelled=False,
            event_digest=None,
            measured=without_times(measured) if short else with_loads(measured, reports),
            score=score,
            metrics=others,
            target_accuracy=experiment.target_accuracy,
            time_to_accuracy=self.reached,
            seconds=max(self._date, *(each.seconds for each in reports)),
            model_sha256=sha256,
            reason=stopped,
            predicted=PlanSummary(self._stated(done), {}),
        )

    def _stated(self, steps: int) -> float | None:
        """Bytes that leave a worker in one of so many steps, by the sync mode's own account."""
        world = World(self._layout.replicas, self._per_epoch, steps=steps or None)
        cost = self._sync.cost(list(self._sync.parameters.values()), world)
        return None if cost.varies else sum(cost.worker.values())

    def _close(self) -> None:
        if self._mirror is not None:
            self._mirror.close()
        self.directory.close()
        self._alive.close()
