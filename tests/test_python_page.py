"""The Python of docs/python.md runs as it stands, in a script without a guard."""

import subprocess
import sys
from pathlib import Path

import pytest
from test_readme import blocks


def scripts() -> list[str]:
    return [block for block in blocks("python", "docs/python.md") if block.splitlines()[0].endswith(".py")]


def name_of(script: str) -> str:
    return script.splitlines()[0].removeprefix("# ")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("python")
    for script in scripts():
        (folder / name_of(script)).write_text(script)
    return folder


@pytest.mark.docs
@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize("name", [name_of(script) for script in scripts()])
def test_the_script_of_the_page_runs(name: str, folder: Path) -> None:
    done = subprocess.run([sys.executable, name], cwd=folder, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


def test_the_scripts_of_the_page_compile() -> None:
    assert len(scripts()) >= 2
    for script in scripts():
        compile(script, name_of(script), "exec")
