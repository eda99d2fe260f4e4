"""What a sweep searches, as Hydra's grammar and W&B's schema say it, and what is refused."""

import math
import random
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import example, given
from hypothesis import strategies as some

from paceline.engine.compose import sweep_values
from paceline.engine.errors import ConfigError
from paceline.engine.sweep import definition as sweeps
from paceline.engine.sweep.definition import Definition, EarlyTermination, Range, Values, define, from_dict
from paceline.engine.sweep.schema import as_override, from_schema

COMMAND = ["${program}", "train", "${args_no_hyphens}"]
SWEPT = {"sync": {"values": ["bsp", "ssp"]}}


def schema(**changes: Any) -> dict[str, Any]:
    """A good sweep in W&B's schema, changed."""
    return {"program": "paceline", "method": "grid", "parameters": SWEPT, "command": COMMAND, **changes}


def parameter(**choice: Any) -> Any:
    """The space that W&B's schema makes of it."""
    return from_schema(schema(parameters={"a": choice}, method="random", run_cap=3)).parameters["a"]


def written(path: Path, plain: Any) -> str:
    path.write_text(yaml.safe_dump(plain))
    return str(path)


# -- Hydra's grammar


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("sync=bsp,ssp", ["bsp", "ssp"]),
        ("a=choice(1,2.5,x)", ["1", "2.5", "x"]),
        ("a=choice(b,a,b)", ["b", "a"]),
        ("a=range(1,5)", ["1", "2", "3", "4"]),
        ("a=range(5,1,-2)", ["5", "3"]),
        ("a=range(0,1,0.25)", ["0.0", "0.25", "0.5", "0.75"]),
        ("a=[1,2],[3]", ["[1,2]", "[3]"]),
        ("a={x:1},{x:2}", ["{x:1}", "{x:2}"]),
        ("a='x,y','it\\'s'", ["'x,y'", "'it\\'s'"]),
        ("a=null,true,1e-05", ["null", "True", "1e-05"]),
        ("a=sort(3,1,2)", ["1", "2", "3"]),
        ("a=sort(range(1,4),reverse=true)", ["3", "2", "1"]),
        ("sync=glob([b*,ssp],exclude=*naive)", ["backup_workers", "bsp", "ssp"]),
        ("+a=1,2", ["1", "2"]),
    ],
)
def test_several_values_of_a_key_are_a_grid(text: str, values: list[str]) -> None:
    found = define([text, "epochs=1"])
    assert found == Definition("grid", {text.partition("=")[0]: Values(tuple(values))}, ("epochs=1",))


@pytest.mark.parametrize(
    ("text", "space"),
    [
        ("a=interval(0,1)", Range(0.0, 1.0)),
        ("a=interval(start=1,end=5)", Range(1.0, 5.0)),
        ("a=tag(log,interval(0.001,0.1))", Range(0.001, 0.1, None, True)),
        ("a=int(interval(1,5))", Range(1, 5)),
        ("a=tag(log,int(interval(1,100)))", Range(1, 100, None, True)),
    ],
)
def test_an_interval_is_a_range(text: str, space: Range) -> None:
    found = define([text], trials=3)
    assert found.parameters == {"a": space} and found.parameters["a"].finite == isinstance(space.low, int)
    assert type(found.parameters["a"].low) is type(space.low)  # pyright: ignore[reportAttributeAccessIssue]
    assert found.method == ("grid" if space.integer else "bayes")


