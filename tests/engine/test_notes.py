"""What a run does other than its configuration makes one expect is said before it starts, and recorded."""

import os
from pathlib import Path

import pytest
from choices import STRATEGIES, SYNCS
from short_runs import HERE, Train

from paceline import engine
from paceline.conf.errors import ConfigError
from paceline.engine.api.session import make_ready
from paceline.strategies.core.uncalled import uncalled


def notes(*overrides: str) -> list[str]:
    return engine.prepare(overrides).plan().notes


@pytest.fixture(autouse=True)
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})


@pytest.mark.parametrize(
    "overrides",
    [[], ["sync=asp"], ["steps=20"], ["hardware=virtual", "hardware.workers=16", "steps=20"], ["sync=hogwild"]],
)
def test_a_configuration_that_does_what_it_says_has_no_notes(overrides: list[str]) -> None:
    assert notes(*overrides) == []


def test_a_batch_that_the_data_cannot_fill_is_noted_with_what_replicas_take() -> None:
    (note,) = notes("batch_size=1000000", "measure.after=0")
    assert note.startswith("batch_size=1000000: data=digits has 1,437 samples")
    assert "each of 2 replicas takes at most 719 in a step" in note
    assert notes("batch_size=719", "measure.after=0") == []


@pytest.mark.parametrize("overrides", [["optimizer.lr=0"], ["optimizer=adam", "optimizer.lr=0.0", "sync=asp"]])
def test_a_rate_of_zero_is_noted(overrides: list[str]) -> None:
    assert notes(*overrides) == ["optimizer.lr=0: no step moves a weight, so that nothing is learnt"]


def test_a_small_rate_and_one_of_matrices_alone_are_not() -> None:
    assert notes("optimizer.lr=1e-9") == []
    assert notes("optimizer=muon", "optimizer.lr=0") == [], "what is no matrix has optimizer.adamw_lr"
    (note,) = notes("optimizer=muon", "optimizer.lr=0", "optimizer.adamw_lr=0")
    assert note.startswith("optimizer.lr=0: ")


def test_steps_that_half_of_the_run_leaves_untimed_are_noted() -> None:
    (note,) = notes("steps=5")
    assert note.startswith("measure.after=10: the run has 5 steps") and "only the first 2 " in note
    assert notes("steps=5", "measure.after=2") == []


def test_more_workers_than_cores_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    (note,) = notes("hardware.workers=64", "measure.after=0", "batch_size=1")
    assert note.startswith("hardware.workers=64: 64 workers share the 2 cores")
    assert notes("hardware.workers=2", "sync=asp") == [], "a server waits most of the time"
    started = {"RANK": "0", "MASTER_ADDR": "h", "MASTER_PORT": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
    for name, value in started.items():
        monkeypatch.setenv(name, value)
    assert notes() == [], "two hosts of two cores each"
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert "2 workers share the one core of this host" in notes()[0]


def test_a_sync_mode_without_a_second_replica_is_noted_with_the_workers_that_make_one() -> None:
    assert notes("strategy=pipeline") == []
    (note,) = notes("strategy=pipeline", "sync=hogwild")
    assert note.startswith("sync=hogwild: has nothing to do") and "hardware.workers=4 makes 2 replicas" in note
    *_, note = notes("strategy=pipeline", "sync=hogwild", "hardware.workers=4")
    assert "the replicas of each stage share that stage's weights" in note


def test_more_replicas_than_samples_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"hardware.workers=11: makes 11 replicas, and data=digits has 10 samples"):
        notes("data.limit=10", "hardware.workers=11")
    notes("data.limit=10", "hardware.workers=10")


def test_steps_win_over_epochs() -> None:
    few = ("data.limit=64", "batch_size=32", "epochs=1")
    assert engine.prepare(few).plan().steps == 1
    assert engine.prepare([*few, "steps=20"]).plan().steps == 20
    assert engine.prepare([*few, "steps=20", "partition=dirichlet"]).plan().steps == 20


OWN_CLASSES = """
from paceline.conf.notes import Note
from paceline.strategies.data_parallel import DataParallel
from paceline.strategies.sync.downpour import Downpour
from paceline.strategies.sync.independent import Independent


class Skipping(Independent):
    def next_step(self, step):
        return step + 1

    def drain(self):
        pass


class Served(Downpour):
    def next_step(self, step):
        return step


class Settling(DataParallel):
    axes = {"tensor": 2}

    def micro_sizes(self, batch_size):
        return [batch_size]


class Surprising(Independent):
    def notes(self, parameters, world):
        return ["sync: is a word of this text", Note(("sync", "compress"), "go on alone")]
"""


