"""Tensors that users' modules keep: a plan's, on the meta device, are none of training's."""

import sys
from pathlib import Path

import keeping_models
import pytest
import torch
from short_runs import HERE

from paceline import engine
from paceline.engine.base.caches import without_meta

QUICK = ["steps=2", "hardware=virtual", "hardware.workers=1", "checkpoint.every=0", "tracking=none"]


@pytest.mark.dist
@pytest.mark.parametrize("where", ["buffer", "plain", "both", "class", "dict"])
def test_a_model_that_keeps_tensors_beside_itself_is_trained(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fork_server: None
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(HERE)])
    model = f"model={{_target_:keeping_models.Keeps,where:{where}}}"
    result = engine.run([*QUICK, model], allow_modules=["keeping_models"], root=tmp_path, quiet=True)
    assert result is not None and result.summary["steps"] == 2


def test_what_was_kept_before_and_values_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    before, meta = torch.ones(1), torch.ones(1, device="meta")
    for cache in (keeping_models.scale, keeping_models.words):
        cache.cache_clear()
    keeping_models.words()
    monkeypatch.setattr(keeping_models.Keeps, "kept", before)
    monkeypatch.setattr(keeping_models, "_by_width", {1: before, 2: meta})
    with without_meta(["keeping_models"]):
        keeping_models.Keeps.kept = meta
        keeping_models.Keeps.new = [meta]  # pyright: ignore
        keeping_models._by_width.update({1: meta, 3: meta, 4: before})
        with torch.device("meta"):
            keeping_models.scale(3)
        keeping_models.words()
    assert keeping_models.Keeps.kept is before and not hasattr(keeping_models.Keeps, "new")
    assert keeping_models._by_width == {1: before, 2: meta, 4: before}
    assert not keeping_models.scale(3).is_meta
    assert keeping_models.words.cache_info().hits == 1
    with without_meta([]):
        keeping_models._by_width[5] = meta
    assert 5 in keeping_models._by_width
