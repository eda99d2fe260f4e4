"""`--config FILE`, and the line that repeats a run: both compose what the run was."""

import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from needs import needs_bash

from paceline.engine.compose import compose
from paceline.engine.config_file import with_file
from paceline.engine.errors import ConfigError
from paceline.engine.experiment import to_yaml
from paceline.engine.repeat import command_of, quoted
from paceline.tracking.redact import HIDDEN

TYPED = [
    [],
    ["sync=ssp", "sync.staleness=7", "optimizer.lr=1e-05", "model.hidden=[64,32]", "hardware.workers=4", "steps=20"],
    ["hardware=virtual", "hardware/network=wide_area", "hardware.workers=64", "stragglers=lognormal"],
    [
        "tracking.tags=[a,'b c','it is $HOME']",
        "tracking.mode=offline",
        "data.root='/with blank;rm'",
        "data=fashion_mnist",
    ],
    ["experiment=fashion_cnn", "compress=topk", "compress.ratio=0.5"],
]


def plain(overrides: list[str]) -> dict[str, Any]:
    return compose(overrides).model_dump()


@pytest.mark.parametrize("typed", TYPED, ids=" ".join)
def test_a_runs_own_file_and_its_command_compose_what_it_was(typed: list[str], tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(to_yaml(compose([*typed, "name=first"])))
    assert plain(with_file(file, []).overrides) == plain(typed)
    line, notes = command_of(yaml.safe_load(file.read_text()))
    assert notes == [] and "\n" not in line
    program, verb, *overrides = shlex.split(line)
    assert (program, verb) == ("paceline", "train") and plain(overrides) == plain(typed)


@needs_bash
def test_bash_reads_the_words_that_were_quoted(tmp_path: Path) -> None:
    words = ["a b", "it's", '$HOME `id` \\ "x"', "\x1b[31m\\'red'", "é\u202eü", "line\nnext", "*"]
    line = quoted(["printf", "%s\\0", *words])
    assert line.isprintable()
    done = subprocess.run(["bash", "-c", line], capture_output=True, timeout=60, check=True)
    assert done.stdout.decode().split("\0")[:-1] == words


def test_a_file_of_ones_own_may_nest_its_keys_or_dot_them(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "sync: {name: ssp, staleness: 3}\nmodel: cnn\ndata: fashion_mnist\noptimizer: {lr: 0.1}\n"
        "hardware.workers: 4\nevaluate:\n  every: 2\nname: mine\ntracking: {tags: [a]}\nexperiment: null\n"
    )
    assert with_file(file, []).overrides == [
        *("sync=ssp", "sync.staleness=3", "model=cnn", "data=fashion_mnist", "optimizer.lr=0.1", "hardware.workers=4"),
        *("evaluate.every=2", "name=mine", "tracking.tags=[a]"),
    ]


@pytest.mark.parametrize(
    ("given", "overrides"),
    [
        (["sync.staleness=9", "optimizer.lr=1"], ["sync=ssp", "sync.staleness=9", "optimizer.lr=1"]),
        (["sync=ssp"], ["sync=ssp", "sync.staleness=3", "optimizer.lr=0.1"]),
        (["sync=asp"], ["sync=asp", "optimizer.lr=0.1"]),
        (["optimizer=adam"], ["sync=ssp", "sync.staleness=3", "optimizer=adam"]),
    ],
    ids=lambda words: " ".join(words),
)
def test_overrides_win_and_another_choice_leaves_out_the_keys_of_the_former(
    given: list[str], overrides: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("sync: {name: ssp, staleness: 3}\noptimizer.lr: 0.1\nseed: 5\n")
    assert plain(with_file(file, given).overrides) == plain([*overrides, "seed=5"])


def test_another_cluster_keeps_the_number_of_workers_alone(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(to_yaml(compose(["hardware=virtual", "hardware.workers=6", "hardware.flops=1e8"])))
    assert plain(with_file(file, ["hardware=local"]).overrides) == plain(["hardware.workers=6"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sync: sspp\n", "sync=sspp: there is no such choice; did you mean ssp"),
        ("optimizer: {lrr: 1}\n", "optimizer.lrr: there is no such key; did you mean optimizer.lr"),
        ("batch_size: many\n", "batch_size='many': must be a valid integer"),
        ("sync: [a]\n", "sync=['a']: must be the name of a choice"),
        ("3: a\n", "'3': is no key"),
        ("a=b: 1\n", "'a=b': is no key"),
        ("hydra.run: a\n", "hydra.run=a: hydra's own settings"),
        ("- a\n", "must be a YAML mapping of keys to values"),
        ("a: [\n", "is not valid YAML"),
        (None, "cannot be read (No such file or directory)"),
    ],
)
def test_what_is_wrong_with_a_file_names_it_with_the_key_and_the_value(
    text: str | None, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "mine.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError) as raised:
        with_file(file, [])
    assert str(raised.value).startswith(f"--config {file}: {message}")


def test_what_is_wrong_beside_a_file_does_not_name_it(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("batch_size: 8\n")
    with pytest.raises(ConfigError, match=r"^batch_size='many'"):
        with_file(file, ["batch_size=many"])
    with pytest.raises(ConfigError, match=r"^experiment=fashion_cnn: is a preset, and so is --config"):
        with_file(file, ["experiment=fashion_cnn"])


def test_a_stored_choice_that_means_something_else_here_is_refused(tmp_path: Path) -> None:
    stored = plain([])
    stored["sync"]["target"] = "paceline.strategies.sync.ssp.SSP"
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(stored))
    with pytest.raises(ConfigError, match=r"sync.target=paceline.strategies.sync.ssp.SSP: the choices that there are"):
        with_file(file, [])
    del stored["sync"]
    file.write_text(yaml.safe_dump(stored))
    with pytest.raises(ConfigError, match="'sync' is missing"):
        with_file(file, [])


def test_a_secret_that_was_not_stored_is_asked_for(tmp_path: Path) -> None:
    stored = plain([])
    stored["tracking"]["entity"] = HIDDEN
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(stored))
    with pytest.raises(ConfigError, match=r"tracking.entity=\*\*\* stands for a secret"):
        with_file(file, [])
    assert plain(with_file(file, ["tracking.entity=us"]).overrides) == plain(["tracking.entity=us"])
    assert command_of(stored) == (
        "paceline train",
        ["tracking.entity looked like a secret and was not stored; add tracking.entity=..."],
    )


def test_the_command_of_a_choice_of_ones_own_says_what_else_it_takes() -> None:
    stored = plain([])
    stored["model"] = {"name": "wide", "target": "mine.wide.Wide", "knobs": {"width": 512}}
    line, [note] = command_of(stored)
    assert line == "paceline train model=wide model.width=512 --allow-module mine"
    assert note == "model=wide: not of ours; add --config-dir DIR, which is not stored"
