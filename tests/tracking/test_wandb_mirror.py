import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TypeVar

import pytest
import wandb_datastore
import yaml
from needs import needs_namespaces
from wandb_server import KEY, isolate, serving

import paceline.conf
from paceline.tracking import sinks_from
from paceline.tracking.compare import rows
from paceline.tracking.errors import TrackingConfigError
from paceline.tracking.mirror import Mirror
from paceline.tracking.run_directory import SWEEP_NOTE, RunDirectory
from paceline.tracking.wandb import FINISH_SECONDS, INIT_SECONDS, _with_histogram, mode_of
from paceline.tracking.wandb_upload import recording

IMPORT_SECONDS = 6.0  # of wandb, on a busy machine
CONFIG = {"sync": {"name": "bsp", "staleness": 3}, "api_key": "do-not-tell"}
T = TypeVar("T")
START = {
    "kind": "start",
    "name": "first",
    "steps": 5,
    "epochs": 1,
    "samples": 10,
    "workers": 2,
    "strategy": "data_parallel",
    "sync": "bsp",
    "model": "mlp",
    "data": "digits",
}


def step(number: int, loss: float = 0.5) -> dict:
    return {
        "kind": "step",
        "step": number,
        "epoch": number / 5,
        "loss": loss,
        "samples_per_second": 100.0,
        "step_time": 0.02,
        "time": number * 0.02,
    }


EVALUATION = {"kind": "evaluation", "step": 5, "epoch": 1.0, "accuracy": 0.9, "loss": 0.4, "time": 0.1}
SUMMARY = {"name": "first", "status": "completed", "accuracy": 0.9, "step_time": {"median": 0.02}}


@pytest.fixture(autouse=True)
def isolated(tmp_path, monkeypatch):
    isolate(monkeypatch, tmp_path / "home")


PATIENCE = 80.0  # s; of a busy machine, where nothing is wrong


@pytest.fixture(autouse=True)
def may_take_its_time(request, monkeypatch):
    """The bound is for what went wrong, which the tests of faults look at."""
    if request.node.get_closest_marker("fault") is None:
        monkeypatch.setattr("paceline.tracking.wandb.FINISH_SECONDS", PATIENCE - 10)


@pytest.fixture
def run(tmp_path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "runs", "first")


def choice(name: str = "wandb", **changes) -> dict:
    path = Path(paceline.conf.__file__).parent / "tracking" / f"{name}.yaml"
    return yaml.safe_load(path.read_text()) | changes


def mirror(run: RunDirectory, **changes) -> Mirror:
    return Mirror(run, sinks_from(choice(**changes), run=run, config=CONFIG, quiet=True))


def write_everything(run: RunDirectory) -> None:
    run.append(START)
    for number in range(1, 6):
        run.append(step(number))
    run.append(EVALUATION)
    run.append({"kind": "end", "status": "completed"})
    run.write_summary(SUMMARY)


def datastores(run: RunDirectory, pattern: str = "offline-run-*") -> list[Path]:
    return sorted((run.path / "wandb").glob(f"{pattern}/*.wandb"))


def wait_for(condition: Callable[[], T], seconds: float) -> T:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.02)
    return found


def descendants(pid: int) -> list[int]:
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        children = [int(word) for thread in threads for word in (thread / "children").read_text().split()]
    except FileNotFoundError:
        return []
    return children + [below for child in children for below in descendants(child)]


OTHERS: set[int] = set()  # what other tests left to us: a fork server


@pytest.fixture(autouse=True)
def others() -> None:
    OTHERS.clear()
    OTHERS.update(descendants(os.getpid()))


def started_here() -> list[int]:
    """Every process below this one that the present test started."""
    return [pid for pid in descendants(os.getpid()) if pid not in OTHERS]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wandb_cores(pid: int) -> list[int]:
    return [
        below
        for below in descendants(pid)
        if alive(below) and b"wandb-core" in Path(f"/proc/{below}/cmdline").read_bytes()
    ]


