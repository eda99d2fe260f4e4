"""`paceline logs` prints logs of any size piece by piece."""

import tracemalloc
from pathlib import Path

import pytest

from paceline.cli.jobs import LONGEST, logs
from paceline.tracking.run_directory import RunDirectory


def printed(here: Path, capfd: pytest.CaptureFixture[str]) -> list[str]:
    logs(str(here / "runs" / "one"))
    return capfd.readouterr().out.splitlines()


@pytest.fixture
def log(here: Path) -> Path:
    return RunDirectory.create(here / "runs", "one").logs / "worker-000.log"


def test_lines_are_printed_as_they_were_and_the_last_once_it_is_whole(
    log: Path, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log.write_bytes(b"10 %\r20 %\nis \xff\n\nnot whole")
    assert printed(here, capfd) == ["worker-000: 10 %", "worker-000: 20 %", "worker-000: is \ufffd", "worker-000: "]
    log.write_bytes(b"x" * (LONGEST + 1) + b"\n")
    assert [len(line) for line in printed(here, capfd)] == [LONGEST + 12, 1 + 12]


def test_a_large_log_is_not_held(log: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log.write_bytes((b"x" * (2**20 - 1) + b"\n") * 32)
    shown: list[int] = []
    monkeypatch.setattr("paceline.cli.jobs.show", lambda text: shown.append(len(text)))
    tracemalloc.start()
    try:
        logs(str(here / "runs" / "one"))
        assert sum(shown) > 2**25 and tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()
