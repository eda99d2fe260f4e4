"""What a configuration may name, and what is refused before it can do harm."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from paceline.conf.errors import ConfigError
from paceline.engine.config.experiment import Choice
from paceline.engine.config.metric import task_of
from paceline.engine.config.targets import build, check_target, load_class
from paceline.strategies import Strategy
from paceline.tasks.base import Data, DataSpec

SPEC = DataSpec((1, 8, 8), torch.float32, (), 10, 100, 10)


def choice(target: str, **knobs: Any) -> Choice:
    return Choice(name="mine", target=target, knobs=knobs)


@pytest.mark.parametrize(
    ("group", "target"),
    [
        ("model", "os.system"),
        ("model", "torch.load"),
        ("model", "pathlib.Path.touch"),
        ("model", "torch.nnx.Linear"),
        ("model", "paceline.tasksx.Model"),
        ("model", "paceline.cli.main.main"),
        ("model", "torch.optim.SGD"),
        ("optimizer", "torch.nn.Linear"),
        ("strategy", "paceline.tasks.models.mlp.MLP"),
        ("data", "builtins.eval"),
        ("model", "MLP"),
        ("model", ""),
        ("model", "paceline.tasks.models..mlp.MLP"),
        ("model", "torch.nn.Linear; import os"),
        ("model", "__import__('os').system"),
    ],
)
def test_a_target_outside_the_groups_modules_is_refused(group: str, target: str) -> None:
    with pytest.raises(ConfigError, match=rf"{group}\._target_=") as caught:
        check_target(group, target, ())
    assert caught.value.exit_code == 2


def test_a_refused_module_is_never_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trap.py").write_text("from pathlib import Path\nPath(__file__).with_name('sprung').touch()\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="--allow-module trap"):
        load_class("model", "trap.Model", nn.Module, ())
    assert "trap" not in sys.modules and not (tmp_path / "sprung").exists()
    with pytest.raises(
        ConfigError, match="the module trap has no class Model; it has none that fits"
    ):  # allowed, it is imported
        load_class("model", "trap.Model", nn.Module, ("trap",))
    assert (tmp_path / "sprung").exists()


def test_an_allowed_module_does_not_allow_one_whose_name_begins_like_it() -> None:
    check_target("model", "mine.models.Net", ("mine",))
    with pytest.raises(ConfigError):
        check_target("model", "mineral.Net", ("mine",))


@pytest.mark.parametrize(
    ("group", "target", "base", "what"),
    [
        ("model", "torch.nn.init.kaiming_normal_", nn.Module, "is a function"),
        ("model", "torch.nn.Linaer", nn.Module, "the module torch.nn has no class Linaer; did you mean Linear"),
        ("model", "paceline.tasks.models.mlp.OrderedDict", nn.Module, "is the class OrderedDict"),
        ("model", "paceline.tasks.models.nope.Net", nn.Module, "cannot import paceline.tasks.models.nope"),
        ("model", "paceline.tasks.models.mpl.MLP", nn.Module, "did you mean paceline.tasks.models.mlp"),
        ("model", "torch.nn.Zzzz", nn.Module, r"it has .*, .* and \d+ more$"),
        ("strategy", "paceline.strategies.core.strategy.Zzzz", Strategy, "it has none that fits"),
        ("model", "torch.nn.modules.linear.os.system", nn.Module, "cannot import torch.nn.modules.linear.os"),
        (
            "strategy",
            "paceline.strategies.core.strategy.Strategy",
            Strategy,
            "lacks forward_backward, prepare; must be a class derived from",
        ),
        (
            "strategy",
            "paceline.strategies.sync.bsp.BSP",
            Strategy,
            "must be a class derived from paceline.strategies.core.strategy.Strategy",
        ),
    ],
)
def test_what_is_no_class_of_the_groups_type_is_refused(group: str, target: str, base: type, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        load_class(group, target, base, ())


def test_a_torch_dataset_is_told_which_class_and_methods_make_it_a_data_set() -> None:
    with pytest.raises(ConfigError) as caught:
        load_class("data", "torch.utils.data.TensorDataset", Data, ("torch.utils",))
    for word in ("paceline.tasks.base.Data with load, spec", "docs/own_data.md"):
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("optimizer", "knobs", "rule"),
    [
        ("SGD", {"lr": -0.1}, "optimizer.lr=-0.1: must be greater than or equal to 0"),
        ("SGD", {"lr": 0.1, "momentum": -1}, "optimizer.momentum=-1: must be greater than or equal to 0"),
        ("Adam", {"betas": [0.9, 1.0]}, "optimizer.betas.1=1.0: must be less than 1"),
        ("AdamW", {"weight_decay": -0.5}, "optimizer.weight_decay=-0.5: must be greater than or equal to 0"),
        ("Adam", {"eps": "no"}, "optimizer.eps='no': must be a valid number"),
    ],
)
def test_a_knob_of_torchs_optimizers_is_refused_with_its_rule(optimizer: str, knobs: dict[str, Any], rule: str) -> None:
    given = {"params": [nn.Parameter(torch.zeros(1))]}
    with pytest.raises(ConfigError) as caught:
        build("optimizer", choice(f"torch.optim.{optimizer}", **knobs), Optimizer, (), given)
    assert str(caught.value) == rule


def test_a_constructor_that_recurses_is_no_matter_of_its_knobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "recurses.py").write_text(
        "from torch import nn\ndef net(spec, width=1) -> nn.Module:\n    return net(spec, width)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"^model=mine: recurses.net .*: RecursionError: maximum recursion depth"):
        build("model", choice("recurses.net", width=1), nn.Module, ("recurses",), {"spec": SPEC})


def test_a_users_constructor_that_raises_is_named_with_its_file_and_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "raises.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self, spec):\n"
        "        self.width = spec.input_shape[5]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        build("model", choice("raises.Net"), nn.Module, ("raises",), {"spec": SPEC})
    assert str(caught.value).startswith("model=mine: raises.Net.__init__ (raises.py, line 4): IndexError: tuple index")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = = 1\n", r"cannot import broken_0: SyntaxError: invalid syntax \(broken_0.py, line 1\)$"),
        (
            "def f():\n    return nope\n\nf()\n",
            r"cannot import broken_1: NameError: name 'nope' is not defined, in broken_1.f \(broken_1.py, line 2\)$",
        ),
        (
            'raise RuntimeError("operator torchvision::nms does not exist")\n',
            r"torchvision::nms does not exist, in .*; was it built for torch 2\.\S+, which is here\?$",
        ),
    ],
)
def test_a_users_module_that_cannot_be_imported_is_refused_with_its_line(
    text: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "broken_0" if "=" in text else "broken_1" if "nope" in text else "broken_2"
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=says):
        load_class("model", f"{name}.Net", nn.Module, (name,))


def test_the_engines_own_arguments_go_where_the_constructor_has_a_place_for_them() -> None:
    given = {"spec": SPEC}
    mlp = build("model", choice("paceline.tasks.models.mlp.MLP", hidden=[4]), nn.Module, (), given)
    assert mlp(torch.zeros(2, *SPEC.input_shape)).shape == (2, SPEC.classes)
    linear = build("model", choice("torch.nn.Linear", in_features=2, out_features=3), nn.Linear, (), given)
    assert linear.weight.shape == (3, 2)


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"hiden": [4]}, r"model\.hiden: MLP has no such parameter; did you mean hidden\?"),
        ({"spec": 1}, r"model\.spec: MLP has no such parameter"),
        ({"hidden": "4"}, r"model\.hidden='4': must be a list$"),
        ({"hidden": 4}, r"model\.hidden=4: must be a list\. Choose model\.hidden=\[4\]\.$"),
        ({"hidden": [True]}, r"model\.hidden\.0=True: must be a valid integer"),
    ],
)
def test_a_knob_is_held_to_the_constructors_signature(knobs: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build("model", choice("paceline.tasks.models.mlp.MLP", **knobs), nn.Module, (), {"spec": SPEC})


def test_one_size_for_a_pair_is_told_to_be_written_twice() -> None:
    with pytest.raises(ConfigError, match=r"^data\.size=8: must be a list\. Choose data\.size=\[8,8\]\.$"):
        build("data", choice("paceline.tasks.data.images.Images", path="p", size=8), Data, (), {})
    with pytest.raises(ConfigError, match=r"^data\.size=0: must be a list$"):
        build("data", choice("paceline.tasks.data.images.Images", path="p", size=0), Data, (), {})


def test_a_knob_that_the_constructor_needs_and_was_not_given_is_named() -> None:
    with pytest.raises(ConfigError, match=r"model\.out_features: is missing; Linear needs it"):
        build("model", choice("torch.nn.Linear", in_features=2), nn.Module, (), {})


def test_a_refused_knob_that_is_a_secret_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "logs_in.py").write_text(
        "from torch import nn\n"
        "def net(api_key: int) -> nn.Module:\n    pass\n"
        "def other(api_key: str) -> nn.Module:\n    raise ValueError('no such account')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for target, rule in (("logs_in.net", "must be a valid integer"), ("logs_in.other", "no such account")):
        with pytest.raises(ConfigError, match=rf"^model\.api_key='\*\*\*': {rule}"):
            build("model", choice(target, api_key="swordfish"), nn.Module, ("logs_in",), {})


@pytest.mark.parametrize(
    ("knobs", "blamed"),
    [
        ({"lr": 0.1, "momentum": -1.0}, "optimizer.momentum=-1.0: "),
        ({"lr": -0.1, "momentum": 0.0}, "optimizer.lr=-0.1: "),
    ],
)
def test_the_knob_that_the_constructor_refuses_is_the_one_named(knobs: dict[str, Any], blamed: str) -> None:
    given = {"params": [nn.Parameter(torch.zeros(1))]}
    with pytest.raises(ConfigError) as caught:
        build("optimizer", choice("torch.optim.SGD", **knobs), Optimizer, (), given)
    assert str(caught.value).startswith(blamed)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("targets = 'labels'", r"task=mine: Own\.metric is missing; must be a Metric, such as Accuracy\(\)"),
        ("targets = 'labels'; metric = 'accuracy'", r"task=mine: Own\.metric='accuracy'; must be a Metric"),
        (
            "targets = 'labels'; metric = type('Bare', (Accuracy,), {'name': None})()",
            r"task=mine: Own\.metric\.name is missing; must be a text",
        ),
        *(
            (
                f"targets = 'labels'; metric = type('Bare', (Accuracy,), {{'name': '{name}'}})()",
                rf"task=mine: Own\.metric\.name='{name}'; must be a text, under which results have nothing else",
            )
            for name in ("memory", "status", "step", "model", "loss")
        ),
        ("metric = Accuracy()", r"task=mine: Own\.targets is missing; must be 'labels', 'numbers' or 'none'"),
        ("targets = 'classes'; metric = Accuracy()", r"task=mine: Own\.targets='classes'; must be 'labels'"),
    ],
)
def test_a_task_without_metric_or_targets_is_refused(
    lines: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_task.py").write_text(
        "from paceline.tasks.losses import Task\n"
        "from paceline.tasks.losses.metrics import Accuracy\n"
        f"class Own(Task):\n    {lines}\n"
        "    def loss(self, outputs, targets): return outputs.sum()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_task", raising=False)
    with pytest.raises(ConfigError, match=said):
        task_of(choice("own_task.Own"), ("own_task",))


def test_a_users_class_is_built_like_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home_made.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Sequential):\n"
        "    def __init__(self, spec, width: int = 3):\n"
        "        super().__init__(nn.Flatten(), nn.Linear(64, width))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    net = build("model", choice("home_made.Net", width=5), nn.Module, ("home_made",), {"spec": SPEC})
    assert net(torch.zeros(2, 1, 8, 8)).shape == (2, 5)
    with pytest.raises(ConfigError, match=r"model\.width='5': must be a valid integer"):
        build("model", choice("home_made.Net", width="5"), nn.Module, ("home_made",), {"spec": SPEC})
    assert json.dumps(choice("home_made.Net").model_dump())  # what workers are told
