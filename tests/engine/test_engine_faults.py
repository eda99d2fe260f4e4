"""Workers and launchers that are killed, frozen, broken or starved: how a run ends, and that nothing is left of it."""

import os
import re
import shlex
import shutil
import signal
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from choices import SYNCS, overrides_for
from needs import require
from process_table import is_alive, until, workers_of
from safetensors.torch import load_file
from short_runs import START, Launcher, Start, Train, weights

from paceline.comm import RendezvousError
from paceline.engine.base.checkpoint import read_manifest, steps_of
from paceline.engine.base.errors import CorruptCheckpointError, WorkerFailedError
from paceline.engine.launch.local_workers import ONE_PRESS
from paceline.tasks.errors import MissingDataError
from paceline.tracking.run_directory import RunDirectory

pytestmark = [pytest.mark.dist, pytest.mark.fault]

LONG = ("strategy=sabotage", "strategy.pause=0.01", "steps=100000")  # a run that only a fault ends
GONE = 2.0  # seconds after which nothing of a run may be alive
HANG_BOUND = 15.0  # seconds, with hardware.timeout=4


def steps_of_run(run: Path) -> int:
    return max((record["step"] for record in RunDirectory(run).records() if record["kind"] == "step"), default=0)


def fails(train: Callable[[], object], meanwhile: Callable[[], object]) -> WorkerFailedError:
    """How `train` fails while `meanwhile` runs in another thread."""
    with ThreadPoolExecutor(1) as pool:
        doing = pool.submit(meanwhile)
        with pytest.raises(WorkerFailedError) as caught:
            train()
        doing.result()
    return caught.value


def harm(run: Path, rank: int, number: signal.Signals) -> dict[int, int]:
    """Send worker `rank` a signal once it trains; returns all workers' pids."""
    until(lambda: run.exists() and steps_of_run(run) >= 3, START, "three steps")
    pids = workers_of(run)
    os.kill(pids[rank], number)
    return pids


# -- one worker


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_worker_is_named_and_takes_all_others_with_it(train: Train, root: Path, rank: int) -> None:
    pids: dict[int, int] = {}
    error = fails(
        lambda: train(*LONG, name="victim"),
        lambda: pids.update(harm(root / "victim", rank, signal.SIGKILL)),
    )
    assert error.exit_code == 4
    assert re.fullmatch(rf"worker {rank}, after step \d+, was killed by SIGKILL; nothing was saved yet", str(error)), (
        error
    )
    assert set(pids) == {0, 1} and not any(is_alive(pid) for pid in pids.values())


def test_a_worker_killed_under_ddp_is_the_cause_not_the_peer_that_lost_it(train: Train, root: Path) -> None:
    error = fails(
        lambda: train("strategy=torch_ddp", "steps=100000", name="victim"),
        lambda: harm(root / "victim", 1, signal.SIGKILL),
    )
    assert error.exit_code == 4
    assert str(error).startswith("worker 1, after step ") and "SIGKILL" in str(error)


def test_a_killed_server_is_named(train: Train, root: Path) -> None:
    error = fails(
        lambda: train(*LONG, "sync=asp", name="victim"),
        lambda: harm(root / "victim", 2, signal.SIGKILL),
    )
    assert error.exit_code == 4
    assert str(error).startswith("server 2, after step ") and "SIGKILL" in str(error)


