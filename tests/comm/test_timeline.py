"""Splitting blocked time into communication and waiting, on made-up timelines."""

from hypothesis import given
from hypothesis import strategies as st
from pytest import approx

from paceline.comm.timeline import KEPT, Operation, StepSplit, Timeline, last_launches, split

NEVER = float("-inf")


def test_blocked_time_is_waiting_until_the_last_launch_and_communication_after():
    operation = Operation("world", 1, launch=2.0, start=2.0, end=6.0)
    [part] = split([(0.0, 10.0)], [operation], {("world", 1): 5.0})
    assert part == StepSplit(compute=6.0, communication=1.0, waiting=3.0)


def test_the_last_to_come_waits_for_nobody():
    operation = Operation("world", 1, launch=5.0, start=5.0, end=6.0)
    [part] = split([(0.0, 10.0)], [operation], {("world", 1): 5.0})
    assert part == StepSplit(compute=9.0, communication=1.0, waiting=0.0)


def test_time_between_launch_and_wait_is_compute():
    """Overlap: launched at 1, waited for from 4 on, everyone had launched by 2."""
    operation = Operation("world", 1, launch=1.0, start=4.0, end=5.0)
    [part] = split([(0.0, 5.0)], [operation], {("world", 1): 2.0})
    assert part == StepSplit(compute=4.0, communication=1.0, waiting=0.0, hidden=2.0)


def test_what_is_under_way_hides_once_however_much_it_is_and_not_while_blocked():
    """Two overlap from 2 and from 3 on; it is blocked on the first from 4 to 5, and on the second from 7 on."""
    first, second = Operation("w", 1, 1.0, 4.0, 5.0), Operation("w", 2, 3.0, 7.0, 8.0)
    [part] = split([(0.0, 10.0)], [second, first], {("w", 1): 2.0, ("w", 2): 3.0})
    assert part == StepSplit(compute=8.0, communication=2.0, waiting=0.0, hidden=4.0)


def test_a_message_that_was_there_long_before_hides_nothing_that_is_known():
    received = Operation("g:0>1", 1, NEVER, 6.0, 6.5, "recv")
    [part] = split([(5.0, 8.0)], [received], {("g:0>1", 1): 1.0})
    assert part == StepSplit(compute=2.5, communication=0.5, waiting=0.0, hidden=0.0)


def test_operations_count_in_the_step_in_which_they_start_and_not_outside():
    operations = [Operation("w", i, at, at, at + 1.0) for i, at in enumerate([0.0, 11.0, 15.0, 21.0])]
    launches = {("w", i): NEVER for i in range(4)}
    parts = split([(10.0, 14.0), (20.0, 24.0)], operations, launches)
    assert parts == [StepSplit(3.0, 1.0, 0.0), StepSplit(3.0, 1.0, 0.0)]


def test_operations_may_be_recorded_in_any_order():
    operations = [Operation("w", i, at, at, at + 1.0) for i, at in enumerate([5.0, 1.0, 3.0])]
    [part] = split([(0.0, 10.0)], operations, {("w", i): NEVER for i in range(3)})
    assert part == StepSplit(compute=7.0, communication=3.0, waiting=0.0)


def test_a_receive_waits_for_the_senders_launch_whenever_it_was_posted():
    sender = [Operation("g:0>1", 1, launch=7.0, start=7.0, end=7.5)]
    receiver = [Operation("g:0>1", 1, launch=NEVER, start=1.0, end=8.0)]
    launches = last_launches([sender, receiver])
    assert launches == {("g:0>1", 1): 7.0}
    assert split([(0.0, 8.0)], receiver, launches) == [StepSplit(compute=1.0, communication=1.0, waiting=6.0)]
    assert split([(0.0, 8.0)], sender, launches) == [StepSplit(compute=7.5, communication=0.5, waiting=0.0)]


def test_a_collective_starts_when_its_last_participant_launches_it():
    timelines = [[Operation("g", 1, at, at, 9.0), Operation("g", 2, at + 1, 9.0, 9.0)] for at in (3.0, 8.0, 1.0)]
    assert last_launches(timelines) == {("g", 1): 8.0, ("g", 2): 9.0}


def test_channels_are_numbered_apart_and_from_one():
    timeline = Timeline()
    assert [timeline.launched(c, "send", 0.0).number for c in ("a", "b", "a", "a", "b")] == [1, 1, 2, 3, 2]


def test_only_the_most_recent_operations_are_kept():
    timeline = Timeline()
    for i in range(KEPT + 5):
        timeline.add(timeline.launched("a", "send", 0.0, i), float(i), float(i))
    assert len(timeline.operations) == KEPT
    assert timeline.operations[0].number == 5


def test_an_operation_has_the_purpose_that_held_when_it_was_launched():
    timeline = Timeline()
    with timeline.named("push"):
        pushed = timeline.launched("a", "send", 1.0)
        with timeline.named("fetch"):
            timeline.add(timeline.launched("b", "recv", 2.0), 2.0, 3.0)
    timeline.add(pushed, 4.0, 5.0)
    timeline.add(timeline.launched("a", "send", 6.0), 6.0, 7.0)
    noted = [(op.channel, op.number, op.start, op.end, op.primitive, op.purpose) for op in timeline.operations]
    assert noted == [
        ("b", 1, 2.0, 3.0, "recv", "fetch"),
        ("a", 1, 4.0, 5.0, "send", "push"),
        ("a", 2, 6.0, 7.0, "send", ""),
    ]


seconds = st.floats(0, 1e3)


@st.composite
def worker_runs(draw):
    """Steps of one worker with disjoint blocked times inside them, as one thread makes them."""
    steps, operations, launches, now = [], [], {}, 0.0
    for _ in range(draw(st.integers(0, 5))):
        now += draw(seconds)
        start = now
        for _ in range(draw(st.integers(0, 4))):
            now += draw(seconds)
            blocked_from, now = now, now + draw(seconds)
            key = ("w", len(operations))
            operations.append(Operation(*key, launch=draw(st.just(NEVER) | seconds), start=blocked_from, end=now))
            launches[key] = draw(st.just(NEVER) | st.floats(0, 3e4))
        now += draw(st.floats(1e-3, 1e3))
        steps.append((start, now))
    return steps, draw(st.permutations(operations)), launches


@given(worker_runs())
def test_the_three_shares_are_not_negative_and_make_up_the_step(run):
    steps, operations, launches = run
    parts = split(steps, operations, launches)
    assert len(parts) == len(steps)
    for (start, end), part in zip(steps, parts, strict=True):
        assert part.compute >= 0 and part.waiting >= 0
        assert part.communication >= -1e-9  # a difference of rounded sums
        assert part.compute + part.communication + part.waiting == approx(end - start, abs=1e-6)


@given(worker_runs())
def test_only_what_is_blocked_is_not_compute(run):
    steps, operations, launches = run
    blocked = sum(op.end - op.start for op in operations)
    parts = split(steps, operations, launches)
    assert sum(part.communication + part.waiting for part in parts) == approx(blocked, abs=1e-6)
