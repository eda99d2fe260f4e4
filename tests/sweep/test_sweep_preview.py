"""What a dry run says of a point, against the run itself."""

from contextlib import nullcontext
from pathlib import Path

import pytest

from paceline import engine
from paceline.conf.errors import ConfigError
from paceline.sweep.define import define
from paceline.sweep.lacking import check_machine
from paceline.sweep.preview import plan_point

CLUSTER = ("hardware=virtual", "hardware.workers=4", "hardware.workers_per_host=1", "hardware/network=ethernet_1g")
SHORT = ("steps=12", "tracking=none", "evaluate.every=1000")


@pytest.mark.parametrize(
    ("how", "share"),
    [
        (("sync=bsp",), 0.5),
        (("sync=bsp", "hardware.workers_per_host=4"), 0.05),  # it may all stay within the host
        (("sync=bsp", "hardware.flops=1e6"), 0.9),  # where the passes are nearly all of it
        (("sync=bsp", "hardware.network.upload=1e7"), 0.6),  # sent at the slower of two bandwidths
        (("sync=ssp",), 0.9),  # where all is waiting for the server's link
        (("sync=local_sgd",), 0.3),
        (("sync=local_sgd", "hardware.network.bandwidth=1000000", "steps=7"), 0.8),  # its last period is not whole
        (("sync=easgd_async", "hardware.network.bandwidth=1000000", "steps=3"), 0.9),  # and sends nothing
        (("sync=backup_workers", "stragglers=exponential"), 0.3),
    ],
    ids=str,
)
def test_a_run_takes_at_least_the_virtual_time_said(how: tuple[str, ...], share: float, tmp_path: Path) -> None:
    words = [*CLUSTER, *SHORT, *how]
    told = plan_point(define([*words, "seed=0,1"]), {"seed": "0"})
    assert told.virtual_seconds is not None, told.why
    taken = engine.run([*words, "seed=0"], root=tmp_path, quiet=True).summary["seconds"]
    assert share * taken <= told.virtual_seconds <= taken


@pytest.mark.parametrize("how", [("hardware.workers=2",), (*CLUSTER, "hardware.compute=measured")], ids=" ".join)
def test_no_time_is_said_where_it_is_measured(how: tuple[str, ...]) -> None:
    told = plan_point(define([*how, *SHORT, "seed=0,1"]), {"seed": "0"})
    assert not told.why and told.virtual_seconds is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sync=bsp,asp", "batch_size=-3"], "batch_size=-3: must be"),
        (["batch_size=-3,-4"], "batch_size=-3: must be"),
        (["sync=bsp,asp", "strategy=pipeline", "hardware.workers=3"], "hardware.workers=3: strategy=pipeline"),
        (["batch_size=-3,32"], None),
        (["optimizer.lr=interval(-2,-1)"], None),  # nobody has looked at all of them
        (["optimizer.lr=interval(0.1,0.2)", "batch_size=-3"], "batch_size=-3: must be"),
        (["optimizer.lr=interval(0.1,0.2)", "optimizer.nosuch=1"], "optimizer.nosuch: there is no such key"),
        (["optimizer.lr=interval(0.1,0.2)", "sync=bsp,local_sgd", "sync.period=2"], None),
    ],
)
def test_a_sweep_of_which_no_point_can_run_is_refused_before_it_begins(words: list[str], said: str | None) -> None:
    with nullcontext() if said is None else pytest.raises(ConfigError, match=f"no point of the sweep can run: {said}"):
        check_machine(define(words, trials=2))
