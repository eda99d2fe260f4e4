"""The choices of `failures`: clocks that are counted by hand, the same again for the same seed, refusals."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import count, islice
from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from paceline.comm import HangError
from paceline.comm.network import ModelledNetwork, Network, NetworkLink
from paceline.comm.virtual import SimulatedCluster
from paceline.conf.errors import ConfigError
from paceline.engine.api.preparing import prepare
from paceline.engine.fabrics.interruptions import Absence, Agreement, CheckpointTimes, Moments, Rollbacks
from paceline.engine.fabrics.worker_failures import PoissonFailures, Preemption, Rack, WorkerFailures
from paceline.engine.launch.virtual import cluster_of
from paceline.engine.launch.virtual import run as run_virtual
from paceline.engine.planning.build import assemble
from paceline.strategies.sync.easgd_async import AsyncEASGD
from paceline.sweep.define import define
from paceline.tracking.run_directory import RunDirectory

SMALL = ("tracking=none", "data.limit=96", "batch_size=8", "model.hidden=[8]", "steps=4", "evaluate.every=1")
SMALL += ("checkpoint.every=0", "epochs=10", "hardware=virtual", "hardware.workers=3")
# a step's passes take a second, and what is sent takes no time
SECOND = ("hardware.flops=1e18", "hardware.overhead=1.0", "hardware.network.latency=0.0")
SECOND += ("hardware.network.bandwidth=1e18", "hardware.memory_bandwidth=1e18")


def ran(folder: Path, *overrides: str) -> tuple[SimulatedCluster, RunDirectory]:
    """Trains in this process; returns the cluster as it is then, and the run's directory."""
    folder.mkdir(exist_ok=True)
    prepared = prepare([*SMALL, *overrides])
    directory = RunDirectory.create(folder, "run")
    hardware: Any = prepared.experiment.hardware
    threads = torch.get_num_threads()
    parts = assemble(prepared.experiment, (), None)
    cluster = cluster_of(parts, hardware)
    try:
        run_virtual(prepared.assignment(directory, prepared.plan()), parts, cluster)
    finally:
        torch.set_num_threads(threads)
    return cluster, directory


def weights(directory: RunDirectory) -> dict[str, Tensor]:
    return load_file(directory.path / "model.safetensors")


def identical(one: RunDirectory, other: RunDirectory) -> bool:
    """Returns whether two runs trained the same weights, bit for bit."""
    first, second = weights(one), weights(other)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def clocks(cluster: SimulatedCluster) -> list[float]:
    return [round(worker.clock, 6) for worker in cluster.workers]


def refusal(*overrides: str) -> str:
    """Why a run is refused before it starts."""
    with pytest.raises(ConfigError) as caught:
        prepare([*SMALL, *overrides]).plan()
    assert caught.value.exit_code == 2
    return str(caught.value)


# -- links


def test_a_partition_delays_a_synchronous_run_by_what_is_left_of_it(tmp_path: Path) -> None:
    """Four steps of a second. The sum of the second one waits from second 2 to 10; three steps follow, two of them
    whole.
    """
    usual, its = ran(tmp_path / "usual", *SECOND)
    cut, of_cut = ran(tmp_path / "cut", *SECOND, "failures=partition", "failures.at=1.5", "failures.lasts=8.5")
    assert clocks(usual) == [4.0] * 3
    assert clocks(cut) == [12.0] * 3
    assert identical(its, of_cut)


def test_a_partition_of_an_asynchronous_run_delays_those_who_are_cut_off(tmp_path: Path) -> None:
    cluster, _ = ran(tmp_path, *SECOND, "sync=asp", "failures=partition", "failures.lasts=10.5")
    assert clocks(cluster)[:3] == [4.0, 14.5, 4.0], "its first fetch waits"


def test_a_partition_without_end_is_named_where_all_wait(tmp_path: Path) -> None:
    with pytest.raises(HangError, match="failures=partition cuts off worker 1 from second 2 on, with no end"):
        ran(tmp_path, "failures=partition", "failures.at=2.0", "failures.lasts=null", *SECOND)


