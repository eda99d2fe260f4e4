# The shipped sample.txt: Herman Melville, "Moby-Dick; or, The Whale", 1851, chapters 1 to 15. Public domain.
"""A text as bytes: predict the next one. The vocabulary is the 256 bytes, so any file will do."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor

from ...conf.errors import ConfigError
from ..base import Data, DataSpec, Described, Taken, at_most
from .files import asked, check_readable, reading

SAMPLE = Path(__file__).with_name("sample.txt")


@dataclass(frozen=True)
class TextSplit:
    """`windows`: [n, context + 1] bytes, each with the byte that comes next.

    As int64, of which batches are made, they would take eight times the memory of the text.
    """

    windows: np.ndarray
    weights: None = None

    @property
    def targets(self) -> Tensor:
        return self.take(slice(None)).targets

    def __len__(self) -> int:
        return len(self.windows)

    def take(self, index: Tensor | slice, drawn: int = 0) -> Taken:
        read = self.windows[index if isinstance(index, slice) else index.numpy()].astype(np.int64)
        return Taken(torch.from_numpy(read[:, :-1].copy()), torch.from_numpy(read[:, 1:].copy()), None)

    def weights_of(self, index: Tensor | slice, shape: torch.Size) -> None:
        return None


class Text(Data):
    """Non-overlapping windows: inputs [context] int64, targets the same moved on by one byte.

    The last tenth of the file is for test. `path`: null takes the shipped sample; `limit`: take the first so many
    training windows. `spec` and `load` raise ConfigError for a text too short for one window of each split.
    """

    def __init__(
        self,
        path: str | None = None,
        context: Annotated[int, Ge(1)] = 64,
        limit: Annotated[int, Ge(1)] | None = None,
    ) -> None:
        self.path = asked(path) or SAMPLE
        self.context = context
        self.limit = limit

    @property
    def spec(self) -> DataSpec:
        train = test = None
        if self.found():
            train, test = (part // self.context for part in self._parts(self.path.stat().st_size))
            train = at_most(train, self.limit)
        return DataSpec((self.context,), torch.int64, (self.context,), 256, train, test)

    def check_files(self) -> None:
        check_readable(self.how_to_get(), self.path)

    def load(self) -> tuple[TextSplit, TextSplit]:
        self.check_files()
        with reading(self.path) as file:
            text = np.frombuffer(file.read(), dtype=np.uint8)
        train, _ = self._parts(len(text))
        # A split of n + 1 bytes has n bytes that have a next one.
        return TextSplit(self._windows(text[: train + 1])[: self.limit]), TextSplit(self._windows(text[train + 1 :]))

    def how_to_get(self) -> str:
        return "Set data.path to a text file, or data.path=null for the sample that comes with paceline."

    def found(self) -> str | None:
        return str(self.path) if self.path.is_file() else None

    def files(self) -> tuple[Path, ...]:
        return (self.path,)

    def described(self) -> Described:
        return Described(("bytes",), ("the next byte",))

    def _parts(self, size: int) -> tuple[int, int]:
        """The bytes with a next one in the training and in the test split of a file of `size` bytes."""
        test = size // 10
        parts = size - test - 1, test - 1
        if min(parts) < self.context:
            raise ConfigError(
                f"{self.path} has {size} bytes, too few for data.context={self.context}: "
                f"the last tenth, for test, needs {self.context + 1} of them. Use a longer text or a smaller context."
            )
        return parts

    def _windows(self, text: np.ndarray) -> np.ndarray:
        return sliding_window_view(text, self.context + 1)[:: self.context]
