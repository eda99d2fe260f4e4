"""The choices of `failures`: clocks that are counted by hand, the same again for the same seed, refusals."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from paceline.comm import HangError
from paceline.comm.virtual import SimulatedCluster
from paceline.conf.errors import ConfigError
from paceline.engine.api.preparing import prepare
from paceline.engine.launch.virtual import cluster_of
from paceline.engine.launch.virtual import run as run_virtual
from paceline.engine.planning.build import assemble
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
