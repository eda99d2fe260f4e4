"""Sends what runs recorded for W&B while offline, by W&B's own client (`wandb sync`) in a process of its own.

W&B marks a recording that was sent by a file beside it, `run-ID.wandb.synced`. The client does so, too, when the server
did not take everything, and when the run still goes on: that mark is taken off again.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..compat import wandb as client
from .errors import UploadError

State = Literal["sent", "partly", "damaged", "failed"]
BATCH = 20  # runs for one process of the client, which sends five at a time


@dataclass(frozen=True)
class OfflineRecording:
    """The files that a run recorded for W&B: one `.wandb` file for each time that it was started, the earliest
    first.
    """

    name: str  # of the run, for people
    path: Path  # its directory
    files: tuple[Path, ...]

    def unsent(self) -> "OfflineRecording":
        return OfflineRecording(self.name, self.path, tuple(file for file in self.files if not is_sent(file)))


@dataclass(frozen=True)
class UploadOutcome:
    """`partly`: as far as it was recorded, as the run was killed or goes on. `said`: the run's address, or why not."""

    state: State
    said: str


def recording(name: str, run: Path) -> OfflineRecording:
    """Returns the recording of the run in the directory `run`, without files if it had no W&B. Files that were sent
    online are marked as sent.
    """
    path = Path(os.path.realpath(run))
    files = [*path.glob("wandb/offline-run-*/*.wandb"), *path.glob("wandb/run-*/*.wandb")]
    return OfflineRecording(
        name, path, tuple(sorted(files, key=lambda file: file.parent.name.removeprefix("offline-")))
    )


def is_sent(file: Path) -> bool:
    """Marked as sent, and not written to since."""
    mark = mark_of(file)
    return mark.exists() and mark.stat().st_mtime_ns >= file.stat().st_mtime_ns


def send(
    recordings: Sequence[OfflineRecording], project: str | None, entity: str | None
) -> Iterator[tuple[OfflineRecording, UploadOutcome]]:
    """Sends all files of each, in order, and tells what became of it; failed ones can be sent again.

    `project`, `entity`: to send to, instead of those that were recorded. The first goes alone: it tells whether there
    is a server. Raises UploadError when there is none, or no API key that it accepts; the rest is then left as it is.
    """
    sound: list[OfflineRecording] = []
    for each in recordings:
        if (link := _link_out(each)) is None:
            sound.append(each)
        else:
            why = f"{link} leads out of the run's directory, and W&B would get what is there. Remove the link"
            yield each, UploadOutcome("failed", why)
    batches = [sound[:1], *(sound[i : i + BATCH] for i in range(1, len(sound), BATCH))]
    for batch in batches if sound else ():
        lost = None
        for each, outcome in zip(batch, _send(batch, project, entity), strict=True):
            if outcome is None:  # the client named an error and no run
                (outcome,) = _send([each], project, entity)
            assert outcome is not None
            without_server = _without_server(outcome.said) if outcome.state == "failed" else None
            if without_server is None:
                yield each, outcome
            lost = lost or without_server
        if lost is not None:
            raise UploadError(lost)


def _link_out(each: OfflineRecording) -> Path | None:
    """Returns a path of what W&B's client would send that is, or lies behind, a link out of the run's directory."""
    for file in each.files:
        folders = os.walk(file.parent / "files")
        sent = (Path(folder, name) for folder, inner, names in folders for name in (*inner, *names))
        for path in (file, file.parent / "files", *sent):
            if not Path(os.path.realpath(path)).is_relative_to(each.path):
                return path
    return None


def _without_server(said: str) -> str | None:
    """Returns the fault of the server, if the error is not this run's."""
    if missing := client.server_missing_in(said):
        return f"no W&B server answers at {missing[0]} ({missing[1]})"
    return "the W&B server does not accept the API key (error 401)" if client.is_refused_key(said) else None


def _send(batch: Sequence[OfflineRecording], project: str | None, entity: str | None) -> list[UploadOutcome | None]:
    """Sends the batch by one process of W&B's client. None: it was not sent, and no error can be attributed to this
    run.
    """
    files = [file for each in batch for file in each.files]
    _unmark(files)
    before = {file: _written(file) for file in files}
    try:
        lines = _client(files, project, entity)
    except BaseException:  # which of the marks are right was not heard
        _unmark(files)
        raise
    outcomes = [_outcome(each, lines, before, alone=len(batch) == 1) for each in batch]
    for each, outcome in zip(batch, outcomes, strict=True):
        if outcome is None or outcome.state != "sent":
            _unmark(each.files)
    return outcomes


def _client(files: Sequence[Path], project: str | None, entity: str | None) -> list[str]:
    """Returns the output of W&B's client while it sends the files. Raises UploadError when it cannot begin."""
    options = [f"--{key}={value}" for key, value in (("project", project), ("entity", entity)) if value is not None]
    start = [sys.executable, "-P", "-c", f"from {client.__name__} import main; main()"]
    command = [*start, "sync", "--include-synced", *options, *map(str, files)]
    process = subprocess.Popen(
        command,
        env=client.BOUNDS | os.environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # no terminal to ask questions on
    )
    with process:
        try:
            said, _ = process.communicate()
        except BaseException:  # Ctrl-C, SIGTERM; its wandb-core ends with it
            process.kill()
            raise
    lines = said.splitlines()
    if process.returncode:
        raise UploadError((client.errors_in(lines) or [f"its client ended with exit status {process.returncode}"])[-1])
    return lines


def _outcome(
    each: OfflineRecording, lines: list[str], before: dict[Path, tuple[int, int]], alone: bool
) -> UploadOutcome | None:
    own = [line for line in lines if any(client.is_about(file.stem.removeprefix("run-"), line) for file in each.files)]
    errors = client.errors_in(lines if alone else own)
    told = [error for error in errors if not client.is_cut_off(error)]
    if told:
        damage = client.damage_in(told[0])
        return UploadOutcome("damaged", damage) if damage else UploadOutcome("failed", told[0])
    address = next((found for line in own if (found := client.address_in(line))), "")
    if errors or any(_written(file) != before[file] for file in each.files):
        return UploadOutcome("partly", address)
    if all(is_sent(file) for file in each.files):
        return UploadOutcome("sent", address)
    return UploadOutcome("failed", "W&B's client does not say why") if alone else None


def _unmark(files: Sequence[Path]) -> None:
    for file in files:
        mark_of(file).unlink(missing_ok=True)


def mark_of(file: Path) -> Path:
    """Returns the marker that W&B's client makes once the file was sent."""
    return file.with_name(f"{file.name}.synced")


def _written(file: Path) -> tuple[int, int]:
    return file.stat().st_size, file.stat().st_mtime_ns
