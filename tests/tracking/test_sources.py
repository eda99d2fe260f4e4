"""Where compared runs may lie: run directories, sweeps, W&B files, exported JSON."""

import json
import math
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from recorded import began, config, datastore, directory, history, items

from paceline.tracking import files, run_directory, summaries
from paceline.tracking.compare import ComparisonRequest, render, rows, table
from paceline.tracking.errors import CorruptRunError, RunNameError
from paceline.tracking.files import open_regular
from paceline.tracking.run_data import Swept
from paceline.tracking.run_directory import RunDirectory
from paceline.tracking.sources import every, gather, sweep_names
from paceline.tracking.wandb_datastore import read


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two runs, and a sweep of two trials with two seeds each; its last trial failed before training."""
    root = tmp_path / "runs"
    directory(root, "first", config())
    directory(root, "second", config(sync="ssp"))
    (root / "rates").mkdir()
    (root / "rates" / "sweep.yaml").write_text("method: grid\n")
    for trial, seed, name in [(1, 1, "a"), (10, 0, "b"), (1, 0, "c")]:
        of = Swept("rates", trial, seed, {"optimizer.lr": 0.1 * trial})
        directory(root / "rates", name, config(seed, 0.1 * trial), of)
    bad = RunDirectory.create(root / "rates", "0-bad")
    bad.append({"kind": "end", "status": "failed", "reason": "optimizer.lr=-1: must be positive"})
    (bad.path / "trial.json").write_text(json.dumps(vars(Swept("rates", 11, 0, {"optimizer.lr": -1}))))
    return root


def names(*wanted: object, root: Path) -> list[str]:
    return [run.name for run in gather([str(name) for name in wanted], root)]


def test_a_name_is_a_run_a_sweep_or_a_run_of_a_sweep_and_a_path_is_as_good(root, monkeypatch):
    assert names("second", "first", root=root) == ["second", "first"]
    assert names("rates", root=root) == ["c", "a", "b", "0-bad"]  # by trial, then seed
    assert names("rates/b", root=root) == ["b"]
    monkeypatch.chdir(root.parent)
    elsewhere = root.parent / "nothing"
    for path in ("runs/first", root / "first"):
        assert names(path, root=elsewhere) == ["first"]
    assert names("runs/rates", root=elsewhere) == names("runs/rates/", root=elsewhere) == ["c", "a", "b", "0-bad"]
    assert sweep_names(root) == ["rates"]


def test_a_trial_that_ended_before_its_first_record_keeps_its_choices(root):
    """CSV rows of two trials: one interrupted while its workers started, the other refused."""
    for name, of, choices in [("i", config(sync="ssp"), {"sync": "ssp"}), ("r", {}, {"sync": "bsp", "model": 3})]:
        run = RunDirectory.create(root / "rates", name)
        run.append({"kind": "end", "status": "interrupted", "reason": "stopped by SIGTERM; nothing was saved yet"})
        (run.path / "trial.json").write_text(json.dumps(vars(Swept("rates", 12, 0, choices))))
        if of:
            run.write_config(json.dumps(of) + "\n")
    told = rows(gather(["rates/i", "rates/r"], root))
    assert [(row["sync"], row["status"]) for row in told] == [("ssp", "interrupted"), ("bsp", "interrupted")]
    assert [row["workers"] for row in told] == [4, None] and told[1]["model"] is None
    text = render(told, "csv")
    assert "ssp" in text and "failed" not in text


def test_a_run_named_twice_is_there_once(root):
    assert names("first", root / "first", "rates/b", "rates", root=root) == ["first", "b", "c", "a", "0-bad"]


def test_a_folder_of_runs_needs_no_sweep_definition(root):
    assert names(root, root=root / "nothing") == ["first", "second"]


def test_a_run_has_its_configuration_records_and_trial(root):
    (run,) = gather(["rates/b"], root)
    assert run.config["optimizer"]["knobs"]["lr"] == 1.0 and run.records[0]["loss"] == 1.0
    assert run.swept == Swept("rates", 10, 0, {"optimizer.lr": 1.0}) and run.path == root / "rates" / "b"


def test_without_records_only_those_are_read_that_tell_what_no_summary_does(root):
    whole, broken = gather(["first", "rates/0-bad"], root, records=False)
    assert whole.records == [] and whole.summary["accuracy"] == 0.975
    assert broken.summary["status"] == "failed" and "must be positive" in broken.summary["reason"]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("frist", "did you mean first"),
        ("rate", "did you mean rates"),
        ("rates/bb", "did you mean rates/b"),
        ("somewhere/secnd", "did you mean second"),
        ("../runs", "there are|did you mean"),
        ("\0", "there are|did you mean"),
        ("x" * 5000, "there are first"),
    ],
)
def test_what_is_none_of_these_is_refused_with_the_nearest(name, hint, root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # beside which there are no runs
    with pytest.raises(RunNameError, match=hint) as refused:
        gather([name], root)
    assert refused.value.exit_code == 2


def test_a_sweep_without_runs_is_refused(root):
    (root / "empty").mkdir()
    (root / "empty" / "sweep.yaml").touch()
    with pytest.raises(RunNameError, match="empty: has no runs yet"):
        gather(["empty"], root)


def test_a_damaged_run_is_gathered_with_its_reason_and_refused_where_it_is_named_and_must_be_whole(root):
    (root / "first" / "summary.json").write_text("{")
    (root / "first" / "config.yaml").write_text("a: [")
    (root / "first" / "trial.json").write_text('{"sweep": "s", "trial": "one", "seed": 0, "parameters": {}}')
    (run,) = gather(["first"], root)
    assert run.summary["status"] == "damaged" and "summary.json" in run.summary["reason"]
    assert run.config == {} and run.swept is None
    assert len(gather(["second", str(root)], root, whole=True)) == 2  # it is not named itself
    with pytest.raises(CorruptRunError, match=r"first/summary\.json"):
        gather(["second", "first"], root, whole=True)


def test_every_run_is_there_by_time_once_whatever_it_is_called_and_those_of_sweeps_are_not(root):
    (root / "second").rename(root / "of two words")
    (root / "linked").symlink_to(root / "first")
    (root / "outside").symlink_to(root / "rates" / "a")
    for time, name in enumerate(["outside", "of two words", "first"]):
        os.utime(root / name / "metrics.jsonl", (time, time))
    assert [run.path for run in every(root)] == [root / "rates" / "a", root / "of two words", root / "first"]


@pytest.mark.parametrize("records", [True, False])
def test_each_file_of_a_run_is_opened_once(records, root, monkeypatch):
    (root / "second" / "summary.json").unlink()
    opened: Counter[str] = Counter()

    def counted(path):
        opened[str(path)] += 1
        return open_regular(path)

    for module in (files, run_directory):
        monkeypatch.setattr(module, "open_regular", counted)
    assert [run.summary["status"] for run in every(root, records)] == ["completed", "unfinished"]
    gather(["first", str(root / "first"), "rates"], root, records, whole=True)
    parts = ("config.yaml", "metrics.jsonl", "summary.json", "trial.json")
    paths = [root / "second", *(root / "rates" / name for name in ("a", "b", "c", "0-bad"))]
    assert opened == {str(path / part): 1 for path in paths for part in parts} | {
        str(root / "first" / part): 2 for part in parts
    }


@pytest.mark.parametrize(
    ("file", "old", "new", "key", "value"),
    [
        ("config.yaml", "staleness: 3", "staleness: 4", "sync.staleness", 4),
        ("summary.json", '"loss": 0.08', '"loss": 0.09', "loss", 0.09),
        ("trial.json", "0.1", "0.7", "optimizer.lr", 0.7),
    ],
)
def test_what_was_read_before_never_stands_for_what_a_file_says_now(file, old, new, key, value, root):
    request = ComparisonRequest(group=False, columns=("sync.staleness", "loss", "optimizer.lr"))
    before, _ = table(gather(["rates/a"], root, records=False), request)
    path = root / "rates" / "a" / file
    assert path.read_text().count(old) == 1
    path.write_text(path.read_text().replace(old, new))
    after, _ = table(gather(["rates/a"], root, records=False), request)
    assert after[0][key] == value != before[0][key]
    assert {name: told for name, told in after[0].items() if name != key} == {
        name: told for name, told in before[0].items() if name != key
    }


HOSTILE = {
    "torn": b"a: [",
    "text": b"just text",
    "list": b"- 1\n- 2",
    "nothing": b"",
    "nul": b"\x00",
    "deep": b"[" * 50_000,
    "deep mappings": b'{"a": ' * 50_000,
    "digits": b'{"sweep": "s", "trial": ' + b"9" * 5000 + b"}",
    "bytes": b'{"sweep": "\xff"}',
    "itself": b"&a [*a]",
}


@pytest.mark.parametrize("name", ["config.yaml", "summary.json", "trial.json", "metrics.jsonl", "schedule.json"])
@pytest.mark.parametrize("content", [*HOSTILE.values(), None], ids=[*HOSTILE, "pipe"])
def test_no_file_of_a_run_crashes_or_hangs_a_comparison_and_each_is_named(name, content, root):
    file = root / "first" / name
    file.unlink(missing_ok=True)
    if content is None:
        os.mkfifo(file)
    else:
        file.write_bytes(content)
    for records in (True, False):
        first, second = gather(["first", "second"], root, records=records)
        assert second.damage == () and second.summary["status"] == "completed"
        said = [*first.damage, first.summary.get("reason") or ""]
        killed = name == "metrics.jsonl" and content is not None and content[:1] in (b"", b"{")  # while it wrote
        assert killed or any(str(file) in line for line in said)
    rows([first, second])


@pytest.mark.parametrize("content", ["just text", "- 1\n- 2", ""])
def test_a_configuration_that_is_no_mapping_is_told_and_one_that_is_not_there_is_not(content, root):
    (root / "first" / "config.yaml").write_text(content)
    (root / "second" / "config.yaml").unlink()
    first, second = gather(["first", "second"], root, records=False)
    assert first.damage == (f"{root}/first/config.yaml: is no YAML mapping",) and first.config == {}
    assert second.damage == () and first.summary["status"] == "completed"


def test_damaged_lines_are_told_and_of_what_is_not_read_whether_it_begins_with_a_record(root):
    (root / "first" / "metrics.jsonl").write_bytes(b"\xff\n\xfe\n")
    (run,) = gather(["first"], root)
    assert run.damage == (f"{root}/first/metrics.jsonl: 2 lines are no record (the first: line 1)",)
    (run,) = gather(["first"], root, records=False)
    assert run.damage == (f"{root}/first/metrics.jsonl: begins with what is no record",)


def test_a_completed_run_without_its_summary_says_so(root):
    run = RunDirectory.create(root, "bare")
    run.append({"kind": "end", "status": "completed", "reason": None})
    (row,) = rows(gather(["bare"], root))
    assert (row["status"], row["why"]) == ("completed", "summary.json is missing")


@pytest.mark.parametrize("has_summary", [True, False])
def test_metrics_that_cannot_be_read_are_told(has_summary, root):
    (root / "first" / "metrics.jsonl").unlink()
    (root / "first" / "metrics.jsonl").mkdir()
    if not has_summary:
        (root / "first" / "summary.json").unlink()
    (run,) = gather(["first"], root)
    assert run.damage == (f"{root}/first/metrics.jsonl: is a directory, and only regular files are read",)
    assert run.summary["status"] == ("completed" if has_summary else "damaged")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8", 8), ("-3", -3), ("1_000", 1000),
        ("0.09", 0.09), ("1e-3", 1e-3), ("5e-05", 5e-5), (".5", 0.5), ("2.", 2.0),
        ("inf", math.inf), ("true", True), ("False", False), ("null", None), ("none", "none"), ("007", "007"),
        ("'3'", "3"), ('"true"', "true"), (r"'it\'s'", "it's"), ("ssp", "ssp"), ("[8,4]", "[8,4]"), ("'", "'"),
        ("1e", "1e"), (8, 8), (0.5, 0.5), ([8, 4], [8, 4]), ("", ""),
    ],
)  # fmt: skip
def test_what_a_sweep_chose_is_read_as_an_override_is(text, value, root):
    note = {"sweep": "rates", "trial": 1, "seed": 0, "parameters": {"x": text}}
    (root / "first" / "trial.json").write_text(json.dumps(note))
    (run,) = gather(["first"], root)
    assert run.swept is not None
    found = run.swept.parameters["x"]
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize("text", ["8", "1_000", "1e-3", ".5", "2.", "inf", "-nan", "true", "null", "none", "007", "1e"])
def test_hydra_reads_the_same(text):
    from hydra.core.override_parser.overrides_parser import OverridesParser

    theirs = OverridesParser.create().parse_override(f"x={text}").value()
    ours = Swept.of_overrides("s", 0, 0, {"x": text}).parameters["x"]
    assert (repr(ours), type(ours)) == (repr(theirs), type(theirs))


# -- W&B's files

THEIRS = """
import wandb
quiet = wandb.Settings(console="off", silent=True, x_disable_stats=True, x_disable_meta=True)
for seed in (0, 1):
    run = wandb.init(mode="offline", project="p", name=f"theirs-{seed}", settings=quiet,
                     config={"lr": 0.1, "seed": seed, "net": {"kind": "mlp", "widths": [8, 4]}})
    run.config.update({"late": 3})
    for i in range(50):
        run.log({"loss": 1 / (i + 1), "val_accuracy": 0.5 + 0.008 * i + 0.01 * seed, "mixed": {"auc": 0.75},
                 "text": "=1+1", "none": None, "not a number": float("nan"), "big": "x" * 3000})
    run.summary["best"] = 0.7 + seed
    run.finish()
