"""`paceline upload`: W&B's own client, against a local server."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from wandb_server import KEY, WandbServer, isolate, serving

import paceline.conf
from paceline.compat.wandb import is_about
from paceline.tracking import sinks_from, wandb_upload
from paceline.tracking.mirror import Mirror
from paceline.tracking.run_directory import RunDirectory

COMMAND = [sys.executable, "-m", "paceline.cli.main", "upload"]


def record(root: Path, name: str, **tracking: object) -> None:
    """A run of one step that was recorded offline."""
    choice = Path(paceline.conf.__file__).parent / "tracking" / "wandb.yaml"
    settings = yaml.safe_load(choice.read_text()) | {"mode": "offline"} | tracking
    run = RunDirectory.create(root, name)
    mirror = Mirror(run, sinks_from(settings, run=run, config={"seed": 1}, quiet=True))
    run.append({"kind": "start", "name": name, "workers": 2})
    run.append({"kind": "step", "step": 1, "loss": 0.5, "time": 0.1})
    run.append({"kind": "end", "status": "completed"})
    run.write_summary({"name": name, "status": "completed", "accuracy": 0.9, "throughput": 100.0})
    assert mirror.close()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`runs/` of two runs and of a sweep with one; one run has nothing of W&B."""
    folder = tmp_path_factory.mktemp("recorded")
    with pytest.MonkeyPatch.context() as monkeypatch:
        isolate(monkeypatch, folder / "home")
        record(folder / "runs", "one")
        record(folder / "runs", "two")
        record(folder / "runs" / "rates", "rate-1", group="rates", job_type="trial", tags=["seed-0"])
    (folder / "runs" / "rates" / "sweep.yaml").write_text("method: grid\n")
    RunDirectory.create(folder / "runs", "unwatched")
    return folder / "runs"


