"""A combination of choices is read once in a process; what is composed from it is what Hydra composes in one go."""

import itertools
import shutil
from pathlib import Path
from typing import Any

import pytest
from hydra import compose as hydra_compose
from hydra import initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from paceline.conf.errors import ConfigError
from paceline.conf.groups import BY_NAME
from paceline.engine.config import compose as composing
from paceline.engine.config.compose import compose
from paceline.engine.config.experiment import CONF, from_config
from paceline.tracking.files import MOST_COMPOSED, UnusableFileError, parse_yaml

HERE = Path(__file__).parent


def composed(*overrides: str, config_dir: Path | None = None) -> dict[str, Any] | str:
    """The experiment, or why there is none."""
    try:
        return compose(list(overrides), config_dir).model_dump()
    except ConfigError as error:
        return str(error)


def by_hydra_alone(overrides: tuple[str, ...]) -> dict[str, Any]:
    """All overrides given to Hydra at once, and nothing of ours but the check at the end."""
    GlobalHydra.instance().clear()
    with initialize_config_module("paceline.conf", version_base="1.3"):
        config = hydra_compose("config", overrides=list(overrides), return_hydra_config=True)
    choices = {group: str(choice) for group, choice in config.hydra.runtime.choices.items()}
    own = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
    plain: Any = OmegaConf.to_container(own, resolve=True)
    return from_config(plain, choices).model_dump()


ACCEPTED = [
    ("sync=bsp", "sync=asp"),
    (),
    ("optimizer.lr=0.3",),
    ("sync=ssp", "sync.staleness=4"),
    ("sync.staleness=4", "sync=ssp"),
    ("sync=ssp", "sync.staleness=5", "sync.staleness=6"),
    ("optimizer=adam", "optimizer.lr=1e-05", "batch_size=8"),
    ("experiment=local_sgd_period", "sync.period=8"),
    ("experiment=local_sgd_period", "sync=bsp"),
    ("hardware=virtual", "hardware/network=wide_area", "hardware.workers=3", "stragglers=one_slow"),
    ("hardware=virtual", "hardware.network.latency=0.5"),
    ("tracking=none", "seed=7", "model.hidden=[32,16]"),
    ("++optimizer.lr=0.5",),
    ("model=gpt", "data=text", "epochs=2"),
    ("partition=dirichlet", "partition.alpha=0.1"),
    ("seed=${batch_size}",),
]
REFUSED = [
    ("~target_accuracy",),
    ("+optimizer.nesterov=true",),
    ("hardware=virtual", "hardware.network.between.latency=0.5"),
    ("sync=nosuch",),
    ("sync.nosuch=1",),
    ("nosuch=1",),
    ("+nosuch=1",),
    ("hardware/network=wide_area",),
    ("epochs=x",),
    ("optimizer.lr=${oc.env:HOME}",),
    ("optimizer.lr=${nosuch}",),
    ("sync=bsp,asp",),
    ("optimizer=null",),
]


@pytest.mark.parametrize("overrides", ACCEPTED, ids=" ".join)
def test_a_compose_is_what_hydra_composes_in_one_go_the_first_time_and_the_second(overrides: tuple[str, ...]) -> None:
    composing._of_choices.cache_clear()
    expected = by_hydra_alone(overrides)
    assert composed(*overrides) == expected and composed(*overrides) == expected


@pytest.mark.parametrize("overrides", REFUSED, ids=" ".join)
def test_a_refusal_says_the_same_the_first_time_and_the_second(overrides: tuple[str, ...]) -> None:
    composing._of_choices.cache_clear()
    first = composed(*overrides)
    assert isinstance(first, str) and composed(*overrides) == first


def test_one_compose_leaves_nothing_to_the_next_and_choices_are_exchanged_without_hydra() -> None:
    composing._of_choices.cache_clear()
    points = list(itertools.product(("sync=bsp", "sync=ssp", "seed=3"), ("optimizer.lr=0.1", "batch_size=8")))
    there = [composed(*point) for point in [*points, *reversed(points)]]
    assert composing._of_choices.cache_info().misses == 1, "a sync mode fills a section of its own"
    alone = [by_hydra_alone(point) for point in points]
    assert there == [*alone, *reversed(alone)]


def test_trackers_are_exchanged_without_hydra_too() -> None:
    composing._of_choices.cache_clear()
    there = [composed(f"tracking={name}") for name in ("none", "tensorboard", "none")]
    assert composing._of_choices.cache_info().misses == 1
    assert there == [by_hydra_alone((f"tracking={name}",)) for name in ("none", "tensorboard", "none")]


def test_a_users_own_directory_is_kept_apart() -> None:
    own = composed("model=odd", config_dir=HERE / "conf")
    assert isinstance(own, dict) and own == composed("model=odd", config_dir=HERE / "conf")
    assert isinstance(composed("model=odd"), str), "not found without it"


def test_a_file_of_a_users_own_directory_that_has_changed_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    file = tmp_path / "model" / "mine.yaml"
    for width in (8, 16, 24):
        file.write_text(f"_target_: paceline.tasks.models.mlp.MLP\nhidden: [{width}]\n")
        own = composed("model=mine", config_dir=tmp_path)
        assert isinstance(own, dict) and own["model"]["knobs"] == {"hidden": [width]}
    file.unlink()
    assert "there is no such choice" in str(composed("model=mine", config_dir=tmp_path))