"""


@pytest.fixture(scope="module")
def theirs(tmp_path_factory) -> Path:
    """A folder in which somebody else's script has left two offline runs, written by W&B itself."""
    folder = tmp_path_factory.mktemp("theirs")
    environment = {"PATH": "/usr/bin", "HOME": str(folder), "WANDB_ERROR_REPORTING": "false"}
    subprocess.run([sys.executable, "-c", THEIRS], cwd=folder, env=environment, check=True, timeout=60)
    return folder


@pytest.mark.slow
def test_a_folder_of_anybodys_offline_runs_is_compared_by_well_known_names(theirs, root):
    runs = gather([str(theirs)], root)
    assert [run.name for run in runs] == ["theirs-0", "theirs-1"]
    table = rows(runs)
    assert [row["status"] for row in table] == ["completed"] * 2
    assert [row["accuracy"] for row in table] == pytest.approx([0.892, 0.902]) and table[0]["loss"] == 0.02
    assert runs[0].config == {"lr": 0.1, "seed": 0, "net": {"kind": "mlp", "widths": [8, 4]}, "late": 3}
    assert (runs[0].extra["best"], runs[0].extra["mixed/auc"], runs[0].extra["text"]) == (0.7, 0.75, "=1+1")
    evaluations = [record for record in runs[0].records if record["kind"] == "evaluation"]
    assert len(evaluations) == 50 and evaluations[-1]["step"] == 49 and evaluations[-1]["time"] > 0


