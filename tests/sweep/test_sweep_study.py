"""Which trial comes next, and what the study knows of those that were."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from optuna.storages import RDBStorage
from sqlalchemy.exc import IntegrityError, OperationalError, SQLAlchemyError

from paceline.conf.errors import ConfigError
from paceline.engine.base.errors import MachineError
from paceline.sweep import storage as storage_module
from paceline.sweep.define import define
from paceline.sweep.definition import Definition, EarlyTermination, Paired, Range, Values
from paceline.sweep.directory import open_sweep
from paceline.sweep.study import SamplerName, Study, SweepTrial, create, sample
from paceline.tracking.errors import StorageError
from paceline.tracking.run_data import resuming

RATE = "optimizer.lr=tag(log,interval(0.001,0.1))"


class Sweep:
    """One sweep in a directory of its own; `open` is what each command does anew."""

    def __init__(self, root: Path, words: Sequence[str], sampler: SamplerName = "auto", **changes: Any) -> None:
        self.definition = define(list(words), **changes)
        self._root = root
        self._sampler: SamplerName = sampler

    def open(self) -> Study:
        resume = (self._root / "mine").exists()
        with open_sweep("mine", self.definition, self._root, resume, self._sampler) as opened:
            return opened.study


def done(study: Study, trial: SweepTrial, value: float = 0.5) -> None:
    study.acknowledge(trial, "complete", value, (f"run{trial.point}",), ({"name": f"run{trial.point}"},))


def all_of(study: Study, value: float = 0.5) -> list[SweepTrial]:
    """Claim and acknowledge until there are no more."""
    found = []
    while (trial := study.next()) is not None:
        found.append(trial)
        done(study, trial, value)
    return found


def chosen(trials: Sequence[SweepTrial]) -> list[tuple[Any, ...]]:
    return [(*trial.chosen.values(), *trial.seeds) for trial in trials]


def test_a_grid_gives_each_point_and_seed_once_and_in_order(tmp_path: Path) -> None:
    study = Sweep(tmp_path, ["sync=bsp,ssp", "a=range(1,3)", "seed=4"], seeds=2).open()
    trials = all_of(study)
    assert chosen(trials) == [(s, a, seed) for s in ("bsp", "ssp") for a in ("1", "2") for seed in (4, 5)]
    assert [trial.point for trial in trials] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [d.trial for d in study.trials()] == trials and {d.state for d in study.trials()} == {"complete"}


def test_a_grid_goes_on_where_it_was_when_it_is_opened_again(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, ["a=range(0,6)"], trials=5)
    first = sweep.open()
    begun = [first.next() for _ in range(2)]
    for trial in begun:
        assert trial is not None
        done(first, trial)
    assert chosen([*filter(None, begun), *all_of(sweep.open())]) == [(str(i), None) for i in range(5)]
    assert all_of(sweep.open()) == []


@pytest.mark.slow
def test_a_random_search_does_not_repeat_itself_when_it_is_opened_again(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, [RATE], method="random", trials=9)
    found = []
    for _ in range(3):
        study = sweep.open()
        for _ in range(3):
            trial = study.next()
            assert trial is not None
            done(study, trial)
            found.append(trial.chosen["optimizer.lr"])
    assert len(set(found)) == 9 and sweep.open().next() is None
    assert [d.trial.point for d in sweep.open().trials()] == list(range(9))


@pytest.mark.parametrize("sampler", ["random", "tpe", pytest.param("gp", marks=pytest.mark.slow)])
def test_a_sampler_stays_within_the_bounds(sampler: SamplerName, tmp_path: Path) -> None:
    words = ["sync=bsp,ssp", "a=int(interval(2,5))", RATE, "b=interval(-1,0)"]
    study = Sweep(tmp_path, words, sampler, method="bayes", trials=12).open()
    trials = [trial.chosen for trial in all_of(study)]
    assert len(trials) == 12
    for point in trials:
        assert list(point) == ["sync", "a", "optimizer.lr", "b"]
        assert point["sync"] in ("bsp", "ssp") and point["a"] in (2, 3, 4, 5) and isinstance(point["a"], int)
        assert isinstance(point["optimizer.lr"], float) and 0.001 <= point["optimizer.lr"] <= 0.1
        assert isinstance(point["b"], float) and -1 <= point["b"] <= 0
    rates = [float(point["optimizer.lr"]) for point in trials]
    assert len(set(rates)) >= 10 and min(rates) < 0.01 < max(rates)


@pytest.mark.slow
def test_tpe_goes_where_it_was_good(tmp_path: Path) -> None:
    study = Sweep(tmp_path, ["b=interval(0,1)"], "tpe", method="bayes", trials=24).open()
    drawn = []
    while (trial := study.next()) is not None:
        drawn.append(float(trial.chosen["b"]))
        done(study, trial, -abs(drawn[-1] - 0.3))
    distance = [abs(value - 0.3) for value in drawn]
    assert sum(distance[14:]) < 0.5 * sum(distance[:10])


@pytest.mark.parametrize("space", [Range(1, 9), Range(0, 9, 4), Range(0, 1, 0.3), Range(1.0, 2.0, 0.25)], ids=str)
def test_what_is_drawn_is_what_a_grid_has(space: Range) -> None:
    """W&B, too, takes bounds whose difference is no multiple of the step."""
    drawn = {point["a"] for point in sample(Definition("random", {"a": space}, trials=2), 50)}
    assert sorted(drawn) == pytest.approx(space.all()) and space.last() == space.all()[-1]


def test_numbers_between_bounds_are_drawn_each_anew() -> None:
    assert len({point["b"] for point in sample(define(["b=interval(0,1)"], trials=2), 50)}) == 50


def test_each_trial_is_claimed_by_one(tmp_path: Path) -> None:
    study = Sweep(tmp_path, ["a=range(0,3)"]).open()
    claimed = [study.next() for _ in range(4)]
    assert [trial and trial.point for trial in claimed] == [0, 1, 2, None]
    assert {d.state for d in study.trials()} == {"running"}


def test_an_unfinished_trial_is_run_again_once_as_the_same_point(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, ["a=range(0,2)"], seeds=1)
    lost = sweep.open().next()
    assert lost is not None and (lost.point, lost.attempt, lost.seeds) == (0, 1, (0,))
    study = sweep.open()
    (left,) = study.left_over()
    assert (left.trial, left.state) == (lost, "running")
    study.again(left)
    study.again(left)
    assert study.left_over() == [] == sweep.open().left_over()
    first, second, none = study.next(), study.next(), study.next()
    assert first is not None and second is not None and none is None
    again = max(first, second, key=lambda trial: trial.attempt)
    assert (again.point, again.attempt, again.chosen, again.seeds) == (0, 2, lost.chosen, (0,))
    for trial in (first, second):
        done(study, trial)
    assert [(d.trial.point, d.state) for d in sweep.open().trials()] == [(0, "complete"), (1, "complete")]


@pytest.mark.parametrize(("code", "again"), [(2, False), (3, False), (4, True), (5, True), (6, False)])
def test_a_failed_trial_is_run_again_if_its_workers_were_killed_or_hung(code: int, again: bool, tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, ["a=range(0,2)"])
    study = sweep.open()
    trial = study.next()
    assert trial is not None
    study.acknowledge(trial, "failed", None, ("run",), (), "because", code)
    (failed, _) = study.trials()
    assert (failed.state, failed.reason, failed.exit_code, failed.runs) == ("failed", "because", code, ("run",))
    assert [left.trial.point for left in sweep.open().left_over()] == ([0] if again else [])


def test_an_adaptive_search_counts_a_trial_and_its_next_attempt_once(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, [RATE], method="random", trials=3, seeds=2)
    lost = sweep.open().next()
    assert lost is not None and lost.seeds == (0, 1), "one value for both"
    study = sweep.open()
    for left in study.left_over():
        study.again(left)
    trials = all_of(study)
    assert len(trials) == 3 and trials[0].chosen == lost.chosen and trials[0].attempt == 2
    assert len(study.trials()) == 3


def test_the_worse_two_thirds_are_given_up_at_each_rung(tmp_path: Path) -> None:
    study = Sweep(tmp_path, ["a=range(0,9)"], early=EarlyTermination(2, 3)).open()
    ends = []
    for value in (0.5, 0.4, 0.6, 0.3, 0.7, 0.2):
        trial = study.next()
        assert trial is not None
        ends.append(next((step for step in range(1, 6) if study.report(trial, step, value)), None))
        study.acknowledge(trial, "pruned" if ends[-1] else "complete", None if ends[-1] else value, (), ())
    assert ends == [None, 2, None, 2, None, 2]
    assert [d.state for d in study.trials()][:4] == ["complete", "pruned", "complete", "pruned"]


def test_pruning_goes_by_the_goal(tmp_path: Path) -> None:
    study = Sweep(tmp_path, ["a=range(0,2)"], metric="loss", early=EarlyTermination(1, 3)).open()
    first, second = study.next(), study.next()
    assert first is not None and second is not None
    assert not study.report(first, 1, 0.5) and study.report(second, 1, 0.6), "a loss is minimized"


def test_without_early_termination_nothing_is_given_up(tmp_path: Path) -> None:
    study = Sweep(tmp_path, ["a=range(0,2)"]).open()
    first, second = study.next(), study.next()
    assert first is not None and second is not None
    assert not any(study.report(trial, 1, value) for trial, value in ((first, 0.5), (second, 0.1)))


def test_what_was_acknowledged_is_all_there_when_it_is_opened_again(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, ["a='x y','\"'"])
    study = sweep.open()
    trial = study.next()
    assert trial is not None
    summary = {"name": "run", "accuracy": 0.5, "nested": {"a": [1, None]}}
    study.acknowledge(trial, "complete", float("inf"), ("run",), (summary,))
    first, second = sweep.open().trials()
    assert (first.value, first.runs, first.summaries) == (float("inf"), ("run",), (summary,))
    assert (first.trial.chosen, second.trial.chosen) == ({"a": "'x y'"}, {"a": "'\"'"})
    assert second.state == "waiting"


@pytest.mark.parametrize(
    ("storage", "said"), [("", "must be a database's URL"), ("sqlite:///other.db", "has its study in")]
)
def test_a_sweep_has_one_study(storage: str, said: str, tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, ["a=1,2"])
    sweep.open()
    with pytest.raises(ConfigError, match=said), open_sweep("mine", sweep.definition, tmp_path, True, "auto", storage):
        raise AssertionError("it was opened")


def test_a_sweep_whose_study_is_in_another_database_goes_on_there_alone(tmp_path: Path) -> None:
    """Without the database, --resume would make a second study in the folder, and run each trial again."""
    words = define(["a=1,2"])
    url = f"sqlite:///{tmp_path}/shared.db?timeout=8"
    with open_sweep("mine", words, tmp_path, False, storage=url) as opened:
        all_of(opened.study)
    with pytest.raises(ConfigError, match="Give --storage again"), open_sweep("mine", words, tmp_path, True):
        raise AssertionError("it was opened")
    assert not (tmp_path / "mine" / "study.db").exists()
    with open_sweep("mine", words, tmp_path, True, storage=url) as opened:
        assert all_of(opened.study) == []
    told = resuming(tmp_path / "mine")
    assert told.startswith("paceline sweep --resume --name mine --storage ") and "shared.db" in told
    assert "=8" not in told  # a driver's option may be a secret


def test_a_study_in_a_sqlite_file_has_one_sweeper_at_a_time(tmp_path: Path) -> None:
    """SQLite has no beats: a second one would take the first's running trials for those of a sweeper that has died."""
    words, url = define(["a=1,2"]), f"sqlite:///{tmp_path}/shared.db?timeout=8"
    with open_sweep("mine", words, tmp_path / "one", False, storage=url) as opened:
        assert opened.study.next() is not None
        said = r"--storage: another paceline sweep is at work on mine in .*/shared.db. .* Choose .* PostgreSQL"
        with (
            pytest.raises(ConfigError, match=said),
            open_sweep("mine", words, tmp_path / "two", True, storage=url),
        ):
            raise AssertionError("it was opened")
        with open_sweep("other", words, tmp_path / "two", False, storage=url) as other:
            assert len(all_of(other.study)) == 2
    with open_sweep("mine", words, tmp_path / "one", True, storage=url) as opened:
        assert len(opened.study.left_over()) == 1


