"""Regression and support vector machines: the same strategies and sync modes, another loss and another metric."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from paceline import engine
from paceline.batches import lone
from paceline.conf.errors import ConfigError
from paceline.engine import Result, prepare
from paceline.tasks.base import Split
from paceline.tasks.data.diabetes import Diabetes
from paceline.tasks.data.digits import Digits
from paceline.tasks.losses import Hinge
from paceline.tasks.models.linear import Linear
from paceline.tracking.run_directory import RunDirectory

REGRESSION = ["task=squared", "data=diabetes", "model=linear"]
SVM = ["task=hinge", "data=digits", "data.limit=300", "model=linear"]
SHORT = ["tracking=none", "checkpoint.every=0", "epochs=3", "evaluate.every=1"]


def virtual(root: Path, *overrides: str) -> Result:
    result = engine.run([*SHORT, "hardware=virtual", *overrides], root=root, quiet=True)
    assert result is not None
    return result


def least_squares(train: Split, test: Split) -> tuple[np.ndarray, float]:
    """Weights and bias, and the R^2 on the test split."""
    x, unseen = (np.c_[lone(split.samples).numpy(), np.ones(len(split))].astype(np.float64) for split in (train, test))
    weights = np.linalg.lstsq(x, train.targets.numpy(), rcond=None)[0]
    y = test.targets.numpy()
    return weights, float(1 - np.square(y - unseen @ weights).sum() / np.square(y - y.mean()).sum())


# -- oracles


@pytest.mark.slow
def test_full_batch_training_approaches_the_least_squares_solution(root: Path) -> None:
    """All samples in each step, shared by two replicas; rate and momentum are Polyak's for curvatures of 0.017 to 8."""
    train, test = Diabetes().load()
    weights, r2 = least_squares(train, test)
    whole = ["hardware.workers=2", "batch_size=177", "steps=200", "evaluate.every=5", f"target_accuracy={r2 - 0.01}"]
    result = virtual(root, *REGRESSION, *whole, "optimizer.lr=0.35", "optimizer.momentum=0.85")
    from safetensors.torch import load_file

    state = load_file(result.path / "model.safetensors")
    found = np.append(state["output.weight"].numpy(), state["output.bias"].numpy())
    np.testing.assert_allclose(found, weights, atol=2e-3)
    assert result.summary["r2"] == pytest.approx(r2, abs=1e-3)
    evaluations = [record for record in RunDirectory(result.path).records() if record["kind"] == "evaluation"]
    assert evaluations[0]["r2"] < r2 - 0.01
    reached = next(record["time"] for record in evaluations if record["r2"] >= r2 - 0.01)
    assert result.summary["time_to_accuracy"] == reached and result.summary["accuracy"] is None


@pytest.mark.slow
def test_the_minimum_of_the_hinge_loss_with_weight_decay_is_the_support_vector_machine_of_scikit_learn() -> None:
    """1/2 |W|^2 + C sum of losses, the bias being a column of W: ours is that over C n, with decay 1 / (C n)."""
    from sklearn.svm import LinearSVC

    train, _ = Digits(limit=200).load()
    n, c = len(train), 0.01
    svm = LinearSVC(C=c, multi_class="crammer_singer", tol=1e-6, max_iter=100_000, random_state=0)
    svm.fit(lone(train.samples).flatten(1).numpy(), train.targets.numpy())
    model, decay = Linear(Digits().spec), 1 / (c * n)

    def objective() -> torch.Tensor:
        squares = sum(parameter.square().sum() for parameter in model.parameters())
        return Hinge().loss(model(train.inputs), train.targets) + decay / 2 * squares

    def decayed(lr: float, steps: int) -> float:
        optimizer = torch.optim.SGD(model.parameters(), lr=lr, weight_decay=decay)
        for step in range(1, steps + 1):
            optimizer.param_groups[0]["lr"] = lr / step  # 1 / (decay t), of a strongly convex function
            optimizer.zero_grad()
            Hinge().loss(model(train.inputs), train.targets).backward()
            optimizer.step()
        return objective().item()

    output = model.get_submodule("output")
    assert isinstance(output, nn.Linear)
    ours = decayed(1 / decay, 1500)
    with torch.no_grad():
        output.weight.copy_(torch.from_numpy(svm.coef_))
        output.bias.copy_(torch.from_numpy(svm.intercept_))
    its = objective().item()
    assert its * (1 - 1e-4) <= ours <= its * 1.02


# -- every way of training


@pytest.mark.parametrize("sync", ["bsp", "asp", "fedavg", "local_sgd"])
@pytest.mark.parametrize(("task", "metric"), [(REGRESSION, "r2"), (SVM, "accuracy")], ids=["regression", "svm"])
def test_a_task_is_trained_under_any_sync_mode_and_reports_its_metric_alone(
    root: Path, sync: str, task: list[str], metric: str
) -> None:
    of_period = ["sync.period=3"] if sync == "local_sgd" else []  # which divides the steps
    result = virtual(root, *task, f"sync={sync}", *of_period, "hardware.workers=2", "target_accuracy=0.05")
    evaluations = [record for record in RunDirectory(result.path).records() if record["kind"] == "evaluation"]
    assert result.summary["status"] == "completed" and len(evaluations) >= 1
    assert all(({"accuracy", "r2"} & record.keys()) == {metric} for record in evaluations)
    assert evaluations[-1][metric] == result.summary[metric] > 0.05
    assert result.summary["time_to_accuracy"] == next(e["time"] for e in evaluations if e[metric] >= 0.05)
    assert result.summary["accuracy"] == (result.summary[metric] if metric == "accuracy" else None)
    assert result.summary["wire"]["bytes_per_step"] == result.summary["predicted"]["bytes_per_step"]


