"""`--format json`: standard output is one JSON document, whatever else is said or printed, and exit statuses stay."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paceline import engine
from paceline.cli import doctor, output
from paceline.cli.choices import defaults, groups
from paceline.cli.doctor import CHECKS, Check
from paceline.cli.error_document import document
from paceline.cli.sweep import TrialsFailedError, conclude
from paceline.sweep.define import define
from paceline.sweep.study import SweepTrial, TrialRecord
from paceline.tracking.columns import COLUMNS

QUICK = ("tracking=none", "data.limit=64", "epochs=1", "steps=2", "checkpoint.every=0", "hardware.workers=1")
SUMMARY = {"name": "a", "status": "completed", "seed": 0, "accuracy": 0.9}
TALKATIVE = """
import os
from torch import nn

os.write(1, b"imported\\n")


class Talkative(nn.Sequential):
    def __init__(self, spec):
        print("built")
        super().__init__(nn.Flatten(), nn.Linear(64, spec.classes))

    def forward(self, x):
        os.write(1, b"forward\\n")
        print("forward")
        return super().forward(x)
"""


@pytest.fixture
def talkative(here: Path) -> tuple[str, ...]:
    """A user's model that prints as it is imported, built and used."""
    (here / "conf" / "model").mkdir(parents=True)
    (here / "conf" / "model" / "talkative.yaml").write_text("# Prints\n_target_: talks.Talkative\n")
    (here / "talks.py").write_text(TALKATIVE)
    return "model=talkative", "--config-dir", "conf", "--allow-module", "talks"


@pytest.fixture(autouse=True)
def forget():
    yield
    sys.modules.pop("talks", None)


def told(ended: Any) -> Any:
    """The document; json.loads refuses whatever stands before or after it."""
    return json.loads(ended.out)


def broken() -> doctor.Finding:
    print("beside the point")
    raise RuntimeError("no such thing")


def test_list_has_every_choice_with_its_group_description_parameters_and_the_default(paceline) -> None:
    every = told(paceline("list", "--format", "json"))
    assert {(each["group"], each["name"]) for each in every} == {
        (group, choice.name) for group, choices in groups().items() for choice in choices
    }
    assert {each["group"]: each["name"] for each in every if each["default"]} == defaults()
    ssp = next(each for each in told(paceline("list", "sync", "--format", "json")) if each["name"] == "ssp")
    assert ssp["group"] == "sync" and ssp["parameters"]["staleness"] == 3 and "stale" in ssp["description"].lower()


def test_list_columns_has_a_meaning_for_every_column(paceline) -> None:
    every = told(paceline("list", "columns", "--format", "json"))
    assert [each["name"] for each in every] == [column.key for column in COLUMNS]
    assert all(each["column"] and each["meaning"] and "unit" in each for each in every)


@pytest.mark.parametrize("needed", [True, False])
def test_doctor_has_each_check_with_its_state_and_what_is_lacking(
    needed: bool, paceline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "CHECKS", [Check("odd", broken, needed), CHECKS[0]])
    ended = paceline("doctor", "--format", "json")
    document = told(ended)
    assert document["checks"][0] == {"name": "odd", "state": "no", "detail": "RuntimeError: no such thing"}
    assert document["checks"][1]["state"] == "ok"
    assert (document["training_is_possible"], document["lacking"]) == ((False, ["odd"]) if needed else (True, []))
    assert ended.status == (3 if needed else 0) and "beside the point" in ended.err


def test_a_dry_run_is_what_plan_prints_and_a_users_prints_go_to_standard_error(
    talkative: tuple[str, ...], paceline
) -> None:
    words = ("--format", "json", "batch_size=5000", "tracking=none", *talkative)
    ended = paceline("train", "--dry-run", *words)
    plan = told(ended)
    assert plan == told(paceline("plan", *words)) and plan["workers"] == 2
    for said in ("imported", "built", "forward", f"note: {plan['notes'][0]}"):
        assert said in ended.err


def test_the_table_stands_alone_too(talkative: tuple[str, ...], paceline) -> None:
    ended = paceline("train", "--dry-run", "tracking=none", *talkative)
    assert [line.split(":")[0] for line in ended.out.splitlines()] == ["ok", "data"]


