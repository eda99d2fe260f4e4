"""Hydra's own way of changing what it has composed, and how it reads files."""

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir, initialize_config_module
from hydra._internal import defaults_list
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from paceline.compat.hydra import apply_overrides, files_kept
from paceline.conf.groups import CONF

VALUES = [
    "optimizer.lr=0.5",
    "++optimizer.momentum=0.25",
    "+tracking.new=1",
    "data.limit=32",
    "~optimizer.weight_decay",
]


def test_overrides_that_are_applied_afterwards_do_what_they_do_in_a_composition() -> None:
    with initialize_config_module("paceline.conf", version_base="1.3"):
        whole = compose("config", overrides=["sync=asp", *VALUES])
        later = compose("config", overrides=["sync=asp"], return_hydra_config=True)
    apply_overrides(OverridesParser.create().parse_overrides(VALUES), later)
    assert {key: later[key] for key in whole} == whole, (
        "Hydra applies overrides in another way: a composition from what was kept differs from one from the files"
    )
    assert whole.optimizer.lr == 0.5


def test_a_file_is_read_once_and_tables_are_made_where_a_list_has_interpolations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choices, opened, tables = ["sync=asp", "experiment=svm"], [], []
    load, table = OmegaConf.load, defaults_list._create_interpolation_map
    with initialize_config_module("paceline.conf", version_base="1.3"):
        whole = compose("config", overrides=choices)
        monkeypatch.setattr("paceline.compat.hydra._read", {})
        monkeypatch.setattr(OmegaConf, "load", lambda file: opened.append(Path(file.name)) or load(file))
        monkeypatch.setattr(defaults_list, "_create_interpolation_map", lambda *its: tables.append(its) or table(*its))
        for _ in range(2):
            with files_kept():
                assert compose("config", overrides=choices) == whole
    assert len(opened) == len(set(opened)) > 20 and Path(CONF / "sync" / "asp.yaml") in opened, (
        "Hydra reads files in another way: each composition reads all of them again"
    )
    assert not tables, "Hydra makes its tables elsewhere: each composition takes half as long again"
    for name, text in {"config": "defaults:\n  - model: big\n  - data: ${model}_data\n", "model/big": "a: 1\n"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.yaml").write_text(text)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "big_data.yaml").write_text("b: 2\n")
    with initialize_config_dir(str(tmp_path), version_base="1.3"), files_kept():
        assert compose("config") == {"model": {"a": 1}, "data": {"b": 2}}
    assert tables
