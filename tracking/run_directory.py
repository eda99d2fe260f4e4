"""One run's directory: the first and complete record of what happened; every other sink mirrors it.

runs/<name>/
    config.yaml        the configuration, secrets redacted; the last line is its checksum
    environment.json   versions, commit, machine
    metrics.jsonl      one JSON record a line, appended while training
    live.json          how far each worker is, while the run goes on: see live.py
    summary.json       the run's result row, written at the end
    prediction.json    what a step was predicted to take, by part, with formulas; where it was predicted
    adversarial.json   what an attack left of the model, where there was one: see adversarial.py
    job.json           the torchrun job that made it, which goes on with it when torchrun starts its workers anew
    schedule.json      of a pipeline with --trace, a step as modelled and as measured: see schedule.py
    logs/              one log a worker
    checkpoints/
"""

import fcntl
import itertools
import json
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

from ..compat.full_disk import why_unwritten
from .alive import goes_on, is_held
from .checkpoints import steps_of
from .checksums import marked
from .errors import CorruptRunError, RunNameError, RunNameTakenError, StorageError
from .files import NotRegularError, UnusableFileError, open_regular, open_to_write, parse_json, read_json
from .records import Written
from .text import did_you_mean
from .values import finite

SWEEP_NOTE = "trial.json"  # in the directory of a run that a sweep made: see sources.Swept
NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")
POLL_SECONDS = 0.1
CHUNK_BYTES = 1 << 20
LONGEST_LINE = 1 << 20  # bytes of a record

Record = dict[str, Any]  # as read: see records.py


def read_object(file: Path) -> dict[str, Any] | None:
    """A JSON object of a run's; None where the file is not there. Raises CorruptRunError."""
    try:
        with _reading(file):
            content = read_json(file)
    except FileNotFoundError:
        return None
    except UnusableFileError as error:
        raise CorruptRunError(f"{file} {error}") from None
    if not isinstance(content, dict):
        raise CorruptRunError(f"{file} holds no JSON object")
    return content


