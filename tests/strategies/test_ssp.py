"""SSP against its bounds: who may go on, what is read at which clock, and clocks by themselves."""

from math import inf
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import ROUNDING, Case, distance, identical, mlp, serial
from served import Paced, pace, random_seconds, run

from paceline.exchange.clocks import Clocks
from paceline.strategies.core.state import to_bytes
from paceline.strategies.sync.downpour import Downpour
from paceline.strategies.sync.ssp import SSP

pytestmark = pytest.mark.dist


def marking(staleness: int | None, servers: int = 1) -> SSP:
    return SSP(staleness, "full", servers)


def begun_too_early(
    results: list[dict[str, Any]], s: int, empty: frozenset[tuple[int, int]] = frozenset()
) -> list[tuple[int, int]]:
    """(worker, clock) of steps with samples that began before some worker had ended its step clock - s - 1."""
    return [
        (i, c)
        for i, one in enumerate(results)
        for c, begun in enumerate(one["begins"])
        if (i, c) not in empty
        and any(c > s and begun < other["ends"][c - s - 1] for other in results if len(other["ends"]) > c - s - 1)
    ]


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("s", [0, 1, 3])
def test_nobody_goes_on_at_clock_c_before_the_slowest_is_at_c_minus_s(fabric, s, servers):
    """The clock gap is at most s at every instant."""
    seconds = random_seconds(3, 8, 0.01)
    seconds[1] = [0.03 * (step < 4) for step in range(8)]  # slow, then fast: first it is waited for, then it waits
    *trained, _ = fabric(3 + servers, pace, Paced(marking(staleness=s, servers=servers), seconds))
    assert begun_too_early(trained[:3], s) == []


def test_without_the_bound_workers_do_begin_too_early(virtual_workers):
    """So that the test above can fail."""
    seconds = [[0.01] * 8, [0.03] * 8]
    *trained, _ = virtual_workers(3, pace, Paced(marking(staleness=3), seconds))
    assert begun_too_early(trained, 2) != []


@pytest.mark.parametrize("s", [1, 2, 5])
def test_a_fast_worker_gets_exactly_s_steps_ahead(virtual_workers, s):
    """With steps of 1 and 10 seconds: the fast one begins clock c when the slow one has ended c - s - 1."""
    fast, slow, _ = virtual_workers(3, pace, Paced(marking(staleness=s), [[1.0] * 12, [10.0] * 12]))
    for c in range(12):
        assert fast["begins"][c] == pytest.approx(c if c <= s else slow["ends"][c - s - 1], abs=0.01)


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("s", [1, 3])
def test_a_read_at_clock_c_has_all_updates_to_c_minus_s_minus_1_its_own_and_none_from_c_plus_s_on(fabric, s, servers):
    workers, steps = 4, 8
    sync = marking(staleness=s, servers=servers)
    pauses = [[0.02] * steps, *random_seconds(workers - 1, steps, 0.002, seed=9)]  # the first fetches late
    job = Paced(sync, random_seconds(workers, steps, 0.01, seed=s), pauses)
    *trained, _ = fabric(workers + servers, pace, job)
    others_seen = 0.0
    for i, worker in enumerate(trained[:workers]):
        assert torch.equal(worker["final"], torch.ones(2, workers, steps, dtype=torch.float64))
        for c, read in enumerate(worker["reads"]):
            assert bool(((read == 0) | (read == 1)).all()), "an update is there once or not at all"
            assert bool((read[:, :, : max(c - s, 0)] == 1).all())
            assert bool((read[:, i, :c] == 1).all()), "its own"
            assert bool((read[:, :, c + s :] == 0).all())
            others_seen += float(read[0, :, max(c - s, 0) :].sum() - read[0, i, max(c - s, 0) :].sum())
    assert others_seen > 0  # those that the bound leaves to chance


def test_updates_of_workers_that_are_ahead_are_read_as_soon_as_the_bound_lets_them(virtual_workers):
    """s = 1: the fast worker has ended clock 1 at second 2, may not go on, and its update waits for the slow one."""
    fast, slow, server = virtual_workers(3, pace, Paced(marking(staleness=1), [[1.0] * 3, [5.0] * 3]))
    first, second, third = (read[0] for read in slow["reads"])
    assert first.sum() == 0
    assert torch.equal(second, torch.tensor([[1.0, 1, 0], [1, 0, 0]], dtype=torch.float64))
    assert torch.equal(third, torch.tensor([[1.0, 1, 1], [1, 1, 0]], dtype=torch.float64))
    assert torch.equal(fast["reads"][2][0], second)
    assert sum(server["report"]["staleness"].values()) == 6


