"""Every YAML of the groups model and data against the constructor that it names."""

import inspect
from importlib import import_module
from importlib.resources import files
from typing import Any, get_type_hints

import pytest
import torch
from omegaconf import OmegaConf
from pydantic import TypeAdapter, ValidationError
from torch import nn

from paceline.tasks.base import Data, DataSpec
from paceline.tasks.data.sparse import Sparse
from paceline.tasks.data.text import Text

CHOICES = sorted(
    (group, file.name.removesuffix(".yaml"))
    for group in ("model", "data")
    for file in (files("paceline.conf") / group).iterdir()
)
choices = pytest.mark.parametrize(("group", "name"), CHOICES)


def text_of(group: str, name: str) -> str:
    return (files("paceline.conf") / group / f"{name}.yaml").read_text()


def read(group: str, name: str) -> tuple[type, dict[str, Any]]:
    """The class that a choice names and its knobs."""
    knobs = OmegaConf.to_container(OmegaConf.create(text_of(group, name)))
    assert isinstance(knobs, dict)
    module, _, class_name = knobs.pop("_target_").rpartition(".")
    return getattr(import_module(module), class_name), {str(key): value for key, value in knobs.items()}


def validated(target: type, knobs: dict[str, Any]) -> dict[str, Any]:
    hints = get_type_hints(target.__init__, include_extras=True)
    return {key: TypeAdapter(hints[key]).validate_python(value) for key, value in knobs.items()}


def plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple | list) else value


def test_there_are_choices() -> None:
    assert {"mlp", "cnn", "gpt", "logistic_regression", "digits", "fashion_mnist", "text"} <= {n for _, n in CHOICES}


@choices
def test_a_choice_names_every_knob_of_its_class_with_the_same_default(group: str, name: str) -> None:
    target, knobs = read(group, name)
    parameters = {k: p for k, p in inspect.signature(target).parameters.items() if k != "spec"}
    assert {k: plain(p.default) for k, p in parameters.items()} == knobs


@choices
def test_a_choice_builds_what_its_group_demands(group: str, name: str) -> None:
    target, knobs = read(group, name)
    values = validated(target, knobs)
    if group == "data":
        assert isinstance(target(**values), Data)
        assert target(**values).spec.classes > 1
    else:
        image = DataSpec((1, 8, 8), torch.float32, (), 10, None, None)
        specs = {"gpt": Text().spec, "sparse_logistic_regression": Sparse().spec}
        model = target(specs.get(name, image), **values)
        assert isinstance(model, nn.Sequential)


@choices
def test_the_first_line_describes_the_choice(group: str, name: str) -> None:
    first = text_of(group, name).splitlines()[0]
    assert first.startswith("# ") and 10 < len(first) < 90


@pytest.mark.parametrize(
    ("group", "name", "key", "value"),
    [
        ("model", "mlp", "hidden", [64, 0]),
        ("model", "mlp", "hidden", 64),
        ("model", "cnn", "channels", [6]),
        ("model", "cnn", "kernel", 0),
        ("model", "gpt", "n_layer", 0),
        ("model", "gpt", "dropout", 1.0),
        ("model", "gpt", "width", "wide"),
        ("data", "digits", "limit", 0),
        ("data", "text", "context", 0),
        ("data", "fashion_mnist", "urls", "https://one.example"),
    ],
)
def test_a_value_out_of_range_does_not_pass_its_type(group: str, name: str, key: str, value: Any) -> None:
    with pytest.raises(ValidationError):
        validated(read(group, name)[0], {key: value})
