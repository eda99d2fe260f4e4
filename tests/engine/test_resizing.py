"""Runs that go on with another number of workers: they end with the weights of the run that never changed."""

from pathlib import Path

import pytest
from safetensors.torch import load_file
from short_runs import Train

from paceline import engine
from paceline.conf.errors import ConfigError
from paceline.engine.base.checkpoint import file_of, read_manifest, read_part, steps_of
from paceline.engine.config.stored import _former_identities, read_stored
from paceline.engine.planning.resizing import batch_size
from paceline.strategies.core.state import in_file, mean_of, read_all, to_bytes
from paceline.tracking.checksums import json_sealed, sha256
from paceline.tracking.run_directory import RunDirectory

pytestmark = pytest.mark.dist

STEPS = ("batch_size=12", "checkpoint.every_steps=4", "checkpoint.keep=9", "steps=8")
CLOSE = 1e-5  # float32: the same sums in another order


def end_of(run: Path) -> Path:
    return run / "model.safetensors"


def distance(one: Path, other: Path) -> float:
    mine, theirs = load_file(end_of(one)), load_file(end_of(other))
    assert mine.keys() == theirs.keys()
    return max(float((mine[name] - theirs[name]).abs().max()) for name in mine)


@pytest.mark.parametrize(
    ("overrides", "sizes"),
    [
        (["optimizer.momentum=0.9"], (4, 2)),
        pytest.param([], (2, 4, 1, 3), marks=pytest.mark.slow),
        pytest.param(["optimizer=adam"], (4, 2), marks=pytest.mark.slow),
        pytest.param(["sync.shard=gradients", "optimizer.momentum=0.9"], (2, 4), marks=pytest.mark.slow),
        pytest.param(["sync.shard=optimizer", "optimizer=adam"], (1, 2, 1), marks=pytest.mark.slow),
        pytest.param(["strategy=torch_ddp"], (2, 4), marks=pytest.mark.slow),
        pytest.param(["strategy=torch_fsdp"], (4, 2), marks=pytest.mark.slow),
        pytest.param(["strategy=pipeline", "strategy.stages=2", "model.hidden=[16,8]"], (4, 2), marks=pytest.mark.slow),
        pytest.param(["sync=parameter_server"], (2, 3), marks=pytest.mark.slow),
    ],
)
@pytest.mark.budget(3)
def test_a_run_of_changing_size_ends_as_one_that_kept_it(train: Train, overrides: list[str], sizes: list[int]) -> None:
    first = f"hardware.workers={sizes[0]}"
    whole = train(*STEPS, *overrides, first, "steps=20", name="whole")
    changing = train(*STEPS, *overrides, first, name="changing")
    for i, size in enumerate(sizes[1:], start=1):
        steps = 20 if size == sizes[-1] else 8 + 4 * i
        changing = train(f"hardware.workers={size}", f"steps={steps}", resume="changing")
    assert distance(whole.path, changing.path) < CLOSE
    stored = read_stored(RunDirectory(changing.path)).experiment
    assert stored.hardware.workers == sizes[-1] and stored.batch_size == 12 * sizes[0] // sizes[-1]


def test_it_goes_on_at_its_new_size_and_from_a_checkpoint_of_the_old_one(train: Train) -> None:
    path = train(*STEPS, "hardware.workers=2", name="mine").path
    train("hardware.workers=1", "steps=12", resume="mine")
    again = train("steps=16", resume="mine")
    train("steps=16", resume="mine@8")
    assert [read_manifest(each).workers for each in steps_of(path / "checkpoints")] == [2, 2, 1, 1]
    assert again.summary["steps"] == 16