class RunDirectory:
    """Paths, writers and readers of one run. Get one by `create` or `open`."""

    def __init__(self, path: Path):
        self.path = path
        self.name = path.name
        self.config = path / "config.yaml"
        self.environment = path / "environment.json"
        self.metrics = path / "metrics.jsonl"
        self.summary = path / "summary.json"
        self.adversarial = path / "adversarial.json"
        self.schedule = path / "schedule.json"
        self.prediction = path / "prediction.json"
        self.logs = path / "logs"
        self.checkpoints = path / "checkpoints"
        # Records before this byte belong to the run's earlier lives: mirrors have seen them.
        self.opened_at = _size(self.metrics)
        self._descriptor: int | None = None
        self._lock = threading.Lock()

    @classmethod
    def create(cls, root: str | Path, name: str) -> "RunDirectory":
        """Makes `root/name`, claiming the name: of two processes asking for it, one succeeds.

        Raises RunNameError when the name is not allowed or taken, StorageError when it cannot be written.
        """
        check_new_name(name)
        path = Path(root).absolute() / name
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                path.mkdir()
            except FileExistsError:
                raise _taken(path) from None
            (path / "logs").mkdir()
            (path / "checkpoints").mkdir()
            (path / "metrics.jsonl").touch()
        return cls(path)

    @classmethod
    def create_unnamed(cls, root: str | Path, stem: str) -> "RunDirectory":
        """Makes `root/stem`, or `root/stem-2`, ... where that is taken. Raises as `create` does."""
        for name in _names(stem):
            with suppress(RunNameTakenError):
                return cls.create(root, name)
        raise AssertionError("names have no end")

    @staticmethod
    def check_free(root: str | Path, name: str) -> None:
        """Long before `create` is called: raises RunNameError when the name is not allowed or taken."""
        check_new_name(name)
        path = Path(root).absolute() / name
        if path.exists():
            raise _taken(path)

    @classmethod
    def open(cls, root: str | Path, name_or_path: str | Path) -> "RunDirectory":
        """The run called `name_or_path` (SWEEP/RUN: a sweep's) under `root`, or the run directory at that path.

        Raises RunNameError, naming close matches, when there is neither; CorruptRunError when its records are gone.
        """
        text = str(name_or_path)
        named = text.count("/") <= 1 and all(map(is_entry, text.split("/")))
        candidates = [Path(root) / text] if named else []
        for candidate in [*candidates, Path(text)]:
            if is_run(candidate):
                if not (candidate / "metrics.jsonl").is_file():
                    raise CorruptRunError(f"{candidate / 'metrics.jsonl'} is gone, or is no file")
                return cls(Path(os.path.realpath(candidate)))
        names = run_names(root)
        hint = did_you_mean(Path(text).name, names) or _first_names(names)
        raise RunNameError(f"no run {text!r} under {root}: {hint}")

    def check_over(self) -> None:
        """Raises RunNameError while the run goes on: two would write to one directory."""
        if is_held(self.metrics):
            raise goes_on(self.name)

    def has_grown(self) -> bool:
        """Returns whether another command has added records since this object was made."""
        return _size(self.metrics) != self.opened_at

    def add(self, record: Written) -> None:
        """Adds one record of this run to metrics.jsonl. Raises StorageError."""
        self.append(record.plain())

    def append(self, record: Record) -> None:
        """Adds one record to metrics.jsonl, in the file before this returns.

        `record` holds plain Python values; NaN and infinities are written as "nan", "inf", "-inf".
        One write to a descriptor in append mode: lines of several writers do not mix. Raises StorageError.
        """
        line = _line(record)
        with self._lock, writing(self.metrics):
            try:
                if self._descriptor is None:
                    self._descriptor = _open_for_append(self.metrics)
                written = os.write(self._descriptor, line)
                while written < len(line):  # a full disk takes part of a line; the rest then says ENOSPC
                    written += os.write(self._descriptor, line[written:])
            except OSError:
                self._close()  # opening again ends the torn line
                raise

    def close(self) -> None:
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def write_config(self, text: str) -> None:
        """Raises StorageError. `text` is YAML, and gets its checksum; redact() the configuration before dumping it."""
        write_atomically(self.config, marked(text))

    def write_environment(self, environment: dict[str, Any]) -> None:
        write_atomically(self.environment, json.dumps(finite(environment), indent=2) + "\n")

    def is_of_script(self) -> bool:
        """Returns whether a script with a loop of its own made the run; False if it is not known."""
        try:
            return (read_object(self.environment) or {}).get("wrapped") is True
        except CorruptRunError:
            return False

    def write_summary(self, summary: dict[str, Any]) -> None:
        write_atomically(self.summary, json.dumps(finite(summary), indent=2) + "\n")

    def write_adversarial(self, kept: dict[str, Any]) -> None:
        write_atomically(self.adversarial, json.dumps(finite(kept), separators=(",", ":")) + "\n")

    def write_schedule(self, schedule: dict[str, Any]) -> None:
        write_atomically(self.schedule, json.dumps(finite(schedule), separators=(",", ":")) + "\n")

    def write_prediction(self, prediction: dict[str, Any]) -> None:
        write_atomically(self.prediction, json.dumps(finite(prediction), indent=2) + "\n")

    def forget_summary(self) -> None:
        """Removes the summary of an earlier life of the run, and the files beside it. Raises StorageError."""
        for file in (self.summary, self.adversarial, self.schedule, self.prediction):
            with writing(file):
                file.unlink(missing_ok=True)

    def read_summary(self) -> dict[str, Any] | None:
        """The result row, or None while the run is unfinished. Raises CorruptRunError."""
        return read_object(self.summary)

    def records(self) -> list[Record]:
        """Every complete record of metrics.jsonl so far. Raises CorruptRunError where it cannot be read."""
        with _reading(self.metrics):
            return self.scan()[0]

    def scan(self, most: int | None = None) -> tuple[list[Record], list[int]]:
        """Every complete record of metrics.jsonl so far, and the numbers of the lines, from 1, that are damaged.

        A line that a crash tore is not: the last one, or one after which the run went on or was declared ended.
        `most`: of so many lines only.
        """
        records: list[Record] = []
        damaged: list[int] = []
        torn: list[int] = []
        for number, line in enumerate(islice(_lines(self.metrics), most), 1):
            record = _parse(line)
            if record is None and line.strip():
                (torn if line.startswith(b"{") and not torn else damaged).append(number)
            elif record is not None:
                damaged += [] if record.get("kind") in ("resume", "end") else torn
                torn.clear()
                records += [record] if line.endswith(b"\n") else []
        return records, sorted(damaged)


def follow(path: str | Path, stop: threading.Event, start_at: int = 0) -> Iterator[Record]:
    """Yields the records of `path` as they are appended, from byte `start_at` on.

    A line still being written is waited for; one that was torn by a crash is passed over. The file may
    appear later. Ends when `stop` is set and everything has been read. Raises CorruptRunError.
    """
    path, position, rest = Path(path), start_at, b""
    while True:
        last_look = stop.is_set()
        while chunk := _read(path, position):
            position += len(chunk)
            *lines, rest = (rest + chunk).split(b"\n")
            yield from (record for line in lines if (record := _parse(line)) is not None)
        if last_look:
            return
        stop.wait(POLL_SECONDS)


@contextmanager
def claimed(root: Path, name: str | None, stem: str, suffix: str = "") -> Iterator[str]:
    """Gives `name`, or for None the first of `stem`, `stem-2`, ... whose folder `root/NAME{suffix}` could be made.

    No other process takes that one then. Its folder is removed if it is still empty at the end.
    """
    if name is not None:
        yield name
        return
    for free in _names(stem):
        path = root / f"{free}{suffix}"
        with writing(path):
            root.mkdir(parents=True, exist_ok=True)
            try:
                path.mkdir()
            except FileExistsError:
                continue
        try:
            yield free
        finally:
            with suppress(OSError):
                path.rmdir()
        return


