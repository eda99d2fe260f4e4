"""Runs from before a class was moved: read, shown and resumed as what they are."""

from typing import Any

import pytest

from paceline.engine.compose import compose
from paceline.engine.errors import ConfigError
from paceline.engine.experiment import from_plain
from paceline.engine.moved import MOVED
from paceline.engine.overrides import overrides_of
from paceline.engine.targets import base_of, load_class

SERVER = "paceline.strategies.sync.parameter_server.ParameterServer"
ASP = {"mode": "asynchronous", "staleness": None, "push": 1, "fetch": 1, "rate": "share", "servers": 1, "lock": True}
SSP = {"mode": "asynchronous", "staleness": 3, "rate": "share", "servers": 1}
EASGD = {"rho": None, "period": 4, "nesterov": False}
STORED = {  # as it was written -> as it would be typed now
    "asp": (("asp", SERVER, ASP), ["sync=asp"]),
    "asp, other knobs": (
        ("asp", SERVER, ASP | {"push": 4, "fetch": 2, "servers": 2, "lock": False, "rate": "full"}),
        ["sync=asp", "sync.push=4", "sync.fetch=2", "sync.rate=full", "sync.servers=2", "sync.lock=false"],
    ),
    "asp with a bound": (("asp", SERVER, ASP | {"staleness": 2}), ["sync=ssp", "sync.staleness=2"]),
    "asp, synchronous": (("asp", SERVER, ASP | {"mode": "synchronous"}), ["sync=parameter_server"]),
    "ssp": (("ssp", SERVER, SSP), ["sync=ssp"]),
    "ssp 0": (("ssp", SERVER, SSP | {"staleness": 0}), ["sync=ssp", "sync.staleness=0"]),
    "ssp without a bound": (("ssp", SERVER, SSP | {"staleness": None}), ["sync=ssp", "sync.staleness=null"]),
    "synchronous": (
        ("parameter_server", SERVER, {"mode": "synchronous", "servers": 2}),
        ["sync=parameter_server", "sync.servers=2"],
    ),
    "easgd_async": (("easgd_async", "paceline.strategies.sync.easgd.AsyncEASGD", EASGD), ["sync=easgd_async"]),
    "easgd_round_robin": (
        ("easgd_round_robin", "paceline.strategies.sync.easgd.RoundRobinEASGD", EASGD | {"period": 1}),
        ["sync=easgd_round_robin"],
    ),
    "untouched": (("easgd", "paceline.strategies.sync.easgd.EASGD", EASGD), ["sync=easgd"]),
}


def stored(name: str, target: str, knobs: dict[str, Any]) -> dict[str, Any]:
    """What config.yaml held."""
    return compose([]).model_dump() | {"sync": {"name": name, "target": target, "knobs": knobs}}


@pytest.mark.parametrize(("then", "now"), STORED.values(), ids=list(STORED))
def test_what_was_stored_is_what_would_be_typed_now(then, now):
    plain = stored(*then)
    assert from_plain(plain) == compose(now)
    assert overrides_of(plain) == now
    assert plain == stored(*then), "the file's own content is what makes the run what it is"


@pytest.mark.parametrize(("cuts", "cut"), [(None, "parameters"), ([3], "[3]")])
def test_a_pipelines_cuts_are_its_cut(cuts, cut):
    now = ["strategy=pipeline", f"strategy.cut={cut}"]
    plain = compose(now).model_dump()
    knobs = {knob: value for knob, value in plain["strategy"]["knobs"].items() if knob != "cut"}
    then = plain | {"strategy": plain["strategy"] | {"knobs": knobs | {"cuts": cuts}}}
    assert from_plain(then) == compose(now)
    assert overrides_of(then) == now


