"""A rule that makes a shorter message of a vector, and a vector of the message.

A rule is pure: `encode` and `decode` depend on what they are given alone. What one worker remembers from one message to
the next, the error feedback, is the channel's (exchange/channel.py).
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor


class UnreadableError(ValueError):
    """A message is none that this rule makes."""


class Compressor(ABC):
    """`linear`: sums of messages are the messages of sums, so that they can be all-reduced; else messages are tensors
    of bytes, which all workers gather. `lossless`: what is decoded is what was encoded. `error_feedback`: what a
    message leaves out is added to the next one. `sparse`: most entries of what is decoded are 0.
    `entrywise`: what is decoded for an entry depends on that entry alone, whatever vector it is part of.
    """

    linear: bool = False
    lossless: bool = False
    error_feedback: bool = False
    sparse: bool = False
    entrywise: bool = True

    @abstractmethod
    def encode(self, x: Tensor) -> Tensor:
        """[n] -> [m]: of any dtype if `linear`, else uint8."""

    @abstractmethod
    def decode(self, message: Tensor, n: int, dtype: torch.dtype) -> Tensor:
        """[m], as `encode` made it or its bytes -> [n], on the device of the message. Raises `UnreadableError`."""

    @abstractmethod
    def nbytes(self, n: int, dtype: torch.dtype) -> int:
        """Bytes of the message of a vector of n entries; where messages vary, the most that it can have."""
