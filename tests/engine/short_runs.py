"""Short runs: what they are given, and launchers as processes of their own."""

import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from process_table import marked, until

from paceline.engine import Result
from paceline.tracking.run_directory import RunDirectory

HERE = Path(__file__).parent
QUICK = (
    "tracking=none",
    "data.limit=200",
    "batch_size=16",
    "model.hidden=[32]",
    "steps=6",
    "epochs=1000",
    "evaluate.every=1000",
    "checkpoint.every=0",
)
START = 60.0  # seconds for a launcher to get its workers going on a busy machine


class Train(Protocol):
    def __call__(self, *overrides: str, name: str | None = None, resume: str | None = None) -> Result: ...


@dataclass
class Launcher:
    """`paceline train` as a process, the leader of a session (a terminal's foreground group)."""

    process: "subprocess.Popen[bytes]"
    mark: str
    stderr: Path
    run: RunDirectory

    def alive(self) -> dict[int, str]:
        """All that is left of it: itself, fork server, workers, W&B helper, orphans included."""
        return marked(self.mark)

    def said(self) -> str:
        return self.stderr.read_text()

    def last_line(self) -> str:
        return self.said().rstrip().splitlines()[-1]

    def steps(self) -> int:
        """Steps recorded so far."""
        return max((r["step"] for r in self.run.records() if r["kind"] == "step"), default=0)

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait while the launcher lives. Raises AssertionError when it ends first, or too much time passes."""
        until(lambda: condition() or self.process.poll() is not None, START, what)
        assert condition(), f"ended with {self.process.returncode} before {what}: {self.said()}"

    def wait(self, seconds: float = START) -> int:
        return self.process.wait(seconds)


class Start(Protocol):
    def __call__(
        self,
        *overrides: str,
        name: str = "victim",
        prefix: Sequence[str] = (),
        env: dict[str, str] | None = None,
        quick: Sequence[str] = QUICK,
    ) -> Launcher: ...


def clean_environment(home: Path) -> dict[str, str]:
    """This process's environment without a W&B login or another launcher's ranks; our modules can be imported."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("WANDB_", "TORCHELASTIC_"))}
    for key in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        kept.pop(key, None)
    paths = [str(HERE), os.environ.get("PYTHONPATH", "")]  # the second is set where tests/mutations.py breaks a copy
    return {**kept, "HOME": str(home), "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def weights(run: Path) -> bytes:
    """The trained model's file: equal bytes, equal bits."""
    return (run / "model.safetensors").read_bytes()
