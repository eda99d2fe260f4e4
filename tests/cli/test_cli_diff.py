"""`paceline diff`, `paceline show --command` and `paceline train --config`, as a shell would see them."""

import json
import shlex
from pathlib import Path

import pytest
from stored_configs import to_yaml

from paceline.engine.config.compose import compose
from paceline.tracking.run_directory import RunDirectory


@pytest.fixture
def two(here: Path) -> Path:
    for name, lr, accuracy in (("one", 0.1, 0.5), ("other", 0.2, 0.75)):
        run = RunDirectory.create(here / "runs", name)
        run.write_config(to_yaml(compose([f"optimizer.lr={lr}", "tracking.tags=['a b']", f"name={name}"])))
        run.write_summary({"name": name, "status": "completed", "accuracy": accuracy, "workers": 2})
    return here


def test_diff_shows_what_differs(paceline, two: Path) -> None:
    ended = paceline("diff", "one", "other")
    lines = [line.split() for line in ended.out.splitlines()]
    assert (ended.status, ended.err) == (0, "")
    assert ["optimizer.lr", "0.1", "0.2"] in lines and ["not", "recorded", "of", "both"] in lines
    assert ["accuracy", "50.00%", "75.00%", "+25.00%", "+50.0%"] in lines and [
        "1",
        "other",
        "is",
        "the",
        "same",
    ] in lines


def test_diff_says_below_that_other_programs_disturbed_a_run(paceline, two: Path) -> None:
    summary = {"name": "other", "status": "completed", "workers": 2, "throughput": 5.0, "disturbed": "the load was 20"}
    (two / "runs" / "other" / "summary.json").write_text(json.dumps(summary))
    for ended in (paceline("diff", "one", "other"), paceline("diff", "one", "other", "--format", "json")):
        assert "note: other programs disturbed the times of other (the load was 20)." in ended.err


def test_diff_as_json_is_one_document(paceline, two: Path) -> None:
    told = json.loads(paceline("diff", "one", "other", "--format", "json").out)
    assert told["configuration"] == [
        {"key": "optimizer.lr", "first": 0.1, "second": 0.2, "difference": 0.1, "ratio": 2.0}
    ]
    assert (told["first"], told["second"], told["environment"]) == ("one", "other", None)
    assert next(pair for pair in told["results"] if pair["key"] == "accuracy")["difference"] == 0.25


def test_diff_tells_apart_two_runs_of_one_name(paceline, two: Path) -> None:
    run = RunDirectory.create(two / "base" / "runs", "one")
    run.write_config(to_yaml(compose(["optimizer.lr=0.3"])))
    told = json.loads(paceline("diff", "base/runs/one", "one", "--format", "json").out)
    assert told["first"] != told["second"] and "base/runs/one" in told["first"]


def test_diff_of_a_run_that_is_not_there_is_a_mistake_and_of_a_damaged_one_its_own_status(paceline, two: Path) -> None:
    ended = paceline("diff", "one", "othr")
    assert ended.status == 2 and "did you mean other" in ended.last
    (two / "runs" / "other" / "summary.json").write_text("{")
    ended = paceline("diff", "one", "other")
    assert ended.status == 7 and "other/summary.json" in ended.last
    (two / "runs" / "one" / "config.yaml").write_text("[")
    ended = paceline("diff", "one", "one")
    assert ended.status == 7 and "one/config.yaml" in ended.last


def test_diff_of_configuration_files_compares_what_they_configure(paceline, two: Path) -> None:
    (two / "mine.yaml").write_text("sync: ssp\noptimizer.lr: 0.2\n")
    ended = paceline("diff", "runs/one/config.yaml", "runs/other/config.yaml")
    assert (ended.status, ended.err) == (0, "") and ended.out.splitlines()[0] == "configuration"
    assert [line.split() for line in ended.out.splitlines()[2:]] == [["optimizer.lr", "0.1", "0.2"]]
    lines = [line.split() for line in paceline("diff", "one", "mine.yaml").out.splitlines()]
    assert ["sync", "bsp", "ssp"] in lines and ["sync.staleness", "-", "3"] in lines and ["results"] not in lines
    told = json.loads(paceline("diff", "mine.yaml", "other", "--format", "json").out)
    assert told["results"] == [] and told["first"] == "mine.yaml"
    assert {"key": "sync", "first": "ssp", "second": "bsp"} in told["configuration"]
    assert paceline("diff", "mine.yaml", "mine.yaml").out == "configuration\n  the same\n"


def test_a_file_that_configures_nothing_is_a_mistake_and_names_what_is_wrong(paceline, two: Path) -> None:
    (two / "mine.yaml").write_text("snyc: ssp\n")
    ended = paceline("diff", "mine.yaml", "one")
    assert (ended.status, ended.out) == (2, "") and ended.last.startswith(
        "mine.yaml: snyc: there is no such key; did you mean sync?"
    )
    for command in (("compare", "mine.yaml"), ("show", "mine.yaml")):
        ended = paceline(*command)
        assert ended.status == 2 and ended.last.startswith("mine.yaml: is a YAML file, and holds no run; paceline diff")


def test_the_command_of_a_run_is_one_line_that_composes_it_again(paceline, two: Path) -> None:
    ended = paceline("show", "one", "--command")
    assert (ended.status, ended.err) == (0, "")
    assert ended.out == "paceline train optimizer.lr=0.1 'tracking.tags=['\"'\"'a b'\"'\"']'\n"
    assert compose(shlex.split(ended.out)[2:]) == compose(["optimizer.lr=0.1", "tracking.tags=['a b']"])


def test_the_command_of_what_is_no_configuration_is_refused(paceline, two: Path) -> None:
    RunDirectory.create(two / "runs", "foreign").write_config("lr: 0.1\n")
    ended = paceline("show", "foreign", "--command")
    assert ended.status == 2 and ended.last.startswith("foreign: its configuration is not one that this version can")


def test_train_begins_with_the_file_of_a_run(paceline, two: Path) -> None:
    ended = paceline("train", "--config", "runs/one/config.yaml", "sync=asp", "--dry-run")
    assert ended.status == 0 and ended.out.startswith("ok: data_parallel + asp, mlp on digits")
    ended = paceline("train", "--config", "runs/one/config.yaml", "--resume", "one")
    assert ended.status == 2 and ended.last.startswith("--config runs/one/config.yaml: a resumed run has its own")


def test_a_rule_that_a_class_has_names_the_file_too(paceline, two: Path) -> None:
    (two / "mine.yaml").write_text("sync: {name: ssp, staleness: -2}\n")
    ended = paceline("train", "--config", "mine.yaml", "--dry-run")
    assert ended.status == 2 and ended.last == (
        "--config mine.yaml: sync.staleness=-2: must be greater than or equal to 0"
    )
    ended = paceline("train", "--config", "mine.yaml", "sync.staleness=-3", "--dry-run")
    assert ended.status == 2 and ended.last.startswith("sync.staleness=-3: must be")
