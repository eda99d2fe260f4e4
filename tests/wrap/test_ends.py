"""A wrapped run has one end, written by the process that began it, however its workers end."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from scripts import joined, parts
from torch.utils.data._utils import signal_handling

from paceline.comm import Comm
from paceline.comm.errors import PeerLostError
from paceline.engine.base.errors import DivergedError
from paceline.engine.base.failures import exit_code_of
from paceline.testing.fabrics import run_virtual
from paceline.tracking.alive import is_held
from paceline.tracking.errors import RunNameError, StorageError
from paceline.tracking.run_directory import RunDirectory
from paceline.tracking.state import state_of
from paceline.wrap import ScriptError, refusals, wrap

USUAL = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


@pytest.fixture
def usual_sigterm() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


def test_a_script_that_leaves_its_run_open_is_told_so_as_it_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = wrap(*parts(), name="mine", root=tmp_path)
    says = "Use wrap in a with statement, or call run.close()."
    for _ in range(2):
        run.end_if_open()
    assert capsys.readouterr().err.count(says) == 1
    ends = [each for each in RunDirectory(run.path).records() if each["kind"] == "end"]
    assert ends == [{"kind": "end", "status": "interrupted", "reason": "the script ended without run.close()"}]
    assert not list(run.path.glob("summary.json"))


def test_a_script_that_fails_ends_the_run_that_it_left_open(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = wrap(*parts(), name="mine", root=tmp_path)
    monkeypatch.setattr(sys, "last_value", ValueError("mine"), raising=False)
    for _ in range(2):
        run.end_if_open()
    ends = [each for each in RunDirectory(run.path).records() if each["kind"] == "end"]
    assert ends == [{"kind": "end", "status": "failed", "reason": "ValueError: mine"}]
    assert "Use wrap in a with statement" not in capsys.readouterr().err


@pytest.mark.parametrize("fails", [False, True])
def test_a_run_is_seen_to_go_on_until_it_ends(fails: bool, tmp_path: Path) -> None:
    with suppress(ZeroDivisionError), wrap(*parts(), root=tmp_path) as run:
        assert state_of(RunDirectory(run.path)) == ("running", "")
        if fails:
            _ = 1 / 0
    assert not is_held(run.path / "metrics.jsonl")
    assert state_of(RunDirectory(run.path))[0] == ("failed" if fails else "completed")


def test_a_run_that_goes_on_is_not_resumed_beside_itself(tmp_path: Path) -> None:
    with wrap(*parts(), name="mine", root=tmp_path) as run:
        run.save()
        with pytest.raises(RunNameError, match=r"run mine goes on.*paceline watch mine"):
            wrap(*parts(), name="mine", root=tmp_path, resume=True)


def test_a_forked_child_ends_nothing(tmp_path: Path) -> None:
    with wrap(*parts(), name="mine", root=tmp_path) as run:
        child = os.fork()
        if child == 0:  # pragma: no cover, another process
            try:
                run.evaluated(0.25)
                run.close()
                run.__exit__(SystemExit, SystemExit(0), None)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert [each["kind"] for each in run._record.directory.records()] == ["start"]
    assert RunDirectory.open(tmp_path, "mine").records()[-1]["status"] == "completed"


def test_a_forked_child_that_goes_on_training_is_refused(tmp_path: Path) -> None:
    with wrap(*parts(), name="mine", root=tmp_path) as run:
        child = os.fork()
        if child == 0:  # pragma: no cover, another process
            refused = 0
            for act in (lambda: next(iter(run.loader)), lambda: run.backward(torch.zeros(()))):
                try:
                    act()
                except ScriptError as error:
                    refused += "forked child" in str(error)
            os._exit(refused)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_forked_child_leaves_ctrl_c_to_its_parent(number: int, tmp_path: Path) -> None:
    before = [(each, signal.signal(each, usual)) for each, usual in USUAL.items()]
    try:
        with wrap(*parts(), name="mine", root=tmp_path) as run:
            child = os.fork()
            if child == 0:  # pragma: no cover, another process
                signal.raise_signal(number)
                os._exit(3 + run._comm.key_values.stop_requested())
            ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            assert ended == (3 if number == signal.SIGINT else -signal.SIGTERM)
    finally:
        for each, handler in before:
            signal.signal(each, handler)


@pytest.mark.parametrize(
    ("code", "status"), [(0, "interrupted"), (None, "interrupted"), (3, "failed"), ("no", "failed")]
)
def test_the_record_says_how_the_script_ended_itself(code: int | str | None, status: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit), wrap(*parts(), name="mine", root=tmp_path):
        sys.exit(code)
    last = RunDirectory.open(tmp_path, "mine").records()[-1]
    assert last["status"] == status and ("sys.exit(0)" in last["reason"]) == (status == "interrupted")


def test_an_error_of_ours_in_mid_run_ends_a_script_with_its_message_and_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(refusals, "is_interactive", lambda: False)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    with pytest.raises(DivergedError) as caught, wrap(*parts(), name="mine", root=tmp_path) as run:
        run.evaluated(float("nan"))
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        sys.excepthook(DivergedError, caught.value, None)
    assert ended.value.code == 6
    assert capsys.readouterr().err == "worker 0 diverged: accuracy is nan, evaluated after step 0\n"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "there is not enough memory (test_ends."),
        (OSError(errno.ENOSPC, "No space left", "a.pt"), "cannot write a.pt: No space left (test_ends."),
    ],
)
def test_what_the_machine_lacks_is_told_with_the_line_and_no_traceback(
    error: Exception, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])

    def raised() -> None:
        raise error

    with pytest.raises(type(error)):
        raised()
    with pytest.raises(SystemExit) as ended:
        refusals._Hook()(type(error), error, error.__traceback__)
    assert ended.value.code == 3
    told = capsys.readouterr().err
    assert told.startswith(said) and ".raised (tests/wrap/test_ends.py, line " in told and told.count("\n") == 1


def test_a_full_disk_does_not_hide_the_error_that_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise StorageError("full")

    with pytest.raises(ValueError, match="mine"), wrap(*parts(), name="mine", root=tmp_path):
        monkeypatch.setattr(RunDirectory, "add", full)
        raise ValueError("mine")


@pytest.mark.parametrize("started", [True, False])
def test_a_launched_worker_that_fails_leaves_at_once(started: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[object] = []

    def leave(status: int) -> None:
        said.append(status)

    monkeypatch.setattr(refusals, "leave", leave)
    monkeypatch.setattr(refusals, "was_started", lambda: started)
    monkeypatch.setattr(refusals, "_hook", refusals._Hook())
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, trace: said.append(error))
    refusals.say_no_traceback()
    first, second = KeyError("mine"), KeyError("again")
    sys.excepthook(KeyError, first, None)
    refusals.leave_at_once()
    sys.excepthook(KeyError, second, None)
    assert said == [first, second, *([1] if started else [])]


LOST = PeerLostError("worker 1 lost a peer")
GONE = dist.DistNetworkError("the rendezvous store is gone")
Refuses = Callable[[Exception], list[tuple[str, float]]]


@pytest.fixture
def refuses(monkeypatch: pytest.MonkeyPatch) -> Refuses:
    """Returns what a launched worker with an uncaught error does."""
    done: list[tuple[str, float]] = []
    monkeypatch.setattr(refusals, "was_started", lambda: True)
    monkeypatch.setattr(refusals.time, "sleep", lambda seconds: done.append(("sleep", seconds)))
    monkeypatch.setattr(refusals, "leave", lambda status: done.append(("leave", status)) or sys.exit())

    def refuse(error: Exception) -> list[tuple[str, float]]:
        done.clear()
        with pytest.raises(SystemExit):
            refusals._Hook()(type(error), error, None)
        return done

    return refuse


@pytest.mark.parametrize(("error", "waited"), [(DivergedError("nan"), 0), (LOST, 1), (GONE, 1)])
def test_a_launched_worker_that_only_lost_a_peer_waits_before_it_says_so(
    error: Exception, waited: int, refuses: Refuses, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(refusals.FILE, raising=False)
    assert refuses(error) == [("sleep", refusals.WAIT * waited), ("leave", exit_code_of(error) or 4)]
    said = capsys.readouterr().err
    assert said.endswith(f"{error}\n") and said.count("\n") == 1
    assert said.startswith("a worker lost worker 0: ") == (error is GONE)


def test_of_a_hosts_workers_the_first_that_fails_speaks_whichever_it_is(
    refuses: Refuses, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for rank in (1, 0, 2):
        monkeypatch.setenv(refusals.FILE, str(tmp_path / str(rank) / "error.json"))
        assert refuses(DivergedError(f"worker {rank} diverged"))[-1] == ("leave", 6)
    assert capsys.readouterr().err == "worker 1 diverged\n"


@pytest.mark.usefixtures("usual_sigterm")
def test_sigterm_leaves_an_end(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as left, wrap(*parts(), name="mine", root=tmp_path):
        signal.raise_signal(signal.SIGTERM)
    assert left.value.code == 143
    last = RunDirectory.open(tmp_path, "mine").records()[-1]
    assert (last["kind"], last["status"]) == ("end", "interrupted") and "SIGTERM, as of a launcher" in last["reason"]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.usefixtures("usual_sigterm")
def test_sigterm_while_the_run_ends_leaves_the_same_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit) as left, wrap(*parts(), name="mine", root=tmp_path) as run:
        monkeypatch.setattr(run.meetings, "meet", lambda _: signal.raise_signal(signal.SIGTERM))
    assert left.value.code == 143
    last = RunDirectory.open(tmp_path, "mine").records()[-1]
    assert (last["kind"], last["status"]) == ("end", "interrupted") and "SIGTERM, as of a launcher" in last["reason"]


@pytest.mark.usefixtures("usual_sigterm")
def test_a_script_without_a_with_block_that_sigterm_ends_is_not_told_to_close_its_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = wrap(*parts(), name="mine", root=tmp_path)
    with pytest.raises(SystemExit):
        signal.raise_signal(signal.SIGTERM)
    run.end_if_open()
    last = RunDirectory.open(tmp_path, "mine").records()[-1]
    assert (last["kind"], last["status"]) == ("end", "interrupted") and "SIGTERM, as of a launcher" in last["reason"]
    assert "Use wrap in a with statement" not in capsys.readouterr().err


@pytest.mark.usefixtures("usual_sigterm")
@pytest.mark.parametrize("mine", [True, False])
def test_after_sigterm_torch_raises_nothing_about_a_loader_whose_processes_end_too(
    mine: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def own(*_: object) -> None: ...

    monkeypatch.setattr(signal_handling, "_SIGCHLD_handler_set", False)
    before = signal.signal(signal.SIGCHLD, own if mine else signal.SIG_DFL)
    try:
        if not mine:
            signal_handling._set_SIGCHLD_handler()
        with pytest.raises(SystemExit), wrap(*parts(), name="mine", root=tmp_path):
            signal.raise_signal(signal.SIGTERM)
        handler = signal.getsignal(signal.SIGCHLD)
        assert callable(handler) and (handler is own) == mine
        assert handler.__module__ != signal_handling.__name__
    finally:
        signal.signal(signal.SIGCHLD, before)


@pytest.mark.usefixtures("usual_sigterm")
def test_a_script_that_handles_sigterm_itself_goes_on_doing_so(tmp_path: Path) -> None:
    def mine(*_: object) -> None: ...

    signal.signal(signal.SIGTERM, mine)
    with wrap(*parts(), name="mine", root=tmp_path):
        assert signal.getsignal(signal.SIGTERM) is mine


ENDS = {
    "raises": "raise ValueError('mine')",
    "killed": "os.kill(os.getpid(), 9)",
    "extra step": "run.optimizer.step()",
}


@pytest.mark.slow  # two processes
@pytest.mark.fault
@pytest.mark.parametrize("ends", ENDS)
def test_a_worker_that_fails_leaves_a_run_with_an_end(ends: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        f"""
import os
from scripts import parts
from paceline.wrap import wrap
with wrap(*parts(), name="mine", epochs=100000) as run:
    for epoch in range(100000):
        for batch in run.loader:
            run.backward(run.model(**batch).loss)
            run.optimizer.step()
            if run.steps == 3 and not run.is_chief:
                {ENDS[ends]}
