"""Whole runs on real processes: results, predictions that hold, and resumed runs that have the same bits."""

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
from process_table import until, workers_of
from short_runs import START, Train, weights
from stored_configs import from_yaml

from paceline import engine
from paceline.conf.errors import ConfigError
from paceline.engine import Result
from paceline.engine.base.checkpoint import steps_of
from paceline.engine.base.errors import WorkerFailedError
from paceline.engine.config.compose import compose
from paceline.engine.config.experiment import Choice
from paceline.engine.launch import local_workers
from paceline.engine.planning.resuming import checkpoint_of
from paceline.tracking.errors import RunNameError
from paceline.tracking.run_directory import RunDirectory

pytestmark = pytest.mark.dist


def records(result: Result, kind: str) -> list[dict[str, Any]]:
    return [record for record in RunDirectory(result.path).records() if record["kind"] == kind]


def test_a_result_says_what_was_run_what_came_out_and_where_it_is(train: Train, root: Path) -> None:
    result = train("epochs=2", "steps=null", "evaluate.every=1", "checkpoint.every=1", "measure.after=5", name="mine")
    steps = 2 * 7  # 200 samples in global batches of 32
    summary = result.summary
    assert result.path == root / "mine"
    expected = {
        "name": "mine",
        "strategy": "data_parallel",
        "sync": "bsp",
        "model": "mlp",
        "data": "digits",
        "status": "completed",
        "workers": 2,
        "servers": 0,
        "replicas": 2,
        "stages": 1,
        "device": "cpu",
        "steps": steps,
        "epochs": 2,
        "batch_size": 16,
        "seed": 0,
        "modelled": False,
    }
    assert {key: summary[key] for key in expected} == expected
    assert result.throughput is summary["throughput"] is None, "9 timed steps, where 10 are the fewest"
    assert summary["too_short"] and "too short" in str(result)
    assert result.accuracy == summary["accuracy"] and 0.2 < summary["accuracy"] <= 1
    assert "mine" in str(result)

    assert [record["step"] for record in records(result, "step")] == list(range(1, steps + 1))
    assert [record["step"] for record in records(result, "evaluation")] == [7, 14]
    assert [record["step"] for record in records(result, "checkpoint")] == [7, 14]
    assert records(result, "end") == [{"kind": "end", "status": "completed"}]
    losses = [record["loss"] for record in records(result, "step")]
    assert sum(losses[-3:]) < sum(losses[:3])

    files = {path.name for path in result.path.iterdir()}
    assert files >= {"config.yaml", "environment.json", "metrics.jsonl", "summary.json", "model.safetensors", "logs"}
    assert json.loads((result.path / "summary.json").read_text()) == summary
    assert from_yaml((result.path / "config.yaml").read_text()).epochs == 2
    model = safetensors.torch.load_file(result.path / "model.safetensors")
    assert {name: tuple(tensor.shape) for name, tensor in model.items()}["output.weight"] == (10, 32)


