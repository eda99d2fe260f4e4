import pytest
import torch

from paceline.batches import lone
from paceline.tasks.base import Split
from paceline.tasks.checks import check_spec, load_checked
from paceline.tasks.data import files
from paceline.tasks.data.diabetes import Diabetes
from paceline.tasks.errors import MissingDataError


def test_every_patient_is_in_one_split_and_all_is_standardised() -> None:
    from sklearn.datasets import load_diabetes

    check_spec("diabetes", Diabetes().spec)
    train, test = load_checked("diabetes", Diabetes())
    assert (len(train), len(test)) == (353, 89)
    assert isinstance(train, Split) and isinstance(test, Split)
    inputs, targets = torch.cat([lone(train.samples), lone(test.samples)]), torch.cat([train.targets, test.targets])
    for values in (inputs, targets):
        assert float(values.mean(0).abs().max()) < 1e-3
        assert float((values.var(0, correction=0) - 1).abs().max()) < 1e-2
    measured, progression = load_diabetes(return_X_y=True)
    ours = torch.cat([inputs / 442**0.5, (targets * 77.0 + 152.1)[:, None]], dim=1)
    theirs = torch.cat([torch.from_numpy(measured), torch.from_numpy(progression)[:, None]], dim=1).float()
    order, its = (torch.from_numpy(rows[:, :3].double().numpy().copy().round(4)) for rows in (ours, theirs))
    assert sorted(map(tuple, order.tolist())) == sorted(map(tuple, its.tolist()))
    assert torch.allclose(ours.sum(0), theirs.sum(0), rtol=1e-4, atol=1e-3)


def test_a_limit_leaves_the_test_split_as_it_is() -> None:
    train, test = Diabetes(limit=20).load()
    whole, same = Diabetes().load()
    assert torch.equal(train.targets, whole.targets[:20]) and torch.equal(lone(test.samples), lone(same.samples))
    assert Diabetes(limit=20).spec.train_size == 20


def test_its_files_are_there_to_be_summed_and_without_scikit_learn_the_message_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert [file.name for file in Diabetes().files()] == ["diabetes_data_raw.csv.gz", "diabetes_target.csv.gz"]
    monkeypatch.setattr(files, "find_spec", lambda name: None)
    assert Diabetes().found() is None and Diabetes().files() == ()
    with pytest.raises(MissingDataError, match="pip install scikit-learn") as caught:
        Diabetes().load()
    assert caught.value.exit_code == 3
