import json
import os
import platform
import subprocess
from importlib import metadata

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
