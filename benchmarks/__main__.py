"""`make bench`: prints a table and writes the same as JSON; ARGS="--quick" for a short look."""

import json
import os
import platform
import sys
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table

from .cuda import cuda_speed
from .ddp import bsp_against_ddp
from .fedavg import fedavg_against_flower
from .harness import harness_against_bare_loop
from .hogwild import hogwild_against_locks
from .local_sgd import local_sgd_against_torch
from .measure import Outcome
from .memory import memory_table
from .sharding import sharding_against_torch
from .start import start_times
from .sweep import sweep_overhead
from .virtual import virtual_speed
from .zero import zero_against_deepspeed

RESULTS = Path(__file__).with_name("results.json")


def main(
    quick: Annotated[bool, typer.Option(help="Few rounds: a look, not a figure to quote.")] = False,
    json_file: Annotated[Path, typer.Option("--json", help="Where the figures go as JSON.")] = RESULTS,
) -> None:
    """Time paceline against what a user would pick instead."""
    rounds = 4 if quick else 12
    outcomes = bsp_against_ddp(rounds) + harness_against_bare_loop(rounds) + start_times(3 if quick else 7)
    outcomes += hogwild_against_locks(rounds) + local_sgd_against_torch(rounds) + sharding_against_torch(rounds)
    outcomes += zero_against_deepspeed(2 if quick else 8)
    outcomes += sweep_overhead(1 if quick else 3)
    outcomes += fedavg_against_flower(1 if quick else 3) + virtual_speed(1 if quick else 3)
    machine = {"cpus": len(os.sched_getaffinity(0)), "torch": torch.__version__, "host": platform.machine()}
    json_file.write_text(json.dumps({"machine": machine, "results": [o.as_json() for o in outcomes]}, indent=2) + "\n")
    Console(width=None if sys.stdout.isatty() else 150).print(_table(outcomes))
    print(f"medians; the ratio is the median over rounds, ours and the peer in turn; written to {json_file}")
    if not quick:
        print(f"\npeak memory, 2 workers, GPT of 114 M parameters:\n{memory_table()}\n{cuda_speed()}")


def _table(outcomes: list[Outcome]) -> Table:
    table = Table("what", "ours ms", "peer ms", "peer", "ratio", "range", "target", title="paceline against its peers")
    for o in outcomes:
        spread = f"{o.low:.2f} to {o.high:.2f}" if o.low is not None else ""
        ratio = f"{o.ratio:.3f}" if o.ratio is not None else ""
        peer = f"{o.peer:,.2f}" if o.peer is not None else ""
        table.add_row(o.name, f"{o.ours:,.2f}", peer, o.peer_name, ratio, spread, o.target)
    return table


if __name__ == "__main__":
    typer.run(main)
