"""The scripts of docs/ci.md tell good configurations and results from bad ones."""

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from needs import needs_bash, needs_jq
from test_readme import blocks

from paceline.cli.main import main
from paceline.tracking.run_directory import RunDirectory

PAGE = "docs/ci.md"
SWEEP = next(block for block in blocks("yaml", "docs/sweeps.md") if block.startswith("# rates.yaml"))


def ended(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    (text,) = (block for block in blocks("bash", PAGE) if block.startswith(f"# {script}\n"))
    (folder / script).write_text(text)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", script], cwd=folder, env=os.environ | {"PATH": path}, capture_output=True, text=True, timeout=200
    )


@needs_bash
@needs_jq
@pytest.mark.docs
@pytest.mark.slow  # processes
@pytest.mark.parametrize(
    ("experiment", "swept", "says"),
    [
        ("sync: bsp", "bsp", ""),
        ("sync: bspp", "bsp", "sync=bspp: there is no such choice"),
        ("{model: gpt_1b, data: text, hardware: t4}", "bsp", "experiments/one.yaml: does not fit its devices"),
        ("sync: bsp", "bspp", "2 of 4 points refused"),
    ],
)
def test_the_check_of_the_page_refuses_what_is_bad(experiment: str, swept: str, says: str, tmp_path: Path) -> None:
    for folder in ("experiments", "sweeps", "conf"):
        (tmp_path / folder).mkdir()
    (tmp_path / "experiments" / "one.yaml").write_text(experiment)
    (tmp_path / "sweeps" / "rates.yaml").write_text(SWEEP.replace("[bsp,", f"[{swept},"))
    done = ended("check.sh", tmp_path)
    assert (done.returncode != 0) == bool(says), done.stderr
    assert says in done.stderr


@needs_bash
@needs_jq
@pytest.mark.docs
@pytest.mark.slow  # processes
@pytest.mark.parametrize(("accuracy", "status"), [(0.85, 0), (0.79, 0), (0.7, 1), (None, 1)])
def test_the_regression_of_the_page_is_found(accuracy: float | None, status: int, tmp_path: Path) -> None:
    for root, value in (("base/runs", 0.8), ("runs", accuracy)):
        run = RunDirectory.create(tmp_path / root, "nightly")
        found = {} if value is None else {"accuracy": value}
        run.write_summary({"name": "nightly", "status": "completed", **found})
    done = ended("regression.sh", tmp_path)
    assert done.returncode == status, done.stderr


def test_the_workflows_of_the_page_are_yaml_that_runs_the_checks() -> None:
    found = [json.dumps(yaml.safe_load(block)) for block in blocks("yaml", PAGE)]
    assert len(found) == 3 and all("bash check.sh" in each for each in found[1:])


@pytest.mark.docs
@pytest.mark.parametrize(("experiment", "status"), [("sync: bsp", 0), ("sync: bspp", 2)])
def test_the_workflow_of_one_configuration_refuses_a_bad_one(
    experiment: str, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workflow,) = (yaml.safe_load(block) for block in blocks("yaml", PAGE) if "configuration.yml" in block)
    words = shlex.split(workflow["jobs"]["configuration"]["steps"][-1]["run"])
    (tmp_path / "experiment.yaml").write_text(experiment)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", words)
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as end:
            main()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert words[:2] == ["paceline", "train"] and end.value.code == status
