"""How a virtual cluster ends when something is wrong: at once, with the cause, and no thread left."""

import _thread
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from paceline.comm import HangError
from paceline.comm.errors import FabricError
from paceline.comm.network import Network, NetworkLink
from paceline.comm.virtual import SimulatedCluster, VirtualComm, VirtualKeyValues

NETWORK = Network(NetworkLink(1e-5, 1e9), NetworkLink(1e-6, 1e10))


class BrokenError(Exception):
    """What a worker raises here."""


def run(size: int, function: Callable[[VirtualComm], Any]) -> list[Any]:
    return SimulatedCluster(size, NETWORK).run(function)


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) == before


def tensor() -> torch.Tensor:
    return torch.zeros(1)


# -- deadlocks


def wait_in_a_circle(comm: VirtualComm) -> None:
    comm.elapse(0.5 * comm.rank)
    comm.recv(tensor(), (comm.rank + 1) % comm.size)


def leave_one_out(comm: VirtualComm) -> None:
    group = comm.split(0)
    assert group is not None
    if comm.rank != 1:
        group.all_reduce(tensor()).wait()


def listen_to_nobody(comm: VirtualComm) -> None:
    if comm.rank == 0:
        comm.recv_any(tensor())


def hold_two_locks(comm: VirtualComm) -> None:
    one, other = comm.mutex(), comm.mutex()
    first, second = (one, other) if comm.rank == 0 else (other, one)
    with first:
        comm.elapse(1.0)
        with second:
            pass


def read_what_nobody_posts(comm: VirtualComm) -> None:
    if comm.rank == 0:
        comm.key_values.read("key", 1)


DEADLOCKS: dict[Callable[[VirtualComm], Any], list[str]] = {
    wait_in_a_circle: [
        "virtual second 1:",
        "worker 0 waits in recv from worker 1",
        "worker 1 waits in recv from worker 2",
        "worker 2 waits in recv from worker 0",
    ],
    leave_one_out: ["worker 0 waits in all_reduce of world/1.0 for workers 1", "worker 2 waits in all_reduce of"],
    listen_to_nobody: ["worker 0 waits in recv_any from workers 1, 2"],
    hold_two_locks: ["worker 0 waits for a mutex of world that worker", "worker 2 waits for a mutex"],
    read_what_nobody_posts: ["worker 0 waits for 'key' from worker 1"],
}


@pytest.mark.parametrize("function", DEADLOCKS, ids=lambda function: function.__name__)
def test_a_deadlock_is_found_at_once_and_says_who_waits_for_whom(function: Callable[[VirtualComm], Any]) -> None:
    start = time.monotonic()
    with pytest.raises(HangError) as caught:
        run(3, function)
    assert time.monotonic() - start < 5.0  # real processes would wait for their timeout
    message = str(caught.value)
    assert message.startswith("deadlock at virtual second ")
    assert all(part in message for part in DEADLOCKS[function]), message
    assert caught.value.exit_code == 5


def test_a_deadlock_of_many_names_some() -> None:
    with pytest.raises(HangError) as caught:
        run(20, lambda comm: comm.recv(tensor(), (comm.rank + 1) % 20))
    assert str(caught.value).count("waits in recv") == 8
    assert str(caught.value).endswith("; and 12 others")


def test_those_who_are_done_and_those_who_compute_are_no_deadlock() -> None:
    def act(comm: VirtualComm) -> None:
        if comm.rank == 0:
            comm.recv(tensor(), 1)
        elif comm.rank == 1:
            comm.elapse(1000.0)
            comm.send(tensor(), 0)

    run(4, act)


# -- exceptions


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_an_exception_in_one_worker_is_that_of_the_run(rank: int) -> None:
    went_on: list[int] = []

    def act(comm: VirtualComm) -> None:
        comm.barrier()
        comm.elapse(1.0)
        if comm.rank == rank:
            raise BrokenError("the coffee machine is on fire")
        comm.barrier()
        went_on.append(comm.rank)

    cluster = SimulatedCluster(4, NETWORK)
    with pytest.raises(BrokenError, match="on fire"):
        cluster.run(act)
    assert cluster.failed_rank == rank
    assert not went_on


def test_the_first_exception_on_the_clock_is_that_of_the_run() -> None:
    def act(comm: VirtualComm) -> None:
        comm.elapse({0: 2.0, 1: 1.0, 2: 3.0}[comm.rank])
        raise BrokenError(f"worker {comm.rank}")

    with pytest.raises(BrokenError, match="worker 1"):
        run(3, act)


@pytest.mark.parametrize("wait", [wait_in_a_circle, leave_one_out, hold_two_locks, read_what_nobody_posts])
def test_others_unwind_from_wherever_they_wait_and_release_what_they_hold(wait: Callable[[VirtualComm], Any]) -> None:
    unwound: list[int] = []

    def act(comm: VirtualComm) -> None:
        workers = comm.split(0 if comm.rank < 3 else None)
        if workers is None:
            comm.elapse(10.0)
            raise BrokenError
        try:
            wait(workers)  # pyright: ignore[reportArgumentType]
            comm.barrier()
        finally:
            unwound.append(comm.rank)

    with pytest.raises(BrokenError):
        run(4, act)
    assert sorted(unwound) == [0, 1, 2]