def test_one_wandb_file_or_its_folder_is_one_run(theirs, root):
    file = sorted(theirs.rglob("*.wandb"))[0]
    assert names(file, root=root) == names(file.parent, root=root) == names(file.parent, file, root=root)


def test_their_own_names_are_columns_and_conditions(theirs, root):
    runs = gather([str(theirs)], root)
    request = ComparisonRequest(columns=("best", "mixed.auc", "net.kind"), where=("lr=0.1", "best>0.5"), group=False)
    shown, _ = table(runs, request)
    assert [(row["best"], row["mixed.auc"], row["net.kind"]) for row in shown] == [
        (0.7, 0.75, "mlp"),
        (1.7, 0.75, "mlp"),
    ]
    shown, _ = table(runs, ComparisonRequest(columns=("best", "seed")))
    assert [(row["run"], row["n"], row["best"], row["seed"]) for row in shown] == [("theirs", 2, 1.2, "0, 1")]


def test_a_torn_file_gives_every_row_before_the_tear(theirs, tmp_path):
    """Cut anywhere, what is read is a beginning of what was written, and no damage is reported."""
    whole = sorted(theirs.rglob("*.wandb"))[0].read_bytes()
    everything = read(sorted(theirs.rglob("*.wandb"))[0]).history
    assert len(everything) == 50 and len(whole) > 3 * 32768
    lengths = []
    for cut in [*range(7, len(whole), 9973), len(whole) - 1]:
        torn = tmp_path / "torn.wandb"
        torn.write_bytes(whole[:cut])
        stored = read(torn)
        assert stored.damaged == 0 and stored.exit_code is None
        assert repr(stored.history) == repr(everything[: len(stored.history)])
        lengths.append(len(stored.history))
    assert lengths == sorted(lengths) and lengths[0] == 0 and lengths[-1] == 50


