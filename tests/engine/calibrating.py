"""A process in the place of one that calibrates."""

import json
from multiprocessing.connection import Connection


def tells(rank: int, workers: int, store: object, conditions: object, quick: bool, out: Connection) -> None:
    if rank == 0:
        out.send_bytes(json.dumps({"found": {"workers": workers}}).encode())
