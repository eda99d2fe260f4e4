import json
import math
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from needs import needs_namespaces

from paceline.engine.features.weights import differing
from paceline.tasks.contents import Contents
from paceline.tracking.checksums import marked
from paceline.tracking.errors import CorruptRunError, RunNameError, StorageError
from paceline.tracking.run_directory import RunDirectory, check_name, claimed, follow, run_names
from paceline.tracking.summaries import summary_of

ALLOWED = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"


@pytest.fixture
def run(tmp_path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "runs", "first")


def read_all(path: Path, start_at: int = 0) -> list[dict]:
    done = threading.Event()
    done.set()
    return list(follow(path, done, start_at))


@given(st.text(alphabet=ALLOWED, min_size=1, max_size=64).filter(lambda name: name not in (".", "..")))
def test_a_name_of_allowed_characters_stays_directly_under_the_root(name):
    check_name(name)
    assert (Path("/root") / name).resolve().parent == Path("/root")


@given(st.text())
def test_a_name_is_accepted_only_if_all_its_characters_are_allowed(name):
    allowed = 1 <= len(name) <= 64 and set(name) <= set(ALLOWED) and name not in (".", "..")
    if allowed:
        check_name(name)
    else:
        with pytest.raises(RunNameError):
            check_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc", "../a", "a\n", "a b", "ä", "x" * 65, "a\0"])
def test_a_name_that_could_leave_the_root_creates_nothing_and_has_exit_code_2(tmp_path, name):
    with pytest.raises(RunNameError) as refused:
        RunDirectory.create(tmp_path / "runs", name)
    assert refused.value.exit_code == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "other"), [("-x", "x"), ("--resume", "resume"), ("-", "run")])
def test_a_new_name_is_no_option_and_an_old_run_of_such_a_name_is_read(tmp_path, name, other):
    for claim in (RunDirectory.create, RunDirectory.check_free):
        with pytest.raises(RunNameError, match=f"Choose {other}[.]$"):
            claim(tmp_path, name)
    RunDirectory.create(tmp_path, "old").path.rename(tmp_path / name)
    assert RunDirectory.open(tmp_path, name).name == name


def test_a_taken_name_is_refused_with_a_way_out_and_the_old_run_is_untouched(run):
    run.append({"kind": "step", "step": 1})
    for half in (None, "step-00000001.tmp"):  # a kill amid the first checkpoint leaves the second
        if half is not None:
            (run.checkpoints / half).mkdir()
        with pytest.raises(
            RunNameError, match=r"'first' is taken .* no checkpoint to continue from: paceline rm first"
        ):
            RunDirectory.create(run.path.parent, "first")
    (run.checkpoints / "step-00000001").mkdir()
    with pytest.raises(RunNameError, match=r"'first' is taken .* --resume") as refused:
        RunDirectory.create(run.path.parent, "first")
    assert refused.value.exit_code == 2
    assert run.records() == [{"kind": "step", "step": 1}]


def test_of_many_asking_for_one_name_at_once_exactly_one_gets_it(tmp_path):
    def attempt(_):
        try:
            return RunDirectory.create(tmp_path / "runs", "same")
        except RunNameError:
            return None

    with ThreadPoolExecutor(16) as pool:
        assert sum(run is not None for run in pool.map(attempt, range(16))) == 1


def test_what_nobody_named_takes_the_next_free_name_among_many_at_once(tmp_path):
    def taken(_: int) -> str:
        return RunDirectory.create_unnamed(tmp_path, "run").name

    def swept(_: int) -> str:
        with claimed(tmp_path, None, "race", "-round1") as name:
            (tmp_path / f"{name}-round1" / "sweep.yaml").touch()
            return name

    with ThreadPoolExecutor(8) as pool:
        assert {*pool.map(taken, range(8))} == {"run", *(f"run-{i}" for i in range(2, 9))}
        assert {*pool.map(swept, range(8))} == {"race", *(f"race-{i}" for i in range(2, 9))}


def test_a_claimed_name_that_was_not_used_leaves_no_folder(tmp_path):
    with pytest.raises(ValueError), claimed(tmp_path, None, "sweep"):
        raise ValueError
    with claimed(tmp_path, "mine", "sweep") as name:
        assert name == "mine" and not [*tmp_path.iterdir()]


