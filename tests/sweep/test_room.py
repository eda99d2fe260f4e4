"""Trials side by side: what each may take of the machine."""

import os
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paceline.conf.groups import BY_NAME
from paceline.engine.api.preparing import prepare
from paceline.sweep.room import Room, visible_devices, wants
from paceline.tracking.run_directory import RunDirectory

WAIT = 20.0  # seconds


def plan(device: str, workers: int, servers: int = 0, fabric: str = "process") -> Any:
    layout = SimpleNamespace(workers=workers, world_size=workers + servers)
    launcher = SimpleNamespace(target=BY_NAME["launcher"].base, knobs={})
    experiment = SimpleNamespace(hardware=SimpleNamespace(fabric=fabric), choice=lambda group: launcher)
    return SimpleNamespace(device=torch.device(device), layout=layout, threads=2, experiment=experiment)


def test_a_run_wants_a_gpu_for_each_worker_and_cores_only_without_gpus() -> None:
    assert wants(plan("cuda", 4, servers=1)) == (0, 4)
    assert wants(plan("cpu", 4, servers=1)) == (10, 0)
    assert wants(plan("cpu", 64, fabric="virtual")) == (1, 0)


def test_trials_have_gpus_of_their_own_and_as_many_run_as_fit() -> None:
    room = Room(2, ["0", "1", "2", "3"])
    entered = threading.Event()
    got: list[tuple[str, ...]] = []

    def third() -> None:
        with room.taken(0, 2) as devices:
            got.append(devices)
            entered.set()

    with room.taken(0, 1) as one:
        with room.taken(0, 2) as two:
            assert {*one, *two} == {"0", "1", "2"}
            waits = threading.Thread(target=third)
            waits.start()
            assert not entered.is_set()
            with room.taken(2) as none:
                assert none == (), "cores are not GPUs"
        assert entered.wait(WAIT)
        waits.join()
        assert not set(got[0]) & {*one}
    with room.taken(0, 9) as all_of_them:
        assert all_of_them == ("0", "1", "2", "3")


@pytest.mark.parametrize(
    ("outer", "count", "names"),
    [
        (None, 2, ["0", "1"]),
        ("5,2", 2, ["5", "2"]),
        ("GPU-a, GPU-b", 2, ["GPU-a", "GPU-b"]),
        ("", 0, []),
        ("7,-1,3", 1, ["7"]),
    ],
)
def test_gpus_are_those_that_this_process_sees(
    outer: str | None, count: int, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if outer is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", outer)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    assert visible_devices() == names


def test_the_workers_of_a_trial_see_its_gpus_alone(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = replace(prepare(["tracking=none"]), devices="2,3")
    directory = RunDirectory.create(tmp_path, "trial")
    from paceline.engine.launch import worker_process  # after the launchers, which import it

    told = worker_process.told_of(prepared.assignment(directory, prepared.plan()), 2, None)  # pyright: ignore
    assert told["devices"] == "2,3"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    monkeypatch.setattr(worker_process, "tie_to_launcher", lambda: None)

    def log_to(file: Any) -> None:
        raise OSError("far enough")

    def leave(channel: Any, ended: Any) -> None:
        raise SystemExit

    monkeypatch.setattr(worker_process, "log_to", log_to)
    monkeypatch.setattr(worker_process, "_leave", leave)
    with pytest.raises(SystemExit):
        worker_process.worker_main(None, 0, told, None)  # pyright: ignore
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "2,3"