"""
    )
    launch = [sys.executable, "-m", "paceline.cli.main", "launch", "--workers", "2", "mine.py"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    ended = subprocess.run(launch, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert ended.returncode not in (0, None)
    records = RunDirectory.open(tmp_path / "runs", "mine").records()
    assert [each["status"] for each in records if each["kind"] == "end"] == ["failed"], records[-1]
    assert records[-1]["kind"] == "end" and "worker 1" in records[-1]["reason"]


@pytest.mark.slow  # two processes
@pytest.mark.fault
@pytest.mark.parametrize("ends", ["raise ValueError('mine')", "sys.exit(9)"])
def test_a_worker_that_fails_while_another_ends_the_run_is_named_in_the_record(ends: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        f"""
import sys
from scripts import parts
from paceline.wrap import wrap
with wrap(*parts(), name="mine", epochs=1) as run:
    for batch in run.loader:
        run.backward(run.model(**batch).loss)
        run.optimizer.step()
    if not run.is_chief:
        {ends}
"""
    )
    launch = [sys.executable, "-m", "paceline.cli.main", "launch", "--workers", "2", "mine.py"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    ended = subprocess.run(launch, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert ended.returncode not in (0, None) and "Use wrap in a with statement" not in ended.stderr
    last = RunDirectory.open(tmp_path / "runs", "mine").records()[-1]
    assert (last["kind"], last["status"]) == ("end", "failed") and "worker 1" in last["reason"]


@pytest.mark.slow  # two processes
@pytest.mark.fault
def test_a_launcher_that_is_stopped_leaves_a_run_that_was_interrupted(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        """
from scripts import parts
from paceline.wrap import wrap
with wrap(*parts(), name="mine", epochs=100000) as run:
    for epoch in range(100000):
        for batch in run.loader:
            run.backward(run.model(**batch).loss)
            run.optimizer.step()
            if run.steps == 3:
                print("steps", flush=True)
