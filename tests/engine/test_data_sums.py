"""A run is not resumed once what it is trained on has changed."""

import os
from math import prod
from pathlib import Path

import pytest

from paceline import engine
from paceline.conf.errors import ConfigError
from paceline.engine.config.data_sums import check_data, sums_of
from paceline.tasks.base import Data
from paceline.tasks.data.digits import Digits
from paceline.tasks.data.fashion_mnist import SHA256, TRAIN_LABELS, FashionMNIST
from paceline.tasks.data.svmlight import SVMLight
from paceline.tasks.data.text import Text
from paceline.tasks.errors import MissingDataError
from paceline.tracking.run_directory import RunDirectory


def all_read_from(folder: Path) -> list[Data]:
    for name in ("a", "b", *SHA256):
        (folder / name).write_text(name)
    return [Text(str(folder / "a")), SVMLight(str(folder / "a"), str(folder / "b")), FashionMNIST(str(folder))]


def test_whichever_file_of_data_changes_is_named_and_refused(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "mine")
    for data in all_read_from(tmp_path):
        known = sums_of(data)
        check_data(run, sums_of(data), known)
        for path in data.files():
            before, times = path.read_bytes(), path.stat()
            path.write_bytes(bytes([before[0] ^ 1]) + before[1:])
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # neither its size nor its time tells
            with pytest.raises(ConfigError, match=rf"^--resume mine: {path} is not what the run began with"):
                check_data(run, sums_of(data), known)
            path.write_bytes(before)
        assert len(known) == len(data.files()) > 0


def test_files_that_were_moved_are_the_same_data_and_a_missing_one_is_told(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    here, there = all_read_from(tmp_path), all_read_from(tmp_path / "there")
    for before, after in zip(here, there, strict=True):
        check_data(RunDirectory(tmp_path), sums_of(after), sums_of(before))
    (tmp_path / "a").unlink()
    with pytest.raises(MissingDataError, match=f"{tmp_path}/a cannot be read"):
        sums_of(here[0])
    os.mkfifo(tmp_path / "a")
    with pytest.raises(ConfigError, match=f"{tmp_path}/a is a directory, a pipe"):
        sums_of(here[0])


def test_a_checkpoint_of_before_there_were_sums_of_data_goes_on_and_one_with_fewer_files_does_not(
    tmp_path: Path,
) -> None:
    text, samples, _ = all_read_from(tmp_path)
    check_data(RunDirectory(tmp_path), sums_of(text), None)
    for now, known in ((text, samples), (samples, text)):
        with pytest.raises(ConfigError, match="is not what the run began with"):
            check_data(RunDirectory(tmp_path), sums_of(now), sums_of(known))
    with pytest.raises(ConfigError, match=f"{tmp_path}/a is not what"):
        check_data(RunDirectory(tmp_path), {}, sums_of(text))


def test_the_images_of_a_package_are_among_what_is_looked_at() -> None:
    assert [path.name for path in Digits().files()] == ["digits.csv.gz"]


def write_images(folder: Path) -> Path:
    """Sixty-four of each split; returns the labels that are trained on."""
    for name in SHA256:
        shape = (64, 28, 28) if "images" in name else (64,)
        header = bytes([0, 0, 8, len(shape)]) + b"".join(size.to_bytes(4) for size in shape)
        (folder / name).write_bytes(header + bytes(i % 10 for i in range(prod(shape))))
    return folder / TRAIN_LABELS


@pytest.mark.slow
def test_a_run_whose_data_were_edited_is_refused_before_its_summary_is_touched(tmp_path: Path, fork_server) -> None:
    file, root = write_images(tmp_path), tmp_path / "runs"
    chosen = ["data=fashion_mnist", f"data.root={tmp_path}", "model.hidden=[16]", "hardware.workers=2"]
    small = ["tracking=none", "batch_size=16", "steps=4", "checkpoint.every_steps=2"]
    made = engine.run([*chosen, *small], name="mine", root=root, quiet=True)
    whole, summary = file.read_bytes(), (made.path / "summary.json").read_text()
    file.write_bytes(whole[:-1] + bytes([0]))
    with pytest.raises(
        ConfigError, match=rf"{file} is not what the run began with .*to train anew .*weights="
    ) as caught:
        engine.run(["steps=6"], resume="mine", root=root, quiet=True)
    assert caught.value.exit_code == 2 and (made.path / "summary.json").read_text() == summary
    file.write_bytes(whole)
    assert engine.run(["steps=6"], resume="mine", root=root, quiet=True) is not None
