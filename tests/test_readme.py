"""What the README shows is run: its files are written, its commands are called, its Python is executed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
SHORT = [
    "tracking=none",
    "steps=2",
    "data.limit=64",
]  # a command's shape is what is tested here, not how long it trains


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / "README.md").read_text(), flags=re.M | re.S)


def commands(program: str) -> list[str]:
    lines = [line.split("#")[0].strip() for block in blocks("sh") for line in block.splitlines()]
    return [line for line in lines if line.startswith(f"{program} ")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the README's files in it, in which its commands run in order."""
    folder = tmp_path_factory.mktemp("readme")
    for block in blocks("python") + blocks("yaml"):
        first, _, rest = block.partition("\n")
        if re.fullmatch(r"# [\w/.-]+\.(py|yaml)", first):
            path = folder / first.removeprefix("# ")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(rest)
    return folder


@pytest.mark.docs
@pytest.mark.dist
@pytest.mark.parametrize("command", commands("paceline"))
def test_the_command_of_the_readme_succeeds(command: str, folder: Path) -> None:
    words = command.split()
    if words[1] == "train" and "--dry-run" not in words:
        resumed = "--resume" in words  # goes on from a checkpoint, as it was: only `steps` may change
        words += ["steps=4"] if resumed else SHORT
        if "--name" in words and "long" in words:
            words.append("checkpoint.every_steps=1")
    words[0] = str(BIN / "paceline")
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("command", [*commands("make"), "make test", "make compare", "make bench"])
def test_the_make_target_of_the_readme_exists(command: str) -> None:
    words = re.findall(r'ARGS="[^"]*"|\S+', command)
    subprocess.run(["make", "--dry-run", *words[1:]], cwd=ROOT, check=True, capture_output=True, timeout=60)


@pytest.mark.docs
@pytest.mark.dist
def test_the_python_of_the_readme_runs(folder: Path) -> None:
    code = next(block for block in blocks("python") if "engine.run" in block)
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    measured, predicted = map(float, done.stdout.splitlines()[-1].split())
    assert measured == predicted


def test_the_tree_of_the_readme_names_what_is_there() -> None:
    tree = (ROOT / "README.md").read_text().split("## Where things are")[1].split("```")[1]
    for name in re.findall(r"^(\w+/)", tree, flags=re.M):
        assert (ROOT / name).is_dir(), name
    for name in re.findall(r"\b(\w+\.py)\b", tree):
        assert list(ROOT.glob(f"*/**/{name}")), name