@pytest.fixture
def runs(recorded: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of them, and no W&B server but a port that nobody holds."""
    isolate(monkeypatch, here / "home")
    return Path(shutil.copytree(recorded, here / "runs", symlinks=True))


@pytest.fixture
def server(runs: Path, monkeypatch: pytest.MonkeyPatch):
    with serving() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        yield server


def recording(runs: Path, name: str) -> Path:
    (file,) = (runs / name).glob("wandb/offline-run-*/*.wandb")
    return file


def marks(runs: Path) -> list[str]:
    return sorted(file.parents[2].name for file in runs.rglob("*.wandb.synced"))


def displayed(server: WandbServer) -> set[str]:
    return {upsert["displayName"] for upsert in server.upserts} - {None}


@pytest.mark.slow
def test_every_run_and_those_of_sweeps_are_sent_once(paceline, runs: Path, server: WandbServer) -> None:
    ended = paceline("upload", "--project", "other", "--entity", "team")
    assert (ended.status, ended.err) == (0, "to send: 3 of 4 runs\n")
    told = [line.split() for line in ended.out.splitlines()]
    assert [line[:2] for line in told] == [["one", "sent:"], ["two", "sent:"], ["rates/rate-1", "sent:"]]
    assert all(line[2].startswith(f"{server.url}/") for line in told)
    assert displayed(server) == {"one", "two", "rate-1"} and server.exit_codes == [0, 0, 0]
    created = [upsert for upsert in server.upserts if upsert["displayName"]]
    assert {(upsert["project"], upsert["entity"]) for upsert in created} == {("other", "team")}
    assert [row["train/loss"] for row in server.history] == [0.5] * 3
    assert [s["throughput_samples_per_s"] for s in server.summaries if "status" in s] == [100.0] * 3
    trial = next(upsert for upsert in created if upsert["displayName"] == "rate-1")
    assert (trial["groupName"], trial["jobType"], trial["tags"]) == ("rates", "trial", ["seed-0"])

    server.upserts.clear()
    assert (again := paceline("upload")).status == 0 and again.out == "" and "4 runs, 0 of them" in again.last
    named = paceline("upload", "one", "rates", "unwatched", "runs/two")
    assert [line.split(maxsplit=1)[1] for line in named.out.splitlines()] == [
        "was sent before",
        "was sent before",
        "recorded nothing for W&B offline",
        "was sent before",
    ]
    assert named.status == 0 and not server.upserts


def test_a_dry_run_says_what_would_be_sent_and_sends_nothing(paceline, runs: Path) -> None:
    """With neither a key nor a server."""
    ended = paceline("upload", "--dry-run")
    assert ended.status == 0 and [line.split()[:4] for line in ended.out.splitlines()] == [
        ["one", "would", "be", "sent:"],
        ["two", "would", "be", "sent:"],
        ["rates/rate-1", "would", "be", "sent:"],
    ]
    assert ended.err == "4 runs, 3 of them with something to send\n"
    assert not marks(runs)
    only = paceline("upload", "--dry-run", "rates/rate-1", "rates")
    assert only.status == 0 and len(only.out.splitlines()) == 1


def test_the_former_name_of_the_command_still_works_and_says_its_new_one(paceline, runs: Path) -> None:
    former, now = paceline("sync", "--dry-run"), paceline("upload", "--dry-run")
    assert (former.status, former.out) == (0, now.out)
    assert former.err == "paceline sync is called paceline upload now\n" + now.err
    assert "  sync " not in paceline("--help").out and "  upload " in paceline("--help").out


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["tow"], "did you mean two?"),
        (["rates/rate-2"], "no run 'rates/rate-2'"),
        (["--project", "a/b"], "--project=a/b: must be a name"),
        (["--project", ""], "--project=: must be a name"),
        (["--entity", "x" * 129], "must be a name of 1 to 128 characters"),
    ],
    ids=lambda value: " ".join(value)[:20] if isinstance(value, list) else "",
)
def test_what_cannot_be_is_refused_before_anything_is_sent(arguments, hint: str, paceline, runs: Path) -> None:
    ended = paceline("upload", *arguments)
    assert (ended.status, ended.out) == (2, "") and hint in ended.last


@pytest.mark.parametrize("linked", ["files/stolen.txt", "files", "files/deep/stolen"])
def test_a_recording_that_leads_out_of_its_run_is_not_sent(
    linked: str, paceline, runs: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W&B's client would send the files behind the links, to the account that the recording names."""
    (here / "secret").mkdir()
    link = recording(runs, "one").parent / linked
    if link.name == "files":
        shutil.rmtree(link)
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(here / "secret")
    asked: list[Path] = []
    monkeypatch.setattr(wandb_upload, "_client", lambda files, *_: asked.extend(files) or [])
    ended = paceline("upload", "one")
    assert ended.status == 3 and f"not sent: {link} leads out of the run's directory" in ended.out and asked == []
    paceline("upload")
    assert asked and not any(file.is_relative_to(runs / "one") for file in asked)


def test_without_any_run_it_says_how_to_get_one(paceline) -> None:
    ended = paceline("upload")
    assert (ended.status, ended.out) == (2, "") and "paceline train" in ended.last


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({}, "No API key configured"),
        ({"WANDB_API_KEY": KEY, "WANDB_X_GRAPHQL_RETRY_MAX": "1"}, "no W&B server answers at http://127.0.0.1:9"),
    ],
    ids=["no key", "no server"],
)
def test_without_a_key_or_a_server_nothing_is_lost(environment, reason: str, paceline, runs: Path, monkeypatch) -> None:
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    before = {file: file.read_bytes() for file in runs.rglob("*.wandb")}
    ended = paceline("upload")
    assert (ended.status, ended.out) == (3, "") and ended.err.count("\n") == 2
    assert ended.last.startswith("3 of 3 runs not sent, and kept for the next time: ") and reason in ended.last
    assert not marks(runs) and before == {file: file.read_bytes() for file in runs.rglob("*.wandb")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "reason"), [(401, "does not accept the API key"), (503, "no W&B server answers at http://127.0.0.1")]
)
def test_a_server_that_takes_nothing_ends_it_with_one_sentence(
    status: int, reason: str, paceline, runs: Path, server: WandbServer
) -> None:
    server.faults["/graphql"] = status
    ended = paceline("upload")
    assert (ended.status, ended.out) == (3, "") and reason in ended.last
    assert not marks(runs)


