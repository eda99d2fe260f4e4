"""The knobs in which runs of the same choices differ: without a column for them, nobody could tell the runs apart."""

import json
from collections.abc import Sequence
from typing import Any

from ..conf.groups import GROUPS, SHOWN
from .run_data import RunData
from .selection import configured

_WITH_A_COLUMN = (*(group.name for group in SHOWN), "hardware.workers")
_GROUPS = frozenset((*(group.name for group in GROUPS), "callbacks"))
_OTHERS = ("batch_size", "drop_last", "accumulate", "compile")  # beside the groups and their knobs


def differing(runs: Sequence[RunData]) -> list[str]:
    """Returns the keys of the command line (`strategy.schedule`, `optimizer`) in which runs differ that agree in all
    that has a column, in the order of configurations.

    Runs of sweeps are left out: their records name the parameters that were varied.
    """
    alike: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        if run.swept is None and run.config:
            chosen = configured(run)
            alike.setdefault(json.dumps([chosen.get(key) for key in _WITH_A_COLUMN], default=str), []).append(chosen)
    return list(dict.fromkeys(key for some in alike.values() if len(some) > 1 for key in _differing(some)))


def _differing(chosen: list[dict[str, Any]]) -> list[str]:
    values: dict[str, set[str]] = {}
    for run in chosen:
        for key, value in run.items():
            if key in _OTHERS or key.partition(".")[0] in _GROUPS:
                values.setdefault(key, set()).add(json.dumps(value, default=str, sort_keys=True))
    return [key for key, found in values.items() if len(found) > 1]