def test_a_run_that_was_killed_is_unfinished_and_has_what_it_logged_last(tmp_path, root):
    file = tmp_path / "run-abc.wandb"
    datastore(file, began("killed"), history(accuracy=0.5, loss=2.0), history(accuracy=0.6))
    (run,) = gather([str(file)], root)
    assert (run.summary["status"], run.summary["accuracy"], run.summary["loss"]) == ("unfinished", 0.6, 2.0)


@pytest.mark.parametrize("size", [10, 32740, 32761, 32768, 100_000])
def test_damage_inside_a_file_is_passed_over_and_said(size, tmp_path, root):
    file = tmp_path / "run-abc.wandb"
    records = [began("hurt"), history(a=1), history(text="x" * size), history(b=2), {"exit": {"exit_code": 0}}]
    begins = datastore(file, *records)
    assert len(read(file).history) == 3 and read(file).damaged == 0
    content = bytearray(file.read_bytes())
    content[begins[2] + 40 if begins[2] + 40 < 32761 else begins[2] + 10] ^= 0xFF
    file.write_bytes(content)
    assert read(file).damaged >= 1
    (run,) = gather([str(file)], root)
    assert run.name == "hurt" and "is damaged in" in run.summary["reason"]


def test_an_exit_status_is_the_runs(tmp_path, root):
    for code, status in ((0, "completed"), (3, "failed")):
        file = tmp_path / f"{code}.wandb"
        datastore(file, began("ended"), {"exit": {"exit_code": code}})
        assert gather([str(file)], root)[0].summary["status"] == status


