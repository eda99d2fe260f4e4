"""`paceline ls`, `rm` and `prune`: the runs on disk, and that nothing else is ever removed."""

import io
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from paceline.cli import stored as commands
from paceline.tracking.alive import held
from paceline.tracking.run_directory import RunDirectory

DAY = 86400


def made(root: Path, name: str, status: str = "completed", days: float = 1, **facts: Any) -> RunDirectory:
    """A run whose last change was `days` ago."""
    run = RunDirectory.create(root, name)
    run.append({"kind": "start", "name": name})
    if status != "died":
        run.append({"kind": "end", "status": status})
        run.write_summary({"name": name, "status": status, "model": "mlp", "data": "digits"} | facts)
    run.close()
    aged(run.path, days)
    return run


def aged(path: Path, days: float) -> None:
    then = time.time() - days * DAY
    for file in path.rglob("*"):
        os.utime(file, (then, then))


@pytest.fixture
def runs(here: Path) -> Path:
    """Five runs, and a sweep with two."""
    root = here / "runs"
    made(root, "good", accuracy=0.9, days=40)
    made(root, "better", accuracy=0.95, days=50)
    made(root, "worse", accuracy=0.5, days=2)
    made(root, "broken", "failed", days=40)
    made(root, "killed", "died", days=3)
    (root / "rates").mkdir()
    made(root / "rates", "0000-s0", accuracy=0.7)
    made(root / "rates", "0001-s0", "diverged")
    (root / "rates" / "sweep.yaml").write_text("method: grid\n")
    aged(root / "rates", 35)
    return root


def names(root: Path) -> set[str]:
    return {path.name for path in root.iterdir()}


def test_ls_has_size_age_status_and_result_and_a_sweep_is_one_line(paceline, runs: Path) -> None:
    (runs / "worse" / "model.safetensors").write_bytes(bytes(3 * 2**20))
    ended = paceline("ls")
    assert ended.status == 0 and "5 runs and 1 sweep" in ended.err
    lines = {line.split()[0]: " ".join(line.split()[1:]) for line in ended.out.splitlines()}
    assert lines["worse"].startswith("run 3.0 MiB 0 s completed accuracy 50.00%")
    assert lines["rates"].startswith("sweep of 2") and "35 d 1 completed, 1 diverged accuracy 70.00%" in lines["rates"]
    assert lines["killed"].endswith("3 d died -") and lines["broken"].endswith("40 d failed -")
    told = {each["name"]: each for each in json.loads(paceline("ls", "--format", "json").out)}
    assert told["worse"]["bytes"] > 3 * 2**20 and told["good"]["age_s"] == pytest.approx(40 * DAY, rel=0.01)
    assert (told["rates"]["kind"], told["rates"]["runs"], told["rates"]["value"]) == ("sweep", 2, 0.7)
    assert paceline("ls", "--sort", "size", "-q").out.splitlines()[0] == "worse"


def test_ls_of_nothing_is_an_empty_answer(paceline, here: Path) -> None:
    ended = paceline("ls")
    assert (ended.status, ended.out) == (0, "") and "no runs" in ended.err
    assert json.loads(paceline("ls", "--format", "json").out) == []


def test_rm_lists_and_needs_a_yes_where_nobody_can_be_asked(paceline, runs: Path) -> None:
    ended = paceline("rm", "good", "rates")
    assert ended.status == 2 and "Choose --yes" in ended.last and {"good", "rates"} <= names(runs)
    assert "sweep of 2" in ended.out and "1 run and 1 sweep" in ended.err
    assert paceline("rm", "good", "rates", "--dry-run").status == 0 and {"good", "rates"} <= names(runs)
    ended = paceline("rm", "runs/good", str(runs / "rates"), "--yes")
    assert ended.status == 0 and names(runs) == {"better", "worse", "broken", "killed"}


