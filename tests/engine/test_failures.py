"""What is said of an exception: only our own errors have a say in the exit status, and all of them have words."""

import errno
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from paceline.comm import HangError, PeerLostError
from paceline.conf.errors import ConfigError
from paceline.engine.base.blame import said
from paceline.engine.base.errors import MachineError, WorkerFailedError
from paceline.engine.base.failures import (
    LONGEST,
    ending_of,
    exit_code_of,
    lack_of,
    lack_of_gpu,
    misnamed,
    named,
    place_of,
    traceback_of,
    words_of,
)
from paceline.engine.launch.worker_process import describe
from paceline.engine.training import work as engine_work
from paceline.tracking import redact
from paceline.tracking.errors import StorageError
from paceline.tracking.records import PlanSummary


class SlyError(Exception):
    """A user's own, with attributes of the names that ours have."""

    exit_code = 0
    missing = frozen = virtual_rank = rank = object()
    details = 5


class DerivedError(ConfigError):
    exit_code = 0


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def raised(raise_it: Callable[[], object]) -> Any:
    with pytest.raises(BaseException) as caught:
        raise_it()
    return caught.value


def fail(error: BaseException) -> None:
    raise error


def test_a_users_exception_has_no_exit_code_whatever_its_attributes_say() -> None:
    assert exit_code_of(SlyError()) is None
    told = describe(raised(lambda: fail(SlyError("sly"))))
    assert told["exit_code"] == 4
    assert "missing" not in told and "rank" not in told and "frozen" not in told


def test_of_a_class_derived_from_ours_it_is_ours_that_counts() -> None:
    assert exit_code_of(DerivedError()) == 2
    assert exit_code_of(ConfigError()) == 2
    assert exit_code_of(WorkerFailedError("", 6, [])) == 6


@pytest.mark.parametrize("code", [0, -1, 256, 1000, None, "4", True])
def test_an_exit_code_that_would_be_taken_for_success_is_none(code: object) -> None:
    error = ConfigError()
    error.exit_code = code  # pyright: ignore[reportAttributeAccessIssue]
    assert exit_code_of(error) is None
    assert describe(error)["exit_code"] == 4


def test_a_hang_says_who_was_missing() -> None:
    told = describe(HangError("waited", [3, 1], frozen=True))
    assert (told["missing"], told["frozen"], told["exit_code"], told["message"]) == ([3, 1], True, 5, "waited")


@pytest.mark.parametrize("status", [0, None, 3, "a word"])
def test_to_leave_before_the_end_is_a_failure_with_whatever_status(status: object) -> None:
    told = describe(raised(lambda: fail(SystemExit(status))))
    assert told["exit_code"] == 4 and told["error"] == "Exited"
    assert told["message"].startswith("left before the end: SystemExit")


def test_a_secret_of_the_configuration_is_hidden_in_messages_and_tracebacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redact, "_known", set())
    redact.know_secrets({"data": {"knobs": {"db_password": "swordfish"}}})
    error = raised(lambda: int("swordfish"))
    assert describe(error)["message"].startswith("ValueError: invalid literal for int() with base 10: '***', in ")
    assert traceback_of(error).endswith("ValueError: invalid literal for int() with base 10: '***'")
    assert "me:pw" not in words_of(ValueError("no answer of postgresql://me:pw@host"))


def test_a_message_is_bounded_and_says_how_much_was_cut() -> None:
    words = words_of(ValueError("head" + 10**6 * "x" + "tail"))
    assert len(words) < LONGEST + 100
    assert words.startswith("headxxx") and words.endswith("xxxtail")
    assert f"[... {10**6 + 8 - LONGEST:,} characters left out ...]" in words


def test_what_a_terminal_would_act_upon_is_written_out() -> None:
    assert words_of(ValueError("\x1b[31mred\x07\u202e")) == r"\x1b[31mred\x07\u202e"
    odd = type("Odd\x1b[2J", (Exception,), {})
    assert "\x1b" not in named(odd("x"))


def test_an_exception_without_a_message_has_its_type_file_and_line() -> None:
    error = raised(lambda: fail(AssertionError()))
    assert re.fullmatch(r"AssertionError, in test_failures\.fail \(.*test_failures\.py, line \d+\)", named(error))
    assert named(MuteError()) == "MuteError: (its message cannot be shown)"


def test_where_an_exception_arose_is_said_once() -> None:
    theirs = raised(lambda: fail(ValueError("burnt")))
    ours = raised(lambda: fail(ConfigError(f"model=mine: {named(theirs)}")))
    assert named(ours).count("test_failures.py") == 1


def test_the_place_is_the_users_last_line_and_not_a_librarys() -> None:
    def forward() -> None:
        _ = torch.ones(2, 3) @ torch.ones(2, 3)

    error = raised(forward)
    assert re.fullmatch(r"test_failures\..*\.forward \(.*test_failures\.py, line \d+\)", place_of(error))


def test_the_place_of_an_error_of_ours_is_that_of_the_users_code_it_was_raised_from_or_none() -> None:
    cause = raised(lambda: fail(ValueError("theirs")))
    own = ConfigError("ours")
    assert place_of(own) == ""
    own.__cause__ = cause
    assert place_of(own).startswith("test_failures.fail (")


