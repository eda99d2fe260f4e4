import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from paceline.batches import Fields, lone, tensors_of
from paceline.conf.errors import ConfigError
from paceline.strategies.core.loss import is_mean_cross_entropy
from paceline.tasks.base import DataSpec, Split
from paceline.tasks.evaluation import evaluate
from paceline.tasks.losses import BinaryCrossEntropy, CrossEntropy, Hinge, Huber, Squared, SquaredHinge, Task
from paceline.tasks.losses.cross_entropy import cross_entropy
from paceline.tasks.losses.metrics import Accuracy, BinaryAccuracy, RSquared
from paceline.tasks.losses.own import OwnLoss


def by_hand(outputs: Tensor, targets: Tensor) -> tuple[float, float]:
    """Mean loss and accuracy, one prediction after another, in float64."""
    losses, hits = [], []
    for row, target in zip(outputs.double().reshape(-1, outputs.shape[-1]), targets.flatten(), strict=True):
        losses.append(torch.log(row.exp().sum()) - row[target])
        hits.append(float(row.argmax() == target))
    return float(sum(losses) / len(losses)), sum(hits) / len(hits)


@pytest.mark.parametrize("leading", [(7,), (5, 3)], ids=["labels", "tokens"])
def test_the_loss_is_the_mean_over_all_predictions(leading: tuple[int, ...]) -> None:
    outputs, targets = torch.randn(*leading, 4), torch.randint(4, leading)
    loss, accuracy = by_hand(outputs, targets)
    assert float(cross_entropy(outputs, targets)) == pytest.approx(loss, rel=1e-5)
    assert int(CrossEntropy().metric.tally(outputs, targets)) == round(accuracy * targets.numel())


@pytest.mark.parametrize("batch_size", [1, 4, 10, 512])
@pytest.mark.parametrize("context", [(), (3,)], ids=["labels", "tokens"])
def test_evaluation_equals_the_hand_computation_whatever_the_last_batch(
    batch_size: int, context: tuple[int, ...]
) -> None:
    split = Split(torch.randn(10, *context, 6), torch.randint(4, (10, *context)))
    model = nn.Linear(6, 4)
    loss, accuracy = by_hand(model(split.inputs).detach(), split.targets)
    evaluation = evaluate(CrossEntropy(), model, split, batch_size)
    assert evaluation.loss == pytest.approx(loss, rel=1e-5)
    assert evaluation.score == pytest.approx(accuracy)
    assert evaluation.samples == 10


class Recorder(nn.Linear):
    """Notes the modes under which it is called."""

    def forward(self, input: Tensor) -> Tensor:
        self.modes = (self.training, torch.is_grad_enabled())
        return super().forward(input)


@pytest.mark.parametrize("training", [True, False])
def test_evaluation_runs_in_evaluation_mode_without_gradients_and_puts_the_mode_back(training: bool) -> None:
    model = Recorder(6, 4).train(training)
    evaluate(CrossEntropy(), model, Split(torch.randn(3, 6), torch.randint(4, (3,))))
    assert model.modes == (False, False)
    assert model.training is training and torch.is_grad_enabled()


def test_the_training_mode_comes_back_after_a_failure_too() -> None:
    model = nn.Linear(6, 4)
    with pytest.raises(RuntimeError):
        evaluate(CrossEntropy(), model, Split(torch.randn(3, 5), torch.randint(4, (3,))))
    assert model.training