def test_a_run_is_opened_by_name_or_by_path(run, monkeypatch):
    root = run.path.parent
    assert RunDirectory.open(root, "first").path == run.path
    assert RunDirectory.open("elsewhere", run.path).path == run.path
    monkeypatch.chdir(root.parent)
    assert RunDirectory.open("elsewhere", "runs/first").name == "first"


def test_a_missing_run_is_refused_with_the_nearest_names(tmp_path):
    for name in ("baseline", "ssp-3", "easgd"):
        RunDirectory.create(tmp_path, name)
    with pytest.raises(RunNameError, match=r"no run 'baselin'.*did you mean baseline\?") as refused:
        RunDirectory.open(tmp_path, "baselin")
    assert refused.value.exit_code == 2
    with pytest.raises(RunNameError, match="baseline, easgd, ssp-3"):
        RunDirectory.open(tmp_path, "zzz")
    with pytest.raises(RunNameError, match="no runs there yet"):
        RunDirectory.open(tmp_path / "empty", "baseline")


def test_a_directory_that_holds_no_metrics_is_not_a_run(tmp_path):
    (tmp_path / "other").mkdir()
    RunDirectory.create(tmp_path, "first")
    assert run_names(tmp_path) == ["first"]
    with pytest.raises(RunNameError):
        RunDirectory.open(tmp_path, "other")


def test_a_record_is_in_the_file_when_append_returns(run):
    run.append({"kind": "step", "step": 1, "loss": 0.5})
    assert run.metrics.read_text() == '{"kind":"step","step":1,"loss":0.5}\n'


@given(st.floats())
def test_every_line_is_strict_json_whatever_the_number(tmp_path_factory, value):
    run = RunDirectory.create(tmp_path_factory.mktemp("runs"), "first")
    run.append({"loss": value, "nested": {"list": [value]}})
    run.close()

    def refuse(constant):
        raise AssertionError(constant)

    record = json.loads(run.metrics.read_text(), parse_constant=refuse)
    read = float(record["loss"])
    assert read == value or (math.isnan(read) and math.isnan(value))
    assert isinstance(record["loss"], float if math.isfinite(value) else str)
    assert record["nested"]["list"][0] == record["loss"]


def test_the_spelling_of_values_that_are_not_finite_is_nan_inf_and_minus_inf(run):
    run.append({"a": float("nan"), "b": float("inf"), "c": float("-inf")})
    assert run.records() == [{"a": "nan", "b": "inf", "c": "-inf"}]


def test_lines_of_concurrent_writers_never_mix(run):
    def write(writer: int) -> None:
        own = RunDirectory.open(run.path.parent, run.name)
        for i in range(200):
            own.append({"writer": writer, "i": i, "padding": "x" * (writer * 50)})
        own.close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    records = run.records()
    for writer in range(4):
        assert [r["i"] for r in records if r["writer"] == writer] == list(range(200))
    assert len(records) == 800


def test_a_line_torn_by_a_crash_costs_itself_only(run):
    run.append({"step": 1})
    run.close()
    with run.metrics.open("ab") as file:
        file.write(b'{"step": 2, "lo')
    again = RunDirectory.open(run.path.parent, run.name)
    again.append({"step": 3})
    assert again.records() == [{"step": 1}, {"step": 3}]


@given(
    st.lists(st.dictionaries(st.text(), st.integers() | st.text()), min_size=1, max_size=8),
    st.lists(st.integers(min_value=1, max_value=40), min_size=1),
)
def test_follow_yields_each_record_once_in_order_however_the_writes_are_cut(tmp_path_factory, records, cuts):
    path = tmp_path_factory.mktemp("follow") / "metrics.jsonl"
    text = b"".join(json.dumps(record).encode() + b"\n" for record in records)
    stop, seen = NothingToWaitFor(), []
    with path.open("wb", buffering=0) as file:
        following = follow(path, stop)
        position, turn = 0, 0
        while position < len(text):
            size = cuts[turn % len(cuts)]
            complete = text[: position + size].count(b"\n")
            file.write(text[position : position + size])
            position, turn = position + size, turn + 1
            seen += [next(following) for _ in range(complete - len(seen))]
    stop.set()
    assert seen + list(following) == records


