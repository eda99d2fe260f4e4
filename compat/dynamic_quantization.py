"""torch's dynamic quantization, which it has announced to leave to torchao, and whose tensors warn of that."""

import warnings
from typing import Any

import torch
from torch import nn

from .changed import ChangedLibraryError


def dynamically_quantized(model: nn.Module) -> nn.Module:
    """A copy whose nn.Linear layers hold int8 weights, and round what they are given as they get it. On the CPU.

    Raises `ChangedLibraryError` where torch has it no more.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # DeprecationWarning of the module, UserWarning of its tensors
        try:
            from torch.ao import quantization
        except ImportError as error:
            raise ChangedLibraryError(
                f"torch {torch.__version__}: has no torch.ao.quantization, by which a model is evaluated in int8 "
                f"({error})"
            ) from None
        quantize: Any = quantization.quantize_dynamic
        return quantize(model, {nn.Linear}, dtype=torch.qint8)