@pytest.mark.parametrize(
    ("chosen", "seconds"),
    [
        ("failures=slow_link failures.share=0.25 failures.lasts=10", 5.0 + 5.0 + 2.0 + 2.0),
        # down from 1.5 to 2.5 and from 6.5 to 7.5, while the first and the third step send
        ("failures=flapping failures.at=1.5 failures.up=4 failures.down=1", 3.0 + 2.0 + 3.0 + 2.0),
    ],
)
def test_links_that_are_slow_or_flap_take_as_long_as_by_hand(tmp_path: Path, chosen: str, seconds: float) -> None:
    """A step's passes take a second, and so does its sum: 4/3 S among three workers."""
    size = 4 * (64 * 8 + 8 + 8 * 10 + 10)
    network = (*SECOND, f"hardware.network.bandwidth={size * 4 / 3}", "sync.bucket_mb=1000")
    cluster, _ = ran(tmp_path, *network, *chosen.split())
    assert clocks(cluster)[0] == pytest.approx(seconds, rel=1e-6)


@pytest.mark.parametrize(
    ("chosen", "says"),
    [
        ("failures=partition failures.numbers=[3]", "failures.numbers=[3]: there is no worker 3. Choose of 0 to 2."),
        ("failures=partition failures.numbers=[0,1,2]", "failures.numbers=[0, 1, 2]: names every worker"),
        ("failures=flapping failures.place=rack failures.numbers=[0]", "failures.place=rack: all hosts are in one"),
        ("failures=partition failures.numbers=[]", "failures.numbers=[]: must have one entry at least"),
        ("failures=partition failures.at=-1.0", "failures.at=-1.0: must be greater than or equal to 0"),
        ("failures=slow_link hardware=local", "failures=slow_link: needs a modelled clock and network. Choose"),
    ],
)
def test_failures_of_links_that_cannot_be_are_refused(chosen: str, says: str) -> None:
    overrides = chosen.split()
    if "hardware=local" in overrides:
        overrides = ["hardware.workers=2", *overrides]
    assert refusal(*overrides).startswith(says)


# -- workers, by hand


def moments(*failures: float) -> Moments:
    def drawn() -> Iterator[float]:
        yield from failures
        while True:
            yield inf

    return Moments(drawn())


TIMES = CheckpointTimes(between=100.0, write=1.0, restart=3.0, interval=3.0)


@pytest.mark.parametrize(
    ("failures", "goes_on_at", "told"),
    [
        # a step ends each second; the third one is followed by a checkpoint of a second
        ((), [1, 2, 4, 5, 6, 8], (0, 0.0, 0.0, 2.0)),
        # of the work since second 4, 1.5 s are lost; back at 8.5, where they are made again, and the step goes on
        ((5.5,), [1, 2, 4, 5, 10.5, 12.5], (1, 1.5, 3.0, 2.0)),
        ((5.5, 7.0), [1, 2, 4, 5, 12.0, 14.0], (1, 1.5, 4.5, 2.0)),  # the second comes while all are away
        ((5.5, 9.0), [1, 2, 4, 5, 14.0, 16.0], (2, 2.0, 6.0, 2.0)),  # while it is made again
        ((3.5,), [1, 2, 10.5, 11.5, 12.5, 14.5], (1, 3.5, 3.0, 2.0)),  # while the checkpoint is written
    ],
)
def test_all_go_back_to_the_last_checkpoint(
    failures: tuple[float, ...], goes_on_at: list[float], told: tuple[float, ...]
) -> None:
    rollbacks, clock, found = Rollbacks(Agreement(moments(*failures)), TIMES, 0.0), 0.0, list[float]()
    for step in range(6):
        clock = rollbacks.at_end_of(step, clock + 1.0)
        found.append(clock)
    assert found == goes_on_at
    assert tuple(rollbacks.lost.told().values()) == told


