"""`paceline train` for real: small runs, real workers."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch

from paceline import engine
from paceline.cli.train import _unmeasured
from paceline.tracking.compare import render, rows
from paceline.tracking.run_directory import RunDirectory

QUICK = ("tracking=none", "data.limit=200", "epochs=1", "checkpoint.every=0")
pytestmark = [pytest.mark.dist, pytest.mark.usefixtures("fork_server")]


def test_the_row_goes_to_stdout_and_everything_else_to_stderr(paceline, here: Path) -> None:
    ended = paceline("train", *QUICK, "--name", "mine", "hardware.workers=1")
    assert ended.status == 0
    header, row = ended.out.splitlines()
    assert header.startswith("run ") and row.split()[:4] == ["mine", "data_parallel", "bsp", "1"]
    assert "everything of this run: runs/mine" in ended.err and ended.last.endswith("paceline compare mine OTHER")
    assert (here / "runs" / "mine" / "model.safetensors").is_file()
    assert paceline("compare", "mine").out == ended.out


def test_the_api_returns_the_row_that_the_command_prints(paceline, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    returned: list[engine.Result | None] = []
    run = engine.run

    def spy(*args, **kwargs):
        returned.append(run(*args, **kwargs))
        return returned[0]

    monkeypatch.setattr("paceline.engine.run", spy)
    printed = paceline("train", *QUICK, "hardware.workers=1").out
    assert str(returned[0]) == printed
    [name] = [path.name for path in (here / "runs").iterdir()]
    assert render(rows([RunDirectory.open("runs", name)])) == printed
    assert (
        returned[0] is not None
        and returned[0].accuracy == json.loads((here / "runs" / name / "summary.json").read_text())["accuracy"]
    )


def test_a_model_that_this_host_cannot_hold_is_refused_and_a_dry_run_says_so(paceline, here, monkeypatch) -> None:
    monkeypatch.setattr("paceline.engine.planning.process_memory.available", lambda: 2 * 2**30)
    lack = r"a worker holds 14\.4 GiB by the plan, and this host has 2\.0 GiB free"
    words = ("train", "model=mlp", "model.hidden=[15000000]", "hardware.workers=1", "tracking=none")
    dry = paceline(*words, "--dry-run")
    assert dry.status == 0 and re.search(f"^note: {lack}", dry.err, re.MULTILINE)
    ended = paceline(*words)
    assert ended.status == 2 and re.search(f"^model=mlp: {lack}", ended.last) and not (here / "runs").exists()


@pytest.mark.parametrize(
    ("resumed", "too_short", "told"),
    [
        (60, True, "no speed is shown: it is measured of the 4 steps since step 60 alone"),
        (60, False, ""),
        (None, True, ""),
    ],
)
def test_a_run_that_went_on_for_a_few_steps_says_why_it_has_no_speed(
    resumed: int | None, too_short: bool, told: str
) -> None:
    said = _unmeasured({"too_short": too_short, "resumed_at": resumed, "steps": 64})
    assert said.startswith(told) and bool(said) == bool(told)


@pytest.mark.slow
def test_a_trace_is_written_to_the_file_that_is_named_and_the_note_says_so(paceline, here: Path) -> None:
    ended = paceline("train", *QUICK, "hardware.workers=1", "--trace", "trace.json")
    assert ended.status == 0 and "who waited for whom: trace.json" in ended.err
    assert json.loads((here / "trace.json").read_text())["otherData"]["shown"].keys() == {"worker 0"}
    assert "who waited" not in paceline("train", *QUICK, "hardware.workers=1").err


@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
def test_a_trace_in_no_directory_is_refused_and_a_dry_run_writes_none(
    dry: tuple[str, ...], paceline, here: Path
) -> None:
    ended = paceline("train", *QUICK, *dry, "--trace", "missing/trace.json")
    assert ended.status == 2 and ended.last.startswith("--trace missing/trace.json: there is no directory")
    assert paceline("train", *QUICK, "--dry-run", "--trace", "trace.json").out.startswith("ok: ")
    assert not list(here.iterdir())


def test_a_taken_name_is_refused(paceline, here: Path) -> None:
    RunDirectory.create(here / "runs", "mine")
    ended = paceline("train", *QUICK, "--name", "mine")
    assert ended.status == 2 and "is taken" in ended.last


MODULE = '''
from torch import nn
from paceline.strategies import Strategy, Sync, Transfer, Transfers
from paceline.strategies.core.cost import payload
from paceline.strategies.data_parallel import DataParallel


class Narrow(nn.Sequential):
    """A user's model with a knob of its own."""

    def __init__(self, spec, width: int = 3):
        sizes = spec.input_shape[0] * spec.input_shape[1] * spec.input_shape[2]
        super().__init__(nn.Flatten(), nn.Linear(sizes, width), nn.ReLU(), nn.Linear(width, spec.classes))