class NothingToWaitFor(threading.Event):
    """The test asks only for records that are in the file: reading again must find them, once."""

    def __init__(self):
        super().__init__()
        self.waits = 0

    def wait(self, timeout: float | None = None) -> bool:
        self.waits += 1
        assert self.waits < 10_000, "a record in the file was not handed over"
        return self.is_set()


def test_follow_waits_for_the_rest_of_a_partial_line_and_for_the_file(tmp_path):
    path, stop, seen = tmp_path / "metrics.jsonl", threading.Event(), []
    arrived = threading.Event()

    def read() -> None:
        for record in follow(path, stop):
            seen.append(record)
            arrived.set()

    thread = threading.Thread(target=read)
    thread.start()
    with path.open("wb", buffering=0) as file:
        file.write(b'{"step":1}\n{"st')
        assert arrived.wait(5)
        assert seen == [{"step": 1}]
        file.write(b'ep":2}\n')
        stop.set()
    thread.join(5)
    assert not thread.is_alive()
    assert seen == [{"step": 1}, {"step": 2}]


def test_follow_reads_what_was_written_just_before_the_stop(tmp_path):
    path, stop = tmp_path / "metrics.jsonl", threading.Event()
    path.write_text('{"step":1}\n')
    following = follow(path, stop)
    assert next(following) == {"step": 1}
    with path.open("a") as file:
        file.write('{"step":2}\n{"torn')
    stop.set()
    assert list(following) == [{"step": 2}]


def test_follow_starts_at_a_byte_and_the_opened_run_knows_it(run):
    run.append({"step": 1})
    again = RunDirectory.open(run.path.parent, run.name)
    again.append({"step": 2})
    assert run.opened_at == 0
    assert read_all(again.metrics, again.opened_at) == [{"step": 2}]


def test_a_summary_is_replaced_whole_and_leaves_no_temporary_file(run):
    assert run.read_summary() is None
    run.write_summary({"status": "failed", "loss": float("nan")})
    run.write_summary({"status": "completed"})
    assert run.read_summary() == {"status": "completed"}
    assert sorted(path.name for path in run.path.iterdir()) == [
        "checkpoints",
        "logs",
        "metrics.jsonl",
        "summary.json",
    ]


def test_a_summary_that_cannot_be_written_leaves_the_old_one(run, monkeypatch):
    run.write_summary({"status": "running"})

    def fail(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StorageError, match="No space left"):
        run.write_summary({"status": "completed"})
    assert run.read_summary() == {"status": "running"}
    assert not list(run.path.glob(".*"))


@pytest.mark.parametrize("text", ["{", "[]", ""])
def test_a_damaged_summary_has_exit_code_7_and_is_named(run, text):
    run.summary.write_text(text)
    with pytest.raises(CorruptRunError, match=r"summary\.json") as damaged:
        run.read_summary()
    assert damaged.value.exit_code == 7


@pytest.mark.parametrize("change", [lambda run: run.forget_summary(), lambda run: run.write_summary({"loss": 1.0})])
def test_a_directory_in_place_of_the_summary_has_exit_code_7_and_is_named(run, change):
    run.summary.mkdir()
    with pytest.raises(CorruptRunError, match=r"summary\.json is a directory") as damaged:
        change(run)
    assert damaged.value.exit_code == 7


def test_config_and_environment_are_written_under_their_names(run):
    run.write_config("model: mlp\n")
    run.write_environment({"python": "3"})
    assert (run.path / "config.yaml").read_text() == marked("model: mlp\n")
    assert json.loads((run.path / "environment.json").read_text()) == {"python": "3"}


def test_a_root_that_cannot_be_written_has_exit_code_3(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError) as refused:
        RunDirectory.create(tmp_path / "file", "first")
    assert refused.value.exit_code == 3


FULL_DISK = """
import sys
from pathlib import Path
from paceline.tracking.errors import StorageError
from paceline.tracking.run_directory import RunDirectory

root = Path(sys.argv[1])
ballast = root / "ballast"
run = RunDirectory.create(root, "first")
ballast.write_bytes(bytes(32 * 1024))
steps = 0
try:
    while True:
        run.append({"kind": "step", "step": steps, "padding": "x" * 1000})
        steps += 1
except StorageError as error:
    assert error.exit_code == 3 and "No space left" in str(error) and "metrics.jsonl" in str(error), error
assert steps > 20
assert [record["step"] for record in run.records()] == list(range(steps))
try:
    run.write_summary({"status": "failed", "padding": "x" * 10000})
    raise AssertionError("a summary was written to a full disk")
except StorageError:
    assert run.read_summary() is None
ballast.unlink()
run.append({"kind": "end", "status": "failed"})
run.write_summary({"status": "failed"})
assert run.records()[-1] == {"kind": "end", "status": "failed"}, run.metrics.read_bytes()[-200:]
assert len(run.records()) == steps + 1
print("survived", steps)
"""


