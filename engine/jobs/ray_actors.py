"""Ray, by its core interface alone: a placement group, and one actor a bundle which runs the workers as its children.

The supervisor is a process of the host where the run was submitted, and starts a driver for each attempt
(ray_driver.py). Ray sees processes and their exit statuses; the workers' own errors come from the files that they
write. Nodes share the folder of runs and the Python environment.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

from annotated_types import Ge, Gt

from ...conf.errors import ConfigError
from ..base.errors import MachineError
from .local_supervisor import LocalSupervisor
from .scheduler import Retries, SubmittedRun

DRIVER = "paceline.engine.jobs.ray_driver"
ANSWERS = 10.0  # seconds for a head to answer
PATIENCE = 120.0  # seconds for a cluster to say what it has


class RayActors(LocalSupervisor):
    def __init__(
        self,
        nodes: Annotated[int, Ge(1)] = 1,
        workers_per_node: Annotated[int, Ge(1)] = 2,
        cpus_per_worker: Annotated[int, Ge(1)] = 1,
        gpus_per_worker: Annotated[int, Ge(0)] = 0,
        address: str = "auto",
        spread: bool = True,
        patience: Annotated[float, Gt(0)] = 600,
        retries: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.nodes, self.workers_per_node, self.retries = nodes, workers_per_node, Retries.of(retries)
        bundle = {"CPU": workers_per_node * cpus_per_worker, "GPU": workers_per_node * gpus_per_worker}
        self._told = {
            "address": address,
            "nodes": nodes,
            "bundle": {key: amount for key, amount in bundle.items() if amount},
            "spread": spread,
            "patience": patience,
            "workers_per_node": workers_per_node,
        }

    def check(self) -> None:
        if find_spec("ray") is None:
            raise MachineError("launcher=ray: Ray is not installed. Run: pip install 'paceline[ray]'")
        check_token()
        address = self._told["address"]
        host, _, port = address.rpartition(":")
        if port.isdecimal():  # Ray itself tries for minutes
            try:
                socket.create_connection((host, int(port)), ANSWERS).close()
            except OSError as error:
                raise MachineError(f"launcher.address={address}: no Ray cluster answers ({error.strerror})") from None
        command = [sys.executable, "-P", "-m", DRIVER, json.dumps(self._told)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            raise MachineError(f"launcher=ray: {address} gave no answer in {PATIENCE:g} s") from None
        if done.returncode == ConfigError.exit_code:
            raise ConfigError(done.stdout.strip())
        if done.returncode:
            raise MachineError(done.stdout.strip() or f"launcher=ray: {' '.join(done.stderr.split())[-500:]}")

    def text(self, job: SubmittedRun) -> str:
        return json.dumps(self._described(job), indent=2)

    def start(self, job: SubmittedRun, attempt: Path) -> subprocess.Popen[bytes]:
        told = self._described(job) | {"variables": job.variables(attempt)}
        return subprocess.Popen([sys.executable, "-P", "-m", DRIVER, json.dumps(told)], stdin=subprocess.DEVNULL)

    def _described(self, job: SubmittedRun) -> dict[str, Any]:
        return self._told | {"command": job.worker, "folder": str(Path.cwd())}


def check_token() -> None:
    """Refuse to start without a token where Ray wants one: it would abort. Raises `MachineError`."""
    if os.environ.get("RAY_AUTH_MODE") != "token":
        return
    named = os.environ.get("RAY_AUTH_TOKEN_PATH")
    file = Path(named) if named else Path.home() / ".ray" / "auth_token"
    if not os.environ.get("RAY_AUTH_TOKEN") and not file.is_file():
        raise MachineError(
            f"launcher=ray: RAY_AUTH_MODE=token, and there is no token in RAY_AUTH_TOKEN or {file}. "
            "Run: ray get-auth-token --generate"
        )
