"""Callbacks: what they are shown, what is recorded of them, and runs that they end."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from choices import STRATEGIES, SYNCS
from hypothesis import given
from hypothesis import strategies as st
from short_runs import weights
from some_callbacks import Frozen, Margin, Missed, Odd, Raising, Scripted
from stored_configs import from_yaml, to_yaml

from paceline import engine
from paceline.conf.errors import ConfigError
from paceline.engine import Result
from paceline.engine.base.checkpoint import steps_of
from paceline.engine.base.errors import WorkerFailedError
from paceline.engine.callbacks import Best, Callback, DynamicInt8, EarlyStop, EvaluationView, GradientNorm
from paceline.engine.callbacks.best import best_step
from paceline.engine.callbacks.dynamic_int8 import sizes
from paceline.engine.config.compose import compose
from paceline.engine.config.overrides import overrides_of
from paceline.engine.config.resumed import override_stored
from paceline.engine.config.settings import asked
from paceline.engine.features import calling
from paceline.engine.features.calling import Calling
from paceline.engine.planning.resuming import best_of
from paceline.tasks.losses.metrics import Accuracy
from paceline.tracking.checkpoints import step_of
from paceline.tracking.compare import ComparisonRequest, table
from paceline.tracking.history import history
from paceline.tracking.records import EvaluationRecord, Score, StepRecord
from paceline.tracking.run_directory import RunDirectory

QUICK: dict[str, Any] = {
    "tracking": "none",
    "data": {"limit": 200},
    "batch_size": 16,
    "model": {"hidden": [32]},
    "epochs": 12,
    "checkpoint.every": 0,
}
VIRTUAL = {**QUICK, "hardware": {"name": "virtual", "workers": 2}}
FALLING = [3.0, 1.0, 2.0, 2.0, 2.0]  # of epochs: the second is the best
STOPS = {"scripted": Scripted(FALLING), "early_stop": {"metric": "scripted", "mode": "min", "patience": 2}}

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, fork_server: None) -> Run:
    def run(settings: Any = VIRTUAL, **more: Any) -> Result:
        options = {key: more.pop(key) for key in ("name", "resume", "allow_modules") if key in more}
        result = engine.run(settings, root=tmp_path / "runs", quiet=True, **options, **more)
        assert result is not None
        return result

    return run


def view(step: int = 1, **values: float) -> EvaluationView:
    nothing: Any = None
    return EvaluationView(step, 1.0, 1.0, values, nothing, nothing, torch.device("cpu"), nothing)


# -- early stopping and the best, as such


@pytest.mark.parametrize("changed", [{"metric": "loss"}, {"metric": "accuracy", "mode": "min"}])
def test_after_another_metric_the_best_is_looked_for_anew(changed: dict[str, Any]) -> None:
    best, stop = Best(), EarlyStop(patience=2)
    for each in (best, stop):
        each.check("accuracy", ())
        each.each_evaluation(view(1, accuracy=0.7, loss=0.9))
        each.each_evaluation(view(2, accuracy=0.6, loss=0.8))
    other, kept = Best(**changed), EarlyStop(patience=2, **changed)
    for each, before in ((other, best), (kept, stop)):
        each.check("accuracy", ())
        each.load_state_dict(json.loads(json.dumps(before.state_dict())))
        each.each_evaluation(view(3, accuracy=0.8, loss=0.85))
    assert other.is_best() and other.step == 3
    assert kept.reason_to_stop() is None and kept.best_step == 3


@given(st.lists(st.floats(-3, 3, width=16), max_size=12), st.integers(1, 3), st.sampled_from([0.0, 0.5]), st.booleans())
def test_early_stop_ends_where_a_plain_loop_over_all_values_says(
    values: list[float], patience: int, min_delta: float, smaller: bool
) -> None:
    stop = EarlyStop(metric="loss" if smaller else None, patience=patience, min_delta=min_delta)
    stop.check("accuracy", ())
    ended = None
    for i, value in enumerate(values):
        stop.each_evaluation(view(i, loss=value, accuracy=value))
        if ended is None and stop.reason_to_stop():
            ended = i
    signed = [-value if smaller else value for value in values]
    bests, expected = [0], None
    for i in range(1, len(signed)):
        if signed[i] > signed[bests[-1]] + min_delta or (signed[i] - signed[bests[-1]] > min_delta):
            bests.append(i)
        if expected is None and i - bests[-1] >= patience:
            expected = i
    assert ended == expected


def test_nan_is_never_better_and_the_first_value_is_the_best_so_far() -> None:
    best = Best(metric="loss")
    best.check("accuracy", ())
    assert best.each_evaluation(view(1, loss=math.nan)) == {} and not best.is_best()
    assert best.each_evaluation(view(2, loss=2.0)) == {"best_loss": 2.0, "best_step": 2} and best.is_best()
    assert best.each_evaluation(view(3, loss=math.nan)) == {"best_loss": 2.0, "best_step": 2} and not best.is_best()
    again = Best(metric="loss")
    again.check("accuracy", ())
    again.load_state_dict(best.state_dict())
    assert again.each_evaluation(view(4, loss=2.0))["best_step"] == 2 and not again.is_best()


# -- how they are chosen


def test_they_are_chosen_by_name_in_order_and_stored_with_the_run() -> None:
    typed = ["callbacks=[best,early_stop]", "callbacks.early_stop.patience=7"]
    chosen = compose(typed)
    assert list(chosen.callbacks) == ["best", "early_stop"]
    assert chosen.callbacks["early_stop"].knobs["patience"] == 7
    assert from_yaml(to_yaml(chosen)) == chosen and compose(overrides_of(chosen.model_dump())) == chosen
    assert overrides_of(chosen.model_dump()) == typed
    for text in ("callbacks=[best]", "callbacks=[]", "callbacks=nosuch"):
        with pytest.raises(ConfigError, match=r"a resumed run goes on as it was, and it has no callbacks"):
            override_stored(compose([]), [text])
    assert override_stored(chosen, ["callbacks.early_stop.patience=9"]).callbacks["early_stop"].knobs["patience"] == 9
    then = to_yaml(chosen).partition("callbacks:")[0]  # as runs had it before there were any
    assert from_yaml(then).callbacks == {}


def test_python_takes_names_classes_and_objects_in_their_order() -> None:
    given = asked({}, {"callbacks": [Margin(2.0), "best", EarlyStop(patience=1), Missed]})
    found = given.completed(compose(given.overrides)).callbacks
    assert list(found) == ["Margin", "best", "EarlyStop", "Missed"]
    assert found["Margin"].knobs == {"scale": 2.0} and found["EarlyStop"].knobs == {"patience": 1}
    assert found["best"] == compose(["callbacks=best"]).callbacks["best"]
    assert set(given.allowed) == {"some_callbacks", "paceline.engine.callbacks.early_stop"}
    named = asked(
        {"callbacks": {"wide": {"_target_": Margin, "scale": 3.0}, "early_stop": {"patience": 5}, "b": Missed}}
    )
    found = named.completed(compose(named.overrides)).callbacks
    assert list(found) == ["wide", "early_stop", "b"] and found["wide"].knobs == {"scale": 3.0}
    assert found["early_stop"].knobs["patience"] == 5


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"callbacks": {"early_stop": {"patience": 0}}}, "callbacks.early_stop.patience=0: must be greater than"),
        ({"callbacks": {"early_stop": {"patince": 1}}}, "callbacks.early_stop.patince: there is no such key; did you"),
        ({"callbacks": "erly_stop"}, "did you mean early_stop?"),
        ({"callbacks": {"early_stop": {"metric": "f1"}}}, "callbacks.early_stop.metric=f1: must be accuracy or loss"),
        (
            {"callbacks": {"noise_scale": {}, "early_stop": {"metric": "noise_scale", "mode": "min"}}},
            "callbacks.early_stop.metric=noise_scale: must be accuracy or loss",  # it is measured in steps
        ),
        (
            {"callbacks": {"early_stop": {}, "best": {"metric": "f1", "mode": "max"}}},
            "callbacks.best.metric=f1: must be accuracy or loss",  # early_stop measures nothing
        ),
        (
            {"callbacks": {"x": Missed, "early_stop": {"metric": "f1"}}},
            "callbacks.early_stop.mode=auto: knows which way accuracy and loss are better; of f1 say min or max",
        ),
        ({"callbacks": {"best": {}, "two": Best}}, "callbacks.two: keeps the best weights, as callbacks.best does"),
        (
            {"callbacks": "early_stop", "sync": "asp"},
            "callbacks.early_stop: ends a run after an evaluation, and sync=asp",
        ),
        ({"callbacks": [3]}, "callbacks: a int is no callback"),
        (
            {"callbacks": {"x": {"_target_": "torch.nn.Linear"}}},
            "callbacks.x._target_=torch.nn.Linear: must name a class",
        ),
        ({"callbacks": [torch.nn.ReLU]}, "callbacks.ReLU._target_=torch.nn.modules.activation.ReLU: is the class ReLU"),
        (
            {"callbacks": "gradient_norm", "strategy": "torch_ddp"},
            "callbacks.gradient_norm: sees gradients, and strategy=",
        ),
        (
            {"callbacks": "gradient_norm", "sync": {"name": "bsp", "shard": "optimizer"}, "hardware": {"workers": 2}},
            "callbacks.gradient_norm: sees gradients, and sync.shard=optimizer leaves each replica a part of them.",
        ),
        (["+callbacks.x=3"], "callbacks.x: must be a callback with its _target_"),
        (["callbacks=3"], "takes choices by their names"),
        (["callbacks.patience=3"], "callbacks=early_stop has callbacks.early_stop.patience"),
    ],
)
def test_what_no_callback_can_be_is_refused_before_anything_runs(settings: Any, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        engine.prepare(settings).plan()
    assert said in str(error.value)


def test_a_plan_says_what_looks_at_each_step() -> None:
    [note] = engine.prepare(VIRTUAL, callbacks=["gradient_norm", "best"], steps=40).plan().notes
    assert note.startswith("callbacks.gradient_norm: looks at each step of worker 0's replica")
    staged = {**VIRTUAL, "strategy": "pipeline"}
    _, note, *_ = engine.prepare(staged, callbacks=["gradient_norm"], steps=40).plan().notes
    assert note.endswith("sees the gradient of the part of the model that worker 1 holds, which is one of 2")


# -- what they are called with


class KeyValues:
    def __init__(self, rank: int, posted: dict[str, str]) -> None:
        self.rank, self.posted = rank, posted

    def post(self, key: str, value: str) -> None:
        self.posted[key] = value

    def read(self, key: str, writer: int) -> str:
        return self.posted[key]


def called(*callbacks: Callback, rank: int = 0, posted: dict[str, str] | None = None) -> Calling:
    key_values: Any = KeyValues(rank, {} if posted is None else posted)
    named = {type(callback).__name__: callback for callback in callbacks}
    for one in callbacks:
        one.check("accuracy", ("others",))
    return Calling(named, key_values, 0, True, "data_parallel")


def test_all_hear_what_the_chief_decides() -> None:
    posted: dict[str, str] = {}
    chief, other = (called(EarlyStop(patience=1), Best(), rank=rank, posted=posted) for rank in (0, 1))
    for calls, accuracy in enumerate((0.5, 0.75, 0.75)):
        chief.each_evaluation(view(calls, accuracy=accuracy, loss=1.0))
        verdict = chief.verdict(calls)
        assert other.verdict(calls) == verdict and verdict.keep == (calls < 2)
    assert verdict.stop == (
        "callbacks.EarlyStop: accuracy has not got better for 1 evaluations; the best was 0.75 at step 1"
    )
    assert other.each_evaluation(view(3, accuracy=1.0)) == {} and other.manifest() == {}


def test_later_callbacks_see_what_earlier_ones_measured() -> None:
    calls = called(Scripted([7.0]), EarlyStop("scripted", 1, mode="max"))
    assert calls.each_evaluation(view(accuracy=0.5)) == {"scripted": 7.0}
    with pytest.raises(ValueError, match="metric=scripted: was not measured; there are accuracy"):
        called(EarlyStop("scripted", 1, mode="max")).each_evaluation(view(accuracy=0.5))


@pytest.mark.parametrize(
    ("callback", "said"),
    [
        (Odd(), "metric loss: something else is recorded under this name"),
        (Odd("a b"), "metric 'a b': a name is 1 to 64 letters"),
        (Odd("x", torch.zeros(2)), "metric x: must be one number, and is a tensor of shape [2]"),
        (Odd("x", "many"), "metric x: must be one number, and is a str"),
        (Margin(), "sees outputs, and strategy=data_parallel computes its loss without showing them"),
        (GradientNorm(), "sees gradients, and none are left whole"),
    ],
)
def test_what_cannot_be_recorded_or_seen_ends_the_run(callback: Callback, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        called(callback).each_step(1, 0.1, 2.0, {"w": torch.nn.Parameter(torch.zeros(1))})
    assert said in str(error.value)


def test_a_state_that_is_no_json_is_named() -> None:
    callback = Scripted([1.0])
    callback.calls = torch.zeros(1)  # type: ignore[assignment]
    with pytest.raises(TypeError, match=r"callbacks.Scripted: state_dict\(\) must be as JSON has it"):
        called(callback).manifest()


def test_the_norm_is_that_of_all_gradients_together() -> None:
    gradients = [torch.tensor([3.0, 0.0]), torch.tensor([[4.0]]), None]
    parameters = {}
    for i, gradient in enumerate(gradients):
        parameters[str(i)] = torch.nn.Parameter(torch.zeros(1 if gradient is None else gradient.shape))
        parameters[str(i)].grad = gradient
    calls = called(GradientNorm(every=2))
    calls.each_step(1, 0.1, 2.0, parameters)
    assert calls.numbers() == {}
    calls.each_step(2, 0.1, 2.0, parameters)
    assert calls.numbers() == {"gradient_norm": 5.0} == calls.last


def test_a_run_that_goes_on_has_what_was_measured_last() -> None:
    chief, again, other = called(Scripted([7.0])), called(Scripted([8.0])), called(Scripted([9.0]), rank=1)
    assert chief.each_evaluation(view(accuracy=0.5)) == chief.metrics()
    saved = json.loads(json.dumps(chief.manifest()))
    for each in (again, other):
        each.load_manifest(saved)
    assert again.metrics() == {"scripted": 7.0} and other.metrics() == {}


def test_own_metrics_are_recorded_beside_the_others_and_go_to_wandb() -> None:
    step = StepRecord(3, 1.0, 0.5, 10.0, 0.1, 0.3, {"margin": 2.0}).plain()
    assert step["margin"] == 2.0 and "metrics" not in step
    assert history(step, swept=False)["train/margin"] == 2.0
    evaluation = EvaluationRecord(3, 1.0, Score("accuracy", 0.5, 1.0), 0.3, {"missed": 0.5}).plain()
    assert history(evaluation, swept=False)["evaluation/missed"] == 0.5


# -- whole runs


@pytest.mark.dist
def test_what_virtual_workers_set_up_is_kept_from_the_collector_while_they_step(run: Run) -> None:
    curves = run(steps=2, callbacks=[Frozen], evaluate={"every": 9}).curves()
    assert (curves.frozen > 100_000).all()


@pytest.mark.dist
def test_callbacks_that_only_look_change_no_bit_and_are_recorded(run: Run) -> None:
    plain = run(steps=8, evaluate={"every": 1})
    seen = run(steps=8, evaluate={"every": 1}, callbacks=["gradient_norm", Margin(2.0), Missed, "best"])
    assert weights(seen.path) == weights(plain.path)
    assert seen.summary["event_digest"] == plain.summary["event_digest"]
    curves = seen.curves()
    assert curves.gradient_norm.notna().all() and curves.margin.notna().all()
    judged = curves.dropna(subset="missed")
    assert (judged.missed + judged.accuracy).tolist() == pytest.approx([1.0] * len(judged)) and len(judged) >= 2
    assert seen.summary["metrics"]["missed"] == judged.missed.iloc[-1]
    rows, _ = table([plain.data, seen.data], ComparisonRequest(group=False))
    assert rows[0]["missed"] is None and rows[1]["missed"] == judged.missed.iloc[-1]
    assert "metrics" not in plain.summary


@pytest.mark.dist
def test_the_gradient_of_replicas_is_that_of_serial_training(run: Run) -> None:
    together = run(steps=4, callbacks="gradient_norm").curves().gradient_norm
    serial = run({**VIRTUAL, "hardware": {"name": "virtual", "workers": 1}, "batch_size": 32}, steps=4,
                 callbacks="gradient_norm").curves().gradient_norm  # fmt: skip
    assert together.tolist() == pytest.approx(serial.tolist(), rel=1e-5)


SYNCHRONOUS = [name for name, sync in SYNCS.items() if sync.traits.synchronous]


@pytest.mark.dist
@pytest.mark.parametrize(
    "sync", ["parameter_server", *(pytest.param(name, marks=pytest.mark.slow) for name in SYNCHRONOUS)]
)
def test_a_run_that_was_ended_early_is_the_run_of_so_many_steps(sync: str, run: Run) -> None:
    # five steps an epoch: the fourth evaluation is the second that is no better
    more: dict[str, Any] = {"sync": sync, **SYNCS[sync].trial.beside, **SYNCS[sync].trial.optimizer}
    ended = run(callbacks=STOPS, **more)
    assert ended.status == "completed"
    per_epoch = round(ended.steps / ended.epochs)
    assert ended.steps == 4 * per_epoch
    assert ended.summary["reason"].startswith("callbacks.early_stop: scripted has not got better for 2 evaluations")
    whole = run(steps=4 * per_epoch, **more)
    assert weights(ended.path) == weights(whole.path)
    assert (ended.accuracy, ended.loss) == (whole.accuracy, whole.loss)
    assert ended.curves().index.is_unique and ended.summary["wire"] == whole.summary["wire"]
    evaluations = [record for record in ended.data.records if record["kind"] == "evaluation"]
    assert len(evaluations) == 4


@pytest.mark.dist
@pytest.mark.slow
def test_a_run_ends_at_the_evaluation_that_reaches_the_target(run: Run) -> None:
    first = run(epochs=4)
    scores = first.curves().dropna(subset="accuracy").accuracy.tolist()
    target = scores[1]
    assert scores[0] < target, "else the first evaluation reaches it too"
    ended = run(epochs=4, stop_at_target=True, target_accuracy=target)
    assert (ended.status, ended.steps) == ("completed", first.steps // 2)
    assert ended.accuracy == target
    assert ended.summary["reason"] == (
        f"stop_at_target: accuracy is {target:.6g} at step {ended.steps}, and target_accuracy={target:g}"
    )
    date = ended.curves().dropna(subset="accuracy").iloc[-1]
    assert ended.summary["time_to_accuracy"] == pytest.approx(date.time_s)


def test_stop_at_target_is_refused_where_nothing_is_evaluated_meanwhile(run: Run) -> None:
    with pytest.raises(ConfigError, match=r"^stop_at_target: ends a run after an evaluation, and sync=asp evaluates"):
        run(sync="asp", stop_at_target=True)
    with pytest.raises(ConfigError, match=r"^callbacks.stop_at_target: the name is that of stop_at_target=true"):
        run(callbacks={"stop_at_target": Scripted(FALLING)}, stop_at_target=True)


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize("strategy", [name for name, each in STRATEGIES.items() if not each.traits.needs_processes])
def test_callbacks_go_with_every_strategy_of_ours(strategy: str, run: Run) -> None:
    models: dict[str, Any] = {"domain": "cnn", "hybrid": {"hidden": [16] * 5}}
    base = {**VIRTUAL, "model": models.get(strategy, {"hidden": [32]})}
    callbacks = [STOPS["scripted"], Missed, "best", "gradient_norm"]
    hardware = {"workers": 1 if strategy == "single" else 4 if strategy == "hybrid" else 2}
    ended = run(base, strategy=strategy, callbacks=callbacks, hardware=hardware, steps=12)
    metrics = ended.summary["metrics"]
    assert metrics["scripted"] in FALLING and metrics["best_step"] <= 12 and metrics["gradient_norm"] > 0
    assert metrics["missed"] + (ended.accuracy or 0.0) == pytest.approx(1.0)


@pytest.mark.dist
@pytest.mark.slow
def test_the_best_weights_are_those_that_were_evaluated(run: Run) -> None:
    first = run(callbacks={"scripted": Scripted(FALLING), "best": {"metric": "scripted", "mode": "min"}}, steps=20)
    metrics = first.summary["metrics"]
    judged = first.curves().dropna(subset="accuracy")
    assert metrics["best_scripted"] == 1.0 and metrics["best_step"] == judged.index[1]
    best = first.path / "best.safetensors"
    again = run(weights=str(best), steps=1, optimizer={"lr": 0.0, "momentum": 0.0})
    assert (again.accuracy, again.loss) == (judged.accuracy.iloc[1], judged.test_loss.iloc[1])
    with pytest.raises(
        ConfigError, match=r"@best: there is no checkpoint of its best step, .*weights=.*best.safetensors"
    ):
        best_of(RunDirectory(first.path))
    with pytest.raises(ConfigError, match=r"@best: the run did not look for it; callbacks=\[best\] does"):
        best_of(RunDirectory(again.path))


@pytest.mark.dist
@pytest.mark.slow
def test_an_asynchronous_run_keeps_its_best_weights_once_they_are_judged(run: Run) -> None:
    first = run(sync="asp", steps=20, callbacks={"best": {"metric": "loss"}})
    judged = first.curves().dropna(subset="test_loss")
    assert first.summary["metrics"]["best_loss"] == judged.test_loss.min()
    again = run(weights=str(first.path / "best.safetensors"), steps=1, optimizer={"lr": 0.0, "momentum": 0.0})
    assert again.loss == judged.test_loss.min()


@pytest.mark.dist
def test_a_callback_that_raises_ends_the_run_and_its_line_is_named(run: Run) -> None:
    with pytest.raises(WorkerFailedError) as error:
        run(callbacks=Raising, steps=8)
    assert error.value.exit_code == 4
    assert "worker 0, after step 2, failed: ZeroDivisionError: no third step, in some_callbacks.Raising" in str(
        error.value
    )
    assert "some_callbacks.py, line" in str(error.value)


@pytest.mark.dist
@pytest.mark.slow
def test_a_resumed_run_ends_where_the_uninterrupted_one_does(run: Run, tmp_path: Path) -> None:
    real = {**QUICK, "hardware.workers": 2, "checkpoint": {"every": 1, "keep": 1}}
    del real["checkpoint.every"]
    best = {"best": {"metric": "scripted", "mode": "min"}}
    whole = run(real, callbacks=STOPS | best, name="whole")
    per_epoch = whole.steps // 4
    run(real, callbacks=STOPS | best, name="cut", steps=3 * per_epoch)
    kept = [path.name for path in steps_of(tmp_path / "runs" / "cut" / "checkpoints")]
    assert kept == [f"step-{step * per_epoch:08d}" for step in (2, 3)]  # the best and the last
    cut = run(["steps=null"], resume="cut", allow_modules=["some_callbacks"])
    assert (cut.steps, cut.summary["reason"]) == (whole.steps, whole.summary["reason"])
    assert weights(cut.path) == weights(whole.path)
    kept = [path.name for path in steps_of(cut.path / "checkpoints")]
    assert kept == [f"step-{step * per_epoch:08d}" for step in (2, 4)]
    further = run(["callbacks.early_stop.patience=3"], resume="cut", allow_modules=["some_callbacks"])
    assert further.steps == 5 * per_epoch
    again = run([f"steps={4 * per_epoch}"], resume="cut@best", allow_modules=["some_callbacks"])
    assert again.summary["resumed_at"] == 2 * per_epoch and weights(again.path) == weights(whole.path)


@pytest.mark.dist
@pytest.mark.slow
def test_from_an_older_checkpoint_the_best_is_the_best_until_then(run: Run) -> None:
    real = {**QUICK, "hardware.workers": 2, "checkpoint": {"every": 1, "keep": 3}}
    del real["checkpoint.every"]
    whole = run(real, callbacks={"best": {"metric": "loss"}}, name="older", epochs=3)
    first = whole.steps // 3
    directory, file = RunDirectory(whole.path), whole.path / "best.safetensors"
    assert best_step(directory) == whole.steps and file.exists()
    again = run(["callbacks.best.min_delta=9", "checkpoint.keep=1"], resume=f"older@{first}")
    assert best_step(directory) == first and again.summary["metrics"]["best_step"] == first
    assert [step_of(path) for path in steps_of(directory.checkpoints)] == [first, whole.steps]
    assert best_of(directory) == f"step-{first:08d}"
    assert not file.exists(), f"has the weights of step {whole.steps}, which was made again"
    notes = [record["text"] for record in directory.records() if record["kind"] == "note"]
    assert [f"best.safetensors had the weights of step {whole.steps}" in text for text in notes].count(True) == 1
    shutil.rmtree(directory.checkpoints / best_of(directory))
    with pytest.raises(ConfigError, match=f"no checkpoint of its best step, {first}$"):
        best_of(directory)


def test_two_of_one_object_are_built_anew_from_what_they_were_given() -> None:
    one = Margin(scale=3.0)
    assert one.knobs == {"scale": 3.0} and Margin().knobs == {}
    with pytest.raises(TypeError):
        Margin(skale=3.0)  # type: ignore[call-arg]
    made = calling.make(
        compose(["callbacks=best"]),
        (),
        Accuracy(),
    )
    assert isinstance(made["best"], Best)


# -- in int8


def test_int8_is_judged_beside_the_float_model_and_takes_a_quarter_of_its_weights(run: Run) -> None:
    told = run(callbacks="dynamic_int8", epochs=2).summary
    metrics = told["metrics"]
    weights, biases = 64 * 32 + 32 * 10, 32 + 10
    assert metrics["float_bytes"] == 4 * (weights + biases) == told["model_bytes"]
    assert metrics["int8_bytes"] == weights + 2 * 4 + 4 * biases
    assert metrics["int8_loss"] != told["loss"] and abs(metrics["int8_loss"] - told["loss"]) < 0.02


def test_sizes_count_a_tied_weight_where_it_stays_float() -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.Linear(4, 9), torch.nn.BatchNorm1d(9))
    assert sizes(model) == (4 * (36 + 36 + 9 + 36) + 8, 4 * (36 + 9 + 36) + 8 + 36 + 4)
    model.get_submodule("1").weight = model.get_submodule("0").weight
    assert sizes(model) == (4 * (36 + 9 + 36) + 8, 4 * (36 + 9 + 36) + 8 + 36 + 4)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (torch.nn.ReLU(), r"the model has none \(adapt=quantized and adapt=lora have others in their place\)"),
        (torch.nn.Linear(2, 2).double(), "quantizes float32 weights, and .weight is torch.float64"),
        (
            torch.nn.Sequential(torch.nn.TransformerEncoderLayer(8, 2, 8)),
            "TransformerEncoderLayer, which 0.linear1 is in",
        ),
    ],
)
def test_int8_is_refused_where_there_is_nothing_that_torch_quantizes(model: torch.nn.Module, says: str) -> None:
    with pytest.raises(ConfigError, match=f"^callbacks.d: .*{says}"):
        calling.check_model({"d": DynamicInt8()}, model)


def test_int8_of_a_model_whose_layers_were_all_swapped_ends_with_status_2() -> None:
    with pytest.raises(ConfigError, match=r"^callbacks.dynamic_int8: .*the model has none"):
        engine.prepare({**VIRTUAL, "callbacks": "dynamic_int8", "adapt": "lora"}).plan()
