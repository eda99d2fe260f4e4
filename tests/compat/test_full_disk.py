"""Errors that say by their message alone that a file cannot be written."""

import errno
import resource
from pathlib import Path

import pytest
import safetensors.torch
import torch
from file_sizes import files_of

from paceline.compat.full_disk import says_unwritten, why_unwritten


def test_torchs_writer_of_files_has_no_class_for_a_full_disk() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.save(torch.zeros(10_000), "/dev/full")
    assert not isinstance(caught.value, OSError) and says_unwritten(str(caught.value)), "a full disk is not told as one"


def test_safetensors_passes_on_the_words_of_rust(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="Error while serializing") as caught, files_of(2**16):
        safetensors.torch.save_file({"a": torch.zeros(2**20)}, tmp_path / "a.safetensors")
    assert not isinstance(caught.value, OSError) and says_unwritten(str(caught.value)), "a full disk is not told as one"


def test_a_damaged_file_is_no_full_disk() -> None:
    assert not says_unwritten("[enforce fail at inline_container.cc:232] . file in archive is not in a subdirectory")
    assert not says_unwritten("No such file or directory (os error 2)")


def test_the_limit_of_file_sizes_is_named() -> None:
    too_large, full = OSError(errno.EFBIG, "File too large"), OSError(errno.ENOSPC, "No space left on device")
    with files_of(2**19):
        assert why_unwritten(too_large) == "File too large: a process may write files of 0.5 MiB (ulimit -f)"
        assert why_unwritten(full) == "No space left on device"
    if resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY:
        assert why_unwritten(too_large) == "File too large"