def test_one_bit_adams_clip_is_its_most_and_zeros_clip_is_the_choice_of_that_name():
    now = ["sync=onebit_adam", "sync.most=0.5"]
    plain = compose(now).model_dump()
    knobs = {knob: value for knob, value in plain["sync"]["knobs"].items() if knob != "most"}
    then = plain | {"sync": plain["sync"] | {"knobs": knobs | {"clip": 0.5}}}
    assert from_plain(then) == compose(now)
    for longest, now in ((None, ["strategy=zero"]), (0.5, ["strategy=zero", "clip=norm", "clip.max=0.5"])):
        plain = compose(now).model_dump()
        old = plain["strategy"] | {"knobs": plain["strategy"]["knobs"] | {"clip": longest}}
        then = {group: choice for group, choice in plain.items() if group != "clip"} | {"strategy": old}
        assert from_plain(then) == compose(now)
        assert overrides_of(then) == now


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_zeros_precision_is_the_choice_of_that_name(precision):
    """Which DeepSpeed scaled anew after 1,000 steps."""
    more = ["precision.grow_every=1000"] if precision == "fp16" else []
    now = ["strategy=zero", *([] if precision == "fp32" else [f"precision={precision}"]), *more]
    plain = compose(now).model_dump()
    old = plain["strategy"] | {"knobs": plain["strategy"]["knobs"] | {"precision": precision}}
    then = {group: choice for group, choice in plain.items() if group != "precision"} | {"strategy": old}
    assert from_plain(then) == compose(now)
    assert sorted(overrides_of(then)) == sorted(now)


def test_a_noise_and_a_bucket_that_said_nothing_are_none():
    for group, now, knob, default in (
        ("privacy", ["privacy=dp_sgd", "privacy.epsilon=3"], "noise", 1.0),
        ("aggregate", ["aggregate=median"], "bucket", 2),
    ):
        plain = compose(now).model_dump()
        old = plain[group] | {"knobs": plain[group]["knobs"] | {knob: default}}
        assert from_plain(plain | {group: old}) == compose(now)
    for now in (["privacy=dp_sgd", "privacy.noise=2"], ["aggregate=median", "aggregate.before=bucketing"]):
        assert from_plain(compose([*now]).model_dump()) == compose(now)
    kept = compose(["aggregate=median", "aggregate.before=bucketing", "aggregate.bucket=3"])
    assert from_plain(kept.model_dump()) == kept


def test_a_tuning_rate_and_batch_that_said_nothing_are_none():
    beside = ["sync=fedavg", "partition=by_label", "callbacks=[by_client]"]
    for tuned in ([], ["callbacks.by_client.steps=3"]):
        plain = compose([*beside, *tuned]).model_dump()
        chosen = plain["callbacks"]["by_client"]
        said = {"lr": 0.02, "batch_size": 32}
        then = {"by_client": chosen | {"knobs": chosen["knobs"] | said}}
        now = [f"callbacks.by_client.{knob}={value}" for knob, value in said.items()] if tuned else []
        assert from_plain(plain | {"callbacks": then}) == compose([*beside, *tuned, *now])
        assert from_plain(plain) == compose([*beside, *tuned])


def test_runs_from_before_there_were_precisions_are_read():
    plain = compose([]).model_dump()
    assert from_plain({group: choice for group, choice in plain.items() if group != "precision"}) == compose([])


def test_a_users_own_choice_of_a_class_that_was_moved_keeps_its_name():
    assert from_plain(stored("mine", SERVER, ASP)).sync.name == "mine"


@pytest.mark.parametrize(
    "sync",
    [None, 7, "asp", {}, {"target": [SERVER]}, {"target": SERVER}, {"target": SERVER, "knobs": 3, "name": "asp"}],
)
def test_what_is_no_choice_is_refused_as_ever(sync):
    with pytest.raises(ConfigError, match=r"the run's config\.yaml is not one of ours: sync"):
        from_plain(compose([]).model_dump() | {"sync": sync})


@pytest.mark.parametrize(("then", "now"), MOVED.items())
def test_a_class_that_was_moved_is_refused_with_where_it_is(then, now):
    with pytest.raises(ConfigError, match=f"^sync._target_={then}: is called {now} now$"):
        load_class("sync", then, base_of("sync"), ())
    assert load_class("sync", now, base_of("sync"), ()).__name__ == now.rpartition(".")[2]
