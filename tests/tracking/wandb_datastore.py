"""Reads the `run-ID.wandb` files that W&B writes.

The format: a header of 7 bytes, then blocks of 32 KiB. A block holds chunks of
`crc32 u32 | length u16 | type u8 | data`, little-endian; the checksum covers the type and the data; a record
is one full chunk, or a first, middle ones and a last. A block's last bytes are padding when no chunk
header fits. A record is a `wandb_internal_pb2.Record`.
"""

import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK = 32 * 1024
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def payloads(path: Path) -> Iterator[bytes]:
    data = path.read_bytes()
    assert struct.unpack("<4sHB", data[:7]) == (b":W&B", 0xBEE1, 0)
    position, parts = 7, b""
    while position < len(data):
        left = BLOCK - position % BLOCK
        if left < 7:
            position += left
            continue
        checksum, length, kind = struct.unpack("<IHB", data[position : position + 7])
        chunk = data[position + 7 : position + 7 + length]
        assert zlib.crc32(bytes([kind]) + chunk) == checksum
        position += 7 + length
        parts = chunk if kind in (FULL, FIRST) else parts + chunk
        if kind in (FULL, LAST):
            yield parts


def records(path: Path) -> list[Any]:
    from wandb.proto import wandb_internal_pb2

    return [wandb_internal_pb2.Record.FromString(payload) for payload in payloads(path)]


def history(path: Path) -> list[dict[str, Any]]:
    """Every logged row, W&B's own keys (`_step`, `_timestamp`) left out."""
    return [
        {_key(item): json.loads(item.value_json) for item in record.history.item if _key(item)[0] != "_"}
        for record in records(path)
        if record.WhichOneof("record_type") == "history"
    ]


def run(path: Path) -> Any:
    """The run record: id, display name, project, group, tags, job type, config."""
    return next(record.run for record in records(path) if record.WhichOneof("record_type") == "run")


def config(path: Path) -> dict[str, Any]:
    return {_key(item): json.loads(item.value_json) for item in run(path).config.update}


def summary(path: Path) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for record in records(path):
        if record.WhichOneof("record_type") == "summary":
            merged |= {_key(item): json.loads(item.value_json) for item in record.summary.update}
    return merged


def exit_code(path: Path) -> int | None:
    codes = [r.exit.exit_code for r in records(path) if r.WhichOneof("record_type") == "exit"]
    return codes[-1] if codes else None


def _key(item: Any) -> str:
    return item.key or "/".join(item.nested_key)
