"""A sweep's directory and study, made or opened again."""

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from ..conf.errors import ConfigError
from ..engine.jobs.array import check_over
from ..tracking.checksums import marked, verdict_on
from ..tracking.errors import CorruptRunError
from ..tracking.files import UnusableFileError, check_regular, parse_yaml, read_text
from ..tracking.redact import hide_in_urls
from ..tracking.run_data import SWEEP_STORAGE, storage_of
from ..tracking.run_directory import check_name, check_new_name, is_run, locked, write_atomically, writing
from .definition import Definition, from_dict
from .storage import LOCAL
from .study import GRACE, SamplerName, Study, create, place_of, reopen

FILE, DATABASE, LOCK = "sweep.yaml", "study.db", "lock"
GONE = "gone"  # unfinished runs, for the moment in which they are taken away


@dataclass(frozen=True)
class OpenSweep:
    directory: Path
    study: Study


@contextmanager
def open_sweep(
    name: str,
    definition: Definition | None,
    root: Path,
    resume: bool,
    sampler: SamplerName = "auto",
    storage: str | None = None,
    grace: float = GRACE,
    trials: int | None = None,
    task: str | None = None,
) -> Iterator[OpenSweep]:
    """The sweep `root/name`, held by this process alone. `task`: held by this task of an array, and by its others.

    `definition`: None with `resume` takes the stored one. `storage`: the URL of a database that several machines share;
    None is an SQLite file in the sweep's directory. `grace`: seconds without a word after which what another machine
    runs is taken over. `trials`: with `resume`, the trials that there may be from now
    on, if these are more. Raises `ConfigError`, `StorageError` or `MachineError`.
    """
    (check_name if resume else check_new_name)(name)
    directory = root.absolute() / name
    if is_run(directory):
        raise ConfigError(f"--name {name}: {directory} is a run. Choose another name.")
    there = (directory / DATABASE).exists() or (directory / FILE).exists()
    if there and not resume:
        raise ConfigError(
            f"--name {name}: {directory} is there already. Go on with it by --resume, or choose another name."
        )
    if resume and not there and storage is None:
        raise ConfigError(f"--resume: there is no sweep {name} under {root}")
    if resume and task is None:
        check_over(directory)
    if definition is None and not resume:
        raise ConfigError("nothing is swept")
    if storage and (directory / DATABASE).exists():
        raise ConfigError(f"--storage: the sweep {name} has its study in {directory / DATABASE}; leave --storage out")
    if storage == "":
        raise ConfigError("--storage: must be a database's URL, such as postgresql://user@host/name")
    if storage is None and (shared := storage_of(directory)) is not None:
        raise ConfigError(f"--resume: the study of the sweep {name} is in {shared}. Give --storage again")
    url, file = storage or f"{LOCAL}{directory / DATABASE}", _file_of(storage or "")
    with writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
    held = _alone(directory, name) if task is None else _with_others(directory)
    with held, nullcontext() if file is None else _alone_in(file, name):
        if task is None:
            _tidy(directory)
        if storage is None:
            _check_file(directory / DATABASE)
        place = place_of(directory) if task is None else task
        study = reopen(name, url, definition, sampler, place, grace, task is not None) if resume else None
        if study is None:
            definition = definition or _stored(directory, name)
            study = create(name, url, definition, sampler, place, grace)
        if study is None and resume:  # another machine created it at this moment
            study = reopen(name, url, definition, sampler, place, grace)
        if study is None:
            raise ConfigError(
                f"--storage: the database has a sweep {name} already. Join it by --resume, or choose another name."
            )
        with closing(study):
            wanted = trials if definition is None else definition.trials
            more = resume and wanted is not None and _is_more(wanted, study.definition.trials)
            if definition is not None:
                known = study.definition.trials if more else definition.trials
                _check_same(replace(definition, trials=known), study.definition, name)
            if more and wanted is not None:
                study.extend(wanted)
            if storage is not None and storage_of(directory) is None:
                write_atomically(directory / SWEEP_STORAGE, hide_in_urls(storage))
            if not (directory / FILE).exists():
                write_atomically(directory / FILE, marked(_text(study.definition)))
            else:
                _check_stored(directory / FILE, study.definition)
            yield OpenSweep(directory, study)


def _check_file(file: Path) -> None:
    """Checks a file that SQLite opens by its name. Raises `CorruptRunError`."""
    try:
        check_regular(file)
    except FileNotFoundError:
        return
    except OSError as error:
        raise CorruptRunError(f"{file} cannot be read ({error.strerror})") from None
    except UnusableFileError as error:
        raise CorruptRunError(f"{file} {error}") from None


