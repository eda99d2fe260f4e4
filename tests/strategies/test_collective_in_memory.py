"""Sums through memory of one host, on processes and on the virtual cluster: the sum, its bytes and its time."""

from pathlib import Path

import pytest
import torch

from paceline.comm import Comm
from paceline.comm.network import Network, NetworkLink
from paceline.comm.virtual import SimulatedCluster
from paceline.engine import prepare, run
from paceline.exchange.collectives import SharedMemory
from paceline.exchange.collectives.base import seconds
from paceline.strategies.core.cost import World

pytestmark = pytest.mark.dist
ALPHA, BANDWIDTH = 1e-5, 1e9
TINY = ("tracking=none", "model.hidden=[16]", "batch_size=8", "checkpoint.every=0", "data.limit=96", "steps=12")
SAID = ("collective=shared_memory", "hardware.workers=3")
ONE_HOST = ("hardware=virtual", "hardware.workers_per_host=3")


def network_of(size: int) -> Network:
    """One host: nobody's messages leave it."""
    return Network(between=NetworkLink(1.0, 1.0), inside=NetworkLink(ALPHA, BANDWIDTH), workers_per_host=size)


def add_up(comm: Comm) -> dict:
    tensors = [
        torch.full((1002,), 0.1 * (comm.rank + 1), dtype=dtype)
        for dtype in (torch.float32, torch.float64, torch.bfloat16)
    ]
    works = [SharedMemory().all_reduce(tensor, comm) for tensor in tensors]
    for work in works:
        work.wait()
    sent = float(sum(comm.ledger.snapshot().values()))
    return {"sums": tensors, "kinds": list(comm.ledger.snapshot()), "sent": sent, "clock": comm.now()}


def check(results: list[dict], size: int) -> None:
    for result in results:
        for total, first in zip(result["sums"], results[0]["sums"], strict=True):
            exact = 0.1 * size * (size + 1) / 2
            assert torch.equal(total, first)
            assert torch.allclose(total.double(), torch.tensor(exact, dtype=torch.float64), rtol=2**-7 * size)
    nbytes = 1002 * (4 + 8 + 2)
    stated = SharedMemory().traffic(nbytes, World(size, hosts=(0,) * size))
    assert all(result["kinds"] == list(stated) for result in results)
    assert [result["sent"] for result in results] == [pytest.approx(sum(stated.values()))] * size


@pytest.mark.parametrize("size", [2, 3, 6])
def test_on_the_virtual_cluster_all_get_the_sum_at_the_stated_bytes(size):
    check(SimulatedCluster(size, network_of(size)).run(add_up), size)


def test_on_processes_all_get_the_sum_at_the_stated_bytes(workers):
    check(workers(3, add_up), 3)


@pytest.mark.parametrize("size", [2, 3, 5, 8, 13, 64])
def test_the_virtual_clock_takes_what_the_formula_says(size):
    def once(comm: Comm) -> float:
        SharedMemory().all_reduce(torch.zeros(2520), comm).wait()
        return comm.now()

    expected = 2 * (ALPHA + (size - 1) / size * 4 * 2520 / BANDWIDTH)
    for taken in SimulatedCluster(size, network_of(size)).run(once):
        assert taken == pytest.approx(expected)
    world = World(size, hosts=(0,) * size)
    assert seconds(SharedMemory().phases(4 * 2520, world), network_of(size)) == pytest.approx(expected)


@pytest.fixture
def here(fork_server: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "how", [ONE_HOST, pytest.param(("hardware.threads=1",), marks=pytest.mark.slow)], ids=["virtual", "processes"]
)
def test_a_run_sends_what_its_plan_states(here, how):
    result = run([*TINY, *SAID, *how], quiet=True)
    assert result is not None
    wire = result.summary["wire"]
    assert wire["bytes_per_step"] == pytest.approx(result.summary["predicted"]["bytes_per_step"])
    assert list(wire["by_primitive"]) == ["shared_memory"]


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (
            ("hardware=virtual",),
            "collective=shared_memory: shares memory, and the 3 workers .* are on 3 hosts; must be",
        ),
        ((*ONE_HOST, "hardware.workers=4"), "are on 2 hosts"),
        (
            ("hardware=l4", "hardware.hosts=3"),
            "shares memory, and the 3 workers that make this sum are on 3 hosts; must",
        ),
        (("hardware=l4_8",), "collective: sums in a host's memory, and the workers compute on GPUs. Choose"),
        (("sync=asp",), "collective=shared_memory: sync=asp takes no collective"),
        (("compress=topk",), "cannot be added up on their way"),
    ],
)
def test_several_hosts_are_refused_by_name(here, overrides, says):
    with pytest.raises(ValueError, match=says) as refused:
        prepare([*TINY, *SAID, *overrides]).plan()
    assert getattr(refused.value, "exit_code", None) == 2


@pytest.mark.parametrize(
    ("each", "says"),
    [("1", "the 3 workers that make this sum are on 3 hosts"), ("", "it is not known on which hosts the workers will")],
)
def test_hosts_of_torchrun_are_refused_by_name(here, monkeypatch, each, says):
    told = {"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "localhost", "MASTER_PORT": "1", "LOCAL_WORLD_SIZE": each}
    for name, value in told.items():
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match=f"collective=shared_memory: shares memory, and {says}"):
        prepare([*TINY, *SAID]).plan()
