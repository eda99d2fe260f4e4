"""Sweeps in W&B's schema, for tests."""

from pathlib import Path
from typing import Any

import yaml

from paceline.sweep.schema import from_schema

COMMAND = ["${program}", "train", "${args_no_hyphens}"]
SWEPT = {"sync": {"values": ["bsp", "ssp"]}}


def schema(**changes: Any) -> dict[str, Any]:
    """A good sweep in W&B's schema, changed."""
    return {"program": "paceline", "method": "grid", "parameters": SWEPT, "command": COMMAND, **changes}


def parameter(**choice: Any) -> Any:
    """The space that W&B's schema makes of it."""
    return from_schema(schema(parameters={"a": choice}, method="random", run_cap=3)).parameters["a"]


def written(path: Path, plain: Any) -> str:
    path.write_text(yaml.safe_dump(plain))
    return str(path)
