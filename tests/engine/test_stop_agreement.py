"""All workers that step together leave before the same step, whenever the request comes."""

import random
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.comm.key_values import KeyValues, Look
from paceline.comm.network import Network, NetworkLink
from paceline.comm.virtual import SimulatedCluster, VirtualComm
from paceline.engine.base.stop import PERIOD, StopAgreement


class Notes:
    """What all boards of a run share."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.changed = threading.Condition()
        self.stop = threading.Event()


class LocalKeyValues(KeyValues):
    def __init__(self, notes: Notes, rank: int) -> None:
        self.rank, self._notes = rank, notes

    def post(self, key: str, value: str) -> None:
        with self._notes.changed:
            self._notes.values[key] = value
            self._notes.changed.notify_all()

    def read(self, key: str, writer: int, look: Look | None = None) -> str:
        with self._notes.changed:
            assert self._notes.changed.wait_for(lambda: key in self._notes.values, timeout=10), key
            return self._notes.values[key]

    def stop_requested(self) -> bool:
        return self._notes.stop.is_set()

    def request_stop(self) -> None:
        self._notes.stop.set()

    def doing(self, what: str) -> None: ...


def run_until_stopped(
    key_values: LocalKeyValues,
    leader: int,
    first: int,
    last: int,
    step_seconds: float,
    request_at: int | None,
    ends: list[int],
) -> None:
    agreement = StopAgreement(key_values, key_values.rank, leader, "all", first)
    for step in range(first, last):
        if step == request_at:
            key_values.request_stop()
        if agreement.before(step, step_seconds):
            ends.append(step)
            return
    ends.append(last)


@settings(max_examples=25)
@given(
    workers=st.integers(2, 4),
    first=st.integers(0, 100),
    asked=st.integers(0, 40),
    by=st.integers(0, 3),
    leader=st.integers(0, 3),
    seconds=st.lists(st.sampled_from([0.0, 0.05, 0.1, 0.7]), min_size=4, max_size=4),
)
def test_all_leave_before_the_same_step_whoever_asks_and_however_fast_each_is(
    workers: int, first: int, asked: int, by: int, leader: int, seconds: list[float]
) -> None:
    notes, ends = Notes(), list[int]()
    threads = [
        threading.Thread(
            target=run_until_stopped,
            args=(
                LocalKeyValues(notes, rank),
                leader % workers,
                first,
                first + 50,
                seconds[rank],
                first + asked if rank == by % workers else None,
                ends,
            ),
        )
        for rank in range(workers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(ends) == workers
    assert len(set(ends)) == 1


@pytest.mark.parametrize("step_seconds", [0.001, 0.1, 2.0])
def test_a_request_is_followed_within_about_half_a_second_of_steps(step_seconds: float) -> None:
    notes, ends = Notes(), list[int]()
    run_until_stopped(LocalKeyValues(notes, 0), 0, 0, 5000, step_seconds, 1000, ends)
    assert 1000 <= ends[0] <= 1000 + max(PERIOD / step_seconds, 1) + 1


@pytest.mark.parametrize("mean", [0.001, 0.02, 0.3])
def test_where_steps_differ_much_a_request_is_followed_by_the_clock(mean: float) -> None:
    """On a busy host a step takes next to nothing when it is not interrupted, and long when it is."""
    rng, now, asked_at = random.Random(0), 0.0, 0.0
    notes = Notes()
    key_values = LocalKeyValues(notes, 0)
    agreement = StopAgreement(key_values, 0, 0, "all", 0, lambda: now)
    for step in range(100_000):
        if step == round(20 / mean):
            key_values.request_stop()
            asked_at = now
        last = mean / 1000 if rng.random() < 0.9 else 10 * mean
        if agreement.before(step, last):
            break
        now += last
    assert 0 < asked_at < now <= asked_at + 3 * max(PERIOD, 10 * mean)
    assert len(notes.values) <= 3 * now / PERIOD + 5


@pytest.mark.parametrize("step_seconds", [0.001, 0.1, 2.0])
def test_by_the_clock_alike_steps_are_announced_about_twice_a_second(step_seconds: float) -> None:
    notes, made = Notes(), [0]
    agreement = StopAgreement(LocalKeyValues(notes, 0), 0, 0, "all", 0, lambda: made[0] * step_seconds)
    for step in range(5000):
        made[0] = step
        assert not agreement.before(step, 0.0)
    expected = 5000 * min(step_seconds / PERIOD, 1)
    assert 0.9 * expected <= len(notes.values) <= expected + 5


def test_without_a_request_nobody_leaves_and_few_messages_are_posted() -> None:
    notes, ends = Notes(), list[int]()
    run_until_stopped(LocalKeyValues(notes, 0), 0, 0, 5000, 0.001, None, ends)
    assert ends == [5000]
    assert len(notes.values) <= 5000 * 0.001 / PERIOD + 2


def test_a_run_that_goes_on_from_a_checkpoint_can_be_stopped_too() -> None:
    notes, ends = Notes(), list[int]()
    notes.stop.set()
    run_until_stopped(LocalKeyValues(notes, 0), 0, 70, 90, 1.0, None, ends)
    assert ends == [71]


def test_a_worker_that_steps_by_itself_leaves_before_its_next_step_however_short_its_last_one_was() -> None:
    """A client's steps are short, and its rounds long: a count of steps would be up long after the request."""
    key_values = LocalKeyValues(Notes(), 0)
    agreement = StopAgreement(key_values, 0, 0, "replica 0", 7, alone=True)
    assert not any(agreement.before(step, 1e-6) for step in range(7, 20))
    key_values.request_stop()
    assert agreement.before(20, 1e-6)
    resumed = StopAgreement(key_values, 0, 0, "replica 0", 7, alone=True)
    assert not resumed.before(7, 1e-6) and resumed.before(8, 1e-6)  # one step is made in any case


def test_workers_that_share_memory_stop_at_once_however_short_their_steps_are() -> None:
    def steps(comm: VirtualComm) -> int:
        agreement = StopAgreement(comm.key_values, comm.rank, 0, "all", 0)
        for step in range(1000):
            if agreement.before(step, 1e-3):
                return step
            if (comm.rank, step) == (2, 7):
                comm.key_values.request_stop()
            comm.elapse(1e-3)
            comm.barrier()
        return 1000

    cluster = SimulatedCluster(3, Network(NetworkLink(1e-5, 1e9), NetworkLink(1e-6, 1e10)))
    assert cluster.run(steps) == [8] * 3