def _tidy(directory: Path) -> None:
    """Take away what a sweeper that was killed had half written, or half removed."""
    for name in ("place", FILE, "report.html"):
        for file in directory.glob(f".{name}.*.tmp"):
            with writing(file):
                file.unlink(missing_ok=True)
    shutil.rmtree(directory / GONE, ignore_errors=True)


def _stored(directory: Path, name: str) -> Definition:
    """Returns the definition of a sweeper that was killed before it made its study."""
    file = directory / FILE
    again = f"and the sweep {name} was never begun: remove {directory}, and give its definition again"
    try:
        text = read_text(file)
        plain = parse_yaml(text)
        if verdict_on(text) != "whole":
            raise ConfigError(f"--resume: {file} is not as it was written (its checksum differs), {again}")
        return from_dict(plain)
    except FileNotFoundError:
        raise ConfigError(f"--resume: the sweep {name} was never begun; give its definition again") from None
    except OSError as error:
        raise CorruptRunError(f"{file} cannot be read ({error.strerror}), {again}") from None
    except UnusableFileError as error:
        raise CorruptRunError(f"{file} {error}, {again}") from None


def _check_stored(file: Path, definition: Definition) -> None:
    """The study and the file that tells of it are of one mind. Raises `ConfigError` or `CorruptRunError`."""
    plain = _text(definition)
    try:
        text = read_text(file)
        same = text in (marked(plain), plain)  # an earlier version wrote no checksum
        if not same and verdict_on(text) == "whole":
            before = from_dict(parse_yaml(text))
            if replace(before, trials=definition.trials).as_dict() == definition.as_dict():  # it may have more now
                write_atomically(file, marked(plain))
                return
    except (OSError, UnusableFileError) as error:
        raise CorruptRunError(f"{file} {error}; the study has the definition: remove the file to go on") from None
    if not same:
        raise ConfigError(
            f"--resume: {file} is not the definition that the sweep's study has: one of them was changed, or is "
            "damaged; if it is the file, remove it to go on"
        )


def _is_more(wanted: int, stored: int | None) -> bool:
    """Raises `ConfigError` for fewer trials than the sweep was given before."""
    if stored is not None and wanted < stored:
        raise ConfigError(f"--trials {wanted}: the sweep has {stored} already. Choose {stored} or more.")
    return stored is not None and wanted > stored


def _text(definition: Definition) -> str:
    return yaml.safe_dump(definition.as_dict(), sort_keys=False)


def _check_same(wanted: Definition, stored: Definition, name: str) -> None:
    """Raises `ConfigError` with the difference."""
    before, now = (replace(definition, figures=()).as_dict() for definition in (stored, wanted))
    changed = [
        f"{key} was {_yaml(before.pop(key, None))} and is {_yaml(now.pop(key, None))}"
        for key in list(before)
        if before[key] != now[key]
    ]
    if changed:
        raise ConfigError(
            f"--resume: the definition of {name} is another one than it began with: {'; '.join(changed)}. "
            "Give what it began with, or choose another --name."
        )


def _yaml(value: object) -> str:
    return yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10**6).removesuffix("...\n").strip()


def _with_others(directory: Path) -> AbstractContextManager[None]:
    """Waits until no sweeper has the directory for itself: the one that submits the array has it for a moment."""
    return locked(directory / LOCK, fcntl.LOCK_SH)


def _alone(directory: Path, name: str) -> AbstractContextManager[None]:
    """No other sweeper works in this directory."""
    return _locked(directory / LOCK, f"--name {name}: another paceline sweep is at work on {directory}")


def _file_of(storage: str) -> Path | None:
    """Returns the file of an SQLite database; None of any other. Raises `ConfigError` where it has none."""
    kind, _, place = storage.partition(":")
    if kind.partition("+")[0] != "sqlite":
        return None
    name = place.removeprefix("///").partition("?")[0]
    if not storage.startswith(LOCAL) or name in ("", ":memory:") or Path(name).is_dir():
        raise ConfigError(f"--storage {hide_in_urls(storage)}: must name a file. Choose {LOCAL}FILE.db, for instance.")
    return Path(name).absolute()


def _alone_in(file: Path, name: str) -> AbstractContextManager[None]:
    """No other sweeper works on the study of this name in an SQLite file, whatever its directory is."""
    refusal = (
        f"--storage: another paceline sweep is at work on {name} in {file}. An SQLite file serves one sweeper of a "
        "study at a time. Choose another --name, or a database of PostgreSQL, which several machines share"
    )
    return _locked(file.with_name(f"{file.name}.{name}.{LOCK}"), refusal)


@contextmanager
def _locked(file: Path, refusal: str) -> Iterator[None]:
    """Raises `ConfigError` where another process has the file."""
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(file, fcntl.LOCK_EX | fcntl.LOCK_NB))
        except BlockingIOError:
            raise ConfigError(refusal) from None
        yield
