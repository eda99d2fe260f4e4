"""Pipeline schedules as data: the lists are torch's own, what they need is checked, what they take is simulated."""

from collections import Counter
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stage_times import even
from torch.distributed.pipelining import schedules as torch_schedules

from paceline.conf.errors import ConfigError
from paceline.strategies.pipelining.actions import Action, Kind, parse
from paceline.strategies.pipelining.again import joined
from paceline.strategies.pipelining.check import add_messages, check, placement
from paceline.strategies.pipelining.schedules import SCHEDULES
from paceline.strategies.pipelining.simulate import in_flight, live_versions, peak, simulate

workers_and_batches = st.tuples(st.integers(1, 8), st.integers(1, 20))
FLUSH = ["naive", "gpipe", "1f1b", "zb_h1"]
SIZES = [(2, 2), (2, 5), (3, 4), (4, 4), (4, 8), (5, 13)]


def in_torchs_words(schedule):
    return [[str(action) for action in row] for row in schedule]


def computed(order):
    """torch's lists without its idle places, and without the sum over replicas, which is a sync mode's here."""
    rows = [order[rank] for rank in sorted(order)]
    return [[str(action) for action in row if action is not None and action.is_compute_op] for row in rows]


def torchs(cls, workers, micro_batches, chunks=1):
    """torch's own lists; its constructors want a process group, which the lists do not depend on."""
    schedule = cls.__new__(cls)
    schedule._n_microbatches = micro_batches
    if issubclass(cls, torch_schedules.PipelineScheduleSingle):
        schedule._num_stages = workers
        return computed(schedule._get_pipeline_order())
    schedule.pp_group_size, schedule.n_local_stages = workers, chunks
    schedule.number_of_rounds = max(1, micro_batches // workers)
    schedule.microbatches_per_round = micro_batches // schedule.number_of_rounds
    return computed({rank: schedule._calculate_single_rank_operations(rank) for rank in range(workers)})


# -- equal to torch's


@pytest.mark.parametrize(("workers", "micro_batches"), SIZES)
def test_gpipe_is_torchs(workers, micro_batches):
    expected = torchs(torch_schedules.ScheduleGPipe, workers, micro_batches)
    assert in_torchs_words(SCHEDULES["gpipe"](workers, micro_batches, 1)) == expected


class Recorder:
    """A stage that writes down what torch's schedule does with it."""

    def __init__(self, index):
        self.stage_index, self.is_last, self.did = index, False, []

    def forward_one_chunk(self, micro_batch, *args, **kwargs):
        self.did.append(f"{self.stage_index}F{micro_batch}")

    def backward_one_chunk(self, micro_batch, **kwargs):
        self.did.append(f"{self.stage_index}B{micro_batch}")

    def get_fwd_recv_ops(self, micro_batch):
        return []

    get_fwd_send_ops = get_bwd_recv_ops = get_bwd_send_ops = get_fwd_recv_ops

    def perform_reduce_grad(self, scale):
        pass


def what_torch_runs(workers, micro_batches):
    rows = []
    for rank in range(workers):
        schedule: Any = torch_schedules.Schedule1F1B.__new__(torch_schedules.Schedule1F1B)
        schedule._num_stages, schedule._n_microbatches = workers, micro_batches
        schedule._stage, schedule._loss_fn, schedule._internal_losses = Recorder(rank), None, []
        schedule.scale_grads = True
        schedule._initialize_stage = lambda *args: None
        schedule._check_inputs = lambda *args: ([None] * micro_batches, [{}] * micro_batches)
        schedule._step_microbatches()
        rows.append(schedule._stage.did)
    return rows


@pytest.mark.parametrize(("workers", "micro_batches"), SIZES)
def test_1f1b_is_what_torch_runs_and_what_it_prints_but_for_its_last_stage(workers, micro_batches):
    """torch 2.13 prints micro-batches 1 to m for the last stage's forward passes, and runs 0 to m - 1."""
    ours = in_torchs_words(SCHEDULES["1f1b"](workers, micro_batches, 1))
    assert ours == what_torch_runs(workers, micro_batches)
    assert ours[:-1] == torchs(torch_schedules.Schedule1F1B, workers, micro_batches)[:-1]


@pytest.mark.parametrize("chunks", [1, 2, 3])
@pytest.mark.parametrize(("workers", "micro_batches"), [(2, 2), (2, 4), (3, 2), (4, 10), (4, 8)])
def test_interleaved_is_torchs(workers, micro_batches, chunks):
    expected = torchs(torch_schedules.ScheduleInterleaved1F1B, workers, micro_batches, chunks)
    assert in_torchs_words(SCHEDULES["interleaved"](workers, micro_batches, chunks)) == expected


@pytest.mark.parametrize(("workers", "micro_batches"), SIZES)
def test_zb_h1_is_torchs_zero_bubble_of_one_chunk(workers, micro_batches):
    """torch's has several chunks as well, which is no schedule of the paper's; with one chunk it is ZB-H1."""
    expected = torchs(torch_schedules.ScheduleInterleavedZeroBubble, workers, micro_batches)
    assert in_torchs_words(SCHEDULES["zb_h1"](workers, micro_batches, 1)) == expected


@pytest.mark.parametrize(("workers", "micro_batches"), [*SIZES, (4, 16), (8, 8), (8, 16)])
def test_zb_v_is_torchs(workers, micro_batches):
    schedule = torch_schedules.ScheduleZBVZeroBubble.__new__(torch_schedules.ScheduleZBVZeroBubble)
    schedule._n_microbatches, schedule.pp_group_size, schedule.num_stages = micro_batches, workers, 2 * workers
    theirs = computed({rank: schedule._calculate_single_rank_operations(rank) for rank in range(workers)})
    assert in_torchs_words(SCHEDULES["zb_v"](workers, micro_batches, 2)) == theirs


# -- what holds of them


@given(workers_and_batches, st.sampled_from(FLUSH))
def test_every_stage_takes_every_micro_batch_once_and_adds_gradients_up_in_their_order(sizes, name):
    workers, micro_batches = sizes
    check_complete(SCHEDULES[name](workers, micro_batches, 1), workers, micro_batches)


@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 4))
def test_interleaved_takes_every_micro_batch_once_through_every_chunk(workers, rounds, chunks):
    check_complete(SCHEDULES["interleaved"](workers, rounds * workers, chunks), workers * chunks, rounds * workers)


