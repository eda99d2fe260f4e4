"""What a sweep searches: Hydra's grammar, overrides of a file, what is stored; test_sweep_schema.py: W&B's schema."""

import random
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import example, given
from hypothesis import strategies as some
from sweep_files import COMMAND, parameter, schema, written

from paceline.conf.errors import ConfigError
from paceline.conf.grammar import as_override
from paceline.engine.config.swept import sweep_values
from paceline.sweep import definition as sweeps
from paceline.sweep.define import define
from paceline.sweep.definition import Definition, EarlyTermination, Range, Values, from_dict

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


def test_a_users_own_choices_are_among_those_that_a_pattern_finds(tmp_path: Path) -> None:
    (tmp_path / "sync").mkdir()
    (tmp_path / "sync" / "bsp_mine.yaml").write_text("{}")
    found = define(["sync=glob(bsp*)"], config_dir=str(tmp_path))
    assert found.parameters == {"sync": Values(("bsp", "bsp_mine", "bsp_naive"))}
    assert define(["sync=glob(bsp*)"]).parameters == {"sync": Values(("bsp", "bsp_naive"))}


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
    assert found.method == "bayes"


def test_so_many_of_an_interval_of_whole_numbers_are_looked_for(tmp_path: Path) -> None:
    assert define(["a=int(interval(8,64))"], trials=3).method == "bayes"
    assert define(["a=int(interval(8,64))"], trials=3, method="grid").method == "grid"
    assert define(["a=int(interval(8,64))"]).method == "grid"
    assert define(["a=8,16,32"], trials=2).method == "grid"


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
        (["a=range(1,5,0)"], "a=range(1,5,0): its values cannot be counted out"),
        (["a=range(0,nan,0.1)"], "a=range(0,nan,0.1): its values cannot be counted out"),
        (["missing.yaml"], "missing.yaml: cannot be read: No such file"),
        (["name=a,b"], "name=a,b: a sweep names its runs by what differs between them. Its own name is --name"),
        (["sync=bsp,asp", "name=a"], "name=a: a sweep names its runs"),
        (["sync=bsp,asp", "+name=a"], "+name=a: a sweep names its runs"),
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
        ({"metric": "acuracy"}, "--metric acuracy: is no column of the table; did you mean accuracy"),
        ({"metric": "sync", "maximize": True}, "metric=sync: must be a number of the table"),
        ({"metric": "status", "maximize": True}, "metric=status: must be a number of the table"),
        ({"metric": "epochs_to_accuracy"}, "metric=epochs_to_accuracy: is told by a run's records alone"),
        ({"metric": "time_per_pass"}, "metric=time_per_pass: is told by a run's records alone"),
        ({"seeds": 1_000_000}, "--seeds 1000000: makes 2,000,000 runs"),
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


# -- a file and overrides


def test_overrides_go_before_what_is_in_the_file(tmp_path: Path) -> None:
    parameters = {"sync": {"values": ["bsp", "ssp"]}, "optimizer.lr": {"values": [0.1, 0.2]}, "seed": {"value": 3}}
    file = written(tmp_path / "sweep.yaml", schema(parameters=parameters, command=[*COMMAND, "epochs=30"]))
    found = define([file, "sync=asp", "epochs=1,2", "seed=4", "steps=5"])
    assert found.parameters == {"optimizer.lr": Values(("0.1", "0.2")), "epochs": Values(("1", "2"))}
    assert found.fixed == ("sync=asp", "seed=4", "steps=5")
    with pytest.raises(ConfigError, match=r"sync=asp optimizer\.lr=1: leaves nothing to sweep"):
        define([file, "sync=asp", "optimizer.lr=1"])


def test_another_choice_takes_the_settings_of_the_files_own_choice_away(tmp_path: Path) -> None:
    command = [*COMMAND[:2], "hardware.workers=2", "hardware.threads=1", "optimizer.momentum=0.8", COMMAND[2]]
    file = written(tmp_path / "sweep.yaml", schema(command=command))
    found = define([file, "hardware=virtual", "optimizer=adam"])
    assert found.fixed == ("hardware.workers=2", "hardware=virtual", "optimizer=adam")
    assert define([file, "optimizer=sgd"]).fixed == (*command[2:-1], "optimizer=sgd")