def test_a_shuffled_list_has_the_same_order_each_time() -> None:
    """Otherwise --resume would take the sweep for another one."""
    before = random.getstate()
    once, again = define(["a=shuffle(range(0,50))"]), define(["a=shuffle(range(0,50))"])
    other = define(["b=shuffle(range(0,50))"])
    assert once == again and random.getstate() == before
    values = [space.all() for sweep in (once, other) for space in sweep.parameters.values()]
    assert sorted(values[0], key=int) == [str(i) for i in range(50)] != values[0] != values[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "nothing is swept"),
        (["sync=bsp"], "nothing is swept"),
        (["sync=bsp,ssp", "sync=asp,easgd"], "sync=asp,easgd: sync is swept twice"),
        (["a=range(5,1)"], "a=range(5,1): has no value"),
        (["sync=glob(zz*)"], "sync=glob(zz*): has no value"),
        (["epochs=glob(*)"], "epochs=glob(*): has no value"),
        (["a=range(0,1000000000)"], "has more than 100,000 values"),
        (["a=range(0,1000)", "b=range(0,1000)"], "method=grid: makes 1,000,000 points, and 100,000 are the most"),
        (["a=int(interval(1,1000000000000))"], "makes 1,000,000,000,000 points"),
        (["a=choice()"], "a=choice(): is not an override"),
        (["a=1,2,"], "a=1,2,: is not an override"),
        (["sync bsp,ssp"], "is not an override"),
        (["=1,2"], ": is no key to sweep"),
        (["~sync=bsp,ssp"], "~sync: is no key to sweep"),
        (["a=tag(log,choice(1,2))"], "tags are for intervals"),
        (["a=tag(fast,interval(1,2))"], "tag fast: there is only log"),
        (["a=interval(1,1)"], "a: its bounds must have min < max, are 1.0 and 1.0"),
        (["a=interval(2,1)"], "min < max"),
        (["a=interval(0,inf)"], "a: its bounds must be finite, are 0.0 and inf"),
        (["a=interval(nan,1)"], "must be finite"),
        (["a=tag(log,interval(0,1))"], "a: a logarithmic scale begins above 0, not at 0.0"),
        (["a=interval(0,1)"], "method=bayes: has no end by itself; say how many: --trials N"),
        (["missing.yaml"], "missing.yaml: cannot be read: No such file"),
    ],
)
def test_what_is_no_sweep_is_refused(words: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        define(words)
    assert said in str(error.value) and error.value.exit_code == 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method": "random"}, "method=random: has no end by itself; say how many: --trials N"),
        ({"method": "bayes"}, "method=bayes: has no end by itself"),
        ({"metric": "nosuch"}, "--metric nosuch: is no column of the table: say --minimize or --maximize"),
        ({"metric": "throughput", "early": EarlyTermination(1, 3)}, "early_terminate: goes by what is measured"),
    ],
)
def test_options_that_do_not_go_together_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        define(["sync=bsp,ssp"], **changes)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("words", "said"),
    [(["seed=1,2"], "--seeds: seed is swept already"), (["sync=bsp,ssp", "seed=x"], "seed=x: with --seeds")],
)
def test_seeds_begin_at_a_fixed_one(words: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        define(words, seeds=2)
    assert said in str(error.value)
    found = define(["sync=bsp,ssp", "seed=1", "seed=5"], seeds=3)
    assert found.each_seed() == (5, 6, 7)
    assert found.overrides({"sync": "ssp"}, 6) == ["sync=ssp", "seed=6"]
    assert define(["sync=bsp,ssp"], seeds=2).each_seed() == (0, 1)
    assert define(["sync=bsp,ssp", "seed=5"]).each_seed() == (None,)


@pytest.mark.parametrize(
    ("metric", "maximize"),
    [("accuracy", True), ("loss", False), ("time_to_accuracy", False), ("throughput", True), ("step_ms", False)],
)
def test_which_way_a_metric_is_better_is_known(metric: str, maximize: bool) -> None:
    assert define(["sync=bsp,ssp"], metric=metric).maximize == maximize
    assert define(["sync=bsp,ssp"], metric=metric, maximize=not maximize).maximize != maximize


def test_a_grid_has_every_point_once_with_the_last_key_varying_first() -> None:
    found = define(["sync=bsp,ssp", "a=int(interval(1,3))"])
    assert found.size() == 6
    assert [tuple(point.values()) for point in found.points()] == [
        (sync, number) for sync in ("bsp", "ssp") for number in (1, 2, 3)
    ]


# -- W&B's schema


@pytest.mark.parametrize(
    ("choice", "space"),
    [
        ({"values": ["bsp", 1, 0.5]}, Values(("bsp", "1", "0.5"))),
        ({"values": [1, 1], "distribution": "categorical"}, Values(("1",))),
        ({"min": 1, "max": 5}, Range(1, 5)),
        ({"min": 1, "max": 5, "distribution": "int_uniform"}, Range(1, 5)),
        ({"min": 1, "max": 5.0}, Range(1.0, 5.0)),
        ({"min": 1, "max": 5, "distribution": "uniform"}, Range(1.0, 5.0)),
        ({"min": 0, "max": 1, "q": 0.25, "distribution": "q_uniform"}, Range(0, 1, 0.25)),
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
    assert parameter(min=1, max=10, q=4, distribution="q_uniform").all() == [1, 5, 9]
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
    (schema(command=[*COMMAND, "sync=bsp,asp"]), "sync=bsp,asp: has several values"),
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
            ({"min": 0, "max": 10**400}, ".max=1000000"),
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
        "early_terminate: goes by what is measured while training, accuracy or loss, not by metric throughput",
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
        (b"a: [", "is not YAML"),
        (b"\x00\x01\xff", "is not YAML"),
        (b"\xff\xfe\x00", "is not YAML"),
        (b"", "must be a mapping"),
        (b"!!python/object/apply:os.system [id]", "is not YAML"),
        (b"&a {method: grid, parameters: {x: &b {parameters: {y: *b}}}}", "holds itself"),
        (b"[" * 5000, "is nested too deeply"),
    ],
)
def test_a_file_that_is_no_sweep_is_named(content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_bytes(content)
    with pytest.raises(ConfigError) as error:
        define([str(tmp_path / "broken.yaml")])
    assert str(error.value).startswith(str(tmp_path / "broken.yaml")) and said in str(error.value)


def test_a_directory_is_no_sweep(tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").mkdir()
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        define([str(tmp_path / "sweep.yaml")])


# -- a file and overrides


def test_overrides_go_before_what_is_in_the_file(tmp_path: Path) -> None:
    parameters = {"sync": {"values": ["bsp", "ssp"]}, "optimizer.lr": {"values": [0.1, 0.2]}, "seed": {"value": 3}}
    file = written(tmp_path / "sweep.yaml", schema(parameters=parameters, command=[*COMMAND, "epochs=30"]))
    found = define([file, "sync=asp", "epochs=1,2", "seed=4", "steps=5"])
    assert found.parameters == {"optimizer.lr": Values(("0.1", "0.2")), "epochs": Values(("1", "2"))}
    assert found.fixed == ("sync=asp", "seed=4", "steps=5")
    with pytest.raises(ConfigError, match=r"sync=asp optimizer\.lr=1: leaves nothing to sweep"):
        define([file, "sync=asp", "optimizer.lr=1"])


def test_options_go_before_what_is_in_the_file(tmp_path: Path) -> None:
    plain = schema(metric={"name": "loss", "goal": "maximize"}, run_cap=9)
    file = written(tmp_path / "sweep.yaml", plain)
    found = define([file], trials=2, method="random", metric="loss", seeds=2, early=EarlyTermination(2, 3))
    assert (found.trials, found.method, found.seeds, found.early) == (2, "random", 2, EarlyTermination(2, 3))
    assert found.maximize, "the file says so"
    assert not define([file], metric="step_ms").maximize


# -- what is stored

names = some.text("abcdef_.", min_size=1, max_size=8)
spaces = some.one_of(
    some.lists(some.text(min_size=1, max_size=5), min_size=1, max_size=4).map(lambda texts: Values(tuple(texts))),
    some.builds(
        Range,
        some.floats(1e-9, 1e3),
        some.floats(2e3, 1e9),
        some.one_of(some.none(), some.floats(1e-3, 1e3)),
        some.booleans(),
    ),
    some.builds(Range, some.integers(1, 10), some.integers(11, 99), some.one_of(some.none(), some.integers(1, 5))),
)
definitions = some.builds(
    Definition,
    some.sampled_from(sweeps.METHODS),
    some.dictionaries(names, spaces, min_size=1, max_size=4),
    some.lists(some.text(max_size=9), max_size=3).map(tuple),
    names,
    some.booleans(),
    some.one_of(some.none(), some.builds(EarlyTermination, some.integers(1, 9), some.integers(2, 9))),
    some.one_of(some.none(), some.integers(1, 99)),
    some.one_of(some.none(), some.integers(1, 9)),
    some.one_of(some.none(), names),
    some.lists(names, max_size=2).map(tuple),
)


@given(definitions)
def test_a_definition_is_read_back_from_its_file_as_it_was(definition: Definition) -> None:
    read = from_dict(yaml.safe_load(yaml.safe_dump(definition.as_dict(), sort_keys=False)))
    assert read == definition and list(read.parameters) == list(definition.parameters)
    for space, before in zip(read.parameters.values(), definition.parameters.values(), strict=True):
        assert repr(space) == repr(before), "an int is no float"


@pytest.mark.parametrize(
    "plain", [None, {}, {"parameters": {"a": 1}}, {"method": "grid", "parameters": {"a": {}}}, [1]]
)
def test_a_stored_definition_that_is_damaged_is_refused(plain: Any) -> None:
    with pytest.raises(ConfigError, match=r"sweep\.yaml is not one of ours"):
        from_dict(plain)


# a "$" begins an interpolation, in W&B's command as in ours; text that reads as a number is one there, too
plain_text = some.text(some.characters(exclude_characters="$", exclude_categories=["Cs", "Cc"]), max_size=12).map(
    lambda text: f"t{text}'"
)
values = some.recursive(
    some.one_of(some.none(), some.booleans(), some.integers(), some.floats(allow_nan=False), plain_text),
    lambda inner: some.one_of(
        some.lists(inner, max_size=3), some.dictionaries(some.text("abc", min_size=1), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(values)
@example("a\\b c")
@example("ends in \\")
@example("\\'")
@example("a\\\\'b")
@example("{x}, [y] = 'z' \"w\" # % ~ ü 漢")
@example("")
@example(" spaces ")
@example("null and void")
@example(1e-05)
@example(1e22)
@example([None, True, ["a b", 1.5], {"k": "v w"}])
def test_a_value_written_as_an_override_is_read_as_it_was(value: Any) -> None:
    override = OverridesParser.create().parse_override(f"a={as_override(value)}")
    read = override.value()
    assert not override.is_sweep_override() and _unquoted(read) == value
    assert repr(_unquoted(read)) == repr(value)
    assert sweep_values(f"a={as_override(value)}") == ("a", None)


def _unquoted(value: Any) -> Any:
    if isinstance(value, list):
        return [_unquoted(item) for item in value]
    if isinstance(value, dict):
        return {key: _unquoted(item) for key, item in value.items()}
    return getattr(value, "text", value)


@given(some.lists(plain_text, min_size=2, max_size=4, unique=True))
def test_values_on_the_command_line_are_those_of_a_file(texts: list[str]) -> None:
    swept = define([f"a={','.join(map(as_override, texts))}"])
    assert swept.parameters == {"a": parameter(values=texts)}
