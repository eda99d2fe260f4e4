"""A choice of hardware that looks as if paceline calibrate had written it, with times that can be told in the head."""

import platform
from pathlib import Path
from typing import Any

import yaml

from paceline.cost.alpha_beta import AlphaBeta
from paceline.cost.calibration import Calibration, Disk, MeasuredOperation, plain
from paceline.cost.kernels import KernelRates, KernelTable
from paceline.engine.base.machine import cores, cpu_model

MILLI = 1e-3
NOTHING = dict.fromkeys(("module", "graph", "node", "view", "view_back", "parameter", "stepped"), 0.0)
OPERATIONS = ("all_reduce", "gloo", "send", "all_gather", "reduce_scatter", "broadcast")


def machine(folder: Path, usable: int = 2, host: str | None = None, spread: float = 0.01, **sections: Any) -> Path:
    """hardware=lab in a directory of one's own: each operator takes 1 ms, an exchange 10 ms, a step 1 ms beside."""
    one = KernelTable(((1.0, MILLI), (1e12, MILLI)))
    rates = [KernelRates(1, usable, {"mul": one}, {**NOTHING, "step": MILLI})]
    links = [MeasuredOperation(name, 2, AlphaBeta(10 * MILLI, 0.0, 0.0)) for name in OPERATIONS]
    told = Calibration(
        "2026-11-01 10:00",
        host or platform.node(),
        cpu_model(),
        usable if host else cores(),
        {"torch": "2.13"},
        spread,
        rates,
        links,
        Disk(1e9, 1e-4),
        None,
    )
    file = folder / "hardware" / "lab.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    whole = {"defaults": ["local", "_self_"], **sections, "calibration": plain(told)}
    file.write_text("# lab\n" + yaml.safe_dump(whole, sort_keys=False, width=10**6))
    return folder
