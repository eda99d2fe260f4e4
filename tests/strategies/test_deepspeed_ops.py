"""DeepSpeed's CPU Adam: where it is kept, that it is compiled once, and that its compilers end with us."""

import fcntl
import os
import signal
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from needs import needs_compiler
from process_table import until

from paceline.strategies.core.errors import MissingToolError
from paceline.strategies.external import deepspeed_ops

pytestmark = pytest.mark.timeout(300)


def silent(text, moves=False):
    pass


def unasked(text, moves=False):
    raise AssertionError(f"nothing is to be done: {text}")


def test_a_missing_compiler_is_named_with_its_package(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(MissingToolError, match="apt-get install g\\+\\+") as missing:
        deepspeed_ops.build_ops(silent)
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
        deepspeed_ops.build_ops(silent)


def test_who_waits_for_anothers_compiler_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    deepspeed_ops.use_own_folder()
    said = []
    kept = Path(os.environ["TORCH_EXTENSIONS_DIR"])
    kept.mkdir(exist_ok=True)
    with (kept / f"{deepspeed_ops.OP}.paceline.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)

        def hear(text, moves=False):
            said.append(text)
            fcntl.flock(lock, fcntl.LOCK_UN)

        with pytest.raises(MissingToolError):
            deepspeed_ops.build_ops(hear)
    assert said == ["waiting for another process, which compiles DeepSpeed's CPU Adam"]


def test_a_place_that_cannot_be_written_to_is_said(monkeypatch):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", "/proc/nowhere")
    with pytest.raises(MissingToolError, match="TORCH_EXTENSIONS_DIR"):
        deepspeed_ops.build_ops(silent)


def test_a_folder_that_others_may_write_is_refused(monkeypatch, tmp_path):
    tmp_path.chmod(0o777)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    with pytest.raises(MissingToolError, match="can be written by other users"):
        deepspeed_ops.use_own_folder()


def folder_now(monkeypatch, root):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(root))
    deepspeed_ops.use_own_folder()
    return os.environ["TORCH_EXTENSIONS_DIR"]


def test_a_link_in_the_path_is_followed_once(monkeypatch, tmp_path):
    (tmp_path / "mine").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    monkeypatch.setenv("PATH", os.environ["PATH"])
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "link"))
    deepspeed_ops.use_own_folder()
    assert Path(os.environ["TORCH_EXTENSIONS_DIR"]).parent == tmp_path / "mine", "the link may lead elsewhere later"


def test_environments_of_the_same_versions_share_a_folder_of_this_users(monkeypatch, tmp_path):
    ours = folder_now(monkeypatch, tmp_path)
    assert Path(ours).parent == tmp_path and stat.S_IMODE(Path(ours).stat().st_mode) == 0o700
    deepspeed_ops.use_own_folder()
    assert os.environ["TORCH_EXTENSIONS_DIR"] == ours  # and so in the workers, which inherit it
    monkeypatch.setattr(sys, "prefix", "/elsewhere")
    assert folder_now(monkeypatch, tmp_path) == ours
    for owner, name, value in (
        (torch, "__version__", "9.9"),
        (sys, "version", "9.9"),
        (deepspeed_ops, "version", lambda name: "9.9"),
        (deepspeed_ops, "_compiler", lambda: ("/elsewhere/c++",)),
        (deepspeed_ops, "_processor", lambda: "flags: none"),
    ):
        with monkeypatch.context() as changed:
            changed.setattr(owner, name, value)
            assert folder_now(monkeypatch, tmp_path) != ours, name


def test_another_compiler_of_that_name_is_another(monkeypatch, tmp_path):
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    before = deepspeed_ops._compiler()
    compiler.write_text("#!/bin/sh\n# newer\n")
    assert before != deepspeed_ops._compiler() and before[0] == str(compiler)


def test_half_a_file_is_not_loaded(tmp_path):
    (tmp_path / f"{deepspeed_ops.OP}.so").touch()
    assert not deepspeed_ops._is_built(tmp_path)
    (tmp_path / deepspeed_ops.BUILT).touch()
    assert deepspeed_ops._is_built(tmp_path)


@pytest.mark.slow
@needs_compiler
def test_ops_are_compiled_once_for_all_environments_and_it_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    deepspeed_ops.use_own_folder()
    folder = Path(os.environ["TORCH_EXTENSIONS_DIR"]) / deepspeed_ops.OP
    folder.mkdir(parents=True)
    (folder / "lock").touch()  # of a compilation that was killed
    said, moved = [], []
    deepspeed_ops.build_ops(lambda text, moves=False: (moved if moves else said).append(text))
    assert "compiling" in said[0] and "usually 60 to 120 s" in said[0] and "compiled" in said[-1]
    assert len(moved) > 1 and all("compiling DeepSpeed's CPU Adam: " in text for text in moved)
    deepspeed_ops.build_ops(unasked)
    before = (folder / f"{deepspeed_ops.OP}.so").stat()
    # another environment's command to compile would have other paths
    (folder / "build.ninja").write_text((folder / "build.ninja").read_text().replace("-O3", "-O1"))
    script = "import torch; from paceline.strategies.external.deepspeed_start import quiet_import as q; q()\n"
    script += "from paceline.strategies.external.deepspeed_ops import load_built; load_built()\n"
    script += "from deepspeed.ops.adam import DeepSpeedCPUAdam as Adam\n"
    script += "p = torch.nn.Parameter(torch.ones(8)); p.grad = torch.ones(8); Adam([p]).step(); assert p[0] < 1"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=200)
    assert (folder / f"{deepspeed_ops.OP}.so").stat() == before, "nothing was compiled again"


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_the_compilers_end_with_who_started_them(tmp_path, number):
    script = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # whatever we inherited
    script += "from paceline.strategies.external.deepspeed_ops import build_ops; build_ops(lambda *_, **__: None)"
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
