"""A pipe, a device, a socket or a directory in the place of a file is refused by its name, and never waited for.

Exit status 2 where a person named it, 7 where it lies among a run's or a sweep's own files.
"""

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from paceline.comm.rendezvous import TOKEN, _token
from paceline.engine.base.checkpoint import Manifest, commit, read_manifest, write_part
from paceline.engine.config.compose import compose
from paceline.engine.config.stored import read_stored
from paceline.engine.fabrics.stragglers import Trace
from paceline.engine.features import weights
from paceline.engine.launch.worker_process import log_to
from paceline.strategies.external import deepspeed_settings
from paceline.strategies.pipelining.own import rows_of
from paceline.sweep import directory, schema, study
from paceline.tasks.data.fashion_mnist import SHA256, FashionMNIST
from paceline.tasks.data.svmlight import SVMLight
from paceline.tasks.data.text import Text
from paceline.tracking import wandb
from paceline.tracking.helper import HelperMirror
from paceline.tracking.imported_runs import from_json
from paceline.tracking.run_directory import RunDirectory
from paceline.tracking.wandb_datastore import split

KINDS = ("pipe", "device", "socket", "directory", "link to a pipe", "dangling link")
Reader = Callable[[Path], tuple[Path, Callable[[], object]]]  # the file, and what reads it


def put(kind: str, path: Path) -> None:
    """What has the name of `path` from now on, whatever had it before."""
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "socket":
            with socket.socket(socket.AF_UNIX) as listening:
                here = Path.cwd()
                os.chdir(path.parent)  # a socket's name is short
                listening.bind(path.name)
                os.chdir(here)
        case "directory":
            path.mkdir()
        case "link to a pipe":
            os.mkfifo(path.with_name("a-pipe"))
            path.symlink_to("a-pipe")
        case _:
            path.symlink_to("nowhere")


# -- named by a person


def text(place: Path) -> tuple[Path, Callable[[], object]]:
    return place / "text", lambda: Text(str(place / "text")).load()


def samples(place: Path) -> tuple[Path, Callable[[], object]]:
    return place / "a.svm.gz", lambda: SVMLight(str(place / "a.svm.gz")).load()


def samples_for_test(place: Path) -> tuple[Path, Callable[[], object]]:
    (place / "a.svm").write_text("1 1:1\n0 2:1\n")
    return place / "b.svm", lambda: SVMLight(str(place / "a.svm"), str(place / "b.svm")).load()


def images(place: Path) -> tuple[Path, Callable[[], object]]:
    for name in SHA256:
        (place / name).write_bytes(b"")
    return place / next(iter(SHA256)), lambda: FashionMNIST(str(place)).load()


def images_of_a_plan(place: Path) -> tuple[Path, Callable[[], object]]:
    for name in SHA256:
        (place / f"{name}.gz").write_bytes(b"")
    labels = place / f"{list(SHA256)[1]}.gz"
    return labels, lambda: FashionMNIST(str(place)).spec


def begun_with(place: Path, file: str = "w.safetensors") -> tuple[Path, Callable[[], object]]:
    def look() -> None:
        experiment = compose([f"weights={place / file}"])
        weights.check(str(weights.resolved(experiment, False).weights), {}, "mlp", frozenset())

    return place / file, look


def begun_with_torchs(place: Path) -> tuple[Path, Callable[[], object]]:
    return begun_with(place, "w.pt")


def deepspeeds_latest(place: Path) -> tuple[Path, Callable[[], object]]:
    experiment = compose([f"weights={place}"])
    return place / "latest", lambda: weights.resolved(experiment, True)


def deepspeeds_part(place: Path) -> tuple[Path, Callable[[], object]]:
    (place / "latest").write_text("step")
    (place / "step").mkdir()
    return place / "step" / "states.pt", lambda: weights._check_parts(place)


def deepspeeds_settings(place: Path) -> tuple[Path, Callable[[], object]]:
    return place / "ds.json", lambda: deepspeed_settings.read(str(place / "ds.json"))


def slow_workers(place: Path) -> tuple[Path, Callable[[], object]]:
    return place / "trace.csv", lambda: Trace(str(place / "trace.csv"))


def schedule_of_ones_own(place: Path) -> tuple[Path, Callable[[], object]]:
    return place / "own.csv", lambda: rows_of(str(place / "own.csv"), 2, 4, 1, ())


def definition_of_a_sweep(place: Path) -> tuple[Path, Callable[[], object]]:
    return place / "sweep.yaml", lambda: schema.from_file(place / "sweep.yaml")


def choice_of_ones_own(place: Path) -> tuple[Path, Callable[[], object]]:
    (place / "model").mkdir()
    return place / "model" / "mine.yaml", lambda: compose(["model=mine"], place)


def token(place: Path) -> tuple[Path, Callable[[], object]]:
    (place / "paceline").mkdir()
    return place / "paceline" / "token", lambda: _token(1)


def exported(place: Path) -> tuple[Path, Callable[[], object]]:
    return place / "runs.json", lambda: from_json(place / "runs.json")


# -- of a run, or of a sweep


def config(place: Path) -> tuple[Path, Callable[[], object]]:
    return place / "config.yaml", lambda: read_stored(RunDirectory(place))


