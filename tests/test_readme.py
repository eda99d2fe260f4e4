"""What the README and the pages of docs/ show is run: files are written, commands called, Python executed."""

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest
import typer
from _pytest.mark import ParameterSet
from needs import needs_datasets, needs_fashion_mnist, needs_make, needs_pyarrow, needs_torchvision
from own_files import documented

from paceline.cli.main import main

ROOT = Path(__file__).parent.parent
OWN_DATA = "docs/own_data.md"
YOUR_OWN = "docs/your_own.md"
# In the order in which their commands run, in one folder
PAGES = (
    "README.md",
    YOUR_OWN,
    OWN_DATA,
    "docs/averages.md",
    "docs/convex.md",
    "docs/adversarial.md",
    "docs/verify.md",
    "docs/callbacks.md",
    "docs/wrap.md",
    "docs/running.md",
    "docs/resuming.md",
    "docs/advise.md",
    "docs/precision.md",
    "docs/schedules.md",
    "docs/smaller_models.md",
    "docs/federated.md",
    "docs/robust.md",
    "docs/privacy.md",
    "docs/routed.md",
    "docs/unsupervised.md",
    "docs/tensor.md",
    "docs/domain.md",
    "docs/large_batches.md",
    "docs/memory.md",
    "docs/cost.md",
    "docs/calibrate.md",
    "docs/sync_modes.md",
    "docs/networks.md",
    "docs/sweeps.md",
    "docs/explain.md",
)
# The README's model on that page's table
WIDE_ON_WINE = "paceline train data=wine model=wide model.width=8 --config-dir conf-of-mine --allow-module mine"
SHORT = [
    "tracking=none",
    "steps=2",
    "data.limit=64",
]  # a command's shape is what is tested here, not how long it trains


def blocks(language: str, page: str = "README.md") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(), flags=re.M | re.S)


def commands(program: str, page: str = "README.md") -> list[str]:
    lines = [line.split("#")[0].split(" > ")[0].strip() for block in blocks("sh", page) for line in block.splitlines()]
    return [line for line in lines if line.startswith(f"{program} ")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the README's files in it, in which its commands run in order."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "sweeps").symlink_to(ROOT / "sweeps")
    documented(folder)
    for block in [block for page in PAGES for language in ("python", "yaml") for block in blocks(language, page)]:
        # as a reader copies it; Hydra wants its own header first
        if found := re.match(r"(# @package [\w.]+\n)?# ([\w/.-]+\.(py|yaml))\n", block):
            path = folder / found[2]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block)
    return folder


def of_page(page: str) -> list[ParameterSet]:
    """Its commands, with what they need."""
    needs = {
        "fashion": needs_fashion_mnist,
        "large_batch": needs_fashion_mnist,  # the sweep and its table
        "resnet18": needs_torchvision,
        "data=table": needs_pyarrow,
        "hugging_face": needs_datasets,
    }
    return [
        pytest.param(command, marks=[mark for word, mark in needs.items() if word in command])
        for command in commands("paceline", page)
    ]


