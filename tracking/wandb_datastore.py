"""Reads the `run-ID.wandb` files that W&B writes offline, ours or anybody's.

The format: a header of 7 bytes, then blocks of 32 KiB. A block holds chunks of
`crc32 u32 | length u16 | type u8 | data`, little-endian; the checksum covers the type and the data; a record
is one full chunk, or a first, middle ones and a last. A block's last bytes are padding when no chunk
header fits. A record is a `wandb_internal_pb2.Record`.
"""

import struct
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..compat.wandb import record_of
from .errors import CorruptRunError
from .files import UnusableFileError, parse_json, read_bytes

HEADER = struct.pack("<4sHB", b":W&B", 0xBEE1, 0)
BLOCK = 32 * 1024
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


@dataclass
class StoredWandbRun:
    """A W&B run as its file has it; keys of nested values are joined by `/` in `history` and `summary`."""

    run_id: str = ""
    display_name: str = ""
    project: str = ""
    run_group: str = ""
    job_type: str = ""
    tags: list[str] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)  # W&B's own `_step`, `_runtime`, `_timestamp` too
    started: float = 0.0  # seconds since 1970
    exit_code: int | None = None  # None: it has not ended
    damaged: int = 0  # places where records were lost, a torn end aside


def read(path: Path) -> StoredWandbRun:
    """Raises CorruptRunError when `path` is no such file or cannot be read.

    A torn last record (the run was killed, or goes on) is left out; damage before it is passed over and counted.
    """
    payloads, damaged = split(path)
    stored = StoredWandbRun(damaged=damaged)
    for payload in payloads:
        try:
            _add(stored, record_of(payload))
        except (ValueError, RecursionError):
            stored.damaged += 1
    for row in reversed(stored.history):  # a run that was killed has no summary of its own
        stored.summary = row | stored.summary
    return stored


def read_json(text: str) -> Any:
    """Whole numbers beyond a float's range are infinite, as other numbers are. Raises UnusableFileError."""
    return parse_json(text, huge=float)


def split(path: Path) -> tuple[list[bytes], int]:
    """The records' bytes, and how many places are damaged. Raises CorruptRunError."""
    try:
        data = read_bytes(path, most=None)
    except OSError as error:
        raise CorruptRunError(f"{path}: cannot be read ({error.strerror})") from None
    except UnusableFileError as error:
        raise CorruptRunError(f"{path}: {error}") from None
    if data[: len(HEADER)] != HEADER:
        raise CorruptRunError(f"{path}: is no W&B file of the known version (its first bytes are {data[:7]!r})")
    payloads: list[bytes] = []
    position, parts, damaged = len(HEADER), [], 0
    while position < len(data):
        end_of_block = position + BLOCK - position % BLOCK
        chunk, kind, after = _chunk(data, position, end_of_block)
        if chunk is None:
            torn = after > len(data)
            padding = not any(data[position:end_of_block])
            position = len(data) if torn else end_of_block
            if not padding:
                damaged, parts = damaged + (not torn), []
            continue
        position = after
        parts = [chunk] if kind in (FULL, FIRST) else [*parts, chunk] if parts else []
        if kind in (FULL, LAST) and parts:
            payloads.append(b"".join(parts))
            parts = []
    return payloads, damaged


def _chunk(data: bytes, position: int, end_of_block: int) -> tuple[bytes | None, int, int]:
    """The chunk at `position`, its type, and where it ends; None where there is none."""
    start = position + 7
    if start > end_of_block:  # no header fits any more: padding
        return None, 0, end_of_block
    if start > len(data):
        return None, 0, start
    checksum, length, kind = struct.unpack_from("<IHB", data, position)
    chunk = data[start : start + length]
    whole = start + length <= end_of_block and FULL <= kind <= LAST
    if whole and start + length <= len(data) and zlib.crc32(chunk, zlib.crc32(bytes([kind]))) == checksum:
        return chunk, kind, start + length
    return None, 0, start + length if whole else end_of_block


def _add(stored: StoredWandbRun, record: Any) -> None:
    match record.WhichOneof("record_type"):
        case "run":
            run = record.run
            stored.run_id, stored.display_name, stored.project = run.run_id, run.display_name, run.project
            stored.run_group, stored.job_type, stored.tags = run.run_group, run.job_type, list(run.tags)
            stored.started = run.start_time.seconds + run.start_time.nanos / 1e9
            _update(stored.config, run.config)
        case "config":
            _update(stored.config, record.config)
        case "summary":
            stored.summary |= {_key(item): _value(item) for item in record.summary.update}
            for item in record.summary.remove:
                stored.summary.pop(_key(item), None)
        case "history":
            stored.history.append({_key(item): _value(item) for item in record.history.item})
        case "exit":
            stored.exit_code = record.exit.exit_code


def _update(config: dict[str, Any], changes: Any) -> None:
    for item in changes.update:
        *outer, last = list(item.nested_key) or [item.key]
        section = config
        for name in outer:
            section = section.setdefault(name, {})
            if not isinstance(section, dict):
                raise ValueError(f"{name} is no section")
        section[last] = _value(item)
    for item in changes.remove:
        config.pop(item.key or item.nested_key[0], None)


def _key(item: Any) -> str:
    return item.key or "/".join(item.nested_key)


def _value(item: Any) -> Any:
    if item.value_json:
        return read_json(item.value_json)
    kind = item.WhichOneof("value") if "value" in item.DESCRIPTOR.oneofs_by_name else None
    if kind in (None, "none"):
        return None
    value = getattr(item, kind)
    return read_json(value) if kind == "json" else value
