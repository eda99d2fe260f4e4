"""Checksums in the files that they are of: damage and mistakes are noticed, whoever moves or copies the file.

They protect from a failing disk, a slipped editor and a mixed-up copy. Whoever can write where the files are can
compute them, too: docs/decisions says so.

A text has its SHA-256 in its last line, a comment of YAML. A safetensors file has it among its metadata: the SHA-256 of
the whole file, with zeros in the place of the checksum.
"""

import hashlib
import json
import os
import re
from io import BufferedReader
from pathlib import Path
from typing import Any, Literal

from .files import UnusableFileError, open_regular, parse_json

Verdict = Literal["whole", "changed", "unmarked"]  # unmarked: it has no checksum
KEY = "sha256"
BLANK = "0" * 64  # in a safetensors file's metadata, until its checksum is known
_MOST_HEADER = 100 * 2**20  # as the safetensors library has it
_CHUNK = 1 << 20
_LAST_LINE = re.compile(r"# sha256 of the lines above: ([0-9a-f]{64})\n")


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def marked(text: str) -> str:
    """A text of whole lines, with its checksum below."""
    assert text.endswith("\n")
    return f"{text}# sha256 of the lines above: {sha256(text.encode())}\n"


def verdict_on(text: str) -> Verdict:
    """Returns whether a text is as `marked` made it."""
    lines = text.splitlines(keepends=True)
    last = _LAST_LINE.fullmatch(lines[-1]) if lines else None
    if last is None:
        return "unmarked"
    return "whole" if sha256("".join(lines[:-1]).encode()) == last[1] else "changed"


def seal(data: bytes) -> tuple[bytes, str]:
    """A safetensors file whose metadata have `BLANK` under `KEY`, with its checksum there; and the checksum."""
    header = data[8 : 8 + int.from_bytes(data[:8], "little")]
    assert header.count(BLANK.encode()) == 1
    digest = sha256(data)
    return data.replace(BLANK.encode(), digest.encode(), 1), digest


def read_header(file: BufferedReader) -> tuple[bytes, bytes, dict[str, Any]]:
    """Returns the first eight bytes of a safetensors file, its header, and the header's content.

    Raises `UnusableFileError`, also for a file that is not as long as its header says: a file that was extended by
    holes would take minutes to hash.
    """
    start = file.read(8)
    length = int.from_bytes(start, "little")
    if len(start) < 8 or length > _MOST_HEADER:
        raise UnusableFileError("does not begin as a safetensors file does")
    header = file.read(length)
    told = parse_json(header)
    try:
        ends = [each["data_offsets"][1] for name, each in told.items() if name != "__metadata__"]
        expected = 8 + length + max(ends, default=0)
        size = os.fstat(file.fileno()).st_size
        is_whole = size == expected
    except (AttributeError, KeyError, IndexError, TypeError):
        raise UnusableFileError("does not have the header of a safetensors file") from None
    if not is_whole:
        raise UnusableFileError(f"has {size:,} bytes, and its header says {expected:,}")
    return start, header, told


def verdict_on_tensors(path: Path) -> tuple[Verdict, str]:
    """Returns the verdict on a safetensors file, and the checksum that it should have. Raises `OSError` or
    `UnusableFileError`.
    """
    with open_regular(path) as file:
        start, header, told = read_header(file)
        metadata = told.get("__metadata__")
        digest = metadata.get(KEY) if isinstance(metadata, dict) else None
        if not isinstance(digest, str):
            return "unmarked", ""
        found = hashlib.sha256(start + header.replace(digest.encode(), BLANK.encode(), 1))
        while chunk := file.read(_CHUNK):
            found.update(chunk)
    return ("whole" if found.hexdigest() == digest else "changed"), digest


def json_sealed(content: dict[str, object]) -> str:
    """A JSON object with its own checksum as the last key."""
    plain = json.dumps(content, indent=2)
    return json.dumps({**content, KEY: sha256(plain.encode())}, indent=2)


def json_is_whole(text: str) -> bool:
    """Returns whether a text is, byte for byte, as `json_sealed` made it. Raises `UnusableFileError` when it is no
    JSON.
    """
    content = parse_json(text)
    if not isinstance(content, dict) or KEY not in content:
        return False
    return json_sealed({key: value for key, value in content.items() if key != KEY}) == text
