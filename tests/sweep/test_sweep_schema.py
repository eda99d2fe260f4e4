"""W&B's sweep schema: what each part of it means here, and that what is not supported is refused by its name."""

import math
from pathlib import Path
from typing import Any

import pytest
from sweep_files import COMMAND, SWEPT, parameter, schema, written

from paceline.conf.errors import ConfigError
from paceline.sweep.define import define
from paceline.sweep.definition import EarlyTermination, Range, Values, from_dict
from paceline.sweep.directory import _check_same
from paceline.sweep.schema import from_schema


@pytest.mark.parametrize(
    ("choice", "space"),
    [
        ({"values": ["bsp", 1, 0.5]}, Values(("bsp", "1", "0.5"))),
        ({"values": [1, 1], "distribution": "categorical"}, Values(("1",))),
        ({"min": 1, "max": 5}, Range(1, 5)),
        ({"min": 1, "max": 5, "distribution": "int_uniform"}, Range(1, 5)),
        ({"min": 1, "max": 5.0}, Range(1.0, 5.0)),
        ({"min": 1, "max": 5, "distribution": "uniform"}, Range(1.0, 5.0)),
        ({"min": 0, "max": 1, "q": 0.25, "distribution": "q_uniform"}, Range(0.0, 1.0, 0.25)),
        ({"min": 0, "max": 9, "distribution": "q_uniform"}, Range(0, 9, 1)),
        ({"min": -2, "max": 0, "distribution": "log_uniform"}, Range(math.exp(-2), 1.0, None, True)),
        ({"min": 0.001, "max": 1, "distribution": "log_uniform_values"}, Range(0.001, 1.0, None, True)),
    ],
)
def test_each_distribution_is_a_space(choice: dict[str, Any], space: Values | Range) -> None:
    found = parameter(**choice)
    assert found == space
    if isinstance(found, Range) and isinstance(space, Range):
        assert (type(found.low), type(found.high)) == (type(space.low), type(space.high))


def test_steps_are_counted_from_the_lower_bound_with_both_ends() -> None:
    assert parameter(min=0, max=1, q=0.1, distribution="q_uniform").all() == [i / 10 for i in range(11)]
    assert parameter(min=1, max=10, q=4, distribution="q_uniform").all() == [4, 8]  # W&B rounds to multiples of q
    assert parameter(min=0.05, max=0.31, q=0.1, distribution="q_uniform").all() == [0.1, 0.2, 0.3]
    assert not parameter(min=0.0, max=1.0).finite


def test_constants_and_the_commands_own_overrides_are_fixed_and_nesting_is_dotted() -> None:
    found = from_schema(
        schema(
            parameters={
                "optimizer": {"parameters": {"lr": {"values": [0.1, 0.2]}, "momentum": {"value": 0.5}}},
                "epochs": {"distribution": "constant", "value": 3},
            },
            command=[
                "${env}",
                "${program}",
                "train",
                "sync=ssp",
                "--config-dir",
                "mine",
                "--allow-module",
                "m",
                COMMAND[2],
            ],
        )
    )
    assert found.parameters == {"optimizer.lr": Values(("0.1", "0.2"))}
    assert found.fixed == ("sync=ssp", "optimizer.momentum=0.5", "epochs=3")
    assert (found.config_dir, found.allow_modules) == ("mine", ("m",))
    assert from_schema(schema(command="paceline train a=1 ${args_no_hyphens}")).fixed == ("a=1",)


def test_the_goal_is_minimize_unless_said_and_accuracy_the_default_metric() -> None:
    assert (from_schema(schema()).metric, from_schema(schema()).maximize) == ("accuracy", True)
    assert not from_schema(schema(metric={"name": "loss"})).maximize
    assert from_schema(schema(metric={"name": "loss", "goal": "maximize"})).maximize
    assert from_schema(schema(run_cap=7)).trials == 7


@pytest.mark.parametrize(
    ("early", "expected"),
    [
        ({"min_iter": 3}, (3, 3)),
        ({"min_iter": 2, "eta": 4}, (2, 4)),
        ({"max_iter": 27, "s": 2}, (3, 3)),
        ({"max_iter": 27, "s": 2, "eta": 2}, (6, 2)),
        ({"max_iter": 4, "s": 10**9}, (1, 3)),
    ],
)
def test_hyperband_begins_at_min_iter_or_at_max_iter_by_its_brackets(
    early: dict[str, int], expected: tuple[int, int]
) -> None:
    found = from_schema(schema(early_terminate={"type": "hyperband", **early}))
    assert found.early == EarlyTermination(*expected)


