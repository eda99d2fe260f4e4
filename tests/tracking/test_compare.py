import csv
import io
import json
import re

import pytest

from paceline.conf.groups import SHOWN
from paceline.tracking.baseline import note_on
from paceline.tracking.compare import COLUMNS, FORMATS, check, human_bytes, render, rows, sort
from paceline.tracking.errors import CorruptRunError, TableError
from paceline.tracking.run_directory import RunDirectory
from paceline.tracking.summaries import row_of, summary_from

OF_GROUPS = ("front", "n", "runs", "others")  # columns that only some comparisons have


def summary(name="base", **changes) -> dict:
    return {
        "name": name,
        "strategy": "data_parallel",
        "sync": "bsp",
        "model": "mlp",
        "data": "digits",
        "partition": "shuffled",
        "stragglers": "none",
        "status": "completed",
        "workers": 4,
        "servers": 1,
        "batch_size": 32,
        "effective_batch": 32,
        "modelled": False,
        "throughput": 1000.0,
        "step_time": {"median": 0.012, "compute": 0.009, "communication": 0.002, "waiting": 0.0005},
        "predicted_step_ms": 9.0,
        "memory": {"parameters": 2**20, "host_optimizer": 2**21, "other": 3 * 2**20, "process_peak": 300 * 2**20},
        "wire": {"bytes_per_step": 1536, "by_primitive": {"all_reduce": 1536}, "total": 15360, "messages": 20},
        "dropped": 0,
        "lost": [],
        "consensus_distance": None,
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


def test_the_batch_is_shown_where_the_data_gave_less_than_was_asked_for():
    (asked,), (fewer,) = rows([summary()]), rows([summary(effective_batch=6)])
    assert (asked["effective_batch"], fewer["effective_batch"]) == (None, 6)
    assert "batch" not in render([asked], "markdown") and markdown_cell([asked, fewer], 1, "batch") == "6"


def test_a_replica_of_several_workers_is_shown_by_its_axes():
    meshes = [{"replica": 4}, {"replica": 2, "stage": 2, "tensor": 1}, {"replica": 2, "stage": 2, "tensor": 4}]
    found = rows([summary(mesh=mesh) for mesh in meshes])
    assert [row["mesh"] for row in found] == ["one worker", "stage 2", "stage 2 x tensor 4"]
    assert "replica" not in render(found[:1], "markdown") and markdown_cell(found, 2, "replica") == "stage 2 x tensor 4"
    assert [row_of(summary_from(row))["mesh"] for row in found] == [row["mesh"] for row in found]
    for wrong in ([2], {"stage": "many"}):
        with pytest.raises(ValueError, match=r"no mapping|many"):
            row_of(summary(mesh=wrong))


def test_a_row_holds_the_summary_in_the_units_that_its_keys_name():
    (row,) = rows([summary()])
    assert row == {
        **{group.name: group.usual for group in SHOWN},  # where a summary says nothing of it
        "run": "base",
        "status": "completed",
        "modelled": False,
        "too_short": False,
        "model": "mlp",
        "data": "digits",
        "strategy": "data_parallel",
        "sync": "bsp",
        "partition": "shuffled",
        "stragglers": "none",
        "workers": 4,
        "mesh": None,
        "servers": 1,
        "effective_batch": None,
        "throughput_samples_per_s": 1000.0,
        "updates_per_second": 31.25,
        "step_ms": 12.0,
        "compute_ms": 9.0,
        "communication_ms": 2.0,
        "waiting_ms": 0.5,
        "blocked": pytest.approx(0.25),
        "device_peak_mib": None,
        "peak_memory_mib": 300.0,
        "parameters_mib": 1.0,
        "gradients_mib": None,
        "optimizer_mib": None,
        "average_mib": None,
        "activations_mib": None,
        "buffers_mib": None,
        "host_parameters_mib": None,
        "host_gradients_mib": None,
        "host_optimizer_mib": 2.0,
        "host_average_mib": None,
        "host_activations_mib": None,
        "host_buffers_mib": None,
        "other_mib": 3.0,
        "bytes_per_step": 1536,
        "megabytes": 15360 * 1e-6,
        "messages": 20,
        "staleness_mean": None,
        "staleness_max": None,
        "dropped_gradients": 0,
        "lost_workers": 0,
        "compile_s": None,
        "worker_failures": None,
        "lost_work_s": None,
        "downtime_s": None,
        "checkpoint_s": None,
        "goodput": None,
        "skipped_steps": None,
        "consensus_distance": None,
        "noise_scale": None,
        "robust_accuracy": None,
        "target_reached": None,
        "client_mean": None,
        "client_worst": None,
        "client_spread": None,
        "personal_mean": None,
        "personal_worst": None,
        "personal_spread": None,
        "left_rounds": None,
        "given_up_rounds": None,
        "cut_share": None,
        "weights_kept": None,
        "backdoor_success": None,
        "model_bytes": None,
        "epsilon": None,
        "epsilon_as_dealt": None,
        "loss": 0.08,
        "accuracy": 0.975,
        "r2": None,
        "purity": None,
        "time_to_accuracy_s": 20.0,
        "epochs_to_accuracy": None,
        "rounds_to_accuracy": None,
        "steps_to_accuracy": None,
        "time_per_pass_s": None,
        "predicted_step_ms": 9.0,
        "predicted_error": pytest.approx(-0.25),
        "dollars": None,
        "disturbed": None,
        "why": None,
    }


def test_every_key_of_a_row_is_a_column_in_the_columns_order():
    (row,) = rows([summary()], baseline="base")
    assert list(row) == [column.key for column in COLUMNS if column.key not in OF_GROUPS]


def test_the_memory_view_has_a_column_for_each_kind_that_any_run_has_and_the_usual_one_none():
    table = rows([summary(), summary("other", memory={"parameters": 2**18, "buffers": 0, "process_peak": 2**28})])
    lines = render(table, "markdown", memory=True).splitlines()
    assert cells(lines[0])[4:] == ["parameters MiB", "buffers MiB", "host optimizer MiB", "other MiB", "host peak MiB"]
    assert cells(lines[2])[4:] == ["1.00", "-", "2.00", "3.00", "300"]
    assert cells(lines[3])[4:] == ["0.25", "0.00", "-", "-", "256"]
    for width in (None, 120):
        assert "host optimizer" in render(table, width=width, memory=True)
        assert "optimizer" not in render(table, width=width)
    assert "MiB" in render(table) and "parameters" not in render(table, "markdown")


def test_speed_ups_are_ratios_to_the_baseline_and_one_for_itself():
    fast = summary("fast", throughput=3000.0, time_to_accuracy=5.0)
    base, quick = rows([summary(), fast], baseline="base")
    assert (base["speedup_throughput"], base["speedup_time_to_accuracy"]) == (1, 1)
    assert (quick["speedup_throughput"], quick["speedup_time_to_accuracy"]) == (3, 4)
    (alone,) = rows([fast], baseline=summary())
    assert alone["speedup_throughput"] == 3


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"model": "cnn"}, "its model is cnn, and the baseline's mlp"),
        ({"data": "text"}, "its data is text, and the baseline's digits"),
        ({"task": "hinge"}, "its task is hinge, and the baseline's cross_entropy"),
        ({"modelled": True}, "it is modelled, and the baseline measured"),
    ],
)
def test_runs_that_cannot_be_compared_have_no_speed_up_and_the_note_says_why(change, why):
    table = rows([summary(), summary("other", **change)], baseline="base")
    assert table[1]["speedup_throughput"] is None and table[1]["speedup_time_to_accuracy"] is None
    assert note_on(table) == f"a speed-up is missing: other ({why})"