class InPlace(nn.Linear):
    """Changes its input, as `x.sub_(mean)` in a user's forward does."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.mul_(0.5))


class SpoilingMetric(Accuracy):
    """A user's metric that changes what it is given."""

    def tally(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        found = super().tally(outputs, targets, weights)
        for each in (outputs, targets, *([] if weights is None else [weights])):
            each.zero_()
        return found


class Spoiling(CrossEntropy):
    """A user's loss that changes its outputs and targets."""

    metric = SpoilingMetric()

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.each(outputs, targets).mean()

    def each(self, outputs: Tensor, targets: Tensor) -> Tensor:
        found = super().each(outputs, targets)
        targets.zero_()
        outputs.zero_()
        return found


@pytest.mark.parametrize("weights", [None, torch.arange(10) / 5.0], ids=["plain", "weighted"])
def test_a_forward_or_a_loss_that_works_in_place_changes_no_evaluation(weights: Tensor | None) -> None:
    split = Split(torch.randn(10, 6), torch.randint(4, (10,)), weights)
    model, before = InPlace(6, 4), [each.clone() for each in (lone(split.samples), split.targets)]
    plain = nn.Linear(6, 4)
    plain.load_state_dict(model.state_dict())
    wanted = evaluate(CrossEntropy(), plain, Split(lone(split.samples) * 0.5, split.targets, weights), 4)
    for _ in range(2):
        found = evaluate(Spoiling(), model, split, 4)
        assert (found.loss, found.score) == pytest.approx((wanted.loss, wanted.score), rel=1e-6)
    assert all(torch.equal(*pair) for pair in zip(before, (lone(split.samples), split.targets), strict=True))


def test_a_slice_of_a_split_is_a_copy_of_inputs_targets_and_weights() -> None:
    split = Split({"a": torch.ones(6, 2), "b": torch.ones(6, 3)}, torch.ones(6), torch.ones(6))
    taken = split.take(slice(0, 4))
    assert taken.weights is not None
    for each in (*tensors_of(taken.inputs), taken.targets, taken.weights):
        each.zero_()
    assert all(bool((each == 1).all()) for each in (*tensors_of(split.samples), split.targets, split.weights))


def test_an_output_that_is_nan_is_no_answer() -> None:
    inputs = torch.randn(10, 6)
    inputs[[5, 7], 2] = float("nan")
    found = evaluate(CrossEntropy(), nn.Linear(6, 4), Split(inputs, torch.zeros(10, dtype=torch.int64)), 4)
    assert math.isnan(found.score) and math.isnan(found.loss) and found.unknown == 5


@pytest.mark.parametrize("weights", [None, torch.ones(10)], ids=["plain", "weighted"])
def test_an_infinite_output_is_named_where_the_loss_is_not_finite(weights: Tensor | None) -> None:
    inputs = torch.randn(10, 2)
    inputs[[5, 7], 1] = math.inf
    found = evaluate(Squared(), nn.Identity(), Split(inputs, torch.zeros(10, 2), weights), 4)
    assert not math.isfinite(found.loss) and math.isnan(found.score) and found.unknown == 5
    masked = torch.tensor([[1.0, -math.inf]] * 3)  # a class that never wins
    found = evaluate(CrossEntropy(), nn.Identity(), Split(masked, torch.zeros(3, dtype=torch.int64)))
    assert found.score == 1 and found.unknown is None


def test_a_score_beside_a_loss_that_is_infinite_is_none() -> None:
    split = Split(torch.full((4, 2), 1e30), torch.zeros(4, 2))
    found = evaluate(Squared(), nn.Identity(), split)
    assert math.isinf(found.loss) and math.isnan(found.score) and found.unknown is None


def test_a_model_that_gives_other_than_a_tensor_in_evaluation_is_refused() -> None:
    with pytest.raises(ConfigError, match="returns a tuple in evaluation mode"):
        evaluate(CrossEntropy(), nn.GRU(6, 4), Split(torch.randn(3, 6), torch.zeros(3, dtype=torch.int64)))


@pytest.mark.gpu
def test_evaluation_on_the_gpu_equals_that_on_the_cpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    split, model = Split(torch.randn(10, 6), torch.randint(4, (10,))), nn.Linear(6, 4)
    cpu = evaluate(CrossEntropy(), model, split, 4)
    assert evaluate(CrossEntropy(), model.cuda(), split, 4, "cuda").loss == pytest.approx(cpu.loss, rel=1e-4)


# -- hinge


@pytest.mark.parametrize("leading", [(7,), (5, 3)], ids=["labels", "tokens"])
def test_the_hinge_loss_and_its_gradient_are_those_of_crammer_and_singer(leading: tuple[int, ...]) -> None:
    """One prediction after another: the gradient is +1 at the strongest wrong class and -1 at the right one."""
    outputs, targets = 2 * torch.randn(*leading, 4), torch.randint(4, leading)
    leaf = outputs.clone().requires_grad_()
    loss = Hinge().loss(leaf, targets)
    loss.backward()
    total, rows, count = 0.0, [], targets.numel()
    for f, y in zip(outputs.reshape(-1, 4).tolist(), targets.flatten().tolist(), strict=True):
        margin, r = max((1 + f[r] - f[y], r) for r in range(4) if r != y)
        row = [0.0] * 4
        if margin > 0:
            total, row[r], row[y] = total + margin, 1 / count, -1 / count
        rows.append(row)
    assert loss.item() == pytest.approx(total / count, rel=1e-5)
    assert leaf.grad is not None
    assert torch.allclose(leaf.grad.reshape(-1, 4), torch.tensor(rows), atol=1e-6)
    assert sum(any(row) for row in rows) > 0, "no margin was violated: nothing was tested"


def test_two_classes_by_the_hinge_loss_are_the_ordinary_support_vector_machine() -> None:
    """With f = (-s, s) / 2, it is max(0, 1 - y s) for y = -1 or 1."""
    s, y = 2 * torch.randn(50), torch.randint(2, (50,))
    outputs = torch.stack([-s, s], dim=1) / 2
    ordinary = float((1 - (2 * y - 1) * s).clamp(min=0).mean())
    assert float(Hinge().loss(outputs, y)) == pytest.approx(ordinary, rel=1e-5)
    twice = Hinge("one_vs_rest").loss(torch.stack([-s, s], dim=1), y)  # the machine and its mirror image
    assert float(twice) == pytest.approx(2 * ordinary, rel=1e-5)


@pytest.mark.parametrize("leading", [(7,), (5, 3)], ids=["labels", "tokens"])
@pytest.mark.parametrize(("task", "power"), [(Hinge("one_vs_rest"), 1), (SquaredHinge(), 2)], ids=["hinge", "squared"])
def test_one_against_the_rest_adds_up_a_two_class_machine_for_each_class(
    task: Task, power: int, leading: tuple[int, ...]
) -> None:
    """One prediction and one class after another, with the gradient of each output."""
    outputs, targets = 2 * torch.randn(*leading, 4), torch.randint(4, leading)
    leaf = outputs.clone().requires_grad_()
    loss = task.loss(leaf, targets)
    loss.backward()
    total, rows, count = 0.0, [], targets.numel()
    for f, y in zip(outputs.reshape(-1, 4).tolist(), targets.flatten().tolist(), strict=True):
        rows.append([0.0] * 4)
        for r in range(4):
            sign = 1 if r == y else -1
            missed = 1 - sign * f[r]
            if missed > 0:
                total += missed**power
                rows[-1][r] = -sign * power * missed ** (power - 1) / count
    assert loss.item() == pytest.approx(total / count, rel=1e-5)
    assert leaf.grad is not None
    assert torch.allclose(leaf.grad.reshape(-1, 4), torch.tensor(rows), atol=1e-6)
    assert any(0 in row for row in rows) and any(row[r] for row in rows for r in range(4)), "nothing was tested"


# -- squared


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3)])
def test_the_squared_loss_is_the_mean_over_samples_and_outputs_and_r2_is_that_of_scikit_learn(
    shape: tuple[int, ...],
) -> None:
    from sklearn.metrics import r2_score

    targets = torch.randn(20, *shape) + 3
    wanted = targets.reshape(20, -1)
    model = nn.Linear(5, wanted.shape[1])
    split = Split(torch.randn(20, 5), targets)
    outputs = model(split.inputs).detach()
    evaluation = evaluate(Squared(), model, split, batch_size=7)
    assert evaluation.loss == pytest.approx(float(((outputs - wanted) ** 2).mean()), rel=1e-5)
    assert evaluation.score == pytest.approx(r2_score(wanted.numpy(), outputs.numpy()), rel=1e-5)


