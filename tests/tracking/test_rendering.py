"""What a terminal, a spreadsheet or a Markdown reader would act upon is shown as text."""

import csv
import io
import json
import re
import unicodedata

import pytest
from recorded import config, data

from paceline.tracking.compare import ComparisonRequest, render, rows, table
from paceline.tracking.rendering import facts
from paceline.tracking.visible import visible

HOSTILE = [
    "\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07",
    "\x9b31m",
    "a\rb",
    "line\nbreak",
    "\u202ertl",
    "\u2028separator",
    "\0",
    "\ud800",
    "=1+1",
    "+1",
    "-1",
    "@SUM(A1)",
    "\t=1",
    "a|b",
    "`code`",
    "<script>alert(1)</script>",
    "back\\slash|",
]
ACTS = ("Cc", "Cf", "Cs", "Zl", "Zp")


def hostile(name: str) -> list[dict]:
    """The text as a run's name, a choice, a reason, a parameter's name and its value."""
    run = data(name, config() | {name: name}, sync=name, status="failed", reason=name)
    return table([run, data("other")], ComparisonRequest(columns=(name,)))[0]


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
@pytest.mark.parametrize("width", [None, 80])
def test_a_terminal_is_given_no_control_character(name, width):
    text = render(hostile(name), width=width)
    assert not [char for char in text if unicodedata.category(char) in ACTS and char != "\n"]
    assert len(render(hostile(name)).splitlines()) == 3


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_a_spreadsheet_is_given_no_formula(name):
    text = render(hostile(name), "csv").encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    cells = [cell for line in csv.reader(io.StringIO(text, newline="")) for cell in line]
    for cell in cells:
        assert cell[:1] not in ("=", "+", "@", "\t", "\r")
        assert cell[:1] != "-" or float(cell) < 0
    if name[0] in "=+-@":
        assert cells.count(f"'{visible(name)}") >= 4  # its name, sync, reason and parameter
    assert not [char for cell in cells for char in cell if unicodedata.category(char) in ACTS]


def test_numbers_stay_numbers_in_csv_negative_and_infinite_ones_too():
    text = render(rows([data("a", loss=-0.5, accuracy="-inf")]), "csv")
    (row,) = csv.DictReader(io.StringIO(text, newline=""))
    assert (row["loss"], row["accuracy"]) == ("-0.5", "-inf")


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_markdown_has_one_line_a_row_and_no_markup(name):
    lines = render(hostile(name), "markdown").splitlines()
    assert len(lines) == 4
    bars = {len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) for line in lines}
    assert len(bars) == 1
    assert not re.search(r"(?<!\\)(?:\\\\)*[`<>]", "".join(lines))


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_json_holds_the_text_itself(name):
    assert json.loads(render(hostile(name), "json"))[0]["run"] == name


def test_other_scripts_are_left_as_they_are():
    assert visible("Größe 模型 é 🚀") == "Größe 模型 é 🚀"


@pytest.mark.parametrize(
    ("changes", "cell"),
    [
        ([{"accuracy": 0.90}, {"accuracy": 0.91}], "90.50% ±6.35"),
        ([{"throughput": 1000.0}, {"throughput": 1100.0}], "1,050 ±635"),
        ([{"throughput": 1000.0}, {"throughput": 1000.01}], "1,000 ±0.06"),
        ([{"wire": {"bytes_per_step": 2048}}, {"wire": {"bytes_per_step": 4096}}], "3.0 KiB ±12.7"),
        ([{"step_time": {"median": 0.012}}, {"step_time": {"median": 0.013}}], "12.5 ±6.4"),
        ([{"loss": 0.08}, {"loss": 0.08}], "0.0800"),
    ],
)
def test_an_interval_has_its_means_unit_and_decimals(changes, cell):
    runs = [data(f"r-{i}", config(i), **change) for i, change in enumerate(changes)]
    shown, _ = table(runs, ComparisonRequest(columns=("loss",)))
    keys = ["accuracy", "throughput_samples_per_s", "bytes_per_step", "step_ms", "loss"]
    assert re.search(rf"(^|\s){re.escape(cell)}(\s|$)", render(shown, columns=["run", *keys]))


def test_model_and_data_are_columns_where_runs_differ_in_them():
    assert "mlp" not in render(rows([data("a"), data("b")]))
    assert "cnn" in render(rows([data("a"), data("b", model="cnn")]))


def test_a_long_reason_is_shortened_for_people_alone():
    reason = "x" * 100 + "\nand more"
    row = rows([data("a", status="failed", reason=reason)])[0]
    assert "x" * 57 + "..." in render([row]) and "x" * 58 not in render([row])
    assert json.loads(render([row], "json"))[0]["why"] == reason


def test_facts_are_what_is_known_of_one_run():
    told = dict(facts(rows([data("a", modelled=True, accuracy=None)])[0]))
    assert told["run"] == "a (modelled)" and told["samples/s"] == "1,000" and "accuracy" not in told


def test_a_run_too_short_to_measure_says_so_where_its_figures_would_stand():
    lines = [
        data("brief", config(), too_short=True, throughput=None, step_time={"median": None}),
        data("long", config()),
    ]
    told = table(lines, ComparisonRequest(baseline=lines[1], group=False))[0]
    header, brief, long = render(told).splitlines()
    assert "samples/s" in header and "step ms" in header and "speed-up" in header
    assert brief.count("too short") == 3 and "too short" not in long
    assert "too short" in render(rows([lines[0]])), "its columns stay"
    assert dict(facts(rows([lines[0]])[0]))["samples/s"] == "too short"
    assert (
        json.loads(render(told, "json"))[0] | {"too_short": True, "throughput_samples_per_s": None}
        == json.loads(render(told, "json"))[0]
    )


def test_a_callbacks_own_metric_is_shown_as_its_like_and_kept_raw_for_programs():
    own = {"int8_accuracy": 0.9725, "int8_bytes": 13926, "own": 0.9725}
    told = [rows([data("a")])[0] | own]
    assert render(told, columns=[*own]).splitlines()[1].split() == ["97.25%", "13.6", "KiB", "0.9725"]
    assert json.loads(render(told, "json"))[0] == told[0]
