"""A lock among processes: one at a time, whoever dies with it, and no wait for ever."""

import os
import signal
import time

import pytest
import torch

from paceline.comm import HangError

pytestmark = [pytest.mark.dist, pytest.mark.timeout(60)]
ROUNDS = 300


def count_together(comm):
    """Each increment is read, then written a while later; `inside` is who believes to be alone."""
    mutex = comm.mutex()
    shared = comm.shared(torch.zeros(2, dtype=torch.int64))
    disturbed = 0
    for _ in range(ROUNDS):
        with mutex:
            count = int(shared[0])
            shared[1] = comm.rank
            time.sleep(1e-5)  # lets others run
            disturbed += int(shared[1]) != comm.rank
            shared[0] = count + 1
    comm.barrier()
    return {"count": int(shared[0]), "disturbed": disturbed}


def test_one_worker_at_a_time_is_inside(workers):
    for result in workers(3, count_together):
        assert result == {"count": 3 * ROUNDS, "disturbed": 0}


def lock_in_groups(comm):
    """Worker 0 holds its group's lock, and another of the whole, while the other group uses its own."""
    whole, other = comm.mutex(), comm.mutex()
    group = comm.split(comm.rank // 2).mutex()
    if comm.rank == 0:
        with whole, group:
            comm.key_values.post("held", "")
            comm.key_values.read("used", 2)
    if comm.rank == 2:
        comm.key_values.read("held", 0)
        with other, group:
            comm.key_values.post("used", "")
    return True


def test_locks_are_apart_from_each_other(workers):
    assert all(workers(4, lock_in_groups))


def die_with_it(comm):
    mutex = comm.mutex()
    if comm.rank == 1:
        mutex.__enter__()
        comm.key_values.post("held", "")
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    comm.key_values.read("held", 1)
    start = time.monotonic()
    for _ in range(3):  # and it is as good as before
        with mutex:
            pass
    return time.monotonic() - start


def test_the_lock_of_a_killed_worker_is_free(workers):
    results = workers(3, die_with_it, timeout=30.0, lost=[1])
    assert all(results[rank] < 10.0 for rank in (0, 2))


def freeze_with_it(comm):
    mutex = comm.mutex()
    if comm.rank == 1:
        with mutex:
            comm.key_values.post("held", "")
            os.kill(os.getpid(), signal.SIGSTOP)
    comm.key_values.read("held", 1)
    with pytest.raises(HangError) as caught, mutex:
        pass
    return str(caught.value)


def test_a_worker_that_freezes_with_the_lock_is_named_after_the_timeout(workers):
    message = workers(2, freeze_with_it, timeout=1.0, lost=[1])[0]
    assert "worker 0 waited 1 s in a mutex of world: worker 1 (last starting) gave no sign of life" in message


def leave_by_error(comm):
    mutex = comm.mutex()
    if comm.rank == 0:
        with pytest.raises(KeyError), mutex:
            raise KeyError
    comm.barrier()
    with mutex:
        return True


def test_an_error_inside_gives_the_lock_back(workers):
    assert all(workers(2, leave_by_error))
