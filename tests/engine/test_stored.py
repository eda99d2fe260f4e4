"""What `--resume` and `weights=` read cannot change without being refused."""

import json
import os
import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch
import yaml

from paceline import engine
from paceline.conf.errors import ConfigError
from paceline.engine.api import session
from paceline.engine.api.preparing import Prepared, check_data
from paceline.engine.base import generations
from paceline.engine.base.errors import CorruptCheckpointError, WorkerFailedError
from paceline.engine.config.stored import identity
from paceline.engine.planning.planned import Plan
from paceline.tasks.base import Data
from paceline.tracking.alive import held
from paceline.tracking.checksums import KEY, json_sealed, marked, verdict_on
from paceline.tracking.errors import RunNameError
from paceline.tracking.run_directory import RunDirectory

SMALL = ["tracking=none", "model.hidden=[16]", "hardware.threads=1", "data.limit=200", "batch_size=16"]
STEPS = ["steps=6", "epochs=1000", "checkpoint.every_steps=2", "checkpoint.keep=9", "evaluate.every=1000"]


@pytest.fixture(scope="module")
def trained(fork_server, tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("trained") / "runs"
    engine.run([*SMALL, *STEPS, "hardware.workers=2"], name="mine", root=root, quiet=True)
    return root / "mine"


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A finished run of our own with checkpoints of the steps 2, 4 and 6."""
    return Path(shutil.copytree(trained, tmp_path / "runs" / "mine"))


def resume(run: Path, *overrides: str, step: str = "step-00000004") -> Prepared:
    """As far as that nothing but processes would be started."""
    prepared = engine.prepare(overrides, resume=f"{run.name}@{step}", root=run.parent)
    session._check(prepared, prepared.plan())
    return prepared


def edit(file: Path, before: str, after: str) -> None:
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))


@pytest.mark.slow
def test_what_nobody_changed_goes_on(run: Path) -> None:
    assert resume(run).experiment.steps == 6


@pytest.mark.parametrize(("before", "after"), [("seed: 0", "seed: 1"), ("steps: 6", "steps: 8"), ("mine", "other")])
def test_a_config_that_was_changed_is_refused_with_how_to_begin_anew(run: Path, before: str, after: str) -> None:
    edit(run / "config.yaml", before, after)
    with pytest.raises(ConfigError, match="not as paceline wrote it") as caught:
        resume(run)
    assert f"{run}/config.yaml" in str(caught.value)
    assert str(caught.value).endswith(f"to train anew from its weights: weights={run}/model.safetensors")
    engine.prepare([*SMALL, f"weights={run}/model.safetensors"]).plan()


def test_without_a_trained_model_its_newest_checkpoint_is_what_to_begin_with(run: Path) -> None:
    (run / "model.safetensors").unlink()
    edit(run / "config.yaml", "seed: 0", "seed: 1")
    with pytest.raises(ConfigError, match=f"weights={run}/checkpoints/step-00000006$"):
        resume(run)
    engine.prepare([*SMALL, f"weights={run}/checkpoints/step-00000006"]).plan()


@pytest.mark.budget(1)
def test_no_bit_of_a_config_changes_unnoticed(run: Path) -> None:
    content = (run / "config.yaml").read_bytes()
    for i in range(0, len(content), 7):
        (run / "config.yaml").write_bytes(content[:i] + bytes([content[i] ^ (1 << i % 8)]) + content[i + 1 :])
        with pytest.raises((ConfigError, CorruptCheckpointError), match=r"config\.yaml"):
            resume(run)


@pytest.mark.parametrize("end", ["", "# sha256 of the lines above: x\n"])
def test_a_config_without_a_checksum_is_refused(run: Path, end: str) -> None:
    lines = (run / "config.yaml").read_text().splitlines(keepends=True)
    (run / "config.yaml").write_text("".join(lines[:-1]) + end)
    with pytest.raises(ConfigError, match="does not end with its checksum"):
        resume(run)


def test_another_runs_config_is_refused_though_its_checksum_fits(run: Path) -> None:
    plain = yaml.safe_load((run / "config.yaml").read_text())
    (run / "config.yaml").write_text(marked(yaml.safe_dump(plain | {"seed": 1})))
    with pytest.raises(ConfigError, match="made with another configuration"):
        resume(run)


@pytest.mark.parametrize(
    "content",
    [b"[" * 50_000, b"seed: " + b"9" * 5000 + b"\n", b"\xff", b"a: [", b"just text\n", b"", b"a: &a [*a]\n"],
    ids=["deep", "digits", "bytes", "torn", "text", "empty", "itself"],
)
def test_a_config_that_is_none_is_corrupt_and_named(run: Path, content: bytes) -> None:
    (run / "config.yaml").write_bytes(content)
    with pytest.raises(CorruptCheckpointError, match=r"config\.yaml (is|holds) "):
        resume(run)


def test_a_config_that_is_gone_or_a_pipe_is_corrupt_and_not_waited_for(run: Path) -> None:
    (run / "config.yaml").unlink()
    with pytest.raises(CorruptCheckpointError, match=r"config\.yaml is gone; to train anew from its weights: weights="):
        resume(run)
    os.mkfifo(run / "config.yaml")
    with pytest.raises(CorruptCheckpointError, match=r"config\.yaml is a named pipe"):
        resume(run)


def test_a_run_that_was_killed_before_it_wrote_its_config_is_told_from_a_damaged_one(tmp_path: Path) -> None:
    RunDirectory.create(tmp_path, "mine")
    with pytest.raises(ConfigError, match=r"before it wrote its config\.yaml.* Begin it anew after paceline rm mine"):
        engine.prepare(resume="mine", root=tmp_path)


def test_a_manifest_of_another_step_is_refused(run: Path) -> None:
    edit(run / "checkpoints" / "step-00000004" / "manifest.json", '"step": 4', '"step": 2')
    with pytest.raises(CorruptCheckpointError, match=r"step-00000004/manifest\.json is not as it was written"):
        resume(run)


def test_a_checkpoint_under_the_name_of_another_is_refused(run: Path) -> None:
    shutil.rmtree(run / "checkpoints" / "step-00000004")
    (run / "checkpoints" / "step-00000002").rename(run / "checkpoints" / "step-00000004")
    with pytest.raises(CorruptCheckpointError, match="is of step 2, and its folder is of another one"):
        resume(run)


def test_a_checkpoint_of_a_run_with_another_seed_is_refused(run: Path, tmp_path: Path) -> None:
    engine.run([*SMALL, *STEPS, "hardware.workers=1", "seed=1"], name="other", root=tmp_path, quiet=True)
    shutil.rmtree(run / "checkpoints")
    shutil.copytree(tmp_path / "other" / "checkpoints", run / "checkpoints")
    with pytest.raises(ConfigError, match="step-00000004 was made with another configuration"):
        resume(run)


@pytest.mark.budget(1)
def test_what_may_change_is_stored_and_the_run_goes_on_again_and_again(run: Path) -> None:
    for steps in (8, 10):
        engine.run([f"steps={steps}"], resume="mine", root=run.parent, quiet=True)
        text = (run / "config.yaml").read_text()
        assert verdict_on(text) == "whole" and yaml.safe_load(text)["steps"] == steps
    assert resume(run, step="step-00000008").experiment.steps == 10


@pytest.mark.parametrize("changed", ["file", "checkpoint"])
def test_weights_with_a_flipped_bit_are_corrupt(run: Path, changed: str) -> None:
    file = run / "model.safetensors" if changed == "file" else run / "checkpoints/step-00000006/part-000.safetensors"
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    with pytest.raises(CorruptCheckpointError, match=str(file)):
        engine.prepare([*SMALL, f"weights={file if changed == 'file' else file.parent}"]).plan()


def test_a_runs_model_without_a_checksum_is_refused_and_anyone_elses_is_taken(run: Path, tmp_path: Path) -> None:
    file = run / "model.safetensors"
    safetensors.torch.save_file({k: torch.zeros_like(t) for k, t in safetensors.torch.load_file(file).items()}, file)
    with pytest.raises(ConfigError, match="has no checksum, so that nobody can tell"):
        engine.prepare([*SMALL, f"weights={file}"]).plan()
    copy = shutil.copy(file, tmp_path / "copy.safetensors")
    engine.prepare([*SMALL, f"weights={copy}"]).plan()


def test_another_runs_model_is_refused(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    assert len(summary["model_sha256"]) == 64
    (run / "summary.json").write_text(json.dumps(summary | {"model_sha256": "0" * 64}))
    with pytest.raises(ConfigError, match="is not what the run mine learnt"):
        engine.prepare([*SMALL, f"weights={run}/model.safetensors"]).plan()


@pytest.mark.parametrize("name", ["pipe", "device", "endless"])
def test_weights_that_are_no_regular_file_are_refused_at_once(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    match name:
        case "pipe":
            os.mkfifo(path)
        case "device":
            path = Path("/dev/null")
        case _:
            path.symlink_to("/dev/zero")
    with pytest.raises(ConfigError, match=r"is a (named pipe|device), and only regular files are read"):
        engine.prepare([*SMALL, f"weights={path}"]).plan()


@pytest.mark.parametrize("overrides", [["hardware.workers=2"], ["strategy=pipeline", "model.hidden=[16,8]"]])
def test_a_run_begins_with_what_a_checkpoint_holds(tmp_path: Path, fork_server: None, overrides: list[str]) -> None:
    made = engine.run([*SMALL, *STEPS, *overrides], name="made", root=tmp_path, quiet=True)
    last = made.path / "checkpoints" / "step-00000006"
    still = ["steps=1", "optimizer.lr=1e-30", "checkpoint.every=0", f"weights={last}"]
    taken = engine.run([*SMALL, *overrides, *still], name="taken", root=tmp_path, quiet=True)
    wanted, found = (safetensors.torch.load_file(run.path / "model.safetensors") for run in (made, taken))
    assert wanted.keys() == found.keys() and all(torch.equal(wanted[name], found[name]) for name in wanted)


def test_a_manifest_that_is_made_up_for_another_step_is_refused_by_its_folder(run: Path) -> None:
    file = run / "checkpoints" / "step-00000004" / "manifest.json"
    plain = {key: value for key, value in json.loads(file.read_text()).items() if key != "sha256"}
    file.write_text(json_sealed({**plain, "step": 2}))
    with pytest.raises(CorruptCheckpointError, match="is of step 2, and its folder is of another one"):
        resume(run)


def under_torchrun(monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    told = {"RANK": "0", "WORLD_SIZE": str(workers), "LOCAL_WORLD_SIZE": str(workers)}
    for name, value in (told | {"MASTER_ADDR": "localhost", "MASTER_PORT": "1"}).items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def torchruns(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Starts as torchrun does for three workers: the configuration does not give their number."""
    run = Path(shutil.copytree(trained, tmp_path_factory.mktemp("torchruns") / "runs" / "mine"))
    plain = yaml.safe_load((run / "config.yaml").read_text())
    plain["hardware"]["workers"] = None
    (run / "config.yaml").write_text(marked(yaml.safe_dump(plain, sort_keys=False)))
    for file in run.glob("checkpoints/*/manifest.json"):
        manifest = json.loads(file.read_text()) | {"run": identity(plain), "workers": 3}
        file.write_text(json_sealed({key: value for key, value in manifest.items() if key != KEY}))
    return run


@pytest.mark.parametrize("phase", [7, -1])
def test_a_manifest_of_a_phase_that_the_run_does_not_have_is_damaged(run: Path, phase: int) -> None:
    file = run / "checkpoints" / "step-00000004" / "manifest.json"
    manifest = json.loads(file.read_text()) | {"phase": phase}
    file.write_text(json_sealed({key: value for key, value in manifest.items() if key != KEY}))
    said = rf"manifest.json has phase={phase}, and the run has 1, from 0 on; the one before is step-00000002"
    with pytest.raises(WorkerFailedError, match=said) as failed:
        engine.run(engine.prepare(["steps=8"], resume="mine@step-00000004", root=run.parent), root=run.parent)
    assert failed.value.exit_code == 7


def test_a_manifest_says_how_many_workers_trained(run: Path) -> None:
    assert json.loads((run / "checkpoints" / "step-00000004" / "manifest.json").read_text())["workers"] == 2


@pytest.mark.parametrize("started", [1, 2, 4])
def test_torchrun_goes_on_with_as_many_workers_or_not_at_all(
    torchruns: Path, started: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_torchrun(monkeypatch, 3)
    assert resume(torchruns, "steps=9").plan().layout.workers == 3
    under_torchrun(monkeypatch, started)
    with pytest.raises(ConfigError, match=r"was trained by 3 workers, and .* would go on. Start as many workers") as no:
        resume(torchruns, "steps=9")
    assert no.value.exit_code == 2


def test_torchrun_goes_on_under_another_strategy_with_the_samples_of_a_step(
    torchruns: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Path(shutil.copytree(torchruns, tmp_path / "runs" / "mine"))
    for file in run.glob("checkpoints/*/manifest.json"):
        manifest = json.loads(file.read_text()) | {"workers": 2}
        file.write_text(json_sealed({key: value for key, value in manifest.items() if key != KEY}))
    under_torchrun(monkeypatch, 2)
    before, now = resume(run, "steps=9"), resume(run, "steps=9", "strategy=pipeline")
    assert (before.plan().layout.replicas, now.plan().layout.replicas) == (2, 1)
    assert now.experiment.batch_size == 2 * before.experiment.batch_size
    under_torchrun(monkeypatch, 4)
    with pytest.raises(ConfigError, match="4"):
        resume(run, "steps=9", "strategy=pipeline").plan()


def test_what_torchrun_began_goes_on_without_it_with_as_many_workers(torchruns: Path) -> None:
    prepared = resume(torchruns, "steps=9")
    assert prepared.plan().layout.workers == 3
    assert prepared.stored is not None and identity(prepared.config) == identity(prepared.stored.plain)


# -- generations of a torchrun job


def generation(run: Path, *overrides: str) -> tuple[Prepared, Plan, Data]:
    """A new generation of the job, with the same command and `overrides`, its plan and its data."""
    prepared = engine.prepare([*SMALL, *STEPS, "hardware.workers=2", *overrides], name="mine", root=run.parent)
    return prepared, prepared.plan(), check_data(prepared)


def earlier_of(run: Path, *overrides: str) -> tuple[Path, str] | None:
    """Looks for the run as a new generation does."""
    prepared, plan, data = generation(run, *overrides)
    found = session._of_this_job(run, prepared.config, plan, data)
    return None if found is None else (found[0].path, found[1].name)


def opened(run: Path) -> Path:
    """The run directory of a new generation."""
    prepared, plan, data = generation(run)
    return session.open_directory(prepared, plan, run.parent, data, lambda _: None)[0].path


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch, run: Path) -> str:
    """The run was made by this process's job, and was interrupted."""
    under_torchrun(monkeypatch, 2)
    monkeypatch.setattr(generations, "job_of_torchrun", lambda: "ours")
    (run / "job.json").write_text('{"job": "ours"}')
    (run / "summary.json").unlink()
    return "ours"


def test_a_new_generation_of_a_job_goes_on_from_the_newest_checkpoint(run: Path, job: str) -> None:
    assert earlier_of(run) == (run, "step-00000006")
    assert earlier_of(run, "steps=9") is None, "another configuration is another run"


def test_a_run_of_another_job_is_not_gone_on_with(run: Path, job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for note in ('{"job": "theirs"}', "{}", "no JSON", None):
        (run / "job.json").unlink()
        if note is not None:
            (run / "job.json").write_text(note)
        with pytest.raises(RunNameError, match="run name 'mine' is taken"):
            opened(run)
        (run / "job.json").touch()
    monkeypatch.setattr(generations, "job_of_torchrun", lambda: None)
    with pytest.raises(RunNameError, match="is taken"):
        opened(run)


def test_a_generation_of_another_size_is_refused(run: Path, job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = engine.prepare([*SMALL, *STEPS, "hardware.workers=2"], name="mine", root=run.parent)
    data = check_data(prepared)
    three = engine.prepare([*SMALL, *STEPS, "hardware.workers=3"], name="mine", root=run.parent)
    under_torchrun(monkeypatch, 3)
    with pytest.raises(ConfigError, match="was trained by 2 workers, and 3 workers would go on"):
        session._of_this_job(run, prepared.config, three.plan(), data)


def test_a_generation_that_was_killed_while_it_read_weights_makes_room(
    run: Path, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = shutil.copy(run / "model.safetensors", run.parent)
    shutil.rmtree(run)
    prepared, plan, data = generation(run, f"weights={weights}")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("paceline.engine.features.weights.convert", killed)
        session.open_directory(prepared, plan, run.parent, data, lambda _: None)
    assert session.open_directory(prepared, plan, run.parent, data, lambda _: None)[0].path == run


def test_a_generation_that_left_no_checkpoint_makes_room(run: Path, job: str) -> None:
    shutil.rmtree(run / "checkpoints")
    assert earlier_of(run) is None
    assert not run.exists()


def test_a_completed_run_of_the_job_stays(run: Path, job: str) -> None:
    (run / "summary.json").write_text('{"status": "completed"}')
    assert earlier_of(run) is None
    assert run.exists()


def test_a_run_that_goes_on_is_not_resumed_beside_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = RunDirectory.create(tmp_path, "first")
    with held(directory.metrics):
        with pytest.raises(RunNameError, match=r"run first goes on.*paceline watch first"):
            engine.prepare(resume="first", root=tmp_path)
        for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "", "MASTER_PORT": "1"}.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(ConfigError, match="is not there"):  # worker 0 has begun, and this one follows
            engine.prepare(resume="first", root=tmp_path)


def test_a_run_that_another_command_takes_after_the_checks_is_left_as_it_is(run: Path) -> None:
    prepared, kept = resume(run, "steps=6"), (run / "config.yaml").read_bytes()
    with held(run / "metrics.jsonl"), pytest.raises(RunNameError, match=f"run {run.name} goes on"):
        session.carry_out(prepared, prepared.plan(), run.parent, quiet=True)
    RunDirectory(run).append({"kind": "resume", "step": 4})  # another one has gone on with it, and ended
    with pytest.raises(ConfigError, match=rf"--resume {run.name}: another command has just gone on with it\. Repeat"):
        session.carry_out(prepared, prepared.plan(), run.parent, quiet=True)
    assert (run / "config.yaml").read_bytes() == kept and (run / "summary.json").exists()
