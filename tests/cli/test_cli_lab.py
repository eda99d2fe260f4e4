"""`paceline lab` in a terminal: what it refuses, and how it ends."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import ctrl_c
import pytest


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("hardware=local", "hardware=local: the lab runs on the virtual cluster alone. Leave it out"),
        ("tracking.mode=offline", "tracking.mode=offline: the lab keeps no runs"),
        ("sync=aps", "sync=aps: there is no such choice; did you mean asp"),
        ("sync", "sync: is not an override"),
    ],
)
def test_overrides_that_cannot_be_are_refused_before_a_page_is_served(given: str, words: str, paceline) -> None:
    ended = paceline("lab", given)
    assert ended.status == 2 and ended.out == ""
    assert words in ended.last


def test_a_port_that_is_taken_is_refused_and_leaves_no_folder(
    paceline, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(here))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = paceline("lab", "--port", str(port))
    assert ended.status == 3 and ended.last.startswith(f"--port {port}: cannot be listened on")
    assert list(here.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_and_leaves_nothing(number: int, status: int, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "paceline.cli.main", "lab"]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=ctrl_c.can_come,
    ) as process:
        assert process.stdout is not None and process.stdout.readline().startswith("http://127.0.0.1:")
        assert [path.name[:13] for path in tmp_path.iterdir()] == ["paceline-lab-"]
        process.send_signal(number)
        _, told = process.communicate(timeout=60)
    assert process.returncode == status and "Traceback" not in told
    assert list(tmp_path.iterdir()) == []
