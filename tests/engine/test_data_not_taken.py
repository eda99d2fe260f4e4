"""A model that does not take its data is refused by each strategy, once no kind of tensor is left to try it on."""

import sys
from pathlib import Path

import pytest

from paceline import engine
from paceline.conf.errors import ConfigError
from paceline.engine.config import looking
from paceline.engine.config.fits import NotTakenError


def test_an_attempt_that_looks_by_itself_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "_known", {})
    experiment = engine.prepare(["model=mlp"]).experiment
    attempts = 0

    def fails() -> None:
        nonlocal attempts
        attempts += 1
        if attempts > 20:
            sys.exit("it goes on for ever")
        raise NotTakenError("65 features, and the data have 64")

    with pytest.raises(NotTakenError, match="65 features"):
        looking.on_values_where_needed(experiment, lambda: looking.on_values_where_needed(experiment, fails, ()), ())
    assert looking.tried(experiment) is looking.Tried.META  # of the next plan


def test_a_strategy_refuses_it_where_it_follows_its_passes() -> None:
    other_channels = "model={_target_:torch.nn.Conv2d,in_channels:3,out_channels:10,kernel_size:3}"
    with pytest.raises(ConfigError, match="model=Conv2d does not take a batch of data=digits"):
        engine.prepare([other_channels, "data=digits", "hardware.workers=2", "strategy=domain"]).plan()


def test_a_loss_of_the_models_own_needs_an_argument_for_the_targets() -> None:
    words = r"task=model: gives the targets to model=Linear as `labels`, and its forward takes \(input"
    with pytest.raises(ConfigError, match=rf"{words}.*Choose task.argument=NAME"):
        engine.prepare(["model={_target_:torch.nn.Linear,in_features:8,out_features:10}", "task=model"]).plan()


NORMED = """
from torch import nn

class NormedStages(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))
"""


def test_a_micro_batch_of_one_sample_is_no_look_at_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "normed_stages.py").write_text(NORMED)
    monkeypatch.syspath_prepend(tmp_path)
    model = ["model={_target_:normed_stages.NormedStages}", "data=digits", "batch_size=8", "drop_last=true"]
    stages = ["strategy=pipeline", "strategy.micro_batches=8", "hardware.workers=2"]
    with pytest.raises(ConfigError, match=r"^model=NormedStages does not take a batch .*more than 1 value per channel"):
        engine.prepare([*model, *stages], allow_modules=["normed_stages"]).plan()


IN_DOUBLE = """
from torch import nn

class InDouble(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
        self.double()
"""


@pytest.mark.parametrize("strategy", ["data_parallel", "pipeline", "tensor", "torch_fsdp"])
def test_weights_of_another_dtype_than_the_data_are_refused(
    strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in_double.py").write_text(IN_DOUBLE)
    monkeypatch.syspath_prepend(tmp_path)
    model = ["model={_target_:in_double.InDouble}", "data=digits", "hardware.workers=2", f"strategy={strategy}"]
    with pytest.raises(
        ConfigError, match=r"does not take a batch of data=digits.*same dtype, but got Float and Double"
    ):
        engine.prepare(model, allow_modules=["in_double"]).plan()
