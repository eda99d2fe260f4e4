"""Figures that are counted by hand: first of all, an evaluation carries the time at which its weights existed.

On the virtual cluster a step computes for a second, a message takes an eighth of one, whatever its size, and worker 1
is four times as slow as the others; so every time below is counted by hand.
"""

import math
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from short_runs import Train, weights

from paceline.comm.timeline import Timeline
from paceline.engine import prepare
from paceline.engine.launch.virtual import cluster_of
from paceline.engine.launch.virtual import run as run_virtual
from paceline.engine.planning.build import assemble
from paceline.engine.training.meters import Meter
from paceline.exchange.participation import sampled
from paceline.tracking.run_directory import RunDirectory

ALPHA = 0.125
CLUSTER = (
    "hardware=virtual", "hardware.flops=1e18", "hardware.overhead=1.0", f"hardware.network.latency={ALPHA}",
    "hardware.network.bandwidth=1e18", "tracking=none", "checkpoint.every=0", "model.hidden=[4]", "data.limit=96",
    "batch_size=16", "epochs=2",
)  # fmt: skip
SLOW = ("stragglers=one_slow", "stragglers.worker=1", "stragglers.factor=4.0", "hardware.workers=2")
STEPS = 6  # of two workers, 16 samples each: three steps an epoch, and two epochs

Here = Callable[..., tuple[list[dict[str, Any]], dict[str, Any]]]


