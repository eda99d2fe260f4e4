"""A run of a pipeline keeps the activations that its plan states, whatever is computed again for backward."""

from itertools import product
from pathlib import Path

import pytest

from paceline import engine

SETTINGS = [
    "tracking=none",
    "data.limit=64",
    "batch_size=16",
    "steps=2",
    "checkpoint.every=0",
    "model=gpt",
    "data=text",
    "model.n_layer=4",
    "model.width=64",
    "hardware.device=cpu",
    "hardware.threads=1",
]
AGAIN = {
    "neither": [],
    "strategy": ["strategy.recompute=true"],
    "model": ["model.recompute=true"],
    "both": ["strategy.recompute=true", "model.recompute=true"],
}
FAST = [("zb_h1", "model"), ("zb_v", "both")]


def activations(tmp_path: Path, *overrides: str) -> tuple[int, int]:
    """(Measured, stated.)"""
    result = engine.run([*SETTINGS, *overrides], root=tmp_path, quiet=True)
    assert result is not None
    found, stated = result.summary["memory"], result.summary["predicted"]["memory"]
    return found["activations"], stated["activations"]


def of(*how: str) -> object:
    return pytest.param(*how, marks=[] if how in FAST else pytest.mark.slow)


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.budget(2)
@pytest.mark.parametrize(
    ("schedule", "again"), [of(*how) for how in product(["gpipe", "1f1b", "interleaved", "zb_h1", "zb_v"], AGAIN)]
)
def test_activations_of_each_schedule_are_as_stated_to_the_byte(
    schedule: str, again: str, tmp_path: Path, fork_server: None
) -> None:
    how = ["strategy=pipeline", "hardware.workers=2", f"strategy.schedule={schedule}", *AGAIN[again]]
    found, stated = activations(tmp_path, *how)
    assert found == stated > 0


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize(("schedule", "again"), [*product(["1f1b", "zb_v"], AGAIN)])
def test_of_micro_batches_of_several_sizes_no_more_is_kept_than_is_stated(
    schedule: str, again: str, tmp_path: Path, fork_server: None
) -> None:
    how = ["strategy=pipeline", "hardware.workers=2", f"strategy.schedule={schedule}", "strategy.micro_batches=3"]
    found, stated = activations(tmp_path, *how, *AGAIN[again])
    assert 0.99 * stated <= found <= stated


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize(("schedule", "again"), [*product(["1f1b", "zb_h1"], AGAIN)])
def test_stages_of_several_workers_keep_what_is_stated(
    schedule: str, again: str, tmp_path: Path, fork_server: None
) -> None:
    how = ["strategy=hybrid", "hardware.workers=4", f"strategy.schedule={schedule}", *AGAIN[again]]
    found, stated = activations(tmp_path, *how)
    assert found == stated > 0


@pytest.mark.parametrize("schedule", ["zb_h1", "zb_v"])
@pytest.mark.slow
def test_what_is_computed_again_saves_memory_under_zero_bubble_too(schedule: str) -> None:
    def stated(again: str) -> int:
        how = ["strategy=pipeline", "hardware.workers=2", f"strategy.schedule={schedule}", *AGAIN[again]]
        return engine.prepare([*SETTINGS, *how]).plan().peak_memory()["activations"]

    assert max(map(stated, ["strategy", "model", "both"])) < 0.5 * stated("neither")
