"""Conditions, columns by any name, the Pareto front."""

import csv
import io
import itertools
import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import config, data, failed

from paceline.tracking import columns, selection
from paceline.tracking.columns import COLUMNS
from paceline.tracking.compare import ComparisonRequest, column_keys, render, table
from paceline.tracking.errors import TableError
from paceline.tracking.run_data import RunData, Swept
from paceline.tracking.selection import configured, mark_front

WANDB = RunData("w", {"name": "w", "status": "completed"}, {"lr": 0.5, "net": {"kind": "mlp"}}, [], None, None,
                {"val/f1": 0.7, "a/b": 3, "odd name": "x"})  # fmt: skip
RUNS = [
    data("bsp", config(), accuracy=0.95, workers=2),
    data("ssp", config(sync="ssp", lr=0.01), sync="ssp", accuracy=0.8, workers=4, time_to_accuracy=None),
    failed("bad", config(lr=5.0)),
    WANDB,
]


def kept(*conditions: str, runs=RUNS) -> list[str]:
    return [row["run"] for row in table(runs, ComparisonRequest(where=conditions))[0]]


@pytest.mark.parametrize(
    ("condition", "names"),
    [
        ("sync=ssp", ["ssp"]),
        ("sync==ssp", ["ssp"]),
        ("sync != ssp", ["bsp", "bad", "w"]),
        ("workers>=4", ["ssp"]),
        ("workers=2", ["bsp"]),
        ("accuracy>0.9", ["bsp"]),
        ("accuracy<=95%", ["bsp", "ssp"]),
        ("memory<1e3", ["bsp", "ssp"]),
        ("optimizer.lr<0.1", ["ssp"]),
        ("optimizer.lr<=0.1", ["bsp", "ssp"]),
        ("optimizer.nesterov=false", ["bsp", "ssp", "bad"]),
        ("optimizer=sgd", ["bsp", "ssp", "bad"]),
        ("sync.staleness=3", ["bsp", "ssp", "bad"]),
        ("status!=failed", ["bsp", "ssp", "w"]),
        ("time_to_accuracy=null", ["ssp", "bad", "w"]),
        ("name=of seed 0", ["bsp", "ssp", "bad"]),
        ("net.kind=mlp", ["w"]),
        ("val/f1>0.5", ["w"]),
        ("a.b=3", ["w"]),
        ("odd name=x", ["w"]),
        ("run=bsp", ["bsp"]),
    ],
)
def test_a_condition_is_on_columns_configuration_keys_or_wandbs_names(condition, names):
    assert kept(condition) == names


def test_workers_that_the_machine_chose_are_those_of_the_run():
    left, fixed = (data(f"of {n}", {**config(), "hardware": {"workers": n}}, workers=2) for n in (None, 2))
    assert kept("hardware.workers=2", runs=[left, fixed]) == ["of None", "of 2"]
    assert configured(left)["hardware.workers"] == 2


def test_conditions_are_joined_by_and():
    assert kept("optimizer=sgd", "workers>1", "accuracy<0.9") == ["ssp"] and kept("sync=ssp", "workers=2") == []


def test_a_number_is_asked_of_the_groups_mean_and_text_of_each_run():
    group = [data(f"g{i}", config(i), accuracy=0.8 + 0.1 * i) for i in range(2)] + [failed("g2", config(2))]
    assert kept("accuracy>0.84", runs=group) == ["g0"] and kept("accuracy>0.86", runs=group) == []
    (row,) = table(group, ComparisonRequest(where=("status!=failed",)))[0]
    assert row["others"] == [] and row["n"] == 2
    assert kept("n=2", runs=group) == ["g0"]


@pytest.mark.parametrize(
    ("condition", "rule"),
    [
        ("syn=ssp", "no column 'syn': did you mean sync"),
        ("optimizer.lrr<1", r"did you mean optimizer\.lr"),
        ("workers", "must be NAME, one of = != < <= > >="),
        ("accuracy=>0.9", "must be NAME, one of = != < <= > >="),
        (">3", "must be NAME"),
        ("sync>3", "sync holds text; it takes = and != only"),
        ("workers>many", "> takes a number, such as workers>4"),
        ("workers>=", ">= takes a number"),
        ("speedup>2", "no column 'speedup'"),
    ],
)
def test_a_wrong_condition_is_refused_with_its_rule(condition, rule):
    with pytest.raises(TableError, match=rule) as refused:
        kept(condition)
    assert refused.value.exit_code == 2


