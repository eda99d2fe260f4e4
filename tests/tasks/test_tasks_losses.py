import pytest
import torch
from torch import Tensor, nn

from paceline.tasks.base import Split
from paceline.tasks.losses import correct, cross_entropy, evaluate


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
    assert int(correct(outputs, targets)) == round(accuracy * targets.numel())


@pytest.mark.parametrize("batch_size", [1, 4, 10, 512])
@pytest.mark.parametrize("context", [(), (3,)], ids=["labels", "tokens"])
def test_evaluation_equals_the_hand_computation_whatever_the_last_batch(
    batch_size: int, context: tuple[int, ...]
) -> None:
    split = Split(torch.randn(10, *context, 6), torch.randint(4, (10, *context)))
    model = nn.Linear(6, 4)
    loss, accuracy = by_hand(model(split.inputs).detach(), split.targets)
    evaluation = evaluate(model, split, batch_size)
    assert evaluation.loss == pytest.approx(loss, rel=1e-5)
    assert evaluation.accuracy == pytest.approx(accuracy)
    assert evaluation.samples == 10


class Recorder(nn.Linear):
    """Notes the modes under which it is called."""

    def forward(self, input: Tensor) -> Tensor:
        self.modes = (self.training, torch.is_grad_enabled())
        return super().forward(input)


@pytest.mark.parametrize("training", [True, False])
def test_evaluation_runs_in_evaluation_mode_without_gradients_and_puts_the_mode_back(training: bool) -> None:
    model = Recorder(6, 4).train(training)
    evaluate(model, Split(torch.randn(3, 6), torch.randint(4, (3,))))
    assert model.modes == (False, False)
    assert model.training is training and torch.is_grad_enabled()


def test_the_training_mode_comes_back_after_a_failure_too() -> None:
    model = nn.Linear(6, 4)
    with pytest.raises(RuntimeError):
        evaluate(model, Split(torch.randn(3, 5), torch.randint(4, (3,))))
    assert model.training


@pytest.mark.gpu
def test_evaluation_on_the_gpu_equals_that_on_the_cpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    split, model = Split(torch.randn(10, 6), torch.randint(4, (10,))), nn.Linear(6, 4)
    cpu = evaluate(model, split, 4)
    assert evaluate(model.cuda(), split, 4, "cuda").loss == pytest.approx(cpu.loss, rel=1e-4)
