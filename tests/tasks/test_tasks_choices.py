"""Every YAML of the groups model and data against the constructor that it names."""

import inspect
import re
from importlib import import_module
from importlib.resources import files
from typing import Any, cast, get_type_hints

import pytest
import torch
from omegaconf import OmegaConf
from own_files import OF_FILES
from pydantic import TypeAdapter, ValidationError
from torch import nn

from paceline.conf.errors import ConfigError
from paceline.tasks.base import Data, DataSpec
from paceline.tasks.data.disks import Disks
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
    """A variant of a choice (gpt_1b and llama_1b of gpt) names them all too, with values of its own."""
    target, knobs = read(group, name)
    parameters = {k: p for k, p in inspect.signature(target).parameters.items() if k != "spec"}
    assert list(parameters) == list(knobs)
    of_it = [other for of, other in CHOICES if of == group and read(of, other)[0] is target]
    if name == min(of_it, key=len):
        assert {k: plain(p.default) for k, p in parameters.items()} == knobs


@choices
def test_a_choice_builds_what_its_group_demands(group: str, name: str) -> None:
    target, knobs = read(group, name)
    values = validated(target, knobs)
    if group == "data":
        assert isinstance(target(**values), Data)
        if name in OF_FILES:  # shapes are said in a file alone
            data = target(**values)
            with pytest.raises(ConfigError, match=r"^data\.path=null: .*Set data\.path to .*: data\.path=") as caught:
                data.check_files()
                _ = data.spec
            assert caught.value.exit_code == 2
            return
        spec = target(**values).spec
        assert spec.outputs >= 1 if spec.targets == "numbers" else spec.classes > 1
    else:
        image = DataSpec((1, 8, 8), torch.float32, (), 10, None, None)
        specs = {"GPT": Text().spec, "SparseLogisticRegression": Sparse().spec, "UNet": Disks().spec}
        with torch.device("meta"):
            model = target(specs.get(target.__name__, image), **values)
        whole = name in ("unet", "kmeans", "pca")  # levels that meet again; one layer
        assert isinstance(model, nn.Module if whole else nn.Sequential)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("gpt", 867_072),
        ("gpt_100m", 114_220_800),
        ("gpt_400m", 406_286_336),
        ("gpt_1b", 1_013_686_272),
        ("gpt_4b", 3_937_087_488),
        ("gpt_10b", 10_082_140_160),
        ("gpt_20b", 20_558_708_736),
    ],
)
def test_a_gpt_has_the_parameters_that_its_formula_and_its_description_say(name: str, parameters: int) -> None:
    """V w + C w + L (12 w^2 + 13 w) + 2 w + V w, in three digits or fewer in the first line."""
    target, knobs = read("model", name)
    with torch.device("meta"):
        model = target(Text().spec, **knobs)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    v, c = knobs["vocabulary"] or 256, knobs["context"] or 64
    w, layers = knobs["width"], knobs["n_layer"]
    assert parameters == v * w + c * w + layers * (12 * w * w + 13 * w) + 2 * w + v * w
    described = re.search(r"([\d.]+) (million|billion) parameters", text_of("model", name).splitlines()[0])
    assert described is not None
    unit = {"million": 1e6, "billion": 1e9}[described[2]]
    digits = len(described[1].partition(".")[2])
    assert float(described[1]) == round(parameters / unit, digits)
    if name != "gpt":
        assert f"{layers} layers of width {w}" in text_of("model", name)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("llama_1b", 1_235_814_400),
        ("llama_8b", 8_030_261_248),
        ("llama_70b", 70_553_706_496),
        ("llama_405b", 405_853_388_800),
        ("mixtral_8x7b", 46_702_792_704),  # Mistral AI
    ],
)
def test_a_llama_has_the_parameters_that_meta_published(name: str, parameters: int) -> None:
    """Also by the formula V w + L ((2 + 2 g) w^2 + 3 w f E + w E + 2 w) + w, and V w for a head that is not tied."""
    target, knobs = read("model", name)
    with torch.device("meta"):
        model = target(Text().spec, **knobs)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    v, w, f, layers = knobs["vocabulary"], knobs["width"], knobs["ffn_width"], knobs["n_layer"]
    g = knobs["n_kv_head"] / knobs["n_head"]
    ends = v * w * (1 if knobs["tied"] else 2) + w
    experts = knobs["experts"] or 1
    router = w * experts if experts > 1 else 0
    assert parameters == ends + layers * ((2 + 2 * g) * w * w + 3 * w * f * experts + router + 2 * w)
    described = re.search(r"([\d.]+) billion parameters", first := text_of("model", name).splitlines()[0])
    assert described is not None and f"{layers} layers of width {w}" in first
    assert float(described[1]) == round(parameters / 1e9, len(described[1].partition(".")[2]))


def test_every_gpt_is_counted() -> None:
    """The table above leaves none out."""
    (counted,) = cast(Any, test_a_gpt_has_the_parameters_that_its_formula_and_its_description_say).pytestmark
    assert {name for name, _ in counted.args[1]} == {name for group, name in CHOICES if name.startswith("gpt")}


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
        ("model", "gpt", "vocabulary", 0),
        ("model", "gpt", "context", 0),
        ("model", "gpt", "width", "wide"),
        ("data", "digits", "limit", 0),
        ("data", "text", "context", 0),
        ("data", "fashion_mnist", "urls", "https://one.example"),
    ],
)
def test_a_value_out_of_range_does_not_pass_its_type(group: str, name: str, key: str, value: Any) -> None:
    with pytest.raises(ValidationError):
        validated(read(group, name)[0], {key: value})