def check_complete(schedule, stages, micro_batches):
    done = Counter(action for row in schedule for action in row)
    parts = {"F": "F", "B": "IW", "I": "I", "W": "W"}
    counted = Counter((a.stage, part, a.micro_batch) for a in done.elements() for part in parts[a.kind])
    wanted = {(s, part, j) for s in range(stages) for part in "FIW" for j in range(micro_batches)}
    assert counted == dict.fromkeys(wanted, 1)
    for rank, row in enumerate(schedule):
        assert {action.stage % len(schedule) for action in row} == {rank}
        for stage in {action.stage for action in row}:
            added = [action.micro_batch for action in row if action.stage == stage and action.kind in "BW"]
            assert added == list(range(micro_batches))


@given(workers_and_batches, st.sampled_from(["1f1b", "zb_h1"]))
def test_no_stage_has_more_in_flight_than_p_minus_i_of_1f1b_or_p_of_zb_h1(sizes, name):
    workers, micro_batches = sizes
    for i, row in enumerate(SCHEDULES[name](workers, micro_batches, 1)):
        now = most = 0
        for action in row:
            now += {"F": 1, "B": -1, "I": 0, "W": -1}[action.kind]
            most = max(most, now)
        assert most == min(workers - i if name == "1f1b" else workers, micro_batches)


@pytest.mark.parametrize("name", FLUSH)
def test_chunks_are_refused_where_a_worker_has_one(name):
    with pytest.raises(ConfigError, match=rf"strategy.chunks=2: strategy.schedule={name} .*schedule=interleaved"):
        SCHEDULES[name](2, 4, 2)


def test_interleaving_that_does_not_fit_is_refused_with_the_nearest_that_does():
    with pytest.raises(ConfigError, match=r"strategy.micro_batches=9: .* 2 rounds .* 4 workers; .* 8 and 12"):
        SCHEDULES["interleaved"](4, 9, 2)
    for fits in (8, 12):
        SCHEDULES["interleaved"](4, fits, 2)
    with pytest.raises(ConfigError, match=r"strategy\.chunks=1: .*schedule=zb_v .* Choose strategy\.chunks=2"):
        SCHEDULES["zb_v"](4, 4, 1)


# -- written


@given(st.integers(0, 99), st.sampled_from(["F", "B", "I", "W", "U", "SEND_F", "RECV_B"]), st.integers(0, 99))
def test_an_action_is_read_as_it_is_written(stage, kind, micro_batch):
    action = Action(stage, kind, micro_batch)
    assert parse(str(action)) == action
    if kind != "U":  # torch has no update
        assert str(torch_schedules._Action.from_str(str(action))) == str(action)


@pytest.mark.parametrize("text", ["", "F0", "1X0", "1F", "1F0 1F1", "-1F0", "1f0"])
def test_what_is_no_action_is_refused(text):
    with pytest.raises(ValueError, match=r"is no action: .* such as 2F0"):
        parse(text)


