"""The batches that a model of a user's is planned with."""

from pathlib import Path

import pytest

from paceline.advise.answer import answer
from paceline.advise.question import ask
from paceline.conf.errors import ConfigError

NORMED = """
from torch import nn

class Normed(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))
"""


def test_batch_norm_of_vectors_which_no_single_sample_has_is_planned_with_the_batch_that_was_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "normed_vectors.py").write_text(NORMED)
    monkeypatch.syspath_prepend(tmp_path)
    typed = ["model={_target_:normed_vectors.Normed}", "data=digits", "hardware.workers=2", "strategy=data_parallel"]
    found = answer(ask([*typed, "sync=bsp", "batch_size=8"], allowed=["normed_vectors"]), patience=0.0)
    assert found.rows[0].candidate.family == "data_parallel"
    with pytest.raises(ConfigError, match=r"does not take a batch of data=digits, torch.float32 \[1, 1, 8, 8\]"):
        answer(ask([*typed, "sync=bsp", "batch_size=1"], allowed=["normed_vectors"]), patience=0.0)
