"""`--config FILE`, and the line that repeats a run: both compose what the run was."""

import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from needs import needs_bash
from stored_configs import to_yaml

from paceline import engine
from paceline.conf.errors import ConfigError
from paceline.engine.config.compose import compose
from paceline.engine.config.config_file import with_file
from paceline.engine.config.repeat import command_of, quoted
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
        "optimizer.momentum: 1e-2\n"
    )
    assert with_file(file, []).overrides == [
        *("sync=ssp", "sync.staleness=3", "model=cnn", "data=fashion_mnist", "optimizer.lr=0.1", "hardware.workers=4"),
        *("evaluate.every=2", "name=mine", "tracking.tags=[a]", "optimizer.momentum=1e-2"),
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
        ("name: '${a'\n", "name='${a': is a broken interpolation"),
        ("optimizer: {lr: '${a'}\n", "optimizer.lr='${a': is a broken interpolation"),
        ("batch_size: many\n", "batch_size='many': must be a valid integer"),
        ("steps: 1:30\n", "steps='1:30': must be a valid integer"),
        ("steps: 017\n", "steps='017': must be a valid integer"),
        ("sync.staleness: 3\nsync: {name: ssp, staleness: 4}\n", "sets sync.staleness 2 times. Keep one of them"),
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
    stored = plain(["model={_target_:mine.wide.Wide,name:wide}"])
    file, other = tmp_path / "config.yaml", tmp_path / "model" / "wide.yaml"
    file.write_text(yaml.safe_dump(stored))
    other.parent.mkdir()
    other.write_text("_target_: mine.wider.Wide\n")
    with pytest.raises(ConfigError, match=r"model.target=mine.wide.Wide: the choices that there are here make it"):
        with_file(file, [], tmp_path)
    del stored["sync"]
    file.write_text(yaml.safe_dump(stored))
    with pytest.raises(ConfigError, match="'sync' is missing"):
        with_file(file, [])


def test_another_class_of_a_choice_of_ours_is_told_with_it(tmp_path: Path) -> None:
    typed = ["sync._target_=paceline.strategies.sync.ssp.SSP", "+sync.staleness=2"]
    file = tmp_path / "config.yaml"
    file.write_text(to_yaml(compose(typed)))
    assert plain(with_file(file, []).overrides) == plain(typed)
    assert plain(shlex.split(command_of(yaml.safe_load(file.read_text()))[0])[2:]) == plain(typed)


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


HOUSES = """# @package _global_
defaults: [override /model: null, override /data: null, override /task: null]
model: {_target_: houses.OfStreets, width: 6}
data: {_target_: houses.Houses, inputs: dict, weights: none}
task: {_target_: houses.Robust}
"""


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """What a run of a person's own classes has stored, in a folder without their YAML."""
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    (tmp_path / "conf" / "experiment" / "houses.yaml").write_text(HOUSES)
    file = tmp_path / "config.yaml"
    file.write_text(to_yaml(compose(["experiment=houses", "strategy=zero", "model.width=9"], tmp_path / "conf")))
    return file


def test_a_run_of_ones_own_classes_is_repeated_by_its_file_and_by_its_command(shared: Path) -> None:
    was = yaml.safe_load(shared.read_text())
    assert plain(with_file(shared, []).overrides) == was
    line, [note] = command_of(was)
    words = shlex.split(line)
    assert words[:2] == ["paceline", "train"] and words[-2:] == ["--allow-module", "houses"]
    assert note == "houses: of your own; the line runs where Python can import that, as in its folder"
    assert plain(words[2:-2]) == was
    assert engine.prepare(words[2:-2], allow_modules=["houses"]).plan().layout.workers == 2


def test_what_is_beside_a_file_with_ones_own_classes_wins(shared: Path) -> None:
    assert plain(with_file(shared, ["model.width=3"]).overrides)["model"]["knobs"] == {"width": 3}
    assert plain(with_file(shared, ["model=mlp"]).overrides)["model"] == plain([])["model"]
    shared.write_text("model: {_target_: mine.wide.Wide, width: 512}\ncallbacks: {mine: {_target_: mine.Mine}}\n")
    assert with_file(shared, []).overrides == [
        "model={_target_:mine.wide.Wide,width:512}",
        "+callbacks.mine={_target_:mine.Mine}",
    ]


def test_a_shared_file_imports_nothing_that_was_not_allowed(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "of_a_stranger.py").write_text("open('imported', 'w').close()\nclass Wide: ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    named = "model: {_target_: of_a_stranger.Wide}\n", "callbacks: {mine: {_target_: of_a_stranger.Wide}}\n"
    stored = yaml.safe_load(shared.read_text())
    stored["model"]["target"] = "of_a_stranger.Wide"
    for text in (*named, yaml.safe_dump(stored)):
        shared.write_text(text)
        merged = with_file(shared, [])
        with pytest.raises(ConfigError) as raised, merged.blamed():
            engine.prepare(merged.overrides, allow_modules=["houses"]).plan()
        key = "callbacks.mine" if "callbacks: {mine" in text else "model"
        assert str(raised.value).startswith(
            f"--config {shared}: {key}._target_=of_a_stranger.Wide: must name a class in "
        ) and str(raised.value).endswith("for a module of your own: --allow-module of_a_stranger")
    assert not (tmp_path / "imported").exists()


def test_a_secret_of_ones_own_class_is_left_out_of_the_command() -> None:
    stored = plain(["model={_target_:mine.wide.Wide,width:512,api_key:abc}"])
    stored["model"]["knobs"]["api_key"] = HIDDEN
    line, notes = command_of(stored)
    assert line == "paceline train 'model={_target_:mine.wide.Wide,width:512}' --allow-module mine"
    assert notes[0] == "model.api_key looked like a secret and was not stored; add +model.api_key=..."
