"""Repeated seeds as one row, and rows against a baseline."""

import math
from collections import Counter

import pytest
from recorded import config, data, failed
from scipy import stats

from paceline.tracking.compare import ComparisonRequest, find, render, rows, table
from paceline.tracking.derived import dollars
from paceline.tracking.errors import TableError
from paceline.tracking.groups import Entry, grouped, mean
from paceline.tracking.run_data import RunData, Swept

ACCURACIES = [0.9, 0.91, 0.95]


def seeds(name: str = "bsp", accuracies=ACCURACIES, **of) -> list[RunData]:
    return [data(f"{name}-{i}", config(i, **of), accuracy=value) for i, value in enumerate(accuracies)]


def only(runs: list[RunData], request: ComparisonRequest = ComparisonRequest()) -> dict:
    (row,) = table(runs, request)[0]
    return row


@pytest.mark.parametrize("values", [[1.0, 2.0], [0.9, 0.91, 0.95], [1e9, 1e9 + 1, 1e9 + 5], [-3, 5, 7, 1]])
def test_the_interval_is_students_t(values):
    centre, half = mean(values)
    low, high = stats.t.interval(0.95, len(values) - 1, loc=sum(values) / len(values), scale=stats.sem(values))
    assert half is not None and (centre - half, centre + half) == pytest.approx((low, high))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([5], (5, None)),
        ([5, 5, 5], (5, 0.0)),
        ([1.0, None], (None, None)),
        ([True, False], (None, None)),
        ([1.0, math.inf], (math.inf, None)),
        ([1.1e308, 1.7e308], (None, None)),
        ([1e200, -1e200], (None, None)),
    ],
)
def test_without_a_spread_there_is_no_interval(values, expected):
    assert mean(values) == expected


def test_runs_that_differ_in_their_seed_alone_are_one_row_of_their_mean():
    row = only(seeds())
    assert (row["run"], row["n"], row["runs"]) == ("bsp", 3, ["bsp-0", "bsp-1", "bsp-2"])
    assert (row["accuracy"], row["accuracy_ci95"]) == mean(ACCURACIES)
    assert row["workers"] == 4 and "workers_ci95" not in row and row["others"] == []
    assert "92.00% ±6.57" in render([row]) and "±" not in render([row], "csv")
    header, values = (line.split(",") for line in render([row], "csv").splitlines())
    told = dict(zip(header, values, strict=True))
    assert (float(told["accuracy"]), told["n"], told["runs"]) == (row["accuracy"], "3", "bsp-0 bsp-1 bsp-2")
    assert header.index("accuracy_ci95") == header.index("accuracy") + 1


def test_no_group_shows_each():
    shown, runs = table(seeds(), ComparisonRequest(group=False))
    assert [row["run"] for row in shown] == ["bsp-0", "bsp-1", "bsp-2"] and len(runs) == 3
    assert "n" not in shown[0] and not [key for key in shown[0] if key.endswith("_ci95")]


@pytest.mark.parametrize(
    "other",
    [
        data("other", config(1, lr=0.2)),
        data("other", config(1, sync="ssp")),
        data("other", config(1), modelled=True),
        data("other", config(0)),  # the same seed again is no second draw
        data("other", {}),  # nothing is known of its configuration
        data("other", {key: value for key, value in config().items() if key != "seed"}),
    ],
    ids=["rate", "sync", "modelled", "same seed", "no configuration", "no seed"],
)
def test_any_other_difference_keeps_runs_apart(other):
    shown, _ = table([data("base", config(0)), other], ComparisonRequest())
    assert [row["run"] for row in shown] == ["base", "other"] and "n" not in shown[0]


def chosen(name: str, target: str = "paceline.engine.fabrics.stragglers.NoStragglers", **knobs) -> dict:
    return {"stragglers": {"name": name, "target": target, "knobs": knobs}}


def test_a_configuration_from_before_a_group_is_that_with_its_usual_choice():
    runs = [data("old", config(0)), data("new", config(1) | chosen("none"))]
    assert only(runs)["n"] == 2