def test_a_run_of_an_earlier_version_goes_on(train: Train) -> None:
    """Its checkpoints know of no batch size, and their identity has it."""
    path = train(*STEPS, "hardware.workers=2", name="mine").path
    for checkpoint in steps_of(path / "checkpoints"):
        manifest = dict(read_manifest(checkpoint).__dict__)
        del manifest["batch_size"]
        manifest["run"] = _former_identities(read_stored(RunDirectory(path)).plain)[1]
        (checkpoint / "manifest.json").write_text(json_sealed(manifest))
    assert train("steps=12", "hardware.workers=1", resume="mine").summary["steps"] == 12


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["sync=local_sgd", "sync.period=3"], "sync=local_sgd: the checkpoint lies inside a round of 3 steps"),
        (["sync=gossip", "compress=topk"], "sync=gossip: each replica knows the weights of its neighbours"),
        (["sync=push_sum"], "sync=push_sum: each replica has weights of its own"),
        (["sync=dion"], "sync=dion: each replica has state of its own"),
        (["privacy=dp_sgd", "privacy.noise=1.0"], "privacy=dp_sgd: noise is accounted for a fixed number of replicas"),
        (["partition=dirichlet"], "partition=dirichlet: deals samples for a fixed number of replicas"),
    ],
)
def test_what_belongs_to_a_replica_is_not_dealt_anew(train: Train, overrides: list[str], said: str) -> None:
    train(*STEPS, *overrides, "hardware.workers=2", "steps=4", name="mine")
    with pytest.raises(ConfigError) as caught:
        train("hardware.workers=1", "steps=8", resume="mine")
    assert said in str(caught.value) and str(caught.value).endswith("Choose hardware.workers=2.")


def test_a_number_that_does_not_divide_a_steps_samples_is_refused_with_those_that_do() -> None:
    assert batch_size(4, 12, 6, 1) == 8
    with pytest.raises(ConfigError, match=r"hardware\.workers=5: .*Choose one of 1, 2, 3, 4, 6, 8, 12, 16, 24, 48\.$"):
        batch_size(4, 12, 5, 1)


def test_the_size_is_said_where_a_checkpoint_is_gone_on_from_by_others(train: Train, root: Path) -> None:
    train(*STEPS, "hardware.workers=2", "steps=4", name="mine")
    prepared = engine.prepare(["hardware.workers=1", "steps=8"], resume="mine", root=root)
    assert (prepared.experiment.hardware.workers, prepared.experiment.batch_size) == (1, 24)


@pytest.mark.parametrize(
    ("overrides", "sizes"),
    [
        (["sync=local_sgd", "optimizer.momentum=0.9"], (4, 2)),
        pytest.param(["sync=diloco", "sync.period=4"], (2, 4), marks=pytest.mark.slow),
        pytest.param(["sync=gossip"], (4, 2), marks=pytest.mark.slow),
        pytest.param(["sync=sparta"], (2, 4), marks=pytest.mark.slow),
        pytest.param(["compress=topk"], (2, 4), marks=pytest.mark.slow),
        pytest.param(["compress=topk"], (2, 1), marks=pytest.mark.slow),
        pytest.param(["compress=powersgd"], (4, 2), marks=pytest.mark.slow),
    ],
)
def test_replicas_that_differ_go_on_from_their_mean(train: Train, overrides: list[str], sizes: tuple[int, int]) -> None:
    path = train(*STEPS, *overrides, f"hardware.workers={sizes[0]}", name="mine").path
    [_, saved] = steps_of(path / "checkpoints")
    move_the_last(saved, sizes[0] - 1)
    replicas = [in_file(saved / file_of(0, replica)) for replica in range(sizes[0])]
    before = mean_of(replicas)["parameters"]
    train(f"hardware.workers={sizes[1]}", "steps=9", "checkpoint.every_steps=1", resume="mine")
    after = read_part(made := steps_of(path / "checkpoints")[-1], 0, 0, read_manifest(made))["parameters"]
    moved = {name: float((after[name] - before[name]).abs().max()) for name in before}
    assert 0 < max(moved.values()) < 0.2, moved


def move_the_last(checkpoint: Path, replica: int) -> None:
    """Moves the weights that a replica saved by 1, so that replica 0's are not near the mean."""
    name, manifest = file_of(0, replica), dict(read_manifest(checkpoint).__dict__)
    state = read_all(in_file(checkpoint / name))
    state["parameters"] = {key: each + 1 for key, each in state["parameters"].items()}
    data = to_bytes(state)
    (checkpoint / name).write_bytes(data)
    manifest["files"] |= {name: sha256(data)}
    (checkpoint / "manifest.json").write_text(json_sealed(manifest))
