"""Many composes of a kind: with the files of a combination of choices kept, each is what it is without."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paceline.engine import compose as composing
from paceline.engine.compose import compose
from paceline.engine.errors import ConfigError

HERE = Path(__file__).parent


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., object]]:
    """`compose` in a process that keeps choices."""
    monkeypatch.setattr(composing, "_kept", None)
    composing.keep_choices()
    memory = composing._kept

    def run(*overrides: str, config_dir: Path | None = None) -> object:
        monkeypatch.setattr(composing, "_kept", memory)
        return composed(*overrides, config_dir=config_dir)

    yield run
    monkeypatch.setattr(composing, "_kept", None)


def composed(*overrides: str, config_dir: Path | None = None) -> object:
    """The experiment, or why there is none."""
    try:
        return compose(list(overrides), config_dir).model_dump()
    except ConfigError as error:
        return str(error)


LISTS = [
    (),
    ("optimizer.lr=0.3",),
    ("sync=ssp", "sync.staleness=4"),
    ("sync.staleness=4", "sync=ssp"),
    ("sync=ssp", "sync.staleness=5", "sync.staleness=6"),
    ("optimizer=adam", "optimizer.lr=1e-05", "batch_size=8"),
    ("experiment=local_sgd_period", "sync.period=8"),
    ("experiment=local_sgd_period", "sync=bsp"),
    ("hardware=virtual", "hardware/network=wide_area", "hardware.workers=3", "stragglers=one_slow"),
    ("hardware=virtual", "hardware.network.between.latency=0.5"),
    ("tracking=none", "seed=7", "model.hidden=[32,16]"),
    ("+optimizer.nesterov=true",),
    ("++optimizer.lr=0.5",),
    ("~target_accuracy",),
    ("model=gpt", "data=text", "epochs=2"),
    ("partition=dirichlet", "partition.alpha=0.1"),
    # refused, for the same reason
    ("sync=nosuch",),
    ("sync.nosuch=1",),
    ("nosuch=1",),
    ("+nosuch=1",),
    ("hardware/network=wide_area",),
    ("sync=bsp", "sync=asp"),
    ("epochs=x",),
    ("optimizer.lr=${oc.env:HOME}",),
    ("optimizer.lr=${nosuch}",),
    ("seed=${batch_size}",),
    ("sync=bsp,asp",),
    ("optimizer=null",),
]


@pytest.mark.parametrize("overrides", LISTS, ids=" ".join)
def test_each_compose_is_what_it_is_alone(overrides: tuple[str, ...], kept: Callable[..., object]) -> None:
    alone = composed(*overrides)
    assert kept(*overrides) == alone and kept(*overrides) == alone


def test_one_compose_leaves_nothing_to_the_next(kept: Callable[..., object]) -> None:
    points = list(itertools.product(("sync=bsp", "sync=ssp"), ("optimizer.lr=0.1", "optimizer.lr=0.2", "batch_size=8")))
    there = [kept(*point) for point in [*points, *reversed(points)]]
    kept_memory = composing._kept
    assert kept_memory is not None and len(kept_memory) == 2, "one for each combination of choices"
    composing._kept = None
    alone = [composed(*point) for point in points]
    assert there == [*alone, *reversed(alone)]


def test_a_users_own_directory_is_kept_apart(kept: Callable[..., object]) -> None:
    own = kept("model=odd", config_dir=HERE / "conf")
    assert own == composed("model=odd", config_dir=HERE / "conf")
    assert isinstance(kept("model=odd"), str), "not found without it"
