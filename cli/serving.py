"""Serves a page to this host until Ctrl-C."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from .output import note, show

if TYPE_CHECKING:
    from ..tracking.report.serve import LocalServer


def serve(port: int, make: "Callable[[], LocalServer]", begins: str, ends: str) -> None:
    """`make`: binds the port. `begins`, `ends`: notes around the time in which it is served; the address is a result.

    Raises StorageError where the port is taken, and what `make` raises.
    """
    from ..tracking.errors import StorageError

    try:
        server = make()
    except OSError as error:
        raise StorageError(
            f"--port {port}: cannot be listened on ({error.strerror}); --port 0 takes a free one"
        ) from None
    with server:
        try:
            note(begins)
            show(server.address)
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            note(ends)