@pytest.mark.parametrize(
    "other",
    [chosen("one_slow"), chosen("none", worker=1), chosen("none", "mine.Slow")],
    ids=["choice", "knob", "class"],
)
def test_another_choice_knob_or_class_of_a_new_group_keeps_runs_apart(other):
    assert len(table([data("old", config(0)), data("new", config(1) | other)], ComparisonRequest())[0]) == 2


def test_a_configuration_from_before_there_were_callbacks_is_that_without_any():
    early = {"early_stop": {"name": "early_stop", "target": "a.B", "knobs": {}}}
    before, none, some = config(0), {**config(1), "callbacks": {}}, {**config(2), "callbacks": early}
    found = table([data("a", before), data("b", none), data("c", some)], ComparisonRequest())[0]
    assert [row["runs"] for row in found] == [["a", "b"], ["c"]]


def test_what_callbacks_measured_is_a_column_and_has_a_mean():
    runs = [data(f"a-{i}", config(i), metrics={"f1": value, "workers": 9}) for i, value in enumerate([0.5, 1.0])]
    row = only(runs)
    assert row["f1"] == 0.75 and row["f1_ci95"] > 0 and row["workers"] == 4  # a column of ours stays ours
    both = table(
        [*runs, data("b", config(5, lr=3.0))], ComparisonRequest(where=("f1>0.6",), columns=("f1", "accuracy"))
    )[0]
    assert [row["f1"] for row in both] == [0.75]


def test_a_run_by_itself_beside_a_group_has_no_interval():
    shown, _ = table([*seeds(), data("alone", config(lr=0.5))], ComparisonRequest())
    assert (shown[1]["n"], shown[1]["runs"], shown[1]["accuracy_ci95"]) == (1, ["alone"], None)
    assert [cell for cell in render(shown[1:]).splitlines()[1].split() if "±" in cell] == []


def test_failed_runs_of_a_group_are_named_and_not_averaged():
    row = only([*seeds(), failed("bsp-3", config(3))])
    assert (row["n"], row["accuracy"]) == (3, pytest.approx(0.92))
    assert row["others"] == ["bsp-3 (failed)"] and row["why"] == "optimizer.lr=-1: must be positive"
    assert "bsp-3 (failed)" in render([row]) and "bsp-3 (failed)" in render([row], "csv")


def test_a_trial_that_failed_before_it_had_a_configuration_counts_to_its_trial():
    one = [Swept("s", 1, seed, {"optimizer.lr": 0.1}) for seed in range(3)]
    runs = [data("a", config(0), one[0]), failed("b", None, one[1]), failed("c", None, Swept("s", 2, 1, {}))]
    shown, _ = table(runs, ComparisonRequest())
    assert [(row["run"], row["others"]) for row in shown] == [("a", ["b (failed)"]), ("c", [])]


def test_where_no_run_completed_each_is_a_row():
    shown, _ = table([failed("a", config(0)), failed("b", config(1))], ComparisonRequest())
    assert [(row["run"], row["status"]) for row in shown] == [("a", "failed"), ("b", "failed")]


def test_a_failed_run_does_not_take_its_seed_from_one_that_completed():
    shown, _ = table([failed("a", config(0)), data("b", config(0)), data("c", config(1))], ComparisonRequest())
    assert {(row["run"], row["n"]) for row in shown} == {("a", 1), ("b", 2)}


@pytest.mark.parametrize(
    ("reasons", "told"), [((None, "x", None), "x"), (("x", None, "y"), "x, y"), ((None,) * 3, None), (("x",) * 3, "x")]
)
def test_what_is_said_of_some_runs_of_a_group_is_said_of_it_without_a_word_on_the_others(reasons, told):
    assert only([data(f"n-{i}", config(i), disturbed=why) for i, why in enumerate(reasons)])["disturbed"] == told


def test_a_run_of_a_group_without_a_known_status_is_named_so():
    others = only([*seeds(), data("bsp-3", config(3), status=None)])["others"]
    assert others == ["bsp-3 (unknown)"]


def test_a_number_that_one_run_lacks_is_unknown():
    row = only([data("a", config(0), time_to_accuracy=None), data("b", config(1))])
    assert row["time_to_accuracy_s"] is None and row["accuracy"] == 0.975


