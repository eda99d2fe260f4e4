"""`paceline doctor`: what works on this machine."""

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing, redirect_stderr
from dataclasses import dataclass
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Annotated

import typer

from ..conf.counted import counted
from .options import Format
from .output import results_alone, show, show_json

IMPOSSIBLE = 3
MIB, GIB = 2**20, 2**30
SHARED_MEMORY = 64 * MIB  # what containers often have, and too little for many workers
SECONDS = 10.0  # to wait for a process group


@dataclass(frozen=True)
class Finding:
    works: bool
    text: str  # what is there, or what is missing and how to get it

    @property
    def state(self) -> str:
        return "ok" if self.works else "no"


@dataclass(frozen=True)
class Check:
    name: str
    look: Callable[[], Finding]
    needed: bool = False  # no training without it


@results_alone()
def doctor(
    build_ops: Annotated[
        bool,
        typer.Option(
            "--build-ops", help="First compile what DeepSpeed needs for strategy.offload, one to two minutes."
        ),
    ] = False,
    format: Format = "table",
) -> None:
    """Tell what works on this machine.

    Fabrics, devices, DeepSpeed, W&B and data. Nothing is downloaded, and nothing built unless asked for.

    Ends with exit status 0 when training is possible here, with 3 otherwise.
    """
    tempfile.gettempdir()  # torch is not imported without one, and a second attempt ends the process
    if build_ops:
        from ..strategies.external.deepspeed_ops import build_ops as build
        from ..tracking.moving_lines import MovingLines

        build(MovingLines())
    findings = {check.name: _find(check) for check in [*CHECKS, *_data_checks()]}
    lacking = [check.name for check in CHECKS if check.needed and not findings[check.name].works]
    if not any(finding.works for name, finding in findings.items() if name.startswith("data=")):
        lacking.append("data")
    if format == "json":
        checks = [{"name": name, "state": found.state, "detail": found.text} for name, found in findings.items()]
        show_json({"training_is_possible": not lacking, "lacking": lacking, "checks": checks})
    else:
        show(_for_people(findings, lacking))
    if lacking:
        raise typer.Exit(IMPOSSIBLE)


def _for_people(findings: dict[str, Finding], lacking: list[str]) -> str:
    width = max(map(len, findings))
    lines = [f"{found.state}  {name:{width}}  {found.text}" for name, found in findings.items()]
    end = f"training is not possible here: {', '.join(lacking)}" if lacking else "training is possible here"
    return "\n".join([*lines, "", end])


def _find(check: Check) -> Finding:
    """A check that fails is a finding, not the end."""
    try:
        return check.look()
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0]
        return Finding(False, f"{type(error).__name__}: {first}")


def _python() -> Finding:
    return Finding(sys.version_info >= (3, 11), f"{platform.python_version()}, {sys.executable}")


def _torch() -> Finding:
    import torch

    return Finding(True, str(torch.__version__))


def _gloo() -> Finding:
    return _meet("cpu")


def _nccl() -> Finding:
    import torch

    if not torch.cuda.is_available():
        return Finding(False, "without a CUDA device there is no use for it")
    return _meet("cuda")


def _meet(device: str) -> Finding:
    """Make a process group of one over loopback and add up: what every run does first."""
    import torch

    from ..comm.connecting import connect
    from ..comm.rendezvous import serve_store

    value = torch.ones(1, device=device)
    with closing(serve_store(0)) as store, closing(connect(store.endpoint, 0, 1, SECONDS, value.device)) as comm:
        # not comm.all_reduce: one worker has nobody to call, and makes no group
        comm.make_group(comm.store, comm.rank, comm.size).allreduce([value]).wait()
    return Finding(value.item() == 1, f"workers meet over loopback and exchange {device} tensors")


def _cpu() -> Finding:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Finding(True, f"{counted(len(os.sched_getaffinity(0)), 'core')} to use, {memory / GIB:.1f} GiB of memory")


def _cuda() -> Finding:
    import torch

    devices = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    if not devices:
        why = ", and this torch is built for CPUs" if not torch.backends.cuda.is_built() else ""
        return Finding(False, f"no CUDA device{why}; workers train on the CPU")
    return Finding(True, ", ".join(f"{device.name} {device.total_memory / GIB:.0f} GiB" for device in devices))


def _shared_memory() -> Finding:
    state = os.statvfs("/dev/shm")
    free, size = state.f_bavail * state.f_frsize, state.f_blocks * state.f_frsize
    hint = "" if free >= SHARED_MEMORY else "; more for a container: --shm-size=1g"
    return Finding(free >= SHARED_MEMORY, f"/dev/shm: {free / MIB:,.0f} MiB free of {size / MIB:,.0f}{hint}")