def test_all_are_interrupted_at_the_end_of_the_same_step() -> None:
    """The first is through step 1 before second 2.5, when somebody fails, which the second one notices in that step."""
    agreement = Agreement(moments(2.5))
    first, second = (Rollbacks(agreement, TIMES, 0.0) for _ in range(2))
    assert [first.at_end_of(0, 1.0), first.at_end_of(1, 2.0), second.at_end_of(0, 1.5)] == [1.0, 2.0, 1.5]
    assert second.at_end_of(1, 3.0) == 3.0, "the first is through this step already"
    # back at 5.5, what was made again, and a checkpoint
    assert first.at_end_of(2, 3.0) == 5.5 + 3.0 + 1.0
    assert second.at_end_of(2, 4.5) == 5.5 + 4.5 + 1.0


def test_a_worker_that_writes_its_checkpoint_later_than_a_failure_loses_no_work() -> None:
    """One worker writes a checkpoint at second 3, the other one at 6.5, and somebody fails at second 6."""
    agreement = Agreement(moments(6.0))
    first, second = (Rollbacks(agreement, TIMES, 0.0) for _ in range(2))
    assert [first.at_end_of(0, 3.0), first.at_end_of(1, 6.5)] == [4.0, 11.5]
    assert [second.at_end_of(0, 6.5), second.at_end_of(1, 8.0)] == [7.5, 11.0], "it is away from second 6 to 9"
    assert tuple(second.lost.told().values()) == (1, 0.0, 3.0, 1.0)


def test_rounding_delays_no_checkpoint() -> None:
    """From second 0.25 on, three steps of 0.1 s end at 0.5499999999999999."""
    rollbacks, clock = Rollbacks(Agreement(moments()), replace(TIMES, interval=0.3), 0.25), 0.25
    for step in range(3):
        clock = rollbacks.at_end_of(step, clock + 0.1)
    assert rollbacks.lost.checkpoints == 1.0


def test_a_step_that_failures_never_let_end_is_refused() -> None:
    every_second = Moments(float(second) for second in count(1))
    with pytest.raises(ConfigError, match="failures: step 0 was interrupted 10,000 times in a row"):
        Rollbacks(Agreement(every_second), replace(TIMES, restart=0.5), 0.0).at_end_of(0, 2.0)


@pytest.mark.parametrize(
    ("failures", "fails_at", "back", "told"),
    [
        ((2.5,), 2.5, 5.5, (1, 0.5, 3.0, 0.0)),
        ((2.5, 4.0), 2.5, 7.0, (1, 0.5, 4.5, 0.0)),  # again while it is away
        ((1.5,), 1.5, 5.0, (1, 0.0, 3.0, 0.0)),  # while it handed over its last step
    ],
)
def test_a_worker_that_fails_alone_is_away_for_the_restart(
    failures: tuple[float, ...], fails_at: float, back: float, told: tuple[float, ...]
) -> None:
    absence = Absence(moments(*failures), 3.0, 0.0)
    assert (absence.fails_at, absence.back(1.0)) == (fails_at, None)
    absence.is_over(2.0)
    assert absence.back(2.5) == back
    assert tuple(absence.lost.told().values()) == told
    assert absence.fails_at == inf


# -- whole runs: a checkpoint is 2,440 bytes of weights

OF_WORKERS = ("optimizer.momentum=0", "failures.storage=2440.0", "failures.restart=1.0", "measure.after=0")


def test_a_synchronous_run_goes_back_and_trains_the_same_weights(tmp_path: Path) -> None:
    """Steps of a second, checkpoints of one after every two. The wave at second 10 takes the second since 9."""
    waves = ("failures=preemption", "failures.every=10.0", "failures.interval=2.0", *OF_WORKERS)
    usual, its = ran(tmp_path / "usual", *SECOND, "optimizer.momentum=0", "steps=8")
    failing, of_failing = ran(tmp_path / "failing", *SECOND, *waves, "steps=8")
    assert (clocks(usual), clocks(failing)) == ([8.0] * 3, [15.0] * 3)
    assert identical(its, of_failing)
    told = of_failing.read_summary()
    assert told is not None
    keys = ("worker_failures", "lost_work_s", "downtime_s", "checkpoint_s")
    assert [told[key] for key in keys] == pytest.approx([1, 3 * 1.0, 3 * 2.0, 3 * 4.0])
    assert told["goodput"] == pytest.approx(8 / 15)
    assert told["seconds"] == pytest.approx(15.0)
    assert told["throughput"] == pytest.approx(8 * 3 * 8 / 15.0), "the pauses count"
    assert "goodput" not in (its.read_summary() or {})


