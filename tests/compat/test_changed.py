"""What is said when a library has changed inside."""

import pytest
import torch

from paceline.compat.changed import ChangedLibraryError, need


def test_a_name_that_is_gone_is_named_with_its_library_and_what_it_was_for() -> None:
    with pytest.raises(ChangedLibraryError, match=r"^torch 2\S+: Tensor has no _gone, from which bytes are read; ins"):
        need(torch.zeros(1), "_gone", "torch", "from which bytes are read")


def test_a_name_that_is_there_is_given() -> None:
    assert need(torch.zeros(2, 3), "shape", "torch", "") == (2, 3)