def test_others_unwind_from_the_middle_of_backward() -> None:
    ended: list[str] = []

    def act(comm: VirtualComm) -> None:
        def pass_time(_: torch.Tensor) -> None:
            comm.elapse(1.0)
            comm.key_values.post("seen", "")

        layers = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
        for parameter in layers.parameters():
            parameter.register_post_accumulate_grad_hook(pass_time)
        loss = layers(torch.ones(1, 2)).sum()
        if comm.rank == 1:
            comm.elapse(2.5)
            raise BrokenError
        try:
            loss.backward()
        except BaseException as error:
            ended.append(type(error).__name__)
            raise

    with pytest.raises(BrokenError):
        run(3, act)
    assert ended == ["AbandonedError"] * 2


def test_an_exception_in_a_hook_within_backward_is_that_of_the_run() -> None:
    def act(comm: VirtualComm) -> None:
        weight = torch.ones(2, requires_grad=True)

        def fail(_: torch.Tensor) -> None:
            comm.elapse(1.0)
            if comm.rank == 1:
                raise BrokenError("in a hook")

        weight.register_post_accumulate_grad_hook(fail)
        weight.sum().backward()
        comm.barrier()

    cluster = SimulatedCluster(3, NETWORK)
    with pytest.raises(BrokenError, match="in a hook"):
        cluster.run(act)
    assert cluster.failed_rank == 1


def test_an_exception_that_takes_no_attributes_is_that_of_the_run() -> None:
    class ClosedError(Exception):
        def __setattr__(self, name: str, value: object) -> None:
            raise AttributeError(name)

    def act(comm: VirtualComm) -> None:
        if comm.rank == 1:
            raise ClosedError("shut")
        comm.barrier()

    with pytest.raises(ClosedError, match="shut"):
        run(2, act)


def test_who_talks_while_it_unwinds_is_not_waited_for() -> None:
    def act(comm: VirtualComm) -> None:
        try:
            comm.elapse(1.0 + comm.rank)
            if comm.rank == 0:
                raise BrokenError
            comm.barrier()
        finally:
            comm.send(tensor(), (comm.rank + 1) % comm.size)
            comm.barrier()

    with pytest.raises(BrokenError):
        run(3, act)


def test_of_two_workers_that_fail_the_earlier_one_ends_the_run() -> None:
    def act(comm: VirtualComm) -> None:
        comm.elapse(5.0 - comm.rank)
        raise BrokenError(f"worker {comm.rank}")

    cluster = SimulatedCluster(3, NETWORK)
    with pytest.raises(BrokenError, match="worker 2"):
        cluster.run(act)
    assert cluster.failed_rank == 2


def test_sys_exit_in_a_worker_ends_the_run() -> None:
    def act(comm: VirtualComm) -> None:
        if comm.rank == 1:
            raise SystemExit(3)
        comm.barrier()

    with pytest.raises(SystemExit):
        run(2, act)


# -- from outside


def test_ctrl_c_unwinds_all_workers() -> None:
    """It comes to the main thread, which only waits."""
    rounds: list[int] = []

    def act(comm: VirtualComm) -> None:
        while True:
            comm.elapse(1.0)
            rounds.append(comm.rank)
            if len(rounds) % 20_000 == 100:  # again after a while: one that hits a finalizer there is lost
                _thread.interrupt_main()

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run(3, act)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_system_without_threads_to_give_is_an_error_and_those_started_end(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def start_some(self: threading.Thread) -> None:
        if self.name == "worker-3":
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", start_some)
    with pytest.raises(FabricError, match=r"hardware.workers=5: .* only 3 to give") as caught:
        run(5, lambda comm: comm.barrier())
    assert caught.value.exit_code == 2


def test_a_cluster_runs_after_one_that_failed() -> None:
    generator = torch.default_generator.get_state()
    with pytest.raises(HangError):
        run(3, wait_in_a_circle)
    assert torch.equal(torch.default_generator.get_state(), generator)
    assert run(3, lambda comm: comm.all_gather(torch.tensor(comm.rank)).tolist()) == [[0, 1, 2]] * 3


# -- stopping


def steps_until_stopped(comm: VirtualComm, key_values_of: Callable[[VirtualComm], str], at: int) -> int:
    """How many steps of a second (worker 2: of a quarter) a worker takes until it is to leave; worker 0 asks for it."""
    step = 0
    assert isinstance(comm.key_values, VirtualKeyValues)
    while not comm.key_values.stops_before(step, key_values_of(comm)):
        if comm.rank == 0 and step == at:
            comm.key_values.request_stop()
        comm.elapse(0.25 if comm.rank == 2 else 1.0)
        comm.catch_up()
        step += 1
        assert step < 100
    return step


def test_those_who_step_together_leave_before_the_same_step_which_none_of_them_has_begun() -> None:
    assert run(4, lambda comm: steps_until_stopped(comm, lambda _: "all", 4)) == [16] * 4  # worker 2 has begun 15


def test_those_who_do_not_step_together_leave_before_their_next_step() -> None:
    steps = run(4, lambda comm: steps_until_stopped(comm, lambda comm: f"replica {comm.rank}", 4))
    assert steps == [5, 4, 16, 4]


def test_who_was_not_asked_to_stop_goes_on() -> None:
    with pytest.raises(AssertionError):
        run(2, lambda comm: steps_until_stopped(comm, lambda _: "all", 1000))