@pytest.mark.parametrize("restart", [1.0, 0.25])
def test_of_an_asynchronous_run_one_worker_loses_a_step(tmp_path: Path, restart: float) -> None:
    """At second 3.5 one of three is in its fourth step. Once it is back, maybe before second 4, it makes the fifth."""
    waves = ("failures=preemption", "failures.every=3.5", "failures.share=0.3", *OF_WORKERS)
    cluster, directory = ran(tmp_path, *SECOND, *waves, "sync=asp", "steps=5", f"failures.restart={restart}")
    assert max(clocks(cluster)) == max(5.0, 4.5 + restart)
    told = directory.read_summary()
    assert told is not None
    assert sum(told["staleness"]["histogram"].values()) == 14, "a push each, but for the step that is lost"
    assert (told["worker_failures"], told["lost_work_s"], told["downtime_s"]) == pytest.approx((1, 0.5, restart))
    assert told["goodput"] == pytest.approx(14 / (14.5 + restart))


@pytest.mark.budget(0.5)
@pytest.mark.parametrize("sync", ["ssp", "backup_workers", "easgd_async", "fedbuff", "hogwild", "gossip_async"])
def test_asynchronous_modes_take_a_worker_back(tmp_path: Path, sync: str) -> None:
    waves = ("failures=preemption", "failures.every=2.5", "failures.share=0.3", *OF_WORKERS)
    found = [ran(tmp_path / again, *SECOND, *waves, f"sync={sync}", "steps=6") for again in ("once", "again")]
    assert found[0][0].digest() == found[1][0].digest() and identical(found[0][1], found[1][1])
    assert (found[0][1].read_summary() or {})["worker_failures"] >= 2


def test_a_replica_of_easgd_comes_back_at_the_centre(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, rejoin = list[bool](), AsyncEASGD.rejoin

    def is_at_centre(sync: AsyncEASGD) -> bool:
        return all(torch.equal(sync.parameters[name], centre) for name, centre in sync.consensus().items())

    def watched(sync: AsyncEASGD) -> None:
        found.append(is_at_centre(sync))
        rejoin(sync)
        found.append(is_at_centre(sync))

    monkeypatch.setattr(AsyncEASGD, "rejoin", watched)
    waves = ("failures=preemption", "failures.every=3.5", "failures.share=0.3", *OF_WORKERS)
    ran(tmp_path, *SECOND, *waves, "sync=easgd_async", "sync.period=2", "steps=5")
    assert found == [False, True]


def test_a_pipeline_goes_back_as_a_whole(tmp_path: Path) -> None:
    """Its stages end a step at different moments. One of them fails at second 2.1086, before a checkpoint is due, and
    the next failure is at second 7.9.
    """
    split = ("strategy=pipeline", "hardware.workers=4", "model.hidden=[16,16]", *SECOND, "hardware.overhead=0.1")
    split += ("optimizer.momentum=0", "seed=4", "steps=5")
    poisson = ("failures=poisson", "failures.mtbf=10.0", "failures.interval=7.0", *OF_WORKERS, "failures.storage=1e18")
    usual, its = ran(tmp_path / "usual", *split)
    failing, of_failing = ran(tmp_path / "failing", *split, *poisson)
    assert identical(its, of_failing)
    told = of_failing.read_summary() or {}
    keys = ("worker_failures", "lost_work_s", "downtime_s", "checkpoint_s")
    assert [told[key] for key in keys] == pytest.approx([1, 4 * 2.1086, 4 * 1.0, 0.0], rel=1e-4)
    assert clocks(failing) == pytest.approx([clock + 2.1086 + 1.0 for clock in clocks(usual)], rel=1e-4)


def test_without_a_failure_nothing_changes(tmp_path: Path) -> None:
    rare = ("failures=poisson", "failures.mtbf=1e12")
    for sync in ("bsp", "asp"):
        usual, its = ran(tmp_path / sync, f"sync={sync}")
        failing, of_failing = ran(tmp_path / f"{sync}-failing", f"sync={sync}", *rare)
        assert (usual.digest(), clocks(usual)) == (failing.digest(), clocks(failing))
        assert identical(its, of_failing)


@pytest.mark.slow
@pytest.mark.parametrize("sync", ["bsp", "asp"])
def test_failures_are_the_same_under_another_hash_seed(tmp_path: Path, sync: str) -> None:
    chosen = [*SMALL, *SECOND, f"sync={sync}", "failures=poisson", "failures.mtbf=9.0", "failures.restart=0.5"]
    found: list[dict[str, Any]] = []
    for seed in ("1", "2"):
        folder = tmp_path / seed
        folder.mkdir()
        command = [sys.executable, "-m", "paceline.cli.main", "train", *chosen, "--name", "run"]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True, timeout=100)
        found.append(json.loads((folder / "runs" / "run" / "summary.json").read_text()))
    keys = ("event_digest", "model_sha256", "worker_failures", "lost_work_s", "seconds")
    assert [found[0][key] for key in keys] == [found[1][key] for key in keys]
    assert found[0]["worker_failures"] > 0


