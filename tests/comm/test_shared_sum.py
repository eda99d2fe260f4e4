"""Sums through memory that workers share: by native code and by torch, alike bit for bit."""

import errno
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from needs import needs_compiler
from torch import Tensor

from paceline.comm import native
from paceline.comm.shared_sum import DTYPES, NativeSum, SharedSum, Summand, TorchSum, UnlikeError, piece_of

KINDS = [pytest.param(NativeSum, marks=needs_compiler), TorchSum]
Open = Callable[[type[SharedSum], int], list[SharedSum]]


@pytest.fixture
def ends() -> Iterator[Open]:
    """Opens the ends of so many workers, here all in one process."""
    opened: list[SharedSum] = []

    def open_all(kind: type[SharedSum], workers: int) -> list[SharedSum]:
        piece = piece_of(workers)
        memory = mmap.mmap(-1, kind.room(workers, piece))
        kind.make(memory, workers)
        opened.extend(kind(memory, rank, workers, piece) for rank in range(workers))  # pyright: ignore[reportCallIssue]
        return opened

    yield open_all
    for end in opened:
        end.close()


def rows_of(workers: int, entries: int, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(entries)
    rows = torch.randn(workers, entries, generator=generator, dtype=torch.float64) * 100
    return list(rows.to(dtype).unbind())


def in_rank_order(rows: list[Tensor]) -> Tensor:
    wide = torch.float32 if rows[0].dtype in (torch.float16, torch.bfloat16) else rows[0].dtype
    total = rows[0].to(wide)
    for row in rows[1:]:
        total = total + row.to(wide)
    return total.to(rows[0].dtype)


def summed(ends: list[SharedSum], rows: list[Tensor]) -> list[Tensor]:
    results = [row.clone() for row in rows]
    numbers = [end.post(result) for end, result in zip(ends, results, strict=True)]
    for end, number in zip(ends, numbers, strict=True):
        assert end.wait(number, 20)
    return results


@pytest.mark.parametrize("workers", [2, 3, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_all_have_the_sum_in_the_order_of_ranks_to_the_bit(ends, kind, workers):
    opened = ends(kind, workers)
    for dtype in DTYPES:
        for entries in (0, 1, workers - 1, 1023, 4097):
            rows = rows_of(workers, entries, dtype)
            for result in summed(opened, rows):
                assert torch.equal(result, in_rank_order(rows)), (dtype, entries)


@pytest.mark.parametrize("kind", KINDS)
def test_a_tensor_of_several_pieces_is_summed_whole(ends, kind):
    entries = piece_of(3) // 4 * 3 + 17
    rows = rows_of(3, entries, torch.float32)
    for result in summed(ends(kind, 3), rows):
        assert torch.equal(result, in_rank_order(rows))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_a_number_or_infinite_stays_so(ends, kind):
    special = torch.tensor([float("nan"), float("inf"), float("-inf"), -0.0])
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        rows = [special.to(dtype), torch.tensor([1.0, 1.0, float("inf"), -0.0], dtype=dtype)]
        for result in summed(ends(kind, 2)[-2:], rows):
            assert result.isnan().tolist() == [True, False, True, False]
            assert float(result[1]) == float("inf") and bool(result[3].signbit())


# -- a worker that sums another tensor

OTHERS: dict[str, Callable[[Tensor], Tensor]] = {  # in place of the one that all should sum, of two whole pieces
    "shorter": lambda right: right[:-1].clone(),
    "longer by whole pieces": lambda right: torch.cat([right, right]),
    "as many bytes of another dtype": lambda right: right.view(torch.int32).clone(),
    "half as many entries in as many bytes": lambda right: right.view(torch.float64).clone(),
    "nothing": lambda right: right[:0].clone(),
}


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("kind", KINDS)
def test_all_are_told_who_sums_another_tensor_and_no_sum_is_written(ends, kind, other, workers):
    right = torch.ones(piece_of(workers) // 4 * 2)
    for liar in (0, workers - 1):
        rows = [OTHERS[other](right) if rank == liar else right.clone() for rank in range(workers)]
        before, opened = [row.clone() for row in rows], ends(kind, workers)[-workers:]
        numbers = [end.post(row) for end, row in zip(opened, rows, strict=True)]
        for end, number in zip(opened, numbers, strict=True):
            with pytest.raises(UnlikeError) as caught:
                end.wait(number, 20)
            assert caught.value.told == [Summand(len(row), row.dtype) for row in before]
        assert all(torch.equal(row, was) for row, was in zip(rows, before, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_sums_before_that_of_another_tensor_are_there_and_none_comes_after_it(ends, kind):
    opened, lengths = ends(kind, 2), [(5, 5), (0, 0), (7, 8), (3, 3)]
    rows = [[torch.ones(length[rank]) for length in lengths] for rank in range(2)]
    numbers = [[end.post(row) for row in own] for end, own in zip(opened, rows, strict=True)]
    for rank, end in enumerate(opened):
        for number in numbers[rank][2:]:
            with pytest.raises(UnlikeError):
                end.wait(number, 20)
        assert all(end.wait(number, 0) for number in numbers[rank][:2])
        assert [float(row.sum()) for row in rows[rank]] == [10, 0, lengths[2][rank], 3]


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ((4, 4, 6), "worker 7 sums 6 entries of float32, where workers 2, 5 sum 4 of float32"),
        ((9, 4, 4), "worker 2 sums 9 entries of float32, where workers 5, 7 sum 4 of float32"),
        ((4, 6), "worker 5 sums 6 entries of float32, where worker 2 sums 4 of float32"),
        (
            (1, 4_000, 3),
            "worker 5 sums 4,000 entries of float32, worker 7 sums 3 entries of float32, "
            "where worker 2 sums 1 of float32",
        ),
    ],
)
def test_who_sums_another_tensor_than_most_is_named(entries, said):
    error = UnlikeError([Summand(each, torch.float32) for each in entries])
    assert error.words([2, 5, 7][: len(entries)]) == said


@pytest.mark.parametrize("kind", KINDS)
def test_more_sums_may_be_under_way_than_there_is_room_for(ends, kind):
    """Each worker posts all of its sums before it waits for one."""
    opened, sums = ends(kind, 2), 600

    def post_all(rank: int) -> list[Tensor]:
        tensors = [torch.full((3,), float(i + rank)) for i in range(sums)]
        numbers = [opened[rank].post(tensor) for tensor in tensors]
        assert all(opened[rank].wait(number, 20) for number in reversed(numbers))
        return tensors

    with ThreadPoolExecutor(2) as pool:
        for tensors in pool.map(post_all, range(2)):
            assert all(torch.equal(tensor, torch.full((3,), 2.0 * i + 1)) for i, tensor in enumerate(tensors))


@pytest.mark.parametrize("kind", KINDS)
def test_whoever_waits_for_one_that_does_not_come_is_told_and_can_leave(ends, kind):
    first, _ = ends(kind, 2)
    number = first.post(torch.ones(5))
    assert not first.wait(number, 0.05)
    start = time.monotonic()
    closing = threading.Thread(target=first.close)
    closing.start()
    closing.join(10)
    assert not closing.is_alive() and time.monotonic() - start < 10


@pytest.mark.parametrize("kind", KINDS)
def test_one_that_came_late_is_waited_for(ends, kind):
    first, second = ends(kind, 2)
    mine, its = torch.ones(70_000), torch.full((70_000,), 2.0)
    number = first.post(mine)
    assert not first.wait(number, 0.05)
    assert second.wait(second.post(its), 20) and first.wait(number, 20)
    assert torch.equal(mine, torch.full((70_000,), 3.0)) and torch.equal(mine, its)


def test_without_a_place_or_a_compiler_there_is_no_native_code(monkeypatch, tmp_path):
    native.load.cache_clear()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    assert native.load("all_reduce") is None and native.why_not("all_reduce").startswith("there is no C compiler")
    native.load.cache_clear()
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    assert native.load("all_reduce") is None and native.why_not("all_reduce") == "null: Not a directory"
    native.load.cache_clear()


@pytest.mark.parametrize(
    ("compiler", "said"),
    [("echo odd >&2; exit 1", "/cc failed: odd"), ("sleep 9", "/cc took more than 0.1 s"), (None, "No space left")],
)
def test_why_there_is_no_native_code_is_said(monkeypatch, tmp_path, capsys, compiler, said):
    """None: the disk with the cache is full, whatever compiler there is."""
    script = tmp_path / "bin" / "cc"
    script.parent.mkdir()
    script.write_text(f"#!/bin/sh\n{compiler}\n")
    script.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{script.parent}:/bin:/usr/bin")
    monkeypatch.setattr(native, "SECONDS", 0.1 if "sleep" in str(compiler) else 60)
    if compiler is None:

        def full(*_, **__):
            raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path))

        monkeypatch.setattr(native.tempfile, "TemporaryDirectory", full)
    native.load.cache_clear()
    assert native.load_or_say("rounding", "torch rounds") is None
    native.load.cache_clear()
    assert said in capsys.readouterr().err


def test_without_a_home_there_is_no_native_code(monkeypatch):
    def homeless(_: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "expanduser", homeless)
    native.load.cache_clear()
    assert native.load("all_reduce") is None
    native.load.cache_clear()


@needs_compiler
@pytest.mark.parametrize("content", [b"", b"no library"])
def test_native_code_that_is_damaged_is_made_again(monkeypatch, tmp_path, content):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    asked: list[Path] = []
    native.load.cache_clear()
    with monkeypatch.context() as without:
        without.setattr(native, "_compile", lambda *of: asked.append(of[2]))
        assert native.load("all_reduce") is None
    [asked_for] = asked
    library = tmp_path / "paceline/native" / asked_for.name
    library.write_bytes(content)
    native.load.cache_clear()
    assert native.load("all_reduce") is not None and library.stat().st_size > 1000
    native.load.cache_clear()


@needs_compiler
def test_a_cache_by_a_relative_path_is_not_taken(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    native.load.cache_clear()
    assert native.load("all_reduce") is not None and not Path("here").exists()
    native.load.cache_clear()


@needs_compiler
def test_native_code_is_compiled_once_and_kept_where_nobody_else_writes(monkeypatch, tmp_path):
    native.load.cache_clear()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert native.load("all_reduce") is not None
    [library] = (tmp_path / "paceline/native").glob("*.so")
    made = library.stat().st_mtime_ns
    native.load.cache_clear()
    monkeypatch.setenv("PATH", "")  # what is there needs no compiler
    assert native.load("all_reduce") is not None and library.stat().st_mtime_ns == made
    native.load.cache_clear()
    library.parent.chmod(0o777)
    assert native.load("all_reduce") is None
    native.load.cache_clear()


def sum_with_other_cores(comm):
    """Worker 1 may use one core alone, as where each worker is bound to its own."""
    tensor = torch.arange(400_000, dtype=torch.float32) * (comm.rank + 1)
    comm.all_reduce(tensor).wait()
    return torch.equal(tensor, torch.arange(400_000, dtype=torch.float32) * 3)


def bound(comm):
    if comm.rank == 1:
        os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    comm.barrier()
    group = comm.split(0)
    return sum_with_other_cores(group)


@pytest.mark.dist
def test_workers_that_are_bound_to_other_cores_sum_alike(workers):
    assert workers(2, bound) == [True, True]