"""
    )
    launch = [sys.executable, "-m", "paceline.cli.main", "launch", "--workers", "2", "mine.py"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    with subprocess.Popen(launch, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as launched:
        assert launched.stdout is not None and launched.stdout.readline()
        launched.terminate()
        launched.communicate(timeout=60)
    end = RunDirectory.open(tmp_path / "runs", "mine").records()[-1]
    assert (end["kind"], end["status"]) == ("end", "interrupted")


@pytest.mark.slow  # two processes
@pytest.mark.parametrize("ends", ["raise ValueError('mine')", "sys.exit(3)"])
def test_workers_that_all_fail_with_messages_under_way_end_with_their_own_status(ends: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        f"""
import sys
from scripts import parts
from paceline.wrap import wrap
with wrap(*parts(), "sync.shard=gradients", name="mine") as run:
    for batch in run.loader:
        run.backward(run.model(**batch).loss)
        {ends}
"""
    )
    launch = [sys.executable, "-m", "paceline.cli.main", "launch", "--workers", "2", "mine.py"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    ended = subprocess.run(launch, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert ended.returncode == (3 if "exit" in ends else 1) and "terminate called" not in ended.stderr, ended.stderr


FAILS = {
    "all alike": ("run.optimizer.step()", 2, "optimizer.step: needs run.backward(loss)"),
    "the first alone": ("run.is_chief and run.evaluated(float('nan'))", 6, "worker 0 diverged: accuracy is nan"),
    "another alone": ("run.is_chief or run.evaluated(float('nan'))", 6, "worker 1 diverged: accuracy is nan"),
    "each": ("run.evaluated(float('nan'))", 6, "diverged: accuracy is nan"),
    "another's wrap": ("", 2, "sync=asp: has servers"),
}


@pytest.mark.slow  # two processes
@pytest.mark.parametrize("fails", FAILS)
def test_workers_end_with_the_message_of_the_one_at_fault_and_its_status(fails: str, tmp_path: Path) -> None:
    does, status, said = FAILS[fails]
    (tmp_path / "mine.py").write_text(
        f"""
