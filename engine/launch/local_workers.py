"""The worker processes of one run on this host: started, watched and ended.

Workers are forked from a server process that has torch and paceline imported already (multiprocessing's forkserver), so
that the second run in one process starts in a fraction of a second. Each has a pipe to us, over which it says as JSON
that it has met the others, and how it ended. We read it while we wait, so that no worker ever waits for us to read. No
worker outlives us: the kernel kills workers when the fork server goes, which goes when we do.
"""

import json
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from typing import Any

from ...compat import fork_server
from ...compat.torchrun import killed_by
from ..base.errors import MachineError, WorkerFailedError
from ..base.parent_death import LAUNCHER
from ..base.signals import STOP_SIGNALS

GRACE = 2.0  # seconds after the first failure in which others may say what they know, or end by themselves
ONE_PRESS = 0.3  # seconds within which two signals are one
PROMPT = 2.0  # seconds for what the kernel does at once
WORKER_FAILED = 4
LEFT = "its code, or a library, ended the process without an error (os._exit)"
SECONDARY = ("PeerLostError", "HangError")  # another worker may be the cause
LONGEST = 2**20  # bytes of what a worker says at once
STARTING = threading.Lock()  # several runs may be started at once, from threads


@dataclass
class Ended:
    """The end of a worker: its own words, or the kernel's."""

    rank: int
    error: str = ""  # the exception's type; Killed, Exited; ForkServer: with all others, that being killed
    message: str = ""
    exit_code: int = 0
    missing: list[int] = field(default_factory=list)  # whom it waited for too long
    frozen: bool = False  # they gave no sign of life: nobody else will know more

    @property
    def failed(self) -> bool:
        return self.exit_code != 0

    @staticmethod
    def from_words(rank: int, words: dict[str, Any]) -> "Ended":
        """Reads the words of a worker. Raises `TypeError` or `ValueError` on words that no worker of ours says."""
        ended = Ended(**{"rank": rank, **words})
        if not 0 <= ended.exit_code < 256:
            raise ValueError
        return ended


class _Member:
    """A worker process and our end of its pipe."""

    def __init__(self, process: ForkServerProcess, channel: Connection) -> None:
        self.process = process
        self.channel: Connection | None = channel
        self.is_ready = False
        self.words: dict[str, Any] | None = None  # how it says that it ended

    def hear(self) -> None:
        """Read one message, or that there will be none any more."""
        assert self.channel is not None
        try:
            told = json.loads(self.channel.recv_bytes(LONGEST))
        except (EOFError, OSError, ValueError):
            self.channel.close()
            self.channel = None
            return
        if told == READY:
            self.is_ready = True
        else:
            self.words = told

    def hear_all(self) -> None:
        """Reads all that it said before it ended."""
        while self.channel is not None and self.channel.poll():
            self.hear()


READY = {"ready": True}  # what a worker says once it has met the others and will train, or serve, next


