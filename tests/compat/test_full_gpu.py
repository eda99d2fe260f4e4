"""Errors that say by their message alone that a GPU is full."""

import torch
import torch.distributed as dist


def test_they_are_runtime_errors() -> None:
    assert issubclass(torch.OutOfMemoryError, RuntimeError) and issubclass(dist.DistBackendError, RuntimeError), (
        "torch raises other classes: a full GPU is told as a mistake of ours"
    )