REFUSED: list[tuple[str, int, str | None, str | None, list[str]]] = [  # code, key, value, among the suggestions
    ("train epochs=0", 2, "epochs", "0", []),
    ("train sync=bspp", 2, "sync", "bspp", ["sync=bsp", "sync=ssp"]),
    ("train optimizr.lr=1", 2, "optimizr.lr", None, ["optimizer.lr=1"]),
    ("train --dry-run sync=asp strategy=torch_ddp", 2, "strategy", "torch_ddp", ["sync=bsp", "strategy=pipeline"]),
    ("train --workers 4", 2, "--workers", None, ["hardware.workers=4"]),
    ("list strateg", 2, "strateg", None, ["strategy"]),
    ("sweep sync=bsp", 2, None, None, []),
    ("compare nope", 2, "run", "nope", []),
    ("compare --fooo", 2, "--fooo", None, []),
    ("compare --bassline x", 2, "--bassline", None, ["--baseline"]),
    ("advise --tokens x", 2, "--tokens", "x", []),
    ("plan strategy=nope", 2, "strategy", "nope", []),
    ("explain snyc=ssp", 2, "snyc", None, ["sync"]),
    ("trian", 2, "trian", None, ["train"]),
    ("trian epochs=1", 2, "trian", None, ["train"]),
    ("--bogus plan", 2, "--bogus", None, []),
    ("init", 2, "--format", None, []),
]


@pytest.mark.parametrize(("line", "code", "key", "value", "among"), REFUSED)
def test_an_error_is_a_document_with_key_value_message_and_suggestions(
    line: str, code: int, key: str | None, value: str | None, among: list[str], paceline
) -> None:
    ended = paceline(*line.split(), "--format", "json")
    document = told(ended)
    assert document.keys() == {"code", "key", "value", "message", "suggestions"}
    assert (ended.status, document["code"]) == (code, code)
    assert document["message"].splitlines()[-1] == ended.last  # people read the same
    assert set(among) <= set(document["suggestions"])
    assert (document["key"], document["value"]) == (key, value)


@pytest.mark.parametrize(
    ("text", "key", "value", "among"),
    [
        ("sync: bspp", "sync", "bspp", ["sync=bsp"]),
        ("model: {name: mlp, hiden: 3}", "model.hiden", None, ["model.hidden"]),
        ("a: [", "--config", "mine.yaml", []),
    ],
)
def test_the_key_of_an_error_in_a_file_is_that_of_the_file(
    text: str, key: str, value: str | None, among: list[str], paceline, here: Path
) -> None:
    (here / "mine.yaml").write_text(text)
    document = told(paceline("train", "--config", "mine.yaml", "--dry-run", "--format", "json"))
    assert (document["key"], document["value"]) == (key, value) and set(among) <= set(document["suggestions"])
    assert document["message"].startswith("--config mine.yaml: ")


def test_an_error_is_a_document_only_where_it_was_asked_for(paceline) -> None:
    for line in ("train epochs=0", "compare nope --format csv", "train epochs=0 --format xml"):
        assert paceline(*line.split()).out == ""
    assert told(paceline("train", "epochs=0", "--format=json"))["key"] == "epochs"
    assert told(paceline("--format", "json", "plan"))["key"] == "--format"
    assert paceline("launch", "nowhere.py", "--format", "json").out == ""  # the script's own option


def test_a_mistake_in_a_class_is_a_document_too(paceline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "run", lambda *_, **__: 1 / 0)
    ended = paceline("train", "--format", "json")
    assert ended.status == 1 and "ZeroDivisionError" in told(ended)["message"]


def test_a_sweeps_dry_run_has_a_point_for_each_with_why_it_is_refused(paceline) -> None:
    ended = paceline("sweep", "sync=bsp,ssp", "optimizer.lr=0.1,-1", "epochs=1", "--dry-run", "--format", "json")
    assert ended.status == 2 and ended.last == "2 of 4 points refused"
    points = told(ended)
    assert [point["parameters"] for point in points] == [
        {"sync": sync, "optimizer.lr": rate} for sync in ("bsp", "ssp") for rate in ("0.1", "-1")
    ]
    assert points[0]["workers"] == 2 and points[0]["why"] is None and points[0]["memory"] > 0
    assert points[1]["workers"] is None and "optimizer.lr=-1" in points[1]["why"]


def test_what_is_printed_in_a_run_or_below_python_is_not_in_the_document(
    paceline, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*_: Any, **__: Any) -> engine.Result:
        print("from Python")
        os.write(1, b"from below\n")
        subprocess.run(["echo", "from a child"], check=True)
        return engine.Result(here / "runs" / "mine", {"name": "mine", "status": "completed", "accuracy": 0.5})

    monkeypatch.setattr(engine, "run", run)
    ended = paceline("train", "--format", "json")
    (row,) = told(ended)
    assert (row["run"], row["accuracy"], ended.status) == ("mine", 0.5, 0)
    for said in ("from Python", "from below", "from a child", "everything of this run: runs/mine"):
        assert said in ended.err


