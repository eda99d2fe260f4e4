"""Columns of a table whose rows are lists of numbers or texts: each becomes a row of `length` entries."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from ...conf.errors import ConfigError
from ..errors import CorruptDataError, MissingDataError
from .files import check_readable, folder_of
from .mapped import signed

BYTES = "bytes"
LENGTH = 128  # tokens of a text, where nobody says how many
_PADDING = ("[PAD]", "<pad>", "<|endoftext|>")


def is_list(kind: Any) -> bool:
    """Returns True for a type of Arrow's that is a list of numbers."""
    types = import_module("pyarrow").types
    if not (types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)):
        return False
    return types.is_integer(kind.value_type) or types.is_floating(kind.value_type)


def is_text(kind: Any) -> bool:
    types = import_module("pyarrow").types
    return types.is_string(kind) or types.is_large_string(kind)


def list_column(column: Any, length: int, pads: bool, what: str) -> np.ndarray:
    """Returns [rows, length] of a column of lists: int64 or float64.

    Raises CorruptDataError for nothing in a row, and for lists of another length.

    Args:
        pads: longer lists are cut, and shorter ones filled with 0.
        what: begins a sentence: the file and the column.
    """
    column = column.combine_chunks()
    values = column.flatten()
    lengths = import_module("pyarrow.compute").list_value_length(column).fill_null(-1).to_numpy()
    if (lengths < 0).any():
        raise CorruptDataError(f"{what} has nothing in row {int(np.argmax(lengths < 0))} (the first is 0)")
    ends = np.cumsum(lengths)
    if values.null_count:
        row = int(np.searchsorted(ends, np.argmax(np.asarray(values.is_null())), side="right"))
        raise CorruptDataError(f"{what} has nothing in the list of row {row} (the first is 0)")
    if not pads and (lengths != length).any():
        row = int(np.argmax(lengths != length))
        raise CorruptDataError(
            f"{what} has lists of {length} and, in row {row} (from 0 on), of {lengths[row]} entries. data.length=N "
            "cuts longer ones and fills shorter ones with 0"
        )
    flat = values.to_numpy(zero_copy_only=False)
    flat = signed(flat, what).astype(np.int64 if flat.dtype.kind in "iu" else np.float64)
    if not pads:
        return flat.reshape(len(lengths), length)
    found = np.zeros((len(lengths), length), flat.dtype)
    for row, (end, size) in enumerate(zip(ends.tolist(), lengths.tolist(), strict=True)):
        kept = flat[end - size : end][:length]
        found[row, : len(kept)] = kept
    return found


def tokenizer(said: str, length: int) -> Callable[[list[str]], np.ndarray]:
    """Returns the function of texts to tokens [texts, length], int64: longer texts are cut, shorter ones filled up.

    Bytes are filled up with 0. Raises as `check_tokens`, and CorruptDataError for a file that is none of tokenizers'.
    """
    if said == BYTES:
        return lambda texts: _filled([list(text.encode()[:length]) for text in texts], length, 0)
    check_tokens(said)
    library, path = import_module("tokenizers"), Path(said).expanduser()
    try:
        made = library.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing else
        raise CorruptDataError(f"data.tokens={said}: is no file of tokenizers: {error}") from error
    padding = made.padding or {}
    known = [made.token_to_id(each) for each in _PADDING]
    pad = padding.get("pad_id", next((each for each in known if each is not None), 0))
    made.no_padding()
    made.enable_truncation(length)
    return lambda texts: _filled([each.ids for each in made.encode_batch(texts)], length, pad)


def check_tokens(said: str) -> None:
    """Raises MissingDataError where a file or the package that reads it is missing."""
    if said == BYTES:
        return
    path = Path(said).expanduser()
    check_readable("Set data.tokens to bytes, or to a tokenizer.json.", path)
    if path.suffix.lower() != ".json":
        raise ConfigError(f"data.tokens={said}: must be bytes, or a tokenizer.json of the package tokenizers")
    if folder_of("tokenizers") is None:
        raise MissingDataError(f"data.tokens={said}: tokenizers is not installed: pip install tokenizers")


def _filled(rows: list[list[int]], length: int, pad: int) -> np.ndarray:
    found = np.full((len(rows), length), pad, np.int64)
    for row, tokens in enumerate(rows):
        found[row, : len(tokens)] = tokens
    return found