class GatherAverage(Sync):
    """Synchronous: everyone sees everyone's gradient and takes the mean."""

    def update(self):
        for parameter in self.parameters.values():
            if parameter.grad is None:
                parameter.grad = parameter.new_zeros(parameter.shape)
            parameter.grad = self.comm.all_gather(parameter.grad).view(self.comm.size, *parameter.shape).mean(0)
        self.optimizer.step()

    def report(self):
        return {"mine": True}

    def transfers(self, parameters, world):
        return Transfers([Transfer("all_gather", world.replicas, payload(parameters) * (world.replicas - 1))])
'''


@pytest.fixture
def own(here: Path) -> tuple[str, ...]:
    """A user's repository: a package and a directory of choices."""
    (here / "mylab").mkdir()
    (here / "mylab" / "__init__.py").touch()
    (here / "mylab" / "parts.py").write_text(MODULE)
    for group, name, target in (("model", "narrow", "Narrow\nwidth: 5"), ("sync", "gather", "GatherAverage")):
        (here / "conf" / group).mkdir(parents=True)
        (here / "conf" / group / f"{name}.yaml").write_text(f"# Mine\n_target_: mylab.parts.{target}\n")
    return ("model=narrow", "sync=gather", "--config-dir", "conf")


@pytest.fixture(autouse=True)
def forget():
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "mylab"]:
        del sys.modules[name]


def test_a_users_own_model_and_sync_mode_train(own: tuple[str, ...], paceline, here: Path) -> None:
    ended = paceline("train", *QUICK, *own, "--allow-module", "mylab", "model.width=7", "--name", "mine")
    assert ended.status == 0, ended.err
    assert ended.out.splitlines()[1].split()[:4] == ["mine", "data_parallel", "gather", "2"]
    weights = safetensors.torch.load_file(here / "runs" / "mine" / "model.safetensors")
    shapes = sorted(list(weight.shape) for weight in weights.values())
    assert shapes == [[7], [7, 64], [10], [10, 7]]
    summary = json.loads((here / "runs" / "mine" / "summary.json").read_text())
    assert summary["wire"]["bytes_per_step"] == summary["predicted"]["bytes_per_step"] == 4 * (7 * 65 + 10 * 8)


@pytest.mark.parametrize("allowed", [(), ("--allow-module", "mylabs"), ("--allow-module", "my")])
def test_a_users_own_class_is_refused_unless_its_package_is_allowed(
    allowed: tuple[str, ...], own: tuple[str, ...], paceline, here: Path
) -> None:
    (here / "mylab" / "__init__.py").write_text("raise SystemExit('imported')")
    ended = paceline("train", *own, *allowed, "--dry-run")
    assert ended.status == 2 and "--allow-module mylab" in ended.last
    assert "mylab" not in sys.modules


def test_knobs_of_a_users_own_class_are_checked_too(own: tuple[str, ...], paceline) -> None:
    allow = ("--allow-module", "mylab", "--dry-run")
    ended = paceline("train", *own, *allow, "model.width=wide")
    assert ended.status == 2 and ended.last.startswith("model.width='wide'")
    assert paceline("train", *own, *allow).out.startswith("ok: data_parallel + gather, narrow on digits")


def torchrun(here: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command += ["-m", "paceline.cli.main", "train", *arguments]
    return subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True, timeout=110)


@pytest.mark.slow
def test_under_torchrun_the_row_is_printed_once(here: Path) -> None:
    done = torchrun(here, *QUICK, "--name", "mine", "--trace", "trace.json")
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["run", "mine"]
    assert done.stderr.count("everything of this run") == 1
    shown = json.loads((here / "trace.json").read_text())["otherData"]["shown"]
    assert list(shown) == ["worker 0", "worker 1"]


def test_a_dry_run_refuses_to_go_on_where_the_run_does(paceline) -> None:
    words = ("model=linear", "data.limit=64", "strategy=single", "hardware.workers=1", "tracking=none", "steps=2")
    assert paceline("train", *words, "--name", "r").status == 0
    for more in ((), ("--dry-run",)):
        ended = paceline("train", "--resume", "r", *more)
        assert ended.status == 2 and "steps=2: makes 2 steps, and the run has made them" in ended.last
    assert paceline("train", "--resume", "r", "steps=3", "--dry-run").status == 0
