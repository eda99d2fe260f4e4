"""What a user installs: the rooms and nothing else, working far from the sources."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from mutations import ROOMS
from test_readme import commands as commands_of_readme

ROOT = Path(__file__).parents[1]
FOLDERS = (*ROOMS, "learn", "sweeps")


def run(*command: str, cwd: Path, path: Path | None = None) -> str:
    """Standard output of a command that sees neither the sources nor the editable install's own, nor our settings."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "MKL_", "OMP_"))}
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = tmp_path_factory.mktemp("tree")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        if (ROOT / name).is_file():
            shutil.copy(ROOT / name, tree)
    for room in FOLDERS:
        shutil.copytree(ROOT / room, tree / room, ignore=shutil.ignore_patterns("__pycache__"))
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", "dist", cwd=tree)
    [built] = (tree / "dist").iterdir()
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    site = tmp_path_factory.mktemp("site")
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-index", "--target", str(site)]
    run(sys.executable, "-m", "pip", "install", *options, str(wheel), cwd=site)
    return site


@pytest.mark.budget(4)
def test_the_wheel_holds_every_module_choice_and_data_file_and_nothing_else(wheel: Path) -> None:
    expected = {
        f"paceline/{path.relative_to(ROOT).as_posix()}"
        for room in FOLDERS
        for path in (ROOT / room).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert len(expected) > 80 and names == expected


def test_it_installs_one_import_name_and_one_command(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        [info] = {name.partition("/")[0] for name in archive.namelist()} - {"paceline"}
        assert info.endswith(".dist-info")
        assert archive.read(f"{info}/top_level.txt").decode().split() == ["paceline"]
        commands = archive.read(f"{info}/entry_points.txt").decode()
        metadata = archive.read(f"{info}/METADATA").decode()
        licence = archive.read(f"{info}/licenses/LICENSE").decode()
    assert "paceline = paceline.cli.entry:main" in commands
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for line in (f"Version: {project['version']}", "License-Expression: Apache-2.0", "License-File: LICENSE"):
        assert line in metadata.splitlines()
    assert "Author: The paceline developers" in metadata.splitlines()
    assert f"Keywords: {','.join(project['keywords'])}" in metadata.splitlines()
    assert metadata.count("\nClassifier: ") == len(project["classifiers"])
    assert licence == (ROOT / "LICENSE").read_text()
    required = [line for line in metadata.splitlines() if line.startswith("Requires-Dist: ")]
    extras = [line for line in required if "extra ==" in line]
    assert len(required) - len(extras) == len(project["dependencies"])
    assert len(extras) == sum(map(len, project["optional-dependencies"].values()))


def paceline(*arguments: str, site: Path, cwd: Path) -> str:
    return run(sys.executable, "-m", "paceline.cli.main", *arguments, cwd=cwd, path=site)


@pytest.mark.slow
def test_installed_elsewhere_it_lists_and_plans_from_an_empty_directory(installed: Path, tmp_path: Path) -> None:
    where = run(sys.executable, "-c", "import paceline.cli as cli; print(cli.__file__)", cwd=tmp_path, path=installed)
    assert Path(where.strip()).is_relative_to(installed)
    assert "* data_parallel" in paceline("list", site=installed, cwd=tmp_path)
    assert paceline("train", "--dry-run", site=installed, cwd=tmp_path).startswith("ok: ")
    for name in ("sweeps/sync_modes.yaml", "sync_modes", "studies/digits_64"):
        assert "sync" in paceline("sweep", name, "tracking=none", "--dry-run", site=installed, cwd=tmp_path)
    assert "1,437" in paceline("list", "data", site=installed, cwd=tmp_path)
    assert "Hogwild!" in paceline("learn", site=installed, cwd=tmp_path)
    text = paceline("plan", "model=gpt", "data=text", "--format", "json", site=installed, cwd=tmp_path)
    assert json.loads(text)["steps_per_epoch"] > 0  # the shipped sample was found
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        *(line for line in commands_of_readme("paceline") if line.split()[1] in ("advise", "cost", "doctor")),
        "paceline explain sync=ssp",
        "paceline compare --html report.html",
    ],
)
def test_installed_elsewhere_a_command_of_the_readme_works_in_an_empty_directory(
    command: str, installed: Path, tmp_path: Path
) -> None:
    if "compare" in command:
        train = ["--name", "first-asp", "sync=asp", "hardware=virtual", "steps=2", "tracking=none"]
        assert "first-asp" in paceline("train", *train, site=installed, cwd=tmp_path)
    assert paceline(*command.split()[1:], site=installed, cwd=tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.suffix] == re.findall(r"report.html", command)


@pytest.mark.slow
def test_it_works_unpacked_as_well(wheel: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    run(sys.executable, "-m", "zipfile", "-e", str(wheel), str(tmp_path / "site"), cwd=tmp_path)
    assert "* data_parallel" in paceline("list", "strategy", site=tmp_path / "site", cwd=tmp_path / "empty")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's own: the files of the page, and right and wrong classes."""
    for block in re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/testing_your_own.md").read_text(), re.M | re.S):
        path = tmp_path / block.splitlines()[0].removeprefix("# ")
        path.parent.mkdir(exist_ok=True)
        path.write_text(block)
    for name in ("own_classes", "wrong_classes"):
        shutil.copy(ROOT / "tests" / "testing" / f"{name}.py", tmp_path)
    return tmp_path


@pytest.mark.slow
def test_the_tests_of_the_page_pass_in_a_project_of_its_own(installed: Path, project: Path) -> None:
    (project / "test_on_processes.py").write_text(
        (project / "test_local_average.py").read_text().replace("(LocalAverage)", '(LocalAverage, "process")')
    )
    done = run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=project, path=installed)
    assert re.search(r"^18 passed", done, re.M), done


CHECKED = """
import sys
from own_classes import RIGHT
from wrong_classes import BREAKS
from paceline import testing

assert testing.__file__.startswith(sys.argv[1])
for kind, classes in RIGHT.items():
    for cls in classes:
        print(cls.__name__, len(getattr(testing, f"check_{kind}")(cls)))
for kind, by_name in BREAKS.items():
    for name, classes in by_name.items():
        for cls in classes:
            try:
                getattr(testing, f"check_{kind}")(cls)
            except AssertionError as error:
                assert f"{cls.__name__} breaks the invariant '{name}'" in str(error), str(error)
            else:
                raise SystemExit(f"{cls.__name__} passed")
assert not {"pytest", "hypothesis", "hydra", "paceline.engine"} & set(sys.modules)
"""


@pytest.mark.slow
def test_without_pytest_right_classes_pass_and_wrong_ones_are_named(installed: Path, project: Path) -> None:
    (project / "checked.py").write_text(CHECKED)
    told = run(sys.executable, "checked.py", str(installed), cwd=project, path=installed)
    assert told.splitlines() == [
        "LocalAverage 9",
        "MeanGradient 10",
        "Signs 9",
        "RandomRounding 9",
        "Midrange 10",
        "OneWorker 10",
    ]