@pytest.mark.budget(2)
def test_an_offline_run_holds_every_metric_the_config_and_the_summary(run):
    """A sweep's trial, as our sweeper describes it."""
    started = mirror(run, mode="offline", group="rates", tags=["seed-0", "two"], project="test", job_type="trial")
    write_everything(run)
    assert started.close(PATIENCE)

    (path,) = datastores(run)
    rows = wandb_datastore.history(path)
    assert [row["train/loss"] for row in rows if "train/loss" in row] == [0.5] * 5
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 5]
    assert rows[-1]["evaluation/accuracy"] == 0.9 and rows[-1]["epoch"] == 1.0
    assert wandb_datastore.config(path)["sync"] == CONFIG["sync"]
    assert wandb_datastore.summary(path)["step_time/median"] == 0.02
    assert wandb_datastore.exit_code(path) == 0
    record = wandb_datastore.run(path)
    assert (record.display_name, record.project, record.run_group) == ("first", "test", "rates")
    assert (list(record.tags), record.job_type) == (["seed-0", "two"], "trial")


@pytest.mark.slow
def test_the_summary_has_the_row_of_the_table_under_the_tables_names(run):
    started = mirror(run, mode="offline")
    run.append(START)
    run.write_summary(
        SUMMARY
        | {
            "throughput": 123.0,
            "time_to_accuracy": 1.5,
            "wire": {"bytes_per_step": 10.0},
            "memory": {"optimizer": 2**20},
        }
    )
    assert started.close(PATIENCE)
    (path,) = datastores(run)
    summary = wandb_datastore.summary(path)
    (row,) = rows([run])
    known = {key: value for key, value in row.items() if value is not None}
    assert {key: summary.get(key) for key in known} == known and not row.keys() - known.keys() & summary.keys()
    told = ("throughput_samples_per_s", "step_ms", "bytes_per_step", "accuracy", "time_to_accuracy_s", "optimizer_mib")
    assert [summary[key] for key in told] == [123.0, 20.0, 10.0, 0.9, 1.5, 1.0]
    assert (summary["throughput"], summary["step_time/median"]) == (123.0, 0.02)


@pytest.mark.slow
def test_a_run_that_failed_without_a_summary_is_shown_as_failed_with_what_is_known(run):
    started = mirror(run, mode="offline")
    run.append(START)
    run.append(step(1))
    run.append({"kind": "end", "status": "failed", "reason": "worker 1 died"})
    assert started.close(PATIENCE)
    (path,) = datastores(run)
    summary = wandb_datastore.summary(path)
    assert (summary["run"], summary["status"], summary["sync"]) == ("first", "failed", "bsp")
    assert wandb_datastore.exit_code(path) == 1


HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "=HYPERLINK(1)",
    "${oc.env:HOME}",
    "\x1b[31mred\x1b[0m",
    "';--\n\u202e",
]


@pytest.mark.slow
def test_hostile_texts_reach_wandb_as_the_same_texts(run):
    config = {f"text {text}": text for text in HOSTILE}
    tracking = choice(mode="offline", group=HOSTILE[0], tags=HOSTILE, job_type=HOSTILE[1])
    started = Mirror(run, sinks_from(tracking, run=run, config=config, quiet=True))
    run.append(START)
    run.write_summary(SUMMARY | {"data": HOSTILE[0], "texts": HOSTILE})
    assert started.close(PATIENCE)
    (path,) = datastores(run)
    assert {key: value for key, value in wandb_datastore.config(path).items() if key != "_wandb"} == config
    record = wandb_datastore.run(path)
    assert (record.run_group, list(record.tags), record.job_type) == (HOSTILE[0], HOSTILE, HOSTILE[1])
    assert wandb_datastore.summary(path)["texts"] == HOSTILE and wandb_datastore.summary(path)["data"] == HOSTILE[0]