def test_the_parts_of_a_resumed_run_are_one(tmp_path, root):
    datastore(tmp_path / "w" / "run-1" / "run-abc.wandb", began("long"), history(_step=1, loss=2.0))
    end = {"exit": {"exit_code": 0}}
    datastore(tmp_path / "w" / "run-2" / "run-abc.wandb", began("long"), history(_step=2, loss=1.0), end)
    (run,) = gather([str(tmp_path / "w")], root)
    assert [record["step"] for record in run.records] == [1, 2]
    assert (run.summary["loss"], run.summary["status"]) == (1.0, "completed")


def test_what_another_mirror_of_ours_wrote_has_its_summary_and_records_back(tmp_path, root):
    ours = config() | {"strategy": {"name": "single", "target": "x.Y", "knobs": {}}}
    told = {
        "summary": {"update": items({"name": "ours", "status": "completed", "throughput": 9.0, "wire/messages": 4})}
    }
    step = history(**{"step": 3, "time": 0.5, "train/loss": 1.5})
    evaluation = history(**{"step": 4, "time": 0.75, "evaluation/accuracy": 0.5})
    datastore(tmp_path / "x.wandb", began("ours", ours), step, evaluation, told, {"exit": {"exit_code": 0}})
    (run,) = gather([str(tmp_path / "x.wandb")], root)
    assert (run.summary["throughput"], run.summary["wire"]["messages"]) == (9.0, 4)
    assert (run.summary["strategy"], run.summary["status"]) == ("single", "completed")
    assert run.records == [
        {"kind": "step", "step": 3, "time": 0.5, "loss": 1.5},
        {"kind": "evaluation", "step": 4, "time": 0.75, "accuracy": 0.5},
    ]


def test_a_percentage_is_not_taken_for_a_share(tmp_path, root):
    datastore(tmp_path / "x.wandb", began("percent"), history(accuracy=93.2))
    (run,) = gather([str(tmp_path / "x.wandb")], root)
    assert rows([run])[0]["accuracy"] is None and run.extra["accuracy"] == 93.2


@pytest.mark.parametrize("content", [b"", b"no datastore", b":W&B\xe1\xbe\x07"])
def test_what_is_no_wandb_file_is_refused(content, tmp_path, root):
    (tmp_path / "x.wandb").write_bytes(content)
    with pytest.raises(CorruptRunError, match=r"x\.wandb: is no W&B file") as refused:
        gather([str(tmp_path / "x.wandb")], root)
    assert refused.value.exit_code == 7