# -- when workers fail

EIGHT = ModelledNetwork(Network(NetworkLink(0, 1), NetworkLink(0, 1), workers_per_host=2, hosts_per_rack=2), 8)


STUDY = Path(__file__).parents[2] / "sweeps" / "studies" / "failures.yaml"
SMALLER = ("hardware.workers=16", "failures.mtbf=160", "steps=25", "tracking=none")  # somebody fails every 10 s


@pytest.mark.slow
def test_modes_that_go_on_keep_more_goodput_than_those_that_go_back(tmp_path: Path) -> None:
    """The study of docs/experiments at its shortest mean time between failures of the run, on 16 of its 256 workers."""
    definition, found = define([str(STUDY)]), {True: dict[str, float](), False: dict[str, float]()}
    for sync in dict.fromkeys(str(point["sync"]) for point in definition.points()):
        overrides = definition.overrides({"sync": sync, "failures.mtbf": 160}, None)
        _, directory = ran(tmp_path / sync, *overrides, *SMALLER)
        summary = json.loads((directory.path / "summary.json").read_text())
        assert summary["worker_failures"] > 1 and summary["modelled"]
        found[sync in ("bsp", "local_sgd", "gossip")][sync] = summary["goodput"]
    assert len(found[True]) == 3 and len(found[False]) == 5
    assert max(found[True].values()) < 0.7 < 0.9 < min(found[False].values()), found


def first(failures: WorkerFailures, worker: int, count: int = 200) -> list[float]:
    return list(islice(failures.moments(worker, EIGHT), count))


def test_failures_are_drawn_by_seed_and_worker() -> None:
    one, again, other = (PoissonFailures(seed, 5.0) for seed in (0, 0, 1))
    assert first(one, 3) == first(again, 3) != first(other, 3)
    assert first(one, 3) != first(one, 4)
    everyone = [moment for worker in range(8) for moment in first(one, worker)]
    assert sum(max(first(one, worker)) for worker in range(8)) / len(everyone) == pytest.approx(5.0, abs=5 * 5.0 / 40)
    assert (one.between(EIGHT), one.between_of_worker(EIGHT)) == (5.0 / 8, 5.0)
    assert list(islice(one.of_run(EIGHT), 20)) == sorted(everyone)[:20]


def test_each_wave_takes_its_share_of_the_workers() -> None:
    waves = Preemption(0, 10.0, 0.3)
    taken = [sum(10.0 * wave in first(waves, worker, 40) for worker in range(8)) for wave in range(1, 11)]
    assert taken == [3] * 10
    assert (waves.between(EIGHT), waves.between_of_worker(EIGHT), waves.at_once(EIGHT)[0]) == (10.0, 80.0 / 3, 3)


