"""`paceline show`: one run in the terminal."""

import csv
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from stored_configs import to_yaml

from paceline.engine.config.compose import compose
from paceline.tracking.alive import held
from paceline.tracking.run_directory import RunDirectory


def made(root: Path, name: str, *overrides: str) -> RunDirectory:
    run = RunDirectory.create(root, name)
    run.write_config(to_yaml(compose(list(overrides))))
    run.append({"kind": "start", "strategy": "data_parallel", "sync": "ssp", "workers": 4})
    for step in range(1, 9):
        run.append({"kind": "step", "step": step, "time": step / 10, "loss": 9.0 - step, "step_time": 0.1})
    run.append({"kind": "evaluation", "step": 8, "time": 0.8, "accuracy": 0.75, "loss": 1.0})
    return run


@pytest.fixture
def done(here: Path) -> RunDirectory:
    run = made(here / "runs", "done", "sync=ssp", "optimizer.lr=0.5")
    (run.checkpoints / "step-00000008").mkdir()
    run.write_summary(
        {
            "name": "done",
            "status": "completed",
            "sync": "ssp",
            "accuracy": 0.75,
            "memory": {"parameters": 2048},
            "wire": {"bytes_per_step": 1536},
            "predicted": {"bytes_per_step": 1024, "memory": {"parameters": 2048, "gradients": 4096}},
        }
    )
    return run


@pytest.fixture
def failed(here: Path) -> RunDirectory:
    run = made(here / "runs", "failed", "sync=ssp")
    run.append({"kind": "end", "status": "failed", "reason": "worker 1 failed at step 8\nMemoryError: \x1b[31mno"})
    return run


def words(out: str) -> list[list[str]]:
    return [line.split() for line in out.splitlines()]


def test_the_labels_that_each_replica_trains_on_are_a_table(paceline, done: RunDirectory) -> None:
    summary = json.loads(done.summary.read_text())
    done.write_summary(summary | {"labels": [[12, 0, 3], [0, 7, 1]]})
    lines = words(paceline("show", "done").out)
    assert ["samples", "by", "label", "0", "1", "2", "all"] in lines
    assert ["replica", "0", "12", "0", "3", "15"] in lines and ["replica", "1", "0", "7", "1", "8"] in lines
    done.write_summary(summary | {"labels": [["\x1b[31m"]]})
    assert "samples by label" not in paceline("show", "done").out


def test_a_run_is_its_result_overrides_curves_prediction_and_files(paceline, done: RunDirectory) -> None:
    ended = paceline("show", "done")
    lines = words(ended.out)
    assert (ended.status, ended.err) == (0, "")
    assert ["run", "done"] in lines and ["accuracy", "75.00%"] in lines
    assert ["as", "typed:", "paceline", "train", "sync=ssp", "optimizer.lr=0.5"] in lines
    assert ["sent/step", "1.0", "KiB", "1.5", "KiB"] in lines and ["gradients", "4.0", "KiB", "-"] in lines
    assert ["files", "runs/done"] in lines and ["checkpoints/", "(step-00000008)"] in lines
    assert ["go", "on", "paceline", "train", "--resume", "done", "epochs=MORE"] in lines
    (loss,) = [line for line in lines if line[:1] == ["loss"] and "to" in line]
    assert loss[1][0] == "█" and loss[1][-1] == "▁" and loss[2:5] == ["8", "to", "1"]


def test_a_run_of_so_many_steps_goes_on_for_more_of_them(paceline, done: RunDirectory) -> None:
    done.write_config(to_yaml(compose(["sync=ssp", "steps=8"])))
    assert words(paceline("show", "done").out)[-1] == [
        "go",
        "on",
        "paceline",
        "train",
        "--resume",
        "done",
        "steps=MORE",
    ]


def test_a_failed_run_says_why_and_how_to_repeat_it(paceline, failed: RunDirectory) -> None:
    out = paceline("show", "failed").out
    assert "why: worker 1 failed at step 8\n     MemoryError: \\x1b[31mno" in out and "\x1b" not in out
    assert words(out)[-1] == ["repeat", "paceline", "train", "sync=ssp"]


