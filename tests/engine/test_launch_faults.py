"""How a run ends whose workers say too much, lie, leave, or die while they start; and what is left of it."""

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from process_table import is_alive, until, workers_of
from short_runs import QUICK, Start, Train, clean_environment
from test_engine_faults import GONE, LONG, in_namespace, nothing_is_left

from paceline.engine.base.errors import WorkerFailedError
from paceline.engine.base.failures import LONGEST

pytestmark = [pytest.mark.dist, pytest.mark.fault]

ODD = tuple(choice for choice in QUICK if not choice.startswith("model."))
HARM = ("strategy=sabotage", "steps=100000")


def failure(train: Train, *overrides: str) -> WorkerFailedError:
    with pytest.raises(WorkerFailedError) as caught:
        train(*HARM, *overrides, name="victim")
    return caught.value


# -- what a worker says


@pytest.mark.parametrize("workers", [1, 2])
def test_a_megabyte_of_words_neither_blocks_nor_hides_the_cause(train: Train, root: Path, workers: int) -> None:
    error = failure(train, "strategy.act=babble", f"hardware.workers={workers}", f"strategy.rank={workers - 1}")
    assert error.exit_code == 4
    assert str(error).startswith(f"worker {workers - 1}, after step 3, failed: SabotageError: the first word word")
    assert re.search(
        r"\[\.\.\. [\d,]{7,} characters left out \.\.\.\].* the last word, in saboteur.*saboteur\.py, line \d+",
        str(error),
    )
    assert len(str(error)) < LONGEST + 500
    assert (root / "victim" / "logs" / f"worker-{workers - 1:03d}.log").read_text().count("word ") > 100_000


@pytest.mark.parametrize(("act", "status"), [("fork", 5), ("fork_and_raise", 1)])
def test_a_child_that_a_worker_forked_leaves_and_the_run_goes_on(
    act: str, status: int, train: Train, root: Path
) -> None:
    train("strategy=sabotage", f"strategy.act={act}", name="parent")
    log = (root / "parent" / "logs" / "worker-001.log").read_text()
    assert f"the child left with {status}" in log and ("this is the child" in log) == (act == "fork_and_raise")


def test_an_exception_that_says_success_and_commands_the_terminal_is_a_failure_in_plain_characters(
    start: Start,
) -> None:
    launcher = start(*HARM, "strategy.act=lie")
    assert launcher.wait() == 4, launcher.said()
    assert r"SlyError: all is well\x1b[2J\x1b]0;owned\x07\u202e, in saboteur.Sabotage._harm (" in launcher.last_line()
    assert not set(launcher.said()) & set("\x1b\x07\u202e")


def test_the_last_sentence_names_the_line_of_the_users_code(train: Train) -> None:
    error = failure(train, "strategy.act=raise")
    assert re.search(r"on fire, in saboteur\.Sabotage\._harm \(.*saboteur\.py, line \d+\); ", str(error)), error


# -- what it sends


IN_MEMORY = (
    r"worker 0 in all_reduce of \S+: worker 2 sums 3 entries of float32, where workers 0, 1 sum [\d,]{4,} of float32"
)
IN_MESSAGES = (
    r"worker 0 in recv from worker 2: worker 2 sent 12 bytes of float32 where [\d,]{4,} bytes of float32 are due"
)


@pytest.mark.parametrize(
    ("collective", "says"), [("fabric", IN_MEMORY), ("shared_memory", IN_MEMORY), ("ring", IN_MESSAGES)]
)
def test_a_worker_that_sums_another_tensor_ends_the_run_at_once_and_is_named(
    start: Start, collective: str, says: str
) -> None:
    launcher = start(*HARM, "strategy.act=missum", "strategy.rank=2", "hardware.workers=3", f"collective={collective}")
    launcher.until(lambda: workers_of(launcher.run.path), "workers")
    pids = workers_of(launcher.run.path)
    assert launcher.wait() == 4, launcher.said()
    assert re.fullmatch(
        f"worker 0, after step 3, failed: MessageError: {says}; nothing was saved yet", launcher.last_line()
    ), launcher.said()
    nothing_is_left(launcher)
    assert not any(is_alive(pid) for pid in pids.values())


# -- how it leaves


def test_user_code_that_leaves_while_the_run_is_planned_is_no_success(start: Start) -> None:
    launcher = start("model=odd", "model.kind=leaves", "--allow-module", "odd_models", quick=ODD)
    assert launcher.wait() == 4, launcher.said()
    assert re.search(
        r"left before the end: SystemExit: 0, in odd_models\.Odd\.__init__ \(.*odd_models\.py, line \d+",
        launcher.last_line(),
    )


@pytest.mark.parametrize("sync", ["gossip", "hogwild", "asp", "fedavg", "bsp"])
def test_a_worker_that_dies_while_they_start_ends_the_run_at_once_and_is_named(train: Train, sync: str) -> None:
    """Modes in which the others go on need all to have met: by messages, in shared memory, at a server."""
    error = failure(train, f"sync={sync}", "hardware.workers=3", "strategy.act=kill", "strategy.at=-1")
    assert error.exit_code == 4
    assert str(error) == "worker 1, during start-up, was killed by SIGKILL; nothing was saved yet"


