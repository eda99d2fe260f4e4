"""One table of config groups: an entry, a default, YAML and classes make a group, for every command."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
import zealous
from mutations import ROOMS
from stored_configs import from_yaml, to_yaml

from paceline.conf.groups import BY_NAME, GROUPS, NAMING, SHOWN, ConfigGroup
from paceline.engine.config.compose import compose
from paceline.engine.config.experiment import CONF, Experiment, shipped
from paceline.engine.config.overrides import overrides_of
from paceline.engine.config.targets import base_of, load_class
from paceline.engine.planning.build import assemble

ROOT = Path(__file__).parents[2]
LISTED = yaml.safe_load((CONF / "config.yaml").read_text())["defaults"]
DEFAULTS = {group: name for entry in LISTED if isinstance(entry, dict) for group, name in entry.items()}


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.name)
def test_each_group_has_a_default_that_is_a_file_of_its_folder_and_of_its_class(group: ConfigGroup) -> None:
    base = base_of(group.name)
    assert issubclass(load_class(group.name, shipped(group.name, DEFAULTS[group.name]).target, base, ()), base)
    assert group.name in Experiment.model_fields and len(group.meaning) > 10


@pytest.mark.parametrize("group", [group for group in GROUPS if group.usual], ids=lambda group: group.name)
def test_the_usual_choice_has_no_knobs_so_that_its_name_says_it_all(group: ConfigGroup) -> None:
    assert shipped(group.name, str(group.usual)).knobs == {}


def test_every_file_that_names_a_class_is_a_choice_of_a_group_of_the_table() -> None:
    with_class = {path.parent.name for path in CONF.rglob("*.yaml") if "_target_:" in path.read_text()}
    assert with_class == {*NAMING}


def test_what_is_built_is_of_the_classes_that_the_table_demands() -> None:
    parts = assemble(compose([]), ())
    parameters = parts.make_model().parameters()
    built: dict[str, Any] = {"model": parts.model, "optimizer": parts.make_optimizer(parameters)}
    built |= {"data": parts.data, "partition": parts.partitioner, "stragglers": parts.stragglers}
    built |= {"strategy": parts.strategy, "sync": parts.sync}
    for name, thing in built.items():
        assert isinstance(thing, base_of(name))


@pytest.mark.parametrize("group", [group.name for group in GROUPS if group.usual])
def test_a_stored_configuration_from_before_a_group_is_read_with_the_groups_usual_choice(group: str) -> None:
    now = compose([f"{group}={BY_NAME[group].usual}"])
    then = yaml.safe_load(to_yaml(now))
    del then[group]
    assert from_yaml(yaml.safe_dump(then)) == now
    assert overrides_of(then) == overrides_of(now.model_dump())


# -- a group more, in a copy of the sources

ENTRY = """    ConfigGroup(
        "zeal",
        "how eagerly a step is taken",
        modules=("paceline.strategies",),
        base="paceline.strategies.zealous.Zeal",
        injected=True,
        usual="calm",
    ),
)
BY_NAME"""
SMALL = ["tracking=none", "model.hidden=[8]", "data.limit=200", "batch_size=16", "epochs=1000", "evaluate.every=1000"]
STEPS = ["steps=4", "hardware.workers=2"]


def paceline(*arguments: str, cwd: Path, site: Path | None = None) -> SimpleNamespace:
    """The command, with `site` in place of the sources."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    if site is not None:
        environment["PYTHONPATH"] = str(site)
    command = [sys.executable, "-m", "paceline.cli.main", *arguments]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=100)
    return SimpleNamespace(status=done.returncode, out=done.stdout, err=done.stderr)


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources with one entry, one default, one folder of YAML and one file of classes more."""
    site = tmp_path_factory.mktemp("grown")
    for room in ROOMS:
        shutil.copytree(ROOT / room, site / "paceline" / room, ignore=shutil.ignore_patterns("__pycache__"))
    conf = site / "paceline" / "conf"
    table, config = conf / "groups.py", conf / "config.yaml"
    table.write_text(table.read_text().replace(")\nBY_NAME", ENTRY, 1))
    config.write_text(config.read_text().replace("  - hardware: local\n", "  - zeal: calm\n  - hardware: local\n", 1))
    (conf / "zeal").mkdir()
    (conf / "zeal" / "calm.yaml").write_text("# As ever\n_target_: paceline.strategies.zealous.Calm\n")
    (conf / "zeal" / "eager.yaml").write_text("# Twice\n_target_: paceline.strategies.zealous.Eager\nmost: 2\n")
    (conf / "sync" / "zealous.yaml").write_text("# Eager\n_target_: paceline.strategies.zealous.Zealous\n")
    shutil.copy(Path(zealous.__file__), site / "paceline" / "strategies")
    return site


@pytest.fixture(scope="module")
def here(grown: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where there are runs from before the group, and with it, in use and not."""
    here = tmp_path_factory.mktemp("here")
    eager = ["sync=zealous", "zeal=eager", "zeal.most=3"]
    commands = [
        (None, ["--name", "old", *STEPS, "sync=bsp_naive", "checkpoint.every_steps=2"]),
        (grown, ["--name", "seeded", *STEPS, "sync=bsp_naive", "checkpoint.every_steps=2", "seed=1"]),
        (grown, ["--name", "eager", *STEPS, *eager]),
    ]
    for site, arguments in commands:
        done = paceline("train", *SMALL, *arguments, cwd=here, site=site)
        assert done.status == 0, done.err
    return here


