"""A run that came to its end, for Python: what its summary says with types, its curves, its figures."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...conf.counted import counted
from ...conf.errors import check_options
from ...tracking.errors import CorruptRunError
from ...tracking.records import MeasuredStepTime, PlanSummary, Staleness, Wire, WorkerTime
from ...tracking.run_directory import RunDirectory
from ...tracking.values import number
from ..base import ROOT

if TYPE_CHECKING:
    from pandas import DataFrame

    from ...tracking.display import Picture
    from ...tracking.run_data import RunData
    from ...tracking.summaries import Row


@dataclass(frozen=True, repr=False)
class Result:
    """A finished run: its directory and its summary (see tracking/records.py, where units are said)."""

    path: Path
    summary: dict[str, Any]

    # -- what its summary says

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def status(self) -> str:
        """completed, or interrupted; failed, of a run in which no step was taken."""
        return str(self.summary["status"])

    @property
    def accuracy(self) -> float | None:
        """Accuracy on the test split, from 0 to 1; None: the task's metric is another one."""
        return number(self.summary["accuracy"])

    @property
    def r2(self) -> float | None:
        return number(self.summary.get("r2"))

    @property
    def loss(self) -> float | None:
        """The loss on the test split."""
        return number(self.summary["loss"])

    @property
    def throughput(self) -> float | None:
        """Samples a second of all workers; None: the run was too short to measure."""
        return number(self.summary["throughput"])

    @property
    def step_time(self) -> MeasuredStepTime:
        return MeasuredStepTime(**self.summary["step_time"])

    @property
    def per_worker(self) -> list[WorkerTime]:
        """The median step of each worker."""
        told = self.summary["per_worker"]
        return [
            WorkerTime(each["rank"], MeasuredStepTime(**{k: v for k, v in each.items() if k != "rank"}))
            for each in told
        ]

    @property
    def memory(self) -> Mapping[str, int]:
        """The largest worker's peak bytes, by kind."""
        return self.summary["memory"]

    @property
    def wire(self) -> Wire:
        return Wire(**self.summary["wire"])

    @property
    def staleness(self) -> Staleness | None:
        """None: no worker pushes to others that train on."""
        told = self.summary["staleness"]
        return None if told is None else Staleness(**told)

    @property
    def predicted(self) -> PlanSummary:
        return PlanSummary(**self.summary["predicted"])

    @property
    def time_to_accuracy(self) -> float | None:
        """Seconds of training; None: the target was not reached."""
        return number(self.summary["time_to_accuracy"])

    @property
    def seconds(self) -> float:
        """Seconds of training."""
        return float(self.summary["seconds"])

    @property
    def skipped_steps(self) -> int | None:
        """The number of steps that changed no weight, as a gradient overflowed; None: gradients are not scaled
        (precision=fp16).
        """
        return self.summary.get("skipped_steps")

    @property
    def compile_s(self) -> float | None:
        """Seconds in which the slowest worker compiled, which no other time counts; None: nothing is compiled."""
        return self.summary.get("compile_s")

    @property
    def steps(self) -> int:
        return int(self.summary["steps"])

    @property
    def epochs(self) -> float:
        return float(self.summary["epochs"])

    @property
    def workers(self) -> int:
        return int(self.summary["workers"])

    @property
    def modelled(self) -> bool:
        """Returns whether its times are those of a virtual cluster."""
        return bool(self.summary["modelled"])

    @property
    def weights(self) -> Path:
        """The trained weights, for `weights=...` of another run."""
        return self.path / "model.safetensors"

    @property
    def doubts(self) -> list[str]:
        """Signs that an attack's gradients are masked (docs/adversarial.md); of a run without one there are none."""
        told = self.data.adversarial
        return [] if told is None else told["doubts"]

    # -- what it recorded

    @cached_property
    def data(self) -> "RunData":
        """All that its directory holds."""
        from ...tracking.sources import from_directory

        return from_directory(RunDirectory(self.path))

    def curves(self) -> "DataFrame":
        """Loss, samples/s, accuracy, own metrics, a row a step: see tracking/frames.py. Raises MissingPackageError."""
        from ...tracking.frames import curves

        return curves(self.data)

    def times(self) -> "DataFrame":
        """The median step of each worker and how it divides, a row a worker. Raises MissingPackageError."""
        from ...tracking.frames import workers

        return workers(self.data)

    def figures(self) -> list[str]:
        """The names of those that `plot` draws of it."""
        from ...tracking.display import pictures

        return list(pictures([self.data]))

    def plot(self, what: str = "training-loss") -> "Picture":
        """A figure as SVG, by its name or the beginning of one: accuracy, memory, ... Raises TableError."""
        from ...tracking.display import plot

        return plot([self.data], what)

    # -- how it is shown

    def _rows(self) -> "list[Row]":
        from ...tracking.compare import rows

        return rows([self.summary])

    def __str__(self) -> str:
        from ...tracking.compare import render

        return render(self._rows())

    def __repr__(self) -> str:
        score = f"accuracy {self.accuracy:.2%}" if self.accuracy is not None else ""
        score = f"R^2 {self.r2:.4f}" if self.r2 is not None else score
        rate = f"{self.throughput:,.0f} samples/s" if self.throughput is not None else ""
        rate += " (modelled)" if rate and self.modelled else ""
        status = "" if self.status == "completed" else self.status
        told = ", ".join(part for part in (status, counted(self.steps, "step"), score, rate) if part)
        return f"Result({self.name}: {told})"

    def _repr_html_(self) -> str:
        from ...tracking.display import table

        return table(self._rows())


def load(name: str | Path, root: Path | str = ROOT) -> Result:
    """The result of an earlier run, by its name under `root` or its directory.

    Raises ConfigError for an option of another kind, RunNameError, or CorruptRunError where it has no summary.
    """
    check_options("a text or a Path", name=name, root=root)
    directory = RunDirectory.open(root, name)
    summary = directory.read_summary()
    if summary is None:
        raise CorruptRunError(f"{directory.path}: has no summary: the run still goes on, or came to no end")
    return Result(directory.path, summary)