def test_a_bound_that_nobody_reaches_is_no_bound(virtual_workers):
    """s = infinity is ASP: bit for bit, in the same order."""
    seconds = random_seconds(3, 10, 1.0)
    modes = (Downpour(rate="full"), marking(None), marking(10))
    free, unbounded, bounded = (virtual_workers(4, pace, Paced(sync, seconds)) for sync in modes)
    for results in (unbounded, bounded):
        for one, other in zip(free[:3], results[:3], strict=True):
            assert all(torch.equal(a, b) for a, b in zip(one["reads"], other["reads"], strict=True))
            assert one["ends"] == other["ends"]
        assert free[3]["report"] == results[3]["report"]


@pytest.mark.parametrize("s", [0, 1, 2])
def test_workers_that_are_done_hold_nobody_back(fabric, s):
    seconds = [[0.0] * 2, [0.0] * 7, [0.005] * 5]
    *trained, _ = fabric(4, pace, Paced(marking(staleness=s), seconds))
    assert [len(worker["ends"]) for worker in trained] == [2, 7, 5]
    assert all(torch.equal(worker["final"], trained[0]["final"]) for worker in trained)
    assert begun_too_early(trained, s) == []


@pytest.mark.parametrize("s", [0, 2])
def test_batches_without_samples_move_the_clock(fabric, s):
    """Else worker 1, without samples in its first steps, would be waited for until it has as many pushes."""
    empty = frozenset({(1, 0), (1, 1), (1, 2), (0, 5)})
    *trained, _ = fabric(4, pace, Paced(marking(staleness=s), random_seconds(3, 6, 0.005), empty=empty))
    assert [len(worker["ends"]) for worker in trained] == [6, 6, 6]
    pushed = trained[0]["final"][0] > 0
    assert {(i, c) for i in range(3) for c in range(6) if not pushed[i, c]} == empty
    assert begun_too_early(trained, s, empty) == []


def test_saving_waits_until_the_worker_may_go_on(virtual_workers):
    """At s = 0: what replica 0 saves after its step has that step of all workers."""
    case = Case([[2, 2]] * 4, model=mlp)
    trained, _ = run(virtual_workers, SSP(0), Case(case.sizes[:2], model=mlp))
    state = [to_bytes({"weights": trained[0]["weights"], "sync": trained[0]["state"]})]
    resumed, _ = run(virtual_workers, SSP(0), case, state, start=2)
    straight, _ = run(virtual_workers, SSP(0), case)
    assert identical(resumed[1]["weights"], straight[1]["weights"])


def test_with_a_bound_above_0_it_is_another_training(virtual_workers):
    """So that the tests of s = 0 can fail."""
    case = Case([[2, 2, 2]] * 4)
    trained, _ = run(virtual_workers, SSP(1), case)
    assert distance(trained[0]["weights"], serial(case)) > 1e-3


def test_at_s_0_the_mean_is_that_of_the_living(virtual_workers):
    """Two of three are left: each has half."""
    job = Paced(marking(staleness=0), [[1.0] * 4] * 3, dies={2: (1, "within")})
    final = virtual_workers(4, pace, job)[0]["final"][0]
    third = torch.full((3,), 1 / 3, dtype=torch.float64)
    assert torch.allclose(final[:, 0], third, atol=ROUNDING)
    assert torch.allclose(final[:2, 1:], torch.full((2, 3), 0.5, dtype=torch.float64), atol=ROUNDING)
    assert final[2, 1:].sum() == 0


# -- clocks


@given(st.integers(1, 5), st.data())
def test_the_slowest_clock_is_the_least_of_those_that_are_going(workers, data):
    clocks, expected, going = Clocks(workers), [0] * workers, set(range(workers))
    for worker, leaves in data.draw(st.lists(st.tuples(st.integers(0, workers - 1), st.booleans()), max_size=40)):
        if leaves:
            clocks.leave(worker)
            going.discard(worker)
        elif worker in going:
            clocks.tick(worker)
            expected[worker] += 1
        assert clocks.slowest == min((expected[worker] for worker in going), default=inf)
        assert clocks.going == going
        assert [clocks.of(worker) for worker in range(workers)] == expected