@pytest.mark.parametrize("sync", [name for name, sync in SYNCS.items() if sync.traits.survives])
def test_the_others_go_on_when_a_worker_dies_and_say_so(
    train: Train, root: Path, sync: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with ThreadPoolExecutor(1) as pool:
        harmed = pool.submit(harm, root / "victim", 1, signal.SIGKILL)
        result = train(
            *("strategy=sabotage", "strategy.pause=0.02", f"sync={sync}", *overrides_for(sync)),
            *("hardware.workers=3", "steps=100"),
            name="victim",
        )
        pids = harmed.result()
    assert result.summary["status"] == "completed"
    assert result.summary["lost"] == [1]
    assert result.summary["accuracy"] is not None
    assert "worker 1 was killed by SIGKILL; training goes on without it" in capfd.readouterr().err
    assert not any(is_alive(pid) for pid in pids.values())


def test_the_expert_of_a_dead_worker_answers_no_more_and_begins_again_when_the_run_is_resumed(
    train: Train, root: Path
) -> None:
    routed = ("strategy=sabotage", "strategy.act=kill", "strategy.at=3", "sync=routed", "partition=clusters")
    result = train(*routed, "hardware.workers=3", "steps=8", "checkpoint.every_steps=8", name="victim")
    assert result.summary["lost"] == [1]
    state = load_file(result.weights)
    assert state["living"].tolist() == [True, False, True]
    assert all(not tensor.any() for name, tensor in state.items() if name.startswith("experts.1."))
    [kept] = steps_of(result.path / "checkpoints")
    assert len(read_manifest(kept).files) == 2
    again = load_file(train("steps=10", resume="victim").weights)  # before the saboteur acts again
    assert again["living"].all() and torch.equal(again["centres"], state["centres"])
    assert any(tensor.any() for name, tensor in again.items() if name.startswith("experts.1."))


@pytest.mark.parametrize("sync", [name for name, sync in SYNCS.items() if not sync.traits.survives])
def test_a_synchronous_run_ends_when_a_worker_dies(train: Train, root: Path, sync: str) -> None:
    error = fails(
        lambda: train(*LONG, f"sync={sync}", *overrides_for(sync), "hardware.workers=3", name="victim"),
        lambda: harm(root / "victim", 1, signal.SIGKILL),
    )
    assert error.exit_code == 4
    assert str(error).startswith("worker 1, after step ") and "SIGKILL" in str(error)


def test_replica_0_cannot_be_done_without(train: Train, root: Path) -> None:
    error = fails(
        lambda: train(*LONG, "sync=asp", name="victim"),
        lambda: harm(root / "victim", 0, signal.SIGKILL),
    )
    assert error.exit_code == 4
    assert str(error).startswith("worker 0, after step ") and "SIGKILL" in str(error)


@pytest.mark.parametrize(
    ("rank", "choices"),
    [
        (1, LONG),
        (0, LONG),
        (1, ("strategy=torch_ddp", "steps=100000")),
        pytest.param(1, ("strategy=pipeline", "steps=100000"), marks=pytest.mark.slow),
        pytest.param(3, ("strategy=pipeline", "hardware.workers=4", "steps=100000"), marks=pytest.mark.slow),
        pytest.param(2, (*LONG, "sync=asp"), marks=pytest.mark.slow),
        (1, (*LONG, "sync=hogwild")),
        pytest.param(1, (*LONG, "sync=independent"), marks=pytest.mark.slow),
        pytest.param(1, (*LONG, "sync=asp", "hardware.workers=3"), marks=pytest.mark.slow),
    ],
    ids=["worker", "chief", "ddp", "stage", "stage of one replica", "server", "hogwild", "independent", "asp"],
)
def test_a_frozen_worker_is_named_within_its_timeout_and_killed(
    train: Train, root: Path, rank: int, choices: tuple[str, ...]
) -> None:
    pids: dict[int, int] = {}
    frozen_at: list[float] = []

    def freeze() -> None:
        pids.update(harm(root / "victim", rank, signal.SIGSTOP))
        frozen_at.append(time.monotonic())

    error = fails(lambda: train(*choices, "hardware.timeout=4", name="victim"), freeze)
    assert time.monotonic() - frozen_at[0] < HANG_BOUND
    assert error.exit_code == 5
    assert re.search(rf"worker \d waited 4 s .*worker {rank} \(last [a-z ]+.*\)", str(error)), error
    assert not any(is_alive(pid) for pid in pids.values())


def test_a_worker_that_is_slower_than_the_timeout_is_waited_for_outside_collectives(train: Train) -> None:
    result = train("strategy=sabotage", "strategy.pause=0.4", "steps=3", "hardware.timeout=1")
    assert result.summary["status"] == "completed"


def test_a_worker_that_hangs_alive_is_named_with_what_it_does(train: Train) -> None:
    with pytest.raises(WorkerFailedError) as caught:
        train("strategy=sabotage", "strategy.act=sleep", "hardware.timeout=3")
    assert caught.value.exit_code == 5
    assert "alive but elsewhere: worker 1 (last computing)" in str(caught.value)


def test_a_refusal_of_one_worker_alone_says_whose_it_is(train: Train) -> None:
    with pytest.raises(WorkerFailedError) as caught:
        train("strategy=sabotage", "strategy.act=refuse")
    assert caught.value.exit_code == 2
    said = str(caught.value)
    assert said.startswith("data.root=/data: is not on this host, ") and said.endswith(" (worker 1)")


@pytest.mark.slow
def test_semaphores_of_a_workers_libraries_are_not_told_of_behind_the_last_line(start: Start) -> None:
    launcher = start("strategy=sabotage", "strategy.act=leave_a_lock", "strategy.at=-1")
    assert launcher.wait() == 0
    until(lambda: not launcher.alive(), GONE, f"all gone, but there is {launcher.alive()}")
    assert "leaked" not in launcher.said()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_workers_own_exception_is_the_cause_and_its_peers_errors_stay_in_their_logs(
    train: Train, root: Path, rank: int
) -> None:
    with pytest.raises(WorkerFailedError) as caught:
        train("strategy=sabotage", "strategy.act=raise", f"strategy.rank={rank}", name="victim")
    error = caught.value
    assert error.exit_code == 4
    assert f"worker {rank}" in str(error) and "SabotageError: the coffee machine is on fire" in str(error)
    assert "PeerLost" not in str(error)
    logs = root / "victim" / "logs"
    assert f"worker-{rank:03d}.log" in "".join(error.details)
    assert "SabotageError" in (logs / f"worker-{rank:03d}.log").read_text()
    assert "PeerLostError" in (logs / f"worker-{1 - rank:03d}.log").read_text()


@pytest.mark.parametrize(
    ("act", "words"),
    [
        ("exit", "worker 1, after step 3, left before the end: SystemExit: 0"),
        ("vanish", "worker 1, after step 3, left before the end, with status 0; its code, or a library, ended the"),
    ],
)
def test_user_code_that_leaves_is_a_failure_even_with_status_0(train: Train, act: str, words: str) -> None:
    with pytest.raises(WorkerFailedError) as caught:
        train("strategy=sabotage", f"strategy.act={act}")
    assert caught.value.exit_code == 4
    assert words in str(caught.value)


def test_divergence_ends_the_run_with_6_and_says_at_which_step(train: Train) -> None:
    with pytest.raises(WorkerFailedError) as caught:
        train("optimizer.lr=1e30")
    assert caught.value.exit_code == 6
    assert re.match(r"worker \d diverged at step \d: the loss is (nan|inf); a smaller optimizer.lr", str(caught.value))


def test_the_command_ends_with_one_human_sentence_that_names_the_worker(start: Start) -> None:
    launcher = start(*LONG, "checkpoint.every_steps=5")
    launcher.until(lambda: steps_of(launcher.run.checkpoints), "a checkpoint")
    os.kill(workers_of(launcher.run.path)[1], signal.SIGKILL)
    assert launcher.wait() == 4
    assert "Traceback" not in launcher.said()
    assert re.fullmatch(
        r"worker 1, after step \d+, was killed by SIGKILL; saved: step-\d{8}; "
        r"resume with: paceline train --resume victim( --allow-module saboteur)?",
        launcher.last_line(),
    )
    nothing_is_left(launcher)


# -- the launcher


def nothing_is_left(launcher: Launcher) -> None:
    until(lambda: not launcher.alive(), GONE, f"all gone, but there is {launcher.alive()}")


def test_a_killed_launcher_leaves_nothing_alive_and_the_resumed_run_has_the_same_bits(
    train: Train, start: Start
) -> None:
    """Its W&B helper, fork server and workers go with it."""
    steps = ("strategy=sabotage", "steps=400", "checkpoint.every_steps=10")  # 12 s and more: W&B is slow
    launcher = start(*steps, "strategy.pause=0.03", "tracking=wandb", "tracking.mode=offline")
    launcher.until(
        lambda: (
            any("wandb-core" in command or "gpu_stats" in command for command in launcher.alive().values())
            and steps_of(launcher.run.checkpoints)
        ),
        "W&B and a checkpoint",
    )
    assert len(workers_of(launcher.run.path)) == 2
    launcher.process.kill()
    nothing_is_left(launcher)
    assert launcher.steps() < 400

    resumed = train("tracking.wandb=false", resume="victim")
    whole = train(*steps, "checkpoint.every=0")
    assert weights(resumed.path) == weights(whole.path)


def test_statistics_of_all_replicas_are_those_of_the_run_that_was_not_killed(train: Train, start: Start) -> None:
    quick = ("tracking=none", "strategy=domain", "strategy.batch_norm=all", "model=resnet", "model.depth=8")
    quick += ("model.width=4", "data.limit=33", "batch_size=8", "steps=90", "evaluate.every=1000", "hardware.workers=4")
    launcher = start(quick=(*quick, "checkpoint.every_steps=5"))
    launcher.until(lambda: steps_of(launcher.run.checkpoints), "a checkpoint")
    os.kill(workers_of(launcher.run.path)[3], signal.SIGKILL)
    assert launcher.process.wait(START) == 4
    assert launcher.steps() < 90

    resumed, whole = train(resume="victim"), start(quick=(*quick, "checkpoint.every=0"), name="whole")
    assert whole.process.wait(START) == 0
    assert weights(resumed.path) == weights(whole.run.path)


def test_a_launcher_that_is_killed_while_its_fork_server_imports_torch_takes_it_along(start: Start) -> None:
    launcher = start(*LONG)
    launcher.until(lambda: any(map(_imports_torch, launcher.alive().items())), "a fork server that imports torch")
    launcher.process.kill()
    until(lambda: not launcher.alive(), 0.7, f"all gone, but there is {launcher.alive()}")


def _imports_torch(process: tuple[int, str]) -> bool:
    pid, command = process
    return "multiprocessing.forkserver" in command and "libtorch" in Path(f"/proc/{pid}/maps").read_text()


def test_a_killed_launcher_takes_a_frozen_worker_with_it(start: Start) -> None:
    launcher = start(*LONG)
    launcher.until(lambda: launcher.steps() >= 3, "three steps")
    os.kill(workers_of(launcher.run.path)[1], signal.SIGSTOP)
    launcher.process.kill()
    nothing_is_left(launcher)


@pytest.mark.parametrize(("killed", "status"), [(None, 0), (1, 4)], ids=["to its end", "a killed worker"])
def test_a_stopped_fork_server_does_not_keep_the_end_of_a_run_from_its_launcher(
    start: Start, killed: int | None, status: int
) -> None:
    launcher = start("strategy=sabotage", "strategy.pause=0.01", "steps=100")
    launcher.until(lambda: launcher.steps() >= 3, "three steps")
    servers = [pid for pid, command in launcher.alive().items() if "multiprocessing.forkserver" in command]
    os.kill(min(servers), signal.SIGSTOP)  # its workers have its command
    if killed is not None:
        os.kill(workers_of(launcher.run.path)[killed], signal.SIGKILL)
    assert launcher.wait() == status
    assert killed is None or re.match(rf"worker {killed}, after step \d+, was killed by SIGKILL", launcher.last_line())
    nothing_is_left(launcher)


@pytest.mark.parametrize(
    ("number", "to", "status"),
    [
        (signal.SIGINT, os.killpg, 130),
        pytest.param(signal.SIGTERM, os.killpg, 143, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, os.kill, 143, marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, os.killpg, 143, marks=pytest.mark.slow),
    ],
    ids=["ctrl-c", "sigterm to all", "sigterm to the launcher", "a closed terminal"],
)
def test_a_stopped_run_saves_and_goes_on_to_the_same_bits(
    train: Train, start: Start, number: signal.Signals, to: Callable[[int, int], None], status: int
) -> None:
    """A terminal's Ctrl-C and hang-up, and many a batch system's SIGTERM, reach the whole process group."""
    said = "SIGINT" if number == signal.SIGINT else "SIGTERM"
    launcher = start("strategy=sabotage", "strategy.pause=0.01", "steps=400")
    launcher.until(lambda: launcher.steps() >= 5, "five steps")
    to(launcher.process.pid, number)
    assert launcher.wait() == status
    assert re.fullmatch(
        rf"stopped by {said}; saved: step-\d{{8}}; "
        r"resume with: paceline train --resume victim --allow-module saboteur",
        launcher.last_line(),
    )
    nothing_is_left(launcher)
    summary = launcher.run.read_summary()
    assert summary is not None and summary["status"] == "interrupted" and summary["steps"] < 400

    assert weights(train(resume="victim").path) == weights(train("strategy=sabotage", "steps=400").path)


@pytest.mark.parametrize(
    "clients",
    [
        ("strategy=sabotage", "strategy.pause=0.01", "hardware.workers=3", "steps=300"),
        ("strategy=sabotage", "strategy.pause=0.01", "hardware.workers=4", "sync.fraction=0.25", "steps=300"),
        pytest.param(("strategy=pipeline", "hardware.workers=4", "steps=1000"), marks=pytest.mark.slow),
    ],
    ids=["all clients", "one of four", "of two stages each"],
)
def test_clients_end_with_the_same_round_on_ctrl_c_and_go_on_to_the_same_bits(
    train: Train, start: Start, clients: tuple[str, ...]
) -> None:
    federated = ("sync=fedavg", "sync.momentum=reset", *clients)
    launcher = start(*federated)
    launcher.until(lambda: launcher.steps() >= 20, "twenty steps")
    os.killpg(launcher.process.pid, signal.SIGINT)
    assert launcher.wait() == 130
    saved = re.match(r"stopped by SIGINT; saved: step-(\d{8}); resume with: ", launcher.last_line())
    nothing_is_left(launcher)
    summary = launcher.run.read_summary()
    assert summary is not None and summary["status"] == "interrupted"
    assert saved is not None and int(saved[1]) == summary["steps"] >= 20
    assert summary["epochs"] == round(summary["epochs"])  # a round is an epoch

    assert weights(train(resume="victim").path) == weights(train(*federated).path)


def test_a_run_that_stops_though_its_launcher_was_not_told_to_has_failed(start: Start) -> None:
    launcher = start("strategy=sabotage", "strategy.pause=0.01", "steps=400")
    launcher.until(lambda: launcher.steps() >= 5, "five steps")
    os.kill(workers_of(launcher.run.path)[1], signal.SIGTERM)
    assert launcher.wait() == 4
    assert re.match(
        r"the workers stopped before the last step .* not told to stop .*; saved: step-", launcher.last_line()
    )
    nothing_is_left(launcher)


@pytest.mark.parametrize("sync", ["asp", pytest.param("gossip_async", marks=pytest.mark.slow)])
def test_a_run_stopped_once_its_fastest_worker_has_made_all_steps_is_complete(start: Start, sync: str) -> None:
    """The slow one leaves its steps out, and nobody waits for the weights that it would have had."""
    launcher = start(f"sync={sync}", "stragglers=one_slow", "stragglers.factor=600", "steps=30", "hardware.timeout=10")
    launcher.until(lambda: launcher.steps() >= 30, "all steps of worker 0")
    launcher.process.terminate()
    assert launcher.wait() == 0
    nothing_is_left(launcher)
    summary = launcher.run.read_summary()
    assert summary is not None and summary["status"] == "completed" and summary["lost"] == []


def test_a_run_stopped_while_its_workers_start_ends_with_130_and_no_traceback(start: Start) -> None:
    launcher = start(*LONG)
    launcher.until(lambda: workers_of(launcher.run.path), "a worker")
    os.killpg(launcher.process.pid, signal.SIGINT)
    assert launcher.wait() == 130
    assert "Traceback" not in launcher.said()
    nothing_is_left(launcher)


def test_a_second_ctrl_c_leaves_at_once(start: Start) -> None:
    """Even when a worker hangs, so that nothing can be saved any more."""
    launcher = start("strategy=sabotage", "strategy.act=sleep", "steps=1000")
    launcher.until(lambda: launcher.steps() >= 3, "three steps")
    os.killpg(launcher.process.pid, signal.SIGINT)
    launcher.until(lambda: "once more to leave at once" in launcher.said(), "its answer")
    time.sleep(2 * ONE_PRESS)  # sooner it would be the same press
    os.killpg(launcher.process.pid, signal.SIGINT)
    assert launcher.wait(GONE) == 130
    assert launcher.last_line() == "killed; nothing was saved yet"
    nothing_is_left(launcher)


def test_two_signals_at_once_are_one_and_the_run_is_saved(start: Start) -> None:
    """GNU timeout signals its child and then the group."""
    launcher = start("steps=100000")
    launcher.until(lambda: launcher.steps() >= 3, "three steps")
    os.kill(launcher.process.pid, signal.SIGTERM)
    os.killpg(launcher.process.pid, signal.SIGTERM)
    assert launcher.wait() == 143
    assert "saved: step-" in launcher.last_line()


def test_a_run_that_failed_says_so_in_its_records_and_its_hint_names_the_modules_it_needs(
    train: Train, root: Path
) -> None:
    with pytest.raises(WorkerFailedError, match=r"--resume victim --allow-module saboteur"):
        train("strategy=sabotage", "strategy.act=raise", "strategy.at=4", "checkpoint.every_steps=2", name="victim")
    end = RunDirectory.open(root, "victim").records()[-1]
    assert end["kind"] == "end" and end["status"] == "failed" and "SabotageError" in end["reason"]


def test_a_run_directory_that_vanishes_ends_the_run(start: Start) -> None:
    launcher = start("steps=100000", "checkpoint.every_steps=20")
    launcher.until(lambda: launcher.steps() >= 3, "three steps")
    shutil.rmtree(launcher.run.path)
    assert launcher.wait() == 3


# -- the machine


def test_a_port_in_use_is_named(train: Train) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(RendezvousError, match=rf"hardware\.port={port}: cannot listen on 127\.0\.0\.1:{port}") as e:
            train(f"hardware.port={port}")
    assert e.value.exit_code == 3


def test_missing_data_are_refused_before_a_run_begins_with_the_ways_to_get_them(
    train: Train, root: Path, tmp_path: Path
) -> None:
    with pytest.raises(MissingDataError) as caught:
        train("data=fashion_mnist", f"data.root={tmp_path / 'nowhere'}")
    assert caught.value.exit_code == 3
    for way in ("nowhere", "apt-get install dataset-fashion-mnist", "data.root", "data.download=true"):
        assert way in str(caught.value)
    assert not root.exists()


def in_namespace(script: str) -> list[str]:
    """A command prefix: run `script` and then what follows in a mount namespace of its own."""
    require("namespaces")
    return ["unshare", "-rm", "sh", "-c", script, "sh"]


def test_a_full_disk_ends_the_run_with_3_and_the_earlier_checkpoint_goes_on(
    train: Train, start: Start, root: Path, tmp_path: Path
) -> None:
    root.mkdir()
    kept = tmp_path / "kept"
    runs = shlex.quote(str(root))
    script = f'mount -t tmpfs -o size=2m tmpfs {runs}; "$@"; code=$?; cp -r {runs} {shlex.quote(str(kept))}; exit $code'
    # 50 kB of weights and momentum, twice, in each checkpoint: the disk is full after some of them
    choices = ("model.hidden=[256]", "checkpoint.every_steps=2", "checkpoint.keep=1000", "steps=60")
    launcher = start(*choices, prefix=in_namespace(script))
    assert launcher.wait() == 3, launcher.said()
    assert "Traceback" not in launcher.said()
    assert re.search(r"cannot write .*No space left on device", launcher.last_line())
    assert re.search(r"saved: step-\d{8}; resume with: paceline train --resume victim", launcher.last_line())

    shutil.copytree(kept, root, dirs_exist_ok=True)
    whole = steps_of(root / "victim" / "checkpoints")
    assert whole and all(read_manifest(checkpoint).step < 60 for checkpoint in whole)
    assert weights(train(resume="victim").path) == weights(train(*choices, "checkpoint.every=0").path)


def test_a_workers_exception_is_in_the_last_five_lines_and_nothing_stays_in_shared_memory(
    start: Start, tmp_path: Path
) -> None:
    listing = tmp_path / "listing"
    script = f'mount -t tmpfs tmpfs /dev/shm; "$@"; code=$?; ls -A /dev/shm > {shlex.quote(str(listing))}; exit $code'
    launcher = start("strategy=sabotage", "strategy.act=raise", prefix=in_namespace(script))
    assert launcher.wait() == 4, launcher.said()
    last = launcher.said().rstrip().splitlines()[-5:]
    assert any("SabotageError: the coffee machine is on fire" in line for line in last)
    assert "Traceback" not in launcher.said() and "PeerLost" not in launcher.said()
    assert listing.read_text() == ""


def test_a_corrupt_checkpoint_is_refused_with_7_and_the_one_before_is_offered(train: Train, root: Path) -> None:
    train("checkpoint.every_steps=2", name="victim")
    newest = root / "victim" / "checkpoints" / "step-00000006"
    part = newest / "part-000.safetensors"
    content = bytearray(part.read_bytes())
    content[-1] ^= 1
    part.write_bytes(content)
    with pytest.raises(CorruptCheckpointError) as caught:
        train(resume="victim")
    assert caught.value.exit_code == 7
    assert str(part) in str(caught.value) and "--resume victim@step-00000004" in str(caught.value)
    assert train(resume="victim@step-00000004").summary["status"] == "completed"


def test_an_unreachable_wandb_neither_delays_nor_fails_training(
    train: Train, root: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    alone = seconds_to_first_step(train, root, "alone")
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("HOME", str(tmp_path))
    mirrored = seconds_to_first_step(train, root, "mirrored", "tracking=wandb", "tracking.mode=online")
    assert mirrored - alone < 5
    assert "W&B" in capfd.readouterr().err


def seconds_to_first_step(train: Train, root: Path, name: str, *overrides: str) -> float:
    seen: list[float] = []

    def look() -> None:
        until(lambda: (root / name).exists() and steps_of_run(root / name) >= 1, START, "a step")
        seen.append(time.monotonic())

    start = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(look)
        summary: dict[str, Any] = train(*overrides, name=name).summary
        looking.result()
    assert summary["status"] == "completed"
    return seen[0] - start


def test_a_worker_whose_log_cannot_be_written_still_tells_what_went_wrong(train: Train) -> None:
    with pytest.raises(WorkerFailedError, match="SabotageError: the coffee machine is on fire"):
        train("strategy=sabotage", "strategy.act=raise_on_a_full_disk", "strategy.at=4")


def test_a_log_that_is_no_file_is_refused_by_name(train: Train, root: Path) -> None:
    with pytest.raises(WorkerFailedError):
        train("strategy=sabotage", "strategy.act=raise", "strategy.at=4", "checkpoint.every_steps=2", name="victim")
    log = root / "victim" / "logs" / "worker-001.log"
    log.unlink()
    log.symlink_to("/dev/full")
    with pytest.raises(WorkerFailedError, match=r"worker-001\.log is a device, and only regular files are written"):
        train(resume="victim")
