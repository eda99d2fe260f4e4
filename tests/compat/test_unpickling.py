"""torch's table of what torch.load(weights_only=True) makes."""

import io
import pickle

import pytest
import torch

from paceline.compat.unpickling import without_bytearray


def test_a_bytearray_is_refused_inside_alone() -> None:
    file = io.BytesIO()
    torch.save([bytearray(b"abc")], file)

    def load() -> object:
        file.seek(0)
        return torch.load(file, weights_only=True)

    assert load() == [bytearray(b"abc")]
    with without_bytearray(), pytest.raises(pickle.UnpicklingError, match="bytearray"):
        load()
    assert load() == [bytearray(b"abc")]
