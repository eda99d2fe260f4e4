"""The memory of a virtual cluster's process is estimated, and one that does not fit is refused before it starts."""

from functools import cache

import pytest

from paceline import engine
from paceline.conf.errors import ConfigError
from paceline.engine.planning import process_memory
from paceline.engine.planning.planned import Plan
from paceline.engine.planning.process_memory import GIB, MIB, check_process, said_of_process


@cache
def planned(*overrides: str) -> Plan:
    return engine.plan(["tracking=none", "batch_size=1", *overrides])


def virtual(sync: str, workers: int, hidden: str = "[128]") -> Plan:
    knobs = f"data=fashion_mnist model.hidden={hidden} sync={sync} hardware.workers={workers}"
    return planned("hardware=virtual", *knobs.split())


@pytest.mark.parametrize(
    ("sync", "workers", "hidden", "measured"),
    [
        ("bsp", 1024, "[]", 773),
        ("bsp", 3072, "[]", 1298),
        ("gossip", 1024, "[]", 1005),
        ("local_sgd", 512, "[128]", 1831),
        ("fedavg", 512, "[128]", 2264),
        ("gossip", 1024, "[128]", 4540),
    ],
)
def test_the_estimate_is_near_the_measured_peak(sync: str, workers: int, hidden: str, measured: int) -> None:
    estimated = process_memory.process_memory(virtual(sync, workers, hidden))
    assert estimated is not None
    assert 1 < estimated / MIB / measured < 1.15


def test_a_virtual_cluster_that_does_not_fit_is_refused_with_both_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = virtual("bsp", 1536)
    monkeypatch.setattr(process_memory, "available", lambda: 2 * GIB)
    with pytest.raises(ConfigError, match=r"hardware\.workers=1536: .* to take \d\.\d GiB, and .* has 2\.0 GiB free"):
        check_process(plan)
    monkeypatch.setattr(process_memory, "available", lambda: 20 * GIB)
    check_process(plan)
    assert "20.0 GiB free" in said_of_process(plan)


@pytest.mark.parametrize("word", ["hardware=h100", "hardware=laptop", "launcher=slurm", "hardware=virtual"])
def test_another_machine_is_not_held_to_the_memory_of_this_one(monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    monkeypatch.setattr(process_memory, "available", lambda: 0)
    assert process_memory.lack_here(planned()) and not process_memory.lack_here(planned(word))


def test_so_many_processes_are_planned_and_not_started() -> None:
    plan = planned("hardware.workers=5000", "data=fashion_mnist")
    assert process_memory.process_memory(plan) is None
    with pytest.raises(ConfigError, match=r"hardware\.workers=5000: makes 5,000 processes on this host"):
        check_process(plan)


def test_more_replicas_than_samples_are_told_of_larger_data() -> None:
    with pytest.raises(ConfigError, match=r"hardware\.workers=10000: .*at most hardware\.workers=1437.*fashion_mnist"):
        planned("hardware=virtual", "hardware.workers=10000")
