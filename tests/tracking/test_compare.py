import csv
import io
import json

import pytest

from paceline.tracking.compare import COLUMNS, FORMATS, human_bytes, render, rows, sort
from paceline.tracking.errors import TableError
from paceline.tracking.run_directory import RunDirectory


def summary(name="base", **changes) -> dict:
    return {
        "name": name,
        "strategy": "data_parallel",
        "sync": "bsp",
        "model": "mlp",
        "data": "digits",
        "status": "completed",
        "workers": 4,
        "modelled": False,
        "throughput": 1000.0,
        "step_time": {"median": 0.012, "compute": 0.009, "communication": 0.002, "waiting": 0.0005},
        "memory": {"parameters": 4, "process_peak": 300 * 2**20},
        "wire": {"bytes_per_step": 1536, "by_primitive": {"all_reduce": 1536}, "total": 15360},
        "accuracy": 0.975,
        "loss": 0.08,
        "target_accuracy": 0.95,
        "time_to_accuracy": 20.0,
        "seconds": 30.0,
    } | changes


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split(" | ")]


def markdown_cell(table, row: int, column: str) -> str:
    lines = render(table, "markdown").splitlines()
    return cells(lines[2 + row])[cells(lines[0]).index(column)]


def test_a_row_holds_the_summary_in_the_units_that_its_keys_name():
    (row,) = rows([summary()])
    assert row == {
        "run": "base",
        "status": "completed",
        "modelled": False,
        "model": "mlp",
        "data": "digits",
        "strategy": "data_parallel",
        "sync": "bsp",
        "workers": 4,
        "throughput_samples_per_s": 1000.0,
        "step_ms": 12.0,
        "compute_ms": 9.0,
        "communication_ms": 2.0,
        "waiting_ms": 0.5,
        "peak_memory_mib": 300.0,
        "bytes_per_step": 1536,
        "loss": 0.08,
        "accuracy": 0.975,
        "time_to_accuracy_s": 20.0,
    }


def test_every_key_of_a_row_is_a_column_in_the_columns_order():
    (row,) = rows([summary()], baseline="base")
    assert list(row) == [column.key for column in COLUMNS]


def test_speed_ups_are_ratios_to_the_baseline_and_one_for_itself():
    fast = summary("fast", throughput=3000.0, time_to_accuracy=5.0)
    base, quick = rows([summary(), fast], baseline="base")
    assert (base["speedup_throughput"], base["speedup_time_to_accuracy"]) == (1, 1)
    assert (quick["speedup_throughput"], quick["speedup_time_to_accuracy"]) == (3, 4)
    (alone,) = rows([fast], baseline=summary())
    assert alone["speedup_throughput"] == 3


@pytest.mark.parametrize("change", [{"model": "cnn"}, {"data": "text"}, {"modelled": True}])
def test_runs_that_cannot_be_compared_have_no_speed_up(change):
    _, other = rows([summary(), summary("other", **change)], baseline="base")
    assert other["speedup_throughput"] is None and other["speedup_time_to_accuracy"] is None


def test_times_to_different_accuracies_are_not_compared():
    _, other = rows([summary(), summary("other", target_accuracy=0.5)], baseline="base")
    assert other["speedup_throughput"] == 1 and other["speedup_time_to_accuracy"] is None


def test_a_baseline_without_a_throughput_gives_no_speed_up():
    for unknown in (None, 0.0):
        row = rows([summary()], baseline=summary(throughput=unknown))[0]
        assert row["speedup_throughput"] is None


def test_an_unknown_baseline_has_exit_code_2_and_names_the_nearest_run():
    with pytest.raises(TableError, match=r"'bse'.*did you mean base\?") as refused:
        rows([summary()], baseline="bse")
    assert refused.value.exit_code == 2


def test_an_unfinished_run_appears_with_what_its_metrics_tell(tmp_path):
    run = RunDirectory.create(tmp_path, "crashed")
    run.append({"kind": "start", "strategy": "gpipe", "sync": "bsp", "model": "mlp", "data": "digits", "workers": 2})
    run.append({"kind": "step", "step": 1, "loss": 2.0})
    run.append({"kind": "evaluation", "step": 1, "accuracy": 0.25, "loss": 1.5})
    run.append({"kind": "step", "step": 2, "loss": float("nan")})
    (row,) = rows([run])
    assert row["status"] == "unfinished" and row["accuracy"] == 0.25 and str(row["loss"]) == "nan"
    assert (row["strategy"], row["workers"], row["throughput_samples_per_s"]) == ("gpipe", 2, None)
    assert markdown_cell([row], 0, "run") == "crashed (unfinished)"
    run.append({"kind": "end", "status": "failed"})
    assert rows([run])[0]["status"] == "failed"
    run.append({"kind": "resume", "step": 1})
    assert rows([run])[0]["status"] == "unfinished"


def test_a_finished_run_directory_gives_the_row_of_its_summary(tmp_path):
    run = RunDirectory.create(tmp_path, "base")
    run.write_summary(summary())
    assert rows([run]) == rows([summary()])


def test_an_empty_run_directory_still_has_a_row_in_every_format(tmp_path):
    table = rows([RunDirectory.create(tmp_path, "empty")])
    for form in FORMATS:
        assert "empty" in render(table, form)


