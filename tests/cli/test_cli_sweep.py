"""`paceline sweep`: what it says, what it refuses, and that refusals and dry runs write nothing."""

import fcntl
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from scipy import stats

from paceline.cli.sweep_outcome import outcome, ranking
from paceline.cli.sweep_view import Tally, _console
from paceline.conf.errors import ConfigError
from paceline.sweep.define import define
from paceline.sweep.directory import open_sweep
from paceline.sweep.lacking import check_machine
from paceline.sweep.study import SweepTrial, TrialRecord
from paceline.tracking.run_directory import RunDirectory

TINY = ("epochs=1", "steps=4", "data.limit=64", "tracking=none", "checkpoint.every=0", "hardware.workers=1")
FILE = {
    "program": "paceline",
    "method": "grid",
    "parameters": {"sync": {"values": ["bsp", "ssp"]}, "optimizer.lr": {"values": [0.1, 0.2]}},
    "command": ["${program}", "train", "data=digits", "${args_no_hyphens}"],
}


def written(here: Path, name: str = "file.yaml", **changes: Any) -> str:
    (here / name).write_text(yaml.safe_dump({**FILE, **changes}))
    return name


def made(here: Path, *words: str, name: str = "mine", **changes: Any) -> Path:
    """A sweep that was begun, none of whose trials has run."""
    with open_sweep(name, define(list(words), **changes), here / "runs", resume=False) as opened:
        return opened.directory


def table(out: str) -> list[list[str]]:
    return [re.split(r"\s{2,}", line.strip()) for line in out.splitlines()]