def test_a_schedule_is_written_as_torchs_csv(tmp_path):
    schedule = SCHEDULES["zb_h1"](3, 4, 1)
    (tmp_path / "schedule.csv").write_text("".join(",".join(map(str, row)) + "\n" for row in schedule))
    read: Any = torch_schedules.ScheduleInterleaved1F1B.__new__(torch_schedules.ScheduleInterleaved1F1B)
    read.pipeline_order, read._validate_and_set_stage_mapping = {}, lambda order: None
    torch_schedules.PipelineScheduleMulti._load_csv(read, tmp_path / "schedule.csv")
    assert in_torchs_words(read.pipeline_order.values()) == in_torchs_words(schedule)


# -- messages


def sizes_of(name, workers, batches):
    """(workers, micro-batches, chunks) that the schedule takes."""
    if name == "interleaved":
        return workers, workers * batches, 2
    return workers, batches, 2 if name == "zb_v" else 1


every_schedule = given(st.sampled_from(sorted(SCHEDULES)), st.integers(1, 6), st.integers(1, 9))


@every_schedule
def test_messages_are_received_in_the_order_in_which_they_are_sent_and_before_they_are_read(name, workers, batches):
    schedule = SCHEDULES[name](*sizes_of(name, workers, batches))
    complete = add_messages(schedule)
    holders, stages = placement(schedule), 1 + max(action.stage for row in schedule for action in row)
    sent, received = {}, {}
    for worker, row in enumerate(complete):
        assert [action for action in row if action.kind in "FBIW"] == list(schedule[worker])
        for place, (stage, kind, j) in enumerate(row):
            step = {"F": 1, "B": -1}[kind[-1]] if "_" in kind else 0
            if kind.startswith("SEND"):
                assert row[place - 1].stage == stage and row[place - 1].micro_batch == j
                sent.setdefault((worker, holders[stage + step]), []).append((stage + step, kind[-1], j))
            elif kind.startswith("RECV"):
                received.setdefault((holders[stage - step], worker), []).append((stage, kind[-1], j))
                read: list[Kind] = ["F"] if kind[-1] == "F" else ["B", "I"]
                assert any(Action(stage, each, j) in row[place:] for each in read)
    assert sent == received
    crossings = sum(holders[s] != holders[s + 1] for s in range(stages - 1))
    assert sum(map(len, sent.values())) == 2 * crossings * (workers * batches if name == "interleaved" else batches)


@every_schedule
def test_a_schedule_goes_well_even_where_nobody_sends_before_the_other_has_begun_to_receive(name, workers, batches):
    """As without any buffer: a send is over when its receive has been posted."""
    complete = add_messages(SCHEDULES[name](*sizes_of(name, workers, batches)))
    at, posted, progress = [0] * len(complete), set(), True
    while progress:
        progress = False
        for worker, row in enumerate(complete):
            while at[worker] < len(row):
                stage, kind, j = row[at[worker]]
                if kind.startswith("RECV"):
                    posted.add((stage, kind[-1], j))
                elif kind.startswith("SEND") and (stage + (1 if kind == "SEND_F" else -1), kind[-1], j) not in posted:
                    break
                at[worker], progress = at[worker] + 1, True
    assert at == list(map(len, complete))