@pytest.mark.parametrize(("error", "score"), [(0.0, 1.0), (0.5, 0.0)])
def test_r2_of_equal_targets_is_one_where_they_are_met_and_else_zero(error: float, score: float) -> None:
    targets = torch.full((6,), 3.0)
    metric = RSquared()
    assert metric.score(metric.tally(targets[:, None] + error, targets), targets) == score


def test_the_mean_of_the_targets_has_an_r2_of_zero_and_the_targets_themselves_of_one() -> None:
    y = torch.from_numpy(np.random.default_rng(0).normal(100, 5, 50)).float()
    metric = RSquared()
    for outputs, score in ((y.mean().expand(50, 1), 0.0), (y[:, None], 1.0)):
        assert metric.score(metric.tally(outputs, y), y) == pytest.approx(score, abs=1e-6)


# -- every task

SOME = [CrossEntropy(), Hinge(), SquaredHinge(), Squared()]
each_task = pytest.mark.parametrize("task", SOME, ids=lambda task: type(task).__name__)

LABELS = DataSpec((6,), torch.float32, (), 4, 10, 5)
NUMBERS = DataSpec((6,), torch.float32, (2,), train_size=10, test_size=5, target_dtype=torch.float32)


@each_task
def test_a_task_takes_its_own_targets_alone_and_a_model_of_as_many_outputs(task: Task) -> None:
    own, other = (LABELS, NUMBERS) if task.targets == "labels" else (NUMBERS, LABELS)
    task.check_data("mine", "its", own)
    said = r"task=mine: learns \w+, and the targets of data=its are \w+ .* Choose data\.kind=(\w+), .*task=\w+"
    with pytest.raises(ValueError, match=said) as caught:
        task.check_data("mine", "its", other)
    assert getattr(caught.value, "exit_code", None) == 2
    assert f"data.kind={task.targets}" in str(caught.value)
    width = own.outputs
    assert task.outputs(own) == (width,)
    assert task.accepts(torch.zeros(3, width), own)
    assert task.accepts(torch.zeros(3, width + 1), own) is (task.targets == "labels")
    for wrong in (torch.zeros(3, width - 1), torch.zeros(3), torch.zeros(()), torch.zeros(3, 1, width)):
        assert not task.accepts(wrong, own)


