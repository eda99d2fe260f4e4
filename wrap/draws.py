"""The random generators of a process: those that a script's passes, samplers and data sets may draw from."""

import random
import sys

import torch

from ..strategies import State


def drawn(device: torch.device) -> State:
    """Returns the states of the generators."""
    kept: State = {"torch": torch.get_rng_state(), "python": list(random.getstate())}
    if "numpy" in sys.modules:
        kind, keys, *rest = sys.modules["numpy"].random.get_state()
        kept["numpy"] = [kind, keys.tolist(), *rest]
    if device.type == "cuda":
        kept["cuda"] = torch.cuda.get_rng_state(device)
    return kept


def draw_on(kept: State, device: torch.device) -> None:
    """Gives the generators these states."""
    torch.set_rng_state(kept["torch"])
    version, numbers, following = kept["python"]
    random.setstate((version, tuple(numbers), following))
    if "numpy" in kept:
        import numpy as np

        np.random.set_state(tuple(kept["numpy"]))  # noqa: NPY002 - the generator that scripts share
    if "cuda" in kept and device.type == "cuda":
        torch.cuda.set_rng_state(kept["cuda"], device)