@pytest.mark.parametrize(
    "head", ["# @package _global_\nsync: {staleness: 7}\n", "# @package _global_\ndefaults:\n  - override /sync: asp\n"]
)
def test_a_users_choice_that_changes_other_sections_is_left_to_hydra(tmp_path: Path, head: str) -> None:
    (tmp_path / "hardware").mkdir()
    (tmp_path / "hardware" / "lab.yaml").write_text(head)
    text = ("sync=ssp", "hardware=lab")
    search = f"hydra.searchpath=[file://{tmp_path}]"
    GlobalHydra.instance().clear()
    with initialize_config_module("paceline.conf", version_base="1.3"):
        whole = hydra_compose("config", overrides=[*text, search])
    kept = composing._kept(text, tmp_path)
    assert kept.config.sync == whole.sync


def test_a_file_that_cannot_be_read_within_bounds_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "deep.yaml").write_text("a: " + "[" * 1000 + "]" * 1000)
    assert "is nested more than" in str(composed("model=deep", config_dir=tmp_path))


@pytest.mark.parametrize(
    ("place", "text", "said"),
    [
        ("model/mine", "_target_: mine.M\nwidth: ['${a']", "model=mine: width[0]='${a': is a broken interpolation"),
        ("experiment/mine", "# @package _global_\nname: '${a'", "experiment=mine: name='${a': is a broken"),
        ("experiment/mine", "# @package _global_\ntracking: {key: '${a-secret'}", "experiment=mine: tracking.key: is"),
        (
            "experiment/mine",
            "# @package _global_\ntracking: {key: ['${a-secret']}",
            "experiment=mine: tracking.key[0]: is",
        ),
    ],
)
def test_a_broken_interpolation_in_a_file_is_named_with_its_choice(
    place: str, text: str, said: str, tmp_path: Path
) -> None:
    (file := tmp_path / f"{place}.yaml").parent.mkdir()
    file.write_text(text)
    assert said in str(composed(place.replace("/", "="), config_dir=tmp_path))


@pytest.mark.parametrize("place", ["mine/theirs", "deep/er/theirs"])
def test_so_is_a_file_outside_of_the_groups_that_another_file_brings_in(tmp_path: Path, place: str) -> None:
    (tmp_path / place).parent.mkdir(parents=True)
    (tmp_path / f"{place}.yaml").write_text("a: &a [1, 1]\nb: [" + "*a," * 10_000 + "]\n")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "small.yaml").write_text(f"defaults:\n  - /{place}\n")
    assert f"{place}.yaml holds more than 20,000 values" in str(composed("model=small", config_dir=tmp_path))


@pytest.mark.parametrize("text", ["a: &a " + "x" * 100_000 + "\nb: [" + "*a," * 30 + "]\n", "k: 1\n" * 20_000])
def test_a_configuration_that_stands_for_much_text_or_many_keys_is_refused_before_it_is_read(text: str) -> None:
    with pytest.raises(UnusableFileError, match="holds more than 20,000 values"):
        parse_yaml(text, MOST_COMPOSED)


def _choices() -> list[str]:
    return [f"{group}={file.stem}" for group in BY_NAME for file in sorted((CONF / group).glob("*.yaml"))]


@pytest.mark.slow
@pytest.mark.parametrize("choice", _choices())
def test_every_choice_of_ours_is_what_hydra_composes(choice: str) -> None:
    missing = ("stragglers.path=delays.csv",) if choice == "stragglers=trace" else ()  # it has no default
    found = composed(choice, *missing)
    assert isinstance(found, dict), found
    assert found == by_hydra_alone((choice, *missing))


def test_a_calibrated_machine_is_composed_once_for_all_sync_modes(tmp_path: Path) -> None:
    (tmp_path / "hardware").mkdir()
    (tmp_path / "hardware" / "lab.yaml").write_text("defaults:\n  - local\n  - _self_\nthreads: 1\n")
    composing._of_choices.cache_clear()
    found = [composed("hardware=lab", f"sync={name}", config_dir=tmp_path) for name in ("bsp", "asp", "ssp")]
    assert all(isinstance(one, dict) and one["hardware"]["threads"] == 1 for one in found)
    assert composing._of_choices.cache_info().misses == 1


@pytest.mark.parametrize(
    ("file", "text", "typed", "message"),
    [
        ("model/mlp.yaml", "_target_: mine.MLP\n", [], "model=mlp is a choice of paceline's own"),
        ("model/mine.yaml", "", ["model=mine"], "must be a mapping with `_target_`"),
        ("model/mine.yaml", "[1]\n", ["model=mine"], "must be a mapping with `_target_`"),
        ("experiment/mine.yaml", "# @package _global_\nsteps: 017\n", ["experiment=mine"], "has 017, which"),
        ("experiment/mine.yaml", "# @package _global_\nsteps: 1:30\n", ["experiment=mine"], "has 1:30, which"),
    ],
)
def test_a_users_file_that_would_not_be_read_as_it_looks_is_refused_by_its_name(
    file: str, text: str, typed: list[str], message: str, tmp_path: Path
) -> None:
    (tmp_path / file).parent.mkdir()
    (tmp_path / file).write_text(text)
    with pytest.raises(ConfigError, match=rf"^{tmp_path / file}:? .*{message}"):
        compose(typed, tmp_path)


def test_a_copy_of_a_choice_of_ours_is_taken(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    shutil.copy(CONF / "model" / "mlp.yaml", tmp_path / "model")
    assert compose(["model=mlp"], tmp_path) == compose(["model=mlp"])
