"""`paceline export`: the model of a run as a folder for a model hub."""

import json
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from stored_configs import to_yaml

from paceline.engine.base.checkpoint import export
from paceline.engine.config.compose import compose
from paceline.tracking.run_directory import RunDirectory

TENSORS = {"a": torch.arange(3.0), "b": torch.ones(2, 2)}


@pytest.fixture
def run(here: Path) -> RunDirectory:
    """A run whose names are Markdown, and a terminal's colours."""
    made = RunDirectory.create(here / "runs", "one")
    made.write_config(to_yaml(compose(["sync=ssp", "hardware.workers=3", "name=one"])))
    told = {"sync": "ssp", "model": "m|p*\x1b[31m", "data": "digits", "accuracy": 0.75, "modelled": True, "workers": 3}
    made.write_summary({"name": "one", "status": "completed", **told})
    made.write_environment({"paceline": "9.9", "python": "3.11.7", "packages": {"torch": "2.0"}})
    export(made.path / "model.safetensors", TENSORS)
    return made


def test_a_folder_has_weights_configuration_and_card(paceline, run: RunDirectory, here: Path) -> None:
    ended = paceline("export", "one", "hub/mine")
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.split() == [f"hub/mine/{name}" for name in ("README.md", "config.json", "model.safetensors")]
    folder = here / "hub" / "mine"
    found = load_file(folder / "model.safetensors")
    assert found.keys() == TENSORS.keys() and all(torch.equal(found[name], TENSORS[name]) for name in found)
    told = json.loads((folder / "config.json").read_text())
    assert told["paceline_version"] == "9.9" and told["experiment"]["sync"]["name"] == "ssp"
    _, head, card = (folder / "README.md").read_text().split("---\n", 2)
    assert yaml.safe_load(head) == {
        "library_name": "paceline",
        "tags": ["paceline", "distributed-training", "strategy-data_parallel", "sync-ssp"],
    }
    assert "| accuracy | 75.00% |" in card and "Times are modelled" in card and "torch 2.0" in card
    assert "| none |" not in card and "\x1b" not in card and r"| model | m\|p\*" in card
    assert "\npaceline train sync=ssp hardware.workers=3\n" in card and "without `adapt`" not in card
    assert sorted(path.name for path in folder.parent.iterdir()) == ["mine"]


@pytest.mark.parametrize("adapt", ["none", "lora"])
def test_weights_after_adapting_are_said_to_be_those_of_the_plain_model(
    adapt: str, paceline, run: RunDirectory, here: Path
) -> None:
    run.write_config(to_yaml(compose([f"adapt={adapt}", "name=one"])))
    run.write_summary({"name": "one", "status": "completed", "adapt": adapt})
    assert paceline("export", "one", "mine").status == 0
    card = (here / "mine" / "README.md").read_text()
    assert ("those of the model without `adapt`" in card) == (adapt == "lora")


@pytest.mark.parametrize("seed", [0, 5])
def test_the_seed_of_private_noise_stays_at_home(seed: int, paceline, run: RunDirectory, here: Path) -> None:
    run.write_config(to_yaml(compose(["privacy=dp_sgd", f"seed={seed}", "name=one"])))
    ended = paceline("export", "one", "mine")
    assert ended.status == 0 and "privacy=dp_sgd: the folder is without the run's seed" in ended.err
    assert ("easy to guess" in ended.err) == (seed == 0)
    card = (here / "mine" / "README.md").read_text()
    assert "seed" not in json.loads((here / "mine" / "config.json").read_text())["experiment"]
    assert "\npaceline train privacy=dp_sgd\n" in card and "It is without the run's seed" in card


def test_what_measured_time_is_not_said_to_be_modelled(paceline, run: RunDirectory, here: Path) -> None:
    run.write_summary({"name": "one", "status": "completed", "modelled": False})
    assert paceline("export", "one", "mine").status == 0
    assert "modelled" not in (here / "mine" / "README.md").read_text()


