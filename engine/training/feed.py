"""A replica's batches of samples, step by step, read by itself or ahead of time by processes of its own.

The samples of a step are the partition's, whoever reads them, and the random numbers under which they are read are the
step's: a run gives the same with any number of processes, and goes on in mid-epoch as if it had not stopped.
"""

import multiprocessing
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ...compat.data_loader import shut_down
from ...tasks.base import Readable, Split, Taken
from ...tasks.errors import SampleError
from ...tasks.partition import Partition
from ..base.errors import LoaderError
from ..base.failures import first_line_of
from ..base.parent_death import die_with_parent


@dataclass(frozen=True)
class _Failed:
    """The error of a process that reads ahead, in the place of a batch."""

    message: str


class Batches(Dataset[Taken]):
    """The batches by step. `check_targets`: the task's, for targets that were not checked before."""

    def __init__(
        self,
        split: Readable,
        partition: Partition,
        replica: int,
        seed: int,
        check_targets: Callable[[str, Tensor], None],
    ) -> None:
        self._split, self._partition, self._replica, self._seed = split, partition, replica, seed
        self._check_targets = None if isinstance(split, Split) else check_targets

    def __getitem__(self, step: int) -> Taken:
        """Raises SampleError, and what the task says of targets."""
        taken = self._split.take(self._partition.indices(step, self._replica), self._seed * 1_000_003 + step)
        if self._check_targets is not None and len(taken.targets):
            self._check_targets(f"the batch of step {step}", taken.targets)
        return taken


class Feed:
    """`workers`: processes that read ahead, which end with this one; 0: none. `timeout`: s for a batch of theirs."""

    def __init__(self, batches: Batches, steps: int, workers: int, timeout: float) -> None:
        self._batches, self._steps, self._workers, self._timeout = batches, steps, workers, timeout
        self._ahead: Iterator[Taken | _Failed] | None = None
        self._next = -1  # the step of the batch that comes next

    def take(self, step: int) -> Taken:
        """Raises SampleError; see `reading` for what else."""
        if self._workers == 0:
            return self._batches[step]
        if self._ahead is None or not self._next <= step < self._next + 8:  # a few that were left out are let go by
            self.close()
            self._ahead, self._next = self._begun(step), step
        taken = self._read()
        while self._next < step:
            self._next += 1
            taken = self._read()
        self._next += 1
        if isinstance(taken, _Failed):
            raise SampleError(taken.message)
        return taken

    def _read(self) -> Taken | _Failed:
        assert self._ahead is not None
        try:
            return next(self._ahead)
        except (RuntimeError, OSError, EOFError) as error:  # the last two: it ended while it handed a batch over
            raise self._lost(error) from error

    def _lost(self, error: Exception) -> LoaderError:
        return LoaderError(
            f"data.loader_workers={self._workers}: the batch of step {self._next} was not read within "
            f"hardware.timeout={self._timeout:g} seconds, or a process that reads ahead has ended: "
            f"{first_line_of(error)}; data.loader_workers=0 reads without"
        )

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Ends the processes after batches were taken. Raises LoaderError where one has ended before, which torch says
        once, by an exception wherever this process is.
        """
        try:
            yield
        except RuntimeError as error:
            if isinstance(error, LoaderError) or not _is_of_torch(error):
                raise
            raise self._lost(error) from error
        finally:
            try:
                self.close()
            except RuntimeError as error:
                if not _is_of_torch(error):
                    raise
                self.close()

    def close(self) -> None:
        """The processes end."""
        if self._ahead is not None:
            shut_down(self._ahead)
            self._ahead = None

    def _begun(self, first: int) -> Iterator[Taken | _Failed]:
        multiprocessing.current_process().daemon = False  # or it could have none; they are tied to it below
        loader: DataLoader[Any] = DataLoader(
            _Caught(self._batches),
            batch_size=None,
            sampler=range(first, self._steps),  # pyright: ignore[reportArgumentType]
            num_workers=self._workers,
            collate_fn=_same,
            worker_init_fn=_begin,
            multiprocessing_context="fork",
            timeout=self._timeout,
        )
        return iter(loader)


def _is_of_torch(error: RuntimeError) -> bool:
    """Returns True for what torch raises when a process that reads ahead has ended."""
    return str(error).startswith("DataLoader worker")


class _Caught(Dataset[Taken | _Failed]):
    """A sentence instead of an exception, which would come with the traceback of another process in it."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches

    def __getitem__(self, step: int) -> Taken | _Failed:
        try:
            return self._batches[step]
        except Exception as error:
            if isinstance(error, SampleError):
                return _Failed(str(error))
            return _Failed(f"the batch of step {step} cannot be read: {type(error).__name__}: {first_line_of(error)}")


def _same(taken: Any) -> Any:
    return taken


def _begin(number: int) -> None:
    """Prepares a process that reads ahead, so that signals and the worker's death end it."""
    die_with_parent(signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
