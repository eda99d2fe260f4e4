"""Runs whose model has a mixture of experts."""

from pathlib import Path

import pytest
from safetensors.torch import load_file
from torch.testing import assert_close

from paceline.conf.errors import ConfigError
from paceline.engine import Result, prepare, run

MIXED = ["model=gpt", "data=text", "data.context=16", "data.limit=64", "model.n_layer=2", "model.width=32"]
MIXED += ["model.experts=4", "model.active=2", "steps=3", "seed=1"]


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.usefixtures("fork_server")
@pytest.mark.parametrize("strategy", ["data_parallel", "offload"])
def test_two_workers_train_the_weights_of_one_and_hold_the_memory_of_the_plan(tmp_path: Path, strategy: str) -> None:
    how = [*MIXED, "hardware=virtual", "tracking=none", "checkpoint.every=0", "evaluate.every=100"]

    def train(workers: int) -> Result:
        its = strategy if workers > 1 else "data_parallel"
        sizes = [f"strategy={its}", f"hardware.workers={workers}", f"batch_size={16 // workers}"]
        found = run([*how, *sizes], name=f"of-{workers}", root=tmp_path, quiet=True)
        assert found is not None
        return found

    one, two = train(1), train(2)
    weights = [load_file(each.path / "model.safetensors") for each in (one, two)]
    assert "block1.mlp.expand" in weights[0]
    assert_close(*weights, rtol=1e-4, atol=1e-6)
    planned = prepare([*how, f"strategy={strategy}", "hardware.workers=2", "batch_size=8"]).plan()
    assert {kind: two.memory[kind] for kind in planned.peak_memory()} == planned.peak_memory()
    assert planned.as_dict()["experts"] == {"active_parameters": 58_688, "parameters": 91_456}


def test_the_gradients_of_several_samples_at_once_are_refused() -> None:
    private = [*MIXED, "privacy=dp_sgd", "batch_size=8"]
    with pytest.raises(ConfigError, match=r"a layer has passes whose shapes follow from values.*privacy\.at_once=1"):
        prepare(private).plan()
    assert prepare([*private, "privacy.at_once=1"]).plan().steps == 3
