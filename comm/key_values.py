"""Small messages beside the fabric: who is alive, who should stop, reports at the end. Never payload, never counted.

A worker's heartbeat is a counter that a background thread raises twice a second. As often it looks at the counters of
all others, so that it is known at once who is frozen when a wait has taken too long: a worker whose counter stood still
in several looks. No clocks are compared, and a worker that was suspended itself has not looked meanwhile. That a worker
has died is known from the launcher, or from the end of a connection.
"""

import json
import os
import re
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta

import torch.distributed as dist

from .errors import HangError, PeerLostError
from .store import StoreClient, StoreServer

BEAT = 0.5  # seconds between heartbeats
ENDED = 3.0  # seconds in which torchrun's agent, or the kernel, ends a worker whose launcher or store is gone
STOPPED = 3  # looks in a row, one each `BEAT`, that find a heartbeat unchanged: it has stopped

_AWAITED = re.compile(r"in (?:recv from|send to) worker (\d+)$")  # process.py's words

Look = Callable[[], Exception | None]


class KeyValues(ABC):
    """Keys and values that every worker of the run can write and read."""

    rank: int
    live_metrics: Callable[[], str] | None = (
        None  # how far this worker is, for whoever watches; asked from another thread
    )

    @abstractmethod
    def post(self, key: str, value: str) -> None: ...

    @abstractmethod
    def read(self, key: str, writer: int, look: Look | None = None) -> str:
        """The value once `writer` has posted it; waits as long as `writer` shows that it is alive.

        Raises `HangError`, or `PeerLostError` with the writer's rank in the whole run when it has died.

        Args:
            look: called now and then in the wait. What it returns is raised, unless the value is there by then.
        """

    def posted(self, key: str) -> str | None:
        """Returns the value if it is there by now, from any thread; None where nobody can look."""
        return None

    def all_live_metrics(self) -> dict[int, str]:
        """Returns the last `live_metrics` of workers that have told them to others."""
        return {}

    @abstractmethod
    def stop_requested(self) -> bool:
        """Returns whether somebody asked the run to save and stop."""

    @abstractmethod
    def request_stop(self) -> None: ...

    @abstractmethod
    def doing(self, what: str) -> None:
        """Records this worker's activity, for others that find it missing."""

    def in_step(self, step: int | None) -> None:
        """Records that this worker computes in `step`; None: no longer. A worker that stays there beyond the timeout
        hangs.
        """


class SharedKeyValues(KeyValues):
    """Keys and values of workers that share memory."""

    @abstractmethod
    def stops_before(self, step: int, topic: str) -> bool:
        """Returns whether to stop before `step`. All that step together, `topic`, stop at the first step that none has
        begun.
        """


def mark_lost(store: StoreServer, rank: int) -> None:
    """The launcher's word to all workers that worker `rank` has died. `store`: the run's."""
    store.append("lost", f"{rank} ")


