"""What the report is made of: curves and their thinning, looks, texts, who is soonest. No browser."""

import base64
import itertools
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from some_runs import failed, many, recorded

from paceline.tracking import compare
from paceline.tracking.errors import StorageError
from paceline.tracking.evaluations import lived
from paceline.tracking.figures.built import sheet_of
from paceline.tracking.figures.curves import Curve, curves_of, encode, limit_for, thin
from paceline.tracking.figures.facts import settings_of
from paceline.tracking.figures.palette import DARK, LIGHT, look
from paceline.tracking.figures.spec import Ranking
from paceline.tracking.judged import best_first
from paceline.tracking.rendering import for_people
from paceline.tracking.report import write_report
from paceline.tracking.report.document import document, flat
from paceline.tracking.report.page import data_block
from paceline.tracking.report.verdict import verdicts
from paceline.tracking.run_data import RunData, Swept
from paceline.tracking.run_directory import RunDirectory
from paceline.tracking.sources import from_directory
from paceline.tracking.text import plain, shown

# -- curves


def curve(values: list[float]) -> Curve:
    steps = np.arange(1.0, len(values) + 1)
    return Curve(np.array(values), steps, steps / 10, steps * 0.5)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=400), st.integers(4, 100))
def test_a_thinned_curve_keeps_its_ends_and_its_extremes_and_is_short(values: list[float], limit: int) -> None:
    whole = curve(values)
    thinned = thin(whole, limit)
    assert len(thinned) <= max(limit, 4)
    assert (thinned.values.min(), thinned.values.max()) == (min(values), max(values))
    assert (thinned.values[0], thinned.values[-1]) == (values[0], values[-1])
    assert (thinned.steps[0], thinned.steps[-1]) == (1, len(values))
    assert all(np.diff(thinned.steps) > 0)
    assert all(values[int(step) - 1] == value for step, value in zip(thinned.steps, thinned.values, strict=True))


def test_a_short_spike_and_a_nan_survive_thinning() -> None:
    values = [1.0] * 10_000
    values[4321], values[7000] = 99.0, math.nan
    thinned = thin(curve(values), 100)
    assert 99.0 in thinned.values
    assert np.isnan(thinned.values).sum() == 1


@given(st.lists(st.integers(0, 5000), max_size=30))
def test_all_curves_together_keep_to_the_budget_unless_each_is_at_its_least(lengths: list[int]) -> None:
    limit = limit_for(lengths, total=3000)
    kept = sum(min(length, limit) for length in lengths)
    assert kept <= 3000 or limit == 64
    if sum(lengths) <= 3000:
        assert all(length <= limit for length in lengths)


def test_short_curves_leave_their_points_to_long_ones() -> None:
    assert limit_for([10] * 10 + [5000], total=1000) == 900


def test_steps_that_a_resumed_run_made_again_count_once() -> None:
    steps = [{"kind": "step", "step": step, "loss": float(step)} for step in (1, 2, 3, 4)]
    again = [{"kind": "step", "step": step, "loss": 10.0 * step} for step in (3, 4)]
    records = [*steps, {"kind": "resume", "step": 2}, *again]
    assert [r["loss"] for r in lived(records) if r["kind"] == "step"] == [1.0, 2.0, 30.0, 40.0]
    run = RunData("a", {}, {}, records, None)
    assert list(curves_of(run)["training loss"].values) == [1.0, 2.0, 30.0, 40.0]


def test_training_and_test_loss_are_two_curves_and_nan_is_a_value() -> None:
    records = [
        {"kind": "step", "step": 1, "loss": "nan", "time": 0.5, "step_time": 0.5},
        {"kind": "evaluation", "step": 1, "loss": 2.0, "accuracy": 0.5, "note": "text", "flag": True},
        {"kind": "step", "step": "?", "loss": 1.0},
        {"kind": ["step"], "step": 1, "loss": 1.0},
    ]
    found = curves_of(RunData("a", {}, {}, records, None))
    assert set(found) == {"training loss", "test loss", "accuracy"}
    assert math.isnan(found["training loss"].values[0])
    assert found["training loss"].seconds is not None
    assert found["test loss"].seconds is None


def unpacked(text: str) -> list[float]:
    return np.frombuffer(base64.b64decode(text), "<f4").tolist()