@pytest.mark.slow
def test_a_group_more_is_listed_explained_and_refused_by_name(grown: Path, tmp_path: Path) -> None:
    assert "* calm" in paceline("list", "zeal", cwd=tmp_path, site=grown).out
    columns = paceline("list", "columns", cwd=tmp_path, site=grown).out
    last = SHOWN[-1].name
    assert re.search(rf"^{last} .*\nzeal +zeal +how eagerly a step is taken$", columns, re.MULTILINE)
    pairs = paceline("list", "pairs", cwd=tmp_path, site=grown).out
    assert (
        "zeal: all with sync=zealous and strategy=data_parallel, domain, hybrid, offload, pipeline, tensor\n" in pairs
    )
    refused = paceline("train", "zeal=eager", cwd=tmp_path, site=grown)
    assert refused.status == 2 and refused.err.strip().endswith(
        "zeal=eager: sync=bsp takes no zeal. Choose sync=zealous, or zeal=calm."
    )
    outside = paceline("train", "zeal._target_=torch.nn.Linear", cwd=tmp_path, site=grown)
    assert outside.status == 2 and "zeal._target_=torch.nn.Linear: must name a class in paceline.strategies" in (
        outside.err
    )


@pytest.mark.slow
def test_its_choice_reaches_the_workers_the_record_and_the_comparison(grown: Path, here: Path) -> None:
    told = json.loads(paceline("compare", "--no-group", "--format", "json", cwd=here, site=grown).out)
    zeal = {row["run"]: row["zeal"] for row in told}
    assert zeal == {"old": "calm", "seeded": "calm", "eager": "eager"}
    loss = {row["run"]: row["loss"] for row in told}
    assert loss["eager"] != loss["old"], "its gradients were taken three times"
    assert yaml.safe_load((here / "runs/eager/config.yaml").read_text())["zeal"]["knobs"] == {"most": 3}
    start = json.loads((here / "runs/eager/metrics.jsonl").read_text().splitlines()[0])
    assert (start["kind"], start["zeal"]) == ("start", "eager")
    shown = paceline("compare", "old", "seeded", cwd=here, site=grown).out
    assert "zeal" not in shown and "zeal" in paceline("compare", cwd=here, site=grown).out


@pytest.mark.slow
def test_runs_from_before_the_group_are_compared_grouped_shown_and_resumed(grown: Path, here: Path) -> None:
    (row,) = json.loads(paceline("compare", "old", "seeded", "--format", "json", cwd=here, site=grown).out)
    assert (row["n"], row["zeal"]) == (2, "calm"), "seeds 0 and 1 of one configuration"
    shown = paceline("show", "old", cwd=here, site=grown)
    assert shown.status == 0 and "zeal=" not in shown.out and "sync=bsp_naive" in shown.out
    copy = shutil.copytree(here / "runs" / "old", here / "again" / "runs" / "old").parents[1]
    resumed = paceline("train", "--resume", "old", "steps=6", cwd=copy, site=grown)
    assert resumed.status == 0, resumed.err
    assert json.loads((copy / "runs/old/summary.json").read_text())["steps"] == 6