def test_a_bad_file_in_a_folder_is_a_damaged_run_beside_the_others(tmp_path, root):
    datastore(tmp_path / "w" / "1" / "run-good.wandb", began("good"), history(loss=1.0))
    bad = tmp_path / "w" / "2" / "run-bad.wandb"
    bad.parent.mkdir()
    bad.write_bytes(b"no datastore")
    good, hurt = gather([str(tmp_path / "w")], root)
    assert (good.name, hurt.name, hurt.summary["status"]) == ("good", "bad", "damaged")
    assert "run-bad.wandb: is no W&B file" in rows([hurt])[0]["why"]
    with pytest.raises(CorruptRunError, match=r"run-bad\.wandb"):  # the only one, as if it were named itself
        gather([str(bad.parent)], root)


def test_a_directory_that_vanishes_while_it_is_searched_is_passed_over(tmp_path, root, monkeypatch):
    datastore(tmp_path / "w" / "z" / "run-good.wandb", began("good"), history(loss=1.0))
    (tmp_path / "w" / "gone").mkdir()
    scandir = os.scandir

    def racing(path="."):
        if Path(path).name == "gone":
            Path(path).rmdir()
        return scandir(path)

    monkeypatch.setattr(os, "scandir", racing)
    assert names(tmp_path / "w", root=root) == ["good"]


HUGE = 10**400


def test_a_number_that_no_float_holds_is_infinite_in_what_others_exported(tmp_path, root):
    told = {"name": "one", "summary": {"loss": HUGE, "val_accuracy": 0.5, "f1": -HUGE}, "config": {"lr": HUGE},
            "history": [{"_step": 0, "loss": HUGE, "_runtime": HUGE}]}  # fmt: skip
    (tmp_path / "api.json").write_text(json.dumps([told, {"run": "two", "workers": HUGE, "loss": HUGE}]))
    runs = gather([str(tmp_path / "api.json")], root)
    assert (runs[0].summary["loss"], runs[0].summary["accuracy"], runs[0].extra["f1"]) == (math.inf, 0.5, -math.inf)
    shown, _ = table(runs, ComparisonRequest(columns=("loss", "f1", "lr"), where=("lr!=3",)))
    assert "inf" in render(shown)
    datastore(tmp_path / "x.wandb", began("w", {"lr": HUGE}), history(loss=HUGE))
    assert gather([str(tmp_path / "x.wandb")], root)[0].summary["loss"] == math.inf


def test_a_summary_with_a_number_that_no_float_holds_is_damaged(root):
    (root / "first" / "summary.json").write_text(json.dumps({"name": "first", "throughput": HUGE}))
    (run,) = gather(["first"], root)
    assert run.summary["status"] == "damaged" and "a whole number of more than 308 digits" in run.summary["reason"]


# -- exported JSON


def test_our_own_json_reads_back_as_the_same_table(tmp_path, root):
    runs = gather(["first", "second", "rates"], root)
    for request in (ComparisonRequest(), ComparisonRequest(group=False), ComparisonRequest(baseline=runs[0])):
        text = render(table(runs, request)[0], "json")
        (tmp_path / "t.json").write_text(text)
        again, _ = table(gather([str(tmp_path / "t.json")], root), ComparisonRequest())
        for row, back in zip(json.loads(text), json.loads(render(again, "json")), strict=True):
            assert {key: _known(back, key) for key in back} == {key: _known(row, key) for key in back}
            lost = row.keys() - back.keys()  # ratios need the baseline, and parameters a configuration
            assert all("ratio" in key or "speedup" in key or key == "optimizer.lr" for key in lost)


def _known(row: dict, key: str):
    return pytest.approx(row[key], rel=1e-12) if isinstance(row[key], float) else row[key]


def test_objects_of_wandbs_api_are_runs(tmp_path, root):
    objects = [
        {
            "name": "one",
            "summary": {"acc": 1, "val_accuracy": 0.5},
            "config": {"lr": {"value": 0.1, "desc": None}},
            "history": [{"_step": 0, "loss": 2.0, "_timestamp": 5.0}, {"_step": 1, "loss": 1.0, "_timestamp": 7.5}],
        },
        {"name": "two", "summary": '{"loss": 3.0}', "config": "{}", "state": "crashed"},
    ]
    (tmp_path / "api.json").write_text(json.dumps(objects))
    one, two = gather([str(tmp_path / "api.json")], root)
    assert (one.summary["accuracy"], one.config, one.extra["acc"]) == (0.5, {"lr": 0.1}, 1)
    assert [(record["time"], record["loss"]) for record in one.records] == [(0.0, 2.0), (2.5, 1.0)]
    assert (two.summary["status"], two.summary["loss"]) == ("failed", 3.0)


