"""A wrapped run has one end, written by the process that began it, however its workers end."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from scripts import parts

from paceline.tracking.run_directory import RunDirectory
from paceline.wrap import ScriptError, wrap


@pytest.fixture
def usual_sigterm() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


def test_a_forked_child_ends_nothing(tmp_path: Path) -> None:
    with wrap(*parts(), name="mine", root=tmp_path) as run:
        child = os.fork()
        if child == 0:  # pragma: no cover, another process
            try:
                run.evaluated(0.25)
                run.close()
                run.__exit__(SystemExit, SystemExit(0), None)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert [each["kind"] for each in run._record.directory.records()] == ["start"]
    assert RunDirectory.open(tmp_path, "mine").records()[-1]["status"] == "completed"


def test_a_forked_child_that_goes_on_training_is_refused(tmp_path: Path) -> None:
    with wrap(*parts(), name="mine", root=tmp_path) as run:
        child = os.fork()
        if child == 0:  # pragma: no cover, another process
            refused = 0
            for act in (lambda: next(iter(run.loader)), lambda: run.backward(torch.zeros(()))):
                try:
                    act()
                except ScriptError as error:
                    refused += "forked child" in str(error)
            os._exit(refused)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2


@pytest.mark.usefixtures("usual_sigterm")
def test_sigterm_leaves_an_end(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as left, wrap(*parts(), name="mine", root=tmp_path):
        signal.raise_signal(signal.SIGTERM)
    assert left.value.code == 143
    last = RunDirectory.open(tmp_path, "mine").records()[-1]
    assert (last["kind"], last["status"]) == ("end", "interrupted") and "another worker has failed" in last["reason"]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.usefixtures("usual_sigterm")
def test_a_script_that_handles_sigterm_itself_goes_on_doing_so(tmp_path: Path) -> None:
    def mine(*_: object) -> None: ...

    signal.signal(signal.SIGTERM, mine)
    with wrap(*parts(), name="mine", root=tmp_path):
        assert signal.getsignal(signal.SIGTERM) is mine


ENDS = {
    "raises": "raise ValueError('mine')",
    "killed": "os.kill(os.getpid(), 9)",
    "extra step": "run.optimizer.step()",
}


@pytest.mark.slow  # two processes
@pytest.mark.fault
@pytest.mark.parametrize("ends", ENDS)
def test_a_worker_that_fails_leaves_a_run_with_an_end(ends: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        f"""
import os
from scripts import parts
from paceline.wrap import wrap
with wrap(*parts(), name="mine", epochs=100000) as run:
    for epoch in range(100000):
        for batch in run.loader:
            run.backward(run.model(**batch).loss)
            run.optimizer.step()
            if run.steps == 3 and not run.is_chief:
                {ENDS[ends]}
"""
    )
    launch = [sys.executable, "-m", "paceline.cli.main", "launch", "--workers", "2", "mine.py"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    ended = subprocess.run(launch, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert ended.returncode not in (0, None)
    records = RunDirectory.open(tmp_path / "runs", "mine").records()
    assert [each["status"] for each in records if each["kind"] == "end"] in (["failed"], ["interrupted"])
    assert records[-1]["kind"] == "end"