class LocalWorkers:
    """The worker processes of one run."""

    def __init__(
        self,
        may_go_on: Callable[[Ended], bool],
        saved: Callable[[], str] | None,
        afterwards: Callable[[], object] = lambda: None,
    ) -> None:
        """`may_go_on`: asked about each worker that failed, whether the others go on without it. `saved`: what there
        is to go on from, in words; None where nothing is ever saved. `afterwards`: what to do once all are gone.
        """
        self._saved, self._afterwards = saved, afterwards
        self.stop_signal, self._stopped_at = 0, 0.0
        self._may_go_on = may_go_on
        self._members: list[_Member] = []

    def start(
        self,
        size: int,
        main: Callable[[int, dict[str, Any], Connection], None],
        told: dict[str, Any],
        preload: tuple[str, ...],
    ) -> None:
        """`main`: what each process runs, given its rank, `told` and its end of the pipe."""
        context = multiprocessing.get_context("forkserver")
        _allow_files(size)
        with STARTING, without_main(), fork_server.kept_awake():
            start_fork_server("paceline.engine.launch.virtual", *preload)
            for rank in range(size):
                ours, theirs = context.Pipe(duplex=False)
                worker = context.Process(
                    target=main, args=(rank, told, theirs), name=f"paceline-worker-{rank}", daemon=True
                )
                self._members.append(_Member(worker, ours))  # first: a signal may come as soon as there is a process
                try:
                    worker.start()
                except (EOFError, ConnectionError):
                    end = end_of_fork_server() or "does not answer"
                    raise WorkerFailedError(
                        f"worker {rank} cannot begin: the fork server {end}", WORKER_FAILED, []
                    ) from None
                theirs.close()

    @property
    def has_started(self) -> bool:
        """Returns whether all workers have met and train."""
        return all(member.is_ready for member in self._members)

    @property
    def _trains(self) -> bool:
        return any(member.is_ready for member in self._members)

    def watch(self) -> list[Ended]:
        """Wait until all have ended, or one has failed and the others had their grace.

        Until all have started, the end of one is the end of all. So is a signal until one has: nothing is to be saved.
        """
        ended: dict[int, Ended] = {}
        lost: set[int] = set()
        judged: dict[int, float] = {}  # when the end of who failed is judged: later, if another's may be its cause
        deadline = float("inf")
        while len(ended) < len(self._members) and time.monotonic() < deadline:
            if self.stop_signal and not self._trains:
                break
            for rank in self._wait_for_words(ended):
                ended[rank] = how = self._how(rank)
                if how.failed:
                    is_doubtful = self.has_started and how.error in SECONDARY and not how.frozen
                    judged[rank] = time.monotonic() + GRACE * is_doubtful
            are_all = len(ended) == len(self._members)
            for rank, when in sorted(judged.items(), key=lambda each: each[1]):
                if when > time.monotonic() and not are_all:
                    break
                how = ended[rank]
                del judged[rank]
                if deadline == float("inf") and self.has_started and self._may_go_on(how):
                    lost.add(rank)
                else:
                    deadline = min(deadline, when + self._grace_after(how))
        return [how for rank, how in ended.items() if rank not in lost]

    def _grace_after(self, how: Ended) -> float:
        """Seconds for the others to say more, after the end is judged. While they start, only whoever waited for
        another is not the cause.
        """
        is_first = how.error not in SECONDARY
        return 0.0 if how.frozen or is_first != self.has_started else GRACE

    def _wait_for_words(self, ended: dict[int, Ended]) -> list[int]:
        """Hear what workers say, for a moment; returns those that have ended meanwhile."""
        going = {rank: member for rank, member in enumerate(self._members) if rank not in ended}
        channels = {member.channel: member for member in going.values() if member.channel is not None}
        sentinels = {member.process.sentinel: rank for rank, member in going.items()}
        over: list[int] = []
        for ready in wait([*channels, *sentinels], timeout=0.2):
            if isinstance(ready, Connection):
                channels[ready].hear()
            else:
                assert isinstance(ready, int)
                over.append(sentinels[ready])
        if any(member.channel is None for rank, member in going.items() if rank not in over):
            fork_server.wake()  # the worker ended, and a stopped server does not say so
        return over

    def _how(self, rank: int) -> Ended:
        member = self._members[rank]
        member.process.join()
        member.hear_all()
        if member.words is not None:
            with suppress(TypeError, ValueError):
                return Ended.from_words(rank, member.words)
        code = member.process.exitcode or 0
        if code == LOST and (end := end_of_fork_server()):
            return Ended(rank, "ForkServer", f"the fork server {end}, and all workers with it", WORKER_FAILED)
        if code < 0:
            return Ended(rank, "Killed", killed_by(-code), WORKER_FAILED)
        return Ended(rank, "Exited", f"left before the end, with status {code}; {LEFT}", WORKER_FAILED)

    def stop(self, number: int) -> None:
        """The first signal asks the workers to save and stop; the second kills them."""
        if self.stop_signal and time.monotonic() - self._stopped_at < ONE_PRESS:
            return  # `timeout` and some shells signal the process and then its group
        if self.stop_signal:
            self.kill()
            print("killed" + (f"; {self._saved()}" if self._saved else ""), file=sys.stderr, flush=True)
            os._exit(128 + number)
        if self._trains:
            saving = ", and save" if self._saved else ""
            told = f"workers end together after one of their next steps{saving}"  # which one, they agree upon
            print(f"\nstopping: {told}; once more to leave at once", file=sys.stderr, flush=True)
        self.ask_to_stop(number)

    def ask_to_stop(self, number: int = signal.SIGTERM) -> None:
        """Asks the workers to stop after their present step."""
        self.stop_signal, self._stopped_at = number, time.monotonic()
        for member in self._members:
            if member.process.is_alive():
                member.process.terminate()

    def kill(self) -> None:
        for member in self._members:
            if member.process.is_alive():
                member.process.kill()
        for member in self._members:
            if member.process.pid is not None:  # it was started
                member.process.join(PROMPT)  # the fork server tells, which may be frozen
            if member.channel is not None:
                member.channel.close()
        self._afterwards()


