"""The files by which other programs build, check and edit the project: each is read as its program reads it."""

import json
import re
import shlex
import subprocess
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml
from mutations import ROOMS
from needs import needs_actionlint, needs_hadolint, tool
from test_readme import blocks

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
DOCKERFILE = ROOT / "Dockerfile"
HOOKS = ROOT / ".pre-commit-config.yaml"
DEVCONTAINER = ROOT / ".devcontainer" / "devcontainer.json"
PAGE = "docs/ci.md"


def of_page() -> list[str]:
    """Returns the workflows that the page shows."""
    return [block for block in blocks("yaml", PAGE) if block.startswith("# .github/workflows/")]


def workflows() -> list[dict[Any, Any]]:
    return [yaml.safe_load(text) for text in (*(file.read_text() for file in WORKFLOWS), *of_page())]


def targets() -> set[str]:
    """Returns the targets of the Makefile that have a line of help."""
    return set(re.findall(r"^([a-z-]+)(?: [a-z-]+)*:.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_workflows_have_jobs_of_steps_with_versions() -> None:
    assert len(WORKFLOWS) == 1 and len(of_page()) == 2
    for workflow in workflows():
        assert workflow[True]  # `on`, as YAML 1.1 reads it
        assert workflow["permissions"] == {"contents": "read"}
        for job in workflow["jobs"].values():
            assert job["runs-on"] and job["timeout-minutes"] <= 60
            for step in job["steps"]:
                assert ("run" in step) != ("uses" in step)
                assert "uses" not in step or re.fullmatch(r"actions/[\w-]+@v\d+", step["uses"])


def test_the_projects_workflow_runs_targets_of_the_makefile() -> None:
    [workflow] = [yaml.safe_load(file.read_text()) for file in WORKFLOWS]
    run = [step["run"].split() for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    assert [words[:2] for words in run] == [["make", "check"], ["make", "test"]]
    assert {words[1] for words in run} <= targets()


@needs_actionlint
def test_actionlint_finds_nothing_in_the_workflows(tmp_path: Path) -> None:
    files = list(WORKFLOWS)
    for number, text in enumerate(of_page()):
        files.append(tmp_path / f"{number}.yml")
        files[-1].write_text(text)
    program = tool("actionlint")
    assert program is not None
    done = subprocess.run([program, *map(str, files)], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


def test_the_image_is_run_by_a_user_without_privileges_and_begins_with_the_command() -> None:
    text = DOCKERFILE.read_text()
    instructions = re.findall(r"^([A-Z]+) (.*)$", text, re.MULTILINE)
    last = dict(instructions)  # the last of each
    assert last["USER"].isdecimal() and int(last["USER"]) > 0
    assert json.loads(last["ENTRYPOINT"]) == ["paceline"] and json.loads(last["CMD"]) == ["doctor"]
    assert [value for name, value in instructions if name == "FROM"] == ["${BASE} AS build", "${BASE}"]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert re.findall(r"^ARG EXTRAS=(.*)$", text, re.MULTILINE) == ["figures"] and "figures" in extras


@needs_hadolint
def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    program = tool("hadolint")
    assert program is not None
    done = subprocess.run([program, str(DOCKERFILE)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


def test_the_image_is_made_from_what_a_wheel_is_built_of_and_the_constraints() -> None:
    folders = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    rooms = {(ROOT / folder.split(".")[1]).resolve().relative_to(ROOT) for folder in folders}  # learn is a link
    needed = {*map(str, rooms), *ROOMS, "sweeps", "pyproject.toml", "README.md", "LICENSE", "constraints.txt"}
    assert not [name for name in needed if left_out_of_the_image(name)]
    for unneeded in (".git", ".venv", "runs", "tests", "docs/log.md"):
        assert left_out_of_the_image(unneeded), unneeded


def left_out_of_the_image(name: str) -> bool:
    """Returns whether .dockerignore leaves out a path. The last pattern that matches it or a folder above decides."""
    paths = [name, *map(str, Path(name).parents)][:-1]  # without "."
    left_out = False
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if not line.startswith("#") and any(fnmatch(path, line.removeprefix("!")) for path in paths):
            left_out = not line.startswith("!")
    return left_out


def test_hooks_are_local_and_run_tools_of_the_environment() -> None:
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    tools = {re.split(r"[>=<\[]", package)[0] for package in groups["dev"]}
    [repository] = yaml.safe_load(HOOKS.read_text())["repos"]
    assert repository["repo"] == "local"
    for hook in repository["hooks"]:
        folder, name = shlex.split(hook["entry"])[0].rsplit("/", 1)
        assert folder == ".venv/bin" and name in tools and hook["language"] == "system"


def test_the_development_container_sets_the_clone_up() -> None:
    container = json.loads(DEVCONTAINER.read_text())
    assert re.fullmatch(r"[a-z]+:[\w.-]+", container["image"])
    make, target, *_ = container["postCreateCommand"].split()
    assert make == "make" and target in targets()


@pytest.mark.parametrize("file", [*WORKFLOWS, DOCKERFILE, HOOKS, DEVCONTAINER], ids=lambda file: file.name)
def test_no_file_names_a_host(file: Path) -> None:
    assert not re.findall(r"\w+://|\b[\w-]+\.(?:io|com|org)\b", file.read_text())