@pytest.mark.parametrize(
    ("of_baseline", "of_other", "why"),
    [
        ({"throughput": None}, {}, "the baseline has no throughput"),
        ({}, {"throughput": None, "too_short": True}, "it was too short to measure"),
        ({}, {"time_to_accuracy": None}, "it has not reached target_accuracy"),
        ({"time_to_accuracy": None}, {}, "the baseline has not reached target_accuracy"),
        ({"time_to_accuracy": None}, {"time_to_accuracy": None}, None),
        ({}, {"target_accuracy": 0.5}, "its target_accuracy is 0.5, and the baseline's 0.95"),
        ({}, {}, None),
    ],
)
def test_a_speed_up_that_is_missing_has_a_reason(of_baseline, of_other, why):
    _, other = rows([summary(**of_baseline), summary("other", **of_other)], baseline="base")
    assert other["no_speedup"] == why


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


@pytest.mark.parametrize("status", ["failed", "diverged", "interrupted"])
def test_a_run_without_a_summary_has_the_status_that_its_last_end_tells(tmp_path, status):
    run = RunDirectory.create(tmp_path, "broken")
    for kind in ("failed", "completed", status):
        run.append({"kind": "end", "status": kind, "reason": "worker 1 said so"})
    (row,) = rows([run])
    assert row["status"] == status and markdown_cell([row], 0, "run") == f"broken ({status})"