def test_a_note_has_the_names_of_its_choices_and_a_text_is_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "surprising_modes.py").write_text(OWN_CLASSES)
    monkeypatch.syspath_prepend(tmp_path)
    plan = engine.prepare(["sync={_target_:surprising_modes.Surprising}"], allow_modules=["surprising_modes"]).plan()
    assert plan.notes == ["sync: is a word of this text", "sync=Surprising, compress=none: go on alone"]


def test_members_that_nothing_calls_are_noted_with_the_class_to_derive_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "former_classes.py").write_text(OWN_CLASSES)
    monkeypatch.syspath_prepend(tmp_path)

    def noted(group: str, name: str) -> list[str]:
        chosen = f"{group}={{_target_:former_classes.{name}}}"
        return engine.prepare([chosen], allow_modules=["former_classes"]).plan().notes

    (note,) = noted("sync", "Skipping")
    assert note.startswith("sync=Skipping: defines next_step, which a run calls of ")
    assert note.endswith("Derive from it (paceline.strategies.core.with_servers), or choose other names.")
    assert noted("sync", "Served") == []
    renamed, moved = noted("strategy", "Settling")
    assert renamed.startswith("strategy=Settling: defines axes, ") and "Name it mesh" in renamed
    assert moved.startswith("strategy=Settling: defines micro_sizes, ") and "StagedStrategy" in moved
    assert not any(text for choice in (*STRATEGIES.values(), *SYNCS.values()) for text in uncalled(choice))


def test_what_was_noted_is_recorded(train: Train) -> None:
    result = train("data.limit=20", "batch_size=16", "epochs=1", "steps=3", "hardware=virtual")
    assert (result.summary["steps"], result.summary["measured_after"]) == (3, 1)
    assert (result.summary["batch_size"], result.summary["effective_batch"]) == (16, 10)
    assert "batch" in str(result).split()


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (("hardware.workers=2",), True),
        (("hardware.workers=1",), False),
        (("hardware=virtual", "hardware.workers=2"), True),
        (("hardware=virtual", "hardware.workers=1"), False),
    ],
)
def test_a_run_says_once_that_there_is_no_compiler_for_sums_in_memory(
    overrides: tuple[str, ...], says: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("paceline.comm.native.why_not", lambda _: "there is no C compiler")
    make_ready(engine.prepare(overrides).plan(), quiet=False)
    assert capsys.readouterr().err.count("no native code can be made here (there is no C compiler)") == says
    make_ready(engine.prepare(overrides).plan(), quiet=True)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["data.limit=130"], "of 130 samples the last step of an epoch leaves a batch of 1 to 2 of 2 replicas"),
        (["data.limit=129"], "of 129 samples the last step of an epoch leaves a batch of 1 to 1 of 2 replicas"),
        (["data.limit=129", "accumulate=2"], "leaves a batch of 1 to 1 of 2 replicas"),
        (["data.limit=129", "strategy=pipeline"], "leaves a batch of 1 to 1 of 1 replicas"),
    ],
)
def test_a_last_batch_of_one_sample_is_refused_for_a_batch_norm(overrides: list[str], told: str) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        one_sample_notes("model.kind=batch_norm", *overrides)
    assert str(caught.value).startswith("batch_size=32: ")
    assert str(caught.value).endswith("model=odd cannot train on it. Choose drop_last=true, or another batch_size.")


def test_a_client_with_one_sample_is_noted_for_a_batch_norm() -> None:
    (note,) = one_sample_notes("model.kind=batch_norm", "data.limit=130", "sync=fedavg")
    assert "leaves a batch of 1 to 2 of 2 replicas" in note  # rounds may leave them out


@pytest.mark.parametrize(
    "overrides",
    [
        ["model.kind=group_norm"],
        ["drop_last=true"],
        ["strategy.batch_norm=all"],
        ["data.limit=132"],
        ["steps=2"],
    ],
)
def test_no_last_batch_of_one_sample_is_noted_where_nothing_refuses_it(overrides: list[str]) -> None:
    assert one_sample_notes("data.limit=130", "model.kind=batch_norm", *overrides) == []


def one_sample_notes(*overrides: str) -> list[str]:
    asked = ["model=odd", "hardware.workers=2", *overrides]
    prepared = engine.prepare(asked, config_dir=HERE / "conf", allow_modules=["odd_models"])
    return [note for note in prepared.plan().notes if "batch norm in model" in note]