import os
from scripts import parts
from paceline.wrap import wrap
sync = "sync=bsp" if {does!r} or os.environ["RANK"] == "0" else "sync=asp"
with wrap(*parts(), sync, name="mine", epochs=3) as run:
    for epoch in range(3):
        for batch in run.loader:
            run.backward(run.model(**batch).loss)
            run.optimizer.step()
            {does}
"""
    )
    launch = [sys.executable, "-m", "paceline.cli.main", "launch", "--workers", "2", "mine.py"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    ended = subprocess.run(launch, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert ended.returncode == status, ended.stderr
    assert "Traceback" not in ended.stderr and ended.stderr.count(said) == 1, ended.stderr
    assert "rendezvous store is gone" not in ended.stderr, ended.stderr


LEAVES = {
    "another leaves its last pass": ("epoch == 2 and run.rank == 1", "break", "worker 1 ends its run after batch 13"),
    "the first leaves a pass": ("epoch == 0 and run.rank == 0", "break", "worker 0 begins a pass after batch 1"),
    "another leaves out a batch": (
        "run.steps == 2 and run.rank == 1",
        "continue",
        "worker 1 compares its order of samples after batch 4 and 2 steps",
    ),
    "the first saves alone": ("epoch == 0 and run.rank == 0", "run.save()", "worker 0 saves after batch 1"),
}


@pytest.mark.slow  # two processes
@pytest.mark.parametrize("leaves", LEAVES)
def test_a_worker_that_leaves_its_loop_alone_is_named_at_once(leaves: str, tmp_path: Path) -> None:
    when, does, said = LEAVES[leaves]
    early, late = (when, "False") if does == "continue" else ("False", when)
    (tmp_path / "mine.py").write_text(
        f"""