@pytest.mark.parametrize(
    "content", ["[", "[]", "3", '[{"run": 3}]', '[{"name": "x", "summary": 3}]', '["x"]', "[" * 99999]
)
def test_json_that_holds_no_runs_is_refused(content, tmp_path, root):
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(CorruptRunError, match=r"x\.json: (is not valid JSON|holds no runs|is nested)"):
        gather([str(tmp_path / "x.json")], root)


LONG = "é" * 1_100_000  # a terminal's table looks at each character


@pytest.mark.parametrize("key", ["name", "run"])
def test_an_exported_run_with_an_endless_name_is_refused(key, tmp_path, root):
    (tmp_path / "x.json").write_text(json.dumps([{key: "short"}, {key: LONG}]))
    with pytest.raises(
        CorruptRunError, match=r"x\.json: its run 2 has a name of 1,100,000 characters; the most is 1,000"
    ):
        gather([str(tmp_path / "x.json")], root)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *((key, LONG) for key in ("status", "model", "sync", "partition", "why", "loss")),
        *((key, [LONG]) for key in ("sync", "workers", "runs", "others")),
    ],
)
def test_no_text_of_an_exported_row_is_endless(key, value, tmp_path, root):
    (tmp_path / "x.json").write_text(json.dumps([{"run": "bad", "n": 2, key: value}, {"run": "good"}]))
    bad, good = gather([str(tmp_path / "x.json")], root)
    assert (bad.summary["status"], good.summary["status"]) == ("damaged", "unfinished")
    for format in ("table", "csv", "json", "markdown"):
        both, one = (len(render(table(each, ComparisonRequest())[0], format)) for each in ([bad, good], [good]))
        assert both - 2 * one < 1000, "beside what a row without text takes, by its columns"


@pytest.mark.parametrize("key", ["name", "status", "sync"])
def test_no_text_of_a_summary_is_endless(key, root):
    (root / "first" / "summary.json").write_text(json.dumps({"name": "first", key: LONG}))
    first, _ = gather(["first", "second"], root)
    assert first.summary["status"] == "damaged"
    assert first.summary["reason"] == (
        f"{root}/first/summary.json is damaged: its {key} has 1,100,000 characters; the most is 1,000"
    )
    assert len(render(rows([first]))) < 5000


def test_an_endless_choice_of_a_sweep_is_cut_for_people(root):
    told = vars(Swept("rates", 1, 1, {"optimizer.lr": LONG}))
    (root / "rates" / "a" / "trial.json").write_text(json.dumps(told))
    shown, _ = table(gather(["rates"], root), ComparisonRequest(group=False))
    assert json.dumps(LONG) in render(shown, "json")
    assert len(render(shown)) < 200_000


def test_endless_texts_that_wandb_recorded_are_cut_or_passed_over(tmp_path, root):
    datastore(tmp_path / "run-1.wandb", began(LONG, {"lr": 1}), history(accuracy=0.5, sync=LONG))
    (run,) = gather([str(tmp_path / "run-1.wandb")], root)
    assert run.name == LONG[:1000] == run.summary["name"] and run.summary["accuracy"] == 0.5
    assert "sync" not in run.summary


def test_a_row_of_wrong_types_is_damaged_beside_the_others(tmp_path, root):
    (tmp_path / "x.json").write_text('[{"run": "bad", "workers": []}, {"run": "good", "workers": 2}]')
    assert [run.summary["status"] for run in gather([str(tmp_path / "x.json")], root)] == ["damaged", "unfinished"]


def test_what_a_run_that_failed_was_after_is_known(tmp_path: Path) -> None:
    records = [{"kind": "start", "sync": "bsp", "target_accuracy": 0.97}, {"kind": "step", "step": 1, "loss": 1.0}]
    told = summaries.from_records("cut", records)
    assert told["target_accuracy"] == 0.97
    assert (told["status"], told["reason"]) == ("unfinished", "it still runs, or was killed")
