"""The synthetic sparse data against what they are said to be, and files in the svmlight format."""

import bz2
import gzip
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from paceline.batches import lone
from paceline.conf.errors import ConfigError
from paceline.tasks.base import Split
from paceline.tasks.data.sparse import Sparse
from paceline.tasks.data.svmlight import SVMLight
from paceline.tasks.errors import CorruptDataError, MissingDataError


def features_of(split: Split) -> Tensor:
    """[n, nonzeros] int64"""
    return lone(split.samples)[:, 0].long()


# -- synthetic


def test_every_sample_has_so_many_different_features_of_value_one() -> None:
    for skew in (0.0, 1.0, 2.0):
        data = Sparse(features=101, nonzeros=50, samples=40, skew=skew)
        for split in data.load():
            assert lone(split.samples).shape[1:] == data.spec.input_shape == (2, 50)
            assert lone(split.samples).dtype == data.spec.input_dtype
            assert bool((lone(split.samples)[:, 1] == 1).all())
            names = features_of(split)
            assert torch.equal(names.double(), lone(split.samples)[:, 0])
            assert int(names.min()) >= 0 and data.spec.features == 101 and int(names.max()) < 101
            assert all(len(set(row)) == 50 for row in names.tolist())


def test_sizes_are_known_beforehand() -> None:
    for samples in (1, 7, 500):
        data = Sparse(features=50, nonzeros=3, samples=samples)
        train, test = data.load()
        assert (data.spec.train_size, data.spec.test_size) == (len(train), len(test)) == (samples, max(samples // 5, 1))


def test_the_seed_decides_the_data() -> None:
    def inputs(seed: int) -> Tensor:
        return lone(Sparse(features=500, nonzeros=5, samples=20, seed=seed).load()[0].samples)

    assert torch.equal(inputs(1), inputs(1))
    assert not torch.equal(inputs(1), inputs(2))


def test_training_and_test_samples_are_different_draws_of_the_same() -> None:
    train, test = Sparse(features=200, nonzeros=10, samples=1000).load()
    assert not torch.equal(lone(train.samples)[: len(test)], lone(test.samples))
    shares = [features_of(split).flatten().bincount(minlength=200) / len(split) for split in (train, test)]
    assert float((shares[0] - shares[1]).abs().max()) < 0.12  # of about 0.05 each, 200 samples


@pytest.mark.parametrize("noise", [0.0, 0.2, 0.5])
def test_a_feature_leans_to_its_class_but_for_the_noise(noise: float) -> None:
    """Two features, one non-zero: the class's own with probability 1 - noise."""
    train, _ = Sparse(features=2, nonzeros=1, samples=4000, noise=noise).load()
    mine = features_of(train).flatten()
    agreement = float((mine == train.targets).double().mean())
    assert abs(max(agreement, 1 - agreement) - (1 - noise)) < 0.03  # 4 deviations


@pytest.mark.parametrize("skew", [0.0, 0.5, 1.0])
def test_popularity_falls_as_a_power_of_the_rank(skew: float) -> None:
    """Pairs of features, from the most popular on, in proportion to (i + 1)^-skew."""
    train, _ = Sparse(features=40, nonzeros=1, samples=40_000, noise=0.5, skew=skew).load()
    counts = features_of(train).flatten().bincount(minlength=40).sort(descending=True).values.double()
    expected = torch.arange(1, 21, dtype=torch.float64).pow(-skew).repeat_interleave(2)
    expected *= 40_000 / expected.sum()
    assert float(((counts - expected).abs() / expected.sqrt()).max()) < 5


def test_popular_features_are_anywhere() -> None:
    train, _ = Sparse(features=1000, nonzeros=1, samples=5000, skew=2.0).load()
    popular = features_of(train).flatten().bincount(minlength=1000).topk(6).indices
    assert int(popular.max() - popular.min()) > 300


def test_both_classes_are_there_alike() -> None:
    train, _ = Sparse(features=100, nonzeros=3, samples=4000).load()
    assert abs(float(train.targets.double().mean()) - 0.5) < 0.04


@pytest.mark.parametrize(("features", "nonzeros"), [(2, 2), (99, 50), (10, 6), (3, 2)])
def test_samples_with_more_than_half_of_the_features_are_refused(features: int, nonzeros: int) -> None:
    with pytest.raises(ConfigError, match=f"data.nonzeros={nonzeros}.*data.features={features}") as caught:
        Sparse(features=features, nonzeros=nonzeros)
    assert caught.value.exit_code == 2


# -- files

ROWS = ["+1 2:0.5 7:2", "-1 1:1", "+1", "-1 3:-1.5 4:0.25 9:4", "+1 9:1 # a comment", "-1 5:3"]


def write(path: Path, rows: list[str]) -> Path:
    text = ("\n".join(rows) + "\n").encode()
    packed = {".gz": gzip.compress, ".bz2": bz2.compress}.get(path.suffix, lambda content: content)(text)
    path.write_bytes(packed)
    return path


def dense(split: Split, features: int) -> Tensor:
    """[n, features]: what the pairs add up to."""
    rows = torch.zeros(len(split), features, dtype=torch.float64)
    return rows.scatter_add_(1, features_of(split), lone(split.samples)[:, 1])


@pytest.mark.parametrize("suffix", ["", ".gz", ".bz2"])
def test_a_file_is_read_as_it_says(tmp_path: Path, suffix: str) -> None:
    train_path, test_path = write(tmp_path / f"a{suffix}", ROWS), write(tmp_path / f"b{suffix}", ROWS[:2])
    data = SVMLight(str(train_path), str(test_path), features=9, nonzeros=3)
    train, test = data.load()
    expected = torch.zeros(6, 9, dtype=torch.float64)
    for row, feature, value in [
        (0, 2, 0.5), (0, 7, 2), (1, 1, 1), (3, 3, -1.5), (3, 4, 0.25), (3, 9, 4), (4, 9, 1), (5, 5, 3)
    ]:  # fmt: skip
        expected[row, feature - 1] = value
    assert torch.equal(dense(train, 9), expected)
    assert train.targets.tolist() == [1, 0, 1, 0, 1, 0]
    assert torch.equal(dense(test, 9), expected[:2]) and test.targets.tolist() == [1, 0]
    assert lone(train.samples).shape[1:] == data.spec.input_shape == (2, 3)


def test_a_sample_names_no_features_but_its_own(tmp_path: Path) -> None:
    """So that nothing else is written to when it is trained on."""
    path = write(tmp_path / "a", ROWS)
    train, _ = SVMLight(str(path), str(path), nonzeros=8).load()
    assert [set(row) for row in features_of(train).tolist()] == [{1, 6}, {0}, {0}, {2, 3, 8}, {8}, {4}]


def test_without_a_file_for_test_a_fixed_fifth_is_held_back(tmp_path: Path) -> None:
    path = write(tmp_path / "a", [f"{i % 2} {i + 1}:1" for i in range(23)])
    train, test = SVMLight(str(path)).load()
    assert (len(train), len(test)) == (19, 4)
    taken = torch.cat([features_of(train)[:, 0], features_of(test)[:, 0]])
    assert sorted(taken.tolist()) == list(range(23))
    assert lone(test.samples)[:, 0, 0].tolist() != list(range(19, 23))  # not just the last ones
    assert torch.equal(lone(test.samples), lone(SVMLight(str(path)).load()[1].samples))
    assert torch.equal(train.targets, features_of(train)[:, 0] % 2)


def test_labels_are_numbered_in_the_order_of_their_values(tmp_path: Path) -> None:
    path = write(tmp_path / "a", ["7 1:1", "-2 1:1", "3 1:1", "3 1:1", "7 1:1"])
    train, _ = SVMLight(str(path), str(path), classes=3).load()
    assert train.targets.tolist() == [2, 0, 1, 1, 2]


def test_a_file_that_counts_from_zero_is_read_when_told_so(tmp_path: Path) -> None:
    path = write(tmp_path / "a", ["0 0:1 4:1", "1 1:1"])
    train, _ = SVMLight(str(path), str(path), features=5, zero_based=True).load()
    assert [set(row) for row in features_of(train).tolist()] == [{0, 4}, {1}]
    with pytest.raises(CorruptDataError):
        SVMLight(str(path), str(path)).load()


@pytest.mark.parametrize(
    ("knobs", "names"),
    [
        ({"features": 8}, "data.features=8: .* has 9"),
        ({"nonzeros": 2}, "data.nonzeros=2: .* has 3"),
        ({"classes": 2, "path": "three"}, "data.classes=2: .* has 3 different labels"),
        ({"path": "one"}, "has 1 different labels"),
        ({"path": "few"}, "of 2 samples, a fifth for test is none"),
    ],
)
def test_a_file_that_has_more_than_was_said_is_bad_configuration(tmp_path: Path, knobs: dict, names: str) -> None:
    write(tmp_path / "file", ROWS)
    write(tmp_path / "three", ["0 1:1", "1 1:1", "2 1:1"])
    write(tmp_path / "one", ["1 1:1"] * 10)
    write(tmp_path / "few", ["1 1:1", "0 1:1"])
    knobs = {**knobs, "path": str(tmp_path / knobs.get("path", "file"))}
    with pytest.raises(ConfigError, match=names) as caught:
        SVMLight(**knobs).load()
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    "row", ["1 1:x", "word 1:1", "1 2:1 1:1", "1 99999999999999999999999:1", "1 -1:1", "1 1", "\x00\x01"]
)
def test_what_is_not_in_the_format_is_corrupt(tmp_path: Path, row: str) -> None:
    path = write(tmp_path / "a", [*ROWS, row])
    with pytest.raises(CorruptDataError, match=f"{path}") as caught:
        SVMLight(str(path), str(path)).load()
    assert caught.value.exit_code == 7


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("1 2:1 5:nan", "feature 5 is NaN"),
        ("1 1:inf", "feature 1 is infinite"),
        ("1 2:-1e400 3:1", "feature 2 is infinite"),
        ("nan 1:1", "the label is NaN"),
        ("inf 1:1", "the label is infinite"),
    ],
)
def test_numbers_that_are_not_finite_are_named_with_their_row(tmp_path: Path, row: str, said: str) -> None:
    """Row 2 of the file has no features at all."""
    path = write(tmp_path / "a", [*ROWS[:3], row, *ROWS[3:]])
    for told in ((str(path), None), (str(write(tmp_path / "fine", ROWS)), str(path))):
        with pytest.raises(CorruptDataError, match=rf"a: {said} in row 3 \(from 0 on\)"):
            SVMLight(*told).load()


