"""A configuration in any form that Python has for one is the same experiment."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from omegaconf import OmegaConf
from torch import nn

from paceline import engine
from paceline.conf.errors import ConfigError
from paceline.conf.grammar import listed
from paceline.engine import prepare
from paceline.engine.config.compose import compose
from paceline.engine.config.experiment import Experiment
from paceline.engine.config.settings import asked
from paceline.tracking.columns import human_bytes
from paceline.tracking.errors import RunNameError
from paceline.verify import verify

TYPED = ["sync=ssp", "sync.staleness=2", "hardware.workers=3", "optimizer.lr=0.2", "model.hidden=[16,8]", "name=x"]
NESTED = {
    "sync": {"name": "ssp", "staleness": 2},
    "hardware": {"workers": 3},
    "optimizer.lr": 0.2,
    "model": {"hidden": [16, 8]},
    "name": "x",
}


class Net(nn.Linear):
    def __init__(self, width: int = 3) -> None:
        super().__init__(width, 2)


def experiment(settings: Any, **more: Any) -> Experiment:
    given = asked(settings, more)
    return given.experiment or given.completed(compose(given.overrides))


def test_a_mapping_of_any_kind_says_what_overrides_say() -> None:
    expected = compose(TYPED)
    flat = {"sync": "ssp", "sync.staleness": 2, "hardware.workers": 3, "optimizer.lr": 0.2, "model.hidden": [16, 8]}
    assert experiment(TYPED) == expected
    assert experiment(" ".join(TYPED)) == expected
    assert experiment(NESTED) == expected
    assert experiment({**flat, "name": "x"}) == expected
    assert experiment(OmegaConf.create(NESTED)) == expected
    assert experiment(OmegaConf.create({**NESTED, "batch_size": 4, "steps": "${batch_size}"})).steps == 4
    assert experiment((), **{key: value for key, value in NESTED.items() if "." not in key}, optimizer={"lr": 0.2}) == (
        expected
    )
    assert experiment(
        TYPED[:2], hardware={"workers": 3}, optimizer={"lr": 0.2}, model={"hidden": [16, 8]}, name="x"
    ) == (expected)


def test_values_are_read_back_as_what_they_are() -> None:
    odd = {"name": "null", "weights": "a file's {name}, 'x\\", "tracking": {"project": "3", "tags": ["1e-3", "a b"]}}
    found = experiment(odd)
    assert (found.name, found.weights) == ("null", odd["weights"])
    assert (found.tracking["project"], found.tracking["tags"]) == ("3", ["1e-3", "a b"])
    assert experiment({"steps": None, "sync": {"name": "bsp", "find_unused": True}}).sync.knobs["find_unused"] is True


def test_a_whole_configuration_is_run_as_it_is() -> None:
    stored = compose(TYPED)
    assert experiment(stored) == stored
    assert experiment(stored.model_dump()) == stored
    assert experiment(OmegaConf.create(stored.model_dump())) == stored
    whole: dict[str, Any] = dict(stored.model_dump())
    for group, section in whole.items():
        if isinstance(section, dict) and "knobs" in section:
            whole[group] = {"_target_": section["target"], **section["knobs"]}
    assert experiment(whole) == stored
    for name in ("gpt", "gpt_1b", "gpt_4b", "llama_8b"):  # of one class: the one with these values
        section = {"_target_": (chosen := compose([f"model={name}"]).model).target, **chosen.knobs}
        assert experiment({**whole, "model": section}).model == chosen
    with pytest.raises(ConfigError, match="steps: a whole configuration is run as it is"):
        experiment(stored, steps=3)


def test_a_class_is_a_choice_by_its_name_and_its_module_is_allowed() -> None:
    given = asked({"model": Net, "optimizer": {"_target_": "torch.optim.Adam", "lr": 0.01}})
    found = given.completed(compose(given.overrides))
    assert (found.model.name, found.model.target, found.model.knobs) == ("Net", f"{__name__}.Net", {})
    assert (found.optimizer.name, found.optimizer.knobs) == ("adam", {"lr": 0.01})
    assert given.allowed == [__name__]
    assert asked({"model": {"_target_": Net, "width": 5}}).built["model"].knobs == {"width": 5}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (3, "int: is no configuration; give a list of overrides"),
        ([1], "list: is no configuration"),
        ({3: "x"}, "3: a key of a configuration is text"),
        ({"hardware": Net}, "hardware=Net: is a class, and hardware is no group"),
        ({"hardware": {"_target_": "a.B"}}, "hardware._target_: the choices of hardware name no class"),
        (
            {"model": type("Net", (nn.Module,), {"__module__": "__main__"})},
            "model=Net: is defined in this script or notebook, which workers do not import; write it to a file",
        ),
        (
            {"model": type("Inner", (nn.Module,), {"__qualname__": "f.<locals>.Inner"})},
            "is defined inside of f.<locals>",
        ),
        ({"model": {"_target_": "torch.nn.Linear", "device": object()}}, "holds a object, which is no value"),
        (OmegaConf.create({"steps": "${nothing}"}), "the configuration cannot be resolved"),
        ({"sink": "asp"}, "sink: there is no such key"),
    ],
)
def test_what_is_no_configuration_is_refused(settings: Any, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        experiment(settings)
    assert said in str(error.value)


def test_what_was_prepared_runs_in_the_folder_it_was_prepared_for(tmp_path: Path) -> None:
    from paceline import engine

    settings = {"tracking": "none", "steps": 1, "data.limit": 40, "hardware": "virtual"}
    prepared = prepare(settings, name="mine", root=tmp_path)
    result = engine.run(prepared, quiet=True)
    assert result is not None and result.path == tmp_path / "mine"
    with pytest.raises(RunNameError, match="run name 'mine' is taken"):
        prepare(settings, name="mine", root=tmp_path)


def test_what_was_prepared_is_run_as_it_is() -> None:
    from paceline import engine

    prepared = prepare({"tracking": "none", "steps": 2}, hardware="virtual")
    assert (prepared.experiment.hardware.fabric, prepared.experiment.steps) == ("virtual", 2)
    with pytest.raises(ConfigError, match=r"what engine\.prepare returned is run as it is"):
        engine.run(prepared, steps=3)
    planned = engine.plan(prepared)
    assert repr(planned) == repr(engine.plan({"tracking": "none", "steps": 2}, hardware="virtual"))
    assert repr(planned) == (
        "Plan(mlp on digits, data_parallel + bsp, 2 workers: 2 steps; 198.5 KiB sent a step and worker, "
        f"{human_bytes(sum(planned.peak_memory().values()))} at most on one)"
    )
    html = planned._repr_html_()
    assert "data_parallel" in html and "memory: parameters" in html and ">198.5 KiB<" in html
    with pytest.raises(ConfigError, match="planned as it is"):
        engine.plan(prepared, steps=3)
    with pytest.raises(ConfigError, match="--resume x: a resumed run goes on as it was"):
        prepare({"model": Net}, resume="x")


def test_one_text_in_the_place_of_a_list_is_one_entry_and_not_its_letters() -> None:
    assert listed("houses") == listed(("houses",)) == ["houses"]
    with pytest.raises(ConfigError, match=r"torch\.nn, houses; for a module of your own"):
        prepare(["model={_target_:own_models.InPlace}"], allow_modules="houses").plan()
    with pytest.raises(ConfigError, match=r"^--only nothing_so: "):
        verify("model=linear", only="nothing_so")


OPTIONS: dict[str, tuple[Callable[[], object], str]] = {
    "name": (lambda: engine.prepare(name=cast(Any, 3)), "name=3: is of type int. Choose a text or None."),
    "name that is a path": (lambda: engine.run(name=cast(Any, Path("a"))), "name=a: is of type PosixPath"),
    "root": (lambda: engine.run(root=cast(Any, 3)), "root=3: is of type int. Choose a text, a Path or None."),
    "root of a plan": (lambda: engine.plan(root=3), "root=3: is of type int. Choose a text or a Path."),
    "root of a prepared run": (lambda: engine.run(engine.prepare(), root=cast(Any, 3)), "root=3: is of type int"),
    "root of a result": (lambda: engine.load("x", root=cast(Any, None)), "root=None: is of type NoneType"),
    "root of a table": (lambda: engine.compare("x", root=cast(Any, 3)), "root=3: is of type int"),
    "runs": (lambda: engine.compare(cast(Any, 3)), "runs=3: is of type int. Choose names, paths or results."),
    "resume": (lambda: engine.run(resume=cast(Any, True)), "resume=True: is of type bool"),
    "trace": (lambda: engine.run(trace=cast(Any, 3)), "trace=3: is of type int"),
    "config_dir": (lambda: engine.prepare(config_dir=cast(Any, 3)), "config_dir=3: is of type int"),
    "config_dir of advice": (lambda: engine.advise(config_dir=cast(Any, 3)), "config_dir=3: is of type int"),
    "allow_modules": (lambda: engine.prepare(allow_modules=cast(Any, 3)), "allow_modules=3: is of type int"),
}


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_of_another_kind_is_refused(option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    act, said = OPTIONS[option]
    with pytest.raises(ConfigError, match=re.escape(said)):
        act()