def test_columns_are_shown_as_asked_for_with_the_run_first():
    words = ("accuracy", "optimizer.lr", "bytes", "sync", "val/f1")
    shown, _ = table(RUNS, ComparisonRequest(columns=words))
    keys = column_keys(ComparisonRequest(columns=words), RUNS, shown)
    assert keys == ["run", "accuracy", "optimizer.lr", "bytes_per_step", "sync", "val/f1"]
    lines = render(shown, columns=keys).splitlines()
    assert lines[0].split() == ["run", "accuracy", "optimizer.lr", "sent/step", "sync", "val/f1"]
    assert lines[1].split() == ["bsp", "95.00%", "0.1", "1.5", "KiB", "bsp", "-"]
    assert lines[4].split() == ["w", "-", "-", "-", "-", "0.7"]
    assert render(shown, "csv", columns=keys).splitlines()[0] == "run,accuracy,optimizer.lr,bytes_per_step,sync,val/f1"


def test_any_value_can_be_sorted_by():
    def order(word: str, **more) -> list[str]:
        return [row["run"] for row in table(RUNS, ComparisonRequest(sort=word, **more))[0]]

    assert order("optimizer.lr") == ["ssp", "bsp", "bad", "w"]
    assert order("optimizer.lr", reverse=True) == ["bad", "bsp", "ssp", "w"]
    runs = [data("a", config(), memory={"optimizer": 9}), data("b", config(lr=2), memory={"optimizer": 5})]
    assert [row["run"] for row in table(runs, ComparisonRequest(sort="optimizer"))[0]] == [
        "b",
        "a",
    ]  # memory, not the choice
    assert order("accuracy") == ["bsp", "ssp", "bad", "w"]


@pytest.mark.parametrize(
    "request_",
    [
        ComparisonRequest(columns=("acuracy",)),
        ComparisonRequest(sort="acuracy"),
        ComparisonRequest(pareto=("acuracy",)),
    ],
)
def test_an_unknown_column_is_refused_with_the_nearest(request_):
    with pytest.raises(TableError, match=r"no column 'acuracy': did you mean accuracy"):
        table(RUNS, request_)


def test_a_heading_is_taken_as_it_is_shown() -> None:
    runs = [data("a", memory={"process_peak": 2**20, "host_optimizer": 3})]
    for column in COLUMNS:
        if column.key not in ("front", "n", "runs", "others"):
            every = ComparisonRequest(baseline=runs[0], columns=(column.title,))
            shown, _ = table(runs, every)
            assert column.key in column_keys(every, runs, shown), column.title


def test_a_heading_is_taken_in_conditions_sorts_and_fronts_too() -> None:
    assert kept("sent/step>=1e9") == [] and kept("host peak MiB<1000") == kept("memory<1000") == ["bsp", "ssp"]
    assert [row["run"] for row in table(RUNS, ComparisonRequest(sort="samples/s"))[0]][:2] == ["bsp", "ssp"]
    assert front("Accuracy", "to acc. s") == front("accuracy", "time_to_accuracy")


def test_a_heading_that_two_columns_have_stands_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    both = tuple(replace(each, title="peak") if each.key in ("loss", "messages") else each for each in COLUMNS)
    monkeypatch.setattr(columns, "COLUMNS", both)
    with pytest.raises(TableError, match="no column 'peak'"):
        table(RUNS, ComparisonRequest(columns=("peak",)))


def test_a_refused_column_names_the_command_that_lists_them_all() -> None:
    with pytest.raises(TableError, match=r"no column 'acuracy': did you mean .*; what each is: paceline list columns"):
        table(RUNS, ComparisonRequest(columns=("acuracy",)))


def test_what_a_sweep_chose_is_known_without_a_configuration():
    assert configured(failed("t", None, Swept("s", 0, 0, {"optimizer.lr": 3}))) == {"optimizer.lr": 3}


# -- the Pareto front


def front(*names: str, runs=RUNS) -> list[str]:
    shown, _ = table(runs, ComparisonRequest(pareto=names))
    assert all(row["front"] in ("*", None) for row in shown)
    return [row["run"] for row in shown if row["front"]]


def test_the_front_knows_which_way_each_column_is_better():
    runs = [
        data("best", accuracy=0.9, wire={"bytes_per_step": 10}),
        data("cheap", accuracy=0.8, wire={"bytes_per_step": 5}),
        data("worse", accuracy=0.8, wire={"bytes_per_step": 6}),
        data("twin", accuracy=0.8, wire={"bytes_per_step": 5}),
    ]
    assert front("accuracy", "bytes", runs=runs) == ["best", "cheap", "twin"]
    assert front("accuracy", runs=runs) == ["best"] and front("bytes", runs=runs) == ["cheap", "twin"]
    shown, _ = table(runs, ComparisonRequest(pareto=("accuracy", "bytes")))
    assert render(shown).splitlines()[1].split()[:2] == ["best", "*"]


def test_only_completed_runs_with_known_values_are_on_it_and_modelled_ones_among_themselves():
    runs = [
        data("measured", accuracy=0.8),
        data("modelled", accuracy=0.9, modelled=True),
        data("other task", accuracy=0.9, task="hinge"),
        data("other data", accuracy=0.1, data="text"),
        data("pruned", accuracy=0.99, status="pruned"),
        data("unknown", accuracy="nan"),
    ]
    assert front("accuracy", runs=runs) == ["measured", "modelled", "other task", "other data"]


