"""`make bench`: prints a table and writes the same as JSON; ARGS="--quick" for a short look."""

import json
import os
import platform
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from .compare import compare_many
from .compression import compression_against_torch
from .ddp import bsp_against_ddp
from .fedavg import fedavg_against_flower
from .harness import harness_against_bare_loop
from .hogwild import hogwild_against_locks
from .large_batches import lars_against_pytorch_optimizer
from .local_sgd import local_sgd_against_torch
from .measure import Outcome
from .memory import memory_table
from .pipeline import pipeline_against_torch
from .predictions import predictions
from .robust import rules_against_byzfl
from .sharding import sharding_against_torch
from .start import start_times
from .sums import sums_against_gloo
from .sweep import sweep_overhead
from .tensor import tensor_against_torch
from .virtual import many_virtual_workers, virtual_speed
from .zero import zero_against_deepspeed

RESULTS = Path(__file__).with_name("results.json")

COMPARISONS: dict[str, tuple[Callable[[int], list[Outcome]], int, int]] = {  # what is compared, rounds, a quick look's
    "bsp": (bsp_against_ddp, 12, 4),
    "sums": (sums_against_gloo, 12, 4),
    "compression": (compression_against_torch, 9, 3),
    "harness": (harness_against_bare_loop, 12, 4),
    "start": (start_times, 7, 3),
    "hogwild": (hogwild_against_locks, 12, 4),
    "local_sgd": (local_sgd_against_torch, 12, 4),
    "sharding": (sharding_against_torch, 12, 4),
    "large_batches": (lars_against_pytorch_optimizer, 12, 4),
    "robust": (rules_against_byzfl, 12, 4),
    "tensor": (tensor_against_torch, 12, 3),
    "pipeline": (pipeline_against_torch, 12, 4),
    "zero": (zero_against_deepspeed, 40, 3),
    "sweep": (sweep_overhead, 3, 1),
    "fedavg": (fedavg_against_flower, 3, 1),
    "virtual": (virtual_speed, 3, 1),
    "many_virtual": (many_virtual_workers, 1, 1),
    "compare": (compare_many, 3, 1),
    "predictions": (predictions, 1, 0),
}


def main(
    quick: Annotated[bool, typer.Option(help="Few rounds: a look, not a figure to quote.")] = False,
    only: Annotated[list[str] | None, typer.Option(help=f"{', '.join(COMPARISONS)}; all of them, else.")] = None,
    json_file: Annotated[Path, typer.Option("--json", help="Where the figures go as JSON.")] = RESULTS,
) -> None:
    """Time paceline against what a user would pick instead."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # and end what was started
    machine = {"cpus": len(os.sched_getaffinity(0)), "torch": torch.__version__, "host": platform.machine()}
    rows, outcomes = _before(json_file, machine), list[Outcome]()
    failed: list[str] = []
    for name in only or COMPARISONS:
        if name not in COMPARISONS:
            raise typer.BadParameter(f"--only {name}: must be one of {', '.join(COMPARISONS)}")
        compare, rounds, few = COMPARISONS[name]
        print(f"{name} ...", file=sys.stderr, flush=True)
        try:
            outcomes += compare(few if quick else rounds)
        except Exception as error:  # the others' figures took long
            failed.append(f"{name}: {error}")
        rows |= {outcome.name: outcome.as_json() for outcome in outcomes}
        json_file.write_text(json.dumps({"machine": machine, "results": list(rows.values())}, indent=2) + "\n")
    Console(width=None if sys.stdout.isatty() else 150).print(_table(outcomes))
    print(f"medians; the ratio is the median over rounds, ours and the peer in turn; written to {json_file}")
    if not quick and not only:
        print(f"\npeak memory, 2 workers, GPT of 114 M parameters:\n{memory_table()}")
    if failed:
        sys.exit("\n\n".join(["not measured:", *failed]))


def _before(file: Path, machine: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The rows that the file has of this kind of machine, by name: what is not measured now stays."""
    known = json.loads(file.read_text()) if file.exists() else {"machine": {}}
    return {row["name"]: row for row in known["results"]} if known["machine"] == machine else {}


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