@pytest.mark.parametrize(
    ("given", "stay"),
    [("optimizer=adam", ["optimizer.weight_decay=0.3"]), ("optimizer=sgd", []), ("optimizer=lars", [])],
)
def test_the_settings_of_a_choice_that_the_file_names_go_with_it(tmp_path: Path, given: str, stay: list[str]) -> None:
    command = [*COMMAND[:2], "optimizer=adam", "optimizer.weight_decay=0.3", COMMAND[2]]
    file = written(tmp_path / "sweep.yaml", schema(command=command))
    assert define([file, given]).fixed == (*stay, given)


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


@pytest.mark.parametrize("key", ["trials", "seeds"])
@pytest.mark.parametrize("number", ["x", 0, -1, 1.5, True, [1], {}])
def test_a_stored_definition_counts_by_whole_numbers(key: str, number: Any) -> None:
    plain = Definition("grid", {"optimizer.lr": Values(("0.1", "0.2"))}).as_dict()
    assert from_dict(plain)
    with pytest.raises(ConfigError, match=rf"sweep\.yaml is not one of ours.*{key}="):
        from_dict(plain | {key: number})


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
    override = OverridesParser.create().parse_override(f"a={as_override(value, exact=False)}")
    read = override.value()
    assert not override.is_sweep_override() and _unquoted(read) == value
    assert repr(_unquoted(read)) == repr(value)
    assert sweep_values(f"a={as_override(value, exact=False)}") == ("a", None)


def test_bytes_that_are_no_utf_8_are_read_as_any_text() -> None:
    assert sweep_values('data.path="\udce9.csv"') == ("data.path", None)
    with pytest.raises(ConfigError, match=r"^\udce9: is not an override"):
        sweep_values("\udce9")


def _unquoted(value: Any) -> Any:
    if isinstance(value, list):
        return [_unquoted(item) for item in value]
    if isinstance(value, dict):
        return {key: _unquoted(item) for key, item in value.items()}
    return getattr(value, "text", value)


@given(some.lists(plain_text, min_size=2, max_size=4, unique=True))
def test_values_on_the_command_line_are_those_of_a_file(texts: list[str]) -> None:
    swept = define([f"a={','.join(as_override(text, exact=False) for text in texts)}"])
    assert swept.parameters == {"a": parameter(values=texts)}


# -- the metric of a task


def test_a_sweep_of_a_regression_is_judged_by_r2_unless_something_else_is_asked_for() -> None:
    words = ["task=squared", "data=diabetes", "model=linear", "sync=bsp,asp"]
    assert (define(words).metric, define(words).maximize) == ("r2", True)
    assert (define(words, metric="loss").metric, define(words, metric="loss").maximize) == ("loss", False)
    assert define(["task=hinge", "model=linear", "sync=bsp,asp"]).metric == "accuracy"
    assert define(["sync=bsp,asp"]).metric == "accuracy"


@pytest.mark.parametrize(
    ("metric", "hint"),
    [("acuracy", "did you mean accuracy"), ("nosuch", "choose accuracy, loss or throughput, or add the callback")],
)
def test_a_metric_that_no_run_can_have_is_refused_before_anything_is_trained(metric: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=f"^metric={metric}: these runs have no such number; {hint}"):
        define(["sync=bsp,ssp"], metric=metric, maximize=True)


@pytest.mark.parametrize("hardware", ["local", "laptop"])
def test_a_price_that_no_run_has_is_refused_before_anything_is_trained(hardware: str) -> None:
    words = ["sync=bsp,ssp", f"hardware={hardware}"]
    with pytest.raises(ConfigError, match=r"^metric=dollars: these runs have no price"):
        define(words, metric="dollars")
    assert define(["sync=bsp,ssp", "hardware=a100"], metric="dollars").maximize is False
    assert define(["hardware=a100,laptop"], metric="dollars").metric == "dollars"  # some may have one
    assert define(["hardware=laptop", "hardware.machine.price_per_hour=1,2"], metric="dollars").metric == "dollars"