def summary(place: Path) -> tuple[Path, Callable[[], object]]:
    return place / "summary.json", lambda: RunDirectory(place).read_summary()


def records(place: Path) -> tuple[Path, Callable[[], object]]:
    return place / "metrics.jsonl", lambda: RunDirectory(place).append({"kind": "step"})


def log_of_a_worker(place: Path) -> tuple[Path, Callable[[], object]]:
    return place / "worker-000.log", lambda: log_to(place / "worker-000.log")


def checkpoint(place: Path) -> Path:
    name, digest = write_part(place, 4, 0, 0, {"parameters": {"w": torch.ones(2)}, "sync": {}})
    return commit(place, Manifest(4, 1.0, None, {name: digest}, "abc"), 1)


def manifest(place: Path) -> tuple[Path, Callable[[], object]]:
    made = checkpoint(place)
    return made / "manifest.json", lambda: read_manifest(made)


def part(place: Path) -> tuple[Path, Callable[[], object]]:
    made = checkpoint(place)
    return made / "part-000.safetensors", lambda: read_manifest(made)


def id_for_wandb(place: Path) -> tuple[Path, Callable[[], object]]:
    return place / "run_id", lambda: wandb._run_id("mine", place)


def log_of_wandb(place: Path) -> tuple[Path, Callable[[], object]]:
    (place / "logs").mkdir()
    mirror = HelperMirror("W&B", "wandb", place, {}, 0)
    return place / "logs" / "wandb.log", lambda: mirror.record({"kind": "start"})


def recording_of_wandb(place: Path) -> tuple[Path, Callable[[], object]]:
    return place / "run.wandb", lambda: split(place / "run.wandb")


def place_of_a_sweep(place: Path) -> tuple[Path, Callable[[], object]]:
    return place / "place", lambda: study.place_of(place)


def lock_of_a_sweep(place: Path) -> tuple[Path, Callable[[], object]]:
    def hold() -> None:
        with directory._alone(place, "mine"):
            pass

    return place / "lock", hold


def study_of_a_sweep(place: Path) -> tuple[Path, Callable[[], object]]:
    return place / "study.db", lambda: directory._check_file(place / "study.db")


def sweep_that_was_stored(place: Path) -> tuple[Path, Callable[[], object]]:
    return place / "sweep.yaml", lambda: directory._stored(place, "mine")


NAMED: tuple[Reader, ...] = (
    *(
        text,
        samples,
        samples_for_test,
        images,
        images_of_a_plan,
        begun_with,
        begun_with_torchs,
        deepspeeds_latest,
        deepspeeds_part,
    ),
    *(deepspeeds_settings, slow_workers, schedule_of_ones_own, definition_of_a_sweep, choice_of_ones_own, token),
)
OWN: tuple[Reader, ...] = (
    *(exported, config, summary, records, log_of_a_worker, manifest, part, id_for_wandb),
    *(log_of_wandb, recording_of_wandb, place_of_a_sweep, lock_of_a_sweep, study_of_a_sweep, sweep_that_was_stored),
)


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


@pytest.mark.parametrize("kind", KINDS[:-1])
@pytest.mark.parametrize("reader", [*NAMED, *OWN], ids=lambda reader: reader.__name__)
def test_what_is_no_regular_file_is_refused_by_its_name(reader: Reader, kind: str, tmp_path: Path) -> None:
    if reader is deepspeeds_part and kind == "directory":
        pytest.skip("a checkpoint of DeepSpeed's has folders in it")
    path, read = reader(tmp_path)
    put(kind, path)
    with pytest.raises(Exception) as caught:
        read()
    status = 3 if reader is token else 2 if reader in NAMED else 7  # the token is the machine's
    assert getattr(caught.value, "exit_code", None) == status, repr(caught.value)
    names = (str(path), str(path.resolve()))
    assert any(name in str(caught.value) for name in names) or reader is deepspeeds_latest  # which names the folder


MADE_ANEW = (id_for_wandb, place_of_a_sweep, records, lock_of_a_sweep)  # what the name stands for is made
ABSENT = (summary, study_of_a_sweep, choice_of_ones_own, images_of_a_plan, deepspeeds_part)  # need not be there
LOGS = (log_of_a_worker, log_of_wandb)  # would begin


@pytest.mark.parametrize(
    "reader",
    [each for each in (*NAMED, *OWN) if each not in (*MADE_ANEW, *ABSENT, *LOGS)],
    ids=lambda reader: reader.__name__,
)
def test_a_link_to_nothing_is_a_file_that_is_missing(reader: Reader, tmp_path: Path) -> None:
    path, read = reader(tmp_path)
    put("dangling link", path)
    with pytest.raises(Exception) as caught:
        read()
    assert getattr(caught.value, "exit_code", None) in (2, 3, 7), repr(caught.value)


@pytest.mark.parametrize("reader", MADE_ANEW, ids=lambda reader: reader.__name__)
def test_what_a_link_to_nothing_stands_for_is_made_where_it_is_written(reader: Reader, tmp_path: Path) -> None:
    path, read = reader(tmp_path)
    put("dangling link", path)
    read()
    assert path.is_file()
