from pathlib import Path

import pytest


@pytest.fixture
def here(fork_server: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are made in a directory of the test's own."""
    monkeypatch.chdir(tmp_path)