OUT_OF_MEMORY = {
    "python": lambda: bytearray(2**60),
    "numpy": lambda: np.ones(2**56),
    "torch": lambda: torch.empty(2**56),
    "system": lambda: fail(OSError(errno.ENOMEM, "Cannot allocate memory")),
    "cuda": lambda: fail(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")),
}


@pytest.mark.parametrize("kind", OUT_OF_MEMORY)
def test_out_of_memory_is_the_machines_lack(kind: str) -> None:
    error = raised(OUT_OF_MEMORY[kind])
    lack = lack_of(error)
    assert isinstance(lack, MachineError) and "not enough memory" in str(lack)
    assert describe(error)["exit_code"] == 3


def test_a_full_gpu_is_told_with_what_the_plan_holds_by_kind_and_a_way_out() -> None:
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    planned = {"parameters": 2**30, "optimizer": 0, "activations": 3 * 2**30, "host_optimizer": 2**40}
    lack = lack_of_gpu(error, planned)
    assert str(lack) == (
        "there is not enough memory on the GPU: CUDA out of memory. Tried to allocate 2.00 GiB. By the plan a worker "
        "holds 4.0 GiB: activations 3.0 GiB, parameters 1.0 GiB. Choose a smaller batch_size or accumulate=2; paceline "
        "plan --fit says what fits."
    )
    assert describe(lack)["exit_code"] == 3


FULL = (
    torch.OutOfMemoryError("Allocation on device"),
    RuntimeError("CUDA error: out of memory"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("NCCL error in: ProcessGroupNCCL.cpp:77\nLast error:\nCuda failure 2 'out of memory'"),
)


@pytest.mark.parametrize("full", FULL, ids=str)
def test_a_worker_whose_gpu_is_full_says_so(full: RuntimeError, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_work, "_work", lambda *_: fail(full))
    with pytest.raises(MachineError, match=r"By the plan a worker holds 1\.0 GiB: parameters 1\.0 GiB"):
        worked()


def test_what_a_worker_says_of_another_ones_memory_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = PeerLostError("worker 0 lost a peer: CUDA error: out of memory")
    monkeypatch.setattr(engine_work, "_work", lambda *_: fail(lost))
    with pytest.raises(PeerLostError):
        worked()


def worked() -> None:
    assignment: Any = SimpleNamespace(predicted=PlanSummary(None, {"parameters": 2**30}))
    nothing: Any = None
    engine_work.work(assignment, nothing, nothing, torch.device("cpu"))


LACKS = {
    errno.EMFILE: (MachineError, "too many open files: a process may have"),
    errno.EAGAIN: (MachineError, "no more processes or threads"),
    errno.ENOSPC: (StorageError, "cannot be written"),
    errno.EROFS: (StorageError, "cannot be written"),
    errno.EFBIG: (StorageError, "cannot be written"),
}


@pytest.mark.parametrize("number", LACKS)
def test_what_the_system_does_not_give_is_the_machines_lack(number: int) -> None:
    kind, words = LACKS[number]
    lack = lack_of(OSError(number, "why"))
    assert type(lack) is kind and words in str(lack)
    assert describe(OSError(number, "why"))["exit_code"] == 3


def test_a_file_that_a_library_cannot_write_is_the_machines_lack() -> None:
    error = raised(lambda: torch.save(torch.zeros(10_000), "/dev/full"))
    lack = lack_of(error)
    assert type(lack) is StorageError and str(lack).startswith("a file cannot be written: [enforce fail")


def test_no_folder_for_temporary_files_is_the_machines_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("tempfile.tempdir", None)
        patch.setattr("tempfile._candidate_tempdir_list", lambda: ["/proc/none"])
        lack = lack_of(raised(tempfile.gettempdir))
    assert type(lack) is StorageError and "['/proc/none']" in str(lack) and "TMPDIR" in str(lack)


def test_a_name_that_no_file_may_have_is_the_users() -> None:
    wrong = misnamed(raised(lambda: Path("a" * 9000).exists()))
    assert wrong is not None and wrong.exit_code == 2
    assert "cannot be the name of a file (File name too long)" in str(wrong) and len(str(wrong)) < 5000
    assert misnamed(FileNotFoundError(errno.ENOENT, "no")) is None


def test_a_folder_that_this_user_may_not_open_is_the_machines_lack() -> None:
    code, words, _ = ending_of(PermissionError(errno.EACCES, "Permission denied", "runs")) or (1, "", None)
    assert (code, words) == (
        3,
        "runs: cannot be opened (Permission denied). Choose another folder, or change its mode.",
    )
    assert ending_of(PermissionError(errno.EPERM, "no file's")) is None
    assert ending_of(raised(lambda: fail(PermissionError(errno.EACCES, "a user's", "data.bin")))) is None


@pytest.mark.parametrize("error", [ValueError("out of memory"), RuntimeError("shapes"), FileNotFoundError(2, "no")])
def test_other_errors_are_no_lack_of_the_machines(error: Exception) -> None:
    assert lack_of(error) is None


def test_batch_norm_on_one_sample_is_said_with_the_way_out() -> None:
    error = raised(lambda: torch.nn.BatchNorm1d(3)(torch.zeros(1, 3)))
    told = words_of(error)
    assert told.startswith("Expected more than 1 value per channel") and "Choose drop_last=true" in told
    assert "batch_size" in said(error) and "data.limit" not in words_of(ValueError("Expected more"))


@pytest.mark.parametrize(("shape", "label"), [((4, 3), 5), ((4, 3, 2, 2), 7), ((4, 3), -3), ((3,), 3)])
def test_a_label_without_an_output_is_named(shape: tuple[int, ...], label: int) -> None:
    targets = torch.full((*shape[:1], *shape[2:]) if len(shape) > 1 else (), 1)
    targets.view(-1)[-1] = label
    with pytest.raises(IndexError) as caught:
        torch.nn.functional.cross_entropy(torch.zeros(shape), targets)
    low, high = min(int(targets.min()), label), max(int(targets.max()), label)
    assert words_of(caught.value).startswith(f"the labels are from {low} to {high}, and the model has 3 outputs")
