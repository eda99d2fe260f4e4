"""Columns of a table whose rows are lists of numbers or texts: each becomes a row of `length` entries."""

import json
import math
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
MOST_GROWTH = 256  # times as many characters or tokens; those of well-known tokenizers are below 110
_BATCH = 256  # texts that are encoded at once: larger batches are no faster, and take more memory
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

    Bytes are filled up with 0. Raises as `check_tokens`, and CorruptDataError for a file that is none of tokenizers',
    and for one that makes texts much longer: a few steps could fill the memory.
    """
    if said == BYTES:
        return lambda texts: _filled([list(text.encode()[:length]) for text in texts], length, 0)
    check_tokens(said)
    library, path = import_module("tokenizers"), Path(said).expanduser()
    with _told(f"data.tokens={said}: is no file of tokenizers"):
        made = library.Tokenizer.from_file(str(path))
    parts = made.normalizer, made.pre_tokenizer, made.post_processor
    times = math.prod(_growth(json.loads(part.__getstate__())) for part in parts if part is not None)
    if times > MOST_GROWTH:
        raise CorruptDataError(
            f"data.tokens={said}: may make a text {times:,.0f} times as long; must be at most {MOST_GROWTH} times. "
            "Take steps out of its normalizer, pre_tokenizer or post_processor"
        )
    padding = made.padding or {}
    known = [made.token_to_id(each) for each in _PADDING]
    pad = padding.get("pad_id", next((each for each in known if each is not None), 0))
    made.no_padding()
    made.enable_truncation(length)

    def encoded(texts: list[str]) -> np.ndarray:
        batches = (texts[at : at + _BATCH] for at in range(0, len(texts), _BATCH))
        with _told(f"data.tokens={said}: fails on a text"):
            return _filled([each.ids for batch in batches for each in made.encode_batch(batch)], length, pad)

    return encoded


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Raises CorruptDataError for an error of tokenizers, which has no class of its own, and for a panic of Rust's."""
    try:
        yield
    except BaseException as error:
        if type(error) is not Exception and type(error).__name__ != "PanicException":
            raise
        raise CorruptDataError(f"{what}: {error}") from error


def _growth(part: Any) -> float:
    """Returns how many times as many characters or tokens a part of a tokenizer may make of its input."""
    match part:
        case {"normalizers": steps} | {"pretokenizers": steps} | {"processors": steps}:
            return math.prod(map(_growth, steps))
        case {"type": "Replace", "pattern": {"String": old}, "content": new} if old:
            return max(1.0, len(new) / len(old))
        case {"type": "Replace", "content": new} | {"prepend": new}:
            return 1.0 + len(new)  # a pattern may match between any two characters
        case {"type": "ByteLevel"}:
            return 2.0
        case {"precompiled_charsmap": packed}:  # the size of a table, the table, and texts that each end with a NUL
            content = b64decode(packed)
            texts = content[4 + int.from_bytes(content[:4], "little") :].split(b"\0")
            return float(max(1, *(len(text.decode(errors="replace")) for text in texts)))
        case {"single": pieces, "special_tokens": tokens}:
            names = [piece.get("SpecialToken", {}).get("id") for piece in pieces]
            return float(max(1, sum(1 if name is None else len(tokens[name]["ids"]) for name in names)))
        case _:
            return 1.0


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
        kept = tokens[:length]  # a post-processor may add some
        found[row, : len(kept)] = kept
    return found