def test_nothing_is_written_over(paceline, run: RunDirectory, here: Path) -> None:
    (here / "empty").mkdir()
    assert paceline("export", "one", "empty").status == 0
    again = paceline("export", "one", "empty")
    assert again.status == 2 and "empty: is there, and not an empty folder. Choose a new one" in again.err
    (here / "file").write_text("mine")
    assert paceline("export", "one", "file").status == 2 and (here / "file").read_text() == "mine"


def test_the_current_folder_is_refused_and_a_link_is_followed(paceline, run: RunDirectory, here: Path) -> None:
    (here / "empty").mkdir()
    (here / "link").symlink_to("empty")
    assert paceline("export", "one", "link").status == 0 and (here / "empty" / "README.md").is_file()
    ended = paceline("export", str(run.path), ".")
    assert ended.status == 2 and "is the current folder" in ended.last
    (here / "loop").symlink_to("loop")
    ended = paceline("export", "one", "loop")
    assert ended.status == 2 and ended.last.endswith("loop: is a link to itself. Choose a new one")
    assert paceline("export", "one", "loop/x").status == 3


def test_a_run_without_weights_is_refused(paceline, run: RunDirectory, here: Path) -> None:
    (run.path / "model.safetensors").unlink()
    ended = paceline("export", "one", "mine")
    assert ended.status == 2 and "one: has no model.safetensors, which a run writes at its end" in ended.err
    assert not (here / "mine").exists()


def test_changed_weights_are_refused(paceline, run: RunDirectory, here: Path) -> None:
    file = run.path / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    ended = paceline("export", "one", "mine")
    assert ended.status == 7 and "model.safetensors: was changed after the run wrote it" in ended.err
    file.write_bytes(b"not one")
    assert paceline("export", "one", "mine").status == 7 and not (here / "mine").exists()


def test_a_folder_that_cannot_be_written_is_named(paceline, run: RunDirectory, here: Path) -> None:
    (here / "file").write_text("")
    ended = paceline("export", "one", "file/mine")
    assert ended.status == 3 and "file/mine" in ended.err


def test_a_script_has_no_line_that_repeats_it(paceline, run: RunDirectory, here: Path) -> None:
    run.write_environment({"wrapped": True})
    assert paceline("export", "one", "mine").status == 0
    assert "paceline train" not in (here / "mine" / "README.md").read_text()


def test_paths_of_this_machine_are_names_that_a_reader_can_replace(paceline, run: RunDirectory, here: Path) -> None:
    weights = here / "runs" / "base" / "model.safetensors"
    run.write_config(to_yaml(compose(["name=one", "sync=ssp", f"weights='{weights}'"])))
    assert paceline("export", "one", "mine").status == 0
    card = (here / "mine" / "README.md").read_text()
    assert "paceline train sync=ssp weights=base/model.safetensors" in card.splitlines()
    assert "not in this folder: `base/model.safetensors`. Ask its author for them, or put in your own." in card
    assert "`paceline train weights=model.safetensors` goes on from them, with the line's other choices." in card
    config = json.loads((here / "mine" / "config.json").read_text())["experiment"]
    assert config["weights"] == "base/model.safetensors" and str(here) not in card + json.dumps(config)


def test_no_value_ends_the_block_of_the_line(paceline, run: RunDirectory, here: Path) -> None:
    run.write_config(to_yaml(compose(["name=one", "weights='a```b````\tc'"])))
    assert paceline("export", "one", "mine").status == 0
    card = (here / "mine" / "README.md").read_text()
    assert "\n`````sh\npaceline train $'weights=" in card and "\n`````\n" in card


@pytest.mark.slow  # two runs
def test_exported_weights_go_on_in_another_run(paceline, here: Path) -> None:
    few = ("hardware.workers=1", "tracking=none", "checkpoint.every=0")
    assert paceline("train", *few, "steps=20", "--name", "first").status == 0
    assert paceline("export", "first", "mine").status == 0
    accuracy = json.loads((here / "runs" / "first" / "summary.json").read_text())["accuracy"]
    again = ("steps=1", "optimizer.lr=1e-9", "weights=mine/model.safetensors", "--name", "second")
    ended = paceline("train", *few, *again)
    assert ended.status == 0
    assert json.loads((here / "runs" / "second" / "summary.json").read_text())["accuracy"] == accuracy
