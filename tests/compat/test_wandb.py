"""W&B's settings, records, and what its client prints."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from wandb_server import KEY, WandbServer, isolate, serving

from paceline.compat import wandb as client
from paceline.tracking.wandb_datastore import read, split

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
RECORD = """
import wandb
from paceline.compat.wandb import quiet_settings
lean = quiet_settings(30, 30)
run = wandb.init(id="abc", dir=".", project="p", mode="offline", resume="allow", config={"rate": 0.5}, settings=lean)
for i in range(200):
    run.log({"loss": 1 / (i + 1), "note": "x" * 100})
run.finish()
"""


@pytest.fixture(autouse=True)
def isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    isolate(monkeypatch, tmp_path / "home")
    monkeypatch.setenv("WANDB_API_KEY", KEY)


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    subprocess.run([sys.executable, "-c", RECORD], cwd=tmp_path, check=True, timeout=100)
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    return file


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[WandbServer]:
    with serving() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        yield server


def sync(file: Path) -> list[str]:
    """What the client prints while it sends a file."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "wandb", "sync", "--include-synced", str(file)],
        cwd=file.parents[2],  # it leaves a folder of logs
        env={**client.BOUNDS, **os.environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
    )
    return (done.stdout + done.stderr).splitlines()


def test_a_recording_is_read_and_sent_and_its_damage_is_told(recording: Path, server: WandbServer) -> None:
    stored = read(recording)
    assert (stored.run_id, stored.config["rate"], len(stored.history)) == ("abc", 0.5, 200), (
        "W&B writes its records otherwise: other people's runs cannot be compared"
    )
    payloads, damaged = split(recording)
    assert damaged == 0 and client.record_of(payloads[0]).WhichOneof("record_type")
    said = sync(recording)
    addresses = [client.address_in(line) for line in said if client.is_about("abc", line)]
    assert [address for address in addresses if address and "/runs/abc" in address], (
        f"W&B's client no longer says where a run is: {said}"
    )
    torn = shutil.copy(recording, recording.with_name("run-torn.wandb"))
    os.truncate(torn, recording.stat().st_size - 20)
    errors = client.errors_in(sync(Path(torn)))
    assert any(map(client.is_cut_off, errors)), f"W&B's client says otherwise that a recording is cut off: {errors}"
    spoilt = recording.with_name("run-spoilt.wandb")
    spoilt.write_bytes(b"no recording at all")
    errors = client.errors_in(sync(spoilt))
    assert any(map(client.damage_in, errors)), f"W&B's client says otherwise that a recording is damaged: {errors}"


def test_that_no_server_answers_or_the_key_is_refused_is_told(
    recording: Path, server: WandbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.faults["/graphql"] = 401
    errors = client.errors_in(sync(recording))
    assert any(map(client.is_refused_key, errors)), f"W&B's client says otherwise that a key is refused: {errors}"
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    errors = client.errors_in(sync(recording))
    missing = [found for error in errors if (found := client.server_missing_in(error))]
    assert missing and missing[0][0] == "http://127.0.0.1:9", f"W&B's client says otherwise that no server is: {errors}"


def test_bytes_that_are_no_record_are_refused() -> None:
    with pytest.raises(client.UnreadableRecordError):
        client.record_of(b"\xff" * 20)


@pytest.mark.parametrize("folder", ["wandb", ".wandb"])
def test_a_settings_file_of_the_current_folder_says_neither_server_nor_mode_nor_key(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WANDB_BASE_URL", "WANDB_API_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "settings").write_text(
        f"[default]\nbase_url = http://127.0.0.1:99\nmode = offline\napi_key = {KEY}\n"
    )
    from wandb.sdk.lib import urls

    assert client.folder_settings() == Path(folder, "settings")
    known = client.load_settings()
    assert (known.base_url, known.mode, known.api_key) == (urls.DEFAULT_BASE_URL, "online", None)
    assert known.root_dir == str(tmp_path), "what W&B writes lies elsewhere"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "settings").write_text("[default]\nbase_url = http://127.0.0.1:98\n")
    monkeypatch.setenv("WANDB_CONFIG_DIR", "mine")
    assert client.load_settings().base_url == "http://127.0.0.1:98"
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:97")
    assert client.load_settings().base_url == "http://127.0.0.1:97"
