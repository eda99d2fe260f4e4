"""DeepSpeed's CPU Adam: where it is kept, that it is compiled once, and that its compilers end with us."""

import fcntl
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from needs import needs_compiler
from process_table import until

from paceline.strategies.core.errors import MissingToolError
from paceline.strategies.external import deepspeed_ops

pytestmark = pytest.mark.timeout(300)


def test_a_missing_compiler_is_named_with_its_package(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(MissingToolError, match="apt-get install g\\+\\+") as missing:
        deepspeed_ops.build_ops(lambda _: None)
    assert missing.value.exit_code == 3


@pytest.mark.slow
@needs_compiler
def test_what_a_broken_compiler_says_is_shown(monkeypatch, tmp_path):
    compiler = tmp_path / "c++"
    compiler.write_text("""#!/bin/sh
case "$*" in *-c*) echo 'x.cpp:1: fatal error: no header' >&2; exit 1;; *) exec g++ "$@";; esac
""")
    compiler.chmod(0o755)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "kept"))
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(MissingToolError, match=r"cannot be compiled here:\n.*no header"):
        deepspeed_ops.build_ops(lambda _: None)


def test_who_waits_for_anothers_compiler_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    deepspeed_ops.use_own_folder()
    said = []
    kept = Path(os.environ["TORCH_EXTENSIONS_DIR"])
    kept.mkdir(exist_ok=True)
    with (kept / f"{deepspeed_ops.OP}.paceline.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)

        def hear(word):
            said.append(word)
            fcntl.flock(lock, fcntl.LOCK_UN)

        with pytest.raises(MissingToolError):
            deepspeed_ops.build_ops(hear)
    assert said == ["waiting for another process, which compiles DeepSpeed's CPU Adam"]


def test_a_place_that_cannot_be_written_to_is_said(monkeypatch):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", "/proc/nowhere")
    with pytest.raises(MissingToolError, match="TORCH_EXTENSIONS_DIR"):
        deepspeed_ops.build_ops(lambda _: None)


def test_a_folder_that_others_may_write_is_refused(monkeypatch, tmp_path):
    tmp_path.chmod(0o777)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    with pytest.raises(MissingToolError, match="can be written by other users"):
        deepspeed_ops.use_own_folder()


def test_what_is_compiled_is_kept_apart_from_other_installations_own(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    deepspeed_ops.use_own_folder()
    ours = os.environ["TORCH_EXTENSIONS_DIR"]
    assert Path(ours).parent == tmp_path
    deepspeed_ops.use_own_folder()
    assert os.environ["TORCH_EXTENSIONS_DIR"] == ours  # and so in the workers, which inherit it
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setattr(sys, "prefix", "/elsewhere")
    deepspeed_ops.use_own_folder()
    assert os.environ["TORCH_EXTENSIONS_DIR"] != ours


@pytest.mark.slow
@needs_compiler
def test_ops_are_compiled_once_and_it_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    deepspeed_ops.use_own_folder()
    folder = Path(os.environ["TORCH_EXTENSIONS_DIR"]) / deepspeed_ops.OP
    folder.mkdir(parents=True)
    (folder / "lock").touch()  # of a compilation that was killed
    said = []
    deepspeed_ops.build_ops(said.append)
    assert "compiling" in said[0] and "compiled" in said[-1]
    again = []
    deepspeed_ops.build_ops(again.append)
    assert again == []
    (folder / "build.ninja").write_text((folder / "build.ninja").read_text().replace("-O3", "-O1"))
    assert not deepspeed_ops._is_built(folder)  # torch would compile it anew


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_the_compilers_end_with_who_started_them(tmp_path, number):
    script = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # whatever we inherited
    script += "from paceline.strategies.external.deepspeed_ops import build_ops; build_ops(print)"
    environment = {**os.environ, "TORCH_EXTENSIONS_DIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", script], env=environment, stderr=subprocess.DEVNULL) as builder:
        until(lambda: any("cc1plus" in one for one in _mention(tmp_path)), 60, "a compiler at work")
        builder.send_signal(number)
        builder.wait(10)
    until(lambda: not _mention(tmp_path), 10, "no compiler left")


def _mention(folder):
    """The command lines of processes that work in it."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if str(folder) in str((process / "cwd").readlink()):
                found.append((process / "cmdline").read_text())
    return found