def test_curves_are_ascii_when_asked_or_when_the_stream_takes_nothing_else(paceline, done: RunDirectory) -> None:
    assert paceline("show", "done", "--ascii").out.isascii()
    command = [sys.executable, "-m", "paceline.cli.main", "show", "done"]
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    piped = subprocess.run(command, env=environment, capture_output=True, timeout=60, check=True)
    assert piped.stdout.isascii() and b"#" in piped.stdout and piped.stderr == b""


def test_json_holds_the_same_and_the_curves_points(paceline, done: RunDirectory, failed: RunDirectory) -> None:
    told = json.loads(paceline("show", "done", "--format", "json").out)
    assert told["result"]["accuracy"] == 0.75 and told["overrides"] == ["sync=ssp", "optimizer.lr=0.5"]
    assert told["curves"]["loss"][0] == [0.1, 8.0] and told["path"] == str(done.path)
    assert told["predicted"]["sent/step"] == {"predicted": 1024, "measured": 1536}
    assert json.loads(paceline("show", "failed", "--format", "json").out)["result"]["status"] == "failed"


def test_csv_is_the_row_that_compare_prints_of_the_run(paceline, done: RunDirectory, here: Path) -> None:
    ended = paceline("show", "done", "--format", "csv")
    names, values = list(csv.reader(ended.out.splitlines()))
    row = dict(zip(names, values, strict=True))
    assert (ended.status, row["run"], row["accuracy"], row["bytes_per_step"]) == (0, "done", "0.75", "1536")
    assert ended.out == paceline("compare", "done", "--format", "csv").out
    done.summary.write_text("{")
    assert paceline("show", "done", "--format", "csv").status == 7


def test_a_sweep_is_refused_with_a_run_to_name_and_a_run_of_it_is_shown(paceline, here: Path) -> None:
    sweep = here / "runs" / "a-sweep"
    for name in ("t0", "t1"):
        made(sweep, name)
    (sweep / "t0" / "checkpoints" / "step-00000001").mkdir()
    (sweep / "sweep.yaml").touch()
    ended = paceline("show", "a-sweep")
    assert (ended.status, ended.out) == (2, "") and "such as a-sweep/t0" in ended.last
    assert words(paceline("show", "a-sweep/t0").out)[-1][-2:] == ["--resume", "runs/a-sweep/t0"]


def test_of_a_sweep_that_show_refuses_no_record_is_parsed(paceline, here: Path, monkeypatch) -> None:
    lines: list[int | None] = []
    scan = RunDirectory.scan
    monkeypatch.setattr(RunDirectory, "scan", lambda run, most=None: lines.append(most) or scan(run, most))
    for name in ("t0", "t1"):
        made(here / "runs" / "a-sweep", name).write_summary({"name": name, "status": "completed"})
    assert paceline("show", "a-sweep").status == 2 and lines == [1, 1]


def test_of_a_wandb_folder_the_run_that_is_suggested_can_be_shown(paceline, here: Path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "tracking")
    from recorded import began, datastore, history

    for folder, name in (("b 1", "ext a"), ("b 2", "ext b")):
        began_as = began(name)
        began_as["run"]["run_id"] = name
        datastore(here / "theirs" / folder / f"run-{folder[-1]}.wandb", began_as, history(loss=1.0))
    ended = paceline("show", "theirs")
    assert ended.status == 2 and "holds 2 runs (ext a, ext b, ...)" in ended.last
    (_, _, suggested) = ended.last.partition("such as ")
    (typed, _, also) = suggested.partition("; paceline compare ")
    assert also == "theirs takes all" and shlex.split(typed) == ["theirs/b 1/run-1.wandb"]
    assert ["run", "ext", "a", "(unfinished)"] in words(paceline("show", *shlex.split(typed)).out)


def test_of_an_exported_table_no_single_run_is_suggested(paceline, here: Path) -> None:
    (here / "x.json").write_text('[{"run": "a"}, {"run": "b"}]')
    ended = paceline("show", "x.json")
    assert ended.status == 2 and ended.last == (
        "x.json: holds 2 runs (a, b, ...). Choose one; paceline compare x.json takes all"
    )