REFUSED = [
    ([1], "must be a mapping with method and parameters"),
    (None, "must be a mapping"),
    (schema(metod="grid"), "metod: there is no such key in W&B's sweep schema; did you mean method?"),
    *[(schema(**{key: "x"}), f"{key}: is not supported") for key in ("project", "entity", "controller", "job")],
    (schema(method="grids"), "method=grids: must be one of grid, random, bayes"),
    (schema(method=["grid"]), "method=['grid']: must be"),
    (schema(method=None), "method=None: must be"),
    (schema(program="train.py"), "program=train.py: must be paceline"),
    (schema(method="bayes", run_cap=3), "metric: is missing; method=bayes needs one"),
    (schema(metric="accuracy"), "metric=accuracy: must have a name"),
    (schema(metric={"name": "loss", "goal": "max"}), "metric.goal=max: must be minimize or maximize"),
    (schema(metric={"name": "loss", "target": 1}), "metric.target: is not supported"),
    (schema(early_terminate="hyperband"), "early_terminate=hyperband: must be a mapping"),
    (schema(early_terminate={"type": "envelope"}), "early_terminate.type=envelope: must be hyperband"),
    (schema(early_terminate={"type": "hyperband"}), "early_terminate: needs min_iter, or max_iter and s"),
    (schema(early_terminate={"type": "hyperband", "s": 2}), "early_terminate: needs min_iter"),
    (schema(early_terminate={"type": "hyperband", "min_iter": 0}), "early_terminate.min_iter=0: must be a whole"),
    (schema(early_terminate={"type": "hyperband", "min_iter": 1, "eta": 1}), "early_terminate.eta=1: must be at least"),
    (schema(early_terminate={"type": "hyperband", "min_iter": 1, "strict": True}), "early_terminate.strict: is not"),
    *[(schema(run_cap=cap), f"run_cap={cap}: must be a whole number from 1 on") for cap in (0, True, 1.5, "3")],
    (schema(command=None), "command: is missing"),
    (schema(command=5), "command=5: must be a list of words"),
    (schema(command={"a": 1}), "command={'a': 1}: must be a list"),
    (schema(command="paceline 'train"), "must be a list of words, or one line"),
    (schema(command=[]), "command=: must begin with ${program} train"),
    (schema(command=["${interpreter}", *COMMAND]), "must begin with ${program} train"),
    (schema(command=["${program}", "plan", COMMAND[2]]), "must begin with ${program} train"),
    (schema(command=COMMAND[:2]), "command: lacks ${args_no_hyphens}"),
    (schema(command=[*COMMAND, "${args}"]), "command: ${args}: is not supported; paceline takes ${args_no_hyphens}"),
    (schema(command=[*COMMAND, "${envvar:HOME}"]), "command: ${envvar:HOME}: is not supported"),
    (schema(command=[*COMMAND, "--name", "x"]), "command: --name: only the options"),
    (schema(command=[*COMMAND, "--config-dir"]), "command: --config-dir: only the options"),
    (schema(command=["${program}", "train", "--config-dir", COMMAND[2]]), "command: --config-dir: only the options"),
    (schema(command=[*COMMAND, "--allow-module"]), "command: --allow-module: only the options"),
    (schema(command=[*COMMAND, "model=mlp,cnn"]), "model=mlp,cnn: has several values"),
    (schema(command=[*COMMAND, "sync=asp"]), "command: sync=asp: stands under parameters, too"),
    (schema(command=[*COMMAND, "word"]), "word: is not an override"),
    (schema(parameters=None), "parameters=None: must name what is swept"),
    (schema(parameters={}), "parameters={}: must name"),
    (schema(parameters={"a": {"value": 1}}), "parameters: every one is constant; nothing is swept"),
    (schema(parameters={"a": [1, 2]}), "parameters.a=[1, 2]: must have values, min and max, or value"),
    (schema(parameters={"a": {"parameters": [1]}}), "parameters.a.parameters: must be a mapping"),
    (schema(parameters={"a": {"parameters": SWEPT, "min": 1}}), "parameters.a.min: is not supported here"),
    (schema(parameters={"a b": {"values": [1]}}), "a b: is no key to sweep"),
    (schema(parameters={"a=1": {"values": [1]}}), "a=1: is no key to sweep"),
    (
        schema(parameters={"a.b": {"values": [1]}, "a": {"parameters": {"b": {"values": [2]}}}}),
        "parameters.a.b: is there twice",
    ),
    *[
        (schema(parameters={"a": choice}, method="random", run_cap=3), f"parameters.a{said}")
        for choice, said in [
            ({"values": []}, ".values=[]: must be a list of at least one"),
            ({"values": "bsp"}, ".values=bsp: must be a list"),
            ({"values": [1], "min": 0}, ".min: is not supported here"),
            ({"values": [1], "probabilities": [1]}, ".probabilities: are not supported"),
            ({"values": [1], "distribution": "uniform"}, ".distribution=uniform: takes min and max, not values"),
            ({"value": 1, "distribution": "uniform"}, ": value and distribution=constant go together"),
            ({"distribution": "constant"}, ": value and distribution=constant go together"),
            ({"min": 1, "max": 2, "distribution": "categorical"}, ".distribution=categorical: takes values"),
            ({}, ".min=None: must be a number; or give values"),
            ({"min": 0}, ".max=None: must be a number"),
            ({"min": True, "max": 2}, ".min=True: must be a number"),
            ({"min": "1e-3", "max": 1}, ".min=1e-3: must be a number; or give values; YAML takes 1e-3 for text"),
            ({"min": math.nan, "max": 1}, ".min=nan: must be a number"),
            ({"min": 0, "max": math.inf}, ".max=inf: must be a number"),
            ({"min": 1.5, "max": 2, "distribution": "int_uniform"}, ": distribution=int_uniform takes whole numbers"),
            ({"min": 0, "max": 1000, "distribution": "log_uniform"}, ": distribution=log_uniform takes exponents of e"),
            ({"min": 0, "max": 1, "q": 0.1}, ".q=0.1: must be a number above 0, and is for distribution=q_uniform"),
            ({"min": 0, "max": 1, "q": 0, "distribution": "q_uniform"}, ".q=0: must be a number above 0"),
            ({"min": 0, "max": 1, "q": math.nan, "distribution": "q_uniform"}, ".q=nan: must be a number above 0"),
            ({"min": 0, "max": 1, "q": 2, "distribution": "q_uniform"}, ".q=2: is more than lies between"),
            ({"min": 0, "max": 1, "stepp": 2}, ".stepp: is not supported here"),
            ({"distribution": ["x"], "min": 0, "max": 1}, ".distribution=['x']: is not supported"),
            *[
                ({"distribution": kind, "mu": 0, "sigma": 1}, f".distribution={kind}: is not supported; there are")
                for kind in ("normal", "q_normal", "log_normal", "q_log_normal", "beta", "q_beta")
            ],
            *[
                ({"distribution": kind, "min": 1, "max": 2}, f".distribution={kind}: is not supported; there are")
                for kind in ("inv_log_uniform", "inv_log_uniform_values", "q_log_uniform", "q_log_uniform_values")
            ],
        ]
    ],
    (schema(parameters={"a": {"min": 2, "max": 2}}), "a: its bounds must have min < max, are 2 and 2"),
    (
        schema(parameters={"a": {"min": 0, "max": 1, "distribution": "log_uniform_values"}}),
        "a: a logarithmic scale begins above 0, not at 0.0",
    ),
    (schema(parameters={"a": {"min": 0.0, "max": 1.0}}), "method=grid: a has no end of values"),
    (schema(method="random"), "method=random: has no end by itself; say how many: --trials N, or run_cap in the file"),
    (
        schema(metric={"name": "throughput"}, early_terminate={"type": "hyperband", "min_iter": 1}),
        "early_terminate: goes by what is measured while training, accuracy or r2 or loss, not by metric throughput",
    ),
]


