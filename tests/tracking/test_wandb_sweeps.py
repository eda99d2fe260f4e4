"""Our sweep files under W&B's own `wandb sweep` and `wandb agent`, against a local server."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from wandb_server import KEY, WandbServer, isolate, serving

import paceline.conf
from paceline.tracking import sinks_from
from paceline.tracking.compare import rows
from paceline.tracking.mirror import Mirror
from paceline.tracking.run_directory import RunDirectory, run_names

READY = Path(__file__).parents[2] / "sweeps"
SWEEPS = [*sorted(READY.glob("*.yaml")), READY / "studies" / "easgd_downpour_asp.yaml"]
GRID = next(path for path in SWEEPS if path.stem == "sync_and_rate")
SHORT = ["steps=3", "measure.after=1", "checkpoint.every=0"]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    isolate(monkeypatch, tmp_path / "home")
    for variable in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")  # for what the agent runs
    with serving() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        yield server


def wandb(here: Path, *arguments: str) -> str:
    """What W&B's command says."""
    command = [sys.executable, "-P", "-m", "wandb", *arguments]
    done = subprocess.run(command, cwd=here, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def registered(server: WandbServer) -> dict[str, Any]:
    return yaml.safe_load(server.sweeps[-1]["config"])


def without_distributions(parameters: dict[str, Any]) -> dict[str, Any]:
    """As W&B fills in those that are not written."""
    return {key: {k: v for k, v in choice.items() if k != "distribution"} for key, choice in parameters.items()}


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem, marks=[] if path == GRID else [pytest.mark.slow]) for path in SWEEPS],
)
@pytest.mark.slow
def test_wandb_sweep_takes_our_file_as_it_is(path: Path, server: WandbServer, tmp_path: Path) -> None:
    said = wandb(tmp_path, "sweep", "--project", "paceline", str(path))
    written, kept = yaml.safe_load(path.read_text()), registered(server)
    assert without_distributions(kept.pop("parameters")) == without_distributions(written.pop("parameters"))
    assert kept == written
    assert "wandb agent me/paceline/sweep1" in said and "WARNING" not in said


def shortened(path: Path, here: Path) -> Path:
    """The same sweep with short runs."""
    sweep = yaml.safe_load(path.read_text())
    sweep["command"] = [word for part in sweep["command"] for word in ([part, *SHORT] if part == "train" else [part])]
    (here / "short.yaml").write_text(yaml.safe_dump(sweep))
    return here / "short.yaml"


def points(path: Path) -> list[dict[str, Any]]:
    parameters = yaml.safe_load(path.read_text())["parameters"]
    return [
        dict(zip(parameters, point, strict=True))
        for point in itertools.product(*(choice["values"] for choice in parameters.values()))
    ]


@pytest.mark.slow
def test_wandb_agent_runs_the_points_of_our_grid(server: WandbServer, tmp_path: Path) -> None:
    wandb(tmp_path, "sweep", "--project", "paceline", str(shortened(GRID, tmp_path)))
    server.points = [points(GRID)[0], points(GRID)[-1]]
    assert server.points[0]["sync"] != server.points[1]["sync"]
    wandb(tmp_path, "agent", "me/paceline/sweep1")

    created = [upsert for upsert in server.upserts if upsert["displayName"]]
    assert [(upsert["name"], upsert["sweep"]) for upsert in created] == [("point1", "sweep1"), ("point2", "sweep1")]
    assert server.exit_codes == [0, 0]
    names = run_names(tmp_path / "runs")
    assert sorted(upsert["displayName"] for upsert in created) == names
    shown = {summary["run"]: summary for summary in server.summaries if "run" in summary}
    for row in rows([RunDirectory.open(tmp_path / "runs", name) for name in names]):
        known = {key: value for key, value in row.items() if value is not None}
        assert known["status"] == "completed" and "accuracy" in known
        assert {key: shown[row["run"]][key] for key in known} == known
    configs = [json.loads(upsert["config"]) for upsert in server.upserts if not upsert["displayName"]]
    chosen = [
        {key: config[key]["value"] for key in point} for point, config in zip(server.points, configs, strict=True)
    ]
    assert chosen == server.points


@pytest.mark.slow
def test_wandb_agent_goes_on_after_a_point_that_is_refused(server: WandbServer, tmp_path: Path) -> None:
    wandb(tmp_path, "sweep", "--project", "paceline", str(shortened(GRID, tmp_path)))
    server.points = [
        {"sync": "nosuch", "optimizer.lr": 0.1},
        {"sync": "bsp", "optimizer": {"lr": 0.25}, "model.hidden": [16]},
    ]
    said = wandb(tmp_path, "agent", "me/paceline/sweep1")
    assert "sync=nosuch: there is no such choice" in said
    assert {upsert["name"] for upsert in server.upserts} == {"point2"} and server.exit_codes == [0]
    (name,) = run_names(tmp_path / "runs")
    config = yaml.safe_load((tmp_path / "runs" / name / "config.yaml").read_text())
    assert (config["optimizer"]["knobs"]["lr"], config["model"]["knobs"]["hidden"]) == (0.25, [16])


@pytest.mark.slow
def test_a_run_under_an_agent_is_the_agents(
    server: WandbServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its id, group, sweep and project; the sweep's parameters stand in its config beside ours."""
    parameters = tmp_path / "parameters.yaml"
    parameters.write_text(yaml.safe_dump({"wandb_version": 1, "sync": {"value": "ssp"}, "epochs": {"value": 1}}))
    for key, value in {
        "SWEEP_ID": "sweep1",
        "RUN_ID": "point1",
        "RUN_GROUP": "its group",
        "TAGS": "its,tags",
        "PROJECT": "its-project",
        "SWEEP_PARAM_PATH": str(parameters),
    }.items():
        monkeypatch.setenv(f"WANDB_{key}", value)
    run = RunDirectory.create(tmp_path / "runs", "first")
    tracking = yaml.safe_load((Path(paceline.conf.__file__).parent / "tracking" / "wandb.yaml").read_text())
    config = {"sync": {"name": "ssp", "knobs": {"staleness": 3}}, "epochs": 1, "optimizer": {"name": "sgd"}}
    monkeypatch.setattr("paceline.tracking.wandb.FINISH_SECONDS", 70.0)  # a busy machine is no fault
    mirror = Mirror(run, sinks_from(tracking, run=run, config=config, quiet=True))
    run.append({"kind": "start", "name": "first"})
    run.append({"kind": "evaluation", "step": 5, "epoch": 1.0, "accuracy": 0.9, "loss": 0.4, "time": 0.1})
    run.write_summary({"name": "first", "status": "completed", "accuracy": 0.9})
    assert mirror.close(80.0)

    created = server.upserts[0]
    assert (created["name"], created["displayName"], created["sweep"]) == ("point1", "first", "sweep1")
    assert (created["project"], created["groupName"], created["tags"]) == ("its-project", "its group", ["its", "tags"])
    known = {key: item["value"] for key, item in json.loads(server.upserts[-1]["config"]).items() if key != "_wandb"}
    assert known == {
        "sync": "ssp",
        "sync.name": "ssp",
        "sync.knobs.staleness": 3,
        "epochs": 1,
        "optimizer": {"name": "sgd"},
    }
    (row,) = (row for row in server.history if "evaluation/accuracy" in row)
    assert (row["accuracy"], row["evaluation/accuracy"], row["step"]) == (0.9, 0.9, 5)  # what the sweep decides by
