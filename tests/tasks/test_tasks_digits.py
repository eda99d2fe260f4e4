import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.batches import lone
from paceline.tasks.data import digits, files
from paceline.tasks.data.digits import Digits
from paceline.tasks.errors import MissingDataError
from paceline.tasks.evaluation import evaluate
from paceline.tasks.losses.cross_entropy import CrossEntropy, cross_entropy
from paceline.tasks.models.logistic_regression import LogisticRegression


def test_what_is_loaded_has_the_shapes_that_the_spec_tells() -> None:
    spec, (train, test) = Digits().spec, Digits().load()
    assert (len(train), len(test)) == (spec.train_size, spec.test_size) == (1437, 360)
    assert lone(train.samples).shape[1:] == lone(test.samples).shape[1:] == spec.input_shape
    assert lone(train.samples).dtype == spec.input_dtype
    everything = torch.cat([lone(train.samples), lone(test.samples)])
    assert everything.mean().abs() < 1e-3 and (everything.std() - 1).abs() < 1e-3
    assert set(train.targets.tolist()) == set(test.targets.tolist()) == set(range(spec.classes))


def test_the_split_is_the_same_whatever_the_seed_and_the_machine() -> None:
    sums = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        sums.append([hashlib.sha256(part.targets.numpy().tobytes()).hexdigest()[:16] for part in Digits().load()])
    assert sums == [["b62c5684e8251c8e", "5cdf6153e06c5478"]] * 2


def test_the_two_splits_share_no_image_and_together_are_all_of_them() -> None:
    from sklearn.datasets import load_digits

    def key(pixels: torch.Tensor, label: torch.Tensor) -> tuple[float, ...]:
        return (*(pixels.flatten() * digits.DEVIATION + digits.MEAN).round().tolist(), float(label))

    train, test = ([key(*pair) for pair in zip(lone(s.samples), s.targets, strict=True)] for s in Digits().load())
    pixels, labels = load_digits(return_X_y=True)
    assert sorted(train + test) == sorted((*row.tolist(), float(y)) for row, y in zip(pixels, labels, strict=True))
    assert not set(train) & set(test)


def test_a_limit_takes_the_first_training_samples_and_leaves_the_test_split() -> None:
    (few, test), (all_, whole_test) = Digits(limit=20).load(), Digits().load()
    assert Digits(limit=20).spec.train_size == len(few) == 20
    assert torch.equal(lone(few.samples), lone(all_.samples)[:20]) and torch.equal(few.targets, all_.targets[:20])
    assert len(test) == len(whole_test) == Digits(limit=20).spec.test_size
    assert Digits(limit=5000).spec.train_size == len(Digits(limit=5000).load()[0]) == 1437


def test_the_file_is_read_once_and_nobody_can_change_what_others_get(monkeypatch: pytest.MonkeyPatch) -> None:
    first: Any = Digits().load()
    wanted = [(split.inputs.clone(), split.targets.clone()) for split in first]
    for split in first:
        split.inputs.zero_()
        split.targets.zero_()
    monkeypatch.setattr("sklearn.datasets.load_digits", None)
    again: Any = Digits().load()
    for split, (inputs, targets) in zip(again, wanted, strict=True):
        assert torch.equal(split.inputs, inputs) and torch.equal(split.targets, targets)


def test_logistic_regression_learns_them() -> None:
    torch.manual_seed(0)
    train, test = Digits().load()
    model = LogisticRegression(Digits().spec)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(60):
        optimizer.zero_grad()
        cross_entropy(model(train.inputs), train.targets).backward()
        optimizer.step()
    assert evaluate(CrossEntropy(), model, test).score > 0.94


def test_without_scikit_learn_the_message_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Path(Digits().found() or "").is_dir()
    monkeypatch.setattr(files, "find_spec", lambda name: None)
    assert Digits().found() is None
    assert Digits().spec.train_size == 1437
    with pytest.raises(MissingDataError, match="pip install scikit-learn") as caught:
        Digits().load()
    assert caught.value.exit_code == 3


@pytest.mark.slow
def test_importing_the_tasks_does_not_import_scikit_learn() -> None:
    modules = [
        "data.digits",
        "data.fashion_mnist",
        "data.text",
        "data.diabetes",
        "losses",
        "evaluation",
        "partition",
        "models.gpt",
        "models.cnn",
    ]
    lines = [f"import paceline.tasks.{module}" for module in modules]
    lines.append("import sys; print([name for name in ('sklearn', 'scipy') if name in sys.modules])")
    result = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