@pytest.mark.parametrize(("no_color", "system"), [("1", None), ("", "256")])
def test_no_color_leaves_the_live_table_without_styles(
    no_color: str, system: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLORTERM", "")
    monkeypatch.setenv("FORCE_COLOR", "1")  # as of a terminal
    assert _console().color_system == system


def test_of_two_sweeps_without_a_name_in_one_second_the_second_takes_the_next_name(
    paceline, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(name: str, *_: object, **__: object) -> None:
        raise ConfigError(f"it is {name}")

    monkeypatch.setattr("paceline.sweep.directory.open_sweep", told)
    monkeypatch.setattr("paceline.cli.sweep._name_by_time", lambda: "sweep-0101-000000")
    (here / "runs" / "sweep-0101-000000").mkdir(parents=True)
    assert paceline("sweep", *TINY, "sync=bsp,ssp").last == "it is sweep-0101-000000-2"
    assert [path.name for path in (here / "runs").iterdir()] == ["sweep-0101-000000"]
    assert paceline("sweep", *TINY, "sync=bsp,ssp", "--name", "mine").last == "it is mine"


# -- what this machine lacks


@pytest.mark.parametrize("words", [("tracking=mlflow", "sync=bsp,ssp"), ("tracking=none,mlflow",)])
def test_a_package_that_is_missing_is_said_once_and_before_the_first_trial(
    words: tuple[str, ...], paceline, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.tracking.sinks.find_spec", lambda name: None)
    refused = paceline("sweep", *(word for word in TINY if word != "tracking=none"), *words, "--name", "mine")
    assert (refused.status, refused.out) == (3, "") and not (here / "runs").exists()
    assert refused.err == (
        "tracking=mlflow: MLflow is not installed; pip install 'paceline[mlflow]', or tracking=none\n"
    )


def test_a_data_set_that_is_missing_is_said_before_a_sweep_goes_on(paceline, here: Path) -> None:
    made(here, *TINY, "sync=bsp,ssp", "data=table", "data.path=missing.csv", "data.targets=y")
    refused = paceline("sweep", "--resume", "--name", "mine")
    assert refused.status == 3 and "missing.csv" in refused.last
    assert not list((here / "runs" / "mine").glob("0*"))


def test_a_point_that_is_refused_for_another_reason_is_left_to_its_trial() -> None:
    check_machine(define([*TINY, "optimizer.lr=-1,0.1"]))


# -- help


def test_help_teaches_with_examples_and_exit_statuses(paceline) -> None:
    ended = paceline("sweep", "--help")
    assert ended.status == 0
    said = " ".join(ended.out.split())
    for word in ("paceline sweep sync=bsp,ssp optimizer.lr=0.1,0.01", "tag(log,interval(0.001,0.1))", "wandb agent"):
        assert word in said
    for option in ("--dry-run", "--resume", "--seeds", "--jobs", "--max-failures", "--prune", "--storage", "--sampler"):
        assert option in said
    assert "4 when a trial failed" in said


def test_without_a_word_it_says_what_to_give(paceline, here: Path) -> None:
    ended = paceline("sweep")
    assert ended.status == 2 and ended.last.startswith("nothing is swept: give a key several values, such as sync=bsp")
    assert not list(here.iterdir())


# -- the dry run


def test_a_dry_run_plans_every_point_and_writes_nothing(paceline, here: Path) -> None:
    ended = paceline("sweep", "sync=bsp,ssp", "hardware.workers=1,2", "epochs=1", "--seeds", "3", "--dry-run")
    assert ended.status == 0
    header, *points = table(ended.out)
    assert header == ["point", "sync", "hardware.workers", "workers", "servers", "steps", "sent/step", "memory"]
    chosen = [("bsp", "1"), ("bsp", "2"), ("ssp", "1"), ("ssp", "2")]
    assert [tuple(point[:3]) for point in points] == [(str(i), *point) for i, point in enumerate(chosen)]
    assert points[0][3:7] == ["1", "0", points[0][5], "0 B"] and points[1][6] not in ("0 B", "varies")
    assert points[3][3:5] == ["2", "1"], "a parameter server is no worker"
    assert ended.last == "4 points, 12 runs; nothing was trained"
    assert not list(here.iterdir())


def test_a_dry_run_of_a_file_takes_overrides_and_at_most_trials_points(paceline, here: Path) -> None:
    ended = paceline("sweep", written(here), "optimizer.lr=0.3", "--dry-run")
    assert [row[:2] for row in table(ended.out)] == [["point", "sync"], ["0", "bsp"], ["1", "ssp"]]
    ended = paceline("sweep", written(here), "--trials", "3", "--dry-run")
    assert len(table(ended.out)) == 4 and ended.last == "3 points, 3 runs; nothing was trained"
    assert paceline("sweep", written(here), "--trials", "1", "--dry-run").last == "1 point, 1 run; nothing was trained"
    assert [path.name for path in here.iterdir()] == ["file.yaml"]


def test_a_dry_run_names_every_point_that_is_refused(paceline, here: Path) -> None:
    ended = paceline("sweep", "sync=bsp,nosuch", "optimizer.lr=0.1,-1", "--dry-run")
    assert ended.status == 2 and ended.last == "3 of 4 points refused"
    rows = table(ended.out)[1:]
    assert [row[3] == "refused" for row in rows] == [False, True, True, True]
    refused = ended.err.splitlines()
    assert any(line.startswith("point 1: sync=bsp optimizer.lr=-1: optimizer.lr=-1") for line in refused), refused
    for i, rate in ((2, "0.1"), (3, "-1")):
        assert any(
            line.startswith(f"point {i}: sync=nosuch optimizer.lr={rate}: sync=nosuch: there is no") for line in refused
        )
    assert not list(here.iterdir())


def test_a_dry_run_of_an_adaptive_search_says_that_it_is_partial(paceline, here: Path) -> None:
    rate = "optimizer.lr=tag(log,interval(0.001,0.1))"
    ended = paceline("sweep", rate, "sync=bsp,asp", "--trials", "25", "--dry-run")
    assert ended.status == 0
    rates = [float(row[1]) for row in table(ended.out)[1:]]
    assert len(set(rates)) == 10 and all(0.001 <= rate <= 0.1 for rate in rates)
    assert "10 points drawn at random from a search of 25 trials" in ended.last and "this is partial" in ended.last
    assert len(table(paceline("sweep", rate, "--trials", "2", "--dry-run").out)) == 3
    assert not list(here.iterdir())


def test_a_dry_run_says_each_note_once_with_how_many_points_it_is_about(paceline, here: Path) -> None:
    ended = paceline("sweep", "seed=1,2,3", "batch_size=32,5000", "epochs=1", "tracking=none", "--dry-run")
    said = [line for line in ended.err.splitlines() if line.startswith("note: batch_size=5000")]
    assert ended.status == 0 and len(said) == 1 and said[0].endswith("(3 points)"), ended.err


def test_a_dry_run_notes_the_points_that_a_device_has_too_little_memory_for(paceline, here: Path) -> None:
    memory = "hardware.machine.device_memory=400000000,800000000,85000000000"
    words = ("sweep", "hardware=a100_8", memory, "tracking=none", "--dry-run")
    ended = paceline(*words)
    assert ended.status == 0 and "not enough memory on a device; paceline plan --fit says what fits: points 0, 1" in (
        ended.err
    )
    points = json.loads(paceline(*words, "--format", "json").out)
    assert [point["device_memory"]["fits"] for point in points] == [False, False, True]
    assert json.loads(paceline("sweep", "seed=1,2", "--dry-run", "--format", "json").out)[0]["device_memory"] is None


@pytest.mark.parametrize("command", [("plan", "--format", "json"), ("sweep", "seed=1,2", "--dry-run")], ids=" ".join)
def test_plan_and_a_sweeps_dry_run_agree_on_workers_and_servers(command: tuple[str, ...], paceline) -> None:
    for sync, servers in (("asp", 1), ("parameter_server", 1), ("bsp", 0)):
        told = json.loads(paceline(*command, f"sync={sync}", "--format", "json").out)
        for each in told if isinstance(told, list) else [told]:
            assert (each["workers"], each["servers"]) == (2, servers)


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.timeout(300)
def test_a_thousand_points_are_planned_each_once(paceline, here: Path) -> None:
    ended = paceline("sweep", "sync=bsp,ssp", "optimizer.lr=range(1,501)", "--dry-run")
    assert ended.status == 0
    rows = table(ended.out)[1:]
    assert [row[:3] for row in rows] == [
        [str(i), sync, str(rate)]
        for i, (sync, rate) in enumerate((sync, rate) for sync in ("bsp", "ssp") for rate in range(1, 501))
    ]
    assert ended.last == "1,000 points, 1,000 runs; nothing was trained" and not list(here.iterdir())


# -- refusals


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("sync=bsp",), "nothing is swept"),
        (("sync=bsp,ssp", "--seeds", "2", "seed=1,2"), "--seeds: seed is swept already"),
        (("optimizer.lr=interval(0.1,1)",), "method=bayes: has no end by itself; say how many: --trials N"),
        (("optimizer.lr=interval(0.1,1)", "--method", "grid"), "method=grid: optimizer.lr has no end of values"),
        (("sync=bsp,ssp", "--sampler", "gp"), "--sampler gp: goes with method=bayes, and this sweep is a grid"),
        (("sync=bsp,ssp", "--metric", "nosuch"), "--metric nosuch: is no column of the table"),
        (("sync=bsp,ssp", "--prune", "1", "--metric", "throughput"), "early_terminate: goes by what is measured"),
        (("sync=bsp,ssp", "--name", "../up"), "run name '../up' is not allowed"),
        (
            ("sync=bsp,ssp", "--name=-x"),
            "run name '-x' is not allowed: commands would take it for an option. Choose x.",
        ),
        (("sync=bsp,ssp", "--name", ""), "run name '' is not allowed"),
        (("sync=bsp,ssp", "--resume"), "--resume: which sweep? Give its file, or --name NAME"),
        (("--resume",), "--resume: which sweep? Give its file, or --name NAME"),
        (("--resume", "--name", "none"), "--resume: there is no sweep none under "),
        (("--resume", "--name", "none", "--seeds", "2"), "--resume: goes on with the sweep as it was defined"),
        (("--resume", "--name", "none", "--allow-module", "m"), "--resume: goes on with the sweep as it was defined"),
        (("--resume", "--name", "none", "--dry-run"), "--dry-run: give the definition that is to be planned"),
        (("missing.yaml",), "missing.yaml: cannot be read: No such file or directory"),
        (("sync=bsp,ssp", "--config-dir", "missing"), "missing: there is no such directory"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_written(words: tuple[str, ...], said: str, paceline, here) -> None:
    ended = paceline("sweep", *words)
    assert ended.status == 2 and said in ended.last, ended.err
    assert not list(here.iterdir())


@pytest.mark.parametrize("option", ["--seeds", "--jobs", "--trials", "--max-failures", "--prune"])
@pytest.mark.parametrize("number", ["0", "x"])
def test_numbers_are_from_one_on(option: str, number: str, paceline, here: Path) -> None:
    ended = paceline("sweep", "sync=bsp,ssp", option, number)
    assert ended.status == 2 and option in ended.err and not list(here.iterdir())


def test_a_file_with_something_unsupported_is_named_with_it(paceline, here: Path) -> None:
    ended = paceline("sweep", written(here, method="bayes", metric={"name": "loss"}, project="x"))
    assert ended.status == 2 and ended.last.startswith("file.yaml: project: is not supported by paceline sweep")
    assert [path.name for path in here.iterdir()] == ["file.yaml"]


@pytest.mark.slow
def test_a_name_that_is_taken_is_refused(paceline, here: Path) -> None:
    made(here, "sync=bsp,ssp")
    ended = paceline("sweep", "sync=bsp,ssp", "--name", "mine")
    assert ended.status == 2 and "is there already. Go on with it by --resume" in ended.last
    made(here, "sync=bsp,ssp", name="file")
    assert "--name file: " in paceline("sweep", written(here)).last, "a file's name is the sweep's"
    RunDirectory.create(here / "runs", "run")
    for more in ((), ("--resume",)):
        ended = paceline("sweep", "sync=bsp,ssp", "--name", "run", *more)
        assert ended.status == 2 and "is a run. Choose another name" in ended.last
    assert sorted(path.name for path in (here / "runs" / "run").iterdir()) == ["checkpoints", "logs", "metrics.jsonl"]


def test_train_says_how_a_sweep_goes_on(paceline, here: Path) -> None:
    made(here, "sync=bsp,ssp")
    ended = paceline("train", "--resume", "mine")
    assert ended.status == 2
    assert ended.last == "--resume mine: is a sweep; go on with: paceline sweep --resume --name mine"


def test_a_resumed_sweep_is_found_by_its_file(paceline, here: Path) -> None:
    made(here, "sync=bsp,ssp")
    (here / "mine.yaml").write_text(yaml.safe_dump(FILE))
    ended = paceline("sweep", "mine.yaml", "--resume")
    assert ended.status == 2 and "the definition of mine is another one than it began with" in ended.last


def test_resuming_with_another_definition_is_refused_with_the_difference(paceline, here: Path) -> None:
    directory = made(here, "sync=bsp,ssp", "epochs=1")
    before = (directory / "sweep.yaml").read_bytes(), (directory / "study.db").read_bytes()
    ended = paceline("sweep", "sync=bsp,asp", "epochs=1", "--seeds", "2", "--name", "mine", "--resume")
    assert ended.status == 2
    assert "the definition of mine is another one than it began with" in ended.last
    assert "parameters was {sync: {values: [bsp, ssp]}} and is {sync: {values: [bsp, asp]}}" in ended.last
    assert "seeds was null and is 2" in ended.last and "fixed" not in ended.last
    assert ((directory / "sweep.yaml").read_bytes(), (directory / "study.db").read_bytes()) == before


def test_a_sweep_that_another_sweeper_works_on_is_refused(paceline, here: Path) -> None:
    directory = made(here, "sync=bsp,ssp")
    with (directory / "lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ended = paceline("sweep", "--name", "mine", "--resume")
    assert ended.status == 2 and "another paceline sweep is at work on" in ended.last


@pytest.mark.parametrize(
    ("content", "status"),
    [("a: [", 7), ("- 1", 2), ("", 2), ("method: grid", 2), ("\x00", 7), ("[" * 50_000, 7), ("a: " + "9" * 5000, 7)],
    ids=["torn", "list", "empty", "changed", "nul", "deep", "digits"],
)
def test_a_damaged_definition_of_a_sweep_without_its_study_is_no_traceback(
    content: str, status: int, paceline, here: Path
) -> None:
    directory = made(here, "sync=bsp,ssp")
    (directory / "study.db").unlink()
    (directory / "sweep.yaml").write_text(content)
    ended = paceline("sweep", "--name", "mine", "--resume")
    assert ended.status == status and "sweep.yaml" in ended.last and "Traceback" not in ended.err


def test_a_definition_that_is_not_what_the_study_has_is_refused(paceline, here: Path) -> None:
    file = made(here, "sync=bsp,ssp") / "sweep.yaml"
    file.write_text(file.read_text().replace("ssp", "asp"))
    ended = paceline("sweep", "--name", "mine", "--resume")
    assert ended.status == 2 and "is not the definition that the sweep's study has" in ended.last


# -- the closing line


def done(
    point: int, sync: str, accuracies: list[float | None], state: Any = "complete", first_seed: int = 0
) -> list[TrialRecord]:
    """A trial of a grid for each seed."""
    return [
        TrialRecord(
            SweepTrial(point, point, 0, {"sync": sync}, (seed,)),
            state,
            accuracy,
            "",
            0,
            (f"{point}-{seed}",),
            ({"name": f"{point}-{seed}", "accuracy": accuracy},),
            1.0,
        )
        for seed, accuracy in enumerate(accuracies, first_seed)
    ]


GRID = define(["sync=bsp,ssp"])


def test_a_grid_of_one_seed_names_no_winner_and_how_to_add_seeds() -> None:
    said = outcome([*done(0, "bsp", [0.91]), *done(1, "ssp", [0.94])], GRID, "MORE")
    assert said == "accuracy: 0.91 to 0.94 (one seed each: not a ranking); to compare with more seeds: MORE"


def test_the_closing_line_has_the_mean_of_the_table_and_not_the_luckiest_seed() -> None:
    bsp, ssp = done(0, "bsp", [0.90, 0.91, 0.92]), done(1, "ssp", [0.80, 0.82, 0.99])
    said = outcome([*bsp, *ssp], GRID, "MORE")
    low, high = stats.ttest_rel([0.80, 0.82, 0.99], [0.90, 0.91, 0.92]).confidence_interval(0.95)
    assert said == (
        "best accuracy cannot be told apart (the paired 95 % interval of the difference by seed includes 0), mean and "
        "95 % interval of the seeds: sync=bsp: 0.91 ± 0.024841; sync=ssp: 0.87 ± 0.25935, "
        f"0.04 less (95 % interval {low:.5g} to {high:.5g}, paired by 3 seeds)"
    )
    said = outcome([*bsp, *done(1, "ssp", [0.80, 0.82, 0.81])], GRID, "MORE")
    low, high = stats.ttest_rel([0.80, 0.82, 0.81], [0.90, 0.91, 0.92]).confidence_interval(0.95)
    assert said == (
        "best accuracy, mean and 95 % interval of the seeds: sync=bsp: 0.91 ± 0.024841; next sync=ssp: 0.81 ± "
        f"0.024841, 0.1 less (95 % interval {low:.5g} to {high:.5g}, paired by 3 seeds)"
    )


def test_settings_of_other_seeds_are_compared_by_welch_and_the_closing_line_says_so() -> None:
    trials = [*done(0, "bsp", [0.90, 0.91, 0.92]), *done(1, "ssp", [0.80, 0.82, 0.99], first_seed=3)]
    said = outcome(trials, GRID, "MORE")
    assert "(Welch's 95 % interval of the difference includes 0, without two seeds in common)" in said
    assert said.endswith("Welch's and not paired: no seeds in common)")


def test_programs_are_told_who_leads_and_that_it_was_paired() -> None:
    told = ranking([*done(0, "bsp", [0.90, 0.91, 0.92]), *done(1, "ssp", [0.80, 0.82, 0.81])], GRID)
    [gap] = told["compared"]
    assert told["leading"] == ["sync=bsp"] and (gap["setting"], gap["with"]) == ("sync=ssp", "sync=bsp")
    assert (gap["interval"], gap["of"], gap["common_seeds"], gap["told_apart"]) == (
        *("paired", "difference"),
        [0, 1, 2],
        True,
    )
    assert ranking(done(0, "bsp", [0.9]), GRID) == {"leading": [], "compared": []}
    timed = replace(GRID, metric="throughput")
    trials = [replace(each, summaries=({"throughput": 10.0 + i},)) for i, each in enumerate(done(0, "bsp", [0.9, 0.9]))]
    trials += [replace(each, summaries=({"throughput": 5.0 + i},)) for i, each in enumerate(done(1, "ssp", [0.9, 0.9]))]
    assert [gap["of"] for gap in ranking(trials, timed)["compared"]] == ["ratio"]


def timed(point: int, seconds: Sequence[float | None], **told: Any) -> list[TrialRecord]:
    """Trials of a setting whose runs took so long to the target, and so long a step."""
    made = done(point, str(point), [*seconds])
    return [
        replace(each, summaries=({"time_to_accuracy": each.value, "throughput": each.value, **told},)) for each in made
    ]


@pytest.mark.parametrize(
    ("metric", "others", "why"),
    [
        ("throughput", {"modelled": True}, "modelled times are never compared with measured ones"),
        ("time_to_accuracy", {"target_accuracy": 0.95}, "their targets differ"),
    ],
)
@pytest.mark.parametrize("seeds", [1, 2])
def test_no_setting_is_the_best_of_modelled_and_measured_times_or_of_other_targets(
    metric: str, others: dict[str, Any], why: str, seeds: int
) -> None:
    usual = {"modelled": False, "target_accuracy": 0.5}
    goal = replace(GRID, metric=metric)
    trials = [*timed(0, [1.0, 1.1][:seeds], **usual), *timed(1, [9.0, 9.1][:seeds], **{**usual, **others})]
    said = f"{metric}: no setting is named the best: {why}. The report ranks each kind by itself."
    assert outcome(trials, goal, "MORE") == said
    assert outcome(trials, replace(goal, method="random"), "MORE") == said
    assert ranking(trials, goal) == {"leading": [], "compared": []}
    study: Any = SimpleNamespace(definition=goal, trials=lambda: trials)
    assert "so far" not in Tally(study).said()


def test_a_setting_that_never_reached_its_own_target_leaves_no_winner_of_another() -> None:
    trials = [*timed(0, [1.0, 1.1], target_accuracy=0.5), *timed(1, [None, None], target_accuracy=0.95)]
    assert "their targets differ" in outcome(trials, replace(GRID, metric="time_to_accuracy"), "MORE")


def test_accuracies_of_modelled_runs_and_of_other_targets_are_ranked() -> None:
    trials = [*timed(0, [0.8, 0.81], accuracy=0.8), *timed(1, [0.9, 0.91], accuracy=0.9, modelled=True)]
    assert outcome(trials, GRID, "MORE").startswith("best accuracy")


def test_a_setting_with_a_failed_seed_or_without_the_metric_is_no_winner() -> None:
    broken = [*done(1, "ssp", [0.99, 0.99]), *done(1, "ssp", [None], "failed", first_seed=2)]
    assert "ssp" not in outcome([*done(0, "bsp", [0.90, 0.91, 0.92]), *broken], GRID, "MORE")
    assert outcome(done(0, "bsp", [None]), GRID, "MORE") == ""


def test_a_search_names_the_point_to_go_on_with_and_that_it_is_of_one_seed() -> None:
    search = define(["optimizer.lr=interval(0.1,1)"], trials=2)
    said = outcome([*done(0, "bsp", [0.91]), *done(1, "ssp", [0.94])], search, "MORE")
    assert (
        said == "highest accuracy of this search: 0.94 with sync=ssp (one seed: not a ranking); with more seeds: MORE"
    )


# -- for real


@pytest.mark.dist
@pytest.mark.usefixtures("fork_server")
def test_a_sweep_ends_with_the_table_the_best_and_the_report_and_resuming_says_it_again(paceline, here: Path) -> None:
    words = ("sync=bsp,ssp", *TINY)
    ended = paceline("sweep", *words, "--name", "mine")
    assert ended.status == 0
    header, *rows = ended.out.splitlines()
    assert header.startswith("run ") and [row.split()[0] for row in rows] == ["0000-bsp", "0001-ssp"]
    lines = ended.err.splitlines()
    assert lines[0] == "trial 0000-bsp: sync=bsp" and "1 of 2 done, best accuracy" in lines[1]
    assert lines[2] == "trial 0001-ssp: sync=ssp" and "2 of 2 done" in lines[3]
    assert not re.search(r"[\x1b\r]", ended.err), "plain lines where no terminal is"
    assert lines[-1] == "everything of this sweep: runs/mine; its report: runs/mine/report.html"
    before, _, hint = lines[-2].partition("; to compare with more seeds: paceline ")
    assert before.endswith("(one seed each: not a ranking)") and "sync=ssp:" not in lines[-2]
    assert hint == "sweep runs/mine/sweep.yaml --seeds 3 --name mine-seeds"
    again = paceline(*hint.split(), "--dry-run")
    assert again.status == 0, again.err
    assert (here / "runs" / "mine" / "report.html").is_file()

    times = {path: path.stat().st_mtime_ns for path in (here / "runs" / "mine").glob("*/*")}
    for definition in ((), words):
        again = paceline("sweep", *definition, "--name", "mine", "--resume")
        assert (again.status, again.out) == (0, ended.out) and "trial 00" not in again.err
    assert {path: path.stat().st_mtime_ns for path in (here / "runs" / "mine").glob("*/*")} == times


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.usefixtures("fork_server")
def test_a_sweep_says_each_note_once_and_its_tables_agree_on_the_number_of_workers(paceline, here: Path) -> None:
    words = ("sync=asp,bsp", *TINY[:-1], "hardware.workers=2", "batch_size=5000", "data.limit=5000")
    planned = json.loads(paceline("sweep", *words, "--dry-run", "--format", "json").out)
    ended = paceline("sweep", *words, "--name", "mine", "--format", "json")
    said = [line for line in ended.err.splitlines() if line.startswith("note: batch_size=5000")]
    assert ended.status == 0 and len(said) == 1 and said[0].endswith("(2 trials)"), ended.err
    compared = json.loads(paceline("compare", "mine", "--format", "json").out)
    for rows in (planned, json.loads(ended.out)["table"], compared):
        assert [row["workers"] for row in rows] == [2, 2]
    assert [point["servers"] for point in planned] == [row["servers"] or 0 for row in compared] == [1, 0]


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_terminal_shows_a_live_table(here: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "paceline.cli.main", "sweep", "sync=bsp,ssp", *TINY, "--name", "mine"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen(
        command, cwd=here, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs
    ) as process:
        os.close(theirs)
        seen = b""
        while chunk := _read(ours):
            seen += chunk
        assert process.stdout is not None
        out = process.stdout.read().decode()
    assert process.returncode == 0, seen
    shown = seen.decode()
    for word in ("trial", "parameters", "progress", "sync=bsp", "0 of 2 done", "best accuracy", "\x1b["):
        assert word in shown
    assert "report: runs/mine/report.html" in shown and len(out.splitlines()) == 3


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # the other end is closed
        return b""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("sync=bsp,asp",), "--array: launcher=auto has no job arrays. Choose launcher=slurm, or leave --array out."),
        (("launcher=slurm", "--jobs", "3"), "--jobs 3: each sweeper of --array trains one trial at a time. Choose"),
        (("launcher=slurm", "--storage", "sqlite:///x.db"), "--storage: the sweepers of --array share the study"),
    ],
)
def test_an_array_that_cannot_be_is_refused_before_anything_is_made(
    words: tuple[str, ...], said: str, paceline, here: Path
) -> None:
    refused = paceline("sweep", *TINY, "seed=1,2", *words, "--array", "2", "--name", "mine")
    assert refused.status == 2 and refused.last.startswith(said)
    assert not (here / "runs").exists()