@pytest.mark.slow
def test_the_measures_of_an_asynchronous_run_reach_wandb(run):
    """Its snapshots are judged at the end: evaluations of earlier steps, with their own step and time."""
    started = mirror(run, mode="offline")
    run.append(START | {"modelled": True, "partition": "shuffled", "stragglers": "pareto"})
    for number in range(1, 6):
        run.append(step(number))
    run.append({"kind": "evaluation", "step": 2, "epoch": 0.4, "accuracy": 0.5, "loss": 1.0, "time": 0.04})
    run.append(EVALUATION | {"consensus_distance": 0.125})
    run.append({"kind": "end", "status": "completed"})
    run.write_summary(
        SUMMARY
        | {
            "modelled": True,
            "stragglers": "pareto",
            "partition": "shuffled",
            "staleness": {"mean": 1.5, "max": 3, "histogram": {"0": 4, "1": 2, "3": 6}},
            "dropped": 7,
            "lost": [2],
            "consensus_distance": 0.125,
            "wire": {"bytes_per_step": 10.0, "messages": 40, "by_primitive": {"send": 10.0}},
        }
    )
    assert started.close(PATIENCE)

    (path,) = datastores(run)
    evaluations = [row for row in wandb_datastore.history(path) if "evaluation/accuracy" in row]
    assert [(row["step"], row["time"]) for row in evaluations] == [(2, 0.04), (5, 0.1)]
    assert [row.get("evaluation/consensus_distance") for row in evaluations] == [None, 0.125]
    summary = wandb_datastore.summary(path)
    assert summary["staleness/histogram"] == {"_type": "histogram", "values": [4, 2, 0, 6], "bins": [0, 1, 2, 3, 4]}
    told = ("staleness/mean", "staleness/max", "dropped", "lost", "consensus_distance", "wire/messages")
    assert [summary[key] for key in told] == [1.5, 3, 7, [2], 0.125, 40]
    assert (summary["modelled"], summary["stragglers"], summary["partition"]) == (True, "pareto", "shuffled")