def test_scores_with_the_classes_before_the_pixels_are_refused_where_rows_are_as_wide_as_there_are_classes() -> None:
    """[n, classes, height, width], as torch's loss takes them: scores of other pixels, and as many."""
    pixels = DataSpec((6,), torch.float32, (2, 3), 3, 10, 5)
    assert CrossEntropy().accepts(torch.zeros(4, 2, 3, 3), pixels)
    assert not CrossEntropy().accepts(torch.zeros(4, 3, 2, 3), pixels)


@each_task
def test_the_loss_of_a_batch_is_the_mean_of_its_parts_weighted_by_their_samples(task: Task) -> None:
    """What replicas, micro-batches and evaluation all rest on."""
    outputs, labels, numbers = torch.randn(10, 4), torch.randint(4, (10,)), torch.randn(10, 4)
    targets = labels if task.targets == "labels" else numbers
    parts = sum(
        float(task.loss(f, y)) * len(f) / 10 for f, y in zip(outputs.split([7, 3]), targets.split([7, 3]), strict=True)
    )
    assert math.isclose(float(task.loss(outputs, targets)), parts, rel_tol=1e-5)
    assert task.loss(outputs.to("meta"), targets.to("meta")).shape == ()


# -- yes or no, and Huber's


@pytest.mark.parametrize("shape", [(), (3,)])
def test_the_binary_loss_is_minus_the_log_likelihood_of_each_answer(shape: tuple[int, ...]) -> None:
    y = torch.rand(9, *shape).round()
    f = torch.randn(9, math.prod(shape))
    total = 0.0
    for logit, answer in zip(f.flatten().tolist(), y.flatten().tolist(), strict=True):
        yes = 1 / (1 + math.exp(-logit))
        total -= 3 * math.log(yes) if answer else math.log(1 - yes)
    assert float(BinaryCrossEntropy(3.0).loss(f, y)) == pytest.approx(total / y.numel(), rel=1e-5)
    model = nn.Linear(4, math.prod(shape))
    split = Split(torch.randn(9, 4), y)
    right = (model(split.inputs).sigmoid().round() == y.view(9, -1)).double().mean()
    assert evaluate(BinaryCrossEntropy(), model, split, 4).score == pytest.approx(float(right))


def test_an_answer_is_yes_above_0_and_a_target_above_a_half() -> None:
    outputs, targets = torch.tensor([[0.0], [0.0], [1.0], [1.0]]), torch.tensor([0.0, 1.0, 0.5, 0.6])
    assert int(BinaryAccuracy().tally(outputs, targets)) == 2, "a logit of 0 says no, and so does 1/2"