from scripts import parts
from paceline.wrap import wrap
with wrap(*parts(), "hardware.timeout=100", name="mine", epochs=3) as run:
    for epoch in range(3):
        for i, batch in enumerate(run.loader):
            if {early} and i == 2:
                continue
            run.backward(run.model(**batch).loss)
            run.optimizer.step()
            run.optimizer.zero_grad()
            if {late}:
                {does}
"""
    )
    launch = [sys.executable, "-m", "paceline.cli.main", "launch", "--workers", "2", "mine.py"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    ended = subprocess.run(launch, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2 and said in ended.stderr, ended.stderr  # by whichever worker noticed first


def ends_alone(comm: Comm, root: str) -> str:
    """Worker 1 saves where worker 0 ends its run."""
    run = joined(comm, root, *parts())
    try:
        run.save() if run.rank == 1 else run.close()
    except ScriptError as error:
        return str(error)
    return ""


def test_workers_that_do_different_things_after_a_step_are_refused(tmp_path: Path) -> None:
    one, other = run_virtual(2, ends_alone, str(tmp_path))
    assert "worker 0 ends its run after batch 0, and worker 1 saves after batch 0" in one
    assert "worker 1 saves after batch 0, and worker 0 ends its run after batch 0" in other


def test_a_label_without_an_output_is_named_below_the_traceback(tmp_path: Path) -> None:
    with pytest.raises(IndexError) as caught, wrap(*parts(), name="mine", root=tmp_path):
        torch.nn.functional.cross_entropy(torch.zeros(2, 3), torch.tensor([0, 7]))
    assert caught.value.__notes__[0].startswith("the labels are from 0 to 7, and the model has 3 outputs")


def normalised(comm: Comm, root: str) -> list[str]:
    """A batch of two samples leaves one to each worker."""
    model, loader = torch.nn.BatchNorm1d(6).double(), parts(batch_size=2)[2]
    run = joined(comm, root, model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
    with pytest.raises(ValueError, match="Expected more than 1 value per channel") as caught, run:
        run.model(next(iter(run.loader))["input_ids"].double())
    return caught.value.__notes__


def test_a_batch_norm_of_one_sample_says_which_worker_it_is_and_what_to_choose(tmp_path: Path) -> None:
    for rank, (note,) in enumerate(run_virtual(2, normalised, str(tmp_path))):
        assert note.startswith(
            f"worker {rank} of 2 has 1 of the batch's 2 samples, and batch norm cannot train on one."
        )
        assert "Choose a batch_size of 4 or more and drop_last=True for the loader" in note


def steps_sparsely(comm: Comm, root: str) -> list[str]:
    model, loader = parts()[0], parts()[2]
    model.embedding.sparse = True
    second = torch.optim.SparseAdam(model.embedding.parameters())
    run = joined(comm, root, model, torch.optim.SGD(model.head.parameters(), lr=0.1), loader)
    with pytest.raises(RuntimeError, match="SparseAdam") as caught, run:
        run.backward(run.model(**next(iter(run.loader))).loss)
        second.step()
    return caught.value.__notes__


def scales_nothing(comm: Comm, root: str) -> list[str]:
    """A batch of one sample leaves none to the second worker."""
    model, optimizer, loader = parts(batch_size=1)
    run, scaler = joined(comm, root, model, optimizer, loader, "sync=local_sgd"), torch.amp.GradScaler("cpu")
    try:
        with run:
            run.backward(scaler.scale(run.model(**next(iter(run.loader))).loss))
            comm.elapse(0.01)
            scaler.step(run.optimizer)
            raise InterruptedError
    except (AssertionError, InterruptedError) as error:
        return getattr(error, "__notes__", [])


def test_an_error_of_torchs_that_several_workers_cause_says_so(tmp_path: Path) -> None:
    for (note,) in run_virtual(2, steps_sparsely, str(tmp_path / "sparse")):
        assert note.startswith("several workers exchange dense gradients. Choose torch.optim.Adam")
    first, (note,) = run_virtual(2, scales_nothing, str(tmp_path / "scaled"))
    assert not first and note.startswith("a worker without a sample of the batch has no gradients. Choose drop_last")