def test_times_to_different_accuracies_do_not_beat_each_other():
    runs = [
        data("easy", target_accuracy=0.5, time_to_accuracy=1.0, accuracy=0.9),
        data("hard", target_accuracy=0.95, time_to_accuracy=20.0, accuracy=0.9),
        data("slow", target_accuracy=0.95, time_to_accuracy=30.0, accuracy=0.8),
    ]
    assert front("time_to_accuracy", "accuracy", runs=runs) == ["easy", "hard"]
    assert front("accuracy", runs=runs) == ["easy", "hard"] and front("time_to_accuracy", runs=runs) == ["easy", "hard"]
    runs[1] = data("hard", target_accuracy=0.95, time_to_accuracy=20.0, accuracy=0.85)
    assert front("accuracy", runs=runs) == ["easy"]  # of the accuracy itself the target says nothing
    rows = [{"status": None, "modelled": False, "steps_to_accuracy": steps} for steps in (10, 20, 30)]
    mark_front(rows, {"steps_to_accuracy": False}, [0.5, 0.95, 0.95])
    assert [row["front"] for row in rows] == ["*", "*", None]


@pytest.mark.parametrize("word", ["sync", "optimizer.lr", "run"])
def test_a_column_without_better_or_worse_is_refused(word):
    with pytest.raises(TableError, match=f"--pareto {word}: it is not known which way .* throughput"):
        front(word)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=8))
def test_nobody_beats_the_front_and_somebody_on_it_beats_everyone_else(points):
    same = {"status": "completed", "model": "m", "data": "d", "modelled": False}
    rows = [{"accuracy": a, "bytes_per_step": b, **same} for a, b in points]
    mark_front(rows, {"accuracy": True, "bytes_per_step": False})
    on = {point for point, row in zip(points, rows, strict=True) if row["front"]}
    assert on
    for (a, b), (c, d) in itertools.product(points, points):
        if (a, b) in on:
            assert not (c >= a and d <= b and (c, d) != (a, b))
    assert all(any(c >= a and d <= b for c, d in on) for a, b in points)


def test_a_row_is_compared_with_the_front_alone(monkeypatch):
    compared = Counter()
    dominates = selection._dominates
    monkeypatch.setattr(selection, "_dominates", lambda *pair: compared.update(["pairs"]) or dominates(*pair))
    same = {"status": "completed", "model": "m", "data": "d", "modelled": False}
    best = [{"accuracy": 1.0, "bytes_per_step": 8, **same}, {"accuracy": 0.9, "bytes_per_step": 7, **same}]
    rows = [*({"accuracy": i / 1000, "bytes_per_step": 10, **same} for i in range(300)), *best, *best]
    mark_front(rows, {"accuracy": True, "bytes_per_step": False})
    assert [row["front"] for row in rows] == [None] * 300 + ["*"] * 4
    assert compared.total() <= 2 * len(rows)


# -- the metric of a task that has no column


def test_a_tasks_own_metric_is_a_column_of_every_form_and_ranks_runs_by_its_direction() -> None:
    def run(name: str, value: float, better: bool | None) -> RunData:
        told = {"metric": {"name": "perplexity", "larger_is_better": better}, "perplexity": value}
        return data(name, config(lr=value), accuracy=None, **told)

    def ranked(better: bool | None, **asked: Any) -> list[tuple[str, Any]]:
        runs = [run("vague", 9.5, better), run("sure", 2.25, better)]
        return [(row["run"], row.get("front")) for row in table(runs, ComparisonRequest(**asked))[0]]

    rows = table([run("vague", 9.5, False), run("sure", 2.25, False)], ComparisonRequest())[0]
    assert json.loads(render(rows, "json"))[0]["perplexity"] == 9.5
    assert [row["perplexity"] for row in csv.DictReader(io.StringIO(render(rows, "csv")))] == ["9.5", "2.25"]
    for form in ("table", "markdown", "latex"):
        assert all(word in render(rows, form) for word in ("perplexity", "9.5", "2.25")), form
    assert ranked(False, sort="perplexity", pareto=("perplexity",)) == [("sure", "*"), ("vague", None)]
    assert ranked(True, sort="perplexity", pareto=("perplexity",)) == [("vague", "*"), ("sure", None)]
    assert ranked(False, where=("perplexity<3",)) == [("sure", None)]
    with pytest.raises(TableError, match=r"--pareto perplexity: it is not known which way perplexity is better"):
        ranked(None, pareto=("perplexity",))
    with pytest.raises(TableError, match=r"--pareto seed: .* there are .*, perplexity$"):
        ranked(False, pareto=("seed",))