@pytest.mark.parametrize(("name", "chunks"), [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zb_h1", 1)])
def test_messages_are_placed_as_torch_places_them(name, chunks):
    workers, batches = 4, 8
    schedule = SCHEDULES[name](workers, batches, chunks)
    read = torch_schedules._Action.from_str
    actions = {rank: [read(str(action)) for action in row] for rank, row in enumerate(schedule)}
    theirs = torch_schedules._add_send_recv(
        cast(Any, actions),
        lambda stage: stage % workers,
        workers * chunks,
    )
    assert in_torchs_words(add_messages(schedule)) == in_torchs_words(theirs.values())


# -- the checker


def rows(*texts):
    return [[parse(each) for each in text.split()] for text in texts]


@every_schedule
def test_our_own_schedules_pass_the_checker(name, workers, batches):
    schedule = SCHEDULES[name](*sizes_of(name, workers, batches))
    check(schedule, len(placement(schedule)), workers * batches if name == "interleaved" else batches)


@pytest.mark.parametrize(
    ("schedule", "says"),
    [
        (rows("0F0 0B0 0F1 0B1", "1F1 1B1 1F0 1B0"), "deadlocks: .* worker 0 at 0B0 for 1B0; worker 1 at 1F1 for 0F1"),
        (rows("0B0 0F0 0F1 0B1", "1F0 1B0 1F1 1B1"), "worker 0 at 0B0 for 0F0 of its own, which comes later; worker 1"),
        (rows("0F0 0F1 0B0 0B1", "1F0 1W0 1I0 1F1 1B1"), "worker 1 at 1W0 for 1I0 of its own, which comes later"),
        (rows("0F0 0B0 0B1", "1F0 1F1 1B0 1B1"), "worker 1 waits forever at 1F1: it reads what 0F1 makes, which no"),
        (rows("0F0 0F1 0B0 0B1", "1F0 1F1 1B0"), "worker 0 waits forever at 0B1: it reads what 1B1 makes, which no"),
        (rows("0F0 0F1 0B0", "1F0 1F1 1B0 1B1"), "no worker ever runs 0B1, nor 0I1 and 0W1: .* lack micro-batch 1"),
        (rows("0F0 0F1 0B0 0I1", "1F0 1F1 1B0 1B1"), "no worker ever runs 0W1: .* lack micro-batch 1"),
        (rows("0F0 0B0", "1F0 1B0"), "no worker ever runs 0F1"),
        (rows("0F0 0F1 0B0 0B1 1B1", "1F0 1F1 1B0"), "worker 1 at 1F0: worker 0 has stage 1"),
        (rows("0F0 0F1 0F1 0B0 0B1", "1F0 1F1 1B0 1B1"), "worker 0 at 0F1: that was done before"),
        (rows("0F0 0F1 0B0 0W0 0B1", "1F0 1F1 1B0 1B1"), "worker 0 at 0W0: that was done before"),
        (rows("0F0 0F1 0I0 0B0 0B1", "1F0 1F1 1B0 1B1"), "worker 0 at 0B0: that was done before"),
        (rows("0F0 0F1 0B0 0B1 2F0", "1F0 1F1 1B0 1B1"), "worker 0 at 2F0: there are 2 stages and 2 micro-batches"),
        (rows("0F0 0F1 0B0 0B1", "1F0 1F1 1B0 1B1 1F2"), "worker 1 at 1F2: there are 2 stages and 2 micro-batches"),
        (
            rows("0F0 0F1 0B0 0B1 0U0", "1F0 1F1 1B0 1B1"),
            "worker 0 at 0U0: a schedule with a flush is of F, B, I and W",
        ),
        (rows("0F0 0SEND_F0 0F1 0B0 0B1", "1F0 1F1 1B0 1B1"), "worker 0 at 0SEND_F0: .* messages are added"),
        (rows("0F0 0F1 1F0 1F1 1B0 1B1 0B0 0B1", ""), "worker 1 has nothing to do"),
    ],
)
def test_what_deadlocks_or_reads_what_was_never_sent_is_refused_by_worker_action_and_what_it_waits_for(schedule, says):
    with pytest.raises(ConfigError, match=says) as caught:
        check(schedule, 2, 2)
    assert caught.value.exit_code == 2


@given(st.data())
def test_a_shuffled_schedule_is_refused_or_simulated_to_its_end(data):
    """The checker and the simulator agree on what goes well."""
    schedule = SCHEDULES["1f1b"](3, 3, 1)
    shuffled = [data.draw(st.permutations(row)) for row in schedule]
    try:
        check(shuffled, 3, 3)
    except ConfigError:
        assert sum(map(len, simulate(shuffled, even(3)).events)) < sum(map(len, schedule))
        return
    assert sum(map(len, simulate(shuffled, even(3)).events)) == sum(map(len, schedule))


# -- the simulator

times = st.floats(0.1, 4.0)


@given(workers_and_batches, times, times, times)
def test_bubbles_are_those_of_the_closed_formulas(sizes, forward, inputs, weights):
    p, m = sizes
    both = inputs + weights
    formulas = {
        "naive": (p * m * (forward + both), (p - 1) / p),
        "gpipe": ((m + p - 1) * (forward + both), (p - 1) / (m + p - 1)),
        "1f1b": ((m + p - 1) * (forward + both), (p - 1) / (m + p - 1)),
    }
    for name, (seconds, bubble) in formulas.items():
        found = simulate(SCHEDULES[name](p, m, 1), even(p, forward, inputs, weights))
        assert found.seconds == pytest.approx(seconds)
        assert found.bubble == pytest.approx(bubble)


@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 4), times, times)
def test_interleaving_makes_the_bubble_as_many_times_smaller_as_there_are_chunks(p, rounds, v, forward, backward):
    m = rounds * p
    found = simulate(SCHEDULES["interleaved"](p, m, v), even(p * v, forward, backward, 0.0))
    assert found.seconds == pytest.approx((v * m + p - 1) * (forward + backward))
    assert found.bubble == pytest.approx((p - 1) / (v * m + p - 1))


