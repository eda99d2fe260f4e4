"""Batches that processes read ahead are those that a worker reads by itself, and what goes wrong there is said."""

import os
import random
import signal
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from process_table import until
from short_runs import QUICK, Start
from torch import Tensor

from paceline import engine
from paceline.engine.base.errors import LoaderError
from paceline.engine.training import feed as feeds
from paceline.engine.training.feed import Batches, Feed
from paceline.tasks.base import DataSpec, Split, Taken
from paceline.tasks.errors import SampleError
from paceline.tasks.items import Items
from paceline.tasks.partition import ShuffledPartition

# a machine with one core has fewer than these tests read with
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
SPEC = DataSpec(input_shape=(3,), classes=5)
N, STEPS = 21, 9  # three epochs of four steps, of which the last is uneven


BAD = int(ShuffledPartition(N, 2, 3, 0).indices(2, 0)[0])  # in the third step of replica 0


class Augmented:
    """Samples with noise of torch, Python and NumPy. `bad`: one that raises; `deadly`: one that ends its reader."""

    def __init__(self, bad: int = -1, deadly: int = -1) -> None:
        self.bad, self.deadly = bad, deadly

    def __len__(self) -> int:
        return N

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        if number == self.bad:
            raise KeyError("no picture of this one")
        if number == self.deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        noise = torch.rand(1), torch.tensor([random.random()]), torch.from_numpy(np.random.rand(1)).float()  # noqa: NPY002
        return torch.cat(noise) + number, number % 5


def feed(workers: int, source: Augmented | None = None, replica: int = 0) -> Feed:
    split = Items(source or Augmented(), SPEC, "data=mine, train split")
    batches = Batches(split, ShuffledPartition(N, 2, 3, 0), replica, 7, lambda *_: None)
    return Feed(batches, STEPS, workers, 30.0)


def alike(one: Taken, other: Taken) -> bool:
    assert isinstance(one.inputs, Tensor) and isinstance(other.inputs, Tensor)
    return torch.equal(one.inputs, other.inputs) and torch.equal(one.targets, other.targets)


def test_processes_read_the_same_batches_from_any_step_on_and_leave_the_generators_alone() -> None:
    alone = feed(0)
    state = torch.get_rng_state(), random.getstate()
    whole = [alone.take(step) for step in range(STEPS)]
    assert torch.equal(torch.get_rng_state(), state[0]) and random.getstate() == state[1]
    again = Items(Augmented(), SPEC, "data=mine, train split")
    one = torch.tensor([3])
    assert alike(again.take(one, 5), again.take(one, 5)) and not alike(again.take(one, 5), again.take(one, 6))
    ahead = feed(2)
    steps = [0, 1, 2, 5, 6, 1, 2]  # some are left out, and one goes back
    assert all(alike(ahead.take(step), whole[step]) for step in steps)
    ahead.close()
    later = feed(1)
    assert alike(later.take(6), whole[6])
    later.close()


def test_each_epoch_has_each_sample_once_in_the_order_of_the_partition() -> None:
    partition = ShuffledPartition(N, 2, 3, 0)
    seen = [feed(0, replica=replica).take(step) for step in range(4) for replica in (0, 1)]
    order = torch.cat([partition.indices(step, replica) for step in range(4) for replica in (0, 1)])
    inputs = torch.cat([taken.inputs for taken in seen if isinstance(taken.inputs, Tensor)])
    assert torch.equal(inputs[:, 0].floor().long(), order) and sorted(order.tolist()) == list(range(N))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sample_that_cannot_be_read_is_named(workers: int) -> None:
    failing = feed(workers, Augmented(bad=BAD))
    with pytest.raises(SampleError) as caught:
        for step in range(STEPS):
            failing.take(step)
    assert str(caught.value) == (
        f"data=mine, train split, sample {BAD}: reading it raised KeyError: 'no picture of this one'"
    )
    failing.close()


# where a message of the dead was cut off, torch opens files to see if any can be opened, and does not close them
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_process_that_ended_is_an_error_and_no_wait() -> None:
    dying = feed(1, Augmented(deadly=BAD))
    with pytest.raises(LoaderError, match="a process that reads ahead has ended"), dying.reading():
        for step in range(STEPS):
            dying.take(step)


@pytest.mark.parametrize("error", [ConnectionResetError(104, "Connection reset by peer"), EOFError()])
def test_a_process_that_ended_while_it_handed_a_batch_over_is_that_error_too(error: Exception) -> None:
    def handing_over() -> Iterator[NoReturn]:
        raise error
        yield

    ahead = feed(1, Augmented())
    ahead.take(0)
    ahead.close()
    ahead._ahead = handing_over()
    with pytest.raises(LoaderError, match="the batch of step 1 was not read"):
        ahead.take(1)


