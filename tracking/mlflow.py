"""Mirrors a run to MLflow, by its own client: a store in a file here, or a server.

The run's id is kept in its directory, so that a resumed run goes on in the same one.
"""

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .files import read_text
from .helper import final
from .history import history, numbers
from .run_directory import RunDirectory, follow, write_atomically
from .values import flat

FOLDER = "mlflow"
STORE = "mlflow.db"  # here, where neither `tracking.uri` nor MLFLOW_TRACKING_URI says where
LONGEST_ID, LONGEST_PARAMETER = 64, 6000  # characters, as MLflow takes them
MOST_METRICS, MOST_PARAMETERS = 1000, 100  # of one request
EVERY = 2.0  # seconds between requests
ENDS = {"completed": "FINISHED", "interrupted": "KILLED", "pruned": "KILLED"}
# Without these an unreachable server is tried for many minutes. What is set in the environment goes before.
BOUNDS = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


def mirror(settings: dict[str, Any], finish: threading.Event) -> None:
    for name, value in BOUNDS.items():
        os.environ.setdefault(name, value)
    from mlflow.entities import Metric

    directory = RunDirectory(Path(settings["directory"]))
    run = _Run(settings, directory)
    waiting: list[Metric] = []
    sent = time.monotonic()
    for record in follow(directory.metrics, finish, settings["start_at"]):
        plotted = history(record)
        now = round(1000 * time.time())
        waiting += [Metric(key, value, now, plotted["step"]) for key, value in numbers(plotted).items()]
        if len(waiting) >= MOST_METRICS or time.monotonic() - sent >= EVERY:
            waiting, sent = run.log(waiting), time.monotonic()
    summary, row = final(directory)
    now, step = round(1000 * time.time()), int(summary.get("steps") or 0)
    run.log([*waiting, *(Metric(f"summary/{key}", value, now, step) for key, value in row.items())])
    run.client.set_terminated(run.id, ENDS.get(str(summary.get("status")), "FAILED"))


class _Run:
    """The run at MLflow, made, or gone on with."""

    def __init__(self, settings: dict[str, Any], directory: RunDirectory) -> None:
        from mlflow.tracking import MlflowClient

        uri = settings["uri"] or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{Path(STORE).absolute()}"
        with _alone(Path.cwd()):  # of two processes that make a store at once, one fails
            self.client = MlflowClient(tracking_uri=uri)
            name = settings["experiment"]
            found = self.client.get_experiment_by_name(name)
            experiment = self.client.create_experiment(name) if found is None else found.experiment_id
        kept = directory.path / FOLDER / "run_id"
        try:
            self.id = read_text(kept, LONGEST_ID)
            self.client.update_run(self.id, status="RUNNING")
        except FileNotFoundError:
            tags = {"group": str(settings["group"])} if settings["group"] else {}
            self.id = self.client.create_run(experiment, run_name=settings["name"], tags=tags).info.run_id
            kept.parent.mkdir(exist_ok=True)
            write_atomically(kept, self.id)
            self._log_configuration(settings["config"])

    def _log_configuration(self, config: dict[str, Any]) -> None:
        from mlflow.entities import Param

        parameters = [Param(key, str(value)[:LONGEST_PARAMETER]) for key, value in flat(config, ".").items()]
        for i in range(0, len(parameters), MOST_PARAMETERS):
            self.client.log_batch(self.id, params=parameters[i : i + MOST_PARAMETERS])

    def log(self, metrics: list[Any]) -> list[Any]:
        """Returns what is left to be sent: nothing."""
        for i in range(0, len(metrics), MOST_METRICS):
            self.client.log_batch(self.id, metrics=metrics[i : i + MOST_METRICS])
        return []


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Lets one process at a time make a store here. The lock leaves no file."""
    opened = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)
