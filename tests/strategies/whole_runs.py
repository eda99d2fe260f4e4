"""Runs through the engine, as the command makes them."""

from typing import Any

import safetensors.torch
from torch import Tensor

from paceline.engine import run


def trained(*overrides: str, **how: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The whole model's weights, and the run's summary."""
    result = run(list(overrides), quiet=True, **how)
    assert result is not None and result.summary["status"] == "completed"
    return safetensors.torch.load_file(result.path / "model.safetensors"), result.summary