def _sums() -> Finding:
    """Finds out how workers of one host make a sum. Compiles the native code if it can."""
    return _native("workers of one host add up in shared memory", "all_reduce")


def _distances() -> Finding:
    """Finds out how robust rules compute distances. Compiles the native code if it can."""
    return _native("robust rules compute distances between updates", "distances")


def _rounding() -> Finding:
    """Finds out how qsgd and terngrad round. Compiles the native code if it can."""
    return _native("compress=qsgd and terngrad round", "rounding")


def _links() -> Finding:
    """Finds out how the virtual cluster computes when messages arrive. Compiles the native code if it can."""
    return _native("hardware=virtual computes messages", "links", "Python")


def _native(what: str, library: str, instead: str = "torch") -> Finding:
    from ..comm import native

    if not (why := native.why_not(library)):
        return Finding(True, f"{what}, by native code")
    return Finding(
        False,
        f"{what}, by {instead}, which is slower, as there is no native code: {why}. It needs a C compiler (apt-get "
        "install gcc), and ~/.cache or XDG_CACHE_HOME with room in it, which no other user can write",
    )


def _run_directory() -> Finding:
    from ..engine import ROOT

    place = next(path for path in [ROOT.absolute(), *ROOT.absolute().parents] if path.exists())
    free = f"{shutil.disk_usage(place).free / GIB:,.1f} GiB free"
    writable = os.access(place, os.W_OK)
    return Finding(writable, f"{ROOT.absolute()}: {free if writable else 'cannot be written'}")


def _deepspeed() -> Finding:
    """Looked for, not imported: importing it takes seconds and may build."""
    from importlib.metadata import version

    installed = version("deepspeed")
    built = sorted({path.stem for path in _extensions().rglob("*.so")}) if _extensions().is_dir() else []
    missing = [tool for tool, there in (("g++", _has_compiler()), ("ninja", _has_ninja())) if not there]
    ops = f"ops built: {', '.join(built)}" if built else "no ops built yet: the first use takes a minute or two"
    if missing:
        return Finding(bool(built), f"{installed}; {ops}; to build them, install {' and '.join(missing)}")
    return Finding(True, f"{installed}; {ops}")


def _extensions() -> Path:
    given = os.environ.get("TORCH_EXTENSIONS_DIR")
    return Path(given) if given else Path.home() / ".cache" / "torch_extensions"


def _has_compiler() -> bool:
    return shutil.which(os.environ.get("CXX") or "c++") is not None or shutil.which("g++") is not None


def _has_ninja() -> bool:
    from importlib.util import find_spec

    return shutil.which("ninja") is not None or find_spec("ninja") is not None


def _wandb() -> Finding:
    """Finds out whether there is an API key and for which server, without showing the key."""
    from importlib.metadata import version

    from ..compat.wandb import load_settings
    from ..tracking.redact import hide_in_urls
    from ..tracking.wandb import NO_KEY, mode_of

    installed = version("wandb")
    asked = os.environ.get("WANDB_MODE")
    if asked in ("offline", "disabled"):
        return Finding(True, f"{installed}, {asked}: as WANDB_MODE says")
    with redirect_stderr(StringIO()):  # it says which file it reads
        known = load_settings()
    mode, reason = mode_of("auto", known)
    if mode == "online":
        reason = f"an API key is there for {hide_in_urls(known.base_url)}"
    hint = "; for online: wandb login" if reason == NO_KEY else ""
    return Finding(True, f"{installed}, {mode}: {reason}{hint}")


def _data_checks() -> list[Check]:
    from .choices import groups

    return [Check(f"data={choice.name}", partial(_data, choice.name)) for choice in groups()["data"]]


def _data(name: str) -> Finding:
    from .. import engine
    from ..engine.config.targets import build
    from ..tasks.base import Data
    from ..tasks.data.files import folder_of

    chosen = engine.prepare([f"data={name}", "tracking=none"]).experiment.data
    data = build("data", chosen, Data, (), {})
    if data.reader is not None and folder_of(data.reader) is None:
        return Finding(False, f"{data.reader}, which reads them, is not installed")
    if getattr(data, "path", name) is None:
        return Finding(True, f"reads files of yours. {data.how_to_get()}")
    found = data.found()
    return Finding(bool(found), found or f"missing. {data.how_to_get()}")


CHECKS = [
    Check("python", _python, needed=True),
    Check("torch", _torch, needed=True),
    Check("gloo", _gloo, needed=True),
    Check("nccl", _nccl),
    Check("cpu", _cpu),
    Check("cuda", _cuda),
    Check("shared memory", _shared_memory),
    Check("sums", _sums),
    Check("distances", _distances),
    Check("rounding", _rounding),
    Check("links", _links),
    Check("runs", _run_directory, needed=True),
    Check("deepspeed", _deepspeed),
    Check("wandb", _wandb),
]
