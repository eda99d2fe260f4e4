"""A PostgreSQL server of our own, on loopback, in a temporary directory."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, LiteralString, cast

import psycopg
from needs import postgres_binaries

PASSWORD = "correct-horse-battery"
START = 60.0  # seconds
USER = "nobody"  # the server refuses to be run by root


class Server:
    """`stop` loses nothing that was committed; `start` goes on with it."""

    def __init__(self) -> None:
        found = postgres_binaries()
        assert found is not None
        self._binaries = found
        self._home = Path(tempfile.mkdtemp(prefix="paceline-postgres-", dir="/tmp"))
        self._process: subprocess.Popen[Any] | None = None
        self._databases = 0
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        (self._home / "password").write_text(PASSWORD)
        if os.geteuid() == 0:
            for path in (self._home, self._home / "password"):
                shutil.chown(path, USER)
        access = ["-U", "paceline", "-A", "scram-sha-256", f"--pwfile={self._home / 'password'}"]
        made = [str(found / "initdb"), "-D", str(self._home / "data"), *access, "-E", "UTF8", "--no-sync"]
        subprocess.run([*made, "--no-locale"], check=True, capture_output=True, cwd=self._home, **_as_user())
        self.start()

    def start(self) -> None:
        where = ["-h", "127.0.0.1", "-p", str(self._port), "-k", str(self._home)]
        self._process = subprocess.Popen(
            [str(self._binaries / "postgres"), "-D", str(self._home / "data"), *where],
            cwd=self._home,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **_as_user(),
        )
        deadline = time.monotonic() + START
        while True:
            try:
                psycopg.connect(self.url("postgres")).close()
                return
            except psycopg.OperationalError:
                assert time.monotonic() < deadline, "the server does not start"
                time.sleep(0.05)

    def url(self, database: str) -> str:
        return f"postgresql://paceline:{PASSWORD}@127.0.0.1:{self._port}/{database}"

    def new_database(self) -> str:
        """The URL of an empty one."""
        self._databases += 1
        name = f"sweeps{self._databases}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(cast(LiteralString, f"create database {name}"))
        return self.url(name)

    def stop(self) -> None:
        """At once, as when its machine goes down."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(START)
            self._process = None

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """All of its processes, as a debugger stops them. Those of open connections are its children."""
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        processes = [self._process.pid, *map(int, children)]
        for each in processes:
            os.kill(each, signal.SIGSTOP)
        try:
            yield
        finally:
            for each in processes:
                os.kill(each, signal.SIGCONT)

    @contextmanager
    def locked(self, url: str, table: LiteralString) -> Iterator[None]:
        with psycopg.connect(url) as holder:
            holder.execute(f"lock table {table} in access exclusive mode")  # until the block ends
            yield

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self._home, ignore_errors=True)


def _as_user() -> dict[str, Any]:
    return {"user": USER, "group": "nogroup", "extra_groups": []} if os.geteuid() == 0 else {}