def test_another_configuration_is_shown_as_it_is(paceline, here: Path) -> None:
    (here / "x.json").write_text(
        '[{"name": "x", "summary": {"accuracy": 0.5}, "config": {"lr": 0.1, "net": {"w": 8}}}]'
    )
    lines = words(paceline("show", "x.json").out)
    assert ["lr", "0.1"] in lines and ["net.w", "8"] in lines and ["accuracy", "50.00%"] in lines


@pytest.mark.parametrize("content", [None, "- 1\n", 'a: "\\0"\n', "'\n", "[" * 50_000, "a: !!python/object:x.Y {}\n"])
def test_a_run_whose_configuration_is_damaged_is_shown(paceline, done: RunDirectory, content: str | None) -> None:
    file = done.path / "config.yaml"
    file.unlink() if content is None else file.write_text(content)
    out = paceline("show", "done").out
    assert "checkpoints" in out and "go on" not in out


def test_a_run_under_way_is_watched_and_not_resumed(paceline, done: RunDirectory) -> None:
    done.summary.unlink()
    with held(done.metrics):
        out = paceline("show", "done").out
        assert "under way  paceline watch done\n" in out and "--resume" not in out
        assert json.loads(paceline("show", "done", "--format", "json").out)["go_on"] is None
    out = paceline("show", "done").out
    assert "go on  paceline train --resume done" in out and "under way" not in out


def test_a_run_of_a_script_goes_on_by_launch_and_has_no_command_of_train(paceline, failed: RunDirectory) -> None:
    failed.write_environment({"wrapped": True})
    failed.write_config(to_yaml(compose(["sync=ssp", "model=mlp", "optimizer=adam", "tracking=none"])))
    assert "go on" not in paceline("show", "failed").out  # there is no checkpoint
    (failed.checkpoints / "step-00000008").mkdir()
    out = paceline("show", "failed").out
    assert "of a script, with: sync=ssp tracking=none\n" in out
    assert "go on  paceline launch --resume --workers 4 SCRIPT\n" in out and "paceline train" not in out
    failed.write_summary({"name": "failed", "status": "completed", "workers": 4})
    assert "go on" not in paceline("show", "failed").out
    ended = paceline("show", "failed", "--command")
    assert (ended.status, ended.out) == (2, "") and ended.last.endswith("Choose paceline launch.")
    ended = paceline("train", "--resume", "failed", "epochs=9")
    assert ended.status == 2 and ended.last.endswith("Choose paceline launch --resume SCRIPT.")


def test_the_command_shown_can_be_typed(paceline, here: Path) -> None:
    made(here / "runs", "odd", "data=text", "model=gpt", "data.path='some where/x.txt'", "tracking=none")
    (line,) = [line for line in paceline("show", "odd").out.splitlines() if line.startswith("as typed:")]
    assert shlex.split(line)[4:] == ["model=gpt", "data=text", "tracking=none", "data.path='some where/x.txt'"]


def test_what_is_not_there_is_refused_with_the_nearest(paceline, done: RunDirectory) -> None:
    ended = paceline("show", "don")
    assert (ended.status, ended.out) == (2, "") and "did you mean done" in ended.last


@pytest.mark.parametrize("format", ["text", "json"])
def test_a_run_with_a_damaged_summary_is_shown_and_ends_with_the_status_of_damage(
    format: str, paceline, here: Path
) -> None:
    run = made(here / "runs", "broken")
    run.summary.write_text("{")
    ended = paceline("show", "broken", "--format", format)
    assert ended.status == 7 and "damaged" in ended.out
    assert "summary.json" in ended.last


def test_what_disturbed_a_run_is_told_in_whole(paceline, here: Path) -> None:
    run = RunDirectory.create(here / "runs", "loud")
    run.write_summary({"name": "loud", "status": "completed", "disturbed": "the load average was 20 on 2 cores"})
    ended = paceline("show", "loud")
    assert any(line.split()[:3] == ["disturbed", "the", "load"] for line in ended.out.splitlines())