def _allow_files(size: int) -> None:
    """Raise the limit of open files to what `size` workers may need. Raises `MachineError` where that is too few.

    Without it the fork server is the first to have too few, and ends with a traceback.
    """
    least, plenty = 32 + 4 * size, 64 + 16 * size
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = plenty if most == resource.RLIM_INFINITY else min(plenty, most)
    if allowed != resource.RLIM_INFINITY and allowed < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))
    if limit < least:
        raise MachineError(
            f"too many open files: {size} workers and servers need about {least} in one process, which may have "
            f"{limit} (ulimit -n)"
        )


LOST = 255  # the status that multiprocessing makes up where the fork server cannot tell


def end_of_fork_server() -> str:
    """Says how the fork server ended; "" while it lives. It stays for multiprocessing to reap."""
    pid = fork_server.pid()
    deadline = time.monotonic() + PROMPT  # its pipes end a moment before it does
    while pid is not None and time.monotonic() < deadline:
        try:
            found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return "was killed"
        if found is not None:
            if found.si_code == os.CLD_EXITED:
                return f"ended with status {found.si_status}"
            return killed_by(found.si_status)
        time.sleep(0.02)
    return ""


def start_fork_server(*preload: str) -> None:
    """Starts the fork server unless it runs. Ctrl-C, SIGHUP, and SIGTERM to a group, reach all processes: the server
    blocks them, a worker the first and the last until it can save. Neither the server nor the tracker imports modules
    of the current folder.
    """
    multiprocessing.set_forkserver_preload(
        ["paceline.engine.base.parent_death", *preload, "paceline.engine.launch.fork_server"]
    )
    with _environment(fork_server.SAFE_PATH, os.environ.get(fork_server.SAFE_PATH) or fork_server.OURS):
        warnings = [os.environ["PYTHONWARNINGS"]] if os.environ.get("PYTHONWARNINGS") else []
        with _environment("PYTHONWARNINGS", ",".join([*warnings, _QUIET_TRACKER])):
            resource_tracker.ensure_running()  # first: it unblocks what it blocks
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (*STOP_SIGNALS, signal.SIGHUP))
        try:
            with _environment(LAUNCHER, str(os.getpid())), _private_socket():
                forkserver.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


# Workers end at once, whatever semaphores their libraries have made. The tracker removes these, and is to be silent:
# its warning would come behind our last sentence.
_QUIET_TRACKER = "ignore::UserWarning:multiprocessing.resource_tracker"


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """Sets a variable for the processes that are started meanwhile."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


@contextmanager
def _private_socket() -> Iterator[None]:
    """The fork server's socket has no name once it listens, so that nothing is left of it, even where we are killed.

    Its directory has a short name, whatever TMPDIR is: a socket's may have 107 characters. Only we can reach either.
    """
    directory = tempfile.mkdtemp(prefix="paceline-")
    opened = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    short = f"/proc/self/fd/{opened}"
    try:
        with fork_server.sockets_under(short):
            yield
        if fork_server.address().startswith(f"{short}/"):  # it was started now
            for earlier in _sockets:
                os.close(earlier)
            _sockets[:] = [os.open(fork_server.address(), os.O_PATH | os.O_CLOEXEC)]
            fork_server.set_address(f"/proc/self/fd/{_sockets[0]}")
    finally:
        os.close(opened)
        shutil.rmtree(directory, ignore_errors=True)


_sockets: list[int] = []  # that of the fork server, opened


@contextmanager
def without_main() -> Iterator[None]:
    """Children must not import the caller's script again: a user's model is named by module, never by __main__."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