@pytest.mark.parametrize("largest", [0, 1, 511, 512, 1023, 1024, 5000])
def test_a_staleness_histogram_counts_every_gradient_in_at_most_512_bins(largest):
    counts = {"0": 3, str(largest // 2): 5, str(largest): 2}
    histogram = _with_histogram({"staleness": {"histogram": counts}})["staleness"]["histogram"]
    assert sum(histogram.histogram) == sum(counts.values()) and len(histogram.histogram) <= 512
    assert histogram.bins[0] == 0 and histogram.bins[-2] <= largest < histogram.bins[-1]
    assert histogram.histogram[-1] >= counts[str(largest)]


@pytest.mark.budget(2)
def test_a_secret_never_reaches_the_offline_files_or_the_command_line(run):
    started = mirror(run, mode="offline")
    run.append(START)
    wait_for(lambda: wandb_cores(os.getpid()), IMPORT_SECONDS + INIT_SECONDS)
    for pid in started_here():
        assert b"do-not-tell" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    assert started.close(PATIENCE)
    files = [path for path in run.path.rglob("*") if path.is_file()]
    assert len(files) > 3
    assert not [path for path in files if b"do-not-tell" in path.read_bytes()]


@pytest.mark.slow
def test_values_that_are_not_finite_reach_wandb_as_numbers(run):
    started = mirror(run, mode="offline")
    run.append(START)
    run.append(step(1, loss=float("nan")))
    run.append(step(2, loss=float("-inf")))
    assert started.close(PATIENCE)
    rows = wandb_datastore.history(datastores(run)[0])
    assert str(rows[0]["train/loss"]) == "nan" and rows[1]["train/loss"] == float("-inf")


def test_no_key_and_no_terminal_is_offline_and_says_so_in_one_line(run, capfd):
    started = mirror(run, mode="auto")
    write_everything(run)
    assert started.close(PATIENCE)
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("W&B: offline (no API key)") and lines[0].endswith(f"paceline upload {run.path}")
    assert len(wandb_datastore.history(datastores(run)[0])) == 6


@pytest.mark.slow
def test_a_sweep_says_once_for_all_its_runs_that_it_is_offline(tmp_path, capfd):
    for name in ("0000-bsp", "0001-ssp"):
        run = RunDirectory.create(tmp_path / "rates", name)
        (run.path / SWEEP_NOTE).write_text("{}")
        started = mirror(run, mode="offline")
        write_everything(run)
        assert started.close(PATIENCE)
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("W&B")]
    assert len(lines) == 1 and lines[0].endswith(f"send it with: paceline upload {tmp_path / 'rates'}")


@pytest.mark.slow
def test_a_run_that_was_not_completed_is_marked_failed(run):
    started = mirror(run, mode="offline")
    run.append(START)
    run.append({"kind": "end", "status": "interrupted"})
    run.write_summary(SUMMARY | {"status": "interrupted"})
    assert started.close(PATIENCE)
    assert wandb_datastore.exit_code(datastores(run)[0]) == 1


@pytest.mark.slow
def test_a_resumed_run_keeps_its_id_and_repeats_no_record(run):
    first = mirror(run, mode="offline")
    run.append(START)
    run.append(step(1))
    assert first.close(PATIENCE)
    again = RunDirectory.open(run.path.parent, run.name)
    second = mirror(again, mode="offline")
    again.append({"kind": "resume", "step": 1})
    again.append(step(2))
    assert second.close(PATIENCE)
    wait_for(lambda: len(datastores(run)) == 2, 1)
    files = datastores(run)
    assert wandb_datastore.run(files[0]).run_id == wandb_datastore.run(files[1]).run_id
    assert [[row["step"] for row in wandb_datastore.history(file)] for file in files] == [[1], [2]]


@pytest.mark.slow
def test_two_runs_of_one_name_are_two_wandb_runs(tmp_path):
    ids = []
    for root in ("one", "two"):
        run = RunDirectory.create(tmp_path / root, "first")
        started = mirror(run, mode="offline")
        run.append(START)
        assert started.close(PATIENCE)
        ids.append(wandb_datastore.run(datastores(run)[0]).run_id)
    assert ids[0] != ids[1] and all(run_id.startswith("first-") for run_id in ids)


@pytest.mark.slow
def test_under_a_wandb_agent_the_agents_run_id_is_used(run, monkeypatch):
    monkeypatch.setenv("WANDB_RUN_ID", "given")
    started = mirror(run, mode="offline")
    run.append(START)
    assert started.close(PATIENCE)
    assert wandb_datastore.run(datastores(run)[0]).run_id == "given"


@pytest.mark.parametrize("where", ["environment", "netrc"])
def test_online_the_server_gets_every_row_the_config_and_the_group(run, monkeypatch, capfd, where):
    with serving() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        if where == "environment":
            monkeypatch.setenv("WANDB_API_KEY", KEY)
        else:
            netrc = Path.home() / ".netrc"
            netrc.write_text(f"machine {server.url.removeprefix('http://')} login user password {KEY}\n")
            netrc.chmod(0o600)
        started = mirror(run, mode="auto", group="rates", tags=["seed-0"], job_type="trial")
        write_everything(run)
        assert started.close(PATIENCE)
        assert [row["train/loss"] for row in server.history if "train/loss" in row] == [0.5] * 5
        assert [row["evaluation/accuracy"] for row in server.history if "evaluation/loss" in row] == [0.9]
        created = server.upserts[0]
        assert (created["displayName"], created["groupName"], created["tags"]) == (
            "first",
            "rates",
            ["seed-0"],
        )
        assert created["jobType"] == "trial"
        assert json.loads(created["config"])["sync"]["value"] == CONFIG["sync"]
        assert server.summaries[-1]["step_time/median"] == 0.02
        assert server.exit_codes == [0]
    assert recording("first", run.path).files and not recording("first", run.path).unsent().files
    said = capfd.readouterr().err
    assert said.startswith(f"W&B: {server.url}/me/paceline/runs/first-") and said.count("\n") == 1


@pytest.mark.slow
def test_a_server_that_a_file_of_the_current_folder_names_gets_nothing(run, monkeypatch, capfd, tmp_path):
    with serving() as stranger:
        monkeypatch.delenv("WANDB_BASE_URL")
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        monkeypatch.chdir(tmp_path)
        (tmp_path / "wandb").mkdir()
        (tmp_path / "wandb" / "settings").write_text(f"[default]\nbase_url = {stranger.url}\nmode = online\n")
        started = mirror(run, mode="auto")
        write_everything(run)
        assert started.close(PATIENCE)
        assert not stranger.upserts and len(datastores(run)) == 1
    said = capfd.readouterr().err
    assert said.startswith("W&B: offline (wandb/settings of the current folder is not followed; remove it, or set ")


@pytest.mark.parametrize(
    ("asked", "url", "found"), [("auto", True, "offline"), ("online", True, "online"), ("online", False, "offline")]
)
def test_only_who_says_both_the_server_and_online_sends_beside_a_settings_file(
    monkeypatch, tmp_path, asked, url, found
):
    monkeypatch.chdir(tmp_path)
    known = SimpleNamespace(mode="online", api_key=KEY, base_url="http://127.0.0.1:9")
    if not url:
        monkeypatch.delenv("WANDB_BASE_URL")
    assert mode_of(asked, known) == ("online", "")
    (tmp_path / ".wandb").mkdir()
    (tmp_path / ".wandb" / "settings").write_text("[default]\n")
    assert mode_of(asked, known)[0] == found


@pytest.mark.slow
@pytest.mark.fault
@pytest.mark.parametrize("fault", ["closed port", "silent server"])
def test_an_unreachable_server_costs_no_data_and_bounded_time(run, monkeypatch, capfd, fault):
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    with socket.socket() as listener:
        if fault == "silent server":
            listener.bind(("127.0.0.1", 0))
            listener.listen(64)
            monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{listener.getsockname()[1]}")
        begun = time.monotonic()
        started = mirror(run, mode="auto")
        write_everything(run)
        assert time.monotonic() - begun < 1.0  # training does not wait
        assert started.close()
        assert time.monotonic() - begun < FINISH_SECONDS + 1.0
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("W&B: offline (CommError")
    assert [file.parent.name[:7] for file in recording("first", run.path).unsent().files] == ["offline"]
    assert len(wandb_datastore.history(datastores(run)[0])) == 6


@pytest.mark.slow
@pytest.mark.fault
def test_a_server_lost_before_the_end_bounds_the_finish_and_leaves_every_row_on_disk(run, monkeypatch, capfd):
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    with serving() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        started = mirror(run, mode="online")
        run.append(START)
        wait_for(lambda: server.upserts, IMPORT_SECONDS + INIT_SECONDS)
        run.append(step(1))
        wait_for(lambda: datastores(run, "run-*"), 5)
    for number in range(2, 6):
        run.append(step(number))
    begun = time.monotonic()
    assert started.close()
    assert time.monotonic() - begun < FINISH_SECONDS + 1.0
    (path,) = datastores(run, "run-*")
    assert [row["step"] for row in wandb_datastore.history(path)] == [1, 2, 3, 4, 5]
    assert not wandb_cores(os.getpid())
    assert recording("first", run.path).unsent().files == (path.resolve(),)
    assert capfd.readouterr().err.splitlines()[-1].endswith(f"send it again with: paceline upload {run.path}")


@pytest.mark.fault
def test_wandb_core_killed_mid_run_stops_only_wandb_and_says_so(run, capfd):
    started = mirror(run, mode="offline")
    run.append(START)
    (core,) = wait_for(lambda: wandb_cores(os.getpid()), IMPORT_SECONDS)
    wait_for(lambda: datastores(run), INIT_SECONDS)
    run.append(step(1))
    os.kill(core, signal.SIGKILL)
    for number in range(2, 200):
        run.append(step(number))
    begun = time.monotonic()
    assert started.close()
    assert time.monotonic() - begun < FINISH_SECONDS + 1.0
    assert len(run.records()) == 200
    stopped = [line for line in capfd.readouterr().err.splitlines() if "stopped" in line]
    assert len(stopped) == 1 and stopped[0].startswith("W&B: stopped (")
    assert not started_here()


@pytest.mark.fault
def test_the_helper_killed_mid_run_stops_only_wandb_and_says_so(run, capfd):
    started = mirror(run, mode="offline")
    run.append(START)
    (core,) = wait_for(lambda: wandb_cores(os.getpid()), IMPORT_SECONDS)
    helper = next(pid for pid in started_here() if core in descendants(pid))
    os.kill(helper, signal.SIGKILL)
    for number in range(1, 100):
        run.append(step(number))
    assert started.close()
    assert len(run.records()) == 100
    assert capfd.readouterr().err == f"W&B: stopped (exit status -9); see {run.logs / 'wandb.log'}\n"
    wait_for(lambda: not alive(core), 2.0)


@pytest.mark.fault
def test_a_helper_that_hangs_is_killed_in_bounded_time(run, monkeypatch, capfd):
    monkeypatch.setattr("paceline.tracking.wandb.FINISH_SECONDS", 0.3)
    started = mirror(run, mode="offline")
    run.append(START)
    wait_for(lambda: wandb_cores(os.getpid()), IMPORT_SECONDS)
    below = started_here()
    for pid in below:
        os.kill(pid, signal.SIGSTOP)
    begun = time.monotonic()
    assert started.close()
    assert time.monotonic() - begun < 2.0
    assert "W&B: not finished after" in capfd.readouterr().err
    for pid in filter(alive, below):  # a stopped process sees nothing until it goes on
        os.kill(pid, signal.SIGCONT)
    wait_for(lambda: not any(map(alive, below)), 2.0)


OFFLINE = """
import json, sys
from paceline.tracking.run_directory import SWEEP_NOTE, RunDirectory
from paceline.tracking.mirror import Mirror
from paceline.tracking import sinks_from
run = RunDirectory.create(sys.argv[1], "first")
mirror = Mirror(run, sinks_from(json.loads(sys.argv[2]), run=run, config={}, quiet=True))
run.append(json.loads(sys.argv[3]))
run.append(json.loads(sys.argv[4]))
sys.exit(not mirror.close())
"""


@needs_namespaces
@pytest.mark.fault
def test_without_any_network_a_run_without_a_key_is_kept_offline(tmp_path):
    unshare = ["unshare", "--map-root-user", "--net"]
    arguments = [tmp_path / "runs", json.dumps(choice()), json.dumps(START), json.dumps(step(1))]
    command = [*unshare, sys.executable, "-c", OFFLINE, *arguments]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stderr.startswith("W&B: offline (no API key)"), done.stderr
    run = RunDirectory.open(tmp_path / "runs", "first")
    assert [row["step"] for row in wandb_datastore.history(datastores(run)[0])] == [1]


TRAINER = """
import sys, time
from paceline.tracking.run_directory import SWEEP_NOTE, RunDirectory
from paceline.tracking.mirror import Mirror
from paceline.tracking import sinks_from
import json
run = RunDirectory.create(sys.argv[1], "first")
mirror = Mirror(run, sinks_from(json.loads(sys.argv[2]), run=run, config={}, quiet=True))
run.append(json.loads(sys.argv[3]))
print("started", flush=True)
step = 0
while True:
    step += 1
    run.append(dict(json.loads(sys.argv[4]), step=step))
    time.sleep(0.02)
"""


@pytest.mark.fault
@pytest.mark.parametrize("mode", ["offline", "online", "online, server lost", "initialising"])
def test_killing_the_trainer_leaves_neither_helper_nor_wandb_core(tmp_path, monkeypatch, mode):
    with serving() as server, socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(64)
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        url = server.url if mode != "initialising" else f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("WANDB_BASE_URL", url)
        settings = json.dumps(choice(mode="offline" if mode == "offline" else "online"))
        trainer = subprocess.Popen(
            [sys.executable, "-c", TRAINER, tmp_path / "runs", settings, json.dumps(START), json.dumps(step(0))],
            stdout=subprocess.PIPE,
        )
        with trainer:
            wait_for(lambda: wandb_cores(trainer.pid), IMPORT_SECONDS)
            if mode.startswith("online"):
                wait_for(lambda: server.upserts, IMPORT_SECONDS + INIT_SECONDS)
            if mode == "online, server lost":
                server.shutdown()
                server.server_close()
            started = descendants(trainer.pid)
            assert len(started) >= 2
            trainer.kill()
            wait_for(lambda: not any(map(alive, started)), 2.0)


@pytest.mark.slow
def test_ctrl_c_on_the_terminal_does_not_reach_the_helper(run):
    started = mirror(run, mode="offline")
    run.append(START)
    wait_for(lambda: wandb_cores(os.getpid()), IMPORT_SECONDS)
    assert os.getpgid(0) not in {os.getpgid(pid) for pid in started_here()}
    assert started.close()


def test_none_has_no_wandb_sink_and_needs_no_other_key(run):
    assert sinks_from(choice("none"), run=run, config=CONFIG, quiet=True) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"wandb": "yes"},
        {"mode": "sometimes"},
        {"tags": "one"},
        {"tags": ["x" * 65]},
        {"project": ""},
        {"group": 3},
    ],
)
def test_a_value_that_is_not_allowed_is_refused_with_its_key_and_exit_code_2(run, changes):
    (key,) = changes
    with pytest.raises(TrackingConfigError, match=rf"tracking\.{key}=") as refused:
        sinks_from(choice(**changes), run=run, config=CONFIG)
    assert refused.value.exit_code == 2


def test_importing_tracking_imports_neither_wandb_nor_rich_nor_torch():
    script = (
        "import sys, paceline.tracking, paceline.tracking.compare;"
        "print(sorted({'wandb', 'rich', 'torch', 'hydra'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
