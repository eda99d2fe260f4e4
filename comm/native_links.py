"""The flows of links.py in native code: the same events at the same moments, to the bit.

A call from Python to C takes about a microsecond, so `happen` reads from shared memory until when nothing happens.
"""

import ctypes
import weakref
from array import array
from collections.abc import Hashable, Iterable, Sequence
from functools import cache
from math import inf, nan

from . import native
from .links import Ended, LinkChange, ModelledLinks, SharedLinks

# what the functions of links.c return in place of a number, and what its state begins with
_NOTHING, _CHANGE, _AT_ONCE, _NO_MEMORY = -1, -2, -3, -4
_DUE, _ENDED, _NEXT_CHANGE = range(3)


class NativeLinks(ModelledLinks):
    """Flows under way, in C (native/links.c)."""

    def __init__(self, library: ctypes.CDLL) -> None:
        super().__init__()
        address = library.links_new()
        if address is None:
            raise MemoryError("no memory for the links of the virtual cluster")
        weakref.finalize(self, library.links_free, address)
        self._library, self._links = library, ctypes.c_void_p(address)
        self._post, self._happen = library.links_post, library.links_happen
        self._state = (ctypes.c_double * 3).from_address(address)
        self._last: dict[Hashable, int] = {}  # the last flow of each connection that is busy
        self._posted: dict[int, tuple[Hashable, Ended]] = {}  # by flow

    def plan(self, changes: Iterable[LinkChange]) -> None:
        super().plan(changes)
        self._expect_change()

    def add(self, bandwidth: float) -> int:
        return _had(self._library.links_add(self._links, bandwidth))

    def bandwidth(self, lane: int) -> float:
        return self._library.links_bandwidth(self._links, lane)

    def post(self, connection: Hashable, lanes: Sequence[int], nbytes: float, at: float, ended: Ended) -> None:
        held = array("i", lanes)
        address, count = held.buffer_info()
        flow = self._post(self._links, self._last.get(connection, -1), address, count, nbytes, at)
        if flow == _AT_ONCE:
            ended(at)
        else:
            self._last[connection] = _had(flow)
            self._posted[flow] = connection, ended

    def happen(self, before: float) -> bool:
        state = self._state
        if before < state[_DUE]:  # most often
            return False
        some_ended = False
        while (flow := self._happen(self._links, before)) != _NOTHING:
            if flow == _CHANGE:
                assert self._change is not None
                self._apply(self._change)
                self._expect_change()
                continue
            connection, ended = self._posted.pop(flow)
            if self._last[connection] == flow:
                del self._last[connection]
            ended(state[_ENDED])
            some_ended = True
        return some_ended

    def _expect_change(self) -> None:
        self._state[_NEXT_CHANGE] = nan if self._change is None else self._change.at
        self._state[_DUE] = -inf  # to be found anew

    def _carries(self, lane: int) -> bool:
        return bool(self._library.links_carries(self._links, lane))

    def _set_bandwidth(self, lane: int, bandwidth: float) -> None:
        self._library.links_change(self._links, lane, bandwidth)


def links_here() -> ModelledLinks:
    """Returns links in native code. If it cannot be compiled: in Python, and the first call says so."""
    library = native_links()
    return SharedLinks() if library is None else NativeLinks(library)


@cache
def native_links() -> ctypes.CDLL | None:
    """Returns comm/native/links.c; None, and says so, if it cannot be compiled."""
    if (library := native.load_or_say("links", "Python computes messages of the virtual cluster")) is None:
        return None
    pointer, number, real = ctypes.c_void_p, ctypes.c_int, ctypes.c_double
    library.links_new.argtypes, library.links_new.restype = [], pointer
    library.links_free.argtypes, library.links_free.restype = [pointer], None
    library.links_add.argtypes = [pointer, real]
    library.links_bandwidth.argtypes, library.links_bandwidth.restype = [pointer, number], real
    library.links_carries.argtypes = [pointer, number]
    library.links_change.argtypes, library.links_change.restype = [pointer, number, real], None
    library.links_post.argtypes = [pointer, number, pointer, number, real, real]
    library.links_happen.argtypes = [pointer, real]
    return library


def _had(number: int) -> int:
    if number == _NO_MEMORY:
        raise MemoryError("no memory for the links of the virtual cluster")
    return number