def test_sorting_puts_the_best_first_and_the_unknown_last():
    table = rows(
        [
            summary("a", throughput=10.0, time_to_accuracy=None),
            summary("b", throughput=None, time_to_accuracy=5.0),
            summary("c", throughput=30.0, time_to_accuracy=7.0),
            summary("d", throughput="nan", time_to_accuracy=6.0),
        ]
    )

    def order(*arguments, **options):
        return [row["run"] for row in sort(table, *arguments, **options)]

    assert order("throughput_samples_per_s") == order("throughput") == ["c", "a", "b", "d"]
    assert order("throughput", reverse=True) == ["a", "c", "b", "d"]
    assert order("time_to_accuracy") == ["b", "d", "c", "a"]
    assert order("run") == ["a", "b", "c", "d"]


@pytest.mark.parametrize("column", [column.key for column in COLUMNS])
def test_every_column_can_be_sorted_by(column):
    table = rows([summary("a"), summary("b")], baseline="a")
    assert len(sort(table, column)) == 2


def test_an_unknown_column_has_exit_code_2_and_names_the_nearest():
    with pytest.raises(TableError, match=r"no column 'throughputt': did you mean throughput") as refused:
        sort(rows([summary()]), "throughputt")
    assert refused.value.exit_code == 2


def test_a_speed_up_cannot_be_sorted_by_without_a_baseline():
    with pytest.raises(TableError):
        sort(rows([summary()]), "speedup")


def test_csv_reads_back_as_the_rows():
    table = rows([summary(), summary("other, with a comma", accuracy=None)], baseline="base")
    back = list(csv.DictReader(io.StringIO(render(table, "csv"), newline="")))
    assert [list(row) for row in back] == [list(row) for row in table]
    assert float(back[0]["throughput_samples_per_s"]) == 1000 and back[0]["bytes_per_step"] == "1536"
    assert back[1]["accuracy"] == "" and back[1]["run"] == "other, with a comma"


def test_json_reads_back_as_the_rows_and_is_strict():
    table = rows([summary(), summary("other", loss="nan")])
    back = json.loads(render(table, "json"), parse_constant=lambda name: pytest.fail(name))
    assert back[0] == table[0]
    assert back[1]["loss"] == "nan"


def test_markdown_is_a_table_with_units_for_people():
    table = rows([summary()], baseline="base")
    lines = render(table, "markdown").splitlines()
    assert len(lines) == 3 and len({len(cells(line)) for line in lines}) == 1
    assert markdown_cell(table, 0, "sent/step") == "1.5 KiB"
    assert markdown_cell(table, 0, "accuracy") == "97.50%"
    assert markdown_cell(table, 0, "step ms") == "12.0"
    assert markdown_cell(table, 0, "wait ms") == "0.500"
    assert markdown_cell(table, 0, "speed-up") == "1.00x"
    assert markdown_cell(rows([summary("a|b")]), 0, "run") == "a\\|b"


@pytest.mark.parametrize("form", ["table", "markdown"])
def test_a_modelled_run_is_labelled_wherever_people_read_it(form):
    table = rows([summary(), summary("virtual", modelled=True, status="interrupted")])
    text = render(table, form)
    assert "virtual (modelled, interrupted)" in text and "base (" not in text


def test_a_column_in_which_nothing_is_known_is_left_out_for_people():
    table = rows([summary(time_to_accuracy=None)])
    assert "to acc. s" not in render(table, "markdown")
    assert "time_to_accuracy_s" in render(table, "csv")


def test_a_piped_table_is_plain_and_its_columns_line_up():
    lines = render(rows([summary(), summary("a much longer name", throughput=5.0)]), "table").splitlines()
    assert not any("\x1b" in line for line in lines)
    ends = [line.index(text) + len(text) for line, text in zip(lines, ("samples/s", "1,000", " 5"), strict=True)]
    assert len(set(ends)) == 1


@pytest.mark.parametrize("width", [60, 80, 120, 300])
def test_on_a_terminal_no_line_is_wider_than_it_and_every_column_is_there(width):
    from rich.text import Text

    table = rows([summary(), summary("another", modelled=True)], baseline="base")
    lines = Text.from_ansi(render(table, "table", width=width)).plain.splitlines()
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    for cell in ("samples/s", "1,000", "1.5 KiB", "97.50%", "speed-up to acc.", "another (modelled)"):
        assert cell in text


def test_square_brackets_in_a_name_are_not_taken_for_colours():
    assert "[red]" in render(rows([summary("[red]")]), "table", width=200)


@pytest.mark.parametrize("form", FORMATS)
def test_no_runs_are_an_empty_table_and_no_error(form):
    assert render([], form).endswith("\n")
    assert render([], "table", width=80)


def test_an_unknown_format_has_exit_code_2():
    with pytest.raises(TableError, match="table, markdown, csv, json") as refused:
        render([], "yaml")
    assert refused.value.exit_code == 2


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (5 * 2**20, "5.0 MiB"), (3 * 2**40, "3.0 TiB")],
)
def test_bytes_are_shown_in_binary_units(count, text):
    assert human_bytes(count) == text