@pytest.mark.parametrize(
    ("names", "group"),
    [
        (["bsp-s0", "bsp-s1"], "bsp"),
        (["rate-0.1-seed-1", "rate-0.1-seed-12"], "rate-0.1-seed"),
        (["run10", "run11"], "run10"),
        (["bsp", "bsp-again"], "bsp"),
        (["first", "second"], "first"),
    ],
)
def test_a_group_is_called_by_what_its_names_have_in_common(names, group):
    assert only([data(name, config(i)) for i, name in enumerate(names)])["run"] == group


def test_as_many_comparisons_as_runs_make_groups():
    compared = Counter()

    class Name(str):
        __hash__ = str.__hash__

        def __str__(self):
            return self

        def __eq__(self, other):
            compared["names"] += 1
            return str.__eq__(self, other)

    class Compared(Entry):
        def __eq__(self, other):
            compared["entries"] += 1
            return self is other

    def entry(number: int, status: str, of: dict) -> Entry:
        run = data(f"run-{number:04d}", of, status=status)
        return Compared((run,), {"run": Name(run.name), "status": status, "accuracy": 0.9})

    count = 400
    seeds = [entry(i, "failed" if i % 2 else "completed", config(i)) for i in range(count)]
    alone = [entry(count + i, "completed", config(lr=i)) for i in range(1, count)]
    assert len(grouped([*seeds, *alone], lambda key: key == "accuracy")) == count
    assert compared.total() <= 4 * count


def test_two_groups_never_have_one_name():
    runs = [*seeds("mlp-0101"), *seeds("mlp-0102", lr=0.5), *seeds("x", sync="ssp"), data("x", config(lr=7))]
    names = [row["run"] for row in table(runs, ComparisonRequest())[0]]
    assert len(set(names)) == len(names) == 4


def test_what_a_sweep_varied_is_a_column_unless_it_is_one_already():
    def trial(number: int, **parameters) -> RunData:
        of = config(lr=parameters["optimizer.lr"], sync=parameters["sync"])
        return data(f"t{number}", of, Swept("s", number, 0, parameters), sync=parameters["sync"])

    runs = [
        trial(0, sync="bsp", **{"optimizer.lr": 0.1, "model.hidden": [8], "hardware.workers": 2, "fixed": 1}),
        trial(1, sync="ssp", **{"optimizer.lr": 0.2, "model.hidden": [8, 4], "hardware.workers": 4, "fixed": 1}),
        failed("t2", None, Swept("s", 2, 0, {"sync": "x", "optimizer.lr": -1, "model.hidden": [8], "fixed": 1})),
    ]
    shown, _ = table(runs, ComparisonRequest())
    assert [row["optimizer.lr"] for row in shown] == [0.1, 0.2, -1]
    own = [key for key in shown[0] if "." in key or key == "fixed"]
    assert own == ["optimizer.lr", "model.hidden"] and list(shown[0]).index("optimizer.lr") > 5
    text = render(shown)
    assert "[8, 4]" in text and "t2 (failed)" in text and "must be positive" in text
    assert '"[8, 4]"' in render(shown, "csv")


# -- baselines


def test_ratios_are_of_the_means_and_one_for_the_baseline_itself():
    machine = {"devices": 2, "price_per_hour": 10.0}
    fast = [
        data(f"fast-{i}", config(i, lr=0.7, **machine), throughput=3000.0 + i, time_to_accuracy=5.0, seconds=900.0)
        for i in range(2)
    ]
    slow = [data(f"slow-{i}", config(i, **machine), throughput=1000.0, memory={"process_peak": 2**20}) for i in (0, 1)]
    for base in (slow[0], slow[1]):
        shown, _ = table([*fast, *slow], ComparisonRequest(baseline=base))
        assert shown[0]["speedup_throughput"] == pytest.approx(3.0005)
        assert shown[0]["speedup_time_to_accuracy"] == 4
        assert (shown[0]["bytes_ratio"], shown[0]["memory_ratio"], shown[0]["dollars_ratio"]) == (1, 300, 0.5)
        assert [shown[1][key] for key in shown[1] if key.startswith("speedup") or "ratio" in key] == [1.0] * 5
    assert "speed-up" in render(shown) and "dollar ratio" in render(shown)


