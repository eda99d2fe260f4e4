"""A run goes on as long as its launcher lives, and no longer."""

import os
from pathlib import Path

from paceline.tracking.alive import held, is_held


def test_a_forked_child_that_outlives_the_launcher_does_not_keep_the_run_going(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.touch()
    reader, writer = os.pipe()
    with held(file):
        assert is_held(file)
        if not (child := os.fork()):
            os.close(writer)
            os.read(reader, 1)  # until its parent has ended, or goes on below
            os._exit(0)
        assert is_held(file)
    try:
        assert not is_held(file)
    finally:
        os.close(writer)
        os.waitpid(child, 0)
        os.close(reader)
