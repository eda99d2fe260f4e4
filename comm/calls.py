"""Checks that all workers of a group call the same collective. gloo and nccl do not check it: with unlike tensors they
take a part for the whole, end the process, or wait without end.

Training calls the same collectives over and over. So each worker foretells its next call, as what followed the longest
past that the present is like. All workers of a group have the same past, and foretell the same.

    a call that was foretold is made at once, and costs no message;
    any other is told to all over the run's store, and made once all have told the same.

Where calls differ, at most one of them is the one that was foretold. Whoever has another asks, and never makes it, so
that nothing reaches those that did make theirs. These answer in the thread of their heartbeat, wherever they are, and
hear what the others called where they wait. So all know of all, and say the same.
"""

from collections.abc import Sequence
from threading import Lock

import torch

from .errors import MessageError
from .key_values import StoreKeyValues
from .unlike import odd, workers

KEPT = 2**13  # calls of a group's past, at least, once there are so many


Call = tuple[str, str, int | None, torch.dtype | None]  # primitive; "max", "from 2", ""; entries and their dtype


def words(call: Call) -> str:
    primitive, how, entries, dtype = call
    name = f"{primitive} {how}".rstrip()
    return name if entries is None else f"{name} of {entries:,} entries of {str(dtype).removeprefix('torch.')}"


class Past:
    """The calls of a group so far; the last `kept` at least."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._calls: list[Call] = []
        self._letters: list[str] = []  # one for each, the same for the same
        self._of: dict[Call, str] = {}
        self._next = 0  # the place in `_calls` of what is foretold; behind the last: nothing is

    def foretells(self, call: Call) -> bool:
        """Returns whether `call` is the predicted one; if so, it is past now."""
        at, calls = self._next, self._calls
        if at == len(calls) or calls[at] != call:
            return False
        calls.append(calls[at])
        self._letters.append(self._letters[at])
        self._next = at + 1
        if len(calls) == 2 * self._kept:
            self._forget()
        return True

    def learn(self, call: Call) -> None:
        """A call that was not foretold is past now."""
        self._calls.append(call)
        self._letters.append(self._of.setdefault(call, chr(len(self._of))))
        if len(self._calls) == 2 * self._kept:
            self._forget()
        else:
            self._seek()

    def before(self, count: int) -> Call:
        """The call so many before the next; all since then were foretold, and repeat in a period."""
        at, period = len(self._calls) - count, len(self._calls) - self._next
        return self._calls[at % period if at < 0 else at]

    def _seek(self) -> None:
        """Foretell what followed the longest past that the present is like, the first of equals: most came after it."""
        past = "".join(self._letters)
        self._next, least, most = len(past), 0, len(past) - 1
        while least < most:  # by halves: what is like the present in more calls is like it in fewer
            length = (least + most + 1) // 2
            at = past.find(past[-length:])
            if at + length < len(past):
                self._next, least = at + length, length
            else:
                most = length - 1

    def _forget(self) -> None:
        self._calls = self._calls[-self._kept :]
        self._of = {}
        self._letters = [self._of.setdefault(call, chr(len(self._of))) for call in self._calls]
        self._seek()


class Calls:
    """The calls of one worker of a group. `ranks`: the group's, as they are numbered in the whole run."""

    def __init__(self, key_values: StoreKeyValues, ranks: list[int], name: str) -> None:
        self._key_values, self._ranks, self._name = key_values, ranks, name
        self._past = Past()
        self._made = self._compared = 0  # calls so far; those until the last that was not foretold
        self._unlike: int | None = None  # the number of the call that another worker made otherwise
        self._lock = Lock()
        key_values.answers[f"asked/{name}"] = self._answer

    def check(self, call: Call, what: str) -> None:
        """Checks `call` before it is made. `what` is this worker's activity, in words.

        Raises `MessageError` where it is not the others', `HangError` or `PeerLostError` where these do not come.
        """
        with self._lock:
            if self._unlike is None and self._past.foretells(call):
                self._made += 1
                return
        if (error := self.unlike(what)) is not None:
            raise error
        prefix = self._prefix(self._made)
        self._key_values.doing(what)
        try:
            asks = f"asked/{self._name}", str(self._made)
            said = self._key_values.set_and_ask(prefix, self._ranks, words(call), what, asks)
        finally:
            self._key_values.doing("computing")
        if len({*said}) > 1:
            self._unlike = self._made  # this group calls no more
            raise self._error(said, what)
        with self._lock:
            self._past.learn(call)
            self._made += 1
            before, self._compared = self._compared, self._made
        if before > 0:  # all have read it
            self._key_values.unsay(self._prefix(before - 1))

    def unlike(self, what: str) -> MessageError | None:
        """The error of a call that this worker has made, and another otherwise."""
        if self._unlike is None:
            return None
        return self._error(self._key_values.said(self._prefix(self._unlike), self._ranks), what)

    def _answer(self, asked: str) -> None:
        """Somebody calls what nobody has foretold: tell what this worker called, if it has gone ahead."""
        number = int(asked)
        with self._lock:
            if not self._compared <= number < self._made:
                return
            call = self._past.before(self._made - number)
        self._key_values.say(self._prefix(number), words(call))
        self._unlike = number

    def _prefix(self, number: int) -> str:
        return f"calls/{self._name}/{number}"

    def _error(self, said: Sequence[str | None], what: str) -> MessageError:
        told = {rank: word for rank, word in zip(self._ranks, said, strict=True) if word is not None}
        usual, who = odd(told)
        others = ", ".join(f"{workers(ranks, 'call')} {word}" for word, ranks in who.items() if word != usual)
        return MessageError(
            f"worker {self._key_values.rank} {what}: {others}, where {workers(who[usual], 'call')} {usual}"
        )