def test_the_workers_of_a_rack_or_host_fail_together() -> None:
    racks, hosts = Rack(0, 5.0), Rack(0, 5.0, place="host")
    assert first(racks, 0) == first(racks, 3) != first(racks, 4)
    assert first(hosts, 0) == first(hosts, 1) != first(hosts, 2)
    assert (racks.at_once(EIGHT)[0], hosts.at_once(EIGHT)[0]) == (4, 2)
    assert (racks.between(EIGHT), hosts.between(EIGHT)) == (2.5, 1.25)
    assert list(islice(racks.of_run(EIGHT), 4)) == sorted([*first(racks, 0), *first(racks, 7)])[:4]


@pytest.mark.parametrize(
    ("chosen", "says"),
    [
        ("failures=poisson failures.mtbf=1e13", "failures.mtbf=10000000000000.0: must be less than or equal to 1"),
        ("failures=poisson failures.restart=1e10", "failures.restart=10000000000.0: must be less than or equal to 1"),
        ("failures=preemption failures.every=1e10", "failures.every=10000000000.0: must be less than or equal to 1"),
        ("failures=flapping failures.up=1e308", "failures.up=1e+308: must be less than or equal to 1"),
        ("failures=slow_link failures.lasts=1e10", "failures.lasts=10000000000.0: must be less than or equal to 1"),
        ("stragglers=one_slow stragglers.factor=1e308", "stragglers.factor=1e+308: must be less than or equal to 1"),
        ("hardware.network.latency=1e308", "hardware.network.latency=1e+308: must be less than or equal to 1"),
        ("failures=poisson failures.mtbf=-1.0", "failures.mtbf=-1.0: must be greater than 0"),
        ("failures=poisson failures.restart=-1.0", "failures.restart=-1.0: must be greater than or equal to 0"),
        ("failures=poisson hardware.overhead=1.0 failures.mtbf=2.0", "failures: somebody fails every 0.6667 s on"),
        ("failures=poisson failures.mtbf=30.0", "failures: somebody fails every 10 s on average, which is too often"),
        ("failures=poisson sync=asp hardware.overhead=5.0 failures.mtbf=2.0", "failures: a worker fails every 2 s on"),
        ("failures=preemption failures.every=10.0 failures.restart=12.0", "failures: somebody fails every 10 s on"),
        ("failures=preemption failures.every=10.0 failures.restart=5.0 failures.interval=6.0", "failures: somebody"),
        (
            "failures=preemption failures.every=10.0 failures.restart=10.0 failures.share=1.0 sync=asp",
            "failures: a worker fails every 10 s on average, which is too often for steps of",
        ),
        ("failures=preemption failures.every=1e-9", "failures: somebody fails every 1e-09 s on average"),
        ("failures=poisson sync=fedavg", "failures=poisson: has workers fail and come back, and sync=fedavg goes on"),
        ("failures=preemption sync=backup_workers failures.share=0.5", "failures.share=0.5: takes 2 workers at once"),
        ("failures=rack sync=gossip_async", "failures.place=rack: takes 3 workers at once, and sync=gossip_async"),
        (
            "failures=poisson sync=ssp strategy=pipeline hardware.workers=4 model.hidden=[16,16]",
            "failures=poisson: has one worker lose",
        ),
        (
            "failures=preemption failures.every=8.0 failures.restart=0.1 failures.interval=1.0 strategy=hybrid "
            "hardware.workers=4 model.hidden=[16,16] hardware.overhead=10.0",
            "failures: somebody fails every 8 s on average, which is too often for steps of 10 s",
        ),
        (
            "failures=preemption failures.every=0.01 failures.restart=0.0 failures.interval=0.01 strategy=tensor "
            "hardware.workers=2 model.hidden=[16,16] hardware.overhead=0.0 hardware.flops=1e6",
            "failures: somebody fails every 0.01 s on average, which is too often for steps of",
        ),
    ],
)
def test_failures_of_workers_that_cannot_be_are_refused(chosen: str, says: str) -> None:
    assert refusal(*chosen.split()).startswith(says)