@needs_namespaces
@pytest.mark.fault
def test_a_full_disk_is_exit_code_3_and_costs_no_record_that_was_acknowledged(tmp_path):
    unshare = ["unshare", "--map-root-user", "--mount"]
    script = tmp_path / "full_disk.py"
    script.write_text(FULL_DISK)
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f'mount -t tmpfs -o size=128k none "{disk}" && exec "{sys.executable}" "{script}" "{disk}"'
    done = subprocess.run([*unshare, "sh", "-c", mount], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("survived")


def test_a_run_of_a_sweep_is_found_by_both_names(tmp_path):
    inner = RunDirectory.create(tmp_path / "runs" / "rates", "0001-ssp")
    assert RunDirectory.open(tmp_path / "runs", "rates/0001-ssp").path == inner.path
    with pytest.raises(RunNameError):
        RunDirectory.open(tmp_path / "runs" / "other", "../rates/0001-ssp")


STEP, TORN = b'{"kind":"step","step":1}\n', b'{"kind":"st'


@pytest.mark.parametrize(
    ("content", "records", "damaged"),
    [
        (STEP + TORN, 1, []),
        (STEP + TORN + b"\n" + b'{"kind":"resume","step":1}\n' + STEP, 3, []),
        (STEP + TORN + b"\n" + b'{"kind":"end","status":"failed"}\n', 2, []),
        (STEP + TORN + b"\n" + STEP, 2, [2]),
        (STEP + TORN + b"\n" + TORN + b"\n" + b'{"kind":"resume"}\n', 2, [3]),
        (STEP + b"garbage\n" + STEP + b"\n", 2, [2]),
        (STEP + b"[1]\n3\n" + STEP, 2, [2, 3]),
        (STEP + b"garbage", 1, [2]),
        (b"\x8f\x00\n\xff", 0, [1, 2]),
        (STEP + b"[" * 20000 + b"\n", 1, [2]),
        (b'{"kind":"step","step":1}', 0, []),  # still being written
        (b"", 0, []),
    ],
)
def test_a_line_that_a_crash_tore_is_no_damage_and_any_other_that_is_no_record_is(content, records, damaged, tmp_path):
    run = RunDirectory.create(tmp_path, "hurt")
    run.metrics.write_bytes(content)
    found, lines = run.scan()
    assert (len(found), lines) == (records, damaged) and run.records() == found


@pytest.mark.parametrize("left", ["nothing", "directory", "dangling link", "fifo"])
def test_a_run_without_its_records_is_a_damaged_run_and_no_run_that_is_not_there(run, left):
    run.write_config("seed: 0\n")
    run.metrics.unlink()
    match left:
        case "directory":
            run.metrics.mkdir()
        case "dangling link":
            run.metrics.symlink_to("nowhere")
        case "fifo":
            os.mkfifo(run.metrics)
    assert run_names(run.path.parent) == ["first"]
    with pytest.raises(CorruptRunError, match=r"first/metrics\.jsonl") as refused:
        RunDirectory.open(run.path.parent, "first")
    assert refused.value.exit_code == 7


def test_where_there_is_no_folder_there_are_no_runs(tmp_path):
    assert run_names(tmp_path / "none") == []


@pytest.mark.parametrize("kind", ["directory", "pipe"])
def test_records_that_are_no_file_are_said(kind: str, tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "first")
    run.metrics.unlink()
    run.metrics.mkdir() if kind == "directory" else os.mkfifo(run.metrics)
    with pytest.raises(CorruptRunError, match=rf"metrics\.jsonl is a (named )?{kind}, and only regular files are read"):
        run.records()
    (tmp_path / "first" / "summary.json").write_text("{")
    assert summary_of(run)["status"] == "damaged"
    contents = Contents({}, [], None, None, [], 0, [], [], [], "", {})
    assert differing(run.path, contents, "digits") == []