def _names(stem: str) -> Iterator[str]:
    yield stem
    yield from (f"{stem}-{i}" for i in itertools.count(2))


def _size(path: Path) -> int:
    """0 of none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _taken(path: Path) -> RunNameTakenError:
    on = "continue that run with --resume"
    if not steps_of(path / "checkpoints"):
        on = f"remove that run, which has no checkpoint to continue from: paceline rm {path.name}"
    return RunNameTakenError(f"run name {path.name!r} is taken ({path} exists). Choose another name, or {on}.")


def check_name(name: str) -> None:
    """Raises RunNameError unless `name` can be a run's directory name under any root."""
    if not _allowed(name):
        raise RunNameError(f"run name {name!r} is not allowed: 1 to 64 of A-Z a-z 0-9 . _ - and not . or ..")


def check_new_name(name: str) -> None:
    """Raises RunNameError unless a new run may have the name. Earlier versions made runs whose names begin with -."""
    check_name(name)
    if name.startswith("-"):
        other = name.lstrip("-") or "run"
        raise RunNameError(f"run name {name!r} is not allowed: commands would take it for an option. Choose {other}.")


def name_of(words: str) -> str:
    """Returns a name that is allowed, with `_` for what names may not hold; of long words the end."""
    return _NOT_IN_NAMES.sub("_", words)[-60:].lstrip("-.")


def is_entry(name: str) -> bool:
    """Returns whether `name` can be that of an entry of a folder, also one that no run is given: people rename runs."""
    return bool(name.strip(".")) and not {"/", "\0"} & {*name}


def is_run(path: Path) -> bool:
    """Returns whether `path` is a run's directory, be it damaged."""
    return any(os.path.lexists(path / name) for name in ("metrics.jsonl", "config.yaml"))


def run_names(root: str | Path) -> list[str]:
    """The names of the runs under `root`, sorted."""
    try:
        return sorted(path.name for path in Path(root).iterdir() if is_run(path))
    except (FileNotFoundError, NotADirectoryError):
        return []


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Around whatever makes, changes or removes `path`: raises StorageError, or CorruptRunError where it is no file."""
    try:
        yield
    except NotRegularError as error:
        raise CorruptRunError(f"{path} {error}") from None
    except IsADirectoryError:  # where a file of a run was
        raise CorruptRunError(f"{path} is a directory") from None
    except OSError as error:
        raise StorageError(f"cannot write {path}: {why_unwritten(error)}; what was written before is kept") from error


@contextmanager
def locked(file: Path, how: int = fcntl.LOCK_EX) -> Iterator[None]:
    """Keeps the lock of a file, which is made; the kernel lets go when this process dies.

    Raises BlockingIOError where `how` has LOCK_NB and another process has it, StorageError where there are no locks.
    """
    with writing(file):
        descriptor = open_to_write(file)
    try:
        try:
            fcntl.flock(descriptor, how)
        except BlockingIOError:
            raise
        except OSError as error:
            raise StorageError(
                f"{file}: cannot be locked ({error.strerror}). Choose a folder on a file system with locks (flock)."
            ) from None
        yield
    finally:
        os.close(descriptor)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replaces `path` by the content so that a crash leaves the old content or the new. Raises StorageError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with writing(path):
        try:
            with os.fdopen(open_to_write(temporary, os.O_TRUNC), "wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def _allowed(name: str) -> bool:
    return NAME.fullmatch(name) is not None and name not in (".", "..")


def _first_names(names: list[str]) -> str:
    if not names:
        return "there are no runs there yet"
    return f"there are {', '.join(names[:5])}{' and more' if len(names) > 5 else ''}"


def _line(record: Record) -> bytes:
    return json.dumps(finite(record), allow_nan=False, separators=(",", ":")).encode() + b"\n"


def _open_for_append(path: Path) -> int:
    descriptor = open_to_write(path)
    size = os.fstat(descriptor).st_size
    if size and os.pread(descriptor, 1, size - 1) != b"\n":
        try:
            os.write(descriptor, b"\n")
        except OSError:
            os.close(descriptor)
            raise
    return descriptor


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise CorruptRunError(f"{file} cannot be read ({error.strerror})") from None
    except NotRegularError as error:
        raise CorruptRunError(f"{file} {error}") from None


def _read(path: Path, position: int) -> bytes:
    try:
        with _reading(path), open_regular(path) as file:
            file.seek(position)
            return file.read(CHUNK_BYTES)
    except FileNotFoundError:
        return b""


def _lines(path: Path) -> Iterator[bytes]:
    """Yields the lines of a file. Of a line that is too long to be a record it yields a piece."""
    try:
        with open_regular(path) as file:
            while line := file.readline(LONGEST_LINE):
                yield line
                while line and not line.endswith(b"\n"):
                    line = file.readline(LONGEST_LINE)
    except FileNotFoundError:
        return


def _parse(line: bytes) -> Record | None:
    try:
        record = parse_json(line)
    except UnusableFileError:
        return None
    return record if isinstance(record, dict) else None