def test_a_pipeline_and_replicas_of_it_regress_as_one_worker_does(root: Path) -> None:
    mlp = ["task=squared", "data=diabetes", "model=mlp", "model.hidden=[8]", "epochs=1"]
    alone = virtual(root, *mlp, "strategy=single", "hardware.workers=1", "batch_size=64")
    cut = virtual(root, *mlp, "strategy=pipeline", "strategy.stages=2", "hardware.workers=4", "batch_size=32")
    assert cut.summary["r2"] == pytest.approx(alone.summary["r2"], rel=1e-4)
    assert cut.summary["loss"] == pytest.approx(alone.summary["loss"], rel=1e-4)


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize("task", [REGRESSION, SVM], ids=["regression", "svm"])
def test_a_run_on_processes_that_was_resumed_ends_with_the_bits_of_one_that_was_not(
    root: Path, fork_server: None, task: list[str]
) -> None:
    quick = ["tracking=none", *task, "hardware.workers=2", "checkpoint.every_steps=4"]
    whole = engine.run([*quick, "steps=8"], name="whole", root=root, quiet=True)
    half = engine.run([*quick, "steps=4"], name="half", root=root, quiet=True)
    resumed = engine.run(["steps=8"], resume="half", root=root, quiet=True)
    assert whole is not None and half is not None and resumed is not None
    assert (whole.path / "model.safetensors").read_bytes() == (resumed.path / "model.safetensors").read_bytes()
    with pytest.raises(ConfigError, match="task=cross_entropy: a resumed run goes on as it was"):
        engine.run(["task=cross_entropy"], resume="half", root=root, quiet=True)


# -- refusals


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["task=squared"], "task=squared: learns numbers, and the targets of data=digits are labels"),
        (["data=diabetes"], "task=cross_entropy: learns labels, and the targets of data=diabetes are numbers"),
        (["data=diabetes", "task=hinge"], "task=hinge: learns labels, and the targets of data=diabetes are numbers"),
        (["task=squared", "data=text", "model=gpt"], "the targets of data=text are labels"),
        (
            [*REGRESSION[:2], "model=logistic_regression"],
            "classifies, and the targets of these data are numbers. Choose model",
        ),
        ([*REGRESSION[:2], "model=cnn"], "model=cnn needs images"),
        ([*REGRESSION[:2], "model=gpt"], "model=gpt predicts the next token of a text"),
        (
            [*REGRESSION, "partition=by_label"],
            "partition=by_label deals samples by their label, and the targets of these",
        ),
        ([*REGRESSION, "partition=dirichlet"], "partition=dirichlet deals samples by their label, and the targets of"),
        ([*REGRESSION, "target_accuracy=1.5"], "target_accuracy=1.5: must be less than or equal to 1"),
        (["model=linear", "data=text"], "these data are tokens. Choose model=gpt"),
        (["model=linear", "data=sparse"], "these are sparse. Choose model=sparse_logistic_regression"),
    ],
)
def test_what_does_not_go_together_is_refused_before_anything_runs(overrides: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        prepare(overrides).plan()
    assert sentence in str(caught.value) and caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


def test_a_model_of_another_number_of_outputs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "three.py").write_text(
        "from torch import nn\n\n\nclass Three(nn.Sequential):\n"
        "    def __init__(self, outputs: int) -> None:\n        super().__init__(nn.Linear(10, outputs))\n"
    )
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "three.yaml").write_text("# Three\n_target_: three.Three\noutputs: 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    regression = ["task=squared", "data=diabetes", "model=three"]
    with pytest.raises(ConfigError, match=r"model=three puts out \[32, 3\]; data=diabetes has targets \[\] of numbers"):
        prepare(regression, tmp_path, ["three"]).plan()
    prepare([*regression, "model.outputs=1"], tmp_path, ["three"]).plan()


# -- what is shown


@pytest.mark.slow
def test_tables_curves_and_reports_say_r2_and_never_accuracy(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from paceline.tracking.compare import rows
    from paceline.tracking.rendering import for_people
    from paceline.tracking.report.document import document
    from paceline.tracking.sources import gather
    from paceline.tracking.sparkline import curves

    for seed in (0, 1):
        virtual(root, *REGRESSION, "hardware.workers=2", f"seed={seed}", "target_accuracy=0.1")
    runs = gather([str(root)], root)
    table = rows(runs)
    assert all(row["accuracy"] is None and row["r2"] > 0 and row["task"] == "squared" for row in table)
    titles, _, _ = for_people(table)
    assert {"R^2", "task"} <= {*titles} and "accuracy" not in titles
    assert "r2" in curves(runs[0].records) and "accuracy" not in curves(runs[0].records)
    page = document(runs)
    sections = {section["id"]: section for section in page["sections"]}
    assert "linear on diabetes, task=squared, target R^2 0.1" in sections["ranking"]["figures"][0]["among"]
    assert page["verdicts"][0].startswith(
        "Modelled (virtual cluster), linear on diabetes, task=squared, target R^2 0.1. "
    )
    assert "reached it" in page["verdicts"][0] and "sent by all workers" in page["verdicts"][0]
    assert "r2" in sections and "accuracy" not in sections
    json.dumps(page)


def test_what_fits_is_asked_of_a_gpt_with_the_usual_task_where_the_named_one_learns_numbers() -> None:
    from paceline.engine.predict.fit import search

    found = search([*REGRESSION, "hardware=laptop"], [])
    assert found.chosen.fits and found.model is not None and found.model.fits
    assert "task=cross_entropy" in found.overrides.split()