@pytest.mark.parametrize(
    "storage",
    ["sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite:///.", "sqlite+pysqlite:///x.db", "sqlite:x.db"],
)
def test_an_sqlite_database_without_a_file_is_refused(
    storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its trials would be lost with the process."""
    monkeypatch.chdir(tmp_path)
    with (
        pytest.raises(ConfigError, match=r"must name a file. Choose sqlite:///FILE.db"),
        open_sweep("mine", define(["a=1,2"]), tmp_path / "runs", False, storage=storage),
    ):
        raise AssertionError("it was opened")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (IntegrityError("insert", {}, Exception("UNIQUE constraint failed: alembic_version.version_num")), True),
        (OperationalError("create", {}, Exception("table studies already exists")), True),
        (OperationalError("select", {}, Exception("disk I/O error")), False),
    ],
)
def test_tables_that_another_sweeper_makes_at_the_same_moment_are_waited_for(
    error: SQLAlchemyError, again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = [error]

    def storage(*args: Any, **options: Any) -> RDBStorage:
        if errors:
            raise errors.pop()
        return RDBStorage(*args, **options)

    monkeypatch.setattr(storage_module, "RDBStorage", storage)
    url = f"sqlite:///{tmp_path}/shared.db"
    with (
        nullcontext() if again else pytest.raises(StorageError),
        open_sweep("mine", define(["a=1,2"]), tmp_path, False, storage=url) as opened,
    ):
        assert len(all_of(opened.study)) == 2


@pytest.mark.parametrize(
    "url", ["postgresql://me:hunter2@127.0.0.1:9/x?nosuchoption=hunter2", "nosuch://h/x?a=hunter2"]
)
def test_no_part_of_a_databases_url_that_may_be_a_secret_is_repeated(url: str) -> None:
    with pytest.raises((ConfigError, MachineError)) as caught:
        create("swept", url, Definition("grid", {"optimizer.lr": Values(("0.1",))}), "auto", "here")
    assert "--storage" in str(caught.value) and "hunter2" not in str(caught.value)


def test_a_search_that_has_ended_gets_more_trials(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, [RATE, "sync=bsp"], trials=3)
    first = all_of(sweep.open())
    assert len(first) == 3 and all_of(sweep.open()) == []
    with open_sweep("mine", None, tmp_path, True, trials=5) as opened:
        more = all_of(opened.study)
        assert [trial.point for trial in more] == [3, 4] and len(opened.study.trials()) == 5
    with open_sweep("mine", None, tmp_path, True) as opened:
        assert opened.study.definition.trials == 5 and all_of(opened.study) == []
    wanted = define([RATE, "sync=bsp"], trials=6)  # the whole definition, with more
    with open_sweep("mine", wanted, tmp_path, True) as opened:
        assert len(all_of(opened.study)) == 1
    with pytest.raises(ConfigError, match="Choose 6 or more"), open_sweep("mine", None, tmp_path, True, trials=4):
        pass
    other = define([RATE, "sync=ssp"], trials=9)
    with pytest.raises(ConfigError, match="is another one"), open_sweep("mine", other, tmp_path, True):
        pass


def test_more_trials_survive_a_kill_between_the_study_and_the_file(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, [RATE], trials=2)
    all_of(sweep.open())
    before = (tmp_path / "mine" / "sweep.yaml").read_text()
    with open_sweep("mine", None, tmp_path, True, trials=3):
        pass
    after = (tmp_path / "mine" / "sweep.yaml").read_text()
    (tmp_path / "mine" / "sweep.yaml").write_text(before)
    with open_sweep("mine", None, tmp_path, True) as opened:
        assert len(all_of(opened.study)) == 1
    assert (tmp_path / "mine" / "sweep.yaml").read_text() == after != before


def test_a_grid_that_was_cut_short_gets_more_points(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, ["a=range(0,6)"], trials=2)
    all_of(sweep.open())
    with open_sweep("mine", None, tmp_path, True, trials=4) as opened:
        assert chosen(all_of(opened.study)) == [("2", None), ("3", None)]


STALENESS = Definition(
    "grid",
    {"sync": Values(("bsp", "ssp", "asp")), "sync.staleness": Values(("1", "3")), "deeper": Range(1, 2)},
    when=(("sync.staleness", (("sync", ("ssp",)),)), ("deeper", (("sync.staleness", ("3",)),))),
)
STALE_POINTS: list[dict[str, Any]] = [
    {"sync": "bsp"},
    {"sync": "ssp", "sync.staleness": "1"},
    {"sync": "ssp", "sync.staleness": "3", "deeper": 1},
    {"sync": "ssp", "sync.staleness": "3", "deeper": 2},
    {"sync": "asp"},
]


def test_a_conditional_parameter_is_swept_only_where_its_condition_holds(tmp_path: Path) -> None:
    assert list(STALENESS.points()) == STALE_POINTS and STALENESS.size() == 5
    with open_sweep("mine", STALENESS, tmp_path, False) as opened:
        assert [dict(trial.chosen) for trial in all_of(opened.study)] == STALE_POINTS
    with open_sweep("mine", None, tmp_path, True) as opened:
        assert opened.study.definition == STALENESS and all_of(opened.study) == []


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_a_search_draws_conditional_and_paired_parameters(sampler: SamplerName, tmp_path: Path) -> None:
    definition = Definition(
        "bayes",
        {
            "sync": Values(("bsp", "ssp")),
            "sync.staleness": Range(1, 9),
            "lr": Values(("0.1", "0.2")),
            "batch": Paired("lr", ("64", "128")),
        },
        trials=12,
        when=(("sync.staleness", (("sync", ("ssp",)),)),),
    )
    with open_sweep("mine", definition, tmp_path, False, sampler) as opened:
        points = [dict(trial.chosen) for trial in all_of(opened.study)]
    assert len(points) == 12 and {point["sync"] for point in points} == {"bsp", "ssp"}
    for point in [*points, *sample(definition, 8)]:
        assert ("sync.staleness" in point) == (point["sync"] == "ssp")
        assert (point["lr"], point["batch"]) in {("0.1", "64"), ("0.2", "128")}


def test_paired_values_go_together(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, ["zip(optimizer.lr=0.1,0.2,0.4; batch_size=32,64,64)", "sync=bsp,asp"])
    assert sweep.definition.size() == 6
    trials = all_of(sweep.open())
    assert chosen(trials)[:3] == [("0.1", "32", "bsp", None), ("0.1", "32", "asp", None), ("0.2", "64", "bsp", None)]
    assert sweep.definition.overrides(trials[0].chosen, 3) == [
        "optimizer.lr=0.1",
        "batch_size=32",
        "sync=bsp",
        "seed=3",
    ]
    assert all_of(sweep.open()) == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["zip(a=1,2; b=1,2,3)"], "as many values"),
        (["zip(a=1,2)"], "two keys or more"),
        (["zip(a,b)=1,2"], r"zip\(a,b\)=1,2: is no zip; write for instance 'zip\(optimizer.lr=0.1,0.05; batch"),
        (["zip(a, b)"], "is no zip; write for instance"),
        (["zip(a=1,2, b=3,4)"], "is no zip; write for instance"),
        (["zip(a=1,2; b=1)"], "must have several values"),
        (["zip(a=1,1; b=2,2)"], "no value twice"),
        (["zip(a=1,2; b=3,4)", "b=5,6"], "swept twice"),
        (["b=5,6", "zip(a=1,2; b=3,4)"], "swept twice"),
    ],
)
def test_pairs_that_are_none_are_refused(words: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        define(words)


def test_a_condition_looks_at_what_is_fixed_on_the_command_line() -> None:
    fixed = replace(STALENESS, parameters=dict(list(STALENESS.parameters.items())[1:]), fixed=("sync=ssp",))
    assert list(fixed.points()) == [
        {key: value for key, value in point.items() if key != "sync"} for point in STALE_POINTS[1:4]
    ]
    assert list(replace(fixed, fixed=("sync=bsp",)).points()) == [{}]