@pytest.mark.parametrize("fails", [False, True])
def test_what_torch_says_while_the_processes_are_ended_hides_no_error(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    says = iter([RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed.")])
    shut_down = feeds.shut_down

    def interrupted(ahead: Iterator[Any]) -> None:
        for each in says:
            raise each
        shut_down(ahead)

    monkeypatch.setattr(feeds, "shut_down", interrupted)
    ahead = feed(1, Augmented())
    with pytest.raises(LoaderError) if fails else nullcontext(), ahead.reading():
        ahead.take(0)
        if fails:
            raise LoaderError("the first word")
    assert ahead._ahead is None


def test_what_lies_in_memory_is_read_ahead_too() -> None:
    split = Split(torch.randn(N, 3), torch.arange(N) % 5)
    told = split, ShuffledPartition(N, 1, 4, 0), 0, 0, lambda *_: None
    ahead, alone = Feed(Batches(*told), 3, 1, 30.0), Feed(Batches(*told), 3, 0, 30.0)
    assert all(alike(ahead.take(step), alone.take(step)) for step in range(3))
    ahead.close()


@pytest.mark.parametrize(
    ("read", "sentence"),
    [
        ((torch.zeros(2), 1), "the input is of [2]; must be [3], as that of the first sample"),
        ((torch.zeros(3), 5), "its label is 5; must be 0 to 4"),
        ((torch.zeros(3), 1.5), "the target is 1.5; must be a whole number"),
        (("text", 1), "the input is a str; must be a tensor, an array or a number"),
        (torch.zeros(3), "is a Tensor; must be a pair (inputs, target)"),
    ],
)
def test_a_sample_unlike_the_first_is_named(read: object, sentence: str) -> None:
    class Odd(Augmented):
        def __getitem__(self, number: int) -> tuple[Tensor, int]:
            return super().__getitem__(number) if number != 3 else read  # pyright: ignore[reportReturnType]

    with pytest.raises(SampleError) as caught:
        Items(Odd(), SPEC, "data=mine, train split").take(slice(0, 5))
    assert str(caught.value).startswith("data=mine, train split, sample 3") and sentence in str(caught.value)


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize("loader_workers", [0, 2])
def test_a_run_on_arrays_that_was_stopped_in_mid_epoch_ends_with_the_bits_of_one_that_was_not(
    root: Path, tmp_path: Path, fork_server: None, loader_workers: int
) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "a.npz", x=rng.normal(size=(200, 8)), targets=rng.integers(3, size=200))
    quick = ["tracking=none", "data=arrays", f"data.path={tmp_path / 'a.npz'}", f"data.loader_workers={loader_workers}"]
    quick += ["hardware.workers=2", "batch_size=8", "checkpoint.every_steps=7", "model.hidden=[8]"]
    whole = engine.run([*quick, "steps=23"], name="whole", root=root, quiet=True)
    half = engine.run([*quick, "steps=7"], name="half", root=root, quiet=True)
    resumed = engine.run(["steps=23"], resume="half", root=root, quiet=True)
    assert whole is not None and half is not None and resumed is not None
    assert (whole.path / "model.safetensors").read_bytes() == (resumed.path / "model.safetensors").read_bytes()
    plain = engine.run([*quick, "steps=23", "data.loader_workers=1"], name="plain", root=root, quiet=True)
    assert plain is not None
    assert (whole.path / "model.safetensors").read_bytes() == (plain.path / "model.safetensors").read_bytes()


@pytest.mark.fault
@pytest.mark.dist
def test_processes_that_read_ahead_end_with_a_launcher_that_was_killed(start: Start, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((50, 4)), targets=np.arange(50) % 2)
    given = [word for word in QUICK if not word.startswith(("data.limit", "steps"))]
    ahead = ["data=arrays", f"data.path={tmp_path / 'a.npz'}", "data.loader_workers=2", "steps=1000000"]
    launcher = start(*ahead, quick=given)
    launcher.until(lambda: launcher.steps() > 2, "the third step")
    assert len(launcher.alive()) >= 1 + 2 + 4  # the launcher, two workers, two readers of each
    os.kill(launcher.process.pid, signal.SIGKILL)
    launcher.wait()
    until(lambda: not launcher.alive(), 10, "nothing is left")