@given(workers_and_batches, times, times, times)
def test_the_bubble_of_zb_h1_is_that_of_its_paper(sizes, forward, inputs, weights):
    p, m = sizes[0], sizes[0] + sizes[1] - 1
    weights = min(forward, inputs, weights)
    found = simulate(SCHEDULES["zb_h1"](p, m, 1), even(p, forward, inputs, weights))
    idle = (p - 1) * (forward + inputs - weights)
    assert found.seconds == pytest.approx(m * (forward + inputs + weights) + idle)
    assert found.bubble == pytest.approx(idle / (m * (forward + inputs + weights) + idle))


@given(st.integers(1, 6), st.integers(0, 8))
def test_zb_v_has_half_the_bubble_of_zb_h1_and_no_more_in_flight(p, more):
    """Of chunks half as large as its stages, that take as long for F, I and W."""
    m = 2 * p - 1 + more
    schedule = SCHEDULES["zb_v"](p, m, 2)
    found, of_h1 = simulate(schedule, even(2 * p, 0.5, 0.5, 0.5)), simulate(SCHEDULES["zb_h1"](p, m, 1), even(p))
    idle = (p - 1) / 2
    assert found.seconds == pytest.approx(3 * m + idle)
    assert of_h1.seconds == pytest.approx(3 * m + 2 * idle)
    assert max(peak(row, lambda _: 1) for row in schedule) / 2 <= max(in_flight(SCHEDULES["zb_h1"](p, m, 1)))
    assert placement(schedule) == [min(s, 2 * p - 1 - s) for s in range(2 * p)]


def test_a_message_delays_who_waits_for_it_and_nobody_else():
    """Two workers, one micro-batch: out and back."""
    found = simulate(SCHEDULES["gpipe"](2, 1, 1), even(2), messages=[0.5])
    assert found.events[1][0].start == 1.5
    assert found.seconds == 1 + 0.5 + 1 + 2 + 0.5 + 2
    alone = simulate(rows("0F0 1F0 1B0 0B0"), even(2), messages=[0.5])
    assert alone.seconds == 6 and alone.bubble == 0


@given(workers_and_batches)
def test_what_is_in_flight_is_m_of_gpipe_p_minus_i_of_1f1b_and_p_of_zb_h1(sizes):
    p, m = sizes
    assert in_flight(SCHEDULES["naive"](p, m, 1)) == [1] * p
    assert in_flight(SCHEDULES["gpipe"](p, m, 1)) == [m] * p
    assert in_flight(SCHEDULES["1f1b"](p, m, 1)) == [min(p - i, m) for i in range(p)]
    assert in_flight(SCHEDULES["zb_h1"](p, m, 1)) == [min(p, m)] * p


@given(workers_and_batches)
def test_zb_h1_with_backward_in_one_piece_is_1f1b(sizes):
    p, m = sizes
    assert [joined(row, range(p)) for row in SCHEDULES["zb_h1"](p, m, 1)] == SCHEDULES["1f1b"](p, m, 1)


def test_only_the_stages_that_are_named_have_backward_in_one_piece():
    [row] = rows("0F0 1F0 1I0 0I0 1W0 0W0")
    assert joined(row, {1}) == list(rows("0F0 1F0 1B0 0I0 0W0")[0])
    assert joined(row, ()) == list(row)


def test_what_is_computed_again_is_held_in_backward_alone():
    [row] = rows("0F0 0F1 0B0 0F2 0B1 0B2")
    assert peak(row, lambda _: 1) == 2
    assert peak(row, lambda _: 1, again=lambda group, others: 3) == 5
    assert peak(row, lambda _: 1, lambda _: (0, 0), again=lambda group, others: 0 if others else 3) == 4
    assert peak(row, lambda _: 1, lambda _: (0, 0), common=lambda stage: 7) == 9


@every_schedule
def test_schedules_with_a_flush_have_one_version_of_the_weights(name, workers, batches):
    assert set(live_versions(SCHEDULES[name](*sizes_of(name, workers, batches)))) == {1}


def test_versions_that_are_live_follow_from_updates():
    """PipeDream's: stage i of p needs p - i versions."""
    schedule = [
        [each for a in row for each in ([a, a._replace(kind="U")] if a.kind == "B" else [a])]
        for row in SCHEDULES["1f1b"](4, 9, 1)
    ]
    assert live_versions(schedule) == [4, 3, 2, 1]