@pytest.mark.parametrize("change", [{"model": "cnn"}, {"data": "text"}, {"modelled": True}])
def test_runs_that_cannot_be_compared_have_no_ratio(change):
    base = data("base")
    shown, _ = table([base, data("other", **change)], ComparisonRequest(baseline=base))
    assert {shown[1][key] for key in shown[1] if key.startswith("speedup") or "ratio" in key} == {None}


def test_a_group_whose_first_run_failed_at_once_has_the_others_target():
    group = [failed("bsp-9", config(9, lr=0.3)), *seeds(lr=0.3)]
    base = data("base", config())
    shown, _ = table([base, *group], ComparisonRequest(baseline=base))
    assert (shown[1]["n"], shown[1]["speedup_time_to_accuracy"]) == (3, 1.0)


def test_a_baseline_that_a_condition_leaves_out_is_still_what_is_compared_with():
    base = data("base", throughput=500.0)
    shown, _ = table([base, data("other")], ComparisonRequest(baseline=base, where=("throughput>600",)))
    assert [(row["run"], row["speedup_throughput"]) for row in shown] == [("other", 2.0)]


@pytest.mark.parametrize(
    ("machine", "changes", "expected"),
    [
        ({"devices": 2, "price_per_hour": 8.0}, {}, 8.0),  # 0.5 h x 2 hosts
        ({"devices": 3, "price_per_hour": 8.0}, {}, 8.0),  # 4 workers on 3 devices each: 2 hosts
        ({"devices": 8, "price_per_hour": 8.0}, {"seconds": 3600.0}, 8.0),
        ({"devices": 0, "price_per_hour": 8.0}, {}, 4.0),
        ({"devices": 2, "price_per_hour": None}, {}, None),
        ({"devices": 2, "price_per_hour": 8.0}, {"seconds": None}, None),
        ({}, {}, None),
    ],
)
def test_dollars_are_hours_times_hosts_times_price(machine, changes, expected):
    run = data("a", config(**machine), **changes)
    assert dollars(run) == expected and rows([run])[0]["dollars"] == expected


@pytest.mark.parametrize(
    ("hardware", "changes", "expected"),
    [
        ({"fabric": "virtual", "workers_per_host": 1}, {}, 16.0),  # 0.5 h x 4 hosts
        ({"fabric": "virtual", "workers_per_host": 2}, {}, 8.0),
        ({"fabric": "virtual", "workers_per_host": 2}, {"servers": 1}, 12.0),  # the server's host, too
        ({"fabric": "process"}, {"hosts": [{"host": "a"}, {"host": "b"}]}, 8.0),
        ({"fabric": "process"}, {"hosts": "?"}, 4.0),
        ({"device": "cpu", "machine": {"devices": 1, "price_per_hour": 8.0}}, {}, 4.0),  # its devices are idle
    ],
)
def test_machines_without_devices_are_the_hosts_that_a_run_was_on(hardware, changes, expected):
    chosen = config()
    chosen["hardware"] |= {"machine": {"devices": 0, "price_per_hour": 8.0}} | hardware
    assert dollars(data("a", chosen, **changes)) == expected


def test_a_run_of_a_sweep_is_found_by_its_own_name_and_by_its_sweeps():
    runs = [data("a", None, Swept("s", 0, 0, {})), data("b")]
    assert find(runs, "s/a") is find(runs, "a") is runs[0] and find(runs, "s/b") is None


def test_a_name_is_first_of_all_that_of_a_run_of_no_sweep():
    runs = [data("a", None, Swept("s", 0, 0, {})), data("a"), data("b", None, Swept("s", 0, 0, {})),
            data("b", None, Swept("t", 0, 0, {}))]  # fmt: skip
    assert find(runs, "a") is runs[1] and find(runs, "s/a") is runs[0] and find(runs, "t/b") is runs[3]
    with pytest.raises(TableError, match="--baseline b: must be one run, and is 2"):
        find(runs, "b")
