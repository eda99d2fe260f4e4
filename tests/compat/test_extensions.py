"""Where torch builds extensions."""

from pathlib import Path

import pytest

from paceline.compat.extensions import build_directory


def test_an_extension_is_built_in_a_folder_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    folder = build_directory("cpu_adam")
    assert folder == tmp_path / "cpu_adam" and folder.is_dir(), (
        "torch builds extensions elsewhere: whether DeepSpeed's CPU Adam was compiled is not found out"
    )