@pytest.mark.slow
def test_what_fails_is_told_and_kept_and_the_rest_goes_on(paceline, runs: Path, server: WandbServer) -> None:
    recording(runs, "one").write_bytes(b"no recording at all")
    ended = paceline("upload")
    lines = dict(line.split(maxsplit=1) for line in ended.out.splitlines())
    assert "not sent, its recording is damaged" in lines["one"]
    assert lines["two"].startswith("sent: ") and lines["rates/rate-1"].startswith("sent: ")
    assert ended.status == 7 and "1 of 3 runs not sent" in ended.last
    assert marks(runs) == ["rate-1", "two"]

    for mark in runs.rglob("*.wandb.synced"):
        mark.unlink()
    server.faults[recording(runs, "two").stem.removeprefix("run-")] = 403
    ended = paceline("upload")
    lines = dict(line.split(maxsplit=1) for line in ended.out.splitlines())
    assert "damaged" in lines["one"] and "error 403" in lines["two"] and lines["rates/rate-1"].startswith("sent: ")
    assert ended.status == 3 and "2 of 3 runs not sent" in ended.last
    assert marks(runs) == ["rate-1"]


@pytest.mark.slow
def test_a_run_damaged_in_the_middle_is_told_apart_from_those_beside_it(paceline, runs, server: WandbServer) -> None:
    """W&B's client names no run in this error."""
    content = recording(runs, "two").read_bytes()
    recording(runs, "two").write_bytes(content.replace(b"train/loss", b"train/lose"))
    ended = paceline("upload")
    lines = dict(line.split(maxsplit=1) for line in ended.out.splitlines())
    assert "checksum mismatch" in lines["two"]
    assert lines["one"].startswith("sent: ") and lines["rates/rate-1"].startswith("sent: ")
    assert ended.status == 7 and marks(runs) == ["one", "rate-1"]


@pytest.mark.slow
def test_data_that_the_server_did_not_take_are_sent_the_next_time(paceline, runs: Path, server: WandbServer) -> None:
    """W&B's client marks such a run as sent."""
    server.faults["/file_stream"] = 400
    ended = paceline("upload", "one")
    assert ended.status == 3 and "not sent: " in ended.out and not server.history and not marks(runs)
    del server.faults["/file_stream"]
    assert paceline("upload", "one").status == 0
    assert [row["train/loss"] for row in server.history] == [0.5] and server.exit_codes[-1] == 0


@pytest.mark.slow
def test_a_run_that_goes_on_or_was_killed_is_sent_as_far_as_it_goes(paceline, runs, server: WandbServer) -> None:
    file = recording(runs, "one")
    content = file.read_bytes()
    file.write_bytes(content[: content.index(b"accuracy")])  # the history is before it
    ended = paceline("upload", "one")
    assert ended.status == 0 and "sent as far as it was recorded" in ended.out and not marks(runs)
    assert [row["train/loss"] for row in server.history] == [0.5]
    file.write_bytes(content)
    assert paceline("upload", "one").out.split()[1] == "sent:" and server.exit_codes[-1] == 0
    assert any(summary.get("accuracy") == 0.9 for summary in server.summaries)
    assert [row["_step"] for row in server.history] in ([0], [0, 0])  # W&B keeps one row a step

    (mark,) = runs.rglob("*.wandb.synced")
    later = mark.stat().st_mtime + 10
    os.utime(file, (later, later))  # it was written to after it had been sent
    assert "would be sent" in paceline("upload", "one", "--dry-run").out


