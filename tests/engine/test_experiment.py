"""The experiment as a file."""

import pytest
from stored_configs import from_yaml, to_yaml

from paceline.conf.errors import ConfigError
from paceline.engine import prepare
from paceline.engine.config.compose import compose


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["experiment=fashion_cnn"],
        ["experiment=pipeline_2x2", "sync=asp"],
        ["tracking=none", "name=x", "optimizer=adam", "strategy=pipeline", "strategy.cut=[1]"],
        ["tracking.tags=['a: b','#c','ü','yes']", "seed=9223372036854775807", "optimizer.lr=1e-30"],
    ],
)
def test_an_experiment_survives_its_file(overrides: list[str]) -> None:
    experiment = compose(overrides)
    assert from_yaml(to_yaml(experiment)) == experiment


def test_an_experiment_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        compose([]).seed = 1  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("seed: 0", "seed: x"), "seed='x': must be a valid integer"),
        (("seed: 0", "sead: 0"), "sead: there is no such key"),
        (("seed: 0\n", ""), "seed: is missing"),
        (("fabric: process", "fabric: cloud"), "hardware.fabric='cloud': must be process or virtual"),
        (("  fabric: process\n", ""), "hardware.fabric: is missing. Choose process or virtual"),
        (("seed: 0", "seed: 0\nhardware: [1]"), "hardware=[1]: must be a mapping"),
    ],
)
def test_a_file_that_is_not_ours_is_refused(change: tuple[str, str], words: str) -> None:
    text = to_yaml(compose([]))
    assert change[0] in text
    with pytest.raises(ConfigError, match=r"the run's config\.yaml is not one of ours") as caught:
        from_yaml(text.replace(*change))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (["strategy=zero", "strategy.config=5"], "strategy.config=5: must be a valid string or an object"),
        (
            ["data=table", "data.inputs=[1,x]"],
            'data.inputs.0=1: must be a valid string. Write a name in quotes: "1"',
        ),
        (
            ["data=table", "data.targets=2"],
            """data.targets=2: must be a valid string or a list. Write a name in quotes: 'data.targets="2"'""",
        ),
        (["strategy=zero", "strategy.config="], "strategy.config=: name a DeepSpeed JSON file, or leave it out (null)"),
        (
            ["hardware=t4", "hardware.machine.device_memory=0"],
            "hardware.machine: devices=1 with device_memory=0: a machine has devices with memory, or 0 of both",
        ),
        (
            ["model=gpt", "data=text", "model.n_layer=100000"],
            "model.n_layer=100000: must be less than or equal to",
        ),
        (
            ["model=gpt", "data=text", "model.width=9000000"],
            "model.width=9000000: must be less than or equal to",
        ),
    ],
    ids=str,
)
def test_a_bad_value_is_told_by_its_key_in_one_line(overrides: list[str], line: str) -> None:
    with pytest.raises(ValueError) as caught:
        prepare(overrides).plan()
    assert str(caught.value).startswith(line) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "workers"),
    [
        ("hardware=a100_8", 8),
        ("hardware=a100_8 hardware.hosts=4", 32),
        ("hardware=a100_8 hardware.hosts=null", 8),
        ("hardware=a100_8 hardware.workers=30", 30),
        ("hardware=a100_8 hardware.workers=30 hardware.hosts=4", 30),
        ("hardware=t4 hardware.hosts=3", 3),
        ("hardware=virtual hardware.hosts=3 hardware.workers_per_host=2", 6),
    ],
)
def test_hosts_say_how_many_workers_there_are_where_nobody_else_does(overrides: str, workers: int) -> None:
    assert compose(overrides.split()).hardware.workers == workers


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ("hardware=a100_8 hardware.hosts=4 hardware.workers=8", "workers=8 with hosts=4: .* have 25 to 32 workers"),
        ("hardware=a100_8 hardware.hosts=4 hardware.workers=33", "workers=33 with hosts=4: .* have 25 to 32 workers"),
        ("hardware=a100_8 hardware.hosts=0", r"hardware\.hosts=0: must be greater than or equal to 1"),
        ("hardware=a100_8 hardware.hosts=x", r"hardware\.hosts='x': must be a valid integer"),
        ("hardware=a100_8 hardware.hosts=200000", r"hardware\.workers=1600000: must be less than or equal to 1048576"),
        ("hardware.hosts=2", "hosts=2: machine=null does not say how many devices a host has"),
        ("hardware=laptop hardware.hosts=2", "follows from machine.devices, which is 0; give workers instead"),
    ],
)
def test_hosts_that_contradict_the_workers_or_say_nothing_are_refused(overrides: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        compose(overrides.split())
