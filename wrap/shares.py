"""A user's DataLoader whose batches are shared out: each worker loads its samples of each batch, and no others."""

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, Sampler

from ..conf.errors import ConfigError
from .alike import Order
from .draws import draw_on, drawn

HOST = torch.device("cpu")
Own = tuple[int, int]  # this worker's samples of a batch, and those of all


def share_of(batch: Sequence[Any], rank: int, size: int) -> list[Any]:
    """Returns the samples of one rank. Ranks get near-equal runs, larger ones first: one after another they are the
    batch.
    """
    each, extra = divmod(len(batch), size)
    start = rank * each + min(rank, extra)
    return list(batch[start : start + each + (rank < extra)])


class _Shares(Sampler[list[Any]]):
    """Yields this worker's share of each batch of `whole`. A worker without a sample gets the first one, which is not
    to count.
    """

    def __init__(self, whole: Iterable[Sequence[Any]], rank: int, size: int) -> None:
        self.whole, self.rank, self.size = whole, rank, size
        self.skips = 0  # batches of the next pass that were taken before
        self.order: int | None = None  # the digest of those
        self.draw_on: Callable[[], None] | None = None  # sets random generators after those
        self.taken: deque[tuple[Own, int]] = deque()  # in the order of the batches; the loader asks for some ahead

    def __iter__(self) -> Iterator[list[Any]]:
        self.taken.clear()
        order = Order()
        batches, skipped = map(list, self.whole), self.skips
        self.skips = last = 0
        for batch in islice(batches, skipped):
            last = order.add(batch)
        if skipped:
            self._go_on(last)
        for batch in batches:
            own = share_of(batch, self.rank, self.size)
            self.taken.append(((len(own), len(batch)), order.add(batch)))
            yield own or batch[:1]

    def _go_on(self, order: int) -> None:
        if self.order not in (None, order) and self.rank == 0:
            print(
                "note: the loader's sampler draws other batches in this pass than before the checkpoint, so that some "
                "samples come twice and others never. Give the sampler a generator, or save between two passes.",
                file=sys.stderr,
                flush=True,
            )
        if self.draw_on is not None:  # the sampler drew as at the beginning of the pass
            self.draw_on()
        self.order = self.draw_on = None

    def __len__(self) -> int:
        return len(self.whole)  # type: ignore[arg-type]


class ShardedLoader:
    """Passes over the data, as the user's loader makes them. `own`: of the batch that came last."""

    def __init__(self, loader: "DataLoader[Any]", rank: int, size: int, seed: int) -> None:
        """Raises `ConfigError` for a loader whose batches nobody can share out."""
        if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
            raise ConfigError(
                "wrap: the loader's batches are made by an IterableDataset, or by the data set itself, so that nobody "
                "can say which samples are in them; give a DataLoader of a data set with __getitem__ and a batch_size"
            )
        if type(loader).__iter__ is not DataLoader.__iter__:
            raise ConfigError(
                f"wrap: the loader's class {type(loader).__name__} has an __iter__ of its own, which workers that load "
                "their own samples would leave out. Put its changes into the data set, collate_fn or the loop, and "
                "give a DataLoader."
            )
        if len(loader) == 0:
            raise ConfigError(
                f"wrap: the loader has no batches of its {len(loader.dataset)} samples. Choose a smaller batch_size, "  # type: ignore[arg-type]
                "or drop_last=False."
            )
        sampler = getattr(loader.batch_sampler, "sampler", None)
        if getattr(sampler, "generator", 0) is None:  # all workers must draw the same order
            sampler.generator = torch.Generator().manual_seed(seed)  # type: ignore[union-attr]
        self.samples = len(loader.dataset)  # type: ignore[arg-type]
        self._generator: torch.Generator | None = getattr(sampler, "generator", None)
        self._began = self._drawn()  # where the generator was when the pass began
        self._random = drawn(HOST)  # as `_began`, those of the process
        self._passed = self._order = 0  # batches of the pass so far, and a digest of them
        self._passes = 0  # that were begun before this one, or before the next one between two of them
        self._shares = _Shares(loader.batch_sampler, rank, size)
        more: dict[str, Any] = {"prefetch_factor": loader.prefetch_factor} if loader.num_workers else {}
        self._loader: DataLoader[Any] = DataLoader(
            loader.dataset,
            batch_sampler=self._shares,
            num_workers=loader.num_workers,
            collate_fn=loader.collate_fn,
            pin_memory=loader.pin_memory,
            timeout=loader.timeout,
            worker_init_fn=loader.worker_init_fn,
            multiprocessing_context=loader.multiprocessing_context,
            generator=loader.generator,
            persistent_workers=loader.persistent_workers,
            **more,
        )

    def __len__(self) -> int:
        return len(self._loader)

    def passes(self) -> Iterator[tuple[Any, Own, int]]:
        """One pass: each batch, the numbers of samples, and a digest of the indices so far."""
        if self._shares.draw_on is not None:  # as the pass began, of which some batches were taken
            draw_on(self._random, HOST)
        self._began, self._random, self._passed = self._drawn(), drawn(HOST), self._shares.skips
        try:
            for batch in iter(self._loader):
                own, self._order = self._shares.taken.popleft()
                self._passed += 1
                yield batch, own, self._order
        finally:
            self._passed = 0
            self._passes += 1

    def place(self) -> dict[str, Any]:
        """Returns where it is: in a pass, or between two of them."""
        place = {"passed": self._passed, "samples": self.samples, "passes": self._passes}
        if not self._passed:
            return {**place, "generator": self._drawn()}
        return {**place, "generator": self._began, "random": self._random, "order": self._order}

    def check(self, place: Mapping[str, Any]) -> None:
        """Raises `ConfigError` if the data are others than at a place of an earlier life of the run."""
        if (before := place.get("samples", self.samples)) != self.samples:  # an earlier version did not say
            raise ConfigError(
                f"wrap: the loader has {self.samples} samples, and had {before} at the checkpoint. Give it the same "
                "data, or choose another name."
            )

    def go_on(self, place: Mapping[str, Any], go_on: Callable[[], None]) -> None:
        """The next pass begins at a place that an earlier life of the run was at. `go_on` sets random generators."""
        if self._generator is not None and place["generator"] is not None:
            self._generator.set_state(place["generator"])
        self._shares.skips, self._passes = place["passed"], place.get("passes", 0)
        if self._passes and self._loader.persistent_workers:  # their seed is drawn in the first pass alone
            self._loader.generator = torch.Generator().manual_seed(self._passes)
        if place["passed"]:
            self._shares.draw_on, self._shares.order = go_on, place.get("order")
            self._order, self._random = place.get("order", 0), place.get("random", self._random)
        else:
            go_on()

    def _drawn(self) -> Tensor | None:
        return None if self._generator is None else self._generator.get_state()


def on_device(batch: Any, device: torch.device) -> Any:
    """Tensors in dicts, lists and tuples, and what has a `to` of its own, such as a BatchEncoding."""
    if isinstance(batch, Tensor) or callable(getattr(batch, "to", None)):
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {key: on_device(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(on_device(each, device) for each in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(on_device(each, device) for each in batch)
    return batch