@pytest.fixture
def here(tmp_path: Path) -> Here:
    """A run on a virtual cluster in this process: its evaluations, in the order of their steps, and its summary."""

    names = (f"here{i}" for i in count())

    def run(*overrides: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        prepared = prepare([*CLUSTER, *overrides])
        directory = RunDirectory.create(tmp_path, next(names))
        hardware: Any = prepared.experiment.hardware
        threads = torch.get_num_threads()
        parts = assemble(prepared.experiment, (), None)
        run_virtual(prepared.assignment(directory, prepared.plan()), parts, cluster_of(parts, hardware))
        torch.set_num_threads(threads)
        summary = directory.read_summary()
        assert summary is not None and summary["steps"] in (STEPS, 1, 2)
        return [record for record in directory.records() if record["kind"] == "evaluation"], summary

    return run


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        # worker 1 computes 6 x 4 s, and nothing waits
        (("sync=independent",), 24.0),
        (("sync=hogwild",), 24.0),
        (("sync=gossip_async",), 24.0),
        # a step: fetch there and back, then 4 s; the last push is there a message later
        (("sync=asp",), 6 * (4 + 2 * ALPHA) + ALPHA),
        (("sync=ssp",), 6 * (4 + 2 * ALPHA) + ALPHA),
        # the centre moves when worker 1's x of step 6 comes; before, it was there and back after steps 2 and 4
        (("sync=easgd_async", "sync.period=2"), 6 * 4 + 2 * 2 * ALPHA + ALPHA),
        # and after step 4 alone: what worker 1 trained in steps 5 and 6 is not in the centre
        (("sync=easgd_async", "sync.period=4"), 4 * 4 + ALPHA),
        # a round: fetch there and back, 3 x 4 s; the last delivery is there a message later
        (("sync=fedavg",), 2 * (3 * 4 + 2 * ALPHA) + ALPHA),
        (("sync=fedbuff",), 2 * (3 * 4 + 2 * ALPHA) + ALPHA),
        # worker 1's gradients come too late; of the two others, a version is there and back and a second
        (("sync=backup_workers", "hardware.workers=3", "data.limit=144"), 6 * (1 + 2 * ALPHA) - ALPHA),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_the_last_evaluation_is_dated_when_the_last_of_its_weights_was_made(
    here: Here, overrides: tuple[str, ...], expected: float
) -> None:
    evaluations, summary = here("evaluate.every=100", *SLOW, *overrides)
    assert [record["step"] for record in evaluations] == [STEPS]
    assert evaluations[0]["time"] == pytest.approx(expected, abs=1e-9)
    assert summary["seconds"] >= evaluations[0]["time"]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        # replica 0 has what came until its own third step was over
        (("sync=independent",), 3.0),
        (("sync=hogwild",), 3.0),
        (("sync=gossip_async",), 3.0),
        (("sync=asp",), 3 * (1 + 2 * ALPHA)),
        (("sync=ssp",), 3 * (1 + 2 * ALPHA)),
        (("sync=easgd_async", "sync.period=2"), 3 + 2 * ALPHA),
        # what the round's end made, which is there when worker 1's delivery is
        (("sync=fedavg",), 3 * 4 + 3 * ALPHA),
        # what replica 0 has delivered is there a message after its round
        (("sync=fedbuff",), 3 + 3 * ALPHA),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_an_evaluation_in_the_middle_is_dated_when_what_replica_0_had_was_made(
    here: Here, overrides: tuple[str, ...], expected: float
) -> None:
    evaluations, _ = here("evaluate.every=1", *SLOW, *overrides)
    assert [record["step"] for record in evaluations] == [3, 6]
    assert evaluations[0]["time"] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("sync", ["asp", "independent", "fedavg"])
def test_time_to_accuracy_is_the_date_of_the_first_evaluation_that_reached_it(here: Here, sync: str) -> None:
    evaluations, summary = here("evaluate.every=100", *SLOW, f"sync={sync}", "target_accuracy=0.0")
    assert summary["time_to_accuracy"] == evaluations[0]["time"] > 24.0 - 1e-9


@pytest.mark.parametrize("away", [0, 1])
def test_a_client_that_no_round_takes_has_the_times_of_the_others(here: Here, away: int) -> None:
    """A round of the one other client: fetch there and back, and 3 x 1 s; the last delivery is there a message
    later.
    """
    seed = next(seed for seed in count() if all(away not in sampled(seed, number, 2, 1) for number in (0, 1)))
    clients = ("sync=fedavg", "hardware.workers=2", "sync.fraction=0.5", f"sync.seed={seed}", "target_accuracy=0.0")
    evaluations, summary = here("evaluate.every=100", *clients)
    assert evaluations[-1]["time"] == pytest.approx(2 * (3 + 2 * ALPHA) + ALPHA, abs=1e-9)
    assert summary["time_to_accuracy"] == evaluations[-1]["time"]
    assert summary["seconds"] >= evaluations[-1]["time"]


def test_a_mean_of_replicas_that_step_together_is_there_when_the_last_of_them_is(here: Here) -> None:
    """Ring of 5 without latency: worker 2 ends its steps at 4 and 8 s. Replica 0 waits in its second step for worker 1,
    which waited in the first for worker 2 until 4 s and sends at 5 s: so replica 0 ends at 5 s."""
    ring = ("sync=gossip", "hardware.workers=5", "hardware.network.latency=0.0", "steps=2", "stragglers.worker=2")
    evaluations, summary = here("evaluate.every=100", *SLOW, *ring)
    assert evaluations[0]["time"] == pytest.approx(8.0, abs=1e-9)
    assert summary["seconds"] == evaluations[0]["time"]


def test_replicas_that_agree_have_the_weights_when_replica_0_has_them_all(here: Here) -> None:
    """Two stages: a third of a second forward each, then two thirds backward each, of which the first stage's is the
    last."""
    pipeline = ("strategy=pipeline", "strategy.schedule=naive", "hardware.workers=2", "steps=1")
    evaluations, _ = here("evaluate.every=100", *pipeline, "hardware.network.latency=0.0")
    assert evaluations[0]["time"] == pytest.approx(2.0, abs=1e-9)


def test_a_moment_before_training_counts_as_its_beginning() -> None:
    class Clock:
        timeline = Timeline(10)
        moment = 5.0

        def mark(self) -> float:
            return self.moment

        def times(self, *marks: float) -> tuple[float, ...]:
            return marks

    clock: Any = Clock()
    meter = Meter(clock, 0, True, elapsed=100.0)
    with meter.step(1):
        clock.moment = 7.0
    assert (meter.seconds, meter.ended) == (102.0, 7.0)
    clock.moment = 9.0
    with meter.step(1):
        clock.moment = 10.0
    assert meter.seconds == 105.0  # the pause counts
    assert [meter.at(moment) for moment in (-math.inf, 4.0, 6.0, 12.0)] == [100.0, 100.0, 101.0, 107.0]


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize("sync", ["independent", "asp"])
def test_on_processes_too_the_last_evaluation_waits_for_the_slow_worker(train: Train, sync: str) -> None:
    """Worker 1 is a hundred times as slow: replica 0 is through long before."""
    slow = ("stragglers=one_slow", "stragglers.worker=1", "stragglers.factor=100.0")
    result = train(f"sync={sync}", "hardware.workers=2", "steps=20", *slow)
    records = RunDirectory(result.path).records()
    last = [record for record in records if record["kind"] == "evaluation"][-1]
    own = [record for record in records if record["kind"] == "step"][-1]
    assert last["step"] == own["step"] == 20
    assert last["time"] > 2 * own["time"]
    assert result.summary["seconds"] >= last["time"] > 0.9 * result.summary["seconds"]


def test_the_samples_of_a_dropped_gradient_are_no_throughput(here: Here) -> None:
    """Of 3 workers 2 make a version in 1.25 s, of 16 samples each; all that worker 1 computes comes too late."""
    backups = ("sync=backup_workers", "hardware.workers=3", "data.limit=144")
    _, summary = here("evaluate.every=100", *SLOW, *backups, "measure.after=0")
    assert summary["dropped"] == 2
    slowest = 2 * (4 + 2 * ALPHA)  # worker 1's two steps
    assert summary["throughput"] == pytest.approx(2 * STEPS * 16 / slowest)


def test_what_is_left_to_push_at_a_workers_end_goes_out_at_once_the_chiefs_too(here: Here) -> None:
    """Worker 0 pushes its last gradients at 6 s, when nobody else has pushed; worker 1's pushes are at 16 and 24 s.

    A worker fetches before each step, so that none is stale; at the end of the run, worker 0's would be.
    """
    _, summary = here("evaluate.every=100", *SLOW, "sync=asp", "sync.push=4", "hardware.network.latency=0.0")
    assert summary["staleness"]["histogram"] == {"0": 4}


@pytest.mark.parametrize("sync", ["parameter_server", "backup_workers"])
def test_a_servers_sums_have_the_same_bits_whoever_comes_first(here: Here, sync: str) -> None:
    """Of five workers, with none slow, worker 0 slow, and worker 3."""
    knobs = ("sync.backups=0",) if sync == "backup_workers" else ()
    losses = set()
    for slow in ((), (*SLOW, "stragglers.worker=0"), (*SLOW, "stragglers.worker=3")):
        evaluations, _ = here("evaluate.every=100", *slow, f"sync={sync}", *knobs, "hardware.workers=5", "steps=2")
        losses.add(evaluations[-1]["loss"])
    assert len(losses) == 1


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize("sync", ["parameter_server", "backup_workers"])
def test_on_processes_too_a_servers_sums_have_the_same_bits_whichever_worker_is_slow(train: Train, sync: str) -> None:
    """Of three workers, 0 and then 2 is a hundred times as slow: it comes last, in turn or out of it."""
    knobs = ("sync.backups=0",) if sync == "backup_workers" else ()
    ends = set()
    for slowest in (0, 2):
        slow = ("stragglers=one_slow", f"stragglers.worker={slowest}", "stragglers.factor=100.0")
        ends.add(weights(train(f"sync={sync}", *knobs, "hardware.workers=3", *slow).path))
    assert len(ends) == 1
