"""Models that a function makes: what may be named, and torchvision's by their names."""

import sys
from pathlib import Path

import pytest
from needs import needs_torchvision
from safetensors.torch import load_file
from short_runs import HERE

from paceline import engine
from paceline.conf.errors import ConfigError

QUICK = ["tracking=none", "hardware.threads=1", "checkpoint.every=0", "evaluate.every=100"]
RESNET = [*QUICK, "model=torchvision_resnet18", "data=pictures", "batch_size=8", "steps=2"]
ALLOWED = ["made_models", "torchvision"]


@pytest.fixture(autouse=True)
def own_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(HERE)])


def prepared(*overrides: str) -> engine.Prepared:
    return engine.prepare([*QUICK, *overrides], config_dir=HERE / "conf", allow_modules=ALLOWED)


def train(root: Path, *overrides: str) -> engine.Result:
    result = engine.run(list(overrides), config_dir=HERE / "conf", allow_modules=ALLOWED, root=root, quiet=True)
    assert result is not None
    return result


@pytest.mark.dist
@pytest.mark.usefixtures("fork_server")
def test_a_model_that_a_function_makes_is_given_the_spec_and_trains_as_one_of_a_class(tmp_path: Path) -> None:
    short = [*QUICK, "steps=3", "data.limit=64"]
    made = train(tmp_path, *short, "model=made", "model.width=16")
    of_class = train(tmp_path, *short, "model=mlp", "model.hidden=[16]")
    one, other = (list(load_file(each.path / "model.safetensors").values()) for each in (made, of_class))
    assert sorted(w.shape for w in one) == sorted(w.shape for w in other)
    assert made.summary["loss"] == of_class.summary["loss"]


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (
            "unannotated",
            "is a function; must be a class derived from .*, or a function that says so of what it returns",
        ),
        ("a_number", "is a function; must be a class"),
        ("downloads", "is a function; must be a class"),
        ("mad", "has no class mad"),
    ],
)
def test_a_function_that_does_not_say_that_it_returns_a_module_is_not_called(target: str, said: str) -> None:
    with pytest.raises(ConfigError, match=rf"model._target_=made_models.{target}: .*{said}") as caught:
        prepared("model=made", f"model._target_=made_models.{target}").plan()
    assert caught.value.exit_code == 2


def test_functions_make_models_alone() -> None:
    with pytest.raises(ConfigError, match=r"data._target_=made_models.made: is a function; must be a class") as caught:
        prepared("data._target_=made_models.made").plan()
    assert "or a function" not in str(caught.value)


def test_what_such_a_function_does_not_take_is_refused_in_its_own_words() -> None:
    with pytest.raises(ConfigError, match=r"model.widht=3: .*unexpected keyword argument 'widht'"):
        prepared("model=made", "+model.widht=3").plan()
    with pytest.raises(ConfigError, match=r"model.width='wide': must be"):
        prepared("model=made", "model.width=wide").plan()


def test_a_function_that_forgets_its_return_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "from torch import nn\n\n\ndef forgets() -> nn.Module:\n    nn.Linear(64, 10)\n"
    (tmp_path / "forgets_return.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    model = "model={_target_:forgets_return.forgets}"
    with pytest.raises(
        ConfigError, match=r"model=forgets: forgets_return.forgets returned NoneType; must return Module"
    ):
        engine.prepare([*QUICK, model], allow_modules=["forgets_return"]).plan()


@needs_torchvision
@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            ["data=digits"],
            r"model=torchvision_resnet18 does not take a batch of data=digits.*Conv2d\(3, 64.*given \[8, 1, 8, 8\]",
        ),
        (["model.num_classes=7"], r"puts out \[8, 7\]; data=pictures has targets .* of 10 classes"),
        (["+model.clases=3"], r"model.num_classes=10, model.clases=3: .*|model.clases=3: .*clases"),
    ],
)
def test_what_does_not_fit_the_data_is_refused_before_anything_starts(overrides: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        prepared(*RESNET, *overrides).plan()
    assert caught.value.exit_code == 2


@needs_torchvision
def test_a_pipeline_cuts_torchvisions_resnet_between_its_blocks() -> None:
    first, second = prepared(*RESNET, "strategy=pipeline", "strategy.cut=[6]").plan().parts
    assert first.layers[0] == "conv1" and second.layers[-1] == "fc"
    assert first.own + second.own == 11_181_642  # torchvision's 11,689,512 with 10 classes in place of 1,000


@needs_torchvision
@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("fork_server")
def test_torchvisions_resnet_trains_on_pictures(tmp_path: Path) -> None:
    for strategy in (["data_parallel"], ["pipeline", "strategy.schedule=naive", "strategy.cut=[6]"]):
        result = train(tmp_path, *RESNET, f"strategy={strategy[0]}", *strategy[1:], "hardware.workers=2")
        assert result.summary["status"] == "completed" and result.summary["steps"] == 2
