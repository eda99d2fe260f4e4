"""What paceline uses of torch's DataLoader beside its public interface."""

import multiprocessing
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

from torch.utils.data import DataLoader, Dataset

from paceline.compat.data_loader import shut_down


class Numbers(Dataset[int]):
    def __getitem__(self, number: int) -> int:
        return number


def test_processes_end_when_they_are_shut_down_though_the_iterator_is_still_there() -> None:
    before = {child.pid for child in multiprocessing.active_children()}
    iterator = iter(DataLoader(Numbers(), batch_size=None, sampler=range(100), num_workers=2, timeout=30))
    assert next(iterator) == 0
    begun = {child.pid for child in multiprocessing.active_children()} - before
    assert len(begun) == 2
    shut_down(iterator)
    assert not begun & {child.pid for child in multiprocessing.active_children()}


def test_one_that_was_killed_is_no_error_while_they_are_shut_down() -> None:
    def shut() -> None:
        raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed.")

    shut_down(cast(Iterator[Any], SimpleNamespace(_shutdown_workers=shut)))