@pytest.mark.parametrize(("answer", "left"), [("y\n", False), ("\n", True), ("no\n", True), ("", True)])
def test_on_a_terminal_it_asks(answer: str, left: bool, paceline, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO(answer)
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stdin", terminal)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert paceline("rm", "good").status == 0
    assert (runs / "good").exists() == left


def test_a_run_that_goes_on_is_never_removed(paceline, runs: Path) -> None:
    with held(runs / "killed" / "metrics.jsonl"):
        ended = paceline("rm", "good", "killed", "--yes")
        assert ended.status == 2 and "killed: still goes on" in ended.last and {"good", "killed"} <= names(runs)
        ended = paceline("prune", "--failed", "--yes")
        assert ended.status == 0 and "left out: killed goes on" in ended.err
        assert "killed" in names(runs) and "broken" not in names(runs)
    with held(runs / "rates" / "0001-s0" / "metrics.jsonl"):
        assert paceline("rm", "rates", "--yes").status == 2 and "rates" in names(runs)
    (runs / "rates" / "lock").touch()
    with held(runs / "rates" / "lock"):
        assert paceline("rm", "rates", "--yes").status == 2 and "rates" in names(runs)


@pytest.mark.parametrize("text", ["[]", '{"id": 1}', "{"])
def test_a_damaged_job_file_hides_no_run_and_can_be_removed(text: str, paceline, runs: Path) -> None:
    (runs / "good" / "job.json").write_text(text)
    aged(runs / "good", 1)
    shown = paceline("ls")
    assert shown.status == 0 and "better" in shown.out and "damaged" in shown.out
    assert paceline("rm", "good", "--yes").status == 0 and not (runs / "good").exists()


def test_a_run_that_another_host_writes_goes_on_though_no_lock_is_seen(paceline, runs: Path) -> None:
    (runs / "killed" / "live.json").write_text("{}")
    assert paceline("rm", "killed", "--yes").status == 2 and "killed" in names(runs)
    aged(runs / "killed", 0.01)
    assert paceline("rm", "killed", "--yes").status == 0 and "killed" not in names(runs)


def test_a_clock_that_was_ahead_keeps_no_run(paceline, runs: Path) -> None:
    aged(runs / "killed", -400)
    assert paceline("rm", "killed", "--yes").status == 0 and "killed" not in names(runs)


def test_nothing_outside_of_the_root_is_removed(paceline, runs: Path, here: Path) -> None:
    outside = made(here / "elsewhere", "mine")
    (runs / "link").symlink_to(outside.path)
    (runs / "good" / "inside").symlink_to(outside.path)
    (runs / "notes").mkdir()
    (here / "loop").symlink_to("loop")
    refused = {
        "loop/x": "not directly under",
        "link": "symbolic link",
        "runs/link": "symbolic link",
        "elsewhere/mine": "not directly under",
        "runs/../elsewhere/mine": "not directly under",
        "../elsewhere/mine": "not directly under",
        str(outside.path): "not directly under",
        ".": "not directly under",
        "..": "not directly under",
        "runs": "no such run or sweep",
        "./runs": "not directly under",
        "/": "not directly under",
        "": "not directly under",
        "rates/0000-s0": "Choose rates",
        "runs/rates/0000-s0": "Choose rates",
        "notes": "no such run or sweep",
        "god": "did you mean good",
    }
    for name, why in refused.items():
        ended = paceline("rm", "good", name, "--yes")
        assert ended.status == 2 and why in ended.last, name
    ended = paceline("prune", "--keep-best", "0", "--yes")
    assert ended.status == 0 and "left out: link is a symbolic link" in ended.err
    assert names(runs) == {"link", "notes"} and outside.summary.exists()


def test_prune_removes_what_fulfils_every_condition(paceline, runs: Path) -> None:
    def pruned(*words: str) -> set[str]:
        ended = paceline("prune", *words, "--dry-run")
        assert ended.status == 0
        return {line.split()[0] for line in ended.out.splitlines()[1:]}

    assert pruned("--failed") == {"broken", "killed"}
    assert pruned("--older", "30d") == {"good", "better", "broken", "rates"}
    assert pruned("--older", "5w", "--failed") == {"broken"}
    assert pruned("--older", "30d", "--keep-best", "1") == {"good", "broken", "rates"}
    assert pruned("--keep-best", "3") == {"worse", "broken", "killed"}
    assert pruned("--keep-best", "2", "--metric", "accuracy", "--failed") == {"broken", "killed"}
    assert pruned("--older", "99w") == set()
    made(runs, "other", model="cnn", data="digits", accuracy=0.1)
    assert "other" not in pruned("--keep-best", "1")  # the best of its model
    for name, value in (("vague", 9.0), ("sure", 2.0)):
        made(runs, name, task="own", metric={"name": "perplexity", "larger_is_better": False}, perplexity=value)
    assert {"vague"} == pruned("--keep-best", "1") & {"vague", "sure"}
    assert {"vague"} == pruned("--keep-best", "1", "--metric", "perplexity") & {"vague", "sure"}
    made(runs, "called", metrics={"perplexity": 1.0})  # of a callback: nobody knows if larger is better
    assert {"vague", "called"} == pruned("--keep-best", "1", "--metric", "perplexity") & {"vague", "sure", "called"}
    assert "perplexity 2" in next(line for line in paceline("ls").out.splitlines() if line.startswith("sure"))
    for metric in ("r2", "steps_to_accuracy", "time_per_pass", "dollars"):  # or all would be removed
        ended = paceline("prune", "--keep-best", "1", "--metric", metric, "--yes")
        assert ended.status == 2 and f"--metric {metric}: no run here" in ended.last
    for words in ((), ("--older", "30"), ("--metric", "accuracy"), ("--keep-best", "1", "--metric", "speeed")):
        assert paceline("prune", *words, "--yes").status == 2
    assert len(names(runs)) == 10


def test_ages_are_short() -> None:
    assert [commands._age(seconds) for seconds in (5, 600, 7200, 3 * DAY)] == ["5 s", "10 min", "2 h", "3 d"]


@pytest.mark.parametrize("name", ["好🚀 better", "❤️", "b" * 80])
def test_a_run_that_a_person_renamed_is_found_by_that_name(name: str, paceline, runs: Path) -> None:
    (runs / "better").rename(runs / name)
    rows = json.loads(paceline("compare", name, "good", "--baseline", name, "--format", "json").out)
    assert rows[0]["accuracy"] == 0.95
    head, *lines = paceline("ls").out.splitlines()
    kinds = {cell_len(line[: line.index(" run ")]) for line in lines if " run " in line}
    assert kinds == {head.index(" kind")}
    assert paceline("rm", name, "--yes").status == 0 and name not in names(runs)


@pytest.mark.parametrize(
    "command", ["ls", "show better", "watch better --once", "explain better", "compare", "rm better"]
)
def test_nothing_of_a_run_reaches_the_terminal_as_an_escape_sequence(command: str, paceline, runs: Path) -> None:
    (runs / "good").rename(runs / "go\x1b[31mod")
    told = {key: "a\x1b[2J\x9bb\u202e\rc" for key in ("status", "reason", "sync", "model")}
    RunDirectory(runs / "better").write_summary({"name": "better"} | told)
    ended = paceline(*command.split())
    assert not {*"\x1b\x9b\u202e\r"} & {*ended.out, *ended.err} and "\\x1b[" in ended.out