def test_the_binary_task_takes_targets_from_0_to_1_alone() -> None:
    BinaryCrossEntropy().check_targets("data=x", torch.tensor([0.0, 0.3, 1.0]))
    with pytest.raises(ConfigError, match="targets from 0 to 2; task=binary learns those from 0 to 1"):
        BinaryCrossEntropy().check_targets("data=x", torch.tensor([0.0, 2.0]))


def test_hubers_loss_is_squared_up_to_delta_and_absolute_beyond() -> None:
    errors = torch.tensor([0.5, -1.5, 4.0])
    each = Huber(2.0).each(errors[:, None], torch.zeros(3))
    assert each.tolist() == pytest.approx([0.125, 1.125, 2.0 * (4.0 - 1.0)])
    assert float(Huber(2.0).loss(errors[:, None], torch.zeros(3))) == pytest.approx(float(each.mean()))


# -- of weighted data


TASKS = {
    CrossEntropy(): torch.randint(4, (11,)),
    Hinge(): torch.randint(4, (11,)),
    Hinge("one_vs_rest"): torch.randint(4, (11,)),
    SquaredHinge(): torch.randint(4, (11,)),
    Squared(): torch.randn(11, 4),
    Huber(): torch.randn(11, 4),
    BinaryCrossEntropy(): torch.rand(11, 4).round(),
}


@pytest.mark.parametrize(("task", "targets"), TASKS.items(), ids=[type(task).__name__ for task in TASKS])
def test_a_weight_counts_as_so_many_copies_of_a_target_in_the_loss_and_in_the_metric(
    task: Task, targets: Tensor
) -> None:
    """Weights are whole numbers here: 0 leaves a sample out."""
    copies = torch.arange(11) % 3
    model, inputs = nn.Linear(6, 4), torch.randn(11, 6)
    many = Split(inputs.repeat_interleave(copies, 0), targets.repeat_interleave(copies, 0))
    weighted = evaluate(task, model, Split(inputs, targets, copies.float()), 4)
    copied = evaluate(task, model, many, 4)
    assert weighted.loss == pytest.approx(copied.loss, rel=1e-5)
    assert weighted.score == pytest.approx(copied.score, rel=1e-5)
    outputs = model(inputs)
    torch.testing.assert_close(task.each(outputs, targets).mean(), task.loss(outputs, targets))
    mean_one = (copies / copies.double().mean()).view(-1, *[1] * (targets.dim() - 1)).expand(targets.shape)
    given = Fields({"targets": targets, "weights": mean_one})
    spec = DataSpec(target_shape=(4,), weights=True)
    torch.testing.assert_close(task.function(spec)(outputs, given).item(), copied.loss, rtol=1e-4, atol=1e-6)


def test_r2_leaves_masked_targets_out_of_each_output() -> None:
    y, f = torch.randn(30, 2), torch.randn(30, 2)
    mask = torch.rand(30, 2) < 0.5
    metric = RSquared()
    own = [metric.score(metric.tally(f[mask[:, i], i : i + 1], y[mask[:, i], i]), y[mask[:, i], i]) for i in range(2)]
    assert metric.score(metric.tally(f, y, mask), y, mask) == pytest.approx(sum(own) / 2)
    mask[:, 1] = False
    assert metric.score(metric.tally(f, y, mask), y, mask) == pytest.approx(own[0])
    for each, outputs, targets in ((Accuracy(), f, y.argmax(1)), (BinaryAccuracy(), f, (y > 0).float())):
        chosen = torch.ones(targets.shape)
        assert each.score(each.tally(outputs, targets, chosen), targets, chosen) == each.score(
            each.tally(outputs, targets), targets
        )


@pytest.mark.parametrize("leading", [(7,), (5, 3)], ids=["labels", "tokens"])
def test_training_smooths_labels_as_torch_does_and_evaluation_does_not(leading: tuple[int, ...]) -> None:
    outputs, targets = torch.randn(*leading, 4), torch.randint(4, leading)
    task, spec = CrossEntropy(label_smoothing=0.3), DataSpec((6,), classes=4, target_shape=leading[1:])
    flat, labels = outputs.view(-1, 4), targets.flatten()
    trained = task.function(spec)(outputs, targets)
    assert torch.equal(trained, nn.CrossEntropyLoss(label_smoothing=0.3)(flat, labels))
    logs = flat.double().log_softmax(-1)
    by_formula = (0.7 * -logs[range(len(labels)), labels] + 0.3 / 4 * -logs.sum(-1)).mean()
    assert float(trained) == pytest.approx(float(by_formula), rel=1e-5)
    assert torch.equal(task.loss(outputs, targets), cross_entropy(outputs, targets)), "which an evaluation reports"