def test_an_encoded_curve_tells_its_values_and_even_axes_in_short() -> None:
    even = encode(curve([1.0, 0.5, 0.25]))
    assert unpacked(even["y"]) == [1.0, 0.5, 0.25]
    assert (even["n"], even["step"], even["epoch"]) == (3, [1, 1], pytest.approx(0.1))
    assert unpacked(even["time"]) == [0.5, 1.0, 1.5]
    uneven = encode(Curve(np.ones(3), np.array([1.0, 2.0, 9.0]), np.array([1.0, 1.0, 7.0]), None))
    assert (unpacked(uneven["step"]), unpacked(uneven["epoch"])) == ([1, 2, 9], [1, 1, 7])
    assert uneven["time"] is None


# -- looks

VISION = {  # Machado, Oliveira, Fernandes (2009), severity 1, on linear RGB
    "usual": np.eye(3),
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def linear(colour: str) -> np.ndarray:
    part = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ rgb / np.array([0.95047, 1, 1.08883])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def contrast(one: str, other: str) -> float:
    light, dark = sorted((float(linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (one, other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("vision", VISION)
def test_the_looks_of_24_runs_differ_by_colour_or_by_dash_and_marker(colours: tuple[str, ...], vision: str) -> None:
    looks = [look(i) for i in range(24)]
    seen = [lab(np.clip(VISION[vision] @ linear(colours[a.colour]), 0, 1)) for a in looks]
    for i, j in itertools.combinations(range(24), 2):
        otherwise = looks[i].dash != looks[j].dash and looks[i].marker != looks[j].marker
        assert otherwise or np.linalg.norm(seen[i] - seen[j]) >= 9, (i, j)


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_no_two_of_the_eight_colours_have_one_name(colours: tuple[str, ...]) -> None:
    """Two blues, one darker, took a sweep's bsp and hogwild for the same."""
    every = [lab(linear(colour)) for colour in colours]
    chroma = [np.hypot(a, b) for _, a, b in every]
    hues = [np.degrees(np.arctan2(b, a)) for _, a, b in every]
    for i, j in itertools.combinations(range(8), 2):
        between = abs((hues[i] - hues[j] + 180) % 360 - 180)
        grey = min(chroma[i], chroma[j]) < 15
        assert np.linalg.norm(every[i] - every[j]) >= (20 if grey else 30), (colours[i], colours[j])
        assert grey or between >= 15, (colours[i], colours[j])


def test_the_seeds_of_a_setting_look_alike_and_settings_differ() -> None:
    assert settings_of([[0, 1, 2], [4, 5]], 7) == [0, 0, 0, 1, 2, 2, 3]
    runs = [
        recorded(f"{sync}-{seed}", number=seed, sync=sync, config={"sync": sync, "seed": seed})
        for sync in ("bsp", "asp", "ssp", "hogwild")
        for seed in range(3)
    ]
    looks = [tuple(run["look"]) for run in document(runs)["runs"]]
    assert len(set(looks)) == 4 and all(len(set(looks[i : i + 3])) == 1 for i in range(0, 12, 3))
    assert len({colour for colour, *_ in looks}) == 4


def test_no_two_of_48_runs_look_alike() -> None:
    assert len({look(i) for i in range(48)}) == 48
    assert len({look(i) for i in range(480)}) == 480


@pytest.mark.parametrize(("colours", "page"), [(LIGHT, "#ffffff"), (DARK, "#161a20")])
def test_lines_stand_out_of_the_page(colours: tuple[str, ...], page: str) -> None:
    assert min(contrast(colour, page) for colour in colours) >= 3


# -- texts


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("bsp <b>", "bsp <b>"),
        ("a\x00\x1b\n", "a\\u0000\\u001b\\u000a"),
        ("\u202egnp", "\\u202egnp"),
        ("\u2028\ud800", "\\u2028\\ud800"),
        ("größe 模型 👩‍🔬", "größe 模型 👩‍🔬"),
        ("x" * 300, "x" * 200 + "... (100 more characters)"),
        (3, "3"),
    ],
)
def test_texts_are_shown_as_they_are_and_hidden_characters_as_escapes(text: Any, seen: str) -> None:
    assert shown(text) == seen


@given(st.text(alphabet=st.characters(codec=None), max_size=50))
def test_the_data_cannot_end_its_element_and_are_read_back_as_they_were(text: str) -> None:
    block = data_block({"name": text})
    assert not re.search("[<>&\u2028\u2029]", block)
    assert block.isascii()
    assert json.loads(block) == {"name": text}


def test_a_configuration_becomes_dotted_keys() -> None:
    config = {"sync": {"name": "ssp", "knobs": {}}, "hidden": [1, 2], 3: None}
    assert flat(config) == [("sync.name", "ssp"), ("sync.knobs", "{}"), ("hidden", "[1, 2]"), ("3", "null")]


def test_a_configuration_without_end_is_cut_off() -> None:
    endless: dict[str, Any] = {}
    endless["again"] = endless
    assert len(flat(endless)) == 1
    laughs: list[Any] = ["ha"]
    for _ in range(40):
        laughs = [laughs, laughs]
    assert len(plain(laughs)) < 100_000
    itself: list[Any] = []
    itself.append(itself)
    assert "ValueError" in plain(itself)


# -- who is soonest


def timed(name: str, seconds: float | None, sent: float, **more: Any) -> RunData:
    return recorded(name, summary={"time_to_accuracy": seconds, "wire": {"bytes_per_step": sent}}, **more)


def seeds(sync: str, times: list[float | None], sent: float = 1.0) -> list[RunData]:
    """A trial of a sweep, a run for each seed."""
    return [
        timed(f"{sync}-{i}", time, sent, swept=Swept("s", 1, i, {"sync": sync}), sync=sync)
        for i, time in enumerate(times)
    ]


def test_one_seed_each_is_no_ranking_and_no_winner_is_named() -> None:
    slow, quick = timed("slow", 20.0, 1024.0), timed("quick", 1.25, 2048.0)
    [said] = verdicts([slow, quick])
    step = next(r["step"] for r in quick.records if r.get("accuracy", 0) >= 0.9)
    assert said.startswith(
        "Measured, mlp on digits, target 90.00%. One seed each: not a ranking. 2 settings reached it,"
    )
    assert f"in 1.25 s to 20.0 s, with {step * 2:.1f} KiB to {step * 4:.1f} KiB sent by all workers." in said
    assert "slow" not in said and "quick" not in said
    assert said.endswith("To compare them, train each with seed=1 and seed=2, too.")
    swept = verdicts([*seeds("asp", [20.0]), *seeds("bsp", [1.25])])[0]
    assert swept.endswith("To compare them, repeat the sweep with --seeds 3.")


def test_no_second_seed_overturns_what_a_sweep_of_one_seed_names() -> None:
    """hogwild looked soonest with one seed, asp the slowest with three."""
    one = [timed(sync, time, 1.0, sync=sync) for sync, time in (("hogwild", 0.156), ("asp", 0.268), ("bsp", 0.461))]
    assert not any(word in verdicts(one)[0] for word in ("hogwild", "asp", "bsp", "oonest"))
    three = [*seeds("asp", [0.90, 0.69, 0.48]), *seeds("bsp", [0.38, 0.47, 0.56])]
    [said] = verdicts(three)
    assert "The soonest cannot be told apart (the paired 95 % interval of the ratio by seed includes 1; means" in said
    paired = stats.ttest_rel(np.log([0.90, 0.69, 0.48]), np.log([0.38, 0.47, 0.56])).confidence_interval(0.95)
    low, high = np.exp(paired)
    assert "sync=bsp, 0.47 s ± 0.224 s; sync=asp, 0.69 s ± 0.522 s, " in said
    assert f"times as long (95 % interval {low:.4g} to {high:.4g}, paired by 3 seeds)." in said


def test_of_several_seeds_the_soonest_is_named_with_its_interval_and_the_next() -> None:
    [said] = verdicts([*seeds("ssp", [2.0, 2.1, 1.9], 4096.0), *seeds("asp", [9.0, 9.5, 8.5])])
    assert "Soonest: sync=ssp, in 2 s ± 0.248 s, with " in said
    assert "sent by all workers (means and 95 % intervals of 3 seeds). Next: sync=asp, in 9 s ± 1.24 s" in said
    paired = stats.ttest_rel(np.log([9.0, 9.5, 8.5]), np.log([2.0, 2.1, 1.9])).confidence_interval(0.95)
    low, high = np.exp(paired)
    assert f": 4.499 times as long (95 % interval {low:.4g} to {high:.4g}, paired by 3 seeds)." in said
    assert "Fewest bytes: sync=asp, " in said


def test_a_setting_with_one_seed_is_not_compared_with_those_of_several() -> None:
    [said] = verdicts([*seeds("ssp", [2.0, 2.1]), *seeds("asp", [0.1])])
    assert "Soonest: sync=ssp" in said and "asp" not in said and "1 with one seed only: not compared." in said


def test_it_says_when_none_reaches_the_target_and_how_many_did_not() -> None:
    never = timed("never", None, 10.0)
    assert verdicts([never]) == ["Measured, mlp on digits, target 90.00%. Not one setting reached it."]
    assert verdicts([never, timed("late", None, 1.0)])[0].endswith("None of the 2 settings reached it.")
    said = verdicts([never, timed("one", 1.0, 10.0)])[0]
    assert "one (data_parallel, sync=bsp) alone reached it, in 1 s" in said
    assert said.endswith("1 of the 2 settings did not reach it.")


def test_modelled_runs_and_other_targets_are_contests_of_their_own() -> None:
    runs = [timed("real", 5.0, 1.0), timed("virtual", 0.1, 1.0, modelled=True)]
    runs.append(recorded("hard", summary={"target_accuracy": 0.99, "time_to_accuracy": None}))
    first, second, third = verdicts(runs)
    assert ("real" in first, "virtual" in first) == (True, False)
    assert "target 99.00%. Not one setting reached it." in second
    assert third.startswith("Modelled (virtual cluster)")
    assert "virtual" in third and "(one seed)" in third


def test_a_folder_of_many_targets_has_few_sentences_those_with_the_most_to_compare_first() -> None:
    runs = [recorded(f"r{i}", summary={"target_accuracy": 0.5 + i / 100}) for i in range(9)]
    runs += [recorded("again", summary={"target_accuracy": 0.58})]
    said = verdicts(runs)
    assert len(said) == 5 and "target 58.00%. One seed each" in said[0]
    assert said[-1] == "5 more combinations of model, data set and target: see the table."


def test_a_run_that_broke_is_no_choice() -> None:
    diverged = timed("broke", 0.1, 1.0, status="diverged")
    assert "whole (data_parallel, sync=bsp) alone reached it" in verdicts([diverged, timed("whole", 9.0, 1.0)])[0]


def test_a_setting_of_which_some_seeds_reached_the_target_is_not_compared() -> None:
    [said] = verdicts([*seeds("ssp", [2.0, 4.0]), *seeds("asp", [1.0, None]), *seeds("bsp", [9.0, 9.1])])
    assert "sync=ssp, 3 s ± 12.7 s" in said and "Soonest: sync=asp" not in said
    assert said.endswith("Reached with some of their seeds only, and not compared: sync=asp: 1 of 2.")
    [said] = verdicts(seeds("asp", [1.0, None]))
    assert "Not one setting reached it with all of its seeds." in said and "sync=asp: 1 of 2." in said


# -- the document


def test_failed_runs_are_in_the_table_with_their_reason() -> None:
    told = document([recorded(), failed("lost", "worker 1 ended: no space")])
    titles = [column["title"] for column in told["columns"]]
    row = dict(zip(titles, told["runs"][1]["cells"], strict=True))
    assert (row["status"][0], row["reason"][0]) == ("failed", "worker 1 ended: no space")
    assert row["accuracy"] == ["-", None]


def test_what_is_compared_stands_before_the_rest() -> None:
    titles = [column["title"] for column in document([recorded(), recorded("b", number=1)])["columns"]]
    assert titles[:6] == ["status", "sync", "strategy", "workers", "accuracy", "to acc. s"]
    assert {"samples/s", "step ms", "model", "data"} < set(titles)
    krum = recorded("b", number=1)
    krum.summary["aggregate"] = "krum"
    titles = [column["title"] for column in document([recorded(), krum])["columns"]]
    assert titles.index("sent/step") + 1 == titles.index("aggregate") < titles.index("model")  # what differs goes first


def test_swept_parameters_are_columns_sorted_by_number() -> None:
    told = document(many(3))
    titles = [column["title"] for column in told["columns"]]
    assert titles.count("sync") == 1
    place = titles.index("optimizer.lr")
    assert told["columns"][place]["number"]
    assert told["runs"][0]["cells"][place] == ["0.1", 0.1]


def test_a_foreign_summary_with_values_of_other_types_is_shown_as_damaged_not_dropped() -> None:
    odd = RunData(
        "odd", {"name": "odd", "status": 3, "wire": [1], "throughput": "fast", "memory": {"other": "x"}}, {}, [], None
    )
    told = document([odd, recorded()])
    assert [run["name"] for run in told["runs"]] == ["odd", "bsp"]
    json.dumps(told, allow_nan=False)


def test_a_recorded_run_directory_is_told(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "mine")
    run.write_config("sync:\n  name: bsp\n")
    for record in recorded("mine").records[:-1]:
        run.append(record)
    told = document([from_directory(run)])
    curves = [
        line["run"] for section in told["sections"] if section["id"] in ("accuracy", "loss") for line in lines(section)
    ]
    assert (told["runs"][0]["name"], told["runs"][0]["status"], curves) == ("mine", "unfinished", [0, 0, 0])


def test_the_same_runs_give_the_same_file(tmp_path: Path) -> None:
    for name in ("one.html", "two.html"):
        write_report(many(3), tmp_path / name)
    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "two.html").read_bytes()


def test_a_report_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"cannot write .*report\.html"):
        write_report([recorded()], tmp_path / "absent" / "report.html")


@pytest.mark.slow
def test_100_runs_of_1000_points_stay_under_8_mb(tmp_path: Path) -> None:
    for evaluations in (20, 1000):
        write_report(many(100, 1000, evaluations), tmp_path / "report.html")
        assert (tmp_path / "report.html").stat().st_size < 8_000_000


def test_a_few_runs_take_little_more_than_plotly(tmp_path: Path) -> None:
    write_report(many(10, 1000, 20), tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size < 5_200_000


def test_a_run_that_was_killed_after_it_reached_the_target_reached_it() -> None:
    killed = timed("killed", 5.0, 10.0, status="unfinished")
    del killed.summary["time_to_accuracy"]
    reached = next(record for record in killed.records if record.get("accuracy", 0) >= 0.9)
    assert f"killed (data_parallel, sync=bsp) reached it in {reached['time']:.3g} s" in verdicts([killed])[0]
    killed.summary["status"] = "failed"
    assert verdicts([killed]) == ["Measured, mlp on digits, target 90.00%. Not one setting reached it."]


def test_seeds_outside_a_sweep_are_one_setting_too() -> None:
    runs = [timed(f"mine-{seed}", 2.0 + seed, 1.0) for seed in (0, 1)]
    runs = [replace(run, config={"seed": seed, "sync": "bsp"}) for seed, run in enumerate(runs)]
    assert "mine-0 (data_parallel, sync=bsp) reached it in 2.5 s ± 6.35 s" in verdicts(runs)[0]
    assert "(mean and 95 % interval of 2 seeds)" in verdicts(runs)[0]


def test_the_comparison_is_in_the_page_where_it_says_more_than_the_runs() -> None:
    runs = [recorded("a", number=1), recorded("b", number=2)]
    plain, _ = compare.table(runs, compare.ComparisonRequest())
    assert document(runs, plain)["compared"] is None
    marked, _ = compare.table(runs, compare.ComparisonRequest(baseline=runs[0], pareto=("accuracy", "bytes")))
    told = document(runs, marked)["compared"]
    assert told is not None and [row[0] for row in told["rows"]] == ["a", "b"]
    assert {"front"} & set(told["titles"]) and len(told["titles"]) == len(told["numbers"]) == len(told["rows"][0])
    assert document(runs, plain, ["run", "accuracy"])["compared"]["titles"] == ["run", "accuracy"]


def test_a_report_is_written_through_a_symbolic_link(tmp_path: Path) -> None:
    (tmp_path / "link.html").symlink_to(tmp_path / "there.html")
    write_report([recorded()], tmp_path / "link.html")
    assert (tmp_path / "link.html").is_symlink() and "<!doctype html>" in (tmp_path / "there.html").read_text()


def lines(section: dict[str, Any]) -> list[dict[str, Any]]:
    return [line for figure in section["figures"] for line in figure["lines"]]


def ranking(runs: list[RunData], metric: str | None = None) -> list[Ranking]:
    section = next(section for section in sheet_of(runs, metric).sections if section.id == "ranking")
    return [figure for figure in section.figures if isinstance(figure, Ranking)]


def test_runs_are_judged_by_what_the_sweep_asked_and_the_table_is_sorted_by_it() -> None:
    told = document(many(4))
    first = ranking(many(4))[0]
    assert (first.name, first.larger) == ("time to accuracy, s", False)
    assert told["columns"][told["sorted"]]["title"] == "to acc. s"
    by_step = ranking(many(4), "step")[0]
    assert by_step.name == "step ms"
    assert by_step.values == pytest.approx([run.summary["step_time"]["median"] * 1e3 for run in many(4)])
    never = [recorded("never", summary={"time_to_accuracy": None})]
    assert ranking(never)[0].name == "accuracy"
    assert ranking(many(2), "nosuch")[0].name == first.name


def with_own_metrics(root: Path | None = None, goal: str = "maximize") -> list[RunData]:
    """Two runs whose task reports perplexity and whose callback reports mine; with `root`, of a sweep by mine."""
    if root is not None:
        (root / "sweep.yaml").write_text(f"metric: {{name: mine, goal: {goal}}}\n")
    told = {"accuracy": None, "metric": {"name": "perplexity", "larger_is_better": True}}
    runs = [
        recorded(name, number=i, summary={**told, "perplexity": 2.5 + i, "metrics": {"mine": 0.5 - i}})
        for i, name in enumerate(("first", "second"))
    ]
    if root is None:
        return runs
    return [replace(run, path=root / run.name, swept=Swept("one", i, 0, {})) for i, run in enumerate(runs)]


def test_metrics_of_tasks_and_callbacks_are_in_the_table_and_the_ranking_as_in_the_comparison() -> None:
    runs = with_own_metrics()
    told = document(runs)
    titles = [column["title"] for column in told["columns"]]
    cells = {title: [run["cells"][i][0] for run in told["runs"]] for i, title in enumerate(titles)}
    titles_of_compare, _, rows = for_people(compare.table(runs, compare.ComparisonRequest())[0])
    for metric in ("perplexity", "mine"):
        assert cells[metric] == [row[titles_of_compare.index(metric)] for row in rows]
    of = {figure.name: figure for figure in ranking(runs)}
    assert (of["perplexity"].larger, of["perplexity"].values) == (True, (2.5, 3.5))
    assert (of["mine"].larger, of["mine"].values) == (False, (0.5, -0.5))


@pytest.mark.parametrize("goal", ["maximize", "minimize"])
def test_a_sweep_by_a_metric_of_a_callback_is_ranked_by_it_towards_its_goal(goal: str, tmp_path: Path) -> None:
    runs = with_own_metrics(tmp_path, goal)
    told = document(runs, metric="mine")
    assert told["columns"][told["sorted"]]["title"] == "mine" and told["larger"] == (goal == "maximize")
    figure = ranking(runs, "mine")[0]
    assert (figure.name, figure.larger) == ("mine", goal == "maximize")
    rows = compare.table(runs, compare.ComparisonRequest())[0]
    best = {"maximize": 0.5, "minimize": -0.5}[goal]
    assert best_first(rows, "mine", runs)[0]["mine"] == best


def test_only_runs_of_one_model_data_set_and_target_are_ranked_together() -> None:
    runs = [failed("lost"), recorded("a"), recorded("b", summary={"model": "cnn"}), recorded("c", modelled=True)]
    contests = dict.fromkeys(figure.among for figure in ranking(runs))
    assert list(contests) == ["mlp on digits, target 90.00%", "cnn on digits, target 90.00%", "? on ?"]
    together = {(figure.among, figure.modelled): figure.runs for figure in ranking(runs)}
    assert sorted(together.values()) == [(0,), (1,), (2,), (3,)]


def test_a_report_of_runs_of_no_sweep_does_not_say_to_repeat_a_sweep() -> None:
    def guide(runs: list[RunData]) -> str:
        return next(section.guide for section in sheet_of(runs).sections if section.id == "ranking")

    assert "sweep" not in guide([timed("alone", 1.25, 1.0)]) and "seed=1" in guide([timed("alone", 1.25, 1.0)])
    assert "repeat the sweep with --seeds" in guide(seeds("asp", [1.25, 2.5]))