def test_no_search_is_led_by_modelled_and_measured_times() -> None:
    words = ["hardware=local,virtual", "optimizer.lr=interval(0.1,0.2)"]
    with pytest.raises(ConfigError, match=r"^hardware=virtual,local: times of the first are modelled"):
        define(words, metric="throughput", trials=4)
    assert define(words, trials=4).metric == "accuracy"  # which is compared
    assert define(words, metric="throughput", trials=4, method="random").method == "random"  # nothing leads it
    one_kind = ["hardware=a100,local", words[1]]
    assert define(one_kind, metric="throughput", trials=4).method == "bayes"


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        ("steps", []),
        ("throughput", []),
        ("target_accuracy", []),
        ("staleness/mean", []),
        ("mine", ["callbacks=[gradient_norm]"]),
        ("mine", ["callbacks=[gradient_norm],[early_stop]"]),
        ("mine", ["task=cross_entropy,hinge"]),
    ],
)
def test_a_metric_that_a_run_may_have_is_taken(metric: str, words: list[str]) -> None:
    assert define(["sync=bsp,ssp", *words], metric=metric, maximize=True).metric == metric


@pytest.mark.parametrize(
    ("words", "metric", "reported"),
    [(["task=squared", "sync=bsp,asp"], "accuracy", "r2"), (["sync=bsp,asp"], "r2", "accuracy")],
)
def test_the_metric_of_another_task_is_refused_with_the_one_that_is_reported(
    words: list[str], metric: str, reported: str
) -> None:
    with pytest.raises(
        ConfigError, match=f"metric={metric}: these runs report {reported} .*--metric {reported} goes by"
    ):
        define(words, metric=metric)


def test_a_ready_sweep_is_found_by_its_name_far_from_a_clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    named = [define([word]) for word in ("sync_modes", "sweeps/sync_modes.yaml")]
    assert named[0] == named[1] and "sync" in named[0].parameters
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "sweeps" / "sync_modes.yaml").write_text("method: none\n")
    with pytest.raises(ConfigError, match="method=none"):
        define(["sweeps/sync_modes.yaml"])
    for word in ("sweeps/../conf/config.yaml", "nosuch", "sweeps/nosuch.yaml"):
        with pytest.raises(ConfigError):
            define([word])


@pytest.mark.parametrize(
    ("told", "key"),
    [
        ("data.db_password=swordfish", "data.db_password"),
        ("data.db_password=swordfish,marlin", "data.db_password"),
        ("data={_target_:mine.Table,api_key:swordfish}", "data"),
        ("data.url='postgresql://me:swordfish@host'", "data.url"),
    ],
)
def test_a_secret_is_refused_as_a_sweep_would_store_it(told: str, key: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{key}=\*\*\*: a sweep stores its definition, but no secret"):
        define([told, "sync=bsp,ssp"])
    assert define(["model.pad_token=0", "data.token=null", "sync=bsp,ssp"]).size() == 2


OWN_METRIC = """
from paceline.tasks.losses.cross_entropy import CrossEntropy
from paceline.tasks.losses.metrics import Accuracy

class Perplexity(Accuracy):
    name = "perplexity"
    larger_is_better = False

class Language(CrossEntropy):
    def __init__(self) -> None:
        self.metric = Perplexity()
"""


def test_a_sweep_minimises_a_tasks_own_metric_where_smaller_is_better(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_metric.py").write_text(OWN_METRIC)
    monkeypatch.syspath_prepend(tmp_path)
    words, allowed = ["task={_target_:own_metric.Language}", "sync=bsp,asp"], {"allow_modules": ("own_metric",)}
    for told in ({}, {"metric": "perplexity"}):
        found = define(words, **told, **allowed)
        assert (found.metric, found.maximize) == ("perplexity", False)
    assert define(words, metric="perplexity", maximize=True, **allowed).maximize
    with pytest.raises(ConfigError, match="--metric f1: is no column of the table: say --minimize or --maximize"):
        define(words, metric="f1", **allowed)