def test_smoothed_losses_of_weighted_data_are_weighed_one_by_one() -> None:
    outputs, targets, weights = torch.randn(7, 4), torch.randint(4, (7,)), torch.rand(7)
    task, spec = CrossEntropy(label_smoothing=0.3), DataSpec((6,), classes=4, weights=True)
    losses = nn.functional.cross_entropy(outputs, targets, reduction="none", label_smoothing=0.3)
    told = task.function(spec)(outputs, Fields({"targets": targets, "weights": weights}))
    torch.testing.assert_close(told, (losses * weights).mean())


def test_a_smoothed_loss_is_not_said_to_be_the_mean_cross_entropy() -> None:
    """Else a strategy would compute the plain one of logits in pieces."""
    spec = DataSpec((6,), classes=4)
    assert is_mean_cross_entropy(CrossEntropy().function(spec))
    assert not is_mean_cross_entropy(CrossEntropy(label_smoothing=0.1).function(spec))


class Guessed(nn.Module):
    """Its logits are no scores: the class itself, or scores with the samples last."""

    def __init__(self, transposes: bool) -> None:
        super().__init__()
        self.transposes = transposes

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": inputs.mean(), "logits": inputs.t() if self.transposes else inputs.argmax(1)}


@pytest.mark.parametrize("transposes", [True, False])
def test_logits_of_a_model_that_are_no_scores_of_each_label_are_refused(transposes: bool) -> None:
    inputs: dict[str | int, Tensor] = {0: torch.randn(3, 2), "labels": torch.tensor([0, 1, 1])}
    split = Split(inputs, torch.tensor([0, 1, 1]))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match=r"`logits` are \[.*\] for labels \[3\]"):
        evaluate(OwnLoss(), Guessed(transposes), split)


@pytest.mark.parametrize("task", [OwnLoss(), CrossEntropy()])
def test_a_weighted_loss_has_the_dtype_of_the_model(task: Task) -> None:
    spec, labels = replace(LABELS, weights=True), torch.tensor([0, 3])
    outputs = torch.tensor(2.0) if isinstance(task, OwnLoss) else torch.randn(2, 4)
    targets = Fields({"targets": labels, "weights": torch.ones(2, dtype=torch.float64)})
    assert task.function(spec)(outputs, targets).dtype == torch.float32


class Scored(Accuracy):
    """Returns what `tally` and `score` make of its own."""

    def __init__(self, tally: Any = None, score: Any = None) -> None:
        self._tally, self._score = tally, score

    def tally(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
        made = super().tally(outputs, targets, weights)
        return made if self._tally is None else self._tally(outputs)

    def score(self, tally: Tensor, targets: Tensor, weights: Tensor | None = None) -> float:
        made = super().score(tally, targets, weights)
        return made if self._score is None else self._score(made)


def scored(**made: Any) -> float:
    task = CrossEntropy()
    task.metric = Scored(**made)
    return evaluate(task, nn.Linear(3, 2), Split(torch.randn(5, 3), torch.tensor([0, 1, 0, 1, 1])), batch_size=2).score


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (
            {"score": lambda value: torch.full((3,), value)},
            r"score of .*Scored returns a tensor \[3\]; must",
        ),
        ({"score": lambda value: None}, "score of .*Scored returns an object of NoneType"),
        ({"score": str}, "score of .*Scored returns an object of str"),
        ({"tally": lambda outputs: 1.0}, "tally of .*Scored returns an object of float; must return a tensor"),
        ({"tally": lambda outputs: outputs[:, 0]}, r"tally of .*Scored returns a tensor \[1\], and \[2\] before"),
    ],
)
def test_a_metric_that_is_no_number_is_refused_by_its_class(made: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        scored(**made)


@pytest.mark.parametrize("kind", [torch.tensor, lambda value: torch.tensor([value]), np.float32])
def test_a_metric_may_be_a_number_in_a_tensor_or_of_numpy(kind: Any) -> None:
    assert type(scored(score=kind)) is float