@pytest.mark.slow
def test_a_server_that_is_lost_on_the_way_stops_it_and_what_was_sent_is_told(
    paceline, runs: Path, server: WandbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_X_GRAPHQL_RETRY_MAX", "1")
    server.faults[recording(runs, "two").stem.removeprefix("run-")] = 503
    ended = paceline("upload")
    assert [line.split()[:2] for line in ended.out.splitlines()] == [["one", "sent:"], ["rates/rate-1", "sent:"]]
    assert ended.status == 3 and ended.last.startswith("1 of 3 runs not sent") and "no W&B server" in ended.last
    assert marks(runs) == ["one", "rate-1"]


def test_one_runs_errors_are_not_anothers_whose_id_begins_alike() -> None:
    lines = ["wandb: ERROR [me/p/point10] Fatal error while uploading data.", "wandb: ERROR Failed: run point1: no"]
    runs = ["point1", "point10", "oint1"]
    assert [[is_about(run, line) for run in runs] for line in lines] == [[False, True, False], [True, False, False]]
    assert is_about("point1", 'wandb: ERROR Failed to read "runs/x/wandb/offline-run-1-point1": transactionlog')


@pytest.mark.slow
@pytest.mark.fault
def test_ctrl_c_ends_the_client_too_and_loses_nothing(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(64)
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        started = subprocess.Popen(COMMAND, cwd=runs.parent, stderr=subprocess.PIPE, text=True)
        connection, _ = silent.accept()  # the client waits for an answer
        with connection:
            below = list(descendants(started.pid))
            assert len(below) >= 2
            started.send_signal(signal.SIGINT)
            _, said = started.communicate(timeout=20)
    assert started.returncode == 130 and "interrupted" in said
    deadline = time.monotonic() + 5
    while any(Path(f"/proc/{pid}/cmdline").exists() and not zombie(pid) for pid in below):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert not marks(runs)


@pytest.mark.slow
def test_nothing_is_asked_on_a_terminal(runs: Path) -> None:
    ours, theirs = os.openpty()
    with os.fdopen(ours, "rb", buffering=0) as ours_file:
        started = subprocess.Popen(
            COMMAND, cwd=runs.parent, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
        )
        os.close(theirs)
        assert started.wait(30) == 3
        assert b"No API key configured" in ours_file.read(4096)


def descendants(pid: int) -> list[int]:
    found = [
        int(word) for task in Path(f"/proc/{pid}/task").iterdir() for word in (task / "children").read_text().split()
    ]
    return found + [below for child in found for below in descendants(child)]


def zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def settings_of_a_stranger(folder: Path, url: str) -> None:
    (folder / "wandb").mkdir()
    (folder / "wandb" / "settings").write_text(f"[default]\nbase_url = {url}\nmode = online\n")


def test_settings_of_the_current_folder_are_named_before_anything_is_sent(
    paceline, runs: Path, server: WandbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings_of_a_stranger(runs.parent, server.url)
    monkeypatch.delenv("WANDB_BASE_URL")
    ended = paceline("upload", "one")
    assert ended.status == 2 and ended.last == (
        "wandb/settings: W&B's settings in the current folder are not followed. "
        "Remove the file, or say the server: WANDB_BASE_URL=https://api.wandb.ai"
    )
    assert not server.upserts and marks(runs) == []
    assert paceline("upload", "one", "--dry-run").status == 0


@pytest.mark.slow
def test_the_server_of_the_environment_gets_runs_and_none_of_the_current_folder(
    paceline, runs: Path, server: WandbServer
) -> None:
    with serving() as stranger:
        settings_of_a_stranger(runs.parent, stranger.url)
        assert paceline("upload", "one").status == 0
        assert displayed(server) == {"one"} and not stranger.upserts