DAMAGED = {
    "truncated": '{"name": "base", "thr',
    "no JSON": "\x00\x01",
    "no object": "[1, 2]",
    "empty object": "{}",
    "throughput": json.dumps(summary(throughput="fast")),
    "workers": json.dumps(summary(workers=[4])),
    "accuracy": json.dumps(summary(accuracy=True)),
    "strategy": json.dumps(summary(strategy=7)),
    "step_time": json.dumps(summary(step_time=0.012)),
    "median": json.dumps(summary(step_time={"median": {}})),
    "memory": json.dumps(summary(memory=[1])),
    "staleness": json.dumps(summary(staleness=2.5)),
    "dropped": json.dumps(summary(dropped="many")),
    "lost": json.dumps(summary(lost=2)),
    "stragglers": json.dumps(summary(stragglers=3)),
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_summary_gives_a_row_of_what_the_metrics_tell_beside_the_others(tmp_path, content):
    run = RunDirectory.create(tmp_path, "hurt")
    run.append({"kind": "start", "strategy": "gpipe", "sync": "bsp", "model": "mlp", "data": "digits", "workers": 2})
    run.append({"kind": "end", "status": "completed"})
    run.summary.write_text(content)
    table = rows([summary(), run], baseline="base")
    assert table[0] == rows([summary()], baseline="base")[0]
    assert (table[1]["run"], table[1]["status"]) == ("hurt", "damaged")
    assert (table[1]["strategy"], table[1]["workers"], table[1]["throughput_samples_per_s"]) == ("gpipe", 2, None)
    for form in FORMATS:
        assert "hurt" in render(sort(table, "throughput"), form)
    with pytest.raises(CorruptRunError, match=r"hurt/summary\.json") as refused:
        check(run)
    assert refused.value.exit_code == 7


def test_metrics_of_wrong_types_are_damaged_too(tmp_path):
    run = RunDirectory.create(tmp_path, "hurt")
    run.append({"kind": "start", "strategy": "gpipe", "workers": "many"})
    (row,) = rows([run])
    assert (row["run"], row["status"], row["strategy"]) == ("hurt", "damaged", None)
    with pytest.raises(CorruptRunError, match=r"hurt/metrics\.jsonl"):
        check(run)


def test_staleness_is_a_column_when_some_run_has_it():
    stale = summary("asp", staleness={"mean": 1.25, "max": 3, "histogram": {"0": 1, "1": 2, "3": 1}})
    table = rows([summary(staleness=None), stale])
    assert [(row["staleness_mean"], row["staleness_max"]) for row in table] == [(None, None), (1.25, 3)]
    assert (markdown_cell(table, 0, "staleness"), markdown_cell(table, 1, "staleness")) == ("-", "1.25")
    assert "staleness" not in render(table[:1], "table") and "staleness" not in render(table[:1], "markdown")
    assert "staleness_mean,staleness_max" in render(table[:1], "csv")
    assert [row["run"] for row in sort(table, "staleness")] == ["asp", "base"]


@pytest.mark.parametrize(
    ("told", "key", "value", "title", "cell", "usual"),
    [
        ({"dropped": 1234}, "dropped_gradients", 1234, "dropped", "1,234", "0"),
        ({"lost": [2, 5]}, "lost_workers", 2, "lost", "2", "0"),
        ({"skipped_steps": 3}, "skipped_steps", 3, "skipped", "3", "-"),
        ({"consensus_distance": 0.0123456}, "consensus_distance", 0.0123456, "consensus", "0.0123", "-"),
        ({"consensus_distance": 0.0}, "consensus_distance", 0.0, "consensus", "0", "-"),
        ({"stragglers": "lognormal"}, "stragglers", "lognormal", "stragglers", "lognormal", "none"),
        ({"partition": "dirichlet"}, "partition", "dirichlet", "partition", "dirichlet", "shuffled"),
    ],
)
def test_what_is_not_as_usual_in_some_run_is_a_column_for_people_and_always_a_key(told, key, value, title, cell, usual):
    table = rows([summary(), summary("other", **told)])
    assert table[1][key] == value
    assert (markdown_cell(table, 0, title), markdown_cell(table, 1, title)) == (usual, cell)
    assert title in render(table, "table") and title in render(table, "table", width=300)
    for form in ("table", "markdown"):
        assert title not in render(table[:1], form)
    assert key in render(table[:1], "csv").splitlines()[0] and key in json.loads(render(table[:1], "json"))[0]


def test_messages_are_a_key_and_no_column_for_people():
    table = rows([summary()])
    assert table[0]["messages"] == 20 and "messages" not in render(table, "markdown")
    assert "messages" in render(table, "csv")


def test_a_summary_from_before_these_measures_has_a_row_all_the_same():
    missing = ("dropped", "lost", "consensus_distance", "stragglers", "partition")
    old = {key: value for key, value in summary().items() if key not in missing}
    (row,) = rows([old])
    assert [row[key] for key in ("dropped_gradients", "lost_workers")] == [None] * 2
    assert (row["partition"], row["stragglers"]) == ("shuffled", "none"), "what such runs had"
    assert render([row], "table") == render(rows([summary()]), "table")


def test_the_peak_is_that_of_the_largest_process_worker_or_server():
    server = {"parameters": 4, "process_peak": 700 * 2**20}
    assert rows([summary(server_memory=server)])[0]["peak_memory_mib"] == 700
    assert rows([summary(server_memory=server | {"process_peak": 1})])[0]["peak_memory_mib"] == 300
    assert rows([summary(server_memory=server, memory=None)])[0]["peak_memory_mib"] == 700
    assert rows([summary(server_memory=None)])[0]["peak_memory_mib"] == 300


def test_the_peak_of_a_gpu_is_beside_that_of_the_process_and_is_what_the_ratio_is_of():
    on_gpu = [
        summary(name, memory={"process_peak": 300 * 2**20, "device_peak": size * 2**20})
        for name, size in {"a": 1000, "b": 4000}.items()
    ]
    table = rows([*on_gpu, summary("c")], baseline="a")
    assert [row["device_peak_mib"] for row in table] == [1000, 4000, None]
    assert [row["memory_ratio"] for row in table] == [1.0, 4.0, None]
    for view in (True, False):
        lines = [cells(line) for line in render(table, "markdown", memory=view).splitlines()]
        at = lines[0].index("GPU peak MiB")
        assert lines[0][at + 1] == "host peak MiB"
        assert [line[at : at + 2] for line in lines[2:5]] == [["1,000", "300"], ["4,000", "300"], ["-", "300"]]
    assert "GPU" not in render(rows([summary()]), "markdown")
    server = {"process_peak": 1, "device_peak": 5000 * 2**20}
    assert rows([summary(server_memory=server)])[0]["device_peak_mib"] == 5000


def test_what_a_summary_holds_for_each_worker_leaves_its_row_as_it_is():
    worker = {"rank": 0, "median": 0.01, "compute": None, "communication": None, "waiting": None, "samples": 320}
    assert rows([summary(per_worker=[worker], resumed_at=7)]) == rows([summary()])


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


def test_every_column_can_be_sorted_by():
    table = rows([summary("a"), summary("b")], baseline="a")
    for column in COLUMNS:
        if column.key not in OF_GROUPS:
            assert len(sort(table, column.key)) == 2, column.key


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


@pytest.mark.parametrize("form", ["csv", "json"])
def test_a_modelled_run_is_labelled_where_programs_read_it(form):
    text = render(rows([summary(), summary("virtual", modelled=True)]), form)
    if form == "csv":
        labels = [row["modelled"] for row in csv.DictReader(io.StringIO(text, newline=""))]
        assert labels == ["False", "True"]
    else:
        assert [row["modelled"] for row in json.loads(text)] == [False, True]


def test_a_modelled_run_without_a_summary_is_labelled_too(tmp_path):
    run = RunDirectory.create(tmp_path, "virtual")
    run.append({"kind": "start", "sync": "asp", "workers": 64, "modelled": True, "stragglers": "pareto"})
    run.append({"kind": "evaluation", "step": 1, "accuracy": 0.25, "loss": 1.5, "consensus_distance": 0.5})
    (row,) = rows([run])
    assert (row["stragglers"], row["consensus_distance"]) == ("pareto", 0.5)
    assert markdown_cell([row], 0, "run") == "virtual (modelled, unfinished)"


@pytest.mark.parametrize(("seconds", "shown"), [(48.24, "48.2"), (1.0, "1.0"), (0.0278, "0.0278"), (0.9, "0.9")])
def test_a_modelled_time_to_accuracy_of_milliseconds_is_not_rounded_away(seconds, shown):
    assert markdown_cell(rows([summary(time_to_accuracy=seconds)]), 0, "to acc. s") == shown


def test_a_column_in_which_nothing_is_known_is_left_out_for_people():
    table = rows([summary(time_to_accuracy=None)])
    assert "to acc. s" not in render(table, "markdown")
    assert "time_to_accuracy_s" in render(table, "csv")


def test_a_piped_table_is_plain_and_its_columns_line_up():
    lines = render(rows([summary(), summary("a much longer name", throughput=5.0)]), "table").splitlines()
    assert not any("\x1b" in line for line in lines)
    ends = [line.index(text) + len(text) for line, text in zip(lines, ("samples/s", "1,000", " 5"), strict=True)]
    assert len(set(ends)) == 1


MATTER_FIRST = ["run", "accuracy", "to acc. s", "samples/s", "sent/step", "strategy", "sync"]


def split(header: str) -> list[str]:
    return re.split(r" {2,}", header)


@pytest.mark.parametrize("width", [60, 80, 120, 300])
def test_a_table_fits_its_width_whole_cells_only_and_names_what_it_leaves_out(width):
    table = rows([summary(), summary("another", modelled=True)], baseline="base")
    lines = render(table, "table", width=width).splitlines()
    assert max(map(len, lines)) <= width
    shown, whole = split(lines[0]), split(render(table).splitlines()[0])
    assert set(shown) <= set(whole) and shown[:4] == ["run", "speed-up", *MATTER_FIRST[1:3]]
    assert len(split(lines[1])) == len(shown) and split(lines[2])[0] == "another (modelled)"
    told = " ".join(lines[3:])
    assert ("left out" in told) == (len(shown) < len(whole))
    by_title = {column.title: column.short or column.key for column in COLUMNS}
    named = re.findall(r"columns: (.*); to see all", told)
    left_out = named[0].split(", ") if named else []
    assert sorted(left_out) == sorted(by_title[title] for title in whole if title not in shown)


def test_the_columns_that_matter_come_first_where_a_width_is_given():
    table = rows([summary(), summary("another")])
    assert split(render(table, width=300).splitlines()[0])[:7] == MATTER_FIRST
    assert split(render(table, width=80).splitlines()[0])[:7] == MATTER_FIRST


def test_choices_in_which_runs_differ_come_before_what_was_measured_and_those_that_all_share_after():
    table = rows([summary(), summary("another", sync="asp", compress="topk")])
    assert split(render(table, width=80).splitlines()[0])[:4] == ["run", "sync", "compress", "accuracy"]
    [alone] = [split(render(rows([summary()]), width=80).splitlines()[0])]
    assert alone[:3] == ["run", "strategy", "sync"]


def test_the_width_that_a_narrow_table_names_shows_every_column():
    table = rows([summary(), summary("another")], baseline="base")
    told = " ".join(render(table, width=80).split())
    needed = int(re.findall(r"COLUMNS=(\d+)", told)[0])
    assert "left out" not in render(table, width=needed) and "left out" in render(table, width=needed - 1)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_reason_stays_in_a_narrow_table_shortened_where_it_must_be(width):
    table = rows([summary(), summary("bad", status="failed", reason="worker 1 was killed by SIGKILL at step 3 of 40")])
    lines = render(table, width=width).splitlines()
    assert max(map(len, lines)) <= width and split(lines[0])[-1] == "why"
    assert "worker 1 was kill" in lines[2] and ("..." in lines[2]) == ("at step 3 of 40" not in lines[2])


def test_columns_that_are_asked_for_keep_their_order_at_any_width():
    table = rows([summary(), summary("another")])
    keys = ["run", "step_ms", "accuracy", "strategy", "sync", "workers"]
    assert split(render(table, width=300, columns=keys).splitlines()[0])[1:4] == ["step ms", "accuracy", "strategy"]
    narrow = render(table, width=30, columns=keys)
    assert split(narrow.splitlines()[0])[:3] == ["run", "step ms", "accuracy"] and "left out" in narrow


@pytest.mark.parametrize("form", ["markdown", "csv", "json"])
def test_the_other_formats_are_whole_at_any_width(form):
    table = rows([summary(), summary("another")], baseline="base")
    assert render(table, form, width=20) == render(table, form)


def test_square_brackets_in_a_name_are_not_taken_for_colours():
    assert "[red]" in render(rows([summary("[red]")]), "table", width=200)


@pytest.mark.parametrize("form", FORMATS)
def test_no_runs_are_an_empty_table_and_no_error(form):
    assert render([], form).endswith("\n")
    assert render([], "table", width=80)


def test_an_unknown_format_has_exit_code_2():
    with pytest.raises(TableError, match="table, markdown, latex, csv, json") as refused:
        render([], "yaml")
    assert refused.value.exit_code == 2


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (5 * 2**20, "5.0 MiB"), (3 * 2**40, "3.0 TiB")],
)
def test_bytes_are_shown_in_binary_units(count, text):
    assert human_bytes(count) == text
