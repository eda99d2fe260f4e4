"""Which device each process computes on: hosts count their own workers and their own GPUs."""

from pathlib import Path

import pytest
import torch
from needs import needs_gpu

from paceline import engine
from paceline.comm.connecting import _check_cards, check_software
from paceline.comm.errors import RendezvousError, SharedDeviceError
from paceline.conf.errors import ConfigError
from paceline.engine.config.compose import compose
from paceline.engine.fabrics import fabric_of
from paceline.engine.fabrics.kinds import ThisHost
from paceline.engine.fabrics.layout import RunLayout, share_of_cores
from paceline.engine.launch.torchrun import _check_devices
from paceline.strategies.core.mesh import Mesh

EXPERIMENT = compose(["tracking=none"])
CUDA = compose(["tracking=none", "hardware.device=cuda"])


def layout(workers: int, servers: int = 0) -> RunLayout:
    return RunLayout(Mesh({"replica": workers}), servers=servers, loss_part=0)


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


def started(monkeypatch: pytest.MonkeyPatch, rank: int, size: int, local: int | None) -> None:
    told = {"RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "a", "MASTER_PORT": 1}
    if local is not None:
        told |= {"LOCAL_RANK": rank % local, "LOCAL_WORLD_SIZE": local}
    for name, value in told.items():
        monkeypatch.setenv(name, str(value))


def test_each_host_gives_its_own_workers_its_own_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 8)
    for rank in (0, 7, 8, 15):
        started(monkeypatch, rank, 16, 8)
        for experiment in (EXPERIMENT, CUDA):
            assert fabric_of(experiment).device_of(experiment, layout(16), rank) == torch.device("cuda", rank % 8)


def test_two_hosts_of_eight_gpus_are_planned_as_sixteen(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 8)
    nodes = ("launcher=slurm", "launcher.nodes=2", "launcher.workers_per_node=8", "launcher.gres=gpu:8")
    plan = engine.prepare([*nodes, "hardware.device=cuda", "tracking=none"]).plan()
    assert (plan.layout.workers, plan.device) == (16, torch.device("cuda"))


def test_servers_need_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 8)
    devices = [str(ThisHost().device_of(CUDA, layout(8, servers=2), rank)) for rank in range(10)]
    assert devices == [*(f"cuda:{i}" for i in range(8)), "cpu", "cpu"]
    started(monkeypatch, 9, 10, 5)  # the second host has three workers, then two servers
    gpus(monkeypatch, 3)
    fabric = fabric_of(CUDA)
    assert (fabric.workers_here(layout(8, servers=2)), fabric.processes_here(layout(8, servers=2))) == (3, 5)
    assert fabric.device_of(CUDA, layout(8, servers=2), 9) == torch.device("cpu")


def test_a_host_of_servers_alone_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 0)
    started(monkeypatch, 5, 6, 2)
    for experiment in (CUDA, EXPERIMENT):
        assert fabric_of(experiment).device_of(experiment, layout(4, servers=2), 5) == torch.device("cpu")
    assert fabric_of(EXPERIMENT).device(EXPERIMENT, layout(4, servers=2)).type == "cpu"


def test_too_few_gpus_are_refused_and_auto_says_that_they_stay_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 4)
    started(monkeypatch, 8, 16, 8)
    with pytest.raises(ConfigError, match="This host has 8 workers, which need a GPU each, and it has 4"):
        fabric_of(CUDA).device(CUDA, layout(16))
    fabric = fabric_of(EXPERIMENT)
    device = fabric.device(EXPERIMENT, layout(16))
    [note] = fabric.device_notes(EXPERIMENT, layout(16), device)
    assert "hardware.device=auto: computes on the CPU. This host has 8 workers" in note and "it has 4" in note
    gpus(monkeypatch, 0)
    assert not fabric.device_notes(EXPERIMENT, layout(16), device)


def test_a_host_without_gpus_is_told_apart_from_one_with_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 0)
    for built, why in ((True, ""), (False, ", as it is built for CPUs")):
        monkeypatch.setattr(torch.backends.cuda, "is_built", lambda built=built: built)
        with pytest.raises(ConfigError, match=f"^hardware.device=cuda: torch finds no GPU on this host{why}. Choose"):
            ThisHost().device(CUDA, layout(2))


def test_a_launcher_that_gives_each_process_its_own_gpu_is_believed_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 1)
    started(monkeypatch, 9, 16, 8)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert fabric_of(CUDA).device_of(CUDA, layout(16), 9) == torch.device("cuda", 0)
    assert (
        "only this process sees" in fabric_of(EXPERIMENT).device_notes(EXPERIMENT, layout(16), torch.device("cpu"))[0]
    )
    words = [{"card": card} for card in ("a", "", "b", "")]
    _check_cards(words)
    with pytest.raises(SharedDeviceError, match="workers 0 and 4 have the same GPU"):
        _check_cards([*words, {"card": "a"}])


def test_without_local_ranks_all_workers_count(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 8)
    started(monkeypatch, 9, 16, None)
    with pytest.raises(ConfigError, match="LOCAL_WORLD_SIZE is not set"):
        fabric_of(CUDA).device(CUDA, layout(16))


def test_hosts_that_differ_are_refused() -> None:
    _check_devices(["cuda", "cuda"])
    with pytest.raises(ConfigError, match="worker 2 computes on a CPU and worker 0 on a GPU"):
        _check_devices(["cuda", "cuda", "cpu"])


def test_cores_are_shared_by_the_processes_of_one_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(16)))
    started(monkeypatch, 9, 16, 8)
    assert share_of_cores(fabric_of(EXPERIMENT).processes_here(layout(16))) == 2


@pytest.mark.gpu
@needs_gpu
@pytest.mark.slow
@pytest.mark.parametrize("sync", ["asp", "parameter_server", "easgd_async", "fedavg"])
def test_a_worker_on_a_gpu_trains_with_a_server_on_the_host(sync: str, tmp_path: Path) -> None:
    overrides = ["tracking=none", "hardware.device=cuda", "hardware.workers=1", f"sync={sync}", "epochs=3"]
    result = engine.run(overrides, root=tmp_path, quiet=True)
    assert result is not None and result.summary["accuracy"] > 0.8
    assert result.summary["wire"]["bytes_per_step"] == pytest.approx(result.summary["predicted"]["bytes_per_step"])


def test_workers_with_unlike_versions_are_refused_by_the_names_of_their_nodes() -> None:
    alike = {"node": "a", "versions": {"paceline": "0.1.0", "torch": "2.13.0", "Python": "3.11"}}
    check_software([alike, {**alike, "node": "b"}])
    with pytest.raises(RendezvousError, match=r"worker 1 on b has torch 2\.12\.0, and worker 0 on a has 2\.13\.0"):
        check_software([alike, {"node": "b", "versions": {**alike["versions"], "torch": "2.12.0"}}])