class StoreKeyValues(KeyValues):
    """A board in the run's store, with the heartbeat thread."""

    def __init__(self, store: StoreClient, rank: int, size: int, timeout: float) -> None:
        self.rank, self.size, self.timeout = rank, size, timeout
        self.lost: set[int] = set()  # those who have died, numbered in the whole run
        self.look: Callable[[], None] = lambda: None  # whoever has connections looks for more of them
        self.visit: Callable[[Sequence[int]], None] = lambda ranks: None  # and makes some, raising `TimeoutError`
        self.answers: dict[str, Callable[[str], None]] = {}  # by key: called with its value, at each heartbeat
        self._store = store
        self._doing = "starting"
        self._step: int | None = None
        self._at: dict[int, int] = {}  # the step of each that was last seen computing in one
        self._stuck: dict[int, int] = {}  # looks in a row that found it in the same
        self._seen: dict[int, bytes] = {}  # the last heartbeats
        self._still: dict[int, int] = {}  # looks in a row that found them the same
        self._have_left: set[int] = set()  # as far as `in_step` has asked
        self._looks_of_timeout = max(STOPPED, timeout / BEAT)
        self._looks = 0
        self._looked = threading.Condition()
        self._stop = threading.Event()
        self._closing = threading.Event()
        self._beat(0)
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def post(self, key: str, value: str) -> None:
        self._store.set(f"board/{key}", value)

    def read(self, key: str, writer: int, look: Look | None = None) -> str:
        self.wait_for([f"board/{key}"], [writer], f"'{key}' from worker {writer}", look)
        return self._value(f"board/{key}")

    def posted(self, key: str) -> str | None:
        [value] = self.seen([f"board/{key}"])
        return None if value is None else value.decode()

    def all_live_metrics(self) -> dict[int, str]:
        told = self._store.read([f"gauges/{rank}" for rank in range(self.size)])
        return {rank: its.decode() for rank, its in enumerate(told) if its is not None}

    def stop_requested(self) -> bool:
        return self._stop.is_set()

    def request_stop(self) -> None:
        self._stop.set()

    def doing(self, what: str) -> None:
        self._doing = what

    def in_step(self, step: int | None) -> None:
        """Raises `HangError` for a worker without a heartbeat for the timeout: nobody may ever wait for it."""
        self._step = step
        if step is None:
            return
        silent = {rank for rank, still in self._still.items() if still >= self._looks_of_timeout}
        silent -= {self.rank, *self.lost, *self._have_left}
        if not silent:
            return
        self._have_left |= {rank for rank in silent if self.has_left(rank)}
        if frozen := sorted(silent - self._have_left):
            raise HangError(
                f"worker {self.rank} waited {self.timeout:g} s for a sign of life: {self.describe(frozen)}",
                frozen,
                True,
            )

    def leave(self) -> None:
        """Say that this worker goes and has not died; to be said before it hangs up."""
        with suppress(RuntimeError):  # the store may be gone first
            self._store.set(f"left/{self.rank}", "")

    def has_left(self, rank: int) -> bool:
        with suppress(RuntimeError):
            return self._store.check([f"left/{rank}"])
        return False

    def close(self) -> None:
        self._closing.set()
        self._thread.join(timeout=5)
        self._store.close()

    def set_and_wait(self, prefix: str, ranks: list[int], value: str, what: str) -> list[str]:
        """Everyone in `ranks` sets its value under `prefix`; returns all of them in the order of `ranks`."""
        self.say(prefix, value)
        self.wait_for([f"{prefix}/{rank}" for rank in ranks], ranks, what)
        return [self._value(f"{prefix}/{rank}") for rank in ranks]

    def set_and_ask(self, prefix: str, ranks: list[int], value: str, what: str, asks: tuple[str, str]) -> list[str]:
        """Does the same as `set_and_wait`, for the timeout at most. Late workers are asked, by a key and its value
        (`answers`).
        """
        self.say(prefix, value)
        keys, deadline = [f"{prefix}/{rank}" for rank in ranks], time.monotonic() + self.timeout
        while not self._are_there(keys, min(self.timeout, BEAT)):
            missing = [rank for rank, said in zip(ranks, self._store.read(keys), strict=True) if said is None]
            try:
                self.visit(missing)
            except TimeoutError:
                raise self.hang(ranks, what) from None
            for rank in missing:
                if rank in self.lost or self.has_left(rank):
                    gone = "has died" if rank in self.lost else "has left"
                    raise PeerLostError(f"worker {self.rank} lost a peer {what}: worker {rank} {gone}")
            if time.monotonic() > deadline:
                raise self.hang(ranks, what)
            self._store.set(*asks)
        return [(value or b"").decode() for value in self._store.read(keys)]

    def say(self, prefix: str, value: str) -> None:
        self._store.set(f"{prefix}/{self.rank}", value)

    def unsay(self, prefix: str) -> None:
        self._store.delete_key(f"{prefix}/{self.rank}")

    def said(self, prefix: str, ranks: list[int]) -> list[str | None]:
        """Returns the values that they have set by now, or set within a few heartbeats."""
        keys = [f"{prefix}/{rank}" for rank in ranks]
        self._are_there(keys, (STOPPED + 1) * BEAT)
        return [None if value is None else value.decode() for value in self._store.read(keys)]

    def _are_there(self, keys: list[str], seconds: float) -> bool:
        """Returns whether the keys are there, after that time at most."""
        try:
            self._store.wait(keys, timedelta(seconds=seconds))
        except dist.DistStoreError:
            return False
        return True

    def wait_for(self, keys: list[str], writers: list[int], what: str, look: Look | None = None) -> None:
        """Wait for keys, for as long as those who owe them give signs of life within the timeout, and do not stay in
        one step for longer than that.

        Raises `HangError`, or `PeerLostError` with the rank in the whole run of one that owes its key and has died.
        """
        start = time.monotonic()
        while not self._are_there(keys, min(self.timeout, BEAT)):
            self.look()
            self._check_writers(keys, writers, what, time.monotonic() - start)
            if look is not None and (error := look()) is not None and not self._store.check(keys):
                raise error

    def _check_writers(self, keys: list[str], writers: list[int], what: str, waited: float) -> None:
        looks = self._looks_of_timeout
        late = waited > self.timeout
        silent = {rank for rank, still in self._still.items() if still >= looks} if late else set()
        stuck = {rank for rank, still in self._stuck.items() if still >= looks} if late else set()
        if not (silent or stuck or self.lost):
            return
        missing = [w for k, w in zip(keys, writers, strict=True) if w != self.rank and not self._store.check([k])]
        if dead := self.lost.intersection(missing):
            dead = min(dead)
            raise PeerLostError(f"worker {self.rank} lost a peer waiting for {what}: worker {dead} has died", dead)
        if silent := [rank for rank in missing if rank in silent]:
            message = f"worker {self.rank} waited {self.timeout:g} s for {what}: {self.describe(silent)}"
            raise HangError(message, silent, frozen=True)
        if stuck := [rank for rank in missing if rank in stuck]:
            message = f"worker {self.rank} waited {self.timeout:g} s for {what}: in one step: {self.describe(stuck)}"
            raise HangError(message, stuck)

    def hang(self, group: list[int], what: str) -> HangError:
        """The error of a wait that was too long, which says who of `group` is missing, or who else is frozen."""
        others = [rank for rank in group if rank != self.rank and rank not in self.lost]
        others = [rank for rank in others if not self.has_left(rank)] or others
        frozen = self._stopped(others)
        if not frozen:  # somebody whom those wait for in turn?
            rest = [rank for rank in range(self.size) if rank != self.rank and rank not in self.lost]
            frozen = [rank for rank in rest if self._still.get(rank, 0) >= STOPPED and not self.has_left(rank)]
        if frozen:
            missing, who = frozen, f"{self.describe(frozen)} gave no sign of life"
        else:
            beats = self._beats()
            missing = [rank for rank in others if json.loads(beats[rank])[1] != what] or others
            who = f"alive but elsewhere: {', '.join(_followed(rank, missing, beats) for rank in missing)}"
        return HangError(f"worker {self.rank} waited {self.timeout:g} s {what}: {who}", missing, bool(frozen))

    def _stopped(self, ranks: list[int]) -> list[int]:
        """Returns the workers among `ranks` whose heartbeat has stopped. Waits for a few more looks if that is not
        clear yet.
        """
        enough = self._looks + STOPPED + 1  # the first may find nothing to compare with

        def is_clear() -> bool:
            looks = [self._still.get(rank, 1) for rank in ranks]
            return self._looks >= enough or not any(looks) or max(looks) >= STOPPED

        with self._looked:
            self._looked.wait_for(is_clear, 2 * (STOPPED + 1) * BEAT)
            return [rank for rank in ranks if self._still.get(rank, 0) >= STOPPED]

    def describe(self, ranks: list[int]) -> str:
        beats = self._beats()
        return ", ".join(_described(rank, beats) for rank in ranks)

    def _value(self, key: str) -> str:
        """Returns the value of a key that is there."""
        [value] = self._store.read([key])
        assert value is not None, f"{key} has gone from the store"
        return value.decode()

    def _look(self) -> None:
        """Note whose heartbeat goes on."""
        beats = self._beats()
        with self._looked:
            self._still = {
                rank: self._still.get(rank, 0) + 1 if self._seen[rank] == beat else 0
                for rank, beat in beats.items()
                if rank in self._seen
            }
            self._seen = beats
            at = {rank: step for rank, beat in beats.items() if beat and (step := _computes_in(beat)) is not None}
            self._stuck = {rank: self._stuck.get(rank, 0) + 1 if self._at.get(rank) == at[rank] else 0 for rank in at}
            self._at = at
            self._looks += 1
            self._looked.notify_all()

    def _beats(self) -> dict[int, bytes]:
        beats = self._store.read([f"beat/{rank}" for rank in range(self.size)])
        return {rank: beat or b"" for rank, beat in enumerate(beats)}

    def _beat(self, count: int) -> None:
        self._store.set(f"beat/{self.rank}", json.dumps([count, self._doing, self._step]))
        if self.live_metrics is not None:
            self._store.set(f"gauges/{self.rank}", self.live_metrics())

    def seen(self, keys: list[str]) -> list[bytes | None]:
        """Returns the store's values under `keys`, without waiting. Raises RuntimeError if the store has gone."""
        return self._store.read(keys)

    def _run(self) -> None:
        count = 0
        while not self._closing.wait(BEAT):
            count += 1
            try:
                self._beat(count)
                answers = list(self.answers.items())  # groups may be made meanwhile
                stop, lost, *asked = self._store.read(["stop", "lost", *(key for key, _ in answers)])
                if stop is not None:
                    self._stop.set()
                elif self._stop.is_set():
                    self._store.set("stop", str(self.rank))
                self.lost.update(map(int, (lost or b"").split()))
                for (_, answer), value in zip(answers, asked, strict=True):
                    if value is not None:
                        answer(value.decode())
                self._look()
            except RuntimeError:  # the store is gone, and with it whoever launched us
                by = self._store.served_by
                if by is None or "TORCHELASTIC_RUN_ID" in os.environ:  # who is ended says nothing
                    self._closing.wait(ENDED)
                if not self._closing.is_set():
                    with suppress(OSError):
                        who = "the launcher" if by is None else f"worker {by}"
                        said = f"worker {self.rank} lost {who}: the rendezvous store is gone"
                        print(said, file=sys.stderr, flush=True)
                    os._exit(4)
                return


def _described(rank: int, beats: dict[int, bytes]) -> str:
    return f"worker {rank} ({f'last {json.loads(beats[rank])[1]}' if beats[rank] else 'never seen'})"


def _followed(rank: int, missing: list[int], beats: dict[int, bytes]) -> str:
    """Describes a worker and whom it waits for, and so on to one that waits for no single worker, or comes again."""
    said, seen = _described(rank, beats), {rank}
    while beats[rank] and (awaited := _AWAITED.search(json.loads(beats[rank])[1])):
        rank = int(awaited[1])
        if rank in missing and rank not in seen:  # it is described by itself
            break
        again = rank in seen or not beats.get(rank)
        said += f", which waits for {f'worker {rank}' if again else _described(rank, beats)}"
        if again:
            break
        seen.add(rank)
    return said


def _computes_in(beat: bytes) -> int | None:
    """The step that a worker computes in, by its heartbeat; None when it waits, evaluates, saves or loads."""
    _, doing, step = json.loads(beat)
    return step if doing == "computing" else None