@pytest.mark.parametrize(
    "choices",
    [
        ("model=cnn", "model.hidden=[24,16]", "batch_size=20"),
        ("strategy=pipeline", "model.hidden=[64,64,32]"),
        ("strategy=pipeline", "sync=asp", "hardware.workers=4", "optimizer=adam"),
        ("sync=asp", "optimizer.momentum=0"),
        ("strategy=torch_ddp", "optimizer=adam"),
        ("strategy=single",),
        pytest.param(("hardware.workers=4", "optimizer=adam"), marks=pytest.mark.slow),
        pytest.param(
            ("model=cnn", "model.hidden=[24,16]", "strategy=pipeline", "strategy.recompute=true"),
            marks=pytest.mark.slow,
        ),
        pytest.param(("sync=bsp_naive", "hardware.workers=4"), marks=pytest.mark.slow),
        pytest.param(("sync=bsp", "sync.find_unused=true", "hardware.workers=4"), marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
@pytest.mark.budget(1)
def test_what_was_measured_is_what_was_predicted(train: Train, choices: tuple[str, ...]) -> None:
    """Bytes exactly, in full batches; memory exactly, but for activations (kernels keep what they like)."""
    summary = train("data.limit=960", "steps=4", *choices).summary
    predicted, measured = summary["predicted"], summary["memory"]
    assert summary["wire"]["bytes_per_step"] == pytest.approx(predicted["bytes_per_step"], rel=1e-12)
    for kind in ("parameters", "gradients", "optimizer", "buffers"):
        assert measured[kind] == predicted["memory"][kind], kind
    assert measured["activations"] == pytest.approx(predicted["memory"]["activations"], rel=0.15)
    assert measured["process_peak"] > sum(measured[kind] for kind in predicted["memory"])


@pytest.mark.slow
def test_a_second_run_in_one_process_forks_from_the_same_server(train: Train) -> None:
    train()
    server = forkserver._forkserver._forkserver_pid  # pyright: ignore[reportAttributeAccessIssue]
    first = train()
    assert forkserver._forkserver._forkserver_pid == server  # pyright: ignore[reportAttributeAccessIssue]
    assert weights(first.path) == weights(train().path)


@pytest.mark.slow
def test_seeds_near_the_largest_are_seeds_like_others(train: Train) -> None:
    assert weights(train("seed=9223372036854775807").path) != weights(train("seed=0").path)


def test_what_user_code_prints_is_in_the_workers_log(train: Train) -> None:
    result = train("strategy=sabotage", "strategy.act=print")
    assert (result.path / "logs" / "worker-001.log").read_text() == "hello from the saboteur\n"
    assert (result.path / "logs" / "worker-000.log").read_text() == ""


def test_the_callers_signal_handlers_are_put_back(train: Train) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    train()
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


# -- resuming


@pytest.mark.parametrize(
    "choices",
    [
        ("strategy=pipeline", "optimizer=adam"),
        ("strategy=torch_ddp", "optimizer=adam"),
        ("strategy=torch_zero_optimizer", "optimizer=adam"),
        ("strategy=zero", "strategy.stage=3", "optimizer=adam"),
        ("strategy=torch_fsdp", "optimizer=adam"),
        ("optimizer=sgd",),
        ("strategy=single", "optimizer=adamw"),
        ("strategy=pipeline", "hardware.workers=4"),
        ("strategy=hybrid", "model.hidden=[16,12]", "optimizer=adam"),
        ("sync=bsp_naive", "model=cnn", "model.hidden=[24,16]"),
    ],
    ids=" ".join,
)
@pytest.mark.slow
def test_a_run_whose_workers_were_all_killed_goes_on_to_the_same_bits(
    train: Train, root: Path, choices: tuple[str, ...]
) -> None:
    """At no particular moment after its first checkpoint: between steps, in an exchange, while saving."""
    choices = (*choices, "steps=300")

    def kill() -> None:
        until(lambda: steps_of(root / "victim" / "checkpoints"), START, "a checkpoint")
        for pid in workers_of(root / "victim").values():
            os.kill(pid, signal.SIGKILL)

    with ThreadPoolExecutor(1) as pool:
        killing = pool.submit(kill)
        with pytest.raises(WorkerFailedError, match=r"saved: step-\d+; resume with: paceline train --resume victim"):
            train(*choices, "checkpoint.every_steps=5", name="victim")
        killing.result()
    resumed = train(resume="victim")
    assert 0 < records(resumed, "resume")[0]["step"] < 300
    assert weights(resumed.path) == weights(train(*choices).path)


@pytest.mark.slow  # three runs; resumed runs are tested for each mode
def test_a_finished_run_goes_on_for_more_epochs_to_the_bits_of_a_longer_run(train: Train) -> None:
    train("epochs=1", "steps=null", "checkpoint.every=1", name="mine")
    longer = train("epochs=3", resume="mine")
    assert longer.summary["steps"] == 21
    assert longer.summary["seconds"] > 0
    assert weights(longer.path) == weights(train("epochs=3", "steps=null").path)
    # what was changed stays changed, also for the next time; and results are not written over by those of no step
    summary = (longer.path / "summary.json").read_bytes()
    with pytest.raises(ConfigError, match="epochs=3: makes 21 steps, and the run has made them"):
        train(resume="mine")
    assert (longer.path / "summary.json").read_bytes() == summary


@pytest.mark.slow
def test_a_finished_run_whose_last_checkpoint_lies_before_its_end_is_not_made_again_unasked(train: Train) -> None:
    done = train("steps=6", "checkpoint.every_steps=4", name="mine")
    summary = (done.path / "summary.json").read_bytes()
    with pytest.raises(ConfigError, match=r"steps=6: makes 6 steps, and the run has made them; .* steps=null"):
        train("epochs=9", resume="mine")
    assert (done.path / "summary.json").read_bytes() == summary
    assert weights(train("steps=8", resume="mine").path) == weights(train("steps=8").path)
    assert train("steps=8", resume="mine@step-00000004").summary["resumed_at"] == 4


def test_a_finished_run_of_samples_that_are_the_clients_own_is_not_written_over(train: Train) -> None:
    """How many steps it takes is known only once the data are dealt."""
    done = train("partition=dirichlet", "epochs=1", "steps=null", "checkpoint.every=1", name="mine")
    summary = (done.path / "summary.json").read_bytes()
    with pytest.raises(ConfigError, match="and the run has made them"):
        train(resume="mine")
    assert (done.path / "summary.json").read_bytes() == summary


@pytest.mark.slow
def test_a_noise_that_was_chosen_for_fewer_steps_is_not_taken_for_more(train: Train) -> None:
    train("privacy=dp_sgd", "privacy.epsilon=3", "epochs=1", "steps=null", "checkpoint.every=1", name="mine")
    with pytest.raises(ConfigError, match=r"epochs=2: privacy.epsilon=3 chose the noise .* give privacy.noise"):
        train("epochs=2", resume="mine")


def test_training_seconds_add_up_over_a_runs_lives(train: Train) -> None:
    first = train("strategy=sabotage", "strategy.pause=0.1", "checkpoint.every_steps=6", name="mine")
    second = train("steps=12", resume="mine")
    assert first.summary["seconds"] >= 0.6
    assert second.summary["seconds"] >= first.summary["seconds"] + 0.6


@pytest.mark.parametrize("overrides", [(), ("sync=asp",)], ids=" ".join)
def test_a_resumed_run_reached_its_target_when_its_records_say(overrides: tuple[str, ...], train: Train) -> None:
    """A checkpoint is older than the evaluation of its step, and asynchronous modes evaluate after all of them."""
    evaluated = ("evaluate.every=1", "checkpoint.every=1", "steps=null")
    first = train(*overrides, *evaluated, "epochs=1", "target_accuracy=0.001", name="mine")
    reached = first.summary["time_to_accuracy"]
    assert reached is not None
    assert train("epochs=2", resume="mine").summary["time_to_accuracy"] == reached
    higher = train("epochs=3", "target_accuracy=1.0", resume="mine")
    assert higher.summary["time_to_accuracy"] is None, "of another target"


def test_a_run_cannot_be_resumed_into_its_past(train: Train, root: Path) -> None:
    train("checkpoint.every_steps=3", name="mine")
    config = (root / "mine" / "config.yaml").read_bytes()
    with pytest.raises(ConfigError, match="step-00000006 has 6 behind it already"):
        train("steps=5", resume="mine")
    assert (root / "mine" / "config.yaml").read_bytes() == config
    with pytest.raises(ConfigError, match=r"there is no such checkpoint; there are step-00000003, step-00000006"):
        train(resume="mine@step-00000004")
    with pytest.raises(ConfigError, match=r"--resume mine@step-00000004: there is no such checkpoint"):
        train(resume="mine@4")
    assert train("steps=5", resume="mine@3").summary["steps"] == 5, "as step-00000003"


def test_a_run_without_a_checkpoint_or_that_never_was_cannot_be_resumed(train: Train, root: Path) -> None:
    train(name="mine")
    with pytest.raises(ConfigError, match=r"the run has no checkpoint .*: weights=.*/mine/model\.safetensors"):
        train(resume="mine")
    (root / "mine" / "model.safetensors").unlink()
    with pytest.raises(
        ConfigError, match=r"no checkpoint .*from step 0: paceline train --config .*config\.yaml --name NEW$"
    ):
        train(resume="mine")
    own = compose([]).model_copy(update={"model": Choice(name="net", target="own.Net", knobs={})})
    with pytest.raises(ConfigError, match=r"config\.yaml --allow-module own --name NEW$"):
        checkpoint_of(RunDirectory.open(root, "mine"), "", own)
    with pytest.raises(RunNameError, match="did you mean mine"):
        train(resume="mime")


@pytest.mark.slow
@pytest.mark.parametrize("often", ["checkpoint.every=1", "checkpoint.every_steps=100"])
def test_a_run_that_ends_before_its_first_checkpoint_is_due_goes_on_from_its_end(often: str, train: Train) -> None:
    how = ("hardware.threads=1", "steps=5")
    short = train(*how, often, name="mine")
    assert [path.name for path in steps_of(short.path / "checkpoints")] == ["step-00000005"]
    resumed = train("steps=6", resume="mine")
    assert [path.name for path in steps_of(short.path / "checkpoints")] == ["step-00000005"], "it has one"
    assert weights(resumed.path) == weights(train("hardware.threads=1", "steps=6").path)


@pytest.mark.slow
def test_an_asynchronous_run_goes_on_from_its_servers_weights(train: Train, root: Path) -> None:
    train("sync=asp", "optimizer=adam", "steps=20", "checkpoint.every_steps=20", name="mine")
    resumed = train("steps=30", resume="mine")
    assert resumed.summary["status"] == "completed"
    assert resumed.summary["steps"] == 30
    start = records(resumed, "step")[20]
    assert start["step"] == 21
    assert start["loss"] < records(resumed, "step")[0]["loss"]


@pytest.mark.budget(2)
def test_an_asynchronous_worker_alone_is_resumed_to_the_same_bits(train: Train) -> None:
    alone = ("sync=asp", "hardware.workers=1", "optimizer=adam", "hardware.threads=1")
    train(*alone, "checkpoint.every_steps=6", name="mine")
    resumed = train("steps=12", resume="mine")
    assert weights(resumed.path) == weights(train(*alone, "steps=12").path)


def test_a_signal_after_the_last_step_does_not_undo_a_completed_run(fork_server, monkeypatch, tmp_path):
    watch = local_workers.LocalWorkers.watch

    def watch_and_be_stopped(workers):
        ended = watch(workers)
        workers.stop_signal = signal.SIGTERM
        return ended

    monkeypatch.setattr(local_workers.LocalWorkers, "watch", watch_and_be_stopped)
    result = engine.run(["tracking=none", "steps=2", "data.limit=64", "checkpoint.every=0"], root=tmp_path, quiet=True)
    assert result is not None and result.summary["status"] == "completed"


@pytest.mark.budget(4)
def test_a_worker_that_is_through_listens_to_those_that_push_to_it(train: Train) -> None:
    """The pushes of the slow worker that the other one has not heard of are more than sockets hold."""
    slow = ["stragglers=one_slow", "stragglers.worker=0", "stragglers.factor=8", "hardware.timeout=10"]
    steps = ["model.hidden=[512,512]", "steps=30"]
    run = train(*steps, "sync=gossip_async", "hardware.workers=2", "hardware.threads=1", *slow)
    assert run.summary["status"] == "completed" and run.summary["consensus_distance"] > 0
