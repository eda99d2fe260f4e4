"""TensorBoard's event files and MLflow's store, written by their own writers and read by their own readers."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from needs import needs_mlflow, needs_tensorboard

from paceline.engine.config.compose import compose
from paceline.engine.config.overrides import overrides_of
from paceline.tracking import imports
from paceline.tracking.errors import TrackerMissingError, TrackingConfigError
from paceline.tracking.helper import HelperMirror
from paceline.tracking.history import history, numbers
from paceline.tracking.mirror import Mirror
from paceline.tracking.run_directory import RunDirectory
from paceline.tracking.sinks import check, sinks_from

CONFIG = {"seed": 1, "data": {"name": "mine", "knobs": {"api_key": "hunter2", "lr": 0.1}}, "tracking": {"uri": None}}
MLFLOW = {"wandb": False, "mlflow": True, "uri": None, "experiment": "tests", "group": "the-sweep"}
TENSORBOARD = {"wandb": False, "tensorboard": True}
pytestmark = pytest.mark.timeout(240)


def step(number: int, loss: Any = None) -> dict[str, Any]:
    return {"kind": "step", "step": number, "epoch": 1.0, "loss": loss or 1.0 / number, "time": 0.1 * number}


def mirrored(run: RunDirectory, tracking: dict[str, Any], records: list[dict[str, Any]], **summary: Any) -> None:
    """One life of a run: its records appended while it is followed, and its summary."""
    run.summary.unlink(missing_ok=True)
    mirror = Mirror(run, sinks_from(tracking, run=run, config=CONFIG, quiet=True))
    for record in records:
        run.append(record)
    if summary:
        run.write_summary({"name": run.name, "steps": 3, "workers": 2, **summary})
    assert mirror.close(120)


def test_what_is_plotted_are_the_numbers_over_the_step() -> None:
    plotted = history(step(2, "nan"))
    assert plotted["step"] == 2 and math.isnan(plotted["train/loss"])
    assert numbers({"step": 2, "train/loss": 0.5, "evaluation/accuracy": None, "a": True, "b": "text"}) == {
        "train/loss": 0.5
    }
    assert history({"kind": "checkpoint", "step": 3}) == {}
    assert history({"kind": "evaluation", "step": 3, "accuracy": 0.5}, swept=True)["accuracy"] == 0.5


@pytest.mark.parametrize(
    ("tracking", "message"),
    [
        ({"tensorboard": "yes"}, "tracking.tensorboard=yes: must be true or false"),
        ({**MLFLOW, "experiment": ""}, "tracking.experiment=: must be a name"),
        ({**MLFLOW, "uri": 3}, "tracking.uri=3: must be a text or null"),
        ({**MLFLOW, "url": "x"}, "tracking.url: there is no such key"),
    ],
)
def test_what_is_not_allowed_is_named(tracking: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.tracking.sinks.find_spec", lambda name: object())
    with pytest.raises(TrackingConfigError) as raised:
        check({"wandb": False, **tracking})
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize(("name", "label"), [("tensorboard", "TensorBoard"), ("mlflow", "MLflow")])
def test_a_tracker_that_is_not_installed_says_what_to_install(
    name: str, label: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.tracking.sinks.find_spec", lambda name: None)
    with pytest.raises(TrackerMissingError, match=rf"^tracking={name}: {label} is not .* 'paceline\[{name}\]'"):
        check(compose([f"tracking={name}"]).tracking)


def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, says: str) -> None:
    """A package of that name that lies before the real one, and cannot be imported."""
    imports.failure.cache_clear()
    (tmp_path / "first" / package).mkdir(parents=True)
    (tmp_path / "first" / package / "__init__.py").write_text(says)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "first"))
    monkeypatch.syspath_prepend(tmp_path / "first")
    monkeypatch.delitem(sys.modules, package, raising=False)


@pytest.mark.parametrize(
    ("name", "label", "does", "said"),
    [
        (
            "tensorboard",
            "TensorBoard",
            "raise ImportError('half of it is missing')",
            "ImportError: half of it is missing",
        ),
        ("mlflow", "MLflow", "1 / 0", "ZeroDivisionError: division by zero"),
        ("mlflow", "MLflow", "import os\nos._exit(7)", "it ended with exit status 7"),
    ],
)
@pytest.mark.slow
def test_a_tracker_that_cannot_be_imported_is_refused_with_what_the_import_said(
    name: str, label: str, does: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(tmp_path, monkeypatch, name, does)
    with pytest.raises(TrackerMissingError) as refused:
        check(compose([f"tracking={name}"]).tracking)
    assert str(refused.value) == (
        f"tracking={name}: {label} is installed and cannot be imported ({said}); "
        f"pip install --force-reinstall 'paceline[{name}]' puts it right, or tracking=none"
    )
    imports.failure.cache_clear()


def test_wandb_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.tracking.sinks.find_spec", lambda name: None)
    with pytest.raises(
        TrackerMissingError, match=r"^tracking=wandb: W&B is not .*; pip install wandb, or tracking=none"
    ):
        check(compose([]).tracking)


@pytest.mark.parametrize("name", ["tensorboard", "mlflow"])
def test_a_stored_configuration_tells_the_tracker(name: str) -> None:
    typed = [f"tracking={name}"]
    assert overrides_of(compose(typed).model_dump()) == typed


@needs_tensorboard
@pytest.mark.slow
def test_event_files_hold_the_curves_and_a_resumed_run_goes_on_in_them(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = RunDirectory.create(tmp_path, "first")
    evaluation = {"kind": "evaluation", "step": 3, "epoch": 1.0, "accuracy": 0.5, "loss": 0.25}
    mirrored(run, TENSORBOARD, [{"kind": "start"}, step(1), step(2), evaluation, step(3)])
    again = RunDirectory(run.path)
    mirrored(
        again, TENSORBOARD, [{"kind": "resume", "step": 2}, step(3, 7.0), step(4)], status="completed", accuracy=0.75
    )
    found = EventAccumulator(str(run.path / "tensorboard"))
    found.Reload()
    assert [(each.step, each.value) for each in found.Scalars("train/loss")] == [
        (1, 1.0),
        (2, 0.5),
        (3, 7.0),
        (4, 0.25),
    ]
    assert "train/time" not in found.Tags()["scalars"] and [
        each.value for each in found.Scalars("summary/accuracy")
    ] == [0.75]
    assert "hunter2" not in "".join(
        path.read_bytes().decode(errors="replace") for path in (run.path / "tensorboard").iterdir()
    )


@needs_mlflow
@pytest.mark.slow
def test_a_store_holds_the_run_its_parameters_and_curves_and_a_resumed_run_goes_on_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run = RunDirectory.create(tmp_path / "runs", "first")
    mirrored(run, MLFLOW, [{"kind": "start"}, step(1), step(2)])
    mirrored(
        RunDirectory(run.path), MLFLOW, [{"kind": "resume", "step": 2}, step(3)], status="completed", accuracy=0.75
    )
    assert capfd.readouterr().err == ""
    script = (
        "import json; from mlflow.tracking import MlflowClient; client = MlflowClient('sqlite:///mlflow.db');"
        "[run] = client.search_runs([client.get_experiment_by_name('tests').experiment_id]);"
        "losses = client.get_metric_history(run.info.run_id, 'train/loss');"
        "print(json.dumps([run.info.run_name, run.info.status, run.data.params, run.data.metrics, run.data.tags,"
        " [(each.step, each.value) for each in losses]]))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    name, status, params, metrics, tags, losses = json.loads(done.stdout)
    assert (name, status, tags["group"]) == ("first", "FINISHED", "the-sweep")
    assert params["data.knobs.lr"] == "0.1" and params["data.knobs.api_key"] == "***" and "hunter2" not in done.stdout
    assert losses == [[1, 1.0], [2, 0.5], [3, 1 / 3]] and metrics["summary/accuracy"] == 0.75


@needs_mlflow
@pytest.mark.slow
def test_a_server_that_is_not_there_is_told_in_a_line_and_stops_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = RunDirectory.create(tmp_path, "first")
    mirrored(run, {**MLFLOW, "uri": "http://me:secret@127.0.0.1:9"}, [{"kind": "start"}, step(1)], status="completed")
    [line] = capfd.readouterr().err.splitlines()
    assert line.startswith("MLflow: stopped (") and line.endswith(f"the results go on in {run.path}")
    assert "secret" not in line and run.read_summary() is not None
    log = (run.path / "logs" / "mlflow.log").read_text()
    assert "http://***@127.0.0.1:9" in log and "secret" not in log


@pytest.mark.slow
def test_a_helper_that_is_killed_or_never_ends_costs_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run = RunDirectory.create(tmp_path, "first")
    monkeypatch.setattr("paceline.tracking.helper.FINISH_SECONDS", 0.2)
    sink = HelperMirror("Tracker", "tensorboard", run.path, CONFIG, 0)
    sink.record(step(1))
    assert sink._helper is not None
    os.kill(sink._helper.pid, 19)  # SIGSTOP
    sink.close(None)
    assert capfd.readouterr().err == "Tracker: not finished after 0 s, left as it is\n"
    sink = HelperMirror("Tracker", "tensorboard", run.path, CONFIG, 0)
    sink.record(step(1))
    assert sink._helper is not None
    sink._helper.kill()
    sink._helper.wait()
    monkeypatch.setattr("paceline.tracking.helper.FINISH_SECONDS", 60.0)
    sink.close(None)
    assert capfd.readouterr().err == f"Tracker: stopped (exit status -9); see {run.path / 'logs' / 'tensorboard.log'}\n"