@pytest.mark.parametrize(("plain", "said"), REFUSED, ids=[said[:50] for _, said in REFUSED])
def test_what_is_not_supported_is_refused_by_its_name(plain: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        define([written(tmp_path / "sweep.yaml", plain)])
    assert said in str(error.value) and error.value.exit_code == 2


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"a: [", "is not valid YAML"),
        (b"\x00\x01\xff", "is not UTF-8"),
        (b"\xff\xfe\x00", "is not UTF-8"),
        (b"", "must be a mapping"),
        (b"!!python/object/apply:os.system [id]", "is not valid YAML"),
        (b"&a {method: grid, parameters: {x: &b {parameters: {y: *b}}}}", "or itself"),
        (b"[" * 5000, "is nested more than 64 deep"),
        (b"method: " + b"9" * 5000, "is not valid YAML"),
        (b"max: " + b"9" * 400, "a whole number of more than 308 digits"),
        (b"a: &a [*a]", "or itself"),
    ],
)
def test_a_file_that_is_no_sweep_is_named(content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_bytes(content)
    with pytest.raises(ConfigError) as error:
        define([str(tmp_path / "broken.yaml")])
    assert str(error.value).startswith(str(tmp_path / "broken.yaml")) and said in str(error.value)


def test_a_directory_is_no_sweep(tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").mkdir()
    with pytest.raises(ConfigError, match="is a directory, and only regular files are read"):
        define([str(tmp_path / "sweep.yaml")])


def test_figures_stand_in_the_description_and_are_no_part_of_what_is_searched() -> None:
    text = "x=sync y=accuracy"
    found = from_schema(schema(description=f"Which one?\n--figure {text}\n"))
    assert found.figures == (text,) and from_dict(found.as_dict()) == found
    assert "figures" not in from_schema(schema()).as_dict()
    _check_same(found, from_schema(schema()), "any")
    with pytest.raises(ConfigError, match="description: --figure x=sync: y= is missing"):
        from_schema(schema(description="--figure x=sync"))


def test_conditions_and_pairs_of_a_file(tmp_path: Path) -> None:
    parameters = {
        "sync": {"values": ["bsp", "ssp"]},
        "sync.staleness": {"values": [1, 3], "when": {"sync": "ssp"}},
        "sizes": {"zip": {"optimizer.lr": [0.1, 0.2], "batch_size": [64, 128]}},
    }
    definition = from_schema(schema(parameters=parameters))
    assert definition.when == (("sync.staleness", (("sync", ("ssp",)),)),)
    points = list(definition.points())
    assert len(points) == 6 and points[0] == {"sync": "bsp", "optimizer.lr": "0.1", "batch_size": "64"}
    assert points[-1] == {"sync": "ssp", "sync.staleness": "3", "optimizer.lr": "0.2", "batch_size": "128"}
    assert from_dict(definition.as_dict()) == definition
    file = written(tmp_path / "mine.yaml", schema(parameters=parameters))
    given = define([file, "sync=ssp"])
    assert next(given.points()) == {"optimizer.lr": "0.1", "batch_size": "64", "sync.staleness": "1"}
    for rate in ("optimizer.lr=0.3", "batch_size=32"):  # what is left of the pair is swept by itself
        assert define([file, rate, "sync=bsp"]).size() == 2


def test_a_condition_on_a_key_that_the_command_fixes_is_refused() -> None:
    parameters = {"sync.staleness": {"values": [1, 3], "when": {"sync": "ssp"}}, "seed": {"values": [1, 2]}}
    command = [*COMMAND[:-1], "sync=bsp", COMMAND[-1]]
    with pytest.raises(ConfigError, match=r"sync is fixed to bsp, so that sync\.staleness is never swept"):
        from_schema(schema(parameters=parameters, command=command))
    assert from_schema(schema(parameters=parameters, command=[*COMMAND[:-1], "sync=ssp", COMMAND[-1]])).when


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"a": {"values": [1, 2], "when": {"sink": "ssp"}}, "sync": {"values": ["ssp"]}}, "stands before a"),
        ({"a": {"values": [1], "when": {"b": 1}}, "b": {"values": [1], "when": {"a": 1}}}, "stands before a"),
        ({"sync": {"values": ["ssp"]}, "a": {"values": [1], "when": {"sync": "bsp"}}}, "is never that. Choose ssp"),
        ({"sync": {"values": ["ssp"]}, "a": {"values": [1], "when": {"sync": []}}}, "must be keys with values"),
        (
            {"sync": {"value": "bsp"}, "a": {"values": [1], "when": {"sync": "ssp"}}},
            "sync is fixed to bsp, so that a",
        ),
        ({"a": {"values": [1], "when": "ssp"}}, "must be keys with values"),
        ({"b": {"values": [1]}, "a": {"value": 1, "when": {"b": 1}}}, "a constant has no condition"),
        ({"a": {"zip": [1]}}, "must be keys, each with a list"),
        ({"a": {"zip": {"b": [1, 2], "c": [1]}}}, "as many values"),
        ({"b": {"values": [1]}, "a": {"zip": {"b": [1, 2], "c": [1, 2]}}}, "b.* is there twice"),
    ],
)
def test_conditions_and_pairs_that_are_none_are_refused(parameters: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=says):
        define([written(tmp_path / "mine.yaml", schema(parameters=parameters))])
