import json
import os
import platform
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

import pytest

from paceline.tracking.environment import environment


def git(*arguments: str) -> str:
    options = ["-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *options, *arguments], check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_it_is_json_and_names_the_versions_and_the_machine():
    found = json.loads(json.dumps(environment()))
    assert found["paceline"] == metadata.version("paceline")
    assert found["python"] == platform.python_version()
    assert found["packages"]["torch"] == metadata.version("torch")
    assert found["cpu"]["count"] == os.cpu_count() and found["cpu"]["model"]
    assert found["memory"] > 2**26
    assert found["git"] is None


def test_the_commit_is_named_and_dirty_only_when_a_tracked_file_differs(tmp_path):
    git("init")
    assert environment()["git"] is None
    (tmp_path / "file").write_text("1")
    git("add", "file")
    git("commit", "-m", "first")
    (tmp_path / "untracked").write_text("")
    assert environment()["git"] == {"commit": git("rev-parse", "HEAD"), "dirty": False}
    (tmp_path / "file").write_text("2")
    assert environment()["git"]["dirty"] is True


@pytest.mark.parametrize("place", ["fsmonitor", "filter", "included", "filter of an old git", "submodule", "transport"])
def test_no_command_of_a_repository_runs(tmp_path, monkeypatch, place):
    program, ran = tmp_path / "theirs.sh", tmp_path / "ran"
    program.write_text(f"#!/bin/sh\ntouch {ran}\ncat\nexit 1\n")
    program.chmod(0o755)
    (tmp_path / "repository").mkdir()
    monkeypatch.chdir(tmp_path / "repository")
    git("init")
    if place == "submodule":
        git("init", "inner")
        git("-C", "inner", "commit", "--allow-empty", "-m", "inner")
    Path("file").write_text("1")
    Path(".gitattributes").write_text("file filter=theirs\n" if "filter" in place or place == "included" else "")
    git("add", ".")
    git("commit", "-m", "first")
    if place == "fsmonitor":
        git("config", "core.fsmonitor", str(program))
    elif place.startswith("filter"):
        git("config", "filter.theirs.clean", str(program))
    elif place == "included":
        Path(".git/more").write_text(f'[filter "theirs"]\n\tprocess = {program}\n')
        git("config", "include.path", "more")
    elif place == "submodule":
        git("-C", "inner", "config", "core.fsmonitor", str(program))
    else:
        for each in Path(".git/objects").glob("??/*"):
            each.unlink()
        git("config", "extensions.partialClone", "origin")
        git("config", "protocol.ext.allow", "always")
        git("config", "remote.origin.url", f"ext::{program}")
        git("config", "remote.origin.promisor", "true")
    if "old" in place:  # it lacks an option
        old = tmp_path / "bin" / "git"
        old.parent.mkdir()
        old.write_text(f'#!/bin/sh\ncase "$*" in *--show-scope*) exit 129;; esac\nexec {shutil.which("git")} "$@"\n')
        old.chmod(0o755)
        monkeypatch.setenv("PATH", str(old.parent), prepend=os.pathsep)
    os.utime("file", (0, 0))  # git looks at what is in it
    found = environment()["git"]
    assert not ran.exists() and found["dirty"] is (False if place in ("fsmonitor", "submodule") else None)


def test_no_environment_variable_is_in_it(monkeypatch):
    monkeypatch.setenv("PACELINE_TEST_TOKEN", "do-not-tell")
    assert "do-not-tell" not in json.dumps(environment())


def test_gpus_come_from_nvidia_smi_when_it_is_there_and_works(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text('#!/bin/sh\necho "Some GPU, 81559, 550.1"\necho "Other GPU, [N/A], 550.1"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert environment()["gpus"] == [
        {"name": "Some GPU", "memory": 81559 * 2**20, "driver": "550.1"},
        {"name": "Other GPU", "memory": None, "driver": "550.1"},
    ]
    program.write_text("#!/bin/sh\nexit 9\n")
    assert environment()["gpus"] == []


def test_without_git_or_nvidia_smi_on_the_path_nothing_is_raised(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    found = environment()
    assert found["git"] is None and found["gpus"] == []