def test_a_damaged_archive_and_a_strange_test_label_are_corrupt(tmp_path: Path) -> None:
    whole = gzip.compress(b"1 1:1\n" * 1000)
    (tmp_path / "a.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CorruptDataError, match=r"a\.gz"):
        SVMLight(str(tmp_path / "a.gz")).load()
    train, test = write(tmp_path / "train", ROWS), write(tmp_path / "test", ["5 1:1"])
    with pytest.raises(CorruptDataError, match=r"test has a label 5 that .*train has not"):
        SVMLight(str(train), str(test)).load()


@pytest.mark.parametrize("text", [b"\0" * 2_000_000, b"1 1:1\n" * 30_000], ids=["one line", "many lines"])
@pytest.mark.parametrize("suffix", [".gz", ".bz2", ""])
def test_a_text_that_does_not_fit_into_memory_is_refused_before_it_is_kept(
    text: bytes, suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = {".gz": gzip.compress, ".bz2": bz2.compress, "": bytes}[suffix]
    (tmp_path / f"a{suffix}").write_bytes(packed(text))
    small, real = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 200}, os.sysconf
    monkeypatch.setattr(os, "sysconf", lambda name: small[name] if name in small else real(name))
    with pytest.raises(ConfigError, match=r"once it is unpacked, and this host has .*a file of fewer samples"):
        SVMLight(str(tmp_path / f"a{suffix}")).load()


def test_a_missing_file_is_told_by_its_name(tmp_path: Path) -> None:
    path = write(tmp_path / "here", ROWS)
    for use in (SVMLight.check_files, SVMLight.load):
        missing = SVMLight("/none")
        assert missing.found() is None
        with pytest.raises(MissingDataError, match=r"/none is not a file.*data.path") as caught:
            use(missing)
        assert caught.value.exit_code == 3
        with pytest.raises(ConfigError, match=r"^data\.path=null: .* data\.path=samples\.svm") as unsaid:
            use(SVMLight())
        assert unsaid.value.exit_code == 2 and SVMLight().found() is None
    with pytest.raises(MissingDataError, match="/there is not a file"):
        SVMLight(str(path), "/there").load()
    assert SVMLight(str(path)).found() == str(path)


def test_what_scikit_learn_writes_comes_back(tmp_path: Path) -> None:
    from sklearn.datasets import dump_svmlight_file

    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(30, 12)) * (rng.random((30, 12)) < 0.3)
    labels = rng.integers(2, size=30)
    dump_svmlight_file(matrix, labels, str(tmp_path / "a"), zero_based=False)
    train, _ = SVMLight(str(tmp_path / "a"), str(tmp_path / "a"), features=12, nonzeros=12).load()
    torch.testing.assert_close(dense(train, 12), torch.from_numpy(matrix), rtol=1e-12, atol=0)
    assert train.targets.tolist() == labels.tolist()
