"""What users' own models may be: trained, evaluated, saved and resumed, or refused before anything starts."""

import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file
from short_runs import HERE

from paceline import engine
from paceline.conf.errors import ConfigError
from paceline.engine import Result
from paceline.engine.base.errors import WorkerFailedError

QUICK = ["tracking=none", "data.limit=64", "batch_size=16", "model=odd", "epochs=2", "checkpoint.every=1"]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", [*sys.path, str(HERE)])
    return tmp_path


def train(root: Path, *overrides: str, resume: str | None = None) -> Result:
    result = engine.run(
        list(overrides) if resume else [*QUICK, *overrides],
        config_dir=None if resume else HERE / "conf",
        allow_modules=["odd_models"],
        name=None if resume else "odd",
        resume=resume,
        root=root,
        quiet=True,
    )
    assert result is not None
    return result


def refusal(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        engine.prepare([*QUICK, *overrides], config_dir=HERE / "conf", allow_modules=["odd_models"]).plan()
    return str(caught.value)


@pytest.mark.dist
@pytest.mark.parametrize(
    ("kind", "sync"),
    [
        pytest.param(kind, sync, marks=[] if (kind, sync) in {("tied", "bsp"), ("mask", "asp")} else pytest.mark.slow)
        for kind in ("tied", "mask", "attribute", "frozen")
        for sync in ("bsp", "asp", "bsp_naive")
    ],
)
def test_an_odd_model_trains_is_evaluated_and_goes_on(root: Path, fork_server: None, kind: str, sync: str) -> None:
    first = train(root, f"model.kind={kind}", f"sync={sync}")
    assert first.accuracy is not None
    assert first.summary["wire"]["bytes_per_step"] == first.summary["predicted"]["bytes_per_step"]
    again = train(root, "epochs=3", resume="odd")
    assert again.summary["steps"] == 6 and again.summary["resumed_at"] == 4


@pytest.mark.dist
def test_frozen_parameters_stay_as_they_were_and_are_saved(root: Path, fork_server: None) -> None:
    one = load_file(train(root / "a", "model.kind=frozen").path / "model.safetensors")
    other = load_file(train(root / "b", "model.kind=frozen", "epochs=1").path / "model.safetensors")
    assert one["2.weight"].equal(other["2.weight"]) and not one["1.weight"].equal(other["1.weight"])


def test_what_cannot_be_trained_is_refused_before_anything_starts(root: Path) -> None:
    assert "strategy.cut" in refusal(
        "model.kind=tied", "strategy=pipeline", "strategy.schedule=pipedream", "strategy.cut=[3]"
    )
    assert "no parameters to train" in refusal("model.kind=all_frozen")
    assert "[16, 7]" in refusal("model.kind=few_outputs")


@pytest.mark.parametrize("sync", ["asp", "local_sgd", "post_local_sgd", "diloco", "easgd_momentum", "gossip_matching"])
def test_several_dtypes_are_refused_by_the_name_of_the_mode_that_was_chosen(sync: str) -> None:
    """Several names stand for one class."""
    said = refusal("model.kind=two_dtypes", f"sync={sync}")
    assert said.startswith(f"sync={sync}: sends all weights as one vector") and "sync=bsp takes several" in said


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        ("object", ["odd_models.Odd.forward (", "odd_models.py, line ", "returns a SimpleNamespace", "with `logits`"]),
        ("misfit", ["[16, 1, 8, 8]", "Linear(in_features=15, out_features=16, bias=True), given [16, 16]"]),
        ("raises", ["odd_models.Raises.forward (", "odd_models.py, line ", "LookupError: nothing there"]),
    ],
)
def test_a_forward_that_fails_is_refused_with_class_file_line_and_shapes(
    root: Path, kind: str, parts: list[str]
) -> None:
    said = refusal(f"model.kind={kind}")
    assert said.startswith("model=odd") and "\n" not in said
    assert all(part in said for part in parts), said


def test_a_model_that_is_nan_before_any_step_is_not_told_to_learn_more_slowly(root: Path) -> None:
    with pytest.raises(WorkerFailedError, match="nothing was updated yet") as caught:
        train(root, "model.kind=not_a_number", "hardware=virtual")
    assert caught.value.exit_code == 6 and "smaller" not in str(caught.value)


@pytest.mark.dist
def test_bsp_takes_parameters_of_two_dtypes(root: Path, fork_server: None) -> None:
    assert train(root, "model.kind=two_dtypes").accuracy is not None
