"""A stored configuration as the overrides that one would type."""

import re
import shlex
from typing import Any

import pytest
import yaml
from stored_configs import to_yaml

from paceline.conf.errors import ConfigError
from paceline.conf.grammar import as_override, typed
from paceline.engine.config.compose import compose
from paceline.engine.config.overrides import overrides_of


def stored(*overrides: str) -> dict[str, Any]:
    return yaml.safe_load(to_yaml(compose(list(overrides))))


@pytest.mark.parametrize(
    "typed",
    [
        [],
        ["sync=ssp", "sync.staleness=7", "optimizer.lr=1e-05", "model.hidden=[64,32]", "hardware.workers=4"],
        ["tracking=none", "seed=3"],
        ["tracking.tags=[a,'b c']", "tracking.mode=offline"],
        ["hardware=virtual", "hardware/network=wide_area", "stragglers=lognormal", "hardware.overhead=0.5"],
        ["hardware=virtual", "hardware/network@hardware.inside=infiniband", "hardware.hosts_per_rack=2"],
        ["hardware=a100_8", "strategy=zero", "strategy.offload=all"],
        ["model=cnn", "data=fashion_mnist", "data.root='/with blank/it''s'"],
    ],
    ids=" ".join,
)
def test_they_compose_the_same_configuration_and_are_no_more_than_was_typed(typed):
    typed = [text.replace("''", r"\'") for text in typed]
    config = stored(*typed)
    found = overrides_of(config)
    assert stored(*found) == config
    assert len(found) == len(typed)


@pytest.mark.parametrize(
    "text", ["${x}", "a${x", r"\${x}", r"\\a\${x}b\${oc.env:HOME}", r"c\d", "${x}\\", "$", "it's ${x}"]
)
def test_a_stored_text_that_looks_like_an_interpolation_stays_a_text(text):
    config = stored("tracking.tags=[a]", "data=table")
    config["data"]["knobs"]["path"] = text
    config["tracking"]["tags"] = [text]
    assert stored(*overrides_of(config)) == config
    config["data"]["target"] = "mine.houses.Houses"  # described
    config["data"]["name"] = "houses"
    assert stored(*overrides_of(config)) == config


def test_a_preset_is_told_by_what_it_sets():
    config = stored("experiment=fashion_cnn")
    found = overrides_of(config)
    assert stored(*found) == config and {"model=cnn", "data=fashion_mnist"} <= set(found)


def test_a_preset_of_a_network_is_told_by_what_it_sets():
    for preset in ("two_regions", "dragonfly", "phones"):
        config = stored(f"hardware={preset}")
        assert stored(*overrides_of(config)) == config


def test_the_runs_name_is_none_of_them():
    assert overrides_of(stored("name=first")) == []


def test_a_choice_of_the_users_own_is_named_with_all_its_keys_where_its_file_is_and_else_described(tmp_path):
    config = stored()
    config["model"] = {"name": "wide", "target": "mine.wide.Wide", "knobs": {"width": 512, "deep": None}}
    described = ["model={_target_:mine.wide.Wide,name:wide,width:512,deep:null}"]
    assert overrides_of(config) == overrides_of(config, tmp_path) == described and stored(*described) == config
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "wide.yaml").write_text("_target_: mine.wide.Wide\nwidth: 8\ndeep: 1\n")
    assert overrides_of(config, tmp_path) == ["model=wide", "model.width=512", "model.deep=null"]


@pytest.mark.parametrize(
    "typed",
    [
        ["model={_target_:mine.wide.Wide,width:[64,{a:'b c'}]}", "+model.name=x", "data={_target_:mine.wide.Data}"],
        ["model._target_=mine.wide.Wide", "~model.hidden", "+model.width=3"],
        ["callbacks=[best]", "+callbacks.mine={_target_:mine.Mine,every:3}"],
        ["+callbacks.mine={_target_:mine.Mine}", "+callbacks.stop={_target_:mine.Stop,after:2}"],
    ],
    ids=" ".join,
)
def test_a_class_that_is_described_is_stored_and_told_again(typed):
    config = stored(*typed)
    assert set(overrides_of(config)) == set(typed) and stored(*overrides_of(config)) == config


def test_callbacks_keep_their_order_where_one_has_no_file():
    config = stored("callbacks=[best]", "+callbacks.mine={_target_:mine.Mine}")
    config["callbacks"] = {name: config["callbacks"][name] for name in ("mine", "best")}
    found = overrides_of(config)
    assert list(stored(*found)["callbacks"]) == ["mine", "best"] and stored(*found) == config


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("model={_target_:3}", "model._target_=3: must be module.Class"),
        ("model={_target_:mine.Wide,name:'../up'}", "model.name=../up: is no name of a choice"),
        ("hardware={_target_:mine.Wide}", "hardware={_target_:mine.Wide}: takes choices by their names"),
        ("model={width:3}", "model={width:3}: takes choices by their names"),
    ],
)
def test_a_description_that_is_none_is_refused(typed, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        compose([typed])


def test_what_a_described_class_has_is_what_may_be_changed_of_it():
    wide = "model={_target_:mine.wide.Wide,width:3}"
    assert compose([wide, "model.width=5"]).model.knobs == {"width": 5}
    assert compose([wide, "model=cnn"]).model == compose(["model=cnn"]).model, "the last choice of a group counts"
    assert compose(["model=cnn", wide]).model.name == "Wide"
    with pytest.raises(ConfigError, match=r"model.widht: there is no such key; did you mean model.width\?"):
        compose([wide, "model.widht=5"])


@pytest.mark.parametrize("config", [{}, {"lr": 0.1}, {"strategy": "bsp"}])
def test_what_is_no_configuration_of_ours_is_an_error(config):
    with pytest.raises((KeyError, TypeError)):
        overrides_of(config)


@pytest.mark.parametrize(
    "value",
    [None, True, 3, -0.5, 1e-8, float("inf"), "plain/path.txt", "", "null", "True", "1e5", "3", "two words", "it's",
     "a\\", "a\\\n", "a\\'b", "comma,=[]{}", "$x", "é", "größe", [1, [2.5, "x y"]], {"a": {"b": [None]}}],
    ids=repr,
)  # fmt: skip
def test_a_value_is_read_back_by_hydra(value):
    from hydra.core.override_parser.overrides_parser import OverridesParser

    assert OverridesParser.create().parse_override(f"key={as_override(value)}").value() == value


@pytest.mark.parametrize(
    "text",
    [
        "plain/path.txt",
        "my file=1.csv",
        "a[1].csv",
        "a,b",
        "it's",
        'say "hi"',
        'a\\"',
        "a\\\n",
        "größe",
        "",
        "null",
        "1e3",
        "$x",
        "a;b",
    ],
)
def test_what_one_is_told_to_type_is_the_value_after_a_shell_and_hydra(text: str) -> None:
    [one], [several] = shlex.split(typed("data.path", text)), shlex.split(typed("data.inputs", [text, "b"]))
    knobs = compose(["data=table", one, several]).data.knobs
    assert (knobs["path"], knobs["inputs"]) == (text, [text, "b"])
    assert typed("data.path", "my file=1.csv") == """'data.path="my file=1.csv"'"""
