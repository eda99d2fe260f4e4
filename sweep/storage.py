"""The database of a sweep's study: connections, their limits in time, errors without secrets, and turns of sweepers."""

import random
import re
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    IntegrityError,
    NoSuchModuleError,
    ProgrammingError,
    SQLAlchemyError,
)
from sqlalchemy.pool import NullPool

from ..conf.errors import ConfigError
from ..engine.base.errors import MachineError
from ..tracking.errors import StorageError
from ..tracking.redact import HIDDEN, hide_in_urls
from ..tracking.run_directory import locked
from .quiet import quiet

LOCAL = "sqlite:///"  # and the path of a file
BEATS = 6  # a running trial is heard of so often within them
REMOTE = {"connect_args": {"connect_timeout": 10}}  # seconds
ALIVE = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 4, "tcp_user_timeout": 30_000}
POSTGRES = {"connect_args": {**REMOTE["connect_args"], **ALIVE}}  # a host without power is lost after 30 s
SQLITE = {"connect_args": {"timeout": 60}}
ATTEMPTS = 5  # to make a new database's tables while another machine does
SPENT = " (is the disk full, out of inodes or read-only?)"  # SQLite does not say which


def is_shared(url: str) -> bool:
    """Returns whether other machines may work on the study, too."""
    return not url.startswith("sqlite:")


def storage_of(url: str, grace: float) -> RDBStorage:
    """Connects, and makes the tables of a new database.

    Args:
        url: As SQLAlchemy has them.
        grace: Seconds without a word after which a running trial of a shared study is given up.

    Raises `ConfigError`, `StorageError` or `MachineError`.
    """
    local = not is_shared(url)
    connects: dict[str, Any] = SQLITE if local else POSTGRES if url.startswith("postgresql") else REMOTE
    if not local and url.partition("?")[0].count("@") > 1:
        raise ConfigError("--storage: has more than one @; write %40 for that of a password")
    if url.startswith("postgresql://"):
        url = url.replace("postgresql://", "postgresql+psycopg://", 1)
        if find_spec("psycopg") is None:
            raise MachineError(
                f"--storage {_without_secrets(url)}: psycopg, which PostgreSQL needs, is not installed; "
                "pip install 'paceline[postgres]'"
            )
    try:
        if url.startswith("postgresql+psycopg://"):
            from ..compat.psycopg import DRIVER

            connects = {**connects, "module": DRIVER}
        _make_tables(url, connects)
        with stored(url):
            return RDBStorage(
                url,
                engine_kwargs=connects if local else {**connects, "pool_pre_ping": True},
                heartbeat_interval=None if local else max(1, round(grace / BEATS)),
                grace_period=None if local else max(1, round(grace)),
            )
    except (ArgumentError, NoSuchModuleError, ImportError, ValueError) as error:
        raise ConfigError(
            f"--storage {_without_secrets(url)}: {_said(error, url)}; give a URL such as "
            "postgresql://user@host/database or sqlite:///file.db"
        ) from None
    except StorageError as error:
        if local:
            raise
        raise MachineError(
            f"--storage {_without_secrets(url)}: the database cannot be used: {_said(error, url)}"
        ) from None


@contextmanager
def stored(url: str) -> Iterator[None]:
    """Wraps what reads or writes the database at `url`. Raises `StorageError`, which names the file if there is one.

    SQLite lets two processes claim one trial, as it reads before it locks. The sweepers of an array take turns.
    """
    try:
        with quiet(), turn_at(url):  # optuna warns of heartbeats, which we send ourselves
            yield
    except (StorageInternalError, SQLAlchemyError) as error:
        if isinstance(error, ArgumentError | NoSuchModuleError):
            raise
        cause = _first_of(error)
        said = str(cause).strip().splitlines() or [type(cause).__name__]
        study = "the sweep's study" if is_shared(url) else f"the sweep's study, {url.removeprefix(LOCAL)}"
        why = f"{said[0]}{SPENT}" if "unable to open database file" in said[0] else said[0]
        raise StorageError(f"{study}: {why}; the trials that were recorded before are kept") from error


def turns_of(database: Path) -> Path:
    """Returns the file that sweepers of one directory lock in turn. It is there once a sweep was submitted as an
    array.
    """
    return database.with_name(f"{database.name}.lock")


def turn_at(url: str) -> AbstractContextManager[None]:
    """Keeps the other sweepers of a directory out of the context, if the database is a file there."""
    file = turns_of(Path(url.removeprefix(LOCAL)))
    return locked(file) if not is_shared(url) and file.exists() else nullcontext()


def _make_tables(url: str, options: dict[str, Any]) -> None:
    """Makes the tables of a new database, in which another process may do so at the same moment. Raises
    `StorageError`.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with stored(url):
                RDBStorage(url, engine_kwargs={**options, "poolclass": NullPool}).remove_session()
                return
        except StorageError as error:
            cause = error.__cause__
            is_made = isinstance(cause, IntegrityError | ProgrammingError) or "already exists" in str(cause)
            if attempt == ATTEMPTS or not is_made:
                raise
            time.sleep(random.uniform(0, 1))


def _without_secrets(url: str) -> str:
    return hide_in_urls(url) if "://" in url else "..."  # whatever it is


def _said(error: Exception, url: str) -> str:
    """Returns a driver's message about a URL without the secrets in it: a driver may repeat the URL or parts of it."""
    text = (str(error).splitlines() or [type(error).__name__])[0].replace(url, _without_secrets(url))
    for value in re.findall(r"(?<==)[^&#\s]+", url.partition("?")[2]):
        text = text.replace(value, HIDDEN)
    return text


def _first_of(error: BaseException) -> BaseException:
    """Returns the driver's error with which it began: Optuna and SQLAlchemy may have had others since."""
    first, each = error.__cause__ or error, error
    while each is not None:
        first = each.orig if isinstance(each, DBAPIError) and each.orig is not None else first
        each = each.__cause__ or each.__context__
    return first
