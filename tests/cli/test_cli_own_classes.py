"""A run of a person's own classes, shared: by its config.yaml, by the line that repeats it, and explained."""

import shlex
from pathlib import Path

import pytest
import yaml

PRESET = """# @package _global_
defaults: [override /model: null, override /data: null, override /task: null]
model: {_target_: houses.OfStreets, width: 6}
data: {_target_: houses.Houses}
task: {_target_: houses.Robust}
"""
OWN = Path(__file__).parents[1] / "engine" / "houses.py"


@pytest.mark.slow
def test_it_is_repeated_and_explained_without_the_folder_of_its_choices(paceline, here: Path) -> None:
    (here / "houses.py").write_text(OWN.read_text())
    (here / "conf" / "experiment").mkdir(parents=True)
    (here / "conf" / "experiment" / "houses.yaml").write_text(PRESET)
    short = ["hardware=virtual", "tracking=none", "steps=2"]
    mine = ["--config-dir", "conf", "--allow-module", "houses"]
    assert paceline("train", "experiment=houses", *short, *mine, "--name", "first").status == 0
    real = ["tracking=none", "steps=2", "hardware.workers=1", "checkpoint.every_steps=1"]
    assert paceline("train", "experiment=houses", *real, *mine, "--name", "kept").status == 0
    assert "paceline train --resume kept --allow-module houses steps=MORE" in paceline("show", "kept").out
    (here / "conf" / "experiment" / "houses.yaml").unlink()

    shared = paceline("train", "--config", "runs/first/config.yaml", "--name", "second", "--allow-module", "houses")
    assert shared.status == 0, shared.err
    told = paceline("show", "first", "--command")
    assert told.out.count("\n") == 1 and "houses: of your own" in told.err
    again = paceline(*shlex.split(told.out)[1:], "--name", "third")
    assert again.status == 0, again.err
    models, configs = (
        [(here / "runs" / run / file).read_bytes() for run in ("first", "second", "third")]
        for file in ("model.safetensors", "config.yaml")
    )
    assert models[0] == models[1] == models[2]
    first, second, third = map(yaml.safe_load, configs)
    assert first | {"name": None} == second | {"name": None} == third | {"name": None}

    for head in ("ROOFLINE", "WHAT WOULD HELP MOST"):
        unknown = paceline("explain", "first").out.partition(f"{head}\n\n")[2].partition("\n")[0]
        assert "._target_=houses." in unknown and unknown.endswith("for a module of your own: --allow-module houses.")
    explained = paceline("explain", "first", "--allow-module", "houses").out
    assert "must name a class" not in explained and "--allow-module houses" in explained.partition("WHAT WOULD")[2]
    refused = paceline("train", "--config", "runs/first/config.yaml")
    assert refused.status == 2 and refused.last.startswith("--config runs/first/config.yaml: data._target_=houses.")


def test_an_installed_module_goes_before_one_of_its_name_in_the_current_folder(paceline, here: Path) -> None:
    (here / "sklearn.py").touch()
    ended = paceline("plan", "sync=none_such", "--allow-module", "sklearn")
    told, *_ = ended.err.splitlines()
    assert ended.status == 2 and told.startswith("--allow-module sklearn: is ")
    assert told.endswith("sklearn/__init__.py, not what this folder has under the name")