def test_a_sweeps_document_has_the_table_and_every_trial_with_why_it_failed(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    trials = [
        TrialRecord(SweepTrial(0, 0, 0, {"sync": "bsp"}, (0,)), "complete", 0.9, "", 0, ("a",), (SUMMARY,), 1.0),
        TrialRecord(SweepTrial(1, 1, 0, {"sync": "ssp"}, (0,)), "failed", None, "no good", 4, ("b",), (), 1.0),
    ]
    (here / "mine").mkdir()
    with pytest.raises(TrialsFailedError, match="1 of 2 trials failed"):
        conclude("mine", here / "mine", trials, define(["sync=bsp,ssp"]), "json")
    document = json.loads(capfd.readouterr().out)
    assert [row["run"] for row in document["table"]] == ["a"]
    assert (document["sweep"], document["metric"], document["goal"]) == ("mine", "accuracy", "maximize")
    good, bad = document["trials"]
    assert (good["parameters"], good["state"], good["value"], good["why"]) == ({"sync": "bsp"}, "complete", 0.9, None)
    assert good["runs"][0]["run"] == "a" and good["runs"][0]["accuracy"] == 0.9
    assert (bad["state"], bad["why"], bad["exit_code"], bad["runs"]) == ("failed", "no good", 4, [{"run": "b"}])


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.usefixtures("fork_server")
def test_train_prints_the_row_of_compare_and_a_worker_prints_into_its_log(
    talkative: tuple[str, ...], paceline, here: Path
) -> None:
    ended = paceline("train", "--format", "json", *QUICK, *talkative, "--name", "mine")
    assert ended.status == 0, ended.err
    (row,) = told(ended)
    assert row["run"] == "mine" and row["status"] == "completed" and row["accuracy"] is not None
    assert [row] == told(paceline("compare", "mine", "--format", "json"))
    assert "everything of this run" in ended.err
    assert any("forward" in log.read_text() for log in (here / "runs" / "mine" / "logs").iterdir())


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.usefixtures("fork_server")
def test_a_sweep_has_its_table_and_its_trials_with_the_one_that_failed(
    talkative: tuple[str, ...], paceline, here: Path
) -> None:
    text = TALKATIVE.replace('print("forward")', "assert not self.training or self.bad is False, 'no good'")
    text = text.replace("(self, spec)", "(self, spec, bad: bool = False)")
    (here / "talks.py").write_text(text.replace("spec.classes))", "spec.classes))\n        self.bad = bad"))
    with (here / "conf" / "model" / "talkative.yaml").open("a") as file:
        file.write("bad: false\n")
    words = ("model.bad=false,true", *QUICK, *talkative, "--name", "mine")
    ended = paceline("sweep", *words, "--format", "json")
    assert ended.status == 4 and ended.last == "1 of 2 trials failed", ended.err
    document = told(ended)
    good, bad = document["trials"]
    assert (good["state"], good["why"], good["exit_code"]) == ("complete", None, 0)
    assert list(good["parameters"]) == ["model.bad"] and good["value"] == good["runs"][0]["accuracy"]
    assert bad["state"] == "failed" and "no good" in bad["why"] and bad["exit_code"] == 2
    assert (document["sweep"], document["metric"], document["goal"]) == ("mine", "accuracy", "maximize")
    assert document["table"] == told(paceline("compare", "mine", "--format", "json"))


@pytest.mark.slow
@pytest.mark.parametrize("command", ["list", "list columns", "doctor", "train --dry-run", "sweep seed=1,2 --dry-run"])
def test_a_pipe_gets_one_document(command: str, here: Path) -> None:
    shell = f"{sys.executable} -m paceline.cli.main {command} --format json | {sys.executable} -m json.tool"
    done = subprocess.run(["sh", "-c", shell], cwd=here, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0 and json.loads(done.stdout), done.stderr


def test_an_error_document_needs_no_module_that_ctrl_c_may_have_left_half_imported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [each for each in sys.modules if each.startswith("paceline.tracking")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "yaml", None)
    output.nothing_shown()
    output.show_error(document(130, "interrupted"))
    assert json.loads(capsys.readouterr().out) == document(130, "interrupted")