@pytest.mark.docs
@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        *(command for page in PAGES[:3] for command in of_page(page)),
        WIDE_ON_WINE,
        *(command for page in PAGES[3:] for command in of_page(page)),
    ],
)
def test_the_command_of_the_readme_succeeds(
    command: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    check(command, monkeypatch, capfd)


@pytest.mark.budget(4)
@pytest.mark.docs
@pytest.mark.dist
@pytest.mark.usefixtures("fork_server")
def test_the_first_commands_of_the_readme_succeed_one_after_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    first = [command for command in commands("paceline") if command.split()[1] in ("list", "plan", "train", "compare")]
    assert "paceline compare" in first[:9] and "paceline train sync=asp --name first-asp" in first[:9]
    for command in first[: first.index("paceline compare") + 1]:
        check(command, monkeypatch, capfd)


def check(command: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """It succeeds and prints something; in this process, whose fork server is warm by the second command."""
    assert run_in_process(shortened(shlex.split(command)), command, monkeypatch, capfd), command


def run_in_process(
    words: list[str], command: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> str:
    """Runs the words of a command, which has to succeed, and returns its standard output."""
    monkeypatch.setattr(sys, "argv", words)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(os, "execv", in_its_place)
    try:
        with pytest.raises(SystemExit) as end:
            main()
    finally:
        signal.signal(signal.SIGTERM, before)
    out, err = capfd.readouterr()
    assert end.value.code == 0, f"{command}: {err}"
    return out


def in_its_place(program: str, arguments: list[str]) -> NoReturn:
    """What `paceline launch` becomes."""
    raise typer.Exit(subprocess.run([program, *arguments[1:]], timeout=100, check=False).returncode)


def shortened(words: list[str]) -> list[str]:
    if words[1] == "sweep" and words[2:4] == ["sweeps/sync_modes.yaml", "--resume"]:
        return [*words[:2], "--resume", "--name", "sync_modes"]  # as it was defined before, shortened
    if words[1] == "advise" and "--race" in words:
        return [*words, "tracking=none", "epochs=1", "--seeds", "2", "--target", "0.1"]
    if words[1] == "calibrate":
        return [*words, "--quick", "--force"]
    if words[1] == "sweep" and words[2].startswith("runs/"):
        return words  # of a race, which was shortened
    if words[1] not in ("train", "sweep") or "--dry-run" in words:
        return words
    if "--resume" in words:  # goes on as it was: a run makes as many steps in all as the page says epochs
        steps = [word.replace("epochs", "steps") for word in words if word.startswith("epochs=")]
        return [*words, *(steps or ["steps=4"])] if words[1] == "train" else words
    more = ["--trials", "2"] if words[1] == "sweep" else []
    if "--trials" in words:
        words = [*words[: words.index("--trials")], *words[words.index("--trials") + 2 :]]
    if "long" in words or "kept" in words:
        more.append("checkpoint.every_steps=1")
    has_limit = not any(
        word
        in (
            "data=wine",
            "data=fitness",
            "data=shapes",
            "data=disks",
            "experiment=houses",
            "runs/priced/config.yaml",
            "hardware.workers=100",  # clients, each with samples of its own
        )
        for word in words
    )
    return [*words, *(word for word in SHORT if has_limit or not word.startswith("data.limit")), *more]


@needs_make
@pytest.mark.parametrize("command", [*commands("make"), "make test", "make compare", "make bench"])
def test_the_make_target_of_the_readme_exists(command: str) -> None:
    words = re.findall(r'ARGS="[^"]*"|\S+', command)
    subprocess.run(["make", "--dry-run", *words[1:]], cwd=ROOT, check=True, capture_output=True, timeout=60)


@pytest.mark.docs
@pytest.mark.dist
@pytest.mark.slow
def test_the_python_of_the_readme_runs(folder: Path) -> None:
    code = next(block for block in blocks("python", YOUR_OWN) if "engine.run" in block)
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    measured, predicted = map(float, done.stdout.splitlines()[-1].split())
    assert measured == predicted


def test_no_page_is_named_twice_where_the_readme_says_where_to_go_on() -> None:
    page = (ROOT / "README.md").read_text()
    rows = [line.split("|")[1].strip() for line in page.splitlines() if line.startswith("| ")]
    twice = {row for row in rows if rows.count(row) > 1}
    assert not twice


def test_the_tree_of_the_readme_names_what_is_there() -> None:
    tree = (ROOT / "docs" / "architecture.md").read_text().split("# Where things are")[1].split("```")[1]
    for name in re.findall(r"^(\w+/)", tree, flags=re.M):
        assert (ROOT / name).is_dir(), name
    folders = [
        ROOT / room for room in re.findall(r"^(\w+)/", tree, flags=re.M)
    ]  # no others, which may change meanwhile
    for name in re.findall(r"\b(\w+\.py)\b", tree):
        assert any(list(folder.rglob(name)) for folder in folders), name
