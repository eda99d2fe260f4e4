"""What was made one by one, in one run: accumulation, precision, clipping, a schedule, an average, compression."""

import pytest

from paceline.engine import run

ALL = (
    "accumulate=2",
    "precision=bf16",
    "clip=norm",
    "schedule=cosine",
    "average=ema",
    "compress=bf16",
)
TINY = ("tracking=none", "hardware=virtual", "model.hidden=[16]", "batch_size=8", "data.limit=96", "steps=6")


def test_they_train_together_with_the_bytes_that_the_plan_states(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = run([*TINY, "hardware.workers=2", *ALL], quiet=True)
    assert result is not None and result.summary["status"] == "completed"
    assert result.summary["wire"]["bytes_per_step"] == pytest.approx(result.summary["predicted"]["bytes_per_step"])


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_cut_vocabulary_weighs_micro_batches_in_any_precision(tmp_path, monkeypatch, precision: str) -> None:
    """The loss of a step is the batch's mean, however many micro-batches it was cut into."""
    monkeypatch.chdir(tmp_path)
    asked = ["model=gpt", "data=text", "data.context=16", "model.n_layer=1", "model.width=16", "model.n_head=2"]
    asked += ["strategy=tensor", "strategy.vocabulary=true", "hardware.workers=2", "hardware=virtual", "tracking=none"]
    asked += ["batch_size=8", "steps=3", f"precision={precision}"]
    losses = []
    for accumulate in (1, 2):
        result = run([*asked, f"accumulate={accumulate}"], quiet=True)
        assert result is not None
        losses.append([record["loss"] for record in result.data.records if record["kind"] == "step"])
    assert losses[0] == pytest.approx(losses[1], rel=2e-2)
