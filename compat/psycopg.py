"""PostgreSQL's driver with an end to each wait: a server that is stopped, or a lock that its holder keeps, says nothing
while the system answers for it.
"""

import time
from collections.abc import Generator
from types import ModuleType
from typing import Any

import psycopg

SILENCE = 60.0  # seconds


class BoundedConnection(psycopg.Connection[Any]):
    """Raises `psycopg.OperationalError`, and is closed, where the server says nothing for `SILENCE`."""

    def wait(self, gen: Generator[Any, Any, Any], *arguments: Any, **options: Any) -> Any:
        return super().wait(self._bounded(gen), *arguments, **options)

    def _bounded(self, gen: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """Yields what psycopg waits for; it sends 0 back a few times a second while there is nothing."""
        heard, ready = time.monotonic(), None
        while True:
            try:
                wanted = gen.send(ready)
            except StopIteration as ended:
                return ended.value
            ready = yield wanted
            if ready:
                heard = time.monotonic()
            elif time.monotonic() - heard > SILENCE:
                self.pgconn.finish()
                raise psycopg.OperationalError(f"the server has said nothing for {SILENCE:.0f} s")


class _Driver(ModuleType):
    connect = staticmethod(BoundedConnection.connect)

    def __getattr__(self, name: str) -> Any:
        return getattr(psycopg, name)


DRIVER = _Driver("psycopg")  # for SQLAlchemy