def test_a_killed_fork_server_is_what_is_said(start: Start) -> None:
    launcher = start(*LONG)
    launcher.until(lambda: launcher.steps() >= 3, "three steps")
    pids = workers_of(launcher.run.path)
    [server] = {int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) for pid in pids.values()}
    os.kill(server, signal.SIGKILL)
    assert launcher.wait() == 4
    assert launcher.last_line() == (
        "the fork server was killed by SIGKILL, and all workers with it; nothing was saved yet"
    )
    nothing_is_left(launcher)
    assert not any(is_alive(pid) for pid in pids.values())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("moment", ["fork server", "worker"])
def test_a_signal_while_workers_start_ends_all_at_once(start: Start, moment: str, number: signal.Signals) -> None:
    """There is nothing to save yet: they are not asked to."""
    launcher = start(*HARM, "strategy.act=sleep", "strategy.at=-1")
    if moment == "fork server":
        launcher.until(lambda: any("forkserver" in command for command in launcher.alive().values()), moment)
    else:
        launcher.until(lambda: workers_of(launcher.run.path), moment)
    os.kill(launcher.process.pid, number)
    assert launcher.wait() == 128 + number, launcher.said()
    assert "Traceback" not in launcher.said()
    nothing_is_left(launcher)


WORKERS = """
import multiprocessing, os
from paceline.engine.launch.local_workers import start_fork_server, without_main
start_fork_server()
with without_main():
    worker = multiprocessing.get_context("forkserver").Process(target=os.system, args=("echo ${PYTHONSAFEPATH-none}",))
    worker.start()
worker.join()
"""


@pytest.mark.slow
@pytest.mark.parametrize("own", [None, "1"])
def test_files_of_the_current_folder_are_not_imported_in_place_of_libraries(own: str | None, tmp_path: Path) -> None:
    for module in ("pickle", "selectors", "torch", "yaml"):
        (tmp_path / f"{module}.py").write_text("open(__file__ + '.ran', 'w').close()\nraise SystemExit(5)\n")
    script = tmp_path / "bin" / "run.py"
    script.parent.mkdir()
    script.write_text(WORKERS)
    done = subprocess.run(
        [sys.executable, script],
        cwd=tmp_path,
        env=clean_environment(tmp_path) | ({} if own is None else {"PYTHONSAFEPATH": own}),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".ran"] == []
    assert (done.returncode, done.stdout) == (0, f"{own or 'none'}\n")


# -- what the machine lacks


def test_more_memory_than_there_is_is_refused_with_how_much_is_wanted(start: Start) -> None:
    launcher = start("model=odd", "model.kind=huge", "--allow-module", "odd_models", quick=ODD)
    assert launcher.wait() == 2, launcher.said()
    assert re.search(
        r"model=odd: a worker holds [\d,.]{9,} GiB by the plan, and this host has [\d,.]+ GiB free",
        launcher.last_line(),
    )
    assert "Traceback" not in launcher.said()


def test_too_few_descriptors_are_the_machines_lack_in_one_sentence(start: Start) -> None:
    launcher = start(prefix=["sh", "-c", 'ulimit -n 24; exec "$@"', "sh"])
    assert launcher.wait() == 3, launcher.said()
    assert (
        "too many open files: 2 workers and servers need about 40 in one process, which may have 24 (ulimit -n)"
        in launcher.last_line()
    )
    assert "Traceback" not in launcher.said()


def test_a_long_tmpdir_works_and_nothing_stays_in_it(start: Start, tmp_path: Path) -> None:
    """W&B's folders, multiprocessing's sockets: none of them. torch keeps a cache of its own there."""
    scratch = tmp_path / "long" / ("x" * 120)
    scratch.mkdir(parents=True)
    launcher = start("tracking=wandb", "tracking.mode=offline", env={"TMPDIR": str(scratch)})
    assert launcher.wait() == 0, launcher.said()
    nothing_is_left(launcher)
    assert {path.name for path in scratch.iterdir()} - {f"torchinductor_{os.environ.get('USER', 'root')}"} == set()
    assert not (launcher.run.path / "wandb" / "tmp").exists()


def test_a_killed_launcher_leaves_nothing_in_tmpdir(start: Start, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    launcher = start(*LONG, env={"TMPDIR": str(scratch)})
    launcher.until(lambda: launcher.steps() >= 1, "a step")
    launcher.process.kill()
    until(lambda: not launcher.alive(), GONE, f"all gone, but there is {launcher.alive()}")
    assert not [path.name for path in scratch.iterdir() if not path.name.startswith("torchinductor")]


def test_hogwild_needs_no_room_in_shared_memory(start: Start, tmp_path: Path) -> None:
    listing = tmp_path / "listing"
    script = (
        "mount -t tmpfs -o size=4k tmpfs /dev/shm; head -c 4096 /dev/zero > /dev/shm/full; "
        f'"$@"; code=$?; ls -A /dev/shm > {shlex.quote(str(listing))}; exit $code'
    )
    launcher = start("sync=hogwild", prefix=in_namespace(script))
    assert launcher.wait() == 0, launcher.said()
    assert listing.read_text() == "full\n"
